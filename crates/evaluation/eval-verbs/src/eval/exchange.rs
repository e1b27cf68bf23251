//! `blockwire eval export` and `blockwire eval import`: other tools' files and results.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use eval::export::{Database, ExportTool, export_preset as written};
use eval::import::{ImportContext, import as taken};
use eval::record::{RECORD_SCHEMA_VERSION, Record};

use super::list::find_preset;
use super::records::{self, RECORD_FILE};
use process::exit::{Exit, Failure};
use process::stdout::print;

/// Tools that files are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ToolName {
    /// A job file of fio
    Fio,
    /// A parameter file of vdbench
    Vdbench,
    /// A configuration of Iometer (.icf)
    Iometer,
    /// A Tcl script of HammerDB
    Hammerdb,
}

/// Databases of HammerDB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum HammerDbDatabase {
    /// MySQL, as the paper had it
    #[default]
    Mysql,
    /// MariaDB
    Mariadb,
    /// PostgreSQL
    Postgresql,
}

/// `eval export`
#[derive(Debug, Args)]
#[command(
    after_help = "The file is the load of one initiator machine. It writes to the volumes v0, v1 ..., so name each with --map.

Examples:
  blockwire eval export quick --as fio --map v0=/dev/nvme1n1 --out quick.fio
  blockwire eval export quick --as vdbench --map v0=/dev/nvme1n1
  blockwire eval export quick --as fio \\
      --map v0=iscsi://10.0.0.1/iqn.2026-11.io.blockwire:v/0
  blockwire eval export demartek-oltp --as hammerdb --database mariadb \\
      --out oltp.tcl"
)]
pub struct ExportArgs {
    /// The experiment (see `eval list`)
    preset: String,
    /// The tool
    #[arg(long = "as", value_name = "TOOL", value_enum)]
    tool: ToolName,
    /// The device or URL of a volume where the tool runs
    #[arg(long, value_name = "NAME=DEVICE|URL", value_parser = parse_mapping)]
    map: Vec<(String, String)>,
    /// The database that HammerDB loads
    #[arg(long, value_enum, default_value_t)]
    database: HammerDbDatabase,
    /// The output [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn parse_mapping(text: &str) -> Result<(String, String), Failure> {
    let (name, to) =
        text.split_once('=').ok_or_else(|| Failure::usage("write NAME=DEVICE, for example v0=/dev/sdb"))?;
    if to.is_empty() || to.contains(['\n', '\r']) {
        return Err(Failure::usage(format!("\"{text}\": a device or a URL is expected behind the =")));
    }
    Ok((name.to_owned(), to.to_owned()))
}

/// Writes the file.
pub fn run_export(args: &ExportArgs) -> Result<Exit, Failure> {
    let tool = match args.tool {
        ToolName::Fio => ExportTool::Fio,
        ToolName::Vdbench => ExportTool::Vdbench,
        ToolName::Iometer => ExportTool::Iometer,
        ToolName::Hammerdb => ExportTool::HammerDb,
    };
    let database = match args.database {
        HammerDbDatabase::Mysql => Database::Mysql,
        HammerDbDatabase::Mariadb => Database::Mariadb,
        HammerDbDatabase::Postgresql => Database::Postgresql,
    };
    let text = written(find_preset(&args.preset)?, tool, &args.map, database).map_err(Failure::usage)?;
    match &args.out {
        None => print(&text)?,
        Some(path) => write_file(path, &text)?,
    }
    Ok(Exit::Success)
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

/// `eval import`
#[derive(Debug, Args)]
#[command(
    after_help = "Reads fio's JSON (--output-format=json, or json+ with every latency bin) and vdbench's flatfile.html and \
summary.html. Several files of the same load are its runs.

Examples:
  blockwire eval import run1.json run2.json run3.json run4.json --target tgt \\
      --protocol iscsi --out tgt/
  blockwire eval import output/flatfile.html --target array \\
      --initiator vdbench --out array/"
)]
pub struct ImportArgs {
    /// Result files, in the order of their runs
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Name of the target
    #[arg(long, value_name = "NAME", default_value = "target")]
    target: String,
    /// Name of the initiator
    #[arg(long, value_name = "NAME", default_value = "kernel")]
    initiator: String,
    /// Protocol: iscsi, nvme-tcp, local
    #[arg(long, value_name = "NAME", default_value = "iscsi")]
    protocol: String,
    /// Connections
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    connections: u32,
    /// MTU of the link in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Their experiment (see `eval list`)
    #[arg(long, value_name = "PRESET")]
    preset: Option<String>,
    /// Directory for the record [default: standard output]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace a record in the directory
    #[arg(long, requires = "out")]
    force: bool,
}

/// Makes one record of all files.
pub fn run_import(args: &ImportArgs) -> Result<Exit, Failure> {
    if let Some(directory) = &args.out
        && !args.force
    {
        records::refuse_existing_record(directory)?;
    }
    let preset = args.preset.as_deref().map(find_preset).transpose()?;
    let about = ImportContext {
        target: args.target.clone(),
        initiator: args.initiator.clone(),
        protocol: args.protocol.clone(),
        connections: args.connections,
        mtu: args.mtu,
    };
    let mut record = Record {
        schema: RECORD_SCHEMA_VERSION,
        preset: preset.map_or_else(|| "imported".to_owned(), |preset| preset.id.to_owned()),
        title: preset
            .map_or_else(|| format!("Results of another tool on {}", args.target), |p| p.title.to_owned()),
        paper: preset.and_then(|preset| preset.paper).map(str::to_owned),
        ..Record::default()
    };
    for path in &args.files {
        let text = std::fs::read_to_string(path)
            .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
        taken(&mut record, &about, &text)
            .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
    }
    record.seconds = record.points.iter().flat_map(|point| &point.runs).map(|run| run.seconds).sum();
    let text = record.to_text().map_err(Failure::failed)?;
    match &args.out {
        None => print(&(text + "\n"))?,
        Some(directory) => {
            std::fs::create_dir_all(directory)
                .map_err(|why| Failure::failed(format!("{}: {why}", directory.display())))?;
            let path = directory.join(RECORD_FILE);
            write_file(&path, &text)?;
            let runs: usize = record.points.iter().map(|point| point.runs.len()).sum();
            print(&format!("{}: {} loads, {runs} runs\n", path.display(), record.points.len()))?;
        }
    }
    Ok(Exit::Success)
}
