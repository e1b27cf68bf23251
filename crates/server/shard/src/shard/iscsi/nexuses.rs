//! The ends of nexuses: the homes of the volumes that a nexus reached end what lasts as long as it, such as a reservation
//! by RESERVE(6).
//!
//! A nexus is one session: no two targets that lead to one volume have a port in common, and the directory lets a session
//! be reinstated only when the one before has ended.

use std::collections::HashMap;
use std::sync::Arc;

use buf::Cx;
use scsi_server::{LunEntry, NexusKey};
use stream::Tag;
use volume::{IdSpace, Identity, RequestId, VolumeId, VolumeRequest};

use super::IscsiFront;
use crate::shard::SharedParts;

/// Asks about the ends of nexuses are numbered from here, those of the control plane below.
const NEXUS_END_REQUEST_BASE: u64 = 1 << 61;

/// Volumes' homes that have still to let go of nexuses that end.
#[derive(Debug, Default)]
pub(in crate::shard) struct PendingNexusEnds {
    /// The session that waits for the answer.
    requests: HashMap<RequestId, Tag>,
    made: u64,
}

impl PendingNexusEnds {
    /// Whether any has not been answered.
    pub(in crate::shard) fn is_busy(&self) -> bool {
        !self.requests.is_empty()
    }

    fn next_request_id(&mut self, conn: Tag) -> RequestId {
        self.made += 1;
        let id = RequestId::in_space(IdSpace::Shard, NEXUS_END_REQUEST_BASE | self.made);
        self.requests.insert(id, conn);
        id
    }
}

impl IscsiFront {
    /// Changes what a nexus reaches.
    pub(in crate::shard) fn change_luns(
        &mut self,
        parts: &mut SharedParts,
        nexus: NexusKey,
        luns: Vec<LunEntry>,
    ) {
        let spec = self.server.nexus(nexus);
        let (who, old, new) =
            (spec.nexus.identity.clone(), volumes_of_luns(&spec.luns), volumes_of_luns(&luns));
        self.server.change_luns(nexus, luns);
        let Some(conn) = self.nexuses.get(nexus.0 as usize).copied().flatten() else { return };
        // All homes know of a session that leaves.
        if parts.conns.session_mut(conn).is_none_or(|session| session.leaves) {
            return;
        }
        for volume in old.into_iter().filter(|volume| !new.contains(volume)) {
            self.request_nexus_end(parts, conn, volume, who.clone());
        }
    }

    /// Asks the home of a volume to let a nexus go. The session does not end before the home has answered; otherwise
    /// the request could reach the home after one of the next session of this nexus, from another shard.
    fn request_nexus_end(
        &mut self,
        parts: &mut SharedParts,
        conn: Tag,
        volume: VolumeId,
        who: Arc<Identity>,
    ) {
        let id = self.nexus_ends.next_request_id(conn);
        parts.post_request(volume, id, VolumeRequest::NexusLost(who));
        if let Some(session) = parts.conns.session_mut(conn) {
            session.homes_left += 1;
        }
    }

    /// All tasks of a session that is ending have ended: asks the homes of its volumes to end what lasts as
    /// long as its nexus, such as a reservation by RESERVE(6). Its end is told when all have answered.
    pub(super) fn report_nexus_loss(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let nexus = parts.conns.session_mut(conn).and_then(|session| session.nexus);
        if let Some(nexus) = nexus {
            let spec = self.server.nexus(nexus);
            let (identity, volumes) = (spec.nexus.identity.clone(), volumes_of_luns(&spec.luns));
            for volume in volumes {
                self.request_nexus_end(parts, conn, volume, identity.clone());
            }
        }
        if let Some(session) = parts.conns.session_mut(conn) {
            session.leaves = true;
        }
        self.finish_nexus_end(cx, parts, conn);
    }

    /// Whether an answer was about the end of a nexus.
    pub(in crate::shard) fn handle_nexus_end_answer(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: RequestId,
    ) -> bool {
        let Some(conn) = self.nexus_ends.requests.remove(&id) else { return false };
        if let Some(session) = parts.conns.session_mut(conn) {
            session.homes_left -= 1;
        }
        self.finish_nexus_end(cx, parts, conn);
        true
    }

    fn finish_nexus_end(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        if let Some(session) =
            parts.conns.session_mut(conn).filter(|session| session.leaves && session.homes_left == 0)
        {
            session.proto.handle_nexus_ended(cx);
            parts.conns.mark_pending(conn);
        }
    }
}

/// The volumes that some LUNs lead to, each once.
fn volumes_of_luns(luns: &[LunEntry]) -> Vec<VolumeId> {
    let volumes = luns.iter().map(|entry| entry.volume);
    let mut volumes: Vec<_> = volumes.filter(|volume| *volume != VolumeId::UNAVAILABLE).collect();
    volumes.sort_unstable();
    volumes.dedup();
    volumes
}
