//! Initiator and target in one simulated world: the shards that ship, on both ends of every connection.

mod faulty_path;
mod history;
mod node;
mod plan;

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use faulty_path::Defect;
use history::{History, Tally};
use plan::Plan;

/// Many histories. `SIM_SEEDS=n` plays n of them, from `SIM_FROM` on; `SIM_SEED=n` plays that one.
#[test]
fn histories_over_many_paths_agree_with_one_volume() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let from = number("SIM_FROM").unwrap_or(0);
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => from..from + number("SIM_SEEDS").unwrap_or(200),
    };
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(Vec::new());
    let total = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    match catch_unwind(|| History::new(Plan::of(seed)).play()) {
                        Ok(tally) => total.lock().unwrap().add(tally),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    for seed in &failed {
        println!(
            "replay with: SIM_SEED={seed} cargo test -p blockwire-multipath --test simulation histories"
        );
    }
    let total = total.into_inner().unwrap();
    println!("{total:?}");
    assert_eq!(failed, [], "these seeds failed");
    if seeds.end - seeds.start >= 100 {
        assert!(total.is_eventful(), "nothing much happens: {total:?}");
    }
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
    let caught = (0..1000).find(|&seed| {
        let plan = Plan { defect: Some(Defect::FencedEarly), ..Plan::slow(seed) };
        catch_unwind(|| History::new(plan).play()).is_err()
    });
    println!("caught by seed {caught:?}");
    assert!(caught.is_some(), "it goes unnoticed");
}

/// Paths with a planted bug: each kind is noticed within a few histories.
#[test]
fn planted_bugs_are_caught() {
    for defect in faulty_path::DEFECTS {
        let caught = (0..300).find(|&seed| {
            let plan = Plan { defect: Some(defect), ..Plan::of(seed) };
            catch_unwind(|| History::new(plan).play()).is_err()
        });
        println!("{defect:?}: caught by seed {caught:?}");
        assert!(caught.is_some(), "{defect:?} goes unnoticed");
    }
}
