//! Which nexuses reach the volumes whose home is here, over all shards.
//!
//! An initiator may log in to several targets that lead to one volume, through the same port and with the
//! same ISID. For the volume these sessions are one nexus: state with its lifetime, such as a reservation by
//! RESERVE(6), ends with the last of them, not with the first.

use std::collections::HashMap;
use std::sync::Arc;

use buf::Cx;
use endpoint::ShardId;
use volume::{Answer, Identity, RequestId, Shard as Core, VolumeId, VolumeRequest};

use super::Shard;
use crate::message::Message;

/// How many sessions of each nexus reach each volume whose home is here.
#[derive(Debug, Default)]
pub(super) struct NexusPresence {
    sessions: HashMap<VolumeId, HashMap<Arc<Identity>, u32>>,
}

impl NexusPresence {
    pub(super) fn came(&mut self, volume: VolumeId, who: Arc<Identity>) {
        *self.sessions.entry(volume).or_default().entry(who).or_default() += 1;
    }

    /// A session reaches the volume no more; whether another one of its nexus does.
    fn gone(&mut self, volume: VolumeId, who: &Identity) -> bool {
        let Some(nexuses) = self.sessions.get_mut(&volume) else { return false };
        let Some(left) = nexuses.get_mut(who) else { return false };
        *left -= 1;
        let stays = *left > 0;
        if !stays {
            nexuses.remove(who);
        }
        if nexuses.is_empty() {
            self.sessions.remove(&volume);
        }
        stays
    }
}

impl Shard {
    /// A session reaches a volume no more, whose home is here: with the last one of its nexus ends what lasts
    /// as long as that.
    pub(super) fn nexus_gone(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        (from, id): (ShardId, RequestId),
        who: Arc<Identity>,
    ) {
        if self.nexus_presence.gone(volume, &who) {
            let answer = Answer { to: Core(from.0), id, result: Ok(()) };
            return self.parts.outbox.post(from, Message::Answer(volume, answer));
        }
        if let Some(answer) = self.parts.volumes.ask(cx, volume, from, id, VolumeRequest::NexusLost(who)) {
            self.parts.outbox.post(from, Message::Answer(volume, answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nexus_is_there_as_long_as_one_of_its_sessions() {
        let mut nexus_presence = NexusPresence::default();
        let [a, b] = [1, 2].map(|id| Arc::new(Identity::Host([id; 16])));
        for who in [&a, &a, &b] {
            nexus_presence.came(VolumeId(1), who.clone());
        }
        nexus_presence.came(VolumeId(2), a.clone());
        assert!(nexus_presence.gone(VolumeId(1), &a));
        assert!(!nexus_presence.gone(VolumeId(1), &a) && !nexus_presence.gone(VolumeId(1), &b));
        assert!(!nexus_presence.gone(VolumeId(2), &a) && !nexus_presence.gone(VolumeId(2), &a));
        assert!(nexus_presence.sessions.is_empty());
    }
}
