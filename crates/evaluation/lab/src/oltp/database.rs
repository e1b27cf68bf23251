//! Database servers: each a separate process, with its own data directory and socket and no network.
//!
//! The kernel identifies a client (a socket's peer credentials): only root is admitted. A socket is in a
//! directory that only the server's own user may enter.
//!
//! Invariant: a database server that the machine may run is not used or changed: none of its configuration
//! files is read, and none of its directories is touched.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::end_request;
use crate::memory_limit::MemoryLimit;
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};

/// How long a server may take to be ready, recovery included.
const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// A kind of database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseEngine {
    /// MariaDB, with InnoDB.
    MariaDb,
    /// PostgreSQL.
    Postgres,
}

impl DatabaseEngine {
    pub(super) const ALL: [DatabaseEngine; 2] = [DatabaseEngine::MariaDb, DatabaseEngine::Postgres];

    /// Its name in records.
    pub(super) fn name(self) -> &'static str {
        match self {
            DatabaseEngine::MariaDb => "mariadb",
            DatabaseEngine::Postgres => "postgresql",
        }
    }

    /// What is missing here, and how it is installed.
    pub(super) fn missing(self) -> Option<String> {
        let lacks = |programs: &[&str], packages: &str| {
            let lacking = programs.iter().find(|program| !CommandLocation::Here.has_program(program))?;
            Some(format!("{lacking} is missing: apt install --no-install-recommends {packages}"))
        };
        match self {
            DatabaseEngine::MariaDb => lacks(
                &["mariadbd", "mariadb-install-db", "mariadb"],
                "mariadb-server-core mariadb-client-core",
            ),
            DatabaseEngine::Postgres if self.program_path("postgres").is_none() => {
                Some("postgres is missing: apt install postgresql".to_owned())
            }
            DatabaseEngine::Postgres if !user_exists("postgres") => Some(
                "there is no user postgres, and it does not run as root: apt install postgresql".to_owned(),
            ),
            DatabaseEngine::Postgres => None,
        }
    }

    /// Where a program is: Debian keeps those of each PostgreSQL version in a directory of their own.
    fn program_path(self, name: &str) -> Option<String> {
        if self == DatabaseEngine::Postgres {
            let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
            let mut found: Vec<(u32, PathBuf)> = versions
                .filter_map(|entry| {
                    let path = entry.path().join("bin").join(name);
                    let version = entry.file_name().to_str()?.parse().ok()?;
                    path.exists().then_some((version, path))
                })
                .collect();
            found.sort_unstable();
            if let Some((_, path)) = found.pop() {
                return Some(path.display().to_string());
            }
        }
        CommandLocation::Here.has_program(name).then(|| name.to_owned())
    }

    /// Lets the server's own user, and no other, pass through directories of ours to its socket and data.
    pub(super) fn grant_traversal(self, dirs: &[&Path]) -> Result<(), Failure> {
        if self == DatabaseEngine::MariaDb {
            // It runs as root.
            return Ok(());
        }
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
        CommandLocation::Here.run(&[&["chgrp", "postgres"], &dirs[..]].concat())?;
        CommandLocation::Here.run(&[&["chmod", "710"], &dirs[..]].concat()).map(drop)
    }

    /// Its version, as it says it.
    pub(super) fn version(self) -> Option<String> {
        let program = match self {
            DatabaseEngine::MariaDb => "mariadbd".to_owned(),
            DatabaseEngine::Postgres => self.program_path("postgres")?,
        };
        let said = CommandLocation::Here.run(&[&program, "--version"]).ok()?;
        let words: Vec<&str> = said.split_ascii_whitespace().collect();
        let at = words.iter().position(|word| matches!(*word, "Ver" | "(PostgreSQL)"))?;
        words.get(at + 1).map(|word| (*word).to_owned())
    }
}

fn user_exists(name: &str) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().any(|line| line.split(':').next() == Some(name))
}

/// The words that run a program as PostgreSQL's own user. The last end of its parent ends it, too: who
/// changes users has to say so after that.
const RUN_AS_POSTGRES: [&str; 6] =
    ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "KILL"];

/// What a server is started on.
pub(super) struct ServerSetup<'a> {
    /// The file system of its data.
    pub(super) mount: &'a Path,
    /// An empty directory for its socket, with a short name, which nobody else may enter.
    pub(super) run: &'a Path,
    /// Bytes of memory for its own cache.
    pub(super) cache: u64,
    /// What it and its part of the page cache may use, if that is limited.
    pub(super) limit: Option<MemoryLimit>,
    /// Its processors.
    pub(super) cores: &'a [usize],
    /// Where its output is kept, and under what name.
    pub(super) log: (&'a Path, &'a str),
}

/// A server that runs. Fields are dropped in their order: the group of processes goes once they are gone.
#[derive(Debug)]
pub(super) struct DatabaseServer {
    engine: DatabaseEngine,
    process: Process,
    _limit: Option<MemoryLimit>,
    /// The directory of its socket.
    run: PathBuf,
}

impl DatabaseServer {
    /// Makes a data directory on a file system and starts a server on it.
    pub(super) fn start(engine: DatabaseEngine, setup: ServerSetup<'_>) -> Result<DatabaseServer, Failure> {
        let ServerSetup { mount, run, cache, limit, cores, log: (dir, name) } = setup;
        let data = mount.join("data").display().to_string();
        let mut words = match engine {
            DatabaseEngine::MariaDb => mariadb_command(&data, run, cache)?,
            DatabaseEngine::Postgres => postgres_command(&data, mount, run, cache)?,
        };
        if let Some(limit) = &limit {
            words = limit.words_to_run(words);
        }
        let process = Process::start(ProcessSpec { name, place: &CommandLocation::Here, cores, words, dir })?;
        let mut database = DatabaseServer { engine, process, _limit: limit, run: run.to_owned() };
        database.wait_and_create_database()?;
        Ok(database)
    }

    fn wait_and_create_database(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + READY_TIMEOUT;
        while let Err(why) = self.run_sql("select 1") {
            if !self.process.is_alive() {
                return Err(self.process.failure_with_output("the database server ended"));
            }
            if Instant::now() > until {
                return Err(why.during("the database server does not get ready"));
            }
            end_request::sleep_unless_ending(Duration::from_millis(100))?;
        }
        self.run_sql("create database bench").map(drop)
    }

    /// Asks it something.
    pub(super) fn run_sql(&self, text: &str) -> Result<String, Failure> {
        let run = self.run.display().to_string();
        match self.engine {
            DatabaseEngine::MariaDb => {
                let socket = format!("--socket={run}/socket");
                CommandLocation::Here.run(&[
                    "mariadb",
                    "--no-defaults",
                    &socket,
                    "--user=root",
                    "-BN",
                    "-e",
                    text,
                ])
            }
            DatabaseEngine::Postgres => {
                let psql = self.engine.program_path("psql").unwrap_or_else(|| "psql".to_owned());
                CommandLocation::Here
                    .run(&[&psql, "-X", "-qAt", "-h", &run, "-U", "bench", "-d", "postgres", "-c", text])
            }
        }
    }

    /// How sysbench reaches it.
    pub(super) fn sysbench_connection_words(&self) -> Vec<String> {
        let run = self.run.display();
        match self.engine {
            DatabaseEngine::MariaDb => vec![
                "--db-driver=mysql".to_owned(),
                format!("--mysql-socket={run}/socket"),
                "--mysql-user=root".to_owned(),
                "--mysql-db=bench".to_owned(),
            ],
            DatabaseEngine::Postgres => vec![
                "--db-driver=pgsql".to_owned(),
                format!("--pgsql-host={run}"),
                "--pgsql-user=bench".to_owned(),
                "--pgsql-db=bench".to_owned(),
            ],
        }
    }

    /// How HammerDB's script reaches it, and where HammerDB keeps what is its own.
    pub(super) fn hammerdb_variables(&self) -> Vec<(&'static str, String)> {
        let run = self.run.display();
        let (name, socket) = match self.engine {
            DatabaseEngine::MariaDb => ("maria", format!("{run}/socket")),
            DatabaseEngine::Postgres => ("pg", run.to_string()),
        };
        let own = self.run.parent().unwrap_or(&self.run).display().to_string();
        let kept = ["TMP", "TEMP", "TMPDIR", "HOME"].map(|variable| (variable, own.clone()));
        [("EVAL_DATABASE", name.to_owned()), ("EVAL_SOCKET", socket)].into_iter().chain(kept).collect()
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What a person would type.
    pub(super) fn command_line(&self) -> &str {
        self.process.command_line()
    }
}

/// MariaDB on a fresh data directory, writing through the page cache as MySQL 5.7 did.
fn mariadb_command(data: &str, run: &Path, cache: u64) -> Result<Vec<String>, Failure> {
    let datadir = format!("--datadir={data}");
    CommandLocation::Here.run(&[
        "mariadb-install-db",
        "--no-defaults",
        "--user=root",
        &datadir,
        "--auth-root-authentication-method=socket",
        "--skip-test-db",
    ])?;
    let run = run.display();
    Ok(vec![
        "mariadbd".to_owned(),
        "--no-defaults".to_owned(),
        "--user=root".to_owned(),
        datadir,
        format!("--socket={run}/socket"),
        format!("--pid-file={run}/pid"),
        "--skip-networking".to_owned(),
        "--skip-log-bin".to_owned(),
        "--performance-schema=off".to_owned(),
        "--max-connections=500".to_owned(),
        "--innodb-flush-method=fsync".to_owned(),
        "--innodb-flush-log-at-trx-commit=1".to_owned(),
        "--innodb-log-file-size=48M".to_owned(),
        format!("--innodb-buffer-pool-size={cache}"),
    ])
}

fn postgres_command(data: &str, mount: &Path, run: &Path, cache: u64) -> Result<Vec<String>, Failure> {
    let program = |name: &str| {
        let found = DatabaseEngine::Postgres.program_path(name);
        found.ok_or_else(|| Failure::new(format!("{name} is missing: apt install postgresql")))
    };
    // Root is let in as `bench` because the kernel says that it is root, and nobody else is, the server's own
    // user included.
    let (rules, names) = (run.join("hba.conf"), run.join("ident.conf"));
    for (path, text) in [(&rules, "local all bench peer map=eval\n"), (&names, "eval root bench\n")] {
        let made = std::fs::File::options().write(true).create_new(true).mode(0o644).open(path);
        let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
    }
    let (mount, run) = (mount.display().to_string(), run.display().to_string());
    CommandLocation::Here.run(&["chown", "postgres:postgres", &mount, &run])?;
    let (initdb, server) = (program("initdb")?, program("postgres")?);
    let made = ["-D", data, "-U", "bench", "-A", "peer", "-E", "UTF8", "--locale=C", "--no-instructions"];
    CommandLocation::Here.run(&[&RUN_AS_POSTGRES[..], &[&initdb], &made].concat())?;
    let mut words: Vec<String> = RUN_AS_POSTGRES.iter().map(|word| (*word).to_owned()).collect();
    words.extend([server, "-D".to_owned(), data.to_owned(), "-k".to_owned(), run]);
    for setting in [
        "listen_addresses=".to_owned(),
        format!("hba_file={}", rules.display()),
        format!("ident_file={}", names.display()),
        "unix_socket_permissions=0700".to_owned(),
        "max_connections=500".to_owned(),
        "max_wal_size=96MB".to_owned(),
        "min_wal_size=32MB".to_owned(),
        format!("shared_buffers={}kB", cache >> 10),
    ] {
        words.extend(["-c".to_owned(), setting]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;
    use crate::run_directory::RunDirectory;

    /// Asks a database as another user of this machine, by its owner's name there.
    fn asked_as(user: &str, database: &DatabaseServer) -> Result<String, Failure> {
        let run = database.run.display();
        let client = match database.engine {
            DatabaseEngine::MariaDb => {
                format!("mariadb --no-defaults --socket={run}/socket --user=root -e 'select 1'")
            }
            DatabaseEngine::Postgres => {
                let psql = DatabaseEngine::Postgres.program_path("psql").unwrap();
                format!("{psql} -Xw -h {run} -U bench -d postgres -c 'select 1'")
            }
        };
        let group = if user == "nobody" { "nogroup" } else { user };
        let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
        CommandLocation::Here.run(&[
            "setpriv",
            &user,
            &group,
            "--clear-groups",
            "sh",
            "-c",
            &format!("cd /; {client}"),
        ])
    }

    /// Anyone who is let in as the owner of all databases runs programs as the server's user.
    fn other_users_are_never_let_in(database: &DatabaseServer) {
        let why = asked_as("nobody", database).unwrap_err().to_string();
        assert!(why.contains("ermission denied") || why.contains("(13)"), "{why}");
        if database.engine == DatabaseEngine::Postgres {
            // Whom the directory does not stop the server itself refuses.
            let why = asked_as("postgres", database).unwrap_err().to_string();
            assert!(why.contains("eer authentication failed"), "{why}");
        }
    }

    /// A server on an ordinary directory: it comes up, answers, and is gone with its owner.
    #[test]
    fn a_server_comes_up_and_goes_with_its_owner() {
        for engine in DatabaseEngine::ALL {
            if let Some(why) = engine.missing().or_else(crate::block_devices::missing_prerequisite) {
                eprintln!("not tried: {}: {why}", engine.name());
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            engine.grant_traversal(&[dir.path()]).unwrap();
            let (mount, run) = (dir.path().join("m"), dir.path().join("r"));
            std::fs::create_dir(&mount).unwrap();
            std::fs::DirBuilder::new().mode(0o700).create(&run).unwrap();
            let scratch = RunDirectory::create(dir.path()).unwrap();
            let setup = ServerSetup {
                mount: &mount,
                run: &run,
                cache: 32 << 20,
                limit: MemoryLimit::create(&scratch, 512 << 20).ok(),
                cores: &[],
                log: (dir.path(), engine.name()),
            };
            let database = DatabaseServer::start(engine, setup).unwrap();
            assert_eq!(database.run_sql("select 6*7").unwrap().trim(), "42");
            other_users_are_never_let_in(&database);
            let pid = database.pid();
            drop(database);
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
        }
    }
}
