//! A volume's view as bytes, for gateways that show the volume and do not own it: what its record keeps, and what ends
//! with its owner.
//!
//! ```text
//! "BWVS" version=1 epoch(u64)
//! blocks(u64) logical(u32) physical(u32) dio_align(u32) max_io(u32) atomic(u32) atomic_powerfail(u32) caw_max(u32)
//! flags(u16) not_ready(u8) host_settings(u32) generation(u32)
//! 0 | 1 port(u16) isid[6] len(u8) name[len] | 2 hostid[16]      who holds a SCSI-2 reservation
//! record (see `record.rs`), with all reservations; numbers little-endian
//! ```
//!
//! Invariant: the view that is read is one that no shard decides by ([`VolumeState::decided_elsewhere`]).

use std::sync::Arc;

use crate::backend::Geometry;
use crate::facts::Uuid;
use crate::io::{Epoch, UnservableReason};
use crate::record::reader::RecordReader;
use crate::record::{self, PersistentState, RecordError};
use crate::requester::{Identity, PortId};
use crate::reservation::Reservations;
use crate::reservation::persistence::save_string;
use crate::view::{HostWriteProtection, View, VolumeState};

const MAGIC: &[u8; 4] = b"BWVS";
const VERSION: u8 = 1;

const FLAG_THIN: u16 = 1;
const FLAG_WRITE_CACHE: u16 = 2;
const FLAG_READS_ZERO: u16 = 4;
const FLAG_BACKING_READ_ONLY: u16 = 8;
const FLAG_PROTECTED_UNTIL_RESET: u16 = 16;
const FLAG_CLOSED: u16 = 32;

/// Reasons by their numbers; 0: none.
const REASONS: [UnservableReason; 7] = [
    UnservableReason::Stopped,
    UnservableReason::NoMedium,
    UnservableReason::Sanitizing(0),
    UnservableReason::SanitizeFailed,
    UnservableReason::SyncFailed,
    UnservableReason::Removed,
    UnservableReason::Formatting(0),
];

impl View {
    /// The view as bytes. Reservations are in them if they survive power loss, as those of a group do.
    pub fn to_replica(&self, uuid: Uuid) -> Vec<u8> {
        let geometry = &self.geometry;
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&geometry.blocks.to_le_bytes());
        let Geometry { logical, physical, dio_align, max_io, atomic, atomic_powerfail, caw_max, .. } =
            *geometry;
        for number in [logical, physical, dio_align, max_io, atomic, atomic_powerfail, caw_max] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let flags = [
            (geometry.thin, FLAG_THIN),
            (geometry.write_cache, FLAG_WRITE_CACHE),
            (geometry.dealloc_reads_zero, FLAG_READS_ZERO),
            (self.backing_read_only, FLAG_BACKING_READ_ONLY),
            (self.host_protection == HostWriteProtection::UntilReset, FLAG_PROTECTED_UNTIL_RESET),
            (self.closed, FLAG_CLOSED),
        ];
        let flags = flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag);
        out.extend_from_slice(&u16::to_le_bytes(flags));
        out.push(self.not_ready.map_or(0, reason_code));
        out.extend_from_slice(&self.host_settings.to_le_bytes());
        out.extend_from_slice(&self.reservations.generation().to_le_bytes());
        save_holder(self.reservations.legacy_holder(), &mut out);
        out.extend_from_slice(&record::save(uuid, &PersistentState::from_volume_state(self)));
        out
    }

    /// What [`View::to_replica`] of this volume's owner said: a view by which nothing is decided.
    pub fn from_replica(bytes: &[u8], uuid: Uuid) -> Result<View, RecordError> {
        let mut from = RecordReader(bytes);
        if from.array::<4>().ok_or(RecordError::Foreign)? != *MAGIC {
            return Err(RecordError::Foreign);
        }
        let [version] = from.array().ok_or(RecordError::Contents)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let volatile = restore_volatile(&mut from).ok_or(RecordError::Contents)?;
        let kept = record::restore_record(from.0, uuid, true)?;
        let VolatileState { state, until_reset, legacy, generation } = volatile;
        let reservations = Reservations::clone(&kept.reservations)
            .with_volatile_state(legacy, generation)
            .ok_or(RecordError::Contents)?;
        let host_protection =
            if until_reset { HostWriteProtection::UntilReset } else { kept.host_protection };
        Ok(View::from(VolumeState {
            reservations: Arc::new(reservations),
            bad: kept.bad,
            access: kept.access,
            preferred: kept.preferred,
            write_protected: kept.write_protected,
            owes_sanitize: kept.owes_sanitize,
            host_protection,
            decided_elsewhere: true,
            ..state
        }))
    }
}

/// What no record keeps.
struct VolatileState {
    state: VolumeState,
    until_reset: bool,
    legacy: Option<Arc<Identity>>,
    generation: u32,
}

fn restore_volatile(from: &mut RecordReader<'_>) -> Option<VolatileState> {
    let epoch = Epoch(u64::from_le_bytes(from.array()?));
    let blocks = u64::from_le_bytes(from.array()?);
    let mut number = || Some(u32::from_le_bytes(from.array()?));
    let (logical, physical, dio_align, max_io) = (number()?, number()?, number()?, number()?);
    let (atomic, atomic_powerfail, caw_max) = (number()?, number()?, number()?);
    let sound =
        logical.is_power_of_two() && logical >= 512 && physical.is_power_of_two() && physical >= logical;
    if !sound || !dio_align.is_power_of_two() || atomic_powerfail == 0 {
        return None;
    }
    let flags = u16::from_le_bytes(from.array()?);
    let has = |flag| flags & flag != 0;
    let geometry = Geometry {
        blocks,
        logical,
        physical,
        dio_align,
        max_io,
        thin: has(FLAG_THIN),
        write_cache: has(FLAG_WRITE_CACHE),
        atomic,
        atomic_powerfail,
        caw_max,
        dealloc_reads_zero: has(FLAG_READS_ZERO),
        lends: false,
    };
    let [reason] = from.array()?;
    let not_ready = match usize::from(reason).checked_sub(1) {
        Some(at) => Some(*REASONS.get(at)?),
        None => None,
    };
    let host_settings = u32::from_le_bytes(from.array()?);
    let generation = u32::from_le_bytes(from.array()?);
    let legacy = restore_holder(from)?;
    let state = VolumeState {
        epoch,
        not_ready,
        host_settings,
        backing_read_only: has(FLAG_BACKING_READ_ONLY),
        closed: has(FLAG_CLOSED),
        ..(*View::without_reservations(geometry)).clone()
    };
    Some(VolatileState { state, until_reset: has(FLAG_PROTECTED_UNTIL_RESET), legacy, generation })
}

fn reason_code(why: UnservableReason) -> u8 {
    match why {
        UnservableReason::Stopped => 1,
        UnservableReason::NoMedium => 2,
        UnservableReason::Sanitizing(_) => 3,
        UnservableReason::SanitizeFailed => 4,
        UnservableReason::SyncFailed => 5,
        UnservableReason::Removed => 6,
        UnservableReason::Formatting(_) => 7,
    }
}

fn save_holder(holder: Option<&Arc<Identity>>, out: &mut Vec<u8>) {
    match holder.map(|holder| &**holder) {
        None => out.push(0),
        Some(Identity::Initiator { name, isid, port }) => {
            out.push(1);
            out.extend_from_slice(&port.0.to_le_bytes());
            out.extend_from_slice(isid);
            save_string(name, out);
        }
        Some(Identity::Host(id)) => {
            out.push(2);
            out.extend_from_slice(id);
        }
    }
}

/// `None`: it cannot be read.
fn restore_holder(from: &mut RecordReader<'_>) -> Option<Option<Arc<Identity>>> {
    let identity = match from.array()? {
        [0] => return Some(None),
        [1] => {
            let port = PortId(u16::from_le_bytes(from.array()?));
            let isid = from.array()?;
            Identity::Initiator { name: from.string()?.into(), isid, port }
        }
        [2] => Identity::Host(from.array()?),
        [_] => return None,
    };
    Some(Some(Arc::new(identity)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamDisk;
    use crate::requester::{PathAccess, Requester};
    use crate::reservation::{Action, Key, RegistrationRequest, ReservationType};
    use crate::{Durability, Op, Refusal, Span};

    const UUID: Uuid = Uuid([9; 16]);

    fn who(number: u8) -> Requester {
        let (name, isid) = ("iqn.a".into(), [number; 6]);
        let identity = Arc::new(Identity::Initiator { name, isid, port: PortId(3) });
        Requester { identity, port: PortId(3), read_only: false }
    }

    fn view(actions: &[Action], alter: impl FnOnce(&mut VolumeState)) -> View {
        let base = View::without_reservations(RamDisk::new(8, 8, 512, 4096).geometry());
        let mut state = (*base).clone();
        let mut reservations = Reservations::new(true);
        for action in actions {
            reservations = reservations.apply(&who(1), action).unwrap().state;
        }
        state.reservations = Arc::new(reservations);
        state.geometry.lends = false;
        alter(&mut state);
        View::from(state)
    }

    /// The same view, but that it decides.
    fn read_back(view: &View) -> VolumeState {
        let read = View::from_replica(&view.to_replica(UUID), UUID).unwrap();
        assert!(read.decided_elsewhere);
        // How far a sanitize is has an identity of its own.
        let sanitized = view.sanitized.clone();
        VolumeState { decided_elsewhere: false, sanitized, ..(*read).clone() }
    }

    #[test]
    fn a_view_comes_back_whole() {
        let register = Action::Register(RegistrationRequest::new(None, Key(5)));
        let reserve = Action::Reserve { key: Some(Key(5)), kind: ReservationType::WriteExclusive };
        let views = [
            view(&[register, reserve], |state| {
                state.epoch = Epoch(7 << 32);
                state.access = vec![(PortId(2), PathAccess::Inaccessible)];
                state.preferred = vec![PortId(1), PortId(4)];
                state.host_protection = HostWriteProtection::UntilReset;
                state.host_settings = 3;
            }),
            view(&[Action::LegacyReserve], |state| {
                state.not_ready = Some(UnservableReason::Sanitizing(0));
                state.owes_sanitize = true;
                state.closed = true;
            }),
            view(&[], |state| {
                state.backing_read_only = true;
                state.write_protected = true;
                state.host_protection = HostWriteProtection::Lasting;
                (state.geometry.thin, state.geometry.write_cache) = (true, true);
            }),
        ];
        for view in views {
            assert_eq!(read_back(&view), *view);
        }
    }

    #[test]
    fn bytes_that_are_cut_or_of_another_volume_are_refused() {
        let whole = view(&[Action::LegacyReserve], |_| {}).to_replica(UUID);
        for len in 0..whole.len() {
            assert!(View::from_replica(&whole[..len], UUID).is_err(), "{len} bytes");
        }
        let other = Uuid([8; 16]);
        assert_eq!(View::from_replica(&whole, other), Err(RecordError::OtherVolume(UUID)));
        let mut later = whole;
        later[4] = VERSION + 1;
        assert_eq!(View::from_replica(&later, UUID), Err(RecordError::Version(VERSION + 1)));
    }

    #[test]
    fn a_replica_refuses_nothing_and_shows_what_it_was_told() {
        let owner = view(&[Action::LegacyReserve], |state| state.write_protected = true);
        let write = Op::Write(Span { lba: 7, blocks: 9 }, Durability::Cached);
        assert_eq!(owner.admit(&who(2), &write), Err(Refusal::Conflict));
        assert_eq!(owner.admit(&who(1), &write), Err(Refusal::ReadOnly));
        let replica = View::from_replica(&owner.to_replica(UUID), UUID).unwrap();
        assert_eq!(replica.admit(&who(2), &write), Ok(()));
        let gateway_paths = Arc::from([(PortId(3), PathAccess::Transition)]);
        let gateway_access = PathAccess::NonOptimized;
        let access = vec![(PortId(5), PathAccess::Inaccessible)];
        let shown = View::from(VolumeState { gateway_access, gateway_paths, access, ..(*replica).clone() });
        let states = [3, 4, 5].map(|port| shown.shown_path_access(PortId(port)));
        assert_eq!(states, [PathAccess::Transition, PathAccess::NonOptimized, PathAccess::Inaccessible]);
        assert_eq!(shown.path_access(PortId(3)), PathAccess::Optimized);
    }
}
