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

use super::fio::{self, Engine, Workers};
use super::negotiated::{of_id_ctrl, of_open_iscsi};
use super::{Event, Initiator, LoadResult, Task};
use crate::Failure;
use crate::ending;
use crate::made::Made;
use crate::place::Place;
use crate::scratch::Scratch;
use crate::sessions;

/// open-iscsi or nvme-cli, whichever speaks the protocol.
#[derive(Debug)]
pub(super) struct Kernel;

/// Kernel modules, and the programs that talk to them, with their packages.
const ISCSI: (&str, &str, &str) = ("iscsi_tcp", "iscsiadm", "open-iscsi");
const NVME: (&str, &str, &str) = ("nvme_tcp", "nvme", "nvme-cli");

fn lacking(place: &Place, (module, program, package): (&str, &str, &str)) -> Option<String> {
    if !place.has(program) {
        return Some(format!("{program}: missing on {}: apt install {package}", place.name()));
    }
    place.module(module)
}

impl Initiator for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        if let Some(why) = fio::missing(place) {
            return Some(why);
        }
        if place.run(&["id", "-u"]).ok().as_deref().map(str::trim) != Some("0") {
            return Some(format!("block devices of the kernel take root on {}", place.name()));
        }
        // One of the two protocols is enough; a step of the other says what it lacks.
        let (iscsi, nvme) = (lacking(place, ISCSI)?, lacking(place, NVME)?);
        Some(format!("{iscsi}; {nvme}"))
    }

    fn lacks(&self, job: &Job) -> Option<String> {
        fio::lacks(job)
    }

    fn window(&self) -> eval::record::Window {
        eval::record::Window::Same
    }

    fn version(&self, place: &Place) -> Option<String> {
        let kernel = place.read("/proc/sys/kernel/osrelease").ok()?;
        Some(format!("Linux {}, {}", kernel.trim(), fio::version(place)?))
    }

    fn around(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn run(&self, task: &Task<'_>, tell: &dyn Fn(Event)) -> Result<LoadResult, Failure> {
        let mut attached = Attached::new(task.place)?;
        let mut devices = Vec::new();
        let mut commands = Vec::new();
        let mut negotiated = Vec::new();
        for url in &task.urls {
            let volume = parse(url).ok_or_else(|| Failure::new(format!("{url}: not the URL of a volume")))?;
            let connections = task.connections.div_ceil(task.urls.len() as u32).max(1);
            let (device, command) = attached.attach(&volume, connections)?;
            // All volumes are of one target, and asked for alike.
            if devices.is_empty() {
                negotiated = attached.negotiated(&volume, &device);
            }
            devices.push(device);
            commands.push(command);
        }
        let mut figures = fio::load(task, &devices, Engine::Aio, Workers::Kernel, tell)?;
        figures.command = format!("{} && {}", commands.join(" && "), figures.command);
        figures.negotiated = negotiated;
        Ok(figures)
    }
}

/// How long a disk may take to appear.
const PATIENCE: Duration = Duration::from_secs(15);

/// Prints the disk of a subsystem's namespace. With multipath the disk is of the subsystem, and the paths
/// to it are shown beside it without a device of their own.
const NVME_DISK: &str = include_str!("nvme-disk.sh");

/// A volume's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    is_nvme: bool,
    host: String,
    port: String,
    name: String,
    /// Its logical unit or namespace.
    number: String,
}

fn parse(url: &str) -> Option<Volume> {
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
    Some(Volume { is_nvme, host, port, name, number })
}

/// What is attached: sessions over an interface of the run's own, and controllers of a host of the run's own.
/// Dropped, these are ended; whatever was there before is another's and stays as it is.
struct Attached {
    scratch: Arc<Scratch>,
    place: Place,
    is_iscsi: bool,
    is_nvme: bool,
    /// How long a disk may take to appear.
    patience: Duration,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_nvme {
            sessions::disconnect_nvme(&self.place, &self.scratch.host_id());
        }
        if self.is_iscsi {
            sessions::end_iscsi_sessions(&self.place, &interface(&self.scratch));
        }
    }
}

/// The name of the run's own interface of open-iscsi.
fn interface(scratch: &Scratch) -> String {
    scratch.name("bw-", "")
}

impl Attached {
    fn new(place: &Place) -> Result<Attached, Failure> {
        let scratch = Scratch::current()?;
        Ok(Attached { scratch, place: place.clone(), is_iscsi: false, is_nvme: false, patience: PATIENCE })
    }

    /// Writes down what a later run is to undo, if this one is killed. Other machines are out of its reach.
    fn note(&self, made: Made) -> Result<(), Failure> {
        if self.place.is_local() { self.scratch.note(&made) } else { Ok(()) }
    }

    /// Attaches a volume; gives its device, and the command that a person would type.
    fn attach(&mut self, volume: &Volume, queues: u32) -> Result<(String, String), Failure> {
        if volume.is_nvme { self.nvme(volume, queues) } else { self.iscsi(volume, queues) }
    }

    /// What the kernel tells of a volume's session or controller; empty: nothing.
    fn negotiated(&self, volume: &Volume, device: &str) -> Vec<(String, String)> {
        if volume.is_nvme {
            let said = self.place.run(&["nvme", "id-ctrl", device, "-o", "json"]);
            return said.map(|said| of_id_ctrl(&said)).unwrap_or_default();
        }
        let said = self.place.run(&["iscsiadm", "-m", "session", "-P", "3"]);
        said.map(|said| of_open_iscsi(&said, &volume.name, &interface(&self.scratch))).unwrap_or_default()
    }

    fn iscsi(&mut self, volume: &Volume, sessions: u32) -> Result<(String, String), Failure> {
        let place = &self.place;
        if let Place::Namespace(_) = place {
            let why = "open-iscsi works in the machine's own network namespace only: use loopback, or ssh";
            return Err(Failure::new(why));
        }
        if let Some(why) = lacking(place, ISCSI) {
            return Err(Failure::new(why));
        }
        place.run(&["modprobe", ISCSI.0])?;
        if sessions > 1 {
            return Err(Failure::new(format!("it has one session with each volume, not {sessions}")));
        }
        let interface = interface(&self.scratch);
        sessions::refuse_iscsi(place, &volume.name, &interface)?;
        if !self.is_iscsi {
            self.note(Made::IscsiInterface(interface.clone()))?;
            self.is_iscsi = true;
            place.run(&["iscsiadm", "-m", "iface", "-I", &interface, "-o", "new"])?;
        }
        // A record of the run's own: that of the same target over the default interface is another's.
        let portal = format!("{}:{},1", volume.host, volume.port);
        let node = ["iscsiadm", "-m", "node", "-T", &volume.name, "-p", &portal, "-I", &interface];
        let login = [&node[..], &["--login"]].concat();
        if !sessions::has_iscsi_session(place, &interface, &volume.name)? {
            place.run(&[&node[..], &["-o", "new"]].concat())?;
            place.run(&[&node[..], &["-o", "update", "-n", "node.startup", "-v", "manual"]].concat())?;
            place.run(&login)?;
        }
        let device = wait_for(self.patience, || {
            let shown = place.run(&["iscsiadm", "-m", "session", "-P", "3"]).ok()?;
            iscsi_disk(&shown, &volume.name, &interface, &volume.number)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{}: no disk appears", volume.name)))?;
        Ok((device, login.join(" ")))
    }

    fn nvme(&mut self, volume: &Volume, queues: u32) -> Result<(String, String), Failure> {
        let place = &self.place;
        if let Some(why) = lacking(place, NVME) {
            return Err(Failure::new(why));
        }
        place.run(&["modprobe", NVME.0])?;
        let host = self.scratch.host_id();
        sessions::refuse_nvme(place, &volume.name, &host)?;
        if !self.is_nvme {
            self.note(Made::NvmeHost(host.clone()))?;
            self.is_nvme = true;
        }
        let (queues, nqn) = (queues.to_string(), format!("nqn.2014-08.org.nvmexpress:uuid:{host}"));
        let (address, port, name) = (&volume.host, &volume.port, &volume.name);
        let to = ["nvme", "connect", "-t", "tcp", "-a", address, "-s", port, "-n", name, "-i", &queues];
        let connect = [&to[..], &["-q", &nqn, "-I", &host]].concat();
        if !sessions::has_nvme_controller(place, &host, name)? {
            place.run(&connect)?;
        }
        let device = wait_for(self.patience, || {
            let found = place.run(&["sh", "-c", NVME_DISK, "sh", name, &volume.number]).ok()?;
            found.lines().next().map(str::to_owned)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{name}: no disk appears")))?;
        Ok((device, connect.join(" ")))
    }
}

fn wait_for(patience: Duration, found: impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = found() {
            return Some(found);
        }
        if Instant::now() > until || ending::pause(Duration::from_millis(100)).is_err() {
            return None;
        }
    }
}

/// The disk of a logical unit over an interface, in what `iscsiadm -m session -P 3` shows.
fn iscsi_disk(shown: &str, target: &str, interface: &str, lun: &str) -> Option<String> {
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
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:a", "bw-1", "0").unwrap(), "/dev/sda");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:b", "bw-1", "1").unwrap(), "/dev/sdb");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:b", "bw-1", "0"), None, "it has no disk yet");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:c", "bw-1", "0"), None);
    }

    /// A machine that has sessions with a target and a subsystem, records of these, and others that it had.
    fn machine(dir: &std::path::Path) -> Place {
        let script = dir.join("ssh");
        std::fs::write(&script, include_str!("fake-machine.sh")).unwrap();
        let ssh = ["sh".to_owned(), script.display().to_string(), dir.display().to_string()].to_vec();
        let place = Place::Ssh(crate::place::Machine::new(ssh, "storage", std::path::Path::new("none")));
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
        Place::Here.run(&["sh", "-c", find, "sh", &dirs[0], &dirs[1], &dirs[2]]).unwrap()
    }

    fn volume(url: &str) -> Volume {
        parse(url).unwrap()
    }

    #[test]
    fn a_target_that_is_in_use_here_is_never_touched() {
        let dir = tempfile::tempdir().unwrap();
        let place = machine(dir.path());
        let before = state(dir.path());
        for url in ["iscsi://10.0.0.1/iqn.x:used/0", "nvme+tcp://10.0.0.1/nqn.x:used/1"] {
            let mut attached = Attached::new(&place).unwrap();
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
        let mut attached = Attached::new(&place).unwrap();
        let (device, _) = attached.attach(&volume("iscsi://10.0.0.1/iqn.x:free/0"), 1).unwrap();
        assert_eq!(device, "/dev/sda");
        // Of one more volume of the same target the session is there.
        attached.attach(&volume("iscsi://10.0.0.1/iqn.x:free/0"), 1).unwrap();
        // There is no disk of this kind here; what was connected until then is taken down all the same.
        attached.patience = Duration::ZERO;
        attached.attach(&volume("nvme+tcp://10.0.0.1/nqn.x:free/1"), 1).unwrap_err();
        let during = state(dir.path());
        assert!(before.lines().all(|line| during.contains(line)), "{before}\n{during}");
        let host = attached.scratch.host_id();
        assert!(
            sessions::may_have_nvme_controllers(&place, &host)
                && sessions::may_have_iscsi_sessions(&place, &interface(&attached.scratch))
        );
        drop(attached);
        assert_eq!(state(dir.path()), before);
    }

    #[test]
    fn a_url_has_its_parts() {
        let volume = parse("nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:v0/1").unwrap();
        assert_eq!((volume.is_nvme, volume.port.as_str(), volume.number.as_str()), (true, "4420", "1"));
        assert_eq!(volume.name, "nqn.2026-11.io.blockwire:v0");
        let volume = parse("iscsi://h:3261/iqn.x:v/1?commands=9").unwrap();
        assert_eq!((volume.host.as_str(), volume.port.as_str(), volume.number.as_str()), ("h", "3261", "1"));
        assert_eq!(parse("/dev/sda"), None);
    }
}
