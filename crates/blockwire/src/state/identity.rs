//! Which UUID a file or device has: kept by device and inode, never by name alone. And which volume of another
//! machine a volume's name has stood for.
//!
//! A file that replaces another under the same name is another disk; a file that was renamed is
//! the same one. The time of birth tells a reused inode number from the file that had it before.

use std::path::{Path, PathBuf};

use host::Expected;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{StateDir, StateError};
use crate::name::VolumeName;

/// The record's name.
const RECORD: &str = "identities";
/// The record of volumes of other machines.
const ELSEWHERE: &str = "elsewhere";

/// What makes a file or device the same one as before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// A regular file.
    File {
        /// The device of its file system.
        device: u64,
        /// Its inode.
        inode: u64,
        /// When it was created, nanoseconds since 1970, where the file system knows.
        born: Option<u64>,
    },
    /// A block device with an identity of its own (a serial number, a device mapper name).
    Device {
        /// What the system calls it by for good.
        wwid: String,
    },
    /// A block device without one, by its numbers.
    Numbered {
        /// Device number.
        number: u64,
    },
}

impl Key {
    /// Whether both name one piece of storage.
    pub fn aliases(&self, other: &Key) -> bool {
        match (self, other) {
            (Key::File { device, inode, .. }, Key::File { device: d, inode: i, .. }) => {
                device == d && inode == i
            }
            (Key::Device { wwid }, Key::Device { wwid: other }) => wwid == other,
            (Key::Numbered { number }, Key::Numbered { number: other }) => number == other,
            (Key::File { .. } | Key::Device { .. } | Key::Numbered { .. }, _) => false,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    uuid: Uuid,
    key: Key,
    /// Where it was seen last; with inode and birth it survives a device number that changed.
    path: PathBuf,
}

/// The volume of another machine that was found where a volume, or a leg of one, lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    volume: String,
    /// The leg's number, from 1; 0 for the whole volume.
    leg: usize,
    /// Its UUID, if its target gives one.
    uuid: Option<Uuid>,
    /// Its serial number, by which it is known where there is no UUID.
    serial: String,
    /// Bytes of its blocks.
    block: u32,
}

/// All identities that were ever given out.
#[derive(Debug, Default)]
pub struct Identities {
    entries: Vec<Entry>,
    changed: bool,
    elsewhere: Vec<Elsewhere>,
    elsewhere_changed: bool,
}

impl Identities {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        let entries = state.read_json(RECORD)?.unwrap_or_default();
        let elsewhere = state.read_json(ELSEWHERE)?.unwrap_or_default();
        Ok(Identities { entries, elsewhere, ..Identities::default() })
    }

    /// Writes them if one was added; before a volume is served, so that no identity is shown that
    /// the next start would not know.
    pub fn save(&mut self, state: &StateDir) -> Result<(), StateError> {
        if self.changed {
            state.write_json(RECORD, &self.entries)?;
            self.changed = false;
        }
        if self.elsewhere_changed {
            state.write_json(ELSEWHERE, &self.elsewhere)?;
            self.elsewhere_changed = false;
        }
        Ok(())
    }

    /// What was found of another machine's volume at an earlier start.
    pub fn elsewhere(&self, volume: &VolumeName, leg: usize) -> Option<Expected> {
        let known = self.elsewhere.iter().find(|one| one.volume == volume.as_str() && one.leg == leg)?;
        let uuid = known.uuid.map(|uuid| volume::Uuid(uuid.into_bytes()));
        Some(Expected { uuid, serial: known.serial.clone(), logical: known.block })
    }

    /// This was found of it now.
    pub fn found_elsewhere(&mut self, volume: &VolumeName, leg: usize, found: &Expected) {
        let uuid = found.uuid.map(|uuid| Uuid::from_bytes(uuid.0));
        let (serial, block) = (found.serial.clone(), found.logical);
        let found = Elsewhere { volume: volume.to_string(), leg, uuid, serial, block };
        if self.elsewhere.contains(&found) {
            return;
        }
        self.elsewhere.retain(|one| (&one.volume, one.leg) != (&found.volume, leg));
        self.elsewhere.push(found);
        self.elsewhere_changed = true;
    }

    /// The volume was deleted: what comes by its name may be another.
    pub fn forget(&mut self, volume: &VolumeName) {
        let before = self.elsewhere.len();
        self.elsewhere.retain(|one| one.volume != volume.as_str());
        self.elsewhere_changed |= self.elsewhere.len() != before;
    }

    /// The UUID of what `key` names; `fresh` if it was never seen.
    pub fn of(&mut self, key: &Key, path: &Path, fresh: impl FnOnce() -> Uuid) -> Uuid {
        let known = self.entries.iter().position(|entry| entry.key == *key).or_else(|| self.moved(key, path));
        if let Some(index) = known {
            let entry = &mut self.entries[index];
            if entry.key != *key || entry.path != path {
                (entry.key, entry.path) = (key.clone(), path.to_owned());
                self.changed = true;
            }
            return entry.uuid;
        }
        let uuid = fresh();
        // The inode number now belongs to this file: what had it before is gone.
        self.entries.retain(|entry| !entry.key.aliases(key));
        self.entries.push(Entry { uuid, key: key.clone(), path: path.to_owned() });
        self.changed = true;
        uuid
    }

    /// A file on a file system whose device number changed at a reboot: same inode, same birth,
    /// same path.
    fn moved(&self, key: &Key, path: &Path) -> Option<usize> {
        let Key::File { inode, born: Some(born), .. } = key else { return None };
        self.entries.iter().position(|entry| {
            let same =
                matches!(&entry.key, Key::File { inode: i, born: Some(b), .. } if i == inode && b == born);
            same && entry.path == path
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(device: u64, inode: u64, born: u64) -> Key {
        Key::File { device, inode, born: Some(born) }
    }

    #[test]
    fn what_was_found_elsewhere_is_known_at_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let (near, other) = (VolumeName::parse("near").unwrap(), VolumeName::parse("other").unwrap());
        let found = |uuid: Option<u8>| Expected {
            uuid: uuid.map(|byte| volume::Uuid([byte; 16])),
            serial: "7".into(),
            logical: 512,
        };
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.elsewhere(&near, 0), None);
        ids.found_elsewhere(&near, 0, &found(Some(1)));
        ids.found_elsewhere(&other, 2, &found(None));
        ids.save(&state).unwrap();
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.elsewhere(&near, 0), Some(found(Some(1))));
        assert_eq!((ids.elsewhere(&other, 2), ids.elsewhere(&other, 1)), (Some(found(None)), None));
        ids.forget(&near);
        ids.save(&state).unwrap();
        let ids = Identities::load(&state).unwrap();
        assert_eq!((ids.elsewhere(&near, 0), ids.elsewhere(&other, 2)), (None, Some(found(None))));
        state.write(ELSEWHERE, b"[{}]").unwrap();
        assert!(matches!(Identities::load(&state), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn identity_follows_the_file_and_not_the_name() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            Uuid::from_u128(next)
        };
        let mut ids = Identities::load(&state).unwrap();
        let first = ids.of(&file(1, 10, 100), Path::new("/a"), &mut fresh);
        ids.save(&state).unwrap();
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.of(&file(1, 10, 100), Path::new("/renamed"), &mut fresh), first);
        assert_ne!(
            ids.of(&file(1, 11, 200), Path::new("/renamed"), &mut fresh),
            first,
            "a new file, the old name"
        );
        assert_ne!(ids.of(&file(1, 10, 300), Path::new("/a"), &mut fresh), first, "a reused inode");
        let kept = ids.of(&file(2, 20, 400), Path::new("/b"), &mut fresh);
        assert_eq!(ids.of(&file(7, 20, 400), Path::new("/b"), &mut fresh), kept, "the device number changed");
        assert_ne!(ids.of(&file(9, 20, 400), Path::new("/c"), &mut fresh), kept, "but not elsewhere");
    }
}
