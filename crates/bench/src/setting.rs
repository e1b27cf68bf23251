//! What a comparison runs in: its network, and what has to be known to repeat it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::servers::VOLUME_MIB;
use crate::{system, usage};

/// A network with nothing but loopback, where the default congestion control is `name`.
pub fn own_network(name: &str) -> io::Result<()> {
    system::leave_network()?;
    if !Command::new("ip").args(["link", "set", "lo", "up"]).status()?.success() {
        return Err(io::Error::other("loopback does not come up"));
    }
    fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name)
}

/// The first line that a program says to an argument.
pub fn said(program: &Path, arg: &str) -> String {
    let output = Command::new(program).arg(arg).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("not to be had").to_owned()
}

/// The machine, the cores of server and client, the number of rounds and their seconds, and the
/// versions of what is compared.
pub fn describe(cores: (usize, usize), rounds: (u32, u32), versions: &[(&str, String)]) -> Value {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let mut all = json!({
        "kernel": usage::line_of("/proc/sys/kernel/osrelease"),
        "processor": processor.trim_start_matches([' ', '\t', ':']),
        "cores": format!("server {}, client {}", cores.0, cores.1),
        "congestion control": usage::line_of("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load average": usage::line_of("/proc/loadavg"),
        "volumes": format!("{VOLUME_MIB} MiB in memory, written once from end to end"),
        "rounds": format!("{} of {} s, interleaved, medians", rounds.0, rounds.1),
    });
    for (name, version) in versions {
        all[*name] = json!(version);
    }
    all
}
