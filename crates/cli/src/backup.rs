//! `backup` and `restore`: the state directory of a daemon in one file, and back.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;

use control::report::{BackupReport, RestoreReport};
use engine::backup::{BACKUP_BYTES_MAX, Backup, BackupError, BackupSource};
use process::{exit::Failure, paths::DefaultPaths, printable, private_file::create_private_file};

/// The help of `backup`.
pub const BACKUP_HELP: &str = "\
The file (mode 0600; it must not exist) has the configuration in force and all records of the state directory: \
identities and serial numbers, reservations and registrations, path states, protection, bad blocks, volumes created at \
run time, blocked hosts, numbers of ports. It holds secrets if the configuration does. It does not hold the blocks of \
volumes, nor files that the configuration names, such as keys: they are listed.

A running daemon is asked for it, and gives all of it as of one moment. Without one the state directory is read.

It is a tar archive: `tar -xf FILE configuration` gives the configuration.

Examples:
  blockwire backup /root/blockwire-backup.tar
  blockwire backup b.tar --state /srv/bw/state --config /srv/bw/blockwire.toml";

/// The help of `restore`.
pub const RESTORE_HELP: &str = "\
The whole file is checked before anything is changed. The directory must not be in use, and must be empty, unless \
--replace is given: then its records are moved into a directory in it (before-restore-1 and so on). If it is killed, \
the next start finds all old records or all new ones.

Run it as the user of the daemon. `-` reads the backup from standard input.

The daemon of the backup must never run again beside the restored one: both would serve volumes under the same \
identities, and hosts would take the two for one and corrupt data. The blocks must not be older than the backup's \
registrations need: restore reservations only together with hosts that still hold them.

Examples:
  blockwire restore b.tar --state /var/lib/blockwire
  runuser -u blockwire -- blockwire restore - --state /var/lib/blockwire < b.tar";

/// Options of `backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The file to write
    pub file: PathBuf,
    /// State directory [default: /var/lib/blockwire]
    #[arg(long, value_name = "DIR", conflicts_with = "control")]
    pub state: Option<PathBuf>,
    /// The configuration file, where no daemon runs [default: /etc/blockwire/blockwire.toml]
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub config: Option<PathBuf>,
    /// Control socket of the daemon [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup; - is standard input
    pub file: PathBuf,
    /// State directory to fill
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Move what it has aside, if it is not empty
    #[arg(long)]
    pub replace: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Writes a backup, and gives what to print.
///
/// # Errors
/// No file is left then.
pub fn back_up(args: &BackupArgs, paths: &DefaultPaths) -> Result<String, Failure> {
    let source = BackupSource {
        state: args.state.as_deref(),
        configuration: args.config.as_deref(),
        control: args.control.as_deref(),
    };
    let (bytes, backup) = source.take_backup(paths)?;
    create_private_file(&args.file, &[&bytes]).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::failed(format!("{} exists: name another file, or remove it first", args.file.display()))
        }
        _ => Failure::failed(format!("cannot write {}: {why}", args.file.display())),
    })?;
    let secret = backup.manifest.files.iter().filter(|file| file.secret).map(|file| file.name.clone());
    let report = BackupReport {
        file: args.file.clone(),
        size_bytes: bytes.len() as u64,
        records: backup.records(),
        secrets: secret.collect(),
        not_included: backup.manifest.not_included.clone(),
    };
    Ok(if args.json { json(&report) } else { backup_text(&report) })
}

/// Restores a backup, and gives what to print.
///
/// # Errors
/// Nothing is changed then.
pub fn restore(args: &RestoreArgs) -> Result<String, Failure> {
    let name = args.file.display();
    let bytes =
        read_backup(&args.file).map_err(|why| Failure::failed(format!("cannot read {name}: {why}")))?;
    let named = |why: BackupError| match why {
        BackupError::Damaged(_) | BackupError::Newer { .. } => Failure::failed(format!("{name}: {why}")),
        other => Failure::failed(other),
    };
    let backup = Backup::parse(&bytes).map_err(named)?;
    let replaced = backup.restore(&args.state, args.replace).map_err(named)?;
    let configuration = backup.manifest.files.iter().filter_map(|file| file.path.clone());
    let report = RestoreReport {
        directory: args.state.clone(),
        records: backup.records(),
        replaced,
        configuration: configuration.collect(),
        not_included: backup.manifest.not_included.clone(),
    };
    Ok(if args.json { json(&report) } else { restore_text(&report, &args.file) })
}

fn read_backup(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let input: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(fs::File::open(path)?) };
    input.take(BACKUP_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BACKUP_BYTES_MAX {
        let why = format!("it is longer than {BACKUP_BYTES_MAX} bytes, which no backup is");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

fn json(report: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(report).map(|text| text + "\n").unwrap_or_default()
}

fn backup_text(report: &BackupReport) -> String {
    let BackupReport { file, size_bytes, records, secrets, not_included } = report;
    let mut lines = vec![format!("{}: {records} records, {size_bytes} bytes", file.display())];
    if !secrets.is_empty() {
        lines.push("keep it as a secret; these may hold secrets in clear text:".to_owned());
        lines.extend(secrets.iter().map(|name| format!("  {name}")));
    }
    list_lacks(&mut lines, not_included);
    lines.iter().map(|line| printable::escape_line(line).into_owned() + "\n").collect()
}

fn restore_text(report: &RestoreReport, file: &Path) -> String {
    let mut lines = vec![format!("{}: {} records restored", report.directory.display(), report.records)];
    if let Some(replaced) = &report.replaced {
        lines.push(format!("the records that it had are in {}", replaced.display()));
    }
    if !report.configuration.is_empty() {
        lines.push(format!(
            "`tar -xf {} configuration` gives the configuration, which was in:",
            file.display()
        ));
        lines.extend(report.configuration.iter().map(|path| format!("  {}", path.display())));
    }
    list_lacks(&mut lines, &report.not_included);
    lines.push(
        "never start the daemon of the backup again beside this one: hosts would take both for one and corrupt data"
            .to_owned(),
    );
    lines.iter().map(|line| printable::escape_line(line).into_owned() + "\n").collect()
}

fn list_lacks(lines: &mut Vec<String>, lacks: &[String]) {
    if !lacks.is_empty() {
        lines.push("not in the backup:".to_owned());
        lines.extend(lacks.iter().map(|what| format!("  {what}")));
    }
}
