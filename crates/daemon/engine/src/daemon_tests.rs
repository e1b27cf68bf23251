//! Changes at run time against an engine that only remembers what it was told.

use super::*;
use crate::state::volumes;
use config::{
    check,
    plan::{Origin, Volume},
    spec,
};

/// What the engine was told, and what it shall refuse.
#[derive(Default)]
pub struct Memory {
    told: Mutex<Vec<String>>,
    refuse: Mutex<bool>,
    /// The volume of which a sync has failed.
    in_doubt: Mutex<Option<String>>,
    /// Held while the disk does not answer to which an acknowledged volume is to be synced.
    silent: Mutex<()>,
    /// Held while operations of a removed volume are out.
    busy: Mutex<()>,
    /// What comes of the next drain.
    lingers: Mutex<Option<EngineError>>,
    /// What comes of the next change, done or not.
    comes: Mutex<Option<EngineError>>,
}

impl Memory {
    fn tell(&self, what: String) -> Result<(), EngineError> {
        if *self.refuse.lock().unwrap() {
            return Err(EngineError::InUse { sessions: 2 });
        }
        self.told.lock().unwrap().push(what);
        self.comes.lock().unwrap().take().map_or(Ok(()), Err)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

impl Engine for Memory {
    fn listeners(&self) -> Vec<control::report::ListenerReport> {
        let address = "127.0.0.1:43121".parse().unwrap();
        vec![control::report::ListenerReport { protocol: "iscsi".into(), address, tag: 1 }]
    }
    fn sessions(&self) -> Result<Vec<SessionReport>, EngineError> {
        Ok(Vec::new())
    }
    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(Vec::new())
    }
    fn shards(&self) -> Result<Vec<control::report::ShardReport>, EngineError> {
        Ok(Vec::new())
    }
    fn standings(&self) -> Result<Vec<control::report::StandingReport>, EngineError> {
        let path = |port: u16, protocol: &str, group| control::report::PathReport {
            volume: "demo".into(),
            port,
            protocol: protocol.into(),
            group,
            addresses: Vec::new(),
            state: "optimized".into(),
        };
        let standing = control::report::StandingReport {
            volume: "demo".into(),
            size_bytes: 1 << 20,
            backing_read_only: false,
            write_protected: false,
            write_protected_by_host: false,
            not_ready: None,
            closed: false,
            paths: vec![path(1, "iscsi", 1), path(2, "iscsi", 2), path(3, "nvme", 1)],
            reservation: control::report::ReservationReport {
                volume: "demo".into(),
                kind: Some("write-exclusive".into()),
                holder: Some("nqn.2026-11.io:h".into()),
                generation: 3,
                persists: true,
                registrants: Vec::new(),
            },
            reads: 0,
            read_bytes: 0,
            writes: 0,
            written_bytes: 0,
        };
        Ok(vec![standing])
    }
    fn set_access(&self, name: &str, ports: &[u16], to: volume::Access) -> Result<(), EngineError> {
        self.tell(format!("paths {name} {ports:?} {to:?}"))
    }
    fn protect_volume(&self, name: &str, on: bool) -> Result<(), EngineError> {
        self.tell(format!("protect {name} {on}"))
    }
    fn add_volume(&self, volume: &Store, ways: &Ways) -> Result<(), EngineError> {
        let targets = ways.targets.iter().map(|target| target.name.as_str());
        let names: Vec<&str> = targets.chain(ways.subsystems.iter().map(|one| one.nqn.as_str())).collect();
        self.tell(format!("add {} as {}", volume.volume.name, names.join(" and ")))
    }
    fn remove_volume(&self, name: &str, force: bool) -> Result<(), EngineError> {
        self.tell(format!("remove {name} {force}"))
    }
    fn drain_volume(&self, name: &str) -> Result<(), EngineError> {
        drop(self.busy.lock().unwrap());
        self.lingers.lock().unwrap().take().map_or(Ok(()), Err)?;
        self.tell(format!("drain {name}"))
    }
    fn set_ways(&self, ways: &Ways) -> Result<(), EngineError> {
        let names: Vec<&str> = ways.targets.iter().map(|target| target.name.as_str()).collect();
        self.tell(format!("ways {}", names.join(" ")))
    }
    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError> {
        self.tell(format!("end session {id} on {shard}"))
    }
    fn sync_failed(&self, name: &str) {
        let _ = self.tell(format!("sync of {name} failed"));
    }
    fn is_in_doubt(&self, name: &str) -> bool {
        self.in_doubt.lock().unwrap().as_deref() == Some(name)
    }
    fn acknowledge(&self, volume: &Store) -> Result<(), EngineError> {
        drop(self.silent.lock().unwrap());
        *self.in_doubt.lock().unwrap() = None;
        self.tell(format!("acknowledge {}", volume.volume.name))
    }
    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError> {
        self.tell(format!("resize {name} {bytes}"))
    }
    fn stop(&self, how: Stop) -> bool {
        self.tell(format!("stop {how:?}")).is_ok()
    }
}

struct Fixture {
    root: tempfile::TempDir,
    engine: Arc<Memory>,
    daemon: Daemon,
}

fn fixture() -> Fixture {
    fixture_of(|_| {})
}

/// With a plan that was changed.
fn fixture_of(change: impl FnOnce(&mut Plan)) -> Fixture {
    let root = tempfile::tempdir().unwrap();
    let state = Arc::new(StateDir::open(&root.path().join("state")).unwrap());
    let engine = Arc::new(Memory::default());
    let volume = Volume {
        name: VolumeName::parse("demo").unwrap(),
        spec: spec::parse("ram:1M").unwrap(),
        origin: Origin::Configured,
    };
    let mut identities = Identities::default();
    let store = Store::open(&volume, &mut identities, [].iter()).unwrap();
    let target = check::default_target(None, &volume, &[1], true);
    let subsystem = check::default_subsystem(None, &volume, &[1], true);
    let portal = |protocol| config::plan::Portal {
        protocol,
        address: "127.0.0.1:0".parse().unwrap(),
        tag: 1,
        digests: (true, true),
        tcp: config::plan::TcpOptions::default(),
    };
    let mut plan = Plan {
        node: None,
        volumes: vec![volume],
        portals: vec![portal(Protocol::Iscsi), portal(Protocol::Nvme)],
        ways: Ways { targets: vec![target], subsystems: vec![subsystem] },
        referrals: Vec::new(),
        oui: None,
        hosts: Vec::new(),
        auth: config::plan::Auth::default(),
        allow_anonymous: false,
        limits: config::plan::Limits::default(),
        placement: Vec::new(),
        cores: Vec::new(),
        io: config::plan::IoWorld::Auto,
    };
    change(&mut plan);
    let ending = Arc::new(Ending::default());
    let daemon = Daemon::new(
        engine.clone(),
        plan,
        vec![store],
        identities,
        state,
        ending,
        "/nowhere/control.sock".into(),
    );
    Fixture { root, engine, daemon }
}

fn create(daemon: &Daemon, name: &str, spec: String) -> Result<Answer, Refused> {
    daemon.answer(Request::VolumeCreate { name: name.into(), spec })
}

fn code(answer: Result<Answer, Refused>) -> Code {
    answer.unwrap_err().code
}

/// A file may be longer than its volume: images have footers, and not every length is a multiple of the block.
#[test]
fn a_resize_that_is_refused_or_changes_nothing_cuts_nothing_off() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("odd.img");
    let content: Vec<u8> = (0..(1 << 20) + 100).map(|at| at as u8).collect();
    std::fs::write(&path, &content).unwrap();
    daemon.create("odd", &format!("file:{}", path.display())).unwrap();
    let shown = || daemon.served().volume("odd").unwrap().size_bytes;
    assert_eq!(shown(), Some(1 << 20));
    daemon.resize("odd", 1 << 20, false).unwrap();
    assert!(std::fs::read(&path).unwrap() == content, "it was made as large as it was");
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(daemon.resize("odd", 2 << 20, false).unwrap_err().code, Code::Conflict);
    assert!(std::fs::read(&path).unwrap() == content, "it was refused");
    assert_eq!(shown(), Some(1 << 20));
    *engine.refuse.lock().unwrap() = false;
    // Somebody has made it longer than what is asked for.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    daemon.resize("odd", 2 << 20, false).unwrap();
    assert_eq!((shown(), path.metadata().unwrap().len()), (Some(2 << 20), 3 << 20));
    daemon.resize("odd", 1 << 20, true).unwrap();
    assert_eq!((shown(), path.metadata().unwrap().len()), (Some(1 << 20), 1 << 20));
}

#[test]
fn a_created_volume_is_served_recorded_and_forgotten_when_deleted() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let Answer::Volume(report) = create(&daemon, "x", spec.clone()).unwrap() else { panic!() };
    assert_eq!(report.exports[0].target, "iqn.2026-11.io.blockwire:x");
    assert!(report.created && report.size_bytes == Some(1 << 20));
    assert_eq!(engine.take(), ["add x as iqn.2026-11.io.blockwire:x and nqn.2026-11.io.blockwire:x"]);
    let recorded = volumes::load(&daemon.state).unwrap();
    assert_eq!(recorded.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["x"]);

    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), Code::Conflict);
    assert_eq!(code(create(&daemon, "y", spec)), Code::Failed, "an alias of x");
    assert_eq!(code(create(&daemon, "y", "file:relative,size=1M".into())), Code::Invalid);
    assert_eq!(code(create(&daemon, "Y", "ram:1M".into())), Code::Invalid);

    let deleted = daemon.answer(Request::VolumeDelete { name: "x".into(), force: false }).unwrap();
    assert!(matches!(deleted, Answer::Deleted(_)));
    assert_eq!(volumes::load(&daemon.state).unwrap(), []);
    assert!(path.exists(), "the data is never deleted");
    let why = daemon.answer(Request::VolumeShow { name: "x".into() }).unwrap_err();
    assert_eq!(why.code, Code::NotFound);
    assert_eq!(code(daemon.answer(Request::TargetShow { name: "x".into() })), Code::NotFound);
    // The lock went with the volume.
    create(&daemon, "z", format!("file:{}", path.display())).unwrap();
}

/// The configuration is sound as long as there is no other volume: its only target has users of its own.
#[test]
fn a_created_volume_is_not_open_to_strangers_beyond_this_machine() {
    let public = |plan: &mut Plan| {
        plan.portals.iter_mut().for_each(|portal| portal.address = "0.0.0.0:0".parse().unwrap());
    };
    let Fixture { root, engine, daemon } = fixture_of(public);
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let why = create(&daemon, "x", spec.clone()).unwrap_err();
    assert_eq!(why.code, Code::Invalid);
    assert!(
        why.message.contains("asks for no authentication") && why.message.contains("--allow-anonymous"),
        "{why:?}"
    );
    assert!(!path.exists() && engine.take().is_empty() && volumes::load(&daemon.state).unwrap().is_empty());
    assert_eq!(code(daemon.answer(Request::VolumeShow { name: "x".into() })), Code::NotFound);
    let Fixture { root: _root, daemon, .. } = fixture_of(|plan| {
        public(plan);
        plan.allow_anonymous = true;
    });
    create(&daemon, "x", spec).unwrap();
}

/// A volume that the next start would refuse, with all others, because one machine sees it twice.
#[test]
fn a_created_volume_is_not_reached_by_one_host_over_both_protocols() {
    let both_names = |both: bool| {
        move |plan: &mut Plan| {
            let mut host = crate::example::example().hosts.swap_remove(0);
            (host.iqns, host.nqns) =
                (vec!["iqn.2026-11.com.example:h".into()], vec!["nqn.2026-11.com.example:h".into()]);
            host.grants =
                vec![config::plan::Grant { target: None, luns: None, read_only: false, locals: Vec::new() }];
            host.subsystem_grants =
                vec![config::plan::SubsystemGrant { subsystem: None, namespaces: None, read_only: false }];
            host.both = both;
            plan.hosts = vec![host];
        }
    };
    let Fixture { root: _root, engine, daemon } = fixture_of(both_names(false));
    let why = create(&daemon, "x", "ram:1M".into()).unwrap_err();
    assert!(why.code == Code::Invalid && why.message.contains("multipath merges the two"), "{why:?}");
    assert!(engine.take().is_empty());
    let Fixture { root: _root, daemon, .. } = fixture_of(both_names(true));
    create(&daemon, "x", "ram:1M".into()).unwrap();
}

#[test]
fn what_the_engine_refuses_leaves_no_trace() {
    let Fixture { root, engine, daemon } = fixture();
    *engine.refuse.lock().unwrap() = true;
    let path = root.path().join("x.img");
    assert_eq!(code(create(&daemon, "x", format!("file:{},size=1M", path.display()))), Code::Conflict);
    assert!(!path.exists());
    assert_eq!(volumes::load(&daemon.state).unwrap(), []);
    assert_eq!(
        code(daemon.answer(Request::VolumeDelete { name: "demo".into(), force: false })),
        Code::Conflict
    );
    daemon.answer(Request::VolumeShow { name: "demo".into() }).unwrap();
}

#[test]
fn what_cannot_be_recorded_is_not_served() {
    let Fixture { root: _root, engine, daemon } = fixture();
    std::fs::create_dir(daemon.state.path().join("volumes.new")).unwrap();
    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), Code::Failed);
    assert_eq!(engine.take(), [] as [&str; 0], "no host has seen it");
    assert_eq!(code(daemon.answer(Request::VolumeShow { name: "x".into() })), Code::NotFound);
}

#[test]
fn resizing() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
    engine.take();
    let resize =
        |size_bytes, shrink| daemon.answer(Request::VolumeResize { name: "x".into(), size_bytes, shrink });
    let length = || std::fs::metadata(&path).unwrap().len();
    resize(2 << 20, false).unwrap();
    assert_eq!(length(), 2 << 20);
    assert_eq!(code(resize(1 << 20, false)), Code::Conflict, "smaller only when said");
    resize(1 << 20, true).unwrap();
    assert_eq!(length(), 1 << 20);
    assert_eq!(engine.take(), ["resize x 2097152", "resize x 1048576"]);
    assert_eq!(code(resize(1000, true)), Code::Invalid);
    assert_eq!(code(resize(0, true)), Code::Invalid);
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(code(resize(4 << 20, false)), Code::Conflict);
    assert_eq!(length(), 1 << 20, "undone");
    let recorded = volumes::load(&daemon.state).unwrap();
    assert_eq!(recorded[0].read().unwrap().spec.size, Some(1 << 20));
}

/// Growth that some hosts may have been told of stays: what they write beyond the old end must have a place.
#[test]
fn a_growth_that_was_not_fenced_in_time_is_not_taken_back() {
    for why in [EngineError::Unsettled("a shard is late".into()), EngineError::TimedOut, EngineError::Stopped]
    {
        let Fixture { root, engine, daemon } = fixture();
        let path = root.path().join("x.img");
        create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
        *engine.comes.lock().unwrap() = Some(why);
        let request = Request::VolumeResize { name: "x".into(), size_bytes: 4 << 20, shrink: false };
        let why = daemon.answer(request).unwrap_err();
        assert!(why.message.contains("4 MiB now, but not every host"), "{why:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
        assert_eq!(volumes::load(&daemon.state).unwrap()[0].read().unwrap().spec.size, Some(4 << 20));
    }
}

/// A volume that hosts may have seen is not taken back with its file.
#[test]
fn a_create_that_may_have_been_told_leaves_the_file() {
    let Fixture { root, engine, daemon } = fixture();
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let path = root.path().join("x.img");
    assert_eq!(code(create(&daemon, "x", format!("file:{},size=1M", path.display()))), Code::TimedOut);
    assert!(path.exists());
    assert_eq!(volumes::load(&daemon.state).unwrap(), []);
}

/// Shards may be busy with what they were told of too late: its file is nobody else's until they have let it go.
#[test]
fn a_file_that_shards_may_still_have_is_opened_by_no_other_volume() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let failed = |name: &str| {
        let Answer::Status(status) = daemon.answer(Request::Status).unwrap() else { panic!() };
        status.failed.iter().filter(|one| one.volume == name).count()
    };
    let delete = |name: &str| daemon.answer(Request::VolumeDelete { name: name.into(), force: true });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let why = create(&daemon, "x", spec.clone()).unwrap_err();
    assert!(why.message.contains("blockwire volume delete x"), "{why:?}");
    assert_eq!(failed("x"), 1, "it is shown");
    let why = create(&daemon, "y", spec.clone()).unwrap_err();
    assert!(why.message.contains("already open as volume \"x\""), "{why:?}");
    delete("x").unwrap();
    assert_eq!(failed("x"), 0);
    // Likewise one that is tried again.
    let volume = Volume {
        name: VolumeName::parse("x").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: Origin::Configured,
    };
    daemon.served().unserved.push(Unserved::of(&volume, "it was not there"));
    let retry = || daemon.answer(Request::VolumeRetry { name: "x".into() });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let why = retry().unwrap_err();
    assert_eq!(why.code, Code::TimedOut);
    assert!(why.message.contains("blockwire volume retry x"), "{why:?}");
    assert!(!why.message.contains("not recorded") && !why.message.contains("delete"), "{why:?}");
    assert_eq!(code(create(&daemon, "y", spec.clone())), Code::Failed);
    // While they are busy it is not opened a second time either.
    *engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    assert_eq!(code(retry()), Code::Conflict);
    engine.take();
    retry().unwrap();
    let told = ["remove x true", "ways iqn.2026-11.io.blockwire:demo", "drain x", "add x as "];
    assert_eq!(engine.take(), told);
    assert_eq!(failed("x"), 0);
    delete("x").unwrap();
    create(&daemon, "y", spec).unwrap();
}

/// A delete that does not come to its end is not forgotten: the volume is shown, keeps its name and its file, does not
/// come back at the next start, and can be deleted again.
#[test]
fn a_volume_whose_operations_are_out_is_shown_until_they_end() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    create(&daemon, "x", spec.clone()).unwrap();
    let delete = || daemon.answer(Request::VolumeDelete { name: "x".into(), force: true });
    *engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    assert_eq!(code(delete()), Code::Conflict);
    assert_eq!(volumes::load(&daemon.state).unwrap(), []);
    let Answer::Status(status) = daemon.answer(Request::Status).unwrap() else { panic!() };
    assert_eq!((status.volumes, status.failed[0].volume.as_str()), (1, "x"));
    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), Code::Conflict);
    let why = create(&daemon, "y", spec.clone()).unwrap_err();
    assert!(why.message.contains("already open as volume \"x\""), "{why:?}");
    delete().unwrap();
    create(&daemon, "y", spec).unwrap();
}

/// The file of a volume can be synced no more: what this system keeps nowhere can be made stable nowhere.
fn lose_file(daemon: &Daemon, name: &str) {
    let mut served = daemon.served();
    let store = served.stores.iter_mut().find(|store| store.volume.name.as_str() == name).unwrap();
    store.file = Some(std::fs::File::open("/proc/self/status").unwrap());
}

#[test]
fn a_volume_that_cannot_be_synced_is_not_deleted_in_silence() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
    lose_file(&daemon, "x");
    engine.take();
    let refused = daemon.answer(Request::VolumeDelete { name: "x".into(), force: true }).unwrap_err();
    assert!(refused.message.contains("may be lost"), "{}", refused.message);
    assert_eq!(engine.take(), ["remove x true", "drain x"]);
    assert_eq!(volumes::load(&daemon.state).unwrap().len(), 0, "it does not come back");
}

#[test]
fn targets_are_found_by_the_end_of_their_name() {
    let Fixture { root: _root, daemon, .. } = fixture();
    let Answer::Target(target) = daemon.answer(Request::TargetShow { name: "demo".into() }).unwrap() else {
        panic!()
    };
    assert_eq!(target.name, "iqn.2026-11.io.blockwire:demo");
    assert_eq!(target.portals[0].address.port(), 43121);
    let why = daemon.answer(Request::TargetShow { name: "dem".into() }).unwrap_err();
    assert_eq!(why.code, Code::NotFound);
    let why = daemon.answer(Request::VolumeShow { name: "demi".into() }).unwrap_err();
    assert_eq!(why.message, "there is no volume \"demi\"; did you mean \"demo\"?");
}

#[test]
fn paths_are_set_by_port_by_group_over_both_protocols_or_all() {
    let Fixture { engine, daemon, .. } = fixture();
    let set = |port, group, state: &str| {
        let request = Request::PathSet { name: "demo".into(), port, group, state: state.into() };
        daemon.answer(request)
    };
    let Answer::Paths(_) = set(None, Some(1), "inaccessible").unwrap() else { panic!() };
    set(Some(2), None, "non-optimized").unwrap();
    set(None, None, "optimized").unwrap();
    let told =
        ["paths demo [1, 3] Inaccessible", "paths demo [2] NonOptimized", "paths demo [1, 2, 3] Optimized"];
    assert_eq!(engine.take(), told);
    let why = set(None, Some(9), "optimized").unwrap_err();
    assert!(why.code == Code::NotFound && why.message.contains("port 3 (group 1)"), "{why:?}");
    let why = set(None, None, "optimised").unwrap_err();
    assert!(why.code == Code::Invalid && why.message.contains("did you mean \"optimized\""), "{why:?}");
    assert_eq!(code(daemon.answer(Request::PathList { name: Some("demp".into()) })), Code::NotFound);
}

#[test]
fn a_volume_is_shown_with_both_protocols_and_its_truth() {
    let Fixture { engine, daemon, .. } = fixture();
    let Answer::Volume(shown) = daemon.answer(Request::VolumeShow { name: "demo".into() }).unwrap() else {
        panic!()
    };
    assert_eq!(shown.exports[0].target, "iqn.2026-11.io.blockwire:demo");
    assert_eq!(
        (shown.namespaces[0].subsystem.as_str(), shown.namespaces[0].nsid),
        ("nqn.2026-11.io.blockwire:demo", 1)
    );
    assert_eq!(shown.exports[0].lun, 0);
    let standing = shown.standing.unwrap();
    assert_eq!(standing.reservation.holder.as_deref(), Some("nqn.2026-11.io:h"));
    assert_eq!((standing.paths[2].protocol.as_str(), standing.paths[2].group), ("nvme", 1));
    let Answer::Subsystem(one) = daemon.answer(Request::SubsystemShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (one.nqn.as_str(), one.namespaces[0].volume.as_str()),
        ("nqn.2026-11.io.blockwire:demo", "demo")
    );
    let Answer::Reservation(held) = daemon.answer(Request::ReservationShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert_eq!(held.generation, 3);
    let Answer::Volume(_) = daemon.answer(Request::VolumeProtect { name: "demo".into(), on: true }).unwrap()
    else {
        panic!()
    };
    assert_eq!(engine.take(), ["protect demo true"]);
    assert_eq!(code(daemon.answer(Request::HostShow { name: "h".into() })), Code::NotFound);
}

fn switched(answer: Answer) -> Vec<(String, String)> {
    let Answer::Switched(list) = answer else { panic!("{answer:?}") };
    list.into_iter().map(|one| (one.target, one.done)).collect()
}

#[test]
fn targets_are_stopped_and_started_and_keep_their_name_meanwhile() {
    let Fixture { root: _root, engine, daemon } = fixture();
    let demo = "iqn.2026-11.io.blockwire:demo".to_owned();
    let stop = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        daemon.answer(Request::TargetStop { names })
    };
    let start = |names: Option<Vec<String>>| daemon.answer(Request::TargetStart { names });
    assert_eq!(switched(stop(&[]).unwrap()), [(demo.clone(), "stopped".to_owned())]);
    assert_eq!(engine.take(), ["ways "]);
    let Answer::Target(shown) = daemon.answer(Request::TargetShow { name: "demo".into() }).unwrap() else {
        panic!()
    };
    assert!(shown.stopped);
    assert_eq!(switched(stop(&[demo.as_str()]).unwrap()), [(demo.clone(), "stopped before".to_owned())]);
    engine.take();
    // Its name and its volume are still taken.
    assert_eq!(code(create(&daemon, "demo", "ram:1M".into())), Code::Conflict);
    assert_eq!(switched(start(None).unwrap()), [], "without a name only those that run are meant");
    assert_eq!(switched(start(Some(vec![])).unwrap()), [(demo.clone(), "started".to_owned())]);
    assert_eq!(engine.take(), ["ways ".to_owned(), format!("ways {demo}")]);
    assert_eq!(switched(start(Some(vec![demo.clone()])).unwrap()), [(demo.clone(), "running".to_owned())]);
    let why = stop(&["iqn.2026-11.io.blockwire:demp"]).unwrap_err();
    assert!(why.code == Code::NotFound && why.message.contains("did you mean"), "{why:?}");
    // What the engine refuses has not happened.
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(code(stop(&[])), Code::Conflict);
    let Answer::Target(shown) = daemon.answer(Request::TargetShow { name: "demo".into() }).unwrap() else {
        panic!()
    };
    assert!(!shown.stopped);
}

#[test]
fn a_stopped_target_goes_with_its_volume() {
    let Fixture { root: _root, daemon, .. } = fixture();
    daemon.answer(Request::TargetStop { names: Vec::new() }).unwrap();
    daemon.answer(Request::VolumeDelete { name: "demo".into(), force: false }).unwrap();
    assert_eq!(code(daemon.answer(Request::TargetShow { name: "demo".into() })), Code::NotFound);
    assert_eq!(switched(daemon.answer(Request::TargetStart { names: Some(vec![]) }).unwrap()), []);
}

#[test]
fn files_that_are_read_again_change_targets_and_nothing_else() {
    let Fixture { root: _root, engine, daemon } = fixture();
    let plan = Arc::new(Mutex::new(daemon.plan.clone()));
    let seen = plan.clone();
    let again: Again = Box::new(move |created| {
        assert!(created.is_empty());
        Ok((seen.lock().unwrap().clone(), Vec::new()))
    });
    let daemon = daemon.of_files(Vec::new(), Some(again));
    let start = |names: Option<Vec<String>>| daemon.answer(Request::TargetStart { names });
    let demo = "iqn.2026-11.io.blockwire:demo".to_owned();
    assert_eq!(switched(start(None).unwrap()), [(demo.clone(), "running".to_owned())]);
    plan.lock().unwrap().ways.targets[0].negotiation.max_connections = 7;
    assert_eq!(switched(start(None).unwrap()), [(demo.clone(), "reloaded".to_owned())]);
    let Answer::Settings(shown) = daemon.answer(Request::TargetSettings { names: vec![] }).unwrap() else {
        panic!()
    };
    let value = |key: &str| shown[0].settings.iter().find(|one| one.key == key).map(|one| one.value.clone());
    assert_eq!(value("MaxConnections").as_deref(), Some("7"));
    assert_eq!(value("PortalGroup").as_deref(), Some("1@127.0.0.1:43121"));
    assert_eq!((value("ACL_Enable").as_deref(), value("AuthMethod").as_deref()), (Some("No"), Some("None")));
    // A target that is new in the file is started by its name or with all.
    let mut other = plan.lock().unwrap().ways.targets[0].clone();
    other.name = "iqn.2026-11.io.blockwire:other".into();
    plan.lock().unwrap().ways.targets.push(other.clone());
    assert_eq!(switched(start(None).unwrap()).len(), 1);
    assert_eq!(
        switched(start(Some(vec![other.name.clone()])).unwrap()),
        [(other.name.clone(), "started".to_owned())]
    );
    engine.take();
    plan.lock().unwrap().limits.memory += 1;
    assert_eq!(switched(start(Some(vec![])).unwrap()).len(), 2, "memory stays as it is");
    engine.take();
    plan.lock().unwrap().limits.login_timeout += Duration::from_secs(1);
    let why = start(Some(vec![])).unwrap_err();
    assert!(why.code == Code::Conflict && why.message.starts_with("a limit"), "{why:?}");
    assert_eq!(engine.take(), Vec::<String>::new(), "nothing of it is done");
}

#[test]
fn a_failed_sync_is_shown_and_acknowledged_by_a_retry() {
    let Fixture { engine, daemon, .. } = fixture();
    let retry = || daemon.answer(Request::VolumeRetry { name: "demo".into() });
    assert!(retry().unwrap_err().message.contains("has not failed"));
    *engine.in_doubt.lock().unwrap() = Some("demo".into());
    let failed = || match daemon.answer(Request::Status) {
        Ok(Answer::Status(status)) => status.failed.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(), 1);
    let Ok(Answer::Volume(shown)) = daemon.answer(Request::VolumeShow { name: "demo".into() }) else {
        panic!()
    };
    assert!(shown.failed.unwrap().contains("acknowledge it by `volume retry`"));
    let Ok(Answer::Volume(shown)) = retry() else { panic!() };
    assert_eq!((shown.failed, failed(), engine.take()), (None, 0, vec!["acknowledge demo".to_owned()]));
}

/// Its file could not be synced when it was opened; the operator has said that hosts may write again.
#[test]
fn a_failed_sync_that_was_acknowledged_is_not_told_again_by_a_resize() {
    for acknowledged in [true, false] {
        let Fixture { root, engine, daemon } = fixture();
        let path = root.path().join("x.img");
        create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
        let in_doubt = |value: Option<bool>| {
            let mut served = daemon.served();
            let store = served.stores.iter_mut().find(|store| store.volume.name.as_str() == "x").unwrap();
            store.in_doubt = value.unwrap_or(store.in_doubt);
            store.in_doubt
        };
        in_doubt(Some(true));
        *engine.in_doubt.lock().unwrap() = Some("x".into());
        if acknowledged {
            daemon.answer(Request::VolumeRetry { name: "x".into() }).unwrap();
        }
        engine.take();
        for (mib, shrink) in [(4, false), (2, true)] {
            let size_bytes = mib << 20;
            daemon.answer(Request::VolumeResize { name: "x".into(), size_bytes, shrink }).unwrap();
            assert_eq!(engine.take(), [format!("resize x {size_bytes}")]);
        }
        assert_eq!(in_doubt(None), !acknowledged);
    }
}

/// What must go on while a disk does not answer that `volume` lies on.
fn goes_on_without(daemon: &Daemon, volume: &str) {
    let Answer::Status(_) = daemon.answer(Request::Status).unwrap() else { panic!() };
    let Answer::Volumes(_) = daemon.answer(Request::VolumeList).unwrap() else { panic!() };
    let Answer::Stopping { .. } = daemon.answer(Request::Stop { now: true }).unwrap() else { panic!() };
    create(daemon, "well", "ram:1M".into()).unwrap();
    daemon.answer(Request::VolumeResize { name: "well".into(), size_bytes: 2 << 20, shrink: false }).unwrap();
    daemon.answer(Request::VolumeDelete { name: "well".into(), force: true }).unwrap();
    assert!(!switched(daemon.answer(Request::TargetStart { names: None }).unwrap()).is_empty());
    // Only this one nobody else changes.
    let delete = Request::VolumeDelete { name: volume.into(), force: true };
    let retry = Request::VolumeRetry { name: volume.into() };
    for request in [delete, retry] {
        let why = daemon.answer(request).unwrap_err();
        assert!(why.code == Code::Conflict && why.message.contains("already"), "{why:?}");
    }
    assert_eq!(code(create(daemon, volume, "ram:1M".into())), Code::Conflict);
}

/// Waits until another thread has come to the disk.
fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < until, "it does not come to it");
        std::thread::yield_now();
    }
}

#[test]
fn a_retry_whose_disk_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root: _root, engine, daemon } = fixture();
    *engine.in_doubt.lock().unwrap() = Some("demo".into());
    std::thread::scope(|scope| {
        let silent = engine.silent.lock().unwrap();
        let retry = scope.spawn(|| daemon.answer(Request::VolumeRetry { name: "demo".into() }));
        wait_until(|| !daemon.held.lock().unwrap().is_empty());
        goes_on_without(&daemon, "demo");
        drop(silent);
        retry.join().unwrap().unwrap();
    });
    assert!(daemon.held.lock().unwrap().is_empty());
}

#[test]
fn a_disk_that_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root, engine: _engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("silent".into(), disk.clone()));
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    std::thread::scope(|scope| {
        let silent = disk.lock().unwrap();
        let made = scope.spawn(|| create(&daemon, "silent", spec.clone()));
        wait_until(|| path.exists());
        goes_on_without(&daemon, "silent");
        drop(silent);
        made.join().unwrap().unwrap();
        let silent = disk.lock().unwrap();
        let delete = Request::VolumeDelete { name: "silent".into(), force: false };
        let deleted = scope.spawn(|| daemon.answer(delete));
        let shown = || daemon.served().volume("silent").unwrap().failed;
        wait_until(|| shown().is_some());
        goes_on_without(&daemon, "silent");
        // Its file is nobody else's, and it does not come back.
        assert_eq!(code(create(&daemon, "other", spec.clone())), Code::Failed);
        assert!(volumes::load(&daemon.state).unwrap().is_empty());
        drop(silent);
        deleted.join().unwrap().unwrap();
    });
    assert_eq!(code(daemon.answer(Request::VolumeShow { name: "silent".into() })), Code::NotFound);
    create(&daemon, "other", spec).unwrap();
}

/// 20 to 30 s go by before the engine says that operations of a volume are still out.
#[test]
fn a_volume_whose_operations_do_not_end_keeps_nobody_from_anything_else() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    create(&daemon, "x", spec.clone()).unwrap();
    let shown = || daemon.served().volume("x").unwrap().failed;
    std::thread::scope(|scope| {
        let busy = engine.busy.lock().unwrap();
        let delete = Request::VolumeDelete { name: "x".into(), force: true };
        let deleted = scope.spawn(|| daemon.answer(delete));
        wait_until(|| shown().is_some());
        drop_while_held(&daemon, "x", busy);
        deleted.join().unwrap().unwrap();
    });
    // Likewise one that is let go before it is tried again.
    let volume = Volume {
        name: VolumeName::parse("x").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: Origin::Configured,
    };
    daemon.served().unserved.push(Unserved::of(&volume, "it was not there"));
    let retry = || daemon.answer(Request::VolumeRetry { name: "x".into() });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    assert_eq!(code(retry()), Code::TimedOut);
    std::thread::scope(|scope| {
        engine.take();
        let busy = engine.busy.lock().unwrap();
        let retried = scope.spawn(retry);
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("ways")));
        drop_while_held(&daemon, "x", busy);
        retried.join().unwrap().unwrap();
    });
}

/// The daemon does other work while operations of a volume are out, and then they end. Other volumes are not deleted
/// meanwhile: their operations would be out, too.
fn drop_while_held(daemon: &Daemon, volume: &str, busy: std::sync::MutexGuard<'_, ()>) {
    create(daemon, "beside", "ram:1M".into()).unwrap();
    let resize = Request::VolumeResize { name: "beside".into(), size_bytes: 2 << 20, shrink: false };
    daemon.answer(resize).unwrap();
    let retry = Request::VolumeRetry { name: volume.into() };
    assert_eq!(code(daemon.answer(retry)), Code::Conflict);
    drop(busy);
    daemon.answer(Request::VolumeDelete { name: "beside".into(), force: true }).unwrap();
}

/// What the engine refuses is undone by whatever program asked: its file is read, cut and closed.
#[test]
fn a_refused_volume_whose_disk_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root, engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("refused undone".into(), disk.clone()));
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let volume = Volume {
        name: VolumeName::parse("refused").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: Origin::Configured,
    };
    std::thread::scope(|scope| {
        let silent = disk.lock().unwrap();
        *engine.comes.lock().unwrap() = Some(EngineError::InUse { sessions: 1 });
        let made = scope.spawn(|| create(&daemon, "refused", spec.clone()));
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("add refused")));
        goes_on_without(&daemon, "refused");
        drop(silent);
        assert_eq!(code(made.join().unwrap()), Code::Conflict);
        assert!(!path.exists(), "it is undone all the same");
        engine.take();
        // Likewise one that could not be served before.
        daemon.served().unserved.push(Unserved::of(&volume, "it was not there"));
        let silent = disk.lock().unwrap();
        *engine.comes.lock().unwrap() = Some(EngineError::InUse { sessions: 1 });
        let retry = Request::VolumeRetry { name: "refused".into() };
        let retried = scope.spawn(|| daemon.answer(retry));
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("add refused")));
        goes_on_without(&daemon, "refused");
        drop(silent);
        assert_eq!(code(retried.join().unwrap()), Code::Conflict);
        assert!(!path.exists());
        // And one that turns out to be another that came meanwhile.
        daemon.served().unserved.clear();
        let silent = disk.lock().unwrap();
        let uuid = "11111111-2222-4333-8444-555555555555";
        create(&daemon, "taken", format!("ram:1M,uuid={uuid}")).unwrap();
        let (daemon, of) = (&daemon, format!("{spec},uuid={uuid}"));
        let made = scope.spawn(move || create(daemon, "refused", of));
        wait_until(|| path.exists());
        goes_on_without(daemon, "refused");
        drop(silent);
        assert_eq!(code(made.join().unwrap()), Code::Failed);
        assert!(!path.exists());
    });
}

/// A stripe has legs on this machine, too.
#[test]
fn a_volume_that_has_come_and_whose_disk_does_not_answer_keeps_no_other_away() {
    let Fixture { root, engine: _engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("hangs".into(), disk.clone()));
    let names = ["hangs", "comes"].map(|name| VolumeName::parse(name).unwrap());
    for name in &names {
        let path = root.path().join(format!("{name}.img"));
        std::fs::write(&path, [0; 4096]).unwrap();
        let spec = spec::parse(&format!("file:{}", path.display())).unwrap();
        let volume = Volume { name: name.clone(), spec, origin: Origin::Configured };
        daemon.served().unserved.push(Unserved::absent(&volume, "its machine did not answer"));
    }
    let daemon = Arc::new(daemon);
    let is_served = |name: &VolumeName| daemon.served().store(name.as_str()).is_some();
    let silent = disk.lock().unwrap();
    let lookout = absent::Lookout::start(names.len()).unwrap();
    absent::Pursuit::of(lookout, 0, names.to_vec()).begin(&daemon).unwrap();
    wait_until(|| is_served(&names[1]));
    assert!(!is_served(&names[0]));
    drop(silent);
    wait_until(|| is_served(&names[0]));
}
