//! Initiator and target in one simulated world: the shards that ship, on both ends of every connection.

mod faulty_path;
mod history;
mod node;
mod plan;

use faulty_path::Defect;
use history::{History, Tally};
use plan::Plan;
use testkit::seeds::{self, Tally as _};

/// Many histories.
#[test]
fn histories_over_many_paths_agree_with_one_volume() {
    let test = "blockwire-multipath --test simulation histories";
    let (total, runs) = seeds::run_all_seeds(200, test, |seed| History::new(Plan::of(seed)).play());
    assert!(runs < 100 || total.is_eventful(), "nothing much happens: {total:?}");
}

/// Histories that found something: a path over NVMe/TCP that was being closed while the target did not serve
/// by it had a timer that did nothing (64); so had one that waited for the end of an association while
/// the controller of another was being stopped (339). A compare-and-write that was cancelled between its
/// halves ended as if the controller were at fault (896).
#[test]
fn histories_that_found_something_pass() {
    for seed in [64, 339, 896] {
        History::new(Plan::of(seed)).play();
    }
}

/// The same over a disk that is slow, so that what a lost path had in work lands late if it may.
#[test]
fn histories_over_a_slow_disk_agree_with_one_volume() {
    let mut total = Tally::default();
    for seed in 0..30 {
        total.add(History::new(Plan::slow(seed)).play());
    }
    println!("{total:?}");
    assert!(total.fences > 50 && total.unknown > 100, "hardly anything is fenced: {total:?}");
}

/// A path that says too early that what it lost is over. One history in a hundred notices it: with 300 of them
/// one change in twenty of what the seeds play would leave it unnoticed.
#[test]
fn a_fence_that_is_over_too_early_is_noticed() {
    let plan = |seed| Plan { defect: Some(Defect::FencedEarly), ..Plan::slow(seed) };
    seeds::assert_some_seed_fails(Defect::FencedEarly, 1000, |seed| History::new(plan(seed)).play());
}

/// Paths with a planted bug: each kind is noticed within a few histories.
#[test]
fn planted_bugs_are_caught() {
    for defect in faulty_path::DEFECTS {
        let plan = |seed| Plan { defect: Some(defect), ..Plan::of(seed) };
        seeds::assert_some_seed_fails(defect, 300, |seed| History::new(plan(seed)).play());
    }
}
