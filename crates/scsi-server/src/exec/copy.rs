//! EXTENDED COPY(LID1) and RECEIVE COPY RESULTS (SPC-4 §5.17, §6.4, §6.17).
//!
//! A copy reaches only logical units that the asking nexus reaches, with this nexus' rights, and both
//! are looked at again before each chunk: a read of the source and a write of the destination, in
//! turn, so an abort is prompt and little memory is held. The gates judge each operation as any other.

use buf::{Payload, Sg};
use scsi::Status;
use scsi::cdb::CopyResults;
use scsi::copy::{self, CopyLen, CopyList, CopyState, CopyStatus, CopyTarget, Limits, ListIdUsage, Segment};
use scsi::sense::Sense;
use volume::{Durability, Failure, Op, Outcome, Refusal, Span, VolumeId};

use super::parameter::contiguous;
use super::{good, vpd};
use crate::nexus::{REMEMBERED_MAX, Remembered};
use crate::server::Server;
use crate::status;
use crate::step::{NexusKey, Reply, TaskKey};
use crate::task::Job;

/// What the copy manager takes.
pub(crate) const LIMITS: Limits = Limits {
    targets: 8,
    segments: 64,
    descriptors_len: 4096,
    segment_len: 256 << 20,
    concurrent: 64,
    granularity: 9,
};

/// Bytes that are read and written at a time; a multiple of every block length.
const CHUNK: u64 = 256 << 10;

/// A copy on its way.
#[derive(Debug)]
pub(crate) struct Copying {
    /// Its list identifier, if RECEIVE COPY RESULTS may ask about it.
    id: Option<u8>,
    runs: Vec<Run>,
    /// The run that is worked on.
    at: usize,
    /// Bytes of that run that are copied.
    done: u64,
    /// Bytes that are copied in all.
    bytes: u64,
    /// Bytes that are read, or written, just now.
    chunk: u64,
    writing: bool,
    /// In whose name operations go.
    name: TaskKey,
}

/// A checked segment.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: VolumeId,
    source_lba: u64,
    destination: VolumeId,
    destination_lba: u64,
    bytes: u64,
}

/// EXTENDED COPY.
pub(crate) fn start(server: &mut Server, slot: u32, list_len: u32) {
    if list_len == 0 {
        good(server, slot);
    } else if server.copies >= LIMITS.concurrent {
        server.respond(slot, Reply::plain(Status::BUSY));
    } else {
        server.receive_list(slot, list_len, LIMITS.list_len_max());
    }
}

/// The list of an EXTENDED COPY is here.
pub(crate) fn list(server: &mut Server, slot: u32, data: &Sg) {
    let bytes = contiguous(data);
    let list = match CopyList::parse(&bytes, &LIMITS) {
        Ok(list) => list,
        Err(sense) => return server.check(slot, sense),
    };
    let nexus = server.tasks.get(slot).key.nexus;
    let id = (list.usage == ListIdUsage::Hold).then_some(list.id);
    if id.and_then(|id| server.state_mut(nexus).copy(id)).is_some_and(is_running) {
        return server.check(slot, Sense::list_field(0, None));
    }
    let runs = list.segments().map(|segment| run(server, nexus, &list, segment)).collect::<Result<_, _>>();
    let runs = match runs {
        Ok(runs) => runs,
        Err(reply) => {
            remember(server, nexus, id, (CopyState::Failed, 0, 0), Some(&reply));
            return server.respond(slot, reply);
        }
    };
    let agent = match server.state(nexus).agent {
        Some(agent) => agent,
        None => server.open_agent(nexus),
    };
    server.state_mut(nexus).agent = Some(agent);
    let name = TaskKey { nexus: agent, tag: u64::from(slot) };
    let copying = Copying { id, runs, at: 0, done: 0, bytes: 0, chunk: 0, writing: false, name };
    server.tasks.get_mut(slot).job = Job::Copy(Box::new(copying));
    server.copies += 1;
    next(server, slot);
}

fn is_running(copy: &mut Remembered) -> bool {
    copy.status.state == CopyState::InProgress
}

/// The volume that a descriptor names, if the nexus reaches it.
fn resolve(server: &Server, nexus: NexusKey, target: &CopyTarget<'_>) -> Result<VolumeId, Reply> {
    let spec = server.nexus(nexus);
    let named = spec.luns.iter().find_map(|entry| {
        let unit = server.unit(entry.volume)?;
        vpd::names(spec, unit).is_named_by(&target.designator).then_some((entry.volume, unit))
    });
    let Some((volume, unit)) = named else { return Err(Reply::check(Sense::COPY_TARGET_NOT_REACHABLE)) };
    if target.block_len != 0 && target.block_len != unit.view.geometry.logical {
        return Err(Reply::check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    Ok(volume)
}

fn run(server: &Server, nexus: NexusKey, list: &CopyList<'_>, segment: Segment) -> Result<Run, Reply> {
    let end = |index| list.target(index).map_err(Reply::check);
    let source = resolve(server, nexus, &end(segment.source)?)?;
    let destination = resolve(server, nexus, &end(segment.destination)?)?;
    let (from, to) = (logical(server, source), logical(server, destination));
    let bytes = match segment.len {
        CopyLen::Blocks { count, destination: true } => u64::from(count) * to,
        CopyLen::Blocks { count, destination: false } => u64::from(count) * from,
        CopyLen::Bytes { count, source_offset: 0, destination_offset: 0 } => u64::from(count),
        // Parts of blocks are not copied.
        CopyLen::Bytes { .. } => return Err(Reply::check(Sense::INVALID_FIELD_IN_PARAMETER_LIST)),
    };
    if bytes > u64::from(LIMITS.segment_len) {
        return Err(Reply::check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    if !bytes.is_multiple_of(from) || !bytes.is_multiple_of(to) {
        return Err(Reply::check(Segment::refused(8)));
    }
    let (source_lba, destination_lba) = (segment.source_lba, segment.destination_lba);
    let run = Run { source, source_lba, destination, destination_lba, bytes };
    judge(server, nexus, &run, 0, bytes)?;
    Ok(run)
}

fn logical(server: &Server, volume: VolumeId) -> u64 {
    server.unit(volume).map_or(512, |unit| u64::from(unit.view.geometry.logical))
}

/// The spans of a part of a run: what is read and what is written.
fn spans(server: &Server, run: &Run, done: u64, len: u64) -> Option<(Span, Span)> {
    let (from, to) = (logical(server, run.source), logical(server, run.destination));
    let source = Span { lba: run.source_lba.checked_add(done / from)?, blocks: len / from };
    let destination = Span { lba: run.destination_lba.checked_add(done / to)?, blocks: len / to };
    Some((source, destination))
}

/// Whether the nexus may still copy this part.
fn judge(server: &Server, nexus: NexusKey, run: &Run, done: u64, len: u64) -> Result<(), Reply> {
    /// SOURCE and DESTINATION LOGICAL BLOCK ADDRESS in a segment descriptor.
    const FIELDS: (u16, u16) = (12, 20);
    let Some((source, destination)) = spans(server, run, done, len) else {
        return Err(status::copy_refused(Refusal::OutOfRange, FIELDS.0));
    };
    let write = Op::Write(destination, Durability::Cached);
    admit(server, nexus, run.source, &Op::Read(source))
        .map_err(|refusal| status::copy_refused(refusal, FIELDS.0))?;
    admit(server, nexus, run.destination, &write).map_err(|refusal| status::copy_refused(refusal, FIELDS.1))
}

fn admit(server: &Server, nexus: NexusKey, volume: VolumeId, op: &Op) -> Result<(), Refusal> {
    let spec = server.nexus(nexus);
    let mut ways = spec.luns.iter().filter(|entry| entry.volume == volume).peekable();
    let Some(unit) = server.unit(volume).filter(|_| ways.peek().is_some()) else {
        return Err(Refusal::NotReady(volume::Why::Removed));
    };
    if op.is_write() && ways.all(|entry| entry.read_only) {
        return Err(Refusal::ReadOnly);
    }
    unit.view.admit(&spec.nexus, op)
}

fn copying(server: &mut Server, slot: u32) -> &mut Copying {
    match &mut server.tasks.get_mut(slot).job {
        Job::Copy(copying) => copying,
        _ => unreachable!("an EXTENDED COPY is under way"),
    }
}

/// Reads the next chunk, or ends.
fn next(server: &mut Server, slot: u32) {
    let nexus = server.tasks.get(slot).key.nexus;
    let copy = copying(server, slot);
    while copy.runs.get(copy.at).is_some_and(|run| copy.done >= run.bytes) {
        copy.at += 1;
        copy.done = 0;
    }
    let (id, at, bytes, done) = (copy.id, copy.at, copy.bytes, copy.done);
    let Some(run) = copy.runs.get(at).copied() else {
        remember(server, nexus, id, (CopyState::Done, at, bytes), None);
        return good(server, slot);
    };
    remember(server, nexus, id, (CopyState::InProgress, at, bytes), None);
    let chunk = (run.bytes - done).min(CHUNK);
    let name = copying(server, slot).name;
    let (source, _) = match (judge(server, nexus, &run, done, chunk), spans(server, &run, done, chunk)) {
        (Err(reply), _) => return fail(server, slot, reply),
        (Ok(()), Some(spans)) => spans,
        (Ok(()), None) => unreachable!("what is judged well has spans"),
    };
    let copy = copying(server, slot);
    (copy.chunk, copy.writing) = (chunk, false);
    // Memory of its own, never the volume's: source and destination may overlap.
    server.submit_as(slot, name, run.source, Op::Read(source), Payload::None, chunk as u32);
}

/// A read or a write of a copy has ended.
pub(crate) fn done(server: &mut Server, slot: u32, result: Result<Outcome, Failure>, payload: Payload) {
    let nexus = server.tasks.get(slot).key.nexus;
    if let Err(failure) = result {
        return fail(server, slot, status::copy_failed(failure));
    }
    let copy = copying(server, slot);
    if copy.writing {
        copy.done += copy.chunk;
        copy.bytes += copy.chunk;
        return next(server, slot);
    }
    let (run, done, chunk, name) = (copy.runs[copy.at], copy.done, copy.chunk, copy.name);
    copy.writing = true;
    match (judge(server, nexus, &run, done, chunk), spans(server, &run, done, chunk)) {
        (Err(reply), _) => fail(server, slot, reply),
        (Ok(()), Some((_, span))) => {
            let op = Op::Write(span, Durability::Cached);
            server.submit_as(slot, name, run.destination, op, Payload::Out(payload.into_sg()), 0);
        }
        (Ok(()), None) => unreachable!("what is judged well has spans"),
    }
}

fn fail(server: &mut Server, slot: u32, reply: Reply) {
    let nexus = server.tasks.get(slot).key.nexus;
    let copy = copying(server, slot);
    let (id, at, bytes) = (copy.id, copy.at, copy.bytes);
    remember(server, nexus, id, (CopyState::Failed, at, bytes), Some(&reply));
    server.respond(slot, reply);
}

/// A task goes: if it was a copy, there is room for another, and what did not end well has failed.
pub(crate) fn forget(server: &mut Server, slot: u32) {
    let task = server.tasks.get(slot);
    let Job::Copy(copy) = &task.job else { return };
    let (id, nexus) = (copy.id, task.key.nexus);
    server.copies -= 1;
    if let Some(copy) = id.and_then(|id| server.state_mut(nexus).copy(id))
        && copy.status.state == CopyState::InProgress
    {
        copy.status.state = CopyState::Failed;
    }
}

/// Keeps what RECEIVE COPY RESULTS may ask for.
fn remember(
    server: &mut Server,
    nexus: NexusKey,
    id: Option<u8>,
    (state, segments, bytes): (CopyState, usize, u64),
    failed: Option<&Reply>,
) {
    let Some(id) = id else { return };
    let failure = failed.map(|reply| (reply.status, reply.sense.unwrap_or(Sense::NO_SENSE)));
    let status = CopyStatus { state, segments: segments as u16, bytes };
    let copies = &mut server.state_mut(nexus).copies;
    match copies.iter_mut().find(|copy| copy.id == id) {
        Some(known) => *known = Remembered { id, status, failure },
        None => {
            if copies.len() >= REMEMBERED_MAX {
                copies.remove(0);
            }
            copies.push(Remembered { id, status, failure });
        }
    }
}

/// RECEIVE COPY RESULTS.
pub(crate) fn results(server: &mut Server, slot: u32, action: CopyResults, list_id: u8, allocation: u32) {
    let nexus = server.tasks.get(slot).key.nexus;
    let known = server.state_mut(nexus).copy(list_id).map(|copy| *copy);
    let known = known.ok_or(Sense::cdb_field(2, None));
    server.report(slot, allocation as usize, |_, w| {
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
