//! The UUIDs of files and devices: kept by device and inode, never by name alone. And the remote volume that
//! a volume's name has stood for.
//!
//! A file that replaces another under the same name is another disk; a renamed file is the same one. The time
//! of birth distinguishes a reused inode number from the earlier file. If a file system does not report it,
//! and for a device that has only a number, the name must match too.
//!
//! Invariant: an identity is never transferred to another file that reuses its numbers.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::Path,
};

use multipath::ExpectedVolume;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    StateDir, StateError,
    file_identity::FileIdentity,
    known_files::{KnownFile, KnownFiles},
    nexuses::NexusNumbers,
};
use config::name::VolumeName;
use process::log::area;

/// The record's name.
const RECORD_NAME: &str = "identities";
/// The record of volumes of other machines.
const REMOTE_RECORD: &str = "elsewhere";

/// The volume of another machine that was found where a volume, or a leg of one, lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownRemote {
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
#[derive(Clone, Debug, Default)]
pub struct Identities {
    entries: KnownFiles,
    changed: bool,
    /// By the name of the volume and the number of the leg: looked up for each volume of a start.
    elsewhere: BTreeMap<(String, usize), KnownRemote>,
    elsewhere_changed: bool,
    nexuses: NexusNumbers,
    nexuses_changed: bool,
    /// What volumes have records of their own.
    recorded: HashSet<Uuid>,
}

impl Identities {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        let entries = state.read_json(RECORD_NAME)?.unwrap_or_default();
        let elsewhere: Vec<KnownRemote> = state.read_json(REMOTE_RECORD)?.unwrap_or_default();
        let elsewhere = elsewhere.into_iter().map(|one| ((one.volume.clone(), one.leg), one)).collect();
        let (nexuses, recorded) = (NexusNumbers::load(state)?, state.recorded_volumes()?);
        Ok(Identities { entries, elsewhere, nexuses, recorded, ..Identities::default() })
    }

    /// Writes them if one was added; before a volume is served, so that no identity is shown that
    /// the next start would not know.
    pub fn save(&mut self, state: &StateDir) -> Result<(), StateError> {
        if self.changed {
            state.write_json(RECORD_NAME, &self.entries)?;
            self.changed = false;
        }
        if self.elsewhere_changed {
            state.write_json(REMOTE_RECORD, &self.elsewhere.values().collect::<Vec<_>>())?;
            self.elsewhere_changed = false;
        }
        if self.nexuses_changed {
            self.nexuses.save(state)?;
            self.nexuses_changed = false;
        }
        Ok(())
    }

    /// What was found of another machine's volume at an earlier start.
    pub fn remote_identity(&self, volume: &VolumeName, leg: usize) -> Option<ExpectedVolume> {
        let known = self.elsewhere.get(&(volume.to_string(), leg))?;
        let uuid = known.uuid.map(|uuid| volume::Uuid(uuid.into_bytes()));
        Some(ExpectedVolume { uuid, serial: known.serial.clone(), logical: known.block })
    }

    /// This was found of it now.
    pub fn set_remote_identity(&mut self, volume: &VolumeName, leg: usize, found: &ExpectedVolume) {
        let uuid = found.uuid.map(|uuid| Uuid::from_bytes(uuid.0));
        let (serial, block) = (found.serial.clone(), found.logical);
        let found = KnownRemote { volume: volume.to_string(), leg, uuid, serial, block };
        let before = self.elsewhere.insert((volume.to_string(), leg), found.clone());
        self.elsewhere_changed |= before.is_none_or(|before| before != found);
    }

    /// By which number iSCSI targets know the sessions of a volume of another machine.
    pub fn nexus_number(&mut self, volume: &VolumeName, leg: usize) -> io::Result<[u8; 3]> {
        let (number, is_new) = self.nexuses.number_for(volume, leg)?;
        self.nexuses_changed |= is_new;
        Ok(number)
    }

    /// The volume was deleted: what comes by its name may be another.
    pub fn forget_volume(&mut self, volume: &VolumeName) {
        self.nexuses_changed |= self.nexuses.forget_volume(volume);
        let before = self.elsewhere.len();
        self.elsewhere.retain(|(name, _), _| name != volume.as_str());
        self.elsewhere_changed |= self.elsewhere.len() != before;
    }

    /// Whether something was found in this place before.
    pub fn has_path(&self, path: &Path) -> bool {
        self.entries.at(path).next().is_some()
    }

    /// The UUID of what was found in this place last.
    pub fn last_uuid_at(&self, path: &Path) -> Option<Uuid> {
        self.entries.at(path).next_back().map(|(_, entry)| entry.uuid)
    }

    /// What was made there was removed again before anybody had it: nothing was ever in this place.
    pub fn remove_created(&mut self, key: &FileIdentity, path: &Path) {
        self.remove_at(path, |entry| entry.key == *key);
    }

    /// Takes back what was noted of files and devices since `before`: what was opened is not served.
    pub fn restore_files(&mut self, before: Identities) {
        self.changed |= self.entries != before.entries;
        self.entries = before.entries;
    }

    /// Writes them when what was made has been removed again, or was not served. Without it the next start does not make
    /// it, or holds another against it.
    pub fn save_after_undo(&mut self, state: &StateDir) {
        if let Err(why) = self.save(state) {
            tracing::error!(
                target: area::STATE,
                %why,
                "the state directory still records files or volumes that were opened but are not served: at the \
                 next start they may be reported as missing or replaced"
            );
        }
    }

    /// Whether there were reservations or a failed sync of the volume of this UUID when the daemon started.
    pub fn has_records(&self, uuid: Uuid) -> bool {
        self.recorded.contains(&uuid)
    }

    /// The UUID of what `key` names: this one if it was never seen.
    pub fn uuid_for(&mut self, key: &FileIdentity, path: &Path, fresh: Uuid) -> Uuid {
        let is_it = |entry: &KnownFile| entry.key == *key && (key.is_unique() || entry.path == path);
        let same = self.entries.on(key).find(|(_, entry)| is_it(entry));
        let known = same
            .or_else(|| self.find_moved_file(key, path))
            .or_else(|| self.find_unstamped_device(key, path));
        if let Some((number, entry)) = known {
            let uuid = entry.uuid;
            if entry.key != *key || entry.path != path {
                self.entries.update(number, key, path);
                self.changed = true;
            }
            return uuid;
        }
        let uuid = fresh;
        if let Some(old) = self.previous_device_uuid(key, path) {
            tracing::warn!(
                target: area::STATE,
                device = %path.display(), %old, new = %uuid,
                "the device was set up again, or the machine was rebooted, and the system reports no serial \
                 number: hosts see a new disk without its reservations. If it is the same disk, keep its old \
                 identity with uuid={old}"
            );
        }
        // What bore this number in this place is gone. Elsewhere it may come back: numbers of file systems and of
        // devices change hands when the machine starts, and what is not there now had one too.
        self.remove_at(path, |entry| entry.key.aliases(key));
        self.entries.push(KnownFile { uuid, key: key.clone(), path: path.to_owned() });
        self.changed = true;
        uuid
    }

    /// A device that was recorded when nobody noted since when it had its number: it is taken for the same once, as it
    /// was then, and by what it is known now from there on.
    fn find_unstamped_device(&self, key: &FileIdentity, path: &Path) -> Option<(u64, &KnownFile)> {
        let FileIdentity::Numbered { number, set_up: Some(_) } = *key else { return None };
        let before = FileIdentity::Numbered { number, set_up: None };
        self.entries.at(path).find(|(_, entry)| entry.key == before)
    }

    /// Removes those that were seen at this path last and are meant.
    fn remove_at(&mut self, path: &Path, is_meant: impl Fn(&KnownFile) -> bool) {
        let meant = self.entries.at(path).filter(|(_, entry)| is_meant(entry));
        let numbers: Vec<u64> = meant.map(|(number, _)| number).collect();
        self.changed |= !numbers.is_empty();
        numbers.into_iter().for_each(|number| self.entries.remove(number));
    }

    /// The identity that the device in this place had last, if this has nothing but a number.
    fn previous_device_uuid(&self, key: &FileIdentity, path: &Path) -> Option<Uuid> {
        let is_numbered = |key: &FileIdentity| matches!(key, FileIdentity::Numbered { .. });
        let had = self.entries.at(path).rfind(|(_, entry)| is_numbered(&entry.key));
        had.filter(|_| is_numbered(key)).map(|(_, entry)| entry.uuid)
    }

    /// A file on a file system whose device number changed at a reboot: same inode, same birth,
    /// same path.
    fn find_moved_file(&self, key: &FileIdentity, path: &Path) -> Option<(u64, &KnownFile)> {
        let FileIdentity::File { inode, born: Some(born), .. } = key else { return None };
        self.entries.at(path).find(|(_, entry)| {
            matches!(&entry.key, FileIdentity::File { inode: i, born: Some(b), .. } if i == inode && b == born)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_time::assert_grows_with_number;

    fn numbered(number: u64, set_up: Option<&str>) -> FileIdentity {
        FileIdentity::Numbered { number, set_up: set_up.map(str::to_owned) }
    }

    /// A loop device over another file, virtual disks that change places when the machine starts.
    #[test]
    fn a_device_that_was_set_up_anew_does_not_have_the_identity_of_what_had_its_number() {
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            Uuid::from_u128(next)
        };
        let (mut ids, path) = (Identities::default(), Path::new("/dev/loop0"));
        let first = ids.uuid_for(&numbered(0x700, Some("boot 17")), path, fresh());
        assert_eq!(ids.uuid_for(&numbered(0x700, Some("boot 17")), Path::new("/dev/disk/x"), fresh()), first);
        assert_ne!(
            ids.uuid_for(&numbered(0x700, Some("boot 18")), path, fresh()),
            first,
            "over another file"
        );
        assert_ne!(
            ids.uuid_for(&numbered(0x700, Some("again 17")), path, fresh()),
            first,
            "after another boot"
        );
        assert_ne!(ids.uuid_for(&numbered(0x700, None), path, fresh()), first);
        assert!(numbered(0x700, None).aliases(&numbered(0x700, Some("boot 17"))), "now there is only one");
    }

    /// A record of a version that kept nothing but the number.
    #[test]
    fn a_device_does_not_lose_its_identity_to_an_upgrade() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let (path, old) = (Path::new("/dev/vda"), Uuid::from_u128(7));
        let json =
            format!(r#"[{{"uuid":"{old}","key":{{"numbered":{{"number":64768}}}},"path":"/dev/vda"}}]"#);
        state.write_record(RECORD_NAME, json.as_bytes()).unwrap();
        let mut next = 100;
        let mut fresh = || {
            next += 1;
            Uuid::from_u128(next)
        };
        let mut ids = Identities::load(&state).unwrap();
        let (here, again) = (numbered(64768, Some("boot 1")), numbered(64768, Some("boot 2")));
        assert_ne!(ids.uuid_for(&here, Path::new("/dev/vdb"), fresh()), old, "in another place");
        let mut ids = Identities::load(&state).unwrap();
        assert_ne!(ids.uuid_for(&numbered(64769, Some("boot 1")), path, fresh()), old, "of another number");
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.uuid_for(&here, path, fresh()), old);
        ids.save(&state).unwrap();
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.uuid_for(&here, path, fresh()), old, "it is known by more now");
        assert_eq!(
            ids.previous_device_uuid(&again, path),
            Some(old),
            "and the operator is told what is lost"
        );
        assert_eq!(ids.previous_device_uuid(&again, Path::new("/dev/vdc")), None, "but not of a new one");
        assert_ne!(ids.uuid_for(&again, path, fresh()), old, "once");
    }

    fn file(device: u64, inode: u64, born: u64) -> FileIdentity {
        FileIdentity::File { device, inode, born: Some(born) }
    }

    #[test]
    fn what_was_found_elsewhere_is_known_at_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let (near, other) = (VolumeName::parse("near").unwrap(), VolumeName::parse("other").unwrap());
        let found = |uuid: Option<u8>| ExpectedVolume {
            uuid: uuid.map(|byte| volume::Uuid([byte; 16])),
            serial: "7".into(),
            logical: 512,
        };
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.remote_identity(&near, 0), None);
        ids.set_remote_identity(&near, 0, &found(Some(1)));
        ids.set_remote_identity(&other, 2, &found(None));
        ids.save(&state).unwrap();
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.remote_identity(&near, 0), Some(found(Some(1))));
        assert_eq!(
            (ids.remote_identity(&other, 2), ids.remote_identity(&other, 1)),
            (Some(found(None)), None)
        );
        ids.forget_volume(&near);
        ids.save(&state).unwrap();
        let ids = Identities::load(&state).unwrap();
        assert_eq!(
            (ids.remote_identity(&near, 0), ids.remote_identity(&other, 2)),
            (None, Some(found(None)))
        );
        state.write_record(REMOTE_RECORD, b"[{}]").unwrap();
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
        let first = ids.uuid_for(&file(1, 10, 100), Path::new("/a"), fresh());
        ids.save(&state).unwrap();
        let mut ids = Identities::load(&state).unwrap();
        assert_eq!(ids.uuid_for(&file(1, 10, 100), Path::new("/renamed"), fresh()), first);
        assert_ne!(
            ids.uuid_for(&file(1, 11, 200), Path::new("/renamed"), fresh()),
            first,
            "a new file, the old name"
        );
        assert_ne!(ids.uuid_for(&file(1, 10, 300), Path::new("/a"), fresh()), first, "a reused inode");
        assert_eq!(
            ids.uuid_for(&file(1, 10, 100), Path::new("/renamed"), fresh()),
            first,
            "it is still known"
        );
        assert!(ids.has_path(Path::new("/a")) && !ids.has_path(Path::new("/c")));
        // Where no birth is known, the name must agree.
        let unborn = |inode| FileIdentity::File { device: 3, inode, born: None };
        for (one, other) in [(unborn(5), Path::new("/d")), (numbered(0x801, None), Path::new("/dev/sda1"))] {
            let own = ids.uuid_for(&one, other, fresh());
            assert_ne!(ids.uuid_for(&one, Path::new("/new"), fresh()), own, "another bears the number now");
            assert_eq!(ids.uuid_for(&one, other, fresh()), own, "and takes nothing from it");
        }
        let kept = ids.uuid_for(&file(2, 20, 400), Path::new("/b"), fresh());
        assert_eq!(
            ids.uuid_for(&file(7, 20, 400), Path::new("/b"), fresh()),
            kept,
            "the device number changed"
        );
        assert_ne!(ids.uuid_for(&file(9, 20, 400), Path::new("/c"), fresh()), kept, "but not elsewhere");
    }

    #[test]
    fn finding_files_grows_with_their_number() {
        assert_grows_with_number(10_000, |files| {
            let mut identities = Identities::default();
            for round in 0..2 {
                for at in 0..files as u64 {
                    let path = std::path::PathBuf::from(format!("/srv/blockwire/volumes/{at}.img"));
                    let key = FileIdentity::File { device: 1, inode: at, born: Some(7) };
                    assert_eq!(identities.has_path(&path), round > 0);
                    let uuid = identities.uuid_for(&key, &path, Uuid::from_u128(u128::from(at) + round));
                    assert_eq!(uuid, Uuid::from_u128(at.into()), "the one of the first round");
                }
            }
        });
    }
}
