//! Limits of operations and bytes per second, as volumes and hosts have them in the configuration.

use std::fmt;

use crate::{reader::TableReader, size};
use shard::{Rate, RateLimits};

/// The keys, for a volume and for a host.
pub const KEYS: [&str; 4] = ["iops_limit", "iops_burst", "bandwidth_limit", "bandwidth_burst"];

/// What is written of limits; `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitKeys {
    /// Operations per second.
    pub iops_limit: Option<u64>,
    /// Operations at once; without it a tenth of a second's.
    pub iops_burst: Option<u64>,
    /// Bytes per second.
    pub bandwidth_limit: Option<u64>,
    /// Bytes at once; without it a tenth of a second's.
    pub bandwidth_burst: Option<u64>,
}

impl LimitKeys {
    /// Sets one of [`KEYS`]; any other is not of these.
    pub fn set_key(&mut self, key: &str, text: &str) -> Result<(), String> {
        let (value, parsed) = match key {
            "iops_limit" => (&mut self.iops_limit, parse_count(text)),
            "iops_burst" => (&mut self.iops_burst, parse_count(text)),
            "bandwidth_limit" => (&mut self.bandwidth_limit, parse_bytes(text)),
            "bandwidth_burst" => (&mut self.bandwidth_burst, parse_bytes(text)),
            other => return Err(format!("is no limit: \"{other}\"")),
        };
        *value = Some(parsed?);
        Ok(())
    }

    /// What they come to.
    ///
    /// # Errors
    /// A key that means nothing without another, and why.
    pub fn rates(&self) -> Result<RateLimits, (&'static str, &'static str)> {
        if self.iops_burst.is_some() && self.iops_limit.is_none() {
            return Err(("iops_burst", "has no effect without iops_limit"));
        }
        if self.bandwidth_burst.is_some() && self.bandwidth_limit.is_none() {
            return Err(("bandwidth_burst", "has no effect without bandwidth_limit"));
        }
        let rate = |limit: Option<u64>, burst| limit.and_then(|limit| Rate::new(limit, burst));
        Ok(RateLimits {
            iops: rate(self.iops_limit, self.iops_burst),
            bandwidth: rate(self.bandwidth_limit, self.bandwidth_burst),
        })
    }

    /// What was checked.
    pub fn checked_rates(&self) -> RateLimits {
        self.rates().unwrap_or(RateLimits::NONE)
    }
}

/// The keys as a SPEC has them, each behind a comma.
impl fmt::Display for LimitKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in [("iops_limit", self.iops_limit), ("iops_burst", self.iops_burst)] {
            if let Some(count) = value {
                write!(f, ",{key}={count}")?;
            }
        }
        for (key, value) in
            [("bandwidth_limit", self.bandwidth_limit), ("bandwidth_burst", self.bandwidth_burst)]
        {
            if let Some(bytes) = value {
                write!(f, ",{key}={}", size::format_exact(bytes))?;
            }
        }
        Ok(())
    }
}

/// A number of operations.
pub fn parse_count(text: &str) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("is a number of operations from 1, not \"{text}\"")),
    }
}

/// A number of bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text) {
        Ok(0) => Err("must not be zero; leave it out if nothing is to be limited".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(why.to_string()),
    }
}

/// The limits of a host.
pub(crate) fn read_host_limits(table: &TableReader<'_>) -> LimitKeys {
    let mut limits = LimitKeys::default();
    for key in KEYS {
        let Some(value) = table.as_spec_value(key) else { continue };
        if let Err(why) = limits.set_key(key, &value.value) {
            table.file.sink.note_error(&value.at, format!("{key} {why} in [[host]]"));
        }
    }
    if let Err((key, why)) = limits.rates() {
        let at = table.as_spec_value(key).map_or_else(|| table.place(), |value| value.at);
        table.file.sink.note_error(&at, format!("{key} {why} in [[host]]"));
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written_again() {
        let mut limits = LimitKeys::default();
        limits.set_key("iops_limit", "5000").unwrap();
        limits.set_key("bandwidth_limit", "100M").unwrap();
        limits.set_key("bandwidth_burst", "1536K").unwrap();
        assert_eq!(limits.to_string(), ",iops_limit=5000,bandwidth_limit=100M,bandwidth_burst=1536K");
        let rates = limits.rates().unwrap();
        assert_eq!(rates.iops, Some(Rate { per_second: 5000, burst: 500 }));
        assert_eq!(rates.bandwidth, Some(Rate { per_second: 100 << 20, burst: 1536 << 10 }));
        assert_eq!(LimitKeys::default().rates(), Ok(RateLimits::NONE));
    }

    #[test]
    fn what_limits_nothing_is_refused() {
        let mut limits = LimitKeys::default();
        for (key, text, said) in [
            ("iops_limit", "0", "from 1"),
            ("iops_limit", "5K", "from 1"),
            ("bandwidth_limit", "0", "must not be zero"),
            ("bandwidth_burst", "fast", "not a size"),
        ] {
            let why = limits.set_key(key, text).unwrap_err();
            assert!(why.contains(said), "{key} = {text}: {why}");
        }
        limits.set_key("iops_burst", "5").unwrap();
        assert_eq!(limits.rates().unwrap_err().0, "iops_burst");
    }
}
