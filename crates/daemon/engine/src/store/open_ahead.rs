//! Opens the files of many volumes at a time.
//!
//! A file that is made or grown is synced, and so is its directory, before anything is recorded of it. One after the
//! other, each waits for a commit of its file system's journal; at a time they share it.
//!
//! Invariant: what comes of a volume does not depend on the others. A file that several volumes name is left to who
//! opens them in their order, and so is everything that could not be opened.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{OpenedStore, ProbeNeeds, StorageInUse};
use crate::state::identity::Identities;
use config::{name::VolumeName, plan::Volume, spec::VolumeSource};

/// Files that are opened at a time.
const THREADS_MAX: usize = 32;
/// Fewer files than this are opened in no time.
const FILES_MIN: usize = 8;

/// Where a file is, by whatever name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FilePlace {
    /// Device and inode.
    There(u64, u64),
    /// Its directory, and its name in it.
    Missing(PathBuf, PathBuf),
}

impl FilePlace {
    fn of(path: &Path) -> Option<FilePlace> {
        if let Ok(facts) = std::fs::metadata(path) {
            return Some(FilePlace::There(facts.dev(), facts.ino()));
        }
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(FilePlace::Missing(std::fs::canonicalize(directory).ok()?, path.file_name()?.into()))
    }
}

/// The files of these volumes that could be opened beside `others`, each of which no other of them names.
pub fn open_files_ahead(
    volumes: &[Volume],
    identities: &Identities,
    others: &StorageInUse,
) -> HashMap<VolumeName, OpenedStore> {
    let mut by_place: HashMap<FilePlace, Vec<&Volume>> = HashMap::new();
    for volume in volumes {
        // The leg of a stripe may be such a file too.
        let legs = match &volume.spec.source {
            VolumeSource::Stripe(striped) => striped.legs.iter().map(|leg| &leg.source).collect(),
            source => vec![source],
        };
        for place in legs.iter().filter_map(|source| FilePlace::of(file_path(source)?)) {
            by_place.entry(place).or_default().push(volume);
        }
    }
    let alone: Vec<&Volume> = by_place
        .into_values()
        .filter_map(|volumes| match volumes.as_slice() {
            [one] if file_path(&one.spec.source).is_some() => Some(*one),
            _ => None,
        })
        .collect();
    if alone.len() < FILES_MIN {
        return HashMap::new();
    }
    let (next, opened) = (AtomicUsize::new(0), Mutex::new(HashMap::with_capacity(alone.len())));
    let open = || {
        while let Some(volume) = alone.get(next.fetch_add(1, Ordering::Relaxed)) {
            let probed = ProbeNeeds::for_known(volume, identities).run();
            if let Ok(store) = OpenedStore::reopen(volume, identities, others, probed) {
                opened.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.name.clone(), store);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS_MAX.min(alone.len()) {
            // Without one more thread it takes longer.
            let _ = thread::Builder::new().name("open".to_owned()).spawn_scoped(scope, open);
        }
    });
    opened.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn file_path(source: &VolumeSource) -> Option<&Path> {
    match source {
        VolumeSource::File(path) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateDir;
    use config::{plan::VolumeOrigin, spec};

    fn volume(name: &str, spec: &str) -> Volume {
        let (name, spec) = (VolumeName::parse(name).unwrap(), spec::parse(spec).unwrap());
        Volume { name, spec, origin: VolumeOrigin::Configured }
    }

    #[test]
    fn files_are_opened_but_those_that_several_volumes_name() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(&root.path().join("state")).unwrap();
        let place = root.path().display();
        let file = |name: &str, of: &str| volume(name, &format!("file:{place}/{of},size=1M"));
        let mut volumes: Vec<Volume> =
            (0..20).map(|at| file(&format!("v{at}"), &format!("{at}.img"))).collect();
        volumes.push(file("again", "7.img"));
        volumes.push(volume(
            "striped",
            &format!("stripe:file:{place}/8.img\\,size=1M+file:{place}/legs.img\\,size=1M"),
        ));
        volumes.push(volume("absent", &format!("file:{place}/none.img")));
        volumes.push(volume("memory", "ram:1M"));
        std::os::unix::fs::symlink(root.path().join("9.img"), root.path().join("link.img")).unwrap();
        std::fs::write(root.path().join("9.img"), [0; 4096]).unwrap();
        volumes.push(file("linked", "link.img"));
        let identities = Identities::load(&state).unwrap();
        let opened = open_files_ahead(&volumes, &identities, &StorageInUse::default());
        let mut names: Vec<String> = opened.keys().map(ToString::to_string).collect();
        names.sort();
        let mut expected: Vec<String> =
            (0..20).filter(|at| ![7, 8, 9].contains(at)).map(|at| format!("v{at}")).collect();
        expected.sort();
        assert_eq!(names, expected);
        let one = opened.get(&VolumeName::parse("v3").unwrap()).unwrap();
        assert_eq!((one.store().bytes, one.store().is_new()), (1 << 20, true));
        assert!(!root.path().join("7.img").exists() && !root.path().join("none.img").exists());
    }
}
