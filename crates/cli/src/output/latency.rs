//! How long commands took, as tables: one for each class, a row for each stage.

use super::{DisplayText, Terminal, render_table};
use control::report::LatencyReport;

/// The tables; empty if nothing was asked for.
pub fn latency_tables(terminal: Terminal, classes: Option<&[LatencyReport]>) -> DisplayText {
    let mut out = DisplayText::default();
    let Some(classes) = classes else { return out };
    if classes.is_empty() {
        return DisplayText::escaped("\nno commands yet\n");
    }
    for class in classes {
        out += DisplayText::escaped("\n");
        out += latency_table(terminal, class);
    }
    out
}

fn latency_table(terminal: Terminal, class: &LatencyReport) -> DisplayText {
    let rows = class.stages.iter().map(|stage| {
        [
            stage.stage.clone(),
            stage.commands.to_string(),
            stage.mean_ns().map_or_else(|| "-".to_owned(), format_ns),
            percentile_bound(stage.p50_us, stage.commands),
            percentile_bound(stage.p99_us, stage.commands),
            percentile_bound(stage.p999_us, stage.commands),
        ]
    });
    let name = class.class.to_uppercase();
    render_table(terminal, [&name, "COMMANDS", "MEAN", "50 %", "99 %", "99.9 %"], rows.collect(), "")
}

fn percentile_bound(micros: Option<u64>, commands: u64) -> String {
    match (micros, commands) {
        (_, 0) => "-".to_owned(),
        (Some(micros), _) => format!("≤ {}", format_ns(micros * 1000)),
        (None, _) => "> 67 s".to_owned(),
    }
}

/// With three digits or four.
fn format_ns(ns: u64) -> String {
    let scaled = |unit: u64, name: &str| {
        let whole = ns / unit;
        let digits = if whole >= 100 {
            0
        } else if whole >= 10 {
            1
        } else {
            2
        };
        let exact = ns.is_multiple_of(unit);
        format!("{:.*} {name}", if exact { 0 } else { digits }, ns as f64 / unit as f64)
    };
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(1_000, "µs"),
        1_000_000..1_000_000_000 => scaled(1_000_000, "ms"),
        _ => scaled(1_000_000_000, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::report::StageReport;

    #[test]
    fn each_class_is_a_table() {
        let mut counts = [0; 28];
        (counts[0], counts[7]) = (98, 2);
        let stages =
            vec![StageReport::new("backend", &counts, 12_345_678), StageReport::new("send", &[0; 28], 0)];
        let class = LatencyReport { class: "read".into(), stages };
        let text = latency_tables(Terminal::NONE, Some(&[class]));
        assert_eq!(
            text.as_str(),
            "\nREAD     COMMANDS  MEAN    50 %    99 %      99.9 %\n\
             backend  100       123 µs  ≤ 1 µs  ≤ 128 µs  ≤ 128 µs\n\
             send     0         -       -       -         -\n"
        );
        assert_eq!(latency_tables(Terminal::NONE, Some(&[])).as_str(), "\nno commands yet\n");
        assert_eq!(latency_tables(Terminal::NONE, None).as_str(), "");
        assert_eq!(
            [0, 999, 1_500, 15_500, 2_000_000, 67_108_864_000].map(format_ns),
            ["0", "999 ns", "1.50 µs", "15.5 µs", "2 ms", "67.1 s"]
        );
    }
}
