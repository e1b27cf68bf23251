//! Which metrics there are.
//!
//! Names follow Prometheus' conventions: base units (seconds, bytes), `_total` for counts, `_info` for facts. Label
//! values come from reports, among them names that hosts gave themselves.

mod group;
mod latency;

use crate::exposition::{Exposition, ExpositionFormat, Labels, MetricKind};
use control::report::{
    ConnectionReport, ObservationReport, ProblemReport, RateLimitReport, SessionReport, ShardReport,
    VolumeReport, VolumeStateReport,
};

pub use latency::HISTOGRAMS_MAX;

/// Name, kind and help of a metric, and where its number is in a report.
type MetricField<T> = (&'static str, MetricKind, &'static str, fn(&T) -> u64);

/// All metrics as text.
pub fn render_metrics(observed: &ObservationReport, format: ExpositionFormat) -> String {
    let mut out = Exposition::new(format);
    write_daemon(&mut out, observed);
    write_volumes(&mut out, &observed.volumes);
    write_rate_limits(&mut out, observed);
    write_paths(&mut out, &observed.volumes);
    write_reservations(&mut out, &observed.volumes);
    write_sessions(&mut out, &observed.sessions);
    write_connections(&mut out, &observed.connections);
    write_shards(&mut out, &observed.shards);
    group::write_group(&mut out, observed.status.group.as_ref());
    latency::write_latency(&mut out, observed);
    out.finish()
}

fn write_daemon(out: &mut Exposition, observed: &ObservationReport) {
    let status = &observed.status;
    out.begin_family("blockwire_build", MetricKind::Info, "Version and I/O interface of the daemon.");
    out.push_sample(&[("version", &status.version), ("io", &status.io)], 1);
    let start = "Start of the daemon, in seconds since 1970.";
    out.begin_family("blockwire_start_time_seconds", MetricKind::Gauge, start);
    out.push_sample(&[], status.started_unix_seconds);
    out.begin_family(
        "blockwire_problems",
        MetricKind::Gauge,
        "What is wrong now, by kind; 0 everywhere: all is well.",
    );
    for kind in ProblemReport::KINDS {
        out.push_sample(&[("kind", kind)], status.problems.iter().filter(|one| one.kind == kind).count());
    }
    out.begin_family(
        "blockwire_refusals",
        MetricKind::Counter,
        "Logins, connects and connections refused, by cause.",
    );
    for one in &observed.refusals {
        out.push_sample(&[("protocol", &one.protocol), ("cause", &one.cause)], one.count);
    }
}

/// One number of each.
fn write_field_of_each<'a, T>(
    out: &mut Exposition,
    (name, kind, help): (&str, MetricKind, &str),
    all: &'a [T],
    labels: impl Fn(&'a T) -> Vec<(&'static str, &'a str)>,
    value: impl Fn(&'a T) -> Option<u64>,
) {
    out.begin_family(name, kind, help);
    for one in all {
        if let Some(value) = value(one) {
            out.push_sample(&labels(one), value);
        }
    }
}

fn write_volumes(out: &mut Exposition, all: &[VolumeReport]) {
    use MetricKind::{Counter, Gauge};
    fn volume_labels(volume: &VolumeReport) -> Vec<(&'static str, &str)> {
        vec![("volume", &volume.name)]
    }
    fn volume_counter(read: fn(&VolumeStateReport) -> u64) -> impl Fn(&VolumeReport) -> Option<u64> {
        move |volume| volume.standing.as_ref().map(read)
    }
    out.begin_family("blockwire_volume", MetricKind::Info, "Kind and identity of a volume.");
    for volume in all {
        let uuid = volume.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
        out.push_sample(&[("volume", &volume.name), ("kind", &volume.kind), ("uuid", &uuid)], 1);
    }
    let served = |volume: &VolumeReport| Some(u64::from(volume.failed.is_none()));
    let help =
        "1: the volume is served, and hosts may write to it as far as it is not read-only; 0: it has failed.";
    write_field_of_each(out, ("blockwire_volume_healthy", Gauge, help), all, volume_labels, served);
    let size = |volume: &VolumeReport| volume.size_bytes;
    write_field_of_each(
        out,
        ("blockwire_volume_size_bytes", Gauge, "Size of a volume."),
        all,
        volume_labels,
        size,
    );
    let allocated =
        |volume: &VolumeReport| volume.standing.as_ref().and_then(|standing| standing.allocated_bytes);
    let help = "Bytes that a volume takes of its backing, where that is known.";
    write_field_of_each(
        out,
        ("blockwire_volume_allocated_bytes", Gauge, help),
        all,
        volume_labels,
        allocated,
    );
    let help = "Write-protected: by the configuration, the operator or a host.";
    let protected = volume_counter(|standing| {
        let protected = standing.write_protected || standing.write_protected_by_host;
        u64::from(protected || standing.backing_read_only)
    });
    write_field_of_each(out, ("blockwire_volume_read_only", Gauge, help), all, volume_labels, protected);
    let counters: [MetricField<VolumeStateReport>; 4] = [
        ("blockwire_volume_reads", Counter, "Read operations.", |one| one.reads),
        ("blockwire_volume_read_bytes", Counter, "Bytes read.", |one| one.read_bytes),
        ("blockwire_volume_writes", Counter, "Write operations.", |one| one.writes),
        ("blockwire_volume_written_bytes", Counter, "Bytes written.", |one| one.written_bytes),
    ];
    for (name, kind, help, read) in counters {
        write_field_of_each(out, (name, kind, help), all, volume_labels, volume_counter(read));
    }
    let help = "Operations that have not ended: the queue depth.";
    let depth = volume_counter(|one| one.operations_in_flight);
    write_field_of_each(
        out,
        ("blockwire_volume_operations_in_flight", Gauge, help),
        all,
        volume_labels,
        depth,
    );
    out.begin_family("blockwire_volume_errors", Counter, "Operations that failed, by cause.");
    for volume in all {
        for error in volume.standing.iter().flat_map(|standing| &standing.errors) {
            out.push_sample(&[("volume", &volume.name), ("cause", &error.cause)], error.count);
        }
    }
}

/// Of volumes and hosts that are limited.
fn write_rate_limits(out: &mut Exposition, observed: &ObservationReport) {
    use MetricKind::{Counter, Gauge};
    let of_volumes = observed.volumes.iter().filter_map(|volume| {
        Some(([("volume", volume.name.as_str())], volume.standing.as_ref()?.limits.as_ref()?))
    });
    let of_hosts = observed.host_limits.iter().map(|one| ([("host", one.host.as_str())], &one.limits));
    let (volumes, hosts): (Vec<_>, Vec<_>) = (of_volumes.collect(), of_hosts.collect());
    for (kind, all) in [("volume", &volumes), ("host", &hosts)] {
        type Value = fn(&RateLimitReport) -> Option<u64>;
        let gauges: [(&str, &str, Value); 4] = [
            ("iops_limit", "Operations per second that are let through.", |one| one.iops_limit),
            ("iops_burst", "Operations that may begin at once.", |one| one.iops_burst),
            ("bandwidth_limit_bytes", "Bytes per second that are let through.", |one| {
                one.bandwidth_limit_bytes
            }),
            ("bandwidth_burst_bytes", "Bytes that may be moved at once.", |one| one.bandwidth_burst_bytes),
        ];
        for (name, help, value) in gauges {
            out.begin_family(&format!("blockwire_{kind}_{name}"), Gauge, help);
            for (labels, limits) in all {
                if let Some(value) = value(limits) {
                    out.push_sample(labels, value);
                }
            }
        }
        let help = "Operations that have waited for the limits.";
        out.begin_family(&format!("blockwire_{kind}_throttled"), Counter, help);
        for (labels, limits) in all {
            out.push_sample(labels, limits.throttled);
        }
        let help = "How long operations have waited for the limits.";
        out.begin_family(&format!("blockwire_{kind}_throttled_seconds"), Counter, help);
        for (labels, limits) in all {
            out.push_sample(labels, ns_to_seconds(limits.throttled_ns));
        }
    }
}

fn write_paths(out: &mut Exposition, all: &[VolumeReport]) {
    let help = "1 for the state in which a path is: ALUA over iSCSI, ANA over NVMe/TCP.";
    out.begin_family("blockwire_path_state", MetricKind::Gauge, help);
    for path in all.iter().filter_map(|volume| volume.standing.as_ref()).flat_map(|one| &one.paths) {
        let port = path.port.to_string();
        let labels = [
            ("volume", path.volume.as_str()),
            ("protocol", &path.protocol),
            ("port", &port),
            ("target", path.target.as_deref().unwrap_or_default()),
            ("state", &path.state),
        ];
        // NVMe has no target: an empty label is none.
        let labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        out.push_sample(&labels, 1);
    }
}

fn write_reservations(out: &mut Exposition, all: &[VolumeReport]) {
    let standings = || all.iter().filter_map(|volume| volume.standing.as_ref());
    out.begin_family(
        "blockwire_reservation_registrants",
        MetricKind::Gauge,
        "Hosts registered for reservations.",
    );
    for one in standings() {
        out.push_sample(&[("volume", &one.volume)], one.reservation.registrants.len());
    }
    out.begin_family(
        "blockwire_reservation_held",
        MetricKind::Gauge,
        "1: the volume is reserved, by this kind.",
    );
    for one in standings() {
        let kind = one.reservation.kind.as_deref();
        match kind {
            Some(kind) => out.push_sample(&[("volume", &one.volume), ("kind", kind)], 1),
            None => out.push_sample(&[("volume", &one.volume), ("kind", "none")], 0),
        }
    }
}

fn write_sessions(out: &mut Exposition, all: &[SessionReport]) {
    let ids: Vec<String> = all.iter().map(|session| session.id.to_string()).collect();
    let metrics: [MetricField<SessionReport>; 6] = [
        (
            "blockwire_session_reads",
            MetricKind::Counter,
            "Read commands of a session or controller.",
            |one| one.reads,
        ),
        ("blockwire_session_read_bytes", MetricKind::Counter, "Bytes that they read.", |one| one.read_bytes),
        (
            "blockwire_session_writes",
            MetricKind::Counter,
            "Write commands of a session or controller.",
            |one| one.writes,
        ),
        ("blockwire_session_written_bytes", MetricKind::Counter, "Bytes that they wrote.", |one| {
            one.written_bytes
        }),
        ("blockwire_session_commands_in_flight", MetricKind::Gauge, "Commands in flight.", |one| {
            one.commands
        }),
        ("blockwire_session_connections", MetricKind::Gauge, "Connections, or queues.", |one| {
            one.connections as u64
        }),
    ];
    for (name, kind, help, read) in metrics {
        out.begin_family(name, kind, help);
        for (session, id) in all.iter().zip(&ids) {
            out.push_sample(&session_labels(session, id), read(session));
        }
    }
}

fn session_labels<'a>(session: &'a SessionReport, id: &'a str) -> [(&'static str, &'a str); 4] {
    [
        ("session", id),
        ("protocol", &session.protocol),
        ("initiator", &session.initiator),
        ("target", session.target.as_deref().unwrap_or("discovery")),
    ]
}

fn write_connections(out: &mut Exposition, all: &[ConnectionReport]) {
    let ids: Vec<[String; 2]> = all.iter().map(|one| [one.id.to_string(), one.session.to_string()]).collect();
    let metrics: [MetricField<ConnectionReport>; 2] = [
        (
            "blockwire_connection_received_bytes",
            MetricKind::Counter,
            "Bytes that a socket received.",
            |one| one.received_bytes,
        ),
        ("blockwire_connection_sent_bytes", MetricKind::Counter, "Bytes that a socket sent.", |one| {
            one.sent_bytes
        }),
    ];
    for (name, kind, help, read) in metrics {
        out.begin_family(name, kind, help);
        for (connection, [id, session]) in all.iter().zip(&ids) {
            let labels: Labels<'_> =
                &[("connection", id), ("session", session), ("protocol", &connection.protocol)];
            out.push_sample(labels, read(connection));
        }
    }
}

fn write_shards(out: &mut Exposition, all: &[ShardReport]) {
    use MetricKind::{Counter, Gauge};
    let ids: Vec<String> = all.iter().map(|shard| shard.id.to_string()).collect();
    let metrics: [MetricField<ShardReport>; 14] = [
        ("blockwire_shard_sessions", Gauge, "Sessions and controllers.", |one| one.sessions as u64),
        ("blockwire_shard_connections", Gauge, "Connections.", |one| one.connections as u64),
        ("blockwire_shard_logins", Gauge, "Connections in login.", |one| one.logins as u64),
        ("blockwire_shard_pool_bytes", Gauge, "Payload memory.", |one| one.memory_bytes),
        ("blockwire_shard_pool_lent_bytes", Gauge, "Payload memory in use.", |one| one.memory_lent_bytes),
        ("blockwire_shard_pool_reserved_bytes", Gauge, "Payload memory promised to hosts.", |one| {
            one.memory_reserved_bytes
        }),
        ("blockwire_shard_turns", Counter, "Turns of the loop.", |one| one.turns),
        ("blockwire_shard_sleeps", Counter, "Times that it slept in the kernel.", |one| one.sleeps),
        ("blockwire_shard_received_bytes", Counter, "Bytes received.", |one| one.received_bytes),
        ("blockwire_shard_sent_bytes", Counter, "Bytes sent.", |one| one.sent_bytes),
        ("blockwire_shard_receives_starved", Counter, "Receives that found no memory and waited.", |one| {
            one.receives_starved
        }),
        (
            "blockwire_shard_connections_refused",
            Counter,
            "Connections reset because a limit was reached.",
            |one| one.connections_refused,
        ),
        (
            "blockwire_shard_accepts_exhausted",
            Counter,
            "Times that no descriptor was left to accept.",
            |one| one.accepts_exhausted,
        ),
        ("blockwire_shard_disk_operations", Counter, "Disk operations ended.", |one| one.disk_operations),
    ];
    for (name, kind, help, read) in metrics {
        out.begin_family(name, kind, help);
        for (shard, id) in all.iter().zip(&ids) {
            out.push_sample(&[("shard", id)], read(shard));
        }
    }
    out.begin_family(
        "blockwire_shard_polls",
        Counter,
        "Times of polling before sleeping, with or without work found.",
    );
    for (shard, id) in all.iter().zip(&ids) {
        out.push_sample(&[("shard", id), ("found", "work")], shard.polls_useful);
        out.push_sample(&[("shard", id), ("found", "nothing")], shard.polls_idle);
    }
    out.begin_family("blockwire_shard_poll_seconds", Counter, "Time spent polling.");
    for (shard, id) in all.iter().zip(&ids) {
        out.push_sample(&[("shard", id)], ns_to_seconds(shard.poll_ns));
    }
}

fn ns_to_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use control::report::HostRateLimitReport;
    use control::report::{
        HostRefusalReport, LatencyReport, RegistrantReport, ReservationReport, StageReport, StatusReport,
        VolumeErrorReport, VolumePathReport,
    };

    /// A daemon with one of everything.
    pub fn example() -> ObservationReport {
        let mut counts = [0; 28];
        (counts[0], counts[1], counts[7], counts[27]) = (5, 2, 3, 1);
        let stage = |name: &str| StageReport::new(name, &counts, 1_500_000_000);
        let stages = ["receive", "wait", "queue", "backend", "send"].map(stage).to_vec();
        let latency = Some(vec![LatencyReport { class: "read".into(), stages }]);
        let status: StatusReport = serde_json::from_value(serde_json::json!({
            "version": "1.2.3", "pid": 7, "uptime_seconds": 60, "started_unix_seconds": 1_700_000_000,
            "node": null, "io": "uring", "listeners": [], "volumes": 1, "targets": 1, "subsystems": 1,
            "problems": [{ "kind": "no-space", "subject": "data", "why": "w", "next": "n" }],
            "sessions": 1, "connections": 1, "shards": 1, "state": "/var/lib/blockwire",
        }))
        .unwrap();
        let registrant = RegistrantReport {
            protocol: "nvme".into(),
            name: "nqn.h".into(),
            isid: None,
            port: None,
            hostid: None,
            host: None,
            key: "0x1".into(),
            holder: true,
        };
        let path = VolumePathReport {
            volume: "data".into(),
            port: 2,
            protocol: "iscsi".into(),
            group: 1,
            target: Some("iqn.x".into()),
            addresses: Vec::new(),
            state: "optimized".into(),
            preferred: false,
        };
        let standing = VolumeStateReport {
            volume: "data".into(),
            paths: vec![path],
            reservation: ReservationReport {
                kind: Some("write-exclusive".into()),
                registrants: vec![registrant],
                ..ReservationReport::default()
            },
            reads: 1,
            read_bytes: 4096,
            operations_in_flight: 3,
            allocated_bytes: Some(65536),
            errors: vec![VolumeErrorReport { cause: "medium".into(), count: 2 }],
            limits: Some(RateLimitReport {
                iops_limit: Some(500),
                iops_burst: Some(50),
                throttled: 7,
                throttled_ns: 1_500_000_000,
                ..RateLimitReport::default()
            }),
            ..VolumeStateReport::default()
        };
        let volume = VolumeReport {
            name: "data".into(),
            kind: "file".into(),
            size_bytes: Some(1 << 30),
            standing: Some(standing),
            latency: latency.clone(),
            ..VolumeReport::default()
        };
        let session: SessionReport = serde_json::from_value(serde_json::json!({
            "id": 65538, "protocol": "nvme", "initiator": "nqn.\"evil\\\n", "host": null, "target": null,
            "isid": null, "hostid": null, "shard": 0, "connections": 2, "commands": 1, "user": null,
            "reads": 1, "read_bytes": 2, "writes": 3, "written_bytes": 4, "latency": latency,
        }))
        .unwrap();
        let connection: ConnectionReport = serde_json::from_value(serde_json::json!({
            "id": 9, "protocol": "nvme", "session": 65538, "cid": 1, "initiator": "nqn.h", "host": null,
            "user": null, "target": null, "peer": "127.0.0.1:1", "local": "127.0.0.1:2", "shard": 0,
            "placement": "all", "algorithm": null, "dh_group": null, "unproven": false, "received_bytes": 5,
            "sent_bytes": 6, "header_digest": false, "data_digest": false, "negotiated": null, "queue": null,
        }))
        .unwrap();
        let shard: ShardReport = serde_json::from_value(serde_json::json!({
            "id": 0, "core": 1, "io": "uring", "sessions": 1, "connections": 1, "logins": 0,
            "memory_bytes": 100, "memory_lent_bytes": 10, "memory_reserved_bytes": 20, "turns": 7, "sleeps": 8,
            "polls_useful": 1, "polls_idle": 2, "poll_ns": 2_500_000_000_u64, "received_bytes": 3,
            "sent_bytes": 4,
        }))
        .unwrap();
        let refusal =
            HostRefusalReport { protocol: "iscsi".into(), cause: "authentication".into(), count: 4 };
        ObservationReport {
            status,
            volumes: vec![volume],
            sessions: vec![session],
            connections: vec![connection],
            shards: vec![shard],
            refusals: vec![refusal],
            host_limits: vec![HostRateLimitReport {
                host: "db1".into(),
                limits: RateLimitReport {
                    bandwidth_limit_bytes: Some(1 << 20),
                    ..RateLimitReport::default()
                },
            }],
        }
    }

    #[test]
    fn the_figures_are_where_they_belong() {
        let text = render_metrics(&example(), ExpositionFormat::Prometheus);
        for line in [
            "blockwire_build_info{version=\"1.2.3\",io=\"uring\"} 1",
            "blockwire_start_time_seconds 1700000000",
            "blockwire_problems{kind=\"no-space\"} 1",
            "blockwire_problems{kind=\"volume-failed\"} 0",
            "blockwire_refusals_total{protocol=\"iscsi\",cause=\"authentication\"} 4",
            "blockwire_volume_healthy{volume=\"data\"} 1",
            "blockwire_volume_allocated_bytes{volume=\"data\"} 65536",
            "blockwire_volume_operations_in_flight{volume=\"data\"} 3",
            "blockwire_volume_errors_total{volume=\"data\",cause=\"medium\"} 2",
            "blockwire_path_state{volume=\"data\",protocol=\"iscsi\",port=\"2\",target=\"iqn.x\",state=\"optimized\"} 1",
            "blockwire_reservation_registrants{volume=\"data\"} 1",
            "blockwire_reservation_held{volume=\"data\",kind=\"write-exclusive\"} 1",
            "blockwire_session_writes_total{session=\"65538\",protocol=\"nvme\",initiator=\"nqn.\\\"evil\\\\\\n\",target=\"discovery\"} 3",
            "blockwire_connection_sent_bytes_total{connection=\"9\",session=\"65538\",protocol=\"nvme\"} 6",
            "blockwire_shard_pool_lent_bytes{shard=\"0\"} 10",
            "blockwire_shard_poll_seconds_total{shard=\"0\"} 2.5",
            "blockwire_volume_iops_limit{volume=\"data\"} 500",
            "blockwire_volume_iops_burst{volume=\"data\"} 50",
            "blockwire_volume_throttled_total{volume=\"data\"} 7",
            "blockwire_volume_throttled_seconds_total{volume=\"data\"} 1.5",
            "blockwire_host_bandwidth_limit_bytes{host=\"db1\"} 1048576",
            "blockwire_host_throttled_total{host=\"db1\"} 0",
            "blockwire_latency_omitted{of=\"volume\"} 0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let text = render_metrics(&example(), ExpositionFormat::Prometheus);
        let bucket = |le: &str| {
            format!(
                "blockwire_volume_latency_seconds_bucket{{volume=\"data\",command=\"read\",stage=\"send\",le=\"{le}\"}}"
            )
        };
        for (le, count) in [("0.000001", 5), ("0.000004", 7), ("0.000064", 7), ("0.000256", 10), ("+Inf", 11)]
        {
            let line = format!("{} {count}", bucket(le));
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(text.contains("latency_seconds_sum{volume=\"data\",command=\"read\",stage=\"send\"} 1.5\n"));
    }

    #[test]
    fn a_metric_is_announced_once_and_has_a_name_by_the_conventions() {
        let text = render_metrics(&example(), ExpositionFormat::Prometheus);
        let mut known = std::collections::HashSet::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(known.insert(name.to_owned()), "{name} twice");
            assert!(name.starts_with("blockwire_"), "{name}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} {kind}");
        }
    }

    #[test]
    fn histograms_beyond_the_limit_are_counted_not_given() {
        let mut many = example();
        let one = many.volumes[0].clone();
        many.volumes = (0..HISTOGRAMS_MAX + 3)
            .map(|at| VolumeReport { name: format!("v{at}"), ..one.clone() })
            .collect();
        let text = render_metrics(&many, ExpositionFormat::OpenMetrics);
        assert!(text.contains("blockwire_latency_omitted{of=\"volume\"} 3\n"));
        assert!(!text.contains(&format!("latency_seconds_count{{volume=\"v{HISTOGRAMS_MAX}\"")));
    }

    /// What the dashboard and the alerts in `contrib` ask for exists.
    #[test]
    fn metrics_that_others_use_exist() {
        let text = render_metrics(&example(), ExpositionFormat::Prometheus);
        let known: std::collections::HashSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../contrib");
        for file in ["grafana/blockwire.json", "prometheus/blockwire.rules.yml"] {
            let content = std::fs::read_to_string(root.join(file)).unwrap();
            let words = content.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let used: Vec<&str> = words.filter(|word| word.starts_with("blockwire_")).collect();
            assert!(used.len() > 5, "{file}");
            for name in used {
                assert!(known.contains(name), "{file} uses {name}, which does not exist");
            }
        }
    }
}
