//! Which sessions and controllers of Linux's initiators belong to a run: they carry a unique name.
//!
//! Sessions of open-iscsi use an interface of the run, NVMe controllers its host identifier. Invariant: no
//! other session is ended or removed.

use crate::Failure;
use crate::place::Place;

const SCRIPT: &str = include_str!("sessions.sh");

fn said(place: &Place, words: &[&str]) -> Result<String, Failure> {
    let run = place.run(&[&["sh", "-c", SCRIPT, "sh"], words].concat());
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
pub(crate) fn refuse_iscsi(place: &Place, target: &str, interface: &str) -> Result<(), Failure> {
    let held = said(place, &["iscsi-held", target, interface])?;
    refuse(place, target, "log out of it (iscsiadm -m session)", &held)
}

/// Refuses a subsystem that controllers which are not ours use: with multipath theirs and ours would be one.
pub(crate) fn refuse_nvme(place: &Place, nqn: &str, host: &str) -> Result<(), Failure> {
    let held = said(place, &["nvme-held", nqn, host])?;
    refuse(place, nqn, "disconnect it (nvme disconnect -d)", &held)
}

fn refuse(place: &Place, name: &str, how: &str, held: &str) -> Result<(), Failure> {
    let held: Vec<&str> = held.split_ascii_whitespace().collect();
    if held.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{name} is in use on {} already, by {}, which the load would write under: {how}, or name another volume",
        place.name(),
        held.join(", ")
    )))
}

/// Whether this run has an iSCSI session with a target.
pub(crate) fn has_iscsi_session(place: &Place, interface: &str, target: &str) -> Result<bool, Failure> {
    Ok(!said(place, &["iscsi-ours", interface, target])?.trim().is_empty())
}

/// Whether this run has a controller of a subsystem.
pub(crate) fn has_nvme_controller(place: &Place, host: &str, nqn: &str) -> Result<bool, Failure> {
    Ok(!said(place, &["nvme-ours", host, nqn])?.trim().is_empty())
}

/// Whether an interface of open-iscsi, or a session over it, exists; true if this cannot be determined.
pub(crate) fn may_have_iscsi_sessions(place: &Place, interface: &str) -> bool {
    said(place, &["iscsi-ours", interface]).map_or(true, |said| !said.trim().is_empty())
}

/// Ends sessions over an interface, and forgets them and it.
pub(crate) fn end_iscsi_sessions(place: &Place, interface: &str) {
    let _ = said(place, &["iscsi-undo", interface]);
}

/// Whether a host has controllers; true if this cannot be determined.
pub(crate) fn may_have_nvme_controllers(place: &Place, host: &str) -> bool {
    said(place, &["nvme-ours", host]).map_or(true, |said| !said.trim().is_empty())
}

/// Disconnects all controllers of a host.
pub(crate) fn disconnect_nvme(place: &Place, host: &str) {
    let _ = said(place, &["nvme-undo", host]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a list names would be forgotten, and stay: as when no process can be started any more.
    #[test]
    fn what_cannot_be_asked_for_is_never_taken_for_gone() {
        let ssh = ["sh", "-c", "exit 255"].map(str::to_owned).to_vec();
        let place = Place::Ssh(crate::place::Machine::new(ssh, "storage", std::path::Path::new("none")));
        assert!(may_have_iscsi_sessions(&place, "bw-x") && may_have_nvme_controllers(&place, "x"));
    }
}
