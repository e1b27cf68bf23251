//! The daemon's answers: aligned columns for people, and the same values as JSON for programs.

mod access;
mod latency;
mod plan;

use config::size::format_human;
use control::{
    Answer,
    report::{
        ConnectionReport, NegotiatedReport, SessionReport, ShardReport, StatusReport, TargetReport,
        VolumeReport,
    },
};
use process::printable;

/// The text of an answer, with its last line end.
pub fn answer_text(answer: &Answer) -> String {
    printable::escape_lines(&raw_answer_text(answer)).into_owned()
}

fn raw_answer_text(answer: &Answer) -> String {
    match answer {
        Answer::Volumes(volumes) => volume_table(volumes),
        Answer::Volume(volume) => volume_card(volume),
        Answer::Deleted(volume) => deleted_message(volume),
        Answer::Subsystems(list) => access::subsystem_table(list),
        Answer::Subsystem(one) => access::subsystem_card(one),
        Answer::Hosts(list) => access::host_table(list),
        Answer::Host(one) => access::host_card(one),
        Answer::HostBlocked(report) => access::host_block_lines(report),
        Answer::Reservations(list) => access::reservation_table(list),
        Answer::Reservation(one) => access::reservation_card(one),
        Answer::Paths(list) => access::path_table(list),
        Answer::Targets(targets) => target_table(targets),
        Answer::Target(target) => target_card(target),
        Answer::Switched(list) => {
            let line = |one: &control::report::TargetSwitchReport| format!("{}: {}\n", one.target, one.done);
            if list.is_empty() { "no targets\n".to_owned() } else { list.iter().map(line).collect() }
        }
        Answer::Settings(list) => list.iter().map(settings_block).collect(),
        Answer::Lines(list) => control::report::line::format_lines(list),
        Answer::SessionEnded { id } => format!("session {id:#x} is being ended\n"),
        Answer::SessionsKilled(ended) => {
            let line = |one: &SessionReport| {
                format!("session {} of {} has ended ({})\n", one.id, one.initiator, one.protocol)
            };
            ended.iter().map(line).collect()
        }
        Answer::Sessions(sessions) => session_table(sessions),
        Answer::Connections(connections) => connection_table(connections),
        Answer::Connection(connection) => connection_card(connection),
        Answer::Shards(shards) => shard_table(shards),
        Answer::Observation(seen) => status_card(&seen.status),
        Answer::Attached(attached) => attached.lines.iter().map(|line| format!("{line}\n")).collect(),
        Answer::Detached { way } => format!("{way} is detached\n"),
        Answer::Plan(report) => plan::text(report),
        Answer::Status(status) => status_card(status),
        Answer::Stopping { pid } => format!("stopping (process {pid})\n"),
    }
}

/// The JSON of an answer: the list or the object itself, without the protocol's wrapping.
pub fn answer_json(answer: &Answer) -> String {
    let value = match answer {
        Answer::Volumes(list) => serde_json::to_value(list),
        Answer::Volume(volume) | Answer::Deleted(volume) => serde_json::to_value(volume),
        Answer::Subsystems(list) => serde_json::to_value(list),
        Answer::Subsystem(one) => serde_json::to_value(one),
        Answer::Hosts(list) => serde_json::to_value(list),
        Answer::Host(one) => serde_json::to_value(one),
        Answer::HostBlocked(report) => serde_json::to_value(report),
        Answer::Reservations(list) => serde_json::to_value(list),
        Answer::Reservation(one) => serde_json::to_value(one),
        Answer::Paths(list) => serde_json::to_value(list),
        Answer::Targets(list) => serde_json::to_value(list),
        Answer::Target(target) => serde_json::to_value(target),
        Answer::Switched(list) => serde_json::to_value(list),
        Answer::Settings(list) => serde_json::to_value(list),
        Answer::Lines(list) => serde_json::to_value(list),
        Answer::SessionEnded { id } => Ok(serde_json::json!({ "ended": id })),
        Answer::Sessions(list) | Answer::SessionsKilled(list) => serde_json::to_value(list),
        Answer::Connections(list) => serde_json::to_value(list),
        Answer::Connection(connection) => serde_json::to_value(connection),
        Answer::Shards(list) => serde_json::to_value(list),
        Answer::Observation(seen) => serde_json::to_value(seen),
        Answer::Attached(attached) => serde_json::to_value(attached),
        Answer::Detached { way } => Ok(serde_json::json!({ "detached": way })),
        Answer::Plan(report) => serde_json::to_value(report),
        Answer::Status(status) => serde_json::to_value(status),
        Answer::Stopping { pid } => Ok(serde_json::json!({ "stopping": true, "pid": pid })),
    };
    // Reports hold texts, numbers and lists only, which always have a JSON form.
    printable::escape_lines(&format!("{:#}\n", value.unwrap_or_default())).into_owned()
}

/// Columns as wide as their widest cell, two spaces apart; a hint if there is nothing.
pub fn render_table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>, empty: &str) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let head = head.map(str::to_owned);
    // What a peer has named neither ends a line nor moves what stands beside it.
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| printable::escape_line(&cell).into_owned())).collect();
    let mut widths = [0; N];
    for row in std::iter::once(&head).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// One `name  value` per line; values that are absent are left out.
fn render_card(rows: &[(&str, Option<String>)]) -> String {
    let rows: Vec<(&str, &String)> =
        rows.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn volume_flags(volume: &VolumeReport) -> String {
    let flags = [
        (volume.read_only, "ro"),
        (volume.write_cache, "cache"),
        (volume.direct, "direct"),
        (volume.thin, "thin"),
        (volume.removable, "removable"),
    ];
    let set: Vec<&str> = flags.iter().filter_map(|(on, name)| on.then_some(*name)).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(",") }
}

fn volume_table(volumes: &[VolumeReport]) -> String {
    let rows = volumes.iter().map(|volume| {
        [
            volume.name.clone(),
            volume.kind.clone(),
            or_dash(volume.size_bytes.map(format_human)),
            or_dash(volume.block_bytes),
            volume_flags(volume),
            match &volume.failed {
                Some(why) => format!("FAILED: {why}"),
                None => or_dash(export_names(volume).into_iter().next()),
            },
        ]
    });
    render_table(["NAME", "KIND", "SIZE", "BLOCK", "OPTIONS", "EXPORTED AS"], rows.collect(), "no volumes")
}

/// Where a volume is to be found, over both protocols.
fn export_names(volume: &VolumeReport) -> Vec<String> {
    let luns = volume.exports.iter().map(|export| format!("{} lun {}", export.target, export.lun));
    let namespaces = volume.namespaces.iter().map(|one| format!("{} nsid {}", one.subsystem, one.nsid));
    luns.chain(namespaces).collect()
}

/// What to do about a volume that has failed.
fn failure_remedy(volume: &VolumeReport) -> String {
    format!("`blockwire volume retry {0}`, or `blockwire volume delete {0}`", volume.name)
}

fn volume_card(volume: &VolumeReport) -> String {
    let exports = export_names(volume);
    let both = volume.block_bytes.zip(volume.physical_bytes);
    let block = both.map(|(block, physical)| format!("{block} bytes, physical {physical}"));
    let mut rows = vec![
        ("name", Some(volume.name.clone())),
        ("kind", Some(volume.kind.clone())),
        ("path", volume.path.clone()),
        ("failed", volume.failed.as_ref().map(|why| format!("{why} (fix: {})", failure_remedy(volume)))),
        ("size", volume.size_bytes.map(|bytes| format!("{} ({bytes} bytes)", format_human(bytes)))),
        ("block", block),
        ("options", Some(volume_flags(volume))),
        ("uuid", volume.uuid.map(|uuid| uuid.to_string())),
        ("from", Some(if volume.created { "created at run time" } else { "configuration" }.to_owned())),
        ("exported as", (!exports.is_empty()).then(|| exports.join(", "))),
    ];
    rows.extend(volume.standing.iter().flat_map(access::volume_state_rows));
    render_card(&rows) + &latency::latency_tables(volume.latency.as_deref())
}

fn deleted_message(volume: &VolumeReport) -> String {
    let mut out = format!("volume \"{}\" is no longer served", volume.name);
    if let Some(path) = &volume.path {
        out.push_str(&format!("; {path} is untouched"));
    }
    if !volume.created {
        out.push_str("; it is configured and comes back at the next start");
    }
    out.push('\n');
    out
}

fn target_table(targets: &[TargetReport]) -> String {
    let rows = targets.iter().map(|target| {
        let portals: Vec<String> = target.portals.iter().map(|portal| portal.address.to_string()).collect();
        [
            target.name.clone(),
            target.luns.len().to_string(),
            target.sessions.to_string(),
            match (target.stopped, target.open) {
                (true, _) => "stopped".to_owned(),
                (false, true) => "open".to_owned(),
                (false, false) => format!("{} hosts", target.hosts.len()),
            },
            portals.join(","),
        ]
    });
    render_table(["NAME", "LUNS", "SESSIONS", "ACCESS", "PORTALS"], rows.collect(), "no targets")
}

fn target_card(target: &TargetReport) -> String {
    let portals: Vec<String> =
        target.portals.iter().map(|portal| format!("{},{}", portal.address, portal.tag)).collect();
    let mut out = render_card(&[
        ("name", Some(target.name.clone())),
        ("alias", target.alias.clone()),
        ("portals", Some(portals.join(" "))),
        ("access", Some(if target.open { "open".to_owned() } else { target.hosts.join(", ") })),
        ("redirect", target.redirect.map(|address| address.to_string())),
        ("sessions", Some(target.sessions.to_string())),
        ("state", target.stopped.then(|| "stopped".to_owned())),
    ]);
    for lun in &target.luns {
        out.push_str(&format!(
            "lun {}  {}{}\n",
            lun.lun,
            lun.volume,
            if lun.read_only { " (ro)" } else { "" }
        ));
    }
    out
}

/// As a block of the file from which it may have come.
fn settings_block(one: &control::report::TargetSettingsReport) -> String {
    let mut out = String::from("target:\n");
    for setting in &one.settings {
        out.push_str(&format!("\t{}={}\n", setting.key, setting.value));
    }
    if !one.is_active {
        out.push_str("\t# stopped\n");
    }
    out
}

fn session_table(sessions: &[SessionReport]) -> String {
    let rows = sessions.iter().map(|session| {
        [
            session.id.to_string(),
            session.protocol.clone(),
            session.initiator.clone(),
            session.target.clone().unwrap_or_else(|| "(discovery)".to_owned()),
            session.connections.to_string(),
            session.commands.to_string(),
            format_human(session.read_bytes),
            format_human(session.written_bytes),
            or_dash(session.host.as_ref()),
            or_dash(session.user.as_ref()),
            session.shard.to_string(),
        ]
    });
    let head = [
        "ID",
        "PROTOCOL",
        "INITIATOR",
        "TARGET",
        "CONNECTIONS",
        "COMMANDS",
        "READ",
        "WRITTEN",
        "HOST",
        "USER",
        "SHARD",
    ];
    render_table(head, rows.collect(), "no sessions")
}

fn digests_word(connection: &ConnectionReport) -> &'static str {
    match (connection.header_digest, connection.data_digest) {
        (false, false) => "-",
        (true, false) => "header",
        (false, true) => "data",
        (true, true) => "header,data",
    }
}

fn connection_table(connections: &[ConnectionReport]) -> String {
    let rows = connections.iter().map(|connection| {
        [
            connection.id.to_string(),
            connection.protocol.clone(),
            connection.session.to_string(),
            connection.cid.to_string(),
            connection.peer.to_string(),
            connection.local.to_string(),
            digests_word(connection).to_owned(),
            connection.shard.to_string(),
            connection.initiator.clone(),
        ]
    });
    let head = ["ID", "PROTOCOL", "SESSION", "CID", "PEER", "LOCAL", "DIGESTS", "SHARD", "INITIATOR"];
    render_table(head, rows.collect(), "no connections")
}

fn connection_card(connection: &ConnectionReport) -> String {
    let mut rows = vec![
        ("id", Some(connection.id.to_string())),
        ("protocol", Some(connection.protocol.clone())),
        ("session", Some(connection.session.to_string())),
        (if connection.queue.is_some() { "queue" } else { "cid" }, Some(connection.cid.to_string())),
        ("initiator", Some(connection.initiator.clone())),
        ("host", connection.host.clone()),
        ("user", authenticated_user(connection)),
        ("proof", dhchap_text(connection)),
        ("tls", connection.tls.as_ref().map(|tls| format!("{}, {}", tls.version, tls.suite))),
        ("identity", connection.tls.as_ref().map(|tls| tls.identity.clone())),
        ("target", connection.target.clone()),
        ("peer", Some(connection.peer.to_string())),
        ("local", Some(connection.local.to_string())),
        ("digests", Some(digests_word(connection).to_owned())),
        ("shard", Some(connection.shard.to_string())),
        ("placement", Some(connection.placement.clone())),
        ("received", Some(format_human(connection.received_bytes))),
        ("sent", Some(format_human(connection.sent_bytes))),
    ];
    if let Some(terms) = &connection.negotiated {
        rows.extend([
            (
                "segments",
                Some(format!("{} out, {} in", format_bytes(terms.max_send), format_bytes(terms.max_receive))),
            ),
            (
                "bursts",
                Some(format!("{}, first {}", format_bytes(terms.max_burst), format_bytes(terms.first_burst))),
            ),
            ("unasked", Some(unsolicited_data_text(terms).to_owned())),
            ("r2t", Some(format!("{} per command", terms.max_outstanding_r2t))),
            ("allowed", Some(format!("{} connections, {} commands", terms.max_connections, terms.commands))),
        ]);
    }
    if let Some(queue) = &connection.queue {
        let counted = if queue.flow_control { "counted by SQHD" } else { "not counted" };
        rows.extend([
            ("entries", Some(format!("{}, {counted}, {} in use", queue.entries, queue.commands))),
            ("in capsule", Some(format_bytes(queue.in_capsule_bytes))),
            ("read", Some(format!("{} in {} commands", format_human(queue.read_bytes), queue.reads))),
            ("written", Some(format!("{} in {} commands", format_human(queue.written_bytes), queue.writes))),
        ]);
    }
    render_card(&rows) + &latency::latency_tables(connection.latency.as_deref())
}

/// Who was proved, and how.
fn authenticated_user(connection: &ConnectionReport) -> Option<String> {
    let user = connection.user.clone()?;
    Some(match &connection.algorithm {
        Some(algorithm) => format!("{user}, by CHAP with {algorithm}"),
        None => user,
    })
}

/// How an NVMe host has proved itself.
fn dhchap_text(connection: &ConnectionReport) -> Option<String> {
    if connection.unproven {
        return Some("due".to_owned());
    }
    let (hash, group) = (connection.algorithm.as_ref()?, connection.dh_group.as_ref()?);
    Some(format!("by DH-HMAC-CHAP with {hash} and {group}"))
}

fn format_bytes(length: u32) -> String {
    format_human(length.into())
}

/// What an initiator may send before it is asked to.
fn unsolicited_data_text(terms: &NegotiatedReport) -> &'static str {
    match (terms.immediate_data, terms.initial_r2t) {
        (false, true) => "nothing",
        (true, true) => "data with the command",
        (false, false) => "data behind the command",
        (true, false) => "data with the command and after it",
    }
}

fn shard_table(shards: &[ShardReport]) -> String {
    let rows = shards.iter().map(|shard| {
        [
            shard.id.to_string(),
            or_dash(shard.core),
            shard.io.clone(),
            shard.sessions.to_string(),
            shard.connections.to_string(),
            format!("{} of {}", format_human(shard.memory_lent_bytes), format_human(shard.memory_bytes)),
            format_human(shard.received_bytes),
            format_human(shard.sent_bytes),
            shard.turns.to_string(),
            shard.sleeps.to_string(),
        ]
    });
    let head = ["ID", "CORE", "IO", "SESSIONS", "CONNECTIONS", "MEMORY", "IN", "OUT", "TURNS", "SLEEPS"];
    render_table(head, rows.collect(), "no shards")
}

/// Whether all is well, in one line; else what is not, the worst first.
pub fn health_line(status: &StatusReport) -> String {
    let Some(worst) = status.problems.first() else { return "all is well".to_owned() };
    let more = match status.problems.len() - 1 {
        0 => String::new(),
        1 => " (and 1 more problem)".to_owned(),
        more => format!(" (and {more} more problems)"),
    };
    format!("not well: {}: {}{more}", worst.subject, worst.why)
}

fn status_card(status: &StatusReport) -> String {
    let listeners: Vec<String> = status
        .listeners
        .iter()
        .map(|listener| format!("{} {}", listener.protocol, listener.address))
        .collect();
    let mut out = format!("{}\n", health_line(status));
    for one in &status.problems {
        out.push_str(&format!("  {}  {}: {}\n    fix: {}\n", one.kind, one.subject, one.why, one.next));
    }
    out.push('\n');
    out + &render_card(&[
        ("version", Some(status.version.clone())),
        ("process", Some(status.pid.to_string())),
        ("up", Some(format_duration(status.uptime_seconds))),
        ("node", status.node.clone()),
        ("io", Some(format!("{}, {} shards", status.io, status.shards))),
        ("listening", Some(listeners.join(", "))),
        ("volumes", Some(status.volumes.to_string())),
        ("targets", Some(status.targets.to_string())),
        ("subsystems", Some(status.subsystems.to_string())),
        ("sessions", Some(format!("{}, {} connections", status.sessions, status.connections))),
        ("attachments", (status.attachments > 0).then(|| status.attachments.to_string())),
        ("state", Some(status.state.clone())),
    ])
}

/// `3d 04:05:06`.
pub fn format_duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}d {clock}") } else { clock }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use control::report::{
        ExportReport, NamespaceExportReport, ReservationReport, VolumePathReport, VolumeStateReport,
    };

    fn volume(name: &str) -> VolumeReport {
        VolumeReport {
            name: name.into(),
            kind: "ram".into(),
            size_bytes: Some(64 << 20),
            block_bytes: Some(512),
            thin: true,
            uuid: Some(Uuid::from_u128(1)),
            exports: vec![ExportReport { target: "iqn.x".into(), lun: 0, read_only: false }],
            ..VolumeReport::default()
        }
    }

    #[test]
    fn columns_line_up() {
        let shown = answer_text(&Answer::Volumes(vec![volume("a"), volume("longer")]));
        assert_eq!(
            shown,
            "NAME    KIND  SIZE    BLOCK  OPTIONS  EXPORTED AS\n\
             a       ram   64 MiB  512    thin     iqn.x lun 0\n\
             longer  ram   64 MiB  512    thin     iqn.x lun 0\n"
        );
        assert_eq!(answer_text(&Answer::Volumes(Vec::new())), "no volumes\n");
    }

    #[test]
    fn json_is_the_bare_value() {
        let value: serde_json::Value =
            serde_json::from_str(&answer_json(&Answer::Volumes(vec![volume("a")]))).unwrap();
        assert_eq!(value[0]["name"], "a");
        assert_eq!(value[0]["size_bytes"], 64 << 20);
        assert_eq!(answer_json(&Answer::Sessions(Vec::new())), "[]\n");
    }

    #[test]
    fn durations() {
        assert_eq!(format_duration(59), "00:00:59");
        assert_eq!(format_duration(3 * 86400 + 4 * 3600 + 5 * 60 + 6), "3d 04:05:06");
    }

    #[test]
    fn a_volume_is_shown_with_both_protocols_its_reservation_and_its_paths() {
        let path = |port, protocol: &str, group| VolumePathReport {
            volume: "demo".into(),
            port,
            protocol: protocol.into(),
            group,
            target: None,
            addresses: Vec::new(),
            state: "optimized".into(),
        };
        let mut shown = volume("demo");
        shown.namespaces = vec![NamespaceExportReport {
            subsystem: "nqn.x".into(),
            nsid: 1,
            read_only: false,
            ana_group: 1,
        }];
        shown.standing = Some(VolumeStateReport {
            volume: "demo".into(),
            size_bytes: 1 << 20,
            paths: vec![path(1, "iscsi", 1), path(3, "nvme", 1)],
            reservation: ReservationReport {
                volume: "demo".into(),
                kind: Some("write-exclusive".into()),
                holder: Some("nqn.2026-11.io:h".into()),
                generation: 3,
                persists: true,
                ..ReservationReport::default()
            },
            ..VolumeStateReport::default()
        });
        let text = answer_text(&Answer::Volume(shown));
        for part in [
            "iqn.x lun 0, nqn.x nsid 1",
            "write-exclusive by nqn.2026-11.io:h",
            "nvme port 3 (group 1) optimized",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
