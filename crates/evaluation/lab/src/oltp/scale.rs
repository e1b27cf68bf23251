//! The size of the database experiment on this machine.
//!
//! Invariant: every difference from the paper is in a note.

use std::time::Duration;

use eval::preset::{DatabasePlan, ExperimentKind, HostCapacity, Preset, Scale};

use super::users::UserProgram;
use crate::Failure;

/// Smallest LUN: six of them hold what a database server makes before there is any table.
const LUN_BYTES_MIN: u64 = 64 << 20;
/// Data of one database in the paper.
const PAPER_DATA_BYTES: u64 = 260 << 30;
/// Memory of a server beside its cache, and for each user: PostgreSQL has a process for each.
const SERVER_BYTES: u64 = 192 << 20;
const USER_BYTES: u64 = 6 << 20;
/// Part of a volume, in percent, that tables may take: logs and growth need the rest.
const TABLES_PERCENT_MAX: u64 = 40;
/// Rows that are loaded in a second, as a guess that is rather low.
const ROWS_PER_SECOND: f64 = 6_000.0;
/// Seconds of a pair in a round below which it mostly starts, and is ended.
const ROUND_SECONDS_MIN: f64 = 60.0;

/// How large it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OltpSize {
    /// Whose users they are.
    pub(super) program: UserProgram,
    /// Databases at once, each with users and volumes of its own.
    pub(super) databases: u32,
    /// Users of each.
    pub(super) users: u32,
    /// Transactions of each user; `None`: as many as there is time for, found out by the first system on each
    /// database server.
    pub(super) transactions: Option<u64>,
    /// How often each pair of systems does them, in turn with the others.
    pub(super) rounds: u32,
    /// LUNs of each database.
    pub(super) luns: u32,
    /// Bytes of a LUN.
    pub(super) lun: u64,
    /// Warehouses of each database.
    pub(super) warehouses: u64,
    /// How long all of it is to run, if there is a limit.
    pub(super) time: Option<Duration>,
}

impl OltpSize {
    /// That of a run that is repeated, as long as it takes.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn of_plan(plan: &DatabasePlan, room: &HostCapacity) -> Result<OltpSize, Failure> {
        let size = OltpSize {
            program: UserProgram::of_plan(&plan.program)?,
            databases: plan.databases,
            users: plan.users,
            transactions: None,
            rounds: plan.rounds,
            luns: plan.luns,
            lun: plan.lun,
            warehouses: plan.warehouses,
            time: None,
        };
        if size.data_bytes() > u64::from(size.luns) * size.lun {
            return Err(Failure::new(format!(
                "the plan has {} MiB of tables on {} LUNs of {} MiB",
                size.data_bytes() >> 20,
                size.luns,
                size.lun >> 20
            )));
        }
        size.check_memory(room, "a plan of a smaller run is needed").map(|()| size)
    }

    fn check_memory(&self, room: &HostCapacity, remedy: &str) -> Result<(), Failure> {
        let luns = self.databases * self.luns;
        if u64::from(luns).saturating_mul(self.lun) > room.memory / 4 * 3 {
            return Err(Failure::new(format!(
                "{luns} LUNs of {} MiB do not fit the {} MiB of memory that are free: {remedy}",
                self.lun >> 20,
                room.memory >> 20
            )));
        }
        Ok(())
    }

    /// Bytes that tables take at first.
    pub(super) fn data_bytes(&self) -> u64 {
        self.warehouses * self.program.warehouse().0
    }

    /// Memory that a server may use with its users and its part of the page cache. It is what it needs, so that data
    /// comes from the LUNs; tables that are small fit it all the same.
    pub(super) fn server_memory_bytes(&self) -> u64 {
        self.cache_bytes() + SERVER_BYTES + u64::from(self.users) * USER_BYTES
    }

    /// Memory that a database server gives to its own cache: a 16th of its data.
    pub(super) fn cache_bytes(&self) -> u64 {
        (self.data_bytes() / 16).clamp(16 << 20, 1 << 30) & !((1 << 20) - 1)
    }
}

/// Makes of the preset what the machine can do with so many pairs of systems. Notes go to `notes`.
pub(super) fn scale_to_host(
    preset: &Preset,
    room: &HostCapacity,
    scale: Scale,
    (program, pairs): (UserProgram, usize),
    notes: &mut Vec<String>,
) -> Result<OltpSize, Failure> {
    let (warehouse_bytes, warehouse_rows) = program.warehouse();
    let ExperimentKind::Oltp { users, transactions, databases } = preset.kind else {
        return Err(Failure::new(format!("{} has no database", preset.id)));
    };
    let luns = preset.volumes.0 / databases;
    let cores = u32::try_from(room.cores).unwrap_or(u32::MAX);
    let memory = room.memory / 3;
    let size = match scale.requested_part() {
        Some(part) => {
            let part_of = |all: u32, least: u32| ((f64::from(all) * part) as u32).clamp(least, all);
            // As many databases as in the paper, with fewer users each; one shows that it works.
            let databases = if scale == Scale::Smallest { 1 } else { databases };
            let lun = ((preset.volumes.1 as f64 * part) as u64).max(LUN_BYTES_MIN);
            let warehouses = (PAPER_DATA_BYTES as f64 * part) as u64 / warehouse_bytes;
            OltpSize {
                program,
                databases,
                users: part_of(users, 2),
                transactions: Some(u64::from(part_of(transactions, 20))),
                rounds: 1,
                luns,
                lun,
                warehouses: warehouses.clamp(1, warehouses_max(lun, luns, warehouse_bytes)),
                time: None,
            }
        }
        None => {
            // As many as in the paper, where their LUNs fit.
            let fit = memory / (u64::from(luns) * LUN_BYTES_MIN);
            let databases = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, databases);
            let each = memory / u64::from(databases * luns);
            let lun = each.min(preset.volumes.1).clamp(LUN_BYTES_MIN, 1 << 30);
            let rounds = affordable_rounds(preset.rounds, room.time, pairs);
            // A fifth of the time is for filling, in each round again.
            let fillings = pairs.max(1) as f64 * f64::from(rounds);
            let loading = room.time.mul_f64(0.2).as_secs_f64() / fillings;
            let warehouses = (ROWS_PER_SECOND * loading) as u64 / u64::from(databases) / warehouse_rows;
            OltpSize {
                program,
                databases,
                users: (users * cores / 24).clamp(4, users),
                transactions: None,
                rounds,
                luns,
                lun,
                warehouses: warehouses.clamp(1, warehouses_max(lun, luns, warehouse_bytes)),
                time: Some(room.time),
            }
        }
    };
    let size = OltpSize { lun: size.lun & !((1 << 20) - 1), ..size };
    size.check_memory(room, "give a smaller --scale, or auto")?;
    let paper = format!("{databases} databases of 260 GB on {luns} LUNs each, {users} users each");
    notes.push(format!(
        "the paper had {paper}; here are {} of {} MiB on {} LUNs of {} MiB, {} users each",
        size.databases,
        size.data_bytes() >> 20,
        size.luns,
        size.lun >> 20,
        size.users
    ));
    Ok(size)
}

/// Rounds for which there is time: rather two that are worth it than many that are not.
fn affordable_rounds(wanted: u32, time: Duration, pairs: usize) -> u32 {
    let fit = time.as_secs_f64() / (pairs.max(1) as f64 * ROUND_SECONDS_MIN);
    (fit as u32).clamp(2, wanted.max(2))
}

fn warehouses_max(lun: u64, luns: u32, warehouse_bytes: u64) -> u64 {
    (lun * u64::from(luns) * TABLES_PERCENT_MAX / 100 / warehouse_bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_capacity::example_capacity;

    fn made(room: &HostCapacity, scale: Scale) -> (Result<OltpSize, Failure>, Vec<String>) {
        let mut notes = Vec::new();
        let preset = Preset::find("demartek-oltp").unwrap();
        (scale_to_host(preset, room, scale, (UserProgram::Sysbench, 2), &mut notes), notes)
    }

    #[test]
    fn a_small_machine_gets_a_small_database_and_is_told() {
        let (size, notes) = made(&example_capacity(2, 20 << 30), Scale::Auto);
        let size = size.unwrap();
        assert_eq!((size.databases, size.users, size.luns, size.rounds), (4, 5, 6, 5));
        assert!(size.data_bytes() < u64::from(size.luns) * size.lun / 2);
        assert!(notes[0].contains("4 databases of 260 GB") && notes[0].contains("here are 4"), "{notes:?}");
        let (size, _) = made(&example_capacity(2, 3 << 30), Scale::Auto);
        assert_eq!(size.unwrap().databases, 2, "LUNs of four do not fit");
    }

    #[test]
    fn a_server_may_use_less_than_its_luns_hold() {
        for (cores, memory, scale) in
            [(2, 20 << 30, Scale::Auto), (48, 4 << 40, Scale::Auto), (2, 20 << 30, Scale::Smallest)]
        {
            let size = made(&example_capacity(cores, memory), scale).0.unwrap();
            assert!(size.cache_bytes() < size.server_memory_bytes());
            assert!(size.server_memory_bytes() < u64::from(size.luns) * size.lun, "{size:?}");
        }
    }

    #[test]
    fn there_are_as_many_rounds_as_there_is_time_for() {
        let of = |seconds, pairs| affordable_rounds(5, Duration::from_secs(seconds), pairs);
        assert_eq!([of(600, 2), of(600, 4), of(60, 4), of(6000, 4), of(600, 0)], [5, 2, 2, 5, 5]);
    }

    #[test]
    fn the_smallest_part_is_small_and_the_whole_does_not_fit() {
        let (size, _) = made(&example_capacity(2, 20 << 30), Scale::Smallest);
        let size = size.unwrap();
        assert_eq!((size.databases, size.users, size.transactions, size.warehouses), (1, 2, Some(20), 3));
        assert_eq!(size.lun, LUN_BYTES_MIN);
        let (size, _) = made(&example_capacity(2, 20 << 30), Scale::Part(1.0));
        assert!(size.unwrap_err().to_string().contains("--scale"));
    }

    #[test]
    fn a_large_machine_gets_what_the_paper_had() {
        let (size, _) = made(&example_capacity(48, 4 << 40), Scale::Auto);
        let size = size.unwrap();
        assert_eq!((size.databases, size.users), (4, 70));
    }

    #[test]
    fn a_plan_gives_the_size_that_it_was_made_with() {
        let room = example_capacity(2, 20 << 30);
        let (size, _) = made(&room, Scale::Auto);
        let size = size.unwrap();
        let plan = DatabasePlan {
            program: size.program.name().to_owned(),
            systems: Vec::new(),
            wire: eval::preset::Wire::Loopback,
            databases: size.databases,
            users: size.users,
            luns: size.luns,
            lun: size.lun,
            warehouses: size.warehouses,
            transactions: Vec::new(),
            rounds: size.rounds,
        };
        assert_eq!(OltpSize::of_plan(&plan, &room).unwrap(), OltpSize { time: None, ..size });
        let less = example_capacity(2, 1 << 30);
        let why = OltpSize::of_plan(&plan, &less).unwrap_err().to_string();
        assert!(why.contains("memory that are free"), "{why}");
        let full = DatabasePlan { warehouses: u64::from(u32::MAX), ..plan };
        assert!(OltpSize::of_plan(&full, &room).unwrap_err().to_string().contains("tables"));
    }
}
