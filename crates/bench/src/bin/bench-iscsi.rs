//! Compares Blockwire with tgt and with the bare responder, under one load generator.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{fs, io};

use bench::compare::{self, GAPS, LIBISCSI_DEPTHS, LOADS, Table};
use bench::servers::{Kind, Places, Server};
use bench::{setting, usage};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Servers on one core, clients on another, loopback, volumes in memory, interleaved rounds,
/// medians. No figure was taken on a network card.
#[derive(Parser)]
struct Args {
    /// The daemon.
    #[arg(long, default_value = "target/release/blockwire")]
    blockwire: PathBuf,
    /// What is compared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,bare-memory,blockwire,tgt")]
    servers: Vec<Kind>,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,libiscsi,gaps,idle,memory")]
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
    /// Idle sessions while idle processor time is measured, and for how many seconds.
    #[arg(long, default_value_t = 100)]
    idle_sessions: u32,
    /// Seconds of idleness.
    #[arg(long, default_value_t = 60)]
    idle_seconds: u32,
    /// Sessions while memory is measured.
    #[arg(long, default_value_t = 2000)]
    memory_sessions: u32,
    /// Writes all figures here.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
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
    let scratch = std::env::temp_dir().join(format!("blockwire-bench-{}", std::process::id()));
    let result = fs::create_dir_all(&scratch).and_then(|()| run(&args, &scratch));
    fs::remove_dir_all(&scratch).ok();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-iscsi: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, scratch: &std::path::Path) -> io::Result<()> {
    if let Some(name) = &args.congestion {
        setting::own_network(name)?;
    }
    let own = std::env::current_exe()?;
    let places = Places {
        programs: own.parent().map(PathBuf::from).unwrap_or_default(),
        blockwire: args.blockwire.clone(),
        scratch: scratch.to_owned(),
        spdk: None,
        server_core: args.server_core,
        client_core: args.client_core,
    };
    let environment = environment(args);
    for (key, value) in environment.as_object().into_iter().flatten() {
        println!("{key:20} {}", value.as_str().unwrap_or_default());
    }
    let mut servers = Vec::new();
    for kind in &args.servers {
        if *kind == Kind::Tgt && Command::new("tgtd").arg("-V").output().is_err() {
            println!("tgt is not installed and is left out (Debian: apt-get install tgt)");
            continue;
        }
        let server = Server::start(*kind, &places)?;
        compare::fill(&server, &places)?;
        servers.push(server);
    }
    let wants = |part| args.parts.contains(&part);
    let mut tables = [Table::default(), Table::default(), Table::default()];
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        if wants(Part::Load) {
            compare::round(&LOADS, &servers, &places, args.seconds, &mut tables[0])?;
        }
        if wants(Part::Libiscsi) {
            libiscsi(&servers, args, &mut tables[1])?;
        }
        if wants(Part::Gaps) {
            let polite: Vec<&Server> = servers.iter().filter(|server| server.kind != Kind::Tgt).collect();
            compare::round(&GAPS, polite, &places, args.seconds, &mut tables[2])?;
        }
    }
    let rest = rest(args, &mut servers, &places)?;
    print(&tables, &rest);
    println!("\nload average at the end: {}", usage::line_of("/proc/loadavg"));
    if let Some(path) = &args.json {
        let [load, libiscsi, gaps] = tables.each_ref().map(Table::to_json);
        let all = json!({
            "environment": environment, "load": load, "libiscsi": libiscsi, "gaps": gaps, "rest": rest,
        });
        fs::write(path, format!("{all:#}\n"))?;
    }
    Ok(())
}

fn libiscsi(servers: &[Server], args: &Args, table: &mut Table) -> io::Result<()> {
    for depth in LIBISCSI_DEPTHS {
        for server in servers.iter().filter(|server| server.kind.is_iscsi()) {
            let figures = compare::measure_libiscsi(server, 4096, depth, args.seconds)?;
            table.add(format!("4K read QD{depth}"), server.kind, figures);
        }
    }
    Ok(())
}

/// Idle sessions on Blockwire, each measurement on a fresh daemon.
fn rest(args: &Args, servers: &mut Vec<Server>, places: &Places) -> io::Result<Value> {
    servers.clear();
    let mut all = json!({});
    let parts = [
        (Part::Idle, "idle", args.idle_sessions, args.idle_seconds),
        (Part::Memory, "memory", args.memory_sessions, 2),
    ];
    for (part, name, sessions, seconds) in parts {
        if args.parts.contains(&part) && args.servers.contains(&Kind::Blockwire) {
            let server = Server::start(Kind::Blockwire, places)?;
            let run = ["--idle", &sessions.to_string(), "--seconds", &seconds.to_string()].map(str::to_owned);
            all[name] = compare::run_load(&server, places, &run)?;
        }
    }
    Ok(all)
}

fn print([load, libiscsi, gaps]: &[Table; 3], rest: &Value) {
    if !load.is_empty() {
        load.print("By the raw generator; ratio of server CPU per I/O to the bare responder's", Kind::Bare);
        for name in ["4K read QD32", "4K read QD128", "4K write QD32", "4K write QD128"] {
            load.verdict(name, Kind::Blockwire, Kind::Bare, 1.5);
            load.verdict(name, Kind::Blockwire, Kind::BareMemory, 1.5);
        }
    }
    if !libiscsi.is_empty() {
        libiscsi.print("By libiscsi's iscsi-perf; ratio of server CPU per I/O to tgt's", Kind::Tgt);
        for depth in LIBISCSI_DEPTHS {
            libiscsi.verdict(&format!("4K read QD{depth}"), Kind::Blockwire, Kind::Tgt, 0.25);
        }
    }
    if !gaps.is_empty() {
        gaps.print("One request at a time, with pauses at the client", Kind::Bare);
    }
    if let Some(share) = rest["idle"]["server_cpu_share"].as_f64() {
        let (sessions, seconds) = (&rest["idle"]["sessions"], &rest["idle"]["seconds"]);
        println!(
            "\nidle: {:.4} % of a core with {sessions} sessions over {seconds} s (goal: below 0.1)",
            share * 100.0
        );
    }
    if let Some(bytes) = rest["memory"]["bytes_per_session"].as_u64() {
        println!("memory: {bytes} bytes per idle session, of {} sessions", rest["memory"]["sessions"]);
    }
}

fn environment(args: &Args) -> Value {
    let cores = (args.server_core, args.client_core);
    setting::describe(
        cores,
        (args.rounds, args.seconds),
        &[
            ("blockwire", setting::said(&args.blockwire, "--version")),
            ("tgt", setting::said("tgtd".as_ref(), "-V")),
        ],
    )
}
