//! The fast path: reads and writes that complete within the call that starts them, and so need no task. They
//! skip the task set, which they would enter and leave within one call, so the result is the same.
//!
//! Invariant: a command that does not qualify is left to [`Server::start_command`](crate::Server::start_command), which
//! checks it again and reports any error.

use scsi::lun::LunAddress;
use scsi::{Command, CommandSet};
use volume::InlineIo;

use super::block;
use crate::context::ExecContext;
use crate::step::NexusKey;
use crate::task::IncomingCommand;
use crate::task_set::ExecutedAttribute;

/// See [`Server::inline_io_for`](crate::Server::inline_io_for).
pub(crate) fn inline_io_for(
    ctx: &ExecContext,
    nexus: NexusKey,
    arrived: &IncomingCommand<'_>,
) -> Option<InlineIo> {
    let state = ctx.nexus_state(nexus);
    let Some(LunAddress::Unit(lun)) = LunAddress::parse(&arrived.lun) else { return None };
    let at = state.lun_index(u16::try_from(lun.number()).ok()?)?;
    let (entry, lun) = (state.spec.luns.get(at)?, state.luns.get(at)?);
    let simple = ExecutedAttribute::from_task_attribute(arrived.attr) == Some(ExecutedAttribute::Simple);
    if !simple
        || !lun.order.accepts_simple()
        || lun.attentions.peek_oldest().is_some()
        || lun.deferred.is_some()
    {
        return None;
    }
    let (transfer, write) = match CommandSet::BASIC.parse(arrived.cdb) {
        Ok(Command::Read(transfer)) => (transfer, None),
        Ok(Command::Write(transfer)) if !entry.read_only => {
            (transfer, Some(block::transfer_durability(transfer)))
        }
        Ok(_) | Err(_) => return None,
    };
    let geometry = &ctx.logical_unit(entry.volume)?.view.geometry;
    let bytes = transfer.blocks.checked_mul(geometry.logical)?;
    let expected = if write.is_some() { arrived.data_out } else { arrived.data_in };
    let fits = bytes > 0 && bytes == expected && bytes <= geometry.max_io;
    // A read that is to be made stable first takes two steps.
    let fits = fits && !(write.is_none() && transfer.fua && geometry.write_cache);
    fits.then(|| InlineIo { volume: entry.volume, span: block::transfer_span(transfer), bytes, write })
}
