//! The verbs that show or change one kind of object of the running daemon: `volume`, `path`, `session` and so on.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{daemon_args::DaemonArgs, key::KeyHash};
use config::limit_keys::{parse_bytes, parse_count};
use config::size;
use engine::serve::args::{NamedSpec, parse_named_spec};
use multipath::suggest;
use volume::PathAccess;

const LATENCY_HELP: &str = "\
--latency counts each command once in each stage, in the time of the shard's turns:

  receive  from its header coming from the socket to its start
  wait     for memory, for its data from the host, for send window of the host
  queue    excluded by an operation on the same blocks, or by a change of
           reservations
  backend  with what stores the blocks
  send     from its answer to the moment when the socket has taken all of it";

const SNAPSHOT_HELP: &str = "\
The file has all that was answered to hosts of either protocol before, as of one moment, as if the power had failed then: \
flush or freeze file systems on the hosts (fsfreeze) for more. Reservations, bad blocks and the identity of the volume are \
not part of it. Where files cannot share blocks, it is refused: `blockwire copy` copies a volume.

Examples:
  blockwire volume snapshot vm7 /srv/blockwire/vm7-monday.img
  blockwire volume clone vm7 vm7-test /srv/blockwire/vm7-test.img";

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
    /// Make a file that has what a volume has at this moment; it shares its blocks, so it takes no time and no space (XFS,
    /// btrfs)
    #[command(after_help = SNAPSHOT_HELP)]
    Snapshot {
        /// The volume; it lies in a file
        name: String,
        /// The file to make, on the file system of the volume's file
        file: PathBuf,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Take a snapshot of a volume, and serve it as another volume
    #[command(after_help = SNAPSHOT_HELP)]
    Clone {
        /// The volume; it lies in a file
        name: String,
        /// The name of the new volume
        clone: String,
        /// The file to make, on the file system of the volume's file
        file: PathBuf,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Change a setting of a volume in use; hosts of both protocols are notified
    Set {
        /// The volume
        name: String,
        /// Forbid writes, or allow them again; until the daemon exits
        #[arg(long, value_name = "on|off", value_enum, required_unless_present_any = LIMIT_OPTIONS)]
        read_only: Option<OnOff>,
        /// How much may be done with it per second
        #[command(flatten)]
        limits: VolumeLimitArgs,
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
    /// Refuse a host from now on, after a restart too, and end its sessions and controllers
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
    /// Its iSCSI name or NQN, or its name in the configuration: all names of that
    pub name: String,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

const HOST_BLOCK_HELP: &str = "\
It returns when nothing of the host's sessions is in flight any more. New logins are refused with authorization \
failure (0202h), Connects with Connect Invalid Host, and discovery shows it nothing. The block is kept in the state \
directory; an apply leaves it as it is. Reservations and registrations of the host stay: preempt them from another \
host if need be. Any program that reaches the portals can forge a name: secrets keep out those that do.

Examples:
  blockwire host block nqn.2014-08.org.example:db1
  blockwire host block iqn.1993-08.org.debian:01:db1
  blockwire host unblock db1";

/// Verbs of `gateway`.
#[derive(Debug, Subcommand)]
pub enum GatewayVerb {
    /// List the gateways of the group, and who owns which volume
    List(DaemonArgs),
    /// Hand all volumes of the group to other gateways, and take none until `--off` or the next start
    #[command(after_help = GATEWAY_DRAIN_HELP)]
    Drain {
        /// Take volumes again
        #[arg(long)]
        off: bool,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Bar a gateway from the cluster, and take its volumes
    #[command(after_help = GATEWAY_FENCE_HELP)]
    Fence {
        /// Its name, or the number of one run of it (`gateway list`)
        gateway: String,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

const GATEWAY_DRAIN_HELP: &str = "\
Hosts stay connected and reach the volumes through this gateway as before, by the new owners. It returns when the \
gateway owns nothing, or after 5 s; then it goes on in the background.

Example:
  blockwire gateway drain && systemctl restart blockwire";

const GATEWAY_FENCE_HELP: &str = "\
For a gateway that is lost or must not go on. What it had in flight is never written after this. A daemon that still \
runs resets its hosts' connections and ends; started again it joins as another instance. A gateway that is only slow \
is better drained.

Example:
  blockwire gateway fence rack7";

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
        over restarts too. NVMe has no standby, and shows it as inaccessible; nor has it preferred paths.\n\nExamples:\n  blockwire path set db --group 2 --state inaccessible\n  \
        blockwire path set db --state optimized\n  blockwire path set db --port 1 --preferred on"
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
        /// optimized, non-optimized, standby, inaccessible, persistent-loss or
        /// transition
        #[arg(long, value_parser = parse_path_state, required_unless_present = "preferred")]
        state: Option<String>,
        /// Whether the paths are preferred, which SCSI hosts are told
        #[arg(long, value_name = "on|off", value_enum)]
        preferred: Option<OnOff>,
        /// Which daemon.
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

fn parse_path_state(text: &str) -> Result<String, String> {
    let words = PathAccess::ALL.map(PathAccess::name);
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

/// The options of [`VolumeLimitArgs`].
const LIMIT_OPTIONS: [&str; 4] = ["iops_limit", "iops_burst", "bandwidth_limit", "bandwidth_burst"];

/// Limits of a volume, until the daemon exits.
#[derive(Debug, Args)]
pub struct VolumeLimitArgs {
    /// Most operations per second of all hosts together; none: no limit
    #[arg(long, value_name = "N|none", value_parser = parse_iops, conflicts_with = "read_only")]
    pub iops_limit: Option<u64>,
    /// Operations that may begin at once after a pause; a tenth of a second's unless given
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "read_only")]
    pub iops_burst: Option<u64>,
    /// Most bytes per second, read and written together; none: no limit
    #[arg(long, value_name = "SIZE|none", value_parser = parse_bandwidth, conflicts_with = "read_only")]
    pub bandwidth_limit: Option<u64>,
    /// Bytes that may be moved at once after a pause; a tenth of a second's unless given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "read_only")]
    pub bandwidth_burst: Option<u64>,
}

/// A number of operations per second; 0: no limit.
fn parse_iops(text: &str) -> Result<u64, String> {
    if text == "none" { Ok(0) } else { parse_count(text) }
}

/// A number of bytes per second; 0: no limit.
fn parse_bandwidth(text: &str) -> Result<u64, String> {
    if text == "none" { Ok(0) } else { parse_bytes(text) }
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
It returns when nothing of the sessions is in flight any more. Commands in flight may or may not have reached the \
medium, as after a lost connection. An iSCSI session ends with its nexus: a reservation by RESERVE(6) goes, \
persistent ones stay. Over NVMe/TCP the association ends, with all queues of the controller.

A write to an image of Ceph that has failed after queue_timeout is not waited for: it may still reach the medium. A \
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
