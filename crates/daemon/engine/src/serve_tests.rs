//! From arguments to `ready` and back, with an engine that serves nothing.

use std::sync::{Mutex, mpsc};
use std::{fs, io, path::PathBuf, time::Duration};

use clap::Parser;

use super::*;
use crate::StopMode;
use config::plan::{ExportPlan, Portal};
use control::{
    Answer, Request, client,
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
    fn volume_states(&self) -> Result<Vec<control::report::VolumeStateReport>, EngineError> {
        Ok(Vec::new())
    }
    fn set_path_access(&self, _: &str, _: &[u16], _: volume::PathAccess) -> Result<(), EngineError> {
        Ok(())
    }
    fn set_preferred_paths(&self, _: &str, _: &[u16], _: bool) -> Result<(), EngineError> {
        Ok(())
    }
    fn set_write_protection(&self, _: &str, _: bool) -> Result<(), EngineError> {
        Ok(())
    }
    fn add_volume(&self, _: &Store, _: &ExportPlan) -> Result<(), EngineError> {
        Ok(())
    }
    fn remove_volume(&self, _: &str, _: bool) -> Result<(), EngineError> {
        Ok(())
    }
    fn drain_volume(&self, _: &str) -> Result<(), EngineError> {
        Ok(())
    }
    fn set_exports(&self, _: &ExportPlan) -> Result<(), EngineError> {
        Ok(())
    }
    fn end_session(&self, _: u64, _: usize) -> Result<(), EngineError> {
        Ok(())
    }
    fn has_sync_failure(&self, _name: &str) -> bool {
        false
    }
    fn acknowledge_sync_failure(&self, _volume: &Store) -> Result<(), EngineError> {
        Ok(())
    }
    fn note_sync_failure(&self, _: &str) {}
    fn resize_volume(&self, _: &str, _: u64) -> Result<(), EngineError> {
        Ok(())
    }
    fn stop(&self, how: StopMode) -> bool {
        *self.hasty.lock().unwrap() |= how == StopMode::Now;
        while self.stuck && !*self.hasty.lock().unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        self.safe
    }
}

impl Idle {
    fn start(start: &EngineParams<'_>, stuck: bool, safe: bool) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(Idle { portals: start.plan.portals.clone(), stuck, safe, hasty: Mutex::default() }))
    }
}

fn idle(start: EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, false, true)
}

fn stuck(start: EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, true, true)
}

fn unsafe_at_the_end(start: EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Idle::start(&start, false, false)
}

/// The process of tests is not the daemon's own.
fn unrestricted(start: StartEngine) -> Launch {
    let enforce = |_: &sandbox::Policy| sandbox::Report {
        landlock: sandbox::LandlockState::Absent("a test".to_owned()),
        seccomp: Err("a test".to_owned()),
    };
    Launch { start, enforce }
}

fn broken(_: EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError> {
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
    paths: DefaultPaths,
    ending: Arc<StopSignal>,
    said: String,
    thread: thread::JoinHandle<Result<Exit, Failure>>,
}

fn paths(root: &tempfile::TempDir) -> DefaultPaths {
    let at = |name: &str| -> PathBuf { root.path().join(name) };
    DefaultPaths { config: at("etc/blockwire.toml"), control: at("run/control.sock"), state: at("state") }
}

/// The options of `serve`, as the command line has them.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ServeArgs,
}

fn args(line: &str) -> ServeArgs {
    let words = ["serve"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap_or_else(|why| panic!("{line}: {why}")).args
}

fn run(root: &tempfile::TempDir, line: &str, start: StartEngine) -> Running {
    let (paths, args, ending) = (paths(root), args(line), Arc::new(StopSignal::default()));
    let (sender, receiver) = mpsc::channel();
    let (there, asked) = (paths.clone(), ending.clone());
    let thread = thread::spawn(move || {
        serve(&args, &there, &unrestricted(start), &asked, Box::new(Out(sender, String::new())))
    });
    let said = receiver.recv_timeout(Duration::from_secs(10)).expect("ready");
    Running { paths, ending, said, thread }
}

impl Running {
    fn ask(&self, request: Request) -> Answer {
        client::send_request(&self.paths.control, request).unwrap()
    }

    fn stop(self) -> Exit {
        self.ending.request_stop(StopMode::Clean);
        self.thread.join().unwrap().unwrap()
    }
}

fn refused(root: &tempfile::TempDir, line: &str, start: StartEngine) -> Failure {
    serve(
        &args(line),
        &paths(root),
        &unrestricted(start),
        &Arc::new(StopSignal::default()),
        Box::new(Vec::new()),
    )
    .unwrap_err()
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
    daemon.ending.request_stop(StopMode::Clean);
    thread::sleep(Duration::from_millis(50));
    assert!(!daemon.thread.is_finished(), "it waits for what is in flight");
    daemon.ending.request_stop(StopMode::Now);
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
    let uuid = |daemon: &Running, name: &str| match daemon
        .ask(Request::VolumeShow { name: name.into(), latency: false })
    {
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

/// One file twice, say. Where there is no other volume, nothing would be served, and the start says why.
#[test]
fn a_volume_that_is_configured_wrongly_keeps_no_other_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let a = root.path().join("a.img");
    let daemon = run(&root, &format!("--volume a=file:{0},size=1M --volume b=file:{0}", a.display()), idle);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (1, 1));
    let failed = &status.failed[0];
    assert!(failed.volume == "b" && failed.why.contains("is already open as volume \"a\""), "{failed:?}");
    daemon.stop();
    let why = refused(&root, &format!("--volume c=stripe:file:{0}+file:{0}", a.display()), idle);
    assert_eq!(why.exit, Exit::Failure, "{why:?}");
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
    let mut all = volumes::load_volumes(&state).unwrap();
    all.push(VolumeRecord { name: "odd".into(), spec: "rma:1M".into() });
    state.write_json(volumes::RECORD_NAME, &all).unwrap();
    drop(state);

    let daemon = run(&root, "", idle);
    let mut listed = names(daemon.ask(Request::VolumeList));
    listed.sort();
    assert_eq!(listed, ["demo", "fine", "gone", "odd"]);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (2, 2));
    let Answer::Volume(shown) = daemon.ask(Request::VolumeShow { name: "gone".into(), latency: false })
    else {
        panic!()
    };
    assert!(shown.failed.as_deref().is_some_and(|why| why.contains("is not a regular file")), "{shown:?}");
    assert_eq!((shown.size_bytes, shown.uuid), (None, None), "nothing is made up");
    let retry =
        |name: &str| client::send_request(&daemon.paths.control, Request::VolumeRetry { name: name.into() });
    assert!(retry("gone").is_err());
    assert!(retry("fine").unwrap_err().message.contains("has not failed"));
    fs::remove_dir(&file).unwrap();
    // It was there before, so nobody makes an empty one in its place.
    assert!(retry("gone").unwrap_err().message.contains("is missing and is not created again"));
    assert!(!file.exists());
    fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let Answer::Volume(shown) = retry("gone").unwrap() else { panic!() };
    assert_eq!((shown.failed, shown.size_bytes), (None, Some(1 << 20)));
    daemon.ask(Request::VolumeDelete { name: "odd".into(), force: false });
    daemon.stop();
    let daemon = run(&root, "", idle);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (3, 0));
    daemon.stop();
}

/// A file system that is not mounted, a disk that is not plugged in, a file that another process has: the configuration
/// is right, and the operator tries again when the volume is there.
#[test]
fn a_configured_volume_that_is_away_does_not_keep_the_others_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    let mount = at("mount");
    fs::write(at("held.img"), [1; 4096]).unwrap();
    fs::write(at("empty.img"), []).unwrap();
    let held = fs::File::open(at("held.img")).unwrap();
    held.lock().unwrap();
    let cases = [
        (format!("file:{mount}/a,size=1M"), "cannot open"),
        (format!("file:{mount}/a"), "does not exist"),
        (format!("file:{mount}/a,size=1M,ro"), "does not exist"),
        ("/dev/disk/by-id/unplugged".to_owned(), "cannot look at"),
        ("/dev/null".to_owned(), "is not a block device"),
        (format!("file:{}", at("held.img")), "is in use by another process"),
        (format!("file:{}", at("empty.img")), "is smaller than one block"),
        (format!("file:{}", root.path().display()), "is not a regular file"),
        (
            format!("stripe:file:{}\\,size=1M+file:{mount}/b\\,size=1M", at("leg")),
            "leg 2 of the stripe: cannot",
        ),
    ];
    for (spec, want) in &cases {
        let daemon = run(&root, &format!("--volume away={spec} --volume fine=ram:1M"), idle);
        let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
        assert_eq!((status.volumes, status.failed.len()), (1, 1), "{spec}");
        assert!(status.failed[0].why.contains(want), "{spec}: {:?}", status.failed);
        daemon.stop();
    }
    assert!(!fs::exists(at("leg")).unwrap(), "no leg is made of a stripe that is not served");
    let daemon = run(&root, &format!("--volume away={}", cases[0].0), idle);
    fs::create_dir(&mount).unwrap();
    let Answer::Volume(shown) = daemon.ask(Request::VolumeRetry { name: "away".into() }) else { panic!() };
    assert_eq!((shown.failed, shown.size_bytes), (None, Some(1 << 20)));
    daemon.stop();
}

/// A file that is missing when the daemon starts again is a file system that is not mounted, or a loss: an empty one in
/// its place would be served to hosts as what they had.
#[test]
fn a_missing_file_is_not_made_again_by_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let (away, legs) = (root.path().join("a.img"), ["b.img", "c.img"].map(|leg| root.path().join(leg)));
    let stripe = legs.each_ref().map(|leg| format!("file:{}\\,size=1M", leg.display())).join("+");
    let words =
        format!("--volume a=file:{},size=1M --volume fine=ram:1M --volume s=stripe:{stripe}", away.display());
    run(&root, &words, idle).stop();
    assert!(away.exists(), "the first start makes it");
    for gone in [&away, &legs[1]] {
        let aside = root.path().join("aside");
        fs::rename(gone, &aside).unwrap();
        let daemon = run(&root, &words, idle);
        let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
        assert_eq!((status.volumes, status.failed.len()), (2, 1));
        assert!(status.failed[0].why.contains("is missing and is not created again"), "{:?}", status.failed);
        assert!(!gone.exists());
        fs::rename(&aside, gone).unwrap();
        daemon.ask(Request::VolumeRetry { name: status.failed[0].volume.clone() });
        let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
        assert_eq!((status.volumes, status.failed.len()), (3, 0));
        daemon.stop();
    }
    // At the operator's word one is made where another was.
    let daemon = run(&root, "", idle);
    fs::remove_file(&away).unwrap();
    let spec = format!("file:{},size=1M", away.display());
    daemon.ask(Request::VolumeCreate { name: "new".into(), spec });
    assert!(away.exists());
    daemon.stop();
}

/// A port that is in use, say: no volume has failed when the start is tried again.
#[test]
fn a_file_that_was_made_in_vain_does_not_count_as_having_been_there() {
    let root = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| root.path().join(name));
    let served = |words: &str| {
        let daemon = run(&root, words, idle);
        let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
        daemon.stop();
        (status.volumes, status.failed.len())
    };
    for rest in ["", ",uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8"] {
        let words = format!("--volume a=file:{},size=1M{rest}", a.display());
        refused(&root, &words, broken);
        assert!(!a.exists());
        assert_eq!(served(&words), (1, 0), "{rest}");
        fs::remove_file(&a).unwrap();
        assert_eq!(served(&words), (0, 1), "what was served has been there");
        StateDir::open(&paths(&root).state).unwrap().remove_record("identities").unwrap();
    }
    // A leg that was made beside one that is missing.
    let aside = root.path().join("aside");
    assert_eq!(served(&format!("--volume c=file:{},size=1M", c.display())), (1, 0));
    fs::rename(&c, &aside).unwrap();
    let words = format!("--volume s=stripe:file:{}\\,size=1M+file:{}\\,size=1M", b.display(), c.display());
    assert_eq!((served(&words), b.exists()), ((0, 1), false));
    fs::rename(&aside, &c).unwrap();
    assert_eq!((served(&words), b.exists()), ((1, 0), true));
}

/// That its UUID is chosen says nothing of what is in it.
#[test]
fn a_missing_file_of_a_chosen_uuid_is_not_made_again() {
    let root = tempfile::tempdir().unwrap();
    let (file, aside) = (root.path().join("a.img"), root.path().join("aside"));
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let words = format!("--volume a=file:{},size=1M,uuid={uuid}", file.display());
    let is_missing = || {
        let daemon = run(&root, &words, idle);
        let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
        daemon.stop();
        assert_eq!(status.failed.len(), 1);
        assert!(status.failed[0].why.contains("is missing and is not created again"), "{:?}", status.failed);
        assert!(!file.exists());
    };
    let daemon = run(&root, &words, idle);
    let Answer::Volume(shown) = daemon.ask(Request::VolumeShow { name: "a".into(), latency: false }) else {
        panic!()
    };
    assert_eq!(shown.uuid.map(|uuid| uuid.to_string()).as_deref(), Some(uuid));
    daemon.stop();
    fs::rename(&file, &aside).unwrap();
    is_missing();
    // A version that kept no place of such a file has left what it knew of the volume.
    for record in ["reservations", "sync-failed"] {
        let state = StateDir::open(&paths(&root).state).unwrap();
        state.remove_record("identities").unwrap();
        let record = format!("{uuid}.{record}");
        state.write_record(&record, b"{}").unwrap();
        drop(state);
        is_missing();
        StateDir::open(&paths(&root).state).unwrap().remove_record(&record).unwrap();
    }
    // Of another volume they say nothing.
    let state = StateDir::open(&paths(&root).state).unwrap();
    state.write_record("7ba7b810-9dad-11d1-80b4-00c04fd430c8.reservations", b"{}").unwrap();
    drop(state);
    run(&root, &words, idle).stop();
    assert!(file.exists());
}

/// It did nothing, so nothing that says it is kept from being served; what is new does not say it.
#[test]
fn thin_off_of_memory_does_not_keep_an_older_configuration_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let config = paths(&root).config;
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let tables = ["source = \"ram:1M\"\nthin = false", "source = \"stripe:ram:1M\\\\,thin=off+ram:1M\""];
    let [a, b] = tables.map(|table| format!("[[volume]]\nname = \"NAME\"\n{table}\n"));
    fs::write(&config, a.replace("NAME", "a") + &b.replace("NAME", "b")).unwrap();
    let sink = Sink::default();
    read_configuration(
        &args("--volume c=null:1M,thin=off"),
        &ConfigFiles::read(&paths(&root).config, &sink),
        &sink,
    );
    let ((), warnings) = sink.into_result(()).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.iter().all(|one| one.contains("thin=off is ignored")), "{warnings:?}");
    assert!(warnings[0].contains("blockwire.toml:4:"), "{warnings:?}");
    let state = StateDir::open(&paths(&root).state).unwrap();
    let older = VolumeRecord { name: "d".into(), spec: "ram:1M,thin=off".into() };
    state.write_json(volumes::RECORD_NAME, &[older]).unwrap();
    drop(state);
    let daemon = run(&root, "--volume c=null:1M,thin=off", idle);
    let Answer::Status(status) = daemon.ask(Request::Status) else { panic!() };
    assert_eq!((status.volumes, status.failed.len()), (4, 0));
    let create = Request::VolumeCreate { name: "e".into(), spec: "ram:1M,thin=off".into() };
    let why = client::send_request(&daemon.paths.control, create).unwrap_err();
    assert!(why.message.contains("thin cannot be off"), "{why}");
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

#[test]
fn a_default_file_that_names_nothing_keeps_the_demo_when_it_is_applied_again() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/conf.d")).unwrap();
    let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
    write("etc/blockwire.toml", "# nothing\n");
    write("etc/conf.d/10-node.toml", "node = \"rack1\"\n");
    write("other.toml", "node = \"rack1\"\n");
    let checked = check::check_configuration(&args(""), &paths(&root)).unwrap();
    assert!(checked.summary.contains("1 volume,"), "{}", checked.summary);
    let daemon = run(&root, "", idle);
    let Answer::Plan(report) = daemon.ask(Request::Apply { file: None }) else { panic!() };
    assert!(report.changes.is_empty(), "{report:?}");
    assert_eq!(names(daemon.ask(Request::VolumeList)), ["demo"]);
    // Who names a file has said what is to be served.
    let Answer::Plan(report) = daemon.ask(Request::Plan { file: Some(root.path().join("other.toml")) })
    else {
        panic!()
    };
    assert!(report.changes.iter().any(|one| one.action == "remove" && one.name == "demo"), "{report:?}");
    assert_eq!(daemon.stop(), Exit::Success);
}
