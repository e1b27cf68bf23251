//! SCSI status codes (SAM-5 §5.3).

/// The status that ends a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Status(pub u8);

impl Status {
    /// The command did what it was asked.
    pub const GOOD: Status = Status(0x00);
    /// Sense data says what happened.
    pub const CHECK_CONDITION: Status = Status(0x02);
    /// The condition holds: PRE-FETCH found that all blocks fit into the cache.
    pub const CONDITION_MET: Status = Status(0x04);
    /// Not now; try again.
    pub const BUSY: Status = Status(0x08);
    /// Another I_T nexus holds a reservation.
    pub const RESERVATION_CONFLICT: Status = Status(0x18);
    /// No room for another command.
    pub const TASK_SET_FULL: Status = Status(0x28);
    /// An auto contingent allegiance is in force.
    pub const ACA_ACTIVE: Status = Status(0x30);
    /// Aborted by another I_T nexus, and TAS is 1.
    pub const TASK_ABORTED: Status = Status(0x40);
}
