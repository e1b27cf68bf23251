//! Properties of a machine that affect figures.
//!
//! Invariant: unknown properties are left out; nothing is guessed.

use eval::record::Machine;

use crate::place::Place;

/// Facts of the machine that a place is on.
pub fn machine(place: &Place, role: &str) -> Machine {
    let read = |path: &str| place.read(path).ok().map(|text| text.trim().to_owned());
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.push((name.to_owned(), value));
        }
    };
    fact("kernel", read("/proc/sys/kernel/osrelease"));
    fact("architecture", place.run(&["uname", "-m"]).ok().map(|text| text.trim().to_owned()));
    let cpu = read("/proc/cpuinfo").unwrap_or_default();
    fact("processor", named(&cpu, "model name"));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    fact("cores", (cores > 0).then(|| cores.to_string()));
    fact("clock MHz", named(&cpu, "cpu MHz"));
    fact("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    fact("memory", named(&read("/proc/meminfo").unwrap_or_default(), "MemTotal"));
    fact("hypervisor", flags(&cpu));
    fact("mitigations", mitigations(place));
    fact("congestion control", read("/proc/sys/net/ipv4/tcp_congestion_control"));
    fact("load", read("/proc/loadavg").map(|text| text.split(' ').take(3).collect::<Vec<_>>().join(" ")));
    let system = read("/etc/os-release").unwrap_or_default();
    let pretty = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    fact("system", pretty.map(|name| name.trim_matches('"').to_owned()));
    Machine { role: role.to_owned(), facts }
}

/// The value behind a name and a colon.
fn named(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|found| found.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Whether it says itself that it is a virtual machine.
fn flags(cpu: &str) -> Option<String> {
    let flags = named(cpu, "flags")?;
    flags.split(' ').any(|flag| flag == "hypervisor").then(|| "yes: a virtual machine".to_owned())
}

/// What is switched on against speculation, in one line.
fn mitigations(place: &Place) -> Option<String> {
    let said = place.run(&["sh", "-c", "cd /sys/devices/system/cpu/vulnerabilities && grep . *"]).ok()?;
    let is_on = |state: &str| !state.starts_with("Not affected") && !state.starts_with("Vulnerable");
    let states = said.lines().filter_map(|line| line.split_once(':'));
    let on: Vec<&str> = states.filter(|(_, state)| is_on(state)).map(|(name, _)| name).collect();
    Some(if on.is_empty() { "none".to_owned() } else { on.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_is() {
        let machine = machine(&Place::Here, "both");
        for name in ["kernel", "cores", "memory", "congestion control", "load"] {
            assert!(machine.facts.iter().any(|(known, _)| known == name), "{name}: {machine:?}");
        }
    }

    #[test]
    fn values_are_found_by_whole_names() {
        assert_eq!(named("MemTotalX: 1\nMemTotal:   2 kB\n", "MemTotal").unwrap(), "2 kB");
        assert_eq!(named("a: b", "c"), None);
    }
}
