//! A volume as a local block device, with a file system.
//!
//! Invariant: devices, mounts and directories that were created here are removed when their owner is dropped,
//! in the order of their dependencies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Failure;
use crate::attach::{AttachMethod, AttachSpec, AttachedVolume};
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};

/// How long a stripe may take to serve.
const SERVE_TIMEOUT: Duration = Duration::from_secs(60);

/// A volume that is a block device here, by a loop device.
#[derive(Debug)]
pub(crate) struct LoopDisk {
    attached: AttachedVolume,
    device: PathBuf,
}

impl LoopDisk {
    /// The kind of its mount, as the kernel's table of mounts has it.
    pub(crate) const MOUNT_TYPE: &str = "fuse.blockwire";

    /// Attaches the volume of a URL. `name` tells it from others in `dir`; `mount_point`: for its file.
    pub(crate) fn start(
        binary: &Path,
        place: &CommandLocation,
        cores: &[usize],
        url: &str,
        (dir, at): (&Path, &Path),
        name: &str,
    ) -> Result<LoopDisk, Failure> {
        let wanted = AttachSpec { binary, place, cores, url, way: AttachMethod::Fuse, name, at, dir };
        let attached = AttachedVolume::start(&wanted)?;
        let device = attached.output_after("device").map(PathBuf::from).ok_or_else(|| {
            let why = attached.output_after("note").unwrap_or("it does not say why");
            Failure::new(format!("{url}: cannot be attached as a block device here: {why}"))
        })?;
        Ok(LoopDisk { attached, device })
    }

    /// The block device.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    /// The process that serves it.
    pub(crate) fn pid(&self) -> u32 {
        self.attached.pid()
    }

    /// What a person would type.
    pub(crate) fn command_line(&self) -> &str {
        self.attached.command_line()
    }

    /// What the kernel has counted of the device since it was made.
    pub(crate) fn io_counts(&self) -> Result<DeviceIoCounts, Failure> {
        let name = self.device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = format!("/sys/block/{name}/stat");
        let text = CommandLocation::Here.read_file(&path)?;
        DeviceIoCounts::parse(&text)
            .ok_or_else(|| Failure::new(format!("{path} is not as block/stat.rst has it")))
    }
}

/// Volumes as one, in stripes (RAID 0), by a target of ours on the initiator's machine.
#[derive(Debug)]
pub(crate) struct StripeTarget {
    process: Process,
    url: String,
}

impl StripeTarget {
    /// Stripes over these volumes.
    pub(crate) fn start(
        binary: &Path,
        place: &CommandLocation,
        cores: &[usize],
        urls: &[String],
        dir: &Path,
        name: &str,
    ) -> Result<StripeTarget, Failure> {
        // A leg's own plus signs and commas are not those of the list.
        let escaped = |url: &String| url.replace('+', "\\+").replace(',', "\\,");
        let legs: Vec<String> = urls.iter().map(escaped).collect();
        // Of legs without a UUID, as tgt's, it has none of its own; it is one of a day anyway.
        let mark = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let uuid =
            format!("{:08x}-0000-4000-8000-{:012x}", std::process::id(), mark.as_nanos() & 0xffff_ffff_ffff);
        let spec = format!("raid=stripe:{},uuid={uuid}", legs.join("+"));
        let path = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
        let (state, control, binary) = (path("state"), path("sock"), binary.display().to_string());
        let words = [
            &binary,
            "serve",
            "--iscsi",
            "127.0.0.1:0",
            "--volume",
            &spec,
            "--state",
            &state,
            "--control",
            &control,
        ];
        let words = words.map(str::to_owned).to_vec();
        let mut process = Process::start(ProcessSpec { name, place, cores, words, dir })?;
        let at = process
            .wait_for_line(SERVE_TIMEOUT, |line| line.strip_prefix("listening iscsi ").map(str::to_owned))?;
        process.wait_for_line(SERVE_TIMEOUT, |line| (line == "ready").then_some(()))?;
        Ok(StripeTarget { process, url: format!("iscsi://{at}/iqn.2026-11.io.blockwire:raid/0") })
    }

    /// The volume that they are together.
    pub(crate) fn url(&self) -> &String {
        &self.url
    }

    /// The process that serves it.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What a person would type.
    pub(crate) fn command_line(&self) -> &str {
        self.process.command_line()
    }
}

/// I/Os of a block device, as the kernel counts them (Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceIoCounts {
    /// Reads and writes that ended.
    pub(crate) ios: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Milliseconds that they took, summed up.
    pub(crate) wait_ms: u64,
}

impl DeviceIoCounts {
    fn parse(text: &str) -> Option<DeviceIoCounts> {
        let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let [reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, ..] = fields[..] else {
            return None;
        };
        let bytes = (read_sectors + written_sectors) * 512;
        Some(DeviceIoCounts { ios: reads + writes, bytes, wait_ms: read_ms + write_ms })
    }

    /// What came since an earlier count.
    pub(crate) fn since(self, earlier: DeviceIoCounts) -> DeviceIoCounts {
        DeviceIoCounts {
            ios: self.ios.saturating_sub(earlier.ios),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            wait_ms: self.wait_ms.saturating_sub(earlier.wait_ms),
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: DeviceIoCounts) -> DeviceIoCounts {
        DeviceIoCounts {
            ios: self.ios + other.ios,
            bytes: self.bytes + other.bytes,
            wait_ms: self.wait_ms + other.wait_ms,
        }
    }
}

/// A fresh ext4 that is mounted.
#[derive(Debug)]
pub(crate) struct MountedExt4 {
    at: PathBuf,
}

impl MountedExt4 {
    /// Its kind, as the kernel's table of mounts has it.
    pub(crate) const MOUNT_TYPE: &str = "ext4";

    /// Makes a file system on a device, and mounts it at a directory that is made for it.
    pub(crate) fn make(device: &Path, at: &Path) -> Result<MountedExt4, Failure> {
        let (device, mount) = (device.display().to_string(), at.display().to_string());
        std::fs::create_dir_all(at).map_err(|why| Failure::new(format!("{mount}: {why}")))?;
        CommandLocation::Here.run(&["mkfs.ext4", "-q", "-F", &device])?;
        CommandLocation::Here.run(&[
            "mount",
            "-t",
            MountedExt4::MOUNT_TYPE,
            "-o",
            "errors=remount-ro",
            &device,
            &mount,
        ])?;
        Ok(MountedExt4 { at: at.to_owned() })
    }

    /// Where it is.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.at
    }
}

impl Drop for MountedExt4 {
    fn drop(&mut self) {
        let at = self.at.display().to_string();
        if CommandLocation::Here.run(&["umount", &at]).is_err() {
            let _ = CommandLocation::Here.run(&["umount", "-l", &at]);
        }
        let _ = std::fs::remove_dir(&self.at);
    }
}

/// What is missing for devices and file systems; `None`: nothing.
pub(crate) fn missing_prerequisite() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting takes root: run it as root".to_owned());
    }
    let lacks = [("mkfs.ext4", "e2fsprogs"), ("mount", "mount"), ("setpriv", "util-linux")];
    if let Some((program, package)) =
        lacks.iter().find(|(program, _)| !CommandLocation::Here.has_program(program))
    {
        return Some(format!("{program} is missing: apt install {package}"));
    }
    let found = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    found.map(|path| format!("{path} is missing: load the kernel's module (modprobe fuse loop)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_the_kernel_writes_them() {
        let text = "      10        2      800       30       5        1      400       70        0  90 100 0 0 0 0 0 0\n";
        let counted = DeviceIoCounts::parse(text).unwrap();
        assert_eq!(counted, DeviceIoCounts { ios: 15, bytes: 1200 * 512, wait_ms: 100 });
        assert_eq!(DeviceIoCounts::parse("1 2 3"), None);
        let later = DeviceIoCounts { ios: 20, bytes: 1300 * 512, wait_ms: 101 };
        assert_eq!(later.since(counted), DeviceIoCounts { ios: 5, bytes: 100 * 512, wait_ms: 1 });
        assert_eq!(later.since(counted).plus(counted), later);
    }
}
