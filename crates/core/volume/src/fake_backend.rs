//! A volume for the tests of the servers: a disk that the test controls. Only with feature `fake`, which only
//! tests enable.
#![allow(clippy::unreachable, reason = "a test that asks for what it does not have shall end")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use buf::{Cx, Entropy, Pool, Time};

use crate::backend::{Backend, Geometry};
use crate::io::{Fault, Io, IoCompletion, IoId, Op, Span};
use crate::ram::RamBackend;

/// What a test does to its disks, and learns of them. Clones control the same disks.
#[derive(Clone, Debug, Default)]
pub struct FakeControls {
    /// While set, disks keep what they are given.
    pub hold: Rc<Cell<bool>>,
    /// While set, disks keep the writes that they are given.
    pub hold_writes: Rc<Cell<bool>>,
    /// What reached the disks.
    pub kinds: Rc<RefCell<Vec<Op>>>,
    /// While set, flushes that end fail.
    pub sync_fails: Rc<Cell<bool>>,
    /// While set, flushes end so.
    pub flushes_end: Rc<Cell<Option<Fault>>>,
    /// While set, what is written to this block fails.
    pub unwritable: Rc<Cell<Option<u64>>>,
    /// While set, writes end so.
    pub writes_end: Rc<Cell<Option<Fault>>>,
    /// While set, disks that keep what they are given carry writes out first, and keep only their ends.
    pub keeps_ends: Rc<Cell<bool>>,
    /// How many operations were asked to end early.
    pub cancels: Rc<Cell<u32>>,
}

/// A RAM disk whose operations can be held up, and whose flushes and writes can fail; what is held does not listen
/// to cancels.
#[derive(Debug)]
pub struct FakeBackend {
    inner: RamBackend,
    controls: FakeControls,
    held: VecDeque<Io>,
    ended: VecDeque<IoCompletion>,
    written: VecDeque<IoId>,
    kept: VecDeque<IoCompletion>,
    geometry: Geometry,
}

impl FakeBackend {
    /// The disk `inner`, which shows itself as `geometry`.
    pub fn new(inner: RamBackend, geometry: Geometry, controls: FakeControls) -> Self {
        FakeBackend {
            inner,
            controls,
            held: VecDeque::new(),
            ended: VecDeque::new(),
            written: VecDeque::new(),
            kept: VecDeque::new(),
            geometry,
        }
    }

    fn complete_or_forward(&mut self, cx: &mut Cx<'_>, io: Io) {
        let fault = match &io.op {
            Op::Flush if self.controls.sync_fails.get() => Some(Fault::Sync),
            Op::Flush => self.controls.flushes_end.get(),
            Op::Write(span, _) => {
                let unwritable = self.controls.unwritable.get();
                let here = unwritable.filter(|lba| span.overlaps(&Span { lba: *lba, blocks: 1 }));
                here.map(Fault::Unwritable).or(self.controls.writes_end.get())
            }
            _ => None,
        };
        if let Some(fault) = fault {
            let result = Err(fault.into());
            self.ended.push_back(IoCompletion { id: io.id, result, payload: io.payload });
        } else {
            self.inner.submit(cx, io);
        }
    }
}

impl Backend for FakeBackend {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.controls.kinds.borrow_mut().push(io.op.clone());
        let is_write = matches!(io.op, Op::Write(..));
        if self.controls.hold.get() && self.controls.keeps_ends.get() && is_write {
            self.written.push_back(io.id);
            self.inner.submit(cx, io);
            while self.inner.wants_resume() {
                self.inner.resume();
            }
            self.kept.extend(self.inner.poll_done());
        } else if self.controls.hold.get() || (is_write && self.controls.hold_writes.get()) {
            self.held.push_back(io);
        } else {
            self.complete_or_forward(cx, io);
        }
    }

    fn resume(&mut self) {
        self.inner.resume();
    }

    fn wants_resume(&self) -> bool {
        self.inner.wants_resume()
    }

    fn cancel(&mut self, _id: IoId) {
        self.controls.cancels.set(self.controls.cancels.get() + 1);
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        if !self.controls.hold.get() && !self.controls.hold_writes.get() && !self.held.is_empty() {
            let pool = Pool::new(1 << 20);
            let mut entropy = Entropy::new([9; 32]);
            let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
            while let Some(io) = self.held.pop_front() {
                self.complete_or_forward(&mut cx, io);
            }
        }
        if !self.controls.hold.get() {
            self.ended.append(&mut self.kept);
        }
        self.ended.pop_front().or_else(|| self.inner.poll_done())
    }

    fn poll_unsynced_write(&mut self) -> Option<IoId> {
        self.written.pop_front()
    }
}
