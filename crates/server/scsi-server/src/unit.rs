//! A logical unit: a volume as SCSI reports it.

use scsi::CommandSet;
use scsi::mode;
use scsi::vpd::UnitNames as Names;
use volume::{SharedGateState, UnservableReason, Uuid, View, VolumeId};

use crate::exec::log_pages;
use crate::nexus::NexusSpec;

/// What a logical unit is, beyond its volume's view.
#[derive(Clone, Debug)]
pub struct UnitSpec {
    /// The volume.
    pub volume: VolumeId,
    /// The volume's UUID, from which all designators come.
    pub uuid: Uuid,
    /// The IEEE OUI under which it is named, if there is one.
    pub oui: Option<[u8; 3]>,
    /// Whether the medium can be ejected.
    pub removable: bool,
    /// Rotations per minute; 0 if nothing rotates.
    pub rpm: u16,
    /// TAS, until an initiator changes it and after a reset (SPC-4 §7.5.8).
    pub task_aborted_status: bool,
    /// What the volume's gates share: whether a failed sanitize may be forgiven.
    pub shared: SharedGateState,
}

/// A logical unit on this shard.
#[derive(Debug)]
pub(crate) struct LogicalUnit {
    pub(crate) spec: UnitSpec,
    pub(crate) view: View,
}

/// The bit of the volume's host settings that is D_SENSE.
const SETTING_D_SENSE: u32 = 1;
/// The bit of the volume's host settings that says that TAS is not what it is after a reset.
const SETTING_TAS_CHANGED: u32 = 2;

impl LogicalUnit {
    /// Its names, as this nexus sees them.
    pub(crate) fn device_names<'a>(&self, nexus: &'a NexusSpec) -> Names<'a> {
        Names { uuid: self.spec.uuid.0, vendor: nexus.product.vendor.as_bytes(), oui: self.spec.oui }
    }

    /// The commands that it has.
    pub(crate) fn command_set(&self, explicit_alua: bool) -> CommandSet {
        let geometry = &self.view.geometry;
        let mut set = CommandSet::ALL;
        for (has, commands) in [
            (geometry.thin, CommandSet::UNMAP.with(CommandSet::BLOCK_ERASE)),
            (geometry.atomic > 0, CommandSet::ATOMIC),
            (geometry.caw_max > 0, CommandSet::COMPARE_AND_WRITE),
            (explicit_alua, CommandSet::SET_ALUA),
            (self.spec.removable, CommandSet::REMOVABLE),
        ] {
            if !has {
                set = set.without(commands);
            }
        }
        set
    }

    /// Whether sense data goes in descriptor format.
    pub(crate) fn uses_descriptor_sense(&self) -> bool {
        self.view.host_settings & SETTING_D_SENSE != 0
    }

    /// Whether commands that another nexus ends are answered with TASK ABORTED (TAS).
    pub(crate) fn reports_task_aborted(&self) -> bool {
        self.spec.task_aborted_status != (self.view.host_settings & SETTING_TAS_CHANGED != 0)
    }

    /// The volume's host settings with which the mode pages say this.
    pub(crate) fn host_settings_for(&self, parameters: &mode::ModeParameters) -> u32 {
        let mut bits = self.view.host_settings & !(SETTING_D_SENSE | SETTING_TAS_CHANGED);
        if parameters.descriptor_sense {
            bits |= SETTING_D_SENSE;
        }
        if parameters.task_aborted_status != self.spec.task_aborted_status {
            bits |= SETTING_TAS_CHANGED;
        }
        bits
    }

    /// What the mode pages say.
    pub(crate) fn mode_parameters(&self) -> mode::ModeParameters {
        mode::ModeParameters {
            descriptor_sense: self.uses_descriptor_sense(),
            write_protect: self.view.host_protection.is_on(),
            task_aborted_status: self.reports_task_aborted(),
            ..self.default_mode_parameters()
        }
    }

    /// What the mode pages say after a reset.
    pub(crate) fn default_mode_parameters(&self) -> mode::ModeParameters {
        mode::ModeParameters {
            write_cache: self.view.geometry.write_cache,
            descriptor_sense: false,
            write_protect: false,
            task_aborted_status: self.spec.task_aborted_status,
            implicit_access: true,
            provisioning: self.view.geometry.thin.then(|| self.provisioning_threshold()),
        }
    }

    fn provisioning_threshold(&self) -> mode::ProvisioningThreshold {
        let geometry = &self.view.geometry;
        let bytes = self.spec.shared.thin_threshold_bytes(geometry.capacity_bytes());
        let set = u64::from(geometry.logical) << log_pages::threshold_exponent(geometry);
        let sets = |bytes: u64| u32::try_from(bytes.div_ceil(set)).unwrap_or(u32::MAX);
        mode::ProvisioningThreshold { used_max: bytes.map(sets) }
    }

    /// What the mode parameter header says; `read_only`: the nexus may only read.
    pub(crate) fn mode_header(&self, read_only: bool) -> mode::ModeHeader {
        mode::ModeHeader {
            blocks: self.view.geometry.blocks,
            block_len: self.view.geometry.logical,
            write_protected: self.view.is_write_protected_for_all() || read_only,
        }
    }

    /// Why it cannot serve, with the progress of now.
    pub(crate) fn not_ready_reason(&self) -> Option<UnservableReason> {
        match self.view.not_ready? {
            UnservableReason::Sanitizing(_) => Some(UnservableReason::Sanitizing(self.view.sanitized.get())),
            UnservableReason::Formatting(_) => Some(UnservableReason::Formatting(self.view.sanitized.get())),
            why => Some(why),
        }
    }
}
