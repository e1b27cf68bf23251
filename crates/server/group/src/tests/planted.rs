//! Bugs planted in the state machine: each is noticed within a few histories, by the harm that it does.

use sim::SimRng;

use super::script::{Plan, Step};
use crate::failpoint::Failpoint;

/// Histories in which a bug must be noticed.
const SEEDS: u64 = 60;

/// Steps from the start to the end of the faults, so far apart.
fn steps(
    rng: &mut SimRng,
    apart: (u64, u64),
    mut step: impl FnMut(&mut SimRng, u64) -> Vec<(u64, Step)>,
) -> Vec<(u64, Step)> {
    let (mut script, mut at) = (Vec::new(), 3000);
    while at < 22_000 {
        script.extend(step(rng, at));
        at += rng.between(apart.0, apart.1);
    }
    script
}

/// What makes it likely that a bug shows.
fn plan(bug: Failpoint, seed: u64) -> Plan {
    let mut rng = SimRng::new(seed);
    let plan = Plan { bug: Some(bug), hosts: 4, clocks: vec![1000; 3], resets: false, ..Plan::new(seed) };
    let any = |rng: &mut SimRng| rng.below(3) as usize;
    let pauses = |rng: &mut SimRng, ms| {
        steps(rng, (ms, ms + 3000), |rng, at| vec![(at, Step::Pause { gateway: any(rng), ms })])
    };
    let drains = |rng: &mut SimRng| {
        steps(rng, (500, 2500), |rng, at| vec![(at, Step::Drain { gateway: any(rng), ms: 1500 })])
    };
    match bug {
        // The entry is gone when the old owner wakes, and servers know that.
        Failpoint::EntryExpires => Plan { script: pauses(&mut rng, 9500), lazy: 5, ..plan },
        Failpoint::NoBlocklist => Plan { script: pauses(&mut rng, 4000), ..plan },
        Failpoint::NoMapWait => Plan { script: pauses(&mut rng, 4000), lazy: 60_000, ..plan },
        // A command of the lost gateway is with the owner, or was on its way to the store.
        Failpoint::LostNotSettled => {
            let script = steps(&mut rng, (500, 2500), |rng, at| {
                vec![(at, Step::Kill { gateway: any(rng), silent: false, ms: 300 })]
            });
            Plan { script, late: 60, resets: true, ..plan }
        }
        Failpoint::EntryRemovedEarly => {
            let script = steps(&mut rng, (500, 2500), |rng, at| {
                vec![(at, Step::Kill { gateway: any(rng), silent: false, ms: 300 })]
            });
            Plan { script, late: 60, lazy: 5, ..plan }
        }
        // A write of the old owner waits at its machine, which is stopped; servers hear of maps from nobody else.
        Failpoint::MapNotSpread => Plan { script: pauses(&mut rng, 4000), lazy: 60_000, late: 60, ..plan },
        // An owner has the group again after another one.
        Failpoint::RecordsNotRead => Plan { script: drains(&mut rng), ..plan },
        Failpoint::OldOwnerKept => Plan { script: drains(&mut rng), ..plan },
        Failpoint::UnknownIsFailed => Plan { script: drains(&mut rng), unknown: 100, ..plan },
        Failpoint::ForwardRepeated | Failpoint::ForwardNotSettled => {
            let script = steps(&mut rng, (300, 1500), |rng, at| {
                let (one, ahead) = (any(rng), rng.between(1, 2) as usize);
                vec![(at, Step::Reset { one, other: (one + ahead) % 3 })]
            });
            Plan { script, ..plan }
        }
        Failpoint::UnknownIsDone => Plan { unknown: 100, ..plan },
        Failpoint::AnswerBeforeSwap | Failpoint::RangeGivenTwice => plan,
    }
}

/// What of a verdict names a bug's harm, not something that follows from it.
fn harm(bug: Failpoint) -> &'static [&'static str] {
    match bug {
        Failpoint::NoBlocklist | Failpoint::EntryExpires | Failpoint::NoMapWait => &["stale block"],
        Failpoint::EntryRemovedEarly => &["stale block"],
        Failpoint::LostNotSettled => &["a write that was of a controller that is gone"],
        Failpoint::OldOwnerKept => &["stale block"],
        Failpoint::MapNotSpread => &["stale block", "a write of a preempted host after GOOD"],
        Failpoint::RecordsNotRead => &["stale record"],
        Failpoint::AnswerBeforeSwap => &["GOOD without effect"],
        Failpoint::RangeGivenTwice => &["controller identifier"],
        Failpoint::UnknownIsFailed => &["stale block", "two owners"],
        Failpoint::UnknownIsDone => &["GOOD without effect", "stale block", "two owners"],
        Failpoint::ForwardRepeated => &["written twice"],
        Failpoint::ForwardNotSettled => &["written after it was answered as in doubt"],
    }
}

/// Each planted bug is noticed; the same histories without it hold.
#[test]
fn planted_bugs_are_noticed() {
    for bug in Failpoint::ALL {
        let caught = (0..SEEDS).find_map(|seed| {
            let why = plan(bug, seed).outcome().err()?;
            harm(bug).iter().any(|harm| why.starts_with(harm)).then_some((seed, why))
        });
        println!("{bug:?}: {caught:?}");
        let Some((seed, _)) = caught else { panic!("{bug:?} goes unnoticed") };
        Plan { bug: None, ..plan(bug, seed) }.play();
    }
}

/// A failing history is made shorter, and still fails.
#[test]
fn a_failing_history_is_made_shorter() {
    let failing =
        (0..SEEDS).map(|seed| plan(Failpoint::NoBlocklist, seed)).find(|plan| plan.outcome().is_err());
    let failing = failing.expect("the bug is noticed");
    let shorter = failing.shrink();
    assert!(shorter.script.len() < failing.script.len(), "{} steps", shorter.script.len());
    assert!(shorter.outcome().is_err());
}
