//! Compares our initiator with libiscsi's, with SPDK's client if it is built, and with the bare requester, on
//! the same target.

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
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bench::clients::{self, BenchClient};
use bench::compare::{self, CLIENT_SUBJECT, ComparedKind, ComparedLoad, ComparisonTable};
use bench::comparison_args::{self, ComparisonArgs};
use bench::servers::{BenchEnvironment, RunningServer, ServerKind};
use bench::system;
use clap::Parser;
use serde_json::json;

/// The target on one core, clients on another, loopback, a volume in memory, interleaved rounds,
/// medians. No figure was taken on a network card. A client's processor time is user and system.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: ComparisonArgs,
    /// Directory in which SPDK was built; without it SPDK is left out.
    #[arg(long)]
    spdk: Option<PathBuf>,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,iscsi,libiscsi,nvme,spdk")]
    clients: Vec<BenchClient>,
    /// Microseconds for which this project's clients look at memory before they sleep.
    #[arg(long, default_value_t = 0)]
    poll_us: u64,
}

/// I/Os per second with digests over those without: the goal.
const DIGESTS_IOPS_LEAST: f64 = 0.92;

/// 4 KiB one at a time, by 32 and by 128, and 128 KiB by 8.
const LOADS: [ComparedLoad; 8] = [
    load("read", 4096, 1),
    load("read", 4096, 32),
    load("read", 4096, 128),
    load("write", 4096, 1),
    load("write", 4096, 32),
    load("write", 4096, 128),
    load("read", 131_072, 8),
    load("write", 131_072, 8),
];

const fn load(op: &'static str, bs: u32, depth: u32) -> ComparedLoad {
    ComparedLoad { op, bs, depth, gap_us: 0 }
}

fn main() -> ExitCode {
    let args = Args::parse();
    comparison_args::run_comparison("bench-host", |scratch| run_sections(&args, scratch))
}

fn run_sections(args: &Args, scratch: &Path) -> io::Result<()> {
    let (places, environment) =
        args.setting.prepare_environment(scratch, args.spdk.as_deref(), &program_versions(args))?;
    let clients = available_clients(args);
    let servers = start_servers(&clients, &places)?;
    // Clients are started from here and stay on this core.
    system::pin_thread(args.setting.client_core)?;
    let mut table = ComparisonTable::new(CLIENT_SUBJECT);
    // What fails ends it; what was measured until then is told.
    let outcome = args
        .setting
        .announced_rounds()
        .try_for_each(|_| run_one_round(args, (&clients, &servers), &places, &mut table));
    table.print("Client CPU per I/O; ratio to the bare requester's", BenchClient::Bare);
    for load in &LOADS {
        print_ratio(&table, load, BenchClient::Iscsi, BenchClient::Libiscsi);
        print_ratio(&table, load, BenchClient::Nvme, BenchClient::Spdk);
        for (with, without) in
            [(BenchClient::IscsiDigests, BenchClient::Iscsi), (BenchClient::NvmeDigests, BenchClient::Nvme)]
        {
            table.print_iops_part(&load.name(), with, without, DIGESTS_IOPS_LEAST);
        }
    }
    let all = json!({ "environment": environment, "clients": table.to_json() });
    args.setting.finish_and_write(&all)?;
    outcome
}

fn run_one_round(
    args: &Args,
    (clients, servers): (&[BenchClient], &[RunningServer]),
    places: &BenchEnvironment,
    table: &mut ComparisonTable<BenchClient>,
) -> io::Result<()> {
    for load in &LOADS {
        for client in clients.iter().filter(|client| client.supports(load)) {
            let server = servers.iter().find(|server| server.kind == client.server_kind());
            let server = server.ok_or(io::ErrorKind::NotFound)?;
            let figures =
                clients::measure_client(*client, server, places, load, (args.setting.seconds, args.poll_us))?;
            table.add_round(load.name(), *client, figures);
        }
    }
    Ok(())
}

/// The clients that are here.
fn available_clients(args: &Args) -> Vec<BenchClient> {
    let mut clients = args.clients.clone();
    if clients.contains(&BenchClient::Libiscsi) && Command::new("iscsi-perf").output().is_err() {
        println!("libiscsi is not installed and is left out (Debian: apt-get install libiscsi-bin)");
        clients.retain(|client| *client != BenchClient::Libiscsi);
    }
    if clients.contains(&BenchClient::Spdk) && args.spdk.is_none() {
        println!("SPDK is left out: tests/bench/spdk.sh builds it, SPDK_DIR says where it is");
        clients.retain(|client| *client != BenchClient::Spdk);
    }
    clients
}

/// Starts what the clients are driven against, and writes each volume once.
fn start_servers(clients: &[BenchClient], places: &BenchEnvironment) -> io::Result<Vec<RunningServer>> {
    let mut servers = Vec::new();
    for kind in [ServerKind::Bare, ServerKind::Blockwire, ServerKind::BlockwireNvme] {
        if clients.iter().any(|client| client.server_kind() == kind) {
            let server = RunningServer::start(kind, places)?;
            compare::fill_volume(&server, places)?;
            servers.push(server);
        }
    }
    Ok(servers)
}

/// What one client takes and does against what the other takes and does.
fn print_ratio(
    table: &ComparisonTable<BenchClient>,
    load: &ComparedLoad,
    own: BenchClient,
    other: BenchClient,
) {
    let name = load.name();
    let ratio = |key| Some(table.median_figure(&name, own, key)? / table.median_figure(&name, other, key)?);
    if let (Some(cpu), Some(iops)) = (ratio("client_cpu_us"), ratio("iops")) {
        let (own, other) = (own.name(), other.name());
        println!("{name}: {own} takes {cpu:.2} times {other}'s CPU per I/O, at {iops:.2} times its IOPS");
    }
}

fn program_versions(args: &Args) -> Vec<(&'static str, String)> {
    let mut versions =
        vec![("blockwire", comparison_args::first_output_line(&args.setting.blockwire, "--version"))];
    let libiscsi = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "libiscsi-bin"]).output();
    let libiscsi = libiscsi.ok().filter(|output| output.status.success());
    if let Some(output) = libiscsi {
        versions.push(("libiscsi", String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    versions.extend(args.spdk.as_deref().map(|spdk| ("spdk", comparison_args::spdk_version(spdk))));
    versions
}
