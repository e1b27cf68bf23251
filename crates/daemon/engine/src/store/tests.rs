//! Files as volumes: creation, use by other processes, and what remains when they are released.

use std::{
    fs::TryLockError,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex},
    thread,
};

use rustix::fs::OFlags;

use super::{
    file::{LOCK_TRIES, lock_and_measure, lock_with_timeout, open_options},
    *,
};
use config::{name::VolumeName, plan::VolumeOrigin, spec};

/// Volumes whose disks do not answer as long as somebody holds what is named with them.
pub(crate) static SILENT: Mutex<Vec<(String, Arc<Mutex<()>>)>> = Mutex::new(Vec::new());

pub(crate) fn wait_for_disk(volume: &str) {
    let disk = SILENT.lock().unwrap().iter().find(|(name, _)| name == volume).map(|(_, disk)| disk.clone());
    drop(disk.iter().map(|disk| disk.lock().unwrap()).next());
}

fn volume(name: &str, text: &str) -> Volume {
    let spec = spec::parse(text).unwrap();
    Volume { name: VolumeName::parse(name).unwrap(), spec, origin: VolumeOrigin::Configured }
}

fn open(volume: &Volume, others: &[Store]) -> Result<Store, String> {
    Store::open(volume, &mut Identities::default(), others.iter()).map_err(|why| why.to_string())
}

#[test]
fn a_file_is_created_grown_and_never_shrunk() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let text = |rest: &str| format!("file:{}{rest}", path.display());
    assert!(open(&volume("a", &text("")), &[]).unwrap_err().contains("give size="));
    let store = open(&volume("a", &text(",size=1M")), &[]).unwrap();
    assert!(store.made == CreatedFile::File && store.bytes == 1 << 20 && store.physical == 4096);
    assert_eq!(store.file.as_ref().unwrap().metadata().unwrap().blocks(), 0, "sparse");
    drop(store);
    assert_eq!(open(&volume("a", &text(",size=2M")), &[]).unwrap().bytes, 2 << 20);
    assert_eq!(open(&volume("a", &text(",size=1M")), &[]).unwrap().bytes, 2 << 20);
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(open(&volume("a", &text(",block=4096")), &[]).unwrap().bytes, 4096);
    File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
    assert!(open(&volume("a", &text("")), &[]).unwrap_err().contains("smaller than one block"));
}

/// A start may fail when hosts have been let in already.
#[test]
fn what_a_host_has_written_is_not_discarded() {
    use std::os::unix::fs::FileExt;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let sized = |size: &str| volume("a", &format!("file:{},size={size}", path.display()));
    open(&sized("1M"), &[]).unwrap().discard(&mut Identities::default());
    assert!(!path.exists(), "nothing was written to it");
    let store = open(&sized("1M"), &[]).unwrap();
    store.file.as_ref().unwrap().write_all_at(b"precious", 4096).unwrap();
    store.discard(&mut Identities::default());
    let length = || std::fs::metadata(&path).map(|meta| meta.len()).unwrap();
    assert_eq!(length(), 1 << 20);
    open(&sized("2M"), &[]).unwrap().discard(&mut Identities::default());
    assert_eq!(length(), 1 << 20, "it has not grown");
    let store = open(&sized("2M"), &[]).unwrap();
    store.file.as_ref().unwrap().write_all_at(b"precious", 3 << 19).unwrap();
    store.discard(&mut Identities::default());
    assert_eq!(length(), 2 << 20);
    // Nor is what another one has put in its place.
    std::fs::remove_file(&path).unwrap();
    let store = open(&sized("1M"), &[]).unwrap();
    std::fs::rename(&path, root.path().join("moved")).unwrap();
    File::create(&path).unwrap();
    store.discard(&mut Identities::default());
    assert!(path.exists());
}

/// Both find that there is none, and make it.
#[test]
fn a_file_that_two_daemons_make_at_once_is_of_one_and_has_its_name() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = root.path().join(format!("{round}.img"));
        let one = volume("a", &format!("file:{},size=1M", path.display()));
        let start = std::sync::Barrier::new(2);
        let both = thread::scope(|scope| {
            let make = || {
                start.wait();
                open(&one, &[])
            };
            [scope.spawn(make), scope.spawn(make)].map(|thread| thread.join().unwrap())
        });
        let served: Vec<&Store> = both.iter().filter_map(|one| one.as_ref().ok()).collect();
        assert_eq!(served.len(), 1, "{:?}", both.iter().map(Result::is_ok).collect::<Vec<_>>());
        assert!(path_is_file(&path, served[0].file.as_ref().unwrap()), "its name leads elsewhere");
        let why = both.iter().find_map(|one| one.as_ref().err()).unwrap();
        assert!(why.contains("in use by another process"), "{why}");
    }
    // Its maker has removed it again before the lock was to be had.
    let path = root.path().join("gone.img");
    let one = volume("a", &format!("file:{},size=1M", path.display()));
    let file = open_options(&one).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let why = lock_and_measure(&one, &path, file, &|_| None).unwrap_err().to_string();
    assert!(why.contains("removed or replaced"), "{why}");
}

#[test]
fn aliases_and_second_owners_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let (hard, soft) = (root.path().join("hard"), root.path().join("soft"));
    let first = open(&volume("a", &format!("file:{},size=1M", path.display())), &[]).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    for alias in [&path, &hard, &soft] {
        let alias = volume("b", &format!("file:{}", alias.display()));
        let why = open(&alias, std::slice::from_ref(&first)).unwrap_err();
        assert!(why.contains("already open as volume \"a\""), "{why}");
        // Another process would not see our list, but the lock.
        let why = open(&alias, &[]).unwrap_err();
        assert!(why.contains("in use by another process"), "{why}");
    }
    drop(first);
    let reader = open(&volume("a", &format!("file:{},ro", path.display())), &[]).unwrap();
    assert!(open(&volume("b", &format!("file:{}", path.display())), &[]).is_err());
    drop(reader);
}

#[test]
fn what_is_no_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let why = open(&volume("a", &format!("file:{},size=1M", root.path().display())), &[]).unwrap_err();
    assert!(why.contains("not a regular file"), "{why}");
    let why = open(&volume("a", "/dev/null"), &[]).unwrap_err();
    assert!(why.contains("not a block device"), "{why}");
}

#[test]
fn ram_is_new_at_each_start_unless_told() {
    let [first, second] = [0, 1].map(|_| open(&volume("a", "ram:1M"), &[]).unwrap().uuid);
    assert_ne!(first, second);
    assert_eq!(first.get_version_num(), 4);
    let text = "ram:1M,uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let store = open(&volume("a", text), &[]).unwrap();
    let why = open(&volume("b", text), &[store]).unwrap_err();
    assert!(why.contains("already used by volume \"a\""), "{why}");
}

#[test]
fn a_file_created_in_vain_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let other = open(&volume("a", &format!("ram:1M,uuid={uuid}")), &[]).unwrap();
    let store = open(&volume("b", &format!("file:{},size=1M", path.display())), &[other]).unwrap();
    assert!(path.exists());
    store.discard(&mut Identities::default());
    assert!(!path.exists());
    // One that was there has its length again.
    std::fs::write(&path, [7; 5000]).unwrap();
    let store = open(&volume("b", &format!("file:{},size=1M", path.display())), &[]).unwrap();
    assert_eq!((store.made, store.bytes), (CreatedFile::Growth(5000), 1 << 20));
    store.discard(&mut Identities::default());
    assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
}

/// What fills no block is no part of the volume, and nobody's to touch.
#[test]
fn a_rest_behind_the_last_block_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let content = vec![0xa5; (1 << 20) + 2048];
    std::fs::write(&path, &content).unwrap();
    for block in [512_u64, 4096] {
        let store = open(&volume("a", &format!("file:{},block={block}", path.display())), &[]).unwrap();
        assert_eq!(store.bytes, (1 << 20) + 2048 / block * block);
        drop(store);
        assert!(std::fs::read(&path).unwrap() == content, "{block}");
    }
}

/// A process that was killed has its files until the last of what it asked of the disk has ended.
#[test]
fn a_lock_that_is_about_to_be_given_up_is_waited_for() {
    let held = |tries: u32| {
        let (mut asked, mut paused) = (0, 0);
        let lock = || {
            asked += 1;
            if asked > tries { Ok(()) } else { Err(TryLockError::WouldBlock) }
        };
        let had = lock_with_timeout(lock, || paused += 1).is_ok();
        (had, paused)
    };
    assert_eq!(held(0), (true, 0));
    assert_eq!(held(LOCK_TRIES - 1), (true, LOCK_TRIES - 1));
    assert_eq!(held(u32::MAX), (false, LOCK_TRIES - 1));
    let refused = lock_with_timeout(
        || Err(TryLockError::Error(io::ErrorKind::Other.into())),
        || panic!("it helps nobody"),
    );
    assert!(matches!(refused, Err(TryLockError::Error(_))));
}

#[test]
fn no_call_on_a_volumes_file_is_told_to_come_again() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let store = open(&volume("a", &format!("file:{},size=1M", path.display())), &[]).unwrap();
    let flags = rustix::fs::fcntl_getfl(store.file.as_ref().unwrap()).unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
}

#[test]
fn a_file_that_cannot_be_synced_is_not_taken_for_safe() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let mut store = open(&volume("a", &format!("file:{},size=1M", path.display())), &[]).unwrap();
    store.sync().unwrap();
    assert!(!store.in_doubt);
    store.set_len(2 << 20).unwrap();
    assert!(!store.in_doubt);
    // What this system keeps nowhere can be made stable nowhere.
    store.file = Some(File::open("/proc/self/status").unwrap());
    store.sync().unwrap_err();
    assert!(store.in_doubt);
    let mut stripe = open(&volume("s", "ram:1M"), &[]).unwrap();
    store.in_doubt = false;
    stripe.legs.push(store);
    stripe.sync().unwrap_err();
    assert!(stripe.legs[0].in_doubt);
}

#[test]
fn the_uuid_of_a_volume_is_known_when_it_is_not_open() {
    let root = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("file:{},size=1M", root.path().join(name).display());
    let stripe = format!("stripe:{}+{}", file("b").replace(',', "\\,"), file("c").replace(',', "\\,"));
    let mut identities = Identities::default();
    for text in [file("a"), stripe] {
        let volume = volume("v", &text);
        assert_eq!(known_uuid(&volume, &identities), None, "{text}");
        let uuid = Store::open(&volume, &mut identities, [].iter()).unwrap().uuid;
        assert_eq!(known_uuid(&volume, &identities), Some(uuid), "{text}");
    }
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let named = volume("v", &format!("ram:1M,uuid={uuid}"));
    assert_eq!(known_uuid(&named, &identities).unwrap().to_string(), uuid);
    assert_eq!(known_uuid(&volume("v", "ram:1M"), &identities), None);
}
