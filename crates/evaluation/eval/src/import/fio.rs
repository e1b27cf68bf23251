//! fio's JSON: `--output-format=json`, which has percentiles, or `json+`, which has every latency bin.
//!
//! Members are those of fio's documentation ("JSON output"). Jobs with the same name and group are one load.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{IMPORTED, ImportContext, ImportError};
use crate::Histogram;
use crate::record::{EndUsage, Point, Run};

#[derive(Deserialize)]
struct FioOutput {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default, rename = "global options")]
    global: BTreeMap<String, String>,
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    jobname: String,
    #[serde(default)]
    groupid: u64,
    #[serde(default)]
    error: i64,
    #[serde(default)]
    total_err: u64,
    #[serde(default, rename = "job options")]
    options: BTreeMap<String, String>,
    #[serde(default)]
    read: FioDirection,
    #[serde(default)]
    write: FioDirection,
    #[serde(default)]
    trim: FioDirection,
    /// Milliseconds of all its threads together.
    #[serde(default)]
    job_runtime: f64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
}

#[derive(Default, Deserialize)]
struct FioDirection {
    #[serde(default)]
    io_bytes: u64,
    #[serde(default)]
    total_ios: u64,
    /// Milliseconds.
    #[serde(default)]
    runtime: u64,
    #[serde(default)]
    lat_ns: FioLatency,
    #[serde(default)]
    clat_ns: FioLatency,
}

#[derive(Default, Deserialize)]
struct FioLatency {
    #[serde(default)]
    min: f64,
    #[serde(default)]
    max: f64,
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    stddev: f64,
    #[serde(default, rename = "N")]
    count: u64,
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

impl FioLatency {
    fn is_spread(&self) -> bool {
        !self.bins.is_empty() || !self.percentile.is_empty()
    }

    /// As a histogram: of its bins, else of its percentiles: what lies between two of them counts at the upper.
    fn histogram(&self) -> Result<Histogram, &'static str> {
        let number = |text: &String| text.parse::<f64>().ok();
        let counts: Vec<(u64, u64)> = if self.bins.is_empty() {
            let mut ranks: Vec<(f64, u64)> =
                self.percentile.iter().filter_map(|(at, ns)| Some((number(at)? / 100.0, *ns))).collect();
            ranks.push((1.0, self.max as u64));
            ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut before = 0;
            let part = |(rank, ns): (f64, u64)| {
                let upto = (rank * self.count as f64).round() as u64;
                let count = upto.saturating_sub(before);
                before = before.max(upto);
                (ns, count)
            };
            ranks.into_iter().map(part).collect()
        } else {
            self.bins.iter().filter_map(|(ns, count)| Some((number(ns)? as u64, *count))).collect()
        };
        Histogram::from_counts(counts, (self.min as u64, self.max as u64), self.mean, self.stddev)
    }
}

/// The loads of an output, and what is to be said of them.
pub(super) fn fio_points(about: &ImportContext, text: &str) -> Result<(Vec<Point>, String), ImportError> {
    // fio writes warnings of its own before the JSON, and may write more behind it.
    let (_, text) = text.split_at(text.find('{').ok_or(ImportError::NotJson(None))?);
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<FioOutput>();
    let output = stream
        .next()
        .ok_or(ImportError::NotJson(None))?
        .map_err(|why| ImportError::NotJson(Some(why.to_string())))?;
    let damaged = |job: &str, why: &str| ImportError::Damaged(Some(format!("job \"{job}\"")), why.to_owned());
    let mut loads: Vec<((String, u64), JobGroup)> = Vec::new();
    for job in &output.jobs {
        let key = (job.jobname.clone(), job.groupid);
        let at = loads.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            loads.push((key, JobGroup::default()));
            loads.len() - 1
        });
        let Some((_, load)) = loads.get_mut(at) else { continue };
        let taken = load.add_job(job, &output.global);
        taken.map_err(|why| damaged(&job.jobname, why))?;
    }
    // Of what took no whole millisecond no rate is known, which is another thing than none.
    if let Some(((name, _), _)) = loads.iter().find(|(_, load)| load.run.ios > 0 && load.run.seconds <= 0.0) {
        return Err(damaged(name, "it tells no time for its I/Os: let it run for longer"));
    }
    let is_completion = loads.iter().any(|(_, load)| load.is_completion);
    let points: Vec<Point> = loads.into_iter().filter_map(|(_, load)| load.into_point(about)).collect();
    let mut note = format!(
        "{IMPORTED} {}. Processor time is that of fio; the target was not looked at.",
        output.version
    );
    if is_completion {
        note.push_str(
            " Latencies are from submission to completion (clat): fio keeps no distribution of others.",
        );
    }
    Ok((points, note))
}

/// What jobs of one name and group come to.
#[derive(Default)]
struct JobGroup {
    rw: String,
    each: u64,
    entries: u64,
    jobs: u64,
    block: Option<u64>,
    is_rated: bool,
    is_completion: bool,
    labels: Vec<(String, String)>,
    run: Run,
}

impl JobGroup {
    fn add_job(&mut self, job: &FioJob, global: &BTreeMap<String, String>) -> Result<(), &'static str> {
        let option = |names: &[&str]| {
            let found = names.iter().find_map(|name| job.options.get(*name).or_else(|| global.get(*name)));
            found.map(String::as_str)
        };
        let count =
            |names: &[&str]| option(names).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(1);
        self.rw = option(&["rw", "readwrite"]).unwrap_or("read").to_owned();
        let is_sync = option(&["ioengine"]).unwrap_or("psync").contains("sync");
        self.each = if is_sync { 1 } else { count(&["iodepth"]) };
        // Jobs come one by one, or as one entry with the number of them among its options.
        self.entries += 1;
        self.jobs = count(&["numjobs"]);
        self.block = option(&["bs", "blocksize"])
            .and_then(|text| crate::fio::parse_bytes(text.split(',').next()?).ok());
        self.is_rated = option(&["rate", "rate_iops"]).is_some();
        self.labels = vec![("job".to_owned(), job.jobname.clone())];
        let threads = job.job_runtime / 1e3;
        let side = self.run.initiator.get_or_insert_with(EndUsage::default);
        side.process.0 += job.usr_cpu / 100.0 * threads;
        side.process.1 += job.sys_cpu / 100.0 * threads;
        const COUNT_OVERFLOW: &str = "counts of its I/Os are more than 64 bits hold";
        let sum = |all: u64, one: u64| all.checked_add(one).ok_or(COUNT_OVERFLOW);
        self.run.errors = sum(self.run.errors, job.total_err.max(u64::from(job.error != 0)))?;
        for direction in [&job.read, &job.write, &job.trim].into_iter().filter(|one| one.total_ios > 0) {
            self.run.ios = sum(self.run.ios, direction.total_ios)?;
            self.run.moved = sum(self.run.moved, direction.io_bytes)?;
            self.run.seconds = self.run.seconds.max(direction.runtime as f64 / 1e3);
            let latency = if direction.lat_ns.is_spread() { &direction.lat_ns } else { &direction.clat_ns };
            self.is_completion |= !direction.lat_ns.is_spread();
            self.run.latency.merge(&latency.histogram()?);
        }
        Ok(())
    }

    fn into_point(mut self, about: &ImportContext) -> Option<Point> {
        if self.run.ios == 0 {
            return None;
        }
        if self.run.initiator.as_ref().is_some_and(|side| side.process == (0.0, 0.0)) {
            self.run.initiator = None;
        }
        let depth = self.each.saturating_mul(if self.entries == 1 { self.jobs } else { self.entries });
        Some(Point {
            rw: self.rw,
            bytes: self.block.unwrap_or(self.run.moved / self.run.ios),
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            is_closed: !self.is_rated,
            labels: self.labels,
            runs: vec![self.run],
            ..about.empty_point()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::about;
    use super::*;

    /// Written by fio 3.33: two jobs of mixed reads and writes, reported as one.
    #[test]
    fn percentiles_are_kept() {
        let text = include_str!("fio-json.json");
        let (points, note) = fio_points(&about(), text).unwrap();
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let job = &value["jobs"][0];
        let ios = |rw: &str| job[rw]["total_ios"].as_u64().unwrap();
        let point = &points[0];
        assert_eq!((point.rw.as_str(), point.bytes, point.depth), ("randrw", 4096, 2));
        assert_eq!(point.runs[0].ios, ios("read") + ios("write"));
        assert!(note.contains("fio-3.33") && note.contains("clat"));
        let (read, write) = (&job["read"]["clat_ns"], &job["write"]["clat_ns"]);
        let part = |one: &serde_json::Value, rw: &str| one["mean"].as_f64().unwrap() * ios(rw) as f64;
        let mean = (part(read, "read") + part(write, "write")) / (ios("read") + ios("write")) as f64;
        assert!((point.runs[0].latency.mean() / mean - 1.0).abs() < 1e-3);
        assert!(point.runs[0].initiator.as_ref().unwrap().process.1 > 0.0);
        assert!(
            point.runs[0].target.is_none()
                && point.effectiveness(crate::record::EndKind::Initiator).is_none()
        );
    }

    /// Written by fio 3.33 with every bin.
    #[test]
    fn bins_are_kept() {
        let text = include_str!("fio-json-plus.json");
        let (points, _) = fio_points(&about(), text).unwrap();
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let clat = &value["jobs"][0]["read"]["clat_ns"];
        let latency = &points[0].runs[0].latency;
        assert_eq!((points[0].depth, points[0].rw.as_str()), (8, "randread"));
        assert_eq!(latency.count(), clat["N"].as_u64().unwrap());
        for (name, percent) in [("50.000000", 50.0), ("99.000000", 99.0), ("99.900000", 99.9)] {
            let right = clat["percentile"][name].as_f64().unwrap();
            let found = latency.percentile(percent) as f64;
            assert!((found / right - 1.0).abs() < 0.02, "p{percent}: {found} against {right}");
        }
        assert!((latency.standard_deviation() / clat["stddev"].as_f64().unwrap() - 1.0).abs() < 0.01);
    }

    #[test]
    fn what_tells_no_time_is_never_a_rate_of_zero() {
        let text = "{ \"fio version\": \"fio-3.33\", \"jobs\": [ { \"jobname\": \"x\", \"read\": { \"total_ios\": 4, \
                    \"io_bytes\": 16384, \"runtime\": 0 } } ] }";
        assert!(fio_points(&about(), text).unwrap_err().to_string().contains("let it run for longer"));
        assert!(fio_points(&about(), &text.replace("\"runtime\": 0", "\"runtime\": 1")).is_ok());
    }

    #[test]
    fn warnings_before_the_json_do_not_matter() {
        let text = format!("fio: a warning\n{}", include_str!("fio-json.json"));
        assert_eq!(fio_points(&about(), &text).unwrap().0.len(), 1);
    }
}
