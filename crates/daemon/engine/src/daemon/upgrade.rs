//! Another process serves: what has to be true of this one before, and what it hands over.

use std::{
    ffi::OsString,
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Daemon, refusal_from_engine_error};
use crate::{
    flight_files::FlightFiles,
    store::Store,
    upgrade::{HandOverError, HandOverOffer, Successor},
};
use config::spec::VolumeSource;
use control::{
    RefusalCode, RequestRefusal,
    accept_gate::{AcceptGate, ShutGate},
    report::{LeftConnectionReport, UpgradeReport},
};
use process::log::area;
use shard::LeftBehind;

/// The longest that commands in work may be given.
const WITHIN_MAX: Duration = Duration::from_secs(60);

/// What of the process another one needs: descriptors, and how this one was started.
#[derive(Debug)]
pub struct ProcessParts {
    /// The control socket.
    pub control: OwnedFd,
    /// What lets clients of it in.
    pub gate: AcceptGate,
    /// The socket of metrics.
    pub metrics: Option<OwnedFd>,
    /// Its flight recorders.
    pub flight: FlightFiles,
    /// Arguments, without the name of the binary.
    pub arguments: Vec<OsString>,
}

impl Daemon {
    /// Lets another process serve. After that this one does nothing any more, and ends with the reply.
    pub(super) fn upgrade(
        &self,
        binary: Option<PathBuf>,
        within: Duration,
    ) -> Result<UpgradeReport, RequestRefusal> {
        let refused = |why: String| RequestRefusal::new(RefusalCode::Failed, why);
        if within > WITHIN_MAX {
            let why = format!("--within is at most {} s", WITHIN_MAX.as_secs());
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        }
        self.check_may_upgrade()?;
        let binary = match binary {
            Some(binary) => binary,
            None => {
                own_binary().map_err(|why| refused(format!("the daemon's binary cannot be found: {why}")))?
            }
        };
        // Nothing is changed until the other process serves.
        let names = self.volumes.lock_all_names()?;
        let unchanged = self.volumes.lock_changes()?;
        let offered = self.offer()?;
        // Control clients that come now wait, and the process that serves then answers them.
        let shut = self.process.as_ref().map(|process| process.gate.shut());
        let failed = |why: HandOverError| {
            let text = format!("{why}; this daemon (process {}) serves on", std::process::id());
            tracing::error!(target: area::SERVE, %why, "not replaced: this daemon serves on");
            refused(text)
        };
        tracing::info!(target: area::SERVE, binary = %binary.display(), "another process is to take over");
        let mut successor = Successor::start(&binary, &offered.1, self.stopping.clone()).map_err(failed)?;
        successor.prepare(&offered.0).map_err(failed)?;
        let handed = self.volumes.engine.hand_over(&mut successor, within);
        if self.stopping.has_passed_on() {
            // What waits to change something must not begin here any more.
            names.keep();
            std::mem::forget(unchanged);
            self.note_handed_over(shut);
        }
        let handed = handed.map_err(|why| match why {
            HandOverError::Lost(_) => {
                tracing::error!(target: area::SERVE, %why, "nothing is served any more: the daemon ends");
                refused(format!("{why}; nothing is served any more: start the daemon again"))
            }
            why => failed(why),
        })?;
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::MainPid(successor.pid())]);
        let report = UpgradeReport {
            pid: successor.pid(),
            sessions: handed.sessions,
            queues: handed.queues,
            left: handed.left.iter().map(left_report).collect(),
            pause_ms: handed.pause.as_millis() as u64,
        };
        tracing::info!(
            target: area::SERVE,
            pid = report.pid,
            sessions = report.sessions,
            queues = report.queues,
            left = report.left.len(),
            pause_ms = report.pause_ms,
            "another process serves"
        );
        Ok(report)
    }

    /// This process ends in order, though without closing anything.
    fn note_handed_over(&self, shut: Option<ShutGate>) {
        if let Some(process) = &self.process {
            process.flight.note_end();
        }
        if let Some(shut) = shut {
            shut.leave_shut();
        }
    }

    /// What this process holds that cannot go over.
    fn check_may_upgrade(&self) -> Result<(), RequestRefusal> {
        let refuse = |why: String| Err(RequestRefusal::new(RefusalCode::Conflict, why));
        if self.sandbox.landlock_abi.is_some() || self.sandbox.seccomp {
            return refuse(
                "the daemon is in its sandbox, which lets it start no other binary: restart it instead, or set \
                 `enabled = false` in [sandbox]"
                    .to_owned(),
            );
        }
        if self.volumes.engine.group().is_some() {
            return refuse(
                "the daemon is in a gateway group ([group]), and connections to other gateways cannot move: restart \
                 it instead"
                    .to_owned(),
            );
        }
        if self.attachments.count_ready() > 0 {
            return refuse(
                "the daemon holds attachments (`attach --daemon`), which cannot move: detach them".to_owned(),
            );
        }
        let served = self.volumes.lock_served();
        if let Some(leaving) = served.leaving.first() {
            let name = &leaving.volume.name;
            return refuse(format!("volume {name} was deleted, and its last operations have not ended"));
        }
        if let Some(target) = served.stopped.first() {
            return refuse(format!(
                "target {} was stopped, which is in no configuration, and would be served again: start it, or take it \
                 out of the configuration",
                target.name
            ));
        }
        let fixed = served.stores.iter().filter(|store| store.memory.is_none());
        let parts = fixed.flat_map(|store| {
            store.legs_or_self().iter().map(move |part| (&store.volume.name, &part.volume.spec.source))
        });
        for (name, source) in parts {
            let why = match source {
                VolumeSource::File(_) | VolumeSource::Device(_) | VolumeSource::Null => continue,
                VolumeSource::Ram => {
                    "its blocks are in the memory of this process, which only those of a volume with `movable = true` \
                     leave"
                }
                VolumeSource::Remote(_) => "connections to its targets cannot move",
                VolumeSource::Rbd(_) => "its image is open in this process",
                VolumeSource::Nbd(_) => "the connection to its server is open in this process",
                VolumeSource::Stripe(_) => "it is a stripe of a stripe",
            };
            return refuse(format!("volume {name} cannot move: {why}; restart the daemon instead"));
        }
        Ok(())
    }

    fn offer(&self) -> Result<(HandOverOffer, Vec<OsString>), RequestRefusal> {
        let failed = |why: std::io::Error| {
            RequestRefusal::new(RefusalCode::Failed, format!("no descriptors are left: {why}"))
        };
        let parts = self.process.as_ref().ok_or_else(|| {
            RequestRefusal::new(RefusalCode::Failed, "this daemon is part of another program")
        })?;
        let listeners = self.volumes.engine.duplicate_listeners();
        let listeners = listeners.map_err(|why| refusal_from_engine_error(&why))?;
        let shards = self.volumes.engine.shards().map_err(|why| refusal_from_engine_error(&why))?;
        let served = self.volumes.lock_served();
        let files = served.stores.iter().flat_map(Store::legs_or_self).filter_map(|part| part.file.as_ref());
        let files = files.map(File::try_clone).map(|file| file.map(OwnedFd::from));
        let memories = served.stores.iter().filter_map(|store| Some((store, store.memory.as_ref()?)));
        let memories = memories.map(|(store, memory)| {
            Ok((store.volume.name.clone(), store.uuid, OwnedFd::from(memory.try_clone()?)))
        });
        let offered = HandOverOffer {
            shards: u16::try_from(shards.len()).unwrap_or(u16::MAX),
            state: self.volumes.state.duplicate_lock().map_err(failed)?.into(),
            control: parts.control.try_clone().map_err(failed)?,
            metrics: parts.metrics.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?,
            flight: parts.flight.start().map(str::to_owned),
            listeners,
            files: files.collect::<Result<_, _>>().map_err(failed)?,
            memories: memories.collect::<std::io::Result<_>>().map_err(failed)?,
        };
        Ok((offered, parts.arguments.clone()))
    }
}

/// The file that this process was started from, or what stands in its place now.
fn own_binary() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    // So the kernel names a file that was replaced.
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), |path| Path::new(path).to_owned()))
}

fn left_report(left: &LeftBehind) -> LeftConnectionReport {
    LeftConnectionReport {
        peer: left.peer,
        initiator: left.host.as_deref().map(str::to_owned),
        target: left.target.as_deref().map(str::to_owned),
        why: left.why.to_string(),
    }
}
