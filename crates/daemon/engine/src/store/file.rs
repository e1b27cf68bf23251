//! Opens or creates a file, and locks it against other processes.

use std::{
    fs::{File, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
    thread,
    time::Duration,
};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, Statx, StatxFlags};
use uuid::Uuid;

use super::{
    CreatedFile, FindHolder, Store, handed,
    open_error::{HandOverMismatch, OpenErrorReason},
};
use crate::state::{file_identity::FileIdentity, sync_parent_directory};
use config::{plan::Volume, spec::VolumeSource};
use process::log::area;

/// Physical block of a file where nothing is said: what file systems allocate by.
const FILE_PHYSICAL_BLOCK_BYTES: u32 = 4096;
/// Largest block by which file systems count what holds data.
const FILE_BLOCK_MAX: u64 = 64 << 10;
/// How often a lock that another process has is asked for: 2 s long. One that was killed has its files until
/// the last of what it asked of the disk has ended.
pub(super) const LOCK_TRIES: u32 = if cfg!(test) { 3 } else { 200 };
/// How long to wait before a lock is asked for again.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn open_file(
    volume: &Volume,
    path: &Path,
    may_make: bool,
    holder: FindHolder<'_>,
) -> Result<Store, OpenErrorReason> {
    let spec = &volume.spec;
    let created = match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(OpenErrorReason::NotAFile(path.to_owned())),
        Ok(_) => false,
        Err(why) if why.kind() == io::ErrorKind::NotFound && spec.size.is_some() && !spec.read_only => {
            if !may_make {
                return Err(OpenErrorReason::Gone(path.to_owned(), volume.name.clone()));
            }
            true
        }
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            return Err(OpenErrorReason::Missing(path.to_owned()));
        }
        Err(why) => return Err(OpenErrorReason::Io("look at", path.to_owned(), why)),
    };
    let open = |new| open_options(volume).create_new(new).mode(0o600).open(path);
    let (file, created) = match open(created) {
        // Somebody else has made it meanwhile: then it is theirs, if they have its lock.
        Err(why) if created && why.kind() == io::ErrorKind::AlreadyExists => (open(false), false),
        opened => (opened, created),
    };
    let file = file.and_then(clear_nonblocking).map_err(|why| open_error(path, why))?;
    let (file, is_handed) = handed::instead_of(file);
    // The open file is judged, not what its name led to before.
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(OpenErrorReason::NotAFile(path.to_owned()));
    }
    let is_to_grow = |want| file.metadata().is_ok_and(|meta| meta.len() < want);
    if is_handed && !spec.read_only && spec.size.is_some_and(is_to_grow) {
        return Err(OpenErrorReason::HandOver(HandOverMismatch::Larger(path.to_owned())));
    }
    let made = if created { file.try_clone().ok() } else { None };
    let undo = |why| {
        // Who has the lock has found it, and may serve it.
        let is_ours = |file: &File| path_is_file(path, file) && is_zero_from(file, 0);
        if !matches!(why, OpenErrorReason::Locked(_)) && made.as_ref().is_some_and(is_ours) {
            let _ = std::fs::remove_file(path);
        }
        why
    };
    let store = lock_and_measure(volume, path, file, holder).map_err(&undo)?;
    match sync_parent_directory(path) {
        Err(why) if created => {
            return Err(undo(OpenErrorReason::Io("sync the directory of", path.to_owned(), why)));
        }
        // It may have been made by a daemon that was killed before it came so far. Where the directory is read-only or
        // not ours to look at, that is not so.
        Err(why) if !spec.read_only => {
            tracing::debug!(target: area::VOLUME, %why, path = %path.display(), "the directory of a volume's file is not synced");
        }
        Ok(()) | Err(_) => {}
    }
    Ok(Store { made: if created { CreatedFile::File } else { store.made }, is_handed, ..store })
}

/// Whether the name leads to the open file still.
pub(super) fn path_is_file(path: &Path, file: &File) -> bool {
    let both = std::fs::metadata(path).and_then(|named| Ok((named, file.metadata()?)));
    both.is_ok_and(|(named, open)| (named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Whether a file holds nothing but zeroes from an offset on: nothing was written there, or it was given back.
pub(super) fn is_zero_from(file: &File, from: u64) -> bool {
    // Systems count data by blocks: within that of the offset what was there before is looked past.
    let rest = from.next_multiple_of(FILE_BLOCK_MAX) - from;
    let mut bytes = Vec::new();
    // A descriptor without O_DIRECT, which reads any length.
    let read = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).and_then(|mut own| {
        own.seek(SeekFrom::Start(from))?;
        own.take(rest).read_to_end(&mut bytes)
    });
    let behind = rustix::fs::SeekFrom::Data(from + rest);
    read.is_ok()
        && bytes.iter().all(|byte| *byte == 0)
        && matches!(rustix::fs::seek(file, behind), Err(rustix::io::Errno::NXIO))
}

/// Locks an open file, gives it its size and reads what it is like.
pub(super) fn lock_and_measure(
    volume: &Volume,
    path: &Path,
    file: File,
    holder: FindHolder<'_>,
) -> Result<Store, OpenErrorReason> {
    let spec = &volume.spec;
    let failed = |what| move |why| OpenErrorReason::Io(what, path.to_owned(), why);
    let meta = statx(&file).map_err(failed("look at"))?;
    let key = FileIdentity::File {
        device: rustix::fs::makedev(meta.stx_dev_major, meta.stx_dev_minor),
        inode: meta.stx_ino,
        born: birth_time(&meta),
    };
    claim_file(path, &file, &key, spec.read_only, holder)?;
    // Who made it may have removed it again before it gave up the lock.
    if !path_is_file(path, &file) {
        return Err(OpenErrorReason::Moved(path.to_owned()));
    }
    let before = file.metadata().map_err(failed("look at"))?.len();
    let grown = spec.size.filter(|want| *want > before && !spec.read_only);
    let length = grown.unwrap_or(before);
    let bytes = length - length % u64::from(spec.block);
    if bytes == 0 {
        return Err(OpenErrorReason::Empty(path.to_owned()));
    }
    let known = StatxFlags::from_bits_retain(meta.stx_mask).contains(StatxFlags::DIOALIGN);
    let (memory_align, offset_align) = match (meta.stx_dio_mem_align, meta.stx_dio_offset_align) {
        (_, 0) if known && spec.direct => return Err(OpenErrorReason::NoDirect(path.to_owned())),
        // Before Linux 6.1 nobody says; a page suits every file system.
        (_, 0) => (FILE_PHYSICAL_BLOCK_BYTES, FILE_PHYSICAL_BLOCK_BYTES),
        (memory, offset) => (memory.max(1), offset),
    };
    // The last that can fail, so that nothing is to be undone here but itself.
    if grown.is_some() {
        file.set_len(length).and_then(|()| file.sync_all()).map_err(|why| {
            let _ = file.set_len(before);
            failed("grow")(why)
        })?;
    }
    let punch = !spec.read_only && can_punch(&file, length);
    Ok(Store {
        volume: volume.clone(),
        uuid: Uuid::nil(),
        bytes,
        physical: spec.physical.unwrap_or(FILE_PHYSICAL_BLOCK_BYTES.max(spec.block)),
        memory_align,
        offset_align,
        punch,
        file: Some(file),
        memory: None,
        image: None,
        slot: None,
        export: None,
        key: Some(key),
        remote: None,
        legs: Vec::new(),
        made: if grown.is_some() { CreatedFile::Growth(before) } else { CreatedFile::Nothing },
        in_doubt: false,
        is_handed: false,
    })
}

pub(super) fn open_options(volume: &Volume) -> std::fs::OpenOptions {
    let spec = &volume.spec;
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    if spec.direct {
        flags |= OFlags::DIRECT;
    }
    // For a device, O_EXCL without O_CREAT asks the kernel whether the system itself uses it.
    if matches!(spec.source, VolumeSource::Device(_)) && !spec.read_only {
        flags |= OFlags::EXCL;
    }
    let mut options = File::options();
    options.read(true).write(!spec.read_only).custom_flags(flags.bits() as i32);
    options
}

/// Opening waits for nobody, but what is open has no call return for want of waiting: devices that are made of
/// others (dm-crypt, thin) would answer with EAGAIN for ever.
pub(super) fn clear_nonblocking(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

pub(super) fn open_error(path: &Path, why: io::Error) -> OpenErrorReason {
    match why.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::BUSY) => OpenErrorReason::InUseBySystem(path.to_owned()),
        Some(rustix::io::Errno::INVAL) => OpenErrorReason::NoDirect(path.to_owned()),
        _ => OpenErrorReason::Io("open", path.to_owned(), why),
    }
}

/// Refuses aliases within this process and locks against others.
pub(super) fn claim_file(
    path: &Path,
    file: &File,
    key: &FileIdentity,
    read_only: bool,
    holder: FindHolder<'_>,
) -> Result<(), OpenErrorReason> {
    if let Some(other) = holder(key) {
        return Err(OpenErrorReason::Alias(path.to_owned(), other));
    }
    let lock = || if read_only { file.try_lock_shared() } else { file.try_lock() };
    lock_with_timeout(lock, || thread::sleep(LOCK_RETRY_INTERVAL)).map_err(|why| match why {
        TryLockError::WouldBlock => OpenErrorReason::Locked(path.to_owned()),
        TryLockError::Error(why) => OpenErrorReason::Io("lock", path.to_owned(), why),
    })
}

/// Asks for a lock until it is had, or another process has had it for too long.
pub(super) fn lock_with_timeout(
    mut lock: impl FnMut() -> Result<(), TryLockError>,
    mut pause: impl FnMut(),
) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match lock() {
            Err(TryLockError::WouldBlock) => pause(),
            done => return done,
        }
    }
    lock()
}

/// Whether holes can be punched, tried where there is nothing: behind the end of the file, which is `length` bytes
/// long with what fills no block.
fn can_punch(file: &File, length: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, length.next_multiple_of(1 << 20), 1 << 20).is_ok()
}

fn statx(file: &File) -> io::Result<Statx> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::DIOALIGN;
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, want)?)
}

fn birth_time(meta: &Statx) -> Option<u64> {
    let known = StatxFlags::from_bits_retain(meta.stx_mask).contains(StatxFlags::BTIME);
    let seconds = u64::try_from(meta.stx_btime.tv_sec).ok()?;
    known.then(|| seconds.saturating_mul(1_000_000_000).saturating_add(meta.stx_btime.tv_nsec.into()))
}
