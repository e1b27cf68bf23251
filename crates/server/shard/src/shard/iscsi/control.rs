//! The iSCSI part of changed exports and listings.

use std::time::Duration;

use buf::Cx;
use endpoint::Accepted;
use scsi_server::{LunEntry, NexusKey};
use stream::{Close, Connection, Tag};

use super::IscsiFront;
use crate::links::Links;
use crate::message::{ConnectionEntry, SessionEntry};
use crate::shard::Parts;
use crate::shard::conns::{ConnKind, Connections, Session};

/// How long initiators may take to log out after a TARGET COLD RESET, before their connections are closed.
const COLD_RESET_GRACE: Duration = Duration::from_secs(2);

/// What a session may do.
enum Access {
    /// Reach these logical units.
    Reaches(NexusKey, Vec<LunEntry>),
    /// Discover targets.
    Discovers,
    /// Nothing: it must end.
    Out,
}

impl IscsiFront {
    /// The exports have changed: sessions keep what they may still reach; those that may reach nothing any more are
    /// ended.
    pub(in crate::shard) fn change_sessions(&mut self, cx: &mut Cx<'_>, parts: &mut Parts) {
        if let Some(directory) = &mut self.directory {
            directory.bound_sessions(parts.exports.admission.sessions);
        }
        let tags: Vec<Tag> = self.sessions.values().copied().collect();
        for tag in tags {
            match self.access(parts, tag) {
                Access::Reaches(nexus, luns) => self.change_luns(parts, nexus, luns),
                Access::Discovers => {}
                Access::Out => {
                    if let Some(session) = parts.conns.session(tag) {
                        session.proto.close(cx, Close::AfterLogout(cx.now + Duration::from_secs(5)));
                    }
                    parts.conns.touch(tag);
                }
            }
        }
    }

    /// What a session may do by the exports of now. Each connection is judged by its own addresses, as it was when it
    /// came; while there is none, the latest one is.
    fn access(&mut self, parts: &mut Parts, tag: Tag) -> Access {
        let Some(session) = parts.conns.session(tag) else { return Access::Out };
        let (nexus, proved) = (session.nexus, session.user.is_some());
        let (target, initiator) = (session.target.clone(), session.initiator.clone());
        let links: Vec<Accepted> = session.links.iter().map(|link| link.accepted).collect();
        let links = if links.is_empty() { vec![session.latest] } else { links };
        match (nexus, parts.exports.keep_session(target.as_deref(), &initiator, proved, &links)) {
            (_, Ok(_)) if target.is_none() => Access::Discovers,
            (Some(nexus), Ok(luns)) => Access::Reaches(nexus, luns),
            (_, _) => Access::Out,
        }
    }

    /// Whether a further connection of a session, that came like this, reaches just what its others reach. A session
    /// without any has from now on what this one reaches.
    pub(in crate::shard) fn reaches_the_same(
        &mut self,
        parts: &mut Parts,
        conn: Tag,
        accepted: &Accepted,
    ) -> bool {
        let Some(session) = parts.conns.session(conn) else { return false };
        let Some(nexus) = session.nexus else { return true };
        let (proved, initiator) = (session.user.is_some(), session.initiator.clone());
        let Some(target) = session.target.clone() else { return true };
        let others: Vec<Accepted> = session.links.iter().map(|link| link.accepted).collect();
        let Some(luns) = parts.exports.reached(&target, &initiator, proved, accepted) else { return false };
        let alike = |other: &Accepted| {
            parts.exports.reached(&target, &initiator, proved, other).as_ref() == Some(&luns)
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
    pub(in crate::shard) fn end_sessions_of(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, target: &str) {
        let tags: Vec<Tag> = self.sessions.values().copied().collect();
        for tag in tags {
            let Some(session) =
                parts.conns.session(tag).filter(|session| session.target.as_deref() == Some(target))
            else {
                continue;
            };
            session.proto.close(cx, Close::AfterLogout(cx.now + COLD_RESET_GRACE));
            parts.conns.touch(tag);
        }
    }
}

/// What a listing says of sessions.
pub(in crate::shard) fn session_entries(conns: &Connections) -> Vec<SessionEntry> {
    let sessions = conns.iter().filter_map(|(_, conn)| match &conn.kind {
        ConnKind::Session(session) => Some(session_entry(session, &conns.links)),
        ConnKind::Login(_) | ConnKind::Queue(_) => None,
    });
    sessions.collect()
}

fn session_entry(session: &Session, links: &Links) -> SessionEntry {
    let connections = session.links.iter().map(|link| ConnectionEntry {
        cid: link.cid.value(),
        accepted: link.accepted,
        digests: link.digests,
        segments: link.segments,
        algorithm: link.algorithm,
        traffic: links.traffic(link.id),
    });
    SessionEntry {
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
