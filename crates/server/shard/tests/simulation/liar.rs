//! Backends with a planted bug: a simulation that does not notice them proves nothing.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buf::{Cx, Errno, Payload};
use volume::{Backend, DiskKind, DiskOp, Done, Durability, Geometry, Io, IoId, Op, Outcome};

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
    /// Until somebody writes, everything is taken for stable.
    BeginsClean,
    /// A sync that failed is taken for one that did not.
    ErrorEaten,
    /// What a stable write is told is taken for its own concern.
    StableErrorEaten,
    /// Shards do not know of each other's writes and syncs.
    DisksApart,
}

pub const LIES: [Lie; 7] =
    [Lie::EarlyFlush, Lie::NoFua, Lie::EarlyWrite, Lie::Misplaced, Lie::Torn, Lie::WrongBlock, Lie::Lost];
pub const LIES_OF_SYNCS: [Lie; 4] =
    [Lie::BeginsClean, Lie::ErrorEaten, Lie::StableErrorEaten, Lie::DisksApart];

/// A backend that is honest but for one thing.
pub struct Liar<B> {
    inner: B,
    lie: Option<Lie>,
    count: u32,
    done: VecDeque<Done>,
    /// Operations whose end was told already, or never will be.
    told: BTreeSet<IoId>,
    /// Whether any shard has written something.
    written: Arc<AtomicBool>,
}

impl<B: Backend> Liar<B> {
    pub fn new(inner: B, lie: Option<Lie>, written: Arc<AtomicBool>) -> Self {
        Liar { inner, lie, count: 0, done: VecDeque::new(), told: BTreeSet::new(), written }
    }

    /// Whether this is one in forty of the operations that the lie is about.
    fn strikes(&mut self, io: &Io) -> bool {
        let about = match (self.lie, &io.op) {
            (Some(Lie::Misplaced), Op::Write(span, _)) => {
                span.lba + span.blocks < self.inner.geometry().blocks
            }
            (Some(Lie::Torn), Op::Write(span, _)) => span.blocks > 1,
            (Some(Lie::WrongBlock | Lie::Lost), Op::Read(_)) => true,
            _ => false,
        };
        self.count += u32::from(about);
        about && self.count.is_multiple_of(40)
    }

    fn distort(&mut self, io: &mut Io) {
        match &mut io.op {
            Op::Write(span, _) if self.lie == Some(Lie::Misplaced) => span.lba += 1,
            Op::Write(span, _) => {
                let Payload::Out(data) = &io.payload else { return };
                let block = data.len() / span.blocks as usize;
                span.blocks /= 2;
                io.payload = Payload::Out(data.slice(0..block * span.blocks as usize));
            }
            Op::Read(span) if self.lie == Some(Lie::WrongBlock) => span.lba = span.lba.saturating_sub(1),
            _ => {
                self.told.insert(io.id);
            }
        }
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
        if io.op.is_write() {
            self.written.store(true, Ordering::Relaxed);
        }
        match (self.lie, &mut io.op, &io.payload) {
            (Some(Lie::EarlyFlush), Op::Flush, _) => return self.tell(io.id, io.payload),
            (Some(Lie::BeginsClean), Op::Flush, _) if !self.written.load(Ordering::Relaxed) => {
                return self.tell(io.id, io.payload);
            }
            (Some(Lie::NoFua), Op::Write(_, durability), _) => *durability = Durability::Cached,
            (Some(Lie::EarlyWrite), Op::Write(..), Payload::Out(data)) => {
                let data = data.clone();
                self.told.insert(io.id);
                self.tell(io.id, Payload::Out(data));
            }
            _ => {}
        }
        if self.strikes(&io) {
            self.distort(&mut io);
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
        /// ENOSPC, which is about the write alone.
        const OWN: Errno = Errno(28);
        let came = match (self.lie, &op.kind, came) {
            (Some(Lie::ErrorEaten), DiskKind::Sync, Err(_)) => Ok(0),
            (Some(Lie::StableErrorEaten), DiskKind::Write { durable: true, .. }, Err(_)) => Err(OWN),
            (_, _, came) => came,
        };
        self.inner.handle_disk(cx, op, came);
    }

    fn poll_wake(&mut self) -> Option<volume::Shard> {
        self.inner.poll_wake()
    }

    fn handle_wake(&mut self) {
        self.inner.handle_wake();
    }
}
