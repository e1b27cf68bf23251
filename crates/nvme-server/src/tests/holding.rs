//! A RAM disk that keeps what it is given until it is told to go on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use buf::{Cx, Entropy, Pool, Time};
use volume::{Backend, DiskOp, Done, Errno, Geometry, Io, IoId, Ram};

/// A disk whose operations can be held up; what is held does not listen to cancels.
pub(super) struct Holding {
    pub(super) inner: Ram,
    pub(super) hold: Rc<Cell<bool>>,
    pub(super) held: VecDeque<Io>,
    pub(super) kinds: Rc<RefCell<Vec<volume::Op>>>,
    pub(super) geometry: Geometry,
}

impl Backend for Holding {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.kinds.borrow_mut().push(io.op.clone());
        if self.hold.get() {
            self.held.push_back(io);
        } else {
            self.inner.submit(cx, io);
        }
    }
    fn cancel(&mut self, _id: IoId) {}
    fn poll_done(&mut self) -> Option<Done> {
        if !self.hold.get() && !self.held.is_empty() {
            let pool = Pool::new(1 << 20);
            let mut entropy = Entropy::new([9; 32]);
            let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
            for io in self.held.drain(..) {
                self.inner.submit(&mut cx, io);
            }
        }
        self.inner.poll_done()
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        None
    }
    fn handle_disk(&mut self, _cx: &mut Cx<'_>, _op: DiskOp, _came: Result<usize, Errno>) {
        unreachable!("memory asks for no disk operation");
    }
}
