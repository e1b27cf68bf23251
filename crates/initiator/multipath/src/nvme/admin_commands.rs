//! Commands of an admin queue in flight, their purpose, and their deadlines.

use buf::{Cx, MemoryClass, Payload, Time};
use nvme::Sqe;
use nvme::log::{GetLogPage, LogPageId};
use stream::Tag;

use super::queue_links::{QueueId, QueueLinks};

/// Get Log Page for `len` bytes from `offset` on, and that length.
pub(super) fn log_page_command(
    lid: LogPageId,
    specific: u8,
    nsid: u32,
    offset: u64,
    len: usize,
) -> (Sqe, usize) {
    let (retain, by_index, command_set) = (false, false, 0);
    let log = GetLogPage { lid, specific, retain, len: len as u64, offset, by_index, command_set, nsid };
    (log.to_sqe(), len)
}

/// Most commands of admin queues in work: an admin queue has 32 entries, one stays free; and the admin
/// queue of the association before may still be stopping its controller.
const ADMIN_COMMANDS_MAX: usize = 2 * 31;

/// Commands in work, each for a purpose `E`.
#[derive(Debug)]
pub(super) struct PendingAdminCommands<E> {
    sent: Vec<SentCommand<E>>,
}

#[derive(Debug)]
struct SentCommand<E> {
    who: QueueId,
    tag: Tag,
    purpose: E,
    /// `None`: it may wait for ever, as requests for events do.
    until: Option<Time>,
}

impl<E> PendingAdminCommands<E> {
    pub(super) fn new() -> Self {
        PendingAdminCommands { sent: Vec::new() }
    }

    /// Sends a command with room for `len` bytes of answer. False: there is no memory or no room in the
    /// queue now, or no queue any more.
    pub(super) fn send_command(
        &mut self,
        cx: &mut Cx<'_>,
        links: &mut QueueLinks,
        who: QueueId,
        (sqe, len): (Sqe, usize),
        (purpose, until): (E, Option<Time>),
    ) -> bool {
        let payload = match len {
            0 => Payload::None,
            len => match cx.pool.take_sg(MemoryClass::Wire, len) {
                Some(memory) => Payload::In(memory),
                None => return false,
            },
        };
        if self.sent.len() >= ADMIN_COMMANDS_MAX {
            return false;
        }
        let Ok(tag) = links.submit_command(cx, who, sqe, payload) else { return false };
        self.sent.push(SentCommand { who, tag, purpose, until });
        true
    }

    /// What a command that has ended was for.
    pub(super) fn take_purpose(&mut self, who: QueueId, tag: Tag) -> Option<E> {
        let at = self.sent.iter().position(|sent| sent.who == who && sent.tag == tag)?;
        Some(self.sent.swap_remove(at).purpose)
    }

    /// Forgets what was asked of a queue.
    pub(super) fn forget_queue(&mut self, who: QueueId) {
        self.sent.retain(|sent| sent.who != who);
    }

    /// Whether a command for such a purpose is in work.
    pub(super) fn count_with_purpose(&self, mut of: impl FnMut(&E) -> bool) -> usize {
        self.sent.iter().filter(|sent| of(&sent.purpose)).count()
    }

    /// The queue of a command whose time is over.
    pub(super) fn find_overdue(&self, now: Time) -> Option<(QueueId, &E)> {
        let late = |sent: &&SentCommand<E>| sent.until.is_some_and(|until| until <= now);
        self.sent.iter().find(late).map(|sent| (sent.who, &sent.purpose))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.sent.iter().filter_map(|sent| sent.until).min()
    }
}
