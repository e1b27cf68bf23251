//! vdbench's results: `flatfile.html`, a table with named columns, and `summary.html`, text for people.
//!
//! Both give means, standard deviation and maximum of response times, in milliseconds, and no percentiles. A
//! run's averages omit its first interval (`avg_2-60`).

use super::{IMPORTED, ImportContext, ImportError};
use crate::preset::fio_rw_word;
use crate::record::{LatencySummary, Point, Run};

const MIB: f64 = 1_048_576.0;

/// Whether a text has the named columns of a flat file.
pub(super) fn is_flat_file(text: &str) -> bool {
    column_line(text).is_some()
}

/// The line that names the columns, split.
fn column_line(text: &str) -> Option<(usize, Vec<&str>)> {
    text.lines().enumerate().find_map(|(at, line)| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_head = ["Run", "Interval", "rate", "MB/sec", "resp"].iter().all(|name| words.contains(name));
        (is_head && !line.starts_with('*')).then_some((at, words))
    })
}

/// Whether a text has a summary's runs.
pub(super) fn is_summary(text: &str) -> bool {
    text.contains("Starting RD=") && text.contains("avg_")
}

/// What both forms tell of a run.
struct RunAverages {
    label: String,
    seconds: f64,
    rate: f64,
    mib: f64,
    bytes: f64,
    read_percent: f64,
    response_ms: f64,
    deviation_ms: f64,
    max_ms: f64,
    depth: f64,
    is_random: bool,
}

impl RunAverages {
    fn into_point(self, about: &ImportContext) -> Option<Point> {
        if self.rate <= 0.0 || self.bytes <= 0.0 {
            return None;
        }
        let direction = match self.read_percent {
            percent if percent >= 99.5 => crate::fio::IoDirection::Read,
            percent if percent <= 0.5 => crate::fio::IoDirection::Write,
            percent => crate::fio::IoDirection::Mixed(percent.round() as u8),
        };
        let summary = LatencySummary {
            mean: self.response_ms * 1e6,
            deviation: self.deviation_ms * 1e6,
            max: self.max_ms * 1e6,
        };
        let run = Run {
            seconds: self.seconds,
            ios: (self.rate * self.seconds).round() as u64,
            moved: (self.mib * MIB * self.seconds).round() as u64,
            latency_summary: Some(summary),
            ..Run::default()
        };
        Some(Point {
            rw: fio_rw_word(direction, self.is_random).to_owned(),
            bytes: self.bytes.round() as u64,
            depth: self.depth.round().max(1.0) as u32,
            labels: vec![("run".to_owned(), self.label)],
            // Whether a rate was asked for stands in the parameter file only.
            is_closed: false,
            runs: vec![run],
            ..about.empty_point()
        })
    }
}

fn form_note(form: &str) -> String {
    format!(
        "{IMPORTED} vdbench's {form}: mean response times, their deviation and maximum; it keeps no percentiles, and \
         neither end's processors were looked at."
    )
}

/// `2-60` of `avg_2-60`: how many intervals were averaged.
fn averaged_intervals(word: &str) -> Option<f64> {
    let (from, to) = word.strip_prefix("avg_")?.split_once('-')?;
    let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
    (to >= from).then(|| f64::from(to - from) + 1.0)
}

/// Seconds of the day of `12:34:56.789`.
fn parse_clock(text: &str) -> Option<f64> {
    let mut parts = text.split(':').map(|part| part.parse::<f64>().ok());
    Some(parts.next()?? * 3600.0 + parts.next()?? * 60.0 + parts.next()??)
}

/// How long an interval is: the middle one of the steps between times of day, to whole seconds.
fn interval_length(times: &[f64]) -> f64 {
    let mut steps: Vec<f64> = times
        .iter()
        .zip(times.iter().skip(1))
        .map(|(from, to)| to - from)
        .filter(|step| *step > 0.5)
        .collect();
    steps.sort_by(f64::total_cmp);
    steps.get(steps.len() / 2).map_or(1.0, |step| step.round().max(1.0))
}

fn missing_error(what: &str) -> ImportError {
    ImportError::Damaged(None, format!("vdbench's flat file has no {what}"))
}

/// `index`: of the line, from 0.
fn bad_line(index: usize, why: String) -> ImportError {
    ImportError::Damaged(Some(format!("line {}", index + 1)), why)
}

/// The runs of a flat file.
pub(super) fn flat_file_points(
    about: &ImportContext,
    text: &str,
) -> Result<(Vec<Point>, String), ImportError> {
    let (head, names) = column_line(text).ok_or_else(|| missing_error("line of column names"))?;
    let place = |name: &str| names.iter().position(|known| *known == name);
    let run_at = place("Run").unwrap_or(0);
    let interval_at = place("Interval").ok_or_else(|| missing_error("column \"Interval\""))?;
    let (mut points, mut times) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate().skip(head + 1) {
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(interval) = cells.get(interval_at).filter(|_| cells.len() == names.len()) else { continue };
        let Some(count) = averaged_intervals(interval) else {
            times.extend(cells.first().and_then(|tod| parse_clock(tod)));
            continue;
        };
        let figure = |name: &str| -> Result<f64, ImportError> {
            let cell = place(name).and_then(|at| cells.get(at));
            let cell = cell.ok_or_else(|| missing_error(&format!("column \"{name}\"")))?;
            let figure = cell.parse().ok().filter(|figure: &f64| figure.is_finite());
            figure.ok_or_else(|| bad_line(at, format!("\"{cell}\" is no figure of {name}")))
        };
        let averages = RunAverages {
            label: cells.get(run_at).copied().unwrap_or_default().to_owned(),
            seconds: count * interval_length(&times),
            rate: figure("rate")?,
            mib: figure("MB/sec")?,
            bytes: figure("bytes/io")?,
            read_percent: figure("read%")?,
            response_ms: figure("resp")?,
            deviation_ms: figure("resp_std")?,
            max_ms: figure("resp_max")?,
            depth: figure("queue_depth").or_else(|_| figure("threads"))?,
            // Per cent of seeks; where it is not a number, several workloads ran at once.
            is_random: figure("seekpct").unwrap_or(100.0) > 50.0,
        };
        times.clear();
        points.extend(averages.into_point(about));
    }
    Ok((points, form_note("flatfile.html")))
}

/// The runs of a summary: columns as they have stood since 5.04, behind the time of day and the interval: rate,
/// MB/s, bytes, read %, response, read and write response, their maxima, deviation, queue depth, processor.
pub(super) fn summary_points(about: &ImportContext, text: &str) -> Result<(Vec<Point>, String), ImportError> {
    let (mut points, mut times, mut name) = (Vec::new(), Vec::new(), String::new());
    for (at, line) in text.lines().enumerate() {
        if let Some((_, rest)) = line.split_once("Starting RD=") {
            name = rest.split([';', '<']).next().unwrap_or_default().trim().to_owned();
            times.clear();
            continue;
        }
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(time) = cells.first().and_then(|cell| parse_clock(cell)) else { continue };
        let Some(count) = cells.get(1).and_then(|cell| averaged_intervals(cell)) else {
            if cells.get(1).is_some_and(|cell| cell.parse::<u32>().is_ok()) {
                times.push(time);
            }
            continue;
        };
        let figure = |place: usize| -> Result<f64, ImportError> {
            let cell = cells.get(place).ok_or_else(|| bad_line(at, "it breaks off".to_owned()))?;
            let figure = cell.parse().ok().filter(|figure: &f64| figure.is_finite());
            figure.ok_or_else(|| bad_line(at, format!("\"{cell}\" is no figure")))
        };
        let averages = RunAverages {
            label: name.clone(),
            seconds: count * interval_length(&times),
            rate: figure(2)?,
            mib: figure(3)?,
            bytes: figure(4)?,
            read_percent: figure(5)?,
            response_ms: figure(6)?,
            max_ms: figure(9)?.max(figure(10)?),
            deviation_ms: figure(11)?,
            depth: figure(12)?,
            // A summary does not say; the papers' loads are.
            is_random: true,
        };
        // Preparation of files is no run of the user's.
        if name != "SD_format" {
            points.extend(averages.into_point(about));
        }
    }
    Ok((points, form_note("summary.html, which does not say whether offsets were random")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::about;
    use super::*;

    const FLAT: &str = "\
<title>Vdbench flatfile</title><pre>
* flatfile: tod=time of day; resp: response time in milliseconds
 tod Run Interval reqrate rate MB/sec bytes/io read% resp read_resp write_resp resp_max read_max write_max resp_std \
read_std write_std xfersize threads rdpct rhpct whpct seekpct lunsize version compratio dedupratio queue_depth \
cpu_used cpu_user cpu_kernel cpu_wait cpu_idle
10:00:02.000 randread_4096 1 9999988 90000.0 351.6 4096 100 0.355 0.355 0 9 9 0 0.1 0.1 0 4096 32 100 0 0 100 512m 5.04 1 1 31.9 40 10 30 0 60
10:00:04.000 randread_4096 2 9999988 100000.0 390.6 4096 100 0.320 0.320 0 12.5 12.5 0 0.25 0.25 0 4096 32 100 0 0 100 512m 5.04 1 1 32.0 41 10 31 0 59
10:00:04.001 randread_4096 avg_2-2 9999988 100000.0 390.625 4096 100 0.320 0.320 0 12.5 12.5 0 0.25 0.25 0 4096 32 100 0 0 100 512m 5.04 1 1 32.0 41 10 31 0 59
";

    #[test]
    fn a_flat_files_averages_are_a_run() {
        let (points, note) = flat_file_points(&about(), FLAT).unwrap();
        assert_eq!(points.len(), 1);
        let point = &points[0];
        assert_eq!((point.rw.as_str(), point.bytes, point.depth), ("randread", 4096, 32));
        assert_eq!(point.runs[0].seconds, 2.0, "one interval of two seconds");
        assert_eq!(point.iops().unwrap().median, 100_000.0);
        assert_eq!(point.mean_latency().unwrap().median, 320.0);
        assert_eq!(point.jitter().unwrap().median, 250.0);
        assert_eq!(point.percentile(99.0), None, "it keeps no percentiles");
        assert!(point.runs[0].inconsistencies(point).is_empty() && note.contains("no percentiles"));
    }

    /// It was written as a record that nothing could read again.
    #[test]
    fn a_figure_that_overflows_is_never_taken() {
        use crate::record::Record;
        for figure in ["1e308", "inf", "NaN", "-1"] {
            let text = FLAT.replace("100 0.320 0.320", &format!("100 {figure} 0.320"));
            let mut record = Record::default();
            let why = super::super::import(&mut record, &about(), &text).unwrap_err();
            assert!(why.to_string().contains("figure") && record.points.is_empty(), "{figure}: {why}");
        }
        for word in ["avg_-9223372036854775808-9223372036854775807", "avg_4-2", "avg_", "avg_0-4294967295"] {
            let _ = flat_file_points(&about(), &FLAT.replace("avg_2-2", word));
        }
    }

    #[test]
    fn a_figure_that_is_not_there_is_never_zero() {
        for (name, cells) in [("resp_std", " 0.25 0.25 0 4096"), ("resp_max", " 12.5 12.5 0 0.25")] {
            let damaged = FLAT.replace(cells, &cells.replacen(['0', '1'], "x", 1));
            assert!(flat_file_points(&about(), &damaged).unwrap_err().to_string().contains(name), "{name}");
            let absent = FLAT.replace(name, "another");
            assert!(flat_file_points(&about(), &absent).unwrap_err().to_string().contains(name), "{name}");
        }
    }

    #[test]
    fn a_damaged_figure_is_named_by_line() {
        let damaged = FLAT.replace("avg_2-2 9999988 100000.0", "avg_2-2 9999988 many");
        assert!(flat_file_points(&about(), &damaged).unwrap_err().to_string().contains("line 6: \"many\""));
    }

    #[test]
    fn a_summary_without_a_rate_is_never_one_of_no_io() {
        let text = "\
16:24:31.001 Starting RD=rd1; I/O rate: 100; elapsed=3; For loops: None
16:24:34.020     avg_2-3      103.0     0.10    1024  51.95    0.012    0.011    0.014     0.05     0.02    0.005    0.0   4.2   0.8
";
        assert_eq!(summary_points(&about(), text).unwrap().0[0].runs[0].ios, 206);
        for (cell, name) in [("103.0", "rate"), (" 51.95", "read percentage"), ("  0.02", "maximum")] {
            for figure in ["NaN", "inf"] {
                let text = text.replace(cell, &format!(" {figure}"));
                let why = summary_points(&about(), &text).map(drop).unwrap_err();
                assert!(why.to_string().contains(figure), "{name}: {why}");
            }
        }
    }

    #[test]
    fn a_summary_is_read_run_by_run() {
        let text = "\
16:24:29.004 Starting RD=SD_format; I/O rate: Uncontrolled MAX; elapsed=(none); For loops: threads=2 iorate=max
16:24:30.156           1      320.0    40.00  131072   0.00    0.739    0.000    0.739     0.00    32.50    2.466    0.2  36.5  25.0
16:24:30.181     avg_2-1        0.0     0.00       0   0.00    0.000    0.000    0.000     0.00     0.00    0.000    0.0   NaN   NaN
16:24:31.001 <a name=\"x\"></a><b>Starting RD=rd1; I/O rate: 100; elapsed=3; For loops: None</b>
Jan 24, 2019    interval        i/o   MB/sec   bytes   read     resp     read    write     read    write     resp  queue  cpu%  cpu%
16:24:32.018           1       84.0     0.08    1024  53.57    0.013    0.010    0.015     0.03     0.05    0.006    0.0  19.2   1.5
16:24:33.011           2      103.0     0.10    1024  52.43    0.012    0.010    0.014     0.05     0.02    0.005    0.0   5.0   0.5
16:24:34.011           3      103.0     0.10    1024  51.46    0.012    0.011    0.013     0.02     0.02    0.004    0.0   3.5   1.0
16:24:34.020     avg_2-3      103.0     0.10    1024  51.95    0.012    0.011    0.014     0.05     0.02    0.005    0.0   4.2   0.8
";
        assert!(is_summary(text) && !is_flat_file(text));
        let (points, _) = summary_points(&about(), text).unwrap();
        assert_eq!(points.len(), 1, "formatting is no run");
        assert_eq!(points[0].labels, [("run".to_owned(), "rd1".to_owned())]);
        assert_eq!((points[0].runs[0].seconds, points[0].runs[0].ios), (2.0, 206));
        assert_eq!((points[0].rw.as_str(), points[0].mean_latency().unwrap().median), ("randrw", 12.0));
    }
}
