//! The size of the virtual-machine experiment on this host.
//!
//! Invariant: every difference from the paper is in a note.

use std::time::Duration;

use eval::preset::{HostCapacity, Preset, PresetLoad, Scale, every_second};

/// Smallest volume and shortest run that tell anything.
const VOLUME_BYTES_MIN: u64 = 64 << 20;
const RUNTIME_MIN: Duration = Duration::from_millis(500);
/// What a load takes beside its own time: fio's start, and its figures over the serial line; and what a
/// machine takes to boot, with its target's start and filling. In seconds, of an emulated processor and of
/// one that runs guests itself.
const LOAD_OVERHEAD_SECONDS: (f64, f64) = (1.5, 0.5);
const BOOT_SECONDS: (f64, f64) = (15.0, 5.0);
/// Jobs that an emulated processor starts in a time that does not hide the load.
const EMULATED_JOBS_MAX: u32 = 4;

/// How large it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GuestSize {
    pub(super) volume: u64,
    pub(super) runtime: Duration,
    pub(super) loads: Vec<PresetLoad>,
    /// How often each machine is booted and does all loads, in turn with the others.
    pub(super) rounds: u32,
    /// Bytes of the machine's memory.
    pub(super) memory: u64,
}

/// Makes of the preset what the host can do with so many machines, whose processors are emulated or not.
pub(super) fn scale_to_host(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    (machines, is_emulated): (usize, bool),
    notes: &mut Vec<String>,
) -> GuestSize {
    let mut loads = preset.loads();
    let volume = match scale.requested_part() {
        None => preset.volumes.1.min(room.memory / 4),
        Some(part) => (preset.volumes.1 as f64 * part) as u64,
    };
    let volume = volume.max(VOLUME_BYTES_MIN) & !((1 << 20) - 1);
    let mut rounds = if scale == Scale::Auto { preset.rounds } else { 1 };
    let runtime = match scale.requested_part() {
        None => {
            let (around, boot) = if is_emulated {
                (LOAD_OVERHEAD_SECONDS.0, BOOT_SECONDS.0)
            } else {
                (LOAD_OVERHEAD_SECONDS.1, BOOT_SECONDS.1)
            };
            let each = |loads: &[PresetLoad], rounds: u32| {
                let left = room.time.as_secs_f64() / (machines.max(1) as f64 * f64::from(rounds)) - boot;
                Duration::from_secs_f64((left / loads.len() as f64 - around).max(0.0))
            };
            let mut kept = preset.sizes.to_vec();
            // Rather once than too short, and rather that than less of the experiment.
            while rounds > 1 && each(&loads, rounds) < RUNTIME_MIN * 2 {
                rounds -= 1;
            }
            while each(&loads, rounds) < RUNTIME_MIN && kept.len() > 2 {
                kept = every_second(&kept);
                loads.retain(|load| kept.contains(&load.bytes));
            }
            if kept.len() < preset.sizes.len() {
                let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
                notes.push(format!(
                    "not all I/O sizes are used, to keep to the time limit: {}",
                    kept.join(", ")
                ));
            }
            each(&loads, rounds).min(preset.runtime)
        }
        Some(part) => preset.runtime.mul_f64(part),
    };
    let runtime = runtime.max(RUNTIME_MIN);
    let wanted = preset.threads;
    let threads = if is_emulated { wanted.min(EMULATED_JOBS_MAX) } else { wanted };
    loads.iter_mut().for_each(|load| load.threads = threads);
    if threads != wanted {
        notes.push(format!(
            "the paper's fio ran {wanted} jobs; here are {threads}, which an emulated processor starts in time"
        ));
    }
    notes.push(format!(
        "the paper's loads ran for {} s on a file of {} MiB; here each runs for {:.1} s on {} MiB, in {}, in a machine \
         with 2 processors and 1 GiB of memory (the paper's had 8 and 4 GB)",
        preset.runtime.as_secs(),
        preset.volumes.1 >> 20,
        runtime.as_secs_f64(),
        volume >> 20,
        if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") }
    ));
    GuestSize { volume, runtime, loads, rounds, memory: 1 << 30 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_capacity::example_capacity;

    #[test]
    fn what_is_smaller_is_said() {
        let preset = Preset::find("t5-vm").unwrap();
        let mut notes = Vec::new();
        let size =
            scale_to_host(preset, &example_capacity(2, 20 << 30), Scale::Part(0.01), (2, true), &mut notes);
        assert_eq!(
            (size.volume, size.runtime, size.loads.len()),
            (VOLUME_BYTES_MIN, Duration::from_millis(600), 15)
        );
        assert!(size.loads.iter().all(|load| (load.depth, load.threads) == (64, 4)));
        assert!(notes[0].contains("32 jobs") && notes[1].contains("64 MiB"), "{notes:?}");
        notes.clear();
        let size = scale_to_host(preset, &example_capacity(2, 20 << 30), Scale::Auto, (2, false), &mut notes);
        // Of 60 s for a machine in a round 5 are its boot; a load has a fifteenth of the rest.
        assert_eq!((size.volume, size.rounds, size.runtime.as_millis()), (1 << 30, 5, 3_166));
        assert!(size.loads.iter().all(|load| load.threads == 32) && notes.len() == 1, "{notes:?}");
        // For what does not fit there are fewer sizes.
        notes.clear();
        let short = HostCapacity { time: Duration::from_secs(60), ..example_capacity(2, 20 << 30) };
        let size = scale_to_host(preset, &short, Scale::Auto, (2, true), &mut notes);
        assert_eq!((size.loads.len(), size.rounds, size.runtime), (6, 1, Duration::from_secs(1)));
        assert!(notes.iter().any(|note| note.ends_with("time limit: 4096, 65536")), "{notes:?}");
    }
}
