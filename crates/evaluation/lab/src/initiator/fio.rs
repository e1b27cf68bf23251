//! fio, on volumes that `blockwire attach` makes local.
//!
//! Methods: `ublk` (block devices), `fuse` (files, with loop devices over them where that is allowed), `nbd`
//! (fio's NBD engine on a Unix socket). Each volume has its own `attach`, with one session. Processor time is that of
//! all processes: both sides of the device are the initiator.
//!
//! fio prints all of its counts as it runs (`fio_reports`): I/Os are those between two such reports, and processors are
//! looked at when these come.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::fio::Job;
use eval::preset::Protocol;
use eval::record::CountingWindow;

use super::fio_args::fio_option_words;
use super::fio_reports::{FioCountingPeriod, collect_results, report_interval};
use super::negotiated::negotiated_from_info;
use super::{Initiator, LoadEvent, LoadResult, LoadTask, load_timeout};
use crate::Failure;
use crate::attach::{AttachMethod, AttachSpec, AttachedVolume};
use crate::place::CommandLocation;

/// The ways that fio can take, best first.
const ATTACH_METHODS: [AttachMethod; 3] = [AttachMethod::Ublk, AttachMethod::Nbd, AttachMethod::Fuse];

/// Why a way cannot be taken in a place.
fn attach_method_missing(way: AttachMethod, place: &CommandLocation) -> Option<String> {
    let there = |path: &str| place.run(&["test", "-e", path]).is_ok();
    let name = place.display_name();
    match way {
        AttachMethod::Ublk => (!there("/dev/ublk-control"))
            .then(|| format!("/dev/ublk-control is not on {name}: modprobe ublk_drv (Linux 6.5 or newer)")),
        AttachMethod::Fuse => {
            (!there("/dev/fuse")).then(|| format!("/dev/fuse is not on {name}: modprobe fuse"))
        }
        AttachMethod::Nbd => {
            let engines = place.run(&["fio", "--enghelp"]).unwrap_or_default();
            let has = engines.lines().any(|line| line.trim() == "nbd");
            (!has).then(|| format!("fio on {name} was built without its NBD engine (libnbd)"))
        }
        AttachMethod::VhostUser => Some("fio is no virtual machine".to_owned()),
    }
}

/// fio behind `attach`, by one way, or by the best that the machine offers.
#[derive(Debug)]
pub(super) struct FioInitiator {
    binary: PathBuf,
    name: &'static str,
    way: Option<AttachMethod>,
}

impl FioInitiator {
    /// `fio` takes the best way; the others are for who wants one.
    pub(super) fn all_methods(binary: &Path) -> impl Iterator<Item = FioInitiator> {
        let ways = [
            ("fio", None),
            ("fio-ublk", Some(AttachMethod::Ublk)),
            ("fio-fuse", Some(AttachMethod::Fuse)),
            ("fio-nbd", Some(AttachMethod::Nbd)),
        ];
        let binary = binary.to_owned();
        ways.into_iter().map(move |(name, way)| FioInitiator { binary: binary.clone(), name, way })
    }

    fn choose_method(&self, place: &CommandLocation) -> Result<AttachMethod, Failure> {
        if let Some(way) = self.way {
            return attach_method_missing(way, place).map_or(Ok(way), |why| Err(Failure::new(why)));
        }
        let missing: Vec<String> =
            ATTACH_METHODS.iter().filter_map(|way| attach_method_missing(*way, place)).collect();
        ATTACH_METHODS
            .into_iter()
            .find(|way| attach_method_missing(*way, place).is_none())
            .ok_or_else(|| Failure::new(missing.join("; ")))
    }

    /// Makes a volume local, and gives what fio is to open.
    fn attach_volume(
        &self,
        task: &LoadTask<'_>,
        way: AttachMethod,
        number: usize,
    ) -> Result<(AttachedVolume, String), Failure> {
        let name = format!("{}-attach-{number}", task.name);
        let LoadTask { place, cores, dir, .. } = *task;
        let url = task
            .urls
            .get(number)
            .ok_or_else(|| Failure::new(format!("there is no volume {}", number + 1)))?;
        let at = PathBuf::from(place.scratch_path(dir));
        let wanted = AttachSpec { binary: &self.binary, place, cores, url, way, name: &name, at: &at, dir };
        let mut attached = AttachedVolume::start(&wanted)?;
        // A device goes before a file.
        let words: &[&str] = if way == AttachMethod::Nbd { &["url"] } else { &["device", "file"] };
        let opened = words.iter().find_map(|word| attached.output_after(word)).map(str::to_owned);
        let opened = opened
            .ok_or_else(|| attached.failure_with_output("it did not print which device it attached"))?;
        Ok((attached, opened))
    }
}

impl Initiator for FioInitiator {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        missing_fio(place)
            .or_else(|| place.missing_binary(&self.binary))
            .or_else(|| self.choose_method(place).err().map(|why| why.to_string()))
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        unsupported_reason(job)
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let way = self.choose_method(place).ok()?;
        Some(format!("{} by {}", fio_version(place)?, way.name()))
    }

    fn counting_window(&self) -> CountingWindow {
        CountingWindow::Same
    }

    fn load_overhead(&self) -> Duration {
        // Up to three of its reports more than the load takes.
        Duration::from_millis(4200)
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        let way = self.choose_method(task.place)?;
        let volumes = task.urls.len();
        if task.connections as usize > volumes {
            let said =
                format!("attach has one session with each volume: {volumes}, not {}", task.connections);
            return Err(Failure::new(said));
        }
        let mut attached = Vec::new();
        let mut opened = Vec::new();
        for number in 0..volumes {
            let (one, name) = self.attach_volume(task, way, number)?;
            attached.push(one);
            opened.push(name);
        }
        // `attach` asks for the same as `info`, and does not tell.
        let binary = task.place.binary_path(&self.binary);
        let info = task.urls.first().map(|url| task.place.run(&[&binary, "info", url, "--json"]));
        let negotiated =
            info.and_then(Result::ok).map(|said| negotiated_from_info(&said)).unwrap_or_default();
        let engine = if way == AttachMethod::Nbd { FioEngine::Nbd } else { FioEngine::Aio };
        let servers = attached.iter().map(AttachedVolume::pid).collect();
        let mut figures = run_fio(task, &opened, engine, FioWorkers::These(servers), tell)?;
        let commands: Vec<String> = attached.iter().map(|one| one.command_line().to_owned()).collect();
        figures.command = format!("{} & {}", commands.join(" & "), figures.command);
        figures.negotiated = negotiated;
        // The device goes before what it was made of.
        attached.reverse();
        Ok(figures)
    }
}

/// What is missing of fio itself.
pub(super) fn missing_fio(place: &CommandLocation) -> Option<String> {
    (!place.has_program("fio")).then(|| format!("fio: missing on {}: apt install fio", place.display_name()))
}

/// fio's version.
pub(super) fn fio_version(place: &CommandLocation) -> Option<String> {
    place.run(&["fio", "--version"]).ok().map(|said| said.trim().to_owned())
}

/// What fio is not driven to do here.
pub(super) fn unsupported_reason(job: &Job) -> Option<String> {
    let is_endless = job.runtime.is_none() || !job.is_time_based;
    is_endless.then(|| "its processors are looked at by the clock: give runtime and time_based".to_owned())
}

/// How fio reaches volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FioEngine {
    /// Block devices or files, past the page cache.
    Aio,
    /// Its NBD engine; volumes are URIs.
    Nbd,
}

/// Who does the work.
#[derive(Clone, Debug)]
pub(super) enum FioWorkers {
    /// fio, and these processes.
    These(Vec<u32>),
    /// fio and the kernel: all that its cores do.
    Kernel,
}

/// Runs a load on what was made local.
pub(super) fn run_fio(
    task: &LoadTask<'_>,
    opened: &[String],
    engine: FioEngine,
    workers: FioWorkers,
    tell: &dyn Fn(LoadEvent),
) -> Result<LoadResult, Failure> {
    let runtime = task.job.runtime.unwrap_or_default();
    let each = report_interval(runtime);
    // One report begins the window and one ends it: neither may be the last, whose counts are older than it.
    let longer = runtime + 3 * each;
    let mut words = command_line(&Job { runtime: Some(longer), ..task.job.clone() }, opened, engine);
    words.insert(1, format!("--status-interval={}ms", each.as_millis()));
    let mut process = task.start_process(words)?;
    process.wait_for_line(Duration::from_secs(30), |line| line.starts_with("Starting ").then_some(()))?;
    let pids = match workers {
        FioWorkers::These(mut pids) => {
            pids.insert(0, process.pid());
            pids
        }
        FioWorkers::Kernel => Vec::new(),
    };
    let begin = process.last_line_time() + task.job.ramp;
    let counting = FioCountingPeriod::new(begin, runtime, longer);
    let mut figures = collect_results(&mut process, counting, pids, load_timeout(task.job), tell)?;
    process.command_line().clone_into(&mut figures.command);
    Ok(figures)
}

/// Its command line. By NBD each volume is a job of its own, and threads are shared by them.
fn command_line(job: &Job, opened: &[String], engine: FioEngine) -> Vec<String> {
    let mut words = ["fio", "--output-format=normal,json+", "--lat_percentiles=1", "--thread"]
        .map(str::to_owned)
        .to_vec();
    match engine {
        FioEngine::Aio => {
            let names: Vec<String> = opened.iter().map(|name| name.replace(':', "\\:")).collect();
            words.push("--name=eval".to_owned());
            words.extend(fio_option_words(job));
            words.extend(["--ioengine=libaio".to_owned(), "--direct=1".to_owned()]);
            words.push(format!("--filename={}", names.join(":")));
        }
        FioEngine::Nbd => {
            let volumes = opened.len() as u32;
            for (number, uri) in opened.iter().enumerate() {
                let extra = u32::from((number as u32) < job.threads % volumes);
                let threads = (job.threads / volumes + extra).max(1);
                words.push(format!("--name=eval{number}"));
                words.extend(fio_option_words(&Job { threads, ..job.clone() }));
                words.extend(["--ioengine=nbd".to_owned(), format!("--uri={uri}")]);
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use eval::fio::{IoDirection, parse_args};

    #[test]
    fn its_words_are_the_load() {
        let job = Job {
            direction: IoDirection::Read,
            threads: 3,
            runtime: Some(Duration::from_secs(1)),
            is_time_based: true,
            ..Job::default()
        };
        let aio = command_line(&job, &["/dev/loop7".into(), "/tmp/a:b".into()], FioEngine::Aio).join(" ");
        assert!(aio.contains(r"--filename=/dev/loop7:/tmp/a\:b") && aio.contains("--numjobs=3"), "{aio}");
        let nbd = command_line(
            &job,
            &["nbd+unix:///?socket=/a".into(), "nbd+unix:///?socket=/b".into()],
            FioEngine::Nbd,
        );
        let threads: Vec<&String> = nbd.iter().filter(|word| word.starts_with("--numjobs")).collect();
        assert_eq!(threads, ["--numjobs=2", "--numjobs=1"]);
        // The same words are read back as the same load.
        let common = fio_option_words(&job);
        let line = ["--name=x", "--filename=-"].into_iter().chain(common.iter().map(String::as_str));
        assert_eq!(parse_args(line).unwrap().jobs[0].threads, 3);
    }
}
