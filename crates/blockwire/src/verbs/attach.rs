//! `blockwire attach` and `blockwire detach`: a remote volume as a local block device.
//!
//! `attach` stays in the foreground and serves the device until it is told to stop. What is attached is
//! noted in a file for each process, so that `attach --list` and `detach` find it. Invariant: a note
//! whose process is gone is no attachment, and is removed by whoever sees it.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use attach::{Disk, Stop, Via, fuse, nbd, ublk, vhost};
use buf::{SgMut, Time};
use clap::Args;
use initiator::{Done, Geometry, Handle, Initiator, Io, Settings};
use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{say, set_up};
use crate::exit::{Exit, Failure};
use crate::paths::Paths;

/// The way of this name.
fn via(name: &str) -> Result<Via, String> {
    let known = Via::ALL.into_iter().find(|via| via.name() == name);
    known.ok_or_else(|| format!("the ways are {}", Via::ALL.map(Via::name).join(", ")))
}

/// `attach`
#[derive(Debug, Args)]
#[command(
    after_help = "It prints a line for each way in, for example \"device /dev/loop0\", then a line that is exactly \"ready\".
SIGTERM or SIGINT, or `blockwire detach`, ends it when the device's users are gone; a second signal ends it at
once. If it is killed, attach again with the same --at: --recover takes away what the killed one left.

Examples:
  blockwire attach iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0
  blockwire attach nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:db/1 --via nbd --at /tmp/db.sock
  blockwire attach --list"
)]
pub struct AttachArgs {
    /// The volume; several URLs of it, joined by commas, are its paths
    #[arg(required_unless_present = "list")]
    pub url: Option<String>,
    /// How: ublk (a block device of the kernel's), fuse (a file, and a loop device over it where that is
    /// allowed), nbd (a Unix socket for qemu, fio, libnbd), vhost-user (a disk for a QEMU virtual machine).
    /// The best that the machine offers unless given
    #[arg(long, value_name = "WAY", value_parser = via)]
    pub via: Option<Via>,
    /// The directory (fuse), socket (nbd, vhost-user) or device (ublk: /dev/ublkbN) to make; one of its own
    /// unless given
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// Go on with the device (ublk), or take away first what a killed `attach` left (fuse), at that place
    #[arg(long)]
    pub recover: bool,
    /// Show what is attached
    #[arg(long, conflicts_with = "url")]
    pub list: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `detach`
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The device, file, socket or directory, or the process, as `attach --list` shows them
    pub name: String,
    /// Do not wait for the device's users
    #[arg(long)]
    pub now: bool,
}

/// What is attached, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    pid: u32,
    /// When the process began, in ticks since boot: another of this number began at another time.
    started: u64,
    url: String,
    via: String,
    ways: Vec<String>,
}

/// When a process began.
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    // Field 22 of proc(5); the first word is field 3. A zombie has ended.
    (*words.first()? != "Z").then(|| words.get(19)?.parse().ok()).flatten()
}

/// The directory of the notes.
fn notes_dir() -> PathBuf {
    let control = Paths::of_process().control;
    control.parent().unwrap_or(Path::new("/run/blockwire")).join("attached")
}

/// All that is attached; what is dead is forgotten.
fn notes() -> Vec<Note> {
    let Ok(entries) = fs::read_dir(notes_dir()) else { return Vec::new() };
    let mut notes = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let note = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Note>(&text).ok());
        match note {
            Some(note) if started(note.pid) == Some(note.started) => notes.push(note),
            Some(_) => drop(fs::remove_file(&path)),
            None => {}
        }
    }
    notes.sort_by_key(|note| note.pid);
    notes
}

/// A note that goes away with the attachment.
struct Noted(PathBuf);

impl Noted {
    fn write(note: &Note) -> Result<Noted, Failure> {
        let (dir, path) = (notes_dir(), notes_dir().join(format!("{}.json", note.pid)));
        let text = serde_json::to_string(note).unwrap_or_default();
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(&path, text))
            .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
        Ok(Noted(path))
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A remote volume as the fronts see it.
struct RemoteDisk {
    initiator: Initiator,
    volume: Handle,
    /// What found no room.
    waiting: VecDeque<Io>,
    /// When [`Disk::drive`] has something to do, as of its last call; at once after a submission.
    due: Option<Time>,
}

impl RemoteDisk {
    fn submit_waiting(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            if let Err(back) = self.initiator.submit(self.volume, io) {
                self.waiting.push_front(back);
                return;
            }
        }
    }
}

impl Disk for RemoteDisk {
    fn geometry(&self) -> Geometry {
        self.initiator.geometry(self.volume).expect("the volume is there as long as the disk")
    }
    fn is_read_only(&self) -> bool {
        self.initiator.is_read_only(self.volume)
    }
    fn memory(&mut self, len: usize) -> Option<SgMut> {
        self.initiator.memory(len)
    }
    fn submit(&mut self, io: Io) {
        self.waiting.push_back(io);
        self.submit_waiting();
        self.due = Some(Initiator::now());
    }
    fn poll_done(&mut self) -> Option<Done> {
        let done = self.initiator.poll_done(self.volume)?;
        self.submit_waiting();
        Some(done)
    }
    fn has_changed(&mut self) -> bool {
        self.initiator.has_changed(self.volume)
    }
    fn drive(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.initiator.turn(wait);
        self.due = self.initiator.poll_timeout();
        Ok(())
    }
    fn wake(&self) -> (BorrowedFd<'_>, Option<Time>) {
        (self.initiator.as_fd(), self.due)
    }
}

/// Attaches, or lists.
pub fn attach(args: &AttachArgs) -> Result<Exit, Failure> {
    let Some(url) = &args.url else { return list(args.json) };
    let mut initiator = set_up(Settings { memory: 128 << 20, ..Settings::default() })?;
    let volume = initiator.open(url)?;
    let via = match args.via {
        Some(via) => via,
        None => {
            let choice = attach::best();
            say(&format!("via {choice}\n"))?;
            choice.via
        }
    };
    let stop = Stop::new().map_err(Failure::failed)?;
    let heard = stop.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let handle = signals.handle();
    let ears = thread::spawn(move || signals.forever().for_each(|_| heard.stop()));
    let mut disk = RemoteDisk { initiator, volume, waiting: VecDeque::new(), due: None };
    let how = serve(args, via, &mut disk, &stop, url);
    handle.close();
    let _ = ears.join();
    let ended = disk.initiator.close(volume);
    how?;
    ended?;
    Ok(Exit::Success)
}

/// A place of its own for what is made.
fn place(args: &AttachArgs, name: &str) -> Result<PathBuf, Failure> {
    if let Some(at) = &args.at {
        return std::path::absolute(at).map_err(|why| Failure::failed(format!("{}: {why}", at.display())));
    }
    let dir = notes_dir();
    fs::create_dir_all(&dir).map_err(|why| Failure::failed(format!("{}: {why}", dir.display())))?;
    Ok(dir.join(format!("{}.{name}", std::process::id())))
}

fn serve(args: &AttachArgs, via: Via, disk: &mut RemoteDisk, stop: &Stop, url: &str) -> Result<(), Failure> {
    let pid = std::process::id();
    let shown = initiator::Url::parse_joined(url)
        .map(|urls| urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        .unwrap_or_default();
    let note = |ways: Vec<String>| Note {
        pid,
        started: started(pid).unwrap_or(0),
        url: shown.clone(),
        via: via.name().to_owned(),
        ways,
    };
    match via {
        Via::Ublk => {
            let number = args.at.as_deref().map(ublk_number).transpose()?;
            let failed = |why: io::Error| Failure::failed(format!("ublk: {why}"));
            let front = match (args.recover, number) {
                (true, Some(number)) => ublk::Front::recover(number, disk),
                (true, None) => {
                    return Err(Failure::usage("--recover needs --at /dev/ublkbN, the device to go on with"));
                }
                (false, number) => {
                    ublk::Front::new(ublk::Settings { number, ..ublk::Settings::default() }, disk)
                }
            }
            .map_err(failed)?;
            let mut noted: Option<Result<Noted, Failure>> = None;
            let mut ready = |device: &Path| {
                noted = Some(Noted::write(&note(vec![device.display().to_string()])));
                let _ = say(&format!("device {}\nready\n", device.display()));
            };
            front.run(disk, stop, &mut ready).map_err(failed)?;
            noted.transpose().map(drop)
        }
        Via::Fuse => {
            let dir = place(args, "mount")?;
            let failed = |why: io::Error| Failure::failed(format!("{}: {why}", dir.display()));
            if args.recover {
                fuse::clean(&dir).map_err(failed)?;
            }
            let mut front = fuse::Front::new(fuse::Settings::new(&dir)).map_err(failed)?;
            let mut noted: Option<Result<Noted, Failure>> = None;
            front
                .run(disk, stop, &mut |place| {
                    let mut ways = vec![place.file.display().to_string()];
                    let mut lines = format!("file {}\n", place.file.display());
                    if let Some(device) = place.device {
                        ways.insert(0, device.display().to_string());
                        lines += &format!("device {}\n", device.display());
                    } else if let Some(why) = &place.why {
                        lines += &format!("note there is no loop device: {why}\n");
                    }
                    noted = Some(Noted::write(&note(ways)));
                    let _ = say(&(lines + "ready\n"));
                })
                .map_err(failed)?;
            noted.transpose().map(drop)
        }
        Via::Nbd => {
            let path = place(args, "nbd")?;
            let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
            let mut front = nbd::Front::new(nbd::Settings::new(&path)).map_err(failed)?;
            let _noted = Noted::write(&note(vec![path.display().to_string()]))?;
            say(&format!("socket {}\nurl {}\nready\n", path.display(), front.url()))?;
            front.run(disk, stop).map_err(failed)
        }
        Via::VhostUser => {
            let path = place(args, "vhost")?;
            let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
            let mut settings = vhost::Settings::new(&path);
            if let Some(portrait) = disk.initiator.portrait(disk.volume) {
                settings.id.clone_from(&portrait.serial);
            }
            let mut front = vhost::Front::new(settings).map_err(failed)?;
            let _noted = Noted::write(&note(vec![path.display().to_string()]))?;
            say(&format!("socket {}\nready\n", path.display()))?;
            front.run(disk, stop).map_err(failed)
        }
    }
}

/// The N of `/dev/ublkbN`.
fn ublk_number(at: &Path) -> Result<u32, Failure> {
    let name = at.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix("ublkb").and_then(|number| number.parse().ok());
    number.ok_or_else(|| Failure::usage(format!("{} is no ublk device: write /dev/ublkbN", at.display())))
}

fn list(is_json: bool) -> Result<Exit, Failure> {
    let notes = notes();
    if is_json {
        say(&format!("{:#}\n", serde_json::json!(notes)))?;
    } else {
        for note in &notes {
            say(&format!("{:>7}  {:<10}  {}  {}\n", note.pid, note.via, note.ways.join(" "), note.url))?;
        }
    }
    Ok(Exit::Success)
}

/// Ends an attachment, and waits until it is gone.
pub fn detach(args: &DetachArgs) -> Result<Exit, Failure> {
    let wanted = fs::canonicalize(&args.name).unwrap_or_else(|_| PathBuf::from(&args.name));
    let is_it = |note: &Note| {
        note.pid.to_string() == args.name
            || note.ways.iter().any(|way| {
                *way == args.name || Path::new(way) == wanted || Path::new(way).parent() == Some(&wanted)
            })
    };
    let all = notes();
    let Some(note) = all.iter().find(|note| is_it(note)) else {
        let here: Vec<&str> = all.iter().flat_map(|note| note.ways.iter().map(String::as_str)).collect();
        let why = format!(
            "nothing is attached as {}; attached: {}",
            args.name,
            if here.is_empty() { "nothing".to_owned() } else { here.join(", ") }
        );
        return Err(Failure::new(Exit::NothingFound, why));
    };
    let signal = || {
        let pid = rustix::process::Pid::from_raw(note.pid as i32);
        pid.map_or(Ok(()), |pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM))
            .map_err(|why| Failure::failed(format!("process {}: {why}", note.pid)))
    };
    signal()?;
    if args.now {
        thread::sleep(Duration::from_millis(50));
        if started(note.pid) == Some(note.started) {
            signal()?;
        }
    }
    let until = Instant::now() + Duration::from_secs(30);
    while started(note.pid) == Some(note.started) {
        if Instant::now() >= until {
            let why = format!("{} is still in use: unmount it, or use --now", note.ways.join(", "));
            return Err(Failure::new(Exit::RequestTimeout, why));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(Exit::Success)
}
