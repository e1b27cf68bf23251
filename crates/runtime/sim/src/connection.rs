//! Connections: two byte streams between a shard's link and a peer controlled by the test.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;

use buf::Errno;
use endpoint::{LinkId, ShardId};
use stream::{Received, RecvOp, SendOp};

use crate::rng::SimRng;

/// Names the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub usize);

/// How the shard's side has ended a connection, as its peer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// It goes on.
    Open,
    /// All bytes came, then the end.
    Closed,
    /// A reset.
    Reset,
}

/// ECONNRESET, as Linux numbers it.
pub(crate) const ECONNRESET: Errno = Errno(104);

/// One connection.
#[derive(Debug)]
pub(crate) struct SimConnection {
    /// Where the shard's end lives now.
    pub(crate) home: Option<(ShardId, LinkId)>,
    /// Bytes on their way to the shard.
    pub(crate) to_shard: VecDeque<u8>,
    /// The peer has sent its last byte.
    pub(crate) peer_done: bool,
    /// The connection was reset by either side.
    pub(crate) reset: bool,
    /// Bytes that have reached the peer.
    pub(crate) to_peer: VecDeque<u8>,
    /// How many bytes the peer's window takes before it reads.
    pub(crate) window: usize,
    pub(crate) end: PeerEnd,
    /// The receive that is out.
    pub(crate) recv: Option<RecvOp>,
    /// The send that is out, and how much of it is written.
    pub(crate) send: Option<(SendOp, usize)>,
    /// Batches that are written but whose memory the kernel still holds.
    pub(crate) held: VecDeque<SendOp>,
    /// Whether the shard has let go of its end.
    pub(crate) departed: bool,
    /// The other end, if that is a shard's as well: what has reached this wire's peer is carried to it.
    pub(crate) twin: Option<Peer>,
    /// The address that was dialled.
    pub(crate) via: Option<SocketAddr>,
    /// Nothing of it arrives any more, and nobody is told.
    pub(crate) silent: bool,
}

impl SimConnection {
    pub(crate) fn new(window: usize) -> Self {
        SimConnection {
            home: None,
            to_shard: VecDeque::new(),
            peer_done: false,
            reset: false,
            to_peer: VecDeque::new(),
            window,
            end: PeerEnd::Open,
            recv: None,
            send: None,
            held: VecDeque::new(),
            departed: false,
            twin: None,
            via: None,
            silent: false,
        }
    }

    /// What a receive would bring now: a chance part of what has arrived. `None`: nothing yet.
    pub(crate) fn recv_random_part(
        &mut self,
        chance: &mut SimRng,
        stage: impl FnOnce(usize) -> Option<buf::BufMut>,
        loan: Option<&buf::Pool>,
    ) -> Option<(RecvOp, Received)> {
        self.recv.as_ref()?;
        if self.reset {
            return self.recv.take().map(|op| (op, Received::Failed(ECONNRESET)));
        }
        if self.to_shard.is_empty() {
            let done = self.peer_done.then(|| self.recv.take()).flatten();
            return done.map(|op| (op, Received::End));
        }
        let arrived = match chance.below(4) {
            0 => self.to_shard.len(),
            1 => 1,
            _ => chance.between(1, self.to_shard.len() as u64) as usize,
        };
        if let Some(pool) = loan {
            return self.recv_loaned(pool, arrived);
        }
        let mut op = self.recv.take()?;
        let mut taken = 0;
        if let Some(direct) = &mut op.direct {
            let want = direct.want.clone();
            let now = want.len().min(arrived);
            for slice in direct.data.slices_mut(want.start..want.start + now) {
                fill_from(slice, &mut self.to_shard);
            }
            taken += now;
        }
        let rest = arrived - taken;
        let direct_full = op.direct.as_ref().is_none_or(|direct| taken == direct.want.len());
        if rest > 0 && op.stage_len > 0 && direct_full {
            match stage(op.stage_len) {
                Some(mut memory) => {
                    let now = rest.min(memory.capacity()).min(op.stage_len);
                    memory.set_len(now);
                    fill_from(&mut memory, &mut self.to_shard);
                    op.stage = Some(memory);
                    taken += now;
                }
                None if taken == 0 => {
                    self.recv = Some(op);
                    return None;
                }
                None => {}
            }
        }
        if taken == 0 {
            self.recv = Some(op);
            return None;
        }
        Some((op, Received::Bytes(taken)))
    }

    fn recv_loaned(&mut self, pool: &buf::Pool, arrived: usize) -> Option<(RecvOp, Received)> {
        let wanted = {
            let op = self.recv.as_ref()?;
            op.direct.as_ref().map_or(0, |direct| direct.want.len()) + op.stage_len
        };
        let now = arrived.min(wanted);
        if now == 0 {
            return None;
        }
        let mut pages = pool.take_sg(buf::MemoryClass::Wire, now)?;
        for slice in pages.slices_mut(0..now) {
            fill_from(slice, &mut self.to_shard);
        }
        self.recv.take().map(|op| (op, Received::Loaned(pages.freeze())))
    }

    /// Moves a chance part of the send that is out to the peer. True if all of it is written.
    pub(crate) fn send_random_part(&mut self, chance: &mut SimRng) -> Option<Result<(), Errno>> {
        let (op, written) = self.send.as_mut()?;
        if self.reset {
            let (op, _) = self.send.take()?;
            self.held.push_back(op);
            return Some(Err(ECONNRESET));
        }
        let room = self.window.saturating_sub(self.to_peer.len());
        let left = op.len - *written;
        let now = match chance.below(3) {
            0 => chance.between(1, left as u64) as usize,
            _ => left,
        };
        let now = now.min(room);
        let mut bytes = vec![0; now];
        let copied = op.copy_to(*written, &mut bytes);
        assert_eq!(copied, now, "a batch is as long as it says");
        self.to_peer.extend(bytes);
        *written += now;
        if *written < op.len {
            return None;
        }
        let (op, _) = self.send.take()?;
        self.held.push_back(op);
        Some(Ok(()))
    }
}

#[expect(clippy::expect_used, reason = "its callers have counted what has arrived")]
fn fill_from(slice: &mut [u8], from: &mut VecDeque<u8>) {
    from.read_exact(slice).expect("the caller counted what has arrived");
}
