//! Linux's own initiators: open-iscsi and nvme-cli make block devices, and fio uses them.
//!
//! They work in the kernel, so processor time is that of the initiator's cores, whatever used it. open-iscsi
//! reaches the machine's own network, not a network namespace. Sessions are ended and removed when the load
//! is over. Invariant: a session, record or controller that existed before is foreign: it is not used,
//! replaced or ended, and a volume that it uses is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eval::fio::Job;
use eval::preset::Protocol;

use super::fio::{self, FioEngine, FioWorkers};
use super::negotiated::{negotiated_from_id_ctrl, negotiated_from_open_iscsi};
use super::{Initiator, LoadEvent, LoadResult, LoadTask};
use crate::Failure;
use crate::created_resources::CreatedResource;
use crate::end_request;
use crate::kernel_sessions;
use crate::place::CommandLocation;
use crate::run_directory::RunDirectory;

/// open-iscsi or nvme-cli, whichever speaks the protocol.
#[derive(Debug)]
pub(super) struct KernelInitiator;

/// Kernel modules, and the programs that talk to them, with their packages.
const ISCSI_TOOLS: (&str, &str, &str) = ("iscsi_tcp", "iscsiadm", "open-iscsi");
const NVME_TOOLS: (&str, &str, &str) = ("nvme_tcp", "nvme", "nvme-cli");

fn missing_tool(place: &CommandLocation, (module, program, package): (&str, &str, &str)) -> Option<String> {
    if !place.has_program(program) {
        return Some(format!("{program}: missing on {}: apt install {package}", place.display_name()));
    }
    place.missing_kernel_module(module)
}

impl Initiator for KernelInitiator {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        if let Some(why) = fio::missing_fio(place) {
            return Some(why);
        }
        if place.run(&["id", "-u"]).ok().as_deref().map(str::trim) != Some("0") {
            return Some(format!("block devices of the kernel take root on {}", place.display_name()));
        }
        // One of the two protocols is enough; a step of the other says what it lacks.
        let (iscsi, nvme) = (missing_tool(place, ISCSI_TOOLS)?, missing_tool(place, NVME_TOOLS)?);
        Some(format!("{iscsi}; {nvme}"))
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        fio::unsupported_reason(job)
    }

    fn counting_window(&self) -> eval::record::CountingWindow {
        eval::record::CountingWindow::Same
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let kernel = place.read_file("/proc/sys/kernel/osrelease").ok()?;
        Some(format!("Linux {}, {}", kernel.trim(), fio::fio_version(place)?))
    }

    fn load_overhead(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        let mut attached = KernelSessions::new(task.place)?;
        let mut devices = Vec::new();
        let mut commands = Vec::new();
        let mut negotiated = Vec::new();
        for url in &task.urls {
            let volume = parse_volume_url(url)
                .ok_or_else(|| Failure::new(format!("{url}: not the URL of a volume")))?;
            let connections = task.connections.div_ceil(task.urls.len() as u32).max(1);
            let (device, command) = attached.attach(&volume, connections)?;
            // All volumes are of one target, and asked for alike.
            if devices.is_empty() {
                negotiated = attached.negotiated_parameters(&volume, &device);
            }
            devices.push(device);
            commands.push(command);
        }
        let mut figures = fio::run_fio(task, &devices, FioEngine::Aio, FioWorkers::Kernel, tell)?;
        figures.command = format!("{} && {}", commands.join(" && "), figures.command);
        figures.negotiated = negotiated;
        Ok(figures)
    }
}

/// How long a disk may take to appear.
const DISK_TIMEOUT: Duration = Duration::from_secs(15);

/// Prints the disk of a subsystem's namespace. With multipath the disk is of the subsystem, and the paths
/// to it are shown beside it without a device of their own.
const NVME_DISK_SCRIPT: &str = include_str!("nvme-disk.sh");

/// A volume's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelVolume {
    is_nvme: bool,
    host: String,
    port: String,
    name: String,
    /// Its logical unit or namespace.
    number: String,
}

fn parse_volume_url(url: &str) -> Option<KernelVolume> {
    let (scheme, rest) = url.split_once("://")?;
    let is_nvme = match scheme {
        "nvme+tcp" => true,
        "iscsi" => false,
        _ => return None,
    };
    let (address, rest) = rest.split_once('/')?;
    let default = if is_nvme { "4420" } else { "3260" };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, default));
    let (name, number) = rest.split('?').next()?.rsplit_once('/')?;
    let [host, port, name, number] = [host, port, name, number].map(str::to_owned);
    Some(KernelVolume { is_nvme, host, port, name, number })
}

/// What is attached: sessions over an interface of the run's own, and controllers of a host of the run's own.
/// Dropped, these are ended; whatever was there before is another's and stays as it is.
struct KernelSessions {
    scratch: Arc<RunDirectory>,
    place: CommandLocation,
    is_iscsi: bool,
    is_nvme: bool,
    /// How long a disk may take to appear.
    patience: Duration,
}

impl Drop for KernelSessions {
    fn drop(&mut self) {
        if self.is_nvme {
            kernel_sessions::disconnect_nvme(&self.place, &self.scratch.nvme_host_id());
        }
        if self.is_iscsi {
            kernel_sessions::end_iscsi_sessions(&self.place, &interface_name(&self.scratch));
        }
    }
}

/// The name of the run's own interface of open-iscsi.
fn interface_name(scratch: &RunDirectory) -> String {
    scratch.unique_name("bw-", "")
}

impl KernelSessions {
    fn new(place: &CommandLocation) -> Result<KernelSessions, Failure> {
        let scratch = RunDirectory::current()?;
        Ok(KernelSessions {
            scratch,
            place: place.clone(),
            is_iscsi: false,
            is_nvme: false,
            patience: DISK_TIMEOUT,
        })
    }

    /// Writes down what a later run is to undo, if this one is killed. Other machines are out of its reach.
    fn note_resource(&self, made: CreatedResource) -> Result<(), Failure> {
        if self.place.is_local() { self.scratch.note_resource(&made) } else { Ok(()) }
    }

    /// Attaches a volume; gives its device, and the command that a person would type.
    fn attach(&mut self, volume: &KernelVolume, queues: u32) -> Result<(String, String), Failure> {
        if volume.is_nvme { self.attach_nvme(volume, queues) } else { self.attach_iscsi(volume, queues) }
    }

    /// What the kernel tells of a volume's session or controller; empty: nothing.
    fn negotiated_parameters(&self, volume: &KernelVolume, device: &str) -> Vec<(String, String)> {
        if volume.is_nvme {
            let said = self.place.run(&["nvme", "id-ctrl", device, "-o", "json"]);
            return said.map(|said| negotiated_from_id_ctrl(&said)).unwrap_or_default();
        }
        let said = self.place.run(&["iscsiadm", "-m", "session", "-P", "3"]);
        said.map(|said| negotiated_from_open_iscsi(&said, &volume.name, &interface_name(&self.scratch)))
            .unwrap_or_default()
    }

    fn attach_iscsi(&mut self, volume: &KernelVolume, sessions: u32) -> Result<(String, String), Failure> {
        let place = &self.place;
        if let CommandLocation::Namespace(_) = place {
            let why = "open-iscsi works in the machine's own network namespace only: use loopback, or ssh";
            return Err(Failure::new(why));
        }
        if let Some(why) = missing_tool(place, ISCSI_TOOLS) {
            return Err(Failure::new(why));
        }
        place.run(&["modprobe", ISCSI_TOOLS.0])?;
        if sessions > 1 {
            return Err(Failure::new(format!("it has one session with each volume, not {sessions}")));
        }
        let interface = interface_name(&self.scratch);
        kernel_sessions::refuse_foreign_iscsi(place, &volume.name, &interface)?;
        if !self.is_iscsi {
            self.note_resource(CreatedResource::IscsiInterface(interface.clone()))?;
            self.is_iscsi = true;
            place.run(&["iscsiadm", "-m", "iface", "-I", &interface, "-o", "new"])?;
        }
        // A record of the run's own: that of the same target over the default interface is another's.
        let portal = format!("{}:{},1", volume.host, volume.port);
        let node = ["iscsiadm", "-m", "node", "-T", &volume.name, "-p", &portal, "-I", &interface];
        let login = [&node[..], &["--login"]].concat();
        if !kernel_sessions::has_iscsi_session(place, &interface, &volume.name)? {
            place.run(&[&node[..], &["-o", "new"]].concat())?;
            place.run(&[&node[..], &["-o", "update", "-n", "node.startup", "-v", "manual"]].concat())?;
            place.run(&login)?;
        }
        let device = poll_until_found(self.patience, || {
            let shown = place.run(&["iscsiadm", "-m", "session", "-P", "3"]).ok()?;
            find_iscsi_disk(&shown, &volume.name, &interface, &volume.number)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{}: no disk appears", volume.name)))?;
        Ok((device, login.join(" ")))
    }

    fn attach_nvme(&mut self, volume: &KernelVolume, queues: u32) -> Result<(String, String), Failure> {
        let place = &self.place;
        if let Some(why) = missing_tool(place, NVME_TOOLS) {
            return Err(Failure::new(why));
        }
        place.run(&["modprobe", NVME_TOOLS.0])?;
        let host = self.scratch.nvme_host_id();
        kernel_sessions::refuse_foreign_nvme(place, &volume.name, &host)?;
        if !self.is_nvme {
            self.note_resource(CreatedResource::NvmeHost(host.clone()))?;
            self.is_nvme = true;
        }
        let (queues, nqn) = (queues.to_string(), format!("nqn.2014-08.org.nvmexpress:uuid:{host}"));
        let (address, port, name) = (&volume.host, &volume.port, &volume.name);
        let to = ["nvme", "connect", "-t", "tcp", "-a", address, "-s", port, "-n", name, "-i", &queues];
        let connect = [&to[..], &["-q", &nqn, "-I", &host]].concat();
        if !kernel_sessions::has_nvme_controller(place, &host, name)? {
            place.run(&connect)?;
        }
        let device = poll_until_found(self.patience, || {
            let found = place.run(&["sh", "-c", NVME_DISK_SCRIPT, "sh", name, &volume.number]).ok()?;
            found.lines().next().map(str::to_owned)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{name}: no disk appears")))?;
        Ok((device, connect.join(" ")))
    }
}

fn poll_until_found(patience: Duration, found: impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = found() {
            return Some(found);
        }
        if Instant::now() > until || end_request::sleep_unless_ending(Duration::from_millis(100)).is_err() {
            return None;
        }
    }
}

/// The disk of a logical unit over an interface, in what `iscsiadm -m session -P 3` shows.
fn find_iscsi_disk(shown: &str, target: &str, interface: &str, lun: &str) -> Option<String> {
    let (mut is_target, mut is_ours, mut is_lun) = (false, false, false);
    for line in shown.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Target: ") {
            is_target = name.split(' ').next() == Some(target);
            (is_ours, is_lun) = (false, false);
        }
        if let Some(name) = line.strip_prefix("Iface Name: ") {
            (is_ours, is_lun) = (name == interface, false);
        }
        if let Some((_, number)) = line.split_once(" Lun: ") {
            is_lun = number == lun;
        }
        if is_target
            && is_ours
            && is_lun
            && let Some(disk) = line.strip_prefix("Attached scsi disk ")
        {
            let name = disk.split_ascii_whitespace().next()?;
            return disk.contains("State: running").then(|| format!("/dev/{name}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "iSCSI Transport Class version 2.0-870\nTarget: iqn.x:a (non-flash)\n\
        \tCurrent Portal: 127.0.0.1:3260,1\n\t\tIface Name: default\n\t\tscsi7 Channel 00 Id 0 Lun: 0\n\
        \t\t\tAttached scsi disk sdz\t\tState: running\n\
        \tCurrent Portal: 127.0.0.1:3260,1\n\t\tIface Name: bw-1\n\t\tscsi2 Channel 00 Id 0 Lun: 0\n\
        \t\t\tAttached scsi disk sda\t\tState: running\n\
        Target: iqn.x:b (non-flash)\n\t\tIface Name: bw-1\n\t\tscsi3 Channel 00 Id 0 Lun: 0\n\
        \t\tscsi3 Channel 00 Id 0 Lun: 1\n\t\t\tAttached scsi disk sdb\t\tState: running\n";

    #[test]
    fn a_disk_is_found_by_its_target_and_lun() {
        assert_eq!(find_iscsi_disk(SHOWN, "iqn.x:a", "bw-1", "0").unwrap(), "/dev/sda");
        assert_eq!(find_iscsi_disk(SHOWN, "iqn.x:b", "bw-1", "1").unwrap(), "/dev/sdb");
        assert_eq!(find_iscsi_disk(SHOWN, "iqn.x:b", "bw-1", "0"), None, "it has no disk yet");
        assert_eq!(find_iscsi_disk(SHOWN, "iqn.x:c", "bw-1", "0"), None);
    }

    /// A machine that has sessions with a target and a subsystem, records of these, and others that it had.
    fn machine(dir: &std::path::Path) -> CommandLocation {
        let script = dir.join("ssh");
        std::fs::write(&script, include_str!("fake-machine.sh")).unwrap();
        let ssh = ["sh".to_owned(), script.display().to_string(), dir.display().to_string()].to_vec();
        let place =
            CommandLocation::Ssh(crate::place::SshMachine::new(ssh, "storage", std::path::Path::new("none")));
        place.run(&["true"]).unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        put("iface/default", "tcp");
        put("node/iqn.x:used,default", "automatic");
        put("node/iqn.x:free,default", "automatic");
        put("sys/class/iscsi_session/session1/targetname", "iqn.x:used");
        put("sys/class/iscsi_session/session1/ifacename", "default");
        put("sys/class/nvme/nvme0/subsysnqn", "nqn.x:used");
        put("sys/class/nvme/nvme0/hostid", "0b0d4f6e-0000-4000-8000-000000000001");
        place
    }

    /// All files of a machine, with what they hold.
    fn state(dir: &std::path::Path) -> String {
        let dirs = ["iface", "node", "sys"].map(|name| dir.join(name).display().to_string());
        let find = "find \"$@\" -type f -exec grep -H . {} + | sort";
        CommandLocation::Here.run(&["sh", "-c", find, "sh", &dirs[0], &dirs[1], &dirs[2]]).unwrap()
    }

    fn volume(url: &str) -> KernelVolume {
        parse_volume_url(url).unwrap()
    }

    #[test]
    fn a_target_that_is_in_use_here_is_never_touched() {
        let dir = tempfile::tempdir().unwrap();
        let place = machine(dir.path());
        let before = state(dir.path());
        for url in ["iscsi://10.0.0.1/iqn.x:used/0", "nvme+tcp://10.0.0.1/nqn.x:used/1"] {
            let mut attached = KernelSessions::new(&place).unwrap();
            let why = attached.attach(&volume(url), 1).unwrap_err().to_string();
            assert!(why.contains("in use on storage already"), "{why}");
            drop(attached);
            assert_eq!(state(dir.path()), before);
        }
    }

    #[test]
    fn records_sessions_and_controllers_that_were_there_are_never_replaced_or_ended() {
        let dir = tempfile::tempdir().unwrap();
        let place = machine(dir.path());
        let before = state(dir.path());
        let mut attached = KernelSessions::new(&place).unwrap();
        let (device, _) = attached.attach(&volume("iscsi://10.0.0.1/iqn.x:free/0"), 1).unwrap();
        assert_eq!(device, "/dev/sda");
        // Of one more volume of the same target the session is there.
        attached.attach(&volume("iscsi://10.0.0.1/iqn.x:free/0"), 1).unwrap();
        // There is no disk of this kind here; what was connected until then is taken down all the same.
        attached.patience = Duration::ZERO;
        attached.attach(&volume("nvme+tcp://10.0.0.1/nqn.x:free/1"), 1).unwrap_err();
        let during = state(dir.path());
        assert!(before.lines().all(|line| during.contains(line)), "{before}\n{during}");
        let host = attached.scratch.nvme_host_id();
        assert!(
            kernel_sessions::may_have_nvme_controllers(&place, &host)
                && kernel_sessions::may_have_iscsi_sessions(&place, &interface_name(&attached.scratch))
        );
        drop(attached);
        assert_eq!(state(dir.path()), before);
    }

    #[test]
    fn a_url_has_its_parts() {
        let volume = parse_volume_url("nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:v0/1").unwrap();
        assert_eq!((volume.is_nvme, volume.port.as_str(), volume.number.as_str()), (true, "4420", "1"));
        assert_eq!(volume.name, "nqn.2026-11.io.blockwire:v0");
        let volume = parse_volume_url("iscsi://h:3261/iqn.x:v/1?commands=9").unwrap();
        assert_eq!((volume.host.as_str(), volume.port.as_str(), volume.number.as_str()), ("h", "3261", "1"));
        assert_eq!(parse_volume_url("/dev/sda"), None);
    }
}
