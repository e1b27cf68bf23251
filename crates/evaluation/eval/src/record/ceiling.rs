//! The bare responder and requester in a record: what there can be at most, and no system.
//!
//! Invariant: a share is of the bare responder under the same load and over the same link, whose requester waits as the
//! system's initiator does.

use super::{Metric, Point, Record};
use crate::bootstrap::Ratio;
use crate::preset::{BARE_POLLING_SYSTEM, BARE_SYSTEM};

/// Initiators that poll.
const POLLING_INITIATORS: [&str; 3] = ["blockwire-polling", "spdk", BARE_POLLING_SYSTEM];

impl Point {
    /// Whether it is the bare responder's.
    pub fn is_ceiling(&self) -> bool {
        self.target == BARE_SYSTEM
    }

    /// Whether it is carried over a network by a system that can be held against others.
    pub fn is_networked_system(&self) -> bool {
        self.protocol != "local" && !self.is_ceiling()
    }
}

impl Record {
    /// What the bare responder did under a point's load; `None`: it was not measured, or the point is its own.
    pub fn ceiling_for(&self, point: &Point) -> Option<&Point> {
        if !point.is_networked_system() {
            return None;
        }
        let load = |one: &Point| (one.rw.clone(), one.bytes, one.depth, one.connections, one.mtu);
        let polls = |one: &Point| POLLING_INITIATORS.contains(&one.initiator.as_str());
        let mut all = self.points.iter().filter(|one| one.is_ceiling());
        all.find(|one| {
            load(one) == load(point)
                && one.labels == point.labels
                && one.is_closed == point.is_closed
                && polls(one) == polls(point)
        })
    }

    /// A point's I/Os per second over those of the bare responder.
    pub fn share_of_ceiling(&self, point: &Point) -> Option<Ratio> {
        point.ratio_to(self.ceiling_for(point)?, Metric::Iops)
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Record;
    use crate::record::tests::five;

    #[test]
    fn the_ceiling_waits_as_the_system_does() {
        let point = |target: &str, initiator: &str, iops| {
            let mut point = five(target, "randread", 4096, iops);
            initiator.clone_into(&mut point.initiator);
            point
        };
        let points = vec![
            point("bare", "bare", 100_000),
            point("bare", "bare-polling", 200_000),
            point("tgt", "blockwire", 50_000),
            point("tgt", "blockwire-polling", 50_000),
            five("tgt", "randread", 8192, 50_000),
        ];
        let record = Record { points, ..Record::default() };
        let share = |at: usize| record.share_of_ceiling(&record.points[at]).map(|share| share.ratio);
        assert_eq!((share(2), share(3)), (Some(0.5), Some(0.25)));
        assert_eq!((share(4), share(0)), (None, None), "another load, and the ceiling itself");
    }
}
