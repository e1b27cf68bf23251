//! The environment of one pair of systems: the target, and for each database its volumes, device, file system
//! and server.
//!
//! Invariant: fields are dropped in their order: servers before file systems, these before devices, these
//! before the target.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use eval::preset::{Protocol, VolumeMedium, Wire};

use super::database::{DatabaseEngine, DatabaseServer, ServerSetup};
use super::scale::OltpSize;
use crate::Failure;
use crate::block_devices::{DeviceIoCounts, LoopDisk, MountedExt4, StripeTarget};
use crate::directory_tree;
use crate::link::Link;
use crate::memory_limit::MemoryLimit;
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};
use crate::run_directory::RunDirectory;
use crate::runner::{Runner, Testbed};
use crate::target::TargetSetup;

/// How long filling a database may take.
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);

/// One database with what it stands on.
pub(super) struct DatabaseStack {
    pub(super) database: DatabaseServer,
    pub(super) mounted: MountedExt4,
    pub(super) disk: LoopDisk,
    /// Why the server's memory is not limited.
    pub(super) unlimited: Option<Failure>,
    raid: Option<StripeTarget>,
    _home: ShortDirectory,
}

/// A target and the databases on its volumes.
pub(super) struct OltpEnvironment {
    pub(super) all: Vec<DatabaseStack>,
    pub(super) testbed: Testbed,
    /// What users do.
    pub(super) script: PathBuf,
}

/// A directory with a short name: the path of a socket has room for a hundred bytes.
struct ShortDirectory {
    dir: PathBuf,
    scratch: Arc<RunDirectory>,
}

impl ShortDirectory {
    fn make(engine: DatabaseEngine) -> Result<ShortDirectory, Failure> {
        let scratch = RunDirectory::current()?;
        let home = ShortDirectory { dir: scratch.create_directory("db")?, scratch };
        let run = home.socket_directory();
        let made = std::fs::DirBuilder::new().mode(0o700).create(&run);
        made.map_err(|why| Failure::new(format!("{}: {why}", run.display())))?;
        engine.grant_traversal(&[home.scratch.path(), &home.dir])?;
        Ok(home)
    }

    fn socket_directory(&self) -> PathBuf {
        self.dir.join("run")
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.join("mount")
    }
}

impl Drop for ShortDirectory {
    fn drop(&mut self) {
        // Never what may still be mounted. What stays goes with the directory of the run.
        if let Some(name) = self.dir.file_name().and_then(|name| name.to_str()) {
            let _ = directory_tree::remove_tree(self.scratch.path(), name);
        }
    }
}

impl OltpEnvironment {
    /// Starts all of it and fills the databases, which may take so long; `None`: an hour.
    pub(super) fn start(
        runner: &Runner<'_>,
        target: &str,
        engine: DatabaseEngine,
        wire: Wire,
        size: &OltpSize,
        patience: Option<Duration>,
    ) -> Result<OltpEnvironment, Failure> {
        let link = Link::create(wire, size.databases)?;
        let setup = TargetSetup {
            place: link.target_place(),
            listen: link.listen_address(),
            addresses: link.addresses(),
            protocol: Protocol::Iscsi,
            volumes: (size.databases * size.luns, size.lun),
            targets: None,
            medium: VolumeMedium::Ram,
            connections: size.databases * size.luns,
            cores: &runner.cores.target,
            dir: &runner.dir,
        };
        let serving = runner.find_target(target)?.start(&setup)?;
        let script = size.program.write_script(&runner.dir)?;
        let mut stands = OltpEnvironment { all: Vec::new(), testbed: Testbed { serving, link }, script };
        for at in 0..size.databases as usize {
            let Testbed { serving, link } = &stands.testbed;
            let urls = serving.urls(&link.address(at));
            let luns = size.luns as usize;
            let its_urls = urls.get(at * luns..(at + 1) * luns).unwrap_or_default();
            let stand = (link.initiator_place(at))
                .and_then(|place| DatabaseStack::make(runner, place, its_urls, engine, at, size))
                .map_err(|why| why.during(format!("database {at}")))?;
            stands.all.push(stand);
        }
        stands.fill_databases(runner, size, patience.unwrap_or(FILL_TIMEOUT))?;
        Ok(stands)
    }

    /// Fills all databases at once.
    fn fill_databases(
        &self,
        runner: &Runner<'_>,
        size: &OltpSize,
        patience: Duration,
    ) -> Result<(), Failure> {
        let mut all = Vec::new();
        for (at, stand) in self.all.iter().enumerate() {
            all.push(start_database_client(
                runner,
                &format!("filling-{at}"),
                size.program.prepare_command(&self.script, &stand.database, size),
            )?);
        }
        all.iter_mut().try_for_each(|process| {
            let said = process.wait_for_output(patience)?;
            size.program.check_prepared(&said).map_err(|why| process.failure_with_output(why))
        })
    }

    /// Processes of the initiator's end: those that make devices, and servers with their users' processes.
    pub(super) fn initiator_pids(&self) -> Vec<u32> {
        let own = |stand: &DatabaseStack| {
            let raid = stand.raid.as_ref().map(StripeTarget::pid);
            [Some(stand.disk.pid()), Some(stand.database.pid()), raid]
        };
        self.all.iter().flat_map(own).flatten().collect()
    }

    /// I/Os of all devices.
    pub(super) fn io_counts(&self) -> Result<DeviceIoCounts, Failure> {
        self.all.iter().try_fold(DeviceIoCounts::default(), |sum, stand| Ok(sum.plus(stand.io_counts()?)))
    }

    /// What readers must know of the servers' memory.
    pub(super) fn memory_note(&self, size: &OltpSize) -> String {
        match self.all.iter().find_map(|stand| stand.unlimited.as_ref()) {
            Some(why) => format!("the memory of database servers is not limited: {why}"),
            None => format!(
                "a database server may use {} MiB of memory, its part of the page cache included, by a control group; \
                 it has {} MiB of tables at first, on LUNs of {} MiB together",
                size.server_memory_bytes() >> 20,
                size.data_bytes() >> 20,
                (u64::from(size.luns) * size.lun) >> 20
            ),
        }
    }

    /// What a person would type to have the same.
    pub(super) fn commands(&self) -> Vec<String> {
        let mut commands = self.testbed.serving.commands.clone();
        for stand in &self.all {
            commands.extend(stand.raid.as_ref().map(|raid| raid.command_line().to_owned()));
            commands.push(stand.disk.command_line().to_owned());
            commands.push(stand.database.command_line().to_owned());
        }
        commands
    }

    /// After the work: no file system has seen an error, and every server still answers.
    pub(super) fn check_healthy(&self) -> Result<(), Failure> {
        for stand in &self.all {
            stand.database.run_sql("select 1")?;
            let probe = stand.mounted.mount_point().join("probe");
            std::fs::write(&probe, b"1")
                .map_err(|why| Failure::new(format!("the file system has seen an error: {why}")))?;
        }
        Ok(())
    }
}

impl DatabaseStack {
    fn make(
        runner: &Runner<'_>,
        place: &CommandLocation,
        urls: &[String],
        engine: DatabaseEngine,
        at: usize,
        size: &OltpSize,
    ) -> Result<DatabaseStack, Failure> {
        let (binary, cores, dir) = (own_binary()?, &runner.cores.initiator, &runner.dir);
        let (first, raid) = match urls {
            [] => return Err(Failure::new("the target serves no volume for it")),
            [one] => (one, None),
            [first, ..] => {
                (first, Some(StripeTarget::start(&binary, place, cores, urls, dir, &format!("raid-{at}"))?))
            }
        };
        let url = raid.as_ref().map_or(first, StripeTarget::url);
        let home = ShortDirectory::make(engine)?;
        home.scratch.note_mount(&home.dir.join(format!("attach-{at}.fuse")), LoopDisk::MOUNT_TYPE)?;
        let disk = LoopDisk::start(&binary, place, cores, url, (dir, &home.dir), &format!("attach-{at}"))?;
        home.scratch.note_mount(&home.mount_point(), MountedExt4::MOUNT_TYPE)?;
        let mounted = MountedExt4::make(disk.device(), &home.mount_point())?;
        let name = format!("{}-{at}", engine.name());
        let (mount, run) = (home.mount_point(), home.socket_directory());
        let (limit, unlimited) = match MemoryLimit::create(&home.scratch, size.server_memory_bytes()) {
            Ok(limit) => (Some(limit), None),
            Err(why) => (None, Some(why)),
        };
        let cache = size.cache_bytes();
        let setup = ServerSetup { mount: &mount, run: &run, cache, limit, cores, log: (dir, &name) };
        let database = DatabaseServer::start(engine, setup)?;
        Ok(DatabaseStack { database, mounted, disk, unlimited, raid, _home: home })
    }
}

/// This program.
fn own_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|why| Failure::new(format!("cannot find this program's executable: {why}")))
}

/// A client of a database, on the initiators' processors.
pub(super) fn start_database_client(
    runner: &Runner<'_>,
    name: &str,
    words: Vec<String>,
) -> Result<Process, Failure> {
    let run = ProcessSpec {
        name,
        place: &CommandLocation::Here,
        cores: &runner.cores.initiator,
        words,
        dir: &runner.dir,
    };
    Process::start(run)
}
