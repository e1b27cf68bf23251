//! Which shard serves a connection: the one on whose processor the network card delivers its data, as long as
//! the load is balanced.

use std::net::IpAddr;
use std::time::Duration;

use blockwire_shard::{
    Condition, ControlReport, ControlRequest, Exports, Message, PlacementPolicy, PlacementReason,
    PlacementRule, Shard, ShardListing,
};
use endpoint::ShardId;
use sim::{Config, World};

use super::{log_in, read10, run_until};
use testkit::target::{self, TargetLimits, login_config};

const SHARDS: u16 = 4;
const AFAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

fn world_of(rules: Vec<PlacementRule>) -> World<Shard> {
    let config = Config { shards: SHARDS, ..Config::new(5) };
    let exports = Exports { placement: rules, ..(*target::build_exports(&TargetLimits::default())).clone() };
    super::world_with(config, exports.into())
}

fn rule(bind: PlacementPolicy, shards: &[u16]) -> PlacementRule {
    PlacementRule {
        listeners: None,
        sources: Vec::new(),
        peers: None,
        destinations: None,
        when: Condition::Always,
        shards: shards.iter().map(|shard| ShardId(*shard)).collect(),
        bind,
    }
}

/// Logs in so many sessions; gives where each is, and why.
fn placed(world: &mut World<Shard>, sessions: std::ops::Range<u16>) -> Vec<(usize, PlacementReason)> {
    let mut all: Vec<_> = sessions.map(|isid| log_in(world, login_config(isid))).collect();
    for initiator in &mut all {
        initiator.send_command(world, 0, &read10(0, 1), &[], 512);
    }
    let mut borrowed: Vec<_> = all.iter_mut().collect();
    run_until(world, &mut borrowed, |all| all.iter().all(|initiator| initiator.is_idle()));
    let mut found: Vec<(u16, usize, PlacementReason)> = Vec::new();
    for (shard, listing) in listings(world).into_iter().enumerate() {
        found.extend(listing.sessions.iter().map(|session| (session.tsih, shard, session.placed.choice)));
    }
    found.sort_unstable_by_key(|(tsih, ..)| *tsih);
    found.split_off(found.len() - all.len()).into_iter().map(|(_, shard, choice)| (shard, choice)).collect()
}

fn listings(world: &mut World<Shard>) -> Vec<ShardListing> {
    world.take_control_messages();
    let mut listings = Vec::new();
    for shard in 0..SHARDS {
        world.send_message(ShardId(shard), Message::Control(9, ControlRequest::List));
        world.run_for(Duration::from_millis(1));
        listings.extend(world.take_control_messages().into_iter().filter_map(|(_, message)| match message {
            Message::Report(_, ControlReport::Listing(listing)) => Some(*listing),
            _ => None,
        }));
    }
    listings
}

#[test]
fn sessions_follow_their_network_queue_while_balance_is_kept() {
    let mut world = world_of(Vec::new());
    world.set_peer_origin(AFAR, 2);
    assert_eq!(placed(&mut world, 0..1), [(2, PlacementReason::Queue)]);
    let more = placed(&mut world, 1..12);
    let on = |shard| more.iter().filter(|(at, _)| *at == shard).count();
    // With the first one: those of the queue's shard are at most half as many again as the others'.
    assert_eq!((on(2) + 1, on(0) + on(1) + on(3)), (4, 8), "{more:?}");
    assert!(more.iter().all(|(at, why)| (*at == 2) == (*why == PlacementReason::Queue)), "{more:?}");
    assert!(more.iter().all(|(at, why)| (*at != 2) == (*why == PlacementReason::NotQueue)), "{more:?}");
    // A queue that interrupts none of the daemon's cores says nothing.
    world.set_peer_origin(AFAR, 9);
    assert_eq!(placed(&mut world, 12..13)[0].1, PlacementReason::LeastLoaded);
}

#[test]
fn over_loopback_the_queue_is_no_reason_unless_a_rule_says_so() {
    let here: IpAddr = "127.0.0.1".parse().unwrap();
    let mut world = world_of(Vec::new());
    world.set_peer_origin(here, 2);
    let mut at = placed(&mut world, 0..4);
    at.sort_unstable_by_key(|(shard, _)| *shard);
    assert_eq!(at, [0, 1, 2, 3].map(|shard| (shard, PlacementReason::LeastLoaded)));
    let mut world = world_of(vec![rule(PlacementPolicy::Queue, &[1, 2])]);
    world.set_peer_origin(here, 2);
    assert_eq!(placed(&mut world, 0..5), [(2, PlacementReason::Queue); 5], "whatever it carries");
    world.set_peer_origin(AFAR, 3);
    assert_eq!(placed(&mut world, 5..7), [(1, PlacementReason::LeastLoaded); 2], "none of the rule's");
}
