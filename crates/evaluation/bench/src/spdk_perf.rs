//! SPDK's client for NVMe/TCP, `spdk_nvme_perf`: its command line, and its output.

use std::io;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::compare::ComparedLoad;
use crate::servers::{BenchEnvironment, RunningServer};
use crate::{spdk, usage};

/// One run of SPDK's own client on an NVMe/TCP target: random requests, which it polls for.
pub fn measure_spdk_perf(
    server: &RunningServer,
    places: &BenchEnvironment,
    load: &ComparedLoad,
    seconds: u32,
) -> io::Result<Value> {
    let (Some(built), Some(target)) = (&places.spdk, &server.transport) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // Without a name of its own it would say none at all, which no host may.
    let target = format!("{target} hostnqn:nqn.2026-11.io.blockwire:spdk-nvme-perf");
    server.resume()?;
    let before = usage::cpu_ns(server.pid())?;
    // The percentiles of its own latencies; it takes the time of each request in any case.
    let output = spdk::spdk_command(built, "spdk_nvme_perf", Command::new)
        .args(["-q", &load.depth.to_string(), "-o", &load.bs.to_string()])
        .args(["-w", if load.op == "read" { "randread" } else { "randwrite" }])
        .args(["-t", &seconds.to_string(), "-c", &format!("{:#x}", 1_u64 << places.client_core)])
        .args(["-r", &target, "--no-huge", "-s", "512", "--iova-mode", "va", "-L"])
        .stdin(Stdio::null())
        .output();
    let cpu_ns = usage::cpu_ns_since(server.pid(), before);
    server.pause()?;
    let (cpu_ns, output) = (cpu_ns?, output?);
    let said = String::from_utf8_lossy(&output.stdout);
    let (iops, mean_us) = parse_total(&said).filter(|_| output.status.success()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        io::Error::other(format!("spdk_nvme_perf on {} gives no figure: {said}", server.kind.name()))
    })?;
    let ios = iops * f64::from(seconds);
    // While the client starts and connects, a server that polls uses time that no request wanted: it
    // cannot have used more than all of the time that was measured.
    let used = cpu_ns as f64 / 1e3 / ios;
    let server_cpu_us = if server.kind.polls() { used.min(1e6 / iops) } else { used };
    Ok(json!({
        "iops": iops, "mb_s": iops * f64::from(load.bs) / 1e6, "mean_us": mean_us,
        // The client polls: all of its core's time is used for as long as it runs.
        "server_cpu_us": server_cpu_us, "client_cpu_us": 1e6 / iops,
        "p50_us": parse_percentile(&said, "50.00000%"), "p99_us": parse_percentile(&said, "99.00000%"),
    }))
}

/// Requests per second and the mean latency in microseconds, of the line `Total`.
fn parse_total(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("Total"))?;
    let (_, figures) = line.split_once(':')?;
    let mut figures = figures.split_whitespace();
    let iops = figures.next()?.parse().ok()?;
    let mean = figures.nth(1)?.parse().ok()?;
    Some((iops, mean))
}

/// Microseconds behind the mark of a percentile, in the summary of latencies.
fn parse_percentile(text: &str, mark: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(mark))?;
    line.trim_start().strip_prefix(':')?.trim().strip_suffix("us")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_counts() {
        let text = "Device Information : IOPS MiB/s Average min max\n\
            TCP  (addr:127.0.0.1) NSID 1 from core  1:  510.00  2.0  1.0  1.0  9.0\n\
            ====\nTotal                          :  586123.40    2289.54      54.59      30.91     812.33\n";
        assert_eq!(parse_total(text), Some((586_123.4, 54.59)));
        assert_eq!(parse_total("no device"), None);
        let summary = " 50.00000% :    54.272us\n 99.00000% :   180.224us\n";
        assert_eq!(parse_percentile(summary, "99.00000%"), Some(180.224));
        assert_eq!(parse_percentile(summary, "90.00000%"), None);
    }
}
