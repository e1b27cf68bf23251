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

use bench::compare::{self, ComparisonTable, LIBISCSI_QUEUE_DEPTHS, LOADS, PACED_LOADS};
use bench::comparison_args::{self, ComparisonArgs};
use bench::connection_counts;
use bench::fairness::FairnessTable;
use bench::servers::{BenchEnvironment, RunningServer, ServerKind};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Servers on one core, clients on another, loopback, volumes in memory, interleaved rounds,
/// medians. No figure was taken on a network card.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: ComparisonArgs,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,bare-memory,blockwire,tgt")]
    servers: Vec<ServerKind>,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,libiscsi,gaps,idle,memory")]
    parts: Vec<BenchSection>,
    /// Idle sessions while idle processor time is measured, and for how many seconds.
    #[arg(long, default_value_t = 100)]
    idle_sessions: u32,
    /// Seconds of idleness.
    #[arg(long, default_value_t = 60)]
    idle_seconds: u32,
    /// Sessions while memory is measured.
    #[arg(long, default_value_t = 2000)]
    memory_sessions: u32,
    /// Most connections where their number is varied.
    #[arg(long, default_value_t = 16_384)]
    connections: u32,
}

/// A server for the connections that are measured.
fn start_server(args: &Args, kind: ServerKind, places: &BenchEnvironment) -> io::Result<RunningServer> {
    match args.parts.contains(&BenchSection::Connections) {
        true => RunningServer::start_for_many(kind, places),
        false => RunningServer::start(kind, places),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchSection {
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
    /// Small reads beside large writes of another connection; only if asked for.
    Fairness,
    /// 1 to 16,384 connections, on servers started for that; only if asked for.
    Connections,
}

fn main() -> ExitCode {
    let args = Args::parse();
    comparison_args::run_comparison("bench-iscsi", |scratch| run_sections(&args, scratch))
}

fn run_sections(args: &Args, scratch: &std::path::Path) -> io::Result<()> {
    let (places, environment) = args.setting.prepare_environment(scratch, None, &program_versions(args))?;
    let mut servers = Vec::new();
    for kind in &args.servers {
        if *kind == ServerKind::Tgt && Command::new("tgtd").arg("-V").output().is_err() {
            println!("tgt is not installed and is left out (Debian: apt-get install tgt)");
            continue;
        }
        let server = start_server(args, *kind, &places)?;
        compare::fill_volume(&server, &places)?;
        servers.push(server);
    }
    let mut tables = [ComparisonTable::default(), ComparisonTable::default(), ComparisonTable::default()];
    let (mut fairness, mut connections) = (FairnessTable::default(), ComparisonTable::default());
    // What fails ends it; what was measured until then is told.
    let mut outcome = args.setting.announced_rounds().try_for_each(|_| {
        run_one_round(args, &servers, &places, &mut tables)?;
        if args.parts.contains(&BenchSection::Fairness) {
            fairness.measure_round(&servers, &places, args.setting.seconds)?;
        }
        if args.parts.contains(&BenchSection::Connections) {
            let limits = (args.setting.seconds, args.connections);
            connection_counts::measure_round(&servers, &places, limits, &mut connections)?;
        }
        Ok(())
    });
    let mut idle = json!({});
    if outcome.is_ok() {
        outcome = measure_idle(args, &mut servers, &places, &mut idle);
    }
    print_results(&tables, &idle);
    if !fairness.is_empty() {
        fairness.print();
    }
    if !connections.is_empty() {
        connection_counts::print(&connections, ServerKind::Blockwire);
    }
    let [load, libiscsi, gaps] = tables.each_ref().map(ComparisonTable::to_json);
    let all = json!({
        "environment": environment, "load": load, "libiscsi": libiscsi, "gaps": gaps, "rest": idle,
        "fairness": fairness.to_json(), "connections": connections.to_json(),
    });
    args.setting.finish_and_write(&all)?;
    outcome
}

fn run_one_round(
    args: &Args,
    servers: &[RunningServer],
    places: &BenchEnvironment,
    tables: &mut [ComparisonTable; 3],
) -> io::Result<()> {
    let wants = |part| args.parts.contains(&part);
    if wants(BenchSection::Load) {
        compare::measure_round(&LOADS, servers, places, args.setting.seconds, &mut tables[0])?;
    }
    if wants(BenchSection::Libiscsi) {
        measure_libiscsi_round(servers, args, &mut tables[1])?;
    }
    if wants(BenchSection::Gaps) {
        let polite: Vec<&RunningServer> =
            servers.iter().filter(|server| server.kind != ServerKind::Tgt).collect();
        compare::measure_round(&PACED_LOADS, polite, places, args.setting.seconds, &mut tables[2])?;
    }
    Ok(())
}

fn measure_libiscsi_round(
    servers: &[RunningServer],
    args: &Args,
    table: &mut ComparisonTable,
) -> io::Result<()> {
    for depth in LIBISCSI_QUEUE_DEPTHS {
        for server in servers.iter().filter(|server| server.kind.is_iscsi()) {
            let figures = compare::measure_libiscsi(server, 4096, depth, args.setting.seconds)?;
            table.add_round(format!("4K read QD{depth}"), server.kind, figures);
        }
    }
    Ok(())
}

/// Idle sessions on Blockwire, each measurement on a fresh daemon.
fn measure_idle(
    args: &Args,
    servers: &mut Vec<RunningServer>,
    places: &BenchEnvironment,
    all: &mut Value,
) -> io::Result<()> {
    servers.clear();
    let parts = [
        (BenchSection::Idle, "idle", args.idle_sessions, args.idle_seconds),
        (BenchSection::Memory, "memory", args.memory_sessions, 2),
    ];
    for (part, name, sessions, seconds) in parts {
        if args.parts.contains(&part) && args.servers.contains(&ServerKind::Blockwire) {
            let server = RunningServer::start(ServerKind::Blockwire, places)?;
            let run = ["--idle", &sessions.to_string(), "--seconds", &seconds.to_string()].map(str::to_owned);
            all[name] = compare::run_load(&server, places, &run)?;
        }
    }
    Ok(())
}

fn print_results([load, libiscsi, gaps]: &[ComparisonTable; 3], rest: &Value) {
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
        for depth in LIBISCSI_QUEUE_DEPTHS {
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

fn program_versions(args: &Args) -> [(&'static str, String); 2] {
    let daemon = comparison_args::first_output_line(&args.setting.blockwire, "--version");
    [("blockwire", daemon), ("tgt", comparison_args::first_output_line("tgtd".as_ref(), "-V"))]
}
