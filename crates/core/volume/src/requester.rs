//! Who issues an operation: an initiator port or a host, through one of our ports; and the state of a path
//! through such a port.

use std::fmt;
use std::sync::Arc;

use crate::facts::Uuid;

/// One of the target's ports: what SCSI calls a relative target port and NVMe a port. 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// The state of a path from a port to a volume (ALUA and ANA show the same one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathAccess {
    /// Best.
    Optimized,
    /// Works, at a price.
    NonOptimized,
    /// Not now; perhaps later.
    Inaccessible,
    /// Never again by this path.
    PersistentLoss,
    /// About to change.
    Transition,
    /// Kept in reserve: SCSI's standby, which serves no blocks, but mode pages and reservations. NVMe has no such state,
    /// and shows it as inaccessible.
    Standby,
}

impl PathAccess {
    /// All of them.
    pub const ALL: [PathAccess; 6] = [
        PathAccess::Optimized,
        PathAccess::NonOptimized,
        PathAccess::Standby,
        PathAccess::Inaccessible,
        PathAccess::PersistentLoss,
        PathAccess::Transition,
    ];

    /// Its name in requests and reports.
    pub fn name(self) -> &'static str {
        match self {
            PathAccess::Optimized => "optimized",
            PathAccess::NonOptimized => "non-optimized",
            PathAccess::Standby => "standby",
            PathAccess::Inaccessible => "inaccessible",
            PathAccess::PersistentLoss => "persistent-loss",
            PathAccess::Transition => "transition",
        }
    }

    /// Whether blocks can be read and written by such a path.
    pub fn allows_io(self) -> bool {
        match self {
            PathAccess::Optimized | PathAccess::NonOptimized => true,
            PathAccess::Inaccessible
            | PathAccess::PersistentLoss
            | PathAccess::Transition
            | PathAccess::Standby => false,
        }
    }
}

/// Who a registrant is, across all connections.
/// ```
/// use blockwire_volume::{Identity, PortId};
///
/// let name = "iqn.2026-11.example:host".into();
/// let one = Identity::Initiator { name, isid: [1; 6], port: PortId(1) };
/// let other = one.with_target_port(PortId(2));
/// assert!(one != other && one.is_same_initiator(&other), "two nexuses of one initiator port");
/// let host = Identity::Host([1; 16]);
/// assert_eq!(host, host.with_target_port(PortId(2)), "one requester");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// An iSCSI initiator port on a target port (SPC: an I_T nexus).
    Initiator {
        /// The initiator's name, normalised.
        name: Arc<str>,
        /// Its ISID.
        isid: [u8; 6],
        /// The target port that it came by.
        port: PortId,
    },
    /// An NVMe host, by its 128-bit Host Identifier, whatever port it came by.
    Host([u8; 16]),
}

impl Identity {
    /// The same initiator port on another target port; a host is the same on every port.
    pub fn with_target_port(&self, to: PortId) -> Identity {
        match self {
            Identity::Initiator { name, isid, .. } => {
                Identity::Initiator { name: name.clone(), isid: *isid, port: to }
            }
            Identity::Host(id) => Identity::Host(*id),
        }
    }

    /// Whether both are one initiator port, or one host, by whatever target ports.
    pub fn is_same_initiator(&self, other: &Identity) -> bool {
        match (self, other) {
            (Identity::Initiator { name, isid, .. }, Identity::Initiator { name: known, isid: same, .. }) => {
                name == known && isid == same
            }
            (one, other) => one == other,
        }
    }
}

/// As a log line or an operator names it.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Initiator { name, isid, port } => {
                write!(f, "{name},i,0x")?;
                isid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                write!(f, " on port {}", port.0)
            }
            Identity::Host(id) => write!(f, "host {}", Uuid(*id)),
        }
    }
}

/// The source of a command: an I_T nexus of SCSI or a host's controller association of NVMe, with what admission needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Who.
    pub identity: Arc<Identity>,
    /// The port that carries the request.
    pub port: PortId,
    /// Whether this requester may only read.
    pub read_only: bool,
}
