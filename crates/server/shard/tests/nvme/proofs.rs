//! Hosts that must authenticate (DH-HMAC-CHAP), from end to end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ComputeId, HostAuth, LogLine, Message, NvmeMessage, Shard};
use endpoint::ShardId;
use iscsi::chap::{self, Algorithm, ChapAccount};
use iscsi::initiator::{Credentials, LoginFailure};
use iscsi::login::{AuthPolicy, ChapAccounts};
use iscsi::wire::LoginStatus;
use nvme::auth::{DhchapPolicy, DhchapSecret, HostAuthenticator as Prover, HostProgress, auth_sqe};
use nvme::fabrics::{ConnectData, ConnectResult, Property, PropertyAccess};
use nvme::{FabricsType, Status};
use sim::World;

use crate::host::{Host, Wanted, is_dead, run, sqe, wait};
use crate::{pattern, world_with};
use testkit::iscsi_initiator::TestInitiator;
use testkit::nvme_host::TestQueue;
use testkit::target::{self, TargetLimits};

fn secret(byte: u8) -> Arc<DhchapSecret> {
    Arc::new(DhchapSecret::generate(None, &mut |bytes| bytes.fill(byte)))
}

/// A world whose subsystem wants proof of `secret(1)`.
fn guarded(seed: u64) -> World<Shard> {
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    exports.nvme.subsystems[0].rules[0].auth = HostAuth::Required(secret(1));
    world_with(seed, 2, &Arc::new(exports))
}

/// Connects a queue, which must then authenticate.
fn connect(world: &mut World<Shard>, wanted: &Wanted, qid: u16, cntlid: u16) -> (TestQueue, u16) {
    let mut pipe = TestQueue::open_connection(world, wanted.listener, wanted.digests);
    let cid = pipe.send_connect(world, &wanted.connect(qid), &wanted.names(cntlid));
    let ended = wait(world, &mut pipe, cid);
    assert!(ended.status.is_success(), "{ended:?}");
    let connected = ConnectResult::parse(ended.result);
    assert!(connected.authenticate);
    (pipe, connected.cntlid)
}

/// Proves the host to a queue; false if it is refused, or the queue ends.
fn prove(world: &mut World<Shard>, wanted: &Wanted, pipe: &mut TestQueue, secret: &DhchapSecret) -> bool {
    let credentials = nvme::auth::Credentials {
        host_nqn: wanted.host.to_owned(),
        subsystem_nqn: wanted.subsystem.to_owned(),
        host: Some(secret.derive_key(wanted.host)),
        controller: None,
    };
    // The smallest group: what is tried here is the way, not the arithmetic.
    let policy = DhchapPolicy { groups: vec![nvme::auth::DhGroup::Ffdhe2048], ..DhchapPolicy::default() };
    let (mut prover, first) = Prover::start(credentials, policy, 7, &mut |bytes| bytes.fill(9));
    let mut next = HostProgress::Send(first);
    loop {
        next = match next {
            HostProgress::Send(message) => {
                let send = auth_sqe(FabricsType::AUTHENTICATION_SEND, message.len() as u32);
                let cid = pipe.send_command(world, send, &message, true, 0);
                if !ask(world, pipe, cid) {
                    return false;
                }
                prover.handle_sent()
            }
            HostProgress::Receive => {
                const ROOM: usize = nvme::auth::MESSAGE_LEN_MAX;
                let receive = auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, ROOM as u32);
                let cid = pipe.send_command(world, receive, &[], false, ROOM);
                run(world, &mut [pipe], |world, pipes| over(world, pipes[0], cid));
                let Some(ended) = pipe.take_result(cid) else { return false };
                prover.handle_message(&ended.data)
            }
            HostProgress::Compute(work) => prover.handle_computed(work.run()),
            HostProgress::Authenticated => return true,
            HostProgress::Failed(_) => return false,
        }
    }
}

fn over(world: &World<Shard>, pipe: &TestQueue, cid: u16) -> bool {
    is_dead(world, pipe) || pipe.ended.iter().any(|ended| ended.cid == cid)
}

/// Whether a command succeeds, and its queue lives.
fn ask(world: &mut World<Shard>, pipe: &mut TestQueue, cid: u16) -> bool {
    run(world, &mut [pipe], |world, pipes| over(world, pipes[0], cid));
    pipe.take_result(cid).is_some_and(|ended| ended.status.is_success())
}

#[test]
fn a_host_with_the_right_key_is_served_on_every_queue() {
    for seed in 0..3 {
        let mut world = guarded(seed);
        let wanted = Wanted { digests: (seed == 1, seed == 1), ..Wanted::default() };
        let (mut admin, cntlid) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
        assert!(prove(&mut world, &wanted, &mut admin, &secret(1)), "seed {seed}");
        let mut host = Host { wanted: wanted.clone(), pipes: vec![admin], cntlid };
        host.enable(&mut world);
        for qid in 1..=2 {
            let (mut pipe, _) = connect(&mut world, &wanted, qid, cntlid);
            assert!(prove(&mut world, &wanted, &mut pipe, &secret(1)), "seed {seed} queue {qid}");
            host.pipes.push(pipe);
        }
        assert_eq!(host.write(&mut world, 1, 5, &pattern(5, 8, 1)), Status::SUCCESS);
        assert!(host.read(&mut world, 2, 5, 8) == pattern(5, 8, 1));
    }
}

#[test]
fn a_host_with_a_wrong_key_is_refused_and_leaves_nothing_behind() {
    let mut world = guarded(4);
    let wanted = Wanted::default();
    let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    assert!(!prove(&mut world, &wanted, &mut admin, &secret(2)));
    run(&mut world, &mut [&mut admin], |world, pipes| is_dead(world, pipes[0]));
    world.run_for(Duration::from_secs(1));
    for listing in crate::queues::listings(&mut world) {
        assert!(listing.queues.is_empty());
    }
}

#[test]
fn attack_70_commands_before_the_proof() {
    let mut world = guarded(5);
    let wanted = Wanted::default();
    let (mut admin, cntlid) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    for early in [
        sqe(0x06),
        PropertyAccess::property_get_sqe(Property::CAP, 8),
        PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001),
    ] {
        let cid = admin.send_command(&mut world, early, &[], false, 0);
        let ended = wait(&mut world, &mut admin, cid);
        assert_eq!(ended.status.0 & 0x7ff, Status::AUTHENTICATION_REQUIRED.0, "{ended:?}");
    }
    assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
    let mut host = Host { wanted: wanted.clone(), pipes: vec![admin], cntlid };
    host.enable(&mut world);
    // Each queue has to prove it again.
    let (pipe, _) = connect(&mut world, &wanted, 1, cntlid);
    host.pipes.push(pipe);
    let refused = host.write(&mut world, 1, 0, &pattern(0, 1, 1));
    assert_eq!(refused.0 & 0x7ff, Status::AUTHENTICATION_REQUIRED.0);
}

#[test]
fn attack_77_silence_instead_of_a_proof() {
    for began in [false, true] {
        let mut world = guarded(6);
        let wanted = Wanted::default();
        let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
        if began {
            // Negotiate, and go while the controller computes.
            let message = [0; 16];
            let send = auth_sqe(FabricsType::AUTHENTICATION_SEND, 16);
            admin.send_command(&mut world, send, &message, true, 0);
            world.step(world.now() + Duration::from_micros(50));
        }
        world.run_for(Duration::from_secs(40));
        let mut reports = Vec::new();
        crate::host::heed(&mut world, &mut reports);
        world.run_for(Duration::from_secs(1));
        assert!(is_dead(&world, &admin), "it had its time");
        for (shard, listing) in crate::queues::listings(&mut world).into_iter().enumerate() {
            assert!(listing.queues.is_empty());
            let usage = world.pool(endpoint::ShardId(shard as u16)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0));
        }
    }
}

/// Guarded exports that something is changed of.
fn guarded_with(seed: u64, alter: impl FnOnce(&mut blockwire_shard::NvmeExports)) -> World<Shard> {
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    exports.nvme.subsystems[0].rules[0].auth = HostAuth::Required(secret(1));
    alter(&mut exports.nvme);
    world_with(seed, 2, &Arc::new(exports))
}

#[test]
fn the_hash_and_the_group_are_those_that_are_wanted_most_and_shown() {
    use blockwire_shard::HostAuthentication;
    use nvme::auth::{DhGroup, Hash};
    // The host offers all hashes, and one group.
    for (hashes, groups, expected) in [
        (vec![Hash::Sha256, Hash::Sha512], vec![DhGroup::Ffdhe2048], Some(Hash::Sha256)),
        (vec![Hash::Sha384], vec![DhGroup::Ffdhe4096, DhGroup::Ffdhe2048], Some(Hash::Sha384)),
        (vec![Hash::Sha384], vec![DhGroup::Ffdhe4096], None),
    ] {
        let mut world = guarded_with(3, |nvme| nvme.proofs = DhchapPolicy { hashes, groups });
        let wanted = Wanted::default();
        let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
        let proof = |world: &mut World<Shard>| {
            let listings = crate::queues::listings(world);
            listings.iter().flat_map(|listing| &listing.queues).map(|queue| queue.authentication).next()
        };
        assert_eq!(proof(&mut world), Some(HostAuthentication::Pending));
        let proved = prove(&mut world, &wanted, &mut admin, &secret(1));
        assert_eq!(proved, expected.is_some());
        if let Some(hash) = expected {
            assert_eq!(proof(&mut world), Some(HostAuthentication::Done(hash, DhGroup::Ffdhe2048)));
        }
    }
}

#[test]
fn the_discovery_service_asks_for_proofs_of_its_own() {
    let host = target::build_exports(&TargetLimits::default()).nvme.subsystems[0].rules[0].clone();
    let rule = |name: &str, byte| blockwire_shard::HostRule {
        hosts: vec![name.into()],
        auth: HostAuth::Required(secret(byte)),
        ..host.clone()
    };
    let rules = vec![rule(crate::host::HOST, 2)];
    let mut world = guarded_with(4, |nvme| nvme.discovery = Some(rules));
    let wanted = Wanted { subsystem: blockwire_shard::DISCOVERY_NQN, ..Wanted::default() };
    for (byte, right) in [(1, false), (2, true)] {
        let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
        let log = sqe(0x02);
        let cid = admin.send_command(&mut world, log, &[], false, 0);
        let early = wait(&mut world, &mut admin, cid).status;
        assert_eq!(early.0 & 0x7ff, Status::AUTHENTICATION_REQUIRED.0);
        assert_eq!(prove(&mut world, &wanted, &mut admin, &secret(byte)), right);
        if right {
            let mut host = Host { wanted: wanted.clone(), pipes: vec![admin], cntlid: 0 };
            host.enable(&mut world);
        }
    }
    let other = Wanted { host: "nqn.2026-11.test:other", ..wanted };
    let refused = Host::admin(&mut world, other).err().expect("it has no secret");
    assert_eq!(refused.status.0 & 0x7ff, Status::CONNECT_INVALID_HOST.0);
}

#[test]
fn attack_77_a_source_has_so_many_discovery_controllers() {
    let mut world = guarded_with(5, |nvme| nvme.discovery_per_source = Some(3));
    let wanted = Wanted { subsystem: blockwire_shard::DISCOVERY_NQN, ..Wanted::default() };
    let hosts: Vec<Host> =
        (0..3).map(|_| Host::admin(&mut world, wanted.clone()).expect("it is let in")).collect();
    let refused = Host::admin(&mut world, wanted.clone()).err().expect("one too many");
    assert_eq!(refused.status.0 & 0x7ff, Status::CONTROLLER_BUSY.0);
    crate::host::reset(&mut world, &hosts[1].pipes[0]);
    world.run_for(Duration::from_millis(10));
    Host::admin(&mut world, wanted).expect("there is a place again");
}

#[test]
fn keep_alive_timeouts_are_bounded() {
    let keep_alive = blockwire_shard::KeepAliveLimits { least_ms: 5000, most_ms: Some(20_000) };
    let mut world = guarded_with(6, |nvme| {
        nvme.keep_alive = keep_alive;
        nvme.subsystems[0].rules[0].auth = HostAuth::None;
    });
    for kato_ms in [0, 20_001] {
        let refused = Host::admin(&mut world, Wanted { kato_ms, ..Wanted::default() }).err().unwrap();
        assert_eq!(refused.status, Status::KEEP_ALIVE_INVALID.with_do_not_retry(), "{kato_ms}");
    }
    for (kato_ms, granted) in [(1, 5000), (5000, 5000), (6001, 7000), (20_000, 20_000)] {
        let mut host = Host::admin(&mut world, Wanted { kato_ms, ..Wanted::default() }).unwrap();
        host.enable(&mut world);
        let mut get = sqe(0x0a);
        get.cdw10[0] = 0x0f.into();
        assert_eq!(host.ask(&mut world, 0, get, &[], 0).result, granted, "{kato_ms}");
        let mut set = sqe(0x09);
        (set.cdw10[0], set.cdw10[1]) = (0x0f.into(), 0.into());
        assert_eq!(
            host.ask(&mut world, 0, set, &[], 0).status,
            Status::KEEP_ALIVE_INVALID.with_do_not_retry()
        );
        assert_eq!(host.ask(&mut world, 0, get, &[], 0).result, granted, "it stays as it was");
    }
}

/// Strangers take the identifiers of a host's queues, on either shard; the host connects them all the same.
#[test]
fn attack_77_silent_queues_keep_no_identifier_from_their_host() {
    let mut world = guarded(11);
    let wanted = Wanted::default();
    let (mut admin, cntlid) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
    let mut host = Host { wanted: wanted.clone(), pipes: vec![admin], cntlid };
    host.enable(&mut world);
    let silent: Vec<TestQueue> =
        (0..8).map(|at| connect(&mut world, &wanted, 1 + at % 2, cntlid).0).collect();
    for qid in 1..=2 {
        let (mut pipe, _) = connect(&mut world, &wanted, qid, cntlid);
        assert!(prove(&mut world, &wanted, &mut pipe, &secret(1)), "queue {qid}");
        host.pipes.push(pipe);
    }
    for at in 1..=2 {
        assert_eq!(host.write(&mut world, at, 5, &pattern(5, 8, 1)), Status::SUCCESS);
    }
    world.run_for(Duration::from_secs(1));
    assert!(silent.iter().all(|pipe| is_dead(&world, pipe)));
    assert!(host.read(&mut world, 2, 5, 8) == pattern(5, 8, 1));
    let queues: usize = crate::queues::listings(&mut world).iter().map(|listing| listing.queues.len()).sum();
    assert_eq!(queues, 3);
}

/// What a shard counts among strangers, and what it promised them, over all shards.
fn strangers(world: &mut World<Shard>) -> (usize, usize) {
    let logins = crate::queues::listings(world).iter().map(|listing| listing.logins).sum();
    let shards = 0..world.shard_count() as u16;
    let reserved = shards.map(|shard| world.pool(endpoint::ShardId(shard)).usage().reserved).sum();
    (logins, reserved)
}

#[test]
fn attack_77_hosts_that_prove_nothing_are_strangers_and_give_way() {
    let mut world = guarded(7);
    let wanted = Wanted::default();
    let mut silent: Vec<TestQueue> = Vec::new();
    for id in 0..600 {
        let wanted = Wanted { host_id: id as u8 | 1, ..wanted.clone() };
        silent.push(connect(&mut world, &wanted, 0, ConnectData::DYNAMIC).0);
    }
    world.run_for(Duration::from_millis(10));
    let (logins, reserved) = strangers(&mut world);
    assert!((500..=512).contains(&logins), "{logins}: 256 on each of two shards");
    assert!(reserved <= logins * 2 * 8192, "little is promised to them");
    assert!(is_dead(&world, &silent[0]) && !is_dead(&world, &silent[599]));
    for shard in 0..2 {
        // The log has no line of them that is not counted as one that anybody can cause.
        while let Some(line) = world.endpoint_mut(endpoint::ShardId(shard)).poll_log() {
            assert!(matches!(&line, LogLine::Nvme(line) if line.is_from_unauthenticated()), "{line:?}");
        }
    }
    // None of them binds the identifier that they all use.
    let wanted = Wanted { host: "nqn.2026-11.test:other", ..wanted };
    let (mut admin, cntlid) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
    let mut host = Host { wanted, pipes: vec![admin], cntlid };
    host.enable(&mut world);
}

#[test]
fn attack_15_wrong_keys_are_put_off_on_every_shard() {
    let mut world = guarded(8);
    let wanted = Wanted::default();
    let mut put_off = 0;
    for _ in 0..40 {
        let mut pipe = TestQueue::open_connection(&mut world, wanted.listener, wanted.digests);
        let cid = pipe.send_connect(&mut world, &wanted.connect(0), &wanted.names(ConnectData::DYNAMIC));
        let ended = wait(&mut world, &mut pipe, cid);
        if ended.status.is_success() {
            assert!(!prove(&mut world, &wanted, &mut pipe, &secret(2)));
            run(&mut world, &mut [&mut pipe], |world, pipes| is_dead(world, pipes[0]));
        } else {
            assert_eq!(ended.status.0 & 0x7ff, Status::CONTROLLER_BUSY.0, "{ended:?}");
            assert_eq!(ended.status.0 >> 14, 0, "it may retry");
            put_off += 1;
        }
    }
    assert!((30..=35).contains(&put_off), "{put_off}: five are free");
    world.run_for(Duration::from_secs(11));
    let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
}

#[test]
fn a_host_that_must_prove_now_who_it_is_begins_anew() {
    let exports = (*target::build_exports(&TargetLimits::default())).clone();
    let mut world = world_with(9, 2, &Arc::new(exports.clone()));
    let host = Host::connect(&mut world, Wanted::default());
    let change = |world: &mut World<Shard>, auth| {
        let mut exports = exports.clone();
        exports.nvme.subsystems[0].rules[0].auth = auth;
        let exports = Arc::new(exports);
        for shard in 0..2 {
            let control = blockwire_shard::ControlRequest::Exports(exports.clone());
            world.send_message(endpoint::ShardId(shard), blockwire_shard::Message::Control(8, control));
        }
        world.run_for(Duration::from_millis(50));
        crate::host::heed(world, &mut Vec::new());
    };
    change(&mut world, HostAuth::Required(secret(1)));
    assert!(host.is_dead(&world));
    let wanted = Wanted::default();
    let (mut admin, cntlid) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
    assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
    let mut host = Host { wanted: wanted.clone(), pipes: vec![admin], cntlid };
    host.enable(&mut world);
    // Another secret: what is served goes on, and queues that connect now prove it.
    change(&mut world, HostAuth::Required(secret(3)));
    assert!(!host.is_dead(&world));
    let (mut pipe, _) = connect(&mut world, &wanted, 1, cntlid);
    assert!(prove(&mut world, &wanted, &mut pipe, &secret(3)));
    host.pipes.push(pipe);
    assert_eq!(host.write(&mut world, 1, 5, &pattern(5, 8, 1)), Status::SUCCESS);
}

/// What the control plane has been asked to compute and has not begun.
fn note_work(world: &mut World<Shard>, waiting: &mut Vec<(ShardId, ComputeId, IpAddr)>) {
    for (_, message) in world.take_control_messages() {
        match message {
            Message::Nvme(NvmeMessage::Compute(shard, id, source, _)) => waiting.push((shard, id, source)),
            Message::Nvme(NvmeMessage::Forget(shard, id)) => {
                let at = waiting.iter().position(|(of, its, _)| (*of, *its) == (shard, id));
                waiting.remove(at.expect("what was asked for is forgotten once"));
            }
            Message::Report(..) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

/// Connections that let the longest powers be computed and close leave no work behind, and are put off; a host
/// from elsewhere finds nobody before it.
#[test]
fn attack_77_powers_for_connections_that_closed_keep_no_host_waiting() {
    const CROWD: usize = 150;
    for shards in [1, 2] {
        let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
        exports.nvme.subsystems[0].rules[0].auth = HostAuth::Required(secret(1));
        let mut world = world_with(11, shards, &Arc::new(exports));
        let wanted = Wanted::default();
        let crowd = "192.0.2.9".parse().unwrap();
        world.set_peer_origin(crowd, 0);
        let mut waiting = Vec::new();
        let pipes: Vec<TestQueue> = (0..CROWD)
            .map(|_| {
                let (mut pipe, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
                let credentials = nvme::auth::Credentials {
                    host_nqn: wanted.host.to_owned(),
                    subsystem_nqn: wanted.subsystem.to_owned(),
                    host: Some(secret(2).derive_key(wanted.host)),
                    controller: None,
                };
                let longest =
                    DhchapPolicy { groups: vec![nvme::auth::DhGroup::Ffdhe8192], ..DhchapPolicy::default() };
                let (_, first) = Prover::start(credentials, longest, 7, &mut |bytes| bytes.fill(9));
                let send = auth_sqe(FabricsType::AUTHENTICATION_SEND, first.len() as u32);
                pipe.send_command(&mut world, send, &first, true, 0);
                world.run_for(Duration::from_millis(2));
                note_work(&mut world, &mut waiting);
                pipe
            })
            .collect();
        assert_eq!(waiting.len(), CROWD);
        assert!(waiting.iter().all(|(_, _, source)| *source == crowd));
        for (at, pipe) in pipes.iter().enumerate() {
            if at % 2 == 0 {
                crate::host::reset(&mut world, pipe)
            } else {
                world.shutdown_write(sim::Peer(pipe.at))
            }
        }
        world.run_for(Duration::from_millis(50));
        note_work(&mut world, &mut waiting);
        assert_eq!(waiting, [], "{shards} shards: nothing is computed for who has gone");
        // The next of them have to wait before anything is computed for them.
        for _ in 0..10 {
            let mut pipe = TestQueue::open_connection(&mut world, wanted.listener, wanted.digests);
            let cid = pipe.send_connect(&mut world, &wanted.connect(0), &wanted.names(ConnectData::DYNAMIC));
            assert_eq!(wait(&mut world, &mut pipe, cid).status, Status::CONTROLLER_BUSY);
        }
        // Another host comes in at once.
        world.set_peer_origin("198.51.100.9".parse().unwrap(), 0);
        let began = world.now();
        let (mut admin, _) = connect(&mut world, &wanted, 0, ConnectData::DYNAMIC);
        assert!(prove(&mut world, &wanted, &mut admin, &secret(1)));
        assert!(world.now().since(began) < Duration::from_secs(1));
    }
}

#[test]
fn attack_15_wrong_passwords_are_put_off_on_every_shard() {
    let account =
        |secret: &[u8]| ChapAccount { name: "alice".into(), secret: chap::Secret::new(secret.to_vec()) };
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    let accounts = vec![account(b"the right secret")];
    let algorithms = Algorithm::ALL.to_vec();
    let chap = ChapAccounts { accounts, mutual: None, demands_mutual: false, algorithms: algorithms.clone() };
    exports.targets[0].rules[0].auth = AuthPolicy::Required(chap);
    let mut world = world_with(9, 3, &Arc::new(exports));
    let mut answers = Vec::new();
    for isid in 0..40 {
        let ours = account(b"a wrong secret!!");
        let credentials = Some(Credentials { ours, target: None, algorithms: algorithms.clone() });
        let mut guess = TestInitiator::connect(
            &mut world,
            iscsi::initiator::LoginConfig { credentials, ..target::login_config(isid) },
        );
        while guess.failure().is_none() {
            guess.poll(&mut world);
            let until = world.now() + Duration::from_millis(1);
            world.step(until);
        }
        match guess.failure() {
            Some(LoginFailure::Refused(status)) => answers.push(*status),
            other => panic!("{other:?}"),
        }
    }
    let put_off = answers.iter().filter(|status| **status == LoginStatus::SERVICE_UNAVAILABLE).count();
    assert!((30..=35).contains(&put_off), "{put_off}: five are free");
}
