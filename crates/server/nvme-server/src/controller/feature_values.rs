//! The values of a controller's features (NVMe Base §5.27.1). `admin/features.rs` decides which may be read
//! and set.

use buf::Time;
use nvme::log::ReservationNotice;

pub(crate) const HOST_BEHAVIOR_LEN: usize = 512;
pub(crate) const TIMESTAMP_LEN: usize = 8;
/// The composite temperature: no other is measured.
pub(crate) const OVER_THRESHOLD_DEFAULT: u32 = 0xffff;

/// The values of a controller's features, as a reset leaves them at first.
#[derive(Debug)]
pub(crate) struct FeatureValues {
    pub(crate) arbitration: u32,
    pub(crate) power: u32,
    /// Over and under.
    pub(crate) thresholds: [u32; 2],
    pub(crate) error_recovery: u32,
    pub(crate) atomicity: u32,
    /// Milliseconds since 1970 as the host said, and when; else since the controller opened.
    pub(crate) timestamp: Option<(u64, Time)>,
    pub(crate) behavior: Vec<u8>,
    /// Feature 82h by namespace, ascending; those that mask nothing are not there.
    pub(crate) masks: Vec<(u32, u8)>,
}

impl Default for FeatureValues {
    fn default() -> Self {
        FeatureValues {
            arbitration: 0,
            power: 0,
            thresholds: [OVER_THRESHOLD_DEFAULT, 0],
            error_recovery: 0,
            atomicity: 0,
            timestamp: None,
            behavior: vec![0; HOST_BEHAVIOR_LEN],
            masks: Vec::new(),
        }
    }
}

impl FeatureValues {
    /// Whether this temperature, in kelvins, is at or beyond a threshold.
    pub(crate) fn is_beyond_threshold(&self, kelvins: u16) -> bool {
        let [over, under] = self.thresholds;
        u32::from(kelvins) >= over || u32::from(kelvins) <= under
    }

    /// Whether the host wants not to hear of such a notice.
    pub(crate) fn masks_notice(&self, nsid: u32, what: ReservationNotice) -> bool {
        self.reservation_mask(nsid) >> (what as u8) & 1 != 0
    }

    /// Whether the host waits before it tries a command again for as long as its status says (ACRE).
    pub(crate) fn supports_retry_delay(&self) -> bool {
        self.behavior.first() == Some(&1)
    }

    pub(crate) fn reservation_mask(&self, nsid: u32) -> u8 {
        let place = self.masks.binary_search_by_key(&nsid, |(nsid, _)| *nsid);
        place.ok().and_then(|at| self.masks.get(at)).map_or(0, |(_, mask)| *mask)
    }

    pub(crate) fn set_reservation_mask(&mut self, nsid: u32, mask: u8) {
        match self.masks.binary_search_by_key(&nsid, |(nsid, _)| *nsid) {
            Ok(at) => {
                if let Some((_, known)) = self.masks.get_mut(at) {
                    *known = mask;
                }
            }
            Err(at) => self.masks.insert(at, (nsid, mask)),
        }
    }

    /// The value of feature 0Eh: 48 bits of milliseconds, and who said them.
    pub(crate) fn timestamp(&self, opened: Time, now: Time) -> [u8; TIMESTAMP_LEN] {
        let (base, since, origin) = match self.timestamp {
            Some((base, at)) => (base, now.since(at), 1 << 1),
            None => (0, now.since(opened), 0),
        };
        let mut bytes = base.wrapping_add(since.as_millis() as u64).to_le_bytes();
        (bytes[6], bytes[7]) = (origin, 0);
        bytes
    }
}
