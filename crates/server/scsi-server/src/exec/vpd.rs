//! Vital product data (SPC-4 §7.8, SBC-3 §6.6), derived from the volume's geometry, so that it matches the
//! behaviour.

use scsi::Writer;
use scsi::inquiry::Peripheral;
use scsi::sense::Sense;
use scsi::vpd::{
    self, BlockLimits, Characteristics, ExtendedInquiry, Provisioning, ProvisioningType, ReadAfterErase,
    TargetPort,
};
use volume::Geometry;

use super::{copy, log, provision};
use crate::nexus::NexusSpec;
use crate::unit::LogicalUnit;

const PAGES: [u8; 10] = [
    vpd::SUPPORTED,
    vpd::SERIAL,
    vpd::IDENTIFICATION,
    vpd::EXTENDED,
    vpd::MODE_PAGE_POLICY,
    vpd::PORTS,
    vpd::THIRD_PARTY_COPY,
    vpd::BLOCK_LIMITS,
    vpd::CHARACTERISTICS,
    vpd::PROVISIONING,
];

/// What a nexus that wants no more per command reads or writes at a time, in bytes.
const OPTIMAL_LEN: u32 = 1 << 20;

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
        vpd::SUPPORTED => vpd::supported(disk, &PAGES, w),
        vpd::SERIAL => vpd::serial(disk, &unit.spec.uuid.serial(), w),
        vpd::IDENTIFICATION => vpd::identification(disk, Some(&unit.names(nexus)), &own_port(nexus), w),
        vpd::EXTENDED => {
            let page =
                ExtendedInquiry { volatile_cache: geometry.write_cache, sense_len_max: Sense::LEN_MAX as u8 };
            page.encode(disk, w);
        }
        vpd::MODE_PAGE_POLICY => vpd::mode_page_policy(disk, w),
        vpd::PORTS => vpd::ports(disk, ports(nexus), w),
        vpd::THIRD_PARTY_COPY => vpd::third_party_copy(disk, &copy::LIMITS, w),
        vpd::BLOCK_LIMITS => block_limits(geometry).encode(disk, w),
        vpd::CHARACTERISTICS => characteristics(unit).encode(disk, w),
        vpd::PROVISIONING => provisioning(geometry).encode(disk, w),
        _ => return Err(Sense::cdb_field(2, None)),
    }
    Ok(())
}

/// Writes one page of the REPORT LUNS well known logical unit, or of one that is not there: only what
/// names the target.
pub(crate) fn page_without_volume(
    nexus: &NexusSpec,
    peripheral: Peripheral,
    page: u8,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    match page {
        vpd::SUPPORTED => vpd::supported(peripheral, &[vpd::SUPPORTED, vpd::IDENTIFICATION], w),
        vpd::IDENTIFICATION => vpd::identification(peripheral, None, &own_port(nexus), w),
        _ => return Err(Sense::cdb_field(2, None)),
    }
    Ok(())
}

fn own_port(nexus: &NexusSpec) -> TargetPort<'_> {
    let port = nexus.nexus.port.0;
    TargetPort { target: &nexus.target, portal_group: nexus.portal_group, relative: port, group: port }
}

fn ports(nexus: &NexusSpec) -> impl Iterator<Item = TargetPort<'_>> {
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
        transfer_optimal: transfer_max.min(OPTIMAL_LEN / geometry.logical),
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

fn characteristics(unit: &LogicalUnit) -> Characteristics {
    // Without BLOCK ERASE, WABEREQ must be 0.
    let after_block_erase =
        if unit.view.geometry.thin { ReadAfterErase::READABLE } else { ReadAfterErase::UNSPECIFIED };
    Characteristics {
        rotation_rate: if unit.spec.rpm == 0 { 1 } else { unit.spec.rpm },
        after_block_erase,
        form_factor: 0,
        fua_behavior: true,
        verify_unmapped: true,
    }
}

fn provisioning(geometry: &Geometry) -> Provisioning {
    Provisioning {
        threshold_exponent: if geometry.thin { log::set_exponent(geometry) } else { 0 },
        unmap: geometry.thin,
        write_same_16: geometry.thin,
        write_same_10: geometry.thin,
        reads_zeros: geometry.thin && geometry.dealloc_reads_zero,
        anchor: false,
        kind: if geometry.thin { ProvisioningType::THIN } else { ProvisioningType::FULL },
    }
}
