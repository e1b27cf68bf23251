//! The initiator's verbs, for volumes of other machines.
//!
//! Each verb has its own file, with its options. Invariant: a verb leaves no session behind, and its exit
//! code tells the kind of failure.

mod attach;
mod connect_all;
mod copy;
mod discover;
mod info;
mod node;
mod raw_commands;
mod read_write;
mod reserve;
mod verify;

use clap::Subcommand;
use client::{Initiator, Settings};

use process::exit::{Exit, Failure};
use process::paths::DefaultPaths;

use eval_verbs::{bench, eval};
use process::stdout::print;

pub use bench::reorder_words;
pub use discover::DoctorArgs;

/// What a URL may say, for the help of verbs that take one.
const URL_HELP: &str = "\
A URL is iscsi://[USER@]HOST[:PORT]/IQN/LUN or nvme+tcp://HOST[:PORT]/NQN/NSID, with options after ?, \
joined by &. Times are 500ms, 10s, 2m; sizes 4K, 1M.

  both:
    digest=none|header|data|both  commands=128  ro=yes
    connect_timeout=5s  command_timeout=30s  keep_alive=5s  fence_timeout=100s
    secret_file=FILE  secret_env=NAME  mutual_secret_file=FILE
    mutual_secret_env=NAME  host_traddr=ADDRESS  host_iface=NAME
  iscsi:
    initiator=IQN  mutual_user=NAME  chap=sha3-256+sha256+sha1+md5
    connections=1  immediate=yes  initial_r2t=no  first_burst=64K
    max_burst=1M  max_recv=256K  max_outstanding_r2t=8  time2wait=2s
    time2retain=0  protocol_level=2
  nvme+tcp:
    host_nqn=NQN  host_id=UUID  queues=1  max_r2t=1  hpda=0  flow_control=no
    tls_key_file=FILE  tls_key_env=NAME  tls_identity=1
    tls_derivation=standard|compat  concat=yes
  the volume:
    policy=least-queue|round-robin  open_timeout=off  reconnect_delay=100ms
    reconnect_delay_max=10s  loss_timeout=10m  queue_timeout=2m
    fast_fail=never  fence_timeout=100s

Example:
  blockwire info 'iscsi://me@10.0.0.1/iqn.2026-11.x:db/0?secret_file=/etc/key'";

/// A verb of the initiator.
#[derive(Debug, Subcommand)]
pub enum RemoteVerb {
    /// Show the targets or subsystems that a machine offers
    Discover(discover::DiscoverArgs),
    /// Connect to a volume step by step, or examine this machine and its daemon; show what fails and what to change
    #[command(after_help = format!("{}\n\n{URL_HELP}", crate::doctor::HELP))]
    Doctor(discover::DoctorArgs),
    /// Show what a remote volume is: identity, size, limits, paths
    #[command(after_help = URL_HELP)]
    Info(info::InfoArgs),
    /// Read bytes of a remote volume
    #[command(
        after_help = "--offset must be a multiple of the block size. For URLs see `blockwire info --help`."
    )]
    Read(read_write::ReadArgs),
    /// Write bytes to a remote volume
    #[command(
        after_help = "--offset must be a multiple of the block size. If the input ends within a block, the rest of the block is unchanged. \
Everything is flushed before the command returns. For URLs see `blockwire info --help`."
    )]
    Write(read_write::WriteArgs),
    /// Copy a volume: a URL or a file on either side
    Copy(copy::CopyArgs),
    /// Compare two volumes, or a volume and a file, byte by byte
    #[command(
        after_help = "It exits with 1 at the first byte that differs. For URLs see `blockwire info --help`."
    )]
    Verify(verify::CompareVolumesArgs),
    /// Show or change the reservations of a remote volume
    Reserve(reserve::ReserveArgs),
    /// Send a SCSI command of your own to a remote volume
    Scsi(raw_commands::ScsiArgs),
    /// Send an NVMe command of your own to a remote volume or its controller
    #[command(subcommand, arg_required_else_help = true)]
    Nvme(raw_commands::NvmeVerb),
    /// Make a remote volume a local block device, or show what is attached
    Attach(attach::AttachArgs),
    /// Remove a local block device that `attach` made
    Detach(attach::DetachArgs),
    /// Keep the volumes that this machine attaches: their URLs, and how
    Node(node::NodeArgs),
    /// Attach all volumes that are kept by `node` and marked for it
    ConnectAll(connect_all::ConnectAllArgs),
    /// Keep an attachment alive whose holder was killed; `attach` starts it
    #[command(hide = true)]
    Keep(recovery::GuardianArgs),
    /// Run a load on remote volumes with fio's options, and measure it
    Bench(bench::BenchArgs),
    /// Run the experiments of published papers on targets and initiators, and report
    #[command(arg_required_else_help = true)]
    Eval(Box<eval::EvalArgs>),
}

/// Does it.
pub fn run_remote_verb(verb: &RemoteVerb) -> Result<Exit, Failure> {
    match verb {
        RemoteVerb::Discover(args) => discover::discover(args),
        RemoteVerb::Doctor(args) => match &args.url {
            Some(url) => discover::doctor(args, url),
            None => crate::doctor::run(args, &DefaultPaths::of_process()),
        },
        RemoteVerb::Info(args) => info::info(args),
        RemoteVerb::Read(args) => read_write::read_volume(args),
        RemoteVerb::Write(args) => read_write::write_volume(args),
        RemoteVerb::Copy(args) => copy::copy(args),
        RemoteVerb::Verify(args) => verify::verify(args),
        RemoteVerb::Reserve(args) => reserve::reserve(args),
        RemoteVerb::Scsi(args) => raw_commands::scsi(args),
        RemoteVerb::Nvme(verb) => raw_commands::nvme(verb),
        RemoteVerb::Attach(args) => attach::attach(args),
        RemoteVerb::Detach(args) => attach::detach(args),
        RemoteVerb::Node(args) => node::run_node_verb(args),
        RemoteVerb::ConnectAll(args) => connect_all::connect_all(args),
        RemoteVerb::Keep(args) => recovery::run_guardian(args),
        RemoteVerb::Bench(args) => bench::run_bench(args),
        RemoteVerb::Eval(args) => eval::run_eval_verb(args),
    }
}

fn create_initiator(settings: Settings) -> Result<Initiator, Failure> {
    Ok(Initiator::new(Settings { warn: process::log::warn_on_stderr, ..settings })?)
}

/// A report as JSON. Reports hold texts, numbers and lists only, which always have a JSON form.
fn json_value(report: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(report).unwrap_or_default()
}

/// Prints a report.
fn json_text(report: &impl serde::Serialize) -> String {
    format!("{:#}\n", json_value(report))
}

/// A size of the command line.
fn parse_size(text: &str) -> Result<u64, String> {
    config::size::parse(text).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::URL_HELP;

    #[test]
    fn the_help_names_every_option_of_urls() {
        for key in client::Options::keys() {
            assert!(URL_HELP.contains(&format!(" {key}=")), "{key} is not in the help");
        }
    }
}
