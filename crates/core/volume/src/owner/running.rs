//! A volume's state as another process goes on with it: what its record keeps, and what would not survive the end of
//! the process. That is reservations without persistence, a SCSI-2 reservation, write protection until a reset, settings
//! of hosts, who prevents the removal of the medium, why it is not ready, and that a sync has failed.
//!
//! Invariant: only an idle volume is saved: nothing is being changed, stored or fenced.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::VolumeOwner;
use crate::authority::{REMOVAL_PREVENTERS_MAX, VolumeAuthority};
use crate::backend::Geometry;
use crate::facts::{Uuid, VolumeFacts};
use crate::io::UnservableReason;
use crate::record::{self, PersistentState, RecordError};
use crate::reservation::{IdentityBody, Reservations, ReservationsBody};
use crate::shared_gate_state::SharedGateState;
use crate::view::{HostWriteProtection, View, VolumeState};

/// The state of a volume that is served, as plain data. It goes into a snapshot, and is checked by
/// [`VolumeOwner::restore_running`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningVolume {
    uuid: [u8; 16],
    /// What is durable, as `record.rs` has it.
    record: Vec<u8>,
    reservations: ReservationsBody,
    preventing: Vec<IdentityBody>,
    backing_read_only: bool,
    protected_until_reset: bool,
    host_settings: u32,
    not_ready: Option<NotReadyBody>,
    sync_failed: bool,
    sanitize_exit_restricted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum NotReadyBody {
    Stopped,
    NoMedium,
    SanitizeFailed,
    SyncFailed,
}

/// Why a volume cannot be saved now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeNotIdle {
    /// A change of its state is under way, or its record is being written.
    Changing,
    /// A sanitize, or a format, runs.
    Sanitizing,
    /// It is being removed.
    Removing,
}

/// In words.
impl fmt::Display for VolumeNotIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeNotIdle::Changing => "a change of its state is under way",
            VolumeNotIdle::Sanitizing => "a sanitize, or a format, runs",
            VolumeNotIdle::Removing => "it is being removed",
        })
    }
}

/// Why a volume cannot go on from what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningVolumeError {
    /// The record in it cannot be trusted.
    Record(RecordError),
    /// It is of another volume.
    OtherVolume(Uuid),
    /// It contradicts itself, in this.
    Contradiction(&'static str),
}

/// In words.
impl fmt::Display for RunningVolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunningVolumeError::Record(error) => write!(f, "its record: {error}"),
            RunningVolumeError::OtherVolume(uuid) => write!(f, "state of another volume: {uuid}"),
            RunningVolumeError::Contradiction(what) => write!(f, "state that contradicts itself ({what})"),
        }
    }
}

impl std::error::Error for RunningVolumeError {}

impl RunningVolume {
    /// Of which volume it is.
    pub fn uuid(&self) -> Uuid {
        Uuid(self.uuid)
    }

    fn not_ready_reason(&self) -> Option<UnservableReason> {
        Some(match self.not_ready? {
            NotReadyBody::Stopped => UnservableReason::Stopped,
            NotReadyBody::NoMedium => UnservableReason::NoMedium,
            NotReadyBody::SanitizeFailed => UnservableReason::SanitizeFailed,
            NotReadyBody::SyncFailed => UnservableReason::SyncFailed,
        })
    }
}

fn not_ready_body(view: &VolumeState) -> Result<Option<NotReadyBody>, VolumeNotIdle> {
    Ok(Some(match view.not_ready {
        None => return Ok(None),
        Some(UnservableReason::Stopped) => NotReadyBody::Stopped,
        Some(UnservableReason::NoMedium) => NotReadyBody::NoMedium,
        Some(UnservableReason::SanitizeFailed) => NotReadyBody::SanitizeFailed,
        Some(UnservableReason::SyncFailed) => NotReadyBody::SyncFailed,
        Some(UnservableReason::Sanitizing(_) | UnservableReason::Formatting(_)) => {
            return Err(VolumeNotIdle::Sanitizing);
        }
        Some(UnservableReason::Removed) => return Err(VolumeNotIdle::Removing),
    }))
}

impl VolumeOwner {
    /// The state of the volume for another process; `shared` is what its gates share.
    ///
    /// # Errors
    /// It is not idle.
    pub fn save_running(&self, shared: &SharedGateState) -> Result<RunningVolume, VolumeNotIdle> {
        let view: &VolumeState = self.volume.view();
        let not_ready = not_ready_body(view)?;
        let record = record::save(self.volume.facts().uuid, &PersistentState::from_volume_state(view));
        if !self.is_idle() || self.saved.as_ref() != Some(&record) {
            return Err(VolumeNotIdle::Changing);
        }
        Ok(RunningVolume {
            uuid: self.volume.facts().uuid.0,
            record,
            reservations: view.reservations.to_body(),
            preventing: self.volume.removal_preventers().map(|who| IdentityBody::of(who)).collect(),
            backing_read_only: view.backing_read_only,
            protected_until_reset: view.host_protection == HostWriteProtection::UntilReset,
            host_settings: view.host_settings,
            not_ready,
            sync_failed: shared.has_sync_failed(),
            sanitize_exit_restricted: shared.is_sanitize_exit_restricted(),
        })
    }

    /// Goes on with a volume of another process, whose gates are to share `shared`. Otherwise as
    /// [`VolumeOwner::restore`].
    ///
    /// # Errors
    /// The state is of another volume, or contradicts itself; `shared` is then as before.
    pub fn restore_running(
        facts: VolumeFacts,
        geometry: Geometry,
        shards: u16,
        persist_forced: bool,
        running: &RunningVolume,
        shared: &SharedGateState,
    ) -> Result<VolumeOwner, RunningVolumeError> {
        if running.uuid() != facts.uuid {
            return Err(RunningVolumeError::OtherVolume(running.uuid()));
        }
        let check = |sound: bool, what| sound.then_some(()).ok_or(RunningVolumeError::Contradiction(what));
        let reservations = Reservations::from_body(&running.reservations, persist_forced)
            .ok_or(RunningVolumeError::Contradiction("reservations"))?;
        check(running.preventing.len() <= REMOVAL_PREVENTERS_MAX, "who prevents the removal")?;
        let preventing: BTreeSet<_> = running.preventing.iter().map(IdentityBody::to_identity).collect();
        let mut owner = VolumeOwner::restore(facts, geometry, shards, persist_forced, Some(&running.record))
            .map_err(RunningVolumeError::Record)?;
        let durable: &VolumeState = owner.volume.view();
        let until_reset = running.protected_until_reset;
        check(!until_reset || !durable.host_protection.is_on(), "write protection")?;
        let not_ready = running.not_ready_reason();
        let owes = not_ready == Some(UnservableReason::SanitizeFailed);
        check(durable.owes_sanitize == owes, "a sanitize")?;
        let host_protection = match until_reset {
            true => HostWriteProtection::UntilReset,
            false => durable.host_protection,
        };
        let view = View::from(VolumeState {
            reservations: Arc::new(reservations),
            backing_read_only: running.backing_read_only,
            host_protection,
            host_settings: running.host_settings,
            not_ready,
            ..durable.clone()
        });
        owner.volume = VolumeAuthority::with_running_state(owner.volume, view, preventing);
        if running.sync_failed {
            shared.carry_sync_failure();
        }
        shared.restrict_sanitize_exit(running.sanitize_exit_restricted);
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;
    use crate::facts::VolumeId;
    use crate::owner_messages::{Ack, RequestId, VolumeRequest};
    use crate::ram::RamDisk;
    use crate::requester::{Identity, PortId, Requester};
    use crate::reservation::{Action, Key, RegistrationRequest, ReservationType};
    use buf::Time;

    fn facts() -> VolumeFacts {
        VolumeFacts { removable: true, ..VolumeFacts::new(VolumeId::new(0, 0), "demo", Uuid([7; 16])) }
    }

    fn geometry() -> Geometry {
        RamDisk::new(8, 8, 4096, 4096).geometry()
    }

    fn owner() -> VolumeOwner {
        VolumeOwner::restore(facts(), geometry(), 1, false, None).unwrap()
    }

    fn initiator(isid: u8) -> Requester {
        let identity = Identity::Initiator { name: "iqn.a".into(), isid: [isid; 6], port: PortId(1) };
        Requester { identity: Arc::new(identity), port: PortId(1), read_only: false }
    }

    /// Asks, and acknowledges and stores what comes of it.
    fn ask(owner: &mut VolumeOwner, request: VolumeRequest) {
        owner.handle_request(Time(0), ShardId(0), RequestId(1), request);
        for _ in 0..4 {
            while let Some(store) = owner.poll_store_op() {
                owner.handle_stored(Time(0), store.ticket, true);
            }
            while let Some(update) = owner.poll_view_update() {
                owner.handle_ack(Time(0), Ack { from: ShardId(0), change: update.change });
            }
        }
        assert_eq!(owner.poll_answer().map(|answer| answer.result), Some(Ok(())));
    }

    fn register(who: &Requester, key: u64) -> VolumeRequest {
        let action = Action::Register(RegistrationRequest::new(None, Key(key)));
        VolumeRequest::Reserve { who: who.clone(), action }
    }

    #[test]
    fn what_would_not_survive_the_process_goes_on_in_another() {
        let (mut owner, shared) = (owner(), SharedGateState::new(1));
        let (one, two) = (initiator(1), initiator(2));
        ask(&mut owner, register(&one, 5));
        ask(&mut owner, register(&two, 6));
        let action = Action::Reserve { key: Some(Key(5)), kind: ReservationType::WriteExclusiveRegistrants };
        ask(&mut owner, VolumeRequest::Reserve { who: one.clone(), action });
        ask(&mut owner, VolumeRequest::PreventRemoval { by: one.identity.clone(), on: true });
        ask(&mut owner, VolumeRequest::HostSettings { by: one.identity.clone(), bits: 3 });
        let _ = shared.note_sync_failure();
        let running = owner.save_running(&shared).unwrap();
        let fresh = SharedGateState::new(1);
        let again = VolumeOwner::restore_running(facts(), geometry(), 1, false, &running, &fresh).unwrap();
        let (before, after) = (owner.view(), again.view());
        assert_eq!(*before.reservations, *after.reservations);
        assert_eq!((after.host_settings, after.reservations.is_holder(&one.identity)), (3, true));
        assert!(fresh.has_sync_failed());
        assert_eq!(again.save_running(&fresh).unwrap(), running);
        let other = VolumeFacts { uuid: Uuid([8; 16]), ..facts() };
        let refused = VolumeOwner::restore_running(other, geometry(), 1, false, &running, &fresh);
        assert_eq!(refused.err(), Some(RunningVolumeError::OtherVolume(Uuid([7; 16]))));
    }

    #[test]
    fn a_volume_that_changes_is_not_saved() {
        let (mut owner, shared) = (owner(), SharedGateState::new(1));
        owner.handle_request(Time(0), ShardId(0), RequestId(1), VolumeRequest::Stop);
        assert_eq!(owner.save_running(&shared), Err(VolumeNotIdle::Changing));
        let update = owner.poll_view_update().unwrap();
        owner.handle_ack(Time(0), Ack { from: ShardId(0), change: update.change });
        let running = owner.save_running(&shared).unwrap();
        let again = VolumeOwner::restore_running(facts(), geometry(), 1, false, &running, &shared).unwrap();
        assert_eq!(again.view().not_ready, Some(UnservableReason::Stopped));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let (mut owner, shared) = (owner(), SharedGateState::new(1));
        ask(&mut owner, register(&initiator(1), 5));
        let good = owner.save_running(&shared).unwrap();
        let refused = |running: &RunningVolume| {
            VolumeOwner::restore_running(facts(), geometry(), 1, false, running, &shared).unwrap_err()
        };
        let mut damaged = good.clone();
        damaged.reservations.held = Some((1, Some(1)));
        assert_eq!(refused(&damaged), RunningVolumeError::Contradiction("reservations"));
        let mut damaged = good.clone();
        damaged.record[8] ^= 1;
        assert_eq!(refused(&damaged), RunningVolumeError::Record(RecordError::Checksum));
        let damaged = RunningVolume { not_ready: Some(NotReadyBody::SanitizeFailed), ..good };
        assert_eq!(refused(&damaged), RunningVolumeError::Contradiction("a sanitize"));
    }
}
