//! What a logical unit reports about itself, validated, and the description made of it.
//!
//! The target's data is not trusted before it is checked here: lengths are limited to the received data,
//! impossible numbers are refused or bounded, text is made printable. Afterwards sizes can be multiplied and
//! divided safely.

use std::fmt::Write as _;
use std::net::SocketAddr;

use iscsi::initiator::InitiatorSession;
use iscsi::negotiate::Digest;
use scsi::alua;
use scsi::capacity::Capacity;
use scsi::cdb::ModeForm;
use scsi::inquiry::{PortGroupSupport, StandardInquiry};
use scsi::mode;
use scsi::vpd::{
    self, Association, BlockLimits, Designator, DesignatorType, LogicalBlockProvisioning, ProvisioningType,
};
use volume::{Geometry, PathAccess, Uuid};

use super::disposition;
use crate::VolumeInfo;

/// The longest transfer of one command where the target states no shorter one, in bytes.
pub(super) const DEFAULT_TRANSFER_MAX: u32 = 1 << 20;
/// The largest physical block that is believed, in bytes.
const PHYSICAL_BLOCK_MAX: u32 = 1 << 20;
/// The most names of one logical unit that are kept.
const UNIT_NAMES_MAX: usize = 16;

/// Everything that was asked of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitFacts {
    product: String,
    serial: String,
    uuid: Option<Uuid>,
    /// Its other names: designator type and text.
    names: Vec<(&'static str, String)>,
    port_groups: PortGroupSupport,
    /// The port group and the relative port that we came by.
    group: Option<u16>,
    port: Option<u16>,
    /// Codes of the vital product data pages that it has.
    pages: Vec<u8>,
    limits: BlockLimits,
    rotation: u16,
    provisioning: LogicalBlockProvisioning,
    /// `None`: the path is in a state in which it does not tell.
    capacity: Option<Capacity>,
    write_protected: bool,
    fua: bool,
    write_cache: bool,
    access: PathAccess,
}

/// Why a logical unit cannot be used, and what to do.
pub(super) type UnusableReason = String;

impl UnitFacts {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        UnitFacts {
            product: String::new(),
            serial: String::new(),
            uuid: None,
            names: Vec::new(),
            port_groups: PortGroupSupport::None,
            group: None,
            port: None,
            pages: Vec::new(),
            limits: BlockLimits::default(),
            rotation: 0,
            provisioning: LogicalBlockProvisioning {
                threshold_exponent: 0,
                unmap: false,
                write_same_16: false,
                write_same_10: false,
                reads_zeros: false,
                anchor: false,
                kind: ProvisioningType::FULL,
            },
            capacity: None,
            write_protected: false,
            fua: false,
            // Until the target says otherwise, what it has answered may be lost with its power.
            write_cache: true,
            access: PathAccess::Optimized,
        }
    }

    /// Standard INQUIRY data. `Ok(false)`: no logical unit has this number.
    pub(super) fn parse_inquiry(&mut self, data: &[u8]) -> Result<bool, UnusableReason> {
        let inquiry = StandardInquiry::decode(data)
            .ok_or("the target's INQUIRY data is too short; it is no usable logical unit")?;
        let kind = inquiry.peripheral.device_type();
        if !inquiry.peripheral.is_connected() {
            return Ok(false);
        }
        // A disk, an optical memory or a simplified disk: all speak SBC.
        if !matches!(kind, 0x00 | 0x07 | 0x0e) {
            return Err(format!(
                "the logical unit is no disk (device type {kind:02x}h); choose another number"
            ));
        }
        let parts = [inquiry.vendor, inquiry.product, inquiry.revision].map(printable_ascii);
        self.product = parts.join(" ").trim().to_owned();
        self.port_groups = inquiry.port_groups;
        Ok(true)
    }

    /// The list of vital product data pages.
    pub(super) fn parse_supported_pages(&mut self, data: &[u8]) {
        self.pages = vpd::page_body(vpd::SUPPORTED_PAGES, data).unwrap_or(&[]).to_vec();
    }

    /// What it has no page for any more it does not tell: another unit is not taken for the one before.
    pub(super) fn clear_unsupported_pages(&mut self) {
        if !self.has_vpd_page(vpd::UNIT_SERIAL_NUMBER) {
            self.serial.clear();
        }
        if !self.has_vpd_page(vpd::DEVICE_IDENTIFICATION) {
            self.parse_device_identification(&[]);
        }
    }

    pub(super) fn has_vpd_page(&self, page: u8) -> bool {
        self.pages.contains(&page)
    }

    pub(super) fn supports_port_groups(&self) -> bool {
        self.port_groups != PortGroupSupport::None
    }

    pub(super) fn parse_serial(&mut self, data: &[u8]) {
        self.serial = vpd::page_body(vpd::UNIT_SERIAL_NUMBER, data)
            .map(|text| printable_ascii(text).trim().to_owned())
            .unwrap_or_default();
    }

    pub(super) fn parse_device_identification(&mut self, data: &[u8]) {
        (self.uuid, self.group, self.port) = (None, None, None);
        self.names.clear();
        for designator in
            vpd::decode_designators(vpd::page_body(vpd::DEVICE_IDENTIFICATION, data).unwrap_or(&[]))
        {
            match (designator.association, designator.kind) {
                (Association::UNIT, DesignatorType::UUID) => {
                    self.uuid = self.uuid.or_else(|| designator.uuid().map(Uuid));
                }
                (Association::UNIT, _) if self.names.len() < UNIT_NAMES_MAX => {
                    self.names.extend(designator_name(&designator))
                }
                (Association::PORT, DesignatorType::RELATIVE_PORT) => {
                    self.port = designator.port_or_group_number()
                }
                (Association::PORT, DesignatorType::PORT_GROUP) => {
                    self.group = designator.port_or_group_number()
                }
                _ => {}
            }
        }
    }

    pub(super) fn parse_block_limits(&mut self, data: &[u8]) {
        self.limits = BlockLimits::decode(data).unwrap_or_default();
    }

    pub(super) fn parse_block_characteristics(&mut self, data: &[u8]) {
        self.rotation = vpd::BlockDeviceCharacteristics::decode(data).map_or(0, |page| page.rotation_rate);
    }

    pub(super) fn parse_logical_provisioning(&mut self, data: &[u8]) {
        if let Some(page) = LogicalBlockProvisioning::decode(data) {
            self.provisioning = page;
        }
    }

    /// READ CAPACITY(16) data.
    pub(super) fn parse_capacity_16(&mut self, data: &[u8]) -> Result<(), UnusableReason> {
        self.set_capacity(Capacity::decode_16(data).ok_or_else(short_capacity_data)?)
    }

    /// READ CAPACITY(10) data, of a target that has no other.
    pub(super) fn parse_capacity_10(&mut self, data: &[u8]) -> Result<(), UnusableReason> {
        let capacity = Capacity::decode_10(data).ok_or_else(short_capacity_data)?;
        if capacity.last_lba == u64::from(u32::MAX) {
            return Err(
                "the volume has more blocks than READ CAPACITY(10) can say, and the target knows no \
                        READ CAPACITY(16); update the target"
                    .to_owned(),
            );
        }
        self.set_capacity(capacity)
    }

    fn set_capacity(&mut self, capacity: Capacity) -> Result<(), UnusableReason> {
        let block = capacity.block_len;
        if !matches!(block, 512 | 4096) {
            return Err(format!(
                "the volume has blocks of {block} bytes; make it one with blocks of 512 or 4096"
            ));
        }
        let blocks = capacity.last_lba.checked_add(1);
        let bytes = blocks.and_then(|blocks| blocks.checked_mul(block.into()));
        if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(format!(
                "the target claims a last block of {}, which is beyond 2^63 bytes; look into the target",
                capacity.last_lba
            ));
        }
        self.capacity = Some(capacity);
        Ok(())
    }

    /// MODE SENSE(6) data; false: no caching page is in it.
    pub(super) fn parse_mode_sense(&mut self, data: &[u8]) -> bool {
        let Some(decoded) = mode::decode_mode_sense(ModeForm::Six, data) else { return false };
        (self.write_protected, self.fua) = (decoded.write_protected, decoded.dpo_fua);
        let caching = mode::find_page(decoded.pages, mode::CACHING, 0).and_then(mode::write_cache_enabled);
        self.write_cache = caching.unwrap_or(true);
        caching.is_some()
    }

    /// REPORT TARGET PORT GROUPS data. A target that does not list our group tells nothing.
    pub(super) fn parse_target_port_groups(&mut self, data: &[u8]) {
        let ours = |group: &alua::DecodedPortGroup<'_>| match (self.group, self.port) {
            (Some(id), _) => group.id == id,
            (None, Some(port)) => group.ports().any(|at| at == port),
            (None, None) => false,
        };
        if let Some(group) = alua::decode_port_groups(data).find(ours) {
            self.access = disposition::access_of_alua_state(group.state);
        }
    }

    /// The state of the path, as a sense code told it.
    /// A command was refused because of the path's state: what the sense data says of it.
    pub(super) fn note_access_refused(&mut self, sense: &[u8]) {
        let decoded = scsi::Sense::decode(sense);
        let code = decoded.map(|it| it.sense.code);
        self.access = match code {
            Some(code) if code == scsi::Sense::ALUA_TRANSITION.code => PathAccess::Transition,
            Some(code) if code == scsi::Sense::ALUA_STANDBY.code => PathAccess::Standby,
            Some(_) | None => PathAccess::Inaccessible,
        };
    }

    /// The state of the path.
    pub(super) fn access(&self) -> PathAccess {
        self.access
    }

    pub(super) fn set_access(&mut self, access: PathAccess) {
        self.access = access;
    }

    /// The target port that we came by.
    pub(super) fn relative_port(&self) -> Option<u16> {
        self.port
    }

    /// Whether blocks can be read and written by the path, as far as is known.
    pub(super) fn serves(&self) -> bool {
        self.access.allows_io()
    }

    /// Whether the two can be one logical unit.
    pub(super) fn may_be_same_unit(&self, other: &UnitFacts) -> bool {
        self.uuid == other.uuid && self.names == other.names && self.serial == other.serial
    }

    /// Whether a name that both tell is another one: they are certainly two.
    pub(super) fn is_certainly_other_unit(&self, other: &UnitFacts) -> bool {
        let differ = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
        self.uuid.zip(other.uuid).is_some_and(|(one, other)| one != other)
            || !self.names.is_empty() && !other.names.is_empty() && self.names != other.names
            || differ(&self.serial, &other.serial)
    }

    /// Whether the path may be used: it serves, and it is known how long blocks are and how many.
    pub(super) fn is_usable(&self) -> bool {
        self.serves() && self.capacity.is_some()
    }

    /// `None`: nothing is known of its blocks.
    pub(super) fn unit_capabilities(&self) -> Option<UnitCapabilities> {
        let capacity = self.capacity?;
        let block = capacity.block_len;
        let most = DEFAULT_TRANSFER_MAX / block;
        let limits = &self.limits;
        let or_none = |limit: u32, most: u32| if limit == 0 { most } else { limit.min(most) };
        let unmap =
            self.provisioning.unmap && limits.unmap_blocks_max > 0 && limits.unmap_descriptors_max > 0;
        let aligned = limits.atomic_alignment <= 1 && limits.atomic_granularity <= 1;
        Some(UnitCapabilities {
            block,
            transfer_max: or_none(limits.transfer_max, most),
            same_max: u32::try_from(limits.write_same_max)
                .map_or(DEFAULT_WRITE_SAME_MAX, |limit| or_none(limit, DEFAULT_WRITE_SAME_MAX)),
            prefetch_max: or_none(limits.prefetch_max, DEFAULT_WRITE_SAME_MAX),
            unmap: unmap.then_some((
                limits.unmap_blocks_max,
                limits.unmap_descriptors_max.min(UNMAP_DESCRIPTORS_MAX),
            )),
            same_unmaps: self.provisioning.write_same_16,
            same_10_unmaps: self.provisioning.write_same_10,
            reads_zeros: self.unmapped_reads_zeros(),
            caw_max: u32::from(limits.compare_and_write_max),
            atomic_max: if aligned { limits.atomic_max.min(most) } else { 0 },
            fua: self.fua,
            write_cache: self.write_cache,
            unknown: 0,
        })
    }

    fn unmapped_reads_zeros(&self) -> bool {
        let zeros = |capacity: Capacity| capacity.provisioned && capacity.reads_zeros;
        self.capacity.is_some_and(zeros) || self.provisioning.reads_zeros
    }

    fn geometry(&self) -> Option<Geometry> {
        let (abilities, capacity) = (self.unit_capabilities()?, self.capacity?);
        let logical = capacity.block_len;
        let physical = logical.checked_mul(1 << capacity.physical_exponent);
        Some(Geometry {
            // `set_capacity` has seen that they can be counted.
            blocks: capacity.last_lba + 1,
            logical,
            physical: physical
                .filter(|bytes| *bytes >= logical && *bytes <= PHYSICAL_BLOCK_MAX)
                .unwrap_or(logical),
            dio_align: logical,
            max_io: abilities.transfer_max * logical,
            thin: self.provisioning.kind == ProvisioningType::THIN,
            write_cache: self.write_cache,
            atomic: abilities.atomic_max.max(1),
            atomic_powerfail: 1,
            caw_max: abilities.caw_max,
            dealloc_reads_zero: self.unmapped_reads_zeros(),
            lends: false,
        })
    }

    /// What there is to tell of the path by which `session` goes.
    pub(super) fn volume_info(
        &self,
        session: &InitiatorSession,
        address: SocketAddr,
        depth: u32,
    ) -> VolumeInfo {
        VolumeInfo {
            uuid: self.uuid,
            geometry: self.geometry(),
            read_only: self.write_protected,
            access: self.access,
            product: self.product.clone(),
            serial: self.serial.clone(),
            depth,
            terms: self.session_terms(session, address),
        }
    }

    fn session_terms(&self, session: &InitiatorSession, address: SocketAddr) -> Vec<(String, String)> {
        let params = session.params();
        let yes = |on: bool| if on { "Yes" } else { "No" }.to_owned();
        let digest = |digest: Digest| if digest == Digest::Crc32c { "CRC32C" } else { "None" }.to_owned();
        let mut terms = vec![("TargetAddress", address.to_string())];
        terms.extend(session.portal_group_tag().map(|tag| ("TargetPortalGroupTag", tag.to_string())));
        terms.extend([
            ("TSIH", session.tsih().value().to_string()),
            ("HeaderDigest", digest(params.header_digest)),
            ("DataDigest", digest(params.data_digest)),
            ("MaxConnections", params.max_connections.to_string()),
            ("InitialR2T", yes(params.initial_r2t)),
            ("ImmediateData", yes(params.immediate_data)),
            ("MaxBurstLength", params.max_burst.to_string()),
            ("FirstBurstLength", params.first_burst.to_string()),
            ("MaxOutstandingR2T", params.max_outstanding_r2t.to_string()),
            ("MaxRecvDataSegmentLength (ours)", params.initiator_mrdsl.to_string()),
            ("MaxRecvDataSegmentLength (target)", params.target_mrdsl.to_string()),
            ("DefaultTime2Wait", params.time2wait.to_string()),
            ("DefaultTime2Retain", params.time2retain.to_string()),
            ("DataPDUInOrder", yes(params.data_pdu_in_order)),
            ("DataSequenceInOrder", yes(params.data_sequence_in_order)),
            ("ErrorRecoveryLevel", params.erl.to_string()),
            ("TaskReporting", params.task_reporting.name().to_owned()),
            ("iSCSIProtocolLevel", params.protocol_level.to_string()),
        ]);
        terms.extend(self.names.iter().map(|(kind, text)| (*kind, text.clone())));
        terms.extend(self.group.map(|id| ("Target port group", id.to_string())));
        terms.extend(self.port.map(|id| ("Relative target port", id.to_string())));
        let limits = &self.limits;
        terms.extend([
            ("Maximum transfer length", limits.transfer_max.to_string()),
            ("Optimal transfer length", limits.transfer_optimal.to_string()),
            ("Maximum compare and write length", limits.compare_and_write_max.to_string()),
            ("Maximum unmap LBA count", limits.unmap_blocks_max.to_string()),
            ("Maximum unmap block descriptor count", limits.unmap_descriptors_max.to_string()),
            ("Maximum write same length", limits.write_same_max.to_string()),
            ("Maximum atomic transfer length", limits.atomic_max.to_string()),
            ("UNMAP", yes(self.provisioning.unmap)),
            ("DPO and FUA", yes(self.fua)),
            ("Medium rotation rate", self.rotation.to_string()),
        ]);
        terms.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The most blocks of WRITE SAME, VERIFY and the like where the target states no fewer.
pub(super) const DEFAULT_WRITE_SAME_MAX: u32 = 0xffff;
/// The most descriptors of one UNMAP.
pub(super) const UNMAP_DESCRIPTORS_MAX: u32 = 255;

/// What a logical unit can do; lengths in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitCapabilities {
    pub(super) block: u32,
    pub(super) transfer_max: u32,
    pub(super) same_max: u32,
    pub(super) prefetch_max: u32,
    /// Blocks and descriptors of one UNMAP.
    pub(super) unmap: Option<(u32, u32)>,
    pub(super) same_unmaps: bool,
    pub(super) same_10_unmaps: bool,
    pub(super) reads_zeros: bool,
    pub(super) caw_max: u32,
    pub(super) atomic_max: u32,
    pub(super) fua: bool,
    pub(super) write_cache: bool,
    /// Commands that the target turned out not to know: bits of [`Form`](super::plan::Form).
    pub(super) unknown: u16,
}

fn short_capacity_data() -> UnusableReason {
    "the target's READ CAPACITY data is too short; look into the target".to_owned()
}

/// A target's text: what is not printable ASCII becomes a space.
fn printable_ascii(text: &[u8]) -> String {
    text.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { ' ' }).collect()
}

fn designator_name(designator: &Designator<'_>) -> Option<(&'static str, String)> {
    let kind = match designator.kind {
        DesignatorType::NAA => "NAA",
        DesignatorType::EUI_64 => "EUI-64",
        DesignatorType::T10 => {
            return Some(("T10 vendor ID", printable_ascii(designator.bytes).trim().to_owned()));
        }
        DesignatorType::NAME => {
            return Some(("SCSI name", printable_ascii(designator.bytes).trim().to_owned()));
        }
        _ => return None,
    };
    let hex = designator.bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    Some((kind, hex))
}
