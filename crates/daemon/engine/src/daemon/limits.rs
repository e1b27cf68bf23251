//! Limits of operations and bytes per second of volumes, changed while they are served.

use shard::{Rate, RateLimits};

use super::{Daemon, VolumeRegistry, refusal_from_engine_error};
use control::{RefusalCode, RequestRefusal, report::VolumeReport};
use process::log::area;

/// A change of one limit: what is `None` stays, and a limit of 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateChange {
    pub(super) limit: Option<u64>,
    pub(super) burst: Option<u64>,
}

impl RateChange {
    /// What it makes of a limit; `key` names it.
    fn apply(self, before: Option<Rate>, key: &str) -> Result<Option<Rate>, String> {
        let burst_alone = || format!("{key}_burst has no effect without {key}_limit");
        match (self.limit, self.burst) {
            (None, None) => Ok(before),
            (Some(0), None) => Ok(None),
            (Some(0), Some(_)) => Err(burst_alone()),
            (Some(limit), burst) => {
                Rate::new(limit, burst).map(Some).ok_or(format!("{key}_burst must not be zero"))
            }
            (None, Some(burst)) => {
                let before = before.ok_or_else(burst_alone)?;
                let rate = Rate::new(before.per_second, Some(burst));
                rate.map(Some).ok_or(format!("{key}_burst must not be zero"))
            }
        }
    }
}

impl Daemon {
    /// Limits a volume, until the daemon exits or a configuration changes its limits.
    pub(super) fn limit_volume(
        &self,
        name: &str,
        (iops, bandwidth): (RateChange, RateChange),
    ) -> Result<VolumeReport, RequestRefusal> {
        self.volumes.lock_served().volume_report(name)?;
        let invalid =
            |why: String| RequestRefusal::new(RefusalCode::Invalid, format!("volume \"{name}\": {why}"));
        {
            let _turn = self.volumes.lock_changes_unbounded();
            let before = self.volumes.engine.volume_limits(name);
            let limits = RateLimits {
                iops: iops.apply(before.iops, "iops").map_err(invalid)?,
                bandwidth: bandwidth.apply(before.bandwidth, "bandwidth").map_err(invalid)?,
            };
            self.volumes.set_limits(name, limits)?;
        }
        self.volume_report(name, false)
    }
}

impl VolumeRegistry {
    /// Limits a volume from now on.
    pub(super) fn set_limits(&self, name: &str, limits: RateLimits) -> Result<(), RequestRefusal> {
        self.engine.set_volume_limits(name, limits).map_err(|why| refusal_from_engine_error(&why))?;
        let (iops, bandwidth) = (limits.iops, limits.bandwidth);
        tracing::info!(
            target: area::VOLUME,
            volume = name,
            iops_limit = iops.map(|rate| rate.per_second),
            iops_burst = iops.map(|rate| rate.burst),
            bandwidth_limit = bandwidth.map(|rate| rate.per_second),
            bandwidth_burst = bandwidth.map(|rate| rate.burst),
            "limits set"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_limit_leaves_what_it_does_not_name() {
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        let change = |limit, burst| RateChange { limit, burst };
        for (before, change, after) in [
            (None, change(None, None), Ok(None)),
            (None, change(Some(1000), None), Ok(rate(1000, 100))),
            (rate(1000, 7), change(Some(2000), None), Ok(rate(2000, 200))),
            (rate(1000, 7), change(None, Some(9)), Ok(rate(1000, 9))),
            (rate(1000, 7), change(None, None), Ok(rate(1000, 7))),
            (rate(1000, 7), change(Some(0), None), Ok(None)),
            (rate(1000, 7), change(Some(0), Some(3)), Err("without iops_limit")),
            (None, change(None, Some(3)), Err("without iops_limit")),
            (None, change(Some(5), Some(0)), Err("must not be zero")),
        ] {
            let got = change.apply(before, "iops");
            match after {
                Ok(after) => assert_eq!(got, Ok(after)),
                Err(said) => assert!(got.clone().unwrap_err().contains(said), "{got:?}"),
            }
        }
    }
}
