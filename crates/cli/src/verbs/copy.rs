//! `blockwire copy`: a volume to another, or to a file, or a file to a volume.

use std::path::PathBuf;

use clap::Args;
use client::Settings;

use super::{create_initiator, json_text, print};
use config::size::format_human;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::CopyReport;
use transfer::copy::{self, CopyOptions, CopyOutcome};

/// `copy`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire copy iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 db.img
  blockwire copy db.img nvme+tcp://10.0.0.2/nqn.2026-11.io.blockwire:db/1 \\
      --resume db.copy

Write a new file without a directory as ./NAME, so that the name of a volume is not taken for a file.")]
pub struct CopyArgs {
    /// The source: a URL, or a file or device
    pub from: SecretUrl,
    /// The destination: a URL, or a file or device; its contents are overwritten
    pub to: SecretUrl,
    /// Write even if the destination seems to be in use: a mounted device, a file behind a loop device, a volume that
    /// is attached here or reserved by another host
    #[arg(long)]
    pub force: bool,
    /// Record the progress in FILE, and resume from there if it exists
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Read and write every block, including holes and zeroes
    #[arg(long)]
    pub no_sparse: bool,
    /// Compare both ends afterwards; a file or device is read from its medium, not from this system's page
    /// cache
    #[arg(long)]
    pub verify: bool,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Copies.
pub fn copy(args: &CopyArgs) -> Result<Exit, Failure> {
    let initiator = create_initiator(Settings { memory: copy::INITIATOR_MEMORY, ..Settings::default() })?;
    let options = CopyOptions {
        from: &args.from,
        to: &args.to,
        force: args.force,
        resume: args.resume.as_deref(),
        sparse: !args.no_sparse,
        verify: args.verify,
        is_quiet: args.quiet,
    };
    let outcome = copy::copy(initiator, &options)?;
    print(&outcome_text(args, &outcome))?;
    Ok(Exit::Success)
}

fn outcome_text(args: &CopyArgs, outcome: &CopyOutcome) -> String {
    let CopyOutcome { bytes, written, zeroed, is_new, time, bytes_per_second } = *outcome;
    if args.json {
        let seconds = time.as_secs_f64();
        return json_text(&CopyReport {
            size_bytes: bytes,
            written_bytes: written,
            zeroed_bytes: zeroed,
            seconds,
            verified: args.verify,
            new_file: is_new,
        });
    }
    let verified = if args.verify { ", compared and alike" } else { "" };
    let destination = if is_new { format!(" to the new file {}", &*args.to) } else { String::new() };
    // A rate over so short a time is one of caches.
    let took = match time.as_secs_f64() {
        seconds if seconds < 0.1 => format!("{:.0} ms", seconds * 1000.0),
        seconds => format!("{seconds:.1} s ({}/s)", format_human(bytes_per_second as u64)),
    };
    format!(
        "{} copied{destination} in {took}: {} written, {} left or made zero{verified}\n",
        format_human(bytes),
        format_human(written),
        format_human(zeroed)
    )
}
