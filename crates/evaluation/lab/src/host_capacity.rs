//! The resources of this machine for an evaluation.

use std::time::Duration;

use eval::preset::{HostCapacity, Protocol, StepTiming};

use crate::initiator::Initiator;
use crate::link::check_namespaces;
use crate::place::CommandLocation;
use crate::target::Target;

/// Probes this machine: cores, memory, ports, descriptors, and which targets and initiators are installed. Those that
/// only send or receive streams are left out. `time`: how long the whole evaluation may take. Raises this process's limit
/// of open files, which its children inherit.
pub fn probe_host_capacity(
    targets: &[Box<dyn Target>],
    initiators: &[Box<dyn Initiator>],
    time: Duration,
) -> HostCapacity {
    let here = CommandLocation::Here;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = free.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0);
    // What is started inherits it, and may need a descriptor for each of thousands of connections.
    let nofile = rustix::process::Resource::Nofile;
    let limits = rustix::process::getrlimit(nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    let files = if rustix::process::setrlimit(nofile, raised).is_ok() { raised } else { limits };
    HostCapacity {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory: kib << 10,
        ports: port_count(
            &std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default(),
        ),
        files: files.current.or(files.maximum).unwrap_or(u64::MAX),
        namespaces: check_namespaces(),
        targets: installed_names(
            targets
                .iter()
                .filter(|it| has_block_protocol(it.protocols()))
                .map(|it| (it.name(), it.missing(&here))),
        ),
        initiators: installed_names(
            initiators
                .iter()
                .filter(|it| has_block_protocol(it.protocols()))
                .map(|it| (it.name(), it.missing(&here))),
        ),
        wires: Vec::new(),
        time,
        timing: StepTiming::default(),
    }
}

/// How many ports a range of them holds, as the kernel shows it: the first and the last.
fn port_count(range: &str) -> u64 {
    let mut ends = range.split_ascii_whitespace().filter_map(|word| word.parse::<u64>().ok());
    // Linux's own range where it does not tell.
    let (first, last) = ends.next().zip(ends.next()).unwrap_or((32_768, 60_999));
    last.saturating_sub(first) + 1
}

fn has_block_protocol(protocols: &[Protocol]) -> bool {
    protocols.iter().any(|protocol| *protocol != Protocol::Stream)
}

fn installed_names<'a>(all: impl Iterator<Item = (&'a str, Option<String>)>) -> Vec<String> {
    all.filter(|(_, missing)| missing.is_none()).map(|(name, _)| name.to_owned()).collect()
}

/// A host with so many processors and so much memory, without links and systems.
#[cfg(test)]
pub(crate) fn example_capacity(cores: usize, memory: u64) -> HostCapacity {
    HostCapacity {
        cores,
        memory,
        files: 1024,
        ports: 28_232,
        namespaces: Ok(()),
        targets: Vec::new(),
        initiators: Vec::new(),
        wires: Vec::new(),
        time: Duration::from_secs(600),
        timing: StepTiming::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_range_of_ports_has_both_its_ends() {
        assert_eq!((port_count("32768\t60999\n"), port_count("")), (28_232, 28_232));
        assert_eq!(port_count("1024 65535"), 64_512);
    }

    /// A preset that takes the first software target of all that are here must not get a sink of bytes.
    #[test]
    fn streams_are_no_systems_to_be_compared() {
        let binary = Path::new("/proc/self/exe");
        let room = probe_host_capacity(
            &crate::target::all_targets(binary, &[]),
            &crate::initiator::all_initiators(binary),
            Duration::ZERO,
        );
        assert!(room.targets.contains(&"blockwire".to_owned()), "{:?}", room.targets);
        assert!(
            !room.targets.contains(&"stream".to_owned()) && !room.initiators.contains(&"stream".to_owned())
        );
    }
}
