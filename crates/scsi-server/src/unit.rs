//! A logical unit: a volume as SCSI shows it.

use volume::{Uuid, View, VolumeId};

/// What a logical unit is, beyond its volume's view.
#[derive(Clone, Copy, Debug)]
pub struct UnitSpec {
    /// The volume.
    pub volume: VolumeId,
    /// The volume's UUID, from which all designators come.
    pub uuid: Uuid,
    /// Whether the medium can be ejected.
    pub removable: bool,
}

/// A logical unit on this shard.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) spec: UnitSpec,
    pub(crate) view: View,
}
