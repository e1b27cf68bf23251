//! Compares Blockwire over NVMe/TCP with the bare responder, and with SPDK if it is built, under one load
//! generator and under SPDK's own client.

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
use std::process::ExitCode;

use bench::compare::{self, ComparedLoad, ComparisonTable, LOADS};
use bench::comparison_args::{self, ComparisonArgs};
use bench::connection_counts;
use bench::fairness::FairnessTable;
use bench::servers::{BenchEnvironment, RunningServer, ServerKind};
use bench::spdk_perf;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Servers on one core, clients on another, loopback, volumes in memory, interleaved rounds,
/// medians. No figure was taken on a network card.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: ComparisonArgs,
    /// Directory in which SPDK was built; without it SPDK is left out.
    #[arg(long)]
    spdk: Option<PathBuf>,
    /// What is compared.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bare,bare-memory,bare-polling,blockwire-nvme,spdk"
    )]
    servers: Vec<ServerKind>,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,perf,idle")]
    parts: Vec<BenchSection>,
    /// Idle associations, with one I/O queue each.
    #[arg(long, default_value_t = 100)]
    idle_associations: u32,
    /// Seconds of idleness, at most 100.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100))]
    idle_seconds: u32,
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
    /// The loads, by SPDK's client.
    Perf,
    /// Processor time and memory of idle associations.
    Idle,
    /// Small reads beside large writes of another connection; only if asked for.
    Fairness,
    /// 1 to 16,384 connections, on servers started for that; only if asked for.
    Connections,
}

fn main() -> ExitCode {
    let args = Args::parse();
    comparison_args::run_comparison("bench-nvme", |scratch| run_sections(&args, scratch))
}

fn run_sections(args: &Args, scratch: &Path) -> io::Result<()> {
    let (places, environment) =
        args.setting.prepare_environment(scratch, args.spdk.as_deref(), &program_versions(args))?;
    let servers = start_servers(args, &places)?;
    let mut tables = [ComparisonTable::default(), ComparisonTable::default()];
    // What fails ends it; what was measured until then is told.
    let (mut fairness, mut connections) = (FairnessTable::default(), ComparisonTable::default());
    let outcome = args.setting.announced_rounds().try_for_each(|_| {
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
    drop(servers);
    print_results(&tables);
    if !fairness.is_empty() {
        fairness.print();
    }
    if !connections.is_empty() {
        connection_counts::print(&connections, ServerKind::BlockwireNvme);
    }
    let (idle, outcome) = match outcome.and_then(|()| measure_idle(args, &places)) {
        Ok(idle) => (idle, Ok(())),
        Err(why) => (Value::Null, Err(why)),
    };
    print_idle(&idle);
    let [load, perf] = tables.each_ref().map(ComparisonTable::to_json);
    let all = json!({
        "environment": environment, "load": load, "perf": perf, "idle": idle,
        "fairness": fairness.to_json(), "connections": connections.to_json(),
    });
    args.setting.finish_and_write(&all)?;
    outcome
}

fn run_one_round(
    args: &Args,
    servers: &[RunningServer],
    places: &BenchEnvironment,
    tables: &mut [ComparisonTable; 2],
) -> io::Result<()> {
    if args.parts.contains(&BenchSection::Load) {
        compare::measure_round(&LOADS, servers, places, args.setting.seconds, &mut tables[0])?;
    }
    if args.parts.contains(&BenchSection::Perf) && places.spdk.is_some() {
        measure_perf(servers, places, args.setting.seconds, &mut tables[1])?;
    }
    Ok(())
}

/// Starts what is to be compared and writes each volume once.
fn start_servers(args: &Args, places: &BenchEnvironment) -> io::Result<Vec<RunningServer>> {
    let mut servers = Vec::new();
    let wanted = [BenchSection::Load, BenchSection::Perf, BenchSection::Fairness, BenchSection::Connections];
    if !args.parts.iter().any(|part| wanted.contains(part)) {
        return Ok(servers);
    }
    for kind in &args.servers {
        if *kind == ServerKind::Spdk && places.spdk.is_none() {
            println!("SPDK is left out: tests/bench/spdk.sh builds it, SPDK_DIR says where it is");
            continue;
        }
        let server = start_server(args, *kind, places)?;
        compare::fill_volume(&server, places)?;
        servers.push(server);
    }
    Ok(servers)
}

/// Each load by SPDK's client, on each server that it can drive.
fn measure_perf(
    servers: &[RunningServer],
    places: &BenchEnvironment,
    seconds: u32,
    table: &mut ComparisonTable,
) -> io::Result<()> {
    for load in &LOADS {
        for server in servers.iter().filter(|server| server.transport.is_some()) {
            let figures = spdk_perf::measure_spdk_perf(server, places, load, seconds.max(1))?;
            table.add_round(load.name(), server.kind, figures);
        }
    }
    Ok(())
}

/// Idle associations on a fresh daemon.
fn measure_idle(args: &Args, places: &BenchEnvironment) -> io::Result<Value> {
    if !args.parts.contains(&BenchSection::Idle) || !args.servers.contains(&ServerKind::BlockwireNvme) {
        return Ok(Value::Null);
    }
    let server = RunningServer::start(ServerKind::BlockwireNvme, places)?;
    let (count, seconds) = (args.idle_associations.to_string(), args.idle_seconds.to_string());
    compare::run_load(&server, places, &["--idle", &count, "--seconds", &seconds].map(str::to_owned))
}

fn print_results([load, perf]: &[ComparisonTable; 2]) {
    if !load.is_empty() {
        load.print(
            "By the raw generator; ratio of server CPU per I/O to the bare responder's",
            ServerKind::Bare,
        );
        for ComparedLoad { op, .. } in [LOADS[1], LOADS[4]] {
            for name in [format!("4K {op} QD32"), format!("4K {op} QD128")] {
                load.print_goal(&name, ServerKind::BlockwireNvme, ServerKind::Bare, 1.3);
                load.print_goal(&name, ServerKind::BlockwireNvme, ServerKind::BareMemory, 1.3);
            }
            print_iops_goal(load, &format!("4K {op} QD32"));
            print_latency_goal(load, &format!("4K {op} QD1"));
        }
    }
    if !perf.is_empty() {
        perf.print("By spdk_nvme_perf; ratio to SPDK's target", ServerKind::Spdk);
        for op in ["read", "write"] {
            print_iops_goal(perf, &format!("4K {op} QD32"));
        }
    }
}

fn print_idle(idle: &Value) {
    if let Some(share) = idle["server_cpu_share"].as_f64() {
        println!(
            "\nidle: {:.4} % of a core with {} associations over {} s, {} bytes of memory each",
            share * 100.0,
            idle["sessions"],
            idle["seconds"],
            idle["bytes_per_session"]
        );
    }
}

/// Whether Blockwire does more requests per second than SPDK under the same client.
fn print_iops_goal(table: &ComparisonTable, load: &str) {
    let iops = |kind| table.median_figure(load, kind, "iops");
    if let (Some(own), Some(other)) = (iops(ServerKind::BlockwireNvme), iops(ServerKind::Spdk)) {
        let how = compare::reached_word(own > other);
        println!("{load}: {own:.0} requests/s against SPDK's {other:.0}, goal more: {how}");
    }
}

/// Whether one request at a time takes at most 3 µs more than with a responder that polls.
fn print_latency_goal(table: &ComparisonTable, load: &str) {
    let p50 = |kind| table.median_figure(load, kind, "p50_us");
    if let (Some(own), Some(limit)) = (p50(ServerKind::BlockwireNvme), p50(ServerKind::BarePolling)) {
        let how = compare::reached_word(own <= limit + 3.0);
        println!("{load}: {own:.1} us against {limit:.1} of bare-polling, goal 3 us more: {how}");
    }
}

fn program_versions(args: &Args) -> Vec<(&'static str, String)> {
    let mut versions =
        vec![("blockwire", comparison_args::first_output_line(&args.setting.blockwire, "--version"))];
    versions.extend(args.spdk.as_deref().map(|spdk| ("spdk", comparison_args::spdk_version(spdk))));
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loads_that_goals_name_are_measured() {
        let names = LOADS.map(|load| load.name());
        for op in ["read", "write"] {
            for depth in [1, 32, 128] {
                assert!(names.contains(&format!("4K {op} QD{depth}")));
            }
        }
        assert_eq!((LOADS[1].op, LOADS[4].op), ("read", "write"));
    }
}
