//! Bugs planted in the NVMe server and the NVMe/TCP transport: each is noticed within a few histories.
//!
//! A bug is planted in a whole process, so each one is tested in a separate process: this test calls itself.

use std::panic::catch_unwind;
use std::process::Command;

use nvme::failpoint::{Failpoint, turn_on};

use crate::history::History;
use crate::plan::Plan;

/// Histories in which a bug must be noticed.
const SEEDS: u64 = 150;

/// What of a plan makes it likely that a bug shows.
fn plan(bug: Failpoint, seed: u64) -> Plan {
    let plan = Plan::wide(seed);
    match bug {
        Failpoint::FlushForgotten | Failpoint::FuaForgotten => Plan { file: true, power_loss: true, ..plan },
        Failpoint::DataDigestUnchecked | Failpoint::HeaderDigestUnchecked => {
            Plan { digests: (true, true), noise_permille: 20, ..plan }
        }
        Failpoint::DataMisplaced => Plan { block: 4096, ..plan },
        Failpoint::AnsweredTwice => Plan { flow_control: false, ..plan },
        Failpoint::ResetHasty => {
            let disk_delay_max = std::time::Duration::from_millis(50);
            Plan { file: true, reset_permille: 200, disk_delay_max, ..plan }
        }
        // Of a file, whose disk is looked through.
        Failpoint::DataMadeUp => Plan { file: true, ..plan.in_pieces() },
        Failpoint::HalfWaits | Failpoint::CopyShifted | Failpoint::VerifyBlind => plan,
    }
}

/// Whether what ended a history is what shall notice this bug. Memory that nobody has filled shall be seen
/// where it leaves, not where somebody happens to read it later.
fn is_meant(bug: Failpoint, why: Option<&String>) -> bool {
    bug != Failpoint::DataMadeUp || why.is_some_and(|why| why.contains(sim::UNFILLED_PANIC))
}

/// The histories with a bug, in the process that it is planted in.
fn look_for(name: &str) {
    let bug = Failpoint::ALL.into_iter().find(|bug| format!("{bug:?}") == name).expect("a bug of that name");
    turn_on(bug);
    let caught = (0..SEEDS).find(|&seed| {
        let outcome = catch_unwind(|| History::new(plan(bug, seed)).play());
        outcome.is_err_and(|why| is_meant(bug, why.downcast_ref::<String>()))
    });
    println!("{bug:?}: caught by seed {caught:?}");
    assert!(caught.is_some(), "{bug:?} goes unnoticed");
}

/// Each of the bugs; and the first of the histories pass without it. `PLANTED=name` plants that one here.
#[test]
fn planted_bugs_of_the_protocol_are_caught() {
    if let Ok(name) = std::env::var("PLANTED") {
        return look_for(&name);
    }
    for bug in Failpoint::ALL {
        for seed in 0..2 {
            let tally = History::new(plan(bug, seed)).play();
            assert!(tally.good > 0, "{bug:?}: nothing happens");
        }
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "planted::planted_bugs_of_the_protocol_are_caught", "--nocapture"])
            .env("PLANTED", format!("{bug:?}"))
            .output()
            .expect("this test runs");
        let said = String::from_utf8_lossy(&child.stdout);
        let verdict = said.lines().find(|line| line.contains("caught by seed")).unwrap_or("it says nothing");
        println!("{verdict}");
        assert!(child.status.success(), "{bug:?}: {said}{}", String::from_utf8_lossy(&child.stderr));
        assert!(verdict.contains(&format!("{bug:?}")), "{said}");
    }
}
