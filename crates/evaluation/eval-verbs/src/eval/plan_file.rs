//! The plan of a run as a file: written beside its record, and taken by the next run.

use std::cell::RefCell;
use std::path::Path;

use eval::preset::{EvaluationPlan, FrozenPlan, Preset};
use lab::CoreAssignment;

use process::exit::Failure;

/// What the plan of a run is called in its directory.
pub(super) const PLAN_FILE: &str = "plan.json";

/// The plan that is to be repeated, if there is one, and the one that was made last.
#[derive(Debug, Default)]
pub(super) struct FrozenPlans {
    given: Option<FrozenPlan>,
    made: RefCell<Option<EvaluationPlan>>,
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

    /// Whether one is to be repeated.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
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
        *self.made.borrow_mut() = Some(plan.clone());
        Ok(plan)
    }

    /// The processors that it was made for.
    pub(super) fn cores(&self) -> Option<CoreAssignment> {
        let given = self.given.as_ref()?;
        Some(CoreAssignment { target: given.target_cores.clone(), initiator: given.initiator_cores.clone() })
    }

    /// The plan that was run, as text; `None`: it was no run of a plan.
    pub(super) fn plan_text(&self, cores: &CoreAssignment) -> Option<Result<String, Failure>> {
        let made = self.made.borrow();
        let frozen = FrozenPlan::of(made.as_ref()?, &cores.target, &cores.initiator);
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
        assert!(!plans.is_given() && plans.plan_text(&CoreAssignment::default()).is_none());
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
}
