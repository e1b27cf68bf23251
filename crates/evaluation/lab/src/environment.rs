//! Properties of a machine that affect figures.
//!
//! Invariant: unknown properties are left out; nothing is guessed.

use eval::record::Machine;

use crate::place::CommandLocation;

/// Facts of the machine that a place is on.
pub fn machine_facts(place: &CommandLocation, role: &str) -> Machine {
    let read = |path: &str| place.read_file(path).ok().map(|text| text.trim().to_owned());
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.push((name.to_owned(), value));
        }
    };
    fact("kernel", read("/proc/sys/kernel/osrelease"));
    fact("architecture", place.run(&["uname", "-m"]).ok().map(|text| text.trim().to_owned()));
    let cpu = read("/proc/cpuinfo").unwrap_or_default();
    fact("processor", value_after_colon(&cpu, "model name"));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    fact("cores", (cores > 0).then(|| cores.to_string()));
    fact("clock MHz", value_after_colon(&cpu, "cpu MHz"));
    fact("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    fact("memory", value_after_colon(&read("/proc/meminfo").unwrap_or_default(), "MemTotal"));
    fact("hypervisor", virtual_machine_note(&cpu));
    let ids =
        [("family", "cpu family"), ("model", "model"), ("stepping", "stepping"), ("microcode", "microcode")];
    let ids =
        ids.iter().filter_map(|(word, name)| Some(format!("{word} {}", value_after_colon(&cpu, name)?)));
    fact("processor id", Some(ids.collect::<Vec<_>>().join(", ")));
    // Of all levels it is the last that the kernel shows there.
    fact("last-level cache", value_after_colon(&cpu, "cache size"));
    fact("mitigations", cpu_mitigations(place));
    fact("congestion control", read("/proc/sys/net/ipv4/tcp_congestion_control"));
    fact("load", read("/proc/loadavg").map(|text| text.split(' ').take(3).collect::<Vec<_>>().join(" ")));
    let system = read("/etc/os-release").unwrap_or_default();
    let pretty = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    fact("system", pretty.map(|name| name.trim_matches('"').to_owned()));
    facts.extend(kernel_settings(place));
    Machine { role: role.to_owned(), facts }
}

/// Prints a name, a tab and a value on each line: settings of the kernel, and network interfaces with their offloads.
const SETTINGS_SCRIPT: &str = r#"
say() { [ -n "$2" ] && printf '%s\t%s\n' "$1" "$2"; }
get() { [ -r "$2" ] && say "$1" "$(cat "$2" 2>/dev/null | tr '\t\n' '  ')"; }
say 'kernel build' "$(uname -v)"
say 'kernel options' "$(tr ' ' '\n' </proc/cmdline 2>/dev/null | grep -E '^(mitigations|nopti|nospectre_v[12]|spec_store_bypass_disable|isolcpus|nohz_full|rcu_nocbs|idle|processor\.max_cstate|intel_idle\.max_cstate|intel_pstate|amd_pstate|transparent_hugepage|hugepages|preempt|nosmt)(=|$)' | tr '\n' ' ')"
get 'threads of a core at once' /sys/devices/system/cpu/smt/active
get 'cpufreq driver' /sys/devices/system/cpu/cpu0/cpufreq/scaling_driver
get 'boost' /sys/devices/system/cpu/cpufreq/boost
get 'turbo off' /sys/devices/system/cpu/intel_pstate/no_turbo
get 'idle governor' /sys/devices/system/cpu/cpuidle/current_governor
get 'clock source' /sys/devices/system/clocksource/clocksource0/current_clocksource
get 'transparent huge pages' /sys/kernel/mm/transparent_hugepage/enabled
get 'queueing discipline' /proc/sys/net/core/default_qdisc
get 'tcp_rmem' /proc/sys/net/ipv4/tcp_rmem
get 'tcp_wmem' /proc/sys/net/ipv4/tcp_wmem
get 'rmem_max' /proc/sys/net/core/rmem_max
get 'wmem_max' /proc/sys/net/core/wmem_max
get 'busy_read' /proc/sys/net/core/busy_read
get 'busy_poll' /proc/sys/net/core/busy_poll
offloads() { command -v ethtool >/dev/null && ethtool -k "$1" 2>/dev/null | grep -E '^(tcp-segmentation-offload|generic-segmentation-offload|generic-receive-offload|large-receive-offload|rx-checksumming|tx-checksumming|scatter-gather): ' | tr '\n' ';' | sed 's/;$//; s/;/; /g'; }
routed() { awk -v n="$1" '$NF == n || $1 == n { found = 1 } END { exit !found }' /proc/net/route /proc/net/ipv6_route 2>/dev/null; }
for i in /sys/class/net/*; do
  n=${i##*/}
  [ "$n" = lo ] || [ -e "$i/device" ] || routed "$n" || continue
  if [ -e "$i/device" ]; then
    d=$(readlink "$i/device/driver" 2>/dev/null)
    v=$(cat "$i/device/vendor" "$i/device/device" 2>/dev/null | tr '\n' ' ')
    s=$(cat "$i/speed" 2>/dev/null)
    say "NIC $n" "driver ${d##*/}${v:+, device ${v% }}${s:+, $s Mb/s}, MTU $(cat "$i/mtu")"
  elif [ "$n" != lo ]; then
    say "virtual interface $n" "MTU $(cat "$i/mtu")"
  fi
  say "offloads of $n" "$(offloads "$n")"
done
true
"#;

fn kernel_settings(place: &CommandLocation) -> Vec<(String, String)> {
    let said = place.run(&["sh", "-c", SETTINGS_SCRIPT]).unwrap_or_default();
    let pairs = said.lines().filter_map(|line| line.split_once('\t'));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    pairs.filter(|(_, value)| !value.is_empty()).collect()
}

/// The value behind a name and a colon.
fn value_after_colon(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|found| found.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Whether it says itself that it is a virtual machine.
fn virtual_machine_note(cpu: &str) -> Option<String> {
    let flags = value_after_colon(cpu, "flags")?;
    flags.split(' ').any(|flag| flag == "hypervisor").then(|| "yes: a virtual machine".to_owned())
}

/// What is switched on against speculation, in one line.
fn cpu_mitigations(place: &CommandLocation) -> Option<String> {
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
        let machine = machine_facts(&CommandLocation::Here, "both");
        for name in ["kernel", "kernel build", "cores", "memory", "congestion control", "load", "tcp_rmem"] {
            assert!(machine.facts.iter().any(|(known, _)| known == name), "{name}: {machine:?}");
        }
    }

    /// What a machine does not say is left out: no line of a setting is without its value.
    #[test]
    fn a_setting_that_is_not_told_is_left_out() {
        let settings = kernel_settings(&CommandLocation::Here);
        assert!(settings.iter().all(|(name, value)| !name.is_empty() && !value.is_empty()), "{settings:?}");
        let mut names: Vec<&String> = settings.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), settings.len(), "{settings:?}");
    }

    #[test]
    fn values_are_found_by_whole_names() {
        assert_eq!(value_after_colon("MemTotalX: 1\nMemTotal:   2 kB\n", "MemTotal").unwrap(), "2 kB");
        assert_eq!(value_after_colon("a: b", "c"), None);
    }
}
