//! The identity of a volume. All designators of both protocols derive from one UUID, so that tools can tell
//! that it is one disk.

use std::fmt;
use std::sync::Arc;

/// The number of a volume, the same on every core of a daemon and used once while the daemon runs. The low half is
/// the volume's slot in tables; the high half distinguishes it from earlier volumes in that slot. So a late message
/// for a deleted volume finds nothing.
/// ```
/// use blockwire_volume::VolumeId;
///
/// let (first, second) = (VolumeId::new(3, 1), VolumeId::new(3, 2));
/// assert_eq!(first.table_slot(), second.table_slot());
/// assert_ne!(first, second);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u64);

impl VolumeId {
    /// A configured volume that is unavailable: it has no slot, and no core serves it. Its logical units and
    /// namespaces exist, and are not ready.
    pub const UNAVAILABLE: VolumeId = VolumeId(u64::MAX);

    /// The volume in this slot; `life` is used for no other.
    pub fn new(place: u32, life: u32) -> Self {
        VolumeId(u64::from(life) << 32 | u64::from(place))
    }

    /// Its slot in tables. Volumes that use a slot one after the other differ in the whole number.
    pub fn table_slot(self) -> u32 {
        self.0 as u32
    }
}

/// A UUID (RFC 9562) in wire order. The world makes it; nothing here draws one.
/// ```
/// use blockwire_volume::Uuid;
///
/// let uuid = Uuid(*b"\x01\x23\x45\x67\x89\xab\x4c\xde\x8f\x00\x11\x22\x33\x44\x55\x66");
/// assert_eq!(uuid.to_string(), "01234567-89ab-4cde-8f00-112233445566");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The serial number: 32 lower-case hexadecimal digits.
    #[expect(clippy::indexing_slicing, reason = "chunks of two have two, and a half byte is below 16")]
    pub fn serial_number(&self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        digits
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity that a volume reports; the same on every port and over both protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its number in this daemon.
    pub id: VolumeId,
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Its UUID.
    pub uuid: Uuid,
    /// The IEEE OUI for designators that embed one; without it there are none.
    pub oui: Option<[u8; 3]>,
    /// Whose product it claims to be: at most 8 printable ASCII characters.
    pub vendor: Arc<str>,
    /// Which product: at most 16 printable ASCII characters.
    pub product: Arc<str>,
    /// Which revision: at most 4 printable ASCII characters.
    pub revision: Arc<str>,
    /// Whether its medium can be ejected.
    pub removable: bool,
    /// Rotations per minute; 0 if nothing rotates.
    pub rpm: u16,
    /// SCSI commands that another initiator ends are answered with TASK ABORTED, if no initiator changes that.
    pub task_aborted_status: bool,
}

impl VolumeFacts {
    /// A fixed medium that does not rotate, with this project's names and no OUI.
    pub fn new(id: VolumeId, name: &str, uuid: Uuid) -> Self {
        VolumeFacts {
            id,
            name: name.into(),
            uuid,
            oui: None,
            vendor: "BLOCKWIR".into(),
            product: "Volume".into(),
            revision: "0".into(),
            removable: false,
            rpm: 0,
            task_aborted_status: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_uuid() {
        let uuid = Uuid(*b"\x01\x23\x45\x67\x89\xab\x4c\xde\x8f\x00\x11\x22\x33\x44\x55\x66");
        assert_eq!(uuid.to_string(), "01234567-89ab-4cde-8f00-112233445566");
        assert_eq!(&uuid.serial_number(), b"0123456789ab4cde8f00112233445566");
    }
}
