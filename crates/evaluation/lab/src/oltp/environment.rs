//! The environment of one pair of systems: the target, and for each database its volumes, device, file system
//! and server.
//!
//! Invariant: fields are dropped in their order: servers before file systems, these before devices, these
//! before the target.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use eval::preset::{Medium, Protocol, Wire};

use super::database::{Database, Engine};
use super::load;
use super::scale::Size;
use crate::Failure;
use crate::attached::{Counted, Disk, Mounted, Raid};
use crate::link::Link;
use crate::place::Place;
use crate::process::{Process, ProcessSpec};
use crate::runner::{Runner, Testbed};
use crate::scratch::Scratch;
use crate::target::TargetSetup;
use crate::tree;

/// How long filling a database may take.
const FILLING: Duration = Duration::from_secs(3600);

/// One database with what it stands on.
pub(super) struct Stand {
    pub(super) database: Database,
    pub(super) mounted: Mounted,
    pub(super) disk: Disk,
    raid: Option<Raid>,
    _home: ShortDirectory,
}

/// A target and the databases on its volumes.
pub(super) struct Environment {
    pub(super) all: Vec<Stand>,
    pub(super) testbed: Testbed,
    /// What users do.
    pub(super) script: PathBuf,
}

/// A directory with a short name: the path of a socket has room for a hundred bytes.
struct ShortDirectory {
    dir: PathBuf,
    scratch: Arc<Scratch>,
}

impl ShortDirectory {
    fn make(engine: Engine) -> Result<ShortDirectory, Failure> {
        let scratch = Scratch::current()?;
        let home = ShortDirectory { dir: scratch.directory("db")?, scratch };
        let run = home.run();
        let made = std::fs::DirBuilder::new().mode(0o700).create(&run);
        made.map_err(|why| Failure::new(format!("{}: {why}", run.display())))?;
        engine.let_through(&[home.scratch.path(), &home.dir])?;
        Ok(home)
    }

    fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    fn mount(&self) -> PathBuf {
        self.dir.join("mount")
    }
}

impl Drop for ShortDirectory {
    fn drop(&mut self) {
        // Never what may still be mounted. What stays goes with the directory of the run.
        if let Some(name) = self.dir.file_name().and_then(|name| name.to_str()) {
            let _ = tree::remove(self.scratch.path(), name);
        }
    }
}

impl Environment {
    /// Starts all of it and fills the databases, which may take so long; `None`: an hour.
    pub(super) fn start(
        runner: &Runner<'_>,
        target: &str,
        engine: Engine,
        wire: Wire,
        size: &Size,
        patience: Option<Duration>,
    ) -> Result<Environment, Failure> {
        let link = Link::make(wire, size.databases)?;
        let setup = TargetSetup {
            place: link.target(),
            listen: link.listen(),
            addresses: link.addresses(),
            protocol: Protocol::Iscsi,
            volumes: (size.databases * size.luns, size.lun),
            targets: None,
            medium: Medium::Ram,
            connections: size.databases * size.luns,
            cores: &runner.cores.target,
            dir: &runner.dir,
        };
        let serving = runner.target(target)?.start(&setup)?;
        let script = load::script(&runner.dir)?;
        let mut stands = Environment { all: Vec::new(), testbed: Testbed { serving, link }, script };
        for at in 0..size.databases as usize {
            let Testbed { serving, link } = &stands.testbed;
            let urls = serving.urls(&link.address(at));
            let luns = size.luns as usize;
            let its_urls = urls.get(at * luns..(at + 1) * luns).unwrap_or_default();
            let stand = (link.initiator(at))
                .and_then(|place| Stand::make(runner, place, its_urls, engine, at, size))
                .map_err(|why| why.during(format!("database {at}")))?;
            stands.all.push(stand);
        }
        stands.fill(runner, size, patience.unwrap_or(FILLING))?;
        Ok(stands)
    }

    /// Fills all databases at once.
    fn fill(&self, runner: &Runner<'_>, size: &Size, patience: Duration) -> Result<(), Failure> {
        let mut all = Vec::new();
        for (at, stand) in self.all.iter().enumerate() {
            all.push(client(
                runner,
                &format!("filling-{at}"),
                load::prepare(&self.script, &stand.database, size),
            )?);
        }
        all.iter_mut().try_for_each(|process| process.finish(patience).map(drop))
    }

    /// Processes of the initiator's end: those that make devices, and servers with their users' processes.
    pub(super) fn initiator_pids(&self) -> Vec<u32> {
        let own = |stand: &Stand| {
            let raid = stand.raid.as_ref().map(Raid::pid);
            [Some(stand.disk.pid()), Some(stand.database.pid()), raid]
        };
        self.all.iter().flat_map(own).flatten().collect()
    }

    /// I/Os of all devices.
    pub(super) fn counted(&self) -> Result<Counted, Failure> {
        self.all.iter().try_fold(Counted::default(), |sum, stand| Ok(sum.and(stand.counted()?)))
    }

    /// What a person would type to have the same.
    pub(super) fn commands(&self) -> Vec<String> {
        let mut commands = self.testbed.serving.commands.clone();
        for stand in &self.all {
            commands.extend(stand.raid.as_ref().map(|raid| raid.command().to_owned()));
            commands.push(stand.disk.command().to_owned());
            commands.push(stand.database.command().to_owned());
        }
        commands
    }

    /// After the work: no file system has seen an error, and every server still answers.
    pub(super) fn check(&self) -> Result<(), Failure> {
        for stand in &self.all {
            stand.database.sql("select 1")?;
            let probe = stand.mounted.at().join("probe");
            std::fs::write(&probe, b"1")
                .map_err(|why| Failure::new(format!("the file system has seen an error: {why}")))?;
        }
        Ok(())
    }
}

impl Stand {
    fn make(
        runner: &Runner<'_>,
        place: &Place,
        urls: &[String],
        engine: Engine,
        at: usize,
        size: &Size,
    ) -> Result<Stand, Failure> {
        let (binary, cores, dir) = (binary()?, &runner.cores.initiator, &runner.dir);
        let (first, raid) = match urls {
            [] => return Err(Failure::new("the target serves no volume for it")),
            [one] => (one, None),
            [first, ..] => {
                (first, Some(Raid::start(&binary, place, cores, urls, dir, &format!("raid-{at}"))?))
            }
        };
        let url = raid.as_ref().map_or(first, Raid::url);
        let home = ShortDirectory::make(engine)?;
        home.scratch.note_mount(&home.dir.join(format!("attach-{at}.fuse")), Disk::KIND)?;
        let disk = Disk::start(&binary, place, cores, url, (dir, &home.dir), &format!("attach-{at}"))?;
        home.scratch.note_mount(&home.mount(), Mounted::KIND)?;
        let mounted = Mounted::make(disk.device(), &home.mount())?;
        let name = format!("{}-{at}", engine.name());
        let (mount, run) = (home.mount(), home.run());
        let database = Database::start(engine, &mount, &run, size.cache(), cores, dir, &name)?;
        Ok(Stand { database, mounted, disk, raid, _home: home })
    }
}

/// This program.
fn binary() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|why| Failure::new(format!("cannot find this program's executable: {why}")))
}

/// A client of a database, on the initiators' processors.
pub(super) fn client(runner: &Runner<'_>, name: &str, words: Vec<String>) -> Result<Process, Failure> {
    let run =
        ProcessSpec { name, place: &Place::Here, cores: &runner.cores.initiator, words, dir: &runner.dir };
    Process::start(run)
}
