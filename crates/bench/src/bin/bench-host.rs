//! Compares this project's initiator with libiscsi's and, where it was built, SPDK's client on the same
//! target, and with the bare requester.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

use bench::clients::{self, Client};
use bench::compare::{self, CLIENT, Compared, Load, Table};
use bench::servers::{Kind, Places, Server};
use bench::{setting, system, usage};
use clap::Parser;
use serde_json::{Value, json};

/// The target on one core, clients on another, loopback, a volume in memory, interleaved rounds,
/// medians. No figure was taken on a network card. A client's processor time is user and system.
#[derive(Parser)]
struct Args {
    /// The program: target and client.
    #[arg(long, default_value = "target/release/blockwire")]
    blockwire: PathBuf,
    /// Directory in which SPDK was built; without it SPDK is left out.
    #[arg(long)]
    spdk: Option<PathBuf>,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,iscsi,libiscsi,nvme,spdk")]
    clients: Vec<Client>,
    /// Rounds of each load.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Microseconds for which this project's clients look at memory before they sleep.
    #[arg(long, default_value_t = 0)]
    poll_us: u64,
    /// Congestion control of all connections, in a network of its own (needs root); without it the
    /// system's default.
    #[arg(long)]
    congestion: Option<String>,
    /// Core of the servers.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the clients.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Writes all figures here.
    #[arg(long)]
    json: Option<PathBuf>,
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
    let scratch = std::env::temp_dir().join(format!("blockwire-bench-{}", std::process::id()));
    let result = fs::create_dir_all(&scratch).and_then(|()| run(&args, &scratch));
    fs::remove_dir_all(&scratch).ok();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-host: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, scratch: &Path) -> io::Result<()> {
    if let Some(name) = &args.congestion {
        setting::own_network(name)?;
    }
    let own = std::env::current_exe()?;
    let places = Places {
        programs: own.parent().map(PathBuf::from).unwrap_or_default(),
        blockwire: args.blockwire.clone(),
        scratch: scratch.to_owned(),
        spdk: args.spdk.clone(),
        server_core: args.server_core,
        client_core: args.client_core,
    };
    let environment = environment(args);
    for (key, value) in environment.as_object().into_iter().flatten() {
        println!("{key:20} {}", value.as_str().unwrap_or_default());
    }
    let clients = present(args);
    let servers = start(&clients, &places)?;
    // Clients are started from here and stay on this core.
    system::pin(args.client_core)?;
    let mut table = Table::new(CLIENT);
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for load in &LOADS {
            for client in clients.iter().filter(|client| client.does(load)) {
                let server = servers.iter().find(|server| server.kind == client.server());
                let server = server.ok_or(io::ErrorKind::NotFound)?;
                let figures = clients::measure(*client, server, &places, load, (args.seconds, args.poll_us))?;
                table.add(load.name(), *client, figures);
            }
        }
    }
    table.print("Client CPU per I/O; ratio to the bare requester's", Client::Bare);
    for load in &LOADS {
        beside(&table, load, Client::Iscsi, Client::Libiscsi);
        beside(&table, load, Client::Nvme, Client::Spdk);
    }
    println!("\nload average at the end: {}", usage::line_of("/proc/loadavg"));
    if let Some(path) = &args.json {
        let all = json!({ "environment": environment, "clients": table.to_json() });
        fs::write(path, format!("{all:#}\n"))?;
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
    for kind in [Kind::Bare, Kind::Blockwire, Kind::BlockwireNvme] {
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

fn environment(args: &Args) -> Value {
    let mut versions = vec![("blockwire", setting::said(&args.blockwire, "--version"))];
    let libiscsi = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "libiscsi-bin"]).output();
    let libiscsi = libiscsi.ok().filter(|output| output.status.success());
    if let Some(output) = libiscsi {
        versions.push(("libiscsi", String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    if let Some(spdk) = &args.spdk {
        let version = fs::read_to_string(spdk.join("VERSION")).unwrap_or_default();
        versions.push(("spdk", version.trim().to_owned()));
    }
    let cores = (args.server_core, args.client_core);
    setting::describe(cores, (args.rounds, args.seconds), &versions)
}
