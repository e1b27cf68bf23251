//! Compares Blockwire over NVMe/TCP with the bare responder and, where it was built, with SPDK, under
//! one load generator, and under SPDK's own client.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use bench::compare::{self, LOADS, Load, Table};
use bench::servers::{Kind, Places, Server};
use bench::{setting, spdk, usage};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Servers on one core, clients on another, loopback, volumes in memory, interleaved rounds,
/// medians. No figure was taken on a network card.
#[derive(Parser)]
struct Args {
    /// The daemon.
    #[arg(long, default_value = "target/release/blockwire")]
    blockwire: PathBuf,
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
    servers: Vec<Kind>,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,perf,idle")]
    parts: Vec<Part>,
    /// Rounds of each load.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
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
    /// Idle associations, with one I/O queue each.
    #[arg(long, default_value_t = 100)]
    idle_associations: u32,
    /// Seconds of idleness, at most 100.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100))]
    idle_seconds: u32,
    /// Writes all figures here.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The loads, by our generator.
    Load,
    /// The loads, by SPDK's client.
    Perf,
    /// Processor time and memory of idle associations.
    Idle,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scratch = std::env::temp_dir().join(format!("blockwire-bench-{}", std::process::id()));
    let result = fs::create_dir_all(&scratch).and_then(|()| run(&args, &scratch));
    fs::remove_dir_all(&scratch).ok();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-nvme: {error}");
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
    let servers = start(args, &places)?;
    let mut tables = [Table::default(), Table::default()];
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        if args.parts.contains(&Part::Load) {
            compare::round(&LOADS, &servers, &places, args.seconds, &mut tables[0])?;
        }
        if args.parts.contains(&Part::Perf) && places.spdk.is_some() {
            perf(&servers, &places, args.seconds, &mut tables[1])?;
        }
    }
    drop(servers);
    print(&tables);
    let idle = idle(args, &places)?;
    print_idle(&idle);
    println!("\nload average at the end: {}", usage::line_of("/proc/loadavg"));
    if let Some(path) = &args.json {
        let [load, perf] = tables.each_ref().map(Table::to_json);
        let all = json!({ "environment": environment, "load": load, "perf": perf, "idle": idle });
        fs::write(path, format!("{all:#}\n"))?;
    }
    Ok(())
}

/// Starts what is to be compared and writes each volume once.
fn start(args: &Args, places: &Places) -> io::Result<Vec<Server>> {
    let mut servers = Vec::new();
    if !args.parts.iter().any(|part| matches!(part, Part::Load | Part::Perf)) {
        return Ok(servers);
    }
    for kind in &args.servers {
        if *kind == Kind::Spdk && places.spdk.is_none() {
            println!("SPDK is left out: tests/bench/spdk.sh builds it, SPDK_DIR says where it is");
            continue;
        }
        let server = Server::start(*kind, places)?;
        compare::fill(&server, places)?;
        servers.push(server);
    }
    Ok(servers)
}

/// Each load by SPDK's client, on each server that it can drive.
fn perf(servers: &[Server], places: &Places, seconds: u32, table: &mut Table) -> io::Result<()> {
    for load in &LOADS {
        for server in servers.iter().filter(|server| server.transport.is_some()) {
            let figures = spdk::measure(server, places, load, seconds.max(1))?;
            table.add(load.name(), server.kind, figures);
        }
    }
    Ok(())
}

/// Idle associations on a fresh daemon.
fn idle(args: &Args, places: &Places) -> io::Result<Value> {
    if !args.parts.contains(&Part::Idle) || !args.servers.contains(&Kind::BlockwireNvme) {
        return Ok(Value::Null);
    }
    let server = Server::start(Kind::BlockwireNvme, places)?;
    let (count, seconds) = (args.idle_associations.to_string(), args.idle_seconds.to_string());
    compare::run_load(&server, places, &["--idle", &count, "--seconds", &seconds].map(str::to_owned))
}

fn print([load, perf]: &[Table; 2]) {
    if !load.is_empty() {
        load.print("By the raw generator; ratio of server CPU per I/O to the bare responder's", Kind::Bare);
        for Load { op, .. } in [LOADS[1], LOADS[4]] {
            for name in [format!("4K {op} QD32"), format!("4K {op} QD128")] {
                load.verdict(&name, Kind::BlockwireNvme, Kind::Bare, 1.3);
                load.verdict(&name, Kind::BlockwireNvme, Kind::BareMemory, 1.3);
            }
            faster(load, &format!("4K {op} QD32"));
            latency(load, &format!("4K {op} QD1"));
        }
    }
    if !perf.is_empty() {
        perf.print("By spdk_nvme_perf; ratio to SPDK's target", Kind::Spdk);
        for op in ["read", "write"] {
            faster(perf, &format!("4K {op} QD32"));
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
fn faster(table: &Table, load: &str) {
    let iops = |kind| table.figure(load, kind, "iops");
    if let (Some(own), Some(other)) = (iops(Kind::BlockwireNvme), iops(Kind::Spdk)) {
        let how = compare::reached(own > other);
        println!("{load}: {own:.0} requests/s against SPDK's {other:.0}, goal more: {how}");
    }
}

/// Whether one request at a time takes at most 3 µs more than with a responder that polls.
fn latency(table: &Table, load: &str) {
    let p50 = |kind| table.figure(load, kind, "p50_us");
    if let (Some(own), Some(limit)) = (p50(Kind::BlockwireNvme), p50(Kind::BarePolling)) {
        let how = compare::reached(own <= limit + 3.0);
        println!("{load}: {own:.1} us against {limit:.1} of bare-polling, goal 3 us more: {how}");
    }
}

fn environment(args: &Args) -> Value {
    let mut versions = vec![("blockwire", setting::said(&args.blockwire, "--version"))];
    if let Some(spdk) = &args.spdk {
        let version = fs::read_to_string(spdk.join("VERSION")).unwrap_or_default();
        versions.push(("spdk", version.trim().to_owned()));
    }
    setting::describe((args.server_core, args.client_core), (args.rounds, args.seconds), &versions)
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
