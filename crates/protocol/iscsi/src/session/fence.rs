//! The response fence (RFC 7143 §4.2.2.3): one order of responses over the links of a session, where SCSI
//! needs one. What wants it: the end of a function that ends many tasks (§4.2.3.3), and what the server
//! marks ([`ScsiResult::fence`](super::ScsiResult::fence)).
//!
//! A session of one link needs nothing: TCP keeps the order. Over several links a fenced response waits
//! until the initiator has acknowledged (ExpStatSN) all that was handed over before it, on every link; and
//! what is handed over behind it for the same logical unit waits until it is acknowledged itself.
//! Acknowledgments are asked for by NOP-In, since an initiator that has nothing to say sends none.
//!
//! Other sessions whose tasks a function ended are told by a unit attention, which is fenced there in its
//! turn (§4.2.3.3 e): no session waits for another's initiator, so none can hold it up. And the answers to
//! R2Ts of tasks that are ended so are not waited for, though §4.2.3.3 a asks for it: what Linux sends
//! none of by default (`FastAbort = Yes` of open-iscsi) would make each reset run into its time-out. Such
//! data is known by its tags and skipped instead.
//!
//! Invariant: nothing waits for long. Every wait names links that are open, each of which owes an
//! acknowledgment by a time, and is dropped if that passes.

use crate::links::LinkIndex;
use crate::wire::{Lun, Sn};
use buf::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;
use stream::Tag;

/// A response on its way through the fence: the one that its task keeps.
#[derive(Debug)]
pub(super) struct ResponseFence {
    pub(super) tag: Tag,
    /// The logical unit whose responses it orders; `None`: all of them.
    lun: Option<Lun>,
    pub(super) state: FenceState,
}

/// A link, and the ExpStatSN that acknowledges what was to be sent on it.
pub(super) type Acknowledgment = (LinkIndex, Sn);

#[derive(Debug)]
pub(super) enum FenceState {
    /// Others go before it.
    Waiting,
    /// What was handed over before it is to be acknowledged by a time.
    Before(SmallVec<[Acknowledgment; 4]>, Time),
    /// It is sent, and to be acknowledged by a time.
    After(Acknowledgment, Time),
    /// Nothing is left to wait for.
    Over,
}

/// The responses on their way, in order: those behind the first wait for it.
#[derive(Debug, Default)]
pub(super) struct Fences(VecDeque<ResponseFence>);

impl Fences {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, tag: Tag, lun: Option<Lun>) {
        self.0.push_back(ResponseFence { tag, lun, state: FenceState::Waiting });
    }

    pub(super) fn take_first(&mut self) -> Option<ResponseFence> {
        self.0.pop_front()
    }

    pub(super) fn put_first(&mut self, fence: ResponseFence) {
        self.0.push_front(fence);
    }

    /// Whether the response of this task is one of them.
    pub(super) fn has(&self, tag: Tag) -> bool {
        self.0.iter().any(|fence| fence.tag == tag)
    }

    /// Whether responses of this unit wait behind a fence.
    pub(super) fn holds(&self, lun: Lun) -> bool {
        self.0.iter().any(|fence| fence.lun.is_none_or(|fenced| fenced == lun))
    }

    /// A link leaves: no acknowledgment is waited for on it any more.
    pub(super) fn forget_link(&mut self, leaving: LinkIndex) {
        for fence in &mut self.0 {
            match &mut fence.state {
                FenceState::Before(marks, _) => marks.retain(|(index, _)| *index != leaving),
                FenceState::After((index, _), _) if *index == leaving => fence.state = FenceState::Over,
                FenceState::Waiting | FenceState::After(..) | FenceState::Over => {}
            }
        }
    }

    /// When an acknowledgment is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.0.front()?.state {
            FenceState::Before(_, until) | FenceState::After(_, until) => Some(until),
            FenceState::Waiting | FenceState::Over => None,
        }
    }

    /// Links that are waited for, and acknowledge nothing.
    pub(super) fn silent_links(&self) -> SmallVec<[LinkIndex; 4]> {
        match self.0.front().map(|fence| &fence.state) {
            Some(FenceState::Before(marks, _)) => marks.iter().map(|(index, _)| *index).collect(),
            Some(FenceState::After((index, _), _)) => SmallVec::from_slice(&[*index]),
            Some(FenceState::Waiting | FenceState::Over) | None => SmallVec::new(),
        }
    }
}
