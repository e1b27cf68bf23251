//! The command line for clap: parsing only.
//!
//! The verbs and options are a contract (scripts depend on them). An option that this version does not
//! support is a usage error that says so.

mod daemon_verbs;
#[cfg(test)]
mod schema_tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};

pub use self::daemon_verbs::{
    ConnectionVerb, GatewayVerb, HostBlockArgs, HostVerb, ListVerb, OnOff, PathVerb, ReservationVerb,
    SessionKillArgs, SessionVerb, SubsystemVerb, TargetVerb, VolumeLimitArgs, VolumeVerb,
};
use crate::{
    apply::{APPLY_HELP, ConfigurationArgs, PLAN_HELP, ROLLBACK_HELP},
    backup::{BACKUP_HELP, BackupArgs, RESTORE_HELP, RestoreArgs},
    daemon_args::DaemonArgs,
    flight_recorder::{self, FlightRecorderArgs},
    import::{self, ImportArgs},
    iscsictl::{self, IscsictlArgs},
    key::KeyVerb,
    top::TopArgs,
    verbs::RemoteVerb,
};
use engine::serve::args::ServeArgs;

const ABOUT: &str = "Block storage over Ethernet, in user space";

const LONG_ABOUT: &str = "\
Block storage over Ethernet, in user space.

`blockwire serve` exports memory, files and block devices of this machine over iSCSI and NVMe/TCP. `discover`, `info`, \
`read`, `write`, `copy`, `verify`, `reserve`, `scsi`, `nvme`, `doctor`, `attach`, `node`, `connect-all` and `bench` use volumes of other machines, without a \
kernel module and without root. The other verbs query or change a running daemon.";

const EXAMPLES: &str = "\
Examples:
  blockwire serve
      a 256 MiB RAM disk on 127.0.0.1, over both protocols
  blockwire serve --volume db=file:/srv/db.img,size=200G
      a file as a disk; the file is created
  blockwire serve --config /etc/blockwire/blockwire.toml
  blockwire volume create scratch=ram:4G
      in the running daemon
  blockwire connection list --json

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 connections would be disturbed (`plan`), 8 connect time-out, 15 already attached, 21 nothing found, 24 not authenticated, 33 request time-out.";

const SERVE_HELP: &str = "\
SPEC is KIND:ARGUMENT[,key=value]...

  ram:SIZE     memory of the daemon; lost when it exits
  file:PATH    a file; with size= it is created or grown to that size
  /dev/NAME    a block device
  rbd:POOL/IMAGE
               an image of Ceph (needs librbd1 and librados2);
               see docs/scale-out.md
  nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
               an export of an NBD server; see docs/nbd.md
  null:SIZE    reads zeroes, discards writes; for measurements
  URL          a volume of another machine: iscsi://HOST/IQN/LUN or
               nvme+tcp://HOST/NQN/NSID, several paths joined by commas; its
               size, blocks and identity are those of that volume
  stripe:SPEC+SPEC...
               several of these as one (RAID 0, no redundancy)

  size=SIZE        size of a file, for example 64M or 1T (binary), or of a
                   stripe
  chunk=SIZE       contiguous bytes per leg of a stripe, a power of two (64K)
  block=512|4096   logical block size; 512 unless given
  physical=SIZE    physical block size
  ro               write-protected
  uuid=UUID        identity shown to initiators
  cache=on|off     report and use a volatile write cache (on for files and
                   devices); off: every write is on stable storage before it
                   completes
  direct           bypass the page cache
  thin=on|off      free unmapped blocks (on, except for devices)
  thin_threshold=PERCENT
                   tell initiators when so much is allocated (none)
  removable        report a removable medium
  movable          of a ram volume: memory that `upgrade` hands on
  tas=on|off       report TASK ABORTED for commands that another initiator
                   aborts (on)
  sanitize_rate=SIZE
                   most bytes per second that a sanitize writes (no limit)
  iops_limit=N, bandwidth_limit=SIZE
                   most operations and bytes per second (no limit); what
                   is over waits
  iops_burst=N, bandwidth_burst=SIZE
                   so much at once after a pause (a tenth of the limit)
  persist=force    reservations always survive a restart
  conf=PATH        of an image: the cluster's configuration
                   (/etc/ceph/ceph.conf)
  user=NAME        of an image: the user of the cluster (admin)
  queue_timeout=TIME
                   of an image or export: how long I/O waits for the cluster
                   or server and then fails (20s)
  break_lock=on    of an image: take the lock of a client that is not connected,
                   and blocklist it

In a path, escape commas as \\, and plus signs as \\+. Escape commas inside a leg of a stripe likewise; a leg may \
have options of its own: stripe:file:/a\\,size=1G+file:/b\\,size=1G,chunk=128K. A stripe takes size, chunk, ro, uuid, \
removable, tas, sanitize_rate, limits, bursts and persist; the plus signs of nvme+tcp:// and nbd+unix:// need no backslash.

A URL takes ro, uuid, removable, tas, sanitize_rate, limits, bursts and persist after a comma at its end, and its own options after \
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

The variable BLOCKWIRE_LOG says what is logged: LEVEL or AREA=LEVEL, joined by commas, for example \
warn,iscsi=debug. Levels are off, error, warn, info (the default), debug and trace; areas are iscsi, nvme, session, \
volume, path, attach, config, control, audit, metrics, state and serve.

Examples:
  blockwire serve --volume demo=ram:1G
  blockwire serve --volume db=/dev/sdb,cache=off --iscsi 192.0.2.10
  blockwire serve --volume fast=ram:8G --nvme 127.0.0.1
  blockwire serve --volume a=ram:1G --control /tmp/bw/sock --state /tmp/bw";

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
    /// Show the gateways that serve the same images of Ceph; hand volumes over, bar a gateway
    #[command(subcommand, arg_required_else_help = true)]
    Gateway(GatewayVerb),
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
    /// Write all that the daemon keeps, and its configuration, to one file; the blocks of volumes are not in it
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupArgs),
    /// Make what a backup holds the state of a daemon that does not run
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Show whether all is well, and what the running daemon serves
    #[command(after_help = STATUS_HELP)]
    Status(DaemonArgs),
    /// Show what the running daemon does, again and again: volumes, hosts, shards, latency
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Show the latest events of a daemon that runs or has crashed: logins, refusals, fences, failed and slow operations
    #[command(after_help = flight_recorder::HELP)]
    FlightRecorder(FlightRecorderArgs),
    /// Let a new binary serve in place of the running daemon, while hosts work
    #[command(after_help = UPGRADE_HELP)]
    Upgrade(UpgradeArgs),
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

const UPGRADE_HELP: &str = "\
The daemon starts the new binary with its own arguments and hands it listeners, connections, files and all that hosts \
can notice. Hosts see a short pause: no failed command, no new login. If anything fails before the new process serves, \
the daemon serves on and says why. What cannot move is closed and listed: connections over TLS, discovery, logins under \
way. Volumes in memory, of other machines and of Ceph cannot move: the daemon then refuses, and has to be restarted.

Examples:
  blockwire upgrade
  blockwire upgrade /usr/local/bin/blockwire --within 5s";

/// Options of `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The new binary [default: that of the daemon, as it is on disk now]
    pub binary: Option<PathBuf>,
    /// How long commands may take that are in work
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_within)]
    pub within: std::time::Duration,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// Seconds, or milliseconds with `ms`.
fn parse_within(text: &str) -> Result<std::time::Duration, String> {
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| "expected a time, such as 2s or 500ms".to_owned());
    match text.strip_suffix("ms") {
        Some(ms) => number(ms).map(std::time::Duration::from_millis),
        None => number(text.strip_suffix('s').unwrap_or(text)).map(std::time::Duration::from_secs),
    }
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
            "volume snapshot a b.img",
            "volume clone a b b.img --json",
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
            "path set a --port 1 --preferred on",
            "path set a --state standby --preferred off",
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
            "backup b.tar",
            "backup b.tar --state d --config f --json",
            "restore b.tar --state d --replace --json",
            "status --json",
            "top",
            "top --once --interval 0.5 --no-color --control c",
            "flight-recorder --last 20 --json",
            "flight-recorder --run 1 --control c",
            "flight-recorder 0-0.flight",
            "doctor",
            "doctor --control c --config f --state d --json",
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
            "node list --json",
            "node add a iscsi://h/iqn.2026-11.x:y/0 --autostart --via nbd",
            "node set a --autostart no --nodes d",
            "node discover nvme+tcp://h --autostart yes",
            "connect-all",
            "connect-all a b --control c --json",
            "upgrade /opt/blockwire --within 500ms --json",
            "stop",
            "completions fish",
            "man dir",
        ] {
            let words = std::iter::once("blockwire").chain(line.split_whitespace());
            Cli::try_parse_from(words).unwrap_or_else(|why| panic!("{line}: {why}"));
        }
    }

    /// Paragraphs are one line each, which clap breaks where the terminal ends: a line end within one would show as a
    /// short line in its middle. What is laid out by hand (it begins with a blank) fits 80 columns.
    #[test]
    fn help_is_wrapped_once() {
        fn check(command: &clap::Command, name: &str, wrong: &mut Vec<String>) {
            let shown = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for (line, next) in shown.lines().zip(shown.lines().skip(1).chain([""])) {
                let is_laid_out = line.starts_with(' ');
                if is_laid_out && line.chars().count() > 80 {
                    wrong.push(format!("{name}: wider than 80: {line}"));
                }
                let goes_on = next.starts_with(|c: char| c.is_alphanumeric());
                let ends = line.is_empty() || line.ends_with(['.', ':', ';']);
                if !is_laid_out && !ends && goes_on {
                    wrong.push(format!("{name}: broken by hand after: {line}"));
                }
            }
            for verb in command.get_subcommands() {
                check(verb, &format!("{name} {}", verb.get_name()), wrong);
            }
        }
        let mut wrong = Vec::new();
        check(&Cli::command(), "blockwire", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
            &["scsi", URL, "00", "00", "00", "00", "00", "00"],
            &["nvme", "admin-passthru", URL, "--opcode=6"],
            &["nvme", "io-passthru", URL, "--opcode=2"],
            &["attach", URL, "--daemon"],
            &["node", "add", "a", URL],
            &["node", "set", "a", "--url", URL],
            &["node", "discover", URL],
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
