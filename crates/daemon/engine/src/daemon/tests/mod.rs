//! Changes at run time, with an engine that only records its calls.

mod apply;
mod blocked;
mod create;
mod disks;
mod stops;
mod targets;

use super::*;
use crate::{
    dataplane::prepared::PreparedPlan,
    state::{blocked_hosts::BlockedNames, volumes},
};
use config::name::VolumeName;
use config::{
    check,
    plan::{Volume, VolumeOrigin},
    spec,
};

/// What the engine was told, and what it shall refuse.
#[derive(Default)]
pub struct Memory {
    told: Mutex<Vec<String>>,
    refuse: Mutex<bool>,
    /// The volume whose sync has failed.
    in_doubt: Mutex<Option<String>>,
    /// Held while the disk does not answer to which an acknowledged volume is to be synced.
    silent: Mutex<()>,
    /// Held while operations of a removed volume are out.
    busy: Mutex<()>,
    /// What comes of the next drain.
    lingers: Mutex<Option<EngineError>>,
    /// What comes of the next change, done or not.
    comes: Mutex<Option<EngineError>>,
    /// What comes of the next call that begins so.
    fails: Mutex<Option<(&'static str, EngineError)>>,
    /// Sessions, and how many more times each is listed.
    sessions: Mutex<Vec<(SessionReport, usize)>>,
    /// Sessions that log in just before a block is in force.
    log_in_late: Mutex<Vec<(SessionReport, usize)>>,
}

impl Memory {
    fn tell(&self, what: String) -> Result<(), EngineError> {
        if *self.refuse.lock().unwrap() {
            return Err(EngineError::InUse { sessions: 2 });
        }
        let fails = self.fails.lock().unwrap().take_if(|(call, _)| what.starts_with(*call));
        self.told.lock().unwrap().push(what);
        if let Some((_, why)) = fails {
            return Err(why);
        }
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
        let mut sessions = self.sessions.lock().unwrap();
        sessions.retain(|(_, left)| *left > 0);
        sessions.iter_mut().for_each(|(_, left)| *left -= 1);
        Ok(sessions.iter().map(|(session, _)| session.clone()).collect())
    }
    fn set_blocked_names(&self, names: BlockedNames) -> Result<(), EngineError> {
        self.tell(format!("block {}", names.into_iter().collect::<Vec<_>>().join(" ")))?;
        self.sessions.lock().unwrap().append(&mut self.log_in_late.lock().unwrap());
        Ok(())
    }
    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(Vec::new())
    }
    fn shards(&self) -> Result<Vec<control::report::ShardReport>, EngineError> {
        Ok(Vec::new())
    }
    fn volume_states(&self) -> Result<Vec<control::report::VolumeStateReport>, EngineError> {
        let path = |port: u16, protocol: &str, group| control::report::VolumePathReport {
            volume: "demo".into(),
            port,
            protocol: protocol.into(),
            group,
            target: None,
            addresses: Vec::new(),
            state: "optimized".into(),
            preferred: false,
        };
        let standing = control::report::VolumeStateReport {
            volume: "demo".into(),
            size_bytes: 1 << 20,
            paths: vec![path(1, "iscsi", 1), path(2, "iscsi", 2), path(3, "nvme", 1)],
            reservation: control::report::ReservationReport {
                volume: "demo".into(),
                kind: Some("write-exclusive".into()),
                holder: Some("nqn.2026-11.io:h".into()),
                generation: 3,
                persists: true,
                ..control::report::ReservationReport::default()
            },
            ..control::report::VolumeStateReport::default()
        };
        Ok(vec![standing])
    }
    fn set_path_access(&self, name: &str, ports: &[u16], to: volume::PathAccess) -> Result<(), EngineError> {
        self.tell(format!("paths {name} {ports:?} {to:?}"))
    }
    fn set_preferred_paths(&self, name: &str, ports: &[u16], on: bool) -> Result<(), EngineError> {
        self.tell(format!("preferred {name} {ports:?} {on}"))
    }
    fn set_write_protection(&self, name: &str, on: bool) -> Result<(), EngineError> {
        self.tell(format!("protect {name} {on}"))
    }
    fn add_volume(&self, volume: &Store, ways: &ExportPlan) -> Result<(), EngineError> {
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
    fn set_exports(&self, ways: &ExportPlan) -> Result<(), EngineError> {
        let names: Vec<&str> = ways.targets.iter().map(|target| target.name.as_str()).collect();
        self.tell(format!("ways {}", names.join(" ")))
    }
    fn prepare(&self, plan: &Plan, new: &[Store]) -> Result<PreparedPlan, EngineError> {
        self.tell(format!("prepare {} portals, {} volumes", plan.portals.len(), new.len()))?;
        Ok(PreparedPlan::default())
    }
    fn switch(&self, _: PreparedPlan, ways: &ExportPlan) -> Result<(), EngineError> {
        self.tell(format!("switch to {} targets", ways.targets.len()))
    }
    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError> {
        self.tell(format!("end session {id} on {shard}"))
    }
    fn note_sync_failure(&self, name: &str) {
        let _ = self.tell(format!("sync of {name} failed"));
    }
    fn has_sync_failure(&self, name: &str) -> bool {
        self.in_doubt.lock().unwrap().as_deref() == Some(name)
    }
    fn acknowledge_sync_failure(&self, volume: &Store) -> Result<(), EngineError> {
        drop(self.silent.lock().unwrap());
        *self.in_doubt.lock().unwrap() = None;
        self.tell(format!("acknowledge {}", volume.volume.name))
    }
    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError> {
        self.tell(format!("resize {name} {bytes}"))
    }
    fn stop(&self, how: StopMode) -> bool {
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
        origin: VolumeOrigin::Configured,
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
        tls: shard::TlsMode::Off,
        announce: false,
        tcp: config::plan::TcpOptions::default(),
    };
    let mut plan = Plan {
        node: None,
        http: None,
        control_group: None,
        sandbox: config::plan::SandboxSettings::default(),
        group: None,
        volumes: vec![volume],
        portals: vec![portal(Protocol::Iscsi), portal(Protocol::Nvme)],
        ways: ExportPlan { targets: vec![target], subsystems: vec![subsystem] },
        referrals: Vec::new(),
        oui: None,
        hosts: Vec::new(),
        auth: config::plan::Auth::default(),
        allow_anonymous: false,
        limits: config::plan::DaemonLimits::default(),
        placement: Vec::new(),
        cores: Vec::new(),
        io: config::plan::IoEngine::Auto,
    };
    change(&mut plan);
    let ending = Arc::new(StopSignal::default());
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

fn create(daemon: &Daemon, name: &str, spec: String) -> Result<Answer, RequestRefusal> {
    daemon.handle_request(Request::VolumeCreate { name: name.into(), spec })
}

fn code(answer: Result<Answer, RequestRefusal>) -> RefusalCode {
    answer.unwrap_err().code
}

fn switched(answer: Answer) -> Vec<(String, String)> {
    let Answer::Switched(list) = answer else { panic!("{answer:?}") };
    list.into_iter().map(|one| (one.target, one.done)).collect()
}
