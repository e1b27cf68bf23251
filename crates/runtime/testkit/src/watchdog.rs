//! A time limit for tests that use file systems of the kernel: a process that waits for a file system whose
//! server does not answer cannot be killed, and would block the test run for ever.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// How long a test may use one attachment.
const WATCH_LIMIT: Duration = Duration::from_secs(60);
/// How long what it waits for may then take to end.
const TEARDOWN_LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct WatchedResources {
    stage: Mutex<String>,
    /// Leaders of the groups of programs that run, until they have ended.
    programs: Mutex<Vec<Pid>>,
    /// Processes that may have ended already.
    processes: Mutex<Vec<OwnedFd>>,
    /// Where the kernel is told to end connections.
    aborts: Mutex<Vec<PathBuf>>,
    has_expired: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Arc<WatchedResources>> = RefCell::default();
}

/// While it lives, a test that waits for longer than a minute is freed, says at which stage it was, and fails.
pub struct Watchdog {
    watched: Arc<WatchedResources>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    #[expect(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Watchdog {
        Watchdog::with_limit(WATCH_LIMIT)
    }

    pub fn with_limit(limit: Duration) -> Watchdog {
        fuse_control_dir();
        let watched = Arc::<WatchedResources>::default();
        CURRENT.set(watched.clone());
        let (end, ended) = channel();
        let its_watched = watched.clone();
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                its_watched.expire(&name, limit);
                if ended.recv_timeout(TEARDOWN_LIMIT) == Err(RecvTimeoutError::Timeout) {
                    eprintln!("{name} hangs even though nothing is left that it could wait for");
                    std::process::abort();
                }
            }
        });
        Watchdog { watched, end: Some(end), thread: Some(thread) }
    }

    /// What is mounted there is ended when the time is up, wherever it is mounted by then.
    pub fn watch_mount(&self, dir: &Path) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of_it = table.lines().filter(|line| line.split(' ').nth(4) == dir.to_str());
        let numbers =
            of_it.filter_map(|line| line.split(' ').nth(2)?.strip_prefix("0:")?.parse::<u32>().ok());
        let aborts = numbers.map(|number| fuse_control_dir().join(number.to_string()).join("abort"));
        self.watched.aborts.lock().unwrap().extend(aborts);
    }
}

impl WatchedResources {
    fn expire(&self, name: &str, limit: Duration) {
        self.has_expired.store(true, Ordering::Relaxed);
        let stage = self.stage.lock().unwrap().clone();
        eprintln!("{name}: after {limit:?} still at: {stage}; its attachments and programs are ended");
        for abort in self.aborts.lock().unwrap().iter() {
            // Who is not there any more has ended already.
            if let Ok(mut file) = File::options().write(true).open(abort) {
                let _ = file.write_all(b"1");
            }
        }
        for program in self.programs.lock().unwrap().iter() {
            let _ = kill_process_group(*program, Signal::KILL);
        }
        for process in self.processes.lock().unwrap().iter() {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        let _ = self.thread.take().map(JoinHandle::join);
        if self.watched.has_expired.load(Ordering::Relaxed) && !std::thread::panicking() {
            panic!("it took too long at: {}", self.watched.stage.lock().unwrap());
        }
    }
}

/// The control file system of FUSE: at its usual place, or where only this process finds it.
fn fuse_control_dir() -> &'static Path {
    static CONTROL_DIR: OnceLock<(PathBuf, Option<File>)> = OnceLock::new();
    let (path, _file) = CONTROL_DIR.get_or_init(|| {
        let usual = PathBuf::from("/sys/fs/fuse/connections");
        let at = std::env::temp_dir().join(format!("fusectl-{}", std::process::id()));
        let is_there = |line: &str| line.split(' ').nth(4) == usual.to_str();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if table.lines().any(is_there) || std::fs::create_dir(&at).is_err() {
            return (usual, None);
        }
        let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(&at).output();
        let file = File::open(&at).ok().filter(|_| mounted.is_ok_and(|out| out.status.success()));
        let _ = Command::new("umount").arg("-l").arg(&at).output();
        let _ = std::fs::remove_dir(&at);
        match file {
            Some(file) => (format!("/proc/self/fd/{}", file.as_raw_fd()).into(), Some(file)),
            // Who may not mount it may not abort either.
            None => (usual, None),
        }
    });
    path
}

/// What the test does from here on, to be said if it does not come further.
pub fn set_stage(what: impl Into<String>) {
    CURRENT.with_borrow(|watched| *watched.stage.lock().unwrap() = what.into());
}

/// Runs a program in a group of its own, to its end or that of the time; gives what it said.
pub fn run_for_output(command: &mut Command) -> std::io::Result<Output> {
    use std::os::unix::process::CommandExt;
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.process_group(0).spawn()?;
    let watched = CURRENT.with_borrow(Arc::clone);
    let pid = watch_child(&watched, &child);
    let out = child.wait_with_output();
    watched.programs.lock().unwrap().retain(|program| *program != pid);
    out
}

fn watch_child(watched: &WatchedResources, child: &Child) -> Pid {
    let pid = Pid::from_child(child);
    watched.programs.lock().unwrap().push(pid);
    if watched.has_expired.load(Ordering::Relaxed) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    pid
}

/// A process that is ended when the time is up.
pub fn watch_process(child: &Child) {
    // Who has none of these is not freed.
    if let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        CURRENT.with_borrow(|watched| watched.processes.lock().unwrap().push(process));
    }
}

/// Takes away what is mounted at `dir`. Programs that other tests start just now may have a file of it open, which
/// they close at once: so "busy" is no answer. What stays is taken out of sight, and is a failure.
pub fn unmount(dir: &Path) {
    set_stage(format!("unmounts {}", dir.display()));
    let until = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let said = match run_for_output(Command::new("umount").arg(dir)) {
            Ok(out) if out.status.success() => return,
            Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        if std::time::Instant::now() >= until || !said.contains("busy") {
            let _ = run_for_output(Command::new("umount").arg("-l").arg(dir));
            assert!(std::thread::panicking(), "{said}");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
