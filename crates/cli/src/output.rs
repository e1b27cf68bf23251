//! The daemon's answers: aligned columns for people, and the same values as JSON for programs.

mod access;
mod gateway;
mod latency;
mod layout;
mod plan;
mod status;

use config::size::format_human;
use control::{
    Answer,
    report::{
        ConnectionReport, FailureFacts, FailureReport, NegotiatedReport, SessionReport, ShardReport,
        StoppingReport, TargetReport, UpgradeReport, VolumeReport,
    },
};
pub use layout::{DisplayText, Emphasis, Terminal, render_table};
pub use status::health_line;

use layout::render_card;
use process::{exit::Failure, printable};
use status::status_card;

/// The text of an answer, with its last line end.
pub fn answer_text(answer: &Answer, terminal: Terminal) -> DisplayText {
    match answer {
        Answer::Volumes(volumes) => volume_table(terminal, volumes),
        Answer::Volume(volume) => volume_card(terminal, volume),
        Answer::Deleted(volume) => DisplayText::escaped(&deleted_message(volume)),
        Answer::Snapshot(one) => {
            DisplayText::escaped(&format!("{} has what volume \"{}\" has now\n", one.file, one.volume))
        }
        Answer::Subsystems(list) => access::subsystem_table(terminal, list),
        Answer::Subsystem(one) => access::subsystem_card(terminal, one),
        Answer::Hosts(list) => access::host_table(terminal, list),
        Answer::Host(one) => access::host_card(terminal, one),
        Answer::HostBlocked(report) => DisplayText::escaped(&access::host_block_lines(report)),
        Answer::Gateways(report) => gateway::group_text(terminal, report),
        Answer::Reservations(list) => access::reservation_table(terminal, list),
        Answer::Reservation(one) => access::reservation_card(terminal, one),
        Answer::Paths(list) => access::path_table(terminal, list),
        Answer::Targets(targets) => target_table(terminal, targets),
        Answer::Target(target) => target_card(terminal, target),
        Answer::Switched(list) => {
            let line = |one: &control::report::TargetSwitchReport| format!("{}: {}\n", one.target, one.done);
            let text =
                if list.is_empty() { "no targets\n".to_owned() } else { list.iter().map(line).collect() };
            DisplayText::escaped(&text)
        }
        Answer::Settings(list) => DisplayText::escaped(&list.iter().map(settings_block).collect::<String>()),
        Answer::Lines(list) => DisplayText::escaped(&control::report::line::format_lines(list)),
        Answer::SessionEnded { id } => DisplayText::escaped(&format!("session {id:#x} is being ended\n")),
        Answer::SessionsKilled(ended) => {
            let line = |one: &SessionReport| {
                format!("session {} of {} has ended ({})\n", one.id, one.initiator, one.protocol)
            };
            DisplayText::escaped(&ended.iter().map(line).collect::<String>())
        }
        Answer::Sessions(sessions) => session_table(terminal, sessions),
        Answer::Connections(connections) => connection_table(terminal, connections),
        Answer::Connection(connection) => connection_card(terminal, connection),
        Answer::Shards(shards) => shard_table(terminal, shards),
        Answer::Observation(seen) => status_card(terminal, &seen.status),
        Answer::Attached(attached) => {
            DisplayText::escaped(&attached.lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        }
        Answer::Detached { way } => DisplayText::escaped(&format!("{way} is detached\n")),
        Answer::Plan(report) => DisplayText::escaped(&plan::text(report)),
        Answer::Backup(backup) => DisplayText::escaped(&format!("a backup of {} bytes\n", backup.0.len())),
        Answer::Status(status) => status_card(terminal, status),
        Answer::Upgraded(report) => DisplayText::escaped(&upgrade_text(report)),
        Answer::Stopping { pid } => DisplayText::escaped(&format!("stopping (process {pid})\n")),
    }
}

/// Who serves now, and whom it cost a connection.
fn upgrade_text(report: &UpgradeReport) -> String {
    let UpgradeReport { pid, sessions, queues, left, pause_ms } = report;
    let mut text = format!(
        "process {pid} serves {sessions} iSCSI sessions and {queues} NVMe queues after a pause of {pause_ms} ms\n"
    );
    for one in left {
        let who = one.initiator.as_deref().unwrap_or("unknown");
        text.push_str(&format!("closed: {who} at {}: {}\n", one.peer, one.why));
    }
    text
}

/// The JSON of an answer: the list or the object itself, without the protocol's wrapping.
pub fn answer_json(answer: &Answer) -> String {
    let value = match answer {
        Answer::Volumes(list) => serde_json::to_value(list),
        Answer::Volume(volume) | Answer::Deleted(volume) => serde_json::to_value(volume),
        Answer::Snapshot(one) => serde_json::to_value(one),
        Answer::Subsystems(list) => serde_json::to_value(list),
        Answer::Subsystem(one) => serde_json::to_value(one),
        Answer::Hosts(list) => serde_json::to_value(list),
        Answer::Host(one) => serde_json::to_value(one),
        Answer::HostBlocked(report) => serde_json::to_value(report),
        Answer::Gateways(report) => serde_json::to_value(report),
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
        Answer::Backup(backup) => Ok(serde_json::json!({ "size_bytes": backup.0.len() })),
        Answer::Status(status) => serde_json::to_value(status),
        Answer::Upgraded(report) => serde_json::to_value(report),
        Answer::Stopping { pid } => serde_json::to_value(StoppingReport { stopping: true, pid: *pid }),
    };
    // Reports hold texts, numbers and lists only, which always have a JSON form.
    printable::escape_lines(&format!("{:#}\n", value.unwrap_or_default())).into_owned()
}

/// A failure for programs: one object on one line, for standard error.
pub fn failure_json(failure: &Failure) -> String {
    let error = FailureFacts {
        code: failure.exit.name(),
        exit_code: failure.exit as u8,
        fault: failure.fault.name(),
        message: failure.message.clone(),
        next: failure.next_step(),
    };
    let value = serde_json::to_value(FailureReport { error }).unwrap_or_default();
    format!("{}\n", printable::escape_line(&value.to_string()))
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

fn volume_table(terminal: Terminal, volumes: &[VolumeReport]) -> DisplayText {
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
    render_table(
        terminal,
        ["NAME", "KIND", "SIZE", "BLOCK", "OPTIONS", "EXPORTED AS"],
        rows.collect(),
        "no volumes",
    )
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

fn volume_card(terminal: Terminal, volume: &VolumeReport) -> DisplayText {
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
    let mut out = render_card(terminal, &rows);
    out += latency::latency_tables(terminal, volume.latency.as_deref());
    out
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

fn target_table(terminal: Terminal, targets: &[TargetReport]) -> DisplayText {
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
    render_table(terminal, ["NAME", "LUNS", "SESSIONS", "ACCESS", "PORTALS"], rows.collect(), "no targets")
}

fn target_card(terminal: Terminal, target: &TargetReport) -> DisplayText {
    let portals: Vec<String> =
        target.portals.iter().map(|portal| format!("{},{}", portal.address, portal.tag)).collect();
    let mut out = render_card(
        terminal,
        &[
            ("name", Some(target.name.clone())),
            ("alias", target.alias.clone()),
            ("portals", Some(portals.join(" "))),
            ("access", Some(if target.open { "open".to_owned() } else { target.hosts.join(", ") })),
            ("redirect", target.redirect.map(|address| address.to_string())),
            ("sessions", Some(target.sessions.to_string())),
            ("state", target.stopped.then(|| "stopped".to_owned())),
        ],
    );
    for lun in &target.luns {
        let read_only = if lun.read_only { " (ro)" } else { "" };
        out += DisplayText::escaped(&format!("lun {}  {}{read_only}\n", lun.lun, lun.volume));
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

fn session_table(terminal: Terminal, sessions: &[SessionReport]) -> DisplayText {
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
    render_table(terminal, head, rows.collect(), "no sessions")
}

fn digests_word(connection: &ConnectionReport) -> &'static str {
    match (connection.header_digest, connection.data_digest) {
        (false, false) => "-",
        (true, false) => "header",
        (false, true) => "data",
        (true, true) => "header,data",
    }
}

fn connection_table(terminal: Terminal, connections: &[ConnectionReport]) -> DisplayText {
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
    render_table(terminal, head, rows.collect(), "no connections")
}

fn connection_card(terminal: Terminal, connection: &ConnectionReport) -> DisplayText {
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
    let mut out = render_card(terminal, &rows);
    out += latency::latency_tables(terminal, connection.latency.as_deref());
    out
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

fn shard_table(terminal: Terminal, shards: &[ShardReport]) -> DisplayText {
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
    render_table(terminal, head, rows.collect(), "no shards")
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
        let shown = answer_text(&Answer::Volumes(vec![volume("a"), volume("longer")]), Terminal::NONE);
        assert_eq!(
            shown.as_str(),
            "NAME    KIND  SIZE    BLOCK  OPTIONS  EXPORTED AS\n\
             a       ram   64 MiB  512    thin     iqn.x lun 0\n\
             longer  ram   64 MiB  512    thin     iqn.x lun 0\n"
        );
        assert_eq!(answer_text(&Answer::Volumes(Vec::new()), Terminal::NONE).as_str(), "no volumes\n");
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
    fn a_failure_is_one_line_of_json() {
        let line = failure_json(&Failure::usage("two\nlines \u{202e}"));
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1 && line.is_ascii(), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let error = &value["error"];
        assert_eq!((&error["code"], &error["exit_code"]), (&"usage".into(), &2.into()));
        assert_eq!((&error["fault"], &error["message"]), (&"caller".into(), &"two\nlines \u{202e}".into()));
        assert!(error["next"].as_str().unwrap().contains("--help"), "{line}");
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
            preferred: false,
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
        let text = answer_text(&Answer::Volume(shown), Terminal::NONE);
        let text = text.as_str();
        for part in [
            "iqn.x lun 0, nqn.x nsid 1",
            "write-exclusive by nqn.2026-11.io:h",
            "nvme port 3 (group 1) optimized",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
