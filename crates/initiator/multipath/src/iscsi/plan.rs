//! From operations to commands: the next CDB, and how much of the operation it covers.
//!
//! No command exceeds the target's limits. Operations that can be divided without changing their meaning are
//! divided here. Reads, writes and atomic operations keep the length that the caller gave them.

use scsi::Command;
use scsi::cdb::{BlockExtent, BlockTransfer, ByteCheck, Verify, WriteAtomic, WriteSame};
use scsi::provisioning::BlockRange;
use volume::{Durability, Failure, Fault, Op, Outcome, Refusal, Span};

use super::unit_facts::{DEFAULT_TRANSFER_MAX, UnitCapabilities};

/// Forms of commands that a target may turn out not to know; each a bit of [`UnitCapabilities::unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandForm {
    /// READ, WRITE: known, or nothing works.
    Plain = 0,
    /// FUA.
    Stable = 1,
    /// SYNCHRONIZE CACHE.
    Flush = 2,
    WriteSame = 3,
    WriteSameUnmap = 4,
    Unmap = 5,
    Verify = 6,
    Compare = 7,
    CompareAndWrite = 8,
    Or = 9,
    Atomic = 10,
    Prefetch = 11,
    Extents = 12,
}

impl UnitCapabilities {
    pub(super) fn supports_form(&self, form: CommandForm) -> bool {
        self.unknown & (1 << form as u16) == 0
    }

    /// The target does not know it. False: it had been told before.
    pub(super) fn note_unknown_form(&mut self, form: CommandForm) -> bool {
        let known = self.supports_form(form);
        self.unknown |= 1 << form as u16;
        known
    }
}

/// The memory that a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandMemory {
    None,
    /// The caller's.
    Caller,
    /// So many bytes of the path's own, to be filled.
    In(usize),
    /// So many zero bytes.
    Zeroes(usize),
    /// The list of an UNMAP with so many descriptors.
    UnmapList(usize),
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OperationProgress {
    /// Which span of a list.
    list: usize,
    /// Blocks of it that are done.
    done: u64,
    /// The last write was with FUA.
    stable: bool,
    /// A flush behind it is done.
    flushed: bool,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum NextCommand {
    /// This command, which does so many blocks.
    Send { command: Command, long: bool, data: CommandMemory, form: CommandForm, blocks: u64 },
    /// Nothing: it is done.
    Done(Outcome),
    /// It cannot be done.
    Refused(Failure),
}

fn refused_command(refusal: Refusal) -> NextCommand {
    NextCommand::Refused(Failure::Refused(refusal))
}

fn send_command(command: Command, data: CommandMemory, form: CommandForm, blocks: u64) -> NextCommand {
    NextCommand::Send { command, long: false, data, form, blocks }
}

/// The payload that an operation must come with: whether it is to be filled, and its length in bytes.
fn required_payload(op: &Op, block: u32) -> Option<(bool, u64)> {
    let bytes = |blocks: u64| blocks.checked_mul(block.into());
    Some(match op {
        Op::Read(span) => (true, bytes(span.blocks)?),
        Op::Write(span, _) | Op::WriteAtomic(span) | Op::Compare(span) | Op::Or(span) => {
            (false, bytes(span.blocks)?)
        }
        Op::CompareAndWrite(span) => (false, bytes(span.blocks)?.checked_mul(2)?),
        Op::WriteSame(_) => (false, u64::from(block)),
        Op::Flush | Op::WriteZeroes { .. } | Op::Unmap(_) | Op::Verify(_) => (false, 0),
        Op::MarkBad(_) | Op::Prefetch(_) | Op::Extents(_) | Op::Sanitize(_) => (false, 0),
    })
}

/// The blocks that an operation, or the part of it that is next, is about.
pub(super) fn current_span(op: &Op, at: &OperationProgress) -> Span {
    match op {
        Op::Read(span) | Op::Write(span, _) | Op::WriteAtomic(span) | Op::Compare(span) => *span,
        Op::CompareAndWrite(span) | Op::WriteSame(span) | Op::Or(span) | Op::Verify(span) => *span,
        Op::WriteZeroes { span, .. } | Op::MarkBad(span) | Op::Prefetch(span) | Op::Extents(span) => *span,
        Op::Unmap(spans) => spans.get(at.list).copied().unwrap_or(Span { lba: 0, blocks: 0 }),
        Op::Flush | Op::Sanitize(_) => Span { lba: 0, blocks: 0 },
    }
}

/// Judges an operation before anything of it is sent.
pub(super) fn check_operation(
    op: &Op,
    can: &UnitCapabilities,
    filled: bool,
    len: usize,
) -> Result<(), Failure> {
    // Where the volume ends is for the target to say: it may have grown, and we have not heard of it.
    let within = |span: &Span| span.end().is_some();
    let fits = match op {
        Op::Unmap(spans) => spans.iter().all(within),
        Op::Flush | Op::Sanitize(_) => true,
        other => within(&current_span(other, &OperationProgress::default())),
    };
    if !fits {
        return Err(Failure::Refused(Refusal::OutOfRange));
    }
    let whole = match op {
        Op::Read(span) | Op::Write(span, _) | Op::Compare(span) | Op::Or(span) => {
            span.blocks <= u64::from(can.transfer_max)
        }
        Op::WriteAtomic(span) => span.blocks <= u64::from(can.atomic_max.max(1)),
        Op::CompareAndWrite(span) => span.blocks <= u64::from(can.caw_max),
        _ => true,
    };
    if !whole {
        return Err(Failure::Refused(Refusal::AtomicUnit));
    }
    // A payload that does not fit its operation is the caller's mistake.
    match required_payload(op, can.block) {
        Some((fills, bytes)) if bytes == len as u64 && (fills == filled || len == 0) => Ok(()),
        Some(_) | None => Err(Failure::Failed(Fault::Internal)),
    }
}

fn transfer_fields(span: Span, fua: bool) -> BlockTransfer {
    // `check_operation` bounds what is not cut.
    BlockTransfer { lba: span.lba, blocks: span.blocks as u32, dpo: false, fua, group: 0 }
}

/// The next command of an operation.
pub(super) fn next_command(op: &Op, at: &mut OperationProgress, can: &UnitCapabilities) -> NextCommand {
    let span = current_span(op, at);
    let rest = Span { lba: span.lba + at.done, blocks: span.blocks - at.done };
    let idle = rest.blocks == 0;
    let cut = |most: u32| Span { blocks: rest.blocks.min(u64::from(most.max(1))), ..rest };
    let complete = NextCommand::Done(Outcome::Complete);
    match op {
        Op::Write(_, durability) => plan_write(rest, span, *durability, at, can),
        Op::Unmap(spans) => plan_unmap(spans, at, can),
        Op::Flush if at.flushed => complete,
        Op::Flush => plan_flush(Span { lba: 0, blocks: 0 }, can),
        Op::Extents(_) => plan_extents(span, can),
        _ if idle => complete,
        Op::Read(_) => send_command(
            Command::Read(transfer_fields(rest, false)),
            CommandMemory::Caller,
            CommandForm::Plain,
            rest.blocks,
        ),
        Op::WriteAtomic(_) if rest.blocks == 1 => send_command(
            Command::Write(transfer_fields(rest, false)),
            CommandMemory::Caller,
            CommandForm::Plain,
            1,
        ),
        Op::WriteAtomic(_) if can.supports_form(CommandForm::Atomic) => {
            let command =
                Command::WriteAtomic(WriteAtomic { transfer: transfer_fields(rest, false), boundary: 0 });
            send_command(command, CommandMemory::Caller, CommandForm::Atomic, rest.blocks)
        }
        Op::Compare(_) if can.supports_form(CommandForm::Compare) => send_command(
            verify_command(rest, ByteCheck::Compare),
            CommandMemory::Caller,
            CommandForm::Compare,
            rest.blocks,
        ),
        // The target compares nothing: what stands there is fetched.
        Op::Compare(_) => {
            let len = rest.blocks as usize * can.block as usize;
            send_command(
                Command::Read(transfer_fields(rest, false)),
                CommandMemory::In(len),
                CommandForm::Plain,
                rest.blocks,
            )
        }
        Op::CompareAndWrite(_) if can.supports_form(CommandForm::CompareAndWrite) => {
            let command = Command::CompareAndWrite(transfer_fields(rest, false));
            send_command(command, CommandMemory::Caller, CommandForm::CompareAndWrite, rest.blocks)
        }
        Op::Or(_) if can.supports_form(CommandForm::Or) => send_command(
            Command::OrWrite(transfer_fields(rest, false)),
            CommandMemory::Caller,
            CommandForm::Or,
            rest.blocks,
        ),
        Op::WriteSame(_) if can.supports_form(CommandForm::WriteSame) => {
            plan_write_same(cut(can.same_max), false, CommandMemory::Caller, can)
        }
        Op::WriteZeroes { unmap, .. } => plan_write_zeroes(rest, *unmap, can),
        Op::Verify(_) if can.supports_form(CommandForm::Verify) => {
            let part = cut(can.same_max);
            send_command(
                verify_command(part, ByteCheck::None),
                CommandMemory::None,
                CommandForm::Verify,
                part.blocks,
            )
        }
        Op::Prefetch(_) if can.supports_form(CommandForm::Prefetch) => {
            let part = cut(can.prefetch_max);
            let command = Command::PreFetch(BlockExtent {
                lba: part.lba,
                blocks: part.blocks as u32,
                immediate: true,
                group: 0,
            });
            send_command(command, CommandMemory::None, CommandForm::Prefetch, part.blocks)
        }
        // A hint that cannot be given is given.
        Op::Prefetch(_) => complete,
        Op::WriteAtomic(_) | Op::CompareAndWrite(_) | Op::Or(_) | Op::WriteSame(_) => {
            refused_command(Refusal::Unsupported)
        }
        Op::Verify(_) | Op::MarkBad(_) | Op::Sanitize(_) => refused_command(Refusal::Unsupported),
    }
}

/// Whether an operation ends with SYNCHRONIZE CACHE, or may: it vouches for what was written before.
pub(super) fn confirms_earlier_writes(op: &Op, can: Option<&UnitCapabilities>) -> bool {
    let by_bit =
        |can: &UnitCapabilities| !can.write_cache || can.fua && can.supports_form(CommandForm::Stable);
    match op {
        Op::Flush => true,
        Op::Write(_, Durability::Stable) => !can.is_some_and(by_bit),
        _ => false,
    }
}

fn plan_write(
    rest: Span,
    whole: Span,
    durability: Durability,
    at: &mut OperationProgress,
    can: &UnitCapabilities,
) -> NextCommand {
    let durable = durability == Durability::Stable && can.write_cache;
    if rest.blocks == 0 {
        let behind = durable && !at.stable && !at.flushed && whole.blocks > 0;
        return if behind { plan_flush(whole, can) } else { NextCommand::Done(Outcome::Complete) };
    }
    let fua = durable && can.fua && can.supports_form(CommandForm::Stable);
    at.stable = fua;
    let form = if fua { CommandForm::Stable } else { CommandForm::Plain };
    send_command(Command::Write(transfer_fields(rest, fua)), CommandMemory::Caller, form, rest.blocks)
}

fn plan_flush(span: Span, can: &UnitCapabilities) -> NextCommand {
    if !can.supports_form(CommandForm::Flush) {
        // Who has no volatile cache need not know how to flush it.
        return if can.write_cache {
            refused_command(Refusal::Unsupported)
        } else {
            NextCommand::Done(Outcome::Complete)
        };
    }
    let blocks = span.blocks as u32;
    let command =
        Command::SynchronizeCache(BlockExtent { lba: span.lba, blocks, immediate: false, group: 0 });
    send_command(command, CommandMemory::None, CommandForm::Flush, 0)
}

fn verify_command(span: Span, check: ByteCheck) -> Command {
    Command::Verify(Verify { lba: span.lba, blocks: span.blocks as u32, dpo: false, check, group: 0 })
}

fn plan_write_same(part: Span, unmap: bool, data: CommandMemory, can: &UnitCapabilities) -> NextCommand {
    let command = Command::WriteSame(WriteSame {
        lba: part.lba,
        blocks: part.blocks as u32,
        unmap,
        anchor: false,
        no_data: false,
        group: 0,
    });
    let form = if unmap { CommandForm::WriteSameUnmap } else { CommandForm::WriteSame };
    let long = unmap && !can.same_10_unmaps;
    NextCommand::Send { command, long, data, form, blocks: part.blocks }
}

fn plan_write_zeroes(rest: Span, unmap: bool, can: &UnitCapabilities) -> NextCommand {
    let cut = |most: u32| Span { blocks: rest.blocks.min(u64::from(most.max(1))), ..rest };
    let block = CommandMemory::Zeroes(can.block as usize);
    if unmap && can.same_unmaps && can.reads_zeros && can.supports_form(CommandForm::WriteSameUnmap) {
        return plan_write_same(cut(can.same_max), true, block, can);
    }
    if can.supports_form(CommandForm::WriteSame) {
        return plan_write_same(cut(can.same_max), false, block, can);
    }
    let part = cut(can.transfer_max.min(ZERO_BYTES_MAX / can.block));
    let data = CommandMemory::Zeroes(part.blocks as usize * can.block as usize);
    send_command(Command::Write(transfer_fields(part, false)), data, CommandForm::Plain, part.blocks)
}

/// The most zero bytes that are sent at once.
const ZERO_BYTES_MAX: u32 = DEFAULT_TRANSFER_MAX / 4;

/// The descriptors of the next UNMAP: as many as the target takes, with no more blocks than it takes.
pub(super) fn unmap_descriptors(
    spans: &[Span],
    at: OperationProgress,
    can: &UnitCapabilities,
) -> impl Iterator<Item = BlockRange> {
    let (mut left, descriptors) = can.unmap.unwrap_or((0, 0));
    let mut at = at;
    let parts = std::iter::from_fn(move || {
        loop {
            let span = spans.get(at.list)?;
            let rest = span.blocks.saturating_sub(at.done);
            if rest == 0 {
                at = OperationProgress { list: at.list + 1, done: 0, ..at };
                continue;
            }
            let blocks = u32::try_from(rest).unwrap_or(u32::MAX).min(left);
            if blocks == 0 {
                return None;
            }
            let lba = span.lba + at.done;
            left -= blocks;
            at.done += u64::from(blocks);
            return Some(BlockRange { lba, blocks });
        }
    });
    parts.take(descriptors as usize)
}

fn plan_unmap(spans: &[Span], at: &mut OperationProgress, can: &UnitCapabilities) -> NextCommand {
    while spans.get(at.list).is_some_and(|span| at.done == span.blocks) {
        *at = OperationProgress { list: at.list + 1, done: 0, ..*at };
    }
    let Some(span) = spans.get(at.list) else { return NextCommand::Done(Outcome::Complete) };
    if can.unmap.is_some() && can.supports_form(CommandForm::Unmap) {
        let (count, blocks) = unmap_descriptors(spans, *at, can)
            .fold((0, 0), |(count, blocks), part| (count + 1, blocks + u64::from(part.blocks)));
        let command = Command::Unmap { anchor: false, group: 0, list_len: 8 + 16 * count as u16 };
        return send_command(command, CommandMemory::UnmapList(count), CommandForm::Unmap, blocks);
    }
    if can.same_unmaps && can.supports_form(CommandForm::WriteSameUnmap) {
        let rest = span.blocks - at.done;
        let part = Span { lba: span.lba + at.done, blocks: rest.min(u64::from(can.same_max)) };
        return plan_write_same(part, true, CommandMemory::Zeroes(can.block as usize), can);
    }
    refused_command(Refusal::Unsupported)
}

/// Bytes of GET LBA STATUS data that are asked for: 255 descriptors.
const LBA_STATUS_LEN: u32 = 8 + 255 * 16;

fn plan_extents(span: Span, can: &UnitCapabilities) -> NextCommand {
    let thin = can.unmap.is_some() || can.same_unmaps;
    if span.blocks == 0 || !thin || !can.supports_form(CommandForm::Extents) {
        // Who maps all blocks for good need not tell.
        return NextCommand::Done(Outcome::Extents(vec![volume::Extent { span, mapped: true }]));
    }
    let command = Command::GetLbaStatus { lba: span.lba, allocation: LBA_STATUS_LEN };
    send_command(command, CommandMemory::In(LBA_STATUS_LEN as usize), CommandForm::Extents, 0)
}

impl OperationProgress {
    /// A command that did so many blocks has ended well.
    pub(super) fn note_blocks_done(&mut self, op: &Op, form: CommandForm, blocks: u64) {
        self.flushed |= form == CommandForm::Flush;
        let Op::Unmap(spans) = op else {
            self.done += blocks;
            return;
        };
        let mut left = blocks;
        while let Some(span) = spans.get(self.list) {
            let here = (span.blocks - self.done).min(left);
            (self.done, left) = (self.done + here, left - here);
            if left == 0 {
                return;
            }
            (self.list, self.done) = (self.list + 1, 0);
        }
    }
}

/// What GET LBA STATUS data says of a span: from its start on, without gaps; `None`: nothing sound.
pub(super) fn parse_lba_status(data: &[u8], span: Span) -> Option<Outcome> {
    use scsi::provisioning::{ProvisioningStatus, decode_lba_status};
    let end = span.end()?;
    let mut extents: Vec<volume::Extent> = Vec::new();
    let mut at = span.lba;
    for status in decode_lba_status(data) {
        let stop = status.blocks.lba.checked_add(status.blocks.blocks.into())?;
        // The first may begin before what was asked for; each follows on the one before it.
        let follows = status.blocks.lba == at || extents.is_empty() && status.blocks.lba < at && stop > at;
        if !follows || stop <= at {
            break;
        }
        let blocks = stop.min(end) - at;
        let mapped = status.status != ProvisioningStatus::DEALLOCATED;
        match extents.last_mut() {
            Some(last) if last.mapped == mapped => last.span.blocks += blocks,
            Some(_) | None => extents.push(volume::Extent { span: Span { lba: at, blocks }, mapped }),
        }
        at = stop;
        if at >= end {
            break;
        }
    }
    (!extents.is_empty()).then_some(Outcome::Extents(extents))
}
