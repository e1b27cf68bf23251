//! Attacks by hostile hosts on connections, Connects and queues: rows of `docs/attacks.md`.

use std::time::Duration;

use blockwire_shard::Shard;
use endpoint::ShardId;
use nvme::fabrics::{ConnectData, ConnectRefusal, Property, PropertyAccess};
use nvme::{Completion, Status};
use sim::{SimRng, World};

use crate::host::{Host, IO, Wanted, is_dead, reset, run, sqe, transfer, wait};
use crate::queues::listings;
use crate::{pattern, world};
use testkit::nvme_host::{CommandResult, TestQueue};

/// ICReq as a host without wishes sends it.
fn ic_req() -> [u8; 128] {
    let mut bytes = [0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
}

fn is_refused(ended: &CommandResult, refusal: ConnectRefusal) {
    let expected = Completion::from(refusal);
    assert_eq!((ended.status, ended.result), (expected.status, expected.result));
}

fn nothing_is_left(world: &mut World<Shard>) {
    world.run_for(Duration::from_secs(1));
    for (shard, listing) in listings(world).into_iter().enumerate() {
        assert_eq!((listing.logins, listing.queues.len()), (0, 0));
        let usage = world.pool(ShardId(shard as u16)).usage();
        assert_eq!((usage.lent, usage.reserved), (0, 0));
    }
}

#[test]
fn attack_54_icreq_and_gone() {
    let mut world = world(1, 2);
    let mut chance = SimRng::new(54);
    for round in 0..10_000u32 {
        let peer = world.connect(IO);
        world.send(peer, &ic_req());
        if round % 2 == 0 {
            // Sometimes at once, sometimes while ICResp is on its way.
            let until = world.now() + Duration::from_micros(chance.below(200));
            while world.step(until) {}
        }
        if round % 3 == 0 {
            world.shutdown_write(peer)
        } else {
            world.reset(peer)
        }
        if round % 64 == 0 {
            world.run_for(Duration::from_millis(1));
        }
    }
    nothing_is_left(&mut world);
    Host::connect(&mut world, Wanted::default());
}

#[test]
fn attack_54_silent_strangers_give_way() {
    let mut world = world(2, 1);
    let silent: Vec<_> = (0..600)
        .map(|at| {
            let peer = world.connect(IO);
            if at % 2 == 0 {
                world.send(peer, &ic_req());
            }
            if at % 50 == 0 {
                world.run_for(Duration::from_millis(1));
            }
            peer
        })
        .collect();
    world.run_for(Duration::from_millis(10));
    let open = silent.iter().filter(|peer| world.peer_end(**peer) == sim::PeerEnd::Open).count();
    assert!(open <= 512, "{open} strangers are kept");
    // Those that lost their place are reset: none keeps a descriptor until its peer ends.
    let is_reset = |peer: &&_| world.peer_end(**peer) == sim::PeerEnd::Reset;
    assert_eq!(silent.iter().filter(is_reset).count(), 600 - open);
    let mut host = Host::connect(&mut world, Wanted::default());
    assert_eq!(host.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    // The others have their time, and no more.
    world.run_for(Duration::from_secs(20));
    assert!(silent.iter().all(|peer| world.peer_end(*peer) != sim::PeerEnd::Open));
    assert_eq!(listings(&mut world)[0].logins, 0);
}

#[test]
fn attack_66_a_host_that_stops_reading() {
    let mut world = world(3, 1);
    let mut host = Host::connect(&mut world, Wanted { kato_ms: 2000, queues: 2, ..Wanted::default() });
    for _ in 0..31 {
        host.start(&mut world, 1, transfer(2, 0, 2048), &[], 1 << 20);
    }
    for _ in 0..100 {
        world.run_for(Duration::from_millis(10));
        let lent = world.pool(ShardId(0)).usage().lent;
        assert!(lent <= 10 << 20, "{lent} bytes wait for a host that does not read");
        // Others are served meanwhile.
        assert_eq!(host.write(&mut world, 2, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    }
    // Its commands are not answered, and no new ones come: it is let go.
    world.run_for(Duration::from_secs(120));
    nothing_is_left(&mut world);
}

/// Writes whose data is never sent: most of the memory is others'.
#[test]
fn attack_61_a_host_that_does_not_send_takes_no_memory_from_others() {
    let mut config = sim::Config::new(61);
    (config.shards, config.pool_bytes) = (1, 32 << 20);
    let mut world =
        crate::world_of(config, &testkit::target::build_exports(&testkit::target::TargetLimits::default()));
    let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
    let other = Wanted { host: "nqn.2026-11.test:other", host_id: 2, queues: 1, ..Wanted::default() };
    let mut other = Host::connect(&mut world, other);
    let data = vec![1; 1 << 20];
    for _ in 0..31 {
        host.start(&mut world, 1, transfer(1, 0, 2048), &data, 0);
    }
    world.run_for(Duration::from_millis(10));
    let lent = world.pool(ShardId(0)).usage().lent;
    assert!((6 << 20..10 << 20).contains(&lent), "{lent} bytes wait for a host that does not send");
    assert_eq!(other.write(&mut world, 1, 0, &pattern(0, 2048, 1)), Status::SUCCESS);
    // A little now and then is not enough: each stretch has its time.
    world.run_for(Duration::from_secs(61));
    assert!(is_dead(&world, &host.pipes[1]));
    assert_eq!(other.write(&mut world, 1, 0, &pattern(0, 2048, 2)), Status::SUCCESS);
}

/// The discovery service's name.
const WELL_KNOWN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Log pages as long as a transfer may be, from an I/O controller and, asked by anybody, from discovery.
#[test]
fn attack_66_a_host_that_does_not_read_its_log_pages() {
    for discovers in [false, true] {
        let mut world = world(3, 1);
        let mut other = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        let wanted = Wanted { host_id: 7, kato_ms: 120_000, queues: 1, ..Wanted::default() };
        let wanted = if discovers { Wanted { subsystem: WELL_KNOWN, ..wanted } } else { wanted };
        let mut host = Host::admin(&mut world, wanted).unwrap();
        host.enable(&mut world);
        let before = world.pool(ShardId(0)).usage().lent;
        let mut page = sqe(2);
        page.nsid = u32::MAX.into();
        let lid = if discovers { 0x70 } else { 5 };
        (page.cdw10[0], page.cdw10[1]) = ((lid | 0xffff << 16).into(), 3.into());
        for _ in 0..14 {
            host.start(&mut world, 0, page, &[], 1 << 20);
        }
        for _ in 0..5 {
            world.run_for(Duration::from_millis(10));
            let lent = world.pool(ShardId(0)).usage().lent - before;
            assert!(
                lent <= 10 << 20,
                "{lent} bytes wait for a host that does not read (discovery: {discovers})"
            );
            assert_eq!(other.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
        }
        // One that does read has all of them.
        host.settle(&mut world);
        let ended = std::mem::take(&mut host.pipes[0].ended);
        assert_eq!(ended.len(), 14);
        assert!(ended.iter().all(|ended| ended.status.is_success() && ended.data.len() == 1 << 20));
    }
}

#[test]
fn attack_67_a_controller_that_is_not_theirs() {
    for seed in 0..6 {
        let mut world = world(seed, 3);
        let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        for stranger in [0, host.cntlid + 1, host.cntlid + 3, 0x7777, 0xffef, 0xfffe, 0xffff] {
            let names = host.wanted.names(stranger);
            let ended = host.join_as(&mut world, &host.wanted.connect(2), &names);
            is_refused(&ended, ConnectRefusal::CNTLID);
        }
        let thief = Wanted { host: "nqn.2026-11.test:thief", ..host.wanted.clone() };
        let ended = host.join_as(&mut world, &thief.connect(2), &thief.names(host.cntlid));
        is_refused(&ended, ConnectRefusal::HOSTNQN);
        let thief = Wanted { host_id: 9, ..host.wanted.clone() };
        let ended = host.join_as(&mut world, &thief.connect(2), &thief.names(host.cntlid));
        is_refused(&ended, ConnectRefusal::HOSTID);
        // The number of a controller that has ended.
        let stale = host.cntlid;
        host.pipes.iter().for_each(|pipe| reset(&mut world, pipe));
        world.run_for(Duration::from_secs(5));
        let mut again = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        let ended = again.join_as(&mut world, &again.wanted.connect(2), &again.wanted.names(stale));
        is_refused(&ended, ConnectRefusal::CNTLID);
        assert_eq!(again.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    }
}

#[test]
fn attack_68_queues_that_cannot_be() {
    let mut world = world(4, 2);
    let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
    let names = host.wanted.names(host.cntlid);
    // Four are granted; the first two are connected.
    for (qid, entries, refusal) in [
        (5, 32, ConnectRefusal::QID),
        (0xffff, 32, ConnectRefusal::QID),
        (1, 32, ConnectRefusal::Sequence),
        (3, 33, ConnectRefusal::SQSIZE),
        (3, 65_536, ConnectRefusal::SQSIZE),
    ] {
        let connect = nvme::fabrics::Connect { entries, ..host.wanted.connect(qid) };
        let ended = host.join_as(&mut world, &connect, &names);
        is_refused(&ended, refusal);
    }
    // SQSIZE 0, and a record format that is not known.
    for (word, value, refusal) in [(1, 0, ConnectRefusal::SQSIZE), (0, 3 << 16 | 1, ConnectRefusal::Format)] {
        let mut pipe = TestQueue::open_connection(&mut world, IO, (false, false));
        let mut command = host.wanted.connect(3).to_sqe();
        command.cdw10[word] = value.into();
        let data = ConnectData::new(&names);
        let cid = pipe.send_command(&mut world, command, zerocopy::IntoBytes::as_bytes(&data), true, 0);
        is_refused(&wait(&mut world, &mut pipe, cid), refusal);
    }
    // An admin queue is not joined to a controller that is there, and comes once per connection.
    let mut pipe = TestQueue::open_connection(&mut world, IO, (false, false));
    let cid = pipe.send_connect(&mut world, &host.wanted.connect(0), &names);
    is_refused(&wait(&mut world, &mut pipe, cid), ConnectRefusal::CNTLID);
    for at in [0, 1] {
        let cid = host.pipes[at].send_connect(&mut world, &host.wanted.connect(at as u16), &names);
        let ended = wait(&mut world, &mut host.pipes[at], cid);
        assert_eq!(ended.status.0 & 0x7ff, Status::COMMAND_SEQUENCE_ERROR.0, "{ended:?}");
    }
    assert_eq!(host.write(&mut world, 2, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    assert!(host.join(&mut world, 4).status.is_success());
}

#[test]
fn attack_69_connect_data_that_is_short() {
    let mut world = world(5, 2);
    let wanted = Wanted::default();
    for len in [0usize, 4, 256, 1020] {
        let mut pipe = TestQueue::open_connection(&mut world, IO, (false, false));
        let cid = pipe.send_command(&mut world, wanted.connect(0).to_sqe(), &vec![0x41; len], true, 0);
        let ended = wait(&mut world, &mut pipe, cid);
        assert_eq!(ended.status.0 & 0x7ff, Status::SGL_LENGTH_INVALID.0, "{len} bytes");
    }
    // Asked for by R2T it is as good as in the capsule.
    let mut pipe = TestQueue::open_connection(&mut world, IO, (true, true));
    let data = ConnectData::new(&wanted.names(ConnectData::DYNAMIC));
    let bytes = zerocopy::IntoBytes::as_bytes(&data);
    let cid = pipe.send_command(&mut world, wanted.connect(0).to_sqe(), bytes, false, 0);
    assert!(wait(&mut world, &mut pipe, cid).status.is_success());
    assert_eq!(pipe.solicited, 1024);
}

#[test]
fn attack_70_commands_before_their_time() {
    let mut world = world(6, 2);
    for command in
        [sqe(0x06), transfer(2, 0, 1), PropertyAccess::property_get_sqe(Property::CAP, 8), sqe(0x7f)]
    {
        let mut pipe = TestQueue::open_connection(&mut world, IO, (false, false));
        let cid = pipe.send_command(&mut world, command, &[], false, 0);
        let ended = wait(&mut world, &mut pipe, cid);
        assert_eq!(ended.status.0 & 0x7ff, Status::COMMAND_SEQUENCE_ERROR.0, "{ended:?}");
        // Who begins so is not waited for any longer.
        run(&mut world, &mut [&mut pipe], |world, pipes| is_dead(world, pipes[0]));
    }
    // The controller is there, and not enabled.
    let mut host = Host::admin(&mut world, Wanted::default()).unwrap();
    let ended = host.ask(&mut world, 0, sqe(0x06), &[], 4096);
    assert_eq!(ended.status.0 & 0x7ff, Status::COMMAND_SEQUENCE_ERROR.0, "{ended:?}");
    let ended = host.join(&mut world, 1);
    is_refused(&ended, ConnectRefusal::Sequence);
    host.enable(&mut world);
    assert!(host.join(&mut world, 1).status.is_success());
}

#[test]
fn attack_78_a_link_lost_between_two_shards() {
    for seed in 0..60 {
        let mut world = world(seed, 3);
        let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        let mut chance = SimRng::new(!seed);
        for _ in 0..8 {
            let mut pipe = TestQueue::open_connection(&mut world, IO, (false, false));
            pipe.send_connect(&mut world, &host.wanted.connect(2), &host.wanted.names(host.cntlid));
            let cut = world.now() + Duration::from_micros(chance.below(400));
            while world.step(cut) {
                pipe.poll(&mut world);
            }
            reset(&mut world, &pipe);
            world.run_for(Duration::from_millis(2));
        }
        // Whatever was cut short, the queue's number is free again: or the association has ended with
        // a queue that had come to be.
        world.run_for(Duration::from_secs(5));
        if host.is_dead(&world) {
            host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        }
        assert!(host.join(&mut world, 2).status.is_success(), "seed {seed}");
        assert_eq!(host.write(&mut world, 2, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    }
}
