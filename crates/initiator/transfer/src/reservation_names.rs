//! Reservations of other hosts, as text.

use volume::Identity;
use volume::reservation::ReservationType;

/// The word for a type that is held.
pub fn reservation_type_name(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "write-exclusive",
        ReservationType::ExclusiveAccess => "exclusive-access",
        ReservationType::WriteExclusiveRegistrants => "write-exclusive-registrants",
        ReservationType::ExclusiveAccessRegistrants => "exclusive-access-registrants",
        ReservationType::WriteExclusiveAll => "write-exclusive-all",
        ReservationType::ExclusiveAccessAll => "exclusive-access-all",
    }
}

/// Whose a registration is.
pub fn registrant_name(identity: &Identity) -> String {
    match identity {
        Identity::Initiator { name, isid, .. } => {
            let isid: String = isid.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name},i,0x{isid}")
        }
        Identity::Host(id) => format!("host {}", uuid::Uuid::from_bytes(*id)),
    }
}
