//! Which sessions and controllers of Linux's initiators belong to a run: they carry a unique name.
//!
//! Sessions of open-iscsi use an interface of the run, NVMe controllers its host identifier. Invariant: no
//! other session is ended or removed.

use crate::Failure;
use crate::place::CommandLocation;

const SESSIONS_SCRIPT: &str = include_str!("sessions.sh");

fn run_script(place: &CommandLocation, words: &[&str]) -> Result<String, Failure> {
    let run = place.run(&[&["sh", "-c", SESSIONS_SCRIPT, "sh"], words].concat());
    // The script is long; what it said is what matters.
    run.map_err(|why| {
        Failure::new(format!(
            "{}: {}",
            words.first().unwrap_or(&""),
            why.to_string().lines().last().unwrap_or("")
        ))
    })
}

/// Refuses a target that sessions which are not ours use: their disks may be mounted.
pub(crate) fn refuse_foreign_iscsi(
    place: &CommandLocation,
    target: &str,
    interface: &str,
) -> Result<(), Failure> {
    let held = run_script(place, &["iscsi-held", target, interface])?;
    refuse_foreign(place, target, "log out of it (iscsiadm -m session)", &held)
}

/// Refuses a subsystem that controllers which are not ours use: with multipath theirs and ours would be one.
pub(crate) fn refuse_foreign_nvme(place: &CommandLocation, nqn: &str, host: &str) -> Result<(), Failure> {
    let held = run_script(place, &["nvme-held", nqn, host])?;
    refuse_foreign(place, nqn, "disconnect it (nvme disconnect -d)", &held)
}

fn refuse_foreign(place: &CommandLocation, name: &str, how: &str, held: &str) -> Result<(), Failure> {
    let held: Vec<&str> = held.split_ascii_whitespace().collect();
    if held.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{name} is in use on {} already, by {}, which the load would write under: {how}, or name another volume",
        place.display_name(),
        held.join(", ")
    )))
}

/// Whether this run has an iSCSI session with a target.
pub(crate) fn has_iscsi_session(
    place: &CommandLocation,
    interface: &str,
    target: &str,
) -> Result<bool, Failure> {
    Ok(!run_script(place, &["iscsi-ours", interface, target])?.trim().is_empty())
}

/// Whether this run has a controller of a subsystem.
pub(crate) fn has_nvme_controller(place: &CommandLocation, host: &str, nqn: &str) -> Result<bool, Failure> {
    Ok(!run_script(place, &["nvme-ours", host, nqn])?.trim().is_empty())
}

/// Whether an interface of open-iscsi, or a session over it, exists; true if this cannot be determined.
pub(crate) fn may_have_iscsi_sessions(place: &CommandLocation, interface: &str) -> bool {
    run_script(place, &["iscsi-ours", interface]).map_or(true, |said| !said.trim().is_empty())
}

/// Ends sessions over an interface, and forgets them and it.
pub(crate) fn end_iscsi_sessions(place: &CommandLocation, interface: &str) {
    let _ = run_script(place, &["iscsi-undo", interface]);
}

/// Whether a host has controllers; true if this cannot be determined.
pub(crate) fn may_have_nvme_controllers(place: &CommandLocation, host: &str) -> bool {
    run_script(place, &["nvme-ours", host]).map_or(true, |said| !said.trim().is_empty())
}

/// Disconnects all controllers of a host.
pub(crate) fn disconnect_nvme(place: &CommandLocation, host: &str) {
    let _ = run_script(place, &["nvme-undo", host]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a list names would be forgotten, and stay: as when no process can be started any more.
    #[test]
    fn what_cannot_be_asked_for_is_never_taken_for_gone() {
        let ssh = ["sh", "-c", "exit 255"].map(str::to_owned).to_vec();
        let place =
            CommandLocation::Ssh(crate::place::SshMachine::new(ssh, "storage", std::path::Path::new("none")));
        assert!(may_have_iscsi_sessions(&place, "bw-x") && may_have_nvme_controllers(&place, "x"));
    }
}
