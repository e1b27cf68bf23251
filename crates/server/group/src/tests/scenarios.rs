//! Single events, with the time that they take.

use super::script::{MS, Plan, Step};
use super::world::World;
use crate::ids::{GroupId, Term};
use crate::object::INSTANCES_PER_GATEWAY;

/// Three gateways whose clocks are right, on a store that answers.
fn plan(seed: u64, groups: usize, script: Vec<(u64, Step)>) -> Plan {
    let clocks = vec![1000; 3];
    let resets = false;
    Plan { seed, groups, hosts: 3, clocks, lazy: 60_000, unknown: 0, late: 0, script, resets, bug: None }
}

/// Plays until the groups are balanced, and says who serves group 1.
fn settled(groups: usize, seed: u64) -> (World, usize) {
    let mut world = World::new(plan(seed, groups, Vec::new()));
    world.run_until(12_000 * MS);
    let owner = world.server_of(GroupId(1)).expect("the group is served");
    (world, owner)
}

/// How long group 1 is served by nobody after a step, in milliseconds.
fn gap(seed: u64, step: impl Fn(usize) -> Step) -> u64 {
    let (mut world, owner) = settled(3, seed);
    let begin = world.now();
    world.take(step(owner));
    while !world.servers_of(GroupId(1)).any(|server| server != owner) {
        world.run_until(world.now() + MS);
        assert!(world.now() < begin + 60_000 * MS, "nobody serves the group");
    }
    (world.now() - begin) / MS
}

#[test]
fn a_killed_owner_is_replaced_at_once_and_a_silent_one_after_two_seconds() {
    let (mut killed, mut silent, mut stopped) = (0, 0, 0);
    for seed in 0..5 {
        killed = killed.max(gap(seed, |gateway| Step::Kill { gateway, silent: false, ms: 30_000 }));
        silent = silent.max(gap(seed, |gateway| Step::Kill { gateway, silent: true, ms: 30_000 }));
        stopped = stopped.max(gap(seed, |gateway| Step::Pause { gateway, ms: 30_000 }));
    }
    println!("killed: {killed} ms, its machine off: {silent} ms, stopped: {stopped} ms");
    assert!(killed <= 300 && silent <= 2500 && stopped <= 2500, "{killed} {silent} {stopped}");
    assert!(silent >= 1500 && stopped >= 1500, "{silent} {stopped}");
}

/// A gateway that reaches the others and not the store cannot serve: the others take over.
#[test]
fn an_owner_cut_off_from_the_store_is_replaced() {
    let gap = gap(1, |gateway| Step::StoreCut { gateway, ms: 30_000 });
    assert!((4000..8000).contains(&gap), "{gap} ms");
}

#[test]
fn a_drain_moves_all_groups_in_less_than_a_second() {
    let mut worst = 0;
    for seed in 0..5 {
        let (mut world, owner) = settled(3, seed);
        world.take(Step::Drain { gateway: owner, ms: 5000 });
        world.run_until(world.now() + 2000 * MS);
        let took = world.drained.first().copied().expect("the drain has ended");
        worst = worst.max(took / MS);
        assert_ne!(world.server_of(GroupId(1)), Some(owner));
    }
    println!("drained after {worst} ms");
    assert!(worst <= 1000, "{worst} ms");
}

#[test]
fn groups_are_balanced_over_the_gateways() {
    let (world, _) = settled(3, 7);
    let mut owners: Vec<usize> = (1..=3).filter_map(|group| world.server_of(GroupId(group))).collect();
    owners.sort_unstable();
    assert_eq!(owners, [0, 1, 2]);
}

/// The damaged object is named; what does not depend on it goes on.
#[test]
fn a_damaged_owner_object_closes_its_group_and_no_other() {
    let (mut world, _) = settled(3, 3);
    assert_eq!(world.servers_of(GroupId(2)).count(), 1);
    world.damage(crate::store::ObjectName::Owner(GroupId(2)));
    world.damage(crate::store::ObjectName::Record(super::world::uuid(1)));
    let owner = world.server_of(GroupId(1)).expect("the group is served");
    world.take(Step::Kill { gateway: owner, silent: false, ms: 30_000 });
    world.run_until(world.now() + 5000 * MS);
    assert!(world.damaged.contains(&crate::store::ObjectName::Owner(GroupId(2))), "{:?}", world.damaged);
    assert!(world.damaged.contains(&crate::store::ObjectName::Record(super::world::uuid(1))));
    assert_eq!(world.servers_of(GroupId(2)).count(), 0, "a group whose owner object is damaged is served");
    assert!(world.server_of(GroupId(1)).is_some() && world.server_of(GroupId(3)).is_some());
}

/// A store operation that waited in a target while its group went to another term, or to another gateway, is dropped.
#[test]
fn a_record_of_another_term_is_not_written() {
    let (mut world, owner) = settled(3, 4);
    let (volume, term) = (super::world::uuid(1), world.term_of(GroupId(1)));
    world.store_late(owner, volume, Term(term.0 - 1));
    world.store_late(owner, volume, Term(term.0 + 1));
    world.store_late((owner + 1) % 3, volume, term);
    world.run_until(world.now() + 500 * MS);
    assert_eq!(world.server_of(GroupId(1)), Some(owner));
    assert_ne!(world.record(volume).as_deref(), Some(&b"late"[..]));
}

/// A gateway that starts again and again takes no room from the others, and joins again once it stays.
#[test]
fn a_gateway_that_crashes_in_a_loop_leaves_room_in_the_members_object() {
    let (mut world, _) = settled(3, 5);
    for _ in 0..40 {
        world.take(Step::Kill { gateway: 0, silent: false, ms: 50 });
        world.run_until(world.now() + 300 * MS);
    }
    assert_eq!(world.instances_of(0), INSTANCES_PER_GATEWAY);
    assert!(!world.all_joined());
    world.take(Step::Kill { gateway: 1, silent: false, ms: 50 });
    world.run_until(world.now() + 30_000 * MS);
    assert!(world.all_joined());
    assert_eq!((0..3).map(|gateway| world.instances_of(gateway)).collect::<Vec<_>>(), [1, 1, 1]);
}

/// An image that another client than a gateway has locked is served once that lets go of it; others are not held up.
#[test]
fn a_volume_that_a_stranger_has_locked_is_served_when_it_is_free() {
    let (mut world, owner) = settled(3, 6);
    world.take(Step::Kill { gateway: owner, silent: false, ms: 60_000 });
    world.lock_by_stranger(super::world::uuid(1), true);
    world.run_until(world.now() + 10_000 * MS);
    assert_eq!(world.server_of(GroupId(1)), None);
    assert!(world.server_of(GroupId(2)).is_some() && world.server_of(GroupId(3)).is_some());
    world.lock_by_stranger(super::world::uuid(1), false);
    world.run_until(world.now() + 1000 * MS);
    assert!(world.server_of(GroupId(1)).is_some(), "its lock is asked for no more");
}
