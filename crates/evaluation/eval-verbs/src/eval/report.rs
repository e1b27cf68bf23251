//! `blockwire eval report`: a run as a report.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use eval::record::Record;
use eval::report::{render_csv, render_html, render_markdown};

use super::records::read_record;
use process::exit::{Exit, Failure};
use process::stdout::print;

/// Forms of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One page with charts and tables that needs nothing else
    #[default]
    Html,
    /// Tables as Markdown
    Markdown,
    /// A line of medians for each load
    Csv,
    /// The record itself: raw figures and histograms
    Json,
}

/// `eval report`
#[derive(Debug, Args)]
#[command(
    after_help = "RUN is a record: a file, or a directory with a record.json. The HTML page works offline, in light and dark \
mode, on a phone and printed.

Examples:
  blockwire eval report sweep/                         writes sweep/report.html
  blockwire eval report sweep/ --format markdown       prints tables
  blockwire eval report sweep/ --format csv --out sweep.csv"
)]
pub struct ReportArgs {
    /// The run
    run: PathBuf,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,
    /// The output [default: html: report.html beside the record; others: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A record in a form.
fn render_record(record: &Record, format: ReportFormat) -> Result<String, Failure> {
    Ok(match format {
        ReportFormat::Html => render_html(record),
        ReportFormat::Markdown => render_markdown(record),
        ReportFormat::Csv => render_csv(record),
        ReportFormat::Json => {
            let text = serde_json::to_string_pretty(record)
                .map_err(|why| Failure::failed(format!("the record cannot be written: {why}")))?;
            text + "\n"
        }
    })
}

/// Writes or prints it.
pub fn write_report(args: &ReportArgs) -> Result<Exit, Failure> {
    let record = read_record(&args.run)?;
    let text = render_record(&record, args.format)?;
    let beside = || {
        let directory = if args.run.is_dir() { Some(args.run.as_path()) } else { args.run.parent() };
        directory.unwrap_or(Path::new(".")).join("report.html")
    };
    let out = match (&args.out, args.format) {
        (Some(path), _) => Some(path.clone()),
        (None, ReportFormat::Html) => Some(beside()),
        (None, _) => None,
    };
    match out {
        None => print(&text)?,
        Some(path) => {
            std::fs::write(&path, text)
                .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
            print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(Exit::Success)
}
