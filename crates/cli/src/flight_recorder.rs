//! `flight-recorder`: what the shards of a daemon recorded, of one that runs or of one that has ended, in order or not.

use std::{fmt::Write as _, path::PathBuf};

use clap::Args;

use diagnosis::FlightReport;
use engine::flight_files::{FlightRun, RUNS_KEPT, flight_directory, read_runs};
use process::{
    exit::{Exit, Failure},
    paths::DefaultPaths,
    printable, stdout,
};

/// The help of `flight-recorder`.
pub const HELP: &str = "\
Each shard records its latest events: thousands of those of hosts that were let in, and some hundreds of refusals of \
others. They are in files beside the control socket, and stay when the daemon is killed or crashes. Those of the last four \
starts are kept. Files that were copied elsewhere are named instead.

Not every command is recorded: logins and their refusals, ends of sessions and controllers, reservations, fences, task \
management, changes of volumes and paths, failed operations, operations of more than a second, waits for memory. Of each \
kind at most 100 a second are recorded, and the others are counted.

Examples:
  blockwire flight-recorder
  blockwire flight-recorder --run 1 --last 0     # of the daemon before this one
  blockwire flight-recorder --json > events.json

Exit codes: 0 success, 1 a file is damaged or cannot be read, 21 there are none.";

/// Options of `flight-recorder`.
#[derive(Debug, Args)]
pub struct FlightRecorderArgs {
    /// Files of a flight recorder; without any, those beside the control socket
    pub files: Vec<PathBuf>,
    /// Which start of the daemon: 0 the latest, 1 the one before
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "files")]
    pub run: usize,
    /// The latest events only; 0: all
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub last: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Control socket of the daemon [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "files")]
    pub control: Option<PathBuf>,
}

fn report_text(report: &FlightReport) -> String {
    let mut text = String::new();
    if let Some(one) = report.shards.first() {
        let how = match one.ending {
            "in-order" => "ended in order",
            "panic" => "ended by a panic",
            _ => "runs, or ended without a word",
        };
        let _ = writeln!(
            text,
            "# blockwire {}, process {}, started {}, {} shards: {how}",
            printable::escape_line(&one.version),
            one.pid,
            one.started,
            report.shards.len()
        );
    }
    for one in &report.shards {
        if let Some(panic) = &one.panic {
            let _ = writeln!(text, "# shard {}: {}", one.shard, printable::escape_line(panic));
            break;
        }
    }
    for one in report.shards.iter().filter(|one| one.damaged_slots > 0) {
        let _ = writeln!(text, "# shard {}: {} damaged slots are left out", one.shard, one.damaged_slots);
    }
    for event in &report.events {
        text.push_str(&event.line());
        text.push('\n');
    }
    text
}

/// Shows what was recorded.
pub fn run(args: &FlightRecorderArgs, paths: &DefaultPaths) -> Result<Exit, Failure> {
    let control = args.control.as_deref().unwrap_or(&paths.control);
    let run = if args.files.is_empty() {
        let runs = read_runs(control)?;
        let kept = runs.len();
        let place = flight_directory(control);
        runs.into_iter().nth(args.run).ok_or_else(|| {
            let message = match kept {
                0 => format!("no daemon has recorded events in {}", place.display()),
                _ => format!(
                    "{} has recordings of {kept} starts; at most {RUNS_KEPT} are kept",
                    place.display()
                ),
            };
            Failure::new(Exit::NothingFound, message)
        })?
    } else {
        FlightRun::read(args.files.iter().cloned())
    };
    let report = FlightReport::of(&run, args.last);
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(&report).unwrap_or_default()),
        false => report_text(&report),
    };
    stdout::print(&text)?;
    let Some(wrong) = report.unreadable.first() else {
        let is_whole = report.shards.iter().all(|one| one.damaged_slots == 0);
        return Ok(if is_whole { Exit::Success } else { Exit::Failure });
    };
    let more = match report.unreadable.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more files)"),
    };
    Err(Failure::failed(format!("{}: {}{more}", wrong.file, wrong.why)))
}
