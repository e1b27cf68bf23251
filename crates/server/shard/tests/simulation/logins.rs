//! Many logins at once with little memory: the memory that a login's last response announces was reserved
//! before. So an admitted initiator stays, and others are refused (0302h). Nothing is leaked, wherever a
//! login ends.

use std::time::Duration;

use blockwire_shard::{LinkHandoff, Message, Shard};
use endpoint::{AcceptedSocket, ListenerId, ShardId};
use iscsi::initiator::{LoginConfig, LoginFailure};
use iscsi::login::{EstablishedConnection, LoginIdentity};
use iscsi::name::IscsiName;
use iscsi::negotiate::{Params, SessionType};
use iscsi::wire::{Cid, LoginStatus, Sn, Tsih};
use sim::{Config, PeerEnd, World};

use super::{read10, run_until, write10};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits, login_config};

/// Logins at once, for each shard. 14 sessions have what they begin with in a pool of 1 MiB, where half of it
/// may be promised and bursts of 4 KiB are offered: 9 of them for a window of 8.
const CROWD: u16 = 40;
const FULL: LoginFailure = LoginFailure::Refused(LoginStatus::OUT_OF_RESOURCES);

/// A world with little memory: 1 MiB for each shard.
fn scarce(seed: u64, shards: u16) -> World<Shard> {
    let config = Config { shards, pool_bytes: 1 << 20, ..Config::new(seed) };
    let mut terms = TargetLimits::default();
    terms.negotiation.max_connections = 4;
    // iSCSI alone, so that nothing is kept for the other protocol.
    let mut exports = (*target::build_exports(&terms)).clone();
    exports.nvme.portals.clear();
    super::world_with(config, std::sync::Arc::new(exports))
}

fn asked(isid: u16) -> LoginConfig {
    let mut asked = login_config(isid);
    // One initiator's sessions have a bound of their own.
    asked.initiator_name = format!("iqn.2026-11.test:host-{isid}");
    asked.limits.max_connections = 4;
    asked
}

fn is_decided(initiator: &TestInitiator) -> bool {
    initiator.is_logged_in() || initiator.failure().is_some()
}

fn run_all(world: &mut World<Shard>, all: &mut [TestInitiator], done: impl Fn(&TestInitiator) -> bool) {
    let mut all: Vec<&mut TestInitiator> = all.iter_mut().collect();
    run_until(world, &mut all, |all| all.iter().all(|initiator| done(initiator)));
}

/// Each session writes and reads over each of its connections.
fn use_all(world: &mut World<Shard>, all: &mut [TestInitiator]) {
    for (at, initiator) in (0..).zip(all.iter_mut()) {
        for conn in initiator.live_connections() {
            assert_eq!(world.peer_end(initiator.peer_of(conn)), PeerEnd::Open, "who was let in stays in");
            initiator.next_conn = conn;
            // What there is to report takes a command each.
            initiator.send_command(world, 0, &[0; 6], &[], 0);
            initiator.send_command(world, 0, &write10(at * 8, 8), &[at as u8; 4096], 0);
        }
    }
    run_all(world, all, TestInitiator::is_idle);
    for (at, initiator) in (0..).zip(all.iter_mut()) {
        initiator.ended.clear();
        initiator.send_command(world, 0, &read10(at * 8, 8), &[], 4096);
    }
    run_all(world, all, TestInitiator::is_idle);
    for (at, initiator) in all.iter_mut().enumerate() {
        let ended = initiator.ended.pop().unwrap();
        assert_eq!((ended.status, ended.data), (0, vec![at as u8; 4096]));
    }
}

fn end_all(world: &mut World<Shard>, all: &mut [TestInitiator]) {
    all.iter_mut().for_each(|initiator| initiator.send_logout(world));
    run_all(world, all, |initiator| initiator.logged_out);
    world.run_for(Duration::from_secs(20));
    for shard in (0..world.shard_count() as u16).map(ShardId) {
        assert_eq!(world.link_count(shard), 0, "every socket is closed");
        let usage = world.pool(shard).usage();
        assert_eq!((usage.lent, usage.reserved), (0, 0), "all memory came back");
    }
}

/// Logs a crowd in at once; some die in the middle of it. Gives those that got in, and how many were refused.
fn crowd(world: &mut World<Shard>, deaths: bool) -> (Vec<TestInitiator>, Vec<u16>) {
    let count = CROWD * world.shard_count() as u16;
    let mut all: Vec<(u16, TestInitiator)> =
        (0..count).map(|isid| (isid, TestInitiator::connect(world, asked(isid)))).collect();
    if deaths {
        for at in (0..usize::from(count)).step_by(5) {
            let steps = world.rng().below(40);
            for _ in 0..steps {
                all.iter_mut().for_each(|(_, initiator)| initiator.poll(world));
                let until = world.now() + Duration::from_micros(20);
                world.step(until);
            }
            all[at].1.break_connection(world, 0, at % 2 == 0);
        }
        all = all.into_iter().enumerate().filter(|(at, _)| at % 5 != 0).map(|(_, one)| one).collect();
    }
    let mut every: Vec<&mut TestInitiator> = all.iter_mut().map(|(_, initiator)| initiator).collect();
    run_until(world, &mut every, |all| all.iter().all(|initiator| is_decided(initiator)));
    let (into, out): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, initiator)| initiator.is_logged_in());
    for (isid, initiator) in &out {
        assert_eq!(initiator.failure(), Some(&FULL), "login {isid}");
    }
    (into.into_iter().map(|(_, one)| one).collect(), out.into_iter().map(|(isid, _)| isid).collect())
}

#[test]
fn logins_at_once_get_what_they_were_offered_or_are_refused() {
    for seed in 0..24 {
        let shards = 1 + (seed % 3) as u16;
        let mut world = scarce(seed, shards);
        let (mut all, refused) = crowd(&mut world, seed % 2 == 1);
        assert!(all.len() >= 14 * usize::from(shards), "seed {seed}: only {} are in", all.len());
        assert!(seed % 2 == 1 || !refused.is_empty(), "seed {seed}: memory is not short");
        use_all(&mut world, &mut all);
        // Who tries again is offered what costs nothing: every Data-Out is asked for.
        for isid in refused {
            all.push(TestInitiator::connect(&mut world, asked(isid)));
        }
        run_all(&mut world, &mut all, is_decided);
        assert!(all.iter().all(TestInitiator::is_logged_in), "seed {seed}");
        use_all(&mut world, &mut all);
        end_all(&mut world, &mut all);
    }
}

#[test]
fn connections_that_join_at_once_are_kept_or_refused() {
    let (mut kept, mut refused) = (0, 0u32);
    for seed in 0..12 {
        let mut world = scarce(seed, 1 + (seed % 2) as u16);
        let (mut all, _) = crowd(&mut world, false);
        for cid in 1..4 {
            for initiator in all.iter_mut().filter(|initiator| initiator.failure().is_none()) {
                initiator.add_connection(&mut world, cid);
            }
            run_all(&mut world, &mut all, is_decided);
        }
        for initiator in &all {
            assert!(initiator.failure().is_none_or(|failure| *failure == FULL), "seed {seed}: {initiator:?}");
            kept += initiator.live_connections().len() - 1;
            refused += u32::from(initiator.failure().is_some());
        }
        use_all(&mut world, &mut all);
        // Those that are in keep on, and what the others held is free.
        let most = all.iter().max_by_key(|initiator| initiator.live_connections().len()).unwrap();
        assert_eq!(most.live_connections().len(), 4, "seed {seed}");
        end_all(&mut world, &mut all);
    }
    assert!(kept > 100 && refused > 10, "{kept} joined, {refused} were refused");
}

/// A link that was to join a session and is lost between two shards: the session does not wait for it.
#[test]
fn a_place_is_given_back_when_its_link_is_lost_on_its_way() {
    let mut world = super::world(Config { shards: 1, ..Config::new(3) });
    let here = ShardId(0);
    let mut initiator = super::log_in(&mut world, asked(1));
    // The first that is given.
    let (tsih, cid) = (Tsih::new(1), Cid::new(1));
    // Nobody waits for the answer.
    world.send_message(here, Message::JoinSession(tsih, cid, here, u64::MAX));
    world.run_for(Duration::from_millis(1));
    let identity = LoginIdentity {
        initiator_name: IscsiName::parse("iqn.2026-11.test:host").unwrap(),
        target_name: None,
        session_type: SessionType::Normal,
        isid: asked(1).isid,
        tsih,
        cid,
    };
    let established = EstablishedConnection {
        identity,
        tsih,
        user: None,
        algorithm: None,
        initiator_alias: None,
        portal_group_tag: 1,
        params: Params::defaults(SessionType::Normal),
        exp_cmd_sn: Sn::new(1),
        max_cmd_sn: Sn::new(1),
        stat_sn: Sn::new(1),
    };
    let end = "127.0.0.1:3260".parse().unwrap();
    let accepted = AcceptedSocket { listener: ListenerId(0), local: end, peer: end, cpu: None };
    let handoff = LinkHandoff { established, accepted, new: false, rest: Vec::new() };
    world.send_message(here, Message::Link(Box::new(handoff)));
    world.run_for(Duration::from_millis(1));
    assert!(world.pool(here).usage().reserved > 0);
    initiator.break_connection(&mut world, 0, true);
    world.run_for(Duration::from_millis(100));
    assert_eq!(
        world.pool(here).usage().reserved,
        0,
        "its last connection was the last that it had to wait for"
    );
}
