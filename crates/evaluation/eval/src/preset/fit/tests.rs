//! Presets on machines of several sizes.

use super::super::PRESETS;
use super::*;
use crate::published::published_data;

pub(super) fn room() -> HostCapacity {
    HostCapacity {
        cores: 2,
        memory: 20 << 30,
        files: 1024,
        ports: 28_232,
        namespaces: Ok(()),
        targets: vec!["blockwire".into(), "tgt".into()],
        initiators: vec!["blockwire".into(), "libiscsi".into()],
        wires: Vec::new(),
        time: Duration::from_secs(600),
        timing: StepTiming::default(),
    }
}

pub(super) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_preset_is_of_a_paper_that_is_there() {
    let mut ids: Vec<&str> = PRESETS.iter().map(|preset| preset.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), PRESETS.len());
    for preset in PRESETS {
        let known = |id: &str| published_data().papers.iter().any(|paper| paper.id == id);
        assert!(preset.paper.is_none_or(known), "{}", preset.id);
    }
}

#[test]
fn systems_take_turns_under_one_load() {
    let quick = Preset::find("quick").unwrap();
    let both = names(&["blockwire", "tgt"]);
    let plan = fit_plan(quick, &room(), Scale::Part(1.0), &both, &names(&["blockwire"])).unwrap();
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
    let small = HostCapacity {
        memory: 6 << 30,
        namespaces: Err(NetworkNamespaceError::Refused("not root".into())),
        ..room()
    };
    let plan =
        fit_plan(sweep, &small, Scale::Auto, &names(&["blockwire", "spdk-iscsi"]), &names(&["blockwire"]))
            .unwrap();
    let said = plan.notes.join("\n");
    for word in ["spdk-iscsi is not installed", "not root", "18 of 113 MiB", "rounds"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(plan.steps.iter().all(|step| step.wire == Wire::Loopback && step.volumes.0 == 18));
    assert!(
        plan.duration(&StepTiming::default()) < Duration::from_secs(800),
        "{:?}",
        plan.duration(&StepTiming::default())
    );
    assert_eq!(plan.steps[0].job.threads, 60);
}

/// Of what is slow there is less: volumes are smaller, and all of it ends in about the time that was given.
#[test]
fn what_starting_takes_is_in_the_time() {
    let both = names(&["blockwire", "tgt"]);
    for preset in PRESETS.iter().filter(|preset| preset.kind == ExperimentKind::Block) {
        for (seconds, filled, start) in [(60, 1e9, 500), (120, 1e9, 500), (120, 2e8, 1500), (600, 5e9, 100)] {
            let starts = both.iter().map(|name| (name.clone(), Duration::from_millis(start))).collect();
            let timing =
                StepTiming { starts, filled, spent: Duration::from_secs(5), ..StepTiming::default() };
            let time = Duration::from_secs(seconds);
            let room =
                HostCapacity { time, files: 1 << 20, ports: 1 << 20, timing: timing.clone(), ..room() };
            let plan = fit_plan(preset, &room, Scale::Auto, &both, &names(&["blockwire"])).unwrap();
            let takes = plan.duration(&timing) + timing.spent;
            let said = plan.notes.iter().any(|note| note.contains("longer than"));
            let is_whole = plan.steps[0].job.runtime == Some(preset.runtime);
            let what = format!("{}: {takes:?} of {time:?}: {:?}", preset.id, plan.notes);
            assert!(takes <= time.mul_f64(1.1) || said, "{what}");
            assert!(takes >= time.mul_f64(0.75) || is_whole, "{what}");
            assert_eq!(said, takes > time.mul_f64(1.05), "{what}");
        }
    }
}

/// A target is started once for all loads on a link, if starting it for each would leave no time.
#[test]
fn systems_take_turns_on_links_where_starts_are_dear() {
    let sweep = Preset::find("t6-100g-sweep").unwrap();
    let room = HostCapacity { time: Duration::from_secs(120), ..room() };
    let both = names(&["blockwire", "tgt"]);
    let plan = fit_plan(sweep, &room, Scale::Auto, &both, &names(&["blockwire"])).unwrap();
    let changes = plan.steps.windows(2).filter(|pair| pair[0].target != pair[1].target).count();
    assert!(changes < 6 * plan.steps.last().unwrap().round as usize + 6, "{changes}");
    assert!(plan.notes.iter().any(|note| note.contains("take turns on each link")), "{:?}", plan.notes);
}

#[test]
fn demartek_pairs_as_it_did() {
    let preset = Preset::find("demartek-vdbench").unwrap();
    let both = (names(&["blockwire", "tgt"]), names(&["blockwire", "libiscsi"]));
    let plan = fit_plan(preset, &room(), Scale::Auto, &both.0, &both.1).unwrap();
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
        fit_plan(preset, &room(), Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap();
    let most = |plan: &EvaluationPlan, protocol: Protocol| {
        plan.steps.iter().filter(|step| step.protocol == protocol).map(|step| step.connections).max()
    };
    // An NVMe/TCP host has two links for each.
    assert_eq!((most(&plan, Protocol::Iscsi), most(&plan, Protocol::NvmeTcp)), (Some(768), Some(384)));
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("over nvme-tcp 384 are used") && note.contains("ulimit -n"))
    );
}

#[test]
fn connections_stop_at_ports_and_at_files() {
    let preset = Preset::find("connections").unwrap();
    for (files, ports, want, why) in [
        (1 << 20, 28_232, 13_860, "there are 28232 ports to come from"),
        (32_768, 1 << 20, 16_256, "a process may open 32768 files"),
    ] {
        let room = HostCapacity { files, ports, cores: 2, ..room() };
        let plan =
            fit_plan(preset, &room, Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap();
        let most = |protocol| {
            plan.steps.iter().filter(|step| step.protocol == protocol).map(|step| step.connections).max()
        };
        assert_eq!((most(Protocol::Iscsi), most(Protocol::NvmeTcp)), (Some(16_384), Some(want)));
        assert!(plan.notes.iter().any(|note| note.contains(why)), "{:?}", plan.notes);
    }
}

#[test]
fn each_connection_has_work() {
    let preset = Preset::find("connections").unwrap();
    let room = HostCapacity { files: 1 << 20, ports: 1 << 20, ..room() };
    let plan = fit_plan(preset, &room, Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"])).unwrap();
    for count in [1, 256, 16_384] {
        let step = plan.steps.iter().find(|step| step.connections == count).unwrap();
        assert_eq!(step.job.threads, count);
    }
}

#[test]
fn a_shared_link_is_alone_and_limited() {
    let mixed = mixed_traffic_plan(Preset::find("unified-wire").unwrap(), &room(), Scale::Part(0.1)).unwrap();
    assert!(mixed.wires.iter().any(|wire| matches!(wire, Wire::Limited { .. })));
    assert_eq!((mixed.jobs.len(), mixed.rounds), (2, 5));
}

#[test]
fn links_can_be_asked_for() {
    let wires = vec![Wire::Loopback, Wire::Veth { mtu: 1500 }, Wire::Veth { mtu: 9000 }];
    let room = HostCapacity { wires: wires.clone(), ..room() };
    let ours = names(&["blockwire"]);
    for preset in
        PRESETS.iter().filter(|preset| preset.kind == ExperimentKind::Block && preset.id != "nvme-tcp-jitter")
    {
        let plan = fit_plan(preset, &room, Scale::Part(0.1), &ours, &ours).unwrap();
        for wire in &wires {
            assert!(plan.steps.iter().any(|step| step.wire == *wire), "{}: {wire:?}", preset.id);
        }
    }
    let jitter = Preset::find("nvme-tcp-jitter").unwrap();
    assert!(
        fit_plan(jitter, &room, Scale::Auto, &ours, &ours).unwrap_err().to_string().contains("has its own")
    );
}

/// As the papers had it takes longer than at least, and that is about what a plan says for such a time.
#[test]
fn what_a_preset_takes_is_said() {
    for preset in PRESETS {
        let has_time = matches!(preset.kind, ExperimentKind::Block | ExperimentKind::MixedTraffic);
        assert_eq!(preset_durations(preset).is_some(), has_time, "{}", preset.id);
        let Some((whole, least)) = preset_durations(preset) else { continue };
        assert!(least < whole && least < Duration::from_secs(120), "{}: {least:?} of {whole:?}", preset.id);
        // All loads of all rounds, one after the other, and not much more.
        let loads = preset.loads().len() as u32 * preset.rounds * preset.wires.len() as u32;
        assert!(whole > preset.runtime * loads, "{}: {whole:?}", preset.id);
    }
}

#[test]
fn the_smallest_scale_takes_seconds() {
    for preset in PRESETS.iter().filter(|preset| preset.kind == ExperimentKind::Block) {
        let both = (names(&["blockwire", "tgt"]), names(&["blockwire", "libiscsi"]));
        let mut plan = fit_plan(preset, &room(), Scale::Smallest, &both.0, &both.1).unwrap();
        // It takes longer the more systems are named; of our own it takes seconds.
        plan.steps.retain(|step| step.target == "blockwire" && step.initiator == "blockwire");
        assert!(
            plan.duration(&StepTiming::default()) < Duration::from_secs(20),
            "{}: {:?}",
            preset.id,
            plan.duration(&StepTiming::default())
        );
        assert!(plan.notes.iter().any(|note| note.contains("it runs for 0.1 s in 1")), "{:?}", plan.notes);
    }
}

#[test]
fn nothing_is_left_out_in_silence() {
    let quick = Preset::find("quick").unwrap();
    let why = fit_plan(quick, &room(), Scale::Auto, &names(&["lio"]), &names(&["blockwire"]))
        .unwrap_err()
        .to_string();
    assert!(why.contains("blockwire, tgt"), "{why}");
    let jitter = Preset::find("nvme-tcp-jitter").unwrap();
    let alone = HostCapacity { namespaces: Err(NetworkNamespaceError::Refused("not root".into())), ..room() };
    let why = fit_plan(jitter, &alone, Scale::Auto, &names(&["blockwire"]), &names(&["blockwire"]))
        .unwrap_err()
        .to_string();
    assert!(why.contains("congested") && why.contains("not root"), "{why}");
}

/// What changes in the machine meets all alike: no system is always first, and no round repeats another's offsets.
#[test]
fn each_round_has_offsets_and_an_order_of_its_own() {
    let quick = Preset::find("quick").unwrap();
    let both = names(&["blockwire", "tgt"]);
    let plan = fit_plan(quick, &room(), Scale::Part(1.0), &both, &names(&["blockwire"])).unwrap();
    let rounds: Vec<Vec<&Step>> =
        (0..3).map(|round| plan.steps.iter().filter(|step| step.round == round).collect()).collect();
    let who = |step: &Step| (step.target.clone(), step.protocol);
    let firsts: Vec<_> = rounds.iter().map(|steps| who(steps[0])).collect();
    assert!(firsts[0] != firsts[1] && firsts[1] != firsts[2] && firsts[0] != firsts[2], "{firsts:?}");
    let seeds: Vec<u64> = rounds.iter().map(|steps| steps[0].job.seed).collect();
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2], "{seeds:?}");
    for (steps, seed) in rounds.iter().zip(&seeds) {
        assert!(steps.iter().all(|step| step.job.seed == *seed), "all systems get the same offsets");
    }
}

/// Rather fewer loads than loads that are too short, or too few rounds, to count.
#[test]
fn what_has_the_time_counts() {
    let both = names(&["blockwire", "tgt"]);
    for preset in PRESETS.iter().filter(|preset| preset.kind == ExperimentKind::Block) {
        let room = HostCapacity { time: Duration::from_secs(3600), files: 1 << 20, ports: 1 << 20, ..room() };
        let plan = fit_plan(preset, &room, Scale::Auto, &both, &names(&["blockwire"])).unwrap();
        let is_first_look = preset.id == "quick";
        let counts = plan.steps.iter().all(|step| step.job.runtime >= Some(Duration::from_secs(10)));
        let rounds = plan.steps.iter().map(|step| step.round).max().unwrap() + 1;
        assert_eq!(
            (counts, rounds >= 5),
            (!is_first_look, !is_first_look),
            "{}: {:?}",
            preset.id,
            plan.notes
        );
        // Under each load another system follows.
        let loads = plan.steps.chunk_by(|a, b| a.job.name == b.job.name && a.round == b.round);
        let is_alone = |steps: &[Step]| steps.iter().all(|step| step.target == steps[0].target);
        assert!(is_first_look || loads.filter(|steps| is_alone(steps)).count() == 0, "{}", preset.id);
    }
}

/// How a client waits is much of what one I/O at a time takes: a target that met only one that polls looked faster.
#[test]
fn one_at_a_time_is_measured_by_sleeping_and_by_polling_clients() {
    let latency = Preset::find("nvme-tcp-latency").unwrap();
    let both = names(&["blockwire", "tgt"]);
    let room = HostCapacity { initiators: names(&["blockwire", "blockwire-polling"]), ..room() };
    let clients = |preset, target: &str| {
        let plan = fit_plan(preset, &room, Scale::Part(0.1), &both, &names(&["blockwire"])).unwrap();
        let of = |step: &&Step| step.target == target && step.protocol != Protocol::Local;
        let mut clients: Vec<String> =
            plan.steps.iter().filter(of).map(|step| step.initiator.clone()).collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    };
    for target in ["blockwire", "tgt"] {
        assert_eq!(clients(latency, target), ["blockwire", "blockwire-polling"]);
        assert_eq!(clients(Preset::find("quick").unwrap(), target), ["blockwire"]);
    }
}

/// The paper's latencies are those of an SSD: a file past the page cache stands for it, at both ends alike.
#[test]
fn latency_is_measured_on_a_file_too() {
    let initiators = names(&["blockwire", "blockwire-polling", "bare", "bare-polling"]);
    let room = HostCapacity { initiators, targets: names(&["blockwire", "bare"]), ..room() };
    let latency = Preset::find("nvme-tcp-latency").unwrap();
    let plan = fit_plan(latency, &room, Scale::Part(0.1), &names(&["blockwire"]), &names(&["blockwire"]));
    let steps = plan.unwrap().steps;
    let media = |protocol: Protocol| {
        let mut media: Vec<&str> =
            steps.iter().filter(|step| step.protocol == protocol).map(|step| step.medium.name()).collect();
        media.sort_unstable();
        media.dedup();
        media
    };
    assert_eq!(media(Protocol::Local), ["file", "ram"]);
    assert_eq!(media(Protocol::NvmeTcp), media(Protocol::Local));
    assert_eq!(media(Protocol::Bare), ["ram"], "the responder has no file");
}
