//! Charts as inline SVG: no script, colours by style sheet, readable in light, dark and in print.
//!
//! Invariant: a chart says in `data-points` how many values it shows, and an unknown value leaves a gap.

mod heat;
mod lines;
mod rows;

pub(super) use heat::{HeatRow, heat_map};
pub(super) use lines::{Axis, LineSeries, line_chart};
pub(super) use rows::{Bar, Distribution, bar_chart, distribution_chart};

use super::markup::escape_html;

/// All charts are so wide that their letters stay readable on a phone.
const WIDTH: f64 = 480.0;

fn open_svg(title: &str, points: usize, height: f64) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{0}\" data-points=\"{points}\">\
         <title>{0}</title>",
        escape_html(title)
    )
}

/// What keeps a text within so much room: nothing if it fits anyhow. A letter is at most 8.3 wide, on phones too.
fn fit_text(text: &str, room: f64) -> String {
    let wide = 8.3 * text.chars().count() as f64;
    if wide <= room {
        String::new()
    } else {
        format!(" textLength=\"{room:.0}\" lengthAdjust=\"spacingAndGlyphs\"")
    }
}

/// Values that span so much are shown on a logarithmic axis: a decade.
const DECADE: f64 = 10.0;

/// Marks at 1, 2 and 5 of powers of ten, or at powers only where those are many.
fn log_marks(least: f64, most: f64) -> (Vec<f64>, f64, f64) {
    let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let steps: &[f64] = if most / least > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all: Vec<f64> =
        (from..=to).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect();
    let low = all.iter().copied().filter(|mark| *mark <= least).reduce(f64::max);
    let low = low.or(all.first().copied()).unwrap_or(least);
    let top = all.iter().copied().find(|mark| *mark >= most && *mark > low).unwrap_or(low * 10.0);
    (all.into_iter().filter(|mark| *mark >= low && *mark <= top).collect(), low, top)
}

/// The step between marks of an axis, so that there are at most six.
fn mark_step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let raw = most / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= raw * 0.999).unwrap_or(10.0);
    step * power
}

/// A mark of an axis: `250K`, `1.5M`, `12`, `0.25`.
fn mark_label(value: f64) -> String {
    let trimmed = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        _ if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        _ if value >= 1e4 => format!("{}K", trimmed(value / 1e3)),
        _ if value >= 0.01 || value == 0.0 => trimmed(value),
        _ => crate::figure_range::format_short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_hold_what_they_mark() {
        for (least, most) in [(3.0, 900.0), (10.0, 10.0), (0.02, 5e6), (99.0, 101.0)] {
            let (marks, low, top) = log_marks(least, most);
            assert!(low <= least && top >= most && low < top, "{least} to {most}: {marks:?}");
            assert!((2..=12).contains(&marks.len()), "{marks:?}");
        }
    }

    #[test]
    fn marks_are_round_and_few() {
        for most in [0.7, 1.0, 9.3, 99.0, 123_456.0] {
            let step = mark_step(most);
            let marks = (most / step).ceil();
            assert!((2.0..=6.0).contains(&marks), "{most}: {marks} steps of {step}");
        }
        assert_eq!(
            [mark_label(0.0), mark_label(250_000.0), mark_label(1.5e6), mark_label(0.25), mark_label(2000.0)],
            ["0", "250K", "1.5M", "0.25", "2000"]
        );
    }
}
