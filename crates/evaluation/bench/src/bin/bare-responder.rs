//! Answers requests of a storage protocol's sizes from memory, without a protocol.

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

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bench::responder::{ResponderCounters, ResponderOptions, serve};
use bench::spin::WaitMode;
use bench::system;
use clap::Parser;
use serde_json::json;

/// The limit of anything that runs on kernel TCP. Prints `listening bare ADDR` and `ready`, and a
/// line of counters whenever the last connection closes.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 lets the system choose.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How to wait for requests.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitMode,
    /// The longest poll, in microseconds.
    #[arg(long, default_value_t = 50)]
    poll_us: u64,
    /// Congestion control of the connections.
    #[arg(long)]
    congestion: Option<String>,
    /// MiB of memory that stand for a volume: data comes from and goes to the asked offsets. 0
    /// answers from a few slots that stay in the processor's cache.
    #[arg(long, default_value_t = 0)]
    memory_mib: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = ResponderOptions {
        listen: args.listen,
        wait: args.wait,
        poll: Duration::from_micros(args.poll_us),
        congestion: args.congestion,
        memory: args.memory_mib << 20,
        polled: None,
    };
    let ready = |address| println!("listening bare {address}\nready");
    match system::install_stop_handler().and_then(|()| serve(options, ready, print_counters)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-responder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_counters(counters: ResponderCounters) {
    let waits = counters.waits;
    println!(
        "{}",
        json!({
            "requests": counters.requests, "sends": counters.sends, "enters": counters.enters,
            "polls_useful": waits.polls_useful, "polls_idle": waits.polls_idle,
            "polls_idle_ns": waits.polls_idle_ns, "sleeps": waits.sleeps,
        })
    );
}
