//! The program whose users work on the databases: sysbench with a script of ours, or HammerDB with its own.
//!
//! Invariant: which of them it was is part of a run's size, so that a plan repeats the same one.

use std::path::{Path, PathBuf};

use super::database::{DatabaseEngine, DatabaseServer};
use super::load::{self, RunLimit, UsersResult};
use super::scale::OltpSize;
use crate::Failure;
use crate::place::CommandLocation;

/// Names the directory of HammerDB.
const HAMMERDB_VARIABLE: &str = "HAMMERDB_DIR";
/// What HammerDB does, as its command line runs it.
const HAMMERDB_SCRIPT: &str = include_str!("hammerdb.tcl");
/// What the script says behind the users' work: how long that took.
const SECONDS_WORD: &str = "eval-seconds";

/// A program, where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UserProgram {
    /// sysbench, with transactions in the manner of TPC-C.
    Sysbench,
    /// HammerDB in this directory, with its TPROC-C.
    HammerDb(PathBuf),
}

impl UserProgram {
    /// HammerDB if its directory was named, else sysbench.
    pub(super) fn chosen() -> UserProgram {
        UserProgram::of_directory(std::env::var_os(HAMMERDB_VARIABLE))
    }

    fn of_directory(directory: Option<std::ffi::OsString>) -> UserProgram {
        directory
            .filter(|dir| !dir.is_empty())
            .map_or(UserProgram::Sysbench, |dir| UserProgram::HammerDb(dir.into()))
    }

    /// That of a plan.
    pub(super) fn of_plan(name: &str) -> Result<UserProgram, Failure> {
        let chosen = UserProgram::chosen();
        if name == chosen.name() {
            return Ok(chosen);
        }
        Err(Failure::new(match name {
            "sysbench" => format!("the plan is of users of sysbench: unset {HAMMERDB_VARIABLE}"),
            "hammerdb" => {
                format!("the plan is of users of HammerDB: name its directory in {HAMMERDB_VARIABLE}")
            }
            other => format!("the plan is of users of {other}, which is not known here"),
        }))
    }

    /// Its name in records and plans.
    pub(super) fn name(&self) -> &'static str {
        match self {
            UserProgram::Sysbench => "sysbench",
            UserProgram::HammerDb(_) => "hammerdb",
        }
    }

    /// What is missing, and how it is installed.
    pub(super) fn missing(&self) -> Option<String> {
        match self {
            UserProgram::Sysbench => (!CommandLocation::Here.has_program("sysbench"))
                .then(|| "sysbench is missing: apt install sysbench".to_owned()),
            UserProgram::HammerDb(dir) if !dir.join("hammerdbcli").is_file() => {
                Some(format!("{HAMMERDB_VARIABLE}: {} has no hammerdbcli", dir.display()))
            }
            UserProgram::HammerDb(dir) if has_own_tcl(dir) => None,
            UserProgram::HammerDb(_) => {
                let is_here = |package: &str| {
                    let ask = r#"printf 'package require %s\nputs here\n' "$0" | tclsh"#;
                    let said = CommandLocation::Here.run(&["sh", "-c", ask, package]);
                    said.is_ok_and(|said| said.trim_end().ends_with("here"))
                };
                let lacking =
                    ["Thread", "sqlite3", "mysqltcl"].into_iter().find(|package| !is_here(package))?;
                Some(format!(
                    "HammerDB has no Tcl of its own there, and this machine's lacks {lacking}: apt install \
                     --no-install-recommends tcl tcl-thread libsqlite3-tcl mysqltcl"
                ))
            }
        }
    }

    /// Why its users cannot work on a server of this kind.
    pub(super) fn refusal(&self, engine: DatabaseEngine) -> Option<&'static str> {
        match (self, engine) {
            (UserProgram::HammerDb(dir), DatabaseEngine::Postgres) if !has_own_tcl(dir) => Some(
                "HammerDB asks PostgreSQL by a library that Debian's libpgtcl is not: name a release, which has it",
            ),
            (UserProgram::HammerDb(_) | UserProgram::Sysbench, _) => None,
        }
    }

    /// Its version, as it says it.
    pub(super) fn version(&self) -> Option<String> {
        match self {
            UserProgram::Sysbench => {
                let said = CommandLocation::Here.run(&["sysbench", "--version"]).ok()?;
                Some(said.trim().to_owned())
            }
            UserProgram::HammerDb(dir) => {
                let text = std::fs::read_to_string(dir.join("hammerdbcli")).ok()?;
                let line = text.lines().find_map(|line| line.trim().strip_prefix("set hdb_version "))?;
                Some(line.trim_matches('"').to_owned())
            }
        }
    }

    /// What readers must know of its users.
    pub(super) fn note(&self) -> String {
        match self {
            UserProgram::Sysbench => {
                "The paper's users were HammerDB's (TPC-C on MySQL 5.7.18). These are sysbench's, with the five \
                 transactions of TPC-C in its mix on smaller tables, without TPC-C's waits and searches by name: \
                 neither times nor transactions per second compare with the paper's, nor are they TPC-C results. What \
                 compares is one set-up with another here, as the paper compares its own."
            }
            UserProgram::HammerDb(_) => {
                "Users are HammerDB's, with its TPROC-C and no waits, as the paper's were; its databases were larger, \
                 of MySQL 5.7.18. HammerDB takes no seed, tells no latencies here, does not end its users early, and \
                 looks once a second whether they have ended."
            }
        }
        .to_owned()
    }

    /// Bytes of a warehouse with all that belongs to it, indexes and free space in pages included, and its rows.
    pub(super) fn warehouse(&self) -> (u64, u64) {
        match self {
            // Items and customers are a tenth of TPC-C's.
            UserProgram::Sysbench => (8 << 20, 32_000),
            UserProgram::HammerDb(_) => (100 << 20, 500_000),
        }
    }

    /// Whether what its users do follows from a seed, and ends when a time is over.
    pub(super) fn is_steered(&self) -> bool {
        *self == UserProgram::Sysbench
    }

    /// Puts the script where the program finds it, and gives its path.
    pub(super) fn write_script(&self, dir: &Path) -> Result<PathBuf, Failure> {
        let (name, text) = match self {
            UserProgram::Sysbench => ("orders.lua", load::SYSBENCH_SCRIPT),
            UserProgram::HammerDb(_) => ("hammerdb.tcl", HAMMERDB_SCRIPT),
        };
        // HammerDB runs in a directory of its own.
        let path = std::path::absolute(dir.join(name)).map_err(Failure::new)?;
        std::fs::write(&path, text).map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
        Ok(path)
    }

    /// The command that fills a database.
    pub(super) fn prepare_command(
        &self,
        script: &Path,
        database: &DatabaseServer,
        size: &OltpSize,
    ) -> Vec<String> {
        match self {
            UserProgram::Sysbench => load::prepare_command(script, database, size),
            UserProgram::HammerDb(dir) => {
                hammerdb_command(dir, script, &database.hammerdb_variables(), size, "build", 0)
            }
        }
    }

    /// Whether what it said means that a database was filled.
    pub(super) fn check_prepared(&self, said: &str) -> Result<(), Failure> {
        match self {
            UserProgram::HammerDb(_) if !said.contains("SCHEMA COMPLETE") => {
                Err(Failure::new("HammerDB does not say that it made the tables"))
            }
            UserProgram::HammerDb(_) | UserProgram::Sysbench => Ok(()),
        }
    }

    /// The command that runs a database's users; what they do follows from the seed, if it can.
    pub(super) fn run_command(
        &self,
        script: &Path,
        database: &DatabaseServer,
        size: &OltpSize,
        (seed, until): (u32, RunLimit),
    ) -> Vec<String> {
        match (self, until) {
            (UserProgram::Sysbench, _) => load::run_command(script, database, size, (seed, until)),
            (UserProgram::HammerDb(dir), RunLimit::Transactions(count, _) | RunLimit::Seconds(count)) => {
                let each = count.div_ceil(u64::from(size.users.max(1)));
                hammerdb_command(dir, script, &database.hammerdb_variables(), size, "run", each)
            }
        }
    }

    /// How users work before figures count.
    pub(super) fn warm_up(&self, size: &OltpSize) -> RunLimit {
        match self {
            UserProgram::Sysbench => RunLimit::Seconds(load::WARM_UP_SECONDS),
            UserProgram::HammerDb(_) => RunLimit::Transactions(
                WARM_UP_TRANSACTIONS * u64::from(size.users),
                Some(WARM_UP_SECONDS_MAX),
            ),
        }
    }

    /// Reads what a run prints.
    pub(super) fn parse_output(
        &self,
        said: &str,
        size: &OltpSize,
        until: RunLimit,
    ) -> Result<UsersResult, Failure> {
        match (self, until) {
            (UserProgram::HammerDb(_), RunLimit::Transactions(count, _)) => {
                parse_hammerdb_output(said, size.users, count)
            }
            (UserProgram::HammerDb(_) | UserProgram::Sysbench, _) => load::parse_sysbench_output(said),
        }
    }
}

/// Transactions of each of HammerDB's users before figures count, and how long they may take.
const WARM_UP_TRANSACTIONS: u64 = 20;
const WARM_UP_SECONDS_MAX: u64 = 600;

/// Whether a directory is a release, which brings its own Tcl.
fn has_own_tcl(dir: &Path) -> bool {
    ["tclsh8.6", "tclsh9.0"].iter().any(|name| dir.join("bin").join(name).is_file())
}

/// HammerDB's command line with a script, in its own directory. What it keeps goes to a directory that no other has.
fn hammerdb_command(
    dir: &Path,
    script: &Path,
    database: &[(&str, String)],
    size: &OltpSize,
    phase: &str,
    transactions: u64,
) -> Vec<String> {
    let mut words = ["env".to_owned(), "-C".to_owned(), dir.display().to_string()].to_vec();
    words.extend(database.iter().map(|(name, value)| format!("{name}={value}")));
    for (name, value) in [
        ("EVAL_PHASE", phase.to_owned()),
        ("EVAL_USERS", size.users.to_string()),
        ("EVAL_WAREHOUSES", size.warehouses.to_string()),
        ("EVAL_TRANSACTIONS", transactions.to_string()),
    ] {
        words.push(format!("{name}={value}"));
    }
    match has_own_tcl(dir) {
        true => words.push("./hammerdbcli".to_owned()),
        false => words.extend(["tclsh".to_owned(), "hammerdbcli".to_owned()]),
    }
    words.extend(["auto".to_owned(), script.display().to_string()]);
    words
}

/// Reads what HammerDB's users say: each that it has done all, and the script how long that took.
fn parse_hammerdb_output(said: &str, users: u32, transactions: u64) -> Result<UsersResult, Failure> {
    let failed =
        said.lines().find(|line| line.contains("FINISHED FAILED") || line.contains("Error in Virtual User"));
    if let Some(line) = failed {
        return Err(Failure::new(format!("a user of HammerDB has failed: {}", line.trim())));
    }
    // Of users that are not waited for, the time is none of theirs.
    let until = said.lines().take_while(|line| !line.trim().starts_with(SECONDS_WORD));
    let done = until.filter(|line| line.contains("FINISHED SUCCESS")).count();
    if done != users as usize {
        return Err(Failure::new(format!(
            "{done} of {users} users of HammerDB say that they have done their work"
        )));
    }
    let seconds = said.lines().find_map(|line| line.trim().strip_prefix(SECONDS_WORD)?.trim().parse().ok());
    let seconds = seconds.filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| Failure::new("HammerDB does not say how long its users worked"))?;
    Ok(UsersResult { transactions, seconds, ..UsersResult::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hammerdb_is_taken_if_it_is_named() {
        assert_eq!(UserProgram::of_directory(None), UserProgram::Sysbench);
        assert_eq!(UserProgram::of_directory(Some("".into())), UserProgram::Sysbench);
        let hammerdb = UserProgram::of_directory(Some("/opt/none".into()));
        assert_eq!(hammerdb, UserProgram::HammerDb("/opt/none".into()));
        assert!(hammerdb.missing().unwrap().contains("hammerdbcli"));
        assert!(hammerdb.refusal(DatabaseEngine::Postgres).is_some());
        assert!(hammerdb.refusal(DatabaseEngine::MariaDb).is_none());
    }

    #[test]
    fn what_hammerdb_prints_is_read() {
        let said = "Vuser 1:RUNNING\nVuser 2:RUNNING\nVuser 2:FINISHED SUCCESS\nVuser 1:FINISHED SUCCESS\n\
                    ALL VIRTUAL USERS COMPLETE\neval-seconds 12.5\n";
        let told = parse_hammerdb_output(said, 2, 40).unwrap();
        assert_eq!((told.transactions, told.seconds, told.latency.count()), (40, 12.5, 0));
        let why = |said: &str| parse_hammerdb_output(said, 2, 40).unwrap_err().to_string();
        assert!(why(&said.replace("Vuser 1:FINISHED SUCCESS", "Vuser 1:FINISHED FAILED")).contains("failed"));
        assert!(why(&said.replace("Vuser 1:FINISHED SUCCESS", "")).contains("1 of 2"));
        let early = format!("eval-seconds 1.0\n{}", said.replace("eval-seconds 12.5\n", ""));
        assert!(why(&early).contains("0 of 2"), "users that were not waited for");
        for bad in ["eval-seconds NaN", "eval-seconds 0", "eval-seconds", "seconds 12.5"] {
            assert!(why(&said.replace("eval-seconds 12.5", bad)).contains("how long"), "{bad}");
        }
    }
}
