//! Linux's own initiators: open-iscsi and nvme-cli make block devices, and fio uses them.
//!
//! They work in the kernel, so processor time is that of the initiator's cores, whoever used it. open-iscsi
//! reaches what the machine's own network reaches, not what a network namespace does. Sessions are ended
//! and forgotten when the load is over.

use std::time::{Duration, Instant};

use eval::fio::Job;
use eval::preset::Protocol;

use super::fio::{self, Engine, Workers};
use super::{Event, Figures, Initiator, Task};
use crate::Failure;
use crate::ending;
use crate::place::Place;

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

    fn version(&self, place: &Place) -> Option<String> {
        let kernel = place.read("/proc/sys/kernel/osrelease").ok()?;
        Some(format!("Linux {}, {}", kernel.trim(), fio::version(place)?))
    }

    fn around(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn run(&self, task: &Task<'_>, tell: &dyn Fn(Event)) -> Result<Figures, Failure> {
        let mut attached = Attached { place: task.place.clone(), undo: Vec::new() };
        let mut devices = Vec::new();
        let mut commands = Vec::new();
        for url in &task.urls {
            let volume =
                parse(url).ok_or_else(|| Failure::new(format!("{url}: this is no URL of a volume")))?;
            let connections = task.connections.div_ceil(task.urls.len() as u32).max(1);
            let (device, command) = attached.attach(task.place, &volume, connections)?;
            devices.push(device);
            commands.push(command);
        }
        let mut figures = fio::load(task, &devices, Engine::Aio, Workers::Kernel, tell)?;
        figures.command = format!("{} && {}", commands.join(" && "), figures.command);
        Ok(figures)
    }
}

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

/// What was attached, and the commands that end it.
struct Attached {
    place: Place,
    undo: Vec<Vec<String>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        for words in self.undo.iter().rev() {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = self.place.run(&words);
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Attached {
    /// Attaches a volume; gives its device, and the command that a person would type.
    fn attach(&mut self, place: &Place, volume: &Volume, queues: u32) -> Result<(String, String), Failure> {
        if volume.is_nvme { self.nvme(place, volume, queues) } else { self.iscsi(place, volume, queues) }
    }

    fn iscsi(&mut self, place: &Place, volume: &Volume, sessions: u32) -> Result<(String, String), Failure> {
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
        let portal = format!("{}:{},1", volume.host, volume.port);
        let node = ["iscsiadm", "-m", "node", "-T", &volume.name, "-p", &portal];
        place.run(&[&node[..], &["-o", "new"]].concat())?;
        self.undo.push(owned(&[&node[..], &["-o", "delete"]].concat()));
        place.run(&[&node[..], &["-o", "update", "-n", "node.startup", "-v", "manual"]].concat())?;
        let login = [&node[..], &["--login"]].concat();
        place.run(&login)?;
        self.undo.push(owned(&[&node[..], &["--logout"]].concat()));
        let device = wait_for(|| {
            let shown = place.run(&["iscsiadm", "-m", "session", "-P", "3"]).ok()?;
            iscsi_disk(&shown, &volume.name, &volume.number)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{}: no disk appears", volume.name)))?;
        Ok((device, login.join(" ")))
    }

    fn nvme(&mut self, place: &Place, volume: &Volume, queues: u32) -> Result<(String, String), Failure> {
        if let Some(why) = lacking(place, NVME) {
            return Err(Failure::new(why));
        }
        place.run(&["modprobe", NVME.0])?;
        let queues = queues.to_string();
        let connect = [
            "nvme",
            "connect",
            "-t",
            "tcp",
            "-a",
            &volume.host,
            "-s",
            &volume.port,
            "-n",
            &volume.name,
            "-i",
            &queues,
        ];
        place.run(&connect)?;
        self.undo.push(owned(&["nvme", "disconnect", "-n", &volume.name]));
        let device = wait_for(|| {
            let found = place.run(&["sh", "-c", NVME_DISK, "sh", &volume.name, &volume.number]).ok()?;
            found.lines().next().map(str::to_owned)
        });
        let device = device.ok_or_else(|| Failure::new(format!("{}: no disk appears", volume.name)))?;
        Ok((device, connect.join(" ")))
    }
}

fn wait_for(found: impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + Duration::from_secs(15);
    loop {
        if let Some(found) = found() {
            return Some(found);
        }
        if Instant::now() > until || ending::pause(Duration::from_millis(100)).is_err() {
            return None;
        }
    }
}

/// The disk of a logical unit, in what `iscsiadm -m session -P 3` shows.
fn iscsi_disk(shown: &str, target: &str, lun: &str) -> Option<String> {
    let (mut is_target, mut is_lun) = (false, false);
    for line in shown.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Target: ") {
            is_target = name.split(' ').next() == Some(target);
        }
        if let Some((_, number)) = line.split_once(" Lun: ") {
            is_lun = number == lun;
        }
        if is_target
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
        \tCurrent Portal: 127.0.0.1:3260,1\n\t\tscsi2 Channel 00 Id 0 Lun: 0\n\
        \t\t\tAttached scsi disk sda\t\tState: running\n\
        Target: iqn.x:b (non-flash)\n\t\tscsi3 Channel 00 Id 0 Lun: 0\n\
        \t\tscsi3 Channel 00 Id 0 Lun: 1\n\t\t\tAttached scsi disk sdb\t\tState: running\n";

    #[test]
    fn a_disk_is_found_by_its_target_and_lun() {
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:a", "0").unwrap(), "/dev/sda");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:b", "1").unwrap(), "/dev/sdb");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:b", "0"), None, "it has no disk yet");
        assert_eq!(iscsi_disk(SHOWN, "iqn.x:c", "0"), None);
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
