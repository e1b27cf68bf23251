//! Dataset Management (NVM Command Set §3.2.3): deallocation. The other attributes are hints and are ignored.

use buf::{Payload, Sg};
use nvme::io::{DatasetManagement, DatasetRange};
use nvme::{Completion, Sqe, Status};
use volume::{Op, Refusal, Span};
use zerocopy::FromBytes;

use super::block::admit;
use super::{list, place};
use crate::after_wait::AfterWait;
use crate::context::ExecContext;
use crate::status;
use crate::step::CommandKey;

/// The longest list in bytes: 256 ranges.
const RANGES_LEN: usize = 256 * size_of::<DatasetRange>();

pub(super) fn start(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    let words = DatasetManagement::of(sqe);
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    // Hosts may offer room for more ranges than they name.
    let needed = usize::from(words.ranges) * size_of::<DatasetRange>();
    if !(needed..=RANGES_LEN).contains(&(data_out as usize)) {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    if words.deallocate {
        admit(ctx, key, &entry, volume, &Op::Unmap(Vec::new()))?;
    } else {
        let who = ctx.nexus(key.queue);
        volume.view.admit_class(who, volume::CommandClass::Write).map_err(status::refused)?;
        volume.view.admit_medium().map_err(status::refused)?;
    }
    list::receive(ctx, key, sqe, &entry, data_out)
}

/// The ranges are here.
pub(super) fn ranges(ctx: &mut ExecContext, slot: u32, sqe: &Sqe, data: &Sg) {
    let words = DatasetManagement::of(sqe);
    let Some(volume) = ctx.volumes.get(ctx.tasks.get(slot).volume) else {
        return ctx.complete(slot, Status::INVALID_NAMESPACE.final_().into());
    };
    let geometry = volume.view.geometry;
    let bytes = list::bytes::<RANGES_LEN>(data);
    let mut spans = Vec::new();
    for range in bytes.chunks_exact(size_of::<DatasetRange>()).take(words.ranges.into()) {
        let Ok(range) = DatasetRange::ref_from_bytes(range) else { continue };
        let span = Span { lba: range.lba.get(), blocks: range.blocks.get().into() };
        if span.end().is_none_or(|end| end > geometry.blocks) {
            return ctx.complete(slot, status::refused(Refusal::OutOfRange).into());
        }
        if span.blocks > 0 {
            spans.push(span);
        }
    }
    // Where no space can be given back, there is nothing to do: deallocation is a hint.
    if words.deallocate && geometry.thin && !spans.is_empty() {
        ctx.tasks.get_mut(slot).job = AfterWait::Plain;
        ctx.submit(slot, Op::Unmap(spans), Payload::None, 0);
    } else {
        ctx.complete(slot, Completion::SUCCESS);
    }
}
