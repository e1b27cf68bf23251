//! A load on a storage server's socket: the bare protocol, iSCSI, or NVMe/TCP.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bench::load::{LoadMeasurement, LoadPlan, connect, run_load};
use bench::spin::WaitMode;
use bench::wire_protocol::LoadOp;
use bench::wire_protocol::association::NvmeAssociation;
use bench::wire_protocol::bare::BareClient;
use bench::wire_protocol::iscsi::IscsiClient;
use bench::wire_protocol::login::log_in;
use bench::wire_protocol::nvme::NvmeTcpClient;
use bench::{idle, system};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Keeps so many requests in flight on so many connections and measures what comes of it.
#[derive(Parser)]
struct Args {
    /// Address of the server.
    address: SocketAddr,
    /// The protocol to speak.
    #[arg(long, value_enum, default_value = "bare")]
    protocol: ProtocolName,
    /// Name of the iSCSI target.
    #[arg(long, default_value = "iqn.2026-11.io.blockwire:bench")]
    target: String,
    /// Logical unit.
    #[arg(long, default_value_t = 0)]
    lun: u8,
    /// Name of the NVMe subsystem.
    #[arg(long, default_value = "nqn.2026-11.io.blockwire:bench")]
    subsystem: String,
    /// Namespace.
    #[arg(long, default_value_t = 1)]
    nsid: u32,
    /// Read or write.
    #[arg(long, value_enum, default_value = "read")]
    op: LoadOp,
    /// Bytes per request.
    #[arg(long, default_value_t = 4096)]
    bs: u32,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// TCP connections: iSCSI sessions, or I/O queues of one NVMe controller.
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Seconds to measure.
    #[arg(long, default_value = "2", value_parser = parse_duration)]
    seconds: Duration,
    /// Seconds of load before that.
    #[arg(long, default_value = "0.3", value_parser = parse_duration)]
    warmup: Duration,
    /// MiB of the volume that are used; offsets are random.
    #[arg(long, default_value_t = 256)]
    size_mib: u64,
    /// All of the volume once, from end to end, in place of random offsets.
    #[arg(long)]
    once: bool,
    /// Microseconds between an answer and the next request.
    #[arg(long, default_value_t = 0)]
    gap_us: u64,
    /// How to wait for answers.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitMode,
    /// The longest poll, in microseconds.
    #[arg(long, default_value_t = 50)]
    poll_us: u64,
    /// Congestion control of the connections.
    #[arg(long)]
    congestion: Option<String>,
    /// The server's process, to measure what it uses.
    #[arg(long)]
    server_pid: Option<u32>,
    /// What the offsets follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs on this core.
    #[arg(long)]
    core: Option<usize>,
    /// Only opens so many sessions (iSCSI), or associations with one I/O queue each (NVMe), and lets
    /// them rest for the time to measure.
    #[arg(long, requires = "server_pid", conflicts_with_all = ["op", "depth", "connections"])]
    idle: Option<u32>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProtocolName {
    Bare,
    Iscsi,
    Nvme,
}

/// Seconds, as a user gives them.
fn parse_duration(text: &str) -> Result<Duration, clap::Error> {
    let wrong = || clap::Error::raw(clap::error::ErrorKind::ValueValidation, "not a number of seconds");
    let seconds = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.depth == 0 || args.depth > 1 << 14 || args.connections == 0 || args.bs == 0 || args.bs > 1 << 20 {
        eprintln!("raw-load: depth is 1 to 16384, connections at least 1, a request 1 byte to 1 MiB");
        return ExitCode::from(2);
    }
    let result = match args.idle {
        Some(sessions) => hold_idle_sessions(&args, sessions),
        None => run_raw_load(&args),
    };
    match result {
        Ok(value) if args.json => println!("{value}"),
        Ok(value) => {
            for (key, value) in value.as_object().into_iter().flatten() {
                println!("{key:24} {value}");
            }
        }
        Err(error) => {
            eprintln!("raw-load: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run_raw_load(args: &Args) -> io::Result<Value> {
    if let Some(core) = args.core {
        system::pin_thread(core)?;
    }
    let mut plan = LoadPlan {
        op: args.op,
        reads: None,
        rate: None,
        len: args.bs,
        depth: args.depth,
        size: args.size_mib << 20,
        is_sequential: false,
        once: args.once,
        warmup: args.warmup,
        measure: args.seconds,
        gap: Duration::from_micros(args.gap_us),
        wait: args.wait,
        poll: Duration::from_micros(args.poll_us),
        server: args.server_pid,
        seed: args.seed,
    };
    let sockets = (0..args.connections).map(|_| connect(args.address, args.congestion.as_deref()));
    let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
    let congestion = sockets.first().map_or(Ok(String::new()), system::socket_congestion_control)?;
    let measured = match args.protocol {
        ProtocolName::Bare => {
            run_load(&plan, sockets.into_iter().map(|socket| (socket, BareClient::default())).collect())?
        }
        ProtocolName::Iscsi => {
            let mut open = Vec::new();
            for (mut socket, number) in sockets.into_iter().zip(0..) {
                let session = log_in(&mut socket, &args.target, args.lun, std::process::id() << 8 | number)?;
                plan.size = plan.size.min(session.unit_bytes());
                open.push((socket, IscsiClient::new(session)));
            }
            run_load(&plan, open)?
        }
        ProtocolName::Nvme => {
            let admin = connect(args.address, args.congestion.as_deref())?;
            let queues = sockets.len().min(usize::from(u16::MAX)) as u16;
            let association =
                NvmeAssociation::open(admin, &args.subsystem, args.nsid, queues, std::process::id())?;
            if u64::from(args.bs) > association.transfer_max() {
                return Err(io::Error::other("the controller takes no transfers of that size"));
            }
            plan.size = plan.size.min(association.namespace_bytes());
            let mut open = Vec::new();
            for (mut socket, qid) in sockets.into_iter().zip(1..) {
                let queue = association.connect_queue(&mut socket, qid, args.depth)?;
                open.push((socket, NvmeTcpClient::new(queue, args.depth)));
            }
            run_load(&plan, open)?
        }
    };
    Ok(result_json(args, &congestion, &measured))
}

fn result_json(args: &Args, congestion: &str, measured: &LoadMeasurement) -> Value {
    let (latency, waits) = (&measured.latency, measured.waits);
    let ios = latency.count();
    let us = |percent| latency.percentile(percent) as f64 / 1e3;
    let per_io = |ns: u64| ns as f64 / 1e3 / ios.max(1) as f64;
    let iops = ios as f64 / measured.seconds;
    json!({
        "op": if args.op == LoadOp::Read { "read" } else { "write" },
        "bs": args.bs, "depth": args.depth, "connections": args.connections, "gap_us": args.gap_us,
        "congestion": congestion,
        "seconds": measured.seconds, "ios": ios, "iops": iops, "mb_s": iops * f64::from(args.bs) / 1e6,
        "mean_us": latency.mean() / 1e3, "p50_us": us(50.0), "p99_us": us(99.0),
        "p999_us": us(99.9), "max_us": latency.max() as f64 / 1e3,
        "server_cpu_us": per_io(measured.server_cpu_ns),
        "server_cpu_share": measured.server_cpu_ns as f64 / 1e9 / measured.seconds,
        "client_cpu_us": per_io(measured.client_cpu_ns),
        "client_polls_useful": waits.polls_useful, "client_polls_idle": waits.polls_idle,
        "client_sleeps": waits.sleeps, "window_stalls": measured.window_stalls,
        "unfinished": measured.unfinished, "unfinished_oldest_us": measured.unfinished_oldest.as_secs_f64() * 1e6,
    })
}

fn hold_idle_sessions(args: &Args, sessions: u32) -> io::Result<Value> {
    system::raise_descriptor_limit()?;
    let server = args.server_pid.ok_or(io::ErrorKind::InvalidInput)?;
    let time = args.seconds;
    let idle = match args.protocol {
        ProtocolName::Bare => return Err(io::Error::other("the bare protocol has no sessions")),
        ProtocolName::Iscsi => {
            idle::measure_iscsi(args.address, &args.target, args.lun, sessions, time, server)?
        }
        ProtocolName::Nvme => {
            idle::measure_nvme(args.address, &args.subsystem, args.nsid, sessions, time, server)?
        }
    };
    let grown = idle.resident.1.saturating_sub(idle.resident.0);
    Ok(json!({
        "sessions": idle.sessions, "seconds": time.as_secs_f64(), "login_seconds": idle.login_seconds,
        "resident_before": idle.resident.0, "resident_after": idle.resident.1,
        "bytes_per_session": grown / u64::from(sessions.max(1)), "server_cpu_share": idle.cpu_share,
    }))
}
