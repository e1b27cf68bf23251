//! Reservation commands from queues of two shards: the whole table, and the effect of each command.

use nvme::io::{Copy, CopyRange, DatasetManagement, DatasetRange};
use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, Register, RegisterAction, RegisterKeys, Registrant, Release,
    ReleaseAction, Report, ReservationSummary, decode_status,
};
use volume::CommandClass;
use volume::reservation::{Action, Key, ReservationRole, ReservationType};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::*;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_do_not_retry();

fn register_with(world: &mut World, host: Host, words: Register, current: u64, new: u64) -> Status {
    let mut sqe = sqe(Opcode::RESERVATION_REGISTER);
    words.write_to_sqe(&mut sqe);
    let keys = RegisterKeys { current: U64::new(current), new: U64::new(new) };
    world.command(host, &sqe, keys.as_bytes())
}

fn register(world: &mut World, host: Host, key: u64) {
    let words = Register { action: RegisterAction::Register, ignore_key: false, persist: None };
    assert_eq!(register_with(world, host, words, 0, key), Status::SUCCESS);
}

fn acquire(world: &mut World, host: Host, action: AcquireAction, kind: u8, key: u64, victim: u64) -> Status {
    let started = start_acquire(world, host, action, kind, key, victim);
    world.run();
    world.status(started)
}

fn start_acquire(
    world: &mut World,
    host: Host,
    action: AcquireAction,
    kind: u8,
    key: u64,
    victim: u64,
) -> Started {
    let mut sqe = sqe(Opcode::RESERVATION_ACQUIRE);
    Acquire { action, ignore_key: false, kind }.write_to_sqe(&mut sqe);
    let keys = AcquireKeys { current: U64::new(key), preempted: U64::new(victim) };
    world.start(host, &sqe, keys.as_bytes())
}

fn release(world: &mut World, host: Host, action: ReleaseAction, kind: u8, key: u64) -> Status {
    let mut sqe = sqe(Opcode::RESERVATION_RELEASE);
    Release { action, ignore_key: false, kind }.write_to_sqe(&mut sqe);
    world.command(host, &sqe, &key.to_le_bytes())
}

fn report_sqe(len: u64, extended: bool) -> Sqe {
    let mut sqe = sqe(Opcode::RESERVATION_REPORT);
    Report { len, extended }.write_to_sqe(&mut sqe);
    sqe.dptr.length = U32::new(len as u32);
    sqe
}

fn report(world: &mut World, host: Host) -> (ReservationSummary, Vec<Registrant>) {
    let bytes = world.good(host, &report_sqe(4096, true), &[]);
    let (summary, count, registrants) = decode_status(&bytes, true).unwrap();
    assert_eq!(count, registrants.len());
    (summary, registrants)
}

/// Three hosts on two shards.
fn three() -> (World, [Host; 3]) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let hosts = [(0, 0xa), (1, 0xb), (1, 0xc)].map(|(shard, id)| world.host(shard, id, &[0]));
    (world, hosts)
}

/// Every command that names blocks, and how reservations look at it (NVMe Base 2.0, figure 468).
fn commands() -> Vec<(Sqe, Vec<u8>, CommandClass)> {
    let data = block(0).to_vec();
    let mut dsm = sqe(Opcode::DATASET_MANAGEMENT);
    DatasetManagement { ranges: 1, deallocate: true }.write_to_sqe(&mut dsm);
    let mut hint = dsm;
    DatasetManagement { ranges: 1, deallocate: false }.write_to_sqe(&mut hint);
    let range = DatasetRange { attributes: U32::ZERO, blocks: U32::new(8), lba: U64::new(8) };
    let mut copy = sqe(Opcode::COPY);
    Copy { lba: 100, ranges: 1, format: 0, fua: false, protects: false }.write_to_sqe(&mut copy);
    vec![
        (transfer(Opcode::READ, 0, 1), Vec::new(), CommandClass::Read),
        (transfer(Opcode::COMPARE, 0, 1), data.clone(), CommandClass::Read),
        (transfer(Opcode::VERIFY, 0, 1), Vec::new(), CommandClass::Read),
        (transfer(Opcode::WRITE, 0, 1), data, CommandClass::Write),
        (transfer(Opcode::WRITE_ZEROES, 0, 1), Vec::new(), CommandClass::Write),
        (transfer(Opcode::WRITE_UNCORRECTABLE, 9, 1), Vec::new(), CommandClass::Write),
        (sqe(Opcode::FLUSH), Vec::new(), CommandClass::Write),
        (dsm, range.as_bytes().to_vec(), CommandClass::Write),
        (hint, range.as_bytes().to_vec(), CommandClass::Write),
        (copy, CopyRange::new(0, 1).as_bytes().to_vec(), CommandClass::Write),
        (report_sqe(4096, true), Vec::new(), CommandClass::Status),
    ]
}

/// The first of three hosts has reserved, the second is registered.
fn reserved(kind: ReservationType) -> (World, [Host; 3], [ReservationRole; 3]) {
    let (mut world, hosts) = three();
    let [a, b, _] = hosts;
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, kind.to_nvme(), 1, 0), Status::SUCCESS);
    let second =
        if kind.is_all_registrants() { ReservationRole::Holder } else { ReservationRole::Registrant };
    (world, hosts, [ReservationRole::Holder, second, ReservationRole::Stranger])
}

/// The table, whole: kind × rank × command, against `ReservationType::permits` and against the figures that the
/// standard prints.
#[test]
fn every_kind_admits_whom_it_says() {
    for kind in ReservationType::ALL {
        let (mut world, hosts, roles) = reserved(kind);
        for (host, rank) in hosts.into_iter().zip(roles) {
            for (sqe, data, class) in commands() {
                let started = world.start(host, &sqe, &data);
                world.run();
                let may = kind.permits(rank, class);
                let status = if may { Status::SUCCESS } else { CONFLICT };
                assert_eq!(world.status(started), status, "{kind:?} {rank:?} {:?}", sqe.opcode);
                assert!(may || !world.solicited(started), "refused before its data is asked for");
            }
        }
        // NVMe Base 2.0, figure 467: type, registrant reads and writes, stranger reads and writes.
        let (reads, writes) = match kind.to_nvme() {
            1 => ([true, true], [false, false]),
            2 => ([false, false], [false, false]),
            3 | 5 => ([true, true], [true, false]),
            _ => ([true, false], [true, false]),
        };
        for (host, at) in hosts[1..].iter().zip(0..) {
            let read = world.command(*host, &transfer(Opcode::READ, 0, 1), &[]);
            let write = world.command(*host, &transfer(Opcode::WRITE, 0, 1), &block(0));
            assert_eq!((read, write).0 == Status::SUCCESS, reads[at], "{kind:?}");
            assert_eq!((read, write).1 == Status::SUCCESS, writes[at], "{kind:?}");
        }
        let (summary, registrants) = report(&mut world, hosts[2]);
        assert_eq!((summary.kind, registrants.len()), (kind.to_nvme(), 2));
        assert_eq!(
            registrants.iter().map(|one| one.holds).collect::<Vec<_>>(),
            [true, kind.is_all_registrants()]
        );
        // The holder leaves: all-registrants reservations stay, the others go.
        let words = Register { action: RegisterAction::Unregister, ignore_key: false, persist: None };
        assert_eq!(register_with(&mut world, hosts[0], words, 1, 0), Status::SUCCESS);
        assert_eq!(report(&mut world, hosts[0]).0.kind == kind.to_nvme(), kind.is_all_registrants());
    }
}

/// The pair is a write of both halves.
#[test]
fn a_fused_pair_conflicts_as_a_pair() {
    for kind in ReservationType::ALL {
        let (mut world, hosts, roles) = reserved(kind);
        for (host, rank) in hosts.into_iter().zip(roles) {
            let (mut compare, mut write) = (transfer(Opcode::COMPARE, 0, 1), transfer(Opcode::WRITE, 0, 1));
            (compare.flags, write.flags) = (compare.flags | 1, write.flags | 2);
            let compare = world.start(host, &compare, &block(0));
            let write = world.start(host, &write, &block(0));
            world.run();
            let status = if kind.permits(rank, CommandClass::Write) { Status::SUCCESS } else { CONFLICT };
            assert_eq!((world.status(compare), world.status(write)), (status, status), "{kind:?} {rank:?}");
        }
    }
}

#[test]
fn registering() {
    let (mut world, [a, b, c]) = three();
    let words = |action, ignore_key| Register { action, ignore_key, persist: None };
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    // A key of zero is none; to replace by it is to leave, for those who are there.
    assert_eq!(register_with(&mut world, a, words(RegisterAction::Register, false), 0, 0), invalid);
    assert_eq!(register_with(&mut world, a, words(RegisterAction::Replace, true), 0, 0), CONFLICT);
    register(&mut world, a, 0x11);
    register(&mut world, a, 0x11);
    assert_eq!(register_with(&mut world, a, words(RegisterAction::Register, false), 0, 0x12), CONFLICT);
    // Replace: with the key, with another, and without looking at it.
    assert_eq!(register_with(&mut world, a, words(RegisterAction::Replace, false), 0x99, 0x12), CONFLICT);
    let replace = register_with(&mut world, a, words(RegisterAction::Replace, false), 0x11, 0x12);
    assert_eq!(replace, Status::SUCCESS);
    let replace = register_with(&mut world, a, words(RegisterAction::Replace, true), 0x99, 0x13);
    assert_eq!(replace, Status::SUCCESS);
    // Who is not registered has nothing to replace, unless it does not care (Base §8.19.3).
    assert_eq!(register_with(&mut world, b, words(RegisterAction::Replace, false), 0, 0x13), CONFLICT);
    let replace = register_with(&mut world, b, words(RegisterAction::Replace, true), 0, 0x13);
    assert_eq!(replace, Status::SUCCESS);
    let (summary, registrants) = report(&mut world, c);
    assert_eq!((summary.kind, summary.persists), (0, false));
    let expected = [([0xa; 16], 0x13), ([0xb; 16], 0x13)];
    let got: Vec<_> = registrants.iter().map(|one| (one.host, one.key)).collect();
    assert_eq!(got, expected);
    assert!(registrants.iter().all(|one| one.cntlid == 0xffff && !one.holds));
    // Unregister.
    let generation = summary.generation;
    assert_eq!(register_with(&mut world, c, words(RegisterAction::Unregister, false), 0, 0), CONFLICT);
    assert_eq!(register_with(&mut world, a, words(RegisterAction::Unregister, false), 1, 0), CONFLICT);
    let unregister = register_with(&mut world, a, words(RegisterAction::Unregister, true), 1, 0);
    assert_eq!(unregister, Status::SUCCESS);
    let (summary, registrants) = report(&mut world, c);
    assert_eq!((summary.generation, registrants.len()), (generation + 1, 1));
}

/// What Linux sends (`drivers/nvme/host/pr.c`): 16 bytes with every command, and Replace with a new key
/// of zero to unregister. None of it may be refused, or a cluster manager cannot give a disk back.
#[test]
fn linux_is_not_kept_from_releasing_clearing_or_unregistering() {
    let (mut world, [a, b, _]) = three();
    let sixteen = |key: u64| [key.to_le_bytes(), [0xff; 8]].concat();
    let mut given_up = sqe(Opcode::RESERVATION_RELEASE);
    Release { action: ReleaseAction::Release, ignore_key: false, kind: 1 }.write_to_sqe(&mut given_up);
    let mut cleared = given_up;
    Release { action: ReleaseAction::Clear, ignore_key: false, kind: 0 }.write_to_sqe(&mut cleared);
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    for sqe in [given_up, cleared] {
        assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 1, 1, 0), Status::SUCCESS);
        assert_eq!(world.command(a, &sqe, &sixteen(9)), CONFLICT);
        assert_eq!(report(&mut world, a).0.kind, 1);
        assert_eq!(world.command(a, &sqe, &sixteen(1)), Status::SUCCESS);
        assert_eq!(report(&mut world, a).0.kind, 0);
    }
    assert_eq!(report(&mut world, a).1, []);

    let words = |ignore_key| Register { action: RegisterAction::Replace, ignore_key, persist: Some(true) };
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 1, 1, 0), Status::SUCCESS);
    assert_eq!(register_with(&mut world, a, words(false), 9, 0), CONFLICT);
    assert_eq!(register_with(&mut world, a, words(false), 1, 0), Status::SUCCESS);
    assert_eq!(register_with(&mut world, b, words(true), 9, 0), Status::SUCCESS);
    let (summary, registrants) = report(&mut world, a);
    assert_eq!((summary.kind, registrants), (0, Vec::new()));
}

#[test]
fn persistence_through_power_loss() {
    let (mut world, [a, b, _]) = three();
    let words = |persist| Register { action: RegisterAction::Register, ignore_key: false, persist };
    for (host, persist, after) in
        [(a, None, false), (a, Some(true), true), (b, None, true), (b, Some(false), false)]
    {
        assert_eq!(register_with(&mut world, host, words(persist), 0, 1), Status::SUCCESS);
        assert_eq!(report(&mut world, a).0.persists, after);
    }
}

#[test]
fn the_nqn_of_a_registrant_is_kept() {
    let (mut world, [a, ..]) = three();
    register(&mut world, a, 1);
    let nqn = world.home(0).view().reservations.host_nqn(&[0xa; 16]).cloned();
    assert_eq!(nqn.as_deref(), Some("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001"));
}

#[test]
fn acquiring_and_releasing() {
    let (mut world, [a, b, c]) = three();
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    assert_eq!(acquire(&mut world, c, AcquireAction::Acquire, 1, 0, 0), CONFLICT);
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 1, 9, 0), CONFLICT);
    for kind in [0, 7, 255] {
        assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, kind, 1, 0), invalid);
    }
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 3, 1, 0), Status::SUCCESS);
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 3, 1, 0), Status::SUCCESS);
    assert_eq!(acquire(&mut world, a, AcquireAction::Acquire, 4, 1, 0), CONFLICT);
    assert_eq!(acquire(&mut world, b, AcquireAction::Acquire, 3, 2, 0), CONFLICT);
    // Who does not hold it releases nothing, well; who does must name its type.
    assert_eq!(release(&mut world, b, ReleaseAction::Release, 3, 2), Status::SUCCESS);
    assert_eq!(report(&mut world, c).0.kind, 3);
    assert_eq!(release(&mut world, a, ReleaseAction::Release, 4, 1), invalid);
    assert_eq!(release(&mut world, a, ReleaseAction::Release, 3, 2), CONFLICT);
    assert_eq!(release(&mut world, a, ReleaseAction::Release, 3, 1), Status::SUCCESS);
    assert_eq!(report(&mut world, c).0.kind, 0);
    assert_eq!(release(&mut world, c, ReleaseAction::Clear, 0, 0), CONFLICT);
    assert_eq!(release(&mut world, b, ReleaseAction::Clear, 0, 2), Status::SUCCESS);
    assert_eq!(report(&mut world, c).1, []);
}

#[test]
fn words_that_are_not_defined() {
    let (mut world, [a, ..]) = three();
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    for (opcode, dwords, len) in [
        (Opcode::RESERVATION_REGISTER, [3, 7, 1 << 30], 16),
        // IEKEY has no place in Acquire and Release.
        (Opcode::RESERVATION_ACQUIRE, [0x103, 0x107, 0x108], 16),
        (Opcode::RESERVATION_RELEASE, [0x102, 0x107, 0x108], 8),
    ] {
        let mut sqe = sqe(opcode);
        for dword in dwords {
            sqe.cdw10[0] = U32::new(dword);
            assert_eq!(world.command(a, &sqe, &vec![1; len]), invalid, "{opcode:?} {dword:x}");
        }
        sqe.cdw10[0] = U32::new(0x100);
        for wrong in [0, len - 1, 8193] {
            let status = world.command(a, &sqe, &vec![1; wrong]);
            assert_eq!(status, Status::SGL_LENGTH_INVALID.with_do_not_retry(), "{opcode:?} {wrong}");
        }
    }
}

#[test]
fn preempting() {
    let (mut world, [a, b, c]) = three();
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    register(&mut world, c, 2);
    assert_eq!(acquire(&mut world, b, AcquireAction::Acquire, 1, 2, 0), Status::SUCCESS);
    // Nobody has this key, and zero is nobody's while one host holds.
    assert_eq!(acquire(&mut world, a, AcquireAction::Preempt, 1, 1, 7), CONFLICT);
    assert_eq!(
        acquire(&mut world, a, AcquireAction::Preempt, 1, 1, 0),
        Status::INVALID_FIELD.with_do_not_retry()
    );
    assert_eq!(acquire(&mut world, a, AcquireAction::Preempt, 4, 1, 2), Status::SUCCESS);
    let (summary, registrants) = report(&mut world, b);
    assert_eq!((summary.kind, registrants.len()), (4, 1));
    assert!(registrants[0].holds && registrants[0].key == 1);
    assert_eq!(world.command(b, &transfer(Opcode::READ, 0, 1), &[]), CONFLICT);
    // While all registrants hold, zero stands for all the others.
    let (mut world, [a, b, c]) = three();
    for (host, key) in [(a, 1), (b, 2), (c, 3)] {
        register(&mut world, host, key);
    }
    assert_eq!(acquire(&mut world, b, AcquireAction::Acquire, 6, 2, 0), Status::SUCCESS);
    assert_eq!(acquire(&mut world, a, AcquireAction::Preempt, 2, 1, 0), Status::SUCCESS);
    let (summary, registrants) = report(&mut world, b);
    assert_eq!((summary.kind, registrants.len()), (2, 1));
}

#[test]
fn preempt_and_abort_ends_the_victims_commands_everywhere() {
    for abort in [false, true] {
        let mut world = World::new(2);
        world.add(4096, |_| {});
        world.add(4096, |_| {});
        let a = world.host(0, 0xa, &[0]);
        let (b, b_too) = (world.host(1, 0xb, &[0, 1]), world.host(0, 0xb, &[0]));
        register(&mut world, a, 1);
        register(&mut world, b, 2);
        assert_eq!(acquire(&mut world, b, AcquireAction::Acquire, 2, 2, 0), Status::SUCCESS);
        world.withhold = true;
        let waits = world.start(b, &transfer(Opcode::WRITE, 0, 1), &block(1));
        let elsewhere = world.start(b, &on(transfer(Opcode::WRITE, 0, 1), 2), &block(1));
        world.disks.hold.set(true);
        let runs = world.start(b_too, &transfer(Opcode::READ, 0, 8), &[]);
        world.run();
        world.withhold = false;
        let action = if abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
        let preempt = start_acquire(&mut world, a, action, 2, 1, 2);
        world.run();
        assert_eq!(world.end(preempt), None, "what was admitted before has not ended");
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.status(preempt), Status::SUCCESS);
        let aborted = Status::PREEMPT_ABORT.with_do_not_retry();
        assert_eq!(world.status(runs), if abort { aborted } else { Status::SUCCESS });
        assert_eq!(world.end(elsewhere), None, "another volume's commands go on");
        if abort {
            assert_eq!(world.status(waits), aborted);
        }
        // The data comes; without abort the gate refuses what it is for.
        world.send_withheld(waits);
        world.send_withheld(elsewhere);
        assert_eq!(world.status(waits), if abort { aborted } else { CONFLICT });
        assert_eq!(world.status(elsewhere), Status::SUCCESS);
        assert_eq!(world.read(a, 0, 1), block(0));
        assert_eq!(world.lent(), 0);
    }
}

#[test]
fn a_host_that_preempts_itself_with_abort_is_answered() {
    let (mut world, [a, ..]) = three();
    register(&mut world, a, 1);
    let status = acquire(&mut world, a, AcquireAction::PreemptAndAbort, 1, 1, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(report(&mut world, a).1, []);
}

#[test]
fn reports_are_cut_and_filled() {
    let (mut world, [a, b, _]) = three();
    register(&mut world, a, 1);
    register(&mut world, b, 2);
    let whole = world.good(a, &report_sqe(4096, true), &[]);
    assert_eq!(whole.len(), 4096);
    assert!(whole[192..].iter().all(|byte| *byte == 0), "nothing stands behind the report");
    let long = world.good(a, &report_sqe(1 << 20, true), &[]);
    assert!(long[..4096] == whole && long[4096..].iter().all(|byte| *byte == 0) && long.len() == 1 << 20);
    for len in [4, 64, 100, 192] {
        assert_eq!(world.good(a, &report_sqe(len, true), &[]), whole[..len as usize]);
    }
    let mut short = report_sqe(4096, true);
    short.dptr.length = U32::new(64);
    assert_eq!(world.command(a, &short, &[]), Status::SGL_LENGTH_INVALID.with_do_not_retry());
    assert_eq!(world.command(a, &report_sqe(4 << 20, true), &[]), Status::INVALID_FIELD.with_do_not_retry());
    // Identifiers of 128 bits do not fit the short form.
    assert_eq!(
        world.command(a, &report_sqe(4096, false), &[]),
        Status::HOST_ID_INCONSISTENT.with_do_not_retry()
    );
    assert_eq!(world.lent(), 0);
}

/// A SCSI initiator of the same volume, through the volume's home.
fn initiator(name: &str, port: u16) -> Requester {
    let identity = Identity::Initiator { name: name.into(), isid: [0x80, 1, 2, 3, 4, 5], port: PortId(port) };
    Requester { identity: Arc::new(identity), port: PortId(port), read_only: false }
}

fn scsi(world: &mut World, who: &Requester, action: Action) -> Result<(), volume::Refusal> {
    world.request(0, VolumeRequest::Reserve { who: who.clone(), action })
}

fn scsi_register(world: &mut World, who: &Requester, key: u64) {
    let register = volume::reservation::RegistrationRequest {
        persist: Some(false),
        ..volume::reservation::RegistrationRequest::new(None, Key(key))
    };
    scsi(world, who, Action::Register(register)).unwrap();
}

#[test]
fn registrants_of_both_protocols_see_each_other() {
    let (mut world, [a, b, _]) = three();
    let disk = initiator("iqn.2026-01.example:host", 2);
    register(&mut world, a, 1);
    scsi_register(&mut world, &disk, 9);
    scsi(&mut world, &disk, Action::Reserve { key: None, kind: ReservationType::ExclusiveAccessRegistrants })
        .unwrap();
    let (summary, registrants) = report(&mut world, b);
    assert_eq!((summary.kind, registrants.len()), (4, 2));
    // ISID, port, and the name's FNV-1a hash: the same on every day.
    let mut id = [0x80, 1, 2, 3, 4, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
    id[8..].copy_from_slice(&NAME_HASH.to_be_bytes());
    let of_disk = Registrant { cntlid: 0xffff, holds: true, host: id, key: 9 };
    assert!(registrants.contains(&of_disk), "{registrants:x?}");
    assert_eq!(world.command(b, &transfer(Opcode::READ, 0, 1), &[]), CONFLICT);
    world.write(a, 0, &block(1));
    // NVMe unseats the SCSI holder.
    assert_eq!(acquire(&mut world, a, AcquireAction::Preempt, 2, 1, 9), Status::SUCCESS);
    let (summary, registrants) = report(&mut world, b);
    assert_eq!((summary.kind, registrants.len(), registrants[0].key), (2, 1, 1));
    // And the reverse, with all that the host had on its way.
    scsi_register(&mut world, &disk, 9);
    world.withhold = true;
    let write = world.start(a, &transfer(Opcode::WRITE, 0, 1), &block(2));
    let preempt =
        Action::Preempt { key: None, victim: Key(1), kind: ReservationType::WriteExclusive, abort: true };
    scsi(&mut world, &disk, preempt).unwrap();
    assert_eq!(world.status(write), Status::PREEMPT_ABORT.with_do_not_retry());
    assert_eq!(world.command(a, &transfer(Opcode::WRITE, 0, 1), &block(2)), CONFLICT);
    assert_eq!(world.read(a, 0, 1), block(1));
}

/// FNV-1a, 64 bits, of `iqn.2026-01.example:host`; reckoned apart from the code.
const NAME_HASH: u64 = 0xc182_c660_31df_78dd;

#[test]
fn a_scsi_2_reservation_keeps_hosts_out() {
    let (mut world, [a, ..]) = three();
    let disk = initiator("iqn.x", 1);
    scsi(&mut world, &disk, Action::LegacyReserve).unwrap();
    assert_eq!(world.command(a, &transfer(Opcode::READ, 0, 1), &[]), CONFLICT);
    let words = Register { action: RegisterAction::Register, ignore_key: false, persist: None };
    assert_eq!(register_with(&mut world, a, words, 0, 1), CONFLICT);
    assert_eq!(report(&mut world, a).1, []);
}

#[test]
fn reports_share_their_memory_while_nothing_changes() {
    let (mut world, [a, b, _]) = three();
    register(&mut world, a, 1);
    assert_eq!(world.lent(), 0);
    let once = |world: &mut World| {
        let data = world.good(a, &report_sqe(1 << 20, true), &[]);
        (world.pool.usage().lent, data)
    };
    let (lent, data) = once(&mut world);
    assert!(lent > 0);
    for _ in 0..100 {
        assert_eq!(once(&mut world), (lent, data.clone()));
    }
    register(&mut world, b, 2);
    assert_ne!(once(&mut world).1, data);
}

#[test]
fn what_the_home_has_is_not_aborted() {
    let (mut world, [a, ..]) = three();
    world.hold_messages = true;
    let mut sqe = with_cid(sqe(Opcode::RESERVATION_REGISTER), 9);
    Register { action: RegisterAction::Register, ignore_key: false, persist: None }.write_to_sqe(&mut sqe);
    let started = world.start(a, &sqe, RegisterKeys { current: U64::ZERO, new: U64::new(1) }.as_bytes());
    assert!(!world.server(a).context.abort_cid(a.key, 9));
    world.hold_messages = false;
    world.run();
    assert_eq!(world.status(started), Status::SUCCESS);
    assert_eq!(report(&mut world, a).1.len(), 1);
}

/// A host whose namespace is for reading only keeps nobody else from it.
#[test]
fn readers_register_and_no_more() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let writer = world.host(0, 2, &[0]);
    let reader = world.host_on(0, 1, 1, [entry(0, true)].into());
    register(&mut world, writer, 0x22);
    register(&mut world, reader, 0x11);
    let protected = Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry();
    for action in [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort] {
        assert_eq!(acquire(&mut world, reader, action, 2, 0x11, 0x22), protected);
    }
    for action in [ReleaseAction::Release, ReleaseAction::Clear] {
        assert_eq!(release(&mut world, reader, action, 2, 0x11), protected);
    }
    assert_eq!(report(&mut world, writer).1.len(), 2);
    let words = Register { action: RegisterAction::Unregister, ignore_key: false, persist: None };
    assert_eq!(register_with(&mut world, reader, words, 0x11, 0), Status::SUCCESS);
    assert_eq!(report(&mut world, writer).1.len(), 1);
}
