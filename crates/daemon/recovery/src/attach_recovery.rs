//! Finding attachments: by name, for a recovery, or to give one up.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use block_device::DeviceInterface;

use super::list::{self, AttachState, FoundAttachment};
use super::{AttachOptions, device_servers, guardian_client, parse_via};
use process::exit::{Exit, Failure};
use process::owned_dir;

/// The attachment to recover: the one at the requested path, or the one of the requested volume.
pub(super) fn find_recoverable(
    options: &AttachOptions,
    shown: &str,
) -> Result<Option<FoundAttachment>, Failure> {
    let all = list::find_attachments(&options.dir)?;
    let at = options.at.as_deref().and_then(|at| all.iter().find(|found| found.matches_name(at)));
    if let Some(found) = at {
        return match (found.state, options.recover) {
            (AttachState::Serving, _) => {
                let why = format!(
                    "{} is attached, by process {}",
                    found.access_points_text(),
                    found.record.holder.pid
                );
                Err(Failure::new(Exit::Exists, why))
            }
            (AttachState::Unknown, _) => Err(holder_unknown_failure(found)),
            (_, true) => Ok(Some(found.clone())),
            (_, false) => Err(Failure::failed(format!(
                "{} is waiting to be recovered: use --recover, or remove it with `blockwire detach {}`",
                found.access_points_text(),
                found.record.ways.first().map_or("", String::as_str),
            ))),
        };
    }
    if !options.recover || options.at.is_some() {
        return Ok(None);
    }
    let mut waiting = all.iter().filter(|found| !found.is_held() && found.record.url == shown);
    match (waiting.next(), waiting.next()) {
        (Some(found), None) => Ok(Some(found.clone())),
        (None, _) => {
            let why = "no attachment of this volume is waiting to be recovered; name one with --at";
            Err(Failure::new(Exit::NothingFound, why))
        }
        (Some(one), Some(other)) => {
            let why = format!(
                "several are waiting to be recovered ({}, {}): choose one with \
                         --at",
                one.access_points_text(),
                other.access_points_text()
            );
            Err(Failure::usage(why))
        }
    }
}

/// Refuses a ublk device without a record: it may belong to another volume, and its guardian, which would not be
/// asked, deletes it when the time-out has passed.
pub(super) fn refuse_unknown_device(
    options: &AttachOptions,
    via: DeviceInterface,
    is_known: bool,
) -> Result<(), Failure> {
    if !options.recover || is_known || options.force || via != DeviceInterface::Ublk {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} has no record of such a device, so its user and volume are unknown: name the control socket that it \
         was attached with (--control), or use --force to recover it as the volume of this URL",
        options.dir.display()
    )))
}

/// Refuses a recovery at a place that is taken by something that is no socket. Without this it would wait for the
/// killed holder's writes first.
pub(super) fn refuse_occupied_path(options: &AttachOptions, via: DeviceInterface) -> Result<(), Failure> {
    let (true, DeviceInterface::Nbd | DeviceInterface::VhostUser, Some(at)) =
        (options.recover, via, &options.at)
    else {
        return Ok(());
    };
    match std::fs::symlink_metadata(at) {
        Ok(there) if !there.file_type().is_socket() => Err(Failure::failed(format!(
            "{} exists and is no socket: it stays as it is; use another path for --at",
            at.display()
        ))),
        // What else may be wrong with it, the server tells.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The attach method, and a remark about the choice.
pub(super) fn choose_method(
    options: &AttachOptions,
    left: Option<&FoundAttachment>,
) -> Result<(DeviceInterface, Option<String>), Failure> {
    let Some(left) = left else {
        return Ok(match options.via {
            Some(via) => (via, None),
            None => {
                let choice = block_device::choose_best_interface();
                (choice.via, Some(format!("via {choice}")))
            }
        });
    };
    let was = parse_via(&left.record.via).map_err(Failure::failed)?;
    match options.via {
        Some(wished) if wished != was => {
            Err(Failure::usage(format!("{} was attached via {was}", left.access_points_text())))
        }
        _ => Ok((was, None)),
    }
}

/// Gives up an attachment whose holder is gone: waiting I/O fails.
///
/// # Errors
/// Its guardian does not answer.
pub fn abandon(found: &FoundAttachment) -> Result<(), Failure> {
    match found.state {
        AttachState::Stranded => return delete_stranded(found),
        AttachState::Unknown => return Err(holder_unknown_failure(found)),
        AttachState::Serving | AttachState::Waiting { .. } | AttachState::Failing => {}
    }
    let Some(kept) = &found.record.guardian else { return Ok(()) };
    guardian_client::end_waiting(kept, found.dir.owner_uid())
        .map_err(|why| Failure::failed(format!("{}: {why}", found.access_points_text())))?;
    for _ in 0..100 {
        if kept.process.is_running().is_ok_and(|lives| !lives) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn holder_unknown_failure(found: &FoundAttachment) -> Failure {
    Failure::failed(format!(
        "{} is attached by process {}, and it cannot be determined whether that process is alive: try again in \
         its PID namespace, or when file descriptors and memory are free",
        found.access_points_text(),
        found.record.holder.pid
    ))
}

/// Removes a device or socket whose holder and guardian are both gone.
fn delete_stranded(found: &FoundAttachment) -> Result<(), Failure> {
    let failed = |why: &dyn fmt::Display| Failure::failed(format!("{}: {why}", found.access_points_text()));
    if found.dir.owner_uid() != owned_dir::current_uid() {
        return Err(failed(&"it belongs to another user, and no process of that user is left to remove it"));
    }
    if list::is_stale_socket(found.attach_path(), owned_dir::current_uid()).map_err(|why| failed(&why))? {
        std::fs::remove_file(found.attach_path()).map_err(|why| failed(&why))?;
    } else {
        let number = device_servers::ublk_number(Path::new(found.attach_path()))?;
        block_device::ublk::delete_abandoned(number, found.record.holder.pid).map_err(|why| failed(&why))?;
    }
    found.dir.remove_file(&found.file).map_err(|why| failed(&why))
}

/// All attachments recorded in these directories.
///
/// # Errors
/// A directory cannot be trusted.
pub fn find_all(dirs: &[PathBuf]) -> Result<Vec<FoundAttachment>, Failure> {
    let found: Vec<Vec<FoundAttachment>> =
        dirs.iter().map(|dir| list::find_attachments(dir)).collect::<Result<_, _>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// The attachment of this name.
///
/// # Errors
/// `NothingFound`, with what there is.
pub fn find(dirs: &[PathBuf], name: &str) -> Result<FoundAttachment, Failure> {
    let all = find_all(dirs)?;
    let said = Path::new(name);
    // Try the name as typed first: resolving a path in a mount without a server would hang.
    let absolute = std::path::absolute(said).unwrap_or_else(|_| said.to_owned());
    let found = all.iter().find(|found| found.matches_name(said) || found.matches_name(&absolute));
    let real = || std::fs::canonicalize(said).ok();
    let found = found.or_else(|| real().and_then(|real| all.iter().find(|found| found.matches_name(&real))));
    found.cloned().ok_or_else(|| {
        let here: Vec<String> = all.iter().map(FoundAttachment::access_points_text).collect();
        let here = if here.is_empty() { "nothing".to_owned() } else { here.join(", ") };
        Failure::new(Exit::NothingFound, format!("nothing is attached as {name}; attached: {here}"))
    })
}
