//! Fuzz functions for iSCSI. Each makes a target in the simulated world, sends it the bytes as a hostile host
//! would, and checks: no panic, another host is served, every command of a well-formed session is answered,
//! all sockets close and all memory comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use buf::Entropy;
use endpoint::{ListenerId, ShardId};
use iscsi::initiator::{InitiatorLogin, LoginProgress};
use iscsi::wire::{
    BHS_LEN, Bhs, CommandFlags, Itt, LoginFlags, LoginRequest, Lun, NopIn, NopOut, OpByte, Opcode, Pdu,
    ScsiCommand, ScsiResponse, Sn, Stage, Ttt, padded_len,
};
use shard::{Message, Shard};
use sim::{Config, Peer, PeerEnd, World};
use volume::{RamBackend, RamDisk};

use crate::target::{self, TargetLimits};

const BLOCKS: u64 = 512;
/// Stands for a Reject where a status is awaited: no status is so.
const REJECT_STATUS: u8 = 0xff;
/// Longer inputs show nothing new.
pub const INPUT_MAX: usize = 64 << 10;

/// A target, and a host that must not notice anything.
pub struct FuzzScene {
    pub world: World<Shard>,
    witness: RawSession,
}

/// A session as bytes: it keeps only its own numbers.
pub struct RawSession {
    pub peer: Peer,
    pub cmd_sn: Sn,
    max_cmd_sn: Sn,
    pub exp_stat_sn: Sn,
    next_itt: u32,
    inbox: Vec<u8>,
    /// Status by tag, of what was answered.
    pub ended: BTreeMap<u32, u8>,
    pub rejects: u32,
    /// Task management functions that were answered.
    pub managed: u32,
}

impl FuzzScene {
    pub fn new(seed: u64) -> Self {
        let mut config = Config::new(seed);
        config.shards = 1 + (seed % 2) as u16;
        config.pool_bytes = 4 << 20;
        config.loaned_permille = if seed.is_multiple_of(3) { 300 } else { 0 };
        Self::with_config(config)
    }

    pub fn with_config(config: Config) -> Self {
        let shards = config.shards;
        let exports = target::build_exports(&TargetLimits::default());
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
        let geometry = disk.geometry();
        let specs = target::volume_specs(shards, geometry, &[], None, move |_| RamBackend::new(disk.clone()));
        target::serve_volume(&mut world, specs);
        let witness = RawSession::log_in(&mut world, 99);
        FuzzScene { world, witness }
    }

    /// Lets time pass, and keeps what the target wants kept.
    pub fn run_for(&mut self, time: Duration) {
        self.world.run_for(time / 2);
        self.store_volume_records();
        self.world.run_for(time / 2);
        self.store_volume_records();
    }

    /// Lets the host that must not notice anything answer pings.
    pub fn poll_bystander(&mut self) {
        self.witness.poll(&mut self.world);
    }

    /// Bytes that are lent to anyone.
    pub fn lent_bytes(&self) -> usize {
        let shards = (0..self.world.shard_count()).map(|shard| ShardId(shard as u16));
        shards.map(|shard| self.world.pool(shard).usage().lent).sum()
    }

    fn store_volume_records(&mut self) {
        for (_, message) in self.world.take_control_messages() {
            if let Message::Store(volume, op) = message {
                self.world.send_message(ShardId(0), Message::Stored(volume, op.ticket, true));
            }
        }
    }

    /// Sends a command and waits for its status; `None`: the connection has ended.
    pub fn run_command(&mut self, session: &mut RawSession, command: &RawCommand<'_>) -> Option<u8> {
        let itt = session.send(&mut self.world, command);
        let rejects = session.rejects;
        for _ in 0..100_000 {
            session.poll(&mut self.world);
            // A command whose data does not come ends after a minute; others answer pings meanwhile.
            self.witness.poll(&mut self.world);
            if let Some(status) = session.ended.get(&itt) {
                return Some(*status);
            }
            if session.rejects > rejects {
                // A CDB that says it is longer than what came is rejected as a PDU; its number counts as
                // not received, so the next command takes it (RFC 7143 §11.17.1).
                session.cmd_sn = session.cmd_sn.sub(1);
                return Some(REJECT_STATUS);
            }
            if self.world.peer_end(session.peer) != PeerEnd::Open {
                return None;
            }
            let until = self.world.now() + Duration::from_millis(5);
            self.world.step(until);
            self.store_volume_records();
        }
        panic!("a command is never answered: {:02x?}", command.cdb);
    }

    /// The host that must not notice anything is served; then everybody goes, and nothing is left.
    pub fn finish_and_check(mut self, hostile: &[Peer]) {
        let mut witness = std::mem::replace(&mut self.witness, RawSession::unconnected());
        let ready = self.run_command(&mut witness, &RawCommand::from_cdb(&[0; 6]));
        assert!(ready.is_some(), "another host's session has ended");
        for peer in hostile.iter().chain([&witness.peer]) {
            let _ = self.world.receive(*peer);
            self.world.shutdown_write(*peer);
        }
        // Longer than any deadline.
        for _ in 0..40 {
            self.run_for(Duration::from_secs(5));
            for peer in hostile.iter().chain([&witness.peer]) {
                let _ = self.world.receive(*peer);
            }
        }
        for shard in [ShardId(0), ShardId(1)] {
            if usize::from(shard.0) < self.shard_count() {
                assert_eq!(self.world.link_count(shard), 0, "every socket is closed");
                let usage = self.world.pool(shard).usage();
                assert_eq!((usage.lent, usage.reserved), (0, 0), "all memory came back");
            }
        }
    }

    fn shard_count(&self) -> usize {
        self.world.shard_count()
    }
}

/// A command of a well-formed session.
#[derive(Clone, Debug)]
pub struct RawCommand<'a> {
    pub lun: Lun,
    pub cdb: &'a [u8],
    pub out: &'a [u8],
    pub read: u32,
}

impl<'a> RawCommand<'a> {
    pub fn from_cdb(cdb: &'a [u8]) -> Self {
        RawCommand { lun: Lun::default(), cdb, out: &[], read: 0 }
    }
}

impl RawSession {
    fn unconnected() -> Self {
        RawSession {
            peer: Peer(0),
            cmd_sn: Sn::new(0),
            max_cmd_sn: Sn::new(0),
            exp_stat_sn: Sn::new(0),
            next_itt: 1,
            inbox: vec![],
            ended: BTreeMap::new(),
            rejects: 0,
            managed: 0,
        }
    }

    /// Logs in without digests, and takes the unit attention of a new nexus.
    pub fn log_in(world: &mut World<Shard>, isid: u16) -> Self {
        let peer = world.connect(ListenerId(0));
        let mut wanted = target::login_config(isid);
        // Whatever fits comes with the command.
        wanted.limits.mrdsl = 65_536;
        let (mut login, mut pdu) = InitiatorLogin::start(wanted).unwrap();
        let mut entropy = Entropy::new([1; 32]);
        let mut inbox = Vec::new();
        loop {
            let mut bytes = pdu.bhs.bytes().to_vec();
            bytes.extend(&pdu.text);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            world.send(peer, &bytes);
            let (bhs, text) = loop {
                inbox.extend(world.receive(peer));
                if let Some(found) = take_pdu(&mut inbox) {
                    break found;
                }
                let until = world.now() + Duration::from_millis(1);
                world.step(until);
                assert_eq!(world.peer_end(peer), PeerEnd::Open, "a login goes through");
            };
            match login.handle_response(&bhs, &text, &mut entropy).unwrap() {
                LoginProgress::Send(next) => pdu = next,
                LoginProgress::Established(logged) => {
                    let mut session = RawSession {
                        peer,
                        cmd_sn: logged.cmd_sn,
                        max_cmd_sn: logged.max_cmd_sn,
                        exp_stat_sn: logged.exp_stat_sn,
                        inbox,
                        ..RawSession::unconnected()
                    };
                    session.send(world, &RawCommand::from_cdb(&[0; 6]));
                    while session.ended.is_empty() {
                        let until = world.now() + Duration::from_millis(1);
                        world.step(until);
                        session.poll(world);
                    }
                    return session;
                }
            }
        }
    }

    /// The next command's header.
    pub fn next_header(&mut self, asked: &RawCommand<'_>) -> ScsiCommand {
        let mut pdu = ScsiCommand::new();
        pdu.lun = asked.lun;
        pdu.itt = Itt::new(self.next_itt);
        self.next_itt += 1;
        let len = asked.cdb.len().min(16);
        pdu.cdb[..len].copy_from_slice(&asked.cdb[..len]);
        let mut flags = CommandFlags(1).with(CommandFlags::FINAL);
        if !asked.out.is_empty() {
            flags = flags.with(CommandFlags::WRITE);
        } else if asked.read > 0 {
            flags = flags.with(CommandFlags::READ);
        }
        pdu.flags = flags;
        pdu.expected_data_len = (asked.out.len() as u32).max(asked.read).into();
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        self.cmd_sn = self.cmd_sn.next();
        pdu
    }

    /// Sends a command with all of its data, at most 8 KiB, at once. Gives its tag.
    pub fn send(&mut self, world: &mut World<Shard>, asked: &RawCommand<'_>) -> u32 {
        assert!(asked.out.len() <= 8_192, "what fits one immediate segment");
        while self.max_cmd_sn.lt(self.cmd_sn) && world.peer_end(self.peer) == PeerEnd::Open {
            let until = world.now() + Duration::from_millis(5);
            world.step(until);
            self.poll(world);
        }
        let mut pdu = self.next_header(asked);
        pdu.set_data_len(asked.out.len());
        let mut bytes = pdu.as_bhs().bytes().to_vec();
        bytes.extend(asked.out);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        world.send(self.peer, &bytes);
        pdu.itt.value()
    }

    fn answer_ping(&self, world: &mut World<Shard>, ping: &NopIn) {
        if ping.ttt == Ttt::NONE {
            return;
        }
        let mut answer = NopOut::new();
        answer.op = OpByte::new(Opcode::NOP_OUT).with_immediate();
        (answer.lun, answer.itt, answer.ttt) = (ping.lun, Itt::NONE, ping.ttt);
        (answer.cmd_sn, answer.exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        world.send(self.peer, answer.as_bhs().bytes());
    }

    /// Takes what has come, without judging it.
    pub fn poll(&mut self, world: &mut World<Shard>) {
        self.inbox.extend(world.receive(self.peer));
        while let Some((bhs, _)) = take_pdu(&mut self.inbox) {
            // StatSN, ExpCmdSN and MaxCmdSN stand at the same place in all of them.
            let like = ScsiResponse::from_bhs(&bhs);
            if self.max_cmd_sn.lt(like.max_cmd_sn) {
                self.max_cmd_sn = like.max_cmd_sn;
            }
            let with_status = bhs.opcode() != Opcode::R2T && bhs.opcode() != Opcode::DATA_IN;
            match bhs.opcode() {
                Opcode::SCSI_RESPONSE => {
                    let again = self.ended.insert(like.itt.value(), like.status.0);
                    assert_eq!(again, None, "a command is answered once");
                }
                Opcode::DATA_IN if bhs.bytes()[1] & 1 != 0 => {
                    let again = self.ended.insert(like.itt.value(), bhs.bytes()[3]);
                    assert_eq!(again, None, "a command is answered once");
                    self.exp_stat_sn = like.stat_sn.next();
                }
                Opcode::REJECT => self.rejects += 1,
                Opcode::TMF_RESPONSE => self.managed += 1,
                Opcode::NOP_IN if like.itt.is_none() => {
                    self.answer_ping(world, NopIn::from_bhs(&bhs));
                    continue;
                }
                _ => {}
            }
            if with_status {
                self.exp_stat_sn = like.stat_sn.next();
            }
        }
    }
}

fn take_pdu(inbox: &mut Vec<u8>) -> Option<(Bhs, Vec<u8>)> {
    let bhs = *Bhs::from_prefix(inbox)?;
    let end = BHS_LEN + padded_len(bhs.data_len())?;
    let data = inbox.get(BHS_LEN..end)?[..bhs.data_len()].to_vec();
    inbox.drain(..end);
    Some((bhs, data))
}

/// The first bytes choose how the stream is cut.
fn split_seed(data: &[u8]) -> (u64, &[u8]) {
    match data.split_first_chunk::<2>() {
        Some((head, rest)) => (u64::from(u16::from_le_bytes(*head)), &rest[..rest.len().min(INPUT_MAX)]),
        None => (0, data),
    }
}

/// Bytes on a fresh connection.
pub fn login(data: &[u8]) {
    let (seed, bytes) = split_seed(data);
    let mut scene = FuzzScene::new(seed);
    let peer = scene.world.connect(ListenerId(0));
    for part in bytes.chunks(1 + seed as usize % 4096) {
        scene.world.send(peer, part);
        scene.run_for(Duration::from_millis(1));
    }
    scene.finish_and_check(&[peer]);
}

/// A well-formed login request whose text is the bytes: keys and values, both stages.
pub fn text(data: &[u8]) {
    let (seed, text) = split_seed(data);
    let text = &text[..text.len().min(8_192)];
    let mut scene = FuzzScene::new(seed);
    let peer = scene.world.connect(ListenerId(0));
    let mut pdu = LoginRequest::new();
    let stage = if seed & 4 == 0 { Stage::OPERATIONAL } else { Stage::SECURITY };
    pdu.flags = if seed & 8 == 0 {
        LoginFlags::TRANSIT.with_stages(stage, Stage::FULL_FEATURE)
    } else {
        LoginFlags::default().with_stages(stage, stage)
    };
    pdu.isid = target::login_config(5).isid;
    pdu.itt = Itt::new(1);
    let names = format!("InitiatorName=iqn.2026-11.test:fuzz\0TargetName={}\0", target::TARGET_NAME);
    let mut bytes = if seed & 16 == 0 { names.into_bytes() } else { vec![] };
    bytes.extend(text);
    bytes.truncate(8_192);
    pdu.set_data_len(bytes.len());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    scene.world.send(peer, pdu.as_bhs().bytes());
    scene.world.send(peer, &bytes);
    scene.run_for(Duration::from_millis(5));
    scene.finish_and_check(&[peer]);
}

/// Bytes in the full feature phase.
pub fn session(data: &[u8]) {
    let (seed, bytes) = split_seed(data);
    let mut scene = FuzzScene::new(seed);
    let session = RawSession::log_in(&mut scene.world, 1);
    for part in bytes.chunks(1 + seed as usize % 4096) {
        scene.world.send(session.peer, part);
        scene.run_for(Duration::from_millis(1));
        let _ = scene.world.receive(session.peer);
    }
    scene.finish_and_check(&[session.peer]);
}

/// Headers in the full feature phase, made of the bytes but with numbers that let them in: 40 bytes
/// each, then as much data as the 41st and 42nd say, modulo 600.
pub fn headers(data: &[u8]) {
    let (seed, mut bytes) = split_seed(data);
    let mut scene = FuzzScene::new(seed);
    let mut session = RawSession::log_in(&mut scene.world, 1);
    let mut count = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<42>()
        && count < 64
    {
        count += 1;
        let len = usize::from(u16::from_le_bytes([head[40], head[41]])) % 600;
        let (payload, rest) = rest.split_at(len.min(rest.len()));
        bytes = rest;
        let mut wire = [0; BHS_LEN];
        wire[..24].copy_from_slice(&head[..24]);
        // Few tags, so that they meet again.
        wire[16..20].copy_from_slice(&[0, 0, 0, head[19] % 8]);
        wire[24..28].copy_from_slice(&session.cmd_sn.value().to_be_bytes());
        wire[28..32].copy_from_slice(&session.exp_stat_sn.value().to_be_bytes());
        wire[32..48].copy_from_slice(&head[24..40]);
        wire[4] = head[4] % 4;
        wire[5..8].copy_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        let ahs = vec![head[8]; usize::from(wire[4]) * 4];
        // An immediate one takes no number, nor does data.
        if wire[0] & 0x40 == 0 && wire[0] & 0x3f != Opcode::DATA_OUT.0 {
            session.cmd_sn = session.cmd_sn.next();
        }
        let mut out = wire.to_vec();
        out.extend(ahs);
        out.extend(payload);
        out.resize(out.len().next_multiple_of(4), 0);
        scene.world.send(session.peer, &out);
        if count % 4 == 0 {
            scene.run_for(Duration::from_millis(1));
            session.inbox.clear();
            let _ = scene.world.receive(session.peer);
        }
    }
    scene.finish_and_check(&[session.peer]);
}

/// Commands with the bytes as CDB, direction and data; each must be answered, whatever it is.
pub fn cdb(data: &[u8]) {
    let (seed, mut bytes) = split_seed(data);
    let mut scene = FuzzScene::new(seed);
    let mut session = RawSession::log_in(&mut scene.world, 1);
    let mut count = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<20>()
        && count < 32
    {
        count += 1;
        let len = usize::from(u16::from_le_bytes([head[16], head[17]])) % 2_048;
        let (out, rest) = rest.split_at(if head[18] & 1 == 0 { 0 } else { len.min(rest.len()) });
        bytes = rest;
        let mut lun = Lun::default();
        if head[18] & 0x80 != 0 {
            lun = Lun([head[19], head[18], 0, 0, 0, 0, 0, 0]);
        }
        let read = if head[18] & 2 == 0 { 0 } else { len as u32 };
        if scene.run_command(&mut session, &RawCommand { lun, cdb: &head[..16], out, read }).is_none() {
            break;
        }
    }
    scene.finish_and_check(&[session.peer]);
}

/// PERSISTENT RESERVE OUT with the bytes as service action, type and parameter list.
pub fn reservations(data: &[u8]) {
    let (seed, mut bytes) = split_seed(data);
    let mut scene = FuzzScene::new(seed);
    let mut session = RawSession::log_in(&mut scene.world, 1);
    let mut count = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<4>()
        && count < 32
    {
        count += 1;
        let (list, rest) = rest.split_at(usize::from(head[2]).min(rest.len()));
        bytes = rest;
        let said = if head[3] == 0 { list.len() as u32 } else { u32::from(head[3]) };
        let [a, b, c, d] = said.to_be_bytes();
        let cdb = [0x5f, head[0] & 0x1f, head[1], 0, 0, a, b, c, d, 0];
        let asked = RawCommand { lun: Lun::default(), cdb: &cdb, out: list, read: 0 };
        if scene.run_command(&mut session, &asked).is_none() {
            break;
        }
        for action in 0..4 {
            let cdb = [0x5e, action, 0, 0, 0, 0, 0, 4, 0, 0];
            let asked = RawCommand { lun: Lun::default(), cdb: &cdb, out: &[], read: 1_024 };
            if scene.run_command(&mut session, &asked) == Some(2) && action < 2 {
                panic!("keys and reservations can always be read");
            }
        }
    }
    scene.finish_and_check(&[session.peer]);
}
