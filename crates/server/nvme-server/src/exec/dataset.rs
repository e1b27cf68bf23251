//! Dataset Management (NVM Command Set §3.2.3): deallocation. The other attributes are hints and are ignored.

use buf::{Payload, Sg};
use nvme::io::{DatasetManagement, DatasetRange};
use nvme::{Completion, Sqe, Status};
use volume::{Op, Refusal, Span};
use zerocopy::FromBytes;

use super::block::admit_on_arrival;
use super::{parameter_list, resolve_namespace};
use crate::after_wait::AfterWait;
use crate::context::ExecContext;
use crate::status;
use crate::step::CommandKey;

/// The longest list in bytes: 256 ranges.
const RANGES_LEN: usize = 256 * size_of::<DatasetRange>();

pub(super) fn start_dataset_management(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    let words = DatasetManagement::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    // Hosts may offer room for more ranges than they name.
    let needed = usize::from(words.ranges) * size_of::<DatasetRange>();
    if !(needed..=RANGES_LEN).contains(&(data_out as usize)) {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    if words.deallocate {
        admit_on_arrival(ctx, key, &entry, volume, &Op::Unmap(Vec::new()))?;
    } else {
        let who = ctx.nexus(key.queue);
        volume.view.admit_class(who, volume::CommandClass::Write).map_err(status::for_refusal)?;
        volume.view.check_medium_ready().map_err(status::for_refusal)?;
    }
    parameter_list::request_list(ctx, key, sqe, &entry, data_out)
}

/// The ranges are here.
pub(super) fn handle_ranges(ctx: &mut ExecContext, slot: u32, sqe: &Sqe, data: &Sg) {
    let words = DatasetManagement::from_sqe(sqe);
    let Some(volume) = ctx.volumes.get(ctx.tasks.get(slot).volume) else {
        return ctx.complete_task(slot, Status::INVALID_NAMESPACE.with_do_not_retry().into());
    };
    let geometry = volume.view.geometry;
    let bytes = parameter_list::copy_list_bytes::<RANGES_LEN>(data);
    let mut spans = Vec::new();
    for range in bytes.chunks_exact(size_of::<DatasetRange>()).take(words.ranges.into()) {
        let Ok(range) = DatasetRange::ref_from_bytes(range) else { continue };
        let span = Span { lba: range.lba.get(), blocks: range.blocks.get().into() };
        if span.end().is_none_or(|end| end > geometry.blocks) {
            return ctx.complete_task(slot, status::for_refusal(Refusal::OutOfRange).into());
        }
        if span.blocks > 0 {
            spans.push(span);
        }
    }
    // Where no space can be given back, there is nothing to do: deallocation is a hint.
    if words.deallocate && geometry.thin && !spans.is_empty() {
        ctx.tasks.get_mut(slot).job = AfterWait::Plain;
        ctx.submit_op(slot, Op::Unmap(spans), Payload::None, 0);
    } else {
        ctx.complete_task(slot, Completion::SUCCESS);
    }
}
