//! How long a plan takes: starting, filling and connecting in addition to the loads' own time, and which
//! order of steps costs least.

use std::time::Duration;

use crate::fio::IoDirection;

use super::{PresetLoad, Protocol, Step, VolumeMedium, Wire};

/// What a plan's steps take beside the time for which figures count.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTiming {
    /// A target's start and end with its link, by its name; others take half a second.
    pub starts: Vec<(String, Duration)>,
    /// A load's begin and end beside its ramp and run time, by the initiator's name; others take a fifth of a
    /// second.
    pub loads: Vec<(String, Duration)>,
    /// Bytes of volumes that are filled in a second.
    pub filled: f64,
    /// Connections that are made and ended in a second.
    pub connected: f64,
    /// What has passed already of the time that there is.
    pub spent: Duration,
    /// What is known not to be possible, and so takes no time.
    pub left_out: Vec<OmittedLoad>,
}

/// A load that a pair of systems cannot do.
#[derive(Clone, Debug, PartialEq)]
pub struct OmittedLoad {
    /// The target.
    pub target: String,
    /// The initiator.
    pub initiator: String,
    /// What carries it.
    pub protocol: Protocol,
    /// What volumes are made of.
    pub medium: VolumeMedium,
    /// What the load does, in I/Os of so many bytes, and whether at a rate.
    pub load: (IoDirection, u32, bool),
}

impl OmittedLoad {
    /// A step that is left out, and its like.
    pub fn of_step(step: &Step) -> OmittedLoad {
        OmittedLoad {
            target: step.target.clone(),
            initiator: step.initiator.clone(),
            protocol: step.protocol,
            medium: step.medium,
            load: (step.job.direction, step.job.block.0, step.rate.is_some()),
        }
    }

    fn matches(&self, load: &PresetLoad, combination: &SystemCombination) -> bool {
        (&self.target, &self.initiator, self.protocol, self.medium)
            == (&combination.target, &combination.initiator, combination.protocol, combination.medium)
            && self.load == (load.direction, load.bytes, load.rate.is_some())
    }
}

impl Default for StepTiming {
    fn default() -> StepTiming {
        StepTiming {
            starts: Vec::new(),
            loads: Vec::new(),
            filled: 1e9,
            connected: 2_000.0,
            spent: Duration::ZERO,
            left_out: Vec::new(),
        }
    }
}

/// What most targets take to start, and most initiators to begin and to end.
const START_TIME_DEFAULT: Duration = Duration::from_millis(500);
const LOAD_TIME_DEFAULT: Duration = Duration::from_millis(200);

fn known_or(known: &[(String, Duration)], name: &str, other: Duration) -> Duration {
    known.iter().find(|(one, _)| one == name).map_or(other, |(_, time)| *time)
}

impl StepTiming {
    /// A target with its volumes, until the first load can begin.
    pub fn target_start_time(
        &self,
        target: &str,
        (count, bytes): (u32, u64),
        medium: VolumeMedium,
    ) -> Duration {
        let filled = if medium != VolumeMedium::Null { u64::from(count) * bytes } else { 0 };
        known_or(&self.starts, target, START_TIME_DEFAULT)
            + Duration::from_secs_f64(filled as f64 / self.filled)
    }

    /// A load, beside its ramp and run time.
    pub fn load_overhead(&self, initiator: &str, connections: u32) -> Duration {
        let connecting = Duration::from_secs_f64(f64::from(connections) / self.connected);
        known_or(&self.loads, initiator, LOAD_TIME_DEFAULT) + connecting
    }

    /// How long steps take in this order, with all starting and filling.
    pub fn steps_duration<'a>(&self, steps: impl Iterator<Item = &'a Step> + Clone) -> Duration {
        let loads: Duration =
            steps.clone().map(|step| step.job.ramp + step.job.runtime.unwrap_or_default()).sum();
        let volumes = steps.clone().next().map_or((0, 0), |step| step.volumes);
        let combinations: Vec<SystemCombination> = steps.map(Step::combination).collect();
        loads + steps_overhead(combinations.iter(), volumes, self)
    }

    /// Says how long a target or an initiator takes, whatever was known before.
    pub fn note_time(known: &mut Vec<(String, Duration)>, name: &str, time: Duration) {
        known.retain(|(one, _)| one != name);
        known.push((name.to_owned(), time));
    }
}

/// Every second of a range with both its ends; of three, the ends alone.
pub fn every_second<T: Copy>(range: &[T]) -> Vec<T> {
    match range {
        [first, _, last] => vec![*first, *last],
        [.., last] if range.len() > 3 => {
            let every = range.iter().step_by(2).copied();
            // The last one is among them if their number is odd.
            every.chain(range.len().is_multiple_of(2).then_some(*last)).collect()
        }
        _ => range.to_vec(),
    }
}

/// The ramp before figures count.
pub(super) fn ramp_time(runtime: Duration) -> Duration {
    (runtime / 10).min(Duration::from_secs(2))
}

/// When systems that are compared take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOrder {
    /// Under each load, so that what changes in the machine meets all alike.
    EachLoad,
    /// On each link of a round: a target does all loads, and is started once for them.
    EachLink,
}

/// A pair of systems with what lies between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SystemCombination {
    pub(super) target: String,
    pub(super) initiator: String,
    pub(super) protocol: Protocol,
    pub(super) wire: Wire,
    pub(super) connections: u32,
    pub(super) medium: VolumeMedium,
    /// Of the target; `None`: all of its own.
    pub(super) cores: Option<u32>,
}

impl SystemCombination {
    /// Whether the same target can go on serving.
    fn has_same_target(&self, other: &SystemCombination) -> bool {
        (&self.target, self.protocol, self.wire, self.medium, self.cores)
            == (&other.target, other.protocol, other.wire, other.medium, other.cores)
    }
}

/// The steps of a round, in the order in which they are done: in each round another system is first.
pub(super) fn round_steps<'a>(
    number: u32,
    wires: &[Wire],
    loads: &'a [PresetLoad],
    combinations: &'a [SystemCombination],
    turns: TurnOrder,
    left_out: &[OmittedLoad],
) -> Vec<(&'a PresetLoad, &'a SystemCombination)> {
    let mut steps = Vec::new();
    // A link is kept for all loads of a round.
    for wire in wires {
        let mut here: Vec<&SystemCombination> =
            combinations.iter().filter(|combination| combination.wire == *wire).collect();
        let first = (number as usize).checked_rem(here.len()).unwrap_or(0);
        here.rotate_left(first);
        match turns {
            TurnOrder::EachLoad => {
                steps.extend(
                    loads.iter().flat_map(|load| here.iter().map(move |combination| (load, *combination))),
                );
            }
            TurnOrder::EachLink => {
                let mut left = here;
                while let Some(first) = left.first().copied() {
                    let (same, others): (Vec<&SystemCombination>, Vec<&SystemCombination>) =
                        left.into_iter().partition(|combination| combination.has_same_target(first));
                    steps.extend(
                        loads
                            .iter()
                            .flat_map(|load| same.iter().map(move |combination| (load, *combination))),
                    );
                    left = others;
                }
            }
        }
    }
    steps.retain(|(load, combination)| !left_out.iter().any(|one| one.matches(load, combination)));
    steps
}

/// What steps take beside their loads' ramp and run time.
pub(super) fn steps_overhead<'a>(
    steps: impl Iterator<Item = &'a SystemCombination>,
    volumes: (u32, u64),
    timing: &StepTiming,
) -> Duration {
    let mut before: Option<&SystemCombination> = None;
    let mut sum = Duration::ZERO;
    for combination in steps {
        if combination.protocol == Protocol::Local {
            before = None;
        } else if !before.is_some_and(|before| before.has_same_target(combination)) {
            sum += timing.target_start_time(&combination.target, volumes, combination.medium);
            before = Some(combination);
        }
        sum += timing.load_overhead(&combination.initiator, combination.connections);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_keeps_its_ends() {
        let thin = |count: u32| every_second(&(1..=count).collect::<Vec<_>>());
        assert_eq!([thin(2), thin(3), thin(4)], [vec![1, 2], vec![1, 3], vec![1, 3, 4]]);
        assert_eq!((thin(5), thin(6), thin(0)), (vec![1, 3, 5], vec![1, 3, 5, 6], vec![]));
    }

    #[test]
    fn what_is_known_of_a_system_is_its_own() {
        let mut timing = StepTiming::default();
        StepTiming::note_time(&mut timing.starts, "slow", Duration::from_secs(9));
        StepTiming::note_time(&mut timing.starts, "slow", Duration::from_secs(3));
        assert_eq!(timing.starts.len(), 1);
        let volumes = (2, 500_000_000);
        assert_eq!(timing.target_start_time("slow", volumes, VolumeMedium::Ram), Duration::from_secs(4));
        assert_eq!(timing.target_start_time("slow", volumes, VolumeMedium::Null), Duration::from_secs(3));
        assert_eq!(timing.target_start_time("other", volumes, VolumeMedium::Null), START_TIME_DEFAULT);
        assert_eq!(timing.load_overhead("any", 2_000), LOAD_TIME_DEFAULT + Duration::from_secs(1));
    }
}
