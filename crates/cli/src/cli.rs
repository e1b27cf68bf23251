//! The command line for clap: parsing only.
//!
//! The verbs and options are a contract (scripts depend on them). An option that this version does not
//! support is a usage error that says so.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::{
    apply::{APPLY_HELP, ConfigurationArgs, PLAN_HELP, ROLLBACK_HELP},
    daemon_args::DaemonArgs,
    import::{self, ImportArgs},
    iscsictl::{self, IscsictlArgs},
    key::{KeyHash, KeyVerb},
    top::TopArgs,
    verbs::RemoteVerb,
};
use config::size;
use engine::{
    dataplane::volume_state::ACCESS_STATES,
    serve::args::{NamedSpec, ServeArgs, parse_named_spec},
};
use multipath::suggest;

/// Verbs that the contract names and that do not exist yet.
pub const VERBS_PLANNED: [&str; 1] = ["upgrade"];

const ABOUT: &str = "Block storage over Ethernet, in user space";

const LONG_ABOUT: &str = "\
Block storage over Ethernet, in user space.

`blockwire serve` exports memory, files and block devices of this machine over iSCSI and NVMe/TCP. `discover`, `info`, \
`read`, `write`, `copy`, `verify`, `reserve`, `doctor`, `attach` and `bench` use volumes of other machines, without a \
kernel module and without root. The other verbs query or change a running daemon.";

const EXAMPLES: &str = "\
Examples:
  blockwire serve                                        a 256 MiB RAM disk on 127.0.0.1, over both protocols
  blockwire serve --volume db=file:/srv/db.img,size=200G a file as a disk; the file is created
  blockwire serve --config /etc/blockwire/blockwire.toml
  blockwire volume create scratch=ram:4G                 in the running daemon
  blockwire connection list --json

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 connections would be disturbed (`plan`), 8 connect time-out, 15 already attached, 21 nothing found, 24 not authenticated, 33 request time-out.";

const SERVE_HELP: &str = "\
SPEC is KIND:ARGUMENT[,key=value]...

  ram:SIZE     memory of the daemon; lost when it exits
  file:PATH    a file; with size= it is created or grown to that size
  /dev/NAME    a block device
  rbd:POOL/IMAGE
               an image of Ceph (needs librbd1 and librados2); see docs/scale-out.md
  null:SIZE    reads zeroes, discards writes; for measurements
  URL          a volume of another machine: iscsi://HOST/IQN/LUN or nvme+tcp://HOST/NQN/NSID,
               several paths joined by commas; its size, blocks and identity are those of that volume
  stripe:SPEC+SPEC...
               several of these as one (RAID 0, no redundancy)

  size=SIZE        size of a file, for example 64M or 1T (binary), or of a stripe
  chunk=SIZE       contiguous bytes per leg of a stripe, a power of two (64K)
  block=512|4096   logical block size; 512 unless given
  physical=SIZE    physical block size
  ro               write-protected
  uuid=UUID        identity shown to initiators
  cache=on|off     report and use a volatile write cache (on for files and devices);
                   off: every write is on stable storage before it completes
  direct           bypass the page cache
  thin=on|off      free unmapped blocks (on, except for devices)
  removable        report a removable medium
  tas=on|off       report TASK ABORTED for commands that another initiator aborts (on)
  sanitize_rate=SIZE
                   most bytes per second that a sanitize writes (no limit)
  persist=force    reservations always survive a restart
  conf=PATH        of an image: the cluster's configuration (/etc/ceph/ceph.conf)
  user=NAME        of an image: the user of the cluster (admin)
  queue_timeout=TIME
                   of an image: how long I/O waits for the cluster and then fails (20s)
  break_lock=on    of an image: take the lock of a client that is not connected, and blocklist it

In a path, escape commas as \\, and plus signs as \\+. Escape commas inside a leg of a stripe likewise; a leg may \
have options of its own: stripe:file:/a\\,size=1G+file:/b\\,size=1G,chunk=128K. A stripe takes size, chunk, ro, uuid, \
removable, tas, sanitize_rate and persist; the plus sign of nvme+tcp:// needs no backslash.

A URL takes ro, uuid, removable, tas, sanitize_rate and persist after a comma at its end, and its own options after \
?. It contains no password: use ?secret_file=FILE or ?secret_env=NAME. While the other machine is unreachable, I/O \
waits for ?queue_timeout= (20s) and then fails until the machine is back.

Each volume becomes LUN 0 of an iSCSI target of its own, iqn.2026-11.io.blockwire:NAME, and namespace 1 \
of an NVMe subsystem of its own, nqn.2026-11.io.blockwire:NAME; a configuration file can group them. \
Without an address, the daemon listens on 127.0.0.1 for both protocols: iSCSI on port 3260, NVMe/TCP on 4420, \
discovery also on 8009. When it is ready, it prints one line per listener, \
for example \"listening iscsi 127.0.0.1:3260\", then a line that is exactly \"ready\".

On SIGTERM or SIGINT the daemon completes commands in flight, flushes and exits; a second SIGTERM changes nothing. \
A second SIGINT (Ctrl-C) after at least a second, or `blockwire stop --now`, stops it at once. SIGHUP applies the \
configuration file again, as `blockwire apply` does. It exits with 1 if written data may be lost, and logs the volume. A remote volume is flushed only if needed, so that \
an unreachable machine does not delay the stop.

Examples:
  blockwire serve --volume demo=ram:1G
  blockwire serve --volume db=/dev/sdb,cache=off --iscsi 192.0.2.10 --config chap.toml
  blockwire serve --volume fast=ram:8G --nvme 127.0.0.1 --nvme-discovery 127.0.0.1
  blockwire serve --volume a=ram:1G --iscsi 127.0.0.1:0 --control /tmp/bw/control.sock --state /tmp/bw";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "blockwire", version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES,
    disable_help_subcommand = true, subcommand_required = true, arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// A verb.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Serve volumes until told to stop
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),
    /// Show or change the volumes of the running daemon
    #[command(subcommand, arg_required_else_help = true)]
    Volume(VolumeVerb),
    /// Show the targets of the running daemon
    #[command(subcommand, arg_required_else_help = true)]
    Target(TargetVerb),
    /// Show the NVMe subsystems of the running daemon
    #[command(subcommand, arg_required_else_help = true)]
    Subsystem(SubsystemVerb),
    /// Show the configured hosts: machines by their names in both protocols; block them
    #[command(subcommand, arg_required_else_help = true)]
    Host(HostVerb),
    /// Generate, check and derive keys of NVMe: for DH-HMAC-CHAP and for TLS
    #[command(subcommand, arg_required_else_help = true)]
    Key(KeyVerb),
    /// Show the reservations of volumes, over both protocols
    #[command(subcommand, arg_required_else_help = true)]
    Reservation(ReservationVerb),
    /// Show or change the states of the paths to volumes (ALUA and ANA)
    #[command(subcommand, arg_required_else_help = true)]
    Path(PathVerb),
    /// Show the sessions and controllers of the running daemon, and end them
    #[command(subcommand, arg_required_else_help = true)]
    Session(SessionVerb),
    /// Show the connections of the running daemon
    #[command(subcommand, arg_required_else_help = true)]
    Connection(ConnectionVerb),
    /// Show the shards (one per core) of the running daemon
    #[command(subcommand, arg_required_else_help = true)]
    Shard(ListVerb),
    /// Use a volume of another machine
    #[command(flatten)]
    Remote(RemoteVerb),
    /// Write the configuration of another target as one for `serve`
    #[command(after_help = import::HELP)]
    Import(ImportArgs),
    /// Start, stop and show targets with the options of Chelsio's iscsictl
    #[command(after_help = iscsictl::HELP)]
    Iscsictl(Box<IscsictlArgs>),
    /// Show what a configuration would change in the running daemon, and which connections it would disturb
    #[command(after_help = PLAN_HELP)]
    Plan(ConfigurationArgs),
    /// Serve by another configuration from now on, without a restart: all of it or nothing
    #[command(after_help = APPLY_HELP)]
    Apply(ConfigurationArgs),
    /// Serve by the configuration before the last apply
    #[command(after_help = ROLLBACK_HELP)]
    Rollback(DaemonArgs),
    /// Show whether all is well, and what the running daemon serves
    #[command(after_help = STATUS_HELP)]
    Status(DaemonArgs),
    /// Show what the running daemon does, again and again: volumes, hosts, shards, latency
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Stop the running daemon, and wait until it has exited
    Stop(StopArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  blockwire completions bash > /etc/bash_completion.d/blockwire")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; it is created
        directory: PathBuf,
    },
    /// Anything else: later verbs, and errors.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

const STATUS_HELP: &str = "\
The first line is `all is well`, or begins with `not well:` and says what is worst. Each problem follows with what to \
do about it: a failed volume, a failed sync, no space, a path that hosts cannot use, a path to another machine that is \
down, memory that is short, a host that has to wait since it failed to authenticate.

Exit codes: 0 all is well, 1 there are problems or no daemon is running.";

const TOP_HELP: &str = "\
MEAN µS is the mean time of a command in the target, over all stages (see `volume show --latency`). The busiest \
volumes and hosts come first. `IOPS per %` is what one percent of a core carries. Colour is used on a terminal, unless \
NO_COLOR is set. Ctrl-C ends it.

Exit codes with --once: 0 all is well, 1 there are problems or no daemon is running.

Examples:
  blockwire top
  blockwire top --once --interval 5";

const LATENCY_HELP: &str = "\
--latency counts each command once in each stage, in the time of the shard's turns:

  receive  from its header coming from the socket to its start
  wait     for memory, for its data from the host, for send window of the host
  queue    excluded by an operation on the same blocks, or by a change of reservations
  backend  with what stores the blocks
  send     from its answer to the moment when the socket has taken all of it";

/// Verbs of `volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeVerb {
    /// List the volumes
    List(DaemonArgs),
    /// Show one volume
    #[command(after_help = LATENCY_HELP)]
    Show {
        /// The volume
        name: String,
        /// Show how long its commands took, stage by stage
        #[arg(long)]
        latency: bool,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Create a volume and serve it at once; it comes back when the daemon is restarted
    #[command(after_help = "SPEC is as for `blockwire serve --volume`.\n\nExamples:\n  \
        blockwire volume create scratch=ram:4G\n  \
        blockwire volume create vm7=file:/srv/vm7.img,size=40G,block=4096")]
    Create {
        /// The volume
        #[arg(value_name = "NAME=SPEC", value_parser = parse_named_spec)]
        volume: NamedSpec,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Stop serving a volume; its file or device is not changed
    Delete {
        /// The volume
        name: String,
        /// Delete it even if initiators use it
        #[arg(long)]
        force: bool,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Retry a volume that has failed, once the cause is fixed; after a failed sync, acknowledge that recent writes may
    /// be lost
    Retry {
        /// The volume
        name: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Change a setting of a volume in use; hosts of both protocols are notified
    Set {
        /// The volume
        name: String,
        /// Forbid writes, or allow them again; until the daemon exits
        #[arg(long, value_name = "on|off", value_enum)]
        read_only: OnOff,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Change the size of a volume in use; initiators are notified
    #[command(
        after_help = "At the next start a volume created at run time has this size again. A volume of the \
        configuration has the size written there, or that of its file if that is larger."
    )]
    Resize {
        /// The volume
        name: String,
        /// The new size, for example 200G
        #[arg(value_parser = size::parse)]
        size: u64,
        /// Allow a smaller size: data beyond the new end is lost
        #[arg(long)]
        shrink: bool,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Verbs of `subsystem`.
#[derive(Debug, Subcommand)]
pub enum SubsystemVerb {
    /// List the subsystems
    List(DaemonArgs),
    /// Show one subsystem
    Show {
        /// Its NQN, or the end of it
        name: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

const KEY_HELP: &str = "\
The daemon reads the file by the key \"dhchap_key_file\" of a [[host]] or of [auth]. The host needs the same \
text: copy the file to it and give its content to its NVMe software, for example as dhchap_key in \
/etc/nvme/config.json. The secret is shown nowhere else.

Example:
  blockwire host key --hash sha384 /etc/blockwire/web1.key";

/// Verbs of `host`.
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// Generate a secret for NVMe in-band authentication (DH-HMAC-CHAP) into a new file, as `key generate` does
    #[command(after_help = KEY_HELP)]
    Key {
        /// The hash that derives the host's key from the secret, and its length; none: the secret is the key
        #[arg(long, value_enum, default_value = "sha256")]
        hash: KeyHash,
        /// The file; it must not exist, and only its owner will be able to read it
        file: PathBuf,
    },
    /// List the configured hosts
    List(DaemonArgs),
    /// Let a host in nowhere from now on, after a restart too, and end its sessions and controllers
    #[command(after_help = HOST_BLOCK_HELP)]
    Block(HostBlockArgs),
    /// Let a blocked host in again
    Unblock(HostBlockArgs),
    /// Show one host
    Show {
        /// Its name in the configuration
        name: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Which host is blocked or unblocked.
#[derive(Debug, Args)]
pub struct HostBlockArgs {
    /// Its iSCSI name or NQN, or the name of its [[host]]: all names of that
    pub name: String,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

const HOST_BLOCK_HELP: &str = "\
It returns when nothing of the host's sessions is in flight any more. New logins are refused with authorization failure
(0202h), Connects with Connect Invalid Host, and discovery shows it nothing. The block is kept in the state directory; an
apply leaves it as it is. Reservations and registrations of the host stay: preempt them from another host if need be.
Any program that reaches the portals can forge a name: secrets keep out those that do.

Examples:
  blockwire host block nqn.2014-08.org.nvmexpress:uuid:3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11
  blockwire host block iqn.1993-08.org.debian:01:db1
  blockwire host unblock db1";

/// Verbs of `reservation`.
#[derive(Debug, Subcommand)]
pub enum ReservationVerb {
    /// List the reservations of all volumes
    List(DaemonArgs),
    /// Show the reservation of a volume and its registrants, with keys
    Show {
        /// The volume
        volume: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Verbs of `path`.
#[derive(Debug, Subcommand)]
pub enum PathVerb {
    /// List the paths of all volumes
    List {
        /// Only this volume
        volume: Option<String>,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Set the state of paths to a volume; hosts of both protocols are notified
    #[command(
        after_help = "SCSI hosts see the state as ALUA, NVMe hosts as ANA. It holds until it is set again, \
        over restarts too.\n\nExamples:\n  blockwire path set db --group 2 --state inaccessible\n  \
        blockwire path set db --state optimized"
    )]
    Set {
        /// The volume
        volume: String,
        /// Only through this port, as numbered by `path list`
        #[arg(long)]
        port: Option<u16>,
        /// Only through ports of this portal group
        #[arg(long, value_name = "TAG", conflicts_with = "port")]
        group: Option<u16>,
        /// optimized, non-optimized, inaccessible, persistent-loss or transition
        #[arg(long, value_parser = parse_path_state)]
        state: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

fn parse_path_state(text: &str) -> Result<String, String> {
    let words = ACCESS_STATES.map(|(word, _)| word);
    match words.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("unknown state{}", suggest::unknown_word_hint(text, words))),
    }
}

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOff {
    /// On.
    On,
    /// Off.
    Off,
}

/// Verbs of `target`.
#[derive(Debug, Subcommand)]
pub enum TargetVerb {
    /// List the targets
    List(DaemonArgs),
    /// Show one target
    Show {
        /// Its iSCSI name, or the end of it
        name: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Verbs of what can only be listed.
#[derive(Debug, Subcommand)]
pub enum ListVerb {
    /// List them
    List(DaemonArgs),
}

/// Verbs of `session`.
#[derive(Debug, Subcommand)]
pub enum SessionVerb {
    /// List the sessions and controllers
    List(DaemonArgs),
    /// End sessions and controllers at once: commands in flight are not answered, and their hosts may come again
    #[command(after_help = SESSION_KILL_HELP)]
    Kill(SessionKillArgs),
}

/// Options of `session kill`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct SessionKillArgs {
    /// Its number, as listed
    #[arg(group = "which")]
    pub id: Option<u64>,
    /// All of this iSCSI initiator name or Host NQN
    #[arg(long, value_name = "NAME", group = "which")]
    pub initiator: Option<String>,
    /// All of this configured host
    #[arg(long, value_name = "NAME", group = "which")]
    pub host: Option<String>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

const SESSION_KILL_HELP: &str = "\
It returns when nothing of the sessions is in flight any more. Commands in flight may or may not have reached the medium, as
after a lost connection. An iSCSI session ends with its nexus: a reservation by RESERVE(6) goes, persistent ones stay.
Over NVMe/TCP the association ends, with all queues of the controller.
A write to an image of Ceph that has failed after queue_timeout is not waited for: it may still reach the medium. A
fence (PREEMPT) waits for it.

Examples:
  blockwire session kill 65538
  blockwire session kill --initiator iqn.2026-11.com.example:db1
  blockwire session kill --host web";

/// Verbs of `connection`.
#[derive(Debug, Subcommand)]
pub enum ConnectionVerb {
    /// List the connections
    List(DaemonArgs),
    /// Show one connection
    #[command(after_help = LATENCY_HELP)]
    Show {
        /// Its number, as listed
        id: u64,
        /// Show how long its commands took, stage by stage; over iSCSI, those of its session
        #[arg(long)]
        latency: bool,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Stop at once, without waiting for commands in flight
    #[arg(long)]
    pub now: bool,
    /// Return as soon as the daemon has been told, before it has exited
    #[arg(long)]
    pub no_wait: bool,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_contract_parses() {
        for line in [
            "serve",
            "serve --nvme 127.0.0.1 --nvme [::1]:0 --nvme-discovery 127.0.0.1",
            "serve --config f --volume a=ram:1M --volume b=null:1G --iscsi 127.0.0.1 --iscsi [::1]:0 --control c --state s \
             --node n --cores 0-1 --io epoll --allow-anonymous",
            "volume list --json --control c",
            "volume show a",
            "volume show a --latency --json",
            "volume create a=ram:1M",
            "volume delete a --force",
            "volume resize a 2G",
            "volume set a --read-only on",
            "subsystem list --json",
            "subsystem show a",
            "host list",
            "host show a --json",
            "reservation list",
            "reservation show a --json",
            "path list",
            "path list a",
            "path set a --port 2 --state inaccessible",
            "path set a --group 1 --state optimized --json",
            "connection list",
            "connection show 3 --json",
            "connection show 3 --latency",
            "session list",
            "session kill 65538 --json",
            "session kill --initiator iqn.2026-11.com.example:db1",
            "session kill --host web --control c",
            "target list",
            "target show x",
            "shard list",
            "plan",
            "plan new.toml --json",
            "apply",
            "apply new.toml --control c",
            "rollback --json",
            "status --json",
            "top",
            "top --once --interval 0.5 --no-color --control c",
            "serve --http 127.0.0.1",
            "serve --chiscsi chiscsi.conf --policy cop.conf",
            "import lio saveconfig.json",
            "import spdk config.json -o blockwire.toml",
            "iscsictl",
            "iscsictl -S target=ALL",
            "iscsictl -f chiscsi.conf -S target=ALL --control c",
            "iscsictl -s target=iqn.x",
            "iscsictl -c",
            "iscsictl -c target=iqn.x -k HeaderDigest --json",
            "iscsictl -r target=iqn.x -k initiator=iqn.y",
            "iscsictl -D 0x1",
            "iscsictl -g",
            "stop",
            "completions fish",
            "man dir",
        ] {
            let words = std::iter::once("blockwire").chain(line.split_whitespace());
            Cli::try_parse_from(words).unwrap_or_else(|why| panic!("{line}: {why}"));
        }
    }

    #[test]
    fn a_command_line_with_a_password_does_not_show_it() {
        const URL: &str = "iscsi://user%open5esame@127.0.0.1/iqn.2026-11.x:y/0";
        for words in [
            &["info", URL][..],
            &["discover", URL],
            &["doctor", URL],
            &["read", URL],
            &["write", URL],
            &["copy", URL, "file"],
            &["copy", "file", URL],
            &["verify", URL, URL],
            &["reserve", URL, "report"],
            &["attach", URL, "--daemon"],
            &["bench", URL, URL],
            &["bench", "--job", "file", &format!("--map=a={URL}")],
        ] {
            let words = std::iter::once("blockwire").chain(words.iter().copied());
            let cli = Cli::try_parse_from(words).unwrap();
            for said in [format!("{cli:?}"), format!("{cli:#?}")] {
                assert!(!said.contains("open5esame"), "{said}");
            }
        }
    }
}
