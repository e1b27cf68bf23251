//! Hosts of both protocols, each at one gateway.

use std::collections::VecDeque;

use blockwire_shard::Shard;
use endpoint::ListenerId;
use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use nvme::{HostId, Nqn, Opcode, Sqe, Status};
use sim::World;
use testkit::iscsi_initiator::TestInitiator;
use testkit::nvme_host::TestQueue;
use testkit::target::{SUBSYSTEM_NQN, login_config};
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use crate::cluster::Cluster;

/// How a command has ended, in neither protocol's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Good(Vec<u8>),
    Conflict,
    /// What was compared differs.
    Differs,
    /// The path is to blame; it was not carried out.
    Path,
    /// Any other error, or it may have been carried out.
    Other(String),
}

pub enum Side {
    Scsi(Box<TestInitiator>),
    Nvme { pipes: Vec<TestQueue>, cntlid: u16 },
}

pub struct Host {
    pub gateway: usize,
    pub number: u8,
    pub side: Side,
    /// Unit attentions: codes and qualifiers.
    pub told: Vec<[u8; 2]>,
    /// Commands that wait: by tag, their place in `ended`.
    waiting: Vec<(u32, u64)>,
    pub ended: VecDeque<(u64, End)>,
    made: u64,
}

/// What a host asks.
#[derive(Clone, Debug)]
pub enum Ask {
    Read {
        lba: u64,
        blocks: usize,
    },
    Write {
        lba: u64,
        data: Vec<u8>,
    },
    CompareAndWrite {
        lba: u64,
        old: Vec<u8>,
        new: Vec<u8>,
    },
    Register {
        key: u64,
    },
    Reserve {
        key: u64,
    },
    Preempt {
        key: u64,
        victim: u64,
    },
    Clear {
        key: u64,
    },
    /// The keys that are registered.
    Keys,
}

pub fn nvme_sqe(opcode: u8, volume: usize) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = Opcode(opcode);
    sqe.nsid = U32::new(volume as u32 + 1);
    sqe
}

impl Host {
    /// A host of iSCSI logs in to a gateway.
    pub fn scsi(cluster: &mut Cluster, gateway: usize, number: u8) -> Host {
        let wanted = login_config(u16::from(number));
        let initiator = TestInitiator::connect(&mut cluster.gateways[gateway].world, wanted);
        let mut host = Host::of(gateway, number, Side::Scsi(Box::new(initiator)));
        cluster.until("a login", |cluster| {
            host.poll(cluster);
            matches!(&host.side, Side::Scsi(initiator) if initiator.is_logged_in())
        });
        host
    }

    /// A host of NVMe connects a controller with one I/O queue.
    pub fn nvme(cluster: &mut Cluster, gateway: usize, number: u8) -> Host {
        let mut host = Host::of(gateway, number, Side::Nvme { pipes: Vec::new(), cntlid: 0 });
        let cntlid = host.connect_queue(cluster, 0, ConnectData::DYNAMIC);
        if let Side::Nvme { cntlid: known, .. } = &mut host.side {
            *known = cntlid;
        }
        let enable = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
        host.ask_queue(cluster, 0, enable, &[], 0);
        loop {
            let status = PropertyAccess::property_get_sqe(Property::CSTS, 4);
            if host.ask_queue(cluster, 0, status, &[], 0).1 & 1 == 1 {
                break;
            }
        }
        host.connect_queue(cluster, 1, cntlid);
        host
    }

    /// The controller of a host of another name; with the status of its Connect if it is refused.
    pub fn try_nvme(cluster: &mut Cluster, gateway: usize, number: u8, nqn: &str) -> Result<Host, Status> {
        let mut host = Host::of(gateway, number, Side::Nvme { pipes: Vec::new(), cntlid: 0 });
        host.try_connect_queue(cluster, 0, ConnectData::DYNAMIC, nqn)?;
        Ok(host)
    }

    fn of(gateway: usize, number: u8, side: Side) -> Host {
        let (told, waiting, ended) = (Vec::new(), Vec::new(), VecDeque::new());
        Host { gateway, number, side, told, waiting, ended, made: 0 }
    }

    fn connect_queue(&mut self, cluster: &mut Cluster, qid: u16, cntlid: u16) -> u16 {
        let nqn = format!("nqn.2026-11.test:host{}", self.number);
        self.try_connect_queue(cluster, qid, cntlid, &nqn).expect("the host is let in")
    }

    fn try_connect_queue(
        &mut self,
        cluster: &mut Cluster,
        qid: u16,
        cntlid: u16,
        nqn: &str,
    ) -> Result<u16, Status> {
        let names = ConnectNames {
            host_id: HostId::new([self.number; 16]).expect("an identifier is not zero"),
            cntlid,
            subsystem: Nqn::parse(SUBSYSTEM_NQN).unwrap(),
            host: Nqn::parse(nqn).unwrap(),
        };
        let connect =
            Connect { qid, entries: 32, flow_control: true, individual_deletion: false, kato_ms: 0 };
        let world = &mut cluster.gateways[self.gateway].world;
        let mut pipe = TestQueue::open_connection(world, ListenerId(1), (false, false));
        let cid = pipe.send_connect(world, &connect, &names);
        let gateway = self.gateway;
        cluster.until("a queue", |cluster| {
            pipe.poll(&mut cluster.gateways[gateway].world);
            !pipe.ended.is_empty()
        });
        let ended = pipe.take_result(cid).expect("the only command");
        if !ended.status.is_success() {
            return Err(ended.status);
        }
        if let Side::Nvme { pipes, .. } = &mut self.side {
            pipes.push(pipe);
        }
        Ok(ConnectResult::parse(ended.result).cntlid)
    }

    /// Runs a command of one of the queues to its end.
    pub fn ask_queue(
        &mut self,
        cluster: &mut Cluster,
        at: usize,
        sqe: Sqe,
        out: &[u8],
        read: usize,
    ) -> (Status, u64, Vec<u8>) {
        let gateway = self.gateway;
        let Side::Nvme { pipes, .. } = &mut self.side else { panic!("this host speaks iSCSI") };
        let cid = pipes[at].send_command(&mut cluster.gateways[gateway].world, sqe, out, true, read);
        let pipe = &mut pipes[at];
        let mut found = None;
        cluster.until("a command", |cluster| {
            pipe.poll(&mut cluster.gateways[gateway].world);
            found = pipe.take_result(cid);
            found.is_some()
        });
        let ended = found.expect("waited for");
        (ended.status, ended.result, ended.data)
    }

    /// Takes what has come.
    pub fn poll(&mut self, cluster: &mut Cluster) {
        let world = &mut cluster.gateways[self.gateway].world;
        match &mut self.side {
            Side::Scsi(initiator) => {
                initiator.poll(world);
                for ended in std::mem::take(&mut initiator.ended) {
                    let Some(at) = self.waiting.iter().position(|(tag, _)| *tag == ended.itt) else {
                        continue;
                    };
                    let (_, id) = self.waiting.remove(at);
                    let attention = ended.status == 2 && ended.sense[2] & 0xf == 6;
                    if attention {
                        self.told.push([ended.sense[12], ended.sense[13]]);
                    }
                    self.ended.push_back((id, end_of_scsi(ended.status, &ended.sense, ended.data)));
                }
            }
            Side::Nvme { pipes, .. } => {
                let Some(pipe) = pipes.get_mut(1) else { return };
                pipe.poll(world);
                for ended in std::mem::take(&mut pipe.ended) {
                    let tag = u32::from(ended.cid);
                    let Some(at) = self.waiting.iter().position(|(known, _)| *known == tag) else { continue };
                    let (_, id) = self.waiting.remove(at);
                    self.ended.push_back((id, end_of_nvme(ended.status, ended.data)));
                }
            }
        }
    }

    /// Sends a command; its number.
    pub fn send(&mut self, cluster: &mut Cluster, volume: usize, ask: &Ask) -> u64 {
        self.made += 1;
        let world = &mut cluster.gateways[self.gateway].world;
        let tag = match &mut self.side {
            Side::Scsi(initiator) => {
                let (cdb, out, read) = scsi_command(ask);
                initiator.send_command(world, volume as u16, &cdb, &out, read)
            }
            Side::Nvme { pipes, .. } => send_nvme(&mut pipes[1], world, volume, ask),
        };
        self.waiting.push((tag, self.made));
        self.made
    }

    /// Runs a command to its end; unit attentions are noted, and the command sent again.
    pub fn ask(&mut self, cluster: &mut Cluster, volume: usize, ask: &Ask) -> End {
        loop {
            let told = self.told.len();
            let id = self.send(cluster, volume, ask);
            let mut found = None;
            cluster.until("a command", |cluster| {
                self.poll(cluster);
                let at = self.ended.iter().position(|(known, _)| *known == id);
                found = at.and_then(|at| self.ended.remove(at));
                found.is_some()
            });
            if self.told.len() == told {
                return found.expect("waited for").1;
            }
        }
    }

    pub fn read(&mut self, cluster: &mut Cluster, volume: usize, lba: u64, blocks: usize) -> Vec<u8> {
        match self.ask(cluster, volume, &Ask::Read { lba, blocks }) {
            End::Good(data) => data,
            other => panic!("seed {}: host {}: {other:?}", cluster.plan.seed, self.number),
        }
    }

    pub fn write(&mut self, cluster: &mut Cluster, volume: usize, lba: u64, data: Vec<u8>) -> End {
        self.ask(cluster, volume, &Ask::Write { lba, data })
    }

    /// The keys that are registered, as this host is told.
    pub fn keys(&mut self, cluster: &mut Cluster, volume: usize) -> Vec<u64> {
        let End::Good(data) = self.ask(cluster, volume, &Ask::Keys) else { panic!("no keys") };
        let mut keys: Vec<u64> = match &self.side {
            Side::Scsi(_) => {
                let len = u32::from_be_bytes(data[4..8].try_into().unwrap()) as usize;
                data[8..8 + len].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
            }
            Side::Nvme { .. } => {
                let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
                let entry = |at: usize| &data[64 + 64 * at..128 + 64 * at];
                (0..count).map(|at| u64::from_le_bytes(entry(at)[8..16].try_into().unwrap())).collect()
            }
        };
        keys.sort_unstable();
        keys
    }
}

fn end_of_scsi(status: u8, sense: &[u8], data: Vec<u8>) -> End {
    match (status, sense.get(2).map(|key| key & 0xf), sense.get(12..14)) {
        (0, ..) => End::Good(data),
        (0x18, ..) => End::Conflict,
        (2, Some(0xe), _) => End::Differs,
        // NOT READY, ASYMMETRIC ACCESS STATE TRANSITION.
        (2, Some(2), Some([4, 0xa])) => End::Path,
        _ => End::Other(format!("{status:#x} {sense:x?}")),
    }
}

fn end_of_nvme(status: Status, data: Vec<u8>) -> End {
    match Status(status.0 & 0x7ff) {
        done if done.is_success() => End::Good(data),
        Status::RESERVATION_CONFLICT => End::Conflict,
        Status::COMPARE_FAILURE => End::Differs,
        Status::ANA_TRANSITION => End::Path,
        other => End::Other(format!("{other:?}")),
    }
}

fn scsi_command(ask: &Ask) -> (Vec<u8>, Vec<u8>, usize) {
    let transfer =
        |opcode: u8, lba: u64, blocks: usize| vec![opcode, 0, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
    let reserve = |action: u8, kind: u8, key: u64, other: u64| {
        let mut list = vec![0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&other.to_be_bytes());
        (vec![0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list, 0)
    };
    match ask {
        Ask::Read { lba, blocks } => (transfer(0x28, *lba, *blocks), vec![], blocks * 512),
        Ask::Write { lba, data } => (transfer(0x2a, *lba, data.len() / 512), data.clone(), 0),
        Ask::CompareAndWrite { lba, old, new } => {
            let mut cdb = vec![0x89; 16];
            cdb[1..].fill(0);
            (cdb[9], cdb[13]) = (*lba as u8, (old.len() / 512) as u8);
            (cdb, [old.clone(), new.clone()].concat(), 0)
        }
        // REGISTER AND IGNORE EXISTING KEY.
        Ask::Register { key } => reserve(6, 0, 0, *key),
        Ask::Reserve { key } => reserve(1, 5, *key, 0),
        Ask::Preempt { key, victim } => reserve(4, 5, *key, *victim),
        Ask::Clear { key } => reserve(3, 0, *key, 0),
        Ask::Keys => (vec![0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], vec![], 256),
    }
}

fn send_nvme(pipe: &mut TestQueue, world: &mut World<Shard>, volume: usize, ask: &Ask) -> u32 {
    let transfer = |opcode: u8, lba: u64, blocks: usize| {
        let mut sqe = nvme_sqe(opcode, volume);
        sqe.cdw10[0] = U32::new(lba as u32);
        sqe.cdw10[2] = U32::new(blocks as u32 - 1);
        sqe
    };
    let keys = |current: u64, other: u64| [current.to_le_bytes(), other.to_le_bytes()].concat();
    let reserve = |opcode: u8, word: u32| {
        let mut sqe = nvme_sqe(opcode, volume);
        sqe.cdw10[0] = U32::new(word);
        sqe
    };
    let (sqe, out, read) = match ask {
        Ask::Read { lba, blocks } => (transfer(2, *lba, *blocks), vec![], blocks * 512),
        Ask::Write { lba, data } => (transfer(1, *lba, data.len() / 512), data.clone(), 0),
        Ask::CompareAndWrite { lba, old, new } => {
            let (mut first, mut second) = (transfer(5, *lba, 1), transfer(1, *lba, 1));
            (first.flags, second.flags) = (1, 2);
            pipe.send_command(world, first, old, true, 0);
            return u32::from(pipe.send_command(world, second, new, true, 0));
        }
        // Replace, and ignore the existing key.
        Ask::Register { key } => (reserve(0x0d, 2 | 1 << 3), keys(0, *key), 0),
        Ask::Reserve { key } => (reserve(0x11, 3 << 8), keys(*key, 0), 0),
        Ask::Preempt { key, victim } => (reserve(0x11, 1 | 3 << 8), keys(*key, *victim), 0),
        Ask::Clear { key } => (reserve(0x15, 1), keys(*key, 0), 0),
        Ask::Keys => {
            let mut sqe = nvme_sqe(0x0e, volume);
            (sqe.cdw10[0], sqe.cdw10[1]) = (U32::new(512 / 4 - 1), U32::new(1));
            (sqe, vec![], 512)
        }
    };
    u32::from(pipe.send_command(world, sqe, &out, true, read))
}
