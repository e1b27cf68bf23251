//! Persistent reservations, for both protocols: SPC-4 §5.9 and NVMe Base §8.19.
//!
//! One table decides which operations are allowed. One set of registrants holds keys of SCSI initiator ports
//! and of NVMe hosts, and a key means the same over both. Differences between the standards are fields of
//! [`Action`]. A SCSI-2 RESERVE is kept here too, because the two exclude each other.
//!
//! Invariants: registrants are sorted by identity and unique; no key is zero; a holder is a registrant; an
//! all-registrants reservation has at least one registrant; a legacy hold and registrations never exist
//! together.

mod action;
pub(crate) mod persistence;
mod running;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::io::CommandClass;
use crate::requester::Identity;

pub use action::{Action, ActionEffect, RegisterMode, RegistrationRequest};
pub(crate) use running::{IdentityBody, ReservationsBody};

/// How many registrations a volume keeps (one per initiator port and target port, or per host): a
/// cluster of 64 nodes with 16 paths each. The state file stays below 512 KiB.
pub const REGISTRANTS_MAX: usize = 1024;

/// A reservation key. Zero names nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

impl Key {
    /// The key that no registrant has.
    pub const NONE: Key = Key(0);
}

/// The six kinds of reservation.
/// ```
/// use blockwire_volume::CommandClass;
/// use blockwire_volume::reservation::{ReservationType, ReservationRole};
///
/// let kind = ReservationType::from_nvme(3).unwrap();
/// assert_eq!((kind, kind.to_scsi()), (ReservationType::WriteExclusiveRegistrants, 5));
/// assert!(kind.permits(ReservationRole::Registrant, CommandClass::Write) && !kind.permits(ReservationRole::Stranger, CommandClass::Write));
/// assert!(kind.permits(ReservationRole::Stranger, CommandClass::Read));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registrants write; one of them holds.
    WriteExclusiveRegistrants,
    /// Only registrants read and write; one of them holds.
    ExclusiveAccessRegistrants,
    /// Only registrants write; all of them hold.
    WriteExclusiveAll,
    /// Only registrants read and write; all of them hold.
    ExclusiveAccessAll,
}

impl ReservationType {
    /// All kinds, in the order of both standards' numbers.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll,
    ];
    const SCSI_CODES: [u8; 6] = [1, 3, 5, 6, 7, 8];

    /// Its name in both standards, as reports have it.
    pub fn standard_name(self) -> &'static str {
        match self {
            ReservationType::WriteExclusive => "write-exclusive",
            ReservationType::ExclusiveAccess => "exclusive-access",
            ReservationType::WriteExclusiveRegistrants => "write-exclusive-registrants-only",
            ReservationType::ExclusiveAccessRegistrants => "exclusive-access-registrants-only",
            ReservationType::WriteExclusiveAll => "write-exclusive-all-registrants",
            ReservationType::ExclusiveAccessAll => "exclusive-access-all-registrants",
        }
    }

    /// The SCSI type code (SPC-4 §6.14.3.3): 1, 3, 5, 6, 7 or 8.
    #[expect(clippy::indexing_slicing, reason = "the table has an entry for each kind")]
    pub fn to_scsi(self) -> u8 {
        Self::SCSI_CODES[self as usize]
    }

    /// The kind that a SCSI type code names.
    #[expect(clippy::indexing_slicing, reason = "both tables have an entry for each kind")]
    pub fn from_scsi(code: u8) -> Option<ReservationType> {
        Self::SCSI_CODES.iter().position(|&known| known == code).map(|at| Self::ALL[at])
    }

    /// The NVMe type code (RTYPE): 1 to 6.
    pub fn to_nvme(self) -> u8 {
        self as u8 + 1
    }

    /// The kind that an NVMe type code names.
    pub fn from_nvme(code: u8) -> Option<ReservationType> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Whether every registrant holds it.
    pub fn is_all_registrants(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// Whether registrants have the holder's rights.
    pub fn grants_registrants_access(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Whether it forbids strangers to read.
    pub fn excludes_reads(self) -> bool {
        match self {
            ReservationType::WriteExclusive
            | ReservationType::WriteExclusiveRegistrants
            | ReservationType::WriteExclusiveAll => false,
            ReservationType::ExclusiveAccess
            | ReservationType::ExclusiveAccessRegistrants
            | ReservationType::ExclusiveAccessAll => true,
        }
    }

    /// The table: whether a requester of this rank may do something of this class.
    pub fn permits(self, rank: ReservationRole, class: CommandClass) -> bool {
        let has_rights = match rank {
            ReservationRole::Holder => true,
            ReservationRole::Registrant => self.grants_registrants_access(),
            ReservationRole::Stranger => false,
        };
        match class {
            CommandClass::Read => has_rights || !self.excludes_reads(),
            CommandClass::Write => has_rights,
            CommandClass::Status => true,
        }
    }
}

/// What a requester is to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReservationRole {
    /// Holds it (every registrant holds an all-registrants reservation).
    Holder,
    /// Is registered.
    Registrant,
    /// Neither.
    Stranger,
}

/// Someone whose key is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Who.
    pub identity: Arc<Identity>,
    /// Its key; never zero.
    pub key: Key,
    /// The Host NQN that an NVMe host registered under: while it is registered, no other may use its
    /// Host Identifier. `None` for initiators, whose identity is a name, and where a record of an
    /// older version did not say.
    pub nqn: Option<Arc<str>>,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldReservation {
    /// Which kind.
    pub kind: ReservationType,
    /// Who holds it; `None` if all registrants do.
    pub holder: Option<Arc<Identity>>,
}

/// Everything about a volume's reservations. [`Reservations::apply`] makes the next state.
/// ```
/// use std::sync::Arc;
/// use blockwire_volume::reservation::{Action, Reservations};
/// use blockwire_volume::{CommandClass, Identity, Requester, PortId};
///
/// let host = |id| Arc::new(Identity::Host([id; 16]));
/// let who = Requester { identity: host(1), port: PortId(1), read_only: false };
/// let reserved = Reservations::default().apply(&who, &Action::LegacyReserve).unwrap().state;
/// assert!(reserved.admits(&host(1), CommandClass::Write));
/// assert!(!reserved.admits(&host(2), CommandClass::Read));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    registrants: Vec<Registrant>,
    held: Option<HeldReservation>,
    legacy: Option<Arc<Identity>>,
    generation: u32,
    persist: bool,
    persist_forced: bool,
}

impl Reservations {
    /// None. With `persist_forced`, they survive power loss whatever hosts ask for.
    pub fn new(persist_forced: bool) -> Self {
        Reservations { persist: persist_forced, persist_forced, ..Self::default() }
    }

    /// Whether `who` may do something of this class.
    #[inline]
    pub fn admits(&self, who: &Identity, class: CommandClass) -> bool {
        !self.restricts_anyone() || self.admits_restricted(who, class)
    }

    fn admits_restricted(&self, who: &Identity, class: CommandClass) -> bool {
        if let Some(legacy) = &self.legacy {
            return **legacy == *who;
        }
        match &self.held {
            None => true,
            Some(held) => held.kind.permits(self.role_of(held, who), class),
        }
    }

    /// Whether anybody is kept out of anything.
    #[inline]
    pub fn restricts_anyone(&self) -> bool {
        self.legacy.is_some() || self.held.is_some()
    }

    fn role_of(&self, held: &HeldReservation, who: &Identity) -> ReservationRole {
        if held.holder.as_deref() == Some(who) {
            return ReservationRole::Holder;
        }
        match (self.key_of(who), &held.holder) {
            (Some(_), None) => ReservationRole::Holder,
            (Some(_), Some(_)) => ReservationRole::Registrant,
            (None, _) => ReservationRole::Stranger,
        }
    }

    /// The key that `who` has registered.
    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    pub fn key_of(&self, who: &Identity) -> Option<Key> {
        self.find_registrant(who).ok().map(|at| self.registrants[at].key)
    }

    /// The Host NQN that a registered NVMe host goes by, if it is known.
    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    pub fn host_nqn(&self, host: &[u8; 16]) -> Option<&Arc<str>> {
        let at = self.find_registrant(&Identity::Host(*host)).ok()?;
        self.registrants[at].nqn.as_ref()
    }

    /// Whether `who` holds the reservation.
    pub fn is_holder(&self, who: &Identity) -> bool {
        self.held.as_ref().is_some_and(|held| self.role_of(held, who) == ReservationRole::Holder)
    }

    /// Registrants in the order of their identities.
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// The reservation, if there is one.
    pub fn held_reservation(&self) -> Option<&HeldReservation> {
        self.held.as_ref()
    }

    /// The key to show for the reservation: the holder's, or zero if all registrants hold it.
    pub fn holder_key(&self) -> Option<Key> {
        let held = self.held.as_ref()?;
        Some(held.holder.as_ref().and_then(|holder| self.key_of(holder)).unwrap_or(Key::NONE))
    }

    /// Who holds a SCSI-2 reservation.
    pub fn legacy_holder(&self) -> Option<&Arc<Identity>> {
        self.legacy.as_ref()
    }

    /// Counts changes of registrations (PRGENERATION, GEN); wraps, and starts again at 0.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether registrations and the reservation survive power loss (APTPL, PTPL).
    pub fn persists(&self) -> bool {
        self.persist
    }

    /// Whether the operator has them survive power loss, whatever hosts ask for.
    pub fn must_persist(&self) -> bool {
        self.persist_forced
    }

    fn find_registrant(&self, who: &Identity) -> Result<usize, usize> {
        self.registrants.binary_search_by(|registrant| (*registrant.identity).cmp(who))
    }
}
