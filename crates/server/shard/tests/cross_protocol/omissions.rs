//! Replacements by a snapshot that lacks something: hosts notice it. What is left out is what an earlier snapshot of the
//! same target did not have yet.
//!
//! R2Ts and the data that came for them are left out of sessions and queues alone (`blockwire-iscsi` and
//! `blockwire-nvme-tcp`, `replacement`): a shard finishes what it has asked data for before it is quiesced.

use std::net::SocketAddr;
use std::panic::catch_unwind;

use blockwire_shard::{ControlRequest, TargetSnapshot};
use nvme::{Opcode, Status};
use nvme_server::{ControllerSnapshot, ServerQueueSnapshot};
use scsi_server::NexusSnapshot;
use serde::{Deserialize, Serialize};
use sim::DiskFaults;
use stream::snapshot::SnapshotFormat;
use volume::{RunningVolume, VolumeRequest};
use zerocopy::little_endian::U32;

use crate::command::sqe;
use crate::history::{History, PATIENCE};
use crate::plan::Plan;

/// As `TargetSnapshot` is written.
const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"trgt", version: 1 };

type AcceptedPart = (u16, SocketAddr, SocketAddr, Option<u32>);
type NamesPart = (String, [u8; 16], String);
type LinkPart = ((u64, u16, u16), AcceptedPart, (bool, bool), (u32, u32), Option<u8>);
type LostPart = (String, [u8; 6], u16, Vec<[u8; 16]>);

/// The parts of a snapshot, as a shard writes them.
#[derive(Clone, Serialize, Deserialize)]
struct ShardPart {
    shard: (u16, u16),
    sessions: Vec<SessionPart>,
    controllers: Vec<(ControllerSnapshot, NamesPart, AcceptedPart, bool)>,
    queues: Vec<QueuePart>,
    volumes: Vec<RunningVolume>,
    lost: Vec<LostPart>,
}

#[derive(Clone, Serialize, Deserialize)]
struct SessionPart {
    protocol: Vec<u8>,
    names: (u16, String, [u8; 6], String, Option<String>),
    promised: (u64, u16),
    nexus: NexusSnapshot,
    links: Vec<LinkPart>,
    latest: AcceptedPart,
    io: [u64; 4],
}

#[derive(Clone, Serialize, Deserialize)]
struct QueuePart {
    link: u64,
    protocol: Vec<u8>,
    cntlid: u16,
    qid: u16,
    server: Option<ServerQueueSnapshot>,
    names: NamesPart,
    accepted: AcceptedPart,
    admin: Option<AcceptedPart>,
}

/// What the new process does not learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omission {
    Registration,
    UnitAttention,
    EventRequest,
    HalfPdu,
    FailedSync,
}

impl Omission {
    const ALL: [Omission; 5] = [
        Omission::Registration,
        Omission::UnitAttention,
        Omission::EventRequest,
        Omission::HalfPdu,
        Omission::FailedSync,
    ];

    /// The later snapshot, in which this is as in the earlier one.
    fn omit(self, earlier: &TargetSnapshot, later: &TargetSnapshot) -> TargetSnapshot {
        let parts = |snapshot: &TargetSnapshot| -> Vec<ShardPart> {
            stream::snapshot::read(FORMAT, &snapshot.to_bytes())
                .expect("the parts are as a shard writes them")
        };
        let (old, mut new) = (parts(earlier), parts(later));
        for (old, new) in old.into_iter().zip(&mut new) {
            match self {
                Omission::Registration | Omission::FailedSync => new.volumes = old.volumes,
                Omission::UnitAttention => new.sessions[0].nexus = old.sessions[0].nexus.clone(),
                Omission::HalfPdu => new.sessions[0].protocol = old.sessions[0].protocol.clone(),
                Omission::EventRequest => {
                    let admin = |queue: &&mut QueuePart| queue.qid == 0;
                    let was = old.queues.into_iter().find(|queue| queue.qid == 0).expect("an admin queue");
                    new.queues.iter_mut().find(admin).expect("an admin queue").protocol = was.protocol;
                }
            }
        }
        let bytes = stream::snapshot::write(FORMAT, &new);
        assert!(bytes != later.to_bytes(), "{self:?}: there is nothing to leave out");
        TargetSnapshot::from_bytes(&bytes, 1).expect("it does not contradict itself")
    }
}

/// The first host speaks SCSI, the second NVMe.
const SCSI: (usize, usize) = (0, 0);
const NVME: usize = 1;

fn plan(omission: Omission) -> Plan {
    let file = omission == Omission::FailedSync;
    let sync_permille = if file { 1000 } else { 0 };
    Plan {
        shards: 1,
        pool_bytes: 16 << 20,
        // A PDU with data comes in many pieces.
        window: if omission == Omission::HalfPdu { 600 } else { 1 << 20 },
        loaned_permille: 0,
        scsi_hosts: 1,
        nvme_hosts: 1,
        connections: 1,
        queues: 1,
        digests: (false, false),
        file,
        direct_align: None,
        faults: DiskFaults { sync_permille, ..DiskFaults::default() },
        shard_faults: sim::ShardFaults::default(),
        ..Plan::of(1)
    }
}

impl History {
    /// What another process would be given now.
    fn snapshot(&mut self) -> TargetSnapshot {
        assert_eq!(self.ask_shards(PATIENCE, || ControlRequest::Quiesce).len(), 1);
        self.all_do(|| ControlRequest::Settle);
        self.save().expect("it is quiesced")
    }

    /// A write of 4 KiB with its data in the command's PDU, of which a part has come.
    fn send_part_of_a_write(&mut self) -> u32 {
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        let itt = self.hosts[0].session().initiator.send_command(&mut self.world, 0, &cdb, &[5; 4096], 0);
        for _ in 0..3 {
            self.step();
        }
        itt
    }

    /// What is told of the host's unit: its unit attentions, in their order.
    fn unit_attentions(&mut self) -> Vec<[u8; 2]> {
        let mut told = Vec::new();
        loop {
            let ended = self.scsi_once(SCSI, &[0; 6], &[], 0);
            if ended.status != 2 || ended.sense[2] & 0x0f != 6 {
                return told;
            }
            told.push([ended.sense[12], ended.sense[13]]);
        }
    }
}

/// Something happens, the process is replaced, and hosts look at what has become of it. `omits`: the new process does
/// not learn of it.
fn play(omission: Omission, omits: bool) {
    let mut history = History::new(plan(omission));
    // What a login tells of is none of this.
    history.unit_attentions();
    if omission == Omission::EventRequest {
        let mut features = sqe(Opcode(0x09));
        (features.cdw10[0], features.cdw10[1]) = (U32::new(0x0b), U32::new(1 << 8));
        assert!(history.errand(NVME, 0, features, vec![], 0).status.is_success());
    }
    let earlier = history.snapshot();
    history.all_do(|| ControlRequest::Resume);
    let (mut request, mut task) = (0, 0);
    match omission {
        Omission::Registration => {
            let mut keys = vec![0; 24];
            keys[15] = 5;
            let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
            assert_eq!(history.scsi_errand(SCSI, &register, &keys, 0).status, 0);
        }
        Omission::UnitAttention => history.ask(0, VolumeRequest::WriteProtect(true)),
        Omission::EventRequest => {
            request = history.take_id();
            history.hosts[NVME].controller().queues[0].send(request, sqe(Opcode(0x0c)), vec![], 0);
            for _ in 0..20 {
                history.poll();
                history.step();
            }
        }
        Omission::HalfPdu => task = history.send_part_of_a_write(),
        Omission::FailedSync => {
            assert_eq!(history.scsi_errand(SCSI, &write(0), &[1; 512], 0).status, 0);
            let flush = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(history.scsi_errand(SCSI, &flush, &[], 0).status, 2, "no sync goes well");
        }
    }
    let later = history.snapshot();
    let snapshot = if omits { omission.omit(&earlier, &later) } else { later };
    history.go_on_from(&snapshot);
    match omission {
        Omission::Registration => {
            let keys = history.scsi_errand(SCSI, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 16, 0], &[], 16);
            assert_eq!((keys.status, keys.data[7], keys.data[15]), (0, 8, 5), "the key is registered");
        }
        Omission::UnitAttention => assert!(history.unit_attentions().contains(&[0x2a, 1]), "it is told"),
        Omission::EventRequest => {
            history.ask(0, VolumeRequest::WriteProtect(true));
            let told = history.answer(NVME, request);
            assert_eq!((Status(told.status.0 & 0x7ff), told.result & 7), (Status::SUCCESS, 2));
        }
        Omission::HalfPdu => history.wait("the end of the write", |history| {
            let answers = &history.hosts[0].session().answers;
            answers.iter().any(|ended| ended.itt == task && ended.status == 0)
        }),
        Omission::FailedSync => {
            let ended = history.scsi_errand(SCSI, &write(1), &[1; 512], 0);
            assert_eq!(ended.status, 2, "data may be lost, and nothing more is taken");
        }
    }
}

/// WRITE (10) of one block.
fn write(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0]
}

#[test]
fn what_a_snapshot_lacks_is_noticed() {
    for omission in Omission::ALL {
        play(omission, false);
        assert!(catch_unwind(|| play(omission, true)).is_err(), "{omission:?} goes unnoticed");
    }
}
