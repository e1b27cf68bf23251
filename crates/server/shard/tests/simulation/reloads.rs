//! Exports that change while initiators log in and sessions live: the current exports decide.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{
    ControlReport, ControlRequest, Exports, InitiatorRule, LunMask, Message, Network, Shard,
};
use endpoint::ShardId;
use iscsi::chap::{Algorithm, ChapAccount, Secret};
use iscsi::initiator::LoginConfig;
use iscsi::login::{AuthPolicy, ChapAccounts};
use sim::{Config, PeerEnd, World};

use super::{log_in, run_until, world_with, write10};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits, login_config};

const SHARDS: u16 = 3;

fn exports(change: impl FnOnce(&mut Exports)) -> Arc<Exports> {
    let mut terms = TargetLimits::default();
    terms.negotiation.max_connections = 4;
    let mut exports = (*target::build_exports(&terms)).clone();
    change(&mut exports);
    Arc::new(exports)
}

/// Messages between shards are slow, so that a change meets logins on their way.
fn world(seed: u64) -> World<Shard> {
    let message_delay_max = Duration::from_micros(300);
    world_with(Config { shards: SHARDS, message_delay_max, ..Config::new(seed) }, exports(|_| {}))
}

fn asked() -> LoginConfig {
    let mut asked = login_config(1);
    asked.limits.max_connections = 4;
    asked
}

/// Begins to change the exports; the number of the change is 9.
fn change(world: &mut World<Shard>, exports: &Arc<Exports>) {
    for shard in 0..SHARDS {
        world.send_message(ShardId(shard), Message::Control(9, ControlRequest::Exports(exports.clone())));
    }
}

/// Changes the exports, and waits until they hold on every shard.
fn change_all(world: &mut World<Shard>, exports: &Arc<Exports>) {
    change(world, exports);
    world.run_for(Duration::from_millis(10));
    let done = |(_, message): &(ShardId, Message)| matches!(message, Message::Report(9, ControlReport::Done));
    assert_eq!(world.take_control_messages().iter().filter(|heard| done(heard)).count(), usize::from(SHARDS));
}

fn steps(world: &mut World<Shard>, initiator: &mut TestInitiator, most: u64) {
    for _ in 0..world.rng().below(most) {
        initiator.poll(world);
        let until = world.now() + Duration::from_micros(20);
        world.step(until);
    }
}

fn chap() -> AuthPolicy {
    let accounts = vec![ChapAccount { name: "alice".into(), secret: Secret::new(vec![b'a'; 16]) }];
    let algorithms = vec![Algorithm::SHA3_256];
    AuthPolicy::Required(ChapAccounts { accounts, mutual: None, demands_mutual: false, algorithms })
}

/// Who is asked nothing, and proves nothing, does not stay when the exports change.
#[track_caller]
fn does_not_get_in(seeds: std::ops::Range<u64>, guarded: &Arc<Exports>, login: &LoginConfig) {
    for seed in seeds {
        let mut world = world(seed);
        let mut initiator = TestInitiator::connect(&mut world, login.clone());
        steps(&mut world, &mut initiator, 200);
        change(&mut world, guarded);
        for _ in 0..60 {
            initiator.poll(&mut world);
            world.run_for(Duration::from_millis(100));
        }
        assert_ne!(
            initiator.peer_end(&world),
            PeerEnd::Open,
            "seed {seed}: it is in, and has proved nothing"
        );
    }
}

/// Who is asked nothing and is on its way when CHAP is turned on does not get in behind it.
#[test]
fn a_login_judged_before_chap_was_turned_on_does_not_get_in_after_it() {
    let guarded = exports(|exports| exports.targets[0].rules[0].auth = chap());
    does_not_get_in(0..100, &guarded, &asked());
}

/// The same for discovery sessions.
#[test]
fn a_discovery_session_that_proved_nothing_ends_when_chap_is_turned_on() {
    let guarded = exports(|exports| exports.discovery_auth = chap());
    does_not_get_in(0..40, &guarded, &LoginConfig { target_name: None, ..asked() });
}

/// A connection is reinstated while the exports change: the session has none for a moment, and what it may do is
/// what it may do now all the same.
#[test]
fn a_session_between_two_links_does_not_keep_its_old_luns() {
    let protected = exports(|exports| {
        exports.targets[0].rules[0].luns = LunMask::All { read_only: true };
    });
    let mut lived = 0;
    for seed in 0..60 {
        let mut world = world(seed);
        let mut initiator = log_in(&mut world, asked());
        initiator.add_connection(&mut world, 0);
        steps(&mut world, &mut initiator, 120);
        change(&mut world, &protected);
        for _ in 0..200 {
            initiator.poll(&mut world);
            world.run_for(Duration::from_millis(1));
        }
        let open = |conn: &usize| world.peer_end(initiator.peer_of(*conn)) == PeerEnd::Open;
        let Some(conn) = initiator.live_connections().into_iter().find(open) else { continue };
        lived += 1;
        initiator.next_conn = conn;
        // What there is to report takes a command each.
        for _ in 0..3 {
            initiator.send_command(&mut world, 0, &[0; 6], &[], 0);
            run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
        }
        initiator.ended.clear();
        initiator.send_command(&mut world, 0, &write10(0, 1), &[7; 512], 0);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
        let ended = initiator.ended.pop().unwrap();
        assert_eq!(ended.status, 2, "seed {seed}: it may only read");
        assert_eq!((ended.sense[2] & 0xf, ended.sense[12]), (7, 0x27), "seed {seed}: {ended:?}");
    }
    assert!(lived > 10, "{lived} sessions outlived it");
}

fn from(host: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, host])
}

fn rule(host: u8, like: &InitiatorRule) -> InitiatorRule {
    InitiatorRule { sources: vec![Network { address: from(host), prefix: 32 }], ..like.clone() }
}

/// Each connection is judged by its own source: a session whose connections may do different things from now on is
/// neither given what only one of them may do, nor left as it was.
#[test]
fn a_session_ends_whose_connections_may_do_different_things_from_now_on() {
    let of_both = |second: LunMask| {
        exports(|exports| {
            let rules = &mut exports.targets[0].rules;
            let other = InitiatorRule { luns: second, ..rule(2, &rules[0]) };
            *rules = vec![rule(1, &rules[0]), other];
        })
    };
    let all = |read_only| LunMask::All { read_only };
    for (second, lives) in [
        (all(false), true),
        (all(true), false),
        (LunMask::Some(vec![(0, false)]), true),
        (LunMask::Some(vec![]), false),
    ] {
        let mut world = world(3);
        world.set_peer_origin(from(1), 0);
        let mut initiator = log_in(&mut world, asked());
        world.set_peer_origin(from(2), 0);
        initiator.add_connection(&mut world, 1);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_logged_in());
        assert_eq!(initiator.live_connections().len(), 2);
        world.run_for(Duration::from_millis(10));
        change_all(&mut world, &of_both(second.clone()));
        for _ in 0..60 {
            initiator.poll(&mut world);
            world.run_for(Duration::from_millis(100));
        }
        let open = [0, 1].map(|conn| world.peer_end(initiator.peer_of(conn)) == PeerEnd::Open);
        assert_eq!(open, [lives; 2], "{second:?}");
    }
}

/// A rule that is put in front of a host's own moves it, and no more: the host is let in to its own session at once.
#[test]
fn a_rule_put_before_a_hosts_own_does_not_keep_the_host_out() {
    let before = exports(|exports| {
        let rules = &mut exports.targets[0].rules;
        rules.insert(
            0,
            InitiatorRule { initiators: vec!["iqn.2026-11.test:other".into()], ..rules[0].clone() },
        );
    });
    for seed in 0..10 {
        let mut world = world(seed);
        let old = log_in(&mut world, asked());
        change_all(&mut world, &before);
        assert_eq!(old.peer_end(&world), PeerEnd::Open);
        let mut more = log_in(&mut world, asked());
        assert_ne!(old.peer_end(&world), PeerEnd::Open, "seed {seed}: it is reinstated");
        change_all(&mut world, &exports(|_| {}));
        more.add_connection(&mut world, 1);
        run_until(&mut world, &mut [&mut more], |all| all[0].is_logged_in() || all[0].failure().is_some());
        assert_eq!(more.failure(), None, "seed {seed}: and joined");
    }
}
