//! Third-party targets and initiators, started and driven if they are installed.
//!
//! Missing ones are reported and skipped: `tests/setup.sh eval` installs what Debian has, and `SPDK_DIR` says
//! where SPDK was built.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use blockwire_lab::initiator::{Initiator, LoadEvent, LoadTask};
use blockwire_lab::target::{Target, TargetSetup};
use blockwire_lab::{CommandLocation, Failure};
use eval::fio::{IoDirection, Job};
use eval::preset::{Protocol, VolumeMedium};

/// No program of this name: plug-ins that need it are tested by those who have it.
const NONE: &str = "/nonexistent/blockwire";

fn reads(seconds: f64) -> Job {
    Job {
        name: "reads".into(),
        direction: IoDirection::Read,
        is_random: true,
        block: (4096, 4096),
        depth: 16,
        threads: 1,
        runtime: Some(Duration::from_secs_f64(seconds)),
        ramp: Duration::ZERO,
        is_time_based: true,
        covers: false,
        ..Job::default()
    }
}

fn setup<'a>(
    dir: &'a Path,
    addresses: &'a [String],
    protocol: Protocol,
    medium: VolumeMedium,
) -> TargetSetup<'a> {
    TargetSetup {
        place: &CommandLocation::Here,
        listen: "127.0.0.1",
        addresses,
        protocol,
        volumes: (2, 64 << 20),
        targets: None,
        medium,
        connections: 1,
        cores: &[0],
        dir,
    }
}

/// One initiator on one target: figures are there, and the time in which they count was told.
fn drive(target: &dyn Target, initiator: &dyn Initiator, medium: VolumeMedium) -> Result<(), Failure> {
    let dir = tempfile::tempdir().expect("a directory");
    let protocol = target.protocols()[0];
    let addresses = ["127.0.0.1".to_owned()];
    let serving = target.start(&setup(dir.path(), &addresses, protocol, medium))?;
    assert!(!serving.commands.is_empty() && serving.pids().len() == 1);
    let before = serving.polls.as_ref().map(|polls| polls.idle_seconds().expect("it tells"));
    let (job, told) = (reads(1.0), RefCell::new(Vec::new()));
    let task = LoadTask {
        name: "load".into(),
        place: &CommandLocation::Here,
        urls: serving.urls("127.0.0.1"),
        job: &job,
        // Systems that poll must not share one.
        cores: if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            &[1]
        } else {
            &[]
        },
        connections: 2,
        dir: dir.path(),
    };
    let figures = initiator.run(&task, &|event| told.borrow_mut().push(event))?;
    let told = told.into_inner();
    assert!(matches!(&told[..], [LoadEvent::Began(pids), LoadEvent::Ended] if !pids.is_empty()), "{told:?}");
    assert!(figures.ios > 100 && figures.moved == figures.ios * 4096, "{figures:?}");
    assert!(figures.latency.count() == 0 || figures.latency.mean() > 1_000.0, "{:?}", figures.latency.mean());
    if let Some(before) = before {
        let idle = serving.polls.as_ref().and_then(|polls| polls.idle_seconds()).expect("it tells") - before;
        // One core; starting the load and ending it are in it.
        assert!(idle > 0.0 && idle < 30.0, "{idle}");
    }
    println!("{} by {}: {:.0} IOPS", target.name(), initiator.name(), figures.ios as f64 / figures.seconds);
    let pids = serving.pids();
    drop(serving);
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "it is gone");
    let trace = |pid: &u32| {
        ["iscsi", "nvmf"].iter().any(|kind| Path::new(&format!("/dev/shm/{kind}_trace.pid{pid}")).exists())
    };
    assert!(!pids.iter().any(trace), "nothing of it stays in memory");
    let scratch = blockwire_lab::RunDirectory::current()?;
    let own = scratch.path().file_name().unwrap_or_default().to_owned();
    let volumes = std::fs::read_dir(Path::new("/dev/shm").join(&own)).into_iter().flatten().flatten();
    assert_eq!(volumes.count(), 0, "nor do its volumes");
    Ok(())
}

#[test]
fn others_serve_and_are_driven() {
    let (targets, initiators) = (
        blockwire_lab::target::all_targets(Path::new(NONE), &[]),
        blockwire_lab::initiator::all_initiators(Path::new(NONE)),
    );
    for target in &targets {
        if let Some(why) = target.missing(&CommandLocation::Here) {
            println!("passed over: {why}");
            continue;
        }
        assert!(target.version(&CommandLocation::Here).is_some(), "{} says its version", target.name());
        for initiator in initiators.iter().filter(|it| ["libiscsi", "spdk"].contains(&it.name())) {
            if !initiator.protocols().contains(&target.protocols()[0]) {
                continue;
            }
            if let Some(why) = initiator.missing(&CommandLocation::Here) {
                println!("passed over: {why}");
                continue;
            }
            assert!(
                initiator.version(&CommandLocation::Here).is_some(),
                "{} says its version",
                initiator.name()
            );
            for medium in [VolumeMedium::Ram, VolumeMedium::Null]
                .into_iter()
                .filter(|medium| target.supports_medium(*medium))
            {
                if let Err(why) = drive(&**target, &**initiator, medium) {
                    panic!("{} by {} on {medium:?}: {why}", target.name(), initiator.name());
                }
            }
        }
    }
}

/// Whatever is not here says what it is and what to do about it.
#[test]
fn what_is_missing_says_how_to_get_it() {
    let names = ["apt install", "SPDK_DIR", "modprobe", "takes root", "copy it there"];
    let says = |why: Option<String>| why.is_none_or(|why| names.iter().any(|name| why.contains(name)));
    for target in blockwire_lab::target::all_targets(Path::new(NONE), &[]) {
        let why = target.missing(&CommandLocation::Here);
        assert!(says(why.clone()), "{}: {why:?}", target.name());
    }
    for initiator in blockwire_lab::initiator::all_initiators(Path::new(NONE)) {
        let why = initiator.missing(&CommandLocation::Here);
        assert!(says(why.clone()), "{}: {why:?}", initiator.name());
    }
}
