//! Waits until no write of a killed holder can reach the volume any more.
//!
//! The holder records each of its paths: its nexus, and how long after its loss the target may still execute commands.
//! A recovery uses the same nexuses, so that over iSCSI its login ends the old session with all its tasks (RFC 7143
//! §6.3.5). Invariant: a path counts as ended only if this process has logged in as the same nexus at the same address
//! and portal group, or its time has passed. What is not known is waited for.

use std::time::{Duration, Instant};

use client::{Initiator, PathIdentity, Protocol, VolumeHandle};

use super::AttachCancellation;
use super::record::{RecordedPath, to_millis};
use process::exit::{Exit, Failure};

/// Interval of the check of the paths, and for a cancellation.
const PATH_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the first path that comes up waits for the others.
const SLOWER_PATHS_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest Command Quiesce Time that a controller can report (NVMe Base, Identify Controller, CQT).
const QUIESCE_MAX: Duration = Duration::from_millis(u16::MAX as u64);

/// The current paths of a volume, and whether each has been up in this process.
pub fn recorded_paths(initiator: &Initiator, volume: VolumeHandle) -> Vec<(RecordedPath, bool)> {
    let identities = initiator.path_identities(volume).iter().cloned();
    let of = |(PathIdentity { place, number }, info): (PathIdentity, client::PathInfo)| {
        let terms = info.info.as_ref().map(|info| info.terms.as_slice()).unwrap_or_default();
        let group = terms.iter().find(|(name, _)| name == "TargetPortalGroupTag");
        let is_new = info.counts.connects == 0;
        let untold = if is_new && info.protocol == Protocol::Nvme { QUIESCE_MAX } else { Duration::ZERO };
        let noted = RecordedPath {
            place,
            number,
            reinstates: info.protocol == Protocol::Iscsi,
            group: group.map(|(_, tag)| tag.clone()),
            lands_for_ms: to_millis(info.lands_for.saturating_add(untold)),
            is_new,
        };
        (noted, !is_new)
    };
    identities.zip(initiator.paths(volume)).map(of).collect()
}

/// Gives all paths a moment to come up or fail: only then is it known how long their writes may land.
pub fn wait_for_paths(initiator: &mut Initiator, volume: VolumeHandle) {
    let begun = Instant::now();
    let connects = |path: &client::PathInfo| path.state == client::PathState::Connecting;
    while initiator.paths(volume).iter().any(connects) {
        let Some(left) = SLOWER_PATHS_TIMEOUT.checked_sub(begun.elapsed()) else { return };
        initiator.turn(Some(left));
    }
}

/// How long to wait for the paths of a holder that has been dead for `dead_for`.
fn remaining_landing_time(
    before: &[RecordedPath],
    now: &[(RecordedPath, bool)],
    dead_for: Duration,
) -> Duration {
    let has_ended = |old: &RecordedPath| {
        let same_group = |new: &RecordedPath| match (&old.group, &new.group) {
            (Some(theirs), Some(ours)) => theirs == ours,
            // If it was up, its session may be in another group.
            (None, _) | (_, None) => old.is_new,
        };
        let reinstated = |(new, up): &(RecordedPath, bool)| {
            *up && (&new.place, new.number) == (&old.place, old.number) && same_group(new)
        };
        old.reinstates && now.iter().any(reinstated)
    };
    let open = before.iter().filter(|old| !has_ended(old)).map(|old| Duration::from_millis(old.lands_for_ms));
    open.max().unwrap_or_default().saturating_sub(dead_for)
}

/// Waits, while the volume keeps connecting. `before` are the holder's recorded paths; without any, it waits as long as
/// our own would take.
///
/// # Errors
/// It was cancelled.
pub fn wait_for_landing(
    (initiator, volume): (&mut Initiator, VolumeHandle),
    before: &[RecordedPath],
    dead_for: Duration,
    cancellation: &AttachCancellation,
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let now = recorded_paths(initiator, volume);
        let unknown: Vec<RecordedPath>;
        let before = if before.is_empty() {
            unknown =
                now.iter().map(|(path, _)| RecordedPath { reinstates: false, ..path.clone() }).collect();
            &unknown
        } else {
            before
        };
        let left = remaining_landing_time(before, &now, dead_for + begun.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        if cancellation.is_cancelled() {
            return Err(Failure::new(
                Exit::RequestTimeout,
                "recovery is still waiting for writes of the killed holder",
            ));
        }
        initiator.turn(Some(left.min(PATH_POLL_INTERVAL)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn iscsi(place: &str, number: u16) -> RecordedPath {
        let (place, group) = (place.to_owned(), Some("1".to_owned()));
        RecordedPath { place, number, reinstates: true, group, lands_for_ms: 60_000, is_new: false }
    }

    #[test]
    fn a_path_that_did_not_come_up_is_not_taken_for_ended() {
        let before = [iscsi("a", 0), iscsi("b", 1)];
        let up = [(iscsi("a", 0), true), (iscsi("b", 1), true)];
        assert_eq!(remaining_landing_time(&before, &up, Duration::ZERO), Duration::ZERO);
        let one = [(iscsi("a", 0), true), (iscsi("b", 1), false)];
        assert_eq!(remaining_landing_time(&before, &one, Duration::ZERO), MINUTE);
        assert_eq!(remaining_landing_time(&before, &one, MINUTE), Duration::ZERO);
    }

    #[test]
    fn another_nexus_or_portal_group_does_not_end_a_session() {
        let before = [iscsi("a", 0)];
        let elsewhere = RecordedPath { group: Some("2".to_owned()), ..iscsi("a", 0) };
        for other in [iscsi("b", 0), iscsi("a", 1), elsewhere] {
            assert_eq!(remaining_landing_time(&before, &[(other, true)], Duration::ZERO), MINUTE);
        }
    }

    #[test]
    fn a_session_whose_portal_group_nobody_told_is_not_taken_for_ended() {
        let untold = RecordedPath { group: None, ..iscsi("a", 0) };
        for (before, now) in [(&untold, iscsi("a", 0)), (&iscsi("a", 0), untold.clone())] {
            assert_eq!(
                remaining_landing_time(std::slice::from_ref(before), &[(now, true)], Duration::ZERO),
                MINUTE
            );
        }
        // One that had never been up had no session to be elsewhere.
        let new = RecordedPath { is_new: true, ..untold };
        assert_eq!(remaining_landing_time(&[new], &[(iscsi("a", 0), true)], Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_path_of_which_its_controller_has_told_nothing_is_not_taken_for_a_quick_one() {
        let mut initiator = Initiator::new(client::Settings::default()).unwrap();
        // Nobody answers there.
        let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.io.blockwire:a/1?keep_alive=1s";
        let volume = initiator.start_open(url).unwrap();
        let (path, is_up) = recorded_paths(&initiator, volume).remove(0);
        assert!(!is_up && path.is_new);
        assert!(path.lands_for_ms >= 3000 + u64::from(u16::MAX), "{path:?}");
    }

    #[test]
    fn no_login_ends_an_nvme_controller_and_its_own_time_is_waited() {
        let path = RecordedPath { reinstates: false, lands_for_ms: 3 * 3_600_000, ..iscsi("a", 0) };
        let now = [(path.clone(), true)];
        assert_eq!(remaining_landing_time(&[path], &now, MINUTE), 180 * MINUTE - MINUTE);
    }
}
