//! Messages that arrive before the link that founds their session.
//!
//! A login ends on the shard that accepted it; then its link moves to the shard of its session. The memory
//! that its last response announces is reserved on that shard before the response is sent, and is kept here
//! for the link. Meanwhile a second connection may ask to join that session, or a reinstatement to end it.
//! Both wait here too, as long as the link may take; if it never arrives, the session never existed.
//!
//! Invariant: a session is founded with memory that was reserved here, or not at all.

use std::collections::HashMap;
use std::time::Duration;

use buf::{Cx, Time};
use iscsi::session::MemoryPromise;
use iscsi::wire::{LoginStatus, Tsih};

use endpoint::ShardId;

use super::IscsiFront;
use crate::exports::LOGINS_MAX;
use crate::message::{Message, SessionMemoryNeeds};
use crate::shard::connections::JoinRequest;
use crate::shard::{DIRECTORY_SHARD, SharedParts};

/// How long a founding link may be on its way.
const LINK_TRANSIT_MAX: Duration = Duration::from_secs(1);

/// What waits for a session's founding link.
#[derive(Debug)]
enum PostponedRequest {
    /// A login asks where the command window stands.
    Window(JoinRequest),
    /// The directory wants the session's end.
    End,
}

/// All that waits, oldest first. Bounded: each login asks once, and the directory wants an end once.
#[derive(Debug, Default)]
pub(in crate::shard) struct PendingSessions {
    waiting: Vec<(Tsih, Time, PostponedRequest)>,
    /// Memory of sessions whose links are still to come.
    reserved: HashMap<Tsih, MemoryPromise>,
}

impl PendingSessions {
    /// A founding link is here: false if its session is not wanted any more.
    pub(in crate::shard) fn is_session_wanted(&self, tsih: Tsih) -> bool {
        !self
            .waiting
            .iter()
            .any(|(of, _, postponed)| *of == tsih && matches!(postponed, PostponedRequest::End))
    }

    fn postpone(&mut self, tsih: Tsih, now: Time, postponed: PostponedRequest) {
        self.waiting.push((tsih, now + LINK_TRANSIT_MAX, postponed));
    }

    fn take_postponed(&mut self, tsih: Tsih) -> Vec<PostponedRequest> {
        self.waiting.extract_if(.., |(of, ..)| *of == tsih).map(|(.., postponed)| postponed).collect()
    }

    /// The memory that was set aside for a session.
    pub(in crate::shard) fn take_memory(&mut self, tsih: Tsih) -> Option<MemoryPromise> {
        self.reserved.remove(&tsih)
    }

    pub(in crate::shard) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.first().map(|(_, until, _)| *until)
    }
}

impl IscsiFront {
    /// A login is about to found a session here: what it will announce is set aside first (law 3).
    pub(in crate::shard) fn reserve_memory(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        tsih: Tsih,
        wanted: SessionMemoryNeeds,
        (from, token): (ShardId, u64),
    ) {
        let answer = if parts.stopping.is_some() {
            Err(LoginStatus::SERVICE_UNAVAILABLE)
        } else if !self.pending_sessions.is_session_wanted(tsih) {
            Err(LoginStatus::SESSION_DOES_NOT_EXIST)
        } else {
            let promise = MemoryPromise::new(cx.pool, wanted.unsolicited, u32::from(wanted.commands));
            promise
                .map(|promise| drop(self.pending_sessions.reserved.insert(tsih, promise)))
                .ok_or(LoginStatus::OUT_OF_RESOURCES)
        };
        parts.outbox.post(from, Message::MemoryReserved(token, answer));
    }

    /// A session that was to live here does not come to be. What was set aside for it is given back before
    /// the directory hears of it, so that who comes in its place finds it.
    pub(in crate::shard) fn handle_login_aborted(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        tsih: Tsih,
    ) {
        drop(self.pending_sessions.take_memory(tsih));
        parts.outbox.post(DIRECTORY_SHARD, Message::SessionGone(tsih));
        self.resume_postponed(cx, parts, tsih);
    }

    /// Another connection asks for a session that is not here.
    pub(in crate::shard) fn postpone_join(
        &mut self,
        cx: &Cx<'_>,
        parts: &mut SharedParts,
        tsih: Tsih,
        joining: JoinRequest,
    ) {
        if self.pending_sessions.waiting.len() < usize::from(parts.shards) * LOGINS_MAX {
            self.pending_sessions.postpone(tsih, cx.now, PostponedRequest::Window(joining));
        } else {
            parts.outbox.post(
                joining.from,
                Message::JoinReply(joining.token, Err(LoginStatus::SESSION_DOES_NOT_EXIST)),
            );
        }
    }

    /// A session that is not here is to end: its founding link is still on its way, or it has just
    /// ended, and the directory knows by now.
    pub(in crate::shard) fn postpone_end(&mut self, cx: &Cx<'_>, tsih: Tsih) {
        drop(self.pending_sessions.take_memory(tsih));
        self.pending_sessions.postpone(tsih, cx.now, PostponedRequest::End);
    }

    /// What waited for a session goes on: it is here, or never will be.
    pub(in crate::shard) fn resume_postponed(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        tsih: Tsih,
    ) {
        let until = cx.now + parts.exports.admission.login_time;
        for postponed in self.pending_sessions.take_postponed(tsih) {
            if let PostponedRequest::Window(joining) = postponed
                && !self.start_join(cx, &mut parts.conns, until, (tsih, joining))
            {
                let gone = Err(LoginStatus::SESSION_DOES_NOT_EXIST);
                parts.outbox.post(joining.from, Message::JoinReply(joining.token, gone));
            }
        }
    }

    /// Gives up on links that never came.
    pub(in crate::shard) fn handle_pending_sessions_timeout(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
    ) {
        while let Some((tsih, until, _)) = self.pending_sessions.waiting.first()
            && *until <= cx.now
        {
            let tsih = *tsih;
            if !self.pending_sessions.is_session_wanted(tsih) {
                // Told twice it is harmless: the handle is not given again so soon.
                parts.outbox.post(DIRECTORY_SHARD, Message::SessionGone(tsih));
            }
            self.resume_postponed(cx, parts, tsih);
        }
    }
}
