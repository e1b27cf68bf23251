//! Our NOP-Ins that request an answer, and the NOP-Outs that answer them (RFC 7143 §11.18.2, §11.19).
//!
//! The timer runs for the last of them, because an answer to it shows that the link lives. The tags of
//! earlier ones are kept too: their answers may still arrive, and are no violation.

use crate::wire::Ttt;
use buf::Time;
use std::collections::VecDeque;

/// How many are kept. More go out only where a peer acknowledges by other requests and answers none.
const OUTSTANDING_PINGS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct OutstandingPings {
    unanswered: VecDeque<Ttt>,
    /// Some were given up: their answers cannot be told from made-up ones.
    forgot: bool,
    /// When the last was sent that is not answered.
    since: Option<Time>,
}

impl OutstandingPings {
    /// One goes out under this transfer tag.
    pub(super) fn note_sent(&mut self, ttt: Ttt, now: Time) {
        if self.unanswered.len() == OUTSTANDING_PINGS_MAX {
            self.unanswered.pop_front();
            self.forgot = true;
        }
        self.unanswered.push_back(ttt);
        self.since = Some(now);
    }

    /// An answer has come. False: to nothing that was asked.
    pub(super) fn handle_answer(&mut self, ttt: Ttt) -> bool {
        let Some(index) = self.unanswered.iter().position(|asked| *asked == ttt) else { return self.forgot };
        if index + 1 == self.unanswered.len() {
            self.since = None;
        }
        self.unanswered.remove(index);
        true
    }

    /// Those that are unanswered, oldest first, and whether some were given up.
    pub(super) fn unanswered(&self) -> (impl Iterator<Item = Ttt> + '_, bool) {
        (self.unanswered.iter().copied(), self.forgot)
    }

    /// Goes on with what [`unanswered`](Self::unanswered) gave. `since`: the last of them is unanswered.
    pub(super) fn restored(unanswered: impl Iterator<Item = Ttt>, forgot: bool, since: Option<Time>) -> Self {
        let unanswered: VecDeque<Ttt> = unanswered.take(OUTSTANDING_PINGS_MAX).collect();
        OutstandingPings { since: since.filter(|_| !unanswered.is_empty()), unanswered, forgot }
    }

    /// Since when the last is unanswered.
    pub(super) fn unanswered_since(&self) -> Option<Time> {
        self.since
    }
}
