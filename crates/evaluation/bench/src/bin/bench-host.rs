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

use bench::clients::{self, Client};
use bench::compare::{self, CLIENT, Compared, Load, Table};
use bench::servers::{Places, Server, ServerKind};
use bench::setting::{self, Setting};
use bench::system;
use clap::Parser;
use serde_json::json;

/// The target on one core, clients on another, loopback, a volume in memory, interleaved rounds,
/// medians. No figure was taken on a network card. A client's processor time is user and system.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: Setting,
    /// Directory in which SPDK was built; without it SPDK is left out.
    #[arg(long)]
    spdk: Option<PathBuf>,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,iscsi,libiscsi,nvme,spdk")]
    clients: Vec<Client>,
    /// Microseconds for which this project's clients look at memory before they sleep.
    #[arg(long, default_value_t = 0)]
    poll_us: u64,
}

/// 4 KiB one at a time, by 32 and by 128, and 128 KiB by 8.
const LOADS: [Load; 8] = [
    load("read", 4096, 1),
    load("read", 4096, 32),
    load("read", 4096, 128),
    load("write", 4096, 1),
    load("write", 4096, 32),
    load("write", 4096, 128),
    load("read", 131_072, 8),
    load("write", 131_072, 8),
];

const fn load(op: &'static str, bs: u32, depth: u32) -> Load {
    Load { op, bs, depth, gap_us: 0 }
}

fn main() -> ExitCode {
    let args = Args::parse();
    setting::run("bench-host", |scratch| run(&args, scratch))
}

fn run(args: &Args, scratch: &Path) -> io::Result<()> {
    let (places, environment) = args.setting.begin(scratch, args.spdk.as_deref(), &versions(args))?;
    let clients = present(args);
    let servers = start(&clients, &places)?;
    // Clients are started from here and stay on this core.
    system::pin(args.setting.client_core)?;
    let mut table = Table::new(CLIENT);
    // What fails ends it; what was measured until then is told.
    let outcome =
        args.setting.each_round().try_for_each(|_| round(args, (&clients, &servers), &places, &mut table));
    table.print("Client CPU per I/O; ratio to the bare requester's", Client::Bare);
    for load in &LOADS {
        beside(&table, load, Client::Iscsi, Client::Libiscsi);
        beside(&table, load, Client::Nvme, Client::Spdk);
    }
    let all = json!({ "environment": environment, "clients": table.to_json() });
    args.setting.end(&all)?;
    outcome
}

fn round(
    args: &Args,
    (clients, servers): (&[Client], &[Server]),
    places: &Places,
    table: &mut Table<Client>,
) -> io::Result<()> {
    for load in &LOADS {
        for client in clients.iter().filter(|client| client.does(load)) {
            let server = servers.iter().find(|server| server.kind == client.server());
            let server = server.ok_or(io::ErrorKind::NotFound)?;
            let figures =
                clients::measure(*client, server, places, load, (args.setting.seconds, args.poll_us))?;
            table.add(load.name(), *client, figures);
        }
    }
    Ok(())
}

/// The clients that are here.
fn present(args: &Args) -> Vec<Client> {
    let mut clients = args.clients.clone();
    if clients.contains(&Client::Libiscsi) && Command::new("iscsi-perf").output().is_err() {
        println!("libiscsi is not installed and is left out (Debian: apt-get install libiscsi-bin)");
        clients.retain(|client| *client != Client::Libiscsi);
    }
    if clients.contains(&Client::Spdk) && args.spdk.is_none() {
        println!("SPDK is left out: tests/bench/spdk.sh builds it, SPDK_DIR says where it is");
        clients.retain(|client| *client != Client::Spdk);
    }
    clients
}

/// Starts what the clients are driven against, and writes each volume once.
fn start(clients: &[Client], places: &Places) -> io::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for kind in [ServerKind::Bare, ServerKind::Blockwire, ServerKind::BlockwireNvme] {
        if clients.iter().any(|client| client.server() == kind) {
            let server = Server::start(kind, places)?;
            compare::fill(&server, places)?;
            servers.push(server);
        }
    }
    Ok(servers)
}

/// What one client takes and does against what the other takes and does.
fn beside(table: &Table<Client>, load: &Load, own: Client, other: Client) {
    let name = load.name();
    let ratio = |key| Some(table.figure(&name, own, key)? / table.figure(&name, other, key)?);
    if let (Some(cpu), Some(iops)) = (ratio("client_cpu_us"), ratio("iops")) {
        let (own, other) = (own.name(), other.name());
        println!("{name}: {own} takes {cpu:.2} times {other}'s CPU per I/O, at {iops:.2} times its IOPS");
    }
}

fn versions(args: &Args) -> Vec<(&'static str, String)> {
    let mut versions = vec![("blockwire", setting::said(&args.setting.blockwire, "--version"))];
    let libiscsi = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "libiscsi-bin"]).output();
    let libiscsi = libiscsi.ok().filter(|output| output.status.success());
    if let Some(output) = libiscsi {
        versions.push(("libiscsi", String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    versions.extend(args.spdk.as_deref().map(|spdk| ("spdk", setting::version_of_spdk(spdk))));
    versions
}
