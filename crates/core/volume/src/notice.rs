//! Notices of changes, for nexuses that did not request them.
//!
//! The home core names the receivers by identity. Every shard's servers pick their own nexuses and queue what
//! the protocol needs: a unit attention per I_T nexus, an event per controller.

use std::sync::Arc;

use crate::requester::Identity;

/// A change that nexuses must be notified of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The receivers.
    pub to: NoticeReceivers,
    /// What happened.
    pub cause: NoticeCause,
}

/// The receivers of a notice, connected or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeReceivers {
    /// Everyone who can see the volume, over either protocol.
    All,
    /// Everyone except this requester, who made the change.
    AllBut(Arc<Identity>),
    /// Every SCSI nexus, including the one that made the change.
    Initiators,
    /// Every SCSI nexus except this one.
    InitiatorsBut(Arc<Identity>),
    /// These.
    These(Arc<[Arc<Identity>]>),
}

/// The subject of a notice, independent of the protocol. In brackets: the corresponding SCSI additional
/// sense code and NVMe event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoticeCause {
    /// The receiver's registration was removed by another (2A/05; reservation log type 1).
    RegistrationsPreempted,
    /// The reservation was released or changed its kind (2A/04; reservation log type 2).
    ReservationsReleased,
    /// Registrations and reservation were cleared by another (2A/03; reservation log type 3).
    ReservationsPreempted,
    /// The number of blocks changed (2A/09; namespace attribute changed).
    CapacityChanged,
    /// The state of a path changed (2A/06; ANA change).
    AccessChanged,
    /// The identity or properties of the volume changed (3F/03; namespace attribute changed).
    IdentityChanged,
    /// A volume was added or removed (3F/0E; namespace attribute changed).
    InventoryChanged,
    /// Write protection changed (2A/01; namespace attribute changed).
    WriteProtectChanged,
    /// Settings that hosts share changed (2A/01; nothing in NVMe).
    SettingsChanged,
    /// The medium may have changed (28/00).
    MediumChanged,
    /// A sanitize ended (sanitize completed event).
    SanitizeDone,
    /// The volume uses more than the threshold of its configuration (38/07; nothing in NVMe).
    ThinThresholdReached,
    /// The receiver's tasks were ended by another (2F/00).
    TasksCleared,
    /// The logical unit was reset (29/03).
    Reset,
}

impl Notice {
    /// Whether `who` is one of its receivers.
    pub fn is_for(&self, who: &Identity) -> bool {
        match &self.to {
            NoticeReceivers::All => true,
            NoticeReceivers::AllBut(one) => **one != *who,
            NoticeReceivers::Initiators => matches!(who, Identity::Initiator { .. }),
            NoticeReceivers::InitiatorsBut(one) => matches!(who, Identity::Initiator { .. }) && **one != *who,
            NoticeReceivers::These(these) => these.iter().any(|one| **one == *who),
        }
    }
}
