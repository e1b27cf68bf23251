//! Scales a preset to the machine.

mod ceiling;
mod frame;
mod mixed_traffic;

use std::time::Duration;

use self::ceiling::{CeilingContext, ceiling_steps};
use self::frame::{PlanFrame, fit_frame};
pub use self::mixed_traffic::{MixedTrafficPlan, mixed_traffic_plan};
use super::error::{NetworkNamespaceError, PlanError};
use super::timing::{StepTiming, SystemCombination, ramp_time, round_steps, steps_overhead};
use super::{
    BARE_POLLING_SYSTEM, BARE_SYSTEM, EvaluationPlan, ExperimentKind, Preset, PresetLoad, Protocol, Step,
    SystemPairing, VolumeMedium, Wire, fio_rw_word,
};
use crate::fio::{IoDirection, Job, JobSize, Rate};

/// What the machine at hand has to give.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCapacity {
    /// Processors.
    pub cores: usize,
    /// Bytes of memory that are free.
    pub memory: u64,
    /// Open files that a process may have.
    pub files: u64,
    /// Ports that connections to one address and port may come from.
    pub ports: u64,
    /// Whether network namespaces can be made; else why not.
    pub namespaces: Result<(), NetworkNamespaceError>,
    /// Targets that can be started, and initiators.
    pub targets: Vec<String>,
    /// Initiators that are installed.
    pub initiators: Vec<String>,
    /// Links instead of those that presets have; empty: theirs.
    pub wires: Vec<Wire>,
    /// How long all of it may take under [`Scale::Auto`], from the first start to the last end.
    pub time: Duration,
    /// What is known of how long starting and filling take.
    pub timing: StepTiming,
}

/// How much of a preset's own size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// The ends of each range only, a tenth of a second each, once: whether it works at all.
    Smallest,
    /// As much as fits the machine and its time.
    Auto,
    /// This part of times and sizes: above 0, at most 1.
    Part(f64),
}

/// Smallest volume: larger than a processor's caches.
const VOLUME_BYTES_MIN: u64 = 64 << 20;
/// Smallest of many volumes, which are larger than caches together.
const VOLUME_OF_MANY_BYTES_MIN: u64 = 16 << 20;
/// Bytes of all volumes together under [`Scale::Auto`]: each start of a target fills them, which is to take
/// a second or two; where the machine is slower than that, they are smaller.
const FILLED_BYTES_MAX: u64 = 2 << 30;
const FILLING_SECONDS_MAX: f64 = 3.0;

/// What a process opens beside its connections, and ports that others may have.
const SPARE_DESCRIPTORS: u64 = 256;
const SPARE_PORTS: u64 = 512;
/// Links of a core of our target and of our initiator, and how many of them are kept free for links that are
/// made again.
const LINKS_PER_CORE: u64 = 128 << 10;
const SPARE_LINKS: u64 = 128;
/// Most connections at the smallest scale.
const CONNECTIONS_SMALLEST: u32 = 64;
/// Most volumes at the smallest scale.
const VOLUMES_SMALLEST: u32 = 4;

/// The part of a preset that the smallest scale stands for where a runner has nothing smaller of its own.
const SMALLEST_PART: f64 = 1e-4;

impl Scale {
    /// As runners that know only two kinds have it: to fit, or a part.
    #[must_use]
    pub fn requested_part(self) -> Option<f64> {
        match self {
            Scale::Auto => None,
            Scale::Smallest => Some(SMALLEST_PART),
            Scale::Part(part) => Some(part),
        }
    }
}

struct FittingNotes {
    notes: Vec<String>,
}

impl FittingNotes {
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// What will be done of a preset, on this machine, with these systems.
///
/// # Errors
/// If nothing of it can be done here: why, and what to install or to change.
pub fn fit_plan(
    preset: &'static Preset,
    room: &HostCapacity,
    scale: Scale,
    targets: &[String],
    initiators: &[String],
) -> Result<EvaluationPlan, PlanError> {
    if preset.kind != ExperimentKind::Block {
        return Err(PlanError::OtherRunner(preset.id));
    }
    let mut fitting = FittingNotes { notes: Vec::new() };
    let pairs = system_pairs(preset, room, targets, initiators, &mut fitting)?;
    let wires = ends_at_smallest_scale(fit_wires(preset, room, &mut fitting)?, scale, "links", &mut fitting);
    let volumes = fit_volumes(preset, room, scale, &mut fitting);
    let cores = core_counts(preset, room, scale, &mut fitting);
    let mut combinations = Vec::new();
    for (target, initiator) in &pairs {
        for &protocol in preset.protocols {
            // Local I/O has neither target nor wire: once, not for every pair.
            let is_first = pairs.first().is_some_and(|first| (target, initiator) == (&first.0, &first.1));
            if protocol == Protocol::Local && !is_first {
                continue;
            }
            for &wire in wires.iter().take(if protocol == Protocol::Local { 1 } else { wires.len() }) {
                for connections in fit_connections(preset, protocol, room, scale, volumes.0, &mut fitting) {
                    for &medium in preset.media {
                        combinations.extend(cores.iter().map(|&cores| SystemCombination {
                            target: target.clone(),
                            initiator: initiator.clone(),
                            protocol,
                            wire,
                            connections,
                            medium,
                            cores,
                        }));
                    }
                }
            }
        }
    }
    let beside = CeilingContext { pairs: &pairs, wires: &wires, volumes: volumes.0, cores: &cores };
    combinations.extend(ceiling_steps(preset, room, scale, &beside, &mut fitting));
    let loads = fit_loads(preset, scale, &mut fitting);
    let around_of = |frame: &PlanFrame| {
        let steps =
            round_steps(0, &frame.wires, &frame.loads, &combinations, frame.turns, &room.timing.left_out);
        (
            steps_overhead(steps.iter().map(|(_, combination)| *combination), volumes, &room.timing),
            steps.len(),
        )
    };
    let frame =
        fit_frame(preset, room, scale, PlanFrame::of_preset(preset, wires, loads), &around_of, &mut fitting);
    let mut steps = Vec::new();
    for number in 0..frame.rounds {
        for (load, combination) in
            round_steps(number, &frame.wires, &frame.loads, &combinations, frame.turns, &room.timing.left_out)
        {
            let SystemCombination { target, initiator, protocol, wire, connections, medium, cores } =
                combination.clone();
            let (job, rate) = (load_job(preset, load, frame.runtime, volumes, connections), load.rate);
            let (round, job) = (number, Job { seed: round_seed(number), ..job });
            steps.push(Step {
                target,
                initiator,
                protocol,
                wire,
                volumes,
                medium,
                connections,
                cores,
                job,
                rate,
                round,
            });
        }
    }
    let time = (scale == Scale::Auto).then_some(room.time);
    Ok(EvaluationPlan { preset, steps, time, notes: fitting.notes })
}

/// Where the offsets of a round come from: all systems get the same in a round, and others in the next. Initiator
/// machines count on from it.
pub fn round_seed(round: u32) -> u64 {
    Job::default().seed + (u64::from(round) << 16)
}

/// How long a preset takes with our own systems on a machine where all of it fits: as its paper had it, and
/// at least. `None`: it does a job instead of running for a time, or a machine boots; that is found out as
/// it runs.
pub fn preset_durations(preset: &'static Preset) -> Option<(Duration, Duration)> {
    let ours = vec!["blockwire".to_owned()];
    let room = HostCapacity {
        cores: 64,
        memory: 1 << 40,
        files: 1 << 20,
        ports: 1 << 20,
        namespaces: Ok(()),
        targets: [ours.clone(), vec![BARE_SYSTEM.to_owned()]].concat(),
        initiators: [ours.clone(), vec![BARE_SYSTEM.to_owned()]].concat(),
        wires: Vec::new(),
        time: Duration::ZERO,
        timing: StepTiming::default(),
    };
    let at = |scale| match preset.kind {
        ExperimentKind::Block => {
            Some(fit_plan(preset, &room, scale, &ours, &ours).ok()?.duration(&room.timing))
        }
        ExperimentKind::MixedTraffic => {
            let mixed = mixed_traffic_plan(preset, &room, scale).ok()?;
            let kinds = preset.protocols.len() as u32;
            let job =
                |job: &Job| job.ramp + job.runtime.unwrap_or_default() + room.timing.load_overhead("", 1);
            let loads = mixed.jobs.iter().map(job).sum::<Duration>() * mixed.rounds * (kinds + 1);
            let starts = room.timing.target_start_time("", preset.volumes, VolumeMedium::Ram) * kinds;
            Some((loads + starts) * mixed.wires.len() as u32)
        }
        ExperimentKind::Oltp { .. } | ExperimentKind::Machine => None,
    };
    Some((at(Scale::Part(1.0))?, at(Scale::Auto)?))
}

/// At the smallest scale, the first and the last of a range.
fn ends_at_smallest_scale<T: Copy + PartialEq>(
    all: Vec<T>,
    scale: Scale,
    what: &str,
    fitting: &mut FittingNotes,
) -> Vec<T> {
    if scale != Scale::Smallest || all.len() <= 2 {
        return all;
    }
    fitting.note(format!("of {} {what}, the first and the last are used", all.len()));
    all.first().into_iter().chain(all.last()).copied().collect()
}

/// The loads, at the smallest scale those of the smallest and the largest I/O.
fn fit_loads(preset: &Preset, scale: Scale, fitting: &mut FittingNotes) -> Vec<PresetLoad> {
    let sizes = ends_at_smallest_scale(preset.sizes.to_vec(), scale, "I/O sizes", fitting);
    let shapes = ends_at_smallest_scale(preset.shapes.to_vec(), scale, "depths and threads", fitting);
    let rates = ends_at_smallest_scale(preset.rates.to_vec(), scale, "rates", fitting);
    let mut loads = preset.loads();
    loads.retain(|load| {
        sizes.contains(&load.bytes)
            && (shapes.is_empty() || shapes.contains(&(load.depth, load.threads / preset.hosts)))
            && load.rate.is_none_or(|rate| rates.contains(&rate))
    });
    loads
}

/// Numbers of processors that the target has in turn; `None`: those that are its own. Beyond the half of the machine
/// that is the target's it has some that initiators have too.
fn core_counts(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    fitting: &mut FittingNotes,
) -> Vec<Option<u32>> {
    if !preset.scales_cores {
        return vec![None];
    }
    let all = u32::try_from(room.cores).unwrap_or(u32::MAX).max(1);
    let doubled = std::iter::successors(Some(1u32), |count| count.checked_mul(2));
    let mut counts: Vec<u32> = doubled.take_while(|count| *count < all).collect();
    counts.push(all);
    if all > 1 {
        fitting.note(format!(
            "with more than {} of {all} processors the target has some that initiators have too",
            (all / 2).max(1)
        ));
    }
    ends_at_smallest_scale(counts, scale, "numbers of processors", fitting).into_iter().map(Some).collect()
}

/// Our initiator, which sleeps when nothing comes, and the same polling first.
const OWN_INITIATOR: &str = "blockwire";
const OWN_POLLING_INITIATOR: &str = "blockwire-polling";

fn system_pairs(
    preset: &Preset,
    room: &HostCapacity,
    targets: &[String],
    initiators: &[String],
    fitting: &mut FittingNotes,
) -> Result<Vec<(String, String)>, PlanError> {
    let mut known = |wanted: &[String], there: &[String], what: &str| -> Vec<String> {
        let missing = wanted.iter().filter(|name| !there.contains(name));
        for name in missing {
            fitting.note(format!("{what} {name} is not installed here and was left out"));
        }
        wanted.iter().filter(|name| there.contains(name)).cloned().collect()
    };
    // The ceiling is beside all pairs, and is none of them.
    let named = |names: &[String]| -> Vec<String> {
        names
            .iter()
            .filter(|name| ![BARE_SYSTEM, BARE_POLLING_SYSTEM].contains(&name.as_str()))
            .cloned()
            .collect()
    };
    let targets = known(&named(targets), &room.targets, "target");
    let mut initiators = known(&named(initiators), &room.initiators, "initiator");
    // With one I/O at a time waiting is what is measured: every target meets both ways to wait.
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    if preset.is_queue_depth_one()
        && has(&initiators, OWN_INITIATOR)
        && !has(&initiators, OWN_POLLING_INITIATOR)
        && has(&room.initiators, OWN_POLLING_INITIATOR)
    {
        initiators.push(OWN_POLLING_INITIATOR.to_owned());
    }
    let pairs: Vec<(String, String)> = match preset.pairing {
        SystemPairing::All => {
            targets.iter().flat_map(|t| initiators.iter().map(move |i| (t.clone(), i.clone()))).collect()
        }
        SystemPairing::ThreeSetUps => {
            let software = |all: &[String]| all.iter().find(|name| !name.starts_with(OWN_INITIATOR)).cloned();
            let ours = OWN_INITIATOR.to_owned();
            let mut pairs = Vec::new();
            pairs.extend(software(&targets).map(|target| (target, ours.clone())));
            pairs.extend(software(&initiators).map(|initiator| (ours.clone(), initiator)));
            pairs.push((ours.clone(), ours));
            if pairs.len() < 3 {
                fitting.note(
                    "one of the three set-ups is left out: it needs a software target and a software \
                    initiator beside ours, for example --target blockwire,tgt --initiator blockwire,libiscsi"
                        .to_owned(),
                );
            }
            pairs
        }
    };
    if pairs.is_empty() {
        let (targets, initiators) = (room.targets.clone(), room.initiators.clone());
        return Err(PlanError::NoSystems { targets, initiators });
    }
    Ok(pairs)
}

fn fit_wires(
    preset: &Preset,
    room: &HostCapacity,
    fitting: &mut FittingNotes,
) -> Result<Vec<Wire>, PlanError> {
    let is_held = |wire: &Wire| matches!(wire, Wire::Limited { .. } | Wire::Congested { .. });
    if !room.wires.is_empty() && preset.wires.iter().any(is_held) {
        return Err(PlanError::OwnLinks(preset.id));
    }
    let wanted = if room.wires.is_empty() { preset.wires } else { &room.wires };
    if wanted != preset.wires {
        fitting.note("links are those that were asked for, not the preset's".to_owned());
    }
    let Err(why) = &room.namespaces else { return Ok(wanted.to_vec()) };
    let left: Vec<Wire> = wanted.iter().copied().filter(|wire| *wire == Wire::Loopback).collect();
    if left.len() < wanted.len() {
        fitting
            .note(format!("virtual links are left out: network namespaces cannot be created here ({why})"));
    }
    if left.is_empty() {
        if preset.wires.iter().any(|wire| matches!(wire, Wire::Congested { .. })) {
            return Err(PlanError::NoLinks(preset.id, why.clone()));
        }
        fitting.note("it runs over loopback instead".to_owned());
        return Ok(vec![Wire::Loopback]);
    }
    Ok(left)
}

fn fit_volumes(preset: &Preset, room: &HostCapacity, scale: Scale, fitting: &mut FittingNotes) -> (u32, u64) {
    let (count, bytes) = preset.volumes;
    if preset.media.iter().all(|medium| *medium == VolumeMedium::Null) {
        return (count, bytes);
    }
    // A target holds the volumes once, and other systems' targets run while it is torn down.
    let most = (room.memory / 3).min(FILLED_BYTES_MAX);
    let most = most.min((room.timing.filled * FILLING_SECONDS_MAX) as u64);
    let least = (VOLUME_BYTES_MIN / u64::from(count)).max(VOLUME_OF_MANY_BYTES_MIN);
    let (count, each) = match scale {
        Scale::Smallest => (count.min(VOLUMES_SMALLEST), VOLUME_BYTES_MIN),
        Scale::Auto if u64::from(count) * bytes <= most => (count, bytes),
        Scale::Auto => {
            let each = (most / u64::from(count)).max(least);
            let fit = u32::try_from(room.memory / 3 / each).unwrap_or(count).clamp(1, count);
            (fit, each & !((1 << 20) - 1))
        }
        Scale::Part(part) => (count, ((bytes as f64 * part) as u64).max(VOLUME_BYTES_MIN) & !((1 << 20) - 1)),
    };
    if (count, each) != preset.volumes {
        fitting.note(format!(
            "{} volumes of {} MiB were wanted; {count} of {} MiB are used",
            preset.volumes.0,
            preset.volumes.1 >> 20,
            each >> 20
        ));
    }
    (count, each)
}

fn fit_connections(
    preset: &Preset,
    protocol: Protocol,
    room: &HostCapacity,
    scale: Scale,
    volumes: u32,
    fitting: &mut FittingNotes,
) -> Vec<u32> {
    if preset.connections.is_empty() {
        return vec![volumes];
    }
    let (links, cores) = (u64::from(protocol.links_per_connection().max(1)), (room.cores as u64 / 2).max(1));
    // Each link is a descriptor at either end, which may be one process's limit, a port at one, and has a place
    // on a core of ours; half of the cores are either end's. Links that are made again need some room.
    let relogin_room = SPARE_LINKS * (links - 1);
    let limits = [
        (
            room.files.saturating_sub(SPARE_DESCRIPTORS),
            format!("a process may open {} files (ulimit -n)", room.files),
        ),
        (
            room.ports.saturating_sub(SPARE_PORTS),
            format!("there are {} ports to come from (sysctl net.ipv4.ip_local_port_range)", room.ports),
        ),
        (
            LINKS_PER_CORE * cores - relogin_room,
            format!("each end has {cores} of the cores, and a core of ours carries {LINKS_PER_CORE} links"),
        ),
    ];
    let (least, why) = limits.into_iter().min_by_key(|(limit, _)| *limit).unwrap_or_default();
    let most = u32::try_from(least / links).unwrap_or(u32::MAX).max(1);
    let mut fits: Vec<u32> = preset.connections.iter().map(|count| (*count).min(most)).collect();
    fits.dedup();
    for wanted in preset.connections.iter().filter(|wanted| **wanted > most) {
        let more = if links > 1 { ", each with a second one for its admin queue" } else { "" };
        fitting.note(format!(
            "{wanted} connections were wanted; over {} {most} are used{more}, since {why}",
            protocol.name()
        ));
    }
    if scale == Scale::Smallest {
        fitting.note(format!("at most {CONNECTIONS_SMALLEST} connections are used"));
        let mut few: Vec<u32> = fits.into_iter().map(|count| count.min(CONNECTIONS_SMALLEST)).collect();
        few.dedup();
        return few;
    }
    fits
}

/// What a load is called: its direction, its size, and what else tells it from others of the preset.
fn load_name(preset: &Preset, load: &PresetLoad) -> String {
    let mut name = format!("{}-{}", fio_rw_word(load.direction, load.is_random), load.bytes);
    if !preset.shapes.is_empty() {
        name += &format!("-{}x{}", load.depth, load.threads);
    }
    load.rate.map_or(name.clone(), |rate| format!("{name}-{rate}%"))
}

/// A load as a job. Where connections are what is varied, each has a thread of its own.
fn load_job(
    preset: &Preset,
    load: &PresetLoad,
    runtime: Duration,
    volumes: (u32, u64),
    connections: u32,
) -> Job {
    // A rate that is not known yet tells those that know none.
    let rate = load.rate.map(|_| Rate::Iops(1));
    let rate = match load.direction {
        IoDirection::Read => (rate, None),
        IoDirection::Write | IoDirection::Trim => (None, rate),
        IoDirection::Mixed(_) => (rate, rate),
    };
    let threads = if preset.connections.is_empty() { load.threads } else { load.threads.max(connections) };
    Job {
        name: load_name(preset, load),
        rate,
        direction: load.direction,
        is_random: load.is_random,
        block: (load.bytes, load.bytes),
        depth: load.depth,
        threads: threads.max(1),
        file_size: Some(JobSize::Bytes(volumes.1)),
        runtime: Some(runtime),
        is_time_based: true,
        ramp: ramp_time(runtime),
        covers: false,
        flushes_at_end: preset.paper == Some("t6-100g"),
        is_grouped: true,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests;
