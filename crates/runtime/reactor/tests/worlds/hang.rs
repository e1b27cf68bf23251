//! Disks that never answer: files of a FUSE server that accepts reads and does not answer them.

use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::endpoint::ShardId;
use blockwire_reactor::IoChoice;

use super::{Msg, Step, config, disk, end, spawn, temp_file};

/// Opcodes of linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// A file system whose files are opened, and never read. When it is dropped, everything that waits for it fails.
struct Hanging {
    /// Files are not closed either.
    silent: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.server.take().unwrap().join().unwrap();
    }
}

/// Such a file system and `count` of its files; `None` where there is no leave to mount, which is said.
fn hanging(count: usize) -> Option<(Hanging, Vec<File>)> {
    let at: PathBuf = std::env::temp_dir().join(format!(
        "blockwire-reactor-hang-{}-{:?}",
        std::process::id(),
        Instant::now()
    ));
    std::fs::create_dir(&at).unwrap();
    let mounted = mount(&at);
    let made = mounted.map(|device| {
        let (silent, over) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let told = (silent.clone(), over.clone());
        let server = Some(std::thread::spawn(move || serve(device, &told.0, &told.1)));
        let hanging = Hanging { silent, over, server };
        let files = (0..count).map(|number| File::open(at.join(number.to_string())).unwrap()).collect();
        // The files stay; so nothing is left behind, whatever comes of the test.
        // SAFETY: the path is a string that ends in zero.
        assert_eq!(unsafe { libc::umount2(path(&at).as_ptr(), libc::MNT_DETACH) }, 0);
        (hanging, files)
    });
    std::fs::remove_dir(&at).unwrap();
    made.inspect_err(|why| eprintln!("not tried, since FUSE cannot be mounted: {why}")).ok()
}

fn path(at: &std::path::Path) -> std::ffi::CString {
    std::ffi::CString::new(at.to_str().unwrap()).unwrap()
}

fn mount(at: &std::path::Path) -> Result<File, Error> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let (source, kind, flags) = (c"blockwire-test", c"fuse", libc::MS_NOSUID | libc::MS_NODEV);
    // SAFETY: all of these are strings that end in zero.
    let came = unsafe {
        libc::mount(source.as_ptr(), path(at).as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    if came == 0 { Ok(device) } else { Err(Error::last_os_error()) }
}

/// Answers until it is over. Then the device is closed, by which what waits for an answer fails.
fn serve(mut device: File, silent: &AtomicBool, over: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    while !over.load(Ordering::Relaxed) {
        let mut poll = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry of our own.
        if unsafe { libc::poll(&raw mut poll, 1, 20) } <= 0 {
            continue;
        }
        let Ok(len) = device.read(&mut request) else { return };
        let request = &request[..len];
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let answer = match word(4) {
            FORGET | INTERRUPT | READ | FSYNC => continue,
            FLUSH if silent.load(Ordering::Relaxed) => continue,
            FLUSH => Ok(Vec::new()),
            INIT => Ok(init()),
            LOOKUP => Ok([[2u64, 0, 1, 1, 0].map(u64::to_le_bytes).concat(), attributes(false)].concat()),
            GETATTR => {
                let is_root = request[16..24] == 1u64.to_le_bytes();
                Ok([[1u64, 0].map(u64::to_le_bytes).concat(), attributes(is_root)].concat())
            }
            // FOPEN_DIRECT_IO: not through the page cache.
            OPEN => Ok([1u64, 1].map(u64::to_le_bytes).concat()),
            _ => Err(libc::ENOSYS),
        };
        let (error, data) = answer.map_or_else(|error| (-error, Vec::new()), |data| (0, data));
        let mut reply = (16 + data.len() as u32).to_le_bytes().to_vec();
        reply.extend_from_slice(&error.to_le_bytes());
        reply.extend_from_slice(&request[8..16]);
        reply.extend_from_slice(&data);
        let _ = device.write_all(&reply);
    }
}

/// struct fuse_init_out: version 7.31, as many requests in the background as one likes.
fn init() -> Vec<u8> {
    let words = [7u32, 31, 0, 0, 0xffff_ffff, 4096, 1];
    let mut out = words.map(u32::to_le_bytes).concat();
    out.resize(64, 0);
    out
}

/// struct fuse_attr: a file of a mebibyte, or the root.
fn attributes(is_root: bool) -> Vec<u8> {
    let mode: u32 = if is_root { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let mut out = [2u64, 1 << 20, 2048, 0, 0, 0].map(u64::to_le_bytes).concat();
    out.extend_from_slice(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat());
    out
}

/// More reads than a disk is given at a time, of several disks: another disk is read, written and synced meanwhile.
pub fn disks_that_never_answer_keep_no_other_waiting(io: IoChoice) {
    const READS: u64 = 300;
    let world = spawn(config(io));
    let Some((hanging, mut files)) = hanging(4) else { return end(world) };
    let (to, from) = channel();
    let unused = world.add_disk(files.remove(0).into()).unwrap();
    for file in files {
        let hung = world.add_disk(file.into()).unwrap();
        for at in 0..READS {
            world.post(ShardId(0), Msg::Disk(hung, Step::Read(at * 512, 512), to.clone()));
        }
    }
    drop(to);
    hanging.silent.store(true, Ordering::Relaxed);
    world.remove_disk(unused);
    let file = temp_file();
    file.set_len(1 << 20).unwrap();
    let other = world.add_disk(file.into()).unwrap();
    for _ in 0..20 {
        disk(&world, other, Step::Write(0, vec![5; 512], true)).unwrap();
        disk(&world, other, Step::Sync).unwrap();
        disk(&world, other, Step::Punch(4096, 4096)).unwrap();
        assert_eq!(disk(&world, other, Step::Read(0, 512)).unwrap(), vec![5; 512]);
    }
    assert_eq!(from.recv_timeout(Duration::ZERO).err(), Some(RecvTimeoutError::Timeout), "they were to hang");
    // Who stops it need not wait for them for ever.
    world.stop(Duration::ZERO);
    assert!(!world.join_within(Duration::from_millis(200)).unwrap());
    drop(hanging);
    let ends: Vec<_> = from.iter().collect();
    assert_eq!(ends.len() as u64, 3 * READS);
    assert!(ends.iter().all(Result::is_err), "none was answered");
    world.join().unwrap();
}

/// Files whose locks are held: each by a thread that writes memory which is not there yet, as userfaultfd has it. When
/// it is dropped, the memory comes.
struct Held {
    faults: Option<OwnedFd>,
    writers: Vec<JoinHandle<isize>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.faults = None;
        for writer in self.writers.drain(..) {
            assert_eq!(writer.join().unwrap(), PAGE as isize);
        }
    }
}

const PAGE: usize = 4096;

/// What the three requests of linux/userfaultfd.h look like: `struct uffdio_api`, `struct uffdio_register`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;

/// `count` such files; `None` where there is no leave, which is said.
fn held(count: usize) -> Option<(Held, Vec<File>)> {
    // SAFETY: no pointers are passed.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if faults < 0 {
        eprintln!("not tried, since there is no userfaultfd: {}", Error::last_os_error());
        return None;
    }
    // SAFETY: just made, and nobody else's.
    let mut faults = File::from(unsafe { OwnedFd::from_raw_fd(faults as i32) });
    let (flags, protection) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, which stays for good.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, protection, flags, -1, 0) } as usize;
    let mut api = [0xaau64, 0, 0];
    // The range, and UFFDIO_REGISTER_MODE_MISSING.
    let mut range = [memory as u64, (count * PAGE) as u64, 1, 0];
    // SAFETY: the calls read and fill what is our own.
    let came = unsafe {
        libc::ioctl(faults.as_raw_fd(), UFFDIO_API as _, api.as_mut_ptr())
            | libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER as _, range.as_mut_ptr())
    };
    assert_eq!(came, 0, "{}", Error::last_os_error());
    let files: Vec<File> = (0..count).map(|_| temp_file()).collect();
    let write = |(at, file): (usize, &File)| {
        let (file, from) = (file.try_clone().unwrap(), memory + at * PAGE);
        // SAFETY: the memory stays for good.
        std::thread::spawn(move || unsafe { libc::pwrite(file.as_raw_fd(), from as *const _, PAGE, 0) })
    };
    let writers = files.iter().enumerate().map(write).collect();
    // A message of 32 bytes for each thread that waits.
    for _ in 0..count {
        faults.read_exact(&mut [0; 32]).unwrap();
    }
    Some((Held { faults: Some(faults.into()), writers }, files))
}

/// As many disks hang as the kernel has workers for a ring by itself, each with one write.
pub fn many_disks_that_never_answer_leave_workers_to_others(io: IoChoice) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let world = spawn(config(io));
    let Some((held, files)) = held(4 * cores + 4) else { return end(world) };
    let (to, from) = channel();
    for file in files {
        let hung = world.add_disk(file.into()).unwrap();
        world.post(ShardId(0), Msg::Disk(hung, Step::Write(0, vec![1; 512], false), to.clone()));
    }
    drop(to);
    // No write: see `uring/depth.rs`.
    let other = world.add_disk(temp_file().into()).unwrap();
    disk(&world, other, Step::Sync).unwrap();
    assert_eq!(from.recv_timeout(Duration::ZERO).err(), Some(RecvTimeoutError::Timeout), "they were to hang");
    drop(held);
    assert!(from.iter().take(4 * cores + 4).all(|came| came.is_ok()));
    end(world);
}
