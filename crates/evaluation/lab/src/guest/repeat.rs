//! A run of guests that is repeated: what is kept of it, and what must be here again.
//!
//! Invariant: nothing is left out or made smaller. What cannot be repeated is refused before anything is started.

use eval::preset::{GuestPlan, HostCapacity, Preset, RepeatableExperiment};
use eval::record::Record;

use super::scale::GuestSize;
use super::{
    GuestDisk, GuestExperiment, RepeatableRun, check_prerequisites, comparability_notes, emulation_reason,
    measure_all, speaks_iscsi,
};
use crate::Failure;
use crate::runner::Runner;

/// Repeats a run exactly, however long it takes.
///
/// # Errors
/// If it cannot be repeated here, or nothing could be measured: why.
pub fn repeat_guests(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    room: &HostCapacity,
    plan: &GuestPlan,
    size_notes: &[String],
) -> Result<(Record, RepeatableRun), Failure> {
    check_prerequisites(preset)?;
    let refused = |why: String| Failure::new(format!("this plan cannot be repeated here: {why}"));
    let mut pairs = Vec::new();
    for (target, way) in &plan.systems {
        let way = GuestDisk::ALL.into_iter().find(|known| known.name() == way).ok_or_else(|| {
            refused(format!("{way} is no way to a volume; tcp and {} are", GuestDisk::SharedMemory.name()))
        })?;
        if target == "url" || !room.targets.contains(target) || !speaks_iscsi(runner, target)? {
            return Err(refused(format!(
                "target {target} is not here, or serves no volume made for it by iSCSI (there are: {})",
                room.targets.join(", ")
            )));
        }
        if let Some(why) = way.missing() {
            return Err(refused(why));
        }
        pairs.push((target.clone(), way));
    }
    if plan.volume > room.memory / 2 {
        return Err(refused(format!(
            "a volume of {} MiB does not fit the {} MiB of memory that are free",
            plan.volume >> 20,
            room.memory >> 20
        )));
    }
    let emulated = emulation_reason();
    let size = GuestSize {
        volume: plan.volume,
        runtime: plan.runtime,
        loads: plan.loads.clone(),
        rounds: plan.rounds,
        memory: plan.memory,
    };
    let notes = comparability_notes(emulated.as_deref());
    let run = GuestExperiment { pairs, size, emulated: emulated.is_some(), time: None };
    measure_all(runner, preset, run, notes, size_notes.to_vec())
}

impl GuestExperiment {
    pub(super) fn to_plan(&self) -> RepeatableExperiment {
        let size = &self.size;
        RepeatableExperiment::Guests(GuestPlan {
            systems: self.pairs.iter().map(|(target, way)| (target.clone(), way.name().to_owned())).collect(),
            volume: size.volume,
            memory: size.memory,
            runtime: size.runtime,
            loads: size.loads.clone(),
            rounds: size.rounds,
        })
    }
}
