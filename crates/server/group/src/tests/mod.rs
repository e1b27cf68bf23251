//! The simulation of a gateway group: two to four gateways on a store, disturbed in every way that a seed chooses.

mod check;
mod cluster;
mod crowded;
mod objects;
mod planted;
mod scenarios;
mod script;
mod target;
mod world;

use script::Plan;

/// Two to four gateways: nothing stale, nothing twice, nothing lost, and all goes on.
#[test]
fn histories_of_a_group_hold() {
    let run = |seed| Plan::new(seed).play();
    let (tally, runs) = testkit::seeds::run_all_seeds(40, "blockwire-group --lib histories", run);
    assert_eq!(tally.whole, runs);
    assert_eq!(tally.undecided, 0, "the order of some block's operations was not decided");
    // A run in which nothing happens proves nothing.
    if runs >= 40 {
        assert!(tally.takeovers > 10 && tally.handovers > 10 && tally.fenced > 10, "{tally:?}");
        assert!(tally.resets > 10, "{tally:?}");
        assert!(tally.forwarded > 100 && tally.in_doubt > 10 && tally.fences > 10, "{tally:?}");
        assert!(
            tally.notices > 100
                && tally.second > 100
                && tally.unknown > 10
                && tally.refused > 10
                && tally.applied > 10,
            "{tally:?}"
        );
    }
}

/// Histories that have failed: a group stayed closed, since the reply for a record was dropped.
#[test]
fn histories_that_failed_hold() {
    for seed in [7441, 7474] {
        let tally = Plan { resets: false, ..Plan::new(seed) }.play();
        assert_eq!((tally.whole, tally.undecided), (1, 0), "seed {seed}: {tally:?}");
    }
}
