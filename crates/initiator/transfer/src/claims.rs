//! Reservations of other hosts, as text.

use volume::Identity;
use volume::reservation::Kind;

/// The word for a type that is held.
pub fn type_word(kind: Kind) -> &'static str {
    match kind {
        Kind::WriteExclusive => "write-exclusive",
        Kind::ExclusiveAccess => "exclusive-access",
        Kind::WriteExclusiveRegistrants => "write-exclusive-registrants",
        Kind::ExclusiveAccessRegistrants => "exclusive-access-registrants",
        Kind::WriteExclusiveAll => "write-exclusive-all",
        Kind::ExclusiveAccessAll => "exclusive-access-all",
    }
}

/// Whose a registration is.
pub fn who(identity: &Identity) -> String {
    match identity {
        Identity::Initiator { name, isid, .. } => {
            let isid: String = isid.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name},i,0x{isid}")
        }
        Identity::Host(id) => format!("host {}", uuid::Uuid::from_bytes(*id)),
    }
}
