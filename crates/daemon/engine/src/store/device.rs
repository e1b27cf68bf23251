//! Opens a block device, and finds the system's identifiers for it.

use std::{
    io::{Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{
    CreatedFile, FindHolder, Store,
    file::{claim_file, clear_nonblocking, open_error, open_options},
    handed,
    open_error::OpenErrorReason,
};
use crate::state::file_identity::FileIdentity;
use config::plan::Volume;
use process::log::area;

pub(super) fn open_device(
    volume: &Volume,
    path: &Path,
    holder: FindHolder<'_>,
) -> Result<Store, OpenErrorReason> {
    let spec = &volume.spec;
    let failed = |what| move |why| OpenErrorReason::Io(what, path.to_owned(), why);
    let meta = std::fs::metadata(path).map_err(failed("look at"))?;
    if !meta.file_type().is_block_device() {
        return Err(OpenErrorReason::NotADevice(path.to_owned()));
    }
    let handed = handed::at(path, spec.read_only, spec.direct);
    let is_handed = handed.is_some();
    let mut file = match handed {
        // It has the device for itself: to open it again would be refused.
        Some(file) => Ok(file),
        None => open_options(volume).open(path).and_then(clear_nonblocking),
    }
    .map_err(|why| open_error(path, why))?;
    // The open device is judged, not what its name led to before.
    let meta = file.metadata().map_err(failed("look at"))?;
    if !meta.file_type().is_block_device() {
        return Err(OpenErrorReason::NotADevice(path.to_owned()));
    }
    let number = meta.rdev();
    let sys = SysfsDevice::of(number);
    let key = device_identity(number);
    if let (FileIdentity::Numbered { .. }, None) = (&key, spec.uuid) {
        tracing::warn!(
            target: area::VOLUME,
            volume = %volume.name, device = %path.display(),
            "the system reports no serial number for the device: its identity lasts only until it is set up again \
             or the machine reboots; set a permanent one with uuid="
        );
    }
    claim_file(path, &file, &key, spec.read_only, holder)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(failed("measure"))?;
    let bytes = bytes - bytes % u64::from(spec.block);
    if bytes == 0 {
        return Err(OpenErrorReason::Empty(path.to_owned()));
    }
    let logical = sys.queue_limit("logical_block_size").unwrap_or(512);
    if logical > spec.block {
        return Err(OpenErrorReason::BlockTooSmall(path.to_owned(), logical));
    }
    let physical = sys.queue_limit("physical_block_size").unwrap_or(logical).max(spec.block);
    Ok(Store {
        volume: volume.clone(),
        uuid: Uuid::nil(),
        bytes,
        physical: spec.physical.unwrap_or(physical),
        memory_align: logical,
        offset_align: logical,
        // The kernel zeroes what a device cannot discard, and the operator has asked for it.
        punch: !spec.read_only,
        file: Some(file),
        memory: None,
        image: None,
        slot: None,
        export: None,
        key: Some(key),
        remote: None,
        legs: Vec::new(),
        made: CreatedFile::Nothing,
        in_doubt: false,
        is_handed,
    })
}

/// What tells a block device from every other one: what it is called for good, or its number and when it was set up.
pub fn device_identity(number: u64) -> FileIdentity {
    let sys = SysfsDevice::of(number);
    match sys.wwid() {
        Some(wwid) => FileIdentity::Device { wwid },
        None => FileIdentity::Numbered { number, set_up: sys.boot_and_sequence() },
    }
}

/// What sysfs says about a block device.
struct SysfsDevice {
    directory: PathBuf,
}

impl SysfsDevice {
    fn of(number: u64) -> Self {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        SysfsDevice { directory: format!("/sys/dev/block/{major}:{minor}").into() }
    }

    fn read_attribute(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.directory.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A name that stays with the device over reboots. A partition has its disk's and its number.
    fn wwid(&self) -> Option<String> {
        if let Some(partition) = self.read_attribute("partition") {
            let disk = SysfsDevice { directory: self.directory.join("..") };
            return Some(format!("{} partition {partition}", disk.wwid()?));
        }
        ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"]
            .iter()
            .find_map(|name| self.read_attribute(name))
    }

    /// Which boot this is, and which of the disks since; no other disk has that, nor will have.
    fn boot_and_sequence(&self) -> Option<String> {
        let number = self.read_attribute("diskseq").or_else(|| self.read_attribute("../diskseq"))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(format!("{} {number}", boot.trim()))
    }

    fn queue_limit(&self, name: &str) -> Option<u32> {
        let own = self
            .read_attribute(&format!("queue/{name}"))
            .or_else(|| self.read_attribute(&format!("../queue/{name}")));
        own?.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two())
    }
}
