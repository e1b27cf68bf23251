//! The fast path: reads and writes that complete within the call that starts them, and so need no task.
//!
//! Invariant: a command that does not qualify is left to `Server::start_command`, which checks it again and reports
//! any error.

use nvme::io::BlockTransfer;
use nvme::{Opcode, Sqe};
use volume::{InlineIo, Time};

use super::{block, resolve_namespace};
use crate::context::ExecContext;
use crate::step::{CommandKey, QueueKey};

impl ExecContext {
    #[inline]
    pub(crate) fn inline_io_for(
        &self,
        now: Time,
        key: CommandKey,
        sqe: &Sqe,
        data_out: u32,
    ) -> Option<InlineIo> {
        let queue = self.queues.get(key.queue);
        let fast = now < queue.slow_path_from || queue.may_use_fast_path(now);
        let free = fast && queue.half.is_none() && queue.aborting.is_empty();
        if !free || queue.closing || sqe.flags & 3 != 0 {
            return None;
        }
        let transfer = BlockTransfer::from_sqe(sqe);
        let (write, offered) = match sqe.opcode {
            Opcode::READ => (None, sqe.dptr.length.get()),
            Opcode::WRITE => (Some(block::transfer_durability(transfer)), data_out),
            _ => return None,
        };
        let (entry, volume) = resolve_namespace(self, key.queue, sqe.nsid.get()).ok()?;
        let bytes = block::checked_transfer_len(self, key, volume, transfer, offered).ok()?;
        let may = bytes > 0 && !(write.is_some() && entry.read_only);
        // A read that is to be made stable first takes two steps.
        let stable = transfer.has_flags(BlockTransfer::FUA) && volume.view.geometry.write_cache;
        let may = may && !(write.is_none() && stable);
        may.then(|| InlineIo { volume: entry.volume, span: block::transfer_span(transfer), bytes, write })
    }

    #[inline]
    pub(crate) fn count_inline_io(&mut self, queue: QueueKey, what: &InlineIo) {
        let counters = &mut self.queues.get_mut(queue).counters;
        match what.write {
            None => {
                counters.reads += 1;
                counters.read_bytes += u64::from(what.bytes);
            }
            Some(_) => {
                counters.writes += 1;
                counters.written_bytes += u64::from(what.bytes);
            }
        }
    }
}
