//! REPORT LUNS (SPC-4 §6.33), REPORT SUPPORTED OPERATION CODES (§6.35) and REPORT SUPPORTED TASK MANAGEMENT
//! FUNCTIONS (§6.36) data.

use crate::cdb::{CommandDescriptor, CommandSet, OpcodeSelect, ReportOpcodes};
use crate::lun::{Lun, LunAddress, REPORT_LUNS_WLUN};
use crate::sense::Sense;
use crate::wire::{Writer, be32, flag_bit};

/// SELECT REPORT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LunSelect {
    /// 00h: logical units, without well known ones.
    Units,
    /// 01h: well known logical units only.
    WellKnown,
    /// 02h: both.
    All,
}

impl LunSelect {
    /// Judges the field of the CDB; other values are refused.
    pub fn parse(select: u8) -> Result<LunSelect, Sense> {
        match select {
            0 => Ok(LunSelect::Units),
            1 => Ok(LunSelect::WellKnown),
            2 => Ok(LunSelect::All),
            _ => Err(Sense::invalid_cdb_field(2, Some(7))),
        }
    }
}

/// Writes REPORT LUNS data: the units given, and the REPORT LUNS well known logical unit where asked for.
pub fn encode_luns(select: LunSelect, units: impl Iterator<Item = Lun>, w: &mut Writer<'_>) {
    let start = w.len();
    w.zeros(8);
    if select != LunSelect::WellKnown {
        units.for_each(|lun| w.put(&LunAddress::Unit(lun).encode()));
    }
    if select != LunSelect::Units {
        w.put(&LunAddress::WellKnown(REPORT_LUNS_WLUN).encode());
    }
    let list_len = u32::try_from(w.len() - start - 8).unwrap_or(u32::MAX);
    w.patch(start, &list_len.to_be_bytes());
}

/// The addresses in REPORT LUNS data, as far as they were transferred; fields of unknown form are left out.
pub fn decode_luns(data: &[u8]) -> impl Iterator<Item = LunAddress> + '_ {
    let listed = data.first_chunk::<8>().map_or(0, |head| be32(head, 0) as usize);
    let list = data.get(8..).unwrap_or(&[]);
    let (fields, _) = list.get(..listed).unwrap_or(list).as_chunks::<8>();
    fields.iter().filter_map(LunAddress::parse)
}

/// Length of a command timeouts descriptor after its length field.
const TIMEOUTS_LEN: u16 = 0x0a;
/// SUPPORT: not supported.
const UNSUPPORTED: u8 = 1;
/// SUPPORT: supported as the standard says.
const SUPPORTED_PER_STANDARD: u8 = 3;

/// Writes REPORT SUPPORTED OPERATION CODES data for the commands of `set`.
pub fn encode_opcodes(set: CommandSet, request: &ReportOpcodes, w: &mut Writer<'_>) -> Result<(), Sense> {
    let has_actions = |opcode| set.descriptors_with_opcode(opcode).any(|entry| entry.action.is_some());
    let plain = |opcode| set.descriptors_with_opcode(opcode).find(|entry| entry.action.is_none());
    let with_action = |opcode, action| {
        set.descriptors_with_opcode(opcode).find(|e| e.action.map(u16::from) == Some(action))
    };
    match request.select {
        OpcodeSelect::All => put_all_opcodes(set, request.timeouts, w),
        OpcodeSelect::Opcode(opcode) if has_actions(opcode) => {
            return Err(Sense::invalid_cdb_field(2, Some(2)));
        }
        OpcodeSelect::Opcode(opcode) => put_one_opcode(plain(opcode), request.timeouts, w),
        OpcodeSelect::Action(opcode, _) if plain(opcode).is_some() => {
            return Err(Sense::invalid_cdb_field(2, Some(2)));
        }
        OpcodeSelect::Action(opcode, action) => {
            put_one_opcode(with_action(opcode, action), request.timeouts, w)
        }
        OpcodeSelect::Any(opcode, action) => {
            let entry = with_action(opcode, action).or_else(|| plain(opcode).filter(|_| action == 0));
            put_one_opcode(entry, request.timeouts, w);
        }
    }
    Ok(())
}

fn put_all_opcodes(set: CommandSet, timeouts: bool, w: &mut Writer<'_>) {
    let start = w.len();
    w.u32(0);
    for entry in set.descriptors() {
        w.u8(entry.opcode());
        w.u8(0);
        w.u16(u16::from(entry.action.unwrap_or(0)));
        w.u8(0);
        w.u8(flag_bit(timeouts, 1) | flag_bit(entry.action.is_some(), 0));
        w.u16(entry.len() as u16);
        put_timeouts(timeouts, w);
    }
    w.patch_length_u32(start);
}

fn put_one_opcode(entry: Option<&CommandDescriptor>, timeouts: bool, w: &mut Writer<'_>) {
    w.u8(0);
    let Some(entry) = entry else {
        w.u8(UNSUPPORTED);
        w.u16(0);
        return;
    };
    w.u8(flag_bit(timeouts, 7) | SUPPORTED_PER_STANDARD);
    w.u16(entry.len() as u16);
    entry.cdb_usage_data().for_each(|mask| w.u8(mask));
    put_timeouts(timeouts, w);
}

/// A command timeouts descriptor in which nothing is promised: zero means "not indicated".
fn put_timeouts(wanted: bool, w: &mut Writer<'_>) {
    if wanted {
        w.u16(TIMEOUTS_LEN);
        w.zeros(usize::from(TIMEOUTS_LEN));
    }
}

/// The task management functions of a target (SAM-5 §7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SupportedTaskManagement {
    /// ABORT TASK.
    pub abort_task: bool,
    /// ABORT TASK SET.
    pub abort_task_set: bool,
    /// CLEAR ACA.
    pub clear_aca: bool,
    /// CLEAR TASK SET.
    pub clear_task_set: bool,
    /// LOGICAL UNIT RESET.
    pub unit_reset: bool,
    /// QUERY TASK.
    pub query_task: bool,
    /// TARGET RESET.
    pub target_reset: bool,
    /// QUERY ASYNCHRONOUS EVENT.
    pub query_event: bool,
    /// QUERY TASK SET.
    pub query_task_set: bool,
    /// I_T NEXUS RESET.
    pub nexus_reset: bool,
}

impl SupportedTaskManagement {
    /// Writes the data: 4 bytes, or 16 in the extended form (with no timeouts indicated).
    pub fn encode(&self, extended: bool, w: &mut Writer<'_>) {
        w.u8(flag_bit(self.abort_task, 7)
            | flag_bit(self.abort_task_set, 6)
            | flag_bit(self.clear_aca, 5)
            | flag_bit(self.clear_task_set, 4)
            | flag_bit(self.unit_reset, 3)
            | flag_bit(self.query_task, 2)
            | flag_bit(self.target_reset, 1));
        w.u8(flag_bit(self.query_event, 2)
            | flag_bit(self.query_task_set, 1)
            | flag_bit(self.nexus_reset, 0));
        w.u8(0);
        if extended {
            w.u8(0x0c);
            w.zeros(12);
        } else {
            w.u8(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(f: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = [0xee; 4096];
        let mut w = Writer::new(&mut out);
        f(&mut w);
        let len = w.written_len();
        out[..len].to_vec()
    }

    #[test]
    fn report_luns() {
        let units = || [0, 5, 300].into_iter().filter_map(Lun::new);
        let data = written(|w| encode_luns(LunSelect::All, units(), w));
        assert_eq!(data[..8], [0, 0, 0, 32, 0, 0, 0, 0]);
        assert_eq!(data[16..18], [0, 5]);
        assert_eq!(data[24..26], [0x41, 0x2c]);
        assert_eq!(data[32..34], [0xc1, 1]);
        assert_eq!(decode_luns(&data).count(), 4);
        assert_eq!(decode_luns(&data[..31]).count(), 2);
        assert_eq!(decode_luns(&[0xff; 7]).count(), 0);
        assert_eq!(written(|w| encode_luns(LunSelect::Units, units(), w)).len(), 32);
        assert_eq!(written(|w| encode_luns(LunSelect::WellKnown, units(), w))[..4], [0, 0, 0, 8]);
        assert!(LunSelect::parse(3).is_err());

        let mut out = [0xee; 20];
        let mut w = Writer::with_allocation_length(&mut out, 16);
        encode_luns(LunSelect::Units, units(), &mut w);
        assert_eq!((w.written_len(), out[3], out[16]), (16, 24, 0xee));
    }

    fn request(select: OpcodeSelect, timeouts: bool) -> ReportOpcodes {
        ReportOpcodes { timeouts, select, allocation: 65535 }
    }

    #[test]
    fn all_commands() {
        let count = CommandSet::ALL.descriptors().count();
        for (timeouts, len) in [(false, 8), (true, 20)] {
            let data = written(|w| {
                encode_opcodes(CommandSet::ALL, &request(OpcodeSelect::All, timeouts), w).unwrap()
            });
            assert_eq!(data.len(), 4 + count * len);
            assert_eq!(be32(&data, 0) as usize, count * len);
            assert_eq!(data[4..12], [0, 0, 0, 0, 0, if timeouts { 2 } else { 0 }, 0, 6]);
        }
        let thin = CommandSet::ALL.without(CommandSet::UNMAP);
        let data = written(|w| encode_opcodes(thin, &request(OpcodeSelect::All, false), w).unwrap());
        assert_eq!(data.len(), 4 + (count - 2) * 8);
    }

    #[test]
    fn one_command() {
        let one = |select, timeouts| {
            let mut out = [0xee; 64];
            let mut w = Writer::new(&mut out);
            let result = encode_opcodes(CommandSet::ALL, &request(select, timeouts), &mut w);
            let len = w.written_len();
            result.map(|()| out[..len].to_vec())
        };
        assert_eq!(
            one(OpcodeSelect::Opcode(0x28), false).unwrap(),
            [0, 3, 0, 10, 0x28, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0]
        );
        let rc16 = one(OpcodeSelect::Action(0x9e, 0x10), true).unwrap();
        assert_eq!(rc16[..6], [0, 0x83, 0, 16, 0x9e, 0x10]);
        assert_eq!(rc16[20..], [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(OpcodeSelect::Opcode(0xc0), false).unwrap(), [0, 1, 0, 0]);
        assert_eq!(one(OpcodeSelect::Action(0x9e, 0x11), true).unwrap(), [0, 1, 0, 0]);
        assert_eq!(one(OpcodeSelect::Any(0x28, 0), false).unwrap()[1], 3);
        assert_eq!(one(OpcodeSelect::Any(0x28, 1), false).unwrap()[1], 1);
        assert_eq!(one(OpcodeSelect::Any(0x9e, 0x10), false).unwrap()[1], 3);
        assert_eq!(one(OpcodeSelect::Opcode(0x9e), false), Err(Sense::invalid_cdb_field(2, Some(2))));
        assert_eq!(one(OpcodeSelect::Action(0x28, 0), false), Err(Sense::invalid_cdb_field(2, Some(2))));
    }

    #[test]
    fn task_management() {
        let functions = SupportedTaskManagement {
            abort_task: true,
            unit_reset: true,
            nexus_reset: true,
            ..Default::default()
        };
        assert_eq!(written(|w| functions.encode(false, w)), [0x88, 1, 0, 0]);
        let extended = written(|w| functions.encode(true, w));
        assert_eq!((extended.len(), extended[3]), (16, 0x0c));
    }
}
