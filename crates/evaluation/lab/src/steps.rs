//! Runs a plan's steps in turn, and makes the record.
//!
//! Invariant: systems that are compared get the same volumes, filled with the same bytes, and the same
//! offsets; failures are in the record's notes, never a point without runs.

use std::time::{Duration, Instant};

use eval::fio::{IoDirection, Job, JobSize, Rate};
use eval::preset::{
    EvaluationPlan, OmittedLoad, PlanError, Preset, Protocol, Step, StepTiming, VolumeMedium, Wire,
    fio_rw_word,
};
use eval::record::{Machine, Point, Record, Run, varied};

use crate::Failure;
use crate::allowance::TimeBudget;
use crate::block_load;
use crate::end_request;
use crate::environment::machine_facts;
use crate::link::{Link, RemoteMachines};
use crate::place::CommandLocation;
use crate::progress::StepProgress;
use crate::recording::{add_runs, begin_record, finish_record, note_command, note_configuration};
use crate::runner::{Runner, Testbed};
use crate::target::TargetSetup;

/// What must be the same for a target that runs to be used again.
#[derive(Clone, PartialEq)]
struct TargetKey {
    target: String,
    protocol: Protocol,
    wire: Wire,
    volumes: (u32, u64),
    medium: VolumeMedium,
    cores: Option<u32>,
}

/// What failed once and is not tried again: a target as it was, an initiator, its connections.
type FailedCombination = (TargetKey, String, u32);

/// How a plan goes.
struct PlanProgress {
    allowance: TimeBudget,
    testbed: Option<(TargetKey, Testbed)>,
    /// Most connections of any step: what a target must be ready for.
    connections: u32,
    broken: Vec<FailedCombination>,
}

/// How long a load is tried, to see what goes on around it.
const TRIAL_RUNTIME: Duration = Duration::from_millis(200);
/// Bytes of a volume that is tried.
const TRIAL_VOLUME_BYTES: u64 = 16 << 20;

impl TargetKey {
    fn of(step: &Step) -> TargetKey {
        TargetKey {
            target: step.target.clone(),
            protocol: step.protocol,
            wire: step.wire,
            volumes: step.volumes,
            medium: step.medium,
            cores: step.cores,
        }
    }
}

impl Runner<'_> {
    /// Runs a plan that is made of how long starting and filling take here. Steps that fail are noted, and
    /// their like are not tried again; rounds for which there is no time any more are left out.
    ///
    /// # Errors
    /// If nothing at all could be measured: why.
    pub fn run_plan(
        &mut self,
        plan_of: &dyn Fn(&StepTiming) -> Result<EvaluationPlan, PlanError>,
    ) -> Result<Record, Failure> {
        let mut progress = PlanProgress {
            allowance: TimeBudget::start(None),
            testbed: None,
            connections: 0,
            broken: Vec::new(),
        };
        let rough = plan_of(&self.known_timing()).map_err(Failure::new)?;
        progress.allowance = progress.allowance.with_time(rough.time);
        let mut record = begin_record(rough.preset, &[]);
        let (possible, left_out) = self.possible_steps(&rough);
        progress.connections = possible.iter().map(|step| step.connections).max().unwrap_or(1);
        let timing = match rough.time {
            None => self.known_timing(),
            Some(_) => {
                let timing = self.measured_timing(&possible, &mut progress, &record);
                let not = rough.steps.iter().filter(|step| !possible.contains(step));
                StepTiming { left_out: distinct(not.map(OmittedLoad::of_step)), ..timing }
            }
        };
        let plan = plan_of(&timing).map_err(Failure::new)?;
        record.environment = self.machine_facts(&rough);
        record.notes.extend(plan.notes.iter().cloned());
        record.notes.extend(left_out);
        let (steps, _) = self.possible_steps(&plan);
        let mut round_begun = progress.allowance.elapsed();
        for (at, step) in steps.iter().enumerate() {
            if end_request::is_ending() {
                record.notes.push(format!("interrupted after {at} of {} loads", steps.len()));
                break;
            }
            // Wherever estimates were wrong it ends in time, and says what that cost.
            let before = at.checked_sub(1).and_then(|before| steps.get(before));
            if let Some(before) = before.filter(|_| progress.allowance.is_exhausted()) {
                record.notes.push(format!(
                    "{at} of {} loads were measured, the last was {}: the time limit was reached",
                    steps.len(),
                    step_text(before)
                ));
                break;
            }
            if before.is_some_and(|before| step.round > before.round) {
                if !progress.allowance.has_time_for_round(round_begun) {
                    let rounds = steps.last().map_or(0, |step| step.round + 1);
                    record.notes.push(format!(
                        "{} of {rounds} rounds were measured: the time limit was reached",
                        step.round
                    ));
                    break;
                }
                round_begun = progress.allowance.elapsed();
            }
            self.run_step_or_note(step, (at, &steps), &timing, &mut progress, &mut record);
        }
        self.live.finish();
        drop(progress.testbed);
        finish_record(&mut record, progress.allowance.started_at());
        if record.points.is_empty() {
            return Err(Failure::new(format!("nothing could be measured:\n  {}", record.notes.join("\n  "))));
        }
        Ok(record)
    }

    /// One step of many: its run, or a note why there is none.
    fn run_step_or_note(
        &mut self,
        step: &Step,
        (at, all): (usize, &[&Step]),
        timing: &StepTiming,
        progress: &mut PlanProgress,
        record: &mut Record,
    ) {
        let attempt = (TargetKey::of(step), step.initiator.clone(), step.connections);
        if progress.broken.contains(&attempt) {
            return;
        }
        let takes = |steps: &[&Step]| timing.steps_duration(steps.iter().copied());
        let (before, rest) = all.split_at_checked(at).unwrap_or((all, &[]));
        // What was estimated wrongly so far is expected to be so further on.
        let done = takes(before);
        let wrong = match done {
            Duration::ZERO => 1.0,
            done => progress.allowance.elapsed().div_duration_f64(done),
        };
        let moment = StepProgress {
            step: (at + 1, all.len()),
            what: step_text(step),
            left: takes(rest).mul_f64(wrong),
            ..StepProgress::default()
        };
        self.live.step_started(&moment);
        match self.run_step(step, progress, &moment, record) {
            Ok(run) => {
                let run = Run { round: Some(step.round), seed: Some(step.job.seed), ..run };
                self.live.step_finished(&moment, Ok(run.iops()));
                add_run(record, step, self.link_mtu(step), run);
            }
            // What was cut short is no failure of the systems.
            Err(_) if end_request::is_ending() => progress.testbed = None,
            Err(why) => {
                self.live.step_finished(&moment, Err(&why.to_string()));
                record.notes.push(format!("{} was left out: {why}", moment.what));
                progress.broken.push(attempt);
                progress.testbed = None;
            }
        }
    }

    /// MTU of a step's link; 0: it is that of other machines.
    fn link_mtu(&self, step: &Step) -> u32 {
        if self.machines.is_some() { 0 } else { block_load::mtu(step.wire) }
    }

    /// What systems take to start and to begin, as they say of themselves.
    fn known_timing(&self) -> StepTiming {
        StepTiming {
            starts: self.targets.iter().map(|it| (it.name().to_owned(), it.start_duration())).collect(),
            loads: self.initiators.iter().map(|it| (it.name().to_owned(), it.load_overhead())).collect(),
            ..StepTiming::default()
        }
    }

    /// The same, corrected by the first target, which is started and filled, and by a short load on it. What
    /// goes wrong here goes wrong again when it counts, and is noted then.
    fn measured_timing(
        &mut self,
        steps: &[&Step],
        progress: &mut PlanProgress,
        record: &Record,
    ) -> StepTiming {
        let mut timing = self.known_timing();
        let Some(step) = steps.iter().find(|step| step.protocol != Protocol::Local) else {
            return timing;
        };
        let moment = StepProgress {
            step: (0, steps.len()),
            what: format!("trying {}", step_text(step)),
            ..StepProgress::default()
        };
        self.live.step_started(&moment);
        // As many volumes, but so small that filling them tells how fast it goes and takes no time.
        let mut short = (*step).clone();
        short.volumes.1 = short.volumes.1.min(TRIAL_VOLUME_BYTES);
        // What is written down is what is done when it counts.
        let mut aside = Record { preset: record.preset.clone(), ..Record::default() };
        let Ok((testbed, took)) = self.start_target(&short, progress.connections, &mut aside) else {
            return timing;
        };
        let (started, filled) = took;
        StepTiming::note_time(&mut timing.starts, &step.target, started);
        let bytes = u64::from(short.volumes.0) * short.volumes.1;
        if !filled.is_zero() {
            timing.filled = bytes as f64 / filled.as_secs_f64();
        }
        progress.testbed = Some((TargetKey::of(&short), testbed));
        short.job.file_size = Some(JobSize::Bytes(short.volumes.1));
        (short.job.ramp, short.job.runtime, short.connections) =
            (Duration::ZERO, Some(TRIAL_RUNTIME), step.volumes.0);
        let begun = Instant::now();
        if self.run_step(&short, progress, &moment, &mut aside).is_ok() {
            let connecting = timing.load_overhead("", short.connections) - timing.load_overhead("", 0);
            let took = begun.elapsed().saturating_sub(TRIAL_RUNTIME).saturating_sub(connecting);
            StepTiming::note_time(&mut timing.loads, &step.initiator, took);
        }
        timing.spent = progress.allowance.elapsed();
        timing
    }

    /// Steps whose systems speak the protocol and have the medium, and what is left out and why.
    fn possible_steps<'s>(&self, plan: &'s EvaluationPlan) -> (Vec<&'s Step>, Vec<String>) {
        let mut notes: Vec<String> = Vec::new();
        let mut note = |text: String| {
            if !notes.contains(&text) {
                notes.push(text);
            }
        };
        let mut steps = Vec::new();
        for step in &plan.steps {
            let protocol = step.protocol.name();
            let (Ok(target), Ok(initiator)) =
                (self.find_target(&step.target), self.find_initiator(&step.initiator))
            else {
                note(format!("target {} or initiator {} is unknown", step.target, step.initiator));
                continue;
            };
            if step.protocol != Protocol::Local && !target.protocols().contains(&step.protocol) {
                note(format!("{} does not speak {protocol}: left out", target.name()));
            } else if step.protocol != Protocol::Local && !target.supports_medium(step.medium) {
                note(format!("{} has no null volumes: left out", target.name()));
            } else if !initiator.protocols().contains(&step.protocol) {
                note(format!("initiator {} does not support {protocol}: left out", initiator.name()));
            } else if let Some(why) = initiator.unsupported_reason(&step.job).filter(|_| step.rate.is_some())
            {
                note(format!("initiator {} has no loads at a rate: {why}", initiator.name()));
            } else if let Some(why) = initiator.unsupported_reason(&step.job) {
                note(format!("initiator {} cannot do {}: {why}", initiator.name(), step.job.name));
            } else {
                steps.push(step);
            }
        }
        (steps, notes)
    }

    fn run_step(
        &mut self,
        step: &Step,
        progress: &mut PlanProgress,
        moment: &StepProgress,
        record: &mut Record,
    ) -> Result<Run, Failure> {
        if step.protocol == Protocol::Local {
            progress.testbed = None;
            return block_load::run_local_load(self, step, moment, record);
        }
        let key = TargetKey::of(step);
        if progress.testbed.as_ref().is_none_or(|(known, _)| *known != key) {
            // Two targets must not have the memory, or the cores, at once.
            progress.testbed = None;
            let (made, _) = self.start_target(step, progress.connections, record)?;
            progress.testbed = Some((key, made));
        }
        let Some((_, testbed)) = &progress.testbed else {
            return Err(Failure::new("no target serves"));
        };
        match step.rate {
            Some(percent) => {
                let step = with_absolute_rate(step, (percent, self.link_mtu(step)), record)?;
                block_load::run_load(self, &step, testbed, moment, record)
            }
            None => block_load::run_load(self, step, testbed, moment, record),
        }
    }

    /// Starts a target that may have so many connections and fills its volumes; says how long either took.
    fn start_target(
        &mut self,
        step: &Step,
        connections: u32,
        record: &mut Record,
    ) -> Result<(Testbed, (Duration, Duration)), Failure> {
        let begun = Instant::now();
        let link = match &self.machines {
            Some(machines) => Link::over_network(machines),
            None => Link::create(step.wire, initiator_host_count(step, record))?,
        };
        let target = self.find_target(&step.target)?;
        let cores = self.cores.target_cores(step.cores);
        let targets = Preset::find(&record.preset).and_then(|preset| preset.targets);
        if let Some(count) =
            targets.filter(|_| step.protocol == Protocol::Iscsi && !target.supports_multi_lun())
        {
            let note = format!(
                "{} serves each volume as a target of its own: the experiment has {count} targets",
                step.target
            );
            record.notes.extend((!record.notes.contains(&note)).then_some(note));
        }
        let targets = targets.filter(|_| target.supports_multi_lun());
        let setup = TargetSetup {
            place: link.target_place(),
            listen: link.listen_address(),
            addresses: link.addresses(),
            protocol: step.protocol,
            volumes: step.volumes,
            targets,
            medium: step.medium,
            connections,
            cores: &cores,
            dir: &self.dir,
        };
        let serving = target.start(&setup)?;
        for command in &serving.commands {
            note_command(record, command);
        }
        note_configuration(record, &step.target, &serving);
        let testbed = Testbed { serving, link };
        let started = begun.elapsed();
        // The bare responder has written its memory by itself.
        if step.medium != VolumeMedium::Null && step.target != "url" && step.protocol != Protocol::Bare {
            block_load::fill_volumes(self, &testbed)?;
            return Ok((testbed, (started, begun.elapsed() - started)));
        }
        Ok((testbed, (started, Duration::ZERO)))
    }

    /// This machine, the versions of what runs on it, and which cores are whose.
    fn machine_facts(&self, plan: &EvaluationPlan) -> Vec<Machine> {
        let mut all = match &self.machines {
            None => vec![machine_facts(&CommandLocation::Here, "target and initiator")],
            Some(machines) => machine_roles(machines, plan)
                .into_iter()
                .map(|(place, role)| machine_facts(place, role))
                .collect(),
        };
        let far = |machines: &RemoteMachines| machines.target.clone().unwrap_or(CommandLocation::Here);
        let near =
            |machines: &RemoteMachines| machines.initiators.first().cloned().unwrap_or(CommandLocation::Here);
        let (far, near) =
            self.machines.as_ref().map_or((CommandLocation::Here, CommandLocation::Here), |machines| {
                (far(machines), near(machines))
            });
        let Some(here) = all.first_mut() else {
            return all;
        };
        let mut targets: Vec<&str> = plan.steps.iter().map(|step| step.target.as_str()).collect();
        let mut initiators: Vec<&str> = plan.steps.iter().map(|step| step.initiator.as_str()).collect();
        for names in [&mut targets, &mut initiators] {
            names.sort_unstable();
            names.dedup();
        }
        let version =
            |role: &str, name: &str, version: Option<String>| Some((format!("{role} {name}"), version?));
        let targets = targets
            .into_iter()
            .filter_map(|name| version("target", name, self.find_target(name).ok()?.version(&far)));
        let initiators = initiators
            .into_iter()
            .filter_map(|name| version("initiator", name, self.find_initiator(name).ok()?.version(&near)));
        let versions: Vec<(String, String)> = targets.chain(initiators).collect();
        let list = |cores: &[usize]| {
            let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
            if cores.is_empty() { "all".to_owned() } else { cores.join(", ") }
        };
        here.facts.push(("target's cores".to_owned(), list(&self.cores.target)));
        here.facts.push(("initiators' cores".to_owned(), list(&self.cores.initiator)));
        here.facts.extend(versions);
        all
    }
}

/// Which machines are which end's: the target's is this one unless another is named, and is not known of what
/// serves already.
fn machine_roles<'m>(
    machines: &'m RemoteMachines,
    plan: &EvaluationPlan,
) -> Vec<(&'m CommandLocation, &'static str)> {
    let target = machines.target.as_ref().unwrap_or(&CommandLocation::Here);
    let is_known = machines.target.is_some() || plan.steps.iter().any(|step| step.target != "url");
    if is_known && machines.initiators.iter().all(|place| place == target) {
        return vec![(target, "target and initiator")];
    }
    let initiators = machines.initiators.iter().map(|place| (place, "initiator"));
    is_known.then_some((target, "target")).into_iter().chain(initiators).collect()
}

/// Initiator machines of a step: as its preset says, at most one for each thread and volume.
pub(crate) fn initiator_host_count(step: &Step, record: &Record) -> u32 {
    let wanted = Preset::find(&record.preset).map_or(1, |preset| preset.hosts);
    wanted.min(step.job.threads).min(step.volumes.0).max(1)
}

/// Each once, in their order.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut known, one| {
        if !known.contains(&one) {
            known.push(one);
        }
        known
    })
}

/// What a step is, in a line.
fn step_text(step: &Step) -> String {
    let wire = match step.wire {
        Wire::Loopback => String::new(),
        wire => format!(", {}", block_load::wire_name(wire)),
    };
    let connections = match step.connections == step.volumes.0 {
        true => String::new(),
        false => format!(", {} connections", step.connections),
    };
    let medium = match step.medium {
        VolumeMedium::Ram => String::new(),
        medium => format!(", {}", medium.name()),
    };
    let cores = step.cores.map_or(String::new(), |cores| format!(", {cores} cores"));
    format!(
        "{} / {} ({}{wire}{connections}{medium}{cores}) {}",
        step.target,
        step.initiator,
        step.protocol.name(),
        step.job.name
    )
}

/// The step with its rate as a part of what the same systems did under the same load without one.
fn with_absolute_rate(step: &Step, (percent, mtu): (u8, u32), record: &Record) -> Result<Step, Failure> {
    let all = empty_point(record, &Step { rate: None, ..step.clone() }, mtu);
    let most = record.points.iter().find(|known| {
        (&known.target, &known.initiator, &known.protocol, &known.rw)
            == (&all.target, &all.initiator, &all.protocol, &all.rw)
            && (known.bytes, known.depth, known.connections) == (all.bytes, all.depth, all.connections)
            && (known.mtu, &known.labels) == (all.mtu, &all.labels)
            && known.is_closed
    });
    let most = most.and_then(|point| point.iops());
    let most = most.ok_or_else(|| Failure::new("what it does at most was not measured"))?.median;
    let each = most * f64::from(percent) / 100.0 / f64::from(step.job.threads.max(1));
    let rate = |part: f64| Rate::Iops(((each * part) as u64).max(1));
    let rate = match step.job.direction {
        IoDirection::Read => (Some(rate(1.0)), None),
        IoDirection::Write | IoDirection::Trim => (None, Some(rate(1.0))),
        IoDirection::Mixed(reads) => {
            let reads = f64::from(reads) / 100.0;
            (Some(rate(reads)), Some(rate(1.0 - reads)))
        }
    };
    Ok(Step { job: Job { rate, ..step.job.clone() }, ..step.clone() })
}

/// A step's point, without runs.
fn empty_point(record: &Record, step: &Step, mtu: u32) -> Point {
    let preset = Preset::find(&record.preset);
    let mut labels = Vec::new();
    if preset.is_some_and(|preset| preset.media.len() > 1) {
        labels.push(("volume".to_owned(), step.medium.name().to_owned()));
    }
    labels.extend(block_load::rate_limit_text(step.wire).map(|limit| ("limit".to_owned(), limit)));
    labels.extend(step.cores.map(|cores| (varied::CORES_PARAMETER.to_owned(), cores.to_string())));
    if preset.is_some_and(|preset| !preset.shapes.is_empty()) {
        labels.push((varied::THREADS_PARAMETER.to_owned(), step.job.threads.to_string()));
    }
    labels.extend(step.rate.map(|percent| (varied::RATE_PARAMETER.to_owned(), format!("{percent} %"))));
    Point {
        target: step.target.clone(),
        initiator: step.initiator.clone(),
        protocol: step.protocol.name().to_owned(),
        rw: fio_rw_word(step.job.direction, step.job.is_random).to_owned(),
        bytes: u64::from(step.job.block.0),
        depth: step.job.depth * step.job.threads,
        connections: step.connections,
        mtu,
        labels,
        is_closed: step.rate.is_none() && step.job.rate == (None, None),
        ..Point::default()
    }
}

fn add_run(record: &mut Record, step: &Step, mtu: u32, run: Run) {
    let fresh = empty_point(record, step, mtu);
    add_runs(record, Point { runs: vec![run], ..fresh });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of one machine is one of both ends on it: they share its interrupts, and readers are told.
    #[test]
    fn a_target_here_and_initiators_elsewhere_are_never_one_machine() {
        let step = |target: &str| Step {
            target: target.to_owned(),
            initiator: "blockwire".to_owned(),
            protocol: Protocol::Iscsi,
            wire: Wire::Loopback,
            volumes: (1, 1 << 20),
            medium: VolumeMedium::Ram,
            connections: 1,
            cores: None,
            job: Job::default(),
            rate: None,
            round: 0,
        };
        let plan = |target: &str| EvaluationPlan {
            preset: Preset::find("quick").unwrap(),
            steps: vec![step(target)],
            time: None,
            notes: Vec::new(),
        };
        let load = CommandLocation::Ssh(crate::place::SshMachine::new(
            vec!["true".to_owned()],
            "load",
            std::path::Path::new("none"),
        ));
        let roles = |initiators: Vec<CommandLocation>, target: &str| {
            let machines = RemoteMachines { initiators, ..RemoteMachines::default() };
            machine_roles(&machines, &plan(target)).into_iter().map(|(_, role)| role).collect::<Vec<_>>()
        };
        assert_eq!(roles(vec![load.clone()], "tgt"), ["target", "initiator"]);
        assert_eq!(roles(vec![load], "url"), ["initiator"], "where it serves nobody said");
        assert_eq!(roles(vec![CommandLocation::Here], "tgt"), ["target and initiator"]);
    }
}
