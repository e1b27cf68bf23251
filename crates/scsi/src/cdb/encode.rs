//! From a [`Command`] to CDB bytes: the initiator's direction.
//!
//! Where several forms carry the same command, the ten-byte form is used if the numbers fit and the
//! sixteen-byte form otherwise.

use super::*;
use crate::wire::{flag, place};

/// A CDB being written.
struct Out<'a>(&'a mut [u8; CDB_LEN_MAX]);

impl Out<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u24(&mut self, at: usize, v: u32) {
        self.put(at, &v.to_be_bytes()[1..]);
    }

    /// A block command in its ten-byte or sixteen-byte form.
    fn blocks(&mut self, ten: u8, sixteen: u8, flags: u8, span: (u64, u32), group: u8) -> usize {
        self.0[1] = flags;
        if let (Ok(lba), Ok(blocks)) = (u32::try_from(span.0), u16::try_from(span.1)) {
            self.0[0] = ten;
            self.put(2, &lba.to_be_bytes());
            self.0[6] = group;
            self.put(7, &blocks.to_be_bytes());
            return 10;
        }
        self.long(sixteen, flags, span, group)
    }

    fn long(&mut self, opcode: u8, flags: u8, span: (u64, u32), group: u8) -> usize {
        self.0[0] = opcode;
        self.0[1] = flags;
        self.put(2, &span.0.to_be_bytes());
        self.put(10, &span.1.to_be_bytes());
        self.0[14] = group;
        16
    }

    /// Operation code, service action, 32-bit length at `at`.
    fn action(&mut self, opcode: u8, action: u8, at: usize, len: u32) {
        self.0[0] = opcode;
        self.0[1] = action;
        self.put(at, &len.to_be_bytes());
    }
}

fn rw_flags(t: &Transfer) -> u8 {
    flag(t.dpo, 4) | flag(t.fua, 3)
}

fn verify_flags(v: &Verify) -> u8 {
    let check = match v.check {
        ByteCheck::None => 0,
        ByteCheck::Compare => 1,
        ByteCheck::CompareOne => 3,
    };
    flag(v.dpo, 4) | place(check, 2, 1)
}

fn control_code(control: PageControl) -> u8 {
    match control {
        PageControl::Current => 0,
        PageControl::Changeable => 1,
        PageControl::Default => 2,
        PageControl::Saved => 3,
    }
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

impl CopyResults {
    const fn code(self) -> u8 {
        match self {
            CopyResults::Status => 0,
            CopyResults::ReceiveData => 1,
            CopyResults::OperatingParameters => 3,
            CopyResults::FailedSegment => 4,
        }
    }
}

impl Command {
    /// Writes the CDB, the rest of `out` as zeros, and gives its length in bytes.
    ///
    /// A number too large for its field is cut; of what [`Command::parse`] gives, none is.
    pub fn encode(&self, out: &mut [u8; CDB_LEN_MAX]) -> usize {
        *out = [0; CDB_LEN_MAX];
        let mut o = Out(out);
        match *self {
            Command::Read(_)
            | Command::Write(_)
            | Command::WriteAndVerify(_)
            | Command::Verify(_)
            | Command::CompareAndWrite(_)
            | Command::OrWrite(_)
            | Command::WriteAtomic(_)
            | Command::WriteSame(_)
            | Command::Unmap { .. }
            | Command::GetLbaStatus { .. }
            | Command::PreFetch(_)
            | Command::SynchronizeCache(_)
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::Sanitize(_)
            | Command::ReadDefects(_) => self.encode_block(&mut o),
            Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry(_)
            | Command::ModeSense(_)
            | Command::ModeSelect(_)
            | Command::LogSense(_)
            | Command::StartStop(_)
            | Command::PreventAllow { .. }
            | Command::ReportLuns { .. }
            | Command::ReportOpcodes(_)
            | Command::ReportTaskManagement { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::SetTargetPortGroups { .. }
            | Command::ReserveIn { .. }
            | Command::ReserveOut(_)
            | Command::Reserve
            | Command::Release
            | Command::ExtendedCopy { .. }
            | Command::CopyResults { .. }
            | Command::SendDiagnostic(_)
            | Command::ReadBuffer(_)
            | Command::WriteBuffer(_) => self.encode_primary(&mut o),
        }
    }

    /// Commands of SBC.
    fn encode_block(&self, o: &mut Out<'_>) -> usize {
        match *self {
            Command::Read(t) => o.blocks(0x28, 0x88, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::Write(t) => o.blocks(0x2a, 0x8a, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::OrWrite(t) => o.long(0x8b, rw_flags(&t), (t.lba, t.blocks), t.group),
            Command::CompareAndWrite(t) => {
                o.long(0x89, rw_flags(&t), (t.lba, u32::from(t.blocks as u8)), t.group)
            }
            Command::WriteAtomic(w) => {
                let t = &w.transfer;
                o.long(0x9c, rw_flags(t), (t.lba, u32::from(t.blocks as u16)), t.group);
                o.put(10, &w.boundary.to_be_bytes());
                16
            }
            Command::WriteAndVerify(v) => o.blocks(0x2e, 0x8e, verify_flags(&v), (v.lba, v.blocks), v.group),
            Command::Verify(v) => o.blocks(0x2f, 0x8f, verify_flags(&v), (v.lba, v.blocks), v.group),
            Command::WriteSame(w) => {
                let flags = flag(w.anchor, 4) | flag(w.unmap, 3) | flag(w.no_data, 0);
                if w.no_data {
                    return o.long(0x93, flags, (w.lba, w.blocks), w.group);
                }
                o.blocks(0x41, 0x93, flags, (w.lba, w.blocks), w.group)
            }
            Command::Unmap { anchor, group, list_len } => {
                o.put(0, &[0x42, flag(anchor, 0)]);
                o.0[6] = group;
                o.put(7, &list_len.to_be_bytes());
                10
            }
            Command::GetLbaStatus { lba, allocation } => {
                o.action(0x9e, 0x12, 10, allocation);
                o.put(2, &lba.to_be_bytes());
                16
            }
            Command::PreFetch(e) => o.blocks(0x34, 0x90, flag(e.immediate, 1), (e.lba, e.blocks), e.group),
            Command::SynchronizeCache(e) => {
                o.blocks(0x35, 0x91, flag(e.immediate, 1), (e.lba, e.blocks), e.group)
            }
            Command::ReadCapacity10 => {
                o.0[0] = 0x25;
                10
            }
            Command::ReadCapacity16 { allocation } => {
                o.action(0x9e, 0x10, 10, allocation);
                16
            }
            Command::Sanitize(s) => {
                let (action, list_len) = match s.action {
                    SanitizeAction::Overwrite { list_len } => (0x01, list_len),
                    SanitizeAction::BlockErase => (0x02, 0),
                    SanitizeAction::ExitFailureMode => (0x1f, 0),
                };
                o.put(0, &[0x48, action | flag(s.immediate, 7) | flag(s.allow_exit, 5)]);
                o.put(7, &list_len.to_be_bytes());
                10
            }
            Command::ReadDefects(r) => {
                let flags = flag(r.primary, 4) | flag(r.grown, 3) | place(r.format, 2, 0);
                if r.twelve {
                    o.action(0xb7, flags, 6, r.allocation);
                    o.put(2, &r.index.to_be_bytes());
                    return 12;
                }
                o.put(0, &[0x37, 0, flags]);
                o.put(7, &(r.allocation as u16).to_be_bytes());
                10
            }
            _ => unreachable!("only block commands come here"),
        }
    }

    /// Commands of SPC.
    fn encode_primary(&self, o: &mut Out<'_>) -> usize {
        match *self {
            Command::TestUnitReady => 6,
            Command::RequestSense { descriptor, allocation } => {
                o.put(0, &[0x03, flag(descriptor, 0), 0, 0, allocation]);
                6
            }
            Command::Inquiry(i) => {
                o.put(0, &[0x12, flag(i.page.is_some(), 0), i.page.unwrap_or(0)]);
                o.put(3, &i.allocation.to_be_bytes());
                6
            }
            Command::ModeSense(m) => {
                let flags = flag(m.disable_block_descriptors, 3) | flag(m.long_lba, 4);
                let page = place(control_code(m.control), 7, 6) | place(m.page, 5, 0);
                match m.form {
                    ModeForm::Six => {
                        o.put(0, &[0x1a, flags & 0x08, page, m.subpage, m.allocation as u8]);
                        6
                    }
                    ModeForm::Ten => {
                        o.put(0, &[0x5a, flags, page, m.subpage]);
                        o.put(7, &m.allocation.to_be_bytes());
                        10
                    }
                }
            }
            Command::ModeSelect(m) => {
                let flags = flag(m.page_format, 4) | flag(m.save, 0);
                match m.form {
                    ModeForm::Six => {
                        o.put(0, &[0x15, flags, 0, 0, m.list_len as u8]);
                        6
                    }
                    ModeForm::Ten => {
                        o.put(0, &[0x55, flags]);
                        o.put(7, &m.list_len.to_be_bytes());
                        10
                    }
                }
            }
            Command::LogSense(l) => {
                o.put(0, &[0x4d, 0, place(l.control, 7, 6) | place(l.page, 5, 0), l.subpage]);
                o.put(5, &l.pointer.to_be_bytes());
                o.put(7, &l.allocation.to_be_bytes());
                10
            }
            Command::StartStop(s) => {
                let power = place(s.power_condition, 7, 4);
                let flags = power | flag(s.no_flush, 2) | flag(s.load_eject, 1) | flag(s.start, 0);
                o.put(0, &[0x1b, flag(s.immediate, 0), 0, place(s.modifier, 3, 0), flags]);
                6
            }
            Command::PreventAllow { prevent } => {
                o.put(0, &[0x1e, 0, 0, 0, flag(prevent, 0)]);
                6
            }
            Command::SendDiagnostic(d) => {
                let flags = flag(d.self_test, 2) | flag(d.device_offline, 1) | flag(d.unit_offline, 0);
                o.put(0, &[0x1d, flags]);
                6
            }
            Command::Reserve => {
                o.0[0] = 0x16;
                6
            }
            Command::Release => {
                o.0[0] = 0x17;
                6
            }
            _ => self.encode_report(o),
        }
    }

    /// Commands of SPC about target, reservations, copies and buffers.
    fn encode_report(&self, o: &mut Out<'_>) -> usize {
        match *self {
            Command::ReportLuns { select, allocation } => {
                o.action(0xa0, 0, 6, allocation);
                o.0[2] = select;
                12
            }
            Command::ReportOpcodes(r) => {
                let (option, opcode, action) = match r.select {
                    OpcodeSelect::All => (0, 0, 0),
                    OpcodeSelect::Opcode(opcode) => (1, opcode, 0),
                    OpcodeSelect::Action(opcode, action) => (2, opcode, action),
                    OpcodeSelect::Any(opcode, action) => (3, opcode, action),
                };
                o.action(0xa3, 0x0c, 6, r.allocation);
                o.put(2, &[flag(r.timeouts, 7) | option, opcode]);
                o.put(4, &action.to_be_bytes());
                12
            }
            Command::ReportTaskManagement { extended, allocation } => {
                o.action(0xa3, 0x0d, 6, allocation);
                o.0[2] = flag(extended, 7);
                12
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                o.action(0xa3, 0x0a | flag(extended, 5), 6, allocation);
                12
            }
            Command::SetTargetPortGroups { list_len } => {
                o.action(0xa4, 0x0a, 6, list_len);
                12
            }
            Command::ReserveIn { action, allocation } => {
                o.put(0, &[0x5e, action.code()]);
                o.put(7, &allocation.to_be_bytes());
                10
            }
            Command::ReserveOut(r) => {
                o.action(0x5f, r.action.code(), 5, r.list_len);
                o.0[2] = place(r.scope, 7, 4) | place(r.kind, 3, 0);
                10
            }
            Command::ExtendedCopy { list_len } => {
                o.action(0x83, 0, 10, list_len);
                16
            }
            Command::CopyResults { action, list_id, allocation } => {
                o.action(0x84, action.code(), 10, allocation);
                o.0[2] = list_id;
                16
            }
            Command::ReadBuffer(b) => buffer_access(o, 0x3c, &b),
            Command::WriteBuffer(b) => buffer_access(o, 0x3b, &b),
            _ => unreachable!("block commands are encoded elsewhere"),
        }
    }
}

fn buffer_access(o: &mut Out<'_>, opcode: u8, b: &BufferAccess) -> usize {
    o.put(0, &[opcode, place(b.mode, 4, 0), b.id]);
    o.u24(3, b.offset);
    o.u24(6, b.len);
    10
}
