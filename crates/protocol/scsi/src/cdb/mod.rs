//! Command descriptor blocks (SPC-4 §4.2.5, SBC-3 §5) as typed commands.
//!
//! [`Command::parse`] is the one place that validates CDB bytes: its result has no reserved bit set and
//! requests no protection information. Later code checks only what depends on the logical unit (capacity,
//! limits, which pages exist). The [`command_table`] of usage bitmaps drives both the refusal of reserved bits and
//! REPORT SUPPORTED OPERATION CODES, so the two cannot disagree.
//!
//! The form of a command (6, 10, 12, 16 bytes) is kept only where the answer depends on it.

pub mod command_table;
mod encode;
mod parse;
mod reservation_conflict;
#[cfg(test)]
mod tests;

use crate::format::{FormatParameters, FormatUnit};
use crate::sense::Sense;
pub use command_table::{CommandDescriptor, CommandSet};
pub use reservation_conflict::ConflictClass;

/// Longest CDB that this crate knows, in bytes.
pub const CDB_LEN_MAX: usize = 16;

/// A CDB, filled up with zeros.
type Cdb = [u8; CDB_LEN_MAX];

/// Why a CDB is refused; all are the initiator's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CdbError {
    /// The operation code is not in the command set.
    UnknownOpcode,
    /// The operation code is, the service action is not.
    UnknownServiceAction,
    /// Fewer bytes than the operation code needs.
    Truncated,
    /// A field has a value that it must not have, or a bit is set where none is used.
    Field {
        /// Byte of the CDB.
        byte: u8,
        /// Most significant bit of the field; `None`: it starts at the byte.
        bit: Option<u8>,
    },
}

impl CdbError {
    /// The sense data to answer with.
    pub fn sense(self) -> Sense {
        match self {
            CdbError::UnknownOpcode => Sense::INVALID_OPCODE,
            CdbError::UnknownServiceAction => Sense::invalid_cdb_field(1, Some(4)),
            CdbError::Truncated => Sense::INVALID_FIELD_IN_CDB,
            CdbError::Field { byte, bit } => Sense::invalid_cdb_field(u16::from(byte), bit),
        }
    }
}

/// A span of blocks to read or write. Obsolete FUA_NV is accepted and means nothing (SBC-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockTransfer {
    /// First block.
    pub lba: u64,
    /// Blocks; 0 transfers nothing (READ(6) and WRITE(6) give 256 for their 0).
    pub blocks: u32,
    /// Disable page out: these blocks are not worth caching.
    pub dpo: bool,
    /// Force unit access: answer from, or after, stable storage.
    pub fua: bool,
    /// GROUP NUMBER, 0..=63.
    pub group: u8,
}

/// A span of blocks without data transfer options: caching commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockExtent {
    /// First block.
    pub lba: u64,
    /// Blocks; 0 means up to the last block.
    pub blocks: u32,
    /// Answer before the work is done.
    pub immediate: bool,
    /// GROUP NUMBER, 0..=63.
    pub group: u8,
}

/// BYTCHK (SBC-3 §5.29).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteCheck {
    /// 00b: read the medium, compare with nothing, transfer nothing.
    None,
    /// 01b: compare with data of the same length.
    Compare,
    /// 11b: compare every block with the one block transferred.
    CompareOne,
}

/// VERIFY and WRITE AND VERIFY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verify {
    /// First block.
    pub lba: u64,
    /// Blocks; 0 verifies nothing.
    pub blocks: u32,
    /// Disable page out.
    pub dpo: bool,
    /// What to compare with.
    pub check: ByteCheck,
    /// GROUP NUMBER, 0..=63.
    pub group: u8,
}

/// WRITE SAME(10) and (16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteSame {
    /// First block.
    pub lba: u64,
    /// Blocks; 0 means up to the last block unless WSNZ of VPD B0h is 1.
    pub blocks: u32,
    /// May unmap instead of writing.
    pub unmap: bool,
    /// Anchor what is unmapped.
    pub anchor: bool,
    /// No data-out buffer: the block is all zeros.
    pub no_data: bool,
    /// GROUP NUMBER, 0..=63.
    pub group: u8,
}

/// WRITE ATOMIC(16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteAtomic {
    /// What to write.
    pub transfer: BlockTransfer,
    /// ATOMIC BOUNDARY in blocks; 0: the whole write is one atomic unit.
    pub boundary: u16,
}

/// INQUIRY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inquiry {
    /// The vital product data page asked for; `None`: standard data.
    pub page: Option<u8>,
    /// Bytes that the initiator takes.
    pub allocation: u16,
}

/// Six-byte and ten-byte commands whose parameter data differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeForm {
    /// MODE SENSE(6), MODE SELECT(6).
    Six,
    /// MODE SENSE(10), MODE SELECT(10); with LLBAA long block descriptors may be used.
    Ten,
}

/// Page control of mode pages (SPC-4 §6.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageControl {
    /// 00b.
    Current,
    /// 01b: ones where MODE SELECT may change a bit.
    Changeable,
    /// 10b.
    Default,
    /// 11b.
    Saved,
}

/// MODE SENSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeSense {
    /// Which header.
    pub form: ModeForm,
    /// DBD: no block descriptors.
    pub disable_block_descriptors: bool,
    /// LLBAA: the initiator takes long block descriptors.
    pub long_lba: bool,
    /// Which values.
    pub control: PageControl,
    /// PAGE CODE, 0..=3Fh.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Bytes that the initiator takes.
    pub allocation: u16,
}

/// MODE SELECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeSelect {
    /// Which header.
    pub form: ModeForm,
    /// PF: the list is made of pages as SPC defines them.
    pub page_format: bool,
    /// SP: save the pages.
    pub save: bool,
    /// PARAMETER LIST LENGTH in bytes.
    pub list_len: u16,
}

/// LOG SENSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSense {
    /// PC: 0 threshold, 1 cumulative, 2 default threshold, 3 default cumulative.
    pub control: u8,
    /// PAGE CODE, 0..=3Fh.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// First parameter code wanted.
    pub pointer: u16,
    /// Bytes that the initiator takes.
    pub allocation: u16,
}

/// START STOP UNIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartStop {
    /// Answer before the work is done.
    pub immediate: bool,
    /// POWER CONDITION MODIFIER, 0..=15.
    pub modifier: u8,
    /// POWER CONDITION, 0..=15; 0: START and LOEJ are valid.
    pub power_condition: u8,
    /// Do not flush the cache first.
    pub no_flush: bool,
    /// Load (with `start`) or eject the medium.
    pub load_eject: bool,
    /// Start, otherwise stop.
    pub start: bool,
}

/// SEND DIAGNOSTIC, which here carries no parameter list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendDiagnostic {
    /// Run the default self-test.
    pub self_test: bool,
    /// The test may affect the other logical units.
    pub device_offline: bool,
    /// The test may affect this logical unit.
    pub unit_offline: bool,
}

/// REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportOpcodes {
    /// RCTD: command timeouts descriptors too.
    pub timeouts: bool,
    /// Which commands.
    pub select: OpcodeSelect,
    /// Bytes that the initiator takes.
    pub allocation: u32,
}

/// REPORTING OPTIONS (SPC-4 §6.35).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpcodeSelect {
    /// 000b: all commands.
    All,
    /// 001b: one operation code that has no service actions.
    Opcode(u8),
    /// 010b: one operation code and service action; refused for an operation code without them.
    Action(u8, u16),
    /// 011b: like 010b, but service action 0 also names an operation code without them.
    Any(u8, u16),
}

/// PERSISTENT RESERVE OUT; the parameter list is in [`crate::persistent_reservation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveOut {
    /// What to do.
    pub action: PrOutAction,
    /// SCOPE, 0..=15; only 0 (logical unit) has a meaning.
    pub scope: u8,
    /// TYPE, 0..=15.
    pub kind: u8,
    /// PARAMETER LIST LENGTH in bytes.
    pub list_len: u32,
}

/// Service actions of PERSISTENT RESERVE OUT (SPC-4 §6.16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrOutAction {
    /// 00h.
    Register,
    /// 01h.
    Reserve,
    /// 02h.
    Release,
    /// 03h.
    Clear,
    /// 04h.
    Preempt,
    /// 05h.
    PreemptAndAbort,
    /// 06h.
    RegisterAndIgnore,
    /// 07h.
    RegisterAndMove,
}

/// Service actions of PERSISTENT RESERVE IN (SPC-4 §6.15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrInAction {
    /// 00h.
    ReadKeys,
    /// 01h.
    ReadReservation,
    /// 02h.
    ReportCapabilities,
    /// 03h.
    ReadFullStatus,
}

/// Service actions of RECEIVE COPY RESULTS (SPC-3 §6.18).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyResultsAction {
    /// 00h: how far a copy is.
    Status,
    /// 01h: data that the copy held.
    ReceiveData,
    /// 03h: what the copy manager can do.
    OperatingParameters,
    /// 04h: why a copy failed.
    FailedSegment,
}

/// What SANITIZE is to do (SBC-3 §5.24).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SanitizeAction {
    /// 01h: write a pattern over everything; PARAMETER LIST LENGTH in bytes.
    Overwrite {
        /// PARAMETER LIST LENGTH in bytes.
        list_len: u16,
    },
    /// 02h.
    BlockErase,
    /// 1Fh: leave the failure of an earlier sanitize.
    ExitFailureMode,
}

/// SANITIZE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sanitize {
    /// What to do.
    pub action: SanitizeAction,
    /// Answer before the work is done.
    pub immediate: bool,
    /// AUSE: a failure may be left by EXIT FAILURE MODE.
    pub allow_exit: bool,
}

/// Ten-byte and twelve-byte READ DEFECT DATA, whose headers differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadDefects {
    /// Twelve-byte form, which has the longer header.
    pub twelve: bool,
    /// REQ_PLIST: the primary list.
    pub primary: bool,
    /// REQ_GLIST: the grown list.
    pub grown: bool,
    /// DEFECT LIST FORMAT, 0..=7.
    pub format: u8,
    /// ADDRESS DESCRIPTOR INDEX (twelve-byte form).
    pub index: u32,
    /// Bytes that the initiator takes.
    pub allocation: u32,
}

/// READ BUFFER and WRITE BUFFER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferAccess {
    /// MODE, 0..=31: 0Ah echo buffer, 0Bh echo buffer descriptor (read), 02h data, 03h descriptor (read).
    pub mode: u8,
    /// BUFFER ID.
    pub id: u8,
    /// BUFFER OFFSET, 24 bits.
    pub offset: u32,
    /// ALLOCATION LENGTH (read) or PARAMETER LIST LENGTH (write), 24 bits, in bytes.
    pub len: u32,
}

/// A command that passed all checks that need nothing but its CDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// TEST UNIT READY (00h).
    TestUnitReady,
    /// REQUEST SENSE (03h).
    RequestSense {
        /// Descriptor format is wanted.
        descriptor: bool,
        /// Bytes that the initiator takes.
        allocation: u8,
    },
    /// INQUIRY (12h).
    Inquiry(Inquiry),
    /// READ(6), (10), (12), (16).
    Read(BlockTransfer),
    /// WRITE(6), (10), (12), (16).
    Write(BlockTransfer),
    /// WRITE AND VERIFY(10), (12), (16); with `ByteCheck::None` the medium is only read back.
    WriteAndVerify(Verify),
    /// VERIFY(10), (12), (16).
    Verify(Verify),
    /// COMPARE AND WRITE (89h); `blocks` of compare data and as many to write.
    CompareAndWrite(BlockTransfer),
    /// ORWRITE(16) (8Bh).
    OrWrite(BlockTransfer),
    /// WRITE ATOMIC(16) (9Ch).
    WriteAtomic(WriteAtomic),
    /// WRITE SAME(10), (16).
    WriteSame(WriteSame),
    /// UNMAP (42h); the list is in [`crate::provisioning`].
    Unmap {
        /// Anchor the blocks.
        anchor: bool,
        /// GROUP NUMBER, 0..=63.
        group: u8,
        /// PARAMETER LIST LENGTH in bytes.
        list_len: u16,
    },
    /// GET LBA STATUS (9Eh/12h).
    GetLbaStatus {
        /// First block.
        lba: u64,
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// PRE-FETCH(10), (16).
    PreFetch(BlockExtent),
    /// SYNCHRONIZE CACHE(10), (16).
    SynchronizeCache(BlockExtent),
    /// READ CAPACITY(10).
    ReadCapacity10,
    /// READ CAPACITY(16) (9Eh/10h).
    ReadCapacity16 {
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// MODE SENSE(6), (10).
    ModeSense(ModeSense),
    /// MODE SELECT(6), (10).
    ModeSelect(ModeSelect),
    /// LOG SENSE (4Dh).
    LogSense(LogSense),
    /// START STOP UNIT (1Bh).
    StartStop(StartStop),
    /// PREVENT ALLOW MEDIUM REMOVAL (1Eh).
    PreventAllow {
        /// The medium must not be removed.
        prevent: bool,
    },
    /// REPORT LUNS (A0h).
    ReportLuns {
        /// SELECT REPORT; [`crate::report::LunSelect`] judges it.
        select: u8,
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// REPORT SUPPORTED OPERATION CODES (A3h/0Ch).
    ReportOpcodes(ReportOpcodes),
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (A3h/0Dh).
    ReportTaskManagement {
        /// REPD: the extended form.
        extended: bool,
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// REPORT TARGET PORT GROUPS (A3h/0Ah).
    ReportTargetPortGroups {
        /// PARAMETER DATA FORMAT 001b: the extended header.
        extended: bool,
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// SET TARGET PORT GROUPS (A4h/0Ah).
    SetTargetPortGroups {
        /// PARAMETER LIST LENGTH in bytes.
        list_len: u32,
    },
    /// PERSISTENT RESERVE IN (5Eh).
    ReserveIn {
        /// What to report.
        action: PrInAction,
        /// Bytes that the initiator takes.
        allocation: u16,
    },
    /// PERSISTENT RESERVE OUT (5Fh).
    ReserveOut(ReserveOut),
    /// RESERVE(6), (10) of SPC-2, for the whole logical unit and the asking initiator.
    Reserve,
    /// RELEASE(6), (10) of SPC-2.
    Release,
    /// EXTENDED COPY(LID1) (83h/00h); the list is in [`crate::extended_copy`].
    ExtendedCopy {
        /// PARAMETER LIST LENGTH in bytes; 0 copies nothing.
        list_len: u32,
    },
    /// RECEIVE COPY RESULTS (84h).
    CopyResults {
        /// What to report.
        action: CopyResultsAction,
        /// LIST IDENTIFIER of the copy.
        list_id: u8,
        /// Bytes that the initiator takes.
        allocation: u32,
    },
    /// FORMAT UNIT (04h).
    FormatUnit(FormatUnit),
    /// SANITIZE (48h).
    Sanitize(Sanitize),
    /// SEND DIAGNOSTIC (1Dh).
    SendDiagnostic(SendDiagnostic),
    /// READ DEFECT DATA(10), (12).
    ReadDefects(ReadDefects),
    /// READ BUFFER (3Ch).
    ReadBuffer(BufferAccess),
    /// WRITE BUFFER (3Bh).
    WriteBuffer(BufferAccess),
}

/// Bytes that a command moves, as its CDB says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataTransfer {
    /// None.
    None,
    /// At most so many to the initiator: an allocation length, or blocks.
    In(u64),
    /// So many from the initiator.
    Out(u64),
}

impl Command {
    /// Reads a CDB against all commands that this crate knows; bytes beyond the command's own length
    /// (iSCSI always carries 16) are not looked at.
    pub fn parse(cdb: &[u8]) -> Result<Command, CdbError> {
        CommandSet::ALL.parse(cdb)
    }

    /// Direction and length of the data, for blocks of `block_len` bytes.
    pub fn data_transfer(&self, block_len: u32) -> DataTransfer {
        let span = |blocks: u32| u64::from(blocks) * u64::from(block_len);
        match *self {
            Command::TestUnitReady
            | Command::PreFetch(_)
            | Command::SynchronizeCache(_)
            | Command::StartStop(_)
            | Command::PreventAllow { .. }
            | Command::Reserve
            | Command::Release
            | Command::SendDiagnostic(_) => DataTransfer::None,
            Command::Read(t) => DataTransfer::In(span(t.blocks)),
            Command::Write(t) | Command::OrWrite(t) => DataTransfer::Out(span(t.blocks)),
            Command::WriteAtomic(w) => DataTransfer::Out(span(w.transfer.blocks)),
            Command::CompareAndWrite(t) => DataTransfer::Out(2 * span(t.blocks)),
            Command::WriteAndVerify(v) => DataTransfer::Out(span(v.blocks)),
            Command::Verify(v) => match v.check {
                ByteCheck::None => DataTransfer::None,
                ByteCheck::Compare => DataTransfer::Out(span(v.blocks)),
                ByteCheck::CompareOne => DataTransfer::Out(span(v.blocks.min(1))),
            },
            Command::WriteSame(w) if w.no_data => DataTransfer::None,
            Command::WriteSame(_) => DataTransfer::Out(span(1)),
            Command::Inquiry(Inquiry { allocation, .. })
            | Command::ModeSense(ModeSense { allocation, .. })
            | Command::LogSense(LogSense { allocation, .. })
            | Command::ReserveIn { allocation, .. } => DataTransfer::In(u64::from(allocation)),
            Command::RequestSense { allocation, .. } => DataTransfer::In(u64::from(allocation)),
            Command::ReadCapacity10 => DataTransfer::In(8),
            Command::ReadCapacity16 { allocation }
            | Command::GetLbaStatus { allocation, .. }
            | Command::ReportLuns { allocation, .. }
            | Command::ReportOpcodes(ReportOpcodes { allocation, .. })
            | Command::ReportTaskManagement { allocation, .. }
            | Command::ReportTargetPortGroups { allocation, .. }
            | Command::CopyResults { allocation, .. }
            | Command::ReadDefects(ReadDefects { allocation, .. }) => DataTransfer::In(u64::from(allocation)),
            Command::ReadBuffer(b) => DataTransfer::In(u64::from(b.len)),
            Command::WriteBuffer(b) => DataTransfer::Out(u64::from(b.len)),
            Command::ModeSelect(ModeSelect { list_len, .. }) | Command::Unmap { list_len, .. } => {
                DataTransfer::Out(u64::from(list_len))
            }
            Command::SetTargetPortGroups { list_len }
            | Command::ExtendedCopy { list_len }
            | Command::ReserveOut(ReserveOut { list_len, .. }) => DataTransfer::Out(u64::from(list_len)),
            Command::FormatUnit(f) if f.with_list => {
                DataTransfer::Out(FormatParameters::list_len(f.long_list) as u64)
            }
            Command::FormatUnit(_) => DataTransfer::None,
            Command::Sanitize(s) => match s.action {
                SanitizeAction::Overwrite { list_len } => DataTransfer::Out(u64::from(list_len)),
                SanitizeAction::BlockErase | SanitizeAction::ExitFailureMode => DataTransfer::None,
            },
        }
    }
}
