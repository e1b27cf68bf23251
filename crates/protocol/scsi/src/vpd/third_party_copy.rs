//! Page 8Fh, third-party copy (SPC-4 §7.8.17).
//!
//! The commands listed are taken from the command table, the limits from the copy manager's own.

use super::{THIRD_PARTY_COPY, write_page};
use crate::cdb::CommandSet;
use crate::extended_copy::{CopyLimits, DESCRIPTOR_TYPES};
use crate::inquiry::Peripheral;
use crate::wire::Writer;

const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const GENERAL_OPERATIONS: u16 = 0x8001;

/// Operation codes of third-party copy: EXTENDED COPY, RECEIVE COPY RESULTS.
const COPY_OPCODES: [u8; 2] = [0x83, 0x84];

/// Writes the page for a copy manager with these limits.
pub fn encode_third_party_copy(peripheral: Peripheral, limits: &CopyLimits, w: &mut Writer<'_>) {
    write_page(peripheral, THIRD_PARTY_COPY, w, |w| {
        put_descriptor(SUPPORTED_COMMANDS, w, put_supported_commands);
        put_descriptor(PARAMETER_DATA, w, |w| {
            w.zeros(4);
            w.u16(limits.targets);
            w.u16(limits.segments);
            w.u32(limits.descriptors_len);
            // MAXIMUM INLINE DATA LENGTH and reserved bytes.
            w.zeros(16);
        });
        put_descriptor(SUPPORTED_DESCRIPTORS, w, |w| {
            w.u8(DESCRIPTOR_TYPES.len() as u8);
            w.put(&DESCRIPTOR_TYPES);
        });
        put_descriptor(GENERAL_OPERATIONS, w, |w| {
            w.u32(u32::from(limits.concurrent));
            w.u32(u32::from(limits.concurrent));
            w.u32(limits.segment_len);
            w.u8(limits.granularity);
            w.zeros(19);
        });
    });
}

/// Header, body, padding to a multiple of four which the length counts.
fn put_descriptor(kind: u16, w: &mut Writer<'_>, body: impl FnOnce(&mut Writer<'_>)) {
    w.u16(kind);
    let len_at = w.len();
    w.u16(0);
    let start = w.len();
    body(w);
    let len = w.len() - start;
    w.zeros(len.next_multiple_of(4) - len);
    w.patch_length_u16(len_at);
}

fn put_supported_commands(w: &mut Writer<'_>) {
    let start = w.len();
    w.u8(0);
    for opcode in COPY_OPCODES {
        let actions = || CommandSet::ALL.descriptors_with_opcode(opcode).filter_map(|entry| entry.action);
        w.u8(opcode);
        w.u8(actions().count() as u8);
        actions().for_each(|action| w.u8(action));
    }
    let len = (w.len() - start - 1) as u8;
    w.patch(start, &[len]);
}
