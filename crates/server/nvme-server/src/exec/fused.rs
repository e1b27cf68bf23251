//! Fused Compare and Write (NVMe Base §3.4.2, NVM Command Set §2.1): two commands, next to each other
//! on one queue, that become one operation.
//!
//! The first half waits for the second, which must be the very next command of the queue; anything
//! else ends it. The pair is admitted as a pair, and only then is data asked for, the first half's
//! and the second's in one go, so that of two pairs neither waits for memory that the other has. Data
//! in the first half's capsule is taken at once, since the second capsule stands behind it.
//!
//! Invariant: halves of a pair name each other, until one of them ends.

use buf::{Payload, Sg};
use nvme::io::Transfer;
use nvme::planted::{Bug, planted};
use nvme::{Descriptor, Fuse, Opcode, Sqe, Status};
use volume::{Failure, Fault, Op, Outcome};

use super::block::{admit, measure, span};
use super::place;
use crate::job::{Half, Job};
use crate::server::Server;
use crate::status;
use crate::step::{CommandKey, Step};
use crate::task::{Ending, Phase, Tally, Task};

/// A command that is part of a pair, or that follows a first half, or comes too late.
pub(crate) fn start(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32) {
    if server.queue(key.queue).closing {
        return server.steps.push_back(Step::Retire { command: key });
    }
    let waiting = server.queue_mut(key.queue).half.take();
    let result = match (sqe.fuse(), waiting) {
        (Fuse::Second, Some(first)) => second(server, key, sqe, data_out, first),
        (Fuse::Second, None) => Err(Status::ABORTED_MISSING_FUSED.final_()),
        (fuse, waiting) => {
            match waiting {
                Some(first) if planted(Bug::HalfWaits) => server.queue_mut(key.queue).half = Some(first),
                Some(first) => miss(server, first),
                None => {}
            }
            match fuse {
                Fuse::First => first(server, key, sqe, data_out),
                Fuse::Reserved => Err(Status::INVALID_FIELD.final_()),
                Fuse::No | Fuse::Second => return super::start(server, key, sqe, data_out),
            }
        }
    };
    if let Err(status) = result {
        server.refuse(key, sqe, status);
    }
}

/// A first half whose second does not come.
fn miss(server: &mut Server, first: u32) {
    let key = server.tasks.get(first).key;
    server.stop_all(&[(first, key)], Ending::Status(Status::ABORTED_MISSING_FUSED.final_()));
}

#[expect(clippy::unreachable, reason = "pairs name halves only, and a half stays one until it ends")]
fn half(server: &Server, slot: u32) -> &Half {
    match &server.tasks.get(slot).job {
        Job::Half(half) => half,
        job => unreachable!("{job:?} is no half of a pair"),
    }
}

#[expect(clippy::unreachable, reason = "pairs name halves only, and a half stays one until it ends")]
fn half_mut(server: &mut Server, slot: u32) -> &mut Half {
    match &mut server.tasks.get_mut(slot).job {
        Job::Half(half) => half,
        job => unreachable!("{job:?} is no half of a pair"),
    }
}

/// Makes a half a task. Its data is asked for later.
fn open(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32, tally: Tally) -> Result<u32, Status> {
    let transfer = Transfer::of(sqe);
    let (entry, volume) = place(server, key.queue, sqe.nsid.get())?;
    let bytes = measure(server, key, volume, transfer, data_out)?;
    let stable = transfer.has(Transfer::FUA);
    let half = Half { span: span(transfer), mate: None, data: None, stable, running: false, done: false };
    let slot = server.open(key, sqe, &entry, bytes, Job::Half(Box::new(half)))?;
    let task = server.tasks.get_mut(slot);
    (task.phase, task.tally) = (Phase::Mate, tally);
    Ok(slot)
}

fn first(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    if sqe.opcode != Opcode::COMPARE {
        return Err(Status::INVALID_FIELD.final_());
    }
    let slot = open(server, key, sqe, data_out, Tally::Read)?;
    server.queue_mut(key.queue).half = Some(slot);
    if sqe.dptr.identifier == Descriptor::IN_CAPSULE {
        server.receive(slot, data_out);
    }
    Ok(())
}

/// The second half of `first`: both go on, or neither does.
fn second(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32, first: u32) -> Result<(), Status> {
    let slot = match pair(server, key, sqe, data_out, first) {
        Ok(slot) => slot,
        Err((of_first, status)) => {
            let first_key = server.tasks.get(first).key;
            server.stop_all(&[(first, first_key)], Ending::Status(of_first));
            return Err(status);
        }
    };
    half_mut(server, first).mate = Some(slot);
    half_mut(server, slot).mate = Some(first);
    let task = server.tasks.get(first);
    if task.phase == Phase::Mate && half(server, first).data.is_none() {
        let len = task.bytes;
        server.receive(first, len);
    }
    server.receive(slot, data_out);
    Ok(())
}

/// Makes the second half a task, if the two go together and are admitted. `Err`: how the first ends,
/// and the second.
fn pair(
    server: &mut Server,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    first: u32,
) -> Result<u32, (Status, Status)> {
    let both = |status| (status, status);
    let transfer = Transfer::of(sqe);
    let fits = sqe.opcode == Opcode::WRITE
        && sqe.nsid.get() == server.tasks.get(first).nsid
        && span(transfer) == half(server, first).span;
    if !fits {
        return Err(both(Status::INVALID_FIELD.final_()));
    }
    let (entry, volume) = place(server, key.queue, sqe.nsid.get()).map_err(both)?;
    let op = Op::CompareAndWrite(span(transfer));
    admit(server, key, &entry, volume, &op).map_err(both)?;
    let failed = Status::ABORTED_FAILED_FUSED.final_();
    open(server, key, sqe, data_out, Tally::Write).map_err(|status| (failed, status))
}

/// A half's data is here; the pair goes on when both halves' is.
pub(super) fn data(server: &mut Server, slot: u32, data: Sg) {
    let half_here = half_mut(server, slot);
    half_here.data = Some(data);
    let mate = half_here.mate;
    server.tasks.get_mut(slot).phase = Phase::Mate;
    let Some(mate) = mate else { return };
    if half(server, mate).data.is_none() {
        return;
    }
    let (first, second) =
        if server.tasks.get(slot).tally == Tally::Read { (slot, mate) } else { (mate, slot) };
    let written = half_mut(server, second).data.take();
    let compared = half_mut(server, first);
    compared.running = true;
    let op = Op::CompareAndWrite(compared.span);
    let mut bytes = compared.data.take().unwrap_or_default();
    bytes.append(written.unwrap_or_default());
    if server.tasks.get(first).read_only {
        return both(server, first, Status::NAMESPACE_WRITE_PROTECTED.final_());
    }
    server.submit(first, op, Payload::Out(bytes), 0);
}

/// The pair's operation has ended, or the flush after it.
pub(super) fn done(server: &mut Server, first: u32, result: Result<Outcome, Failure>) {
    // A pair runs while it is whole.
    let Some(second) = half(server, first).mate else {
        return server.complete(first, Status::INTERNAL_ERROR.final_().into());
    };
    match result {
        Ok(_) if std::mem::take(&mut half_mut(server, second).stable) => {
            half_mut(server, first).done = true;
            server.submit(first, Op::Flush, Payload::None, 0);
        }
        Ok(_) => both(server, first, Status::SUCCESS),
        Err(failure) if half(server, first).done => both(server, first, status::of_done_pair(failure)),
        // The half at fault says what went wrong; the other was aborted for it (status 09h).
        Err(failure @ Failure::Failed(Fault::Miscompare(_) | Fault::Medium(_))) => {
            end_pair(server, first, status::of(failure), Status::ABORTED_FAILED_FUSED.final_());
        }
        Err(failure @ Failure::Failed(Fault::Unwritable(_) | Fault::NoSpace | Fault::Sync)) => {
            end_pair(server, first, Status::ABORTED_FAILED_FUSED.final_(), status::of(failure));
        }
        // Of all else both are told: it is of the pair, which was admitted as one.
        Err(failure) => both(server, first, status::of_pair(failure)),
    }
}

fn both(server: &mut Server, first: u32, status: Status) {
    end_pair(server, first, status, status);
}

fn end_pair(server: &mut Server, first: u32, of_first: Status, of_second: Status) {
    let second = half_mut(server, first).mate.take();
    server.complete(first, of_first.into());
    let Some(second) = second else { return };
    half_mut(server, second).mate = None;
    server.complete(second, of_second.into());
}

/// A half that waits for its mate was told to end.
pub(crate) fn stop(server: &mut Server, slot: u32) {
    match half(server, slot).mate {
        Some(mate) if half(server, mate).running => {
            // The operation runs under the mate's name; both end with it.
            let (key, failed) = (server.tasks.get(mate).key, Status::ABORTED_FAILED_FUSED.final_());
            server.stop_all(&[(mate, key)], Ending::Status(failed));
        }
        Some(_) | None => server.end(slot),
    }
}

/// A command is about to end that was told to. If it is half of a pair, so is the other half. A pair whose
/// operation was on its way may have been done: neither half may be sent again.
pub(crate) fn part(server: &mut Server, slot: u32) {
    let Job::Half(half_here) = &mut server.tasks.get_mut(slot).job else { return };
    let (mate, ran) = (half_here.mate.take(), half_here.running);
    if ran {
        forbid_retry(server.tasks.get_mut(slot));
    }
    let queue = server.tasks.get(slot).key.queue;
    let queue = server.queue_mut(queue);
    if queue.half == Some(slot) {
        queue.half = None;
    }
    let Some(mate) = mate else { return };
    half_mut(server, mate).mate = None;
    let task = server.tasks.get_mut(mate);
    match task.ending {
        Ending::No => task.ending = Ending::Status(Status::ABORTED_FAILED_FUSED.final_()),
        Ending::Silent | Ending::Status(_) => {}
    }
    if ran {
        forbid_retry(task);
    }
    server.end(mate);
}

fn forbid_retry(task: &mut Task) {
    if let Ending::Status(status) = task.ending {
        task.ending = Ending::Status(status.final_());
    }
}
