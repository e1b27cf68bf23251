//! Commands of an admin queue in flight, their purpose, and their deadlines.

use buf::{Class, Cx, Payload, Time};
use nvme::Sqe;
use nvme::log::{GetLogPage, Lid};
use stream::Tag;

use super::links::{Links, QueueId};

/// Get Log Page for `len` bytes from `offset` on, and that length.
pub(super) fn log_page(lid: Lid, specific: u8, nsid: u32, offset: u64, len: usize) -> (Sqe, usize) {
    let (retain, by_index, command_set) = (false, false, 0);
    let log = GetLogPage { lid, specific, retain, len: len as u64, offset, by_index, command_set, nsid };
    (log.sqe(), len)
}

/// Most commands of admin queues in work: an admin queue has 32 entries, one stays free; and the admin
/// queue of the association before may still be stopping its controller.
const COMMANDS_MAX: usize = 2 * 31;

/// Commands in work, each for a purpose `E`.
#[derive(Debug)]
pub(super) struct AdminCommands<E> {
    sent: Vec<Sent<E>>,
}

#[derive(Debug)]
struct Sent<E> {
    who: QueueId,
    tag: Tag,
    purpose: E,
    /// `None`: it may wait for ever, as requests for events do.
    until: Option<Time>,
}

impl<E> AdminCommands<E> {
    pub(super) fn new() -> Self {
        AdminCommands { sent: Vec::new() }
    }

    /// Sends a command with room for `len` bytes of answer. False: there is no memory or no room in the
    /// queue now, or no queue any more.
    pub(super) fn send(
        &mut self,
        cx: &mut Cx<'_>,
        links: &mut Links,
        who: QueueId,
        (sqe, len): (Sqe, usize),
        (purpose, until): (E, Option<Time>),
    ) -> bool {
        let payload = match len {
            0 => Payload::None,
            len => match cx.pool.take_sg(Class::Wire, len) {
                Some(memory) => Payload::In(memory),
                None => return false,
            },
        };
        if self.sent.len() >= COMMANDS_MAX {
            return false;
        }
        let Ok(tag) = links.submit(cx, who, sqe, payload) else { return false };
        self.sent.push(Sent { who, tag, purpose, until });
        true
    }

    /// What a command that has ended was for.
    pub(super) fn ended(&mut self, who: QueueId, tag: Tag) -> Option<E> {
        let at = self.sent.iter().position(|sent| sent.who == who && sent.tag == tag)?;
        Some(self.sent.swap_remove(at).purpose)
    }

    /// Forgets what was asked of a queue.
    pub(super) fn forget(&mut self, who: QueueId) {
        self.sent.retain(|sent| sent.who != who);
    }

    /// Whether a command for such a purpose is in work.
    pub(super) fn count(&self, mut of: impl FnMut(&E) -> bool) -> usize {
        self.sent.iter().filter(|sent| of(&sent.purpose)).count()
    }

    /// The queue of a command whose time is over.
    pub(super) fn overdue(&self, now: Time) -> Option<(QueueId, &E)> {
        let late = |sent: &&Sent<E>| sent.until.is_some_and(|until| until <= now);
        self.sent.iter().find(late).map(|sent| (sent.who, &sent.purpose))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.sent.iter().filter_map(|sent| sent.until).min()
    }
}
