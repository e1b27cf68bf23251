//! A connection of an NVMe host, and its progress.

use buf::{Cx, MemoryClass, Sg, SgMut, Time};
use endpoint::{AcceptedSocket, LinkId, PendingResult, ShardId};
use nvme::fabrics::{Connect, ConnectNames};
use nvme::{Nqn, Sqe};
use nvme_server::{CommandKey, QueueKey};
use nvme_tcp::ControllerQueue;
use stream::{Connection, ConnectionClose, Tag, TargetConnection};

use crate::message::QueueGrant;
use crate::shard::command_times::CommandTimes;
use crate::shard::payload_step::{CommandConn, ParkedSteps};
use crate::shard::quiesce::HeldCommand;
use crate::shard::throttle::HostLimit;

/// A connection of an NVMe host.
#[derive(Debug)]
pub(in crate::shard) struct QueueConn {
    pub(in crate::shard) id: LinkId,
    pub(in crate::shard) proto: ControllerQueue,
    pub(in crate::shard) accepted: AcceptedSocket,
    pub(in crate::shard) state: QueueState,
    pub(in crate::shard) parked: ParkedSteps<CommandKey>,
    /// By what its host is limited.
    pub(in crate::shard) limit: HostLimit,
    pub(in crate::shard) times: CommandTimes,
    /// Its key at the server, also while its commands end.
    pub(in crate::shard) key: Option<QueueKey>,
    /// It counts among the strangers: it is not connected yet, or has still to prove who it is.
    pub(in crate::shard) is_stranger: bool,
    /// It has lost its place to another stranger: there is nothing to tell it.
    pub(in crate::shard) evicted: bool,
    /// What a step of its TLS handshake comes to.
    pub(in crate::shard) shaking: Option<PendingResult<tls::HandshakeProgress>>,
    /// Its link is gone.
    pub(in crate::shard) gone: bool,
    /// `TargetEvent::Closed` has come.
    pub(in crate::shard) closed: bool,
    /// Commands that came while the shard is quiesced.
    pub(in crate::shard) held: Vec<HeldCommand<Sqe>>,
    /// It is quiesced.
    pub(in crate::shard) quiesced: bool,
}

/// How far a connection is.
#[derive(Debug)]
pub(in crate::shard) enum QueueState {
    /// Its Connect has not come.
    AwaitingConnect,
    /// The data of its Connect comes.
    ReadingConnect(Connect),
    /// Another shard judges its Connect.
    AwaitingGrant(Box<ConnectRequest>),
    /// It is granted, and waits until nothing is out on it.
    Granted(Box<(ConnectRequest, ShardId, QueueGrant)>),
    /// It is a queue.
    Open(Box<OpenQueue>),
    /// It was refused, or has ended; its last words may be on their way.
    Ended,
}

/// A Connect that is not answered.
#[derive(Clone, Debug)]
pub(in crate::shard) struct ConnectRequest {
    pub(in crate::shard) tag: Tag,
    pub(in crate::shard) connect: Connect,
    pub(in crate::shard) names: ConnectNames,
    /// Drawn for it, in case a rule of placement wants chance.
    pub(in crate::shard) draw: u64,
}

/// What a queue is.
#[derive(Debug)]
pub(in crate::shard) struct OpenQueue {
    pub(in crate::shard) key: QueueKey,
    pub(in crate::shard) cntlid: u16,
    pub(in crate::shard) qid: u16,
    pub(in crate::shard) names: ConnectNames,
    /// Of an I/O queue: where its controller's admin queue was accepted.
    pub(in crate::shard) admin: Option<AcceptedSocket>,
}

impl QueueConn {
    pub(in crate::shard) fn new(
        now: Time,
        id: LinkId,
        proto: ControllerQueue,
        accepted: AcceptedSocket,
        is_stranger: bool,
    ) -> Self {
        QueueConn {
            id,
            proto,
            accepted,
            state: QueueState::AwaitingConnect,
            parked: ParkedSteps::default(),
            limit: HostLimit::default(),
            times: CommandTimes::new(now),
            key: None,
            is_stranger,
            evicted: false,
            shaking: None,
            gone: false,
            closed: false,
            held: Vec::new(),
            quiesced: false,
        }
    }

    /// Ends it if the peer owes its Connect, or the proof of who it is; says whether it did.
    pub(in crate::shard) fn evict(&mut self, cx: &mut Cx<'_>) -> bool {
        let owes = match self.state {
            QueueState::AwaitingConnect | QueueState::ReadingConnect(_) => true,
            QueueState::Open(_) => self.is_stranger,
            QueueState::AwaitingGrant(_) | QueueState::Granted(_) | QueueState::Ended => false,
        };
        if owes {
            self.evicted = true;
            self.proto.close(cx, ConnectionClose::Now);
        }
        owes
    }

    /// Whether it counts among the strangers.
    pub(in crate::shard) fn is_unauthenticated(&self) -> bool {
        self.is_stranger
    }

    /// Whether its Connect is not answered.
    pub(in crate::shard) fn is_connecting(&self) -> bool {
        match self.state {
            QueueState::AwaitingConnect
            | QueueState::ReadingConnect(_)
            | QueueState::AwaitingGrant(_)
            | QueueState::Granted(_) => true,
            QueueState::Open(_) | QueueState::Ended => false,
        }
    }

    pub(in crate::shard) fn open_state(&self) -> Option<&OpenQueue> {
        match &self.state {
            QueueState::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Who is connected to whom, while it is a queue.
    pub(in crate::shard) fn open_names(&self) -> Option<&ConnectNames> {
        self.open_state().map(|open| &open.names)
    }

    /// Its key at the server, while it is a queue.
    pub(in crate::shard) fn server_key(&self) -> Option<QueueKey> {
        self.open_state().map(|open| open.key)
    }

    pub(in crate::shard) fn host_and_subsystem_nqn(&self) -> Option<(Nqn, Nqn)> {
        let names = match &self.state {
            QueueState::AwaitingGrant(connecting) => &connecting.names,
            QueueState::Granted(granted) => &granted.0.names,
            QueueState::Open(open) => &open.names,
            QueueState::AwaitingConnect | QueueState::ReadingConnect(_) | QueueState::Ended => return None,
        };
        Some((names.host.clone(), names.subsystem.clone()))
    }
}

impl CommandConn for QueueConn {
    type Command = CommandKey;
    type PeerConnection = ControllerQueue;

    fn protocol_and_parked(&mut self) -> (&mut ControllerQueue, &mut ParkedSteps<CommandKey>) {
        (&mut self.proto, &mut self.parked)
    }

    fn times_mut(&mut self) -> &mut CommandTimes {
        &mut self.times
    }

    fn has_read_reserved(&self, tag: Tag, len: u32) -> bool {
        self.proto.has_read_reserved(tag, len)
    }

    fn host_limit(&self) -> &HostLimit {
        &self.limit
    }

    fn memory_class(&self, tag: Tag) -> MemoryClass {
        self.proto.write_memory_class(tag)
    }

    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, data: Sg) {
        self.proto.send_data(cx, tag, at, data);
    }

    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, memory: SgMut) {
        self.proto.recv_data(cx, tag, at, memory);
    }
}
