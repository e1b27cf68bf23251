//! Discovery controllers: the log, its pieces, changes, and other commands.

use nvme::Status;
use nvme::fabrics::Property;

use super::*;
use crate::ControllerEnd;
use crate::discovery::{DiscoveryEntry, EntryKind, VisibleTo};

fn at(kind: EntryKind, name: &str, address: &str, hosts: VisibleTo) -> DiscoveryEntry {
    let (address, tls) = (address.parse().unwrap(), Default::default());
    DiscoveryEntry { kind, subsystem: nqn(name), address, port: PortId(3), hosts, tls }
}

fn book(generation: u64, names: &[&str]) -> Arc<DiscoveryEntries> {
    let mut entries = vec![
        at(EntryKind::Current, Nqn::DISCOVERY, "0.0.0.0:8009", VisibleTo::All),
        at(EntryKind::Referral, Nqn::DISCOVERY, "192.0.2.99:8009", VisibleTo::All),
    ];
    for name in names {
        entries.push(at(EntryKind::Nvm, name, "0.0.0.0:4420", VisibleTo::All));
    }
    let hidden = VisibleTo::These([host(9).nqn].into());
    entries.push(at(EntryKind::Nvm, "nqn.2026-11.io.blockwire:hidden", "0.0.0.0:4420", hidden));
    Arc::new(DiscoveryEntries { generation, entries })
}

fn world(kato_ms: u32) -> (World, Host) {
    let mut world = World::new(1);
    let host = world.controller(discovery(1, 1, &book(5, &["nqn.2026-11.io.blockwire:a"]), kato_ms));
    (world, host)
}

fn piece(len: u32, offset: u32) -> Sqe {
    let mut sqe = get_log(0x70, len);
    sqe.cdw10[2] = U32::new(offset);
    sqe
}

fn counts(header: &[u8]) -> (u64, u64) {
    let at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    (at(0), at(8))
}

#[test]
fn the_log_shows_what_this_host_can_reach_from_where_it_is() {
    let (mut world, host) = world(0);
    let log = world.good(host, &piece(4096, 0), &[]);
    assert_eq!(counts(&log), (5, 3));
    let record = |at: usize| &log[1024 * at..1024 * (at + 1)];
    assert_eq!(record(1)[..12], [3, 1, 3, 4, 3, 0, 0xff, 0xff, 128, 0, 3, 0]);
    assert_eq!(&record(1)[512..524], b"192.0.2.7   ");
    assert_eq!((record(2)[2], &record(2)[512..523]), (1, &b"192.0.2.99 "[..]));
    assert_eq!((record(3)[2], record(3)[10]), (2, 0));
    assert_eq!(
        (&record(3)[32..37], &record(3)[256..283]),
        (&b"4420 "[..], &b"nqn.2026-11.io.blockwire:a\0"[..])
    );
}

#[test]
fn pieces_come_from_the_book_that_the_reading_began_with() {
    let (mut world, host) = world(0);
    let header = world.good(host, &piece(1024, 0), &[]);
    assert_eq!(counts(&header), (5, 3));
    world
        .server(host)
        .change_discovery(1, &book(6, &["nqn.2026-11.io.blockwire:b", "nqn.2026-11.io.blockwire:c"]));
    let record = world.good(host, &piece(1024, 3072), &[]);
    assert_eq!(&record[256..283], b"nqn.2026-11.io.blockwire:a\0");
    // The counter tells that the records are old.
    let header = world.good(host, &piece(16, 0), &[]);
    assert_eq!(counts(&header), (6, 4));
    let record = world.good(host, &piece(1024, 3072), &[]);
    assert_eq!(&record[256..283], b"nqn.2026-11.io.blockwire:b\0");
    assert_eq!(world.ends(host, &piece(4, 6148), &[]).status, Status::INVALID_FIELD.with_do_not_retry());
}

#[test]
fn hosts_that_stay_are_told_of_changes_that_they_can_see() {
    let (mut world, host) = world(30_000);
    assert_eq!(world.ends(host, &set_feature(0x0b, 0, 1 << 31), &[]).status, Status::SUCCESS);
    let request = world.start(host, &event_request(1), &[]);
    // The same for this host, though not for others.
    let mut other = DiscoveryEntries::clone(&book(6, &["nqn.2026-11.io.blockwire:a"]));
    other.entries.pop();
    world.server(host).change_discovery(1, &Arc::new(other));
    world.run();
    assert_eq!(world.end(request), None);
    world.server(host).change_discovery(1, &book(7, &[]));
    world.run();
    assert_eq!(world.event(request), Some(0x0070_f002));
    let again = world.start(host, &event_request(2), &[]);
    world.server(host).change_discovery(1, &book(8, &["nqn.2026-11.io.blockwire:x"]));
    world.run();
    assert_eq!(world.end(again), None, "the log was not read");
    assert_eq!(counts(&world.good(host, &piece(1024, 0), &[])), (8, 3));
    world.server(host).change_discovery(1, &book(9, &[]));
    world.run();
    assert_eq!(world.event(again), Some(0x0070_f002));
    // Keep alive as anywhere else.
    assert_eq!(world.ends(host, &admin(0x18, 0, &[], 0), &[]).status, Status::SUCCESS);
    world.pass(30);
    assert_eq!(world.gone, [(1, ControllerEnd::Silent)]);
}

#[test]
fn without_keep_alive_a_host_may_be_idle_for_two_minutes() {
    let (mut world, host) = world(0);
    world.pass(100);
    world.good(host, &piece(1024, 0), &[]);
    world.pass(119);
    assert!(world.gone.is_empty());
    assert_eq!(
        world.ends(host, &admin(0x18, 0, &[], 0), &[]).status,
        Status::KEEP_ALIVE_INVALID.with_do_not_retry()
    );
    world.pass(120);
    assert_eq!(world.gone, [(1, ControllerEnd::Silent)]);
}

#[test]
fn there_is_nothing_but_discovery() {
    let (mut world, host) = world(0);
    assert_eq!(world.property(host, Property::CAP, 8), 0x0800_0020_1e01_007f);
    let data = world.good(host, &admin(0x06, 0, &[1], 4096), &[]);
    assert_eq!((data[78], data[111], data[1806], data[76], data[261]), (1, 2, 0, 0, 4));
    assert_eq!(data[92..96], [0, 0, 0, 0x80]);
    assert_eq!(&data[768..804], b"nqn.2014-08.org.nvmexpress.discovery");
    for cns in [0, 2, 3, 5, 6, 8, 0x1c] {
        let status = world.ends(host, &admin(0x06, 1, &[cns], 4096), &[]).status;
        assert_eq!(status, Status::INVALID_FIELD.with_do_not_retry());
    }
    for lid in [0, 1, 2, 3, 4, 5, 0x0c, 0x80] {
        assert_eq!(
            world.ends(host, &get_log(lid, 64), &[]).status,
            Status::INVALID_LOG_PAGE.with_do_not_retry()
        );
    }
    assert_eq!(
        world.ends(host, &set_feature(7, 0, 0), &[]).status,
        Status::INVALID_FIELD.with_do_not_retry()
    );
    assert_eq!(
        world.ends(host, &admin(0x08, 0, &[0], 0), &[]).status,
        Status::INVALID_OPCODE.with_do_not_retry()
    );
    assert_eq!(world.join(1, &join(1, 1, 0)).unwrap_err(), ConnectRefusal::CNTLID);
}

/// A direct discovery controller (DCTYPE 1) has Discovery Information Management, which there is not.
#[test]
fn no_kind_of_discovery_controller_is_claimed_whose_commands_there_are_not() {
    let (mut world, host) = world(0);
    assert_eq!(world.good(host, &admin(0x06, 0, &[1], 4096), &[])[1806], 0);
    assert_ne!(world.ends(host, &admin(0x21, 0, &[], 0), &[]).status, Status::SUCCESS);
}
