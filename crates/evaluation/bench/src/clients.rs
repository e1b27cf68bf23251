//! Clients under comparison: each drives the same targets with the same loads, and its own processor time is
//! measured.

use std::io;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::compare::{self, ComparedKind, ComparedLoad};
use crate::servers::{BenchEnvironment, RunningServer, ServerKind};
use crate::{spdk_perf, system};

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchClient {
    /// The bare requester on the bare responder: the limit.
    Bare,
    /// The raw generator on the iSCSI target: what it costs to make requests and to drop the data.
    RawIscsi,
    /// The raw generator on the NVMe/TCP target.
    RawNvme,
    /// `blockwire bench` over iSCSI.
    Iscsi,
    /// `blockwire bench` over NVMe/TCP.
    Nvme,
    /// `blockwire bench` over iSCSI with digests of headers and data.
    IscsiDigests,
    /// `blockwire bench` over NVMe/TCP with digests of headers and data.
    NvmeDigests,
    /// libiscsi's `iscsi-perf`: reads only.
    Libiscsi,
    /// SPDK's `spdk_nvme_perf`, which polls.
    Spdk,
}

impl ComparedKind for BenchClient {
    fn name(self) -> &'static str {
        match self {
            BenchClient::Bare => "bare",
            BenchClient::RawIscsi => "raw-iscsi",
            BenchClient::RawNvme => "raw-nvme",
            BenchClient::Iscsi => "blockwire-iscsi",
            BenchClient::Nvme => "blockwire-nvme",
            BenchClient::IscsiDigests => "iscsi-digests",
            BenchClient::NvmeDigests => "nvme-digests",
            BenchClient::Libiscsi => "libiscsi",
            BenchClient::Spdk => "spdk",
        }
    }
}

impl BenchClient {
    /// What it is driven against.
    pub fn server_kind(self) -> ServerKind {
        match self {
            BenchClient::Bare => ServerKind::Bare,
            BenchClient::RawIscsi | BenchClient::Iscsi | BenchClient::IscsiDigests => ServerKind::Blockwire,
            BenchClient::Libiscsi => ServerKind::Blockwire,
            BenchClient::RawNvme | BenchClient::Nvme | BenchClient::NvmeDigests => ServerKind::BlockwireNvme,
            BenchClient::Spdk => ServerKind::BlockwireNvme,
        }
    }

    /// Whether it can do that at all.
    pub fn supports(self, load: &ComparedLoad) -> bool {
        self != BenchClient::Libiscsi || load.op == "read"
    }
}

/// One measurement: a load by a client, which looks at memory for `poll_us` before it sleeps, where
/// it can be told.
pub fn measure_client(
    client: BenchClient,
    server: &RunningServer,
    places: &BenchEnvironment,
    load: &ComparedLoad,
    (seconds, poll_us): (u32, u64),
) -> io::Result<Value> {
    match client {
        BenchClient::Bare | BenchClient::RawIscsi | BenchClient::RawNvme => {
            measure_raw_load(server, places, load, (seconds, poll_us))
        }
        BenchClient::Iscsi | BenchClient::Nvme => {
            measure_blockwire(server, places, load, (seconds, poll_us), "")
        }
        BenchClient::IscsiDigests | BenchClient::NvmeDigests => {
            measure_blockwire(server, places, load, (seconds, poll_us), "?digest=both")
        }
        BenchClient::Libiscsi => compare::measure_libiscsi(server, load.bs, load.depth, seconds),
        BenchClient::Spdk => spdk_perf::measure_spdk_perf(server, places, load, seconds),
    }
}

fn measure_raw_load(
    server: &RunningServer,
    places: &BenchEnvironment,
    load: &ComparedLoad,
    (seconds, poll_us): (u32, u64),
) -> io::Result<Value> {
    let wait = if poll_us == 0 { "sleep" } else { "adaptive" };
    let args = [
        ("--op", load.op.to_owned()),
        ("--bs", load.bs.to_string()),
        ("--depth", load.depth.to_string()),
        ("--seconds", seconds.to_string()),
        ("--wait", wait.to_owned()),
        ("--poll-us", poll_us.to_string()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(key, value)| [key.to_owned(), value]).collect();
    compare::run_load(server, places, &args)
}

/// `blockwire bench`, from its start to its end: what it takes to connect counts.
fn measure_blockwire(
    server: &RunningServer,
    places: &BenchEnvironment,
    load: &ComparedLoad,
    (seconds, poll_us): (u32, u64),
    options: &str,
) -> io::Result<Value> {
    let url = server.url.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
    let before = system::children_cpu_ns()?;
    let output = Command::new(&places.blockwire)
        .args(["bench", &format!("{url}{options}"), "--json", "--core", &places.client_core.to_string()])
        .args(["--poll", &poll_us.to_string()])
        .args([format!("--rw=rand{}", load.op), format!("--bs={}", load.bs)])
        .args([format!("--iodepth={}", load.depth), format!("--runtime={seconds}")])
        .args(["--time_based", "--norandommap"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let used = system::children_cpu_ns()? - before;
    let failed = || io::Error::other(format!("blockwire bench on {} gives no figure", server.kind.name()));
    if !output.status.success() {
        return Err(failed());
    }
    let said: Value = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
    table_figures(&said, load, used).ok_or_else(failed)
}

/// Its figures in the words of the table.
fn table_figures(said: &Value, load: &ComparedLoad, used_ns: u64) -> Option<Value> {
    let job = said.get("jobs")?.get(0)?;
    let of = job.get(load.op)?;
    let (iops, ios) = (of["iops"].as_f64()?, of["ios"].as_u64()?);
    if job["errors"] != 0 || ios == 0 {
        return None;
    }
    let latency = &of["latency_us"];
    Some(json!({
        "iops": iops, "mb_s": iops * f64::from(load.bs) / 1e6,
        "p50_us": latency["p50"], "p99_us": latency["p99"],
        "client_cpu_us": used_ns as f64 / 1e3 / ios as f64,
        "client_user_s": job["cpu_user_seconds"], "client_system_s": job["cpu_system_seconds"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: ComparedLoad = ComparedLoad { op: "read", bs: 4096, depth: 32, gap_us: 0 };

    #[test]
    fn figures_are_those_of_the_direction_and_only_without_errors() {
        let said = |errors: u32| {
            json!({ "jobs": [{ "errors": errors, "read": {
                "ios": 1000, "iops": 500.0, "latency_us": { "p50": 3.5, "p99": 9.0 } } }] })
        };
        let found = table_figures(&said(0), &READ, 4_000_000).unwrap();
        assert_eq!((&found["client_cpu_us"], &found["p99_us"]), (&json!(4.0), &json!(9.0)));
        assert_eq!(table_figures(&said(1), &READ, 1), None);
        assert_eq!(table_figures(&said(0), &ComparedLoad { op: "write", ..READ }, 1), None);
    }

    #[test]
    fn only_libiscsi_does_not_write() {
        let write = ComparedLoad { op: "write", ..READ };
        assert!(
            !BenchClient::Libiscsi.supports(&write)
                && BenchClient::Libiscsi.supports(&READ)
                && BenchClient::Spdk.supports(&write)
        );
    }
}
