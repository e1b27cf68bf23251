//! Making of a preset what the machine can do.

use std::time::Duration;

use super::{Kind, Load, Medium, Pairing, Plan, Preset, Protocol, Step, Wire, word};
use crate::fio::{Amount, Job};

/// What the machine at hand has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Processors.
    pub cores: usize,
    /// Bytes of memory that are free.
    pub memory: u64,
    /// Open files that a process may have.
    pub files: u64,
    /// Whether network namespaces can be made; else why not.
    pub namespaces: Result<(), String>,
    /// Targets that can be started, and initiators.
    pub targets: Vec<String>,
    /// Initiators that are installed.
    pub initiators: Vec<String>,
    /// How long all loads together may run under [`Scale::Auto`].
    pub time: Duration,
}

/// How much of a preset's own size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// The ends of each range only, a fifth of a second each, once: whether it works at all.
    Smallest,
    /// As much as fits the machine and its time.
    Auto,
    /// This part of times and sizes: above 0, at most 1.
    Part(f64),
}

/// Shortest run that tells anything.
const RUNTIME_MIN: Duration = Duration::from_millis(500);
/// Smallest volume: larger than a processor's caches.
const VOLUME_MIN: u64 = 64 << 20;
/// Bytes of all volumes together under [`Scale::Auto`]: each start of a target fills them, which is to take
/// a second or two.
const FILLED_MAX: u64 = 2 << 30;

/// How long a load runs at the smallest scale.
const RUNTIME_SMALLEST: Duration = Duration::from_millis(200);
/// Most connections at the smallest scale.
const CONNECTIONS_SMALLEST: u32 = 64;
/// Most volumes at the smallest scale.
const VOLUMES_SMALLEST: u32 = 4;

/// The part of a preset that the smallest scale stands for where a runner has nothing smaller of its own.
const SMALLEST: f64 = 1e-4;

impl Scale {
    /// As runners that know only two kinds have it: to fit, or a part.
    #[must_use]
    pub fn or_part(self) -> Option<f64> {
        match self {
            Scale::Auto => None,
            Scale::Smallest => Some(SMALLEST),
            Scale::Part(part) => Some(part),
        }
    }
}

struct Fitting {
    notes: Vec<String>,
}

impl Fitting {
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
pub fn plan(
    preset: &'static Preset,
    room: &Room,
    scale: Scale,
    targets: &[String],
    initiators: &[String],
) -> Result<Plan, String> {
    if preset.kind != Kind::Block {
        return Err(format!("{} is not a load on volumes alone: it has a runner of its own", preset.id));
    }
    let mut fitting = Fitting { notes: Vec::new() };
    let pairs = pairs(preset, room, targets, initiators, &mut fitting)?;
    let wires = ends(wires(preset, room, &mut fitting)?, scale, "links", &mut fitting);
    let volumes = volumes(preset, room, scale, &mut fitting);
    let connections = connections(preset, room, scale, volumes.0, &mut fitting);
    let mut each = Vec::new();
    for (target, initiator) in &pairs {
        for &protocol in preset.protocols {
            // Local I/O has neither target nor wire: once, not for every pair.
            if protocol == Protocol::Local && (target, initiator) != (&pairs[0].0, &pairs[0].1) {
                continue;
            }
            for &wire in if protocol == Protocol::Local { &wires[..1] } else { &wires[..] } {
                for &connections in &connections {
                    for &medium in preset.media {
                        each.push((target, initiator, protocol, wire, connections, medium));
                    }
                }
            }
        }
    }
    let loads = loads(preset, scale, &mut fitting);
    let (runtime, rounds) = time(preset, room, scale, each.len() * loads.len(), &mut fitting);
    let mut steps = Vec::new();
    for round in 0..rounds {
        // A link is kept for all loads of a round; systems take turns on it under each load.
        for &over in &wires {
            for load in &loads {
                for &(target, initiator, protocol, wire, connections, medium) in
                    each.iter().filter(|(_, _, _, wire, _, _)| *wire == over)
                {
                    let job = job(preset, load, runtime, volumes, connections);
                    let (target, initiator) = (target.clone(), initiator.clone());
                    steps.push(Step {
                        target,
                        initiator,
                        protocol,
                        wire,
                        volumes,
                        medium,
                        connections,
                        job,
                        round,
                    });
                }
            }
        }
    }
    Ok(Plan { preset, steps, notes: fitting.notes })
}

/// What is measured of a preset that has a runner of its own: its loads, without systems.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// What lies between.
    pub wires: Vec<Wire>,
    /// The loads.
    pub jobs: Vec<Job>,
    /// How often all is done.
    pub rounds: u32,
    /// What was changed to fit the machine.
    pub notes: Vec<String>,
}

/// The shape of a preset on this machine.
///
/// # Errors
/// If none of its links can be had here: why.
pub fn shape(preset: &'static Preset, room: &Room, scale: Scale) -> Result<Shape, String> {
    let mut fitting = Fitting { notes: Vec::new() };
    let wires = ends(wires(preset, room, &mut fitting)?, scale, "links", &mut fitting);
    let loads = loads(preset, scale, &mut fitting);
    // Each protocol alone, and all at once.
    let each = wires.len() * loads.len() * (preset.protocols.len() + 1);
    let (runtime, rounds) = time(preset, room, scale, each, &mut fitting);
    let jobs = loads.iter().map(|load| job(preset, load, runtime, preset.volumes, 1)).collect();
    Ok(Shape { wires, jobs, rounds, notes: fitting.notes })
}

/// At the smallest scale, the first and the last of a range.
fn ends<T: Copy + PartialEq>(all: Vec<T>, scale: Scale, what: &str, fitting: &mut Fitting) -> Vec<T> {
    if scale != Scale::Smallest || all.len() <= 2 {
        return all;
    }
    fitting.note(format!("of {} {what}, the first and the last are used", all.len()));
    all.first().into_iter().chain(all.last()).copied().collect()
}

/// The loads, at the smallest scale those of the smallest and the largest I/O.
fn loads(preset: &Preset, scale: Scale, fitting: &mut Fitting) -> Vec<Load> {
    let sizes = ends(preset.sizes.to_vec(), scale, "I/O sizes", fitting);
    let mut loads = preset.loads();
    loads.retain(|load| sizes.contains(&load.bytes));
    loads
}

fn pairs(
    preset: &Preset,
    room: &Room,
    targets: &[String],
    initiators: &[String],
    fitting: &mut Fitting,
) -> Result<Vec<(String, String)>, String> {
    let mut known = |wanted: &[String], there: &[String], what: &str| -> Vec<String> {
        let missing = wanted.iter().filter(|name| !there.contains(name));
        for name in missing {
            fitting.note(format!("{what} {name} is not installed here and was left out"));
        }
        wanted.iter().filter(|name| there.contains(name)).cloned().collect()
    };
    let targets = known(targets, &room.targets, "target");
    let initiators = known(initiators, &room.initiators, "initiator");
    let pairs: Vec<(String, String)> = match preset.pairing {
        Pairing::All => {
            targets.iter().flat_map(|t| initiators.iter().map(move |i| (t.clone(), i.clone()))).collect()
        }
        Pairing::ThreeSetUps => {
            const OURS: &str = "blockwire";
            let software = |all: &[String]| all.iter().find(|name| *name != OURS).cloned();
            let ours = OURS.to_owned();
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
        let here =
            format!("targets: {}; initiators: {}", room.targets.join(", "), room.initiators.join(", "));
        return Err(format!("none of the systems that were named is here ({here})"));
    }
    Ok(pairs)
}

fn wires(preset: &Preset, room: &Room, fitting: &mut Fitting) -> Result<Vec<Wire>, String> {
    let Err(why) = &room.namespaces else { return Ok(preset.wires.to_vec()) };
    let left: Vec<Wire> = preset.wires.iter().copied().filter(|wire| *wire == Wire::Loopback).collect();
    if left.len() < preset.wires.len() {
        fitting.note(format!("virtual links are left out: network namespaces cannot be made here ({why})"));
    }
    if left.is_empty() {
        if preset.wires.iter().any(|wire| matches!(wire, Wire::Congested { .. })) {
            return Err(format!(
                "{} needs a link that can be congested, and network namespaces: {why}",
                preset.id
            ));
        }
        fitting.note("it runs over loopback instead".to_owned());
        return Ok(vec![Wire::Loopback]);
    }
    Ok(left)
}

fn volumes(preset: &Preset, room: &Room, scale: Scale, fitting: &mut Fitting) -> (u32, u64) {
    let (count, bytes) = preset.volumes;
    if preset.media.iter().all(|medium| *medium == Medium::Null) {
        return (count, bytes);
    }
    // A target holds the volumes once, and other systems' targets run while it is torn down.
    let most = (room.memory / 3).min(FILLED_MAX);
    let (count, each) = match scale {
        Scale::Smallest => (count.min(VOLUMES_SMALLEST), VOLUME_MIN),
        Scale::Auto if u64::from(count) * bytes <= most => (count, bytes),
        Scale::Auto => {
            let each = (most / u64::from(count)).max(VOLUME_MIN);
            let fit = u32::try_from(most / each).unwrap_or(count).clamp(1, count);
            (fit, each & !((1 << 20) - 1))
        }
        Scale::Part(part) => (count, ((bytes as f64 * part) as u64).max(VOLUME_MIN) & !((1 << 20) - 1)),
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

fn connections(preset: &Preset, room: &Room, scale: Scale, volumes: u32, fitting: &mut Fitting) -> Vec<u32> {
    if preset.connections.is_empty() {
        return vec![volumes];
    }
    // Each connection is a descriptor at either end, which may be one process's limit.
    let most = u32::try_from(room.files.saturating_sub(256)).unwrap_or(u32::MAX);
    let fits: Vec<u32> = preset.connections.iter().map(|count| (*count).min(most)).collect();
    for (wanted, fit) in preset.connections.iter().zip(&fits).filter(|(wanted, fit)| wanted != fit) {
        fitting.note(format!(
            "{wanted} connections were wanted; {fit} are used, since a process may open {} files (ulimit -n)",
            room.files
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

fn time(preset: &Preset, room: &Room, scale: Scale, loads: usize, fitting: &mut Fitting) -> (Duration, u32) {
    let (mut runtime, mut rounds) = (preset.runtime, preset.rounds);
    match scale {
        Scale::Smallest => (runtime, rounds) = (RUNTIME_SMALLEST, 1),
        Scale::Part(part) => runtime = runtime.mul_f64(part).max(RUNTIME_MIN),
        Scale::Auto => {
            let each = |rounds: u32| room.time.div_f64((loads * rounds as usize).max(1) as f64);
            while rounds > 1 && each(rounds) < RUNTIME_MIN * 2 {
                rounds -= 1;
            }
            runtime = runtime.min(each(rounds)).max(RUNTIME_MIN);
        }
    }
    if (runtime, rounds) != (preset.runtime, preset.rounds) {
        fitting.note(format!(
            "each load was to run for {:.1} s in {} rounds; it runs for {:.1} s in {rounds}",
            preset.runtime.as_secs_f64(),
            preset.rounds,
            runtime.as_secs_f64()
        ));
    }
    (runtime, rounds)
}

/// A load as a job. Where connections are what is varied, each has a thread of its own.
fn job(preset: &Preset, load: &Load, runtime: Duration, volumes: (u32, u64), connections: u32) -> Job {
    let threads = if preset.connections.is_empty() { load.threads } else { load.threads.max(connections) };
    Job {
        name: format!("{}-{}", word(load.direction, load.is_random), load.bytes),
        direction: load.direction,
        is_random: load.is_random,
        block: (load.bytes, load.bytes),
        depth: load.depth,
        threads: threads.max(1),
        file_size: Some(Amount::Bytes(volumes.1)),
        runtime: Some(runtime),
        is_time_based: true,
        ramp: (runtime / 10).min(Duration::from_secs(2)),
        covers: false,
        flushes_at_end: preset.paper == Some("t6-100g"),
        is_grouped: true,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::PRESETS;
    use super::*;
    use crate::published::published;

    fn room() -> Room {
        Room {
            cores: 2,
            memory: 20 << 30,
            files: 1024,
            namespaces: Ok(()),
            targets: vec!["blockwire".into(), "tgt".into()],
            initiators: vec!["blockwire".into(), "libiscsi".into()],
            time: Duration::from_secs(600),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_preset_is_of_a_paper_that_is_there() {
        let mut ids: Vec<&str> = PRESETS.iter().map(|preset| preset.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), PRESETS.len());
        for preset in PRESETS {
            let known = |id: &str| published().papers.iter().any(|paper| paper.id == id);
            assert!(preset.paper.is_none_or(known), "{}", preset.id);
        }
    }

    #[test]
    fn systems_take_turns_under_one_load() {
        let quick = Preset::find("quick").unwrap();
        let both = names(&["blockwire", "tgt"]);
        let plan = plan(quick, &room(), Scale::Part(1.0), &both, &names(&["blockwire"])).unwrap();
        // Two directions, two protocols, two targets, three rounds.
        assert_eq!(plan.steps.len(), 24);
        assert_eq!(plan.notes, Vec::<String>::new());
        for turn in plan.steps.chunks(4) {
            assert!(turn.iter().all(|step| step.job == turn[0].job && step.round == turn[0].round));
        }
    }

    #[test]
    fn what_does_not_fit_is_made_smaller_and_said() {
        let sweep = Preset::find("t6-100g-sweep").unwrap();
        let small = Room { memory: 6 << 30, namespaces: Err("not root".into()), ..room() };
        let plan =
            plan(sweep, &small, Scale::Auto, &names(&["blockwire", "spdk-iscsi"]), &names(&["blockwire"]))
                .unwrap();
        let said = plan.notes.join("\n");
        for word in ["spdk-iscsi is not installed", "not root", "18 of 113 MiB", "rounds"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(plan.steps.iter().all(|step| step.wire == Wire::Loopback && step.volumes.0 == 18));
        assert!(plan.duration() < Duration::from_secs(800), "{:?}", plan.duration());
        assert_eq!(plan.steps[0].job.threads, 60);
    }

    #[test]
    fn demartek_pairs_as_it_did() {
        let preset = Preset::find("demartek-vdbench").unwrap();
        let both = (names(&["blockwire", "tgt"]), names(&["blockwire", "libiscsi"]));
        let plan = plan(preset, &room(), Scale::Auto, &both.0, &both.1).unwrap();
        let mut pairs: Vec<(&str, &str)> =
            plan.steps.iter().map(|step| (step.target.as_str(), step.initiator.as_str())).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs, [("blockwire", "blockwire"), ("blockwire", "libiscsi"), ("tgt", "blockwire")]);
    }

    #[test]
    fn connections_stop_at_the_limit_of_files() {
        let preset = Preset::find("connections").unwrap();
        let plan =
            plan(preset, &room(), Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap();
        assert!(plan.steps.iter().any(|step| step.connections == 768));
        assert!(plan.notes.iter().any(|note| note.contains("ulimit -n")));
    }

    #[test]
    fn each_connection_has_work() {
        let preset = Preset::find("connections").unwrap();
        let room = Room { files: 1 << 20, ..room() };
        let plan = plan(preset, &room, Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap();
        for count in [1, 256, 16_384] {
            let step = plan.steps.iter().find(|step| step.connections == count).unwrap();
            assert_eq!(step.job.threads, count);
        }
    }

    #[test]
    fn a_shared_link_is_alone_and_limited() {
        let shape = shape(Preset::find("unified-wire").unwrap(), &room(), Scale::Part(0.1)).unwrap();
        assert!(shape.wires.iter().any(|wire| matches!(wire, Wire::Limited { .. })));
        assert_eq!((shape.jobs.len(), shape.rounds), (2, 3));
    }

    #[test]
    fn the_smallest_scale_takes_seconds() {
        for preset in PRESETS.iter().filter(|preset| preset.kind == Kind::Block) {
            let both = (names(&["blockwire", "tgt"]), names(&["blockwire", "libiscsi"]));
            let plan = plan(preset, &room(), Scale::Smallest, &both.0, &both.1).unwrap();
            assert!(plan.duration() < Duration::from_secs(16), "{}: {:?}", preset.id, plan.duration());
            assert!(
                plan.notes.iter().any(|note| note.contains("it runs for 0.2 s in 1")),
                "{:?}",
                plan.notes
            );
        }
    }

    #[test]
    fn nothing_is_left_out_in_silence() {
        let quick = Preset::find("quick").unwrap();
        let why = plan(quick, &room(), Scale::Auto, &names(&["lio"]), &names(&["blockwire"])).unwrap_err();
        assert!(why.contains("blockwire, tgt"), "{why}");
        let jitter = Preset::find("nvme-tcp-jitter").unwrap();
        let alone = Room { namespaces: Err("not root".into()), ..room() };
        let why =
            plan(jitter, &alone, Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap_err();
        assert!(why.contains("congested") && why.contains("not root"), "{why}");
    }
}
