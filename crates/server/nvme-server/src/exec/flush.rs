//! Flush (NVMe Base §7.1), of one namespace or of all that the host reaches.

use buf::Payload;
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::NSID_ALL;
use nvme::{Completion, Sqe, Status};
use volume::{Failure, Op, Outcome, Refusal, UnservableReason, VolumeId};

use super::resolve_namespace;
use crate::after_wait::{AfterWait, FlushAll};
use crate::context::ExecContext;
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, Step};

pub(super) fn flush(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    if sqe.nsid.get() == NSID_ALL {
        return flush_all(ctx, key, sqe);
    }
    let (entry, _) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    let slot = ctx.insert_task(key, sqe, &entry, 0, AfterWait::Plain)?;
    if is_on(Failpoint::FlushForgotten) {
        ctx.complete_task(slot, Completion::SUCCESS);
        return Ok(());
    }
    ctx.submit_op(slot, Op::Flush, Payload::None, 0);
    Ok(())
}

fn flush_all(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let entries = ctx.queues.get(key.queue).spec.namespaces.iter();
    let mut rest: Vec<VolumeId> = entries.map(|entry| entry.volume).collect();
    rest.retain(|volume| ctx.volumes.get(*volume).is_some());
    let Some(volume) = rest.pop() else {
        ctx.steps.push_back(Step::Respond { command: key, reply: Completion::SUCCESS });
        return Ok(());
    };
    // It is on no namespace: that one goes does not end it.
    let nowhere = NamespaceEntry { nsid: 0, volume, read_only: false, ana_group: 0 };
    let all = Box::new(FlushAll { volume, rest, failed: None });
    let slot = ctx.insert_task(key, sqe, &nowhere, 0, AfterWait::FlushAll(all))?;
    ctx.submit_op_on(slot, volume, Op::Flush, Payload::None, 0, false);
    Ok(())
}

/// One volume of a Flush of all is flushed.
pub(super) fn handle_volume_flushed(ctx: &mut ExecContext, slot: u32, result: Result<Outcome, Failure>) {
    let AfterWait::FlushAll(all) = &mut ctx.tasks.get_mut(slot).job else {
        return ctx.complete_task(slot, Status::INTERNAL_ERROR.into());
    };
    match result {
        // It went while its turn had not come: there is nothing to flush any more.
        Ok(_) | Err(Failure::Refused(Refusal::NotReady(UnservableReason::Removed))) => {}
        Err(failure) => {
            all.failed.get_or_insert(failure);
        }
    }
    match all.rest.pop() {
        Some(volume) => {
            all.volume = volume;
            ctx.submit_op_on(slot, volume, Op::Flush, Payload::None, 0, false);
        }
        None => {
            let completion =
                all.failed.map_or(Completion::SUCCESS, |failure| status::for_failure(failure).into());
            ctx.complete_task(slot, completion);
        }
    }
}

/// What a command wrote must be stable before it is answered (FUA).
pub(super) fn flush_after_write(ctx: &mut ExecContext, slot: u32) {
    ctx.tasks.get_mut(slot).job = AfterWait::Plain;
    ctx.submit_op(slot, Op::Flush, Payload::None, 0);
}
