//! The target in the simulated world: the shard that ships, on a network, clock and backend that one
//! seed decides, driven by an initiator that checks the rules of the protocol.

mod initiator;

use std::sync::Arc;
use std::time::Duration;

use blockwire_target::{
    CONTROL, Control, Exports, LunExport, LunMask, Message, Portal, Report, Rule, Shard, TargetExport,
    VolumeSpec,
};
use endpoint::{ListenerId, ShardId};
use initiator::Initiator;
use iscsi::initiator::Wanted;
use iscsi::login::AuthPolicy;
use iscsi::negotiate::{Digest, Limits};
use iscsi::session::SessionLimits;
use iscsi::wire::{Cid, Isid, Sn, TmfFunction, Tsih};
use sim::{Chance, Config, PeerEnd, World};
use volume::{Facts, Home, PortId, Ram, RamDisk, Shared, Uuid, VolumeId};

const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
const BLOCKS: u64 = 4096;

fn exports() -> Arc<Exports> {
    let product =
        scsi_server::Product { vendor: "BLOCKWIR".into(), product: "Volume".into(), revision: "0".into() };
    let rule = Rule {
        initiators: vec![],
        sources: vec![],
        auth: AuthPolicy::None,
        luns: LunMask::All { read_only: false },
    };
    let target = TargetExport {
        name: TARGET.into(),
        alias: Some("disk".into()),
        groups: vec![],
        luns: vec![LunExport { lun: 0, volume: VolumeId(0), read_only: false }],
        rules: vec![rule],
        product: Arc::new(product),
        explicit_alua: false,
        negotiation: Limits { first_burst: 16_384, max_burst: 65_536, mrdsl: 8_192, ..Limits::default() },
        limits: SessionLimits { commands: 16, ..SessionLimits::default() },
        redirect: None,
    };
    let portal = Portal {
        listener: ListenerId(0),
        address: "127.0.0.1:3260".parse().unwrap(),
        group: 1,
        port: PortId(1),
    };
    Arc::new(Exports { portals: vec![portal], targets: vec![target], discovery_auth: AuthPolicy::None })
}

fn world(config: Config) -> World<Shard> {
    let shards = config.shards;
    let exports = exports();
    let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let facts = Arc::new(Facts {
        id: VolumeId(0),
        name: "disk".into(),
        uuid: Uuid([7; 16]),
        oui: None,
        removable: false,
        rpm: 0,
        vendor: "BLOCKWIR".into(),
        product: "Volume".into(),
        revision: "0".into(),
    });
    let shared = Shared::new(shards);
    let home = Home::restore((*facts).clone(), disk.geometry(), shards, false, None).unwrap();
    let view = home.view().clone();
    let mut home = Some(Box::new(home));
    for shard in 0..shards {
        let disk = disk.clone();
        let spec = VolumeSpec {
            facts: facts.clone(),
            shared: shared.clone(),
            view: view.clone(),
            make: Box::new(move || Box::new(Ram::new(disk))),
            disks: vec![],
            home: if shard == 0 { home.take() } else { None },
        };
        world.tell(ShardId(shard), Message::Control(u64::from(shard), Control::AddVolume(Box::new(spec))));
    }
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.heard().len(), usize::from(shards));
    world
}

fn wanted(isid: u16) -> Wanted {
    Wanted {
        initiator_name: "iqn.2026-11.test:host".into(),
        target_name: Some(TARGET.into()),
        isid: Isid::random([1, 2, 3], isid),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(u32::MAX - 3),
        limits: Limits { mrdsl: 8_192, ..Limits::default() },
        credentials: None,
    }
}

fn run_until(
    world: &mut World<Shard>,
    initiators: &mut [&mut Initiator],
    done: impl Fn(&[&mut Initiator]) -> bool,
) {
    for _ in 0..200_000 {
        for initiator in initiators.iter_mut() {
            initiator.poll(world);
        }
        if done(initiators) {
            return;
        }
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
    panic!("it does not come to an end: {world:?}");
}

fn log_in(world: &mut World<Shard>, wanted: Wanted) -> Initiator {
    let mut initiator = Initiator::connect(world, wanted);
    run_until(world, &mut [&mut initiator], |all| all[0].is_in() || all[0].failure.is_some());
    assert_eq!(initiator.failure, None);
    // The first command reports POWER ON.
    let itt = initiator.command(world, 0, &[0; 6], &[], 0);
    run_until(world, &mut [&mut initiator], |all| all[0].is_idle());
    let ended = initiator.ended.pop().unwrap();
    assert_eq!((ended.itt, ended.status), (itt, 2));
    assert_eq!(ended.sense[12], 0x29);
    initiator
}

fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    [0x2a, 0, a, b, c, d, 0, e, f, 0]
}

fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = write10(lba, blocks);
    cdb[0] = 0x28;
    cdb
}

#[test]
fn what_is_written_is_read_back() {
    for seed in 0..20 {
        let mut config = Config::new(seed);
        config.loaned_permille = if seed % 2 == 0 { 0 } else { 500 };
        let mut world = world(config);
        let mut asked = wanted(1);
        if seed % 3 == 0 {
            asked.limits.header_digest = vec![Digest::Crc32c];
            asked.limits.data_digest = vec![Digest::Crc32c];
        }
        asked.limits.initial_r2t = seed % 4 == 1;
        asked.limits.immediate_data = seed % 5 != 2;
        let mut initiator = log_in(&mut world, asked);
        for blocks in [1u16, 8, 31, 256] {
            let data: Vec<u8> =
                (0..usize::from(blocks) * 512).map(|at| (at * 7 + seed as usize) as u8).collect();
            initiator.command(&mut world, 0, &write10(5, blocks), &data, 0);
            run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
            let ended = initiator.ended.pop().unwrap();
            assert_eq!((ended.status, ended.residual), (0, 0), "seed {seed}, {blocks} blocks: {ended:?}");
            initiator.command(&mut world, 0, &read10(5, blocks), &[], data.len());
            run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
            let ended = initiator.ended.pop().unwrap();
            assert_eq!((ended.status, ended.residual), (0, 0));
            assert!(ended.data == data, "seed {seed}: {blocks} blocks are read as written");
        }
        initiator.log_out(&mut world);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].logged_out);
        world.run_for(Duration::from_secs(20));
        for shard in 0..2 {
            assert_eq!(world.links(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }
}

/// Many commands in flight from two sessions against a model: every read sees, for each block, a
/// value that some write put there which may have been the last one.
#[test]
fn histories_of_two_sessions_agree_with_a_disk() {
    for seed in seeds(30) {
        history(seed);
    }
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let one = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(count);
    match one {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

/// What may stand in a block: what was written last, or by writes that overlapped with that one.
#[derive(Clone, Default)]
struct Block {
    /// Values, and when the write of each ended.
    candidates: Vec<(u8, u64)>,
    /// Values that are being written, and when that began.
    writing: Vec<(u8, u64)>,
}

impl Block {
    fn start(&mut self, value: u8, now: u64) {
        self.writing.push((value, now));
    }

    fn end(&mut self, value: u8, now: u64) {
        let at = self.writing.iter().position(|known| known.0 == value).unwrap();
        let (_, began) = self.writing.remove(at);
        // What ended before this one began is overwritten for certain.
        self.candidates.retain(|(_, ended)| *ended > began);
        self.candidates.push((value, now));
    }

    fn possible(&self) -> Vec<u8> {
        self.candidates.iter().chain(&self.writing).map(|(value, _)| *value).collect()
    }
}

/// A command in flight.
struct Flight {
    who: usize,
    itt: u32,
    lba: usize,
    /// What is written; `None` for a read.
    value: Option<u8>,
    /// For each block of a read: what it may find.
    possible: Vec<Vec<u8>>,
    blocks: usize,
}

struct History {
    seed: u64,
    model: Vec<Block>,
    flying: Vec<Flight>,
    clock: u64,
}

const SPAN: usize = 64;

impl History {
    fn command(
        &mut self,
        chance: &mut Chance,
        world: &mut World<Shard>,
        who: usize,
        initiator: &mut Initiator,
    ) {
        self.clock += 1;
        let blocks = chance.between(1, 40) as usize;
        let lba = chance.below((SPAN - blocks) as u64 + 1) as usize;
        if chance.permille(500) {
            let value = (self.clock % 250) as u8 + 1;
            let data = vec![value; blocks * 512];
            let itt = initiator.command(world, 0, &write10(lba as u32, blocks as u16), &data, 0);
            for block in &mut self.model[lba..lba + blocks] {
                block.start(value, self.clock);
            }
            for read in self.flying.iter_mut().filter(|flight| flight.value.is_none()) {
                for at in lba.max(read.lba)..(lba + blocks).min(read.lba + read.blocks) {
                    read.possible[at - read.lba].push(value);
                }
            }
            self.flying.push(Flight { who, itt, lba, value: Some(value), possible: vec![], blocks });
        } else {
            let itt = initiator.command(world, 0, &read10(lba as u32, blocks as u16), &[], blocks * 512);
            let possible = self.model[lba..lba + blocks].iter().map(Block::possible).collect();
            self.flying.push(Flight { who, itt, lba, value: None, possible, blocks });
        }
    }

    fn settle(&mut self, who: usize, initiator: &mut Initiator) {
        for ended in std::mem::take(&mut initiator.ended) {
            self.clock += 1;
            assert_eq!(ended.status, 0, "seed {}: {ended:?}", self.seed);
            let at = self.flying.iter().position(|fly| (fly.who, fly.itt) == (who, ended.itt)).unwrap();
            let flight = self.flying.remove(at);
            match flight.value {
                Some(value) => {
                    for block in &mut self.model[flight.lba..flight.lba + flight.blocks] {
                        block.end(value, self.clock);
                    }
                }
                None => self.check(&flight, &ended.data),
            }
        }
    }

    fn check(&self, flight: &Flight, data: &[u8]) {
        assert_eq!(data.len(), flight.blocks * 512);
        for (number, bytes) in data.chunks(512).enumerate() {
            let (found, lba, seed) = (bytes[0], flight.lba + number, self.seed);
            assert!(bytes.iter().all(|&byte| byte == found), "seed {seed}: block {lba} is torn");
            let possible = &flight.possible[number];
            assert!(possible.contains(&found), "seed {seed}: block {lba} has {found}, none of {possible:?}");
        }
    }
}

fn history(seed: u64) {
    println!("replay with: SIM_SEED={seed} cargo test -p blockwire-target --test simulation histories");
    let mut config = Config::new(seed);
    config.window = 16 << 10;
    let mut world = world(config);
    let mut chance = Chance::new(!seed);
    let mut first = log_in(&mut world, wanted(1));
    let mut second = log_in(&mut world, wanted(2));
    let fresh = Block { candidates: vec![(0, 0)], writing: vec![] };
    let mut history = History { seed, model: vec![fresh; SPAN], flying: vec![], clock: 0 };
    for _ in 0..120 {
        let who = chance.below(2) as usize;
        let initiator = if who == 0 { &mut first } else { &mut second };
        history.command(&mut chance, &mut world, who, initiator);
        for _ in 0..chance.below(60) {
            first.poll(&mut world);
            second.poll(&mut world);
            let until = world.now() + Duration::from_micros(50);
            world.step(until);
        }
        history.settle(0, &mut first);
        history.settle(1, &mut second);
    }
    run_until(&mut world, &mut [&mut first, &mut second], |all| all.iter().all(|one| one.is_idle()));
    history.settle(0, &mut first);
    history.settle(1, &mut second);
    assert!(history.flying.is_empty());
}

#[test]
fn a_session_is_reinstated_and_its_tasks_end_once() {
    for seed in 0..20 {
        let mut world = world(Config::new(seed));
        let mut old = log_in(&mut world, wanted(1));
        for lba in 0..8 {
            old.command(&mut world, 0, &write10(lba * 64, 64), &[1; 64 * 512], 0);
        }
        let steps = world.chance().below(200);
        for _ in 0..steps {
            old.poll(&mut world);
            let until = world.now() + Duration::from_micros(20);
            world.step(until);
        }
        let mut new = log_in(&mut world, wanted(1));
        new.command(&mut world, 0, &read10(0, 1), &[], 512);
        run_until(&mut world, &mut [&mut new], |all| all[0].is_idle());
        assert_eq!(new.ended.pop().unwrap().status, 0);
        old.poll(&mut world);
        assert_ne!(old.end(&world), PeerEnd::Open, "seed {seed}: the old connection is gone");
    }
}

#[test]
fn resets_at_any_moment_leak_nothing() {
    for seed in 0..40 {
        let mut world = world(Config::new(seed));
        let mut initiator = log_in(&mut world, wanted(1));
        for lba in 0..6 {
            initiator.command(&mut world, 0, &write10(lba * 64, 64), &[2; 64 * 512], 0);
            initiator.command(&mut world, 0, &read10(lba * 64, 64), &[], 64 * 512);
        }
        let steps = world.chance().below(300);
        for _ in 0..steps {
            initiator.poll(&mut world);
            let until = world.now() + Duration::from_micros(20);
            world.step(until);
        }
        if seed % 2 == 0 {
            world.reset(initiator.peer);
        } else {
            world.shut(initiator.peer);
            let _ = world.receive(initiator.peer);
        }
        for _ in 0..40 {
            world.run_for(Duration::from_secs(5));
            let _ = world.receive(initiator.peer);
        }
        for shard in 0..2 {
            assert_eq!(world.links(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }
}

#[test]
fn a_task_management_function_is_answered_after_its_tasks() {
    for seed in 0..20 {
        let mut world = world(Config::new(seed));
        let mut initiator = log_in(&mut world, wanted(1));
        let itt = initiator.command(&mut world, 0, &write10(0, 128), &[3; 128 * 512], 0);
        let function = initiator.manage(&mut world, TmfFunction::ABORT_TASK, 0, itt);
        run_until(&mut world, &mut [&mut initiator], |all| !all[0].managed.is_empty());
        let (answered, response) = initiator.managed.pop().unwrap();
        assert_eq!(answered, function);
        let before = initiator.ended.len();
        // 0: it was aborted and nothing more is said of it; 1: it had ended before.
        assert!(response == 0 || before == 1, "seed {seed}: response {response}");
        initiator.forget(itt);
        world.run_for(Duration::from_millis(10));
        initiator.command(&mut world, 0, &read10(0, 1), &[], 512);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
    }
}

#[test]
fn the_stop_asks_initiators_to_log_out() {
    let mut world = world(Config::new(1));
    let mut initiator = log_in(&mut world, wanted(1));
    for shard in 0..2 {
        let stop = Control::Stop { grace: Duration::from_secs(3) };
        world.tell(ShardId(shard), Message::Control(77, stop));
    }
    run_until(&mut world, &mut [&mut initiator], |all| all[0].asked_to_log_out);
    initiator.log_out(&mut world);
    run_until(&mut world, &mut [&mut initiator], |all| all[0].logged_out);
    world.run_for(Duration::from_secs(1));
    let heard = world.heard();
    let done = heard
        .iter()
        .filter(|(to, message)| *to == CONTROL && matches!(message, Message::Report(77, Report::Done)));
    assert_eq!(done.count(), 2, "{heard:?}");
}

#[test]
fn attack_01_a_connection_that_says_nothing_is_closed() {
    let mut world = world(Config::new(1));
    let peer = world.connect(ListenerId(0));
    world.run_for(Duration::from_secs(14));
    assert_eq!(world.peer_end(peer), PeerEnd::Open);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.peer_end(peer), PeerEnd::Closed);
}

#[test]
fn attack_02_one_deadline_for_the_whole_login() {
    let mut world = world(Config::new(1));
    let peer = world.connect(ListenerId(0));
    let mut sent = 0;
    while world.peer_end(peer) == PeerEnd::Open && sent < 60 {
        world.send(peer, &[0x43]);
        sent += 1;
        world.run_for(Duration::from_secs(1));
    }
    assert!(sent <= 17, "closed after {sent} seconds");
}

#[test]
fn attack_03_another_protocol_is_closed_at_its_first_header() {
    for bytes in [&b"GET / HTTP/1.1\r\nHost: blockwire\r\nAccept: */*\r\n\r\n"[..], &[0x16; 64]] {
        let mut world = world(Config::new(1));
        let peer = world.connect(ListenerId(0));
        world.send(peer, bytes);
        world.run_for(Duration::from_millis(100));
        assert_ne!(world.peer_end(peer), PeerEnd::Open);
    }
}
