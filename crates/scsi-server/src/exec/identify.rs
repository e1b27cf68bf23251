//! What a logical unit is: INQUIRY, READ CAPACITY, REPORT LUNS.

use buf::{Cx, Sg};
use scsi::capacity::Capacity;
use scsi::cdb::Inquiry;
use scsi::inquiry::{Peripheral, PortGroupSupport, StandardInquiry};
use scsi::sense::Sense;
use scsi::{Command, Writer};

use crate::exec::{parameter_data, send};
use crate::nexus::NexusSpec;
use crate::server::Server;
use crate::step::{Reply, TaskKey};
use crate::unit::Unit;

/// INQUIRY of a logical unit.
pub(crate) fn inquiry(server: &mut Server, cx: &mut Cx<'_>, slot: u32, inquiry: Inquiry) {
    let task = server.tasks.get(slot);
    let nexus = server.nexus(task.key.nexus);
    let Some(unit) = server.unit(task.volume) else {
        return server.check(slot, Sense::LOGICAL_UNIT_NOT_SUPPORTED);
    };
    let data = match inquiry.page {
        None => parameter_data(cx, usize::from(inquiry.allocation), |w| standard(nexus, unit, w)),
        Some(_) => Err(Reply::check(Sense::cdb_field(2, None))),
    };
    send(server, slot, data);
}

fn standard(nexus: &NexusSpec, unit: &Unit, w: &mut Writer<'_>) {
    let product = &nexus.product;
    let data = StandardInquiry {
        peripheral: Peripheral::DISK,
        removable: unit.spec.removable,
        port_groups: if nexus.explicit_alua { PortGroupSupport::Both } else { PortGroupSupport::Implicit },
        third_party_copy: true,
        multi_port: true,
        vendor: product.vendor.as_bytes(),
        product: product.product.as_bytes(),
        revision: product.revision.as_bytes(),
    };
    data.encode(w);
}

/// READ CAPACITY(10), or (16) with an allocation length.
pub(crate) fn capacity(server: &mut Server, cx: &mut Cx<'_>, slot: u32, sixteen: Option<u32>) {
    let volume = server.tasks.get(slot).volume;
    let Some(unit) = server.unit(volume) else {
        return server.check(slot, Sense::LOGICAL_UNIT_NOT_SUPPORTED);
    };
    let geometry = unit.view.geometry;
    let capacity = Capacity {
        last_lba: geometry.blocks.saturating_sub(1),
        block_len: geometry.logical,
        physical_exponent: (geometry.physical / geometry.logical).trailing_zeros() as u8,
        lowest_aligned: 0,
        provisioned: geometry.thin,
        reads_zeros: geometry.thin && geometry.dealloc_reads_zero,
    };
    let data = match sixteen {
        None => parameter_data(cx, 8, |w| capacity.encode_10(w)),
        Some(allocation) => parameter_data(cx, allocation as usize, |w| capacity.encode_16(w)),
    };
    send(server, slot, data);
}

/// REPORT LUNS.
pub(crate) fn report_luns(server: &mut Server, cx: &mut Cx<'_>, slot: u32, select: u8, allocation: u32) {
    let key = server.tasks.get(slot).key;
    let data = luns(server, cx, key, select, allocation);
    send(server, slot, data);
}

fn luns(server: &Server, cx: &mut Cx<'_>, key: TaskKey, select: u8, allocation: u32) -> Result<Sg, Reply> {
    let luns = &server.nexus(key.nexus).luns;
    let count = match select {
        0x00 | 0x02 => luns.len(),
        // Well known logical units only: there is none to report beside the one that is implied.
        0x01 => 0,
        _ => return Err(Reply::check(Sense::cdb_field(2, None))),
    };
    parameter_data(cx, allocation as usize, |w| {
        w.u32(count as u32 * 8);
        w.u32(0);
        for entry in &luns[..count] {
            let flat = if entry.lun < 256 { entry.lun } else { 0x4000 | entry.lun };
            w.u16(flat);
            w.zeros(6);
        }
    })
}

/// The answer to INQUIRY, REPORT LUNS and REQUEST SENSE where no logical unit is.
pub(crate) fn without_unit(
    server: &Server,
    cx: &mut Cx<'_>,
    key: TaskKey,
    command: Command,
) -> Result<Sg, Reply> {
    match command {
        Command::Inquiry(Inquiry { page: None, allocation }) => {
            parameter_data(cx, usize::from(allocation), |w| {
                let data = StandardInquiry {
                    peripheral: Peripheral::NONE,
                    removable: false,
                    port_groups: PortGroupSupport::None,
                    third_party_copy: false,
                    multi_port: false,
                    vendor: b"",
                    product: b"",
                    revision: b"",
                };
                data.encode(w);
            })
        }
        Command::ReportLuns { select, allocation } => luns(server, cx, key, select, allocation),
        Command::RequestSense { descriptor, allocation } => {
            parameter_data(cx, usize::from(allocation), |w| {
                let mut bytes = [0; Sense::LEN_MAX];
                let len = Sense::LOGICAL_UNIT_NOT_SUPPORTED.encode(descriptor, &mut bytes);
                w.put(&bytes[..len]);
            })
        }
        _ => Err(Reply::check(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
    }
}
