//! `blockwire attach` and `blockwire detach`: a remote volume as a local block device.
//!
//! `attach` stays in the foreground and serves the device until it is told to stop; with `--daemon` it asks
//! the running daemon to do that. Invariant: `--list` and `detach` find attachments of either, and those that
//! a killed holder left.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use block_device::DeviceInterface;
use clap::Args;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{json_text, print};
use crate::output::{self, Terminal};
use control::secret_url::SecretUrl;
use control::{AttachRequest, Request, client};
use process::exit::{Exit, Failure};
use process::paths::DefaultPaths;
use recovery::list::{AttachState, FoundAttachment};
use recovery::record::{self, AttachRecord, to_millis};
use recovery::{AccessPoints, AttachCancellation, AttachOptions, Attachment, DetachHandle};
use reports::{AttachedReport, DetachedReport};

/// `attach`
#[derive(Debug, Args)]
#[command(
    after_help = "It prints a line for each access point, for example \"device /dev/loop0\", then a line that is exactly \"ready\".
SIGTERM or SIGINT, or `blockwire detach`, ends it when the device's users are gone; a second signal ends it at \
once. With --daemon it returns as soon as the running `blockwire serve` holds the device. Then the daemon reads the \
files with secrets and the variables that the URL names.

If the holder is killed, I/O waits until `attach --recover` recovers the device, or until the time-out has \
passed; then it fails. FUSE needs Linux 6.9 for that. The next daemon with the same control socket recovers \
attachments of a daemon automatically.

Examples:
  blockwire attach iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0
  blockwire attach nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:db/1 \\
      --via nbd --at /tmp/db.sock
  blockwire attach iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 --daemon \\
      --timeout 5m
  blockwire attach iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 --recover
  blockwire attach --list"
)]
pub struct AttachArgs {
    /// The volume; several URLs joined by commas are its paths
    #[arg(required_unless_present = "list")]
    pub url: Option<SecretUrl>,
    /// Method: ublk (a kernel block device), fuse (a file, and a loop device over it where that is
    /// allowed), nbd (a Unix socket for qemu, fio, libnbd), vhost-user (a disk for a QEMU virtual machine).
    /// Default: the best that the machine offers
    #[arg(long, value_name = "WAY", value_parser = recovery::parse_via)]
    pub via: Option<DeviceInterface>,
    /// The directory (fuse), socket (nbd, vhost-user) or device (ublk: /dev/ublkbN) to
    /// create. Default: an unused name
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// Have the running daemon hold it
    #[arg(long)]
    pub daemon: bool,
    /// Recover an attachment whose holder was killed: of this volume, or the one that --at names. Waiting
    /// requests are issued again
    #[arg(long)]
    pub recover: bool,
    /// With --recover --at /dev/ublkbN: without a record of the device; it is assumed to be the URL's volume
    #[arg(long, requires = "recover")]
    pub force: bool,
    /// How long I/O waits for --recover if the holder is killed; 0: not at all. By default as long as an
    /// operation waits for a path to the volume
    #[arg(long, value_name = "TIME", value_parser = recovery::parse_timeout, default_value = "120s")]
    pub timeout: Duration,
    /// Show all attachments, including those that wait for recovery
    #[arg(long, conflicts_with = "url")]
    pub list: bool,
    /// The daemon's control socket, if not at the default path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `detach`
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The device, file, socket or directory as `attach --list` shows them, or the process of an attachment in
    /// the foreground
    pub name: String,
    /// Do not wait for the device's users
    #[arg(long)]
    pub now: bool,
    /// The daemon's control socket, if not at the default path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Attaches, or lists.
pub fn attach(args: &AttachArgs) -> Result<Exit, Failure> {
    let Some(url) = &args.url else { return list_attachments(args) };
    let at = args.at.as_deref().map(std::path::absolute).transpose();
    let at = at.map_err(|why| Failure::failed(format!("--at: {why}")))?;
    if args.daemon {
        return attach_by_daemon(args, url, at);
    }
    let options = AttachOptions {
        url: url.clone(),
        via: args.via,
        at,
        recover: args.recover,
        force: args.force,
        timeout: args.timeout,
        dir: record::record_dir(args.control.as_deref()),
        control: None,
    };
    let attachment = Attachment::open(options, &AttachCancellation::new())?;
    if let Some(remark) = &attachment.remark {
        print(&format!("{remark}\n"))?;
    }
    let end = DetachHandle::new()?;
    let heard = end.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let handle = signals.handle();
    let ears = thread::spawn(move || signals.forever().for_each(|_| heard.detach()));
    let served = attachment.serve(&end, &mut |opened: &AccessPoints| {
        // Who reads no lines still wants the device.
        let _ = print(&(opened.display_lines().join("\n") + "\nready\n"));
    });
    handle.close();
    let _ = ears.join();
    served.map(|()| Exit::Success)
}

fn control_socket(given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| DefaultPaths::of_process().control, Path::to_owned)
}

fn attach_by_daemon(args: &AttachArgs, url: &SecretUrl, at: Option<PathBuf>) -> Result<Exit, Failure> {
    let request = AttachRequest {
        url: url.clone(),
        via: args.via.map(|via| via.cli_name().to_owned()),
        at,
        recover: args.recover,
        force: args.force,
        timeout_ms: to_millis(args.timeout),
    };
    let answer = client::send_request(&control_socket(args.control.as_deref()), Request::Attach(request))?;
    match args.json {
        true => print(&output::answer_json(&answer))?,
        false => print(&format!("{}ready\n", output::answer_text(&answer, Terminal::of_stdout()).as_str()))?,
    }
    Ok(Exit::Success)
}

fn list_attachments(args: &AttachArgs) -> Result<Exit, Failure> {
    let found = recovery::find_all(&record::record_dirs(args.control.as_deref()))?;
    if args.json {
        print(&json_text(&found.iter().map(attachment_report).collect::<Vec<_>>()))?;
        return Ok(Exit::Success);
    }
    let mut rows = Vec::new();
    for FoundAttachment { record, state, .. } in &found {
        let holder = if record.control.is_some() { "daemon" } else { "process" };
        let said = match state {
            AttachState::Serving => "serving".to_owned(),
            AttachState::Waiting { left_ms } => format!("waits {} s for --recover", left_ms.div_ceil(1000)),
            AttachState::Failing => "fails".to_owned(),
            AttachState::Stranded => "waits for --recover, without a time-out".to_owned(),
            AttachState::Unknown => "unknown: its processes are not visible from here".to_owned(),
        };
        let AttachRecord { via, url, .. } = record;
        rows.push([
            format!("{holder} {}", record.holder.pid),
            via.to_string(),
            record.ways.join(" "),
            said,
            url.to_string(),
        ]);
    }
    let head = ["HELD BY", "VIA", "DEVICE", "STATE", "VOLUME"];
    print(output::render_table(Terminal::of_stdout(), head, rows, "nothing is attached").as_str())?;
    Ok(Exit::Success)
}

fn attachment_report(found: &FoundAttachment) -> AttachedReport {
    let FoundAttachment { record, state, .. } = found;
    let (state, left_ms) = match state {
        AttachState::Serving => ("serving", None),
        AttachState::Waiting { left_ms } => ("waiting", Some(*left_ms)),
        AttachState::Failing => ("failing", None),
        AttachState::Stranded => ("stranded", None),
        AttachState::Unknown => ("unknown", None),
    };
    AttachedReport {
        pid: record.holder.pid,
        daemon: record.control.is_some(),
        url: record.url.clone(),
        via: record.via.clone(),
        ways: record.ways.clone(),
        uuid: record.uuid.clone(),
        timeout_ms: record.timeout_ms,
        state,
        left_ms,
    }
}

/// Ends an attachment, and waits until it is gone.
pub fn detach(args: &DetachArgs) -> Result<Exit, Failure> {
    let found = recovery::find(&record::record_dirs(args.control.as_deref()), &args.name)?;
    recovery::detach(&found, args.now)?;
    if args.json {
        let AttachRecord { url, via, ways, uuid, .. } = found.record.clone();
        print(&json_text(&DetachedReport { url, via, ways, uuid }))?;
    }
    Ok(Exit::Success)
}
