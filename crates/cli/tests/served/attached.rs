//! Remote volumes as local devices: in the foreground, held by the daemon, and over the death of either.

mod give_up;
mod recover;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::{Daemon, Place, wait_until};
use crate::verbs::{CONFIG, good, served, urls};
use testkit::watchdog::{self, Watchdog, set_stage};

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
    watch: Watchdog,
}

/// How long a test may wait for one attachment: a while longer than a guardian does.
const LIMIT: Duration = Duration::from_secs(150);

impl Attached {
    fn new(place: &Place, arguments: &[&str]) -> Attached {
        use std::io::{BufRead, BufReader};
        let watch = Watchdog::with_limit(LIMIT);
        set_stage(format!("attach {}", arguments.join(" ")));
        let home = place.path("home");
        fs::create_dir_all(&home).unwrap();
        let mut child = Command::new(BLOCKWIRE)
            .arg("attach")
            .args(arguments)
            .env("RUNTIME_DIRECTORY", &home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        watchdog::watch_process(&child);
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> =
            out.lines().map_while(Result::ok).take_while(|line| line != "ready").collect();
        set_stage("what was attached is used");
        let attached = Attached { child, lines, home, watch };
        if let Some(file) = attached.way("file") {
            attached.watch.watch_mount(Path::new(file).parent().unwrap());
        }
        attached
    }

    fn way(&self, word: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
    }

    fn verb(&self, arguments: &[&str]) -> Output {
        verb(&self.home, arguments)
    }

    /// Goes away when it is told to.
    fn detach(&mut self, at: &Path) {
        assert!(self.verb(&["detach", text(at)]).status.success());
        assert!(self.child.wait().unwrap().success());
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
    set_stage(arguments.join(" "));
    watchdog::run_for_output(Command::new(BLOCKWIRE).args(arguments).env("RUNTIME_DIRECTORY", home)).unwrap()
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
        watchdog::watch_process(&child);
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

/// What QEMU reads of one place is written to another.
fn convert(arguments: &[&str]) {
    let words = [&["convert", "-f", "raw", "-O", "raw"], arguments].concat();
    let done = Command::new("qemu-img").args(words).status();
    assert!(done.expect("qemu-img is installed by tests/setup.sh").success());
}

/// A process that reads one block.
fn reader(file: &str) -> Child {
    let words = [&format!("if={file}"), "of=/dev/null", "bs=4k", "count=1", "iflag=direct"];
    let child = Command::new("dd").args(words).stderr(Stdio::null()).spawn().unwrap();
    watchdog::watch_process(&child);
    child
}

fn block(n: u64) -> Vec<u8> {
    n.to_ne_bytes().into_iter().cycle().take(4096).collect()
}

#[test]
fn the_daemon_holds_attachments_and_says_so() {
    let (_place, target) = served();
    let [iscsi, nvme] = urls(&target, "a");
    good(&["write", &iscsi, "--input", "/dev/urandom", "--length", "1M"]);
    let here = Place::new();
    let mut holder = here.serve(CONFIG, &["--no-sandbox"]);
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
    convert(&[&url, text(&image)]);
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
    convert(&[&url, text(&image)]);
    good(&["verify", image.to_str().unwrap(), &nvme]);
    attached.detach(&socket);
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
    convert(&["-n", text(&image), &export]);
    attached.detach(&socket);
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
        attached.detach(&at);
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
    let holder = here.serve(CONFIG, &["--no-sandbox"]);
    let stripe = format!("stripe:{}+{},chunk=4M", legs[0], legs[1]);
    holder.ask(&format!("attach {stripe} --daemon --via nbd --at {}", text(&socket)));
    let export = format!("nbd+unix:///?socket={}", text(&socket));
    let does = |what: &str| {
        let mut command = Command::new("qemu-io");
        let out = watchdog::run_for_output(command.args(["-f", "raw", "-c", what, &export]));
        let out = out.expect("qemu-io is installed by tests/setup.sh");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let becomes = |what: &str, word: &str| {
        wait_until(20, || format!("{what}: {}", does(what)), || does(what).contains(word));
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
        set_stage(format!("{program} {}", words.join(" ")));
        let out = watchdog::run_for_output(Command::new(program).args(words)).unwrap();
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
