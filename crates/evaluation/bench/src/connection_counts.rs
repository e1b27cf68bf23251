//! What an I/O costs with 1 to 16,384 connections, beside the bare responder with as many.
//!
//! Few connections have 32 requests in flight together, many one each. Sockets themselves cost more when there are
//! many of them, so it is the ratio to the bare responder that is to stay what it is with one connection.

use std::io;

use crate::compare::{ComparisonTable, run_load};
use crate::servers::{BenchEnvironment, RunningServer, ServerKind};

/// How many connections.
pub const COUNTS: [u32; 6] = [1, 16, 256, 1024, 4096, 16_384];
/// Requests in flight on fewer connections than that.
const IN_FLIGHT_MIN: u32 = 32;
/// By how much the ratio to the bare responder may grow.
const GROWTH_GOAL: f64 = 1.15;

fn load_name(op: &str, connections: u32) -> String {
    format!("4K {op}, {connections} conn.")
}

/// One round: reads and writes over each number of connections, up to `most`, on each server in turn.
///
/// # Errors
/// If a load fails.
pub fn measure_round(
    servers: &[RunningServer],
    places: &BenchEnvironment,
    (seconds, most): (u32, u32),
    table: &mut ComparisonTable,
) -> io::Result<()> {
    for connections in COUNTS.into_iter().filter(|count| *count <= most) {
        let depth = (IN_FLIGHT_MIN / connections).max(1);
        for op in ["read", "write"] {
            for server in servers {
                let args = [
                    ("--op", op.to_owned()),
                    ("--depth", depth.to_string()),
                    ("--connections", connections.to_string()),
                    ("--seconds", seconds.to_string()),
                    ("--wait", server.kind.client_wait_mode().to_owned()),
                ];
                let args = args.into_iter().flat_map(|(key, value)| [key.to_owned(), value]);
                server.resume()?;
                let figures = run_load(server, places, &args.collect::<Vec<_>>());
                server.pause()?;
                table.add_round(load_name(op, connections), server.kind, figures?);
            }
        }
    }
    Ok(())
}

/// Prints medians, and how the ratio to the bare responder grows.
pub fn print(table: &ComparisonTable, kind: ServerKind) {
    table.print(
        "By number of connections; ratio of server CPU per I/O to the bare responder's",
        ServerKind::Bare,
    );
    for op in ["read", "write"] {
        let ratio = |connections| {
            let cost = |kind| table.median_figure(&load_name(op, connections), kind, "server_cpu_us");
            Some(cost(kind)? / cost(ServerKind::Bare)?)
        };
        let Some(first) = COUNTS.first().and_then(|count| ratio(*count)) else { continue };
        for (connections, ratio) in COUNTS.iter().skip(1).filter_map(|count| Some((count, ratio(*count)?))) {
            let growth = ratio / first;
            let how = if growth <= GROWTH_GOAL { "reached" } else { "NOT reached" };
            println!(
                "4K {op}: {connections} connections: {ratio:.2} times bare, {growth:.2} times that of one connection \
                 (goal {GROWTH_GOAL}: {how})"
            );
        }
    }
}
