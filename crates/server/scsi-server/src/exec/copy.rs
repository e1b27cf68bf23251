//! EXTENDED COPY(LID1) and RECEIVE COPY RESULTS (SPC-4 §5.17, §6.4, §6.17).
//!
//! A copy reaches only logical units that the requesting nexus reaches, and volumes that its initiator would reach with a
//! login to another target ([`DeviceStep::FindCopyVolumes`]), with this nexus' rights. Both are
//! checked again before each chunk: a read of the source and a write of the destination, in turn, so that an
//! abort is fast and little memory is held. The gates admit each operation like any other. Segments in bytes
//! may begin and end within blocks. Such a block of the destination is read and written back with a
//! compare-and-write, so that no concurrent write to its other bytes is lost.

use buf::{MemoryClass, Payload, Sg};
use scsi::Status;
use scsi::cdb::CopyResultsAction;
use scsi::extended_copy::{
    self, CopyLen, CopyLimits, CopyParameterList, CopySegment, CopyState, CopyStatus, CopyTarget, ListIdUsage,
};
use scsi::sense::Sense;
use volume::{Durability, Failure, Fault, Op, Outcome, Refusal, Span, VolumeId};

use super::parameter_data::contiguous_bytes;
use super::respond_good;
use crate::after_operation::{AfterOperation, CheckedSegment, CopyJob, CopyStage};
use crate::context::ExecContext;
use crate::nexus::{COPY_RECORDS_MAX, CopyRecord};
use crate::status;
use crate::step::{DeviceStep, NexusKey, Reply, Step, TaskKey};

/// What the copy manager takes.
pub(crate) const COPY_LIMITS: CopyLimits = CopyLimits {
    targets: 8,
    segments: 64,
    descriptors_len: 4096,
    segment_len: 256 << 20,
    concurrent: 64,
    granularity: 0,
};

/// Bytes that are read and written at a time; a multiple of every block length.
const COPY_CHUNK_BYTES: u64 = 256 << 10;

/// How often a block that others write is read and swapped again before the copy gives up.
const SWAP_ATTEMPTS_MAX: u32 = 1000;

/// EXTENDED COPY. Whether there is room for one more copy is asked here, so that no list is received for nothing,
/// and again when the list has come, bindingly: any number of them may be on their way at once.
pub(crate) fn start_extended_copy(ctx: &mut ExecContext, slot: u32, list_len: u32) {
    if list_len == 0 {
        respond_good(ctx, slot);
    } else if is_copy_limit_reached(ctx) {
        ctx.complete_task(slot, Reply::with_status(Status::BUSY));
    } else {
        ctx.request_parameter_list(slot, list_len, COPY_LIMITS.list_len_max());
    }
}

/// Whether as many copies are under way as may be.
fn is_copy_limit_reached(ctx: &ExecContext) -> bool {
    ctx.copies >= COPY_LIMITS.concurrent
}

/// The list of an EXTENDED COPY is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    if is_copy_limit_reached(ctx) {
        return ctx.complete_task(slot, Reply::with_status(Status::BUSY));
    }
    let bytes = contiguous_bytes(data);
    let list = match CopyParameterList::parse(&bytes, &COPY_LIMITS) {
        Ok(list) => list,
        Err(sense) => return ctx.respond_check_condition(slot, sense),
    };
    let key = ctx.tasks.get(slot).key;
    let is_own = |volume| ctx.nexus(key.nexus).luns.iter().any(|entry| entry.volume == volume);
    let all_own = list.targets().all(|target| named_volumes(ctx, key.nexus, &target).any(is_own));
    if all_own {
        return start_copy(ctx, slot, &list);
    }
    ctx.tasks.get_mut(slot).job = AfterOperation::CopyList(bytes.as_ref().into());
    ctx.steps.push_back(Step::Other(DeviceStep::FindCopyVolumes(key)));
}

/// What the copies of a task's nexus may name besides its units is known.
pub(crate) fn handle_copy_volumes(ctx: &mut ExecContext, slot: u32) {
    let task = ctx.tasks.get_mut(slot);
    let bytes = match std::mem::replace(&mut task.job, AfterOperation::Plain) {
        AfterOperation::CopyList(bytes) => bytes,
        job => {
            task.job = job;
            return;
        }
    };
    match CopyParameterList::parse(&bytes, &COPY_LIMITS) {
        Ok(list) => start_copy(ctx, slot, &list),
        Err(sense) => ctx.respond_check_condition(slot, sense),
    }
}

fn start_copy(ctx: &mut ExecContext, slot: u32, list: &CopyParameterList<'_>) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let id = (list.usage == ListIdUsage::Hold).then_some(list.id);
    if id.and_then(|id| ctx.nexus_state_mut(nexus).copy_record_mut(id)).is_some_and(is_running) {
        return ctx.respond_check_condition(slot, Sense::invalid_list_field(0, None));
    }
    let runs =
        list.segments().map(|segment| validate_segment(ctx, nexus, list, segment)).collect::<Result<_, _>>();
    let runs = match runs {
        Ok(runs) => runs,
        Err(reply) => {
            record_copy(ctx, nexus, id, (CopyState::Failed, 0, 0), Some(&reply));
            return ctx.complete_task(slot, reply);
        }
    };
    let internal_nexus = match ctx.nexus_state(nexus).internal_nexus {
        Some(internal_nexus) => internal_nexus,
        None => ctx.open_internal_nexus(nexus),
    };
    ctx.nexus_state_mut(nexus).internal_nexus = Some(internal_nexus);
    let name = TaskKey { nexus: internal_nexus, tag: u64::from(slot) };
    let copying =
        CopyJob { id, runs, index: 0, done: 0, bytes: 0, chunk: 0, stage: CopyStage::Read, swaps: 0, name };
    ctx.tasks.get_mut(slot).job = AfterOperation::Copy(Box::new(copying));
    ctx.copies += 1;
    read_next_chunk(ctx, slot);
}

fn is_running(copy: &mut CopyRecord) -> bool {
    copy.status.state == CopyState::InProgress
}

/// The volumes that a nexus may name, and whether each may only be read.
fn copied_volumes(ctx: &ExecContext, nexus: NexusKey) -> impl Iterator<Item = (VolumeId, bool)> {
    let state = ctx.nexus_state(nexus);
    let own = state.spec.luns.iter().map(|entry| (entry.volume, entry.read_only));
    own.chain(state.copy_volumes.iter().map(|entry| (entry.volume, entry.read_only)))
}

/// Those of them that a descriptor names: one, by as many ways as lead to it.
fn named_volumes<'a>(
    ctx: &'a ExecContext,
    nexus: NexusKey,
    target: &'a CopyTarget<'_>,
) -> impl Iterator<Item = VolumeId> {
    copied_volumes(ctx, nexus).map(|(volume, _)| volume).filter(move |volume| {
        let unit = ctx.logical_unit(*volume);
        unit.is_some_and(|unit| unit.device_names(ctx.nexus(nexus)).is_named_by(&target.designator))
    })
}

/// The volume that a descriptor names, if the nexus may copy it.
fn resolve_target_volume(
    ctx: &ExecContext,
    nexus: NexusKey,
    target: &CopyTarget<'_>,
) -> Result<VolumeId, Reply> {
    let mut named = named_volumes(ctx, nexus, target);
    // Short names are folded from UUIDs: one that two volumes have says of neither what is to be overwritten.
    let Some(volume) = named.next().filter(|volume| named.all(|other| other == *volume)) else {
        return Err(Reply::check_condition(Sense::COPY_TARGET_NOT_REACHABLE));
    };
    if target.block_len != 0 && u64::from(target.block_len) != logical_block_len(ctx, volume) {
        return Err(Reply::check_condition(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    Ok(volume)
}

fn validate_segment(
    ctx: &ExecContext,
    nexus: NexusKey,
    list: &CopyParameterList<'_>,
    segment: CopySegment,
) -> Result<CheckedSegment, Reply> {
    let end = |index| list.target(index).map_err(Reply::check_condition);
    let source = resolve_target_volume(ctx, nexus, &end(segment.source)?)?;
    let destination = resolve_target_volume(ctx, nexus, &end(segment.destination)?)?;
    let (from, to) = (logical_block_len(ctx, source), logical_block_len(ctx, destination));
    let (bytes, skip, lead) = match segment.len {
        CopyLen::Blocks { count, destination: true } => (u64::from(count) * to, 0, 0),
        CopyLen::Blocks { count, destination: false } => (u64::from(count) * from, 0, 0),
        CopyLen::Bytes { count, source_offset, destination_offset } => {
            (u64::from(count), u64::from(source_offset), u64::from(destination_offset))
        }
    };
    if bytes > u64::from(COPY_LIMITS.segment_len) {
        return Err(Reply::check_condition(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    // Neither PAD nor CAT says what becomes of half a block that is counted in blocks.
    let in_blocks = matches!(segment.len, CopyLen::Blocks { .. });
    if in_blocks && (!bytes.is_multiple_of(from) || !bytes.is_multiple_of(to)) {
        return Err(Reply::check_condition(CopySegment::failure_sense(8)));
    }
    // The offsets stand within the first blocks.
    for (offset, block, byte) in [(skip, from, 28), (lead, to, 30)] {
        if offset >= block {
            return Err(Reply::check_condition(CopySegment::failure_sense(byte)));
        }
    }
    let place = |lba: u64, block: u64, offset: u64, byte| {
        let at = lba.checked_mul(block).and_then(|at| at.checked_add(offset));
        at.filter(|at| at.checked_add(bytes).is_some())
            .ok_or_else(|| status::copy_refusal_reply(Refusal::OutOfRange, byte))
    };
    let source_at = place(segment.source_lba, from, skip, SOURCE_FIELD)?;
    let destination_at = place(segment.destination_lba, to, lead, DESTINATION_FIELD)?;
    let run = CheckedSegment { source, source_at, destination, destination_at, bytes };
    // Half a block of the destination must be swapped.
    let odd = !destination_at.is_multiple_of(to) || !bytes.is_multiple_of(to);
    if odd && ctx.logical_unit(destination).is_some_and(|unit| unit.view.geometry.caw_max == 0) {
        return Err(Reply::check_condition(CopySegment::failure_sense(8)));
    }
    check_chunk_admitted(ctx, nexus, &run, 0, bytes)?;
    Ok(run)
}

fn logical_block_len(ctx: &ExecContext, volume: VolumeId) -> u64 {
    ctx.logical_unit(volume).map_or(512, |unit| u64::from(unit.view.geometry.logical))
}

/// SOURCE and DESTINATION LOGICAL BLOCK ADDRESS in a segment descriptor.
const SOURCE_FIELD: u16 = 12;
const DESTINATION_FIELD: u16 = 20;

/// All blocks that these bytes touch.
fn covering_span(at: u64, len: u64, block: u64) -> Span {
    let lba = at / block;
    Span { lba, blocks: (at + len).div_ceil(block) - lba }
}

/// The spans of a part of a run: what is read and what is written.
fn chunk_spans(ctx: &ExecContext, run: &CheckedSegment, done: u64, len: u64) -> (Span, Span) {
    let (from, to) = (logical_block_len(ctx, run.source), logical_block_len(ctx, run.destination));
    (covering_span(run.source_at + done, len, from), covering_span(run.destination_at + done, len, to))
}

/// How many bytes are copied next: whole blocks of the destination, or what ends within one.
fn chunk_len(ctx: &ExecContext, run: &CheckedSegment, done: u64) -> u64 {
    let to = logical_block_len(ctx, run.destination);
    let (lead, rest) = ((run.destination_at + done) % to, run.bytes - done);
    if lead > 0 || rest < to {
        rest.min(to - lead)
    } else {
        let len = rest.min(COPY_CHUNK_BYTES);
        len - len % to
    }
}

/// Whether the nexus may still copy this part.
fn check_chunk_admitted(
    ctx: &ExecContext,
    nexus: NexusKey,
    run: &CheckedSegment,
    done: u64,
    len: u64,
) -> Result<(), Reply> {
    let (source, destination) = chunk_spans(ctx, run, done, len);
    let write = Op::Write(destination, Durability::Cached);
    admit_for_nexus(ctx, nexus, run.source, &Op::Read(source))
        .map_err(|refusal| status::copy_refusal_reply(refusal, SOURCE_FIELD))?;
    admit_for_nexus(ctx, nexus, run.destination, &write)
        .map_err(|refusal| status::copy_refusal_reply(refusal, DESTINATION_FIELD))
}

fn admit_for_nexus(ctx: &ExecContext, nexus: NexusKey, volume: VolumeId, op: &Op) -> Result<(), Refusal> {
    let spec = ctx.nexus(nexus);
    let mut ways = copied_volumes(ctx, nexus).filter(|(reached, _)| *reached == volume).peekable();
    let Some(unit) = ctx.logical_unit(volume).filter(|_| ways.peek().is_some()) else {
        return Err(Refusal::NotReady(volume::UnservableReason::Removed));
    };
    if op.is_write() && ways.all(|(_, read_only)| read_only) {
        return Err(Refusal::ReadOnly);
    }
    unit.view.admit(&spec.nexus, op)
}

#[expect(clippy::unreachable, reason = "only a copy's own steps ask, and its task stays one until it ends")]
fn copy_job_mut(ctx: &mut ExecContext, slot: u32) -> &mut CopyJob {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterOperation::Copy(copying) => copying,
        _ => unreachable!("an EXTENDED COPY is under way"),
    }
}

/// Reads the next chunk, or ends.
fn read_next_chunk(ctx: &mut ExecContext, slot: u32) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copy_job_mut(ctx, slot);
    while copy.runs.get(copy.index).is_some_and(|run| copy.done >= run.bytes) {
        copy.index += 1;
        copy.done = 0;
    }
    let (id, index, bytes, done) = (copy.id, copy.index, copy.bytes, copy.done);
    let Some(run) = copy.runs.get(index).copied() else {
        record_copy(ctx, nexus, id, (CopyState::Done, index, bytes), None);
        return respond_good(ctx, slot);
    };
    record_copy(ctx, nexus, id, (CopyState::InProgress, index, bytes), None);
    let chunk = chunk_len(ctx, &run, done);
    let name = copy_job_mut(ctx, slot).name;
    if let Err(reply) = check_chunk_admitted(ctx, nexus, &run, done, chunk) {
        return fail_copy(ctx, slot, reply);
    }
    let (source, _) = chunk_spans(ctx, &run, done, chunk);
    let want = source.blocks * logical_block_len(ctx, run.source);
    let copy = copy_job_mut(ctx, slot);
    (copy.chunk, copy.stage, copy.swaps) = (chunk, CopyStage::Read, 0);
    // Memory of its own, never the volume's: source and destination may overlap.
    ctx.submit_op_as(slot, name, run.source, Op::Read(source), Payload::None, want as u32);
}

/// A read or a write of a copy has ended.
pub(crate) fn handle_io_done(
    ctx: &mut ExecContext,
    slot: u32,
    result: Result<Outcome, Failure>,
    payload: Payload,
) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copy_job_mut(ctx, slot);
    let (run, done, chunk) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk);
    let Some(run) = run else { return fail_without_run(ctx, slot) };
    match (std::mem::replace(&mut copy.stage, CopyStage::Read), result) {
        (CopyStage::Swap(part), Err(Failure::Failed(Fault::Miscompare(_))))
            if copy.swaps < SWAP_ATTEMPTS_MAX =>
        {
            copy.swaps += 1;
            read_partial_block(ctx, slot, part);
        }
        (_, Err(failure)) => fail_copy(ctx, slot, status::copy_failure_reply(failure)),
        (CopyStage::Write | CopyStage::Swap(_), Ok(_)) => {
            copy.done += chunk;
            copy.bytes += chunk;
            read_next_chunk(ctx, slot);
        }
        (stage, Ok(_)) => match (check_chunk_admitted(ctx, nexus, &run, done, chunk), stage) {
            (Err(reply), _) => fail_copy(ctx, slot, reply),
            (Ok(()), CopyStage::Old(part)) => compare_and_write_block(ctx, slot, part, &payload.into_sg()),
            (Ok(()), _) => write_chunk(ctx, slot, payload.into_sg()),
        },
    }
}

/// The source is read: the destination follows.
fn write_chunk(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let copy = copy_job_mut(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    let Some(run) = run else { return fail_without_run(ctx, slot) };
    let skip = (run.source_at + done) % logical_block_len(ctx, run.source);
    let (_, span) = chunk_spans(ctx, &run, done, chunk);
    if span.blocks * logical_block_len(ctx, run.destination) != chunk {
        let mut part = vec![0; chunk as usize];
        data.copy_to(skip as usize, &mut part);
        return read_partial_block(ctx, slot, part);
    }
    // Memory of which a part is written would stand askew for some disks.
    let data = if data.len() as u64 == chunk { Some(data) } else { copy_part(ctx, &data, skip, chunk) };
    let Some(data) = data else { return fail_copy(ctx, slot, Reply::with_status(Status::BUSY)) };
    copy_job_mut(ctx, slot).stage = CopyStage::Write;
    let op = Op::Write(span, Durability::Cached);
    ctx.submit_op_as(slot, name, run.destination, op, Payload::Out(data), 0);
}

/// A part of these bytes in memory of its own.
fn copy_part(ctx: &ExecContext, data: &Sg, skip: u64, len: u64) -> Option<Sg> {
    let mut place = ctx.pool().take_sg(MemoryClass::Solicited, len as usize)?;
    let mut at = skip as usize;
    for piece in place.slices_mut(0..len as usize) {
        data.copy_to(at, piece);
        at += piece.len();
    }
    Some(place.freeze())
}

/// Reads the block that a part is to change.
fn read_partial_block(ctx: &mut ExecContext, slot: u32, part: Vec<u8>) {
    let copy = copy_job_mut(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    copy.stage = CopyStage::Old(part);
    let Some(run) = run else { return fail_without_run(ctx, slot) };
    let (_, span) = chunk_spans(ctx, &run, done, chunk);
    let want = logical_block_len(ctx, run.destination) as u32;
    ctx.submit_op_as(slot, name, run.destination, Op::Read(span), Payload::None, want);
}

/// Swaps the block for what it becomes, if it is still the same.
fn compare_and_write_block(ctx: &mut ExecContext, slot: u32, part: Vec<u8>, old: &Sg) {
    let copy = copy_job_mut(ctx, slot);
    let (run, done, chunk, name) = (copy.runs.get(copy.index).copied(), copy.done, copy.chunk, copy.name);
    let Some(run) = run else { return fail_without_run(ctx, slot) };
    let block = logical_block_len(ctx, run.destination);
    let lead = ((run.destination_at + done) % block) as usize;
    let Some(mut both) = ctx.pool().take(MemoryClass::Solicited, 2 * block as usize) else {
        return fail_copy(ctx, slot, Reply::with_status(Status::BUSY));
    };
    let (before, after) = both.split_at_mut(block as usize);
    old.copy_to(0, before);
    after.copy_from_slice(before);
    after.iter_mut().skip(lead).zip(&part).for_each(|(to, byte)| *to = *byte);
    let (_, span) = chunk_spans(ctx, &run, done, chunk);
    copy_job_mut(ctx, slot).stage = CopyStage::Swap(part);
    let payload = Payload::Out(both.freeze().into());
    ctx.submit_op_as(slot, name, run.destination, Op::CompareAndWrite(span), payload, 0);
}

/// A copy is at no run, which never is while a chunk is under way.
fn fail_without_run(ctx: &mut ExecContext, slot: u32) {
    fail_copy(ctx, slot, Reply::check_condition(Sense::INTERNAL_TARGET_FAILURE));
}

fn fail_copy(ctx: &mut ExecContext, slot: u32, reply: Reply) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let copy = copy_job_mut(ctx, slot);
    let (id, index, bytes) = (copy.id, copy.index, copy.bytes);
    record_copy(ctx, nexus, id, (CopyState::Failed, index, bytes), Some(&reply));
    ctx.complete_task(slot, reply);
}

/// Keeps what RECEIVE COPY RESULTS may ask for.
fn record_copy(
    ctx: &mut ExecContext,
    nexus: NexusKey,
    id: Option<u8>,
    (state, segments, bytes): (CopyState, usize, u64),
    failed: Option<&Reply>,
) {
    let Some(id) = id else { return };
    let failure = failed.map(|reply| (reply.status, reply.sense.unwrap_or(Sense::NO_SENSE)));
    let status = CopyStatus { state, segments: segments as u16, bytes };
    let copies = &mut ctx.nexus_state_mut(nexus).copies;
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
pub(crate) fn receive_copy_results(
    ctx: &mut ExecContext,
    slot: u32,
    action: CopyResultsAction,
    list_id: u8,
    allocation: u32,
) {
    let nexus = ctx.tasks.get(slot).key.nexus;
    let known = ctx.nexus_state_mut(nexus).copy_record_mut(list_id).map(|copy| *copy);
    let known = known.ok_or(Sense::invalid_cdb_field(2, None));
    ctx.respond_with_parameter_data(slot, allocation as usize, |_, w| {
        match action {
            CopyResultsAction::OperatingParameters => COPY_LIMITS.encode(w),
            CopyResultsAction::Status => known?.status.encode(w),
            CopyResultsAction::ReceiveData => known.map(|_| extended_copy::encode_no_held_data(w))?,
            CopyResultsAction::FailedSegment => {
                let failure = known?.failure;
                extended_copy::encode_failed_segment_details(
                    failure.as_ref().map(|(status, sense)| (*status, sense)),
                    w,
                );
            }
        }
        Ok(())
    });
}
