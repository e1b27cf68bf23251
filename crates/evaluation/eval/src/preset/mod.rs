//! The experiments of the papers, as plans for this machine.
//!
//! A [`Preset`] describes what a paper did. [`fit_plan`] scales it to this machine and reports every change;
//! nothing is made smaller silently. Invariant: a plan's steps name the same load for every pair of systems,
//! in an order in which the systems take turns.

mod error;
mod fit;
mod frozen;
mod repeatable;
mod table;
mod timing;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fio::{IoDirection, Job};
use crate::published::{PublishedFigure, published_data};
pub use error::{NetworkNamespaceError, PlanError};
pub use fit::{
    HostCapacity, MixedTrafficPlan, Scale, fit_plan, mixed_traffic_plan, preset_durations, round_seed,
};
pub use frozen::{FrozenPlan, PLAN_SCHEMA_VERSION, PlanParseError};
pub use repeatable::{DatabasePlan, GuestPlan, RepeatableExperiment};
pub use table::PRESETS;
pub use timing::{OmittedLoad, StepTiming, every_second};

/// What volumes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeMedium {
    /// Memory.
    Ram,
    /// Nothing: the cost of the protocol alone.
    Null,
    /// A file, past the page cache (O_DIRECT).
    File,
}

impl VolumeMedium {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            VolumeMedium::Ram => "ram",
            VolumeMedium::Null => "null",
            VolumeMedium::File => "file",
        }
    }
}

/// A protocol that carries a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    NvmeTcp,
    /// A plain stream, as much as goes.
    Stream,
    /// No storage protocol: what there can be at most.
    Bare,
    /// No network: the initiator's own memory.
    Local,
}

/// The bare responder, and the requester that sleeps when nothing comes.
pub const BARE_SYSTEM: &str = "bare";
/// The bare requester that polls first.
pub const BARE_POLLING_SYSTEM: &str = "bare-polling";

impl Protocol {
    /// Descriptors and ports that a connection of it takes: an NVMe host has one more to each controller, for its
    /// admin queue, and each connection of ours has a controller of its own.
    pub fn links_per_connection(self) -> u32 {
        match self {
            Protocol::NvmeTcp => 2,
            Protocol::Iscsi | Protocol::Stream | Protocol::Bare => 1,
            Protocol::Local => 0,
        }
    }

    /// Its name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi",
            Protocol::NvmeTcp => "nvme-tcp",
            Protocol::Stream => "tcp",
            Protocol::Bare => "bare",
            Protocol::Local => "local",
        }
    }
}

/// Which targets meet which initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemPairing {
    /// Every target with every initiator that was named.
    All,
    /// As Demartek paired them: a software target with our initiator, our target with a software
    /// initiator, both ours.
    ThreeSetUps,
}

/// What lies between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// The loopback interface.
    Loopback,
    /// A pair of virtual interfaces between two network namespaces, with this MTU.
    Veth {
        /// 1500 or 9000 bytes.
        mtu: u32,
    },
    /// The same, with a limit of so many bits per second.
    Limited {
        /// MTU in bytes.
        mtu: u32,
        /// Bits per second.
        limit: u64,
    },
    /// The same, with a limit of so many bits per second and other traffic that fills it.
    Congested {
        /// MTU in bytes.
        mtu: u32,
        /// Bits per second.
        limit: u64,
    },
}

/// One load of a preset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresetLoad {
    /// What it does.
    pub direction: IoDirection,
    /// In random order.
    pub is_random: bool,
    /// Bytes of an I/O.
    pub bytes: u32,
    /// In flight for each thread.
    pub depth: u32,
    /// Threads, over all initiators.
    pub threads: u32,
    /// At a rate of so many percent of what the system does under the same load at most; `None`: as much as goes.
    pub rate: Option<u8>,
}

/// What an experiment is, beside its loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentKind {
    /// Loads on volumes, as they are.
    Block,
    /// A database on a striped volume, for a fixed number of transactions.
    Oltp {
        /// Users of each database.
        users: u32,
        /// Transactions of each user.
        transactions: u32,
        /// Databases at once.
        databases: u32,
    },
    /// One end in a virtual machine.
    Machine,
    /// All protocols at once over one wire.
    MixedTraffic,
}

/// An experiment of a paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name on the command line.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// The paper, as [`published`](crate::published) names it; `None`: ours.
    pub paper: Option<&'static str>,
    /// Where in the paper.
    pub at: &'static str,
    /// Which of the paper's figures are of this experiment: how their names begin.
    pub figures: &'static [&'static str],
    /// What it is.
    pub kind: ExperimentKind,
    /// How many volumes, of so many bytes each.
    pub volumes: (u32, u64),
    /// Over how many iSCSI targets they are divided; `None`: each has a target of its own.
    pub targets: Option<u32>,
    /// What they are made of.
    pub media: &'static [VolumeMedium],
    /// Initiators at once.
    pub hosts: u32,
    /// What carries it.
    pub protocols: &'static [Protocol],
    /// Who meets whom.
    pub pairing: SystemPairing,
    /// What lies between.
    pub wires: &'static [Wire],
    /// Numbers of connections to be tried; empty: one for each volume.
    pub connections: &'static [u32],
    /// Directions, with the word of fio.
    pub directions: &'static [IoDirection],
    /// Sizes of an I/O, in bytes.
    pub sizes: &'static [u32],
    /// Whether offsets are random, in turn.
    pub orders: &'static [bool],
    /// I/Os in flight for each thread and threads on each initiator, in turn; empty: `depth` and `threads`.
    pub shapes: &'static [(u32, u32)],
    /// Rates at which each load is done again, in percent of what the system does at most.
    pub rates: &'static [u8],
    /// Whether the target has 1, 2, … of the machine's processors, in turn.
    pub scales_cores: bool,
    /// I/Os in flight for each thread.
    pub depth: u32,
    /// Threads on each initiator.
    pub threads: u32,
    /// How long each load runs.
    pub runtime: Duration,
    /// Rounds in which the systems take turns.
    pub rounds: u32,
}

impl Preset {
    /// The preset of this name.
    pub fn find(id: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.id == id)
    }

    /// What its paper printed about it, in the paper's order.
    pub fn published_figures(&self) -> impl Iterator<Item = &'static PublishedFigure> {
        let mine = self.figures;
        published_data()
            .figures
            .iter()
            .filter(move |figure| mine.iter().any(|start| figure.id.starts_with(start)))
    }

    /// Whether one I/O at a time is out, so that how an initiator waits is what is measured.
    pub fn is_queue_depth_one(&self) -> bool {
        self.depth * self.threads * self.hosts == 1 && self.connections.is_empty()
    }

    /// Those of its loads that a file of another tool has: as much as goes, with its own depth and threads.
    pub fn loads_for_export(&self) -> Vec<PresetLoad> {
        let mut loads = self.loads();
        loads.retain(|load| {
            load.rate.is_none() && load.depth == self.depth && load.threads == self.threads * self.hosts
        });
        loads
    }

    /// Its loads.
    pub fn loads(&self) -> Vec<PresetLoad> {
        let own = [(self.depth, self.threads)];
        let shapes = if self.shapes.is_empty() { &own[..] } else { self.shapes };
        // What a system does at most is known before a part of it is asked for.
        let rates = || std::iter::once(None).chain(self.rates.iter().map(|rate| Some(*rate)));
        let mut loads = Vec::new();
        for &bytes in self.sizes {
            for &direction in self.directions {
                for &is_random in self.orders {
                    for &(depth, threads) in shapes {
                        let threads = threads * self.hosts;
                        let load = |rate| PresetLoad { direction, is_random, bytes, depth, threads, rate };
                        loads.extend(rates().map(load));
                    }
                }
            }
        }
        loads
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The target's name, as the plug-ins have it.
    pub target: String,
    /// The initiator's.
    pub initiator: String,
    /// What carries it.
    pub protocol: Protocol,
    /// What lies between.
    pub wire: Wire,
    /// The volumes.
    pub volumes: (u32, u64),
    /// What they are made of.
    pub medium: VolumeMedium,
    /// Connections.
    pub connections: u32,
    /// How many of the machine's processors the target has; `None`: all that are the target's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The load, in fio's words.
    pub job: Job,
    /// Its rate in percent of what the system did without one; that of `job` stands for it until this is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u8>,
    /// Which round it belongs to, from 0.
    pub round: u32,
}

/// The steps of one evaluation: a preset, fitted to the machine and the time.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationPlan {
    /// Of which preset.
    pub preset: &'static Preset,
    /// What is measured, in this order.
    pub steps: Vec<Step>,
    /// How long all of it may take, if it was made to fit a time.
    pub time: Option<Duration>,
    /// What was changed to fit the machine, and what is left out and why.
    pub notes: Vec<String>,
}

impl EvaluationPlan {
    /// How long it takes, with all starting and filling.
    pub fn duration(&self, timing: &StepTiming) -> Duration {
        timing.steps_duration(self.steps.iter())
    }
}

impl Step {
    fn combination(&self) -> timing::SystemCombination {
        timing::SystemCombination {
            target: self.target.clone(),
            initiator: self.initiator.clone(),
            protocol: self.protocol,
            wire: self.wire,
            connections: self.connections,
            medium: self.medium,
            cores: self.cores,
        }
    }
}

/// fio's word for a load.
pub fn fio_rw_word(direction: IoDirection, is_random: bool) -> &'static str {
    match (direction, is_random) {
        (IoDirection::Read, false) => "read",
        (IoDirection::Read, true) => "randread",
        (IoDirection::Write, false) => "write",
        (IoDirection::Write, true) => "randwrite",
        (IoDirection::Mixed(_), false) => "rw",
        (IoDirection::Mixed(_), true) => "randrw",
        (IoDirection::Trim, false) => "trim",
        (IoDirection::Trim, true) => "randtrim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every figure is shown with an experiment of its paper, and no name stands for nothing.
    #[test]
    fn every_published_figure_is_of_a_preset() {
        for figure in &published_data().figures {
            let shown = PRESETS.iter().any(|preset| {
                preset.paper == Some(figure.paper())
                    && preset.published_figures().any(|one| one.id == figure.id)
            });
            assert!(shown, "{} is of no preset", figure.id);
        }
        for preset in PRESETS {
            for start in preset.figures {
                assert!(
                    preset.published_figures().any(|figure| figure.id.starts_with(start)),
                    "{start} stands for none"
                );
            }
            assert!(
                preset.published_figures().all(|figure| preset.paper == Some(figure.paper())),
                "{}",
                preset.id
            );
        }
    }
}
