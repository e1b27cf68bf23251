use proptest::prelude::*;

use super::*;
use crate::crc32c::crc32c;
use crate::{MemoryClass, Pool};

const LEN: usize = 3 * 4096 + 100;

fn region_of(bytes: &[u8]) -> RegionHandle {
    let region = Region::new(bytes.len());
    region.write(0, bytes);
    RegionHandle::new(Arc::new(region))
}

fn all_of(handle: &RegionHandle) -> Vec<u8> {
    let mut bytes = vec![0; handle.region().len()];
    handle.region().read(0, &mut bytes);
    bytes
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|n| (n * 7 % 251) as u8 + 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn a_region_is_as_a_slice(at in 0..LEN, len in 0..LEN, from in 0..LEN) {
        let mut model = pattern();
        let handle = region_of(&model);
        let len = len.min(LEN - at).min(LEN - from);

        handle.region().zero(at, len);
        model[at..at + len].fill(0);
        prop_assert_eq!(&all_of(&handle), &model);

        handle.region().write_buf(at, &handle.view(from, len));
        model.copy_within(from..from + len, at);
        prop_assert_eq!(&all_of(&handle), &model);

        let mut copied = vec![0; len];
        let mut crc = Crc32c::new();
        handle.region().read_with_crc(at, &mut copied, &mut crc);
        prop_assert_eq!(&copied[..], &model[at..at + len]);
        prop_assert_eq!(crc.value(), crc32c(&model[at..at + len]));
    }
}

#[test]
fn a_view_follows_the_region() {
    let handle = region_of(&pattern());
    let view = handle.view(10, 20);
    assert!(!view.is_stable() && view.stable_bytes().is_none());
    handle.region().write(10, &[9; 20]);
    let mut seen = [0; 20];
    view.slice(0..20).copy_to(0, &mut seen);
    assert_eq!(seen, [9; 20]);
}

#[test]
#[cfg_attr(miri, ignore = "the interpreter knows no copies that may race")]
fn racing_copies_give_mixtures_and_digests_of_what_was_copied() {
    let region = Arc::new(Region::new(LEN));
    let rounds = if cfg!(miri) { 3 } else { 300 };
    std::thread::scope(|scope| {
        let writer = region.clone();
        scope.spawn(move || (0..rounds).for_each(|n| writer.write(0, &[n as u8; LEN])));
        let mut copied = vec![0; LEN];
        for _ in 0..rounds {
            let mut crc = Crc32c::new();
            region.read_with_crc(0, &mut copied, &mut crc);
            assert_eq!(crc.value(), crc32c(&copied));
        }
    });
}

#[test]
fn access_outside_is_a_bug() {
    let region = Region::new(4096);
    let outside = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
    assert!(outside(&|| region.read(4096, &mut [0])));
    assert!(outside(&|| region.write(usize::MAX, &[0])));
    assert!(outside(&|| region.zero(1, 4096)));
}

/// What is too large for a cache is written past it, whole lines at least.
#[test]
#[cfg_attr(miri, ignore = "so large a region takes minutes")]
fn late_writes_are_as_others() {
    let region = Region::new(UNCACHED_REGION_MIN);
    let bytes = pattern();
    let mut seen = vec![0; bytes.len() + 128];
    for (at, len) in [(0, 4096), (4096 + 64, 64), (512, 0), (8192, 8256), (64, 63), (65, 4096), (4095, 2)] {
        for write in [0, 1] {
            region.write(0, &vec![0xee; 32 << 10]);
            let from = &bytes[3..3 + len];
            if write == 0 {
                region.write_non_temporal(4096 + at, from);
            } else {
                let pool = Pool::new(1 << 20);
                let mut buffer = pool.take(MemoryClass::Wire, len.max(1)).unwrap();
                buffer.set_len(len);
                buffer.copy_from_slice(from);
                region.write_buf(4096 + at, &buffer.freeze());
            }
            region.store_fence();
            let seen = &mut seen[..len + 128];
            region.read(4096 + at - 64, seen);
            assert_eq!(&seen[64..64 + len], from, "{len} bytes at {at}");
            assert!(seen[..64].iter().chain(&seen[64 + len..]).all(|byte| *byte == 0xee), "{len} at {at}");
        }
    }
    let end = UNCACHED_REGION_MIN - 4096;
    region.write_non_temporal(end, &bytes[..4096]);
    region.read(end, &mut seen[..4096]);
    assert_eq!(&seen[..4096], &bytes[..4096], "one's own core need not store_fence");
}

#[test]
#[should_panic(expected = "outside of a region")]
#[cfg_attr(miri, ignore = "so large a region takes minutes")]
fn no_late_write_ends_behind_a_region() {
    Region::new(UNCACHED_REGION_MIN).write_non_temporal(UNCACHED_REGION_MIN - 64, &[0; 128]);
}

#[test]
#[cfg_attr(miri, ignore = "the interpreter knows no mappings of files")]
fn a_region_of_a_file_is_shared() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    let path = std::env::temp_dir().join(format!("region-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(8192).unwrap();
    assert!(Region::map_file(file.as_fd(), 8193).is_err());
    assert!(Region::map_file(file.as_fd(), 0).is_err());
    let region = Region::map_file(file.as_fd(), 8192).unwrap();
    file.write_all_at(&[7; 8192], 0).unwrap();
    assert_eq!(region.load_u16(10), 0x0707);
    region.store_u16(10, 0x0102);
    region.zero(4096, 4096);
    let mut bytes = [0; 8192];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[10..12], 0x0102_u16.to_ne_bytes());
    assert!(bytes[4096..].iter().all(|&byte| byte == 0), "pages of a file are zeroed, not dropped");
}

/// KiB in memory of the mapping that holds this address, which is counted apart from what other tests use.
fn resident_kib(address: usize) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = false;
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((from, to)) = range.and_then(|(from, to)| Some((hex(from)?, hex(to)?))) {
            found = (from..to).contains(&address);
        }
        if let (true, Some(rest)) = (found, line.strip_prefix("Rss:")) {
            return rest.trim_end_matches("kB").trim().parse().unwrap();
        }
    }
    panic!("no mapping holds {address:#x}");
}

#[test]
fn zeroed_words_take_no_memory_until_they_are_written() {
    let words = SharedWords::zeroed(128 << 20);
    words[12345].store(5, Ordering::Relaxed);
    let taken = resident_kib(words.as_ptr() as usize);
    assert!(taken < 512 << 10, "{taken} KiB of 1 GiB");
    assert_eq!((words[12345].load(Ordering::Relaxed), words[99 << 20].load(Ordering::Relaxed)), (5, 0));
    assert_eq!((words.len(), SharedWords::zeroed(0).len()), (128 << 20, 0));
}

/// A memfd of so many bytes, which nobody can shorten if it is `sealed`.
#[cfg(not(miri))]
fn memfd(bytes: u64, sealed: bool) -> std::fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the name is a string of C; the descriptor is nobody else's.
    let file = unsafe {
        let made = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(made >= 0, "{}", io::Error::last_os_error());
        std::fs::File::from_raw_fd(made)
    };
    file.set_len(bytes).unwrap();
    if sealed {
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    }
    file
}

#[cfg(not(miri))]
#[test]
fn a_memfd_is_the_same_memory_for_all_and_gives_pages_back() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    const LEN: usize = 64 << 12;
    let file = memfd(LEN as u64, true);
    let (one, other) = (Region::map_memfd(file.as_fd()).unwrap(), Region::map_memfd(file.as_fd()).unwrap());
    one.write(100, &[7; 40_000]);
    let mut bytes = [0; 40_000];
    other.read(100, &mut bytes);
    assert_eq!(bytes, [7; 40_000]);
    let taken = file.metadata().unwrap().blocks();
    other.zero(0, 40_000);
    // To read them takes them again.
    assert!(file.metadata().unwrap().blocks() < taken, "whole pages go back to the system");
    one.read(0, &mut bytes);
    assert_eq!(bytes, [0; 40_000]);
    let words = SharedWords::in_region(Arc::new(one), LEN - 4096, 512);
    let again = SharedWords::in_region(Arc::new(other), LEN - 4096, 512);
    words[3].store(9, Ordering::Release);
    assert_eq!((again[3].load(Ordering::Acquire), again.len()), (9, 512));
}

#[cfg(not(miri))]
#[test]
fn a_memfd_that_may_be_shortened_is_not_mapped() {
    use std::os::fd::AsFd;
    for file in [memfd(4096, false), memfd(0, true)] {
        let why = Region::map_memfd(file.as_fd()).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidInput);
    }
}
