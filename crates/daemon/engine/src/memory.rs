//! Whether this machine has the memory that RAM volumes may come to need.

use std::fs;

use config::{
    plan::Plan,
    size,
    spec::{Spec, VolumeSource},
};

/// What there is to warn of: RAM volumes that may grow beyond this machine's memory. The kernel ends the daemon when
/// it is used up, and with it every volume.
pub fn memory_warning(plan: &Plan) -> Option<String> {
    ram_warning(plan.volumes.iter().map(|volume| &volume.spec))
}

/// As [`memory_warning`], of volumes that may have been created or resized at run time.
pub fn ram_warning<'a>(specs: impl Iterator<Item = &'a Spec>) -> Option<String> {
    let wanted = specs.map(volume_ram_bytes).fold(0, u64::saturating_add);
    shortage_message(wanted, total_memory(&fs::read_to_string("/proc/meminfo").ok()?)?)
}

/// Bytes of memory that a volume may come to need.
pub fn volume_ram_bytes(spec: &Spec) -> u64 {
    match &spec.source {
        VolumeSource::Ram => spec.size.unwrap_or(0),
        VolumeSource::Stripe(striped) => {
            striped.legs.iter().map(volume_ram_bytes).fold(0, u64::saturating_add)
        }
        VolumeSource::File(_)
        | VolumeSource::Device(_)
        | VolumeSource::Null
        | VolumeSource::Remote(_)
        | VolumeSource::Rbd(_)
        | VolumeSource::Nbd(_) => 0,
    }
}

/// `MemTotal` of `/proc/meminfo`, bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn shortage_message(wanted: u64, there: u64) -> Option<String> {
    (wanted > there).then(|| {
        format!(
            "RAM volumes may grow to {}, but this machine has {} of memory: when they have filled it, the kernel ends \
             the daemon; make them smaller",
            size::format_human(wanted),
            size::format_human(there)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_over_legs_and_compared() {
        let spec = |text| config::spec::parse(text).unwrap();
        assert_eq!(volume_ram_bytes(&spec("ram:900G")), 900 << 30);
        assert_eq!(volume_ram_bytes(&spec("stripe:ram:1G+ram:1G")), 2 << 30);
        assert_eq!(volume_ram_bytes(&spec("null:900G")), 0);
        assert_eq!(total_memory("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(total_memory("MemTotal: much\n"), None);
        assert_eq!(shortage_message(1 << 30, 1 << 30), None);
        let why = shortage_message(900 << 30, 16 << 30).unwrap();
        assert!(why.contains("900 GiB") && why.contains("16 GiB"), "{why}");
    }
}
