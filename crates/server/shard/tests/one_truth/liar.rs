//! Backends with a planted bug, of the kinds that two protocols on one volume invite.

use std::collections::{BTreeSet, VecDeque};

use buf::{Class, Cx, Errno, Payload};
use volume::{Backend, DiskOp, Done, Geometry, Io, IoId, Op, Outcome};

use crate::plan::Bug;

/// A backend that is honest but for one thing.
pub struct Liar<B> {
    inner: B,
    bug: Option<Bug>,
    count: u32,
    /// Data of an earlier write.
    earlier: Vec<u8>,
    done: VecDeque<Done>,
    /// Operations whose end was told already.
    told: BTreeSet<IoId>,
}

impl<B: Backend> Liar<B> {
    pub fn new(inner: B, bug: Option<Bug>) -> Self {
        Liar { inner, bug, count: 0, earlier: vec![], done: VecDeque::new(), told: BTreeSet::new() }
    }

    fn tell(&mut self, id: IoId, payload: Payload) {
        self.done.push_back(Done { id, result: Ok(Outcome::Complete), payload });
    }

    /// Once in twenty writes of the length of the one before, its data is that one's.
    fn mix_up(&mut self, cx: &Cx<'_>, io: &mut Io) {
        let Payload::Out(data) = &io.payload else { return };
        let mut bytes = vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        let alike = self.earlier.len() == bytes.len();
        self.count += u32::from(alike);
        let memory = cx.pool.take_sg(Class::Solicited, bytes.len());
        if let (true, true, Some(mut memory)) = (alike, self.count.is_multiple_of(20), memory) {
            memory.copy_from(0, &self.earlier);
            io.payload = Payload::Out(memory.freeze());
        }
        self.earlier = bytes;
    }
}

impl<B: Backend> Backend for Liar<B> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&mut self, cx: &mut Cx<'_>, mut io: Io) {
        match (self.bug, &io.op, &io.payload) {
            (Some(Bug::FenceNotAwaited), Op::Write(..), Payload::Out(data)) => {
                let data = data.clone();
                self.told.insert(io.id);
                self.tell(io.id, Payload::Out(data));
            }
            (Some(Bug::DataOfAnother), Op::Write(..), _) => self.mix_up(cx, &mut io),
            (Some(Bug::NothingDeallocated), Op::WriteZeroes { .. } | Op::Unmap(_), _) => {
                return self.tell(io.id, io.payload);
            }
            _ => {}
        }
        self.inner.submit(cx, io);
    }

    fn cancel(&mut self, id: IoId) {
        self.inner.cancel(id);
    }

    fn poll_done(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        loop {
            let done = self.inner.poll_done()?;
            if !self.told.remove(&done.id) {
                return Some(done);
            }
        }
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.inner.poll_disk()
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.inner.handle_disk(cx, op, came);
    }

    fn poll_wake(&mut self) -> Option<volume::Shard> {
        self.inner.poll_wake()
    }

    fn handle_wake(&mut self) {
        self.inner.handle_wake();
    }
}
