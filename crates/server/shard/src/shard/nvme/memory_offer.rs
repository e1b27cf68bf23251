//! What a new controller is offered, given the memory that can still be promised (law 3).

use buf::{Cx, PoolAccount};
use nvme_server::ControllerLimits;
use nvme_tcp::CAPSULES_RESERVED;

/// Rather than have fewer queues than this, a host goes without in-capsule data.
const QUEUES_WITH_IN_CAPSULE_MIN: u64 = 16;
/// The in-capsule data that is offered when memory grows short: one 4 KiB write.
const REDUCED_IN_CAPSULE: u32 = 4096;

/// As many queues with in-capsule data as a quarter of what is left has room for, so that the next
/// controllers are served too; or with less in-capsule data; or all queues without any (IOCCSZ = 4),
/// which need no promise. A controller's queues go round the shards, so each bears its part: `left` is
/// what the shard with the least has left to promise.
pub(super) fn affordable_limits(left: u64, wanted: ControllerLimits, shards: u16) -> ControllerLimits {
    let left = left / 4;
    let worth = QUEUES_WITH_IN_CAPSULE_MIN.min(wanted.queues.into());
    for in_capsule in [wanted.in_capsule, wanted.in_capsule.min(REDUCED_IN_CAPSULE)] {
        if in_capsule == 0 {
            return wanted;
        }
        let each = u64::from(CAPSULES_RESERVED * in_capsule.next_power_of_two().max(512));
        let room = left / each * u64::from(shards);
        if room >= worth {
            let queues = wanted.queues.min(u16::try_from(room).unwrap_or(u16::MAX));
            return ControllerLimits { queues, in_capsule, ..wanted };
        }
    }
    ControllerLimits { in_capsule: 0, ..wanted }
}

/// What this shard has left to promise, in bytes.
pub(super) fn reservable_bytes(cx: &Cx<'_>) -> u64 {
    cx.pool.reservable_bytes(PoolAccount::NvmeTcp) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::Pool;

    #[test]
    fn the_offer_shrinks_with_the_memory_that_is_left() {
        let pool = Pool::new(128 << 20);
        let wanted = ControllerLimits {
            queues: 128,
            entries: 1024,
            transfer: nvme::TransferMax::MAX,
            in_capsule: 8192,
        };
        let offer = || {
            let offer = affordable_limits(pool.reservable_bytes(PoolAccount::NvmeTcp) as u64, wanted, 1);
            (offer.queues, offer.in_capsule)
        };
        assert_eq!(offer(), (128, 8192));
        assert!(pool.reserve(PoolAccount::NvmeTcp, 56 << 20));
        assert_eq!(offer(), (128, 8192));
        assert!(pool.reserve(PoolAccount::NvmeTcp, 6 << 20));
        assert_eq!(offer(), (32, 8192));
        assert_eq!(affordable_limits(pool.reservable_bytes(PoolAccount::NvmeTcp) as u64, wanted, 4), wanted);
        assert!(pool.reserve(PoolAccount::NvmeTcp, (1 << 20) + 1));
        assert_eq!(offer(), (31, 4096));
        assert!(pool.reserve(PoolAccount::NvmeTcp, 512 << 10));
        assert_eq!(offer(), (128, 0));
        let few = ControllerLimits { queues: 4, ..wanted };
        assert_eq!(affordable_limits(pool.reservable_bytes(PoolAccount::NvmeTcp) as u64, few, 1), few);
        let none = ControllerLimits { in_capsule: 0, ..wanted };
        assert_eq!(affordable_limits(pool.reservable_bytes(PoolAccount::NvmeTcp) as u64, none, 1), none);
    }
}
