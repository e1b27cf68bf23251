//! From CDB bytes to a [`Command`]: one small function per row of the table.
//!
//! Reserved bits are known to be zero here, so only fields with forbidden values are refused.

use super::*;
use crate::wire::{be16, be24, be32, be64, bit, bits};

type ParseResult = Result<Command, CdbError>;

fn invalid_field(byte: u8, bit: u8) -> CdbError {
    CdbError::Field { byte, bit: Some(bit) }
}

/// Where the fields of a block command stand, by the length of its CDB (SBC-3 §5, the ten, twelve and
/// sixteen byte forms share their layout).
struct BlockFields {
    lba: u64,
    blocks: u32,
    group: u8,
}

fn block_fields_10(c: &Cdb) -> BlockFields {
    BlockFields { lba: u64::from(be32(c, 2)), blocks: u32::from(be16(c, 7)), group: c[6] }
}

fn block_fields_12(c: &Cdb) -> BlockFields {
    BlockFields { lba: u64::from(be32(c, 2)), blocks: be32(c, 6), group: c[10] }
}

fn block_fields_16(c: &Cdb) -> BlockFields {
    BlockFields { lba: be64(c, 2), blocks: be32(c, 10), group: c[14] }
}

fn transfer_6(c: &Cdb) -> BlockTransfer {
    let blocks = if c[4] == 0 { 256 } else { u32::from(c[4]) };
    BlockTransfer { lba: u64::from(be24(c, 1)), blocks, dpo: false, fua: false, group: 0 }
}

fn transfer(c: &Cdb, p: BlockFields) -> BlockTransfer {
    BlockTransfer { lba: p.lba, blocks: p.blocks, dpo: bit(c[1], 4), fua: bit(c[1], 3), group: p.group }
}

fn verify(c: &Cdb, p: BlockFields) -> Result<Verify, CdbError> {
    let check = match bits(c[1], 2, 1) {
        0 => ByteCheck::None,
        1 => ByteCheck::Compare,
        3 => ByteCheck::CompareOne,
        _ => return Err(invalid_field(1, 2)),
    };
    Ok(Verify { lba: p.lba, blocks: p.blocks, dpo: bit(c[1], 4), check, group: p.group })
}

/// WRITE AND VERIFY has no form that compares with one block.
fn write_and_verify(c: &Cdb, p: BlockFields) -> ParseResult {
    match verify(c, p)? {
        Verify { check: ByteCheck::CompareOne, .. } => Err(invalid_field(1, 2)),
        v => Ok(Command::WriteAndVerify(v)),
    }
}

fn extent(c: &Cdb, p: BlockFields) -> BlockExtent {
    BlockExtent { lba: p.lba, blocks: p.blocks, immediate: bit(c[1], 1), group: p.group }
}

fn write_same(c: &Cdb, p: BlockFields) -> WriteSame {
    WriteSame {
        lba: p.lba,
        blocks: p.blocks,
        unmap: bit(c[1], 3),
        anchor: bit(c[1], 4),
        no_data: bit(c[1], 0),
        group: p.group,
    }
}

/// ANCHOR without UNMAP has no meaning (SBC-3 §5.43).
fn check_write_same(w: WriteSame) -> ParseResult {
    if w.anchor && !w.unmap { Err(invalid_field(1, 4)) } else { Ok(Command::WriteSame(w)) }
}

pub(super) fn test_unit_ready(_: &Cdb) -> ParseResult {
    Ok(Command::TestUnitReady)
}

pub(super) fn request_sense(c: &Cdb) -> ParseResult {
    Ok(Command::RequestSense { descriptor: bit(c[1], 0), allocation: c[4] })
}

pub(super) fn read_6(c: &Cdb) -> ParseResult {
    Ok(Command::Read(transfer_6(c)))
}

pub(super) fn read_10(c: &Cdb) -> ParseResult {
    Ok(Command::Read(transfer(c, block_fields_10(c))))
}

pub(super) fn read_12(c: &Cdb) -> ParseResult {
    Ok(Command::Read(transfer(c, block_fields_12(c))))
}

pub(super) fn read_16(c: &Cdb) -> ParseResult {
    Ok(Command::Read(transfer(c, block_fields_16(c))))
}

pub(super) fn write_6(c: &Cdb) -> ParseResult {
    Ok(Command::Write(transfer_6(c)))
}

pub(super) fn write_10(c: &Cdb) -> ParseResult {
    Ok(Command::Write(transfer(c, block_fields_10(c))))
}

pub(super) fn write_12(c: &Cdb) -> ParseResult {
    Ok(Command::Write(transfer(c, block_fields_12(c))))
}

pub(super) fn write_16(c: &Cdb) -> ParseResult {
    Ok(Command::Write(transfer(c, block_fields_16(c))))
}

pub(super) fn write_and_verify_10(c: &Cdb) -> ParseResult {
    write_and_verify(c, block_fields_10(c))
}

pub(super) fn write_and_verify_12(c: &Cdb) -> ParseResult {
    write_and_verify(c, block_fields_12(c))
}

pub(super) fn write_and_verify_16(c: &Cdb) -> ParseResult {
    write_and_verify(c, block_fields_16(c))
}

pub(super) fn verify_10(c: &Cdb) -> ParseResult {
    Ok(Command::Verify(verify(c, block_fields_10(c))?))
}

pub(super) fn verify_12(c: &Cdb) -> ParseResult {
    Ok(Command::Verify(verify(c, block_fields_12(c))?))
}

pub(super) fn verify_16(c: &Cdb) -> ParseResult {
    Ok(Command::Verify(verify(c, block_fields_16(c))?))
}

pub(super) fn compare_and_write(c: &Cdb) -> ParseResult {
    let p = BlockFields { lba: be64(c, 2), blocks: u32::from(c[13]), group: c[14] };
    Ok(Command::CompareAndWrite(transfer(c, p)))
}

pub(super) fn or_write(c: &Cdb) -> ParseResult {
    Ok(Command::OrWrite(transfer(c, block_fields_16(c))))
}

pub(super) fn write_atomic(c: &Cdb) -> ParseResult {
    let p = BlockFields { lba: be64(c, 2), blocks: u32::from(be16(c, 12)), group: c[14] };
    Ok(Command::WriteAtomic(WriteAtomic { transfer: transfer(c, p), boundary: be16(c, 10) }))
}

pub(super) fn write_same_10(c: &Cdb) -> ParseResult {
    check_write_same(write_same(c, block_fields_10(c)))
}

pub(super) fn write_same_16(c: &Cdb) -> ParseResult {
    check_write_same(write_same(c, block_fields_16(c)))
}

pub(super) fn unmap(c: &Cdb) -> ParseResult {
    Ok(Command::Unmap { anchor: bit(c[1], 0), group: c[6], list_len: be16(c, 7) })
}

pub(super) fn get_lba_status(c: &Cdb) -> ParseResult {
    Ok(Command::GetLbaStatus { lba: be64(c, 2), allocation: be32(c, 10) })
}

pub(super) fn pre_fetch_10(c: &Cdb) -> ParseResult {
    Ok(Command::PreFetch(extent(c, block_fields_10(c))))
}

pub(super) fn pre_fetch_16(c: &Cdb) -> ParseResult {
    Ok(Command::PreFetch(extent(c, block_fields_16(c))))
}

pub(super) fn synchronize_cache_10(c: &Cdb) -> ParseResult {
    Ok(Command::SynchronizeCache(extent(c, block_fields_10(c))))
}

pub(super) fn synchronize_cache_16(c: &Cdb) -> ParseResult {
    Ok(Command::SynchronizeCache(extent(c, block_fields_16(c))))
}

pub(super) fn read_capacity_10(_: &Cdb) -> ParseResult {
    Ok(Command::ReadCapacity10)
}

pub(super) fn read_capacity_16(c: &Cdb) -> ParseResult {
    Ok(Command::ReadCapacity16 { allocation: be32(c, 10) })
}

/// PAGE CODE without EVPD is refused (SPC-4 §6.6.1).
pub(super) fn inquiry(c: &Cdb) -> ParseResult {
    let page = bit(c[1], 0).then_some(c[2]);
    if page.is_none() && c[2] != 0 {
        return Err(invalid_field(2, 7));
    }
    Ok(Command::Inquiry(Inquiry { page, allocation: be16(c, 3) }))
}

fn mode_sense(c: &Cdb, form: ModeForm, allocation: u16) -> Command {
    let control = match bits(c[2], 7, 6) {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    Command::ModeSense(ModeSense {
        form,
        disable_block_descriptors: bit(c[1], 3),
        long_lba: bit(c[1], 4),
        control,
        page: bits(c[2], 5, 0),
        subpage: c[3],
        allocation,
    })
}

pub(super) fn mode_sense_6(c: &Cdb) -> ParseResult {
    Ok(mode_sense(c, ModeForm::Six, u16::from(c[4])))
}

pub(super) fn mode_sense_10(c: &Cdb) -> ParseResult {
    Ok(mode_sense(c, ModeForm::Ten, be16(c, 7)))
}

fn mode_select(c: &Cdb, form: ModeForm, list_len: u16) -> Command {
    Command::ModeSelect(ModeSelect { form, page_format: bit(c[1], 4), save: bit(c[1], 0), list_len })
}

pub(super) fn mode_select_6(c: &Cdb) -> ParseResult {
    Ok(mode_select(c, ModeForm::Six, u16::from(c[4])))
}

pub(super) fn mode_select_10(c: &Cdb) -> ParseResult {
    Ok(mode_select(c, ModeForm::Ten, be16(c, 7)))
}

pub(super) fn log_sense(c: &Cdb) -> ParseResult {
    Ok(Command::LogSense(LogSense {
        control: bits(c[2], 7, 6),
        page: bits(c[2], 5, 0),
        subpage: c[3],
        pointer: be16(c, 5),
        allocation: be16(c, 7),
    }))
}

pub(super) fn start_stop(c: &Cdb) -> ParseResult {
    Ok(Command::StartStop(StartStop {
        immediate: bit(c[1], 0),
        modifier: c[3],
        power_condition: bits(c[4], 7, 4),
        no_flush: bit(c[4], 2),
        load_eject: bit(c[4], 1),
        start: bit(c[4], 0),
    }))
}

pub(super) fn prevent_allow(c: &Cdb) -> ParseResult {
    Ok(Command::PreventAllow { prevent: bit(c[4], 0) })
}

pub(super) fn send_diagnostic(c: &Cdb) -> ParseResult {
    Ok(Command::SendDiagnostic(SendDiagnostic {
        self_test: bit(c[1], 2),
        device_offline: bit(c[1], 1),
        unit_offline: bit(c[1], 0),
    }))
}

pub(super) fn reserve(_: &Cdb) -> ParseResult {
    Ok(Command::Reserve)
}

pub(super) fn release(_: &Cdb) -> ParseResult {
    Ok(Command::Release)
}

pub(super) fn report_luns(c: &Cdb) -> ParseResult {
    Ok(Command::ReportLuns { select: c[2], allocation: be32(c, 6) })
}

pub(super) fn report_opcodes(c: &Cdb) -> ParseResult {
    let (opcode, action) = (c[3], be16(c, 4));
    let select = match bits(c[2], 2, 0) {
        0 => OpcodeSelect::All,
        1 => OpcodeSelect::Opcode(opcode),
        2 | 3 if action > 0x1f => return Err(invalid_field(4, 7)),
        2 => OpcodeSelect::Action(opcode, action),
        3 => OpcodeSelect::Any(opcode, action),
        _ => return Err(invalid_field(2, 2)),
    };
    Ok(Command::ReportOpcodes(ReportOpcodes { timeouts: bit(c[2], 7), select, allocation: be32(c, 6) }))
}

/// An allocation length below 4 is refused (SPC-4 §6.36).
pub(super) fn report_task_management(c: &Cdb) -> ParseResult {
    let allocation = be32(c, 6);
    if allocation < 4 {
        return Err(invalid_field(6, 7));
    }
    Ok(Command::ReportTaskManagement { extended: bit(c[2], 7), allocation })
}

pub(super) fn report_target_port_groups(c: &Cdb) -> ParseResult {
    Ok(Command::ReportTargetPortGroups { extended: bit(c[1], 5), allocation: be32(c, 6) })
}

pub(super) fn set_target_port_groups(c: &Cdb) -> ParseResult {
    Ok(Command::SetTargetPortGroups { list_len: be32(c, 6) })
}

pub(super) fn reserve_in(c: &Cdb) -> ParseResult {
    let action = match bits(c[1], 4, 0) {
        0 => PrInAction::ReadKeys,
        1 => PrInAction::ReadReservation,
        2 => PrInAction::ReportCapabilities,
        3 => PrInAction::ReadFullStatus,
        _ => return Err(CdbError::UnknownServiceAction),
    };
    Ok(Command::ReserveIn { action, allocation: be16(c, 7) })
}

pub(super) fn reserve_out(c: &Cdb) -> ParseResult {
    let action = match bits(c[1], 4, 0) {
        0 => PrOutAction::Register,
        1 => PrOutAction::Reserve,
        2 => PrOutAction::Release,
        3 => PrOutAction::Clear,
        4 => PrOutAction::Preempt,
        5 => PrOutAction::PreemptAndAbort,
        6 => PrOutAction::RegisterAndIgnore,
        7 => PrOutAction::RegisterAndMove,
        _ => return Err(CdbError::UnknownServiceAction),
    };
    Ok(Command::ReserveOut(ReserveOut {
        action,
        scope: bits(c[2], 7, 4),
        kind: bits(c[2], 3, 0),
        list_len: be32(c, 5),
    }))
}

pub(super) fn extended_copy(c: &Cdb) -> ParseResult {
    Ok(Command::ExtendedCopy { list_len: be32(c, 10) })
}

pub(super) fn copy_results(c: &Cdb) -> ParseResult {
    let action = match bits(c[1], 4, 0) {
        0 => CopyResultsAction::Status,
        1 => CopyResultsAction::ReceiveData,
        3 => CopyResultsAction::OperatingParameters,
        4 => CopyResultsAction::FailedSegment,
        _ => return Err(CdbError::UnknownServiceAction),
    };
    Ok(Command::CopyResults { action, list_id: c[2], allocation: be32(c, 10) })
}

/// An overwrite needs at least one byte of pattern after its header (SBC-3 §5.24.2.2).
pub(super) fn sanitize(c: &Cdb) -> ParseResult {
    let list_len = be16(c, 7);
    let action = match bits(c[1], 4, 0) {
        0x01 if list_len <= 4 => return Err(invalid_field(7, 7)),
        0x01 => SanitizeAction::Overwrite { list_len },
        0x02 => SanitizeAction::BlockErase,
        0x1f => SanitizeAction::ExitFailureMode,
        _ => return Err(CdbError::UnknownServiceAction),
    };
    Ok(Command::Sanitize(Sanitize { action, immediate: bit(c[1], 7), allow_exit: bit(c[1], 5) }))
}

/// What there is no defect list for, CMPLST and DEFECT LIST FORMAT, means nothing.
pub(super) fn format_unit(c: &Cdb) -> ParseResult {
    let with_list = bit(c[1], 4);
    Ok(Command::FormatUnit(FormatUnit { with_list, long_list: with_list && bit(c[1], 5) }))
}

fn read_defects(twelve: bool, flags: u8, index: u32, allocation: u32) -> Command {
    Command::ReadDefects(ReadDefects {
        twelve,
        primary: bit(flags, 4),
        grown: bit(flags, 3),
        format: bits(flags, 2, 0),
        index,
        allocation,
    })
}

pub(super) fn read_defects_10(c: &Cdb) -> ParseResult {
    Ok(read_defects(false, c[2], 0, u32::from(be16(c, 7))))
}

pub(super) fn read_defects_12(c: &Cdb) -> ParseResult {
    Ok(read_defects(true, c[1], be32(c, 2), be32(c, 6)))
}

fn buffer_access(c: &Cdb) -> BufferAccess {
    BufferAccess { mode: bits(c[1], 4, 0), id: c[2], offset: be24(c, 3), len: be24(c, 6) }
}

pub(super) fn read_buffer(c: &Cdb) -> ParseResult {
    Ok(Command::ReadBuffer(buffer_access(c)))
}

pub(super) fn write_buffer(c: &Cdb) -> ParseResult {
    Ok(Command::WriteBuffer(buffer_access(c)))
}
