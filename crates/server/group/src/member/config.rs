//! What an instance is started with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use volume::Uuid;

use crate::ids::{GroupId, InstanceId};

/// How long things may take. All are measured by the clock that the world passes in, which must be monotonic.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A member that nothing is heard of for so long is lost.
    pub silence: Duration,
    /// A link carries a message at least so often.
    pub keep_alive: Duration,
    /// An owner that has heard nothing of the store for so long is lost, if this member has heard of it.
    pub store_silence: Duration,
    /// What failed is tried again after so long.
    pub retry: Duration,
    /// Objects are read at least so often, in case a notification is lost.
    pub refresh: Duration,
    /// A command waits for an owner at most so long.
    pub queue: Duration,
    /// A handover that takes longer is given up.
    pub handover: Duration,
    /// Members that want the same group wait for each other for so long.
    pub stagger: Duration,
    /// Groups are moved for balance when members have not changed for so long.
    pub balance: Duration,
    /// What a dead process has sent arrives within this time, or never. Its blocklist entry stays so long.
    pub orphan: Duration,
}

impl Default for Timing {
    /// `orphan` is 20 minutes: Linux gives up on data of a closed socket after `tcp_retries2` retransmissions, at
    /// most 15.4 minutes by its default.
    fn default() -> Self {
        Timing {
            silence: Duration::from_secs(2),
            keep_alive: Duration::from_millis(500),
            store_silence: Duration::from_secs(5),
            retry: Duration::from_millis(200),
            refresh: Duration::from_secs(1),
            queue: Duration::from_secs(20),
            handover: Duration::from_secs(1),
            stagger: Duration::from_millis(200),
            balance: Duration::from_secs(5),
            orphan: Duration::from_secs(20 * 60),
        }
    }
}

/// Who an instance is and what its group consists of.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The number that the store has given to this instance's client.
    pub instance: InstanceId,
    /// The gateway's name.
    pub gateway: Arc<str>,
    /// The identity of the gateway's state directory. **The caller holds the lock of that directory**, so earlier
    /// instances of it are dead: the kernel releases such a lock when its process ends, and not before. A copy of a
    /// directory needs another identity.
    pub state: Uuid,
    /// Where other members reach this instance.
    pub address: Arc<str>,
    /// Where hosts reach it (see [`MemberEntry::portals`](crate::MemberEntry)).
    pub portals: Arc<str>,
    /// The groups with their volumes, as the configuration has them.
    pub groups: BTreeMap<GroupId, Vec<Uuid>>,
    /// How long things may take.
    pub timing: Timing,
}
