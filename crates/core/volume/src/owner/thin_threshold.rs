//! The threshold of a thin volume (SBC-3 §4.7.3.7): hosts are told when so much of its capacity is allocated.
//!
//! The home looks once a second, at what the medium's gauge says: that costs operations nothing. It tells once when the
//! threshold is reached, and again only after less was allocated in between, at most once a minute.

use std::time::Duration;

use buf::Time;

use crate::backend::Geometry;
use crate::shared_gate_state::SharedGateState;

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two notices: so allocation that goes up and down about the threshold fills no log.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);

/// What is watched.
#[derive(Debug)]
pub(super) struct ThinThreshold {
    shared: SharedGateState,
    /// When to look again: at first, at once.
    next: Time,
    /// It was reached when last looked at.
    is_reached: bool,
    told: Option<Time>,
}

impl ThinThreshold {
    pub(super) fn new(shared: SharedGateState) -> Self {
        ThinThreshold { shared, next: Time(0), is_reached: false, told: None }
    }

    pub(super) fn next_check(&self) -> Time {
        self.next
    }

    /// Looks, if it is time; how many bytes are allocated if it is to be told.
    pub(super) fn check(&mut self, now: Time, geometry: &Geometry) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + CHECK_INTERVAL;
        let allocated = self.shared.allocated_bytes()?;
        let threshold = self.shared.thin_threshold_bytes(geometry.capacity_bytes())?;
        let was_reached = std::mem::replace(&mut self.is_reached, allocated >= threshold);
        if was_reached || !self.is_reached {
            return None;
        }
        if self.told.is_some_and(|told| now < told + NOTICE_INTERVAL) {
            // It is told later, if it stays so.
            self.is_reached = false;
            return None;
        }
        self.told = Some(now);
        Some(allocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Uuid, VolumeFacts, VolumeId};
    use crate::notice::{Notice, NoticeCause, NoticeReceivers};
    use crate::{Ack, AllocationGauge, OperatorNotice, RamDisk, ShardId, VolumeOwner};

    const SECOND: u64 = 1_000_000_000;

    /// A volume of 1 MiB that tells from three quarters on, and what it has told after its clock says so.
    struct Watched {
        owner: VolumeOwner,
        gauge: AllocationGauge,
    }

    impl Watched {
        fn new() -> Self {
            let geometry = RamDisk::new(256, 256, 4096, 4096).geometry();
            let facts = VolumeFacts::new(VolumeId::new(0, 0), "thin", Uuid([7; 16]));
            let mut owner = VolumeOwner::restore(facts, geometry, 1, false, None).unwrap();
            let (shared, gauge) = (SharedGateState::new(1), AllocationGauge::default());
            shared.set_allocation_gauge(gauge.clone());
            shared.set_thin_threshold_percent(75);
            owner.watch_thin_threshold(shared);
            Watched { owner, gauge }
        }

        /// Whether it is told at this second, with so much allocated.
        fn tells(&mut self, second: u64, allocated: u64) -> bool {
            self.gauge.set(allocated);
            let now = Time(second * SECOND);
            assert!(self.owner.poll_timeout().is_some_and(|due| due <= now));
            self.owner.handle_timeout(now);
            let Some(update) = self.owner.poll_view_update() else {
                assert_eq!(self.owner.poll_operator_notice(), None);
                return false;
            };
            let notice = Notice { to: NoticeReceivers::Initiators, cause: NoticeCause::ThinThresholdReached };
            assert_eq!(update.notices, [notice]);
            assert!(!update.drain);
            let capacity = 1 << 20;
            assert_eq!(
                self.owner.poll_operator_notice(),
                Some(OperatorNotice::ThinThreshold { allocated, capacity })
            );
            self.owner.handle_ack(now, Ack { from: ShardId(0), change: update.change });
            true
        }
    }

    #[test]
    fn a_threshold_is_told_when_it_is_reached_and_again_only_from_below() {
        let mut thin = Watched::new();
        let three_quarters = 768 << 10;
        let told =
            [three_quarters - 1, three_quarters, 1 << 20, 0, 1 << 20].into_iter().zip([1, 2, 3, 63, 64]);
        let told: Vec<bool> = told.map(|(allocated, second)| thin.tells(second, allocated)).collect();
        assert_eq!(told, [false, true, false, false, true]);
    }

    #[test]
    fn allocation_that_goes_up_and_down_is_told_once_a_minute() {
        let mut thin = Watched::new();
        let told = (1..=180).filter(|second| thin.tells(*second, if second % 2 == 0 { 1 << 20 } else { 0 }));
        assert_eq!(told.collect::<Vec<_>>(), [2, 62, 122]);
        // One that is held back is told in time, if it stays.
        let told = (181..=190).filter(|second| thin.tells(*second, 1 << 20));
        assert_eq!(told.collect::<Vec<_>>(), [182]);
    }

    #[test]
    fn a_volume_that_grows_has_a_higher_threshold() {
        let mut thin = Watched::new();
        assert!(!thin.tells(1, 700 << 10));
        let geometry = RamDisk::new(512, 512, 4096, 4096).geometry();
        let request = crate::VolumeRequest::Resize(geometry);
        thin.owner.handle_request(Time(SECOND), ShardId(0), crate::RequestId(1), request);
        let update = thin.owner.poll_view_update().unwrap();
        thin.owner.handle_ack(Time(SECOND), Ack { from: ShardId(0), change: update.change });
        thin.gauge.set(1 << 20);
        thin.owner.handle_timeout(Time(2 * SECOND));
        assert_eq!(thin.owner.poll_view_update(), None, "half of it");
    }
}
