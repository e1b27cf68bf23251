//! Files as volumes: what is made of them, who else has them, and what is left when they are given up.

use super::*;
use crate::{name::VolumeName, plan::Origin, spec};

fn volume(name: &str, text: &str) -> Volume {
    let spec = spec::parse(text).unwrap();
    Volume { name: VolumeName::parse(name).unwrap(), spec, origin: Origin::Configured }
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
    assert!(store.made == Made::File && store.bytes == 1 << 20 && store.physical == 4096);
    assert_eq!(store.file.as_ref().unwrap().metadata().unwrap().blocks(), 0, "sparse");
    drop(store);
    assert_eq!(open(&volume("a", &text(",size=2M")), &[]).unwrap().bytes, 2 << 20);
    assert_eq!(open(&volume("a", &text(",size=1M")), &[]).unwrap().bytes, 2 << 20);
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(open(&volume("a", &text(",block=4096")), &[]).unwrap().bytes, 4096);
    File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
    assert!(open(&volume("a", &text("")), &[]).unwrap_err().contains("less than one block"));
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
    assert!(why.contains("already that of volume \"a\""), "{why}");
}

#[test]
fn a_file_created_in_vain_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.img");
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let other = open(&volume("a", &format!("ram:1M,uuid={uuid}")), &[]).unwrap();
    let store = open(&volume("b", &format!("file:{},size=1M", path.display())), &[other]).unwrap();
    assert!(path.exists());
    store.discard();
    assert!(!path.exists());
    // One that was there has its length again.
    std::fs::write(&path, [7; 5000]).unwrap();
    let store = open(&volume("b", &format!("file:{},size=1M", path.display())), &[]).unwrap();
    assert_eq!((store.made, store.bytes), (Made::Growth(5000), 1 << 20));
    store.discard();
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
        let had = lock_in_time(lock, || paused += 1).is_ok();
        (had, paused)
    };
    assert_eq!(held(0), (true, 0));
    assert_eq!(held(LOCK_TRIES - 1), (true, LOCK_TRIES - 1));
    assert_eq!(held(u32::MAX), (false, LOCK_TRIES - 1));
    let refused =
        lock_in_time(|| Err(TryLockError::Error(io::ErrorKind::Other.into())), || panic!("it helps nobody"));
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
