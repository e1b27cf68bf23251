//! Crash points: at every moment of a history at which something has changed, the power could fail. What it could
//! leave then becomes the disks and the records of a daemon that is started on them, and a host of either protocol
//! looks at it.
//!
//! Of each sector of 512 bytes every version since the last that is stable may be there; of a record the old one or
//! the new one. What a host was told to be stable must be there.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use blockwire_shard::{Message, home_of};
use buf::Time;
use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, Register, RegisterAction, RegisterKeys, Release, ReleaseAction,
    Report, decode_status,
};
use nvme::{Opcode, Sqe, Status};
use sim::linearizability::Stamp;
use sim::{CrashBounds, Disk, SimRng};
use testkit::seeds;
use volume::{DiskId, PathAccess, PortId, StoreOp, VolumeId, VolumeRequest};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::changes::ANA;
use crate::command::{Action, Flight, sqe};
use crate::history::{History, Tally};
use crate::ledger::{BAD, Moment, fill, pattern, stamp_of};
use crate::plan::{Bug, PATTERNS, Plan, SPAN, disk};

/// States of one moment: each of the newest writes lost alone and kept alone, and some that are drawn.
const BOUNDS: CrashBounds = CrashBounds { writes_max: 6, drawn: 4 };
/// The longest that a record takes to become durable.
const STORE_MAX: Duration = Duration::from_micros(400);
/// Bytes that are written whole or not at all.
const SECTOR: usize = 512;
/// Blocks that are read at a time.
const READ: usize = 16;
/// Write Exclusive – Registrants Only, by its numbers in SCSI and in NVMe.
const KIND: (u8, u8) = (5, 3);

/// A record on its way to the state directory.
struct Storing {
    volume: VolumeId,
    op: StoreOp,
    durable: Time,
}

/// What a volume's record says of its hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Claims {
    /// Keys, by hosts.
    keys: BTreeMap<usize, u64>,
    /// The host that holds the reservation.
    holder: Option<usize>,
}

impl Claims {
    /// All keys in order, and that of the holder.
    fn shown(&self) -> (Vec<u64>, Option<u64>) {
        let mut keys: Vec<u64> = self.keys.values().copied().collect();
        keys.sort_unstable();
        (keys, self.holder.and_then(|host| self.keys.get(&host).copied()))
    }
}

/// Something that a record keeps, and what a change that is under way makes of it.
#[derive(Debug)]
struct Kept<T> {
    told: T,
    next: Option<T>,
}

impl<T: PartialEq> Kept<T> {
    fn new(told: T) -> Self {
        Kept { told, next: None }
    }

    fn may_be(&self, found: &T) -> bool {
        self.told == *found || self.next.as_ref() == Some(found)
    }

    fn changed(&mut self) {
        if let Some(next) = self.next.take() {
            self.told = next;
        }
    }
}

/// See the module.
pub struct Crashes {
    chance: SimRng,
    /// From now on crash points are looked at.
    begun: bool,
    /// The last moment that was looked at: what the hosts saw, what the disks carried out, what was stored.
    last: (Moment, u64, usize, u64),
    storing: VecDeque<Storing>,
    stored: u64,
    claims: Vec<Kept<Claims>>,
    paths: Vec<Kept<PathAccess>>,
}

impl Crashes {
    pub fn of(plan: &Plan) -> Self {
        Crashes {
            chance: SimRng::new(plan.seed ^ 0xc4a5),
            begun: false,
            last: (0, 0, 0, 0),
            storing: VecDeque::new(),
            stored: 0,
            claims: (0..plan.volumes).map(|_| Kept::new(Claims::default())).collect(),
            paths: (0..plan.volumes).map(|_| Kept::new(PathAccess::Optimized)).collect(),
        }
    }
}

impl History {
    /// The whole of a history with crash points.
    fn crash_play(mut self) -> Tally {
        for (host, volume) in self.places() {
            self.take_key(host, volume);
        }
        self.crashes.begun = true;
        self.play()
    }

    fn places(&self) -> Vec<(usize, usize)> {
        let volumes = 0..self.plan.volumes;
        (0..self.hosts.len()).flat_map(|host| volumes.clone().map(move |volume| (host, volume))).collect()
    }

    /// A record is on its way.
    pub fn begin_store(&mut self, volume: VolumeId, op: StoreOp) {
        if self.plan.bug == Some(Bug::RecordEarly) {
            self.tell_stored(volume, op.ticket);
        }
        let delay = self.crashes.chance.below(STORE_MAX.as_nanos() as u64);
        let durable = self.world.now() + Duration::from_nanos(delay);
        self.crashes.storing.push_back(Storing { volume, op, durable });
    }

    fn tell_stored(&mut self, volume: VolumeId, ticket: u64) {
        let home = home_of(volume, self.plan.shards);
        self.world.send_message(home, Message::Stored(volume, ticket, true));
    }

    /// Records that have become durable.
    fn end_stores(&mut self) {
        let now = self.world.now();
        while self.crashes.storing.front().is_some_and(|first| first.durable <= now) {
            let Some(Storing { volume, op, .. }) = self.crashes.storing.pop_front() else { return };
            self.crashes.stored += 1;
            self.records[volume.0 as usize] = Some(op.bytes);
            if self.plan.bug != Some(Bug::RecordEarly) {
                self.tell_stored(volume, op.ticket);
            }
        }
    }

    /// This moment is a crash point, if something has changed since the last and chance wants it.
    pub fn crash(&mut self) {
        self.end_stores();
        let calls =
            (0..self.plan.volumes).filter_map(|volume| self.world.disk(disk(volume)).map(|d| d.call_count()));
        let calls = calls.sum();
        let moment = (self.now, calls, self.crashes.storing.len(), self.crashes.stored);
        if !self.crashes.begun || std::mem::replace(&mut self.crashes.last, moment) == moment {
            return;
        }
        if !self.crashes.chance.chance_permille(self.plan.crash_permille) {
            return;
        }
        self.tally.crash_points += 1;
        for disks in self.world.crash_states(BOUNDS, &mut self.crashes.chance) {
            self.tally.crash_states += 1;
            self.restart(disks);
        }
    }

    /// The record of a volume as a crash may leave it.
    fn record_left(&mut self, volume: usize) -> Option<Vec<u8>> {
        let told = self.records[volume].clone();
        let on_its_way = self.crashes.storing.iter().filter(|storing| storing.volume.0 as usize == volume);
        let mut left: Vec<Option<Vec<u8>>> =
            on_its_way.map(|storing| Some(storing.op.bytes.clone())).collect();
        if let (Some(Bug::RecordInPlace), Some(Some(new)), Some(old)) = (self.plan.bug, left.first(), &told) {
            // The first part of the new one over the old one.
            let cut = new.len() / 2;
            let torn = new.iter().take(cut).chain(old.iter().skip(cut)).copied().collect();
            left.push(Some(torn));
        }
        self.tally.crash_old_records += u64::from(!left.is_empty());
        left.push(told);
        self.crashes.chance.pick(&left).clone()
    }

    /// A daemon is started on this.
    fn restart(&mut self, mut disks: BTreeMap<DiskId, Disk>) {
        let scsi = self.crashes.chance.chance_permille(500);
        let plan = self.plan.restarted(scsi);
        let kept = (0..plan.volumes).map(|volume| {
            let contents = disks.remove(&disk(volume)).expect("a file has a disk");
            (contents, self.record_left(volume))
        });
        let kept = kept.collect();
        let world = plan.world_of(&self.rams, kept, 1 + self.tally.crash_states);
        let mut daemon = History::over(plan, self.rams.clone(), world);
        daemon.come();
        for volume in 0..self.plan.volumes {
            self.look_at_blocks(&mut daemon, volume);
            let found = daemon.claims(volume);
            let claims = &self.crashes.claims[volume];
            let may = [Some(&claims.told), claims.next.as_ref()];
            assert!(
                may.iter().flatten().any(|claims| claims.shown() == found),
                "seed {}: after the power failed registrations are {found:x?}, of {claims:x?}",
                self.plan.seed
            );
            // One group of namespaces has one state, whichever volume's it is.
            let found = daemon.path(volume);
            let paths = &self.crashes.paths;
            let paths = if scsi { &paths[volume..=volume] } else { &paths[..] };
            assert!(
                paths.iter().any(|path| path.may_be(&found)),
                "seed {}: after the power failed paths are {found:?}, of {paths:?}",
                self.plan.seed
            );
        }
    }

    /// Every block is what it may be.
    fn look_at_blocks(&mut self, daemon: &mut History, volume: usize) {
        for first in (0..SPAN + PATTERNS).step_by(READ) {
            match daemon.bytes(volume, first, READ) {
                Some(bytes) => {
                    for (lba, bytes) in (first..).zip(bytes.chunks(self.plan.block)) {
                        self.look_at_block(volume, lba, bytes);
                    }
                }
                // One of them is bad, if no more.
                None => {
                    for lba in first..first + READ {
                        match daemon.bytes(volume, lba, 1) {
                            Some(bytes) => self.look_at_block(volume, lba, &bytes),
                            None => self.may_be(volume, lba, BAD),
                        }
                    }
                }
            }
        }
    }

    fn look_at_block(&mut self, volume: usize, lba: usize, bytes: &[u8]) {
        let seed = self.plan.seed;
        if lba >= SPAN {
            let whole = fill(0, pattern(volume, lba - SPAN), self.plan.block);
            assert!(bytes == whole, "seed {seed}: what nobody has written since has changed: block {lba}");
            return;
        }
        let mut stamps = vec![];
        for sector in bytes.chunks(SECTOR) {
            let stamp = stamp_of(lba, sector);
            let stamp = stamp.unwrap_or_else(|| panic!("seed {seed}: block {lba}: {:02x?}", &sector[..32]));
            self.may_be(volume, lba, stamp);
            stamps.push(stamp);
        }
        self.tally.crash_torn += u64::from(stamps.iter().any(|stamp| *stamp != stamps[0]));
        self.tally.crash_old += u64::from(stamps[0] != self.ledgers[volume].seen[lba]);
    }

    fn may_be(&self, volume: usize, lba: usize, stamp: Stamp) {
        let ledger = &self.ledgers[volume];
        assert!(
            ledger.may_survive(lba, stamp),
            "seed {}: block {lba} is {stamp} after the power failed, of {}",
            self.plan.seed,
            ledger.told_of(lba)
        );
    }

    /// What is in some blocks; `None`: one of them cannot be read.
    fn bytes(&mut self, volume: usize, lba: usize, blocks: usize) -> Option<Vec<u8>> {
        let flight = Flight { host: 0, action: Action::Read, volume, lba, blocks, began: 0 };
        let (block, seed) = (self.plan.block, self.plan.seed);
        if self.is_scsi(0) {
            let (cdb, out, len) = flight.cdb(block).expect("SCSI reads");
            let ended = self.scsi_errand((0, volume), &cdb, &out, len);
            return match (ended.status, ended.sense.get(2).map(|byte| byte & 0x0f)) {
                (0, _) => Some(ended.data),
                (2, Some(3)) => None,
                _ => panic!("seed {seed}: a read after the power failed: {ended:?}"),
            };
        }
        let (read, out, len) = flight.sqes(block).remove(0);
        let ended = self.errand(0, 1, read, out, len);
        match Status(ended.status.0 & 0x7ff) {
            Status::SUCCESS => Some(ended.data),
            Status::UNRECOVERED_READ_ERROR => None,
            _ => panic!("seed {seed}: a read after the power failed: {ended:?}"),
        }
    }

    /// All keys in order, and that of the holder: READ KEYS and READ RESERVATION, or Reservation Report.
    fn claims(&mut self, volume: usize) -> (Vec<u64>, Option<u64>) {
        let key = |bytes: &[u8]| u64::from_be_bytes(*bytes.first_chunk().expect("a key has 8 bytes"));
        let (mut keys, holder) = if self.is_scsi(0) {
            let mut read = |action| {
                let cdb = [0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0];
                let ended = self.scsi_errand((0, volume), &cdb, &[], 256);
                assert_eq!(ended.status, 0, "{ended:?}");
                let len = u32::from_be_bytes(*ended.data[4..].first_chunk().expect("a head has 8 bytes"));
                ended.data[8..8 + len as usize].to_vec()
            };
            let (keys, reservation) = (read(0), read(1));
            (keys.chunks(8).map(key).collect(), reservation.first_chunk::<8>().map(|bytes| key(bytes)))
        } else {
            let mut report = of_namespace(Opcode::RESERVATION_REPORT, volume);
            Report { len: 1024, extended: true }.write_to_sqe(&mut report);
            let ended = self.errand(0, 1, report, vec![], 1024);
            assert!(ended.status.is_success(), "{ended:?}");
            let (_, _, registrants) = decode_status(&ended.data, true).expect("a report has a head");
            let holder = registrants.iter().find(|registrant| registrant.holds).map(|holder| holder.key);
            (registrants.iter().map(|registrant| registrant.key).collect::<Vec<u64>>(), holder)
        };
        keys.sort_unstable();
        (keys, holder)
    }

    /// The state of the path: REPORT TARGET PORT GROUPS, or the log of asymmetric namespace access.
    fn path(&mut self, volume: usize) -> PathAccess {
        let state = if self.is_scsi(0) {
            let cdb = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
            let ended = self.scsi_errand((0, volume), &cdb, &[], 1024);
            assert_eq!(ended.status, 0, "{ended:?}");
            // Both begin with 0, respectively 1.
            (ended.data[4] & 0x0f) + 1
        } else {
            let mut log = sqe(Opcode(0x02));
            log.nsid = U32::new(u32::MAX);
            log.cdw10[0] = U32::new(u32::from(ANA) | 1023 << 16);
            let ended = self.errand(0, 0, log, vec![], 4096);
            assert!(ended.status.is_success(), "{ended:?}");
            ana_state(&ended.data, volume as u32 + 1)
        };
        match state {
            1 => PathAccess::Optimized,
            2 => PathAccess::NonOptimized,
            other => panic!("seed {}: a path's state is {other}", self.plan.seed),
        }
    }

    /// Now and then something changes that the record keeps.
    pub fn change_record(&mut self, host: usize) {
        if !self.crashes.chance.chance_permille(500) {
            return;
        }
        let volume = self.crashes.chance.below(self.plan.volumes as u64) as usize;
        match self.crashes.chance.below(4) {
            0 => {
                let paths = &mut self.crashes.paths[volume];
                let optimized = paths.told == PathAccess::Optimized;
                let to = if optimized { PathAccess::NonOptimized } else { PathAccess::Optimized };
                paths.next = Some(to);
                let ports = vec![PortId(1), PortId(2)];
                self.ask(volume, VolumeRequest::SetAccess { ports, to, by: None });
                self.crashes.paths[volume].changed();
            }
            1 | 2 => self.take_key(host, volume),
            _ => self.hold(host, volume),
        }
    }

    /// A host takes another key.
    fn take_key(&mut self, host: usize, volume: usize) {
        let key = self.crashes.chance.next_u64() | 1;
        let claims = &mut self.crashes.claims[volume];
        let mut next = claims.told.clone();
        let action = match next.keys.insert(host, key) {
            Some(_) => RegisterAction::Replace,
            None => RegisterAction::Register,
        };
        claims.next = Some(next);
        let mut command = of_namespace(Opcode::RESERVATION_REGISTER, volume);
        Register { action, ignore_key: true, persist: Some(true) }.write_to_sqe(&mut command);
        let keys = RegisterKeys { current: U64::ZERO, new: U64::new(key) };
        // REGISTER AND IGNORE EXISTING KEY, with APTPL.
        let list = [&[0; 8][..], &key.to_be_bytes(), &[0, 0, 0, 0, 1, 0, 0, 0]].concat();
        self.reserve_out((host, volume), (6, 0, &list), (command, keys.as_bytes()));
    }

    /// A host takes the reservation, or gives it up; while another holds it, it does neither.
    fn hold(&mut self, host: usize, volume: usize) {
        let claims = &mut self.crashes.claims[volume];
        let mut next = claims.told.clone();
        let key = next.keys[&host];
        let list = [&key.to_be_bytes()[..], &[0; 16]].concat();
        match next.holder {
            Some(holder) if holder != host => {}
            Some(_) => {
                next.holder = None;
                claims.next = Some(next);
                let mut command = of_namespace(Opcode::RESERVATION_RELEASE, volume);
                let (action, kind) = (ReleaseAction::Release, KIND.1);
                Release { action, ignore_key: false, kind }.write_to_sqe(&mut command);
                self.reserve_out((host, volume), (2, KIND.0, &list), (command, &key.to_le_bytes()));
            }
            None => {
                next.holder = Some(host);
                claims.next = Some(next);
                let mut command = of_namespace(Opcode::RESERVATION_ACQUIRE, volume);
                let (action, kind) = (AcquireAction::Acquire, KIND.1);
                Acquire { action, ignore_key: false, kind }.write_to_sqe(&mut command);
                let keys = AcquireKeys { current: U64::new(key), preempted: U64::ZERO };
                self.reserve_out((host, volume), (1, KIND.0, &list), (command, keys.as_bytes()));
            }
        }
    }

    /// PERSISTENT RESERVE OUT of an action and a type, or the command of NVMe: it succeeds, and what it changes is
    /// in effect from then on.
    fn reserve_out(
        &mut self,
        (host, volume): (usize, usize),
        (action, kind, list): (u8, u8, &[u8]),
        (command, keys): (Sqe, &[u8]),
    ) {
        let seed = self.plan.seed;
        if self.is_scsi(host) {
            let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, list.len() as u8, 0];
            let ended = self.scsi_errand((host, volume), &cdb, list, 0);
            assert_eq!(ended.status, 0, "seed {seed}: action {action}: {ended:?}");
        } else {
            let ended = self.errand(host, 1, command, keys.to_vec(), 0);
            assert!(ended.status.is_success(), "seed {seed}: action {action}: {ended:?}");
        }
        self.crashes.claims[volume].changed();
    }
}

/// A command to a volume's namespace.
fn of_namespace(opcode: Opcode, volume: usize) -> Sqe {
    let mut command = sqe(opcode);
    command.nsid = U32::new(volume as u32 + 1);
    command
}

/// The state of a namespace's group, in a log of asymmetric namespace access.
fn ana_state(log: &[u8], nsid: u32) -> u8 {
    let word = |at: usize| u32::from_le_bytes(*log[at..].first_chunk().expect("a word has 4 bytes"));
    let groups = u16::from_le_bytes([log[8], log[9]]);
    let mut at = 16;
    for _ in 0..groups {
        let namespaces = word(at + 4) as usize;
        if (0..namespaces).any(|number| word(at + 32 + 4 * number) == nsid) {
            return log[at + 16];
        }
        at += 32 + 4 * namespaces;
    }
    panic!("namespace {nsid} is in no group");
}

/// Of the moments of a history so many, in thousandths, are looked at: a few, or with `CRASH_PERMILLE=1000` all.
fn permille() -> u32 {
    std::env::var("CRASH_PERMILLE").ok().and_then(|value| value.parse().ok()).unwrap_or(30)
}

/// 2,000 states here, 100,000 by `make crash`.
#[test]
fn what_was_stable_is_there_after_every_crash_point() {
    let test = "blockwire-shard --test cross_protocol crash_point";
    let permille = permille();
    let (total, runs) =
        seeds::run_all_seeds(16, test, |seed| History::new(Plan::crashing(seed, permille)).crash_play());
    let Tally { crash_states, crash_torn, crash_old, crash_old_records, .. } = total;
    let met = [crash_torn, crash_old, crash_old_records].iter().all(|count| *count > 20);
    assert!(runs < 16 || (crash_states >= 2_000 && met), "hardly anything is in doubt: {total:?}");
}

#[test]
fn planted_bugs_of_what_survives_a_crash_are_caught() {
    for bug in [Bug::FlushUnsynced, Bug::FuaForgotten, Bug::RecordEarly, Bug::RecordInPlace] {
        let plan = |seed| Plan { bug: Some(bug), ..Plan::crashing(seed, 100) };
        seeds::assert_some_seed_fails(bug, 20, |seed| History::new(plan(seed)).crash_play());
    }
}
