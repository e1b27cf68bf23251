//! Remote volumes as local devices: in the foreground, held by the daemon, and over the death of either.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::{Daemon, Place};
use crate::verbs::{CONFIG, good, served, urls};
use testkit::watch::{self, Watch, stage};

pub const BLOCKWIRE: &str = env!("CARGO_BIN_EXE_blockwire");

pub fn has_fuse() -> bool {
    let has = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let known = std::env::var_os("BLOCKWIRE_NO_FUSE").is_some();
    assert!(has || known, "there is no /dev/fuse: set BLOCKWIRE_NO_FUSE if that is known");
    has
}

/// Whether a killed holder's FUSE users wait here: Linux 6.9.
pub fn has_resend() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    has_fuse() && (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

/// An attachment that runs in the foreground; it is killed in the end.
struct Attached {
    child: Child,
    lines: Vec<String>,
    home: PathBuf,
    watch: Watch,
}

/// How long a test may wait for one attachment: a while longer than a keeper does.
const LIMIT: Duration = Duration::from_secs(150);

impl Attached {
    fn new(place: &Place, arguments: &[&str]) -> Attached {
        use std::io::{BufRead, BufReader};
        let watch = Watch::with_limit(LIMIT);
        stage(format!("attach {}", arguments.join(" ")));
        let home = place.path("home");
        fs::create_dir_all(&home).unwrap();
        let mut child = Command::new(BLOCKWIRE)
            .arg("attach")
            .args(arguments)
            .env("RUNTIME_DIRECTORY", &home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        watch::process(&child);
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> =
            out.lines().map_while(Result::ok).take_while(|line| line != "ready").collect();
        stage("what was attached is used");
        let attached = Attached { child, lines, home, watch };
        if let Some(file) = attached.way("file") {
            attached.watch.mount(Path::new(file).parent().unwrap());
        }
        attached
    }

    fn way(&self, word: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
    }

    fn verb(&self, arguments: &[&str]) -> Output {
        verb(&self.home, arguments)
    }

    /// Without warning.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn verb(home: &Path, arguments: &[&str]) -> Output {
    stage(arguments.join(" "));
    watch::output(Command::new(BLOCKWIRE).args(arguments).env("RUNTIME_DIRECTORY", home)).unwrap()
}

fn listed(home: &Path) -> Value {
    serde_json::from_slice(&verb(home, &["attach", "--list", "--json"]).stdout).unwrap()
}

/// What a verb says that must not go well.
pub fn refusal(out: &Output) -> String {
    assert!(!out.status.success());
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Gives up what a test that failed left waiting, so that nothing waits for its time-out.
struct GivenUp(PathBuf, PathBuf);

impl Drop for GivenUp {
    fn drop(&mut self) {
        let _ = verb(&self.0, &["detach", text(&self.1), "--now"]);
    }
}

/// Blocks of 4 KiB that a process writes one after the other, each made stable, until it is told to end.
/// Another process than the test's: one that has such a file open waits with it when it starts programs,
/// because they close what they shall not have.
struct Writer {
    child: Child,
    /// Where it says how many it has written.
    progress: PathBuf,
}

/// Blocks that are written in turn.
const BLOCKS: u64 = 512;
/// Which file to write, in the writer's environment.
const WRITER: &str = "ATTACHED_WRITER";

/// Not a test but a process of its own, when another test wants it.
#[test]
fn writer() {
    let Ok(file) = std::env::var(WRITER) else { return };
    let progress = PathBuf::from(std::env::var("ATTACHED_PROGRESS").unwrap());
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    let count = fs::OpenOptions::new().write(true).open(&progress).unwrap();
    let mut n = 0_u64;
    while !progress.with_extension("end").exists() {
        file.write_all_at(&block(n), n % BLOCKS * 4096).unwrap();
        file.sync_data().unwrap();
        n += 1;
        count.write_all_at(&n.to_ne_bytes(), 0).unwrap();
    }
}

impl Writer {
    fn new(place: &Place, file: &str) -> Writer {
        let progress = place.path("progress");
        fs::write(&progress, [0; 8]).unwrap();
        let _ = fs::remove_file(progress.with_extension("end"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "attached::writer"]).env(WRITER, file).env("ATTACHED_PROGRESS", &progress);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        watch::process(&child);
        Writer { child, progress }
    }

    fn count(&self) -> u64 {
        u64::from_ne_bytes(fs::read(&self.progress).unwrap().try_into().unwrap())
    }

    /// Waits until so many more are written.
    fn goes_on(&mut self, more: u64) {
        let (from, until) = (self.count(), Instant::now() + Duration::from_secs(60));
        while self.count() < from + more {
            assert!(Instant::now() < until, "nothing is written any more");
            assert!(self.child.try_wait().unwrap().is_none(), "a write failed");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it; what was written must be on the volume.
    fn verify(mut self, url: &str) {
        fs::write(self.progress.with_extension("end"), "").unwrap();
        assert!(self.child.wait().unwrap().success(), "a write failed");
        let written = self.count();
        let read = good(&["read", url, "--offset", "0", "--length", &(BLOCKS * 4096).to_string()]);
        for at in 0..BLOCKS.min(written) {
            let last = at + (written - 1 - at) / BLOCKS * BLOCKS;
            let found = &read[at as usize * 4096..][..4096];
            assert!(found == block(last), "block {at} is not what was written last");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// A process that reads one block.
fn reader(file: &str) -> Child {
    let words = [&format!("if={file}"), "of=/dev/null", "bs=4k", "count=1", "iflag=direct"];
    let child = Command::new("dd").args(words).stderr(Stdio::null()).spawn().unwrap();
    watch::process(&child);
    child
}

fn block(n: u64) -> Vec<u8> {
    n.to_ne_bytes().into_iter().cycle().take(4096).collect()
}

#[test]
fn io_waits_for_a_killed_process_and_goes_on() {
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    for url in [iscsi.clone(), nvme + "?keep_alive=1s"] {
        let at = place.path("mnt");
        let mut attached = Attached::new(&place, &[&url, "--via", "fuse", "--at", text(&at)]);
        let _given_up = GivenUp(attached.home.clone(), at.clone());
        let device = attached.way("device").map(str::to_owned);
        let mut writer = Writer::new(&place, attached.way("file").unwrap());
        writer.goes_on(50);
        attached.kill();
        thread::sleep(Duration::from_millis(100));
        let before = writer.count();
        thread::sleep(Duration::from_millis(700));
        assert_eq!(writer.count(), before, "somebody answered for a dead process");
        let waiting = listed(&attached.home);
        assert_eq!((&waiting[0]["state"], waiting[1].is_null()), (&"waiting".into(), true), "{waiting}");
        assert!(waiting[0]["left_ms"].as_u64().unwrap() > 100_000, "{waiting}");
        let said = refusal(&attached.verb(&["attach", &url, "--via", "fuse", "--at", text(&at)]));
        assert!(said.contains("--recover"), "{said}");
        let other = urls(&daemon, "b")[0].clone();
        let said = refusal(&attached.verb(&["attach", &other, "--recover", "--at", text(&at)]));
        assert!(said.contains("another volume"), "{said}");
        // By the volume alone the first time, by the place the second.
        let words: &[&str] = if url == iscsi { &["--recover"] } else { &["--recover", "--at", text(&at)] };
        let mut again = Attached::new(&place, &[&[url.as_str()], words].concat());
        assert_eq!(again.way("device"), device.as_deref(), "the loop device is another one");
        writer.goes_on(50);
        writer.verify(&iscsi);
        assert!(again.verb(&["detach", text(&at)]).status.success());
        assert!(again.child.wait().unwrap().success());
        assert_eq!(listed(&again.home), serde_json::json!([]));
        assert!(!at.exists());
    }
}

#[test]
fn io_waits_for_a_killed_daemon_and_another_goes_on() {
    if !has_resend() {
        return;
    }
    let (_place, target) = served();
    let url = urls(&target, "a")[0].clone();
    let here = Place::new();
    let at = here.path("mnt");
    let holder = here.serve(CONFIG, &[]);
    let said = holder.ask(&format!("attach {url} --daemon --via fuse --at {}", text(&at)));
    assert!(said.ends_with("ready\n"), "{said}");
    let file = said.lines().find_map(|line| line.strip_prefix("file ")).unwrap();
    let watch = Watch::with_limit(LIMIT);
    watch.mount(&at);
    let mut writer = Writer::new(&here, file);
    writer.goes_on(50);
    holder.kill();
    thread::sleep(Duration::from_millis(300));
    let before = writer.count();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(writer.count(), before, "somebody answered for a dead daemon");
    // Nobody asks it to: it knows what the one before held, and how the volume is reached.
    let holder = here.serve(CONFIG, &[]);
    writer.goes_on(50);
    // Who asks is told that it is done, and by any of its names.
    for place in ["", &format!(" --at {}", text(&at))] {
        let said = holder.ask(&format!("attach {url} --daemon --recover{place}"));
        assert!(said.contains(file) && said.ends_with("ready\n"), "{said}");
    }
    writer.verify(&url);
    assert_eq!(holder.ask_json("status")["attachments"], 1);
    assert!(holder.run(&format!("detach {}", text(&at))).status.success());
    assert_eq!(holder.ask_json("status")["attachments"], 0);
}

#[test]
fn a_daemon_is_started_anew_under_the_users_of_what_it_holds() {
    if !has_resend() {
        return;
    }
    let (_place, target) = served();
    let url = urls(&target, "a")[0].clone();
    let here = Place::new();
    let at = here.path("mnt");
    let _given_up = GivenUp(here.path(""), at.clone());
    let mut holder = here.serve(CONFIG, &[]);
    let said = holder.ask(&format!("attach {url} --daemon --via fuse --at {}", text(&at)));
    let file = said.lines().find_map(|line| line.strip_prefix("file ")).unwrap();
    let watch = Watch::with_limit(LIMIT);
    watch.mount(&at);
    let mut writer = Writer::new(&here, file);
    writer.goes_on(50);
    holder.ask("stop");
    assert_eq!(holder.ended(Duration::from_secs(20)), Some(0));
    assert!(holder.log().contains("waits 120 s for the next daemon"), "{}", holder.log());
    let holder = here.serve(CONFIG, &[]);
    writer.goes_on(50);
    writer.verify(&url);
    // It was asked to end when its users go.
    let until = Instant::now() + Duration::from_secs(20);
    while holder.ask_json("status")["attachments"] != 0 || at.exists() {
        assert!(Instant::now() < until, "it does not end: {}", holder.ask("attach --list"));
        thread::sleep(Duration::from_millis(50));
    }
}

/// A host that must prove itself, with a password that stands in the URL and in no file of ours; and the target
/// is away when the daemon comes back.
#[test]
fn a_daemon_goes_on_by_itself_with_a_password_and_when_the_target_is_back() {
    const GUARDED: &str = r#"
[[volume]]
name = "disk"
source = "file:DISK,size=1M"
[[target]]
name = "iqn.2026-11.io.blockwire:disk"
luns = [{ lun = 0, volume = "disk" }]
[[host]]
name = "host"
iqn = ["iqn.2026-11.test:attached"]
access = [{ target = "iqn.2026-11.io.blockwire:disk" }]
chap = { user = "alice", secret = "not-for-the-eyes" }
"#;
    let there = Place::new();
    let guarded = GUARDED.replace("DISK", text(&there.path("disk.img")));
    let mut target = there.serve(&guarded, &[]);
    let at = target.at;
    let url = format!(
        "iscsi://alice%not-for-the-eyes@{at}/iqn.2026-11.io.blockwire:disk/0\
         ?initiator=iqn.2026-11.test:attached"
    );
    let here = Place::new();
    let socket = here.path("sock");
    let holder = here.serve(CONFIG, &[]);
    let wrong = url.replace("eyes@", "ears@");
    assert_eq!(holder.run(&format!("attach {wrong} --daemon --via nbd")).status.code(), Some(24));
    holder.ask(&format!("attach {url} --daemon --via nbd --at {}", text(&socket)));
    let notes: Vec<_> =
        fs::read_dir(here.path("attached")).unwrap().map(|file| file.unwrap().path()).collect();
    let notes = notes.iter().filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let notes: String = notes.map(|file| fs::read_to_string(file).unwrap()).collect();
    assert!(notes.contains("alice") && !notes.contains("eyes"), "{notes}");
    holder.kill();
    target.signal(rustix::process::Signal::TERM);
    assert_eq!(target.ended(Duration::from_secs(20)), Some(0));
    let holder = here.serve(CONFIG, &[]);
    let until = Instant::now() + Duration::from_secs(20);
    while !holder.log().contains("--recover --at") {
        assert!(Instant::now() < until, "it does not say what it waits for: {}", holder.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!holder.log().contains("eyes"), "{}", holder.log());
    let _target = there.serve_on(&guarded, &["--iscsi", &at.to_string()], &[]);
    while holder.ask_json("status")["attachments"] != 1 {
        assert!(Instant::now() < until, "it does not go on: {}", holder.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(holder.ask_json("attach --list")[0]["state"], "serving");
    assert!(holder.run(&format!("detach {}", text(&socket))).status.success());
}

#[test]
fn the_daemon_holds_attachments_and_says_so() {
    let (_place, target) = served();
    let [iscsi, nvme] = urls(&target, "a");
    good(&["write", &iscsi, "--input", "/dev/urandom", "--length", "1M"]);
    let here = Place::new();
    let mut holder = here.serve(CONFIG, &[]);
    let (one, two) = (here.path("one"), here.path("two"));
    let said = holder.ask_json(&format!("attach {iscsi} --daemon --via nbd --at {}", text(&one)));
    assert_eq!((&said["via"], &said["ways"]), (&"nbd".into(), &serde_json::json!([one])));
    holder.ask(&format!("attach {nvme} --daemon --via nbd --at {} --timeout 3s", text(&two)));
    assert_eq!(holder.ask_json("status")["attachments"], 2);
    let listed = holder.ask_json("attach --list");
    let of = |key: &str| listed.as_array().unwrap().iter().map(|one| one[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("daemon"), [true, true]);
    assert_eq!(of("state"), ["serving", "serving"]);
    assert_eq!(of("timeout_ms"), [120_000, 3000]);
    let (url, image) = (format!("nbd+unix:///?socket={}", text(&one)), here.path("image"));
    let copied = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "raw", &url, text(&image)])
        .status()
        .expect("qemu-img is installed by tests/setup.sh");
    assert!(copied.success());
    good(&["verify", text(&image), &nvme]);
    for by in [" --daemon", ""] {
        let taken = holder.run(&format!("attach {iscsi} --via nbd --at {}{by}", text(&one)));
        assert_eq!(taken.status.code(), Some(15));
        assert!(refusal(&taken).contains("is attached"));
    }
    let relative = "iscsi://me@127.0.0.1/iqn.2026-11.io.blockwire:a/0?secret_file=x";
    for name in [relative, &format!("stripe:{iscsi}+{relative}")] {
        assert!(refusal(&holder.run(&format!("attach {name} --daemon"))).contains("absolute"));
    }
    // Its exit codes are those of a process of its own.
    let nobody = "attach iscsi://127.0.0.1:1/iqn.2026-11.io.blockwire:a/0 --via nbd";
    for by in [" --daemon", ""] {
        assert_eq!(holder.run(&format!("{nobody}{by}")).status.code(), Some(8));
    }
    assert!(holder.run(&format!("detach {}", text(&one))).status.success());
    assert!(!one.exists());
    assert_eq!(holder.run(&format!("detach {}", text(&one))).status.code(), Some(21));
    // A daemon that ends takes away what it held.
    assert_eq!(holder.ask_json("status")["attachments"], 1);
    holder.ask("stop");
    assert_eq!(holder.ended(Duration::from_secs(20)), Some(0));
    assert!(!two.exists());
}

#[test]
fn io_fails_when_nobody_recovers_in_time_and_not_before() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let at = place.path("mnt");
    let words = [&urls(&daemon, "a")[0], "--via", "fuse", "--at", text(&at), "--timeout", "3s"];
    let mut attached = Attached::new(&place, &words);
    let file = attached.way("file").unwrap().to_owned();
    let killed = Instant::now();
    attached.kill();
    let mut reader = reader(&file);
    let read = loop {
        if let Some(status) = reader.try_wait().unwrap() {
            break status;
        }
        assert!(killed.elapsed() < TIMEOUT + Duration::from_secs(20), "it hangs for ever");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(!read.success() && killed.elapsed() >= TIMEOUT, "{read} after {:?}", killed.elapsed());
    let until = Instant::now() + Duration::from_secs(10);
    while at.exists() || listed(&attached.home) != serde_json::json!([]) {
        assert!(Instant::now() < until, "the dead mount is left");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read_dir(attached.home.join("attached")).unwrap().count(), 0);
}

#[test]
fn what_waits_can_be_given_up() {
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let at = place.path("mnt");
    let mut attached = Attached::new(&place, &[&urls(&daemon, "a")[0], "--via", "fuse", "--at", text(&at)]);
    attached.kill();
    let mut reader = reader(attached.way("file").unwrap());
    thread::sleep(Duration::from_millis(500));
    assert!(reader.try_wait().unwrap().is_none(), "it does not wait");
    let ended = attached.verb(&["detach", text(&at), "--now", "--json"]);
    let ended: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(ended["ways"].as_array().is_some_and(|ways| !ways.is_empty()), "{ended}");
    assert!(!reader.wait().unwrap().success());
    assert!(!at.exists());
}

#[test]
fn a_socket_whose_holder_and_keeper_are_killed_is_not_served_before_their_writes_are_over() {
    let (place, daemon) = served();
    let socket = place.path("sock");
    let (url, other) = (&urls(&daemon, "a")[0], &urls(&daemon, "b")[0]);
    let words = |url| [url, "--via", "nbd", "--at", text(&socket)].map(str::to_owned);
    let mut attached = Attached::new(&place, &words(url).each_ref().map(String::as_str));
    let _given_up = GivenUp(attached.home.clone(), socket.clone());
    let notes = attached.home.join("attached");
    let note = || {
        let names = fs::read_dir(&notes).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect::<Vec<_>>()
    };
    let said: Value = serde_json::from_slice(&fs::read(&note()[0]).unwrap()).unwrap();
    let keeper = said["keeper"]["process"]["pid"].as_u64().unwrap().to_string();
    // As a supervisor that ends a whole group does: the keeper first, or it would see the holder's end.
    assert!(Command::new("kill").args(["-STOP", &keeper]).status().unwrap().success());
    attached.kill();
    assert!(Command::new("kill").args(["-KILL", &keeper]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(20);
    while listed(&attached.home)[0]["state"] != "stranded" {
        assert!(Instant::now() < until, "it is forgotten: {}", listed(&attached.home));
        thread::sleep(Duration::from_millis(20));
    }
    let attach = |url, recover: bool| {
        let mut all = vec!["attach".to_owned()];
        all.extend(words(url));
        all.extend(recover.then(|| "--recover".to_owned()));
        attached.verb(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(refusal(&attach(url, false)).contains("use --recover"));
    let why = refusal(&attach(other, true));
    assert!(why.contains("would be written to another volume"), "{why}");
    assert_eq!(listed(&attached.home)[0]["state"], "stranded", "who was refused has changed it");
    // By the URL alone, at the place that it had; the session of the killed one is ended by the login.
    let begun = Instant::now();
    let again = Attached::new(&place, &[url, "--recover"]);
    assert_eq!(again.way("socket"), Some(text(&socket)));
    assert!(begun.elapsed() < Duration::from_secs(60), "it waited although the login ended the old session");
    let listed = listed(&attached.home);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["state"]), (1, &"serving".into()));
    assert_eq!(note().len(), 1);
}

#[test]
fn a_socket_that_nobody_recovers_answers_with_errors() {
    let (place, daemon) = served();
    let socket = place.path("sock");
    let url = &urls(&daemon, "a")[0];
    let words = [url, "--via", "nbd", "--at", text(&socket), "--timeout", "1s"];
    let mut attached = Attached::new(&place, &words);
    let export = attached.way("url").unwrap().to_owned();
    let reads = || {
        let words = ["-f", "raw", "-r", "-c", "read 0 4k", &export];
        let out =
            Command::new("qemu-io").args(words).output().expect("qemu-io is installed by tests/setup.sh");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    assert!(reads().contains("read 4096/4096"));
    attached.kill();
    // Who comes now is turned away, and comes again if it was told to.
    assert!(reads().contains("refused"));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let said = reads();
        if said.contains("read failed") {
            break;
        }
        assert!(said.contains("refused") && Instant::now() < until, "{said}");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(listed(&attached.home)[0]["state"], "failing");
    let again = Attached::new(&place, &[url, "--recover", "--at", text(&socket)]);
    assert!(reads().contains("read 4096/4096"));
    assert!(again.verb(&["detach", text(&socket)]).status.success());
    assert!(!socket.exists());
}

#[test]
fn a_remote_volume_is_a_local_file_and_goes_away_again() {
    if !has_fuse() {
        return;
    }
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    let at = place.path("mnt");
    let mut attached = Attached::new(&place, &[&nvme, "--via", "fuse", "--at", at.to_str().unwrap()]);
    let file = attached.way("file").expect("a file").to_owned();
    let open = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 24 << 20);
    open.write_all_at(&[9; 10_000], 12_345).unwrap();
    open.sync_all().unwrap();
    drop(open);
    let read = good(&["read", &iscsi, "--offset", "0", "--length", "32768"]);
    assert!(read[12_345..22_345].iter().all(|byte| *byte == 9) && read[12_344] == 0 && read[22_345] == 0);
    let listed = attached.verb(&["attach", "--list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&listed[0]["via"], &listed[0]["url"]), (&"fuse".into(), &nvme.as_str().into()));
    let ended = attached.verb(&["detach", &file]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(attached.child.wait().unwrap().success());
    assert!(!Path::new(&file).exists());
    assert_eq!(attached.verb(&["detach", &file]).status.code(), Some(21));
}

#[test]
fn a_remote_volume_is_an_nbd_export() {
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "b");
    good(&["write", &iscsi, "--input", "/dev/urandom", "--length", "8M"]);
    let socket = place.path("sock");
    let mut attached = Attached::new(&place, &[&iscsi, "--via", "nbd", "--at", socket.to_str().unwrap()]);
    let (url, image) = (attached.way("url").unwrap().to_owned(), place.path("image"));
    let done = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "raw", &url, image.to_str().unwrap()])
        .status()
        .expect("qemu-img is installed by tests/setup.sh");
    assert!(done.success());
    good(&["verify", image.to_str().unwrap(), &nvme]);
    assert!(attached.verb(&["detach", socket.to_str().unwrap()]).status.success());
    assert!(attached.child.wait().unwrap().success());
}

/// The initiator itself stripes, over a leg of either protocol.
#[test]
fn a_stripe_of_two_volumes_is_one_local_disk() {
    use std::io::Read;
    const CHUNK: usize = 16 << 10;
    let ((place, first), (_other, second)) = (served(), served());
    let legs = [urls(&first, "a")[0].clone(), urls(&second, "b")[1].clone() + "?keep_alive=1s"];
    let stripe = format!("stripe:{}+{},chunk=16K", legs[0], legs[1]);
    let mut data = Vec::new();
    fs::File::open("/dev/urandom").unwrap().take(48 << 20).read_to_end(&mut data).unwrap();
    let (image, socket) = (place.path("image"), place.path("sock"));
    fs::write(&image, &data).unwrap();
    let mut attached = Attached::new(&place, &[&stripe, "--via", "nbd", "--at", text(&socket)]);
    let export = attached.way("url").unwrap().to_owned();
    let done = Command::new("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw", text(&image), &export])
        .status()
        .expect("qemu-img is installed by tests/setup.sh");
    assert!(done.success());
    assert!(attached.verb(&["detach", text(&socket)]).status.success());
    assert!(attached.child.wait().unwrap().success());
    for (leg, chunks) in [(0, [0, 2]), (1, [1, 3])] {
        let read = good(&["read", &legs[leg], "--offset", "0", "--length", "32K"]);
        let at = |chunk: usize| &data[chunk * CHUNK..][..CHUNK];
        assert!(read[..CHUNK] == *at(chunks[0]) && read[CHUNK..] == *at(chunks[1]), "leg {leg}");
    }
    if has_fuse() {
        let at = place.path("mnt");
        let mut attached = Attached::new(&place, &[&stripe, "--via", "fuse", "--at", text(&at)]);
        let _given_up = GivenUp(attached.home.clone(), at.clone());
        let file = attached.way("file").unwrap().to_owned();
        let open = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        assert_eq!(open.metadata().unwrap().len(), 48 << 20);
        let (from, mark) = (5 * CHUNK - 777, [9; 3 * CHUNK]);
        open.write_all_at(&mark, from as u64).unwrap();
        open.sync_all().unwrap();
        drop(open);
        data[from..from + mark.len()].copy_from_slice(&mark);
        if has_resend() {
            attached.kill();
            attached = Attached::new(&place, &[&stripe, "--recover"]);
            assert_eq!(attached.way("file"), Some(file.as_str()));
        }
        assert!(fs::read(&file).unwrap() == data, "the file is not what was written");
        assert!(attached.verb(&["detach", text(&at)]).status.success());
        assert!(attached.child.wait().unwrap().success());
        fs::write(&image, &data).unwrap();
    }
    good(&["verify", text(&image), &stripe]);
}

/// Then nobody knows how large the stripe is: what is asked fails, until the leg is as it was.
#[test]
fn a_leg_that_shrinks_below_a_chunk_fails_requests_and_not_the_daemon() {
    let ((_place, first), (_other, second)) = (served(), served());
    let legs = [urls(&first, "a")[0].clone(), urls(&second, "b")[1].clone()];
    let here = Place::new();
    let socket = here.path("sock");
    let holder = here.serve(CONFIG, &[]);
    let stripe = format!("stripe:{}+{},chunk=4M", legs[0], legs[1]);
    holder.ask(&format!("attach {stripe} --daemon --via nbd --at {}", text(&socket)));
    let export = format!("nbd+unix:///?socket={}", text(&socket));
    let does = |what: &str| {
        let mut command = Command::new("qemu-io");
        let out = watch::output(command.args(["-f", "raw", "-c", what, &export]));
        let out = out.expect("qemu-io is installed by tests/setup.sh");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let becomes = |what: &str, word: &str| {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let said = does(what);
            if said.contains(word) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {said}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    assert!(does("write -P 7 0 64k").contains("wrote 65536/65536"));
    second.ask("volume resize b 1M --shrink");
    becomes("write -P 8 4M 64k", "write failed");
    becomes("read 0 64k", "read failed");
    assert_eq!(holder.ask_json("status")["attachments"], 1, "{}", holder.log());
    second.ask("volume resize b 24M");
    becomes("read -P 7 0 64k", "read 65536/65536");
    becomes("write -P 8 4M 64k", "wrote 65536/65536");
    assert!(holder.run(&format!("detach {}", text(&socket))).status.success());
}

/// A target with two portals, and the URLs of its volume by each.
fn two_paths(place: &Place) -> (Daemon, [String; 2]) {
    let daemon = place.serve(CONFIG, &["--iscsi", "127.0.0.1:0"]);
    let url = |at: usize| format!("iscsi://{}/iqn.2026-11.io.blockwire:a/0", daemon.addresses[at]);
    let urls = [url(0), url(1)];
    (daemon, urls)
}

/// The paths that the one note in a home tells of, by place.
fn noted_paths(home: &Path) -> Vec<(String, u64)> {
    let mut notes = fs::read_dir(home.join("attached")).unwrap().map(|file| file.unwrap().path());
    let note = notes.find(|file| file.extension().is_some_and(|extension| extension == "json")).unwrap();
    let note: Value = serde_json::from_slice(&fs::read(note).unwrap()).unwrap();
    let of = |path: &Value| (path["place"].as_str().unwrap().to_owned(), path["number"].as_u64().unwrap());
    let mut paths: Vec<_> = note["paths"].as_array().unwrap().iter().map(of).collect();
    paths.sort();
    paths
}

#[test]
fn a_recovery_by_reordered_urls_takes_every_path_in_its_own_place() {
    let place = Place::new();
    let (_daemon, [one, two]) = two_paths(&place);
    let socket = place.path("sock");
    let mut attached =
        Attached::new(&place, &[&format!("{one},{two}"), "--via", "nbd", "--at", text(&socket)]);
    let before = noted_paths(&attached.home);
    assert_eq!(before.len(), 2);
    attached.kill();
    let again = Attached::new(&place, &[&format!("{two},{one}"), "--recover", "--at", text(&socket)]);
    assert_eq!(again.way("socket"), Some(text(&socket)), "it waits although both paths are up again");
    assert_eq!(noted_paths(&again.home), before);
    assert!(again.verb(&["detach", text(&socket)]).status.success());
}

#[test]
fn a_recovery_does_not_serve_before_a_path_that_it_cannot_reinstate_must_have_ended() {
    use std::io::Read;
    let place = Place::new();
    let (_daemon, [one, two]) = two_paths(&place);
    let socket = place.path("sock");
    let mut attached =
        Attached::new(&place, &[&format!("{one},{two}"), "--via", "nbd", "--at", text(&socket)]);
    attached.kill();
    let mut early = Command::new(BLOCKWIRE)
        .args(["attach", &one, "--recover", "--at", text(&socket)])
        .env("RUNTIME_DIRECTORY", &attached.home)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(3));
    assert!(early.try_wait().unwrap().is_none(), "it does not wait");
    early.kill().unwrap();
    early.wait().unwrap();
    let mut said = String::new();
    early.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "it serves while the other path's writes may land");
    // One that ended before it served has changed nothing.
    assert_eq!(listed(&attached.home)[0]["state"], "waiting");
    assert!(attached.verb(&["detach", text(&socket)]).status.success());
}

#[test]
fn a_mounted_disk_is_not_detached_and_it_is_said_where_it_is_mounted() {
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let at = place.path("mnt");
    let mut attached = Attached::new(&place, &[&urls(&daemon, "a")[0], "--via", "fuse", "--at", text(&at)]);
    let _given_up = GivenUp(attached.home.clone(), at.clone());
    let Some(device) = attached.way("device").map(str::to_owned) else { return };
    let run = |program: &str, words: &[&str]| {
        stage(format!("{program} {}", words.join(" ")));
        let out = watch::output(Command::new(program).args(words)).unwrap();
        assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run("mkfs.ext4", &["-q", "-F", &device]);
    let on = place.path("on");
    fs::create_dir(&on).unwrap();
    run("mount", &["-o", "ro,noload", &device, text(&on)]);
    struct Unmounted(PathBuf);
    impl Drop for Unmounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        }
    }
    let _unmounted = Unmounted(on.clone());
    let is_refused = |attached: &Attached| {
        let said = refusal(&attached.verb(&["detach", text(&at)]));
        assert!(said.contains(&format!("mounted at {}", text(&on))), "{said}");
    };
    is_refused(&attached);
    assert_eq!(listed(&attached.home)[0]["state"], "serving", "it was told to end");
    attached.kill();
    is_refused(&attached);
    assert_eq!(listed(&attached.home)[0]["state"], "waiting", "the disk was pulled from under its mount");
    assert!(attached.verb(&["detach", text(&at), "--now"]).status.success());
}
