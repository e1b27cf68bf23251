//! A plan as a file, which repeats a run: the same loads in the same order, with the same seeds, on the same
//! processors.
//!
//! Loads on volumes are its steps; databases, guests and mixed traffic are an experiment of their own form.
//!
//! Invariant: what is read can be run: every load moves blocks for a time, and no figure of it is beyond what a
//! preset has.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::repeatable::RepeatableExperiment;
use super::{EvaluationPlan, ExperimentKind, Preset, Step};
use crate::fio::Job;

/// Version of the form; another number is refused.
pub const PLAN_SCHEMA_VERSION: u32 = 1;
/// Most I/Os in flight of a load, and most connections.
const IN_FLIGHT_MAX: u64 = 1 << 24;
/// Most volumes of a target.
pub(super) const VOLUMES_MAX: u32 = 4096;
/// Most bytes of each: a PiB.
pub(super) const VOLUME_BYTES_MAX: u64 = 1 << 50;
/// Most processors of a target.
const CORES_MAX: u32 = 65_536;
/// Most bytes of an I/O.
pub(super) const IO_BYTES_MAX: u32 = 64 << 20;
/// Longest ramp, and longest load.
pub(super) const TIME_MAX: Duration = Duration::from_secs(604_800);
/// Most steps.
const STEPS_MAX: usize = 100_000;

/// A plan that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrozenPlan {
    /// [`PLAN_SCHEMA_VERSION`].
    pub schema: u32,
    /// Of which preset.
    pub preset: String,
    /// Processors of the target; empty: all.
    pub target_cores: Vec<usize>,
    /// Those of the initiators.
    pub initiator_cores: Vec<usize>,
    /// What was changed to fit the machine that it was made on.
    pub notes: Vec<String>,
    /// An experiment that is no plain loads on volumes; then there are no steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<RepeatableExperiment>,
    /// What is measured, in this order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// Why a text is no plan.
#[derive(Debug)]
pub enum PlanParseError {
    /// It is not the JSON of a plan.
    Json(serde_json::Error),
    /// It is of another version.
    Version(u32),
    /// It is of a preset that is not known.
    Preset(String),
    /// A step of it, from 1, cannot be run: why.
    Step(usize, &'static str),
    /// It has no step, or too many.
    Steps(usize),
    /// Its experiment cannot be run: why.
    Experiment(&'static str),
}

impl fmt::Display for PlanParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanParseError::Json(why) => write!(f, "not a plan file: {why}"),
            PlanParseError::Version(version) => {
                write!(f, "this plan is of version {version}, and {PLAN_SCHEMA_VERSION} is known here")
            }
            PlanParseError::Preset(name) => {
                write!(f, "this plan is of {name}, which is no experiment here")
            }
            PlanParseError::Step(number, why) => write!(f, "step {number} of this plan {why}"),
            PlanParseError::Steps(count) => {
                write!(f, "this plan has {count} steps; 1 to {STEPS_MAX} can be")
            }
            PlanParseError::Experiment(why) => write!(f, "this plan {why}"),
        }
    }
}

impl std::error::Error for PlanParseError {}

impl FrozenPlan {
    /// A plan that runs on these processors.
    pub fn of(plan: &EvaluationPlan, target_cores: &[usize], initiator_cores: &[usize]) -> FrozenPlan {
        FrozenPlan {
            schema: PLAN_SCHEMA_VERSION,
            preset: plan.preset.id.to_owned(),
            target_cores: target_cores.to_vec(),
            initiator_cores: initiator_cores.to_vec(),
            notes: plan.notes.clone(),
            experiment: None,
            steps: plan.steps.clone(),
        }
    }

    /// The same of an experiment that is no plain loads on volumes.
    pub fn of_experiment(
        (preset, experiment, notes): (&Preset, RepeatableExperiment, Vec<String>),
        target_cores: &[usize],
        initiator_cores: &[usize],
    ) -> FrozenPlan {
        FrozenPlan {
            schema: PLAN_SCHEMA_VERSION,
            preset: preset.id.to_owned(),
            target_cores: target_cores.to_vec(),
            initiator_cores: initiator_cores.to_vec(),
            notes,
            experiment: Some(experiment),
            steps: Vec::new(),
        }
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// If it is no plan, of another version, or cannot be run.
    pub fn parse(text: &str) -> Result<FrozenPlan, PlanParseError> {
        let frozen: FrozenPlan = serde_json::from_str(text).map_err(PlanParseError::Json)?;
        if frozen.schema != PLAN_SCHEMA_VERSION {
            return Err(PlanParseError::Version(frozen.schema));
        }
        let preset = frozen.preset()?;
        if let Some(experiment) = &frozen.experiment {
            let why = experiment.check(preset.kind);
            let why = why.or((!frozen.steps.is_empty()).then_some("has steps beside its experiment"));
            return why.map_or(Ok(frozen), |why| Err(PlanParseError::Experiment(why)));
        }
        if preset.kind != ExperimentKind::Block {
            return Err(PlanParseError::Experiment("has loads on volumes, which are not its experiment"));
        }
        if frozen.steps.is_empty() || frozen.steps.len() > STEPS_MAX {
            return Err(PlanParseError::Steps(frozen.steps.len()));
        }
        let mut round = 0;
        for (at, step) in frozen.steps.iter().enumerate() {
            let why =
                step_error(step).or((step.round < round).then_some("is of a round before that of the last"));
            why.map_or(Ok(()), |why| Err(PlanParseError::Step(at + 1, why)))?;
            round = step.round;
        }
        Ok(frozen)
    }

    /// Its preset.
    ///
    /// # Errors
    /// If it is not known here.
    pub fn preset(&self) -> Result<&'static Preset, PlanParseError> {
        Preset::find(&self.preset).ok_or_else(|| PlanParseError::Preset(self.preset.clone()))
    }

    /// The plan again: as long as it takes.
    ///
    /// # Errors
    /// If its preset is not known here.
    pub fn to_plan(&self) -> Result<EvaluationPlan, PlanParseError> {
        let (steps, notes) = (self.steps.clone(), self.notes.clone());
        Ok(EvaluationPlan { preset: self.preset()?, steps, time: None, notes })
    }

    /// As text, which [`parse`](Self::parse) takes: a step on each line.
    ///
    /// # Errors
    /// If it has no JSON.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let head = FrozenPlan { steps: Vec::new(), ..self.clone() };
        if self.experiment.is_some() {
            return Ok(serde_json::to_string_pretty(&head)? + "\n");
        }
        let head = serde_json::to_string(&head)?;
        let steps = self.steps.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        // Steps are its last member.
        let head = head.strip_suffix("]}").unwrap_or(&head);
        Ok(format!("{head}\n{}\n]}}\n", steps.join(",\n")))
    }
}

/// Why a step cannot be run.
fn step_error(step: &Step) -> Option<&'static str> {
    job_error(&step.job).or(match () {
        () if step.connections == 0 || u64::from(step.connections) > IN_FLIGHT_MAX => {
            Some("has a number of connections that cannot be")
        }
        () if step.volumes.0 == 0 || step.volumes.0 > VOLUMES_MAX => {
            Some("has a number of volumes that cannot be")
        }
        () if step.volumes.1 == 0 || step.volumes.1 > VOLUME_BYTES_MAX => {
            Some("has volumes of a size that cannot be")
        }
        () if step.cores.is_some_and(|cores| cores == 0 || cores > CORES_MAX) => {
            Some("gives its target a number of processors that cannot be")
        }
        () if step.rate.is_some_and(|rate| rate == 0 || rate > 100) => {
            Some("has a rate that is no part of the most")
        }
        () => None,
    })
}

/// Why a load cannot be run.
pub(super) fn job_error(job: &Job) -> Option<&'static str> {
    let is_block = |bytes: u32| bytes > 0 && bytes <= IO_BYTES_MAX;
    let in_flight = u64::from(job.depth) * u64::from(job.threads);
    match () {
        () if !is_block(job.block.0) || !is_block(job.block.1) => Some("moves blocks of no size that can be"),
        () if in_flight == 0 || in_flight > IN_FLIGHT_MAX => Some("has a depth that cannot be"),
        () if job.ramp > TIME_MAX || job.delay > TIME_MAX || job.think > TIME_MAX => {
            Some("takes longer than can be")
        }
        () if job.runtime.is_none_or(|time| time.is_zero() || time > TIME_MAX) => {
            Some("runs for no time that can be")
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::{
        DatabasePlan, GuestPlan, HostCapacity, Scale, StepTiming, Wire, fit_plan, mixed_traffic_plan,
    };

    fn room() -> HostCapacity {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        HostCapacity {
            cores: 2,
            memory: 20 << 30,
            files: 1 << 20,
            ports: 1 << 20,
            namespaces: Ok(()),
            targets: names(&["blockwire", "tgt"]),
            initiators: names(&["blockwire", "fio"]),
            wires: Vec::new(),
            time: Duration::from_secs(600),
            timing: StepTiming::default(),
        }
    }

    fn made() -> EvaluationPlan {
        let room = room();
        let quick = Preset::find("quick").unwrap();
        fit_plan(quick, &room, Scale::Auto, &room.targets, &room.initiators).unwrap()
    }

    /// A plan that a run wrote gives the same loads, in the same order, with the same seeds, in the next.
    #[test]
    fn a_plan_is_repeated_exactly() {
        let plan = made();
        let text = FrozenPlan::of(&plan, &[0], &[1]).to_text().unwrap();
        let again = FrozenPlan::parse(&text).unwrap();
        assert_eq!((&again.target_cores[..], &again.initiator_cores[..]), (&[0][..], &[1][..]));
        let repeated = again.to_plan().unwrap();
        assert_eq!((&repeated.steps, &repeated.notes), (&plan.steps, &plan.notes));
        assert_eq!(repeated.time, None, "it is not made to fit anything");
        let seeds: Vec<u64> = repeated.steps.iter().map(|step| step.job.seed).collect();
        assert!(seeds.first() != seeds.last() && plan.steps.iter().map(|step| step.job.seed).eq(seeds));
        assert_eq!(FrozenPlan::of(&repeated, &[0], &[1]).to_text().unwrap(), text, "nor does it change");
        assert_eq!(text.lines().count(), plan.steps.len() + 2);
    }

    /// A plan is a file that anybody may have written.
    #[test]
    fn a_plan_that_cannot_be_run_is_refused() {
        let value = serde_json::to_value(FrozenPlan::of(&made(), &[], &[])).unwrap();
        for (path, wrong, said) in [
            ("/schema", serde_json::json!(9), "version 9"),
            ("/preset", serde_json::json!("none"), "no experiment"),
            ("/steps", serde_json::json!([]), "0 steps"),
            ("/steps/2/job/block/0", serde_json::json!(0), "step 3"),
            ("/steps/0/job/depth", serde_json::json!(0), "step 1"),
            ("/steps/0/job/threads", serde_json::json!(u32::MAX), "depth"),
            ("/steps/0/job/runtime", serde_json::Value::Null, "no time"),
            ("/steps/0/job/ramp/secs", serde_json::json!(u64::MAX), "longer"),
            ("/steps/0/connections", serde_json::json!(0), "connections"),
            ("/steps/0/cores", serde_json::json!(0), "processors"),
            ("/steps/0/rate", serde_json::json!(101), "rate"),
            ("/steps/0/volumes/0", serde_json::json!(0), "volumes"),
            ("/steps/0/volumes/1", serde_json::json!(u64::MAX), "size"),
            ("/steps/0/round", serde_json::json!(7), "step 2"),
            ("/steps/0/protocol", serde_json::json!("x"), "not a plan"),
            ("/preset", serde_json::json!("t5-vm"), "not its experiment"),
        ] {
            let mut changed = value.clone();
            // Members that are left out where they say nothing.
            for step in changed["steps"].as_array_mut().unwrap() {
                (step["cores"], step["rate"]) = (serde_json::Value::Null, serde_json::Value::Null);
            }
            *changed.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = wrong;
            let why = FrozenPlan::parse(&changed.to_string()).unwrap_err().to_string();
            assert!(why.contains(said), "{path}: {why}");
        }
        assert!(FrozenPlan::parse(&value.to_string()).is_ok());
    }

    fn experiments() -> Vec<(&'static Preset, RepeatableExperiment)> {
        let mixed = mixed_traffic_plan(
            Preset::find("unified-wire").unwrap(),
            &HostCapacity { targets: Vec::new(), ..room() },
            Scale::Auto,
        );
        let systems = |way: &str| vec![("blockwire".to_owned(), way.to_owned())];
        let guests = Preset::find("t5-vm").unwrap();
        vec![
            (Preset::find("unified-wire").unwrap(), RepeatableExperiment::MixedTraffic(mixed.unwrap())),
            (
                Preset::find("demartek-oltp").unwrap(),
                RepeatableExperiment::Databases(DatabasePlan {
                    program: "sysbench".to_owned(),
                    systems: systems("mariadb"),
                    wire: Wire::Loopback,
                    databases: 2,
                    users: 5,
                    luns: 6,
                    lun: 64 << 20,
                    warehouses: 3,
                    transactions: vec![("mariadb".to_owned(), 20)],
                    rounds: 5,
                }),
            ),
            (
                guests,
                RepeatableExperiment::Guests(GuestPlan {
                    systems: systems("tcp"),
                    volume: 64 << 20,
                    memory: 1 << 30,
                    runtime: Duration::from_millis(600),
                    loads: guests.loads(),
                    rounds: 5,
                }),
            ),
        ]
    }

    #[test]
    fn databases_guests_and_mixed_traffic_are_repeated_too() {
        for (preset, experiment) in experiments() {
            let made = FrozenPlan::of_experiment((preset, experiment, vec!["small".to_owned()]), &[0], &[1]);
            let again = FrozenPlan::parse(&made.to_text().unwrap()).unwrap();
            assert_eq!(again, made, "{}", preset.id);
        }
    }

    #[test]
    fn an_experiment_that_cannot_be_run_is_refused() {
        let kinds = ["mixed-traffic", "databases", "guests"];
        let all: Vec<_> = experiments().into_iter().zip(kinds).collect();
        for (kind, path, wrong) in [
            ("mixed-traffic", "rounds", serde_json::json!(0)),
            ("mixed-traffic", "jobs/0/depth", serde_json::json!(0)),
            ("mixed-traffic", "wires", serde_json::json!([])),
            ("databases", "systems", serde_json::json!([])),
            ("databases", "transactions", serde_json::json!([["postgresql", 7]])),
            ("databases", "transactions/0/1", serde_json::json!(0)),
            ("databases", "users", serde_json::json!(451)),
            ("databases", "databases", serde_json::json!(u32::MAX)),
            ("databases", "luns", serde_json::json!(0)),
            ("databases", "lun", serde_json::json!(1000)),
            ("databases", "warehouses", serde_json::json!(0)),
            ("guests", "volume", serde_json::json!(0)),
            ("guests", "memory", serde_json::json!(1)),
            ("guests", "runtime/secs", serde_json::json!(u64::MAX)),
            ("guests", "loads/0/threads", serde_json::json!(0)),
            ("guests", "rounds", serde_json::json!(u32::MAX)),
        ] {
            let ((preset, experiment), _) = all.iter().find(|(_, name)| *name == kind).unwrap();
            let made = FrozenPlan::of_experiment((preset, experiment.clone(), Vec::new()), &[], &[]);
            let mut value = serde_json::to_value(made).unwrap();
            *value.pointer_mut(&format!("/experiment/{kind}/{path}")).unwrap() = wrong;
            let why = FrozenPlan::parse(&value.to_string()).unwrap_err().to_string();
            assert!(why.contains("this plan"), "{kind} {path}: {why}");
        }
        for ((_, experiment), (other, _)) in
            experiments().into_iter().zip(experiments().into_iter().cycle().skip(1))
        {
            let mixed_up = FrozenPlan::of_experiment((other, experiment, Vec::new()), &[], &[]);
            let why = FrozenPlan::parse(&mixed_up.to_text().unwrap()).unwrap_err().to_string();
            assert!(why.contains("another kind"), "{why}");
        }
    }
}
