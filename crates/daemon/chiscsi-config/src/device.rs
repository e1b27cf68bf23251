//! `TargetDevice=PATH|NAME[,FILE|BLK|MEM][,NULLRW][,SYNC][,RO][,size=xMB][,ID=..][,WWN=..][,SN=..]`

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{error::ValueError, value};
use config::spec::{Spec, VolumeSource};

/// Size of a RAM disk that names none: 16 MB.
const RAM_DISK_BYTES_DEFAULT: u64 = 16 << 20;
/// Largest size, MB: 64 TiB.
const SIZE_MB_MAX: u64 = 64 << 20;

/// How a device is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// By the file system's layer of the kernel: a file, or a block device.
    File,
    /// By its block layer: a block device.
    Block,
    /// Memory.
    Memory,
}

/// A device of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetDevice {
    /// Its path; a RAM disk's name.
    pub name: String,
    /// How it is accessed.
    pub mode: AccessMode,
    /// Nothing is read or written.
    pub is_null: bool,
    /// Every write is stable before it is answered.
    pub is_sync: bool,
    /// Nobody writes.
    pub is_read_only: bool,
    /// Its size in bytes, where it is said.
    pub size: Option<u64>,
    /// `ID=`, `WWN=` and `SN=`.
    pub names: [Option<String>; 3],
}

/// The options with a value, by their place in [`TargetDevice::names`], and the longest value of each.
const VALUED_OPTIONS: [(&str, usize); 3] = [("ID", 24), ("WWN", 16), ("SN", 16)];
const OPTIONS: [&str; 10] = ["FILE", "BLK", "MEM", "NULLRW", "SYNC", "RO", "size", "ID", "WWN", "SN"];

/// Parses the value of `TargetDevice=`.
pub fn parse_target_device(text: &str) -> Result<TargetDevice, ValueError> {
    let mut parts = value::split_parts(text)?.into_iter();
    let name = parts.next().unwrap_or_default().to_owned();
    let mut device = TargetDevice {
        name,
        mode: AccessMode::File,
        is_null: false,
        is_sync: false,
        is_read_only: false,
        size: None,
        names: [None, None, None],
    };
    let mut mode = None;
    for part in parts {
        if let Some((key, value)) = part.split_once('=') {
            set_valued_option(&mut device, key.trim(), value.trim())?;
            continue;
        }
        match part {
            "FILE" | "BLK" | "MEM" if mode.is_some() => return Err("names more than one mode".into()),
            "FILE" => mode = Some(AccessMode::File),
            "BLK" => mode = Some(AccessMode::Block),
            "MEM" => mode = Some(AccessMode::Memory),
            "NULLRW" => device.is_null = true,
            "SYNC" => device.is_sync = true,
            "RO" => device.is_read_only = true,
            "DIF" | "DIX" => {
                return Err(ValueError::Protection(part.to_owned()));
            }
            other => return Err(ValueError::Option(other.to_owned(), value::suggestion(other, &OPTIONS))),
        }
    }
    device.mode = mode.unwrap_or(AccessMode::File);
    if device.size.is_some() && device.mode != AccessMode::Memory && !device.is_null {
        return Err("takes size= for MEM only: a file or a device has its own".into());
    }
    if device.is_sync && device.mode == AccessMode::Block {
        return Err("takes SYNC with FILE only".into());
    }
    Ok(device)
}

fn set_valued_option(device: &mut TargetDevice, key: &str, value: &str) -> Result<(), ValueError> {
    if key == "size" {
        let megabytes = value.strip_suffix("MB").ok_or("takes a size such as size=64MB")?;
        let megabytes = value::parse_number(megabytes.trim(), 1..=SIZE_MB_MAX)
            .map_err(|why| why.within_part("size= ", " (MB)"))?;
        device.size = Some(megabytes << 20);
        return Ok(());
    }
    let mut names = VALUED_OPTIONS.iter().zip(&mut device.names);
    let Some(((_, longest), name)) = names.find(|((name, _), _)| *name == key) else {
        return Err(ValueError::Option(key.to_owned(), value::suggestion(key, &OPTIONS)));
    };
    let is_plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_graphic());
    if !is_plain || value.len() > *longest {
        return Err(ValueError::DeviceName(*longest, key.to_owned(), value.to_owned()));
    }
    *name = Some(value.to_owned());
    Ok(())
}

impl TargetDevice {
    /// The volume that it is. A relative path starts at `directory`, that of the file.
    pub fn to_volume_spec(&self, directory: &Path) -> Result<Spec, ValueError> {
        let path = directory.join(&self.name);
        let source = match self.mode {
            _ if self.is_null => VolumeSource::Null,
            AccessMode::Memory => VolumeSource::Ram,
            AccessMode::Block => VolumeSource::Device(path.clone()),
            AccessMode::File if is_regular(&path) => VolumeSource::File(path.clone()),
            AccessMode::File => VolumeSource::Device(path.clone()),
        };
        let mut spec = Spec::new(source);
        spec.size = match (self.mode, self.is_null) {
            (AccessMode::Memory, _) => Some(self.size.unwrap_or(RAM_DISK_BYTES_DEFAULT)),
            (AccessMode::File | AccessMode::Block, true) => Some(
                self.size
                    .ok_or("with NULLRW needs size=, or MEM: no file is opened that could give a size")?,
            ),
            (AccessMode::File | AccessMode::Block, false) => None,
        };
        spec.read_only = self.is_read_only;
        spec.cache = spec.source.path().is_some() && !self.is_sync;
        // Requests go past the page cache, as they do when they are given to the block layer.
        spec.direct = matches!(spec.source, VolumeSource::Device(_)) && self.mode == AccessMode::Block;
        spec.uuid = self.derived_uuid();
        Ok(spec)
    }

    /// An identity that is the same wherever the same names stand, so that multipath software sees one
    /// disk; `None`: there are no names.
    pub fn derived_uuid(&self) -> Option<Uuid> {
        if self.names.iter().all(Option::is_none) {
            return None;
        }
        let mut hash = Sha256::new();
        for (name, value) in VALUED_OPTIONS.iter().zip(&self.names) {
            if let Some(value) = value {
                hash.update(format!("{}={value}\n", name.0));
            }
        }
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(digest).for_each(|(byte, of)| *byte = of);
        // Version 8: made in a way of our own (RFC 9562 §5.8).
        Some(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// What a volume of it may be called before it is made unique: the last part of its path, in the
    /// letters that a name may have.
    pub fn label(&self) -> String {
        let path = PathBuf::from(&self.name);
        let last = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let letters = last.to_ascii_lowercase();
        let kept: String =
            letters
                .chars()
                .map(|c| {
                    if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.' { c } else { '-' }
                })
                .take(48)
                .collect();
        let kept = kept.trim_start_matches(['-', '.']);
        if kept.is_empty() { "disk".to_owned() } else { kept.to_owned() }
    }
}

fn is_regular(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> String {
        parse_target_device(text)
            .unwrap()
            .to_volume_spec(Path::new("/etc/chelsio-iscsi"))
            .unwrap()
            .to_string()
    }

    #[test]
    fn devices_become_volumes() {
        assert_eq!(spec("/dev/ssdb1"), "/dev/ssdb1");
        assert_eq!(spec("/dev/sdb,SYNC"), "/dev/sdb,cache=off");
        assert_eq!(spec("/dev/md0, FILE, RO"), "/dev/md0,ro=on");
        assert_eq!(spec("/dev/sdb,BLK"), "/dev/sdb,direct=on");
        assert_eq!(spec("ramdisk1,MEM"), "ram:16M");
        assert_eq!(spec("ramdisk1,MEM,size=256MB"), "ram:256M");
        assert_eq!(spec("ramdisk2,MEM,NULLRW,size=16MB"), "null:16M");
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("disk.img");
        std::fs::write(&file, [0; 512]).unwrap();
        assert_eq!(spec(&file.display().to_string()), format!("file:{}", file.display()));
        let beside = parse_target_device("disk.img").unwrap().to_volume_spec(own.path()).unwrap();
        assert_eq!(beside.source, VolumeSource::File(file));
    }

    #[test]
    fn the_same_names_give_the_same_identity() {
        let uuid = |text: &str| parse_target_device(text).unwrap().derived_uuid();
        let first = uuid("/dev/sda,ID=aabbccddeeffgghh,WWN=aaabbbcccdddeeef").unwrap();
        assert_eq!(uuid("ram,MEM,WWN=aaabbbcccdddeeef,ID=aabbccddeeffgghh"), Some(first));
        assert_ne!(uuid("/dev/sda,ID=aabbccddeeffgghh"), Some(first));
        assert_ne!(uuid("/dev/sda,SN=aabbccddeeffgghh"), uuid("/dev/sda,WWN=aabbccddeeffgghh"));
        assert_eq!(uuid("/dev/sda"), None);
        assert_eq!(first.get_version_num(), 8);
    }

    #[test]
    fn labels_are_names() {
        for (path, label) in
            [("/dev/ssdb1", "ssdb1"), ("/srv/My Disk_1.img", "my-disk-1.img"), ("/", "disk"), ("ä", "disk")]
        {
            let device = parse_target_device(path).unwrap();
            assert_eq!(device.label(), label, "{path}");
            assert!(config::name::VolumeName::parse(&device.label()).is_ok());
        }
    }

    #[test]
    fn what_is_no_device() {
        for (text, why) in [
            ("", "empty element"),
            ("/dev/sdb,", "empty element"),
            ("/dev/sdb,FILE,BLK", "more than one mode"),
            ("/dev/sdb,SYNK", "did you mean \"SYNC\"?"),
            ("/dev/sdb,size=1MB", "for MEM only"),
            ("r,MEM,size=16", "size=64MB"),
            ("r,MEM,size=0MB", "from 1 to"),
            ("r,MEM,size=99999999999999MB", "from 1 to"),
            ("/dev/sdb,BLK,SYNC", "SYNC with FILE only"),
            ("/dev/sdb,DIF", "protection information"),
            ("/dev/sdb,SN=12345678901234567", "at most 16"),
            ("/dev/sdb,ID=", "at most 24"),
            ("/dev/sdb,IDD=1", "did you mean \"ID\"?"),
        ] {
            let said = parse_target_device(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        let null = parse_target_device("/dev/sdb,NULLRW").unwrap().to_volume_spec(Path::new("/"));
        assert!(null.unwrap_err().to_string().contains("needs size="));
    }
}
