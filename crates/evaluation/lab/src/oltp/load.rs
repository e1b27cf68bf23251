//! The load on a database: TPC-C-like transactions by sysbench, and its output.
//!
//! `orders.lua` defines what users do. Invariant: a value missing from its output is an error that names it,
//! never a zero.

use std::path::Path;

use eval::Histogram;

use super::database::DatabaseServer;
use super::scale::OltpSize;
use crate::Failure;

/// What users do, as sysbench runs it.
pub(super) const SYSBENCH_SCRIPT: &str = include_str!("orders.lua");
/// How long users work before figures count, so that caches are as they will be.
pub(super) const WARM_UP_SECONDS: u64 = 5;
/// Items, and customers of each district: a tenth of TPC-C's.
const WAREHOUSE_ITEMS: u32 = 10_000;
const DISTRICT_CUSTOMERS: u32 = 300;

/// What one database's users did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct UsersResult {
    /// Transactions that were committed.
    pub(super) transactions: u64,
    /// Seconds that all of them took.
    pub(super) seconds: f64,
    /// Transactions that met a deadlock and were begun again, and connections that were lost.
    pub(super) errors: u64,
    /// Latencies of transactions, each as the middle of sysbench's bucket; empty: not told.
    pub(super) latency: Histogram,
}

fn sysbench_words(script: &Path, database: &DatabaseServer, size: &OltpSize, last: &[&str]) -> Vec<String> {
    let mut words = vec!["sysbench".to_owned(), script.display().to_string()];
    words.extend(database.sysbench_connection_words());
    words.push(format!("--warehouses={}", size.warehouses));
    words.push(format!("--items={WAREHOUSE_ITEMS}"));
    words.push(format!("--customers={DISTRICT_CUSTOMERS}"));
    words.extend(last.iter().map(|word| (*word).to_owned()));
    words
}

/// The command that fills a database.
pub(super) fn prepare_command(script: &Path, database: &DatabaseServer, size: &OltpSize) -> Vec<String> {
    sysbench_words(script, database, size, &["prepare"])
}

/// The command that runs its users for a number of transactions in all, or for so many seconds; what they do follows from
/// the seed.
pub(super) fn run_command(
    script: &Path,
    database: &DatabaseServer,
    size: &OltpSize,
    (seed, until): (u32, RunLimit),
) -> Vec<String> {
    let until = match until {
        // Whichever comes first ends them in order; no seconds are no limit.
        RunLimit::Transactions(count, seconds) => {
            [format!("--time={}", seconds.unwrap_or(0)), format!("--events={count}")]
        }
        RunLimit::Seconds(seconds) => [format!("--time={seconds}"), "--events=0".to_owned()],
    };
    let users = format!("--threads={}", size.users);
    let seed = format!("--rand-seed={seed}");
    let last = [&users, &until[0], &until[1], &seed, "--histogram=on", "run"];
    sysbench_words(script, database, size, &last)
}

/// How long users go on.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunLimit {
    /// Until they have done so many together, or for so many seconds if that comes first.
    Transactions(u64, Option<u64>),
    /// For so long.
    Seconds(u64),
}

/// Reads what a run prints.
pub(super) fn parse_sysbench_output(text: &str) -> Result<UsersResult, Failure> {
    let mut told = UsersResult::default();
    let mut in_histogram = false;
    let mut seen = (false, false);
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("value") && line.ends_with("count") {
            in_histogram = true;
            continue;
        }
        if in_histogram {
            match parse_bucket(line) {
                Some((ns, count)) if told.latency.record_many(ns, count) => {}
                Some(_) => return Err(Failure::new("sysbench counted more latencies than can be")),
                None => in_histogram = false,
            }
            continue;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.split_ascii_whitespace().next().unwrap_or_default();
        let bad = || Failure::new(format!("{name}: {value}"));
        match name {
            "transactions" => {
                told.transactions = parse_count(value).ok_or_else(bad)?;
                seen.0 = true;
            }
            "total time" => {
                told.seconds = parse_figure(value.trim_end_matches('s')).ok_or_else(bad)?;
                seen.1 = true;
            }
            "ignored errors" | "reconnects" => told.errors += parse_count(value).ok_or_else(bad)?,
            _ => {}
        }
    }
    match seen {
        (true, true) if told.latency.count() > 0 => Ok(told),
        (true, true) => Err(Failure::new("sysbench printed no histogram of latencies")),
        _ => Err(Failure::new("sysbench printed no count of transactions or no total time")),
    }
}

/// A count; several of them can be added up.
fn parse_count(text: &str) -> Option<u64> {
    text.parse().ok().filter(|count| *count <= u64::from(u32::MAX))
}

/// A figure that can be.
fn parse_figure(text: &str) -> Option<f64> {
    text.parse().ok().filter(|figure: &f64| figure.is_finite() && *figure >= 0.0)
}

/// A line of the histogram: `3.187 |****  2`, in milliseconds.
fn parse_bucket(line: &str) -> Option<(u64, u64)> {
    let (ms, rest) = line.split_once('|')?;
    let ms = parse_figure(ms.trim())?;
    let count = rest.trim_start_matches('*').trim().parse().ok()?;
    Some(((ms * 1e6) as u64, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       1.891 |****                                     1
       2.662 |************************                 6
      32.525 |****                                     1

SQL statistics:
    queries performed:
        read:                            112
    transactions:                        8      (783.99 per sec.)
    queries:                             160    (15679.79 per sec.)
    ignored errors:                      2      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          0.2544s
    total number of events:              8
";

    #[test]
    fn what_sysbench_prints_is_read() {
        let told = parse_sysbench_output(SAID).unwrap();
        assert_eq!((told.transactions, told.seconds, told.errors), (8, 0.2544, 2));
        assert_eq!((told.latency.count(), told.latency.max()), (8, 32_525_000));
        let middle = told.latency.percentile(50.0) as f64;
        assert!((middle / 2_662_000.0 - 1.0).abs() < 0.02, "{middle}");
    }

    /// It was counted one by one.
    #[test]
    fn counts_and_figures_that_cannot_be_never_keep_or_end_the_program() {
        let huge = u64::MAX.to_string();
        let many = SAID.replace("                 6\n", &format!("   {huge}\n"));
        assert!(parse_sysbench_output(&many).unwrap_err().to_string().contains("latencies"));
        let many = SAID.replace("                 6\n", "   1000000000000000\n");
        assert_eq!(parse_sysbench_output(&many).unwrap().latency.count(), 1_000_000_000_000_002);
        for (name, value) in
            [("transactions:                        8", &*huge), ("errors:                      2", &huge)]
        {
            let (start, _) = name.split_once(':').unwrap();
            let said = SAID.replace(name, &format!("{start}: {value}"));
            assert!(parse_sysbench_output(&said).unwrap_err().to_string().contains(value), "{name}");
        }
        for seconds in ["NaN", "inf", "-1", "1e999"] {
            let said = SAID.replace("0.2544s", seconds);
            assert!(
                parse_sysbench_output(&said).unwrap_err().to_string().contains("total time"),
                "{seconds}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(parse_sysbench_output("FATAL: no").unwrap_err().to_string().contains("transactions"));
        let cut = SAID.replace("value ", "");
        assert!(parse_sysbench_output(&cut).unwrap_err().to_string().contains("histogram"));
    }
}
