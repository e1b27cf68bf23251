//! What other threads tell the runtime: the store, the shards, the operator.
//!
//! Invariant: what one thread puts in is taken in that order. Nobody waits to put something in. What shards have in at a
//! time is bounded by the commands that they may have out, what the store has by the requests to it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use group::{
    Answer, Command, ExecutionId, GroupId, InstanceId, LinkPayload, LostController, PortError, RequestId,
    ResetAnswer, Snapshot, Term,
};
use rustix::event::{EventfdFlags, eventfd};
use volume::{Notice, PortId, Requester, Uuid};

use super::GroupStatus;
use crate::store::{Mailbox, StoreEvent};

/// What the target or the operator wants of the runtime.
#[derive(Debug)]
pub enum RuntimeRequest {
    /// A host's command for a volume: see [`Member::submit`](group::Member::submit).
    Submit {
        /// Names it; the target chooses.
        id: RequestId,
        /// The volume.
        volume: Uuid,
        /// Whose it is.
        who: Requester,
        /// What.
        command: Command<LinkPayload>,
    },
    /// An operation of a host is not wanted any more: see [`Member::cancel`](group::Member::cancel).
    Cancel(RequestId),
    /// The end of a command that the target was given to execute.
    Executed {
        /// Which.
        execution: ExecutionId,
        /// How it ended.
        answer: Answer<LinkPayload>,
    },
    /// The answer to [`Output::Quiesce`](group::Output::Quiesce).
    Quiesced {
        /// The group.
        group: GroupId,
        /// Of this request.
        round: u64,
    },
    /// A record is to be made durable: see [`Member::store_record`](group::Member::store_record).
    StoreRecord {
        /// The volume.
        volume: Uuid,
        /// The term in which the volume was opened.
        term: Term,
        /// The volume's number for it.
        ticket: u64,
        /// The record.
        bytes: Vec<u8>,
    },
    /// The state of a volume has changed: see [`Member::publish`](group::Member::publish).
    Publish {
        /// The volume.
        volume: Uuid,
        /// The term in which the volume was opened.
        term: Term,
        /// Its state.
        snapshot: Snapshot,
        /// What hosts must hear of.
        notices: Vec<Notice>,
    },
    /// An operation on a volume has told that the store has barred this instance.
    Fenced,
    /// The groups with their volumes from now on.
    SetGroups(BTreeMap<GroupId, Vec<Uuid>>),
    /// A number for the port of this name.
    AllocatePort(Arc<str>, SyncSender<Result<PortId, PortError>>),
    /// More controller identifiers.
    AllocateControllerIds,
    /// A host of this identifier and name wants to connect here; [`Output::HostBound`](group::Output::HostBound) answers.
    BindHost(RequestId, [u8; 16], Arc<str>),
    /// It is gone from here.
    ReleaseHost([u8; 16]),
    /// A host wants a controller of its own to be reset that it has lost;
    /// [`Output::ControllerReset`](group::Output::ControllerReset) answers.
    ResetController(RequestId, LostController),
    /// The end of an [`Output::ResetController`](group::Output::ResetController) of this number.
    ControllerReset(u64, ResetAnswer),
    /// Hands all groups to other gateways and takes none. Told when the last one is given.
    Drain(SyncSender<()>),
    /// Takes groups again.
    Undrain,
    /// Expels an instance, and bars it.
    Expel(InstanceId),
    /// Forgets an expelled instance that never comes back. `false`: it was not expelled.
    Forget(InstanceId, SyncSender<bool>),
    /// What is known of the group.
    Status(SyncSender<GroupStatus>),
    /// Ends, without telling the target.
    End,
}

/// Something that the runtime takes.
#[derive(Debug)]
pub(super) enum Input {
    Store(StoreEvent),
    Request(RuntimeRequest),
}

struct Shared {
    waiting: Mutex<Waiting>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    ended: bool,
}

/// Where the runtime's inputs are put in. Made before the store, which tells its events here.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox(Arc::new(Shared { waiting: Mutex::default(), bell })))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, input: Input) -> bool {
        let mut waiting = self.lock();
        if waiting.ended {
            return false;
        }
        waiting.inputs.push_back(input);
        let rings = waiting.inputs.len() == 1;
        drop(waiting);
        if rings {
            // It is full only when it has rung already.
            let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
        }
        true
    }

    /// Asks the runtime for something. `false`: it has ended, and nothing comes of it.
    pub fn post(&self, request: RuntimeRequest) -> bool {
        self.put(Input::Request(request))
    }

    /// Where the store tells its events.
    pub fn mailbox(&self) -> Mailbox {
        let own = self.clone();
        Arc::new(move |event| {
            own.put(Input::Store(event));
        })
    }

    /// All that waits.
    pub(super) fn take_all(&self) -> VecDeque<Input> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.bell, &mut count);
        std::mem::take(&mut self.lock().inputs)
    }

    /// Takes nothing any more; what waits is dropped, and who waits for an answer is told so.
    pub(super) fn end(&self) {
        let mut waiting = self.lock();
        waiting.ended = true;
        let left = std::mem::take(&mut waiting.inputs);
        drop(waiting);
        drop(left);
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
