//! The limits of hosts: one for each, whatever leads to it, that all shards share.

use std::{collections::HashMap, sync::Arc};

use shard::{RateLimiter, RateLimits};

use super::FixedSettings;
use config::plan::Host;
use control::report::{HostRateLimitReport, RateLimitReport};

/// The limits of hosts that have some, by the names of the hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct HostLimiters(HashMap<String, Arc<RateLimiter>>);

impl HostLimiters {
    /// Those of these hosts, with full buckets.
    pub(super) fn of(hosts: &[Host]) -> Self {
        let limiter = |host: &Host| {
            let limits = host.limits.checked_rates();
            (limits != RateLimits::NONE).then(|| (host.name.clone(), Arc::new(RateLimiter::new(limits))))
        };
        HostLimiters(hosts.iter().filter_map(limiter).collect())
    }

    /// Limits that are as before go on as they are: another configuration gives nobody a new burst.
    pub(super) fn keep_of(&mut self, before: &HostLimiters) {
        for (name, limiter) in &mut self.0 {
            if let Some(known) = before.0.get(name).filter(|known| known.limits() == limiter.limits()) {
                *limiter = known.clone();
            }
        }
    }
}

/// What is shown of limits.
pub(in crate::dataplane) fn rate_limit_report(limiter: &RateLimiter) -> RateLimitReport {
    let RateLimits { iops, bandwidth } = limiter.limits();
    let (throttled, waited) = limiter.delays();
    RateLimitReport {
        iops_limit: iops.map(|rate| rate.per_second),
        iops_burst: iops.map(|rate| rate.burst),
        bandwidth_limit_bytes: bandwidth.map(|rate| rate.per_second),
        bandwidth_burst_bytes: bandwidth.map(|rate| rate.burst),
        throttled,
        throttled_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
    }
}

impl FixedSettings {
    /// What is shown of the limits of hosts, in the order of the hosts.
    pub fn host_limit_reports(&self) -> Vec<HostRateLimitReport> {
        let report = |host: &Host| {
            let limits = rate_limit_report(&*self.host_limiter(&host.name)?);
            Some(HostRateLimitReport { host: host.name.clone(), limits })
        };
        self.hosts.iter().filter_map(report).collect()
    }

    /// The limits of the configured host of this name.
    pub fn host_limiter(&self, name: &str) -> Option<Arc<RateLimiter>> {
        self.host_limiters.0.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{example::example_plan, state::target_ports::TargetPortNumbers};

    /// One limit for whatever leads to the host; another configuration replaces it only if it says something else.
    #[test]
    fn a_host_has_one_limit_that_outlives_configurations_which_leave_it() {
        let mut plan = example_plan();
        let at = plan.hosts.iter().position(|host| host.name == "db1").unwrap();
        plan.hosts[at].limits.iops_limit = Some(500);
        let settings = FixedSettings::of(&plan);
        let limiter = settings.host_limiter("db1").unwrap();
        let exports = settings.build_exports(&plan.ways, &TargetPortNumbers::default(), 1, |_| None);
        let rules = exports.targets.iter().flat_map(|target| &target.rules);
        let limited: Vec<_> = rules.filter_map(|rule| rule.limiter.as_ref()).collect();
        assert!(limited.len() == 2 && limited.iter().all(|one| Arc::ptr_eq(one, &limiter)), "{limited:?}");
        assert!(settings.host_limiter("web").is_none() && settings.host_limit_reports().len() == 1);

        plan.hosts[at].both = true;
        let (same, _) = FixedSettings::after(&plan, &settings).unwrap();
        assert!(Arc::ptr_eq(&same.host_limiter("db1").unwrap(), &limiter));
        plan.hosts[at].limits.iops_burst = Some(7);
        let (other, _) = FixedSettings::after(&plan, &same).unwrap();
        assert_eq!(other.host_limiter("db1").unwrap().limits().iops.map(|rate| rate.burst), Some(7));
    }
}
