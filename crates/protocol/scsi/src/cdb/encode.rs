//! From a [`Command`] to CDB bytes: the initiator's direction.
//!
//! Where several forms carry the same command, the ten-byte form is used if the numbers fit and the
//! sixteen-byte form otherwise.

use super::*;
use crate::wire::{bits, flag_bit, place_bits};

/// A CDB being written.
struct CdbWriter<'a> {
    bytes: &'a mut [u8; CDB_LEN_MAX],
    /// Block commands take their sixteen-byte form, whatever the numbers.
    long: bool,
}

impl CdbWriter<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn u24(&mut self, at: usize, v: u32) {
        self.put(at, &v.to_be_bytes()[1..]);
    }

    /// A block command in its ten-byte or sixteen-byte form.
    fn put_block_command(&mut self, ten: u8, sixteen: u8, flags: u8, span: (u64, u32), group: u8) -> usize {
        self.bytes[1] = flags;
        if !self.long
            && let (Ok(lba), Ok(blocks)) = (u32::try_from(span.0), u16::try_from(span.1))
        {
            self.bytes[0] = ten;
            self.put(2, &lba.to_be_bytes());
            self.bytes[6] = group;
            self.put(7, &blocks.to_be_bytes());
            return 10;
        }
        self.put_sixteen_byte_form(sixteen, flags, span, group)
    }

    fn put_sixteen_byte_form(&mut self, opcode: u8, flags: u8, span: (u64, u32), group: u8) -> usize {
        self.bytes[0] = opcode;
        self.bytes[1] = flags;
        self.put(2, &span.0.to_be_bytes());
        self.put(10, &span.1.to_be_bytes());
        self.bytes[14] = group;
        16
    }

    /// A six-byte CDB.
    fn put_six_byte(&mut self, bytes: &[u8]) -> usize {
        self.put(0, bytes);
        6
    }

    /// A ten-byte CDB with a 16-bit length in bytes 7 and 8.
    fn put_ten_byte(&mut self, bytes: &[u8], len: u16) -> usize {
        self.put(0, bytes);
        self.put(7, &len.to_be_bytes());
        10
    }

    /// Operation code, second byte, and a 32-bit length at `at`; the operation code says how long the CDB is.
    fn put_service_action(&mut self, opcode: u8, second: u8, at: usize, len: u32) -> usize {
        self.put(0, &[opcode, second]);
        self.put(at, &len.to_be_bytes());
        match bits(opcode, 7, 5) {
            4 => 16,
            5 => 12,
            _ => 10,
        }
    }
}

fn rw_flags(t: &BlockTransfer) -> u8 {
    flag_bit(t.dpo, 4) | flag_bit(t.fua, 3)
}

fn verify_flags(v: &Verify) -> u8 {
    let check = match v.check {
        ByteCheck::None => 0,
        ByteCheck::Compare => 1,
        ByteCheck::CompareOne => 3,
    };
    flag_bit(v.dpo, 4) | place_bits(check, 2, 1)
}

impl PrInAction {
    const fn code(self) -> u8 {
        match self {
            PrInAction::ReadKeys => 0,
            PrInAction::ReadReservation => 1,
            PrInAction::ReportCapabilities => 2,
            PrInAction::ReadFullStatus => 3,
        }
    }
}

impl PrOutAction {
    const fn code(self) -> u8 {
        match self {
            PrOutAction::Register => 0,
            PrOutAction::Reserve => 1,
            PrOutAction::Release => 2,
            PrOutAction::Clear => 3,
            PrOutAction::Preempt => 4,
            PrOutAction::PreemptAndAbort => 5,
            PrOutAction::RegisterAndIgnore => 6,
            PrOutAction::RegisterAndMove => 7,
        }
    }
}

impl CopyResultsAction {
    const fn code(self) -> u8 {
        match self {
            CopyResultsAction::Status => 0,
            CopyResultsAction::ReceiveData => 1,
            CopyResultsAction::OperatingParameters => 3,
            CopyResultsAction::FailedSegment => 4,
        }
    }
}

impl Command {
    /// Writes the CDB, the rest of `out` as zeros, and gives its length in bytes.
    ///
    /// A number too large for its field is cut; of what [`Command::parse`] gives, none is.
    pub fn encode(&self, out: &mut [u8; CDB_LEN_MAX]) -> usize {
        self.encode_form(out, false)
    }

    /// The same, in the sixteen-byte form where there is one: for what a logical unit knows in that form only.
    pub fn encode_long(&self, out: &mut [u8; CDB_LEN_MAX]) -> usize {
        self.encode_form(out, true)
    }

    fn encode_form(&self, bytes: &mut [u8; CDB_LEN_MAX], long: bool) -> usize {
        *bytes = [0; CDB_LEN_MAX];
        let mut out = CdbWriter { bytes, long };
        let o = &mut out;
        match *self {
            Command::TestUnitReady => o.put_six_byte(&[0x00]),
            Command::RequestSense { descriptor, allocation } => {
                o.put_six_byte(&[0x03, flag_bit(descriptor, 0), 0, 0, allocation])
            }
            Command::Inquiry(i) => inquiry(o, &i),
            Command::Read(t) => o.put_block_command(0x28, 0x88, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::Write(t) => o.put_block_command(0x2a, 0x8a, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::WriteAndVerify(v) => {
                o.put_block_command(0x2e, 0x8e, verify_flags(&v), (v.lba, v.blocks), v.group)
            }
            Command::Verify(v) => {
                o.put_block_command(0x2f, 0x8f, verify_flags(&v), (v.lba, v.blocks), v.group)
            }
            Command::CompareAndWrite(t) => {
                o.put_sixteen_byte_form(0x89, rw_flags(&t), (t.lba, u32::from(t.blocks as u8)), t.group)
            }
            Command::OrWrite(t) => o.put_sixteen_byte_form(0x8b, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::WriteAtomic(w) => write_atomic(o, &w),
            Command::WriteSame(w) => write_same(o, &w),
            Command::Unmap { anchor, group, list_len } => {
                o.put_ten_byte(&[0x42, flag_bit(anchor, 0), 0, 0, 0, 0, group], list_len)
            }
            Command::GetLbaStatus { lba, allocation } => {
                o.put(2, &lba.to_be_bytes());
                o.put_service_action(0x9e, 0x12, 10, allocation)
            }
            Command::PreFetch(e) => {
                o.put_block_command(0x34, 0x90, flag_bit(e.immediate, 1), (e.lba, e.blocks), e.group)
            }
            Command::SynchronizeCache(e) => {
                o.put_block_command(0x35, 0x91, flag_bit(e.immediate, 1), (e.lba, e.blocks), e.group)
            }
            Command::ReadCapacity10 => o.put_ten_byte(&[0x25], 0),
            Command::ReadCapacity16 { allocation } => o.put_service_action(0x9e, 0x10, 10, allocation),
            Command::ModeSense(m) => mode_sense(o, &m),
            Command::ModeSelect(m) => mode_select(o, &m),
            Command::LogSense(l) => log_sense(o, &l),
            Command::StartStop(s) => start_stop(o, &s),
            Command::PreventAllow { prevent } => o.put_six_byte(&[0x1e, 0, 0, 0, flag_bit(prevent, 0)]),
            Command::ReportLuns { select, allocation } => {
                o.put(2, &[select]);
                o.put_service_action(0xa0, 0, 6, allocation)
            }
            Command::ReportOpcodes(r) => report_opcodes(o, &r),
            Command::ReportTaskManagement { extended, allocation } => {
                o.put(2, &[flag_bit(extended, 7)]);
                o.put_service_action(0xa3, 0x0d, 6, allocation)
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                o.put_service_action(0xa3, 0x0a | flag_bit(extended, 5), 6, allocation)
            }
            Command::SetTargetPortGroups { list_len } => o.put_service_action(0xa4, 0x0a, 6, list_len),
            Command::ReserveIn { action, allocation } => o.put_ten_byte(&[0x5e, action.code()], allocation),
            Command::ReserveOut(r) => {
                o.put(2, &[place_bits(r.scope, 7, 4) | place_bits(r.kind, 3, 0)]);
                o.put_service_action(0x5f, r.action.code(), 5, r.list_len)
            }
            Command::Reserve => o.put_six_byte(&[0x16]),
            Command::Release => o.put_six_byte(&[0x17]),
            Command::ExtendedCopy { list_len } => o.put_service_action(0x83, 0, 10, list_len),
            Command::CopyResults { action, list_id, allocation } => {
                o.put(2, &[list_id]);
                o.put_service_action(0x84, action.code(), 10, allocation)
            }
            Command::Sanitize(s) => sanitize(o, &s),
            Command::FormatUnit(f) => {
                o.put_six_byte(&[0x04, flag_bit(f.long_list, 5) | flag_bit(f.with_list, 4), 0, 0, 0])
            }
            Command::SendDiagnostic(d) => {
                let offline = flag_bit(d.device_offline, 1) | flag_bit(d.unit_offline, 0);
                o.put_six_byte(&[0x1d, flag_bit(d.self_test, 2) | offline])
            }
            Command::ReadDefects(r) => read_defects(o, &r),
            Command::ReadBuffer(b) => buffer_access(o, 0x3c, &b),
            Command::WriteBuffer(b) => buffer_access(o, 0x3b, &b),
        }
    }
}

fn inquiry(o: &mut CdbWriter<'_>, i: &Inquiry) -> usize {
    let [high, low] = i.allocation.to_be_bytes();
    o.put_six_byte(&[0x12, flag_bit(i.page.is_some(), 0), i.page.unwrap_or(0), high, low])
}

fn write_atomic(o: &mut CdbWriter<'_>, w: &WriteAtomic) -> usize {
    let t = &w.transfer;
    let len = o.put_sixteen_byte_form(0x9c, rw_flags(t), (t.lba, u32::from(t.blocks as u16)), t.group);
    o.put(10, &w.boundary.to_be_bytes());
    len
}

/// NDOB exists in the sixteen-byte form only.
fn write_same(o: &mut CdbWriter<'_>, w: &WriteSame) -> usize {
    let flags = flag_bit(w.anchor, 4) | flag_bit(w.unmap, 3) | flag_bit(w.no_data, 0);
    if w.no_data {
        return o.put_sixteen_byte_form(0x93, flags, (w.lba, w.blocks), w.group);
    }
    o.put_block_command(0x41, 0x93, flags, (w.lba, w.blocks), w.group)
}

fn mode_sense(o: &mut CdbWriter<'_>, m: &ModeSense) -> usize {
    let control = match m.control {
        PageControl::Current => 0,
        PageControl::Changeable => 1,
        PageControl::Default => 2,
        PageControl::Saved => 3,
    };
    let page = place_bits(control, 7, 6) | place_bits(m.page, 5, 0);
    let no_descriptors = flag_bit(m.disable_block_descriptors, 3);
    match m.form {
        ModeForm::Six => o.put_six_byte(&[0x1a, no_descriptors, page, m.subpage, m.allocation as u8]),
        ModeForm::Ten => {
            o.put_ten_byte(&[0x5a, no_descriptors | flag_bit(m.long_lba, 4), page, m.subpage], m.allocation)
        }
    }
}

fn mode_select(o: &mut CdbWriter<'_>, m: &ModeSelect) -> usize {
    let flags = flag_bit(m.page_format, 4) | flag_bit(m.save, 0);
    match m.form {
        ModeForm::Six => o.put_six_byte(&[0x15, flags, 0, 0, m.list_len as u8]),
        ModeForm::Ten => o.put_ten_byte(&[0x55, flags], m.list_len),
    }
}

fn log_sense(o: &mut CdbWriter<'_>, l: &LogSense) -> usize {
    o.put(5, &l.pointer.to_be_bytes());
    o.put_ten_byte(
        &[0x4d, 0, place_bits(l.control, 7, 6) | place_bits(l.page, 5, 0), l.subpage],
        l.allocation,
    )
}

fn start_stop(o: &mut CdbWriter<'_>, s: &StartStop) -> usize {
    let action = flag_bit(s.no_flush, 2) | flag_bit(s.load_eject, 1) | flag_bit(s.start, 0);
    let power = place_bits(s.power_condition, 7, 4);
    o.put_six_byte(&[0x1b, flag_bit(s.immediate, 0), 0, place_bits(s.modifier, 3, 0), power | action])
}

fn report_opcodes(o: &mut CdbWriter<'_>, r: &ReportOpcodes) -> usize {
    let (option, opcode, action) = match r.select {
        OpcodeSelect::All => (0, 0, 0),
        OpcodeSelect::Opcode(opcode) => (1, opcode, 0),
        OpcodeSelect::Action(opcode, action) => (2, opcode, action),
        OpcodeSelect::Any(opcode, action) => (3, opcode, action),
    };
    o.put(2, &[flag_bit(r.timeouts, 7) | option, opcode]);
    o.put(4, &action.to_be_bytes());
    o.put_service_action(0xa3, 0x0c, 6, r.allocation)
}

fn sanitize(o: &mut CdbWriter<'_>, s: &Sanitize) -> usize {
    let (action, list_len) = match s.action {
        SanitizeAction::Overwrite { list_len } => (0x01, list_len),
        SanitizeAction::BlockErase => (0x02, 0),
        SanitizeAction::ExitFailureMode => (0x1f, 0),
    };
    o.put_ten_byte(&[0x48, action | flag_bit(s.immediate, 7) | flag_bit(s.allow_exit, 5)], list_len)
}

fn read_defects(o: &mut CdbWriter<'_>, r: &ReadDefects) -> usize {
    let flags = flag_bit(r.primary, 4) | flag_bit(r.grown, 3) | place_bits(r.format, 2, 0);
    if r.twelve {
        o.put(2, &r.index.to_be_bytes());
        return o.put_service_action(0xb7, flags, 6, r.allocation);
    }
    o.put_ten_byte(&[0x37, 0, flags], r.allocation as u16)
}

fn buffer_access(o: &mut CdbWriter<'_>, opcode: u8, b: &BufferAccess) -> usize {
    o.put(0, &[opcode, place_bits(b.mode, 4, 0), b.id]);
    o.u24(3, b.offset);
    o.u24(6, b.len);
    10
}
