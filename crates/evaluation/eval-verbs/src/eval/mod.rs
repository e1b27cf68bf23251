//! `blockwire eval`: how many I/Os each target and initiator performs for how much processor time, and how
//! steady the latency is.
//!
//! Each verb has its own file. Invariant: all judging, drawing and computing is in the crate `eval`; this
//! module has files, arguments and exit codes.

mod bare;
mod compare;
mod exchange;
mod list;
mod plan;
mod plan_file;
mod provenance;
mod records;
mod report;
mod run;
mod signals;
mod stream;

use clap::{Args, Subcommand};

use process::exit::{Exit, Failure};

/// `eval`
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// What to do.
    #[command(subcommand)]
    verb: EvalVerb,
}

/// A verb of `eval`.
#[derive(Debug, Subcommand)]
enum EvalVerb {
    /// Show the experiments that can be run, with the paper and its published figures
    List(list::ListArgs),
    /// Run an experiment on this machine and write its report
    Run(run::RunArgs),
    /// Send or receive a plain TCP stream at full speed
    Stream(stream::StreamArgs),
    /// Respond to requests, or request, without a storage protocol: what there can be at most
    Bare(bare::BareArgs),
    /// Compare two runs; exit code 1 if something got worse
    Compare(compare::CompareArgs),
    /// Compute how many cores, links and connections a load needs, from a run
    Plan(plan::PlanArgs),
    /// Show a run as a page with charts, as tables, or as raw figures
    Report(report::ReportArgs),
    /// Write an experiment as a file of fio, vdbench, Iometer or HammerDB
    Export(exchange::ExportArgs),
    /// Convert results of fio or vdbench into a record
    Import(exchange::ImportArgs),
}

/// Does it.
pub fn run_eval_verb(args: &EvalArgs) -> Result<Exit, Failure> {
    match &args.verb {
        EvalVerb::List(args) => list::list_presets(args),
        EvalVerb::Run(args) => run::run_preset(args),
        EvalVerb::Stream(args) => stream::run_stream(args),
        EvalVerb::Bare(args) => bare::run_bare(args),
        EvalVerb::Compare(args) => compare::run_compare(args),
        EvalVerb::Plan(args) => plan::plan_capacity(args),
        EvalVerb::Report(args) => report::write_report(args),
        EvalVerb::Export(args) => exchange::run_export(args),
        EvalVerb::Import(args) => exchange::run_import(args),
    }
}
