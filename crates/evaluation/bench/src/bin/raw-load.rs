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
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use bench::load::{BackgroundLoad, LoadMeasurement, LoadPlan, ReadyConnection, connect, run_load};
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

/// I/O queues of one NVMe controller, at most.
const QUEUES_PER_ASSOCIATION: usize = 64;

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
    /// TCP connections: iSCSI sessions, or I/O queues of NVMe controllers, up to 64 of each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
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
    #[command(flatten)]
    background: BackgroundArgs,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// A connection beside those that are measured: what does it cost them?
#[derive(clap::Args)]
struct BackgroundArgs {
    /// One connection more, which writes (or reads) beside those that are measured.
    #[arg(long, value_enum)]
    beside: Option<LoadOp>,
    /// Bytes of each of its requests.
    #[arg(long, default_value_t = 1 << 20)]
    beside_bs: u32,
    /// Its requests in flight.
    #[arg(long, default_value_t = 8)]
    beside_depth: u32,
    /// Its iSCSI target; without it that of the others.
    #[arg(long)]
    beside_target: Option<String>,
    /// Its NVMe subsystem; without it that of the others.
    #[arg(long)]
    beside_subsystem: Option<String>,
}

impl BackgroundArgs {
    /// What it does on a volume of so many bytes.
    fn load(&self, op: LoadOp, size: u64) -> BackgroundLoad {
        BackgroundLoad { op, len: self.beside_bs, size }
    }
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
    let is_fit = |depth: u32, bs: u32| (1..=1 << 14).contains(&depth) && (1..=1 << 20).contains(&bs);
    let beside = &args.background;
    if !is_fit(args.depth, args.bs) || !is_fit(beside.beside_depth, beside.beside_bs) {
        eprintln!("raw-load: depth is 1 to 16384, a request 1 byte to 1 MiB");
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
    system::raise_descriptor_limit()?;
    let (congestion, measured) = match args.protocol {
        ProtocolName::Bare => {
            let open = open_bare(args)?;
            (congestion_of(&open)?, run_load(&plan, open)?)
        }
        ProtocolName::Iscsi => {
            let (open, size) = open_iscsi(args)?;
            plan.size = plan.size.min(size);
            (congestion_of(&open)?, run_load(&plan, open)?)
        }
        ProtocolName::Nvme => {
            let (mut associations, mut open) = open_nvme(args)?;
            let sizes = associations.iter().map(NvmeAssociation::namespace_bytes);
            plan.size = sizes.fold(plan.size, u64::min);
            if let Some(op) = args.background.beside {
                let (association, ready) = open_nvme_background(args, op)?;
                associations.push(association);
                open.push(ready);
            }
            let measured = (congestion_of(&open)?, run_load(&plan, open)?);
            // Queues end with them.
            drop(associations);
            measured
        }
    };
    Ok(result_json(args, &congestion, &measured))
}

/// The congestion control of the first connection.
fn congestion_of<F>(open: &[ReadyConnection<F>]) -> io::Result<String> {
    open.first().map_or(Ok(String::new()), |ready| system::socket_congestion_control(&ready.socket))
}

fn connect_to(args: &Args) -> io::Result<TcpStream> {
    connect(args.address, args.congestion.as_deref())
}

fn open_bare(args: &Args) -> io::Result<Vec<ReadyConnection<BareClient>>> {
    let ready = |_| Ok(ReadyConnection::new(connect_to(args)?, BareClient::default(), args.depth));
    let mut open = (0..args.connections).map(ready).collect::<io::Result<Vec<_>>>()?;
    if let Some(op) = args.background.beside {
        let background = Some(args.background.load(op, args.size_mib << 20));
        open.push(ReadyConnection {
            background,
            ..ReadyConnection::new(connect_to(args)?, BareClient::default(), args.background.beside_depth)
        });
    }
    Ok(open)
}

/// Sessions, one after the other: a target takes a limited number of logins at a time. And the size of their unit.
fn open_iscsi(args: &Args) -> io::Result<(Vec<ReadyConnection<IscsiClient>>, u64)> {
    let number = |at: u32| std::process::id() << 16 | at;
    let (mut open, mut size) = (Vec::new(), u64::MAX);
    for at in 0..args.connections {
        let mut socket = connect_to(args)?;
        let session = log_in(&mut socket, &args.target, args.lun, number(at))?;
        size = size.min(session.unit_bytes());
        open.push(ReadyConnection::new(socket, IscsiClient::new(session), args.depth));
    }
    if let Some(op) = args.background.beside {
        let mut socket = connect_to(args)?;
        let target = args.background.beside_target.as_ref().unwrap_or(&args.target);
        let session = log_in(&mut socket, target, args.lun, number(args.connections))?;
        let background = Some(args.background.load(op, session.unit_bytes().min(args.size_mib << 20)));
        open.push(ReadyConnection {
            background,
            ..ReadyConnection::new(socket, IscsiClient::new(session), args.background.beside_depth)
        });
    }
    Ok((open, size))
}

/// Associations with up to [`QUEUES_PER_ASSOCIATION`] I/O queues each, and these.
#[expect(clippy::type_complexity, reason = "what is opened, and what it is opened by")]
fn open_nvme(
    args: &Args,
) -> io::Result<(Vec<NvmeAssociation<TcpStream>>, Vec<ReadyConnection<NvmeTcpClient>>)> {
    let (mut associations, mut open) = (Vec::new(), Vec::new());
    for first in (0..args.connections).step_by(QUEUES_PER_ASSOCIATION) {
        let queues = (args.connections - first).min(QUEUES_PER_ASSOCIATION as u32) as u16;
        let number = std::process::id() << 16 | first;
        let association =
            NvmeAssociation::open(connect_to(args)?, &args.subsystem, args.nsid, queues, number)?;
        if u64::from(args.bs) > association.transfer_max() {
            return Err(io::Error::other("the controller takes no transfers of that size"));
        }
        for qid in 1..=queues {
            let mut socket = connect_to(args)?;
            let queue = association.connect_queue(&mut socket, qid, args.depth)?;
            open.push(ReadyConnection::new(socket, NvmeTcpClient::new(queue, args.depth), args.depth));
        }
        associations.push(association);
    }
    Ok((associations, open))
}

/// An association and its queue.
fn open_nvme_background(
    args: &Args,
    op: LoadOp,
) -> io::Result<(NvmeAssociation<TcpStream>, ReadyConnection<NvmeTcpClient>)> {
    let depth = args.background.beside_depth;
    let admin = connect_to(args)?;
    let subsystem = args.background.beside_subsystem.as_ref().unwrap_or(&args.subsystem);
    let number = std::process::id() << 16 | args.connections;
    let association = NvmeAssociation::open(admin, subsystem, args.nsid, 1, number)?;
    if u64::from(args.background.beside_bs) > association.transfer_max() {
        return Err(io::Error::other("the controller takes no transfers of the size beside it"));
    }
    let mut socket = connect_to(args)?;
    let queue = association.connect_queue(&mut socket, 1, depth)?;
    let size = association.namespace_bytes().min(args.size_mib << 20);
    let ready = ReadyConnection {
        background: Some(args.background.load(op, size)),
        ..ReadyConnection::new(socket, NvmeTcpClient::new(queue, depth), depth)
    };
    Ok((association, ready))
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
        "beside_mb_s": measured.background_bytes as f64 / measured.seconds / 1e6,
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
