//! A connection that joins a session or controller must be admitted, by its own address, under the same rule
//! of the configuration as that one, or it is refused. Tested over both protocols.

use std::net::IpAddr;
use std::sync::Arc;

use blockwire_shard::{
    ControlRequest, Exports, HostAuth, HostRule, InitiatorRule, LunMask, Message, NamespaceMask, Network,
    Shard,
};
use endpoint::ShardId;
use iscsi::chap::{self, Algorithm, ChapAccount};
use iscsi::login::{AuthPolicy, ChapAccounts};
use nvme::auth::DhchapSecret;
use nvme::fabrics::ConnectRefusal;
use nvme::{Completion, Status};
use sim::World;

use crate::host::{Host, Wanted, is_dead, run, transfer};
use crate::{pattern, world_with};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits, login_config};

const NEAR: &str = "192.0.2.1";
const NEAR_TOO: &str = "192.0.2.77";
const FAR: &str = "198.51.100.1";

/// What a rule asks of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing.
    Open,
    /// A secret.
    Secret,
    /// To read only.
    ReadOnly,
    /// Not to come.
    Closed,
}

fn network(address: &str) -> Network {
    Network { address: address.parse().unwrap(), prefix: 24 }
}

/// Rules of both protocols: for the addresses near, and for those far.
fn exports(near: Way, far: Way) -> Arc<Exports> {
    let mut terms = TargetLimits::default();
    terms.negotiation.max_connections = 4;
    let mut exports = Exports::clone(&target::build_exports(&terms));
    let secret = Arc::new(DhchapSecret::generate(None, &mut |bytes| bytes.fill(1)));
    let accounts = vec![ChapAccount { name: "alice".into(), secret: chap::Secret::new(vec![b'a'; 16]) }];
    let algorithms = Algorithm::ALL.to_vec();
    let chap =
        AuthPolicy::Required(ChapAccounts { accounts, mutual: None, demands_mutual: false, algorithms });
    let (mut rules, mut host_rules) = (Vec::new(), Vec::new());
    for (way, address) in [(near, NEAR), (far, FAR)] {
        let read_only = way == Way::ReadOnly;
        if way == Way::Closed {
            continue;
        }
        rules.push(InitiatorRule {
            initiators: vec![],
            sources: vec![network(address)],
            locals: vec![],
            auth: if way == Way::Secret { chap.clone() } else { AuthPolicy::None },
            luns: LunMask::All { read_only },
            limiter: None,
        });
        host_rules.push(HostRule {
            hosts: vec![],
            id: None,
            sources: vec![network(address)],
            auth: if way == Way::Secret { HostAuth::Required(secret.clone()) } else { HostAuth::None },
            namespaces: NamespaceMask::All { read_only },
            limiter: None,
        });
    }
    exports.targets[0].rules = rules;
    exports.nvme.subsystems[0].rules = host_rules;
    Arc::new(exports)
}

fn from(world: &mut World<Shard>, address: &str) {
    world.set_peer_origin(address.parse::<IpAddr>().unwrap(), 0);
}

/// Whether an I/O queue from `second` may join a controller whose admin queue came from `first`.
fn joins_controller(world: &mut World<Shard>, first: &str, second: &str) -> bool {
    from(world, first);
    let mut host = Host::admin(world, Wanted::default()).expect("the admin queue is let in");
    host.enable(world);
    from(world, second);
    let ended = host.join(world, 1);
    if ended.status.is_success() {
        assert_eq!(host.write(world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
        return true;
    }
    assert_eq!(ended.status, Completion::from(ConnectRefusal::Host).status);
    // The controller is none the worse.
    from(world, first);
    assert!(host.join(world, 1).status.is_success());
    false
}

/// Whether a connection from `second` may join a session whose first came from `first`.
fn joins_session(world: &mut World<Shard>, first: &str, second: &str) -> bool {
    let mut asked = login_config(1);
    asked.limits.max_connections = 4;
    from(world, first);
    let mut initiator = TestInitiator::connect(world, asked);
    settle(world, &mut initiator, 0);
    assert!(initiator.is_logged_in(), "{:?}", initiator.failure());
    from(world, second);
    initiator.add_connection(world, 1);
    settle(world, &mut initiator, 1);
    initiator.live_connections().contains(&1)
}

fn settle(world: &mut World<Shard>, initiator: &mut TestInitiator, conn: usize) {
    for _ in 0..100_000 {
        initiator.poll(world);
        if initiator.live_connections().contains(&conn) || initiator.failure().is_some() {
            return;
        }
        let until = world.now() + std::time::Duration::from_millis(1);
        world.step(until);
    }
    panic!("the login does not come to an end");
}

#[test]
fn attack_17_who_joins_comes_under_the_rule_of_what_it_joins_over_both_protocols() {
    type Joins = fn(&mut World<Shard>, &str, &str) -> bool;
    let protocols: [(&str, Joins); 2] = [("controller", joins_controller), ("session", joins_session)];
    for (what, joins) in protocols {
        for shards in [1, 3] {
            let world = |near, far| world_with(7, shards, &exports(near, far));
            assert!(joins(&mut world(Way::Open, Way::Closed), NEAR, NEAR_TOO), "{what}");
            // Without the proof that its own address asks for, past the bounds of its own rule, from where
            // nobody may come; and no rule lends its leave to another.
            for far in [Way::Secret, Way::ReadOnly, Way::Closed, Way::Open] {
                assert!(!joins(&mut world(Way::Open, far), NEAR, FAR), "{what} {far:?} {shards}");
            }
            assert!(!joins(&mut world(Way::ReadOnly, Way::Open), NEAR, FAR), "{what} {shards}");
        }
    }
}

/// What a controller's admin queue may write, a queue of another rule does not write after a reload.
#[test]
fn a_reload_that_parts_the_addresses_of_a_controller_ends_its_stray_queues() {
    for shards in [1, 3] {
        let mut world = world_with(3, shards, &exports(Way::Open, Way::Closed));
        from(&mut world, NEAR);
        let mut host = Host::admin(&mut world, Wanted::default()).unwrap();
        host.enable(&mut world);
        from(&mut world, NEAR_TOO);
        assert!(host.join(&mut world, 1).status.is_success());
        // From now on the queue's own address may only read.
        let mut changed = Exports::clone(&exports(Way::Open, Way::Closed));
        let rules = &mut changed.nvme.subsystems[0].rules;
        let own = Network { address: NEAR_TOO.parse().unwrap(), prefix: 32 };
        let read_only = NamespaceMask::All { read_only: true };
        rules.insert(0, HostRule { sources: vec![own], namespaces: read_only, ..rules[0].clone() });
        let changed = Arc::new(changed);
        for shard in 0..shards {
            world.send_message(ShardId(shard), Message::Control(9, ControlRequest::Exports(changed.clone())));
        }
        world.run_for(std::time::Duration::from_millis(10));
        let cid = host.start(&mut world, 1, transfer(1, 0, 1), &pattern(0, 1, 9), 0);
        run(&mut world, &mut [&mut host.pipes[1]], |world, pipes| {
            is_dead(world, pipes[0]) || pipes[0].ended.iter().any(|ended| ended.cid == cid)
        });
        let ended = host.pipes[1].take_result(cid);
        assert!(ended.is_none_or(|ended| !ended.status.is_success()), "{shards} shards: it is written");
    }
}
