//! The response fence (RFC 7143 §4.2.2.3) orders responses across the connections of a session where SCSI
//! needs it: after a function that ends many tasks (§4.2.3.3), and where the server sets
//! [`ScsiResult::fence`](super::ScsiResult::fence).
//!
//! A session of one link needs none: TCP keeps the order. Over several links a fenced response waits until
//! the initiator has acknowledged (ExpStatSN) all earlier responses on every link. Later responses for the
//! same logical unit wait until the fenced response is acknowledged. The target requests acknowledgements by
//! NOP-In, because an idle initiator sends none.
//!
//! Other sessions whose tasks a function ended learn it by a unit attention, which is fenced there (§4.2.3.3
//! e): no session waits for the initiator of another. The target does not wait for open R2Ts of aborted
//! tasks, against §4.2.3.3 a: Linux sends no Data-Out for them by default (`FastAbort = Yes` of open-iscsi),
//! so each reset would time out. Such data is recognized by its tags and skipped.
//!
//! Invariant: every wait is bounded. It names open links, each with a deadline, and a link that misses it is
//! dropped.

use crate::links::LinkIndex;
use crate::wire::{Lun, Sn};
use buf::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;
use stream::Tag;

/// A response on its way through the fence: the one that its task keeps.
#[derive(Debug)]
pub(super) struct FencedResponse {
    pub(super) tag: Tag,
    /// The logical unit whose responses it orders; `None`: all of them.
    lun: Option<Lun>,
    pub(super) state: FenceState,
}

impl FencedResponse {
    /// A response on its way; `None`: of a task that is answered.
    pub(super) fn restored(tag: Option<Tag>, lun: Option<Lun>, state: FenceState) -> Self {
        FencedResponse { tag: tag.unwrap_or(Tag::from_bits(u64::MAX)), lun, state }
    }

    pub(super) fn lun(&self) -> Option<Lun> {
        self.lun
    }
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
pub(super) struct FencedResponses(VecDeque<FencedResponse>);

impl FencedResponses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &FencedResponse> {
        self.0.iter()
    }

    pub(super) fn push_restored(&mut self, fence: FencedResponse) {
        self.0.push_back(fence);
    }

    pub(super) fn push(&mut self, tag: Tag, lun: Option<Lun>) {
        self.0.push_back(FencedResponse { tag, lun, state: FenceState::Waiting });
    }

    pub(super) fn take_first(&mut self) -> Option<FencedResponse> {
        self.0.pop_front()
    }

    pub(super) fn put_back_first(&mut self, fence: FencedResponse) {
        self.0.push_front(fence);
    }

    /// Whether the response of this task is one of them.
    pub(super) fn contains_task(&self, tag: Tag) -> bool {
        self.0.iter().any(|fence| fence.tag == tag)
    }

    /// Whether responses of this unit wait behind a fence.
    pub(super) fn holds_unit(&self, lun: Lun) -> bool {
        self.0.iter().any(|fence| fence.lun.is_none_or(|fenced| fenced == lun))
    }

    /// A link leaves: no acknowledgment is waited for on it any more.
    pub(super) fn remove_link(&mut self, leaving: LinkIndex) {
        for fence in &mut self.0 {
            match &mut fence.state {
                FenceState::Before(marks, _) => marks.retain(|(index, _)| *index != leaving),
                FenceState::After((index, _), _) if *index == leaving => fence.state = FenceState::Over,
                FenceState::Waiting | FenceState::After(..) | FenceState::Over => {}
            }
        }
    }

    /// When an acknowledgment is due.
    pub(super) fn acknowledgment_deadline(&self) -> Option<Time> {
        match self.0.front()?.state {
            FenceState::Before(_, until) | FenceState::After(_, until) => Some(until),
            FenceState::Waiting | FenceState::Over => None,
        }
    }

    /// Links that are waited for, and acknowledge nothing.
    pub(super) fn awaited_links(&self) -> SmallVec<[LinkIndex; 4]> {
        match self.0.front().map(|fence| &fence.state) {
            Some(FenceState::Before(marks, _)) => marks.iter().map(|(index, _)| *index).collect(),
            Some(FenceState::After((index, _), _)) => SmallVec::from_slice(&[*index]),
            Some(FenceState::Waiting | FenceState::Over) | None => SmallVec::new(),
        }
    }
}
