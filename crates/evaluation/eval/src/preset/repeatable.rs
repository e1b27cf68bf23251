//! What a plan repeats of experiments that are no plain loads on volumes: databases, guests, mixed traffic.
//!
//! Invariant: as with steps, what [`check`](RepeatableExperiment::check) lets pass can be run, and no figure of it is
//! beyond what a preset has.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::frozen::{IO_BYTES_MAX, TIME_MAX, VOLUME_BYTES_MAX, VOLUMES_MAX, job_error};
use super::{ExperimentKind, MixedTrafficPlan, PresetLoad, Wire};

/// Most systems, databases, links or loads of a plan.
const PARTS_MAX: usize = 4096;
/// Most rounds.
const ROUNDS_MAX: u32 = 10_000;
/// Most users of one database: its server takes 500 connections.
const USERS_MAX: u32 = 450;
/// Smallest part of memory and volumes: they are whole MiB.
const MIB: u64 = 1 << 20;
/// Memory of a guest.
const GUEST_MEMORY: std::ops::RangeInclusive<u64> = 128 * MIB..=1 << 42;

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepeatableExperiment {
    /// Several protocols over one link.
    MixedTraffic(MixedTrafficPlan),
    /// Databases on striped volumes.
    Databases(DatabasePlan),
    /// Guests whose disk is a volume.
    Guests(GuestPlan),
}

/// A run of databases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabasePlan {
    /// Whose users they are; plans of the first form are of sysbench.
    #[serde(default = "first_program")]
    pub program: String,
    /// Target, and database server.
    pub systems: Vec<(String, String)>,
    /// What lies between the ends.
    pub wire: Wire,
    /// Databases at once.
    pub databases: u32,
    /// Users of each.
    pub users: u32,
    /// LUNs of each.
    pub luns: u32,
    /// Bytes of a LUN.
    pub lun: u64,
    /// Warehouses of each database.
    pub warehouses: u64,
    /// By database server: transactions of each user.
    pub transactions: Vec<(String, u64)>,
    /// How often all of it is done.
    pub rounds: u32,
}

fn first_program() -> String {
    "sysbench".to_owned()
}

/// A run of guests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// Target, and how the guest reaches its volume.
    pub systems: Vec<(String, String)>,
    /// Bytes of the volume.
    pub volume: u64,
    /// Bytes of the guest's memory.
    pub memory: u64,
    /// How long a load runs.
    pub runtime: Duration,
    /// The loads, in order.
    pub loads: Vec<PresetLoad>,
    /// How often all of it is done.
    pub rounds: u32,
}

impl RepeatableExperiment {
    /// Why it cannot be run as an experiment of this kind.
    pub(super) fn check(&self, kind: ExperimentKind) -> Option<&'static str> {
        match (self, kind) {
            (RepeatableExperiment::MixedTraffic(mixed), ExperimentKind::MixedTraffic) => mixed_error(mixed),
            (RepeatableExperiment::Databases(plan), ExperimentKind::Oltp { .. }) => database_error(plan),
            (RepeatableExperiment::Guests(plan), ExperimentKind::Machine) => guest_error(plan),
            (
                RepeatableExperiment::MixedTraffic(_)
                | RepeatableExperiment::Databases(_)
                | RepeatableExperiment::Guests(_),
                ExperimentKind::Block
                | ExperimentKind::MixedTraffic
                | ExperimentKind::Oltp { .. }
                | ExperimentKind::Machine,
            ) => Some("is of another kind than its experiment"),
        }
    }
}

fn parts_error(parts: usize, rounds: u32) -> Option<&'static str> {
    match () {
        () if parts == 0 || parts > PARTS_MAX => Some("has nothing to run, or too much"),
        () if rounds == 0 || rounds > ROUNDS_MAX => Some("has a number of rounds that cannot be"),
        () => None,
    }
}

fn mixed_error(mixed: &MixedTrafficPlan) -> Option<&'static str> {
    parts_error(mixed.wires.len(), mixed.rounds)
        .or(parts_error(mixed.jobs.len(), mixed.rounds))
        .or(mixed.jobs.iter().find_map(job_error))
}

fn database_error(plan: &DatabasePlan) -> Option<&'static str> {
    let is_told =
        |database: &str| plan.transactions.iter().any(|(known, each)| known == database && *each > 0);
    parts_error(plan.systems.len(), plan.rounds).or(match () {
        () if plan.databases == 0
            || u64::from(plan.databases) * u64::from(plan.luns) > u64::from(VOLUMES_MAX) =>
        {
            Some("has a number of databases that cannot be")
        }
        () if plan.users == 0 || plan.users > USERS_MAX => Some("has a number of users that cannot be"),
        () if plan.luns == 0 => Some("has a number of LUNs that cannot be"),
        () if plan.lun < MIB || plan.lun > VOLUME_BYTES_MAX || !plan.lun.is_multiple_of(MIB) => {
            Some("has LUNs of a size that cannot be: whole MiB are")
        }
        () if plan.warehouses == 0 || plan.warehouses > u64::from(u32::MAX) => {
            Some("has a number of warehouses that cannot be")
        }
        () if !plan.systems.iter().all(|(_, database)| is_told(database)) => {
            Some("does not tell the transactions of each database server")
        }
        () => None,
    })
}

fn guest_error(plan: &GuestPlan) -> Option<&'static str> {
    let is_load = |load: &PresetLoad| {
        load.bytes > 0
            && load.bytes <= IO_BYTES_MAX
            && (1..=4096).contains(&load.depth)
            && (1..=1024).contains(&load.threads)
    };
    parts_error(plan.systems.len(), plan.rounds).or(parts_error(plan.loads.len(), plan.rounds)).or(match () {
        () if plan.volume < MIB || plan.volume > VOLUME_BYTES_MAX || !plan.volume.is_multiple_of(MIB) => {
            Some("has a volume of a size that cannot be: whole MiB are")
        }
        () if !GUEST_MEMORY.contains(&plan.memory) => Some("has guests of a memory that cannot be"),
        () if plan.runtime.is_zero() || plan.runtime > TIME_MAX => Some("runs for no time that can be"),
        () if !plan.loads.iter().all(is_load) => Some("has a load that cannot be"),
        () => None,
    })
}
