//! Hostile commands on an admin queue: no panic, every command answered, nothing leaked.

use nvme::{Opcode, Status};
use proptest::prelude::*;

use super::super::transfer;
use super::*;

#[test]
fn attack_70_commands_before_the_controller_is_enabled() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.open(spec(1, 1, vec![entry(0)]));
    for opcode in (0..=0xff).filter(|opcode| *opcode != 0x7f) {
        let sqe = admin(opcode, 1, &[1], 4096);
        assert_eq!(
            world.ends(host, &sqe, &[]).status,
            Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry(),
            "{opcode:#x}"
        );
    }
    let connect = admin(0x7f, 1, &[], 1024);
    assert_eq!(
        world.ends(host, &connect, &[0; 1024]).status,
        Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()
    );
}

/// Row 62, of the admin queue: whatever the command, nobody is asked for more than the longest data there is.
#[test]
fn attack_62_an_sgl_of_4_gib_of_an_admin_command_takes_no_memory() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.controller(spec(1, 1, vec![entry(0)]));
    for opcode in (0..=0xff).filter(|opcode| ![0x0c, 0x7f].contains(opcode)) {
        for fid in 0..=0xff {
            for len in [4097, 1 << 20, u32::MAX] {
                let sqe = admin(opcode, fid >> 7, &[fid], len);
                let started = world.start_with(host, &sqe, &[], len);
                assert!(!world.solicited(started), "opcode {opcode:#x}, dword 10 {fid:#x}, {len} bytes");
                world.run();
                assert!(world.end(started).is_some(), "opcode {opcode:#x}, dword 10 {fid:#x}, {len} bytes");
                assert_eq!(world.lent(), 0);
            }
            if opcode != 9 {
                break;
            }
        }
    }
    for fid in [0x0e, 0x16] {
        let long = world.start_with(host, &admin(9, 0, &[fid], 4097), &[], 4097);
        world.run();
        assert_eq!(world.status(long), Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Turn {
    Admin(Vec<u8>),
    Io(u8),
    Disconnect,
    IoQueueConnect(u16),
    Namespaces(u8),
    Time(u8),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let known = prop::sample::select(vec![2_u8, 6, 8, 9, 0x0a, 0x0c, 0x18, 0x7f]);
    let small = prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()], 60);
    let command = (prop_oneof![4 => known, 1 => any::<u8>()], small).prop_map(|(opcode, rest)| {
        let mut raw = vec![opcode, 0x40, rest[0], rest[1]];
        raw.extend(rest);
        raw.truncate(64);
        raw
    });
    let turn = prop_oneof![
        12 => command.prop_map(Turn::Admin),
        4 => any::<u8>().prop_map(Turn::Io),
        1 => Just(Turn::Disconnect),
        2 => (1..4_u16).prop_map(Turn::IoQueueConnect),
        1 => any::<u8>().prop_map(Turn::Namespaces),
        1 => any::<u8>().prop_map(Turn::Time),
    ];
    prop::collection::vec(turn, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_admin_commands_are_all_answered(turns in turns()) {
        let mut world = World::new(2);
        world.add(4096, |_| {});
        world.add(4096, |_| {});
        let host = world.controller(ControllerSpec { kato_ms: 60_000, ..spec(2, 1, vec![entry(0), entry(1)]) });
        let mut queues = Vec::new();
        let mut started = Vec::new();
        for turn in turns {
            if !world.gone.is_empty() || world.ended.contains(&host) {
                break;
            }
            queues.retain(|queue| !world.ended.contains(queue));
            match turn {
                Turn::Admin(raw) => {
                    let sqe = <Sqe as zerocopy::FromBytes>::read_from_bytes(&raw).unwrap();
                    let out = if sqe.opcode == Opcode(9) { vec![raw[50]; 512] } else { Vec::new() };
                    started.push(world.start(host, &sqe, &out));
                }
                Turn::Io(at) => {
                    if let Some(queue) = queues.get(usize::from(at) % 4) {
                        world.disks.hold.set(at & 4 != 0);
                        started.push(world.start(*queue, &transfer(Opcode::READ, at.into(), 1), &[]));
                    }
                }
                Turn::Disconnect => {
                    if let Some(queue) = queues.pop() {
                        started.push(world.start(queue, &admin(0x7f, 8, &[], 0), &[]));
                    }
                }
                Turn::IoQueueConnect(qid) => queues.extend(world.connect(2, &join(qid, 1, usize::from(qid) % 2)).ok()),
                Turn::Namespaces(which) => {
                    let namespaces = (0..2).filter(|volume| which >> volume & 1 != 0).map(entry).collect();
                    world.server(host).change_namespaces(2, namespaces);
                }
                Turn::Time(seconds) => world.pass(u64::from(seconds) / 16),
            }
            if started.len() % 3 == 0 {
                world.run();
            }
        }
        world.disks.hold.set(false);
        world.run();
        world.server(host).end_controller(2);
        world.run();
        for command in started {
            prop_assert!(world.end(command).is_some(), "{:?} has no end", command);
        }
        prop_assert_eq!(world.gone.len(), 1);
        prop_assert_eq!(world.pool.usage().lent, 0);
        prop_assert!(world.cores.iter().all(|core| core.server.poll_timeout().is_none()));
    }
}
