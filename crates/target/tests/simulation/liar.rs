//! Backends with a planted bug: a simulation that does not notice them proves nothing.

use std::collections::{BTreeSet, VecDeque};

use buf::{Cx, Errno, Payload};
use volume::{Backend, DiskOp, Done, Durability, Geometry, Io, IoId, Op, Outcome};

/// The bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A flush is answered at once.
    EarlyFlush,
    /// FUA is forgotten.
    NoFua,
    /// A write is answered before it is done.
    EarlyWrite,
    /// One write in forty goes to the block behind.
    Misplaced,
    /// One write in forty loses its second half.
    Torn,
    /// One read in forty gives the block before.
    WrongBlock,
    /// One read in forty is never answered.
    Lost,
}

pub const LIES: [Lie; 7] =
    [Lie::EarlyFlush, Lie::NoFua, Lie::EarlyWrite, Lie::Misplaced, Lie::Torn, Lie::WrongBlock, Lie::Lost];

/// A backend that is honest but for one thing.
pub struct Liar<B> {
    inner: B,
    lie: Option<Lie>,
    count: u32,
    done: VecDeque<Done>,
    /// Operations whose end was told already, or never will be.
    told: BTreeSet<IoId>,
}

impl<B: Backend> Liar<B> {
    pub fn new(inner: B, lie: Option<Lie>) -> Self {
        Liar { inner, lie, count: 0, done: VecDeque::new(), told: BTreeSet::new() }
    }

    fn one_in_forty(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(40)
    }

    fn tell(&mut self, id: IoId, payload: Payload) {
        self.done.push_back(Done { id, result: Ok(Outcome::Complete), payload });
    }
}

impl<B: Backend> Backend for Liar<B> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&mut self, cx: &mut Cx<'_>, mut io: Io) {
        let blocks = self.inner.geometry().blocks;
        match (self.lie, &mut io.op, &io.payload) {
            (Some(Lie::EarlyFlush), Op::Flush, _) => return self.tell(io.id, io.payload),
            (Some(Lie::NoFua), Op::Write(_, durability), _) => *durability = Durability::Cached,
            (Some(Lie::EarlyWrite), Op::Write(..), Payload::Out(data)) => {
                let data = data.clone();
                self.told.insert(io.id);
                self.tell(io.id, Payload::Out(data));
            }
            (Some(Lie::Misplaced), Op::Write(span, _), _) if span.lba + span.blocks < blocks => {
                if self.one_in_forty() {
                    span.lba += 1;
                }
            }
            (Some(Lie::Torn), Op::Write(span, _), Payload::Out(data)) if span.blocks > 1 => {
                if self.one_in_forty() {
                    let block = data.len() / span.blocks as usize;
                    span.blocks /= 2;
                    io.payload = Payload::Out(data.slice(0..block * span.blocks as usize));
                }
            }
            (Some(Lie::WrongBlock), Op::Read(span), Payload::In(_)) => {
                if self.one_in_forty() {
                    span.lba = span.lba.saturating_sub(1);
                }
            }
            (Some(Lie::Lost), Op::Read(_), _) => {
                if self.one_in_forty() {
                    self.told.insert(io.id);
                }
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
}
