//! Targets that the harness starts and stops, each with the same volumes on the same cores.
//!
//! A [`Target`] says what it lacks here, or starts and gives a [`ServingTarget`]. Invariant: what a target
//! started or changed is undone when its [`ServingTarget`] is dropped.

mod bare;
mod blockwire;
mod istgt;
mod kernel;
mod spdk;
mod stream;
mod tgt;
mod url;

use std::fmt::Debug;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eval::preset::{Protocol, VolumeMedium};

use crate::Failure;
use crate::end_request;
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};
use crate::run_directory::RunDirectory;

/// A system that serves volumes.
pub trait Target: Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// The protocols that it speaks.
    fn protocols(&self) -> &[Protocol];

    /// What is missing in this place and how it is installed; `None`: it can be started.
    fn missing(&self, place: &CommandLocation) -> Option<String>;

    /// Whether its volumes can be made of this.
    fn supports_medium(&self, medium: VolumeMedium) -> bool {
        medium != VolumeMedium::File
    }

    /// Whether it can serve several volumes as logical units of one iSCSI target here.
    fn supports_multi_lun(&self) -> bool {
        false
    }

    /// Its version, as it says it; `None`: it has none of its own.
    fn version(&self, _place: &CommandLocation) -> Option<String> {
        None
    }

    /// How long it takes to start and to end, about, without filling its volumes.
    fn start_duration(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Starts it, with all volumes ready to be used.
    ///
    /// # Errors
    /// If it does not come up: what it said.
    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure>;
}

/// What a target is started with: place, addresses, protocol, volumes, cores.
#[derive(Clone, Copy, Debug)]
pub struct TargetSetup<'a> {
    /// Where it runs.
    pub place: &'a CommandLocation,
    /// The address that it listens on; `0.0.0.0`: all that its namespace has, and the experiment alone is there.
    pub listen: &'a str,
    /// The addresses at which initiators reach it, for targets that answer at none that they were not told.
    pub addresses: &'a [String],
    /// What it speaks.
    pub protocol: Protocol,
    /// How many volumes, of so many bytes each.
    pub volumes: (u32, u64),
    /// Over how many iSCSI targets volumes are divided, the first ones on the first; `None`: each has a target of its own.
    pub targets: Option<u32>,
    /// What they are made of.
    pub medium: VolumeMedium,
    /// Most connections, over all volumes, that it will have at once.
    pub connections: u32,
    /// Processors that it may use.
    pub cores: &'a [usize],
    /// For its files and logs.
    pub dir: &'a Path,
}

impl TargetSetup<'_> {
    /// The iSCSI target of a volume, and its logical unit there, both from 0.
    fn target_and_lun(&self, volume: u32) -> (u32, u32) {
        let targets = self.targets.filter(|_| self.protocol == Protocol::Iscsi);
        let targets = targets.unwrap_or(self.volumes.0).clamp(1, self.volumes.0.max(1));
        let each = self.volumes.0.div_ceil(targets).max(1);
        (volume / each, volume % each)
    }

    /// Of a target whose volumes cannot be made of what is asked for.
    fn unsupported_medium(&self, target: &str) -> Failure {
        Failure::new(format!("{target} has no volumes of this kind here: {}", self.medium.name()))
    }

    /// Starts a process of the target.
    fn start_process(&self, name: &str, words: Vec<String>) -> Result<Process, Failure> {
        Process::start(ProcessSpec { name, place: self.place, cores: self.cores, words, dir: self.dir })
    }

    /// Two volumes of 64 MiB at a loopback address.
    #[cfg(test)]
    fn example(protocol: Protocol, medium: VolumeMedium) -> TargetSetup<'static> {
        TargetSetup {
            place: &CommandLocation::Here,
            listen: "127.0.0.1",
            addresses: &[],
            protocol,
            volumes: (2, 64 << 20),
            targets: None,
            medium,
            connections: 1,
            cores: &[],
            dir: Path::new("/"),
        }
    }
}

/// A system that tells how long it has polled without work.
pub trait IdlePolling: Debug + Send + Sync {
    /// Seconds since it was started, over all its threads; `None`: it does not tell now.
    fn idle_seconds(&self) -> Option<f64>;
}

/// A target that serves.
#[derive(Debug)]
pub struct ServingTarget {
    /// Its processes; none: it lives in the kernel, or elsewhere.
    pub processes: Vec<Process>,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its port.
    pub port: u16,
    /// Each volume, as it stands in a URL behind the address: `iqn…/0`.
    pub volumes: Vec<String>,
    /// What a person would type to have the same.
    pub commands: Vec<String>,
    /// Files that it was started with: name and text.
    pub files: Vec<(String, String)>,
    /// What must be known to compare it with others.
    pub remarks: Vec<String>,
    /// Where it is if not at the link's own address.
    pub fixed: Option<Vec<String>>,
    /// Commands that undo what was changed, in order.
    pub undo: Vec<(CommandLocation, Vec<String>)>,
    /// Where what it was given lies, for as long as it serves.
    pub scratch: Option<Arc<RunDirectory>>,
    /// Whether its processes do not end when asked.
    pub is_stubborn: bool,
    /// Whether it polls all the time.
    pub is_polling: bool,
    /// Who says how long it polled without work, if it tells.
    pub polls: Option<Arc<dyn IdlePolling>>,
}

impl ServingTarget {
    /// A target with these processes.
    pub fn new(protocol: Protocol, port: u16, volumes: Vec<String>) -> ServingTarget {
        ServingTarget {
            processes: Vec::new(),
            protocol,
            port,
            volumes,
            commands: Vec::new(),
            files: Vec::new(),
            remarks: Vec::new(),
            fixed: None,
            undo: Vec::new(),
            scratch: None,
            is_stubborn: false,
            is_polling: false,
            polls: None,
        }
    }

    /// URLs of its volumes, as they are reached at this address.
    pub fn urls(&self, address: &str) -> Vec<String> {
        if let Some(urls) = &self.fixed {
            return urls.clone();
        }
        let scheme = match self.protocol {
            Protocol::NvmeTcp => "nvme+tcp",
            Protocol::Stream => return vec![format!("tcp://{address}:{}", self.port)],
            Protocol::Bare => {
                // Each of its threads has a port of its own.
                return self.volumes.iter().map(|volume| format!("bare://{address}:{volume}")).collect();
            }
            _ => "iscsi",
        };
        self.volumes.iter().map(|volume| format!("{scheme}://{address}:{}/{volume}", self.port)).collect()
    }

    /// Ids of its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }
}

impl Drop for ServingTarget {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if self.is_stubborn {
                process.kill();
            } else {
                process.stop();
            }
        }
        for (place, words) in self.undo.drain(..) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = place.run(&words);
        }
    }
}

/// All targets that are known. `binary`: this program; `urls`: volumes that something else serves.
pub fn all_targets(binary: &Path, urls: &[String]) -> Vec<Box<dyn Target>> {
    let mut all: Vec<Box<dyn Target>> = vec![
        Box::new(blockwire::BlockwireTarget::new(binary)),
        Box::new(tgt::TgtTarget),
        Box::new(istgt::IstgtTarget),
        Box::new(kernel::KernelTarget::lio()),
        Box::new(kernel::KernelTarget::nvmet()),
        Box::new(spdk::SpdkTarget::iscsi()),
        Box::new(spdk::SpdkTarget::nvmf()),
        Box::new(stream::StreamReceiver::new(binary)),
        Box::new(bare::BareTarget::new(binary)),
    ];
    if !urls.is_empty() {
        all.push(Box::new(url::UrlTarget::new(urls)));
    }
    all
}

/// A port that is free in a place, found by asking its kernel.
///
/// # Errors
/// If none can be had.
pub fn free_port(place: &CommandLocation) -> Result<u16, Failure> {
    match place {
        CommandLocation::Here => {
            let listener = std::net::TcpListener::bind("127.0.0.1:0");
            let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
            port.map_err(|why| Failure::new(format!("no port is free: {why}")))
        }
        // Only other targets of the same experiment live there, one after the other.
        CommandLocation::Namespace(_) => Ok(ISCSI_PORT),
        CommandLocation::Ssh(_) => {
            // What serves there already keeps its port, and must not be taken for ours.
            let script = "cat /proc/net/tcp && { cat /proc/net/tcp6 2>/dev/null || :; }";
            let sockets = place.run(&["sh", "-c", script])?;
            let free = (ISCSI_PORT..u16::MAX).find(|port| !has_listener(&sockets, *port));
            free.ok_or_else(|| Failure::new(format!("no port is free on {}", place.display_name())))
        }
    }
}

/// The port of iSCSI, where it is free.
const ISCSI_PORT: u16 = 3260;

/// What is missing of these programs, as name and Debian package.
fn missing_programs(place: &CommandLocation, programs: &[(&str, &str)]) -> Option<String> {
    let missing: Vec<&(&str, &str)> =
        programs.iter().filter(|(program, _)| !place.has_program(program)).collect();
    let names: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    (!missing.is_empty()).then(|| {
        format!(
            "{}: missing on {}: apt install {}",
            names.join(", "),
            place.display_name(),
            packages.join(" ")
        )
    })
}

/// Files of so many bytes for a target's volumes, in a directory that nobody else may enter: in memory, if the
/// place has a file system there and volumes are not to be files of a disk.
struct VolumeImages {
    dir: PathBuf,
    paths: Vec<PathBuf>,
    /// Where they are here, the directory goes with the run's.
    scratch: Option<Arc<RunDirectory>>,
}

impl VolumeImages {
    fn make(setup: &TargetSetup<'_>, name: &str) -> Result<VolumeImages, Failure> {
        let mut images = if setup.place.is_local() {
            let scratch = RunDirectory::current()?;
            let is_memory = setup.medium != VolumeMedium::File;
            let memory = if is_memory { scratch.memory_directory()? } else { None };
            let dir = match memory {
                Some(memory) => memory.join(format!("{name}{}", scratch.next_number())),
                None => scratch.path().join(format!("{name}{}", scratch.next_number())),
            };
            let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
            made.map_err(|why| Failure::new(format!("{}: {why}", dir.display())))?;
            VolumeImages { dir, paths: Vec::new(), scratch: Some(scratch) }
        } else {
            // The parent of a name is made by the kernel's own rules there: exclusively, mode 0700.
            let script = match setup.medium {
                VolumeMedium::File => "exec mktemp -d \"$1/XXXXXX\"",
                VolumeMedium::Ram | VolumeMedium::Null => {
                    "[ -d /dev/shm ] && exec mktemp -d /dev/shm/blockwire-XXXXXXXXXX; exec mktemp -d \"$1/XXXXXX\""
                }
            };
            let far = setup.place.scratch_path(setup.dir);
            let dir = setup.place.run(&["sh", "-c", script, "sh", &far])?;
            VolumeImages { dir: PathBuf::from(dir.trim()), paths: Vec::new(), scratch: None }
        };
        let named = |number: u32| images.dir.join(format!("{name}-{number}"));
        images.paths = (0..setup.volumes.0).map(named).collect();
        let bytes = setup.volumes.1.to_string();
        let texts: Vec<String> = images.paths.iter().map(|path| path.display().to_string()).collect();
        let words: Vec<&str> =
            ["truncate", "-s", &bytes].into_iter().chain(texts.iter().map(String::as_str)).collect();
        if let Err(why) = setup.place.run(&words) {
            let removal = images.removal_command();
            let _ = setup.place.run(&removal.iter().map(String::as_str).collect::<Vec<_>>());
            return Err(why);
        }
        Ok(images)
    }

    /// What tells a target that serves these from one whose volumes are memory of its own.
    fn medium_note(&self, name: &str) -> String {
        let is_memory = self.dir.starts_with("/dev/shm");
        let medium = if is_memory { "in memory (/dev/shm)" } else { "on a disk" };
        format!(
            "{name} serves files {medium}, which its threads read and write by system calls; volumes of blockwire and \
             SPDK are memory of their own processes"
        )
    }

    /// The command that removes them: files that were made, by their names, and the directory if it is empty then.
    fn removal_command(&self) -> Vec<String> {
        let script = "dir=$1; shift; rm -f -- \"$@\"; rmdir -- \"$dir\"";
        let paths = [&self.dir].into_iter().chain(&self.paths).map(|path| path.display().to_string());
        ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain(paths).collect()
    }
}

/// Waits until a port of a place is listened on, as its kernel's table of sockets says: nothing connects.
fn wait_for_port(
    place: &CommandLocation,
    port: u16,
    process: &mut Process,
    within: Duration,
) -> Result<(), Failure> {
    let until = Instant::now() + within;
    loop {
        // What listens there after its end is somebody else's.
        if !process.is_alive() {
            return Err(process.failure_with_output("it ended before it listened"));
        }
        let sockets = place.run(&["cat", "/proc/net/tcp"])?;
        if has_listener(&sockets, port) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(process.failure_with_output(format!("it does not listen on port {port}")));
        }
        end_request::sleep_unless_ending(Duration::from_millis(50))?;
    }
}

/// Whether a table of `/proc/net/tcp` holds a socket that listens on a port.
fn has_listener(sockets: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_here = words.next().is_some_and(|address| address.ends_with(&local));
        // State 0A is LISTEN; the word between is the far end.
        is_here && words.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_divided_over_targets() {
        let of = |volumes, targets, protocol| {
            let setup = TargetSetup {
                volumes: (volumes, 1 << 20),
                targets,
                ..TargetSetup::example(protocol, VolumeMedium::Ram)
            };
            (0..volumes).map(|volume| setup.target_and_lun(volume)).collect::<Vec<_>>()
        };
        assert_eq!(of(4, Some(2), Protocol::Iscsi), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(of(3, Some(2), Protocol::Iscsi), [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(of(2, None, Protocol::Iscsi), [(0, 0), (1, 0)]);
        assert_eq!(of(2, Some(1), Protocol::NvmeTcp), [(0, 0), (1, 0)], "subsystems are not targets");
        assert_eq!(of(2, Some(9), Protocol::Iscsi), [(0, 0), (1, 0)]);
    }

    #[test]
    fn a_listening_socket_is_told_from_one_that_is_connected() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
            0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:1144 0100007F:9C40 01 00000000:00000000\n";
        assert!(has_listener(text, 3260));
        assert!(!has_listener(text, 4420) && !has_listener(text, 80));
    }

    /// Its volumes would be taken for ours.
    #[test]
    fn a_port_that_another_machine_serves_at_is_never_taken() {
        let line = "0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000";
        let ssh = ["sh", "-c", &format!("echo pid 1; echo '{line}'")].map(str::to_owned).to_vec();
        let place =
            CommandLocation::Ssh(crate::place::SshMachine::new(ssh, "storage", std::path::Path::new("none")));
        assert_eq!(free_port(&place).unwrap(), 3261);
    }

    #[test]
    fn what_listens_after_a_process_has_ended_is_never_its_port() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let words = ["sh", "-c", "echo in use >&2; exit 1"].map(str::to_owned).to_vec();
        let run =
            ProcessSpec { name: "t", place: &CommandLocation::Here, cores: &[], words, dir: dir.path() };
        let mut process = Process::start(run).unwrap();
        process.wait_for_output(Duration::from_secs(10)).unwrap_err();
        let port = listener.local_addr().unwrap().port();
        let why =
            wait_for_port(&CommandLocation::Here, port, &mut process, Duration::from_secs(10)).unwrap_err();
        assert!(why.to_string().contains("ended before it listened"), "{why}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let programs = [("sh", "dash"), ("no-such-a", "tools"), ("no-such-b", "tools")];
        let said = missing_programs(&CommandLocation::Here, &programs).unwrap();
        assert_eq!(said, "no-such-a, no-such-b: missing on here: apt install tools");
        assert_eq!(missing_programs(&CommandLocation::Here, &programs[..1]), None);
    }
}
