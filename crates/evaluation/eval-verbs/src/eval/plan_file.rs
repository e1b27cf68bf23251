//! The plan of a run as a file: written beside its record, and taken by the next run.

use std::cell::RefCell;
use std::path::Path;

use eval::preset::{EvaluationPlan, FrozenPlan, Preset, RepeatableExperiment};
use lab::CoreAssignment;

use process::exit::Failure;

/// What the plan of a run is called in its directory.
pub(super) const PLAN_FILE: &str = "plan.json";

/// The plan that is to be repeated, if there is one, and the one that was made last.
#[derive(Debug, Default)]
pub(super) struct FrozenPlans {
    given: Option<FrozenPlan>,
    made: RefCell<Option<MadePlan>>,
}

/// What a run made, or repeated.
#[derive(Debug)]
enum MadePlan {
    /// Loads on volumes.
    Loads(EvaluationPlan),
    /// Another experiment, with what it tells of its size.
    Other(&'static Preset, RepeatableExperiment, Vec<String>),
}

impl FrozenPlans {
    /// Reads the plan that was named.
    ///
    /// # Errors
    /// If it is none, or of another preset than the one that was named.
    pub(super) fn read_given(path: Option<&Path>, preset: &Preset) -> Result<FrozenPlans, Failure> {
        let Some(path) = path else { return Ok(FrozenPlans::default()) };
        let named = |why: String| Failure::failed(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|why| named(why.to_string()))?;
        let given = FrozenPlan::parse(&text).map_err(|why| named(why.to_string()))?;
        if given.preset != preset.id {
            return Err(Failure::usage(format!(
                "{} is a plan of {}, not of {}",
                path.display(),
                given.preset,
                preset.id
            )));
        }
        Ok(FrozenPlans { given: Some(given), made: RefCell::new(None) })
    }

    /// The experiment that is to be repeated, if it is no plain loads on volumes, and what it tells of its size.
    pub(super) fn given_experiment(&self) -> Option<(&RepeatableExperiment, &[String])> {
        let given = self.given.as_ref()?;
        Some((given.experiment.as_ref()?, &given.notes))
    }

    /// Keeps what repeats an experiment that was run.
    pub(super) fn keep(&self, preset: &'static Preset, experiment: RepeatableExperiment, notes: Vec<String>) {
        *self.made.borrow_mut() = Some(MadePlan::Other(preset, experiment, notes));
    }

    /// The plan that is to be repeated; else one is made.
    pub(super) fn given_or_make<W>(
        &self,
        made: impl FnOnce() -> Result<EvaluationPlan, W>,
    ) -> Result<EvaluationPlan, W> {
        let plan = match self.given.as_ref().and_then(|given| given.to_plan().ok()) {
            Some(plan) => plan,
            None => made()?,
        };
        *self.made.borrow_mut() = Some(MadePlan::Loads(plan.clone()));
        Ok(plan)
    }

    /// The processors that it was made for.
    pub(super) fn cores(&self) -> Option<CoreAssignment> {
        let given = self.given.as_ref()?;
        Some(CoreAssignment { target: given.target_cores.clone(), initiator: given.initiator_cores.clone() })
    }

    /// The plan that was run, as text; `None`: nothing was run.
    pub(super) fn plan_text(&self, cores: &CoreAssignment) -> Option<Result<String, Failure>> {
        let made = self.made.borrow();
        let frozen = match made.as_ref()? {
            MadePlan::Loads(plan) => FrozenPlan::of(plan, &cores.target, &cores.initiator),
            MadePlan::Other(preset, experiment, notes) => FrozenPlan::of_experiment(
                (preset, experiment.clone(), notes.clone()),
                &cores.target,
                &cores.initiator,
            ),
        };
        Some(frozen.to_text().map_err(Failure::failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_of_the_experiment_that_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLAN_FILE);
        let quick = Preset::find("quick").unwrap();
        let plans = FrozenPlans::read_given(None, quick).unwrap();
        assert!(plans.given_experiment().is_none() && plans.plan_text(&CoreAssignment::default()).is_none());
        let step = serde_json::json!({
            "target": "tgt", "initiator": "fio", "protocol": "iscsi", "wire": "loopback", "volumes": [1, 1 << 20],
            "medium": "ram", "connections": 1, "round": 0,
            "job": eval::fio::Job { runtime: Some(std::time::Duration::from_secs(1)), ..Default::default() },
        });
        let text = serde_json::json!({
            "schema": 1, "preset": "quick", "target_cores": [0], "initiator_cores": [1], "notes": [], "steps": [step],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        let plans = FrozenPlans::read_given(Some(&path), quick).unwrap();
        let plan = plans.given_or_make(|| Err("another is made")).unwrap();
        assert_eq!((plan.steps.len(), plans.cores().unwrap().initiator), (1, vec![1]));
        let again = plans.plan_text(&plans.cores().unwrap()).unwrap().unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&again).unwrap(), text);
        let other = Preset::find("connections").unwrap();
        assert!(
            FrozenPlans::read_given(Some(&path), other).unwrap_err().to_string().contains("a plan of quick")
        );
        std::fs::write(&path, "{}").unwrap();
        assert!(FrozenPlans::read_given(Some(&path), quick).unwrap_err().to_string().contains("not a plan"));
    }

    #[test]
    fn a_plan_of_another_experiment_is_kept_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLAN_FILE);
        let preset = Preset::find("demartek-oltp").unwrap();
        let made = RepeatableExperiment::Databases(eval::preset::DatabasePlan {
            program: "sysbench".to_owned(),
            systems: vec![("blockwire".to_owned(), "mariadb".to_owned())],
            wire: eval::preset::Wire::Loopback,
            databases: 2,
            users: 5,
            luns: 6,
            lun: 64 << 20,
            warehouses: 3,
            transactions: vec![("mariadb".to_owned(), 1234)],
            rounds: 5,
        });
        let plans = FrozenPlans::default();
        plans.keep(preset, made.clone(), vec!["smaller".to_owned()]);
        let cores = CoreAssignment { target: vec![0], initiator: vec![1] };
        std::fs::write(&path, plans.plan_text(&cores).unwrap().unwrap()).unwrap();
        let again = FrozenPlans::read_given(Some(&path), preset).unwrap();
        assert_eq!(again.given_experiment(), Some((&made, &["smaller".to_owned()][..])));
        assert_eq!(again.cores().unwrap().target, vec![0]);
    }
}
