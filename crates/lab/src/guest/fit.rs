//! How large the experiment with a virtual machine is on this host.
//!
//! Invariant: whatever is not as in the paper is said in a note.

use std::time::Duration;

use eval::preset::{Load, Preset, Room, Scale};

/// Smallest volume and shortest run that tell anything.
const VOLUME_MIN: u64 = 64 << 20;
const RUNTIME_MIN: Duration = Duration::from_millis(500);
/// What a load takes beside its own time: fio's start, and its figures over the serial line. Of an
/// emulated processor.
const AROUND: f64 = 6.0;
/// Jobs that an emulated processor starts in a time that does not hide the load.
const JOBS_EMULATED: u32 = 4;

/// How large it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Size {
    pub(super) volume: u64,
    pub(super) runtime: Duration,
    pub(super) loads: Vec<Load>,
    /// Bytes of the machine's memory.
    pub(super) memory: u64,
}

/// Makes of the preset what the host can do with so many machines, whose processors are emulated or not.
pub(super) fn fit(
    preset: &Preset,
    room: &Room,
    scale: Scale,
    (machines, is_emulated): (usize, bool),
    notes: &mut Vec<String>,
) -> Size {
    let mut loads = preset.loads();
    let volume = match scale.or_part() {
        None => preset.volumes.1.min(room.memory / 4),
        Some(part) => (preset.volumes.1 as f64 * part) as u64,
    };
    let volume = volume.max(VOLUME_MIN) & !((1 << 20) - 1);
    let runtime = match scale.or_part() {
        None => {
            let all = (loads.len() * machines.max(1)) as f64;
            let each = room.time.as_secs_f64() / all - if is_emulated { AROUND } else { 1.0 };
            Duration::from_secs_f64(each.max(0.0)).min(preset.runtime)
        }
        Some(part) => preset.runtime.mul_f64(part),
    };
    let runtime = runtime.max(RUNTIME_MIN);
    let wanted = preset.threads;
    let threads = if is_emulated { wanted.min(JOBS_EMULATED) } else { wanted };
    loads.iter_mut().for_each(|load| load.threads = threads);
    if threads != wanted {
        notes.push(format!(
            "the paper's fio ran {wanted} jobs; here are {threads}, which an emulated processor starts in time"
        ));
    }
    notes.push(format!(
        "the paper's loads ran for {} s on a file of {} MiB; here each runs for {:.1} s on {} MiB, in a machine with \
         2 processors and 1 GiB of memory (the paper's had 8 and 4 GB)",
        preset.runtime.as_secs(),
        preset.volumes.1 >> 20,
        runtime.as_secs_f64(),
        volume >> 20
    ));
    Size { volume, runtime, loads, memory: 1 << 30 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> Room {
        Room {
            cores: 2,
            memory: 20 << 30,
            files: 1024,
            namespaces: Ok(()),
            targets: Vec::new(),
            initiators: Vec::new(),
            time: Duration::from_secs(600),
            pace: eval::preset::Pace::default(),
        }
    }

    #[test]
    fn what_is_smaller_is_said() {
        let preset = Preset::find("t5-vm").unwrap();
        let mut notes = Vec::new();
        let size = fit(preset, &room(), Scale::Part(0.01), (2, true), &mut notes);
        assert_eq!(
            (size.volume, size.runtime, size.loads.len()),
            (VOLUME_MIN, Duration::from_millis(600), 15)
        );
        assert!(size.loads.iter().all(|load| (load.depth, load.threads) == (64, 4)));
        assert!(notes[0].contains("32 jobs") && notes[1].contains("64 MiB"), "{notes:?}");
        notes.clear();
        let size = fit(preset, &room(), Scale::Auto, (2, false), &mut notes);
        assert_eq!((size.volume, size.runtime), (1 << 30, Duration::from_secs(19)));
        assert!(size.loads.iter().all(|load| load.threads == 32) && notes.len() == 1, "{notes:?}");
    }
}
