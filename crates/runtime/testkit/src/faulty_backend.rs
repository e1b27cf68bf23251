//! Backends with a planted defect, which a simulation must notice.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buf::{Cx, Errno, MemoryClass, Payload};
use volume::{Backend, DiskKind, DiskOp, Durability, Geometry, Io, IoCompletion, IoId, Op, Outcome};

/// The defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
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
    /// Shards do not know of each other's writes and syncs: those who make the disks see to it.
    DisksApart,
    /// A write's data lands in the place of another's: one in twenty of those as long as the one before.
    DataOfAnother,
    /// Zeroes are not written and nothing is unmapped.
    NothingDeallocated,
}

/// Defects that reads and writes show.
pub const READ_WRITE_DEFECTS: [Defect; 7] = [
    Defect::EarlyFlush,
    Defect::NoFua,
    Defect::EarlyWrite,
    Defect::Misplaced,
    Defect::Torn,
    Defect::WrongBlock,
    Defect::Lost,
];
/// Defects of what is said to be stable.
pub const SYNC_DEFECTS: [Defect; 4] =
    [Defect::BeginsClean, Defect::ErrorEaten, Defect::StableErrorEaten, Defect::DisksApart];

/// A backend that is good but for one thing.
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    defect: Option<Defect>,
    count: u32,
    /// Data of an earlier write.
    earlier: Vec<u8>,
    done: VecDeque<IoCompletion>,
    /// Operations whose end was told already, or never will be.
    told: BTreeSet<IoId>,
    /// Whether any shard has written something.
    written: Arc<AtomicBool>,
}

impl<B: Backend> FaultyBackend<B> {
    pub fn new(inner: B, defect: Option<Defect>) -> Self {
        Self::with_shared_state(inner, defect, Arc::default())
    }

    /// One of several shards' backends of a disk, which share `written`.
    pub fn with_shared_state(inner: B, defect: Option<Defect>, written: Arc<AtomicBool>) -> Self {
        FaultyBackend {
            inner,
            defect,
            count: 0,
            earlier: vec![],
            done: VecDeque::new(),
            told: BTreeSet::new(),
            written,
        }
    }

    /// Whether this is one in forty of the operations that the defect is about.
    fn should_inject(&mut self, io: &Io) -> bool {
        let about = match (self.defect, &io.op) {
            (Some(Defect::Misplaced), Op::Write(span, _)) => {
                span.lba + span.blocks < self.inner.geometry().blocks
            }
            (Some(Defect::Torn), Op::Write(span, _)) => span.blocks > 1,
            (Some(Defect::WrongBlock | Defect::Lost), Op::Read(_)) => true,
            _ => false,
        };
        self.count += u32::from(about);
        about && self.count.is_multiple_of(40)
    }

    fn corrupt_io(&mut self, io: &mut Io) {
        match &mut io.op {
            Op::Write(span, _) if self.defect == Some(Defect::Misplaced) => span.lba += 1,
            Op::Write(span, _) => {
                let Payload::Out(data) = &io.payload else { return };
                let block = data.len() / span.blocks as usize;
                span.blocks /= 2;
                io.payload = Payload::Out(data.slice(0..block * span.blocks as usize));
            }
            Op::Read(span) if self.defect == Some(Defect::WrongBlock) => {
                span.lba = span.lba.saturating_sub(1)
            }
            _ => {
                self.told.insert(io.id);
            }
        }
    }

    /// Once in twenty writes of the length of the one before, its data is that one's.
    fn repeat_previous_data(&mut self, cx: &Cx<'_>, io: &mut Io) {
        let Payload::Out(data) = &io.payload else { return };
        let mut bytes = vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        let alike = self.earlier.len() == bytes.len();
        self.count += u32::from(alike);
        let memory = cx.pool.take_sg(MemoryClass::Solicited, bytes.len());
        if let (true, true, Some(mut memory)) = (alike, self.count.is_multiple_of(20), memory) {
            memory.copy_from(0, &self.earlier);
            io.payload = Payload::Out(memory.freeze());
        }
        self.earlier = bytes;
    }

    fn complete_io(&mut self, id: IoId, payload: Payload) {
        self.done.push_back(IoCompletion { id, result: Ok(Outcome::Complete), payload });
    }
}

impl<B: Backend> Backend for FaultyBackend<B> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&mut self, cx: &mut Cx<'_>, mut io: Io) {
        if io.op.is_write() {
            self.written.store(true, Ordering::Relaxed);
        }
        match (self.defect, &mut io.op, &io.payload) {
            (Some(Defect::EarlyFlush), Op::Flush, _) => return self.complete_io(io.id, io.payload),
            (Some(Defect::BeginsClean), Op::Flush, _) if !self.written.load(Ordering::Relaxed) => {
                return self.complete_io(io.id, io.payload);
            }
            (Some(Defect::NoFua), Op::Write(_, durability), _) => *durability = Durability::Cached,
            (Some(Defect::EarlyWrite), Op::Write(..), Payload::Out(data)) => {
                let data = data.clone();
                self.told.insert(io.id);
                self.complete_io(io.id, Payload::Out(data));
            }
            (Some(Defect::NothingDeallocated), Op::WriteZeroes { .. } | Op::Unmap(_), _) => {
                return self.complete_io(io.id, io.payload);
            }
            (Some(Defect::DataOfAnother), Op::Write(..), _) => self.repeat_previous_data(cx, &mut io),
            _ => {}
        }
        if self.should_inject(&io) {
            self.corrupt_io(&mut io);
        }
        self.inner.submit(cx, io);
    }

    fn resume(&mut self) {
        self.inner.resume();
    }

    fn wants_resume(&self) -> bool {
        self.inner.wants_resume()
    }

    fn cancel(&mut self, id: IoId) {
        self.inner.cancel(id);
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
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
        let came = match (self.defect, &op.kind, came) {
            (Some(Defect::ErrorEaten), DiskKind::Sync, Err(_)) => Ok(0),
            (Some(Defect::StableErrorEaten), DiskKind::Write { durable: true, .. }, Err(_)) => Err(OWN),
            (_, _, came) => came,
        };
        self.inner.handle_disk(cx, op, came);
    }

    fn poll_shard_to_wake(&mut self) -> Option<volume::ShardId> {
        self.inner.poll_shard_to_wake()
    }

    fn handle_wake(&mut self) {
        self.inner.handle_wake();
    }
}
