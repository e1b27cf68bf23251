//! What each request does, and who changed what through the control socket: a log line for each change, done or
//! refused.
//!
//! Invariant: a line has no secret. What a request says in free text (a SPEC, a URL) is not repeated; what the daemon
//! made of it is.

use process::{log::area, owned_dir::PeerProcess};

use crate::{
    Answer, Request, RequestRefusal, SessionSelector,
    report::{VolumePathReport, VolumeReport},
    server::ControlService,
};

/// What a request does: who may send it, and whether it is logged, follow from that.
#[derive(Debug)]
pub(crate) enum RequestClass {
    /// It changes nothing, reads no file that its sender names, and is answered without what lines of foreign files
    /// say: members of the group of readers may send it.
    Look,
    /// It changes nothing.
    Inspect,
    /// It changes something, or gives secrets away, and is logged.
    Change(RequestedChange),
}

/// What a request changes.
#[derive(Debug)]
pub(crate) struct RequestedChange {
    verb: &'static str,
    object: String,
    current: Option<CurrentState>,
    /// What was asked for, where the answer does not say it better.
    wanted: Option<String>,
}

/// What a change replaces.
#[derive(Debug)]
enum CurrentState {
    /// Of the volume of this name.
    Volume(String, fn(&VolumeReport) -> String),
    /// The path states of the volume of this name.
    Paths(String),
}

impl CurrentState {
    /// It as text, if the daemon tells.
    fn read(self, service: &dyn ControlService) -> Option<String> {
        match self {
            CurrentState::Volume(name, text) => {
                match service.handle_request(Request::VolumeShow { name, latency: false }) {
                    Ok(Answer::Volume(volume)) => Some(text(&volume)),
                    Ok(_) | Err(_) => None,
                }
            }
            CurrentState::Paths(name) => service
                .handle_request(Request::PathList { name: Some(name) })
                .ok()
                .as_ref()
                .and_then(paths_text),
        }
    }
}

impl RequestClass {
    /// The one list of what each request does.
    pub(crate) fn of(request: &Request) -> RequestClass {
        let of = |verb, object: &str, current, wanted| {
            RequestClass::Change(RequestedChange { verb, object: object.to_owned(), current, wanted })
        };
        let volume =
            |name: &str, text: fn(&VolumeReport) -> String| Some(CurrentState::Volume(name.to_owned(), text));
        match request {
            Request::VolumeCreate { name, .. } => of("volume create", name, None, None),
            Request::VolumeDelete { name, .. } => of("volume delete", name, volume(name, volume_text), None),
            Request::VolumeRetry { name } => of("volume retry", name, volume(name, failure_text), None),
            Request::VolumeResize { name, size_bytes, .. } => {
                of("volume resize", name, volume(name, size_text), Some(format!("{size_bytes} bytes")))
            }
            Request::VolumeSnapshot { name, file } => {
                of("volume snapshot", name, None, Some(file.display().to_string()))
            }
            Request::VolumeClone { name, clone, file } => {
                of("volume clone", name, None, Some(format!("{clone} in {}", file.display())))
            }
            Request::VolumeProtect { name, on } => {
                of("volume set", name, volume(name, protection_text), Some(read_only_text(*on)))
            }
            Request::VolumeLimit { name, iops_limit, iops_burst, bandwidth_limit, bandwidth_burst } => {
                let wanted = limits_text([*iops_limit, *iops_burst, *bandwidth_limit, *bandwidth_burst]);
                of("volume set", name, volume(name, volume_limits_text), Some(wanted))
            }
            Request::PathSet { name, state, preferred, .. } => {
                let preferred = preferred.map(|on| if on { "preferred" } else { "not preferred" });
                let wanted =
                    [state.as_deref(), preferred].into_iter().flatten().collect::<Vec<_>>().join(", ");
                of("path set", name, Some(CurrentState::Paths(name.clone())), Some(wanted))
            }
            Request::TargetStart { names } => of(
                "target start",
                &names.as_ref().map_or_else(|| "all".to_owned(), |all| list(all)),
                None,
                None,
            ),
            Request::TargetStop { names } => of("target stop", &list(names), None, None),
            Request::SessionEnd { id } => of("session end", &id.to_string(), None, None),
            Request::SessionKill(which) => of("session kill", &selector_text(which), None, None),
            Request::HostBlock { name } => of("host block", name, None, Some("blocked".to_owned())),
            Request::HostUnblock { name } => of("host unblock", name, None, Some("let in".to_owned())),
            Request::GatewayDrain { off } => {
                of("gateway drain", "this gateway", None, Some(if *off { "off" } else { "on" }.to_owned()))
            }
            Request::GatewayFence { gateway } => of("gateway fence", gateway, None, None),
            Request::Attach(attach) => {
                let how = attach.via.clone().unwrap_or_else(|| "the best way".to_owned());
                of("attach", "-", None, Some(how))
            }
            Request::Detach { way, .. } => of("detach", way, None, None),
            Request::Apply { file } => {
                let file = file.as_ref().map(|file| file.display().to_string());
                of("apply", file.as_deref().unwrap_or("the file of serve"), None, None)
            }
            Request::Rollback => of("rollback", "configuration", None, None),
            // It changes nothing, but gives secrets away.
            Request::Backup => of("backup", "state directory", None, None),
            Request::Upgrade { binary, .. } => {
                let binary = binary.as_ref().map(|binary| binary.display().to_string());
                of("upgrade", binary.as_deref().unwrap_or("the daemon's own binary"), None, None)
            }
            Request::Stop { now } => {
                of("stop", "daemon", None, Some(if *now { "at once" } else { "in order" }.to_owned()))
            }
            Request::TargetSettings { .. } | Request::FileLines | Request::Plan { .. } => {
                RequestClass::Inspect
            }
            Request::VolumeList
            | Request::VolumeShow { .. }
            | Request::SubsystemList
            | Request::SubsystemShow { .. }
            | Request::HostList
            | Request::HostShow { .. }
            | Request::GatewayList
            | Request::ReservationList
            | Request::ReservationShow { .. }
            | Request::PathList { .. }
            | Request::TargetList
            | Request::TargetShow { .. }
            | Request::SessionList
            | Request::ConnectionList
            | Request::ConnectionShow { .. }
            | Request::ShardList
            | Request::Observe
            | Request::Status => RequestClass::Look,
        }
    }
}

/// A request that changes something, as it was before it was carried out.
#[derive(Debug)]
pub(crate) struct AuditedChange {
    verb: &'static str,
    object: String,
    before: Option<String>,
    wanted: Option<String>,
}

impl AuditedChange {
    /// `None`: it changes nothing.
    pub(crate) fn of(request: &Request, service: &dyn ControlService) -> Option<AuditedChange> {
        let RequestClass::Change(RequestedChange { verb, object, current, wanted }) =
            RequestClass::of(request)
        else {
            return None;
        };
        let before = current.and_then(|current| current.read(service));
        Some(AuditedChange { verb, object, before, wanted })
    }

    /// Writes the line; `by` is who asked, if the system still knows.
    pub(crate) fn log(self, by: Option<PeerProcess>, outcome: &Result<Answer, RequestRefusal>) {
        let AuditedChange { verb, object, before, wanted } = self;
        let (uid, pid) = by.map_or((-1, -1), |by| (i64::from(by.user), i64::from(by.pid)));
        let before = before.as_deref().unwrap_or("-");
        match outcome {
            Ok(answer) => {
                let after = answer_text(answer).or(wanted);
                let after = after.as_deref().unwrap_or("-");
                tracing::info!(target: area::AUDIT, uid, pid, verb, object, before, after, "done");
            }
            Err(why) => {
                let wanted = wanted.as_deref().unwrap_or("-");
                let cause = &why.message;
                tracing::info!(target: area::AUDIT, uid, pid, verb, object, before, wanted, cause, "refused");
            }
        }
    }
}

/// What has come of a change, where that is more than what was asked for.
fn answer_text(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Volume(volume) if volume.failed.is_some() => Some(failure_text(volume)),
        Answer::Volume(volume) if volume.standing.is_none() => Some(volume_text(volume)),
        Answer::Switched(targets) => {
            Some(list(&targets.iter().map(|one| format!("{} {}", one.target, one.done)).collect::<Vec<_>>()))
        }
        Answer::SessionsKilled(ended) => {
            Some(list(&ended.iter().map(|one| one.initiator.clone()).collect::<Vec<_>>()))
        }
        Answer::HostBlocked(report) => Some(format!(
            "{} {}, {} sessions ended",
            list(&report.names),
            if report.blocked { "blocked" } else { "let in" },
            report.sessions.len()
        )),
        Answer::Attached(attached) => Some(list(&attached.lines)),
        Answer::Plan(plan) => {
            Some(format!("{} changes, {} sessions disturbed", plan.changes.len(), plan.disturbed.len()))
        }
        _ => None,
    }
}

fn list(all: &[String]) -> String {
    if all.is_empty() { "all".to_owned() } else { all.join(", ") }
}

fn selector_text(which: &SessionSelector) -> String {
    match which {
        SessionSelector::Id(id) => id.to_string(),
        SessionSelector::Initiator(name) => name.clone(),
        SessionSelector::Host(name) => format!("host {name}"),
    }
}

/// Limits that are set: operations and bytes per second, each with its burst. 0 is none.
fn limits_text(values: [Option<u64>; 4]) -> String {
    let keys = ["iops_limit", "iops_burst", "bandwidth_limit", "bandwidth_burst"];
    let value = |value: u64| if value == 0 { "none".to_owned() } else { value.to_string() };
    let set = keys.iter().zip(values).filter_map(|(key, set)| Some(format!("{key} {}", value(set?))));
    let set: Vec<String> = set.collect();
    if set.is_empty() { "no limits".to_owned() } else { set.join(", ") }
}

fn volume_limits_text(volume: &VolumeReport) -> String {
    let limits = volume.standing.as_ref().and_then(|standing| standing.limits.clone()).unwrap_or_default();
    limits_text([
        limits.iops_limit,
        limits.iops_burst,
        limits.bandwidth_limit_bytes,
        limits.bandwidth_burst_bytes,
    ])
}

fn volume_text(volume: &VolumeReport) -> String {
    let mut said = vec![volume.kind.clone()];
    said.extend(volume.path.clone());
    said.push(size_text(volume));
    said.join(" ")
}

fn size_text(volume: &VolumeReport) -> String {
    volume.size_bytes.map_or_else(|| "of unknown size".to_owned(), |bytes| format!("{bytes} bytes"))
}

fn failure_text(volume: &VolumeReport) -> String {
    volume.failed.as_ref().map_or_else(|| "served".to_owned(), |why| format!("failed: {why}"))
}

fn protection_text(volume: &VolumeReport) -> String {
    read_only_text(volume.standing.as_ref().is_some_and(|standing| standing.write_protected))
}

fn read_only_text(on: bool) -> String {
    format!("read-only {}", if on { "on" } else { "off" })
}

fn paths_text(answer: &Answer) -> Option<String> {
    let Answer::Paths(paths) = answer else { return None };
    let text = |path: &VolumePathReport| {
        format!("port {} {}{}", path.port, path.state, if path.preferred { " preferred" } else { "" })
    };
    let said: Vec<String> = paths.iter().map(text).collect();
    Some(said.join(", "))
}
