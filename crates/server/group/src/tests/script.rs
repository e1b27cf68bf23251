//! What happens in a history, from its seed: a list of steps, so that a failing one can be made shorter.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::SimRng;

use super::check::Tally;
use super::world::World;
use crate::failpoint::Failpoint;

pub(super) const MS: u64 = 1_000_000;

/// Something that is done to the group. Times are in milliseconds.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A gateway's process does not run.
    Pause {
        gateway: usize,
        ms: u64,
    },
    /// It is killed and started again later. `silent`: with its machine, so no connection is reset.
    Kill {
        gateway: usize,
        silent: bool,
        ms: u64,
    },
    /// Two gateways do not reach each other.
    Cut {
        one: usize,
        other: usize,
        ms: u64,
    },
    /// Their connection is reset.
    Reset {
        one: usize,
        other: usize,
    },
    /// A gateway does not reach the store.
    StoreCut {
        gateway: usize,
        ms: u64,
    },
    Drain {
        gateway: usize,
        ms: u64,
    },
    Apply {
        gateway: usize,
        based: bool,
    },
    Port {
        gateway: usize,
        name: u8,
    },
    Bind {
        gateway: usize,
        host: u8,
        nqn: u8,
    },
    Expel {
        gateway: usize,
        lost: usize,
    },
    /// Each group gets a second volume, or loses it.
    Volumes {
        second: bool,
    },
}

/// One history.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) groups: usize,
    pub(super) hosts: usize,
    /// Rates of the gateways' clocks, in thousandths.
    pub(super) clocks: Vec<u64>,
    /// Servers and clients learn of maps so late, in milliseconds at most.
    pub(super) lazy: u64,
    /// Of a thousand requests to the store, so many have an unknown outcome.
    pub(super) unknown: u32,
    /// Of a thousand operations, so many arrive seconds late.
    pub(super) late: u32,
    pub(super) script: Vec<(u64, Step)>,
    /// Whether hosts have controllers reset that they have lost.
    pub(super) resets: bool,
    pub(super) bug: Option<Failpoint>,
}

/// When the last step may begin, in milliseconds.
pub(super) const FAULTS_END: u64 = 25_000;

impl Plan {
    pub(super) fn new(seed: u64) -> Plan {
        let mut rng = SimRng::new(seed ^ 0x67_726f_7570);
        let gateways = rng.between(2, 4) as usize;
        let groups = rng.between(1, 3) as usize;
        let clocks = (0..gateways).map(|_| *rng.pick(&[1000, 1000, 990, 1010, 700, 1400])).collect();
        let lazy = *rng.pick(&[5, 500, 60_000]);
        let (unknown, late) = (*rng.pick(&[0, 20, 100]), *rng.pick(&[2, 20, 60]));
        let steps = rng.between(3, 14);
        let mut script: Vec<(u64, Step)> =
            (0..steps).map(|_| (rng.between(500, FAULTS_END), Self::step(&mut rng, gateways))).collect();
        script.sort_by_key(|(at, _)| *at);
        let hosts = rng.between(2, 4) as usize;
        let resets = rng.chance_permille(500);
        Plan { seed, groups, hosts, clocks, lazy, unknown, late, script, resets, bug: None }
    }

    fn step(rng: &mut SimRng, gateways: usize) -> Step {
        let gateway = rng.below(gateways as u64) as usize;
        let other = (gateway + rng.between(1, gateways as u64 - 1) as usize) % gateways;
        match rng.below(22) {
            0..=4 => Step::Pause { gateway, ms: *rng.pick(&[300, 1500, 2500, 4000, 9000, 20_000]) },
            5..=7 => Step::Kill { gateway, silent: rng.chance_permille(300), ms: rng.between(50, 6000) },
            8 | 9 => Step::Cut { one: gateway, other, ms: rng.between(100, 6000) },
            10 | 11 => Step::Reset { one: gateway, other },
            12 => Step::StoreCut { gateway, ms: rng.between(200, 9000) },
            13 | 14 => Step::Drain { gateway, ms: rng.between(500, 5000) },
            15 | 16 => Step::Apply { gateway, based: rng.chance_permille(500) },
            17 => Step::Port { gateway, name: rng.below(4) as u8 },
            18 => Step::Bind { gateway, host: rng.below(2) as u8, nqn: rng.below(2) as u8 },
            19 | 20 => Step::Volumes { second: rng.chance_permille(600) },
            _ => Step::Expel { gateway, lost: other },
        }
    }

    /// Plays it. Panics with a shorter history that fails too, if it fails.
    pub(super) fn play(&self) -> Tally {
        match self.outcome() {
            Ok(tally) => tally,
            Err(why) => {
                let shorter = self.shrink();
                let also = shorter.outcome().err().unwrap_or_default();
                panic!("{why}\n  in {self:?}\n  a shorter history: {also}\n  in {shorter:?}");
            }
        }
    }

    /// What comes of it.
    pub(super) fn outcome(&self) -> Result<Tally, String> {
        catch_unwind(AssertUnwindSafe(|| World::new(self.clone()).play())).map_err(|why| {
            let text = why.downcast_ref::<String>().cloned();
            text.or_else(|| why.downcast_ref::<&str>().map(|why| (*why).to_owned())).unwrap_or_default()
        })
    }

    /// A history with fewer steps that fails too.
    pub(super) fn shrink(&self) -> Plan {
        let mut plan = self.clone();
        let mut size = plan.script.len().div_ceil(2).max(1);
        loop {
            let mut from = 0;
            while from < plan.script.len() {
                let mut shorter = plan.clone();
                shorter.script.drain(from..(from + size).min(plan.script.len()));
                if shorter.outcome().is_err() {
                    plan = shorter;
                } else {
                    from += size;
                }
            }
            if size == 1 {
                return plan;
            }
            size /= 2;
        }
    }
}
