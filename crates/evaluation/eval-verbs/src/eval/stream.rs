//! `blockwire eval stream`: a plain TCP stream, for `unified-wire` and for congested links.
//!
//! Invariant: the figures are printed once, as JSON; events go to standard error, in the form of `bench`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use process::exit::{Exit, Failure};
use process::stdout::print;

/// `eval stream`
#[derive(Debug, Args)]
#[group(skip)]
pub struct StreamArgs {
    /// Receive streams on this address, until ended
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "to", required_unless_present = "to")]
    listen: Option<SocketAddr>,
    /// Send to this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: Option<SocketAddr>,
    /// Milliseconds before figures count
    #[arg(long, value_name = "MS", default_value_t = 500)]
    ramp_ms: u64,
    /// Milliseconds for which figures count
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    runtime_ms: u64,
}

/// Receives, or sends.
pub fn run_stream(args: &StreamArgs) -> Result<Exit, Failure> {
    if let Some(address) = args.listen {
        lab::stream::receive_streams(address).map_err(|why| Failure::failed(format!("{address}: {why}")))?;
    }
    if let Some(address) = args.to {
        let (ramp, runtime) = (Duration::from_millis(args.ramp_ms), Duration::from_millis(args.runtime_ms));
        let sent = lab::stream::send_streams(address, ramp, runtime, |line| eprintln!("{line}"))
            .map_err(|why| Failure::failed(format!("{address}: {why}; is `eval stream --listen` there?")))?;
        print(&format!("{}\n", serde_json::json!({ "seconds": sent.seconds, "bytes": sent.bytes })))?;
    }
    Ok(Exit::Success)
}
