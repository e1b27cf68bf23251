//! How often, how long and with how much of its loads and links a preset is done, so that it keeps to its time.
//!
//! Invariant: what was changed of a preset is noted.

use std::time::Duration;

use super::super::timing::{TurnOrder, every_second, ramp_time};
use super::{FittingNotes, HostCapacity, Preset, PresetLoad, Scale, Wire};

/// Shortest run that tells anything.
const RUNTIME_MIN: Duration = Duration::from_millis(500);
/// Rounds and time of each run from which on figures count (docs/eval.md).
const COUNTING_ROUNDS_MIN: u32 = 5;
const COUNTING_RUNTIME_MIN: Duration = Duration::from_secs(10);
/// How long a load runs at the smallest scale.
const SMALLEST_SCALE_RUNTIME: Duration = Duration::from_millis(100);

/// What is done, how often and how long.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanFrame {
    pub(super) wires: Vec<Wire>,
    pub(super) loads: Vec<PresetLoad>,
    pub(super) turns: TurnOrder,
    pub(super) rounds: u32,
    pub(super) runtime: Duration,
}

impl PlanFrame {
    /// As the preset has it.
    pub(super) fn of_preset(preset: &Preset, wires: Vec<Wire>, loads: Vec<PresetLoad>) -> PlanFrame {
        PlanFrame { wires, loads, turns: TurnOrder::EachLoad, rounds: preset.rounds, runtime: preset.runtime }
    }

    /// How long each load may run, so that all fits the time.
    fn fitted_runtime(
        &self,
        room: &HostCapacity,
        around: &dyn Fn(&PlanFrame) -> (Duration, usize),
    ) -> Duration {
        let (around, runs) = around(self);
        let left = room.time.saturating_sub(room.timing.spent) / self.rounds.max(1);
        // A ramp of a tenth goes before each.
        left.saturating_sub(around).div_f64(1.1 * runs.max(1) as f64)
    }

    /// The same, so that its runs count, with as many of its loads and links as there is time for; `None`: there is too
    /// little even for the least of them, or they were never meant to.
    fn with_counting_runs(
        &self,
        room: &HostCapacity,
        around: &dyn Fn(&PlanFrame) -> (Duration, usize),
    ) -> Option<PlanFrame> {
        if self.runtime < COUNTING_RUNTIME_MIN {
            return None;
        }
        let mut frame = PlanFrame { rounds: self.rounds.max(COUNTING_ROUNDS_MIN), ..self.clone() };
        loop {
            let fits = frame.fitted_runtime(room, around);
            if fits >= COUNTING_RUNTIME_MIN {
                frame.runtime = frame.runtime.min(fits);
                return Some(frame);
            }
            if !frame.thin_out() {
                return None;
            }
        }
    }

    /// The same where nothing of it can count: rather all of the experiment, to see that it works.
    fn reduce_to_smoke_test(
        mut self,
        room: &HostCapacity,
        around: &dyn Fn(&PlanFrame) -> (Duration, usize),
    ) -> PlanFrame {
        let rounds = self.rounds;
        // Under each load if there is time for three rounds of that.
        self.rounds = rounds.min(3);
        if self.fitted_runtime(room, around) < RUNTIME_MIN * 2 {
            self.turns = TurnOrder::EachLink;
        }
        self.rounds = rounds;
        loop {
            // Rather less often than too short, and rather both than less of the experiment.
            let least = if self.rounds > 2 { RUNTIME_MIN * 2 } else { RUNTIME_MIN };
            if self.fitted_runtime(room, around) >= least {
                break;
            }
            if self.rounds > 1 {
                self.rounds -= 1;
            } else if !self.thin_out() {
                break;
            }
        }
        self.runtime = self.runtime.min(self.fitted_runtime(room, around)).max(RUNTIME_MIN);
        self
    }

    /// I/O sizes without every second of those between the ends; else links without those between. False:
    /// there is nothing to be left out.
    fn thin_out(&mut self) -> bool {
        let mut rates: Vec<u8> = self.loads.iter().filter_map(|load| load.rate).collect();
        rates.sort_unstable();
        rates.dedup();
        if rates.len() > 2 {
            let kept = every_second(&rates);
            self.loads.retain(|load| load.rate.is_none_or(|rate| kept.contains(&rate)));
            return true;
        }
        let shapes = distinct(self.loads.iter().map(|load| (load.depth, load.threads)));
        if shapes.len() > 2 {
            let kept = every_second(&shapes);
            self.loads.retain(|load| kept.contains(&(load.depth, load.threads)));
            return true;
        }
        let mut sizes: Vec<u32> = self.loads.iter().map(|load| load.bytes).collect();
        sizes.dedup();
        if sizes.len() > 2 {
            let kept = every_second(&sizes);
            self.loads.retain(|load| kept.contains(&load.bytes));
            return true;
        }
        // A link that is held to a speed is what its experiment is about.
        let is_plain = |wire: &Wire| matches!(wire, Wire::Loopback | Wire::Veth { .. });
        let can = self.wires.len() > 1 && self.wires.iter().all(is_plain);
        self.wires.truncate(if can { 1 } else { self.wires.len() });
        can
    }
}

/// Makes what is done fit the scale. `steps_overhead`: of a round, what its steps take beside their loads, and how
/// many they are.
pub(super) fn fit_frame(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    mut frame: PlanFrame,
    around: &dyn Fn(&PlanFrame) -> (Duration, usize),
    fitting: &mut FittingNotes,
) -> PlanFrame {
    let all = frame.clone();
    match scale {
        Scale::Smallest => {
            (frame.runtime, frame.rounds, frame.turns) = (SMALLEST_SCALE_RUNTIME, 1, TurnOrder::EachLink);
        }
        Scale::Part(part) => frame.runtime = frame.runtime.mul_f64(part).max(RUNTIME_MIN),
        Scale::Auto => {
            let counting = frame.with_counting_runs(room, around);
            frame = counting.unwrap_or_else(|| frame.reduce_to_smoke_test(room, around));
        }
    }
    note_frame_changes(preset, room, scale, (&all, &frame), around, fitting);
    frame
}

/// Says what was changed.
fn note_frame_changes(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    (all, frame): (&PlanFrame, &PlanFrame),
    around: &dyn Fn(&PlanFrame) -> (Duration, usize),
    fitting: &mut FittingNotes,
) {
    if (frame.runtime, frame.rounds) != (preset.runtime, preset.rounds) {
        fitting.note(format!(
            "each load was to run for {:.1} s in {} rounds; it runs for {:.1} s in {}",
            preset.runtime.as_secs_f64(),
            preset.rounds,
            frame.runtime.as_secs_f64(),
            frame.rounds
        ));
    }
    let rates = |frame: &PlanFrame| -> Vec<u8> { distinct(frame.loads.iter().filter_map(|load| load.rate)) };
    let (wanted, kept) = (rates(all), rates(frame));
    if kept.len() < wanted.len() {
        let kept: Vec<String> = kept.iter().map(|rate| format!("{rate} %")).collect();
        fitting.note(format!("not all rates are used, to keep to the time limit: {}", kept.join(", ")));
    }
    let shapes = |frame: &PlanFrame| distinct(frame.loads.iter().map(|load| (load.depth, load.threads)));
    let (wanted, kept) = (shapes(all), shapes(frame));
    if kept.len() < wanted.len() {
        let kept: Vec<String> = kept.iter().map(|(depth, threads)| format!("{depth} x {threads}")).collect();
        fitting.note(format!(
            "not all depths and threads are used, to keep to the time limit: {}",
            kept.join(", ")
        ));
    }
    let sizes = |frame: &PlanFrame| distinct(frame.loads.iter().map(|load| load.bytes)).len();
    if sizes(frame) < sizes(all) {
        let mut sizes: Vec<String> = frame.loads.iter().map(|load| load.bytes.to_string()).collect();
        sizes.dedup();
        fitting.note(format!("not all I/O sizes are used, to keep to the time limit: {}", sizes.join(", ")));
    }
    if frame.wires.len() < all.wires.len() {
        fitting.note("only the first link is used, to keep to the time limit".to_owned());
    }
    let each_load = PlanFrame { turns: TurnOrder::EachLoad, ..frame.clone() };
    if scale == Scale::Auto && around(frame).0 < around(&each_load).0 {
        fitting.note(format!(
            "systems take turns on each link of a round, not under each load: starting their targets for each \
             load would take {:.0} s more",
            ((around(&each_load).0 - around(frame).0) * frame.rounds).as_secs_f64()
        ));
    }
    let (around, runs) = around(frame);
    let takes = (around + (frame.runtime + ramp_time(frame.runtime)) * runs as u32) * frame.rounds
        + room.timing.spent;
    if scale == Scale::Auto && takes > room.time.mul_f64(1.05) {
        fitting.note(format!(
            "it takes about {:.0} s at least, longer than the {:.0} s that were given",
            takes.as_secs_f64(),
            room.time.as_secs_f64()
        ));
    }
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
