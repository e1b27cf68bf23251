//! Identity of a logical unit: INQUIRY, READ CAPACITY, REPORT LUNS; and the answers where there is no logical
//! unit.

use scsi::capacity::Capacity;
use scsi::cdb::Inquiry;
use scsi::inquiry::{Peripheral, PortGroupSupport, StandardInquiry};
use scsi::lun::Lun;
use scsi::report::{LunSelect, encode_luns};
use scsi::sense::Sense;
use scsi::{Command, Writer};

use super::{LunWithoutVolume, vpd};
use crate::context::ExecContext;
use crate::nexus::NexusSpec;
use crate::step::{NexusKey, Reply, TaskKey};
use crate::task::IncomingCommand;

/// INQUIRY of a logical unit.
pub(crate) fn inquiry(ctx: &mut ExecContext, slot: u32, inquiry: Inquiry) {
    ctx.respond_with_parameter_data(slot, usize::from(inquiry.allocation), |ctx, w| {
        let (nexus, unit) = (ctx.nexus_of(slot), ctx.logical_unit_of(slot));
        match inquiry.page {
            None => {
                write_standard_inquiry(nexus, Peripheral::DISK, unit.spec.removable, w);
                Ok(())
            }
            Some(page) => vpd::write_page(nexus, unit, page, w),
        }
    });
}

fn write_standard_inquiry(nexus: &NexusSpec, peripheral: Peripheral, removable: bool, w: &mut Writer<'_>) {
    let product = &nexus.product;
    let is_disk = peripheral == Peripheral::DISK;
    let port_groups = match (is_disk, nexus.explicit_alua) {
        (false, _) => PortGroupSupport::None,
        (true, false) => PortGroupSupport::Implicit,
        (true, true) => PortGroupSupport::Both,
    };
    let data = StandardInquiry {
        peripheral,
        removable,
        port_groups,
        third_party_copy: is_disk,
        multi_port: nexus.ports.len() > 1,
        vendor: product.vendor.as_bytes(),
        product: product.product.as_bytes(),
        revision: product.revision.as_bytes(),
    };
    data.encode(w);
}

/// READ CAPACITY(10), or (16) with an allocation length.
pub(crate) fn read_capacity(ctx: &mut ExecContext, slot: u32, sixteen: Option<u32>) {
    let allocation = sixteen.map_or(8, |allocation| allocation as usize);
    ctx.respond_with_parameter_data(slot, allocation, |ctx, w| {
        let geometry = &ctx.logical_unit_of(slot).view.geometry;
        let capacity = Capacity {
            last_lba: geometry.blocks.saturating_sub(1),
            block_len: geometry.logical,
            physical_exponent: (geometry.physical / geometry.logical).trailing_zeros() as u8,
            lowest_aligned: 0,
            provisioned: geometry.thin,
            reads_zeros: geometry.thin && geometry.dealloc_reads_zero,
        };
        match sixteen {
            None => capacity.encode_10(w),
            Some(_) => capacity.encode_16(w),
        }
        Ok(())
    });
}

/// REPORT LUNS: who reads the inventory need not be told any more that it has changed.
pub(crate) fn report_luns(ctx: &mut ExecContext, slot: u32, select: u8, allocation: u32) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    if ctx.respond_with_parameter_data(slot, allocation as usize, |ctx, w| {
        write_lun_list(ctx, nexus, select, w)
    }) {
        withdraw_inventory_attention(ctx, nexus);
    }
}

fn write_lun_list(ctx: &ExecContext, nexus: NexusKey, select: u8, w: &mut Writer<'_>) -> Result<(), Sense> {
    let select = LunSelect::parse(select)?;
    let units = ctx.nexus(nexus).luns.iter().filter_map(|entry| Lun::new(u32::from(entry.lun)));
    encode_luns(select, units, w);
    Ok(())
}

fn withdraw_inventory_attention(ctx: &mut ExecContext, nexus: NexusKey) {
    for lun in &mut ctx.nexus_state_mut(nexus).luns {
        lun.attentions.withdraw(Sense::REPORTED_LUNS_DATA_HAS_CHANGED.code);
    }
}

/// Answers for the REPORT LUNS well known logical unit, for one whose volume is away, or for a LUN that nothing
/// is behind.
pub(crate) fn answer_without_volume(
    ctx: &mut ExecContext,
    key: TaskKey,
    command: Command,
    lun: LunWithoutVolume,
    arrived: &IncomingCommand<'_>,
) {
    let (peripheral, sense) = match lun {
        LunWithoutVolume::WellKnown => (Peripheral::WELL_KNOWN, Sense::NO_SENSE),
        // A disk that becomes ready. Linux makes no disk of qualifier 001b and does not ask again; of this it makes
        // one, which it asks for a while whether it is ready.
        LunWithoutVolume::Away => (Peripheral::DISK, Sense::BECOMING_READY),
        LunWithoutVolume::NoUnit => (Peripheral::NONE, Sense::LOGICAL_UNIT_NOT_SUPPORTED),
    };
    let data = match command {
        Command::Inquiry(Inquiry { page, allocation }) => {
            ctx.encode_parameter_data(usize::from(allocation), |ctx, w| match page {
                None => {
                    write_standard_inquiry(ctx.nexus(key.nexus), peripheral, false, w);
                    Ok(())
                }
                Some(page) => vpd::write_page_without_volume(ctx.nexus(key.nexus), peripheral, page, w),
            })
        }
        Command::ReportLuns { select, allocation } => {
            let data = ctx.encode_parameter_data(allocation as usize, |ctx, w| {
                write_lun_list(ctx, key.nexus, select, w)
            });
            if data.is_ok() {
                withdraw_inventory_attention(ctx, key.nexus);
            }
            data
        }
        Command::RequestSense { descriptor, allocation } => {
            ctx.encode_parameter_data(usize::from(allocation), |_, w| {
                write_sense_data(&sense, descriptor, w);
                Ok(())
            })
        }
        _ => Err(Reply::good(0)),
    };
    match data {
        Ok(data) => {
            let transferred = data.len() as u64;
            ctx.send_data_in(key, arrived.data_in, data);
            ctx.push_response(key, Reply::good(transferred));
        }
        Err(reply) => ctx.push_response(key, reply),
    }
}

/// Sense data as parameter data.
pub(crate) fn write_sense_data(sense: &Sense, descriptor: bool, w: &mut Writer<'_>) {
    let mut bytes = [0; Sense::LEN_MAX];
    let len = sense.encode(descriptor, &mut bytes);
    w.put(bytes.get(..len).unwrap_or(&bytes));
}
