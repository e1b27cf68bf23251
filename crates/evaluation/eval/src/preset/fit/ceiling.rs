//! The bare responder beside the systems of a preset.
//!
//! Invariant: it has the same loads, links and volumes as they, and a requester for each way in which their initiators
//! wait.

use super::super::timing::SystemCombination;
use super::{
    BARE_POLLING_SYSTEM, BARE_SYSTEM, FittingNotes, HostCapacity, OWN_POLLING_INITIATOR, Preset, Protocol,
    Scale, VolumeMedium, Wire, fit_connections,
};

/// What it is measured beside.
pub(super) struct CeilingContext<'a> {
    /// Targets and initiators.
    pub(super) pairs: &'a [(String, String)],
    /// Links.
    pub(super) wires: &'a [Wire],
    /// How many volumes.
    pub(super) volumes: u32,
    /// Processors of the target, in turn.
    pub(super) cores: &'a [Option<u32>],
}

/// Most connections of the bare responder's threads.
const CONNECTIONS_BARE: u32 = 16_384;

/// The bare responder and requester under the same loads, where something is carried over a network: the requester that
/// sleeps beside initiators that sleep, and the one that polls beside those that poll.
pub(super) fn ceiling_steps(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    beside: &CeilingContext<'_>,
    fitting: &mut FittingNotes,
) -> Vec<SystemCombination> {
    let CeilingContext { pairs, wires, volumes, cores } = *beside;
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    let is_remote = preset.protocols.iter().any(|protocol| *protocol != Protocol::Local);
    if !is_remote || !has(&room.targets, BARE_SYSTEM) {
        return Vec::new();
    }
    let polls = |initiator: &str| initiator == OWN_POLLING_INITIATOR || initiator == "spdk";
    let mut requesters = Vec::new();
    for (name, is_polling) in [(BARE_SYSTEM, false), (BARE_POLLING_SYSTEM, true)] {
        let is_beside = pairs.iter().any(|(_, initiator)| polls(initiator) == is_polling);
        requesters.extend((is_beside && has(&room.initiators, name)).then_some(name));
    }
    let mut counts = fit_connections(preset, Protocol::Bare, room, scale, volumes, fitting);
    if counts.iter().any(|count| *count > CONNECTIONS_BARE) {
        fitting.note(format!(
            "{BARE_SYSTEM} has at most {CONNECTIONS_BARE} connections: left out of loads with more"
        ));
        counts.retain(|count| *count <= CONNECTIONS_BARE);
    }
    let mut all = Vec::new();
    for initiator in requesters {
        for &wire in wires {
            for &connections in &counts {
                // It has no file.
                for &medium in preset.media.iter().filter(|medium| **medium != VolumeMedium::File) {
                    all.extend(cores.iter().map(|&cores| SystemCombination {
                        target: BARE_SYSTEM.to_owned(),
                        initiator: initiator.to_owned(),
                        protocol: Protocol::Bare,
                        wire,
                        connections,
                        medium,
                        cores,
                    }));
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{names, room};
    use super::super::{Scale, fit_plan};
    use super::*;

    fn steps(id: &str, targets: &[&str]) -> Vec<(String, Protocol)> {
        let initiators = names(&["blockwire", "blockwire-polling", BARE_SYSTEM, BARE_POLLING_SYSTEM]);
        let targets = names(targets);
        let room = HostCapacity { targets: targets.clone(), initiators, ..room() };
        let preset = Preset::find(id).unwrap();
        let plan = fit_plan(preset, &room, Scale::Smallest, &targets, &names(&["blockwire"])).unwrap();
        let all = plan.steps.into_iter().filter(|step| step.target == BARE_SYSTEM);
        all.map(|step| (step.initiator, step.protocol)).collect()
    }

    #[test]
    fn the_ceiling_has_the_loads_of_the_systems() {
        let quick = steps("quick", &["blockwire", BARE_SYSTEM]);
        assert_eq!(quick, vec![(BARE_SYSTEM.to_owned(), Protocol::Bare); 2], "reads and writes, sleeping");
        assert!(steps("quick", &["blockwire"]).is_empty());
        let latency = steps("nvme-tcp-latency", &["blockwire", BARE_SYSTEM]);
        assert!(latency.iter().any(|(initiator, _)| initiator == BARE_POLLING_SYSTEM), "{latency:?}");
    }
}
