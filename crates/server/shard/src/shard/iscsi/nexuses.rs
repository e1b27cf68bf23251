//! The ends of nexuses: the homes of the volumes that a nexus reached end what lasts as long as it, such as a reservation
//! by RESERVE(6).
//!
//! A nexus is one session: no two targets that lead to one volume have a port in common, and the directory lets a session
//! be reinstated only when the one before has ended.

use std::collections::HashMap;

use buf::Cx;
use scsi_server::{LunEntry, NexusKey};
use stream::Tag;
use volume::{Issuer, RequestId, VolumeId, VolumeRequest};

use super::IscsiFront;
use crate::shard::Parts;

/// Asks about the ends of nexuses are numbered from here, those of the control plane below.
const NEXUS_ENDS: u64 = 1 << 61;

/// Volumes' homes that have still to let go of nexuses that end.
#[derive(Debug, Default)]
pub(in crate::shard) struct NexusEnds {
    /// The session that waits for the answer.
    requests: HashMap<RequestId, Tag>,
    made: u64,
}

impl NexusEnds {
    fn number(&mut self, conn: Tag) -> RequestId {
        let id = self.next();
        self.requests.insert(id, conn);
        id
    }

    /// A number of its own.
    pub(in crate::shard) fn next(&mut self) -> RequestId {
        self.made += 1;
        RequestId::of(Issuer::Shard, NEXUS_ENDS | self.made)
    }
}

impl IscsiFront {
    /// Changes what a nexus reaches.
    pub(in crate::shard) fn change_luns(&mut self, parts: &mut Parts, nexus: NexusKey, luns: Vec<LunEntry>) {
        let spec = self.server.nexus(nexus);
        let (who, old, new) = (spec.nexus.identity.clone(), volumes_of(&spec.luns), volumes_of(&luns));
        self.server.change_luns(nexus, luns);
        let conn = self.nexuses.get(nexus.0 as usize).copied().flatten();
        if conn.and_then(|conn| parts.conns.session(conn)).is_none_or(|session| session.leaves) {
            // All homes know that it goes.
            return;
        }
        for volume in old.into_iter().filter(|volume| !new.contains(volume)) {
            // Nobody waits for the answer.
            let id = self.nexus_ends.next();
            parts.post_request(volume, id, VolumeRequest::NexusLost(who.clone()));
        }
    }

    /// All tasks of a session that is ending have ended: asks the homes of its volumes to end what lasts as
    /// long as its nexus, such as a reservation by RESERVE(6). Its end is told when all have answered.
    pub(super) fn end_nexus(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag) {
        let nexus = parts.conns.session(conn).and_then(|session| session.nexus);
        let mut asked = 0;
        if let Some(nexus) = nexus {
            let spec = self.server.nexus(nexus);
            let (identity, volumes) = (spec.nexus.identity.clone(), volumes_of(&spec.luns));
            for volume in volumes {
                let id = self.nexus_ends.number(conn);
                parts.post_request(volume, id, VolumeRequest::NexusLost(identity.clone()));
                asked += 1;
            }
        }
        if let Some(session) = parts.conns.session(conn) {
            (session.homes_left, session.leaves) = (asked, true);
        }
        self.finish_nexus_end(cx, parts, conn);
    }

    /// Whether an answer was about the end of a nexus.
    pub(in crate::shard) fn nexus_end_answered(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        id: RequestId,
    ) -> bool {
        let Some(conn) = self.nexus_ends.requests.remove(&id) else { return false };
        if let Some(session) = parts.conns.session(conn) {
            session.homes_left -= 1;
        }
        self.finish_nexus_end(cx, parts, conn);
        true
    }

    fn finish_nexus_end(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag) {
        if let Some(session) = parts.conns.session(conn).filter(|session| session.homes_left == 0) {
            session.proto.nexus_ended(cx);
            parts.conns.touch(conn);
        }
    }
}

/// The volumes that some LUNs lead to, each once.
fn volumes_of(luns: &[LunEntry]) -> Vec<VolumeId> {
    let volumes = luns.iter().map(|entry| entry.volume);
    let mut volumes: Vec<_> = volumes.filter(|volume| *volume != VolumeId::AWAY).collect();
    volumes.sort_unstable();
    volumes.dedup();
    volumes
}
