//! The iSCSI part of changed exports and listings.

use std::time::Duration;

use buf::Cx;
use endpoint::AcceptedSocket;
use scsi_server::{CopyVolume, LunEntry, NexusKey};
use stream::{Connection, ConnectionClose, Tag};

use super::IscsiFront;
use crate::exports::EndCause;
use crate::link_table::LinkTable;
use crate::message::{ConnectionStatus, SessionStatus};
use crate::shard::SharedParts;
use crate::shard::connections::{ConnKind, Connections, Session};

/// How long initiators may take to log out after a TARGET COLD RESET, before their connections are closed.
const COLD_RESET_GRACE: Duration = Duration::from_secs(2);

/// What a session may do.
enum SessionAccess {
    /// Reach these logical units.
    Reaches(NexusKey, Vec<LunEntry>),
    /// Discover targets.
    Discovers,
    /// Nothing: it must end.
    Out,
    /// Nothing, from this moment: it ends at once.
    Blocked,
}

impl IscsiFront {
    /// The exports have changed: sessions keep what they may still reach; those that may reach nothing any more are
    /// ended.
    pub(in crate::shard) fn apply_exports_to_sessions(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts) {
        if let Some(directory) = &mut self.directory {
            directory.bound_sessions(parts.exports.admission.sessions);
        }
        let tags: Vec<Tag> = self.sessions.values().copied().collect();
        for tag in tags {
            match self.session_access(parts, tag) {
                SessionAccess::Reaches(nexus, luns) => {
                    self.change_luns(parts, nexus, luns);
                    if self.server.has_copy_volumes(nexus) {
                        let volumes = self.copy_volumes(parts, nexus);
                        self.server.change_copy_volumes(nexus, volumes);
                    }
                }
                SessionAccess::Discovers => {}
                SessionAccess::Blocked => {
                    if let Some(session) = parts.conns.session_mut(tag) {
                        session.proto.close(cx, ConnectionClose::Now);
                    }
                    parts.conns.mark_pending(tag);
                }
                SessionAccess::Out => {
                    if let Some(session) = parts.conns.session_mut(tag) {
                        session
                            .proto
                            .close(cx, ConnectionClose::AfterLogout(cx.now + Duration::from_secs(5)));
                    }
                    parts.conns.mark_pending(tag);
                }
            }
        }
    }

    /// What the copies of a nexus may name besides its logical units, by the exports of now.
    pub(super) fn copy_volumes(&self, parts: &mut SharedParts, nexus: NexusKey) -> Vec<CopyVolume> {
        let conn = self.nexuses.get(nexus.0 as usize).copied().flatten();
        let Some(session) = conn.and_then(|conn| parts.conns.session_mut(conn)) else { return Vec::new() };
        let Some(target) = &session.target else { return Vec::new() };
        let who = (&*session.initiator, session.user.as_deref());
        parts.exports.copy_volumes(target, who, &session.accepted_sockets())
    }

    /// What a session may do by the exports of now. Each connection is judged by its own addresses, as it was when it
    /// came; while there is none, the latest one is.
    fn session_access(&mut self, parts: &mut SharedParts, tag: Tag) -> SessionAccess {
        let Some(session) = parts.conns.session_mut(tag) else { return SessionAccess::Out };
        let (nexus, proved) = (session.nexus, session.user.is_some());
        let (target, initiator) = (session.target.clone(), session.initiator.clone());
        let links = session.accepted_sockets();
        match (nexus, parts.exports.keep_session(target.as_deref(), &initiator, proved, &links)) {
            (_, Ok(_)) if target.is_none() => SessionAccess::Discovers,
            (Some(nexus), Ok(luns)) => SessionAccess::Reaches(nexus, luns),
            (_, Err(EndCause::Blocked)) => SessionAccess::Blocked,
            (_, _) => SessionAccess::Out,
        }
    }

    /// Whether a further connection of a session, that came like this, reaches just what its others reach. A session
    /// without any has from now on what this one reaches.
    pub(in crate::shard) fn has_same_access(
        &mut self,
        parts: &mut SharedParts,
        conn: Tag,
        accepted: &AcceptedSocket,
    ) -> bool {
        let Some(session) = parts.conns.session_mut(conn) else { return false };
        let Some(nexus) = session.nexus else { return true };
        let (proved, initiator) = (session.user.is_some(), session.initiator.clone());
        let Some(target) = session.target.clone() else { return true };
        let others: Vec<AcceptedSocket> = session.links.iter().map(|link| link.accepted).collect();
        let Some(luns) = parts.exports.reachable_luns(&target, &initiator, proved, accepted) else {
            return false;
        };
        let alike = |other: &AcceptedSocket| {
            parts.exports.reachable_luns(&target, &initiator, proved, other).as_ref() == Some(&luns)
        };
        if !others.iter().all(alike) {
            return false;
        }
        if others.is_empty() {
            self.change_luns(parts, nexus, luns);
        }
        true
    }

    /// Ends the sessions of a target that was reset: their initiators hear why, and are in again with a login.
    pub(in crate::shard) fn end_target_sessions(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        target: &str,
    ) {
        let tags: Vec<Tag> = self.sessions.values().copied().collect();
        for tag in tags {
            let Some(session) =
                parts.conns.session_mut(tag).filter(|session| session.target.as_deref() == Some(target))
            else {
                continue;
            };
            session.proto.close(cx, ConnectionClose::AfterLogout(cx.now + COLD_RESET_GRACE));
            parts.conns.mark_pending(tag);
        }
    }
}

/// What a listing says of sessions.
pub(in crate::shard) fn session_entries(conns: &Connections) -> Vec<SessionStatus> {
    let sessions = conns.iter().filter_map(|(_, conn)| match &conn.kind {
        ConnKind::Session(session) => Some(session_entry(session, &conns.links)),
        ConnKind::Login(_) | ConnKind::Queue(_) => None,
    });
    sessions.collect()
}

fn session_entry(session: &Session, links: &LinkTable) -> SessionStatus {
    let connections = session.links.iter().map(|link| ConnectionStatus {
        cid: link.cid.value(),
        accepted: link.accepted,
        digests: link.digests,
        segments: link.segments,
        algorithm: link.algorithm,
        traffic: links.traffic(link.id),
    });
    SessionStatus {
        tsih: session.tsih.value(),
        initiator: session.initiator.clone(),
        isid: session.isid.to_string(),
        target: session.target.clone(),
        user: session.user.clone(),
        params: session.proto.params().clone(),
        window: session.proto.command_window(),
        placed: session.placed,
        connections: connections.collect(),
        tasks: session.proto.tasks_in_work(),
        io: session.io,
        latency: session.times.latency.clone(),
    }
}
