//! The fast path: reads and writes that complete within the call that starts them, and so need no task.
//!
//! Invariant: a command that does not qualify is left to `Server::start`, which checks it again and reports
//! any error.

use nvme::io::Transfer;
use nvme::{Opcode, Sqe};
use volume::{InlineIo, Time};

use super::{block, place};
use crate::context::ExecContext;
use crate::step::{CommandKey, QueueKey};

impl ExecContext {
    #[inline]
    pub(crate) fn fast_path(&self, now: Time, key: CommandKey, sqe: &Sqe, data_out: u32) -> Option<InlineIo> {
        let queue = self.queues.get(key.queue);
        let fast = now < queue.slow_path_from || queue.is_fast_path_open(now);
        let free = fast && queue.half.is_none() && queue.aborting.is_empty();
        if !free || queue.closing || sqe.flags & 3 != 0 {
            return None;
        }
        let transfer = Transfer::of(sqe);
        let (write, offered) = match sqe.opcode {
            Opcode::READ => (None, sqe.dptr.length.get()),
            Opcode::WRITE => (Some(block::durability(transfer)), data_out),
            _ => return None,
        };
        let (entry, volume) = place(self, key.queue, sqe.nsid.get()).ok()?;
        let bytes = block::measure(self, key, volume, transfer, offered).ok()?;
        let may = bytes > 0 && !(write.is_some() && entry.read_only);
        // A read that is to be made stable first takes two steps.
        let stable = transfer.has(Transfer::FUA) && volume.view.geometry.write_cache;
        let may = may && !(write.is_none() && stable);
        may.then(|| InlineIo { volume: entry.volume, span: block::to_span(transfer), bytes, write })
    }

    #[inline]
    pub(crate) fn count_fast_path(&mut self, queue: QueueKey, what: &InlineIo) {
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
