//! The error log of a controller (NVMe Base §5.16.1.2): the latest failures, newest first.

use std::collections::VecDeque;

use nvme::log::ErrorEntry;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::queue_message::{CommandFailure, FAILURES_MAX};

/// The entries of the log (ELPE + 1).
pub(crate) const ERROR_LOG_ENTRIES: usize = FAILURES_MAX;

/// What failed.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    /// Newest last, with the number of each and its queue.
    pub(crate) entries: VecDeque<(u64, u16, CommandFailure)>,
    /// How many there ever were.
    pub(crate) count: u64,
}

impl ErrorLog {
    /// Adds the failures of a queue, oldest first; `failed`: how many there were, of which the
    /// oldest may not be among them.
    pub(crate) fn add_failures(&mut self, qid: u16, failures: Vec<CommandFailure>, failed: u64) {
        let missed = failed.saturating_sub(failures.len() as u64);
        self.count += missed;
        for failure in failures {
            self.count += 1;
            if self.entries.len() == ERROR_LOG_ENTRIES {
                self.entries.pop_front();
            }
            self.entries.push_back((self.count, qid, failure));
        }
    }

    /// How many there ever were.
    pub(crate) fn total_count(&self) -> u64 {
        self.count
    }

    /// The log.
    pub(crate) fn log_page(&self) -> Vec<u8> {
        let mut page = vec![0; ERROR_LOG_ENTRIES * size_of::<ErrorEntry>()];
        let newest = self.entries.iter().rev();
        for (place, (count, qid, failure)) in page.chunks_exact_mut(size_of::<ErrorEntry>()).zip(newest) {
            let mut entry = ErrorEntry::new_zeroed();
            entry.count = U64::new(*count);
            entry.sqid = U16::new(*qid);
            entry.cid = U16::new(failure.cid);
            entry.status = U16::new(failure.status.0 << 1);
            entry.parameter = U16::new(0xffff);
            entry.lba = U64::new(failure.lba);
            entry.nsid = U32::new(failure.nsid);
            entry.transport = 3;
            place.copy_from_slice(entry.as_bytes());
        }
        page
    }
}
