//! Histories of hosts of both protocols on one volume, in the simulated world.

mod changes;
mod command;
mod crash;
mod fences;
mod history;
mod host;
mod judge;
mod ledger;
mod nvme_side;
mod omissions;
mod plan;
mod planted;
mod power;
mod queue;
mod replacements;
mod scsi;

use history::{History, Tally};
use plan::{Bug, Plan};
use testkit::seeds;

/// Gives what happened, and whether there were enough to say that something must have.
fn play(test: &str, many: u64, plan: fn(u64) -> Plan) -> (Tally, bool) {
    let test = format!("blockwire-shard --test cross_protocol {test}");
    let (total, runs) = seeds::run_all_seeds(many, &test, |seed| History::new(plan(seed)).play());
    (total, runs >= 100)
}

/// Many histories, each checked against one volume; half of them with data of writes in small pieces.
#[test]
fn histories_of_both_protocols_agree_with_one_volume() {
    let (total, enough) = play("histories_of_both", 200, |seed| Plan::of(seed).in_pieces());
    assert!(!enough || total.is_eventful(), "nothing much happens: {total:?}");
}

/// The same on one or two volumes of blocks of either size, with failures of the power, with copying and
/// verifying, and with wires that turn bits over.
#[test]
fn wide_histories_agree_with_their_volumes() {
    let (total, enough) = play("wide_histories", 120, |seed| Plan::wide(seed).in_pieces());
    assert!(!enough || total.is_wide(), "nothing much happens: {total:?}");
}

/// Histories that found something: a read that had lost against writers waited for a guard under the view
/// that it was admitted under, so a fence waited for it, the guard for the home, and the home for the
/// fence (1819 and 2088). One half of a pair was answered before the link of the other was lost (1047). The
/// record forgot that a block was bad while a cache had what was written over it, so that a failure of the
/// power brought back what had stood there before (wide 28). What was claimed for a write that was then not done
/// at once stayed claimed while its shard had nothing to do, and exclusive operations waited for that (wide 1734).
#[test]
fn histories_that_found_something_pass() {
    for seed in [1047, 1819, 2088] {
        History::new(Plan::of(seed)).play();
    }
    History::new(Plan::wide(28)).play();
    History::new(Plan::wide(1734).in_pieces()).play();
}

/// Targets with a planted bug: each is noticed within a few histories.
#[test]
fn planted_bugs_are_caught() {
    for bug in [Bug::GuardsApart, Bug::PairsApart, Bug::DataOfAnother, Bug::NothingDeallocated] {
        let plan = |seed| Plan { bug: Some(bug), shards: 3, ..Plan::of(seed) };
        seeds::assert_some_seed_fails(bug, 200, |seed| History::new(plan(seed)).play());
    }
}
