//! Further connections that join a session, from their login request to their link.

use buf::{Cx, Time};
use iscsi::session::AttachError;
use iscsi::wire::{Cid, LoginStatus, Tsih};
use stream::Tag;

use super::IscsiFront;
use crate::message::Message;
use crate::shard::DIRECTORY_SHARD;
use crate::shard::connections::{Connections, JoinRequest, Session};
use crate::shard::outbox::Outbox;

impl IscsiFront {
    /// Lets a further connection join a session that is here: what it replaces ends first (RFC 7143
    /// §6.3.4), and only then is its login answered. False: the session does not go on.
    pub(in crate::shard) fn start_join(
        &self,
        cx: &mut Cx<'_>,
        conns: &mut Connections,
        until: Time,
        (tsih, joining): (Tsih, JoinRequest),
    ) -> bool {
        let Some(tag) = self.sessions.get(&tsih).copied() else { return false };
        let Some(session) = conns.session_mut(tag).filter(|session| !session.closed) else { return false };
        session.joining.push(joining);
        session.proto.reinstate_connection(cx, joining.cid, until);
        conns.mark_pending(tag);
        true
    }

    /// A login that was to join a session came to nothing: the session waits for its link no longer.
    pub(in crate::shard) fn handle_join_aborted(
        &self,
        cx: &mut Cx<'_>,
        (conns, outbox): (&mut Connections, &mut Outbox),
        tsih: Tsih,
        joining: JoinRequest,
    ) {
        if let Some(conn) = self.sessions.get(&tsih).copied()
            && let Some(session) = conns.session_mut(conn)
            && let Some(at) = session.admitted.iter().position(|admitted| *admitted == joining)
        {
            session.admitted.swap_remove(at);
            cancel_expected_link(cx, conns, conn, joining.cid);
        }
        self.report_connection_gone((conns, outbox), tsih, joining.cid);
    }

    /// The link of a login that was let in to a session does not become part of it.
    pub(in crate::shard) fn handle_link_never_arrived(
        &self,
        cx: &mut Cx<'_>,
        (conns, outbox): (&mut Connections, &mut Outbox),
        tsih: Tsih,
        cid: Cid,
    ) {
        if let Some(conn) = self.sessions.get(&tsih).copied()
            && let Some(session) = conns.session_mut(conn)
        {
            session.admitted.retain(|admitted| admitted.cid != cid);
            cancel_expected_link(cx, conns, conn, cid);
        }
        self.report_connection_gone((conns, outbox), tsih, cid);
    }

    /// Tells the directory, unless another link bears the same CID, or is about to: it is reinstated.
    pub(in crate::shard) fn report_connection_gone(
        &self,
        (conns, outbox): (&mut Connections, &mut Outbox),
        tsih: Tsih,
        cid: Cid,
    ) {
        let conn = self.sessions.get(&tsih).copied();
        let session = conn.and_then(|conn| conns.session_mut(conn));
        let replaced = |session: &mut Session| {
            session.proto.has_connection(cid)
                || session.joining.iter().chain(&session.admitted).any(|joining| joining.cid == cid)
        };
        if !session.is_some_and(replaced) {
            outbox.post(DIRECTORY_SHARD, Message::ConnectionGone(tsih, cid));
        }
    }
}

/// Answers the logins that wait to join a session, as far as nothing of what they replace is left, and
/// keeps places for their links.
pub(in crate::shard) fn answer_pending_joins(
    cx: &mut Cx<'_>,
    conns: &mut Connections,
    outbox: &mut Outbox,
    conn: Tag,
) {
    let Some(session) = conns.session_mut(conn) else { return };
    if session.joining.is_empty() {
        return;
    }
    let (proto, closed) = (&session.proto, session.closed);
    let ready = |joining: &mut JoinRequest| closed || proto.is_connection_cleared(joining.cid);
    let ready: Vec<JoinRequest> = session.joining.extract_if(.., ready).collect();
    for joining in ready {
        let Some(session) = conns.session_mut(conn) else { return };
        let window = match session.proto.reserve_connection_slot(joining.cid) {
            Ok(()) => {
                session.admitted.push(joining);
                Ok(session.proto.command_numbers())
            }
            Err(AttachError::NoMemory) => Err(LoginStatus::OUT_OF_RESOURCES),
            Err(AttachError::TooManyLinks) => Err(LoginStatus::TOO_MANY_CONNECTIONS),
            Err(AttachError::Closing) => Err(LoginStatus::SESSION_DOES_NOT_EXIST),
        };
        if window.is_err() {
            cancel_expected_link(cx, conns, conn, joining.cid);
        }
        outbox.post(joining.from, Message::JoinReply(joining.token, window));
    }
}

fn cancel_expected_link(cx: &mut Cx<'_>, conns: &mut Connections, conn: Tag, cid: Cid) {
    let Some(session) = conns.session_mut(conn) else { return };
    // Another login may be on its way with the same CID.
    if !session.joining.iter().chain(&session.admitted).any(|joining| joining.cid == cid) {
        session.proto.cancel_expected_connection(cx, cid);
        conns.mark_pending(conn);
    }
}
