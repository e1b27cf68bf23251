//! The image of a volume that all gateways reach: executes each operation some time after it was submitted, and those of
//! a barred instance never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buf::{Cx, Errno};
use group::{InstanceId, Term};
use volume::{
    Backend, DiskId, DiskKind, DiskOp, DiskTicket, Fault, Geometry, Io, IoCompletion, IoId, RamBackend,
    RamDisk,
};

/// What all gateways' backends of an image share.
pub struct Image {
    pub ram: Arc<RamDisk>,
    state: Mutex<ImageState>,
}

#[derive(Default)]
pub struct ImageState {
    pub barred: BTreeSet<InstanceId>,
    /// The latest term that was served.
    pub served: Term,
    /// The term in which each instance has it open.
    pub terms: BTreeMap<InstanceId, Term>,
    /// Operations of barred instances that were refused.
    pub refused: u64,
    /// Operations that were executed for another term than the latest.
    pub stale: u64,
}

impl Image {
    pub fn new(blocks: u64) -> Arc<Image> {
        let ram = Arc::new(RamDisk::new(blocks, blocks, 512, 4096));
        Arc::new(Image { ram, state: Mutex::default() })
    }

    pub fn state(&self) -> MutexGuard<'_, ImageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn geometry(&self) -> Geometry {
        Geometry { lends: false, ..RamBackend::new(self.ram.clone()).geometry() }
    }
}

/// A shard's backend of an image.
pub struct ImageBackend {
    inner: RamBackend,
    image: Arc<Image>,
    instance: InstanceId,
    disk: DiskId,
    made: u64,
    held: BTreeMap<u64, Io>,
    out: VecDeque<DiskOp>,
    done: VecDeque<IoCompletion>,
}

impl ImageBackend {
    pub fn new(image: Arc<Image>, instance: InstanceId, disk: DiskId) -> ImageBackend {
        ImageBackend {
            inner: RamBackend::new(image.ram.clone()),
            image,
            instance,
            disk,
            made: 0,
            held: BTreeMap::new(),
            out: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    fn may_execute(&self) -> bool {
        let mut state = self.image.state();
        if state.barred.contains(&self.instance) {
            state.refused += 1;
            return false;
        }
        let term = state.terms.get(&self.instance).copied().unwrap_or_default();
        state.stale += u64::from(term < state.served);
        true
    }
}

impl Backend for ImageBackend {
    fn geometry(&self) -> Geometry {
        self.image.geometry()
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        self.made += 1;
        self.held.insert(self.made, io);
        // The world has it for some time.
        self.out.push_back(DiskOp { disk: self.disk, ticket: DiskTicket(self.made), kind: DiskKind::Sync });
    }

    fn cancel(&mut self, _id: IoId) {}

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.out.pop_front()
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, _came: Result<usize, Errno>) {
        let Some(io) = self.held.remove(&op.ticket.0) else { return };
        if !self.may_execute() {
            let result = Err(Fault::PathLost.into());
            return self.done.push_back(IoCompletion { id: io.id, result, payload: io.payload });
        }
        self.inner.submit(cx, io);
        while self.inner.wants_resume() {
            self.inner.resume();
        }
        while let Some(done) = self.inner.poll_done() {
            self.done.push_back(done);
        }
    }
}
