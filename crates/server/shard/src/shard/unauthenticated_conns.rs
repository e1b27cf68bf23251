//! Admission of connections: how many may be unauthenticated at a time, and which sources are delayed.
//!
//! Connections that log in, or have not yet connected a queue or authenticated, are unauthenticated
//! ("strangers"). If there are too many, a new one evicts the oldest one from which a request is due.

use std::collections::VecDeque;

use buf::Cx;
use stream::Tag;

use super::LOGIN_CONNS_MAX;
use super::connections::{ConnKind, Connections};
use crate::login_backoff::LoginBackoff;

/// See the module.
#[derive(Default)]
pub(super) struct UnauthenticatedConns {
    /// How many connections are strangers.
    pub(super) logins: usize,
    /// They by age, among them some that are none any more.
    by_age: VecDeque<Tag>,
    pub(super) backoff: LoginBackoff,
}

impl UnauthenticatedConns {
    /// Notes a stranger as the youngest.
    pub(super) fn note_youngest(&mut self, conns: &Connections, tag: Tag) {
        if self.by_age.len() >= 2 * LOGIN_CONNS_MAX {
            self.by_age.retain(|tag| is_unauthenticated(conns, *tag));
        }
        self.by_age.push_back(tag);
    }

    /// The oldest login that owes a request makes room; those that wait for us come to their end anyway.
    pub(super) fn evict_oldest(&mut self, cx: &mut Cx<'_>, conns: &mut Connections) {
        while let Some(tag) = self.by_age.pop_front() {
            let owed = match conns.get_mut(tag).map(|conn| &mut conn.kind) {
                Some(ConnKind::Login(pending_login)) => pending_login.login.evict(),
                Some(ConnKind::Queue(queue)) => queue.evict(cx),
                Some(ConnKind::Session(_)) | None => false,
            };
            if owed {
                return conns.mark_pending(tag);
            }
        }
    }
}

/// Whether a connection logs in, or has yet to connect a queue.
fn is_unauthenticated(conns: &Connections, tag: Tag) -> bool {
    match conns.get(tag).map(|conn| &conn.kind) {
        Some(ConnKind::Login(_)) => true,
        Some(ConnKind::Queue(queue)) => queue.is_unauthenticated(),
        Some(ConnKind::Session(_)) | None => false,
    }
}
