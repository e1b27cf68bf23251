//! Presets whose protocols share a link: their loads, for a runner of their own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::error::PlanError;
use super::frame::{PlanFrame, fit_frame};
use super::{
    FittingNotes, HostCapacity, Preset, Protocol, Scale, VolumeMedium, Wire, ends_at_smallest_scale,
    fit_loads, fit_wires, load_job,
};
use crate::fio::Job;

/// What is measured of a preset that has a runner of its own: its loads, without systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixedTrafficPlan {
    /// What lies between.
    pub wires: Vec<Wire>,
    /// The loads.
    pub jobs: Vec<Job>,
    /// How often all is done.
    pub rounds: u32,
    /// What was changed to fit the machine.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What is done on this machine of a preset whose protocols share a link.
///
/// # Errors
/// If none of its links can be had here: why.
pub fn mixed_traffic_plan(
    preset: &'static Preset,
    room: &HostCapacity,
    scale: Scale,
) -> Result<MixedTrafficPlan, PlanError> {
    let mut fitting = FittingNotes { notes: Vec::new() };
    let wires = ends_at_smallest_scale(fit_wires(preset, room, &mut fitting)?, scale, "links", &mut fitting);
    let loads = fit_loads(preset, scale, &mut fitting);
    // Each protocol alone, and all at once; targets are started once for a link.
    let kinds = preset.protocols;
    let around_of = |frame: &PlanFrame| {
        let steps = frame.wires.len() * frame.loads.len() * (kinds.len() + 1);
        let medium = |kind: &Protocol| {
            if *kind == Protocol::Stream { VolumeMedium::Null } else { VolumeMedium::Ram }
        };
        let starts: Duration = kinds
            .iter()
            .map(|kind| room.timing.target_start_time(kind.name(), preset.volumes, medium(kind)))
            .sum();
        let starts = starts * frame.wires.len() as u32 / frame.rounds;
        (starts + room.timing.load_overhead("", 1) * steps as u32, steps)
    };
    let frame =
        fit_frame(preset, room, scale, PlanFrame::of_preset(preset, wires, loads), &around_of, &mut fitting);
    let jobs =
        frame.loads.iter().map(|load| load_job(preset, load, frame.runtime, preset.volumes, 1)).collect();
    Ok(MixedTrafficPlan { wires: frame.wires, jobs, rounds: frame.rounds, notes: fitting.notes })
}
