//! Whether this machine has the memory that RAM volumes may come to need.

use std::fs;

use config::{
    plan::Plan,
    size,
    spec::{Source, Spec},
};

/// What there is to warn of: RAM volumes that may grow beyond this machine's memory. The kernel ends the daemon when
/// it is used up, and with it every volume.
pub fn shortage(plan: &Plan) -> Option<String> {
    let wanted = plan.volumes.iter().map(|volume| ram(&volume.spec)).fold(0, u64::saturating_add);
    beyond(wanted, total(&fs::read_to_string("/proc/meminfo").ok()?)?)
}

/// Bytes of memory that a volume may come to need.
fn ram(spec: &Spec) -> u64 {
    match &spec.source {
        Source::Ram => spec.size.unwrap_or(0),
        Source::Stripe(striped) => striped.legs.iter().map(ram).fold(0, u64::saturating_add),
        Source::File(_) | Source::Device(_) | Source::Null | Source::Remote(_) => 0,
    }
}

/// `MemTotal` of `/proc/meminfo`, bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn beyond(wanted: u64, there: u64) -> Option<String> {
    (wanted > there).then(|| {
        format!(
            "RAM volumes may grow to {}, but this machine has {} of memory: when they have filled it, the kernel ends \
             the daemon; make them smaller",
            size::human(wanted),
            size::human(there)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_over_legs_and_compared() {
        let spec = |text| config::spec::parse(text).unwrap();
        assert_eq!(ram(&spec("ram:900G")), 900 << 30);
        assert_eq!(ram(&spec("stripe:ram:1G+ram:1G")), 2 << 30);
        assert_eq!(ram(&spec("null:900G")), 0);
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(total("MemTotal: much\n"), None);
        assert_eq!(beyond(1 << 30, 1 << 30), None);
        let why = beyond(900 << 30, 16 << 30).unwrap();
        assert!(why.contains("900 GiB") && why.contains("16 GiB"), "{why}");
    }
}
