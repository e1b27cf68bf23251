//! What fio prints about a load in a guest: JSON with its histogram of latencies.
//!
//! Invariant: figures are of reads and writes together, as one load did them; what is not there is an error.

use eval::Histogram;
use serde_json::Value;

/// What a load did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) seconds: f64,
    pub(super) ios: u64,
    pub(super) bytes: u64,
    pub(super) errors: u64,
    pub(super) latency: Histogram,
}

/// Reads `--output-format=json+` with `--lat_percentiles=1`; fio may print warnings before it.
pub(super) fn read(text: &str) -> Result<Told, String> {
    let figures = text.find('{').zip(text.rfind('}')).and_then(|(first, last)| text.get(first..=last));
    let figures = figures.ok_or_else(|| format!("fio printed no figures: {}", text.trim()))?;
    let value: Value = serde_json::from_str(figures).map_err(|why| format!("fio's figures: {why}"))?;
    let jobs = value
        .get("jobs")
        .and_then(Value::as_array)
        .filter(|jobs| !jobs.is_empty())
        .ok_or("fio's figures hold no jobs")?;
    let mut told = Told::default();
    for job in jobs {
        told.errors += u64::from(job["error"].as_i64().unwrap_or(0) != 0);
        for kind in ["read", "write"] {
            let part = &job[kind];
            let number = |name: &str| part[name].as_u64().unwrap_or(0);
            told.ios += number("total_ios");
            told.bytes += number("io_bytes");
            told.seconds = told.seconds.max(number("runtime") as f64 / 1e3);
            let bins = part.pointer("/lat_ns/bins").and_then(Value::as_object).into_iter().flatten();
            for (ns, count) in bins {
                let ns = ns.parse().map_err(|_| format!("fio's histogram holds {ns}"))?;
                (0..count.as_u64().unwrap_or(0)).for_each(|_| told.latency.record(ns));
            }
        }
    }
    if told.ios == 0 || told.seconds <= 0.0 {
        return Err("fio did no I/O".to_owned());
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"fio: this is a warning
{ "fio version" : "fio-3.33", "jobs" : [ { "jobname" : "l", "error" : 0,
  "read" : { "io_bytes" : 8192, "total_ios" : 2, "runtime" : 500,
    "lat_ns" : { "mean" : 150000.0, "bins" : { "100864" : 1, "200704" : 1 } } },
  "write" : { "io_bytes" : 4096, "total_ios" : 1, "runtime" : 501,
    "lat_ns" : { "mean" : 300000.0, "bins" : { "301056" : 1 } } } } ] }
"#;

    #[test]
    fn both_directions_are_one_load() {
        let told = read(SAID).unwrap();
        assert_eq!((told.ios, told.bytes, told.seconds, told.errors), (3, 12_288, 0.501, 0));
        assert_eq!((told.latency.count(), told.latency.min(), told.latency.max()), (3, 100_864, 301_056));
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        assert!(read("fio: no such file").unwrap_err().contains("no such file"));
        assert!(read("{\"jobs\": []}").is_err());
        assert!(read(&SAID.replace("total_ios", "x")).unwrap_err().contains("no I/O"));
    }
}
