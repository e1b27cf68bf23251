//! What this machine has to give to an evaluation.

use std::time::Duration;

use eval::preset::Room;

use crate::initiator::Initiator;
use crate::link::namespaces;
use crate::place::Place;
use crate::target::Target;

/// What is here. `time`: how long all loads together may run.
pub fn room(targets: &[Box<dyn Target>], initiators: &[Box<dyn Initiator>], time: Duration) -> Room {
    let here = Place::Here;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = free.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0);
    // What is started inherits it, and may need a descriptor for each of thousands of connections.
    let nofile = rustix::process::Resource::Nofile;
    let limits = rustix::process::getrlimit(nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    let files = if rustix::process::setrlimit(nofile, raised).is_ok() { raised } else { limits };
    Room {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory: kib << 10,
        files: files.current.or(files.maximum).unwrap_or(u64::MAX),
        namespaces: namespaces(),
        targets: present(targets.iter().map(|target| (target.name(), target.missing(&here)))),
        initiators: present(initiators.iter().map(|it| (it.name(), it.missing(&here)))),
        time,
    }
}

fn present<'a>(all: impl Iterator<Item = (&'a str, Option<String>)>) -> Vec<String> {
    all.filter(|(_, missing)| missing.is_none()).map(|(name, _)| name.to_owned()).collect()
}
