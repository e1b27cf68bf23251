//! Controllers, with the calls that a transport and a composition make.

mod aborts;
mod auth;
mod discovering;
pub(super) mod events;
mod features;
mod formats;
mod hostile;
mod identify;
mod life;
mod logs;
mod queues;
mod replacements;
mod resets;

use std::sync::Arc;

use nvme::fabrics::{ConnectRefusal, Property, PropertyAccess};
use nvme::{Completion, HostId, Nqn, Opcode, Sqe, Status};
use testkit::server_world::ServerWorld;
use volume::{Identity, PortId, Requester, ShardId};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

use super::{End, Host, Started, World};
use crate::discovery::DiscoveryEntries;
use crate::{
    ControllerLimits, ControllerSpec, ControllerStep, DiscoverySpec, IoQueueConnect, NamespaceEntry,
    QueueKey, QueueSpec, Subsystem,
};

const SECOND: u64 = 1_000_000_000;

fn nqn(name: &str) -> Nqn {
    Nqn::parse(name).unwrap()
}

pub(super) fn host(id: u8) -> crate::HostIdentity {
    crate::HostIdentity {
        nqn: nqn(&format!("nqn.2026-11.io.blockwire:host-{id}")),
        id: HostId::new([id; 16]).unwrap(),
    }
}

pub(super) fn subsystem() -> Arc<Subsystem> {
    Arc::new(Subsystem {
        nqn: nqn("nqn.2026-11.io.blockwire:demo"),
        serial: *b"0123456789abcdef0123",
        model: *b"Blockwire                               ",
        firmware: *b"1       ",
        nsid_max: 64,
        ana_group_max: 64,
    })
}

fn limits() -> ControllerLimits {
    ControllerLimits { queues: 16, entries: 128, transfer: nvme::TransferMax::MAX, in_capsule: 8192 }
}

pub(super) fn entry(volume: u32) -> NamespaceEntry {
    super::entry(volume, false)
}

pub(super) fn spec(cntlid: u16, id: u8, namespaces: Vec<NamespaceEntry>) -> ControllerSpec {
    ControllerSpec {
        cntlid,
        subsystem: subsystem(),
        host: host(id),
        nexus: Requester { identity: Arc::new(Identity::Host([id; 16])), port: PortId(1), read_only: false },
        kato_ms: 0,
        keep_alive: crate::KeepAliveLimits::default(),
        entries: 32,
        flow_control: false,
        individual_deletion: false,
        namespaces,
        limits: limits(),
        discovery: None,
        auth: None,
    }
}

pub(super) fn join(qid: u16, id: u8, shard: usize) -> IoQueueConnect {
    IoQueueConnect {
        qid,
        entries: 32,
        flow_control: false,
        subsystem: subsystem().nqn.clone(),
        host: host(id),
        shard: ShardId(shard as u16),
    }
}

/// A command of the admin queue, with dwords 10 up.
pub(super) fn admin(opcode: u8, nsid: u32, dwords: &[u32], room: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = Opcode(opcode);
    sqe.flags = 0x40;
    sqe.nsid = U32::new(nsid);
    sqe.dptr.length = U32::new(room);
    for (place, dword) in sqe.cdw10.iter_mut().zip(dwords) {
        *place = U32::new(*dword);
    }
    sqe
}

/// An Asynchronous Event Request of this identifier.
pub(super) fn event_request(cid: u16) -> Sqe {
    let mut sqe = admin(0x0c, 0, &[], 0);
    sqe.cid = U16::new(cid);
    sqe
}

pub(super) fn get_log(lid: u8, len: u32) -> Sqe {
    admin(0x02, 0xffff_ffff, &[u32::from(lid) | (len / 4 - 1) << 16], len)
}

fn set_feature(fid: u8, nsid: u32, value: u32) -> Sqe {
    admin(0x09, nsid, &[fid.into(), value], 0)
}

pub(super) fn get_feature(fid: u8, nsid: u32, value: u32, room: u32) -> Sqe {
    admin(0x0a, nsid, &[fid.into(), value], room)
}

impl World {
    /// What a controller asks all shards, or answers another one.
    pub(super) fn step_between_shards(&mut self, shard: usize, step: ControllerStep) {
        let shards = self.cores.len() as u16;
        match step {
            ControllerStep::ListControllers { id, of } => {
                let here: Vec<Vec<u16>> =
                    self.cores.iter().map(|core| core.server.local_controllers(&of)).collect();
                for here in here {
                    let (core, mut cx) = self.parts.core(shard);
                    core.server.handle_shard_controllers(&mut cx, id, shards, &here);
                }
            }
            ControllerStep::ResetController { id, request } => {
                for asked in 0..self.cores.len() {
                    self.cores[asked].server.reset_controller((ShardId(shard as u16), id), &request);
                    self.run_steps(asked);
                }
            }
            ControllerStep::AnswerReset { to, id, answer } => {
                let (core, mut cx) = self.parts.core(usize::from(to.0));
                core.server.handle_reset_answer(&mut cx, id, shards, answer);
            }
            other => unreachable!("{other:?} is no step between shards"),
        }
    }

    /// Opens a controller on the shard that its number names.
    pub(super) fn open(&mut self, spec: ControllerSpec) -> Host {
        self.linked = true;
        let shard = usize::from(spec.cntlid) % self.cores.len();
        let (core, mut cx) = self.parts.core(shard);
        let key = core.server.open_controller(&mut cx, spec);
        Host { shard, key }
    }

    /// Opens a controller and enables it.
    pub(super) fn controller(&mut self, spec: ControllerSpec) -> Host {
        let host = self.open(spec);
        assert_eq!(self.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
        assert_eq!(self.property(host, Property::CSTS, 4), 1);
        host
    }

    pub(super) fn property(&mut self, host: Host, property: Property, len: u8) -> u64 {
        let completion = self.ends(host, &PropertyAccess::property_get_sqe(property, len), &[]);
        assert_eq!(completion.status, Status::SUCCESS, "{property:?}");
        completion.result
    }

    fn set(&mut self, host: Host, property: Property, value: u32) -> Status {
        self.ends(host, &PropertyAccess::property_set_sqe(property, value), &[]).status
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(super) fn ends(&mut self, host: Host, sqe: &Sqe, out: &[u8]) -> Completion {
        let started = self.start(host, sqe, out);
        self.run();
        self.completion(started)
    }

    #[track_caller]
    fn completion(&self, started: Started) -> Completion {
        match self.end(started) {
            Some(End::Reply(completion)) => completion,
            other => panic!("a command ended as {other:?}"),
        }
    }

    /// Connects an I/O queue.
    pub(super) fn connect(&mut self, cntlid: u16, join: &IoQueueConnect) -> Result<Host, ConnectRefusal> {
        let spec = self.join(cntlid, join)?;
        let host = self.open_on(usize::from(join.shard.0), spec);
        self.run();
        Ok(host)
    }

    fn join(&mut self, cntlid: u16, join: &IoQueueConnect) -> Result<QueueSpec, ConnectRefusal> {
        let home = usize::from(cntlid) % self.cores.len();
        self.cores[home].server.admit_io_queue(cntlid, join)
    }

    fn open_on(&mut self, shard: usize, spec: QueueSpec) -> Host {
        let (core, mut cx) = self.parts.core(shard);
        let key: QueueKey = core.server.open_queue(&mut cx, spec);
        self.run_steps(shard);
        Host { shard, key }
    }

    /// Lets time pass, second by second.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now.0 += SECOND;
            self.fire();
        }
    }

    fn fire(&mut self) {
        for shard in 0..self.cores.len() {
            let due = self.cores[shard].server.poll_timeout();
            if due.is_some_and(|due| due <= self.now) {
                let (core, mut cx) = self.parts.core(shard);
                core.server.handle_timeout(&mut cx);
                self.run_steps(shard);
            }
        }
        self.run();
    }

    /// The answer of a request for events, if one has come.
    pub(super) fn event(&self, started: Started) -> Option<u32> {
        match self.end(started)? {
            End::Reply(completion) if completion.status == Status::SUCCESS => Some(completion.result as u32),
            other => panic!("a request for events ended as {other:?}"),
        }
    }
}

/// A discovery controller's.
fn discovery(cntlid: u16, id: u8, book: &Arc<DiscoveryEntries>, kato_ms: u32) -> ControllerSpec {
    let subsystem = Arc::new(Subsystem { nqn: Nqn::discovery_service(), ..Subsystem::clone(&subsystem()) });
    let local = "192.0.2.7:8009".parse().unwrap();
    ControllerSpec {
        subsystem,
        kato_ms,
        discovery: Some(DiscoverySpec { entries: book.clone(), local }),
        ..spec(cntlid, id, Vec::new())
    }
}
