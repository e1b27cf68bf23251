//! The whole way from arguments to `ready` and back, with an engine that serves nothing.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, mpsc},
    time::Duration,
};

use clap::Parser;

use super::*;
use crate::{
    cli::{Cli, Verb},
    control::{Answer, Request, client},
    plan::Ways,
    report::{ConnectionReport, ListenerReport, SessionReport, ShardReport},
};

/// An engine that listens nowhere and stops at once, or only when told twice.
struct Idle {
    portals: Vec<Portal>,
    stuck: bool,
    /// Whether it can make everything stable.
    safe: bool,
    hasty: Mutex<bool>,
}

impl Engine for Idle {
    fn listeners(&self) -> Vec<ListenerReport> {
        let report = |portal: &Portal| ListenerReport {
            protocol: portal.protocol.as_str().into(),
            address: portal.address,
            tag: portal.tag,
        };
        self.portals.iter().map(report).collect()
    }
    fn sessions(&self) -> Result<Vec<SessionReport>, EngineError> {
        Ok(Vec::new())
    }
    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(Vec::new())
    }
    fn shards(&self) -> Result<Vec<ShardReport>, EngineError> {
        Ok(Vec::new())
    }
    fn standings(&self) -> Result<Vec<crate::report::StandingReport>, EngineError> {
        Ok(Vec::new())
    }
    fn set_access(&self, _: &str, _: &[u16], _: volume::Access) -> Result<(), EngineError> {
        Ok(())
    }
    fn protect_volume(&self, _: &str, _: bool) -> Result<(), EngineError> {
        Ok(())
    }
    fn add_volume(&self, _: &Store, _: &Ways) -> Result<(), EngineError> {
        Ok(())
    }
    fn remove_volume(&self, _: &str, _: bool) -> Result<(), EngineError> {
        Ok(())
    }
    fn set_ways(&self, _: &Ways) -> Result<(), EngineError> {
        Ok(())
    }
    fn end_session(&self, _: u64, _: usize) -> Result<(), EngineError> {
        Ok(())
    }
    fn sync_failed(&self, _: &str) {}
    fn resize_volume(&self, _: &str, _: u64) -> Result<(), EngineError> {
        Ok(())
    }
    fn stop(&self, how: Stop) -> bool {
        *self.hasty.lock().unwrap() |= how == Stop::Now;
        while self.stuck && !*self.hasty.lock().unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        self.safe
    }
}

impl Idle {
    fn start(start: &Start<'_>, stuck: bool, safe: bool) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(Idle { portals: start.plan.portals.clone(), stuck, safe, hasty: Mutex::default() }))
    }
}

fn idle(start: Start<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, false, true)
}

fn stuck(start: Start<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, true, true)
}

fn unsafe_at_the_end(start: Start<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, false, false)
}

fn broken(_: Start<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Err(EngineError::Start("no ring".into()))
}

/// A writer that says when `ready` was written.
struct Out(mpsc::Sender<String>, String);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.push_str(std::str::from_utf8(bytes).unwrap());
        if self.1.ends_with("ready\n") {
            self.0.send(self.1.clone()).unwrap();
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Running {
    paths: Paths,
    ending: Arc<Ending>,
    said: String,
    thread: thread::JoinHandle<Result<Exit, Failure>>,
}

fn paths(root: &tempfile::TempDir) -> Paths {
    let at = |name: &str| -> PathBuf { root.path().join(name) };
    Paths { config: at("etc/blockwire.toml"), control: at("run/control.sock"), state: at("state") }
}

fn args(line: &str) -> Box<ServeArgs> {
    let words = ["blockwire", "serve"].into_iter().chain(line.split_whitespace());
    match Cli::try_parse_from(words).unwrap().verb {
        Verb::Serve(args) => args,
        other => panic!("{other:?}"),
    }
}

fn run(root: &tempfile::TempDir, line: &str, start: StartEngine) -> Running {
    let (paths, args, ending) = (paths(root), args(line), Arc::new(Ending::default()));
    let (sender, receiver) = mpsc::channel();
    let (there, asked) = (paths.clone(), ending.clone());
    let thread = thread::spawn(move || serve(&args, &there, start, &asked, &mut Out(sender, String::new())));
    let said = receiver.recv_timeout(Duration::from_secs(10)).expect("ready");
    Running { paths, ending, said, thread }
}

impl Running {
    fn ask(&self, request: Request) -> Answer {
        client::ask(&self.paths.control, request).unwrap()
    }

    fn stop(self) -> Exit {
        self.ending.ask(Stop::Clean);
        self.thread.join().unwrap().unwrap()
    }
}

fn refused(root: &tempfile::TempDir, line: &str, start: StartEngine) -> Failure {
    serve(&args(line), &paths(root), start, &Arc::new(Ending::default()), &mut Vec::new()).unwrap_err()
}

fn names(answer: Answer) -> Vec<String> {
    match answer {
        Answer::Volumes(volumes) => volumes.into_iter().map(|volume| volume.name).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn with_nothing_else_it_serves_a_demo_on_loopback() {
    let root = tempfile::tempdir().unwrap();
    let daemon = run(&root, "", idle);
    assert_eq!(
        daemon.said,
        "listening iscsi 127.0.0.1:3260\nlistening nvme 127.0.0.1:4420\nlistening nvme-discovery 127.0.0.1:8009\nready\n"
    );
    assert_eq!(names(daemon.ask(Request::VolumeList)), ["demo"]);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.pid, status.volumes, status.targets), (std::process::id(), 1, 1));
    let control = daemon.paths.control.clone();
    assert_eq!(daemon.stop(), Exit::Success);
    assert!(!control.exists());
}

#[test]
fn stop_over_the_socket_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let daemon = run(&root, "", idle);
    let Answer::Stopping { .. } = daemon.ask(Request::Stop { now: false }) else { panic!() };
    assert_eq!(daemon.thread.join().unwrap(), Ok(Exit::Success));
}

#[test]
fn a_second_request_ends_a_clean_stop_at_once() {
    let root = tempfile::tempdir().unwrap();
    let daemon = run(&root, "", stuck);
    daemon.ending.ask(Stop::Clean);
    thread::sleep(Duration::from_millis(50));
    assert!(!daemon.thread.is_finished(), "it waits for what is in flight");
    daemon.ending.ask(Stop::Now);
    assert_eq!(daemon.thread.join().unwrap(), Ok(Exit::Failure));
}

#[test]
fn what_is_not_safe_at_the_end_is_a_failure() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(run(&root, "", unsafe_at_the_end).stop(), Exit::Failure);
}

#[test]
fn volumes_and_identities_survive_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let line = format!("--volume a=file:{}/a.img,size=1M", root.path().display());
    let daemon = run(&root, &line, idle);
    let uuid = |daemon: &Running, name: &str| match daemon.ask(Request::VolumeShow { name: name.into() }) {
        Answer::Volume(volume) => volume.uuid,
        other => panic!("{other:?}"),
    };
    daemon.ask(Request::VolumeCreate { name: "b".into(), spec: "ram:1M".into() });
    let (a, b) = (uuid(&daemon, "a"), uuid(&daemon, "b"));
    daemon.stop();
    fs::rename(root.path().join("a.img"), root.path().join("c.img")).unwrap();
    let line = format!("--volume c=file:{}/c.img", root.path().display());
    let daemon = run(&root, &line, idle);
    assert_eq!(names(daemon.ask(Request::VolumeList)), ["c", "b"]);
    assert_eq!(uuid(&daemon, "c"), a, "the identity went with the file");
    assert_ne!(uuid(&daemon, "b"), b, "memory is another disk after a restart");
    daemon.stop();
}

#[test]
fn two_daemons_do_not_share_state_or_socket() {
    let root = tempfile::tempdir().unwrap();
    let daemon = run(&root, "", idle);
    let why = refused(&root, "--iscsi 127.0.0.1:1", idle);
    assert!(why.message.contains("in use by another daemon"), "{why}");
    let line = format!("--iscsi 127.0.0.1:1 --state {}/other", root.path().display());
    let why = refused(&root, &line, idle);
    assert!(why.message.contains("another daemon answers"), "{why}");
    daemon.stop();
}

#[test]
fn nothing_is_half_applied() {
    let root = tempfile::tempdir().unwrap();
    let a = root.path().join("a.img");
    let good = format!("--volume a=file:{},size=1M", a.display());
    for (rest, exit, want) in [
        ("--volume a=ram:1M", Exit::Usage, "volume \"a\" is already named at command line: --volume a"),
        ("--volume b=file:/nonexistent/x,size=1M", Exit::Failure, "cannot open"),
        ("--iscsi 127.0.0.1 --iscsi 0.0.0.0 --allow-anonymous", Exit::Usage, "already in use"),
        ("--iscsi 0.0.0.0", Exit::Usage, "--allow-anonymous"),
        ("--config /nonexistent.toml", Exit::Usage, "/nonexistent.toml: cannot be read"),
    ] {
        let why = refused(&root, &format!("{good} {rest}"), idle);
        assert!(why.exit == exit && why.message.contains(want), "{rest}: {why:?}");
        assert!(!a.exists(), "{rest}");
    }
    let why = refused(&root, &good, broken);
    assert_eq!(why.message, "cannot start: no ring");
    assert!(!a.exists());
    assert!(!paths(&root).control.exists());
    run(&root, &good, idle).stop();
}

#[test]
fn a_damaged_record_stops_the_start() {
    let root = tempfile::tempdir().unwrap();
    run(&root, &format!("--volume a=file:{}/a.img,size=1M", root.path().display()), idle).stop();
    let path = paths(&root).state.join("identities");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let why = refused(&root, "", idle);
    assert!(why.message.contains("identities is damaged (its checksum is wrong)"), "{why}");
}

/// A volume that was created at run time and cannot be opened keeps no other from being served; it is shown with its
/// reason, and can be tried again or deleted. So can one whose record nobody can read.
#[test]
fn one_volume_that_cannot_be_opened_does_not_keep_the_others_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("gone.img");
    let spec = format!("file:{},size=1M", file.display());
    let daemon = run(&root, "", idle);
    for (name, spec) in [("gone", spec.as_str()), ("fine", "ram:1M")] {
        daemon.ask(Request::VolumeCreate { name: name.into(), spec: spec.into() });
    }
    daemon.stop();
    // The directory is not mounted, say: a directory stands where the file was.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let state = StateDir::open(&paths(&root).state).unwrap();
    let mut all = volumes::load(&state).unwrap();
    all.push(Recorded { name: "odd".into(), spec: "rma:1M".into() });
    state.write_json(volumes::RECORD, &all).unwrap();
    drop(state);

    let daemon = run(&root, "", idle);
    let mut listed = names(daemon.ask(Request::VolumeList));
    listed.sort();
    assert_eq!(listed, ["demo", "fine", "gone", "odd"]);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (2, 2));
    let Answer::Volume(shown) = daemon.ask(Request::VolumeShow { name: "gone".into() }) else { panic!() };
    assert!(shown.failed.as_deref().is_some_and(|why| why.contains("is not a regular file")), "{shown:?}");
    assert_eq!((shown.size_bytes, shown.uuid), (None, None), "nothing is made up");
    let retry = |name: &str| client::ask(&daemon.paths.control, Request::VolumeRetry { name: name.into() });
    assert!(retry("gone").is_err());
    assert!(retry("fine").unwrap_err().message.contains("has not failed"));
    fs::remove_dir(&file).unwrap();
    let Answer::Volume(shown) = retry("gone").unwrap() else { panic!() };
    assert_eq!((shown.failed, shown.size_bytes), (None, Some(1 << 20)));
    daemon.ask(Request::VolumeDelete { name: "odd".into(), force: false });
    daemon.stop();
    let daemon = run(&root, "", idle);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (3, 0));
    daemon.stop();
}

#[test]
fn the_default_file_is_read_and_added_to() {
    let root = tempfile::tempdir().unwrap();
    let paths = paths(&root);
    fs::create_dir_all(paths.config.parent().unwrap()).unwrap();
    fs::write(&paths.config, "node = \"n1\"\n[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n").unwrap();
    let daemon = run(&root, "--volume b=null:1G --iscsi 127.0.0.1:0 --iscsi [::1]:0", idle);
    assert_eq!(daemon.said, "listening iscsi 127.0.0.1:0\nlistening iscsi [::1]:0\nready\n");
    assert_eq!(names(daemon.ask(Request::VolumeList)), ["a", "b"]);
    let Answer::Targets(targets) = daemon.ask(Request::TargetList) else { panic!() };
    assert_eq!(targets[1].name, "iqn.2026-11.io.blockwire:n1:b");
    daemon.stop();
    fs::write(&paths.config, "nodes = \"n1\"\n").unwrap();
    let why = refused(&root, "", idle);
    assert_eq!(why.exit, Exit::Usage);
    assert!(
        why.message
            .ends_with("blockwire.toml:1:1: unknown key \"nodes\" in the top level; did you mean \"node\"?"),
        "{why}"
    );
}
