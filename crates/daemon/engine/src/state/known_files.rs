//! The files and devices that have identities, in the order in which they were recorded.
//!
//! Invariant: looking one up by its path, or by its storage, takes the same time however many there are: the start
//! looks each volume up.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::file_identity::{FileIdentity, StorageKey};

/// A file or device, and the identity that it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownFile {
    /// Its identity.
    pub uuid: Uuid,
    /// How the system names it.
    pub key: FileIdentity,
    /// Where it was seen last; with inode and birth it survives a device number that changed.
    pub path: PathBuf,
}

/// All of them. Recorded as a list.
#[derive(Clone, Debug, Default)]
pub struct KnownFiles {
    /// By the order in which they were recorded.
    entries: BTreeMap<u64, KnownFile>,
    next: u64,
    by_storage: HashMap<StorageKey, BTreeSet<u64>>,
    by_path: HashMap<PathBuf, BTreeSet<u64>>,
}

impl KnownFiles {
    /// Those that were last seen at this path, the oldest first.
    pub fn at(&self, path: &Path) -> impl DoubleEndedIterator<Item = (u64, &KnownFile)> {
        self.numbered(self.by_path.get(path))
    }

    /// Those whose identity names the same storage, the oldest first.
    pub fn on(&self, key: &FileIdentity) -> impl DoubleEndedIterator<Item = (u64, &KnownFile)> {
        self.numbered(self.by_storage.get(&key.storage_key()))
    }

    fn numbered<'a>(
        &'a self,
        numbers: Option<&'a BTreeSet<u64>>,
    ) -> impl DoubleEndedIterator<Item = (u64, &'a KnownFile)> {
        let numbers = numbers.into_iter().flatten();
        numbers.filter_map(|number| Some((*number, self.entries.get(number)?)))
    }

    /// Adds one behind all others.
    pub fn push(&mut self, file: KnownFile) {
        let number = self.next;
        self.next += 1;
        self.index(number, &file);
        self.entries.insert(number, file);
    }

    /// Removes one.
    pub fn remove(&mut self, number: u64) {
        let Some(file) = self.entries.remove(&number) else { return };
        let storage = file.key.storage_key();
        if let Some(numbers) = self.by_storage.get_mut(&storage) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_storage.remove(&storage);
            }
        }
        if let Some(numbers) = self.by_path.get_mut(&file.path) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_path.remove(&file.path);
            }
        }
    }

    /// One of them is known by another key, or was seen at another path. It keeps its place and its identity, which is
    /// returned; `None`: there is none of this number.
    pub fn update(&mut self, number: u64, key: &FileIdentity, path: &Path) -> Option<Uuid> {
        let uuid = self.entries.get(&number)?.uuid;
        self.remove(number);
        let file = KnownFile { uuid, key: key.clone(), path: path.to_owned() };
        self.index(number, &file);
        self.entries.insert(number, file);
        Some(uuid)
    }

    fn index(&mut self, number: u64, file: &KnownFile) {
        self.by_storage.entry(file.key.storage_key()).or_default().insert(number);
        self.by_path.entry(file.path.clone()).or_default().insert(number);
    }
}

impl PartialEq for KnownFiles {
    fn eq(&self, other: &Self) -> bool {
        self.entries.values().eq(other.entries.values())
    }
}

impl Eq for KnownFiles {}

impl Serialize for KnownFiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.entries.values())
    }
}

impl<'de> Deserialize<'de> for KnownFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut files = KnownFiles::default();
        Vec::<KnownFile>::deserialize(deserializer)?.into_iter().for_each(|file| files.push(file));
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64, path: &str, uuid: u128) -> KnownFile {
        let key = FileIdentity::File { device: 1, inode, born: None };
        KnownFile { uuid: Uuid::from_u128(uuid), key, path: path.into() }
    }

    fn uuids<'a>(found: impl Iterator<Item = (u64, &'a KnownFile)>) -> Vec<u128> {
        found.map(|(_, file)| file.uuid.as_u128()).collect()
    }

    #[test]
    fn files_are_found_by_path_and_by_storage_in_the_order_of_their_records() {
        let mut files = KnownFiles::default();
        for one in [file(10, "/a", 1), file(11, "/a", 2), file(10, "/b", 3)] {
            files.push(one);
        }
        let key = file(10, "", 0).key;
        assert_eq!((uuids(files.at(Path::new("/a"))), uuids(files.on(&key))), (vec![1, 2], vec![1, 3]));
        let first = files.at(Path::new("/a")).next().unwrap().0;
        // It moves, and keeps its place before those that came later.
        assert_eq!(files.update(first, &key, Path::new("/b")), Some(Uuid::from_u128(1)));
        assert_eq!(
            (uuids(files.at(Path::new("/a"))), uuids(files.at(Path::new("/b")))),
            (vec![2], vec![1, 3])
        );
        let json = serde_json::to_string(&files).unwrap();
        assert_eq!(serde_json::from_str::<KnownFiles>(&json).unwrap(), files);
        files.remove(first);
        assert_eq!((uuids(files.on(&key)), uuids(files.at(Path::new("/b")))), (vec![3], vec![3]));
        assert_ne!(serde_json::from_str::<KnownFiles>(&json).unwrap(), files);
        assert_eq!(files.update(first, &key, Path::new("/c")), None);
    }
}
