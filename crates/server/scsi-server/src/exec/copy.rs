//! EXTENDED COPY(LID1) and RECEIVE COPY RESULTS (SPC-4 §5.17, §6.4, §6.17).
//!
//! A copy reaches only logical units that the requesting nexus reaches, with this nexus' rights. Both are
//! checked again before each chunk: a read of the source and a write of the destination, in turn, so that an
//! abort is fast and little memory is held. The gates admit each operation like any other. Segments in bytes
//! may begin and end within blocks. Such a block of the destination is read and written back with a
//! compare-and-write, so that no concurrent write to its other bytes is lost.

use buf::{Class, Payload, Sg};
use scsi::Status;
use scsi::cdb::CopyResults;
use scsi::copy::{self, CopyLen, CopyList, CopyState, CopyStatus, CopyTarget, Limits, ListIdUsage, Segment};
use scsi::sense::Sense;
use volume::{Durability, Failure, Fault, Op, Outcome, Refusal, Span, VolumeId};

use super::good;
use super::parameter::contiguous;
use crate::after_operation::{AfterOperation, CopyRun, CopyStage, Copying};
use crate::context::ExecContext;
use crate::nexus::{COPY_RECORDS_MAX, CopyRecord};
use crate::status;
use crate::step::{NexusKey, Reply, TaskKey};

/// What the copy manager takes.
pub(crate) const LIMITS: Limits = Limits {
    targets: 8,
    segments: 64,
    descriptors_len: 4096,
    segment_len: 256 << 20,
    concurrent: 64,
    granularity: 0,
};

/// Bytes that are read and written at a time; a multiple of every block length.
const CHUNK: u64 = 256 << 10;

/// How often a block that others write is read and swapped again before the copy gives up.
const SWAPS_MAX: u32 = 1000;

/// EXTENDED COPY. Whether there is room for one more copy is asked here, so that no list is received for nothing,
/// and again when the list has come, bindingly: any number of them may be on their way at once.
pub(crate) fn start(ctx: &mut ExecContext, slot: u32, list_len: u32) {
    if list_len == 0 {
        good(ctx, slot);
    } else if is_full(ctx) {
        ctx.respond(slot, Reply::plain(Status::BUSY));
    } else {
        ctx.receive_list(slot, list_len, LIMITS.list_len_max());
    }
}

/// Whether as many copies are under way as may be.
fn is_full(ctx: &ExecContext) -> bool {
    ctx.copies >= LIMITS.concurrent
}

/// The list of an EXTENDED COPY is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    if is_full(ctx) {
        return ctx.respond(slot, Reply::plain(Status::BUSY));
    }
    let bytes = contiguous(data);
    let list = match CopyList::parse(&bytes, &LIMITS) {
        Ok(list) => list,
        Err(sense) => return ctx.check(slot, sense),
    };
    let nexus = ctx.tasks.get(slot).key.nexus;
    let id = (list.usage == ListIdUsage::Hold).then_some(list.id);
    if id.and_then(|id| ctx.state_mut(nexus).copy(id)).is_some_and(is_running) {
        return ctx.check(slot, Sense::list_field(0, None));
    }
    let runs = list.segments().map(|segment| run(ctx, nexus, &list, segment)).collect::<Result<_, _>>();
    let runs = match runs {
        Ok(runs) => runs,
        Err(reply) => {
            remember(ctx, nexus, id, (CopyState::Failed, 0, 0), Some(&reply));
            return ctx.respond(slot, reply);
        }
    };
    let internal_nexus = match ctx.state(nexus).internal_nexus {
        Some(internal_nexus) => internal_nexus,
        None => ctx.open_internal_nexus(nexus),
    };
    ctx.state_mut(nexus).internal_nexus = Some(internal_nexus);
    let name = TaskKey { nexus: internal_nexus, tag: u64::from(slot) };
    let copying =
        Copying { id, runs, index: 0, done: 0, bytes: 0, chunk: 0, stage: CopyStage::Read, swaps: 0, name };
    ctx.tasks.get_mut(slot).job = AfterOperation::Copy(Box::new(copying));
    ctx.copies += 1;
    next(ctx, slot);
}

fn is_running(copy: &mut CopyRecord) -> bool {
    copy.status.state == CopyState::InProgress
}

/// The volume that a descriptor names, if the nexus reaches it.
fn resolve(ctx: &ExecContext, nexus: NexusKey, target: &CopyTarget<'_>) -> Result<VolumeId, Reply> {
    let spec = ctx.nexus(nexus);
    let named = spec.luns.iter().find_map(|entry| {
        let unit = ctx.unit(entry.volume)?;
        unit.names(spec).is_named_by(&target.designator).then_some((entry.volume, unit))
    });
    let Some((volume, unit)) = named else { return Err(Reply::check(Sense::COPY_TARGET_NOT_REACHABLE)) };
    if target.block_len != 0 && target.block_len != unit.view.geometry.logical {
        return Err(Reply::check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    Ok(volume)
}

fn run(ctx: &ExecContext, nexus: NexusKey, list: &CopyList<'_>, segment: Segment) -> Result<CopyRun, Reply> {
    let end = |index| list.target(index).map_err(Reply::check);
    let source = resolve(ctx, nexus, &end(segment.source)?)?;
    let destination = resolve(ctx, nexus, &end(segment.destination)?)?;
    let (from, to) = (logical(ctx, source), logical(ctx, destination));
    let (bytes, skip, lead) = match segment.len {
        CopyLen::Blocks { count, destination: true } => (u64::from(count) * to, 0, 0),
        CopyLen::Blocks { count, destination: false } => (u64::from(count) * from, 0, 0),
        CopyLen::Bytes { count, source_offset, destination_offset } => {
            (u64::from(count), u64::from(source_offset), u64::from(destination_offset))
        }
    };
    if bytes > u64::from(LIMITS.segment_len) {
        return Err(Reply::check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    // Neither PAD nor CAT says what becomes of half a block that is counted in blocks.
    let in_blocks = matches!(segment.len, CopyLen::Blocks { .. });
    if in_blocks && (!bytes.is_multiple_of(from) || !bytes.is_multiple_of(to)) {
        return Err(Reply::check(Segment::refused(8)));
    }
    // The offsets stand within the first blocks.
    for (offset, block, byte) in [(skip, from, 28), (lead, to, 30)] {
        if offset >= block {
            return Err(Reply::check(Segment::refused(byte)));
        }
    }
    let place = |lba: u64, block: u64, offset: u64, byte| {
        let at = lba.checked_mul(block).and_then(|at| at.checked_add(offset));
        at.filter(|at| at.checked_add(bytes).is_some())
            .ok_or_else(|| status::copy_refused(Refusal::OutOfRange, byte))
    };
    let source_at = place(segment.source_lba, from, skip, SOURCE_FIELD)?;
    let destination_at = place(segment.destination_lba, to, lead, DESTINATION_FIELD)?;
    let run = CopyRun { source, source_at, destination, destination_at, bytes };
    // Half a block of the destination must be swapped.
    let odd = !destination_at.is_multiple_of(to) || !bytes.is_multiple_of(to);
    if odd && ctx.unit(destination).is_some_and(|unit| unit.view.geometry.caw_max == 0) {
        return Err(Reply::check(Segment::refused(8)));
    }
    judge(ctx, nexus, &run, 0, bytes)?;
    Ok(run)
}

fn logical(ctx: &ExecContext, volume: VolumeId) -> u64 {
    ctx.unit(volume).map_or(512, |unit| u64::from(unit.view.geometry.logical))
}

/// SOURCE and DESTINATION LOGICAL BLOCK ADDRESS in a segment descriptor.
const SOURCE_FIELD: u16 = 12;
const DESTINATION_FIELD: u16 = 20;

/// All blocks that these bytes touch.
fn blocks_of(at: u64, len: u64, block: u64) -> Span {
    let lba = at / block;
    Span { lba, blocks: (at + len).div_ceil(block) - lba }
}

/// The spans of a part of a run: what is read and what is written.
fn spans(ctx: &ExecContext, run: &CopyRun, done: u64, len: u64) -> (Span, Span) {
    let (from, to) = (logical(ctx, run.source), logical(ctx, run.destination));
    (blocks_of(run.source_at + done, len, from), blocks_of(run.destination_at + done, len, to))
}

/// How many bytes are copied next: whole blocks of the destination, or what ends within one.
fn chunk_len(ctx: &ExecContext, run: &CopyRun, done: u64) -> u64 {
    let to = logical(ctx, run.destination);
    let (lead, rest) = ((run.destination_at + done) % to, run.bytes - done);
    if lead > 0 || rest < to {
        rest.min(to - lead)
    } else {
        let len = rest.min(CHUNK);
        len - len % to
    }
}

/// Whether the nexus may still copy this part.
fn judge(ctx: &ExecContext, nexus: NexusKey, run: &CopyRun, done: u64, len: u64) -> Result<(), Reply> {
    let (source, destination) = spans(ctx, run, done, len);
    let write = Op::Write(destination, Durability::Cached);
    admit(ctx, nexus, run.source, &Op::Read(source))
        .map_err(|refusal| status::copy_refused(refusal, SOURCE_FIELD))?;
    admit(ctx, nexus, run.destination, &write)
        .map_err(|refusal| status::copy_refused(refusal, DESTINATION_FIELD))
}

fn admit(ctx: &ExecContext, nexus: NexusKey, volume: VolumeId, op: &Op) -> Result<(), Refusal> {
    let spec = ctx.nexus(nexus);
    let mut ways = spec.luns.iter().filter(|entry| entry.volume == volume).peekable();
    let Some(unit) = ctx.unit(volume).filter(|_| ways.peek().is_some()) else {
        return Err(Refusal::NotReady(volume::UnservableReason::Removed));
    };
    if op.is_write() && ways.all(|entry| entry.read_only) {
        return Err(Refusal::ReadOnly);
    }
    unit.view.admit(&spec.nexus, op)
}

#[expect(clippy::unreachable, reason = "only a copy's own steps ask, and its task stays one until it ends")]
fn copying(ctx: &mut ExecContext, slot: u32) -> &mut Copying {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterOperation::Copy(copying) => copying,
        _ => unreachable!("an EXTENDED COPY is under way"),
    }
}

/// Reads the next chunk, or ends.
fn next(ctx: &mut ExecContext, slot: u32) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copying(ctx, slot);
    while copy.runs.get(copy.index).is_some_and(|run| copy.done >= run.bytes) {
        copy.index += 1;
        copy.done = 0;
    }
    let (id, index, bytes, done) = (copy.id, copy.index, copy.bytes, copy.done);
    let Some(run) = copy.runs.get(index).copied() else {
        remember(ctx, nexus, id, (CopyState::Done, index, bytes), None);
        return good(ctx, slot);
    };
    remember(ctx, nexus, id, (CopyState::InProgress, index, bytes), None);
    let chunk = chunk_len(ctx, &run, done);
    let name = copying(ctx, slot).name;
    if let Err(reply) = judge(ctx, nexus, &run, done, chunk) {
        return fail(ctx, slot, reply);
    }
    let (source, _) = spans(ctx, &run, done, chunk);
    let want = source.blocks * logical(ctx, run.source);
    let copy = copying(ctx, slot);
    (copy.chunk, copy.stage, copy.swaps) = (chunk, CopyStage::Read, 0);
    // Memory of its own, never the volume's: source and destination may overlap.
    ctx.submit_as(slot, name, run.source, Op::Read(source), Payload::None, want as u32);
}

/// A read or a write of a copy has ended.
pub(crate) fn done(ctx: &mut ExecContext, slot: u32, result: Result<Outcome, Failure>, payload: Payload) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copying(ctx, slot);
    let (run, done, chunk) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk);
    let Some(run) = run else { return lost(ctx, slot) };
    match (std::mem::replace(&mut copy.stage, CopyStage::Read), result) {
        (CopyStage::Swap(part), Err(Failure::Failed(Fault::Miscompare(_)))) if copy.swaps < SWAPS_MAX => {
            copy.swaps += 1;
            read_old(ctx, slot, part);
        }
        (_, Err(failure)) => fail(ctx, slot, status::copy_failed(failure)),
        (CopyStage::Write | CopyStage::Swap(_), Ok(_)) => {
            copy.done += chunk;
            copy.bytes += chunk;
            next(ctx, slot);
        }
        (stage, Ok(_)) => match (judge(ctx, nexus, &run, done, chunk), stage) {
            (Err(reply), _) => fail(ctx, slot, reply),
            (Ok(()), CopyStage::Old(part)) => swap(ctx, slot, part, &payload.into_sg()),
            (Ok(()), _) => write(ctx, slot, payload.into_sg()),
        },
    }
}

/// The source is read: the destination follows.
fn write(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let copy = copying(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    let Some(run) = run else { return lost(ctx, slot) };
    let skip = (run.source_at + done) % logical(ctx, run.source);
    let (_, span) = spans(ctx, &run, done, chunk);
    if span.blocks * logical(ctx, run.destination) != chunk {
        let mut part = vec![0; chunk as usize];
        data.copy_to(skip as usize, &mut part);
        return read_old(ctx, slot, part);
    }
    // Memory of which a part is written would stand askew for some disks.
    let data = if data.len() as u64 == chunk { Some(data) } else { moved(ctx, &data, skip, chunk) };
    let Some(data) = data else { return fail(ctx, slot, Reply::plain(Status::BUSY)) };
    copying(ctx, slot).stage = CopyStage::Write;
    let op = Op::Write(span, Durability::Cached);
    ctx.submit_as(slot, name, run.destination, op, Payload::Out(data), 0);
}

/// A part of these bytes in memory of its own.
fn moved(ctx: &ExecContext, data: &Sg, skip: u64, len: u64) -> Option<Sg> {
    let mut place = ctx.pool().take_sg(Class::Solicited, len as usize)?;
    let mut at = skip as usize;
    for piece in place.slices_mut(0..len as usize) {
        data.copy_to(at, piece);
        at += piece.len();
    }
    Some(place.freeze())
}

/// Reads the block that a part is to change.
fn read_old(ctx: &mut ExecContext, slot: u32, part: Vec<u8>) {
    let copy = copying(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    copy.stage = CopyStage::Old(part);
    let Some(run) = run else { return lost(ctx, slot) };
    let (_, span) = spans(ctx, &run, done, chunk);
    let want = logical(ctx, run.destination) as u32;
    ctx.submit_as(slot, name, run.destination, Op::Read(span), Payload::None, want);
}

/// Swaps the block for what it becomes, if it is still the same.
fn swap(ctx: &mut ExecContext, slot: u32, part: Vec<u8>, old: &Sg) {
    let copy = copying(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    let Some(run) = run else { return lost(ctx, slot) };
    let block = logical(ctx, run.destination);
    let lead = ((run.destination_at + done) % block) as usize;
    let Some(mut both) = ctx.pool().take(Class::Solicited, 2 * block as usize) else {
        return fail(ctx, slot, Reply::plain(Status::BUSY));
    };
    let (before, after) = both.split_at_mut(block as usize);
    old.copy_to(0, before);
    after.copy_from_slice(before);
    after.iter_mut().skip(lead).zip(&part).for_each(|(to, byte)| *to = *byte);
    let (_, span) = spans(ctx, &run, done, chunk);
    copying(ctx, slot).stage = CopyStage::Swap(part);
    let payload = Payload::Out(both.freeze().into());
    ctx.submit_as(slot, name, run.destination, Op::CompareAndWrite(span), payload, 0);
}

/// A copy is at no run, which never is while a chunk is under way.
fn lost(ctx: &mut ExecContext, slot: u32) {
    fail(ctx, slot, Reply::check(Sense::INTERNAL_TARGET_FAILURE));
}

fn fail(ctx: &mut ExecContext, slot: u32, reply: Reply) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copying(ctx, slot);
    let (id, index, bytes) = (copy.id, copy.index, copy.bytes);
    remember(ctx, nexus, id, (CopyState::Failed, index, bytes), Some(&reply));
    ctx.respond(slot, reply);
}

/// Keeps what RECEIVE COPY RESULTS may ask for.
fn remember(
    ctx: &mut ExecContext,
    nexus: NexusKey,
    id: Option<u8>,
    (state, segments, bytes): (CopyState, usize, u64),
    failed: Option<&Reply>,
) {
    let Some(id) = id else { return };
    let failure = failed.map(|reply| (reply.status, reply.sense.unwrap_or(Sense::NO_SENSE)));
    let status = CopyStatus { state, segments: segments as u16, bytes };
    let copies = &mut ctx.state_mut(nexus).copies;
    match copies.iter_mut().find(|copy| copy.id == id) {
        Some(known) => *known = CopyRecord { id, status, failure },
        None => {
            if copies.len() >= COPY_RECORDS_MAX {
                copies.remove(0);
            }
            copies.push(CopyRecord { id, status, failure });
        }
    }
}

/// RECEIVE COPY RESULTS.
pub(crate) fn results(ctx: &mut ExecContext, slot: u32, action: CopyResults, list_id: u8, allocation: u32) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let known = ctx.state_mut(nexus).copy(list_id).map(|copy| *copy);
    let known = known.ok_or(Sense::cdb_field(2, None));
    ctx.report(slot, allocation as usize, |_, w| {
        match action {
            CopyResults::OperatingParameters => LIMITS.encode(w),
            CopyResults::Status => known?.status.encode(w),
            CopyResults::ReceiveData => known.map(|_| copy::encode_no_data(w))?,
            CopyResults::FailedSegment => {
                let failure = known?.failure;
                copy::encode_failure(failure.as_ref().map(|(status, sense)| (*status, sense)), w);
            }
        }
        Ok(())
    });
}
