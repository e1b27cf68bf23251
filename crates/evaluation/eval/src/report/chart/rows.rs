//! Rows one below the other: bars with their spread, and shapes of distributions.

use std::fmt::Write;

use super::super::colour::SystemColour;
use super::super::markup::escape_html;
use super::{DECADE, WIDTH, fit_text, log_marks, mark_label, open_svg};
use crate::Histogram;
use crate::figure_range::format_short;

const LEFT: f64 = 8.0;

/// A bar.
pub(in super::super) struct Bar {
    /// What it is of.
    pub(in super::super) name: String,
    /// Its colour.
    pub(in super::super) colour: SystemColour,
    /// The median.
    pub(in super::super) value: f64,
    /// The lowest of the runs.
    pub(in super::super) low: f64,
    /// The highest.
    pub(in super::super) high: f64,
}

/// Bars, one below the other, each with its lowest and highest value; where they span decades, on a logarithmic axis,
/// which is said.
pub(in super::super) fn bar_chart(title: &str, unit: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 42.0;
    let most = bars.iter().map(|bar| bar.high).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let least = bars.iter().map(|bar| bar.low).filter(|low| *low > 0.0).fold(most, f64::min);
    let is_log = most / least >= DECADE;
    let height = ROW * bars.len() as f64 + if is_log { 24.0 } else { 6.0 };
    let mut svg = open_svg(title, bars.len(), height);
    let label = |bar: &Bar| format!("{} {unit}", super::super::text::format_figure(bar.value));
    // So that the longest figure still stands in the picture: a bold letter is at most 9.6 wide, on phones.
    let letters = bars.iter().map(|bar| label(bar).chars().count()).max().unwrap_or(0);
    let room = WIDTH - LEFT - 16.0 - 9.6 * letters as f64;
    let (marks, low, top) = if is_log { log_marks(least * 0.8, most) } else { (Vec::new(), 0.0, most) };
    let wide = |value: f64| {
        let part = if is_log { (value.max(low) / low).ln() / (top / low).ln() } else { value / most };
        room * part.clamp(0.0, 1.0)
    };
    for value in marks {
        let (x, bottom) = (LEFT + wide(value), ROW * bars.len() as f64);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{bottom}\"/>\
             <text class=\"unit\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            bottom + 14.0,
            text_anchor(x),
            mark_label(value)
        );
    }
    if is_log {
        let y = ROW * bars.len() as f64 + 14.0;
        let at = WIDTH - LEFT;
        let _ = write!(
            svg,
            "<text class=\"unit\" x=\"{at}\" y=\"{y:.1}\" text-anchor=\"end\">logarithmic</text>"
        );
    }
    for (at, bar) in bars.iter().enumerate() {
        let y = ROW * at as f64;
        let middle = y + 28.0;
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\"{}>{}</text>\
             <rect class=\"{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"2\"/>\
             <line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + 14.0,
            fit_text(&bar.name, WIDTH - 2.0 * LEFT),
            escape_html(&bar.name),
            bar.colour.fill_classes(),
            y + 20.0,
            wide(bar.value),
            LEFT + wide(bar.low),
            LEFT + wide(bar.high),
            LEFT + wide(bar.high) + 8.0,
            y + 33.0,
            escape_html(&label(bar)),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A distribution.
pub(in super::super) struct Distribution {
    /// What it is of.
    pub(in super::super) name: String,
    /// Its colour.
    pub(in super::super) colour: SystemColour,
    /// Latencies.
    pub(in super::super) latencies: Histogram,
}

/// Shapes of distributions over one logarithmic axis of microseconds, each with its mean, standard
/// deviation and 99th percentile.
pub(in super::super) fn distribution_chart(title: &str, distributions: &[Distribution]) -> String {
    const ROW: f64 = 90.0;
    const BINS: usize = 72;
    let height = ROW * distributions.len() as f64 + 34.0;
    let mut svg = open_svg(title, distributions.len() * BINS, height);
    let all = || distributions.iter().map(|shape| &shape.latencies).filter(|one| one.count() > 0);
    let low = all().map(|one| one.percentile(0.1)).min().unwrap_or(1).max(1) as f64 * 0.8;
    let high = all().map(|one| one.percentile(99.9)).max().unwrap_or(10).max(10) as f64 * 1.3;
    let room = WIDTH - 2.0 * LEFT;
    let part = |ns: f64| ((ns.max(1.0) / low).ln() / (high / low).ln()).clamp(0.0, 1.0);
    for (at, shape) in distributions.iter().enumerate() {
        let bottom = ROW * (at + 1) as f64 - 4.0;
        let mut bins = [0.0; BINS];
        for (start, wide, count) in shape.latencies.buckets() {
            // A bucket that is wider than a bin is spread over the bins that it covers.
            let (from, to) =
                (part(start as f64) * BINS as f64, part(start as f64 + wide as f64) * BINS as f64);
            let (first, last) = ((from as usize).min(BINS - 1), (to as usize).min(BINS - 1));
            let share = count as f64 / (last - first + 1) as f64;
            bins.iter_mut().take(last + 1).skip(first).for_each(|bin| *bin += share);
        }
        let most = bins.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let mut path = format!("M{LEFT} {bottom}");
        for (bin, value) in bins.iter().enumerate() {
            let x = LEFT + room * (bin as f64 + 0.5) / BINS as f64;
            let _ = write!(path, "L{x:.1} {:.1}", bottom - 46.0 * value / most);
        }
        let _ = write!(path, "L{:.1} {bottom}Z", LEFT + room);
        let one = &shape.latencies;
        let us = |ns: f64| format_short(ns / 1e3);
        let tail = LEFT + room * part(one.percentile(99.0) as f64);
        let said = format!(
            "mean {}, σ {}, p99 {} µs",
            us(one.mean()),
            us(one.standard_deviation()),
            us(one.percentile(99.0) as f64)
        );
        let _ = write!(
            svg,
            "<path class=\"{0}\" d=\"{path}\"/>\
             <line class=\"whisker\" x1=\"{tail:.1}\" x2=\"{tail:.1}\" y1=\"{1:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{LEFT}\" y=\"{2:.1}\"{3}>{4}</text>\
             <text class=\"unit\" x=\"{LEFT}\" y=\"{5:.1}\">{said}</text>",
            shape.colour.outline_classes(),
            bottom - 24.0,
            bottom - 68.0,
            fit_text(&shape.name, room),
            escape_html(&shape.name),
            bottom - 52.0,
        );
    }
    draw_log_axis(&mut svg, (low, high), height, part);
    svg.push_str("</svg>");
    svg
}

/// On which side of a place its mark stands, so that none is cut off.
fn text_anchor(x: f64) -> &'static str {
    match x {
        ..24.0 => "start",
        _ if x > WIDTH - 24.0 => "end",
        _ => "middle",
    }
}

/// Marks at 1, 2 and 5 of each power of ten.
fn draw_log_axis(svg: &mut String, (low, high): (f64, f64), height: f64, part: impl Fn(f64) -> f64) {
    let room = WIDTH - 2.0 * LEFT;
    let wide = (high / low).log10();
    let steps: &[f64] = if wide > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    for power in low.log10().floor() as i32..=high.log10().ceil() as i32 {
        for step in steps {
            let ns = step * 10f64.powi(power);
            if ns < low || ns > high {
                continue;
            }
            let x = LEFT + room * part(ns);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"8\" y2=\"{:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
                height - 32.0,
                height - 17.0,
                text_anchor(x),
                mark_label(ns / 1e3)
            );
        }
    }
    let _ = write!(
        svg,
        "<text class=\"unit\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">µs, logarithmic; 99 of 100 I/Os are left of the upright line</text>",
        WIDTH / 2.0,
        height - 2.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    #[test]
    fn bars_that_span_decades_have_a_logarithmic_axis_and_long_names_stay_within() {
        let bar = |name: &str, value: f64| {
            let colour = SystemColour::of(&point("tgt", "randread", 4096, 1000));
            Bar { name: name.into(), colour, value, low: value * 0.9, high: value * 1.1 }
        };
        let near = bar_chart("t", "IOPS", &[bar("a", 100.0), bar("b", 500.0)]);
        let far = bar_chart("t", "IOPS", &[bar("a", 100.0), bar(&"b".repeat(80), 50_000.0)]);
        assert!(!near.contains("logarithmic") && far.contains("logarithmic"));
        assert_eq!((near.matches("textLength").count(), far.matches("textLength").count()), (0, 1));
    }
}
