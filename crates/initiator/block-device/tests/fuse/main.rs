//! The FUSE server with this machine's kernel: the file, the loop device over it, a file system on that.
//! Without /dev/fuse, or without permission to mount, the tests print that and do nothing.

mod foreign_mounts;
#[path = "../support/mod.rs"]
mod support;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockwire_block_device::{ServerStop, Statistics, fuse};
use foreign_mounts::mount_tmpfs;
use support::{Behaviour, RamVolume, behaviours, verifying};
use testkit::watchdog::{self, Watchdog, set_stage};
use volume::RamDisk;

const MIB: u64 = 1 << 20;

/// A server on a thread of its own.
struct Server {
    dir: PathBuf,
    file: PathBuf,
    device: Option<PathBuf>,
    disk: Arc<RamDisk>,
    stop: ServerStop,
    statistics: Arc<Statistics>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    /// Last: it lives until the thread has ended.
    _watch: Watchdog,
}

impl Server {
    /// `None`: this machine does not let us.
    fn start(
        mib: u64,
        logical: u32,
        mood: Behaviour,
        loop_devices: fuse::LoopDevicePolicy,
    ) -> Option<Server> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("attach-fuse-{}-{n}", std::process::id()));
        let blocks = mib * MIB / u64::from(logical);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let stop = ServerStop::new().unwrap();
        let settings = fuse::Settings { loop_devices, ..fuse::Settings::new(&dir) };
        let watch = Watchdog::new();
        let mut server = match fuse::Server::new(settings) {
            Ok(server) => server,
            Err(error) => {
                eprintln!("not tried: {error}");
                return None;
            }
        };
        watch.watch_mount(&dir);
        set_stage("the server begins to serve");
        let statistics = server.io_counters();
        let (its_disk, its_stop) = (disk.clone(), stop.clone());
        let (say, said) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut volume = RamVolume::new(its_disk, mood);
            server.run(&mut volume, &its_stop, &mut |place| {
                if let Some(why) = place.why {
                    eprintln!("no loop device: {why}");
                }
                say.send((place.file.to_owned(), place.device.map(Path::to_owned))).unwrap();
                Ok(())
            })
        });
        let (file, device) = said.recv_timeout(Duration::from_secs(20)).expect("it is ready");
        Some(Server { dir, file, device, disk, stop, statistics, thread: Some(thread), _watch: watch })
    }

    /// With a loop device, or not at all.
    fn with_device(mib: u64, logical: u32, mood: Behaviour) -> Option<(Server, PathBuf)> {
        let server = Server::start(mib, logical, mood, fuse::LoopDevicePolicy::IfAllowed)?;
        let device = server.device.clone()?;
        Some((server, device))
    }

    fn end(&mut self) -> std::io::Result<()> {
        set_stage("the server ends, once nobody uses it");
        self.stop.request_stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request_stop();
        self.stop.request_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a foreign program; what it says must be a success.
fn run(program: &str, args: &[&str]) -> String {
    set_stage(format!("{program} {}", args.join(" ")));
    let out = watchdog::run_for_output(Command::new(program).args(args))
        .unwrap_or_else(|error| panic!("{program}: {error}; `tests/setup.sh attach` installs it"));
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {}\n{said}", out.status);
    said
}

/// Takes a mount away again, whatever happens.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, at: PathBuf) -> Mounted {
        std::fs::create_dir_all(&at).unwrap();
        run("mount", &[text(device), text(&at)]);
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        watchdog::unmount(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_file_system_lives_on_the_loop_device() {
    for (logical, mood) in behaviours() {
        let Some((mut server, device)) = Server::with_device(96, logical, mood) else { return };
        assert_eq!(
            run("blockdev", &["--getss", "--getsize64", text(&device)]),
            format!("{logical}\n{}\n", 96 * MIB)
        );
        run("mkfs.ext4", &["-q", "-E", "discard", text(&device)]);
        let at = server.dir.with_extension("mnt");
        let mounted = Mounted::new(&device, at.clone());
        let mut noise = vec![0; 24 << 20];
        File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
        set_stage("files are written and synced");
        std::fs::write(at.join("noise"), &noise).unwrap();
        File::open(at.join("noise")).unwrap().sync_all().unwrap();
        std::fs::write(at.join("gone"), &noise).unwrap();
        std::fs::remove_file(at.join("gone")).unwrap();
        run("fstrim", &[text(&at)]);
        drop(mounted);
        run("fsck.ext4", &["-f", "-n", text(&device)]);
        // All of it is on the volume, not in a cache: mounted again it is there.
        let mounted = Mounted::new(&device, at.clone());
        set_stage("files are read back");
        assert!(std::fs::read(at.join("noise")).unwrap() == noise);
        drop(mounted);
        let counted = server.statistics.snapshot();
        assert!(counted.flushes > 0 && counted.discards > 0 && counted.failures == 0, "{counted:?}");
        server.end().unwrap();
        assert!(!server.dir.exists(), "the place is gone");
        let left = std::fs::read_to_string(
            Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file"),
        );
        assert!(!left.is_ok_and(|file| file.contains(text(&server.dir))), "the loop device is free");
    }
}

#[test]
fn fio_verifies_with_many_requests_in_flight() {
    for (logical, mood) in behaviours() {
        let Some((server, device)) = Server::with_device(64, logical, mood) else { return };
        for place in [&device, &server.file] {
            let own = format!(
                "--ioengine=libaio --direct=1 --bsrange=4k-256k --allow_mounted_write=0 --filename={}",
                text(place)
            );
            let said = run("fio", &verifying(&own));
            assert!(!said.contains("verify:"), "{said}");
        }
    }
}

#[test]
fn any_bytes_of_the_file_can_be_written_and_read() {
    for (logical, mood) in behaviours() {
        let Some(server) = Server::start(4, logical, mood, fuse::LoopDevicePolicy::Never) else { return };
        assert!(server.device.is_none());
        let file = File::options().read(true).write(true).open(&server.file).unwrap();
        let mut model = vec![0_u8; 4 << 20];
        for n in 0..60_usize {
            let (at, len) = (n * 70_001 % (3 << 20), n * 7919 % 200_000 + 1);
            let bytes = vec![n as u8 + 1; len];
            file.write_all_at(&bytes, at as u64).unwrap();
            model[at..at + len].copy_from_slice(&bytes);
        }
        let mut back = vec![0; 4 << 20];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == model);
        let mut some = vec![0; 12_345];
        file.read_exact_at(&mut some, 777).unwrap();
        assert!(some[..] == model[777..777 + 12_345]);
        // The end is the volume's.
        assert_eq!(file.read_at(&mut some, 4 * MIB).unwrap(), 0);
        assert_eq!(file.read_at(&mut some, 4 * MIB - 5).unwrap(), 5);
        assert_eq!(file.write_at(&some, 4 * MIB - 7).unwrap(), 7);
        let full = file.write_at(&some, 4 * MIB).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        // Truncating changes nothing.
        drop(File::create(&server.file).unwrap());
        assert_eq!(std::fs::metadata(&server.file).unwrap().len(), 4 * MIB);
        let names: Vec<_> =
            std::fs::read_dir(&server.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["volume"]);
        assert!(File::create(server.dir.join("other")).is_err());
    }
}

#[test]
fn holes_are_punched_found_and_zero() {
    let Some(server) = Server::start(8, 512, Behaviour::default(), fuse::LoopDevicePolicy::Never) else {
        return;
    };
    let mut file = File::options().read(true).write(true).open(&server.file).unwrap();
    let seek = |file: &mut File, at: i64, whence| {
        // SAFETY: a call without memory.
        let found = unsafe { libc::lseek(std::os::fd::AsRawFd::as_raw_fd(file), at, whence) };
        u64::try_from(found).map_err(|_| std::io::Error::last_os_error().raw_os_error())
    };
    assert_eq!(seek(&mut file, 0, libc::SEEK_DATA), Err(Some(libc::ENXIO)));
    assert_eq!(seek(&mut file, 0, libc::SEEK_HOLE), Ok(0));
    file.write_all_at(&[1; 3 << 20], MIB).unwrap();
    assert_eq!(seek(&mut file, 5, libc::SEEK_DATA), Ok(MIB));
    assert_eq!(seek(&mut file, MIB as i64 + 5, libc::SEEK_HOLE), Ok(4 * MIB));
    let path = text(&server.file);
    run("fallocate", &["--punch-hole", "--offset", "1572865", "--length", "1048576", path]);
    run("fallocate", &["--zero-range", "--keep-size", "--offset", "3145728", "--length", "5000", path]);
    assert_eq!(seek(&mut file, MIB as i64, libc::SEEK_HOLE), Ok(1_572_864 + 4096));
    assert_eq!(seek(&mut file, 8 * MIB as i64 - 1, libc::SEEK_DATA), Err(Some(libc::ENXIO)));
    let mut bytes = vec![9; 8 << 20];
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    for (at, byte) in bytes.into_iter().enumerate() {
        let at = at as u64;
        let punched =
            (1_572_865..1_572_865 + MIB).contains(&at) || (3_145_728..3_145_728 + 5000).contains(&at);
        assert_eq!(byte, u8::from((MIB..4 * MIB).contains(&at) && !punched), "byte {at}");
    }
}

#[test]
fn a_volume_that_grows_grows_the_device() {
    let Some((server, device)) = Server::with_device(32, 512, Behaviour::default()) else { return };
    run("mkfs.ext4", &["-q", text(&device)]);
    let mounted = Mounted::new(&device, server.dir.with_extension("mnt"));
    assert!(server.disk.resize(64 * MIB / 512));
    // Any request lets the server look.
    File::open(&server.file).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while run("blockdev", &["--getsize64", text(&device)]).trim() != (64 * MIB).to_string() {
        assert!(Instant::now() < until, "the device has its old size");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(std::fs::metadata(&server.file).unwrap().len(), 64 * MIB);
    // Resizing under a mount takes a capability that not every machine gives.
    drop(mounted);
    run("e2fsck", &["-f", "-y", text(&device)]);
    run("resize2fs", &[text(&device)]);
    let mounted = Mounted::new(&device, server.dir.with_extension("mnt"));
    std::fs::write(mounted.0.join("large"), vec![7; 40 << 20]).unwrap();
    assert!(std::fs::read(mounted.0.join("large")).unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn what_may_only_be_read_is_not_written() {
    let mood = Behaviour { read_only: true, ..Behaviour::default() };
    let Some(server) = Server::start(1, 512, mood, fuse::LoopDevicePolicy::IfAllowed) else { return };
    assert!(File::options().write(true).open(&server.file).is_err());
    let mut bytes = [1; 512];
    File::open(&server.file).unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 512]);
    if let Some(device) = &server.device {
        assert_eq!(run("blockdev", &["--getro", text(device)]).trim(), "1");
    }
}

#[test]
fn failures_are_told_and_the_end_of_the_disk_too() {
    let mood = Behaviour { shuffle: Some(2), ..Behaviour::default() };
    let Some(mut server) = Server::start(1, 512, mood.clone(), fuse::LoopDevicePolicy::Never) else { return };
    let file = File::options().read(true).write(true).open(&server.file).unwrap();
    mood.fails.store(true, Ordering::Relaxed);
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.write_at(&[0; 512], 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    mood.fails.store(false, Ordering::Relaxed);
    file.write_all_at(&[1; 512], 0).unwrap();
    mood.stuck.store(true, Ordering::Relaxed);
    let reader = file.try_clone().unwrap();
    let waiting = std::thread::spawn(move || reader.read_at(&mut [0; 512], 0));
    std::thread::sleep(Duration::from_millis(200));
    mood.gone.store(true, Ordering::Relaxed);
    assert_eq!(waiting.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(server.thread.take().unwrap().join().unwrap().is_err());
    assert!(file.read_at(&mut [0; 512], 0).is_err());
}

#[test]
fn a_killed_reader_does_not_wait_for_a_stuck_disk() {
    let mood = Behaviour { shuffle: Some(2), ..Behaviour::default() };
    let Some(server) = Server::start(1, 512, mood.clone(), fuse::LoopDevicePolicy::Never) else { return };
    mood.stuck.store(true, Ordering::Relaxed);
    let mut reader = Command::new("dd")
        .args([&format!("if={}", text(&server.file)), "of=/dev/null", "count=1"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(reader.try_wait().unwrap().is_none());
    reader.kill().unwrap();
    let begin = Instant::now();
    reader.wait().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    mood.stuck.store(false, Ordering::Relaxed);
    File::open(&server.file).unwrap().read_exact(&mut [0; 512]).unwrap();
}

#[test]
fn the_end_waits_for_users_unless_it_is_asked_twice() {
    let Some(mut server) = Server::start(1, 512, Behaviour::default(), fuse::LoopDevicePolicy::IfAllowed)
    else {
        return;
    };
    let mut file = File::options().read(true).write(true).open(&server.file).unwrap();
    server.stop.request_stop();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!server.dir.exists(), "nobody new finds it");
    file.write_all(&[5; 4096]).unwrap();
    assert!(!server.thread.as_ref().unwrap().is_finished());
    drop(file);
    server.thread.take().unwrap().join().unwrap().unwrap();
    let Some(mut server) = Server::start(1, 512, Behaviour::default(), fuse::LoopDevicePolicy::Never) else {
        return;
    };
    let file = File::open(&server.file).unwrap();
    server.stop.request_stop();
    server.stop.request_stop();
    server.thread.take().unwrap().join().unwrap().unwrap();
    assert!(file.read_at(&mut [0; 512], 0).is_err());
}

const CHILD: &str = "ATTACH_FUSE_CHILD";

/// Not a test but a process of its own, when another test wants it: serves until it is killed.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let disk = Arc::new(RamDisk::new(2048, 2048, 512, 4096));
    let settings = fuse::Settings { loop_devices: fuse::LoopDevicePolicy::Never, ..fuse::Settings::new(dir) };
    let mut server = fuse::Server::new(settings).unwrap();
    let mut volume = RamVolume::new(disk, Behaviour::default());
    server.run(&mut volume, &ServerStop::new().unwrap(), &mut |_| Ok(())).unwrap();
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_killed_process_left_is_cleaned() {
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-killed", std::process::id()));
    let place = |server: &std::io::Result<fuse::Server>| server.as_ref().err().map(ToString::to_string);
    let probe = fuse::Server::new(fuse::Settings::new(&dir));
    if let Some(error) = place(&probe) {
        eprintln!("not tried: {error}");
        return;
    }
    drop(probe);
    let watch = Watchdog::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = Killed(command.args(["--exact", "child"]).env(CHILD, &dir).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::metadata(dir.join("volume")).is_ok_and(|file| file.len() == MIB) {
        assert!(Instant::now() < until, "it serves");
        std::thread::sleep(Duration::from_millis(20));
    }
    watch.watch_mount(&dir);
    set_stage("its process is killed");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let dead = File::open(dir.join("volume")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    assert!(fuse::unmount_dead(&dir).unwrap());
    assert!(!fuse::unmount_dead(&dir).unwrap(), "nothing is left to clean");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
}

fn rustix_is_root() -> bool {
    // SAFETY: it always succeeds and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// A process that is gone, whose descriptors somebody holds.
fn orphan(dir: &Path, disk: &Arc<RamDisk>) -> Option<(std::os::fd::OwnedFd, fuse::MountHandover)> {
    let settings = fuse::Settings { loop_devices: fuse::LoopDevicePolicy::Never, ..fuse::Settings::new(dir) };
    let server = Box::leak(Box::new(fuse::Server::new(settings).unwrap()));
    let mut kept = None;
    let mut volume = RamVolume::new(disk.clone(), Behaviour::default());
    let stop = ServerStop::new().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        server.run(&mut volume, &stop, &mut |place| {
            kept = place.kept.map(|keep| (keep.fuse.try_clone_to_owned().unwrap(), keep.facts));
            std::panic::panic_any("it is gone")
        })
    }));
    assert!(ended.is_err());
    kept
}

#[test]
fn a_recovery_that_fails_takes_nothing_away() {
    if !rustix_is_root() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-orphan", std::process::id()));
    let watch = Watchdog::new();
    let disk = Arc::new(RamDisk::new(2048, 2048, 512, 4096));
    let Some((fuse, facts)) = orphan(&dir, &disk) else {
        eprintln!("not tried: it needs Linux 6.9");
        fuse::unmount_dead(&dir).unwrap();
        return;
    };
    watch.watch_mount(&dir);
    let recover = |ready: &mut dyn FnMut(fuse::MountedFile<'_>) -> std::io::Result<()>, stop: &ServerStop| {
        let settings =
            fuse::Settings { loop_devices: fuse::LoopDevicePolicy::Never, ..fuse::Settings::new(&dir) };
        let kept = fuse::InheritedMount { fuse: fuse.try_clone().unwrap(), device: None, facts };
        let mut volume = RamVolume::new(disk.clone(), Behaviour::default());
        fuse::Server::recover(settings, kept).unwrap().run(&mut volume, stop, ready)
    };
    let is_mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(text(&dir));
    let stop = ServerStop::new().unwrap();
    assert!(recover(&mut |_| Err(std::io::ErrorKind::StorageFull.into()), &stop).is_err());
    assert!(is_mounted(), "who failed has taken it away");
    // The next one serves, until it is told to end.
    let mut served = false;
    let mut ready = |_: fuse::MountedFile<'_>| {
        served = true;
        stop.request_stop();
        Ok(())
    };
    recover(&mut ready, &stop).unwrap();
    assert!(served && !is_mounted() && !dir.exists());
}

#[test]
fn a_test_that_hangs_is_freed_and_fails_at_its_stage() {
    let mood = Behaviour { shuffle: Some(2), ..Behaviour::default() };
    let Some(server) = Server::start(1, 512, mood.clone(), fuse::LoopDevicePolicy::Never) else { return };
    if !rustix_is_root() {
        return;
    }
    let watch = Watchdog::with_limit(Duration::from_millis(300));
    watch.watch_mount(&server.dir);
    mood.stuck.store(true, Ordering::Relaxed);
    set_stage("reads what never comes");
    let reader = Command::new("dd").args([&format!("if={}", text(&server.file)), "of=/dev/null"]).output();
    assert!(!reader.unwrap().status.success());
    // Nor does a program that ends by itself never.
    let sleeper = watchdog::run_for_output(Command::new("sleep").arg("1000"));
    assert!(!sleeper.unwrap().status.success());
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(watch))).unwrap_err();
    let said = failed.downcast_ref::<String>().map(String::as_str);
    assert_eq!(said, Some("it took too long at: reads what never comes"));
}

#[test]
fn who_has_a_file_open_for_a_moment_does_not_keep_a_test_from_unmounting() {
    if !rustix_is_root() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-busy", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let theirs = mount_tmpfs(&dir);
    let open = File::open(dir.join("precious")).unwrap();
    let user = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(open);
    });
    drop(theirs);
    user.join().unwrap();
    assert!(!dir.exists());
}

/// Or memory that runs short waits for pages of a file system that only this thread can write.
#[test]
fn who_serves_a_disk_is_not_made_to_wait_for_dirty_pages() {
    // SAFETY: calls without memory; PR_SET_IO_FLUSHER and PR_GET_IO_FLUSHER.
    let is_flusher = || unsafe { libc::prctl(58, 0, 0, 0, 0) } == 1;
    // SAFETY: likewise.
    let is_granted = unsafe { libc::prctl(57, 0, 0, 0, 0) } == 0;
    if !rustix_is_root() || !is_granted {
        return;
    }
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-flusher", std::process::id()));
    let settings =
        fuse::Settings { loop_devices: fuse::LoopDevicePolicy::Never, ..fuse::Settings::new(&dir) };
    let Ok(mut server) = fuse::Server::new(settings) else { return };
    let watch = Watchdog::new();
    watch.watch_mount(&dir);
    let mut volume = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), Behaviour::default());
    let stop = ServerStop::new().unwrap();
    let mut was_flusher = false;
    let mut ready = |_: fuse::MountedFile<'_>| {
        was_flusher = is_flusher();
        stop.request_stop();
        Ok(())
    };
    server.run(&mut volume, &stop, &mut ready).unwrap();
    assert!(was_flusher && !is_flusher(), "while it serves, and not afterwards");
}
