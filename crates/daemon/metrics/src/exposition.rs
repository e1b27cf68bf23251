//! The two text formats. They differ in the names of counters and of facts, in the type of facts, and at the end.

use std::fmt::Write as _;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpositionFormat {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows; its name gets `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Facts in labels, always 1; its name gets `_info`.
    Info,
    /// Counts by bucket.
    Histogram,
}

/// A text in the making.
#[derive(Debug)]
pub struct Exposition {
    out: String,
    format: ExpositionFormat,
    /// The metric that samples are of: its name with what its kind adds.
    name: String,
}

/// Labels of a sample: names are ours, values may be anybody's.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// An empty text.
    pub fn new(format: ExpositionFormat) -> Self {
        Exposition { out: String::new(), format, name: String::new() }
    }

    /// Begins a metric: its name without what its kind adds, and what it is.
    pub fn begin_family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let suffix = match kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        self.name.clear();
        self.name.push_str(name);
        self.name.push_str(suffix);
        let open = self.format == ExpositionFormat::OpenMetrics;
        let shown = if open { name } else { &self.name };
        let word = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Info if open => "info",
            MetricKind::Info | MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP {shown} {help}\n# TYPE {shown} {word}");
    }

    /// A sample of the metric that was begun last.
    pub fn push_sample(&mut self, labels: Labels<'_>, value: impl std::fmt::Display) {
        self.push_line("", labels, None, value);
    }

    /// A histogram: counts up to each bound in seconds, then of all; and their sum.
    pub fn push_histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        all: u64,
        sum: f64,
    ) {
        for (bound, count) in buckets {
            let bound = bound.to_string();
            self.push_line("_bucket", labels, Some(&bound), count);
        }
        self.push_line("_bucket", labels, Some("+Inf"), all);
        self.push_line("_count", labels, None, all);
        self.push_line("_sum", labels, None, sum);
    }

    fn push_line(
        &mut self,
        suffix: &str,
        labels: Labels<'_>,
        le: Option<&str>,
        value: impl std::fmt::Display,
    ) {
        self.out.push_str(&self.name);
        self.out.push_str(suffix);
        let mut open = '{';
        for (name, value) in labels.iter().copied().chain(le.map(|le| ("le", le))) {
            self.out.push(open);
            open = ',';
            self.out.push_str(name);
            self.out.push_str("=\"");
            push_escaped(&mut self.out, value);
            self.out.push('"');
        }
        if open == ',' {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// A label's value: a quotation mark, a backslash or the end of a line ends nothing.
fn push_escaped(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: ExpositionFormat) -> String {
        let mut out = Exposition::new(format);
        out.begin_family("x_reads", MetricKind::Counter, "Reads.");
        out.push_sample(&[("volume", "a\"b\\c\nd")], 3);
        out.begin_family("x_build", MetricKind::Info, "What it is.");
        out.push_sample(&[("version", "1")], 1);
        out.begin_family("x_latency_seconds", MetricKind::Histogram, "Latency.");
        out.push_histogram(&[("stage", "send")], [(0.000001, 1), (0.5, 2)].into_iter(), 3, 1.25);
        out.begin_family("x_up", MetricKind::Gauge, "Up.");
        out.push_sample(&[], 1);
        out.finish()
    }

    #[test]
    fn both_formats() {
        let samples = [
            "x_reads_total{volume=\"a\\\"b\\\\c\\nd\"} 3\n",
            "x_build_info{version=\"1\"} 1\n",
            "x_latency_seconds_bucket{stage=\"send\",le=\"0.000001\"} 1\n\
             x_latency_seconds_bucket{stage=\"send\",le=\"0.5\"} 2\n\
             x_latency_seconds_bucket{stage=\"send\",le=\"+Inf\"} 3\n\
             x_latency_seconds_count{stage=\"send\"} 3\n\
             x_latency_seconds_sum{stage=\"send\"} 1.25\n",
            "x_up 1\n",
        ];
        let (plain, open) = (text(ExpositionFormat::Prometheus), text(ExpositionFormat::OpenMetrics));
        for sample in samples {
            assert!(plain.contains(sample) && open.contains(sample), "{sample}{plain}{open}");
        }
        assert!(plain.contains("# TYPE x_reads_total counter\n"), "{plain}");
        assert!(plain.contains("# TYPE x_build_info gauge\n"), "{plain}");
        assert!(!plain.contains("EOF"));
        assert!(open.contains("# TYPE x_reads counter\n"), "{open}");
        assert!(open.contains("# TYPE x_build info\n"), "{open}");
        assert!(open.ends_with("# EOF\n"));
    }
}
