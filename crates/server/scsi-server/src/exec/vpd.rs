//! Vital product data (SPC-4 §7.8, SBC-3 §6.6), derived from the volume's geometry, so that it matches the
//! behaviour.

use scsi::Writer;
use scsi::inquiry::Peripheral;
use scsi::sense::Sense;
use scsi::vpd::{
    self, BlockDeviceCharacteristics, BlockLimits, ExtendedInquiry, LogicalBlockProvisioning,
    ProvisioningType, ReadAfterErase, TargetPort,
};
use volume::Geometry;

use super::{copy, log_pages, provision};
use crate::nexus::NexusSpec;
use crate::unit::LogicalUnit;

const SUPPORTED_PAGES: [u8; 10] = [
    vpd::SUPPORTED_PAGES,
    vpd::UNIT_SERIAL_NUMBER,
    vpd::DEVICE_IDENTIFICATION,
    vpd::EXTENDED_INQUIRY,
    vpd::MODE_PAGE_POLICY,
    vpd::SCSI_PORTS,
    vpd::THIRD_PARTY_COPY,
    vpd::BLOCK_LIMITS,
    vpd::BLOCK_DEVICE_CHARACTERISTICS,
    vpd::PROVISIONING,
];

/// What a nexus that wants no more per command reads or writes at a time, in bytes.
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;

/// Writes one page of a logical unit.
pub(crate) fn write_page(
    nexus: &NexusSpec,
    unit: &LogicalUnit,
    page: u8,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    let disk = Peripheral::DISK;
    let geometry = &unit.view.geometry;
    match page {
        vpd::SUPPORTED_PAGES => vpd::encode_supported_pages(disk, &SUPPORTED_PAGES, w),
        vpd::UNIT_SERIAL_NUMBER => vpd::encode_serial_number(disk, &unit.spec.uuid.serial_number(), w),
        vpd::DEVICE_IDENTIFICATION => {
            vpd::encode_identification(disk, Some(&unit.device_names(nexus)), &nexus_target_port(nexus), w)
        }
        vpd::EXTENDED_INQUIRY => {
            let page =
                ExtendedInquiry { volatile_cache: geometry.write_cache, sense_len_max: Sense::LEN_MAX as u8 };
            page.encode(disk, w);
        }
        vpd::MODE_PAGE_POLICY => vpd::encode_mode_page_policy(disk, w),
        vpd::SCSI_PORTS => vpd::encode_scsi_ports(disk, target_ports(nexus), w),
        vpd::THIRD_PARTY_COPY => vpd::encode_third_party_copy(disk, &copy::COPY_LIMITS, w),
        vpd::BLOCK_LIMITS => block_limits(geometry).encode(disk, w),
        vpd::BLOCK_DEVICE_CHARACTERISTICS => block_characteristics(unit).encode(disk, w),
        vpd::PROVISIONING => logical_block_provisioning(geometry).encode(disk, w),
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    }
    Ok(())
}

/// Writes one page of the REPORT LUNS well known logical unit, or of one that is not there: only what
/// names the target.
pub(crate) fn write_page_without_volume(
    nexus: &NexusSpec,
    peripheral: Peripheral,
    page: u8,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    match page {
        vpd::SUPPORTED_PAGES => {
            vpd::encode_supported_pages(peripheral, &[vpd::SUPPORTED_PAGES, vpd::DEVICE_IDENTIFICATION], w)
        }
        vpd::DEVICE_IDENTIFICATION => {
            vpd::encode_identification(peripheral, None, &nexus_target_port(nexus), w)
        }
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    }
    Ok(())
}

fn nexus_target_port(nexus: &NexusSpec) -> TargetPort<'_> {
    let port = nexus.nexus.port.0;
    TargetPort { target: &nexus.target, portal_group: nexus.portal_group, relative: port, group: port }
}

fn target_ports(nexus: &NexusSpec) -> impl Iterator<Item = TargetPort<'_>> {
    nexus.ports.iter().map(|port| TargetPort {
        target: &nexus.target,
        portal_group: port.portal_group,
        relative: port.port.0,
        group: port.port.0,
    })
}

fn block_limits(geometry: &Geometry) -> BlockLimits {
    let transfer_max = geometry.max_io / geometry.logical;
    let per_physical = geometry.physical / geometry.logical;
    let thin = |limit: u32| if geometry.thin { limit } else { 0 };
    BlockLimits {
        write_same_non_zero: false,
        compare_and_write_max: geometry.caw_max.min(255) as u8,
        granularity: u16::try_from(per_physical).unwrap_or(0),
        transfer_max,
        transfer_optimal: transfer_max.min(OPTIMAL_TRANSFER_BYTES / geometry.logical),
        prefetch_max: 0,
        unmap_blocks_max: thin(provision::UNMAP_BLOCKS_MAX),
        unmap_descriptors_max: thin(provision::UNMAP_DESCRIPTORS_MAX),
        unmap_granularity: thin(per_physical),
        unmap_alignment: geometry.thin.then_some(0),
        write_same_max: provision::WRITE_SAME_MAX,
        // Whole for readers; over power failure only what `docs/one-volume.md` says.
        atomic_max: geometry.atomic.min(transfer_max),
        atomic_alignment: 0,
        atomic_granularity: 0,
        atomic_max_with_boundary: 0,
        atomic_boundary_max: 0,
    }
}

fn block_characteristics(unit: &LogicalUnit) -> BlockDeviceCharacteristics {
    // Without BLOCK ERASE, WABEREQ must be 0.
    let after_block_erase =
        if unit.view.geometry.thin { ReadAfterErase::READABLE } else { ReadAfterErase::UNSPECIFIED };
    BlockDeviceCharacteristics {
        rotation_rate: if unit.spec.rpm == 0 { 1 } else { unit.spec.rpm },
        after_block_erase,
        form_factor: 0,
        fua_behavior: true,
        verify_unmapped: true,
    }
}

fn logical_block_provisioning(geometry: &Geometry) -> LogicalBlockProvisioning {
    LogicalBlockProvisioning {
        threshold_exponent: if geometry.thin { log_pages::threshold_exponent(geometry) } else { 0 },
        unmap: geometry.thin,
        write_same_16: geometry.thin,
        write_same_10: geometry.thin,
        reads_zeros: geometry.thin && geometry.dealloc_reads_zero,
        anchor: false,
        kind: if geometry.thin { ProvisioningType::THIN } else { ProvisioningType::FULL },
    }
}
