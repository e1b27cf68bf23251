//! How long a plan takes: starting, filling and connecting in addition to the loads' own time, and which
//! order of steps costs least.

use std::time::Duration;

use crate::fio::Direction;

use super::{Load, Medium, Protocol, Step, Wire};

/// What a plan's steps take beside the time for which figures count.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
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
    pub left_out: Vec<LeftOut>,
}

/// A load that a pair of systems cannot do.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// The target.
    pub target: String,
    /// The initiator.
    pub initiator: String,
    /// What carries it.
    pub protocol: Protocol,
    /// What volumes are made of.
    pub medium: Medium,
    /// What the load does, in I/Os of so many bytes, and whether at a rate.
    pub load: (Direction, u32, bool),
}

impl LeftOut {
    /// A step that is left out, and its like.
    pub fn like(step: &Step) -> LeftOut {
        LeftOut {
            target: step.target.clone(),
            initiator: step.initiator.clone(),
            protocol: step.protocol,
            medium: step.medium,
            load: (step.job.direction, step.job.block.0, step.rate.is_some()),
        }
    }

    fn is(&self, load: &Load, combination: &Combination) -> bool {
        (&self.target, &self.initiator, self.protocol, self.medium)
            == (&combination.target, &combination.initiator, combination.protocol, combination.medium)
            && self.load == (load.direction, load.bytes, load.rate.is_some())
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
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
const START: Duration = Duration::from_millis(500);
const LOAD: Duration = Duration::from_millis(200);

fn of(known: &[(String, Duration)], name: &str, other: Duration) -> Duration {
    known.iter().find(|(one, _)| one == name).map_or(other, |(_, time)| *time)
}

impl Timing {
    /// A target with its volumes, until the first load can begin.
    pub fn start(&self, target: &str, (count, bytes): (u32, u64), medium: Medium) -> Duration {
        let filled = if medium == Medium::Ram { u64::from(count) * bytes } else { 0 };
        of(&self.starts, target, START) + Duration::from_secs_f64(filled as f64 / self.filled)
    }

    /// A load, beside its ramp and run time.
    pub fn load(&self, initiator: &str, connections: u32) -> Duration {
        let connecting = Duration::from_secs_f64(f64::from(connections) / self.connected);
        of(&self.loads, initiator, LOAD) + connecting
    }

    /// How long steps take in this order, with all starting and filling.
    pub fn of_steps<'a>(&self, steps: impl Iterator<Item = &'a Step> + Clone) -> Duration {
        let loads: Duration =
            steps.clone().map(|step| step.job.ramp + step.job.runtime.unwrap_or_default()).sum();
        let volumes = steps.clone().next().map_or((0, 0), |step| step.volumes);
        let combinations: Vec<Combination> = steps.map(Step::combination).collect();
        loads + around(combinations.iter(), volumes, self)
    }

    /// Says how long a target or an initiator takes, whatever was known before.
    pub fn learn(known: &mut Vec<(String, Duration)>, name: &str, time: Duration) {
        known.retain(|(one, _)| one != name);
        known.push((name.to_owned(), time));
    }
}

/// Every second of a range with both its ends; of three, the ends alone.
pub fn thinned<T: Copy>(range: &[T]) -> Vec<T> {
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
pub(super) fn ramp(runtime: Duration) -> Duration {
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
pub(super) struct Combination {
    pub(super) target: String,
    pub(super) initiator: String,
    pub(super) protocol: Protocol,
    pub(super) wire: Wire,
    pub(super) connections: u32,
    pub(super) medium: Medium,
    /// Of the target; `None`: all of its own.
    pub(super) cores: Option<u32>,
}

impl Combination {
    /// Whether the same target can go on serving.
    fn has_target_of(&self, other: &Combination) -> bool {
        (&self.target, self.protocol, self.wire, self.medium, self.cores)
            == (&other.target, other.protocol, other.wire, other.medium, other.cores)
    }
}

/// The steps of a round, in the order in which they are done: in each round another system is first.
pub(super) fn round<'a>(
    number: u32,
    wires: &[Wire],
    loads: &'a [Load],
    combinations: &'a [Combination],
    turns: TurnOrder,
    left_out: &[LeftOut],
) -> Vec<(&'a Load, &'a Combination)> {
    let mut steps = Vec::new();
    // A link is kept for all loads of a round.
    for wire in wires {
        let mut here: Vec<&Combination> =
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
                    let (same, others): (Vec<&Combination>, Vec<&Combination>) =
                        left.into_iter().partition(|combination| combination.has_target_of(first));
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
    steps.retain(|(load, combination)| !left_out.iter().any(|one| one.is(load, combination)));
    steps
}

/// What steps take beside their loads' ramp and run time.
pub(super) fn around<'a>(
    steps: impl Iterator<Item = &'a Combination>,
    volumes: (u32, u64),
    timing: &Timing,
) -> Duration {
    let mut before: Option<&Combination> = None;
    let mut sum = Duration::ZERO;
    for combination in steps {
        if combination.protocol == Protocol::Local {
            before = None;
        } else if !before.is_some_and(|before| before.has_target_of(combination)) {
            sum += timing.start(&combination.target, volumes, combination.medium);
            before = Some(combination);
        }
        sum += timing.load(&combination.initiator, combination.connections);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_keeps_its_ends() {
        let thin = |count: u32| thinned(&(1..=count).collect::<Vec<_>>());
        assert_eq!([thin(2), thin(3), thin(4)], [vec![1, 2], vec![1, 3], vec![1, 3, 4]]);
        assert_eq!((thin(5), thin(6), thin(0)), (vec![1, 3, 5], vec![1, 3, 5, 6], vec![]));
    }

    #[test]
    fn what_is_known_of_a_system_is_its_own() {
        let mut timing = Timing::default();
        Timing::learn(&mut timing.starts, "slow", Duration::from_secs(9));
        Timing::learn(&mut timing.starts, "slow", Duration::from_secs(3));
        assert_eq!(timing.starts.len(), 1);
        let volumes = (2, 500_000_000);
        assert_eq!(timing.start("slow", volumes, Medium::Ram), Duration::from_secs(4));
        assert_eq!(timing.start("slow", volumes, Medium::Null), Duration::from_secs(3));
        assert_eq!(timing.start("other", volumes, Medium::Null), START);
        assert_eq!(timing.load("any", 2_000), LOAD + Duration::from_secs(1));
    }
}
