//! Compares Blockwire with tgt and with the bare responder, under one load generator.

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
use std::process::{Command, ExitCode};

use bench::compare::{self, GAPS, LIBISCSI_DEPTHS, LOADS, Table};
use bench::servers::{Places, Server, ServerKind};
use bench::setting::{self, Setting};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Servers on one core, clients on another, loopback, volumes in memory, interleaved rounds,
/// medians. No figure was taken on a network card.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: Setting,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,bare-memory,blockwire,tgt")]
    servers: Vec<ServerKind>,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,libiscsi,gaps,idle,memory")]
    parts: Vec<Section>,
    /// Idle sessions while idle processor time is measured, and for how many seconds.
    #[arg(long, default_value_t = 100)]
    idle_sessions: u32,
    /// Seconds of idleness.
    #[arg(long, default_value_t = 60)]
    idle_seconds: u32,
    /// Sessions while memory is measured.
    #[arg(long, default_value_t = 2000)]
    memory_sessions: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// The loads, by our generator.
    Load,
    /// Reads, by libiscsi's client.
    Libiscsi,
    /// One request at a time with pauses.
    Gaps,
    /// Processor time of idle sessions.
    Idle,
    /// Memory of idle sessions.
    Memory,
}

fn main() -> ExitCode {
    let args = Args::parse();
    setting::run("bench-iscsi", |scratch| run(&args, scratch))
}

fn run(args: &Args, scratch: &std::path::Path) -> io::Result<()> {
    let (places, environment) = args.setting.begin(scratch, None, &versions(args))?;
    let mut servers = Vec::new();
    for kind in &args.servers {
        if *kind == ServerKind::Tgt && Command::new("tgtd").arg("-V").output().is_err() {
            println!("tgt is not installed and is left out (Debian: apt-get install tgt)");
            continue;
        }
        let server = Server::start(*kind, &places)?;
        compare::fill(&server, &places)?;
        servers.push(server);
    }
    let mut tables = [Table::default(), Table::default(), Table::default()];
    // What fails ends it; what was measured until then is told.
    let mut outcome = args.setting.each_round().try_for_each(|_| round(args, &servers, &places, &mut tables));
    let mut idle = json!({});
    if outcome.is_ok() {
        outcome = rest(args, &mut servers, &places, &mut idle);
    }
    print(&tables, &idle);
    let [load, libiscsi, gaps] = tables.each_ref().map(Table::to_json);
    let all = json!({
        "environment": environment, "load": load, "libiscsi": libiscsi, "gaps": gaps, "rest": idle,
    });
    args.setting.end(&all)?;
    outcome
}

fn round(args: &Args, servers: &[Server], places: &Places, tables: &mut [Table; 3]) -> io::Result<()> {
    let wants = |part| args.parts.contains(&part);
    if wants(Section::Load) {
        compare::round(&LOADS, servers, places, args.setting.seconds, &mut tables[0])?;
    }
    if wants(Section::Libiscsi) {
        libiscsi(servers, args, &mut tables[1])?;
    }
    if wants(Section::Gaps) {
        let polite: Vec<&Server> = servers.iter().filter(|server| server.kind != ServerKind::Tgt).collect();
        compare::round(&GAPS, polite, places, args.setting.seconds, &mut tables[2])?;
    }
    Ok(())
}

fn libiscsi(servers: &[Server], args: &Args, table: &mut Table) -> io::Result<()> {
    for depth in LIBISCSI_DEPTHS {
        for server in servers.iter().filter(|server| server.kind.is_iscsi()) {
            let figures = compare::measure_libiscsi(server, 4096, depth, args.setting.seconds)?;
            table.add(format!("4K read QD{depth}"), server.kind, figures);
        }
    }
    Ok(())
}

/// Idle sessions on Blockwire, each measurement on a fresh daemon.
fn rest(args: &Args, servers: &mut Vec<Server>, places: &Places, all: &mut Value) -> io::Result<()> {
    servers.clear();
    let parts = [
        (Section::Idle, "idle", args.idle_sessions, args.idle_seconds),
        (Section::Memory, "memory", args.memory_sessions, 2),
    ];
    for (part, name, sessions, seconds) in parts {
        if args.parts.contains(&part) && args.servers.contains(&ServerKind::Blockwire) {
            let server = Server::start(ServerKind::Blockwire, places)?;
            let run = ["--idle", &sessions.to_string(), "--seconds", &seconds.to_string()].map(str::to_owned);
            all[name] = compare::run_load(&server, places, &run)?;
        }
    }
    Ok(())
}

fn print([load, libiscsi, gaps]: &[Table; 3], rest: &Value) {
    if !load.is_empty() {
        load.print(
            "By the raw generator; ratio of server CPU per I/O to the bare responder's",
            ServerKind::Bare,
        );
        for name in ["4K read QD32", "4K read QD128", "4K write QD32", "4K write QD128"] {
            load.print_goal(name, ServerKind::Blockwire, ServerKind::Bare, 1.5);
            load.print_goal(name, ServerKind::Blockwire, ServerKind::BareMemory, 1.5);
        }
    }
    if !libiscsi.is_empty() {
        libiscsi.print("By libiscsi's iscsi-perf; ratio of server CPU per I/O to tgt's", ServerKind::Tgt);
        for depth in LIBISCSI_DEPTHS {
            libiscsi.print_goal(&format!("4K read QD{depth}"), ServerKind::Blockwire, ServerKind::Tgt, 0.25);
        }
    }
    if !gaps.is_empty() {
        gaps.print("One request at a time, with pauses at the client", ServerKind::Bare);
    }
    let (idle, memory) =
        (rest.get("idle").unwrap_or(&Value::Null), rest.get("memory").unwrap_or(&Value::Null));
    if let Some(share) = idle["server_cpu_share"].as_f64() {
        let (sessions, seconds) = (&idle["sessions"], &idle["seconds"]);
        println!(
            "\nidle: {:.4} % of a core with {sessions} sessions over {seconds} s (goal: below 0.1)",
            share * 100.0
        );
    }
    if let Some(bytes) = memory["bytes_per_session"].as_u64() {
        println!("memory: {bytes} bytes per idle session, of {} sessions", memory["sessions"]);
    }
}

fn versions(args: &Args) -> [(&'static str, String); 2] {
    let daemon = setting::said(&args.setting.blockwire, "--version");
    [("blockwire", daemon), ("tgt", setting::said("tgtd".as_ref(), "-V"))]
}
