//! Tables of reservations, paths, subsystems and hosts.

use std::time::Duration;

use super::{DisplayText, Terminal, layout::render_card, or_dash, render_table};
use control::report::{
    HostBlockReport, HostReport, RateLimitReport, RegistrantReport, ReservationReport, SubsystemReport,
    VolumePathReport, VolumeStateReport,
};

fn path_addresses(path: &VolumePathReport) -> String {
    let list: Vec<String> = path.addresses.iter().map(ToString::to_string).collect();
    list.join(",")
}

pub fn path_table(terminal: Terminal, paths: &[VolumePathReport]) -> DisplayText {
    let rows = paths.iter().map(|path| {
        [
            path.volume.clone(),
            path.port.to_string(),
            path.protocol.clone(),
            path.group.to_string(),
            path.state.clone(),
            if path.preferred { "yes" } else { "-" }.to_owned(),
            path_addresses(path),
            or_dash(path.target.as_deref()),
        ]
    });
    render_table(
        terminal,
        ["VOLUME", "PORT", "PROTOCOL", "GROUP", "STATE", "PREFERRED", "ADDRESSES", "TARGET"],
        rows.collect(),
        "no paths",
    )
}

fn holder_text(reservation: &ReservationReport) -> String {
    match (&reservation.kind, &reservation.holder) {
        (None, _) => "none".to_owned(),
        (Some(kind), None) => kind.clone(),
        (Some(kind), Some(holder)) => format!("{kind} by {holder}"),
    }
}

pub fn reservation_table(terminal: Terminal, reservations: &[ReservationReport]) -> DisplayText {
    let rows = reservations.iter().map(|reservation| {
        [
            reservation.volume.clone(),
            holder_text(reservation),
            reservation.registrants.len().to_string(),
            reservation.generation.to_string(),
            if reservation.persists { "yes" } else { "no" }.to_owned(),
        ]
    });
    let head = ["VOLUME", "RESERVATION", "REGISTRANTS", "GENERATION", "PERSISTS"];
    render_table(terminal, head, rows.collect(), "no volumes")
}

pub fn reservation_card(terminal: Terminal, reservation: &ReservationReport) -> DisplayText {
    let mut out = render_card(
        terminal,
        &[
            ("volume", Some(reservation.volume.clone())),
            ("reservation", Some(holder_text(reservation))),
            ("generation", Some(reservation.generation.to_string())),
            (
                "persists",
                Some(if reservation.persists { "over a restart" } else { "until a restart" }.to_owned()),
            ),
        ],
    );
    out += registrant_table(terminal, &reservation.registrants);
    out
}

fn registrant_table(terminal: Terminal, registrants: &[RegistrantReport]) -> DisplayText {
    let rows = registrants.iter().map(|one| {
        [
            one.protocol.clone(),
            one.key.clone(),
            if one.holder { "holder" } else { "-" }.to_owned(),
            or_dash(one.host.as_ref()),
            or_dash(one.port),
            one.name.clone(),
            one.isid.clone().or_else(|| one.hostid.clone()).unwrap_or_else(|| "-".to_owned()),
        ]
    });
    let head = ["PROTOCOL", "KEY", "HOLDS", "HOST", "PORT", "NAME", "IDENTIFIER"];
    render_table(terminal, head, rows.collect(), "no registrants")
}

/// What of a volume's standing belongs on its card.
pub fn volume_state_rows(standing: &VolumeStateReport) -> Vec<(&'static str, Option<String>)> {
    let mut state = Vec::new();
    state.extend(standing.write_protected.then(|| "write-protected".to_owned()));
    state.extend(standing.backing_read_only.then(|| "read-only on the machine that owns it".to_owned()));
    state.extend(standing.write_protected_by_host.then(|| "write-protected by a host".to_owned()));
    state.extend(standing.not_ready.clone());
    state.extend(standing.closed.then(|| "closed until operations stuck in its backing complete".to_owned()));
    let path = |path: &VolumePathReport| {
        format!("{} port {} (group {}) {}", path.protocol, path.port, path.group, path.state)
    };
    let paths: Vec<String> = standing.paths.iter().map(path).collect();
    vec![
        ("state", Some(if state.is_empty() { "ready".to_owned() } else { state.join(", ") })),
        ("paths", (!paths.is_empty()).then(|| paths.join(", "))),
        (
            "reservation",
            Some(format!(
                "{}, {} registrants",
                holder_text(&standing.reservation),
                standing.reservation.registrants.len()
            )),
        ),
        ("limits", standing.limits.as_ref().map(limits_text)),
        (
            "done",
            Some(format!(
                "{} reads of {}, {} writes of {}",
                standing.reads,
                super::format_human(standing.read_bytes),
                standing.writes,
                super::format_human(standing.written_bytes)
            )),
        ),
    ]
}

fn access_text(open: bool, hosts: &[String]) -> String {
    if open { "open".to_owned() } else { format!("{} hosts", hosts.len()) }
}

pub fn subsystem_table(terminal: Terminal, subsystems: &[SubsystemReport]) -> DisplayText {
    let rows = subsystems.iter().map(|one| {
        let portals: Vec<String> = one.portals.iter().map(|portal| portal.address.to_string()).collect();
        [
            one.nqn.clone(),
            one.namespaces.len().to_string(),
            one.controllers.to_string(),
            access_text(one.open, &one.hosts),
            portals.join(","),
        ]
    });
    render_table(
        terminal,
        ["NQN", "NAMESPACES", "CONTROLLERS", "ACCESS", "PORTALS"],
        rows.collect(),
        "no subsystems",
    )
}

pub fn subsystem_card(terminal: Terminal, subsystem: &SubsystemReport) -> DisplayText {
    let portals: Vec<String> =
        subsystem.portals.iter().map(|portal| format!("{},{}", portal.address, portal.tag)).collect();
    let mut out = render_card(
        terminal,
        &[
            ("nqn", Some(subsystem.nqn.clone())),
            ("portals", Some(portals.join(" "))),
            ("access", Some(if subsystem.open { "open".to_owned() } else { subsystem.hosts.join(", ") })),
            ("serial", subsystem.serial.clone()),
            ("model", Some(subsystem.model.clone())),
            ("controllers", Some(subsystem.controllers.to_string())),
        ],
    );
    for namespace in &subsystem.namespaces {
        let read_only = if namespace.read_only { " (ro)" } else { "" };
        let (nsid, volume, group) = (namespace.nsid, &namespace.volume, namespace.ana_group);
        out += DisplayText::escaped(&format!("namespace {nsid}  {volume}{read_only}, ANA group {group}\n"));
    }
    out
}

pub fn host_table(terminal: Terminal, hosts: &[HostReport]) -> DisplayText {
    let rows = hosts.iter().map(|host| {
        [
            host.name.clone(),
            host.targets.len().to_string(),
            host.subsystems.len().to_string(),
            host.sessions.to_string(),
            if host.blocked { "yes" } else { "no" }.to_owned(),
            if host.both { "yes" } else { "no" }.to_owned(),
            host.iqns.iter().chain(&host.nqns).cloned().collect::<Vec<_>>().join(","),
        ]
    });
    let head = ["NAME", "TARGETS", "SUBSYSTEMS", "SESSIONS", "BLOCKED", "BOTH", "NAMES"];
    render_table(terminal, head, rows.collect(), "no hosts are configured: any host may connect")
}

pub fn host_card(terminal: Terminal, host: &HostReport) -> DisplayText {
    let some = |list: &[String]| (!list.is_empty()).then(|| list.join(", "));
    render_card(
        terminal,
        &[
            ("name", Some(host.name.clone())),
            ("iqn", some(&host.iqns)),
            ("nqn", some(&host.nqns)),
            ("hostid", host.hostid.clone()),
            ("sources", some(&host.sources)),
            ("chap", some(&host.chap_users)),
            ("dhchap", host.dhchap.then(|| "a secret of its own".to_owned())),
            ("controller", host.dhchap_controller.then(|| "a secret of its own for this host".to_owned())),
            ("both", Some(if host.both { "one volume over both protocols" } else { "no" }.to_owned())),
            ("targets", some(&host.targets)),
            ("subsystems", some(&host.subsystems)),
            ("sessions", Some(host.sessions.to_string())),
            ("limits", host.limits.as_ref().map(limits_text)),
            ("blocked", host.blocked.then(|| blocked_text(host))),
        ],
    )
}

/// Limits, and what they have delayed.
fn limits_text(limits: &RateLimitReport) -> String {
    let human = super::format_human;
    let iops = limits.iops_limit.zip(limits.iops_burst);
    let iops = iops.map(|(limit, burst)| format!("{limit} IOPS (burst {burst})"));
    let bandwidth = limits.bandwidth_limit_bytes.zip(limits.bandwidth_burst_bytes);
    let bandwidth = bandwidth.map(|(limit, burst)| format!("{}/s (burst {})", human(limit), human(burst)));
    let all: Vec<String> = iops.into_iter().chain(bandwidth).collect();
    let waited = Duration::from_nanos(limits.throttled_ns).as_secs_f64();
    format!("{}; {} operations waited, {waited:.1} s together", all.join(", "), limits.throttled)
}

fn blocked_text(host: &HostReport) -> String {
    match host.blocked_names.as_slice() {
        [] => format!("all that comes from {}", host.sources.join(", ")),
        names => names.join(", "),
    }
}

/// What `host block` and `host unblock` say.
pub fn host_block_lines(report: &HostBlockReport) -> String {
    let what = if report.blocked { "is blocked" } else { "is let in again" };
    let mut out: String = report.names.iter().map(|name| format!("{name} {what}\n")).collect();
    for one in &report.sessions {
        out.push_str(&format!("session {} of {} has ended ({})\n", one.id, one.initiator, one.protocol));
    }
    out
}
