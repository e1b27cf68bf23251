//! Reservations through CDBs, from nexuses of two shards.

use scsi::Status;
use scsi::transport_id::TransportId;

use super::*;

const TUR: [u8; 6] = [0; 6];

fn list(key: u64, service: u64, flags: u8) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&service.to_be_bytes());
    list[20] = flags;
    list
}

fn cdb(action: u8, kind: u8, len: usize) -> [u8; 10] {
    let len = (len as u32).to_be_bytes();
    [0x5f, action, kind, 0, 0, len[0], len[1], len[2], len[3], 0]
}

fn out(world: &mut World, host: Host, action: u8, kind: u8, key: u64, service: u64) -> Outcome {
    world.command(host, &cdb(action, kind, 24), &list(key, service, 0), 0)
}

#[track_caller]
fn good(world: &mut World, host: Host, action: u8, kind: u8, key: u64, service: u64) {
    let got = out(world, host, action, kind, key, service);
    assert_eq!(got.status, Status::GOOD, "{got:x?}");
}

fn report(world: &mut World, host: Host, action: u8) -> Vec<u8> {
    world.good(host, &[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[], 65535)
}

fn keys(world: &mut World, host: Host) -> (u32, Vec<u64>) {
    let data = report(world, host, 0);
    let (generation, keys) = scsi::persistent_reservation::decode_keys(&data).unwrap();
    (generation, keys.collect())
}

fn three() -> (World, Host, Host, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let a = world.host(0, "iqn.a", &[0]);
    let (b, c) = (world.host(1, "iqn.b", &[0]), world.host(1, "iqn.c", &[0]));
    (world, a, b, c)
}

/// The table of all six types: the holder, another registrant, and a stranger of the other shard.
#[test]
fn every_type_admits_whom_it_says() {
    // Type, then read and write by a registrant, read and write by a stranger.
    for (kind, registrant, stranger) in [
        (1, (true, false), (true, false)),
        (3, (false, false), (false, false)),
        (5, (true, true), (true, false)),
        (6, (true, true), (false, false)),
        (7, (true, true), (true, false)),
        (8, (true, true), (false, false)),
    ] {
        let (mut world, a, b, c) = three();
        good(&mut world, a, 0, 0, 0, 1);
        good(&mut world, b, 0, 0, 0, 2);
        good(&mut world, a, 1, kind, 1, 0);
        for (host, (reads, writes)) in [(a, (true, true)), (b, registrant), (c, stranger)] {
            let read = world.command(host, &read_10(0, 1), &[], 512).status;
            let write = world.command(host, &write_10(0, 1), &block(1), 0).status;
            assert_eq!((read == Status::GOOD, write == Status::GOOD), (reads, writes), "type {kind}");
            let refused = [read, write].into_iter().find(|status| *status != Status::GOOD);
            assert!(refused.is_none_or(|status| status == Status::RESERVATION_CONFLICT));
            // Allowed in every case.
            world.good(host, &TUR, &[], 0);
            world.good(host, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8);
            world.good(host, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8);
            let sense = world.command(host, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255).status;
            assert_eq!(sense == Status::GOOD, writes);
        }
        let shown =
            scsi::persistent_reservation::decode_reservation(&report(&mut world, c, 1)).unwrap().1.unwrap();
        assert_eq!((shown.kind.0, shown.key), (kind, if kind > 6 { 0 } else { 1 }));
        // The holder leaves: all-registrants reservations stay, the others go.
        good(&mut world, a, 0, 0, 1, 0);
        world.good(a, &TUR, &[], 0);
        let left = scsi::persistent_reservation::decode_reservation(&report(&mut world, c, 1)).unwrap().1;
        assert_eq!(left.is_some(), kind > 6);
        match kind {
            5 | 6 => world.refused(b, &TUR, &[], 0, 0x06_2a04),
            _ => drop(world.good(b, &TUR, &[], 0)),
        }
        if kind > 6 {
            good(&mut world, b, 2, kind, 2, 0);
        }
        assert!(
            scsi::persistent_reservation::decode_reservation(&report(&mut world, c, 1)).unwrap().1.is_none()
        );
        world.write(c, 0, &block(2));
    }
}

#[test]
fn registrations_keys_and_generations() {
    let (mut world, a, b, _) = three();
    assert_eq!(keys(&mut world, a), (0, vec![]));
    good(&mut world, a, 0, 0, 0, 0x11);
    assert_eq!(out(&mut world, a, 0, 0, 0x99, 0x12).status, Status::RESERVATION_CONFLICT);
    good(&mut world, a, 0, 0, 0x11, 0x12);
    good(&mut world, a, 6, 0, 0x99, 0x13);
    good(&mut world, b, 6, 0, 0, 0x20);
    assert_eq!(keys(&mut world, b), (4, vec![0x13, 0x20]));
    assert_eq!(world.good(a, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8), [0, 0, 0, 4, 0, 0, 0, 16]);
    // Preempting by b: only b stays, and a hears of it.
    good(&mut world, b, 4, 1, 0x20, 0x13);
    assert_eq!(keys(&mut world, b), (5, vec![0x20]));
    world.refused(a, &TUR, &[], 0, 0x06_2a05);
    good(&mut world, a, 0, 0, 0, 0x14);
    good(&mut world, b, 1, 1, 0x20, 0);
    good(&mut world, b, 1, 1, 0x20, 0);
    assert_eq!(out(&mut world, b, 1, 3, 0x20, 0).status, Status::RESERVATION_CONFLICT);
    assert_eq!(out(&mut world, b, 2, 3, 0x20, 0).code(), 0x05_2604);
    good(&mut world, a, 3, 0, 0x14, 0);
    assert_eq!(keys(&mut world, a), (7, vec![]));
    world.refused(b, &TUR, &[], 0, 0x06_2a03);
    world.good(a, &TUR, &[], 0);
    let capabilities = report(&mut world, a, 2);
    assert_eq!((capabilities.len(), capabilities[4], capabilities[5]), (8, 0xea, 1));
    for action in 4..32 {
        assert_ne!(world.command(a, &[0x5e, action, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8).status, Status::GOOD);
    }
}

#[test]
fn lists_and_codes_that_are_wrong() {
    let (mut world, a, ..) = three();
    for (action, kind, code) in
        [(1, 0x10, 0x05_2400), (1, 2, 0x05_2400), (1, 0, 0x05_2400), (2, 9, 0x05_2400), (8, 0, 0x05_2400)]
    {
        assert_eq!(out(&mut world, a, action, kind, 0, 0).code(), code, "{action} {kind}");
    }
    for len in [0, 8, 23] {
        world.refused(a, &cdb(0, 0, len), &vec![0; len], 0, 0x05_1a00);
    }
    world.refused(a, &cdb(0, 0, 24), &[0; 16], 0, 0x05_1a00);
    world.refused(a, &cdb(0, 0, 1 << 20), &vec![0; 1 << 20], 0, 0x05_1a00);
    world.refused(a, &cdb(6, 0, 24), &list(0, 1, 8), 0, 0x05_2600);
    // SPEC_I_PT: a port by its full name, not a device.
    for (isid, code) in [(None, 0x05_2600), (Some([0x80, 0, 0, 0, 0, 1]), 0)] {
        let mut parameters = list(0, 7, 8);
        let mut id = [0; 64];
        let mut w = scsi::Writer::new(&mut id);
        TransportId { name: "iqn.B", isid }.encode(&mut w);
        let len = w.written_len();
        parameters.extend((len as u32).to_be_bytes());
        parameters.extend(&id[..len]);
        let got = world.command(a, &cdb(0, 0, parameters.len()), &parameters, 0);
        assert_eq!(got.code(), code);
    }
    let full = report(&mut world, a, 3);
    assert_eq!(u32::from_be_bytes(full[4..8].try_into().unwrap()) as usize, full.len() - 8);
    assert!(full.windows(24).any(|part| part == b"iqn.b,i,0x800000000001\0\0"));
    // ALL_TG_PT registers on both ports of the target.
    world.good(a, &cdb(0, 0, 24), &list(7, 0, 0), 0);
    world.good(a, &cdb(0, 0, 24), &list(0, 9, 4), 0);
    assert_eq!(keys(&mut world, a).1.iter().filter(|key| **key == 9).count(), 2);
}

/// PREEMPT AND ABORT is answered when the victim's commands have ended on every shard, so what the
/// victim wrote cannot land later.
#[test]
fn preempt_and_abort_fences_over_shards() {
    let (mut world, a, b, _) = three();
    good(&mut world, a, 0, 0, 0, 1);
    good(&mut world, b, 0, 0, 0, 2);
    good(&mut world, b, 1, 3, 2, 0);
    world.disks.hold.set(true);
    let write = world.start(b, &write_10(0, 1), &block(0xbb), 0);
    world.withhold = true;
    let waiting = world.start(b, &write_10(1, 1), &block(0xbb), 0);
    world.withhold = false;
    world.run();
    let preempt = world.start(a, &cdb(5, 3, 24), &list(1, 2, 0), 0);
    world.run();
    // The write is still with the disk: no answer, but the new commands of b are refused already.
    assert_eq!(world.end(preempt), None);
    assert_eq!(world.outcome(waiting).status, Status::TASK_ABORTED);
    world.refused(b, &TUR, &[], 0, 0x06_2a05);
    world.conflicts(b, &write_10(2, 1), &block(0xbb), 0);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(write).status, Status::TASK_ABORTED);
    assert_eq!(world.outcome(preempt).status, Status::GOOD);
    world.write(a, 0, &block(0xaa));
    world.send_withheld(waiting);
    assert_eq!(world.read(a, 0, 2), [block(0xaa), block(0)].concat());
    assert_eq!(keys(&mut world, a).1, [1]);
    // The asking nexus' own commands were not touched: they are answered.
    world.disks.hold.set(true);
    let own = world.start(a, &write_10(3, 1), &block(1), 0);
    world.run();
    good(&mut world, b, 6, 0, 0, 5);
    let preempt = world.start(a, &cdb(5, 3, 24), &list(1, 5, 0), 0);
    world.run();
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(preempt).status, Status::GOOD);
    assert_eq!(world.outcome(own).status, Status::GOOD);
    assert_eq!(world.lent(), 0);
}

/// REGISTER AND MOVE to a port that then logs out, or that never was there.
#[test]
fn attack_45_a_reservation_moves_to_a_nexus_that_goes() {
    let (mut world, a, b, c) = three();
    good(&mut world, a, 0, 0, 0, 1);
    good(&mut world, a, 1, 1, 1, 0);
    let to = |name: &str, port: u16, isid| {
        let mut parameters = list(1, 0x77, 0);
        parameters[16..].fill(0);
        parameters[17] = 2;
        parameters[18..20].copy_from_slice(&port.to_be_bytes());
        let mut id = [0; 64];
        let mut w = scsi::Writer::new(&mut id);
        TransportId { name, isid }.encode(&mut w);
        let len = w.written_len();
        parameters[20..24].copy_from_slice(&(len as u32).to_be_bytes());
        parameters.extend(&id[..len]);
        parameters
    };
    let isid = Some([0x80, 0, 0, 0, 0, 1]);
    // Not to the port that asks, whatever target port is named; and only what is reserved can move.
    for port in [1, 2] {
        let own = to("iqn.a", port, isid);
        world.refused(a, &cdb(7, 0, own.len()), &own, 0, 0x05_2600);
    }
    good(&mut world, a, 2, 1, 1, 0);
    let parameters = to("iqn.b", 1, isid);
    world.refused(a, &cdb(7, 0, parameters.len()), &parameters, 0, 0x05_2400);
    good(&mut world, a, 1, 1, 1, 0);
    for parameters in [to("iqn.b", 9, isid), to("iqn.b", 1, None)] {
        world.refused(a, &cdb(7, 0, parameters.len()), &parameters, 0, 0x05_2600);
    }
    let parameters = to("iqn.b", 1, isid);
    world.good(a, &cdb(7, 0, parameters.len()), &parameters, 0);
    world.conflicts(a, &write_10(0, 1), &block(1), 0);
    world.write(b, 0, &block(2));
    // The holder logs out: its reservation stays, and is its own again when it comes back.
    world.close(b);
    world.conflicts(c, &write_10(0, 1), &block(3), 0);
    assert_eq!(keys(&mut world, c).1, [0x77]);
    let b = world.host(1, "iqn.b", &[0]);
    world.write(b, 0, &block(4));
    good(&mut world, b, 2, 1, 0x77, 0);
    world.write(c, 0, &block(5));
}

/// More registrations than are kept.
#[test]
fn attack_46_registrations_are_bounded() {
    let (mut world, a, b, _) = three();
    let mut refused = 0;
    for round in 0..64 {
        // Each with 32 more ports by SPEC_I_PT: more than 2000 in all.
        let mut ids = Vec::new();
        for port in 0..32u16 {
            let name = format!("iqn.x{round}");
            let isid = Some([0, 0, 0, 0, (port >> 8) as u8, port as u8]);
            let mut id = [0; 64];
            let mut w = scsi::Writer::new(&mut id);
            TransportId { name: &name, isid }.encode(&mut w);
            let len = w.written_len();
            ids.extend_from_slice(&id[..len]);
        }
        good(&mut world, a, 6, 0, 0, 0);
        let mut parameters = list(0, 5, 8);
        parameters.extend((ids.len() as u32).to_be_bytes());
        parameters.extend(ids);
        let got = world.command(a, &cdb(0, 0, parameters.len()), &parameters, 0);
        match got.code() {
            0 => assert_eq!(refused, 0),
            code => {
                assert_eq!(code, 0x05_5504);
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    let (_, all) = keys(&mut world, b);
    assert!(all.len() <= volume::reservation::REGISTRANTS_MAX, "{}", all.len());
}

#[test]
fn reserve_and_release_of_old() {
    let (mut world, a, b, _) = three();
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]);
    world.good(a, &reserve, &[], 0);
    world.good(a, &reserve, &[], 0);
    world.conflicts(b, &reserve, &[], 0);
    world.conflicts(b, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    world.conflicts(b, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255);
    world.conflicts(b, &TUR, &[], 0);
    world.conflicts(b, &read_10(0, 1), &[], 512);
    // Neither the holder nor another mixes the two kinds of reservations.
    for host in [a, b] {
        for action in 0..4 {
            world.conflicts(host, &[0x5e, action, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8);
        }
        world.conflicts(host, &cdb(0, 0, 24), &list(0, 1, 0), 0);
    }
    world.good(b, &release, &[], 0);
    world.good(b, &[0x12, 0, 0, 0, 36, 0], &[], 36);
    world.good(b, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16);
    world.conflicts(b, &reserve, &[], 0);
    world.good(a, &release, &[], 0);
    world.good(b, &reserve, &[], 0);
    // Ended by the loss of the nexus, and by resets of the unit and of the target.
    world.close(b);
    world.good(a, &reserve, &[], 0);
    let b = world.host(1, "iqn.b", &[0]);
    for what in [ManagementFunction::LogicalUnitReset([0; 8]), ManagementFunction::TargetReset] {
        world.conflicts(b, &TUR, &[], 0);
        assert_eq!(world.managed(b, what), ManagementOutcome::Complete);
        for host in [a, b] {
            world.refused(host, &TUR, &[], 0, 0x06_2903);
        }
        world.good(b, &TUR, &[], 0);
        world.good(a, &reserve, &[], 0);
    }
    assert_eq!(world.managed(a, ManagementFunction::NexusReset), ManagementOutcome::Complete);
    world.refused(a, &TUR, &[], 0, 0x06_2907);
    world.good(b, &reserve, &[], 0);
}

/// An NVMe host that is registered on the same volume is seen, by its name.
#[test]
fn a_host_of_the_other_protocol_is_shown_and_preempted() {
    use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};

    let (mut world, a, ..) = three();
    let identity = std::sync::Arc::new(volume::Identity::Host([7; 16]));
    let who = volume::Requester { identity, port: volume::PortId(1), read_only: false };
    let register = RegistrationRequest {
        mode: RegisterMode::Add,
        nqn: Some("nqn.2026-11.example:host".into()),
        ..RegistrationRequest::new(None, Key(0x77))
    };
    let reserve = Action::Reserve { key: Some(Key(0x77)), kind: ReservationType::ExclusiveAccess };
    for action in [Action::Register(register), reserve] {
        world.request(VolumeId(0), VolumeRequest::Reserve { who: who.clone(), action });
        world.run();
    }
    let status = report(&mut world, a, 3);
    assert_eq!(status[4..8], [0, 0, 0, 56], "one entry");
    assert_eq!(status[8..16], 0x77u64.to_be_bytes());
    assert_eq!(status[20..22], [3, 3], "it holds on all ports, exclusive access");
    let (id, rest) = TransportId::parse(&status[32..]).unwrap();
    assert_eq!((id.name, id.isid, rest.len()), ("nqn.2026-11.example:host", None, 0));
    world.conflicts(a, &read_10(0, 1), &[], 512);
    good(&mut world, a, 0, 0, 0, 1);
    good(&mut world, a, 4, 3, 1, 0x77);
    assert_eq!(keys(&mut world, a).1, [1]);
    world.good(a, &read_10(0, 1), &[], 512);
}

/// A host whose LUN is for reading only keeps nobody else from it.
#[test]
fn readers_register_and_no_more() {
    let (mut world, a, b, _) = three();
    let reads = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(b).change_luns(b.key, reads);
    world.command(b, &TUR, &[], 0);
    good(&mut world, a, 0, 0, 0, 1);
    good(&mut world, b, 0, 0, 0, 2);
    // RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT AND ABORT.
    for (action, kind, service) in [(1, 1, 0), (2, 1, 0), (3, 0, 0), (4, 1, 1), (5, 1, 1)] {
        let got = out(&mut world, b, action, kind, 2, service);
        assert_eq!(got.code(), 0x07_2700, "action {action}");
    }
    world.refused(b, &[0x16, 0, 0, 0, 0, 0], &[], 0, 0x07_2700);
    assert_eq!(keys(&mut world, a).1, [1, 2]);
    good(&mut world, b, 0, 0, 2, 0);
    assert_eq!(keys(&mut world, a).1, [1]);
}
