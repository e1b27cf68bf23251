//! A run of databases that is repeated: what is kept of it, and what must be here again.
//!
//! Invariant: nothing is left out or made smaller. What cannot be repeated is refused before anything is started.

use eval::preset::{DatabasePlan, HostCapacity, Preset, Protocol, RepeatableExperiment, Wire};
use eval::record::Record;

use super::database::DatabaseEngine;
use super::scale::OltpSize;
use super::users::UserProgram;
use super::{
    DatabaseRun, OltpProgress, RepeatableRun, SystemPair, check_prerequisites, comparability_notes,
    measure_all,
};
use crate::Failure;
use crate::runner::Runner;

/// Repeats a run exactly, however long it takes.
///
/// # Errors
/// If it cannot be repeated here, or nothing could be measured: why.
pub fn repeat_oltp(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    room: &HostCapacity,
    plan: &DatabasePlan,
    size_notes: &[String],
) -> Result<(Record, RepeatableRun), Failure> {
    let program = UserProgram::of_plan(&plan.program)?;
    check_prerequisites(preset)?;
    let mut pairs = Vec::new();
    for (target, database) in &plan.systems {
        let engine = DatabaseEngine::ALL.into_iter().find(|engine| engine.name() == database);
        let engine = engine.ok_or_else(|| {
            Failure::new(format!("the plan has the database server {database}, which is not known here"))
        })?;
        let refused = program.refusal(engine).map(str::to_owned);
        let missing = engine.missing().or(refused).or((target == "url" || !room.targets.contains(target))
            .then(|| {
                format!(
                    "target {target} of the plan is not installed here (there are: {})",
                    room.targets.join(", ")
                )
            }));
        if let Some(why) = missing {
            return Err(Failure::new(format!("this plan cannot be repeated here: {why}")));
        }
        if !runner.find_target(target)?.protocols().contains(&Protocol::Iscsi) {
            return Err(Failure::new(format!("target {target} of the plan does not speak iSCSI")));
        }
        pairs.push(SystemPair { target: target.clone(), engine });
    }
    let of_engine = |(name, each): &(String, u64)| {
        DatabaseEngine::ALL.into_iter().find(|engine| engine.name() == name).map(|engine| (engine, *each))
    };
    let jobs = plan.transactions.iter().filter_map(of_engine).collect();
    if plan.wire != Wire::Loopback
        && let Err(why) = &room.namespaces
    {
        return Err(Failure::new(format!(
            "this plan cannot be repeated here: network namespaces cannot be created ({why})"
        )));
    }
    let size = OltpSize::of_plan(plan, room)?;
    let run = DatabaseRun { pairs, size, wire: plan.wire, jobs };
    measure_all(runner, preset, run, comparability_notes(&program), size_notes.to_vec())
}

impl OltpProgress {
    /// What repeats this run: the systems whose users have had work, and that work.
    pub(super) fn to_plan(&self, pairs: &[SystemPair], size: &OltpSize) -> RepeatableExperiment {
        let each = |engine: DatabaseEngine| {
            let known = self.jobs.iter().find(|(known, _)| *known == engine).map(|(_, each)| *each);
            size.transactions.or(known)
        };
        let told = pairs.iter().filter(|pair| each(pair.engine).is_some());
        let transactions = DatabaseEngine::ALL
            .into_iter()
            .filter(|engine| pairs.iter().any(|pair| pair.engine == *engine))
            .filter_map(|engine| Some((engine.name().to_owned(), each(engine)?)));
        RepeatableExperiment::Databases(DatabasePlan {
            program: size.program.name().to_owned(),
            systems: told.map(|pair| (pair.target.clone(), pair.engine.name().to_owned())).collect(),
            wire: self.wire,
            databases: size.databases,
            users: size.users,
            luns: size.luns,
            lun: size.lun,
            warehouses: size.warehouses,
            transactions: transactions.collect(),
            rounds: self.rounds,
        })
    }
}
