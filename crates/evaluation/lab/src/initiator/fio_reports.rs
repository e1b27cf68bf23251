//! What fio prints while it runs (`--status-interval`): all of its counts, as JSON, each with the moment.
//!
//! Invariant: figures are those between two reports, and the time between them is that of fio's own clock. Counts begin
//! again when the ramp is over, so a report of before is none to begin with.

use std::time::{Duration, Instant};

use eval::import::{ImportContext, import};
use eval::record::{Record, Run as Counted};
use serde_json::Value;

use super::{LoadEvent, LoadResult, ProgressCounts};
use crate::Failure;
use crate::process::{LineTimeout, OutputStream, Process};

/// How often it reports: a fifth of the load, within bounds.
pub(super) fn report_interval(runtime: Duration) -> Duration {
    (runtime / 5).clamp(Duration::from_millis(100), Duration::from_secs(1))
}

/// A report.
#[derive(Clone, Debug)]
struct FioReport {
    /// When it was made, in milliseconds of fio's machine.
    at_ms: u64,
    figures: LoadResult,
}

impl FioReport {
    fn parse(text: &str) -> Option<FioReport> {
        let value: Value = serde_json::from_str(text).ok()?;
        Some(FioReport { at_ms: value.get("timestamp_ms")?.as_u64()?, figures: parse_results(text).ok()? })
    }
}

/// How long a clock may be ahead of another's news.
const CLOCK_SLACK: Duration = Duration::from_millis(50);

/// The time between two reports.
#[derive(Debug)]
pub(super) struct FioCountingPeriod {
    /// When the ramp is over, about.
    begin: Instant,
    /// How long figures are to count.
    runtime: Duration,
    /// How long fio runs behind its ramp.
    longer: Duration,
    first: Option<FioReport>,
    last: Option<LoadResult>,
}

impl FioCountingPeriod {
    pub(super) fn new(begin: Instant, runtime: Duration, longer: Duration) -> FioCountingPeriod {
        FioCountingPeriod { begin, runtime, longer, first: None, last: None }
    }

    /// Takes a report that came at a moment; what it means, if anything.
    fn take_report(&mut self, text: &str, heard: Instant) -> Result<Vec<LoadEvent>, &'static str> {
        let Some(report) = FioReport::parse(text).filter(|_| self.last.is_none()) else {
            return Ok(Vec::new());
        };
        let counted = report.figures.seconds;
        // The last of all is made when its counts have ended.
        if counted >= self.longer.as_secs_f64() {
            return Ok(Vec::new());
        }
        if self.first.is_none() {
            let since = heard.saturating_duration_since(self.begin) + CLOCK_SLACK;
            let is_of_load = heard >= self.begin && counted <= since.as_secs_f64();
            self.first = is_of_load.then_some(report);
            // Who does the work is known outside.
            return Ok(if is_of_load { vec![LoadEvent::Began(Vec::new())] } else { Vec::new() });
        }
        let Some(first) = &self.first else { return Ok(Vec::new()) };
        let ms = report.at_ms.saturating_sub(first.at_ms);
        let figures =
            figures_since(&report.figures, &first.figures, ms).ok_or("its counts went back as it ran")?;
        let mut events = vec![LoadEvent::Progress(ProgressCounts {
            seconds: figures.seconds,
            ios: figures.ios,
            bytes: figures.moved,
            latency_us: (figures.latency.count() > 0).then(|| figures.latency.mean() / 1e3),
        })];
        if u128::from(ms) >= self.runtime.as_millis() {
            events.push(LoadEvent::Ended);
            self.last = Some(figures);
        }
        Ok(events)
    }
}

/// What was done between two reports, so many milliseconds apart.
fn figures_since(now: &LoadResult, then: &LoadResult, ms: u64) -> Option<LoadResult> {
    Some(LoadResult {
        seconds: ms as f64 / 1e3,
        ios: now.ios.checked_sub(then.ios)?,
        moved: now.moved.checked_sub(then.moved)?,
        errors: now.errors.checked_sub(then.errors)?,
        latency: now.latency.since(&then.latency)?,
        ..LoadResult::default()
    })
}

/// The figures between its lines for people: all its jobs together.
pub(crate) fn parse_results(text: &str) -> Result<LoadResult, Failure> {
    let (_, figures) =
        text.split_at(text.find('{').ok_or_else(|| Failure::new("it gives no figures").during(text.trim()))?);
    let mut record = Record::default();
    import(&mut record, &ImportContext::default(), figures).map_err(Failure::new)?;
    let mut all = LoadResult::default();
    for run in record.points.into_iter().flat_map(|point| point.runs) {
        let Counted { seconds, ios, moved, errors, latency, .. } = run;
        all.merge(&LoadResult { seconds, ios, moved, errors, latency, ..LoadResult::default() });
    }
    Ok(all)
}

/// Listens to fio until it ends; its figures between two of its reports. `pids`: who does the work.
///
/// # Errors
/// If it fails, or any I/O of it, or it reports too seldom.
pub(super) fn collect_results(
    process: &mut Process,
    mut counting: FioCountingPeriod,
    pids: Vec<u32>,
    within: Duration,
    tell: &dyn Fn(LoadEvent),
) -> Result<LoadResult, Failure> {
    let until = Instant::now() + within;
    let mut text = String::new();
    let mut begun = Instant::now();
    let mut last = String::new();
    loop {
        match process.next_line(until.saturating_duration_since(Instant::now())) {
            Ok(Some((OutputStream::Out, line))) => {
                if line == "{" {
                    text.clear();
                    begun = process.last_line_time();
                }
                text.push_str(&line);
                text.push('\n');
                if line == "}" {
                    for event in
                        counting.take_report(&text, begun).map_err(|why| process.failure_with_output(why))?
                    {
                        tell(if let LoadEvent::Began(_) = event {
                            LoadEvent::Began(pids.clone())
                        } else {
                            event
                        });
                    }
                    last = std::mem::take(&mut text);
                }
            }
            Ok(Some((OutputStream::Err, _))) => {}
            Ok(None) => break,
            Err(LineTimeout) => {
                process.stop();
                return Err(process.failure_with_output("it did not end in time"));
            }
        }
    }
    process.wait_for_output(within)?;
    let all = parse_results(&last).map_err(|why| process.failure_with_output(why))?;
    if all.errors > 0 {
        return Err(process.failure_with_output(format!("{} errors", all.errors)));
    }
    counting
        .last
        .ok_or_else(|| process.failure_with_output("too few reports for a measurement: run it longer"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::place::CommandLocation;
    use crate::process::ProcessSpec;

    const TEXT: &str = r#"eval: (g=0): rw=randrw
Starting 1 thread
{
  "fio version" : "fio-3.33",
  "jobs" : [ { "jobname" : "eval", "error" : 0,
    "read" : { "io_bytes" : 409600, "runtime" : 2000, "total_ios" : 100,
      "lat_ns" : { "min" : 900, "max" : 9000, "mean" : 2000.0, "stddev" : 50.0, "N" : 100,
        "bins" : { "1496" : 60, "2512" : 40 } } },
    "write" : { "io_bytes" : 4096, "runtime" : 1990, "total_ios" : 1,
      "lat_ns" : { "min" : 7000, "max" : 7000, "mean" : 7000.0, "stddev" : 0.0, "N" : 1,
        "bins" : { "6944" : 1 } } },
    "trim" : { "io_bytes" : 0, "runtime" : 0, "total_ios" : 0, "lat_ns" : { "min" : 0, "max" : 0 } } } ]
}

eval: (groupid=0, jobs=1): err= 0
"#;

    /// A report: when, for how long it counts, and I/Os of 1,496 ns.
    fn report(at_ms: u64, counted_ms: u64, ios: u64) -> String {
        format!(
            "{{\n \"fio version\" : \"fio-3.33\", \"timestamp_ms\" : {at_ms},\n \"jobs\" : [ {{ \"jobname\" : \"eval\", \
             \"error\" : 0, \"read\" : {{ \"io_bytes\" : {}, \"runtime\" : {counted_ms}, \"total_ios\" : {ios}, \
             \"lat_ns\" : {{ \"min\" : 1496, \"max\" : 1496, \"mean\" : 1496.0, \"stddev\" : 0.0, \"N\" : {ios}, \
             \"bins\" : {{ \"1496\" : {ios} }} }} }} }} ]\n}}\n",
            ios * 4096
        )
    }

    #[test]
    fn its_figures_are_read() {
        let figures = parse_results(TEXT).unwrap();
        assert_eq!((figures.ios, figures.moved, figures.seconds), (101, 413_696, 2.0));
        assert_eq!(
            (figures.latency.count(), figures.latency.min(), figures.latency.max()),
            (101, 900, 9_000)
        );
        let mean = (2_000.0 * 100.0 + 7_000.0) / 101.0;
        assert!((figures.latency.mean() - mean).abs() < 1.0);
        assert!(parse_results("fio: no such file").unwrap_err().to_string().contains("no such file"));
        let failed = TEXT.replace("\"error\" : 0", "\"error\" : 5");
        assert_eq!(parse_results(&failed).unwrap().errors, 1);
    }

    #[test]
    fn figures_are_those_between_two_reports() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut counting =
            FioCountingPeriod::new(begin, Duration::from_secs(1), Duration::from_millis(1_600));
        // Before the ramp is over, and just behind it with the counts of the ramp.
        assert_eq!(
            counting.take_report(&report(900, 300, 80), begin - Duration::from_millis(20)),
            Ok(Vec::new())
        );
        assert_eq!(counting.take_report(&report(1_010, 398, 90), at(20)), Ok(Vec::new()));
        assert_eq!(
            counting.take_report(&report(1_300, 290, 100), at(300)),
            Ok(vec![LoadEvent::Began(Vec::new())])
        );
        let progress = counting.take_report(&report(1_800, 790, 300), at(800)).unwrap();
        let [LoadEvent::Progress(progress)] = progress[..] else { panic!("{progress:?}") };
        assert_eq!((progress.seconds, progress.ios, progress.bytes), (0.5, 200, 200 * 4096));
        let ended = counting.take_report(&report(2_310, 1_300, 707), at(1_310)).unwrap();
        assert_eq!((ended.len(), ended.last()), (2, Some(&LoadEvent::Ended)));
        // Its end is in no window.
        assert_eq!(counting.take_report(&report(2_700, 1_600, 900), at(1_700)), Ok(Vec::new()));
        let figures = counting.last.unwrap();
        assert_eq!((figures.seconds, figures.ios, figures.moved), (1.01, 607, 607 * 4096));
        assert_eq!((figures.latency.count(), figures.latency.mean()), (607, 1496.0));
    }

    #[test]
    fn counts_that_go_back_and_reports_that_are_none_are_never_figures() {
        let begin = Instant::now();
        let mut counting = FioCountingPeriod::new(begin, Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(counting.take_report("{}\n", begin), Ok(Vec::new()));
        assert!(counting.take_report(&report(1_000, 10, 100), begin).is_ok());
        assert!(counting.take_report(&report(1_500, 510, 99), begin).unwrap_err().contains("went back"));
        // The last report of all ends nothing: its counts are older than it.
        let mut late = FioCountingPeriod::new(begin, Duration::from_secs(1), Duration::from_secs(2));
        assert!(late.take_report(&report(1_000, 10, 100), begin).is_ok());
        assert_eq!(late.take_report(&report(3_200, 2_000, 900), begin), Ok(Vec::new()));
        assert!(late.last.is_none());
    }

    /// The program itself, where it is installed, without a volume.
    #[test]
    fn fio_reports_as_it_runs() {
        if !CommandLocation::Here.has_program("fio") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let line = "fio --status-interval=100ms --output-format=normal,json+ --lat_percentiles=1 --thread --name=eval \
                    --rw=randread --ioengine=null --size=64m --norandommap --time_based --ramp_time=200ms --runtime=900ms";
        let words = line.split_ascii_whitespace().map(str::to_owned).collect();
        let run =
            ProcessSpec { name: "fio", place: &CommandLocation::Here, cores: &[], words, dir: dir.path() };
        let mut process = Process::start(run).unwrap();
        let second = Duration::from_secs(1);
        process.wait_for_line(20 * second, |line| line.starts_with("Starting ").then_some(())).unwrap();
        let begin = process.last_line_time() + Duration::from_millis(200);
        let counting = FioCountingPeriod::new(begin, Duration::from_millis(500), Duration::from_millis(900));
        let told = RefCell::new(Vec::new());
        let tell = |event| told.borrow_mut().push(event);
        let figures = collect_results(&mut process, counting, vec![7], 20 * second, &tell).unwrap();
        assert!(figures.seconds >= 0.5 && figures.ios > 0, "{figures:?}");
        // It reads its threads' counts while they count, one after the other: on a busy machine some percent apart.
        let (ios, latencies, blocks) = (figures.ios, figures.latency.count(), figures.moved / 4096);
        let is_near = |count: u64| count.abs_diff(ios) <= ios / 20;
        assert!(is_near(latencies) && is_near(blocks), "{ios} I/Os, {latencies} latencies, {blocks} blocks");
        let told = told.into_inner();
        assert_eq!((told.first(), told.last()), (Some(&LoadEvent::Began(vec![7])), Some(&LoadEvent::Ended)));
    }
}
