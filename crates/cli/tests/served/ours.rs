//! Attacks by other local users on processes of root, through files, links, sockets and records. Only root
//! can act as them; for other users these tests pass at once.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::attached::{BLOCKWIRE, refusal, text};
use crate::daemon::Place;
use crate::verbs::{served, urls};

const NOBODY: u32 = 65534;
/// Where the thief listens, and what it writes of that; in its environment.
const THIEF: &str = "OURS_THIEF";
const HEARD: &str = "OURS_HEARD";

/// Not a test but a process of another user, when another test wants it: takes what it is told.
#[test]
fn thief() {
    use std::io::Read;
    let Ok(socket) = std::env::var(THIEF) else { return };
    let listener = UnixListener::bind(&socket).unwrap();
    set_mode(Path::new(&socket), 0o777);
    let mut heard = vec![0; 4096];
    let len = listener.accept().unwrap().0.read(&mut heard).unwrap();
    fs::write(std::env::var(HEARD).unwrap(), &heard[..len]).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A process of another user, which must outlive what is done.
struct Victim(Child);

impl Victim {
    fn of(user: &str) -> Victim {
        let words = ["--reuid", user, "--clear-groups", "sleep", "600"];
        Victim(Command::new("setpriv").args(words).spawn().unwrap())
    }

    fn started(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        text[text.rfind(')').unwrap() + 1..].split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What another user would have root believe.
fn note(holder: &Victim, way: &Path) -> String {
    let (pid, started) = (holder.0.id(), holder.started());
    let way = serde_json::json!([way]);
    format!(r#"{{"pid":{pid},"started":{started},"url":"x","via":"fuse","ways":{way},"nexus":[0,0,0]}}"#)
}

/// A directory that everybody writes, with notes of another user's in it.
fn shared(place: &Place, sticky: bool, owner: u32) -> PathBuf {
    let shared = place.path("shared");
    let notes = shared.join("attached");
    fs::create_dir_all(&notes).unwrap();
    set_mode(place.path("").as_path(), 0o755);
    set_mode(&shared, if sticky { 0o1777 } else { 0o777 });
    chown(&notes, Some(owner), Some(owner)).unwrap();
    set_mode(&notes, 0o755);
    shared
}

fn controlled(control: &Path, words: &[&str]) -> Output {
    Command::new(BLOCKWIRE).args(words).arg("--control").arg(control).output().unwrap()
}

#[test]
fn a_note_of_another_user_does_not_make_root_signal_a_process_of_root() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let shared = shared(&place, true, NOBODY);
    let mut victim = Victim::of("root");
    // setpriv has become sleep by then.
    thread::sleep(Duration::from_millis(200));
    let file = shared.join("attached/1-0.json");
    let way = place.path("disk");
    fs::write(&file, note(&victim, &way)).unwrap();
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let out = controlled(&shared.join("sock"), &["detach", text(&way), "--now"]);
    assert!(!out.status.success());
    assert!(victim.lives(), "root signalled its own process at another user's word");
}

#[test]
fn a_note_that_others_can_write_is_not_believed() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    // Non-sticky: anyone who writes there may put anything in place of the notes.
    let shared = shared(&place, false, 0);
    let mut victim = Victim::of("root");
    thread::sleep(Duration::from_millis(200));
    let way = place.path("disk");
    fs::write(shared.join("attached/1-0.json"), note(&victim, &way)).unwrap();
    let said = refusal(&controlled(&shared.join("sock"), &["detach", text(&way)]));
    assert!(said.contains("can be written by other users"), "{said}");
    set_mode(&shared, 0o755);
    // A note that another user owns, in a directory of ours.
    chown(shared.join("attached/1-0.json"), Some(NOBODY), None).unwrap();
    assert!(!controlled(&shared.join("sock"), &["detach", text(&way)]).status.success());
    assert!(victim.lives());
}

#[test]
fn a_link_in_the_notes_directory_does_not_make_root_overwrite_its_target() {
    if !is_root() {
        return;
    }
    let (_place, target) = served();
    let place = Place::new();
    let shared = shared(&place, true, NOBODY);
    let victim = place.path("victim");
    fs::write(&victim, "precious").unwrap();
    let control = shared.join("sock");
    let socket = place.path("nbd");
    let words = [
        "attach",
        &urls(&target, "a")[0],
        "--via",
        "nbd",
        "--at",
        text(&socket),
        "--control",
        text(&control),
    ];
    let mut child =
        Command::new(BLOCKWIRE).args(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for serial in 0..4 {
        let _ = symlink(&victim, shared.join(format!("attached/{}-{serial}.new", child.id())));
    }
    let until = Instant::now() + Duration::from_secs(30);
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if socket.exists() || Instant::now() >= until => break None,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(ended.is_some_and(|status| !status.success()), "it took another user's directory for its own");
}

#[test]
fn a_daemon_takes_no_control_socket_where_others_can_replace_it() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let shared = shared(&place, false, 0);
    let sock = shared.join("sock");
    let state = place.path("state");
    let serve = || {
        let words = ["serve", "--volume", "a=ram:1M", "--iscsi", "127.0.0.1:0", "--state", text(&state)];
        controlled(&sock, &words)
    };
    let said = refusal(&serve());
    assert!(said.contains("can be written by other users"), "{said}");
    // A socket of another user, in a directory where that is possible: it is neither replaced nor talked to.
    set_mode(&shared, 0o1777);
    let theirs = UnixListener::bind(&sock).unwrap();
    drop(theirs);
    chown(&sock, Some(NOBODY), None).unwrap();
    let said = refusal(&serve());
    assert!(said.contains("another user"), "{said}");
    assert!(sock.exists());
}

#[test]
fn a_password_is_not_told_to_another_users_daemon() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let shared = shared(&place, true, 0);
    let (sock, heard) = (shared.join("sock"), shared.join("heard"));
    let test = std::env::current_exe().unwrap();
    let words = ["--reuid", "65534", "--clear-groups", text(&test), "--exact", "ours::thief"];
    let mut thief = Command::new("setpriv");
    thief.args(words).env(THIEF, &sock).env(HEARD, &heard).stdout(Stdio::null());
    let mut thief = Victim(thief.spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(20);
    while !sock.exists() {
        assert!(Instant::now() < until && thief.lives());
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(200));
    let url = "iscsi://me%open5esame@127.0.0.1/iqn.2026-11.x:y/0";
    let said = refusal(&controlled(&sock, &["attach", url, "--daemon"]));
    assert!(said.contains("another user"), "{said}");
    thread::sleep(Duration::from_millis(100));
    let heard = fs::read(&heard).unwrap_or_default();
    assert!(heard.is_empty(), "the password was told: {}", String::from_utf8_lossy(&heard));
}

#[test]
fn a_guardian_that_is_typed_removes_nothing() {
    let place = Place::new();
    let file = place.path("precious");
    fs::write(&file, "data").unwrap();
    let words = ["keep", "--socket", text(&file)];
    let out = Command::new(BLOCKWIRE).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(!out.status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
}
