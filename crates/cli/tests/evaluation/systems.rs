//! Every target with every initiator that is installed here, at the smallest scale.
//!
//! Missing ones are reported and skipped: `tests/setup.sh eval` installs what Debian has, and `SPDK_DIR` says
//! where SPDK was built.

use std::path::Path;
use std::time::Duration;

use eval::fio::IoDirection;
use eval::preset::{EvaluationPlan, Preset, Scale, fit_plan};
use eval::record::{Point, Record};
use lab::{CommandLocation, CoreAssignment, NoProgress, Runner};

/// The first round of the smallest preset: reads by all pairs, writes to our own target.
fn all_pairs(room: &eval::preset::HostCapacity) -> EvaluationPlan {
    let quick = Preset::find("quick").unwrap();
    // By the name `fio` the best of its ways is taken: one of those that are here by their own names.
    let initiators: Vec<String> = room.initiators.iter().filter(|name| *name != "fio").cloned().collect();
    let mut plan = fit_plan(quick, room, Scale::Part(0.01), &room.targets, &initiators).unwrap();
    let is_kept = |step: &eval::preset::Step| {
        let is_ours = step.target == "blockwire";
        let is_told_apart = is_ours || step.initiator != "blockwire-polling";
        step.round == 0 && is_told_apart && (step.job.direction == IoDirection::Read || is_ours)
    };
    plan.steps.retain(is_kept);
    // A target that is used again is not started again.
    plan.steps.sort_by(|a, b| (&a.target, a.protocol).cmp(&(&b.target, b.protocol)));
    plan
}

fn is_of(point: &Point, step: &eval::preset::Step) -> bool {
    let protocol = step.protocol.name();
    (point.target.as_str(), point.initiator.as_str(), point.protocol.as_str())
        == (step.target.as_str(), step.initiator.as_str(), protocol)
        && point.rw == eval::preset::fio_rw_word(step.job.direction, true)
}

fn judge(record: &Record, plan: &EvaluationPlan) {
    for step in &plan.steps {
        let Some(point) = record.points.iter().find(|point| is_of(point, step)) else {
            // What cannot be is in the notes; what went wrong is a failure of this test.
            let wrong = record.notes.iter().find(|note| note.contains("was left out"));
            assert_eq!(wrong, None, "{} by {}", step.target, step.initiator);
            continue;
        };
        let run = &point.runs[0];
        let what = format!("{} {}", point.system_name(), point.rw);
        assert!(run.ios > 0 && run.errors == 0 && run.seconds > 0.4, "{what}: {run:?}");
        assert!(run.target.as_ref().is_some_and(|side| side.resident > 0), "{what}: the target was seen");
        // One that has ended already when it is looked at has no memory any more, only its times.
        assert!(run.initiator.is_some(), "{what}: so was the initiator");
        let tells = point.initiator != "libiscsi";
        assert_eq!(point.mean_latency().is_some(), tells, "{what}: a latency that is not told is none");
        let idle = run.target.as_ref().and_then(|side| side.idle_polls);
        let polls = ["blockwire", "spdk-iscsi", "spdk-nvmf", "bare"].contains(&point.target.as_str());
        assert_eq!(idle.is_some(), polls, "{what}: who tells how long it polled without work");
        let idle = run.initiator.as_ref().and_then(|side| side.idle_polls);
        let is_ours = ["blockwire", "bare"].iter().any(|name| point.initiator.starts_with(name));
        assert_eq!(idle.is_some(), is_ours, "{what}: among initiators ours alone tells");
        let polls = point.initiator.ends_with("-polling");
        assert!(polls || idle.is_none_or(|idle| idle == 0.0), "{what} sleeps: {idle:?}");
    }
    // On a machine that others use too an answer may be there whenever one of them looks; hardly for all.
    let mut polling = record.points.iter().filter(|point| point.initiator == "blockwire-polling").peekable();
    let polled = |point: &Point| point.runs[0].initiator.as_ref()?.idle_polls;
    let is_seen = polling.peek().is_none() || polling.any(|point| polled(point) > Some(0.0));
    assert!(is_seen, "a poller has found nothing at some looks");
}

#[test]
fn every_pair_that_is_installed_is_measured() {
    let binary = Path::new(env!("CARGO_BIN_EXE_blockwire"));
    let (targets, initiators) =
        (lab::target::all_targets(binary, &[]), lab::initiator::all_initiators(binary));
    let missing = targets.iter().map(|it| (it.name(), it.missing(&CommandLocation::Here)));
    let missing = missing.chain(initiators.iter().map(|it| (it.name(), it.missing(&CommandLocation::Here))));
    for (name, why) in missing.filter_map(|(name, why)| Some((name, why?))) {
        println!("{name} is passed over: {why}");
    }
    let room = lab::probe_host_capacity(&targets, &initiators, Duration::from_secs(60));
    let plan = all_pairs(&room);
    let dir = tempfile::tempdir().unwrap();
    let mut runner = Runner {
        targets: &targets,
        initiators: &initiators,
        machines: None,
        cores: CoreAssignment::split_in_half(room.cores),
        dir: dir.path().to_owned(),
        live: &mut NoProgress,
    };
    let record = runner.run_plan(&|_| Ok(plan.clone())).unwrap();
    judge(&record, &plan);
    println!("{} points of {} pairs", record.points.len(), plan.steps.len());
}
