//! Delivers received bytes to a pending receive: all at once or in pieces, into its memory, its stage or
//! pages of the transport.

use std::collections::VecDeque;

use buf::{MemoryClass, Payload, Pool};
use stream::{Received, RecvOp, SendOp};

/// Most bytes that come as loaned pages at once.
const LOAN_MAX: usize = 100_000;

/// How one direction of a connection delivers.
#[derive(Clone, Debug)]
pub struct RecvDelivery {
    /// At most so many bytes per receive, in turn; none: as many as there are.
    pub chunks: Vec<usize>,
    pub at: usize,
    /// Everything comes as loaned pages.
    pub loaned: bool,
    /// The stage holds at most so many bytes.
    pub stage_max: usize,
    /// Stages are as long as they may be, as the reactor's are; else as long as what they hold.
    pub long_stages: bool,
}

impl RecvDelivery {
    /// As much as there is.
    pub fn unlimited() -> Self {
        RecvDelivery { chunks: Vec::new(), at: 0, loaned: false, stage_max: usize::MAX, long_stages: false }
    }

    /// As the reactor does.
    pub fn long_stages() -> Self {
        RecvDelivery { long_stages: true, ..Self::unlimited() }
    }

    /// Fills a receive with bytes of `inbox`, which are taken from it.
    pub fn fill_recv(&mut self, pool: &Pool, mut op: RecvOp, inbox: &mut VecDeque<u8>) -> (RecvOp, Received) {
        let most = match self.chunks.len() {
            0 => usize::MAX,
            count => self.chunks[self.at % count].max(1),
        };
        self.at += 1;
        if self.loaned {
            let mut page =
                pool.take_sg(MemoryClass::Wire, most.min(inbox.len()).min(LOAN_MAX)).expect("memory");
            page.slices_mut(0..page.len()).for_each(|slice| drain_into(inbox, slice));
            return (op, Received::Loaned(page.freeze()));
        }
        let mut taken = 0;
        if let Some(direct) = &mut op.direct {
            taken = direct.want.len().min(most).min(inbox.len());
            let now = direct.want.start..direct.want.start + taken;
            direct.data.slices_mut(now).for_each(|slice| drain_into(inbox, slice));
        }
        let full = op.direct.as_ref().is_none_or(|direct| taken == direct.want.len());
        let rest = (most - taken).min(inbox.len()).min(self.stage_max).min(op.stage_len);
        if full && rest > 0 {
            let len = if self.long_stages { op.stage_len } else { rest };
            let mut stage = pool.take(MemoryClass::Wire, len).expect("memory");
            stage.set_len(rest);
            drain_into(inbox, &mut stage);
            op.stage = Some(stage);
            taken += rest;
        }
        (op, Received::Bytes(taken))
    }
}

fn drain_into(from: &mut VecDeque<u8>, into: &mut [u8]) {
    let len = into.len();
    let (first, second) = from.as_slices();
    let n = first.len().min(len);
    into[..n].copy_from_slice(&first[..n]);
    into[n..].copy_from_slice(&second[..len - n]);
    from.drain(..len);
}

/// The bytes of a batch that a session sends.
pub fn send_op_bytes(op: &SendOp) -> Vec<u8> {
    let mut bytes = vec![0; op.len];
    assert_eq!(op.copy_to(0, &mut bytes), op.len, "a batch is as long as it says");
    bytes
}

/// Memory with these bytes, for a write.
pub fn payload_with_bytes(pool: &Pool, bytes: &[u8]) -> Payload {
    let mut data = pool.take_sg(MemoryClass::Solicited, bytes.len()).expect("memory");
    data.copy_from(0, bytes);
    Payload::Out(data.freeze())
}

/// Memory for a read, that held something else.
pub fn payload_for_read(pool: &Pool, len: usize) -> Payload {
    let mut data = pool.take_sg(MemoryClass::Solicited, len).expect("memory");
    data.slices_mut(0..len).for_each(|slice| slice.fill(0xee));
    Payload::In(data)
}

/// The bytes of memory.
pub fn payload_bytes(payload: Payload) -> Vec<u8> {
    let sg = payload.into_sg();
    let mut bytes = vec![0; sg.len()];
    sg.copy_to(0, &mut bytes);
    bytes
}
