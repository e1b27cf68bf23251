//! Charts as inline SVG: no script, colours by style sheet, readable in light, dark and in print.
//!
//! Invariant: a chart says in `data-points` how many values it shows, and a value that is not known
//! leaves a gap.

use std::fmt::Write;

use super::html::escaped;
use crate::interval::short;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// One line of a chart.
pub(super) struct Series {
    /// What it is.
    pub(super) name: String,
    /// A value for each place of the x axis.
    pub(super) values: Vec<Option<f64>>,
    /// Whether it is drawn against the right axis, dashed.
    pub(super) on_right: bool,
}

/// The step between marks of an axis, so that there are at most six.
fn step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let raw = most / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= raw * 0.999).unwrap_or(10.0);
    step * power
}

fn open(title: &str, points: usize, height: f64) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\" data-points=\"{points}\">\
         <title>{0}</title>",
        escaped(title)
    )
}

/// Lines over places in order, as the papers draw throughput and processor use against I/O size.
pub(super) fn lines(title: &str, places: &[String], axes: (&str, &str), series: &[Series]) -> String {
    let points = series.iter().map(|one| one.values.iter().flatten().count()).sum();
    let legend = 18.0 * series.len() as f64;
    let mut svg = open(title, points, HEIGHT + legend);
    let most = |right: bool| {
        let values =
            series.iter().filter(|one| one.on_right == right).flat_map(|one| one.values.iter().flatten());
        values.copied().fold(0.0, f64::max)
    };
    let (plot_w, plot_h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |at: usize| LEFT + plot_w * (at as f64 + 0.5) / places.len().max(1) as f64;
    for (right, label) in [(false, axes.0), (true, axes.1)] {
        let most = most(right);
        if most <= 0.0 {
            continue;
        }
        let step = step(most);
        let top = (most / step).ceil() * step;
        let mut mark = 0.0;
        while mark <= top * 1.0001 {
            let y = TOP + plot_h * (1.0 - mark / top);
            let (at, anchor) = if right { (WIDTH - RIGHT + 6.0, "start") } else { (LEFT - 6.0, "end") };
            if !right {
                let end = WIDTH - RIGHT;
                let _ = write!(
                    svg,
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
                );
            }
            let _ = write!(
                svg,
                "<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                y + 4.0,
                short(mark)
            );
            mark += step;
        }
        let (at, turn) = if right { (WIDTH - 10.0, 90) } else { (14.0, -90) };
        let middle = TOP + plot_h / 2.0;
        let _ = write!(
            svg,
            "<text transform=\"translate({at},{middle}) rotate({turn})\" text-anchor=\"middle\">{}</text>",
            escaped(label)
        );
        for (number, one) in series.iter().enumerate().filter(|(_, one)| one.on_right == right) {
            line(&mut svg, number, one, &x, |value| TOP + plot_h * (1.0 - value / top));
        }
    }
    for (at, place) in places.iter().enumerate() {
        let y = HEIGHT - BOTTOM + 18.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            x(at),
            escaped(place)
        );
    }
    for (number, one) in series.iter().enumerate() {
        let y = HEIGHT - 6.0 + 18.0 * number as f64;
        let dash = if one.on_right { " dashed" } else { "" };
        let _ = write!(
            svg,
            "<line class=\"c{}{dash}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            number % 8,
            LEFT + 26.0,
            y - 4.0,
            y - 4.0,
            LEFT + 34.0,
            escaped(&one.name)
        );
    }
    svg.push_str("</svg>");
    svg
}

fn line(svg: &mut String, number: usize, one: &Series, x: &impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) {
    let mut path = String::new();
    let mut is_down = false;
    for (at, value) in one.values.iter().enumerate() {
        let Some(value) = value else {
            is_down = false;
            continue;
        };
        let (x, y) = (x(at), y(*value));
        let _ = write!(path, "{}{x:.1} {y:.1}", if is_down { "L" } else { "M" });
        is_down = true;
        let _ = write!(
            svg,
            "<circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{}: {}</title></circle>",
            number % 8,
            escaped(&one.name),
            short(*value)
        );
    }
    let dash = if one.on_right { " dashed" } else { "" };
    let _ = write!(svg, "<path class=\"c{}{dash}\" d=\"{path}\"/>", number % 8);
}

/// Bars, one below the other, each with its lowest and highest value.
pub(super) fn bars(title: &str, unit: &str, bars: &[(String, f64, f64, f64)]) -> String {
    let height = 30.0 * bars.len() as f64 + 24.0;
    let mut svg = open(title, bars.len(), height);
    let most = bars.iter().map(|bar| bar.3).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (left, room) = (300.0, WIDTH - 300.0 - 130.0);
    for (at, (name, value, low, high)) in bars.iter().enumerate() {
        let y = 8.0 + 30.0 * at as f64;
        let wide = |value: f64| room * (value / most).clamp(0.0, 1.0);
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"f{}\" x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\"/>\
             <line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
            left - 8.0,
            y + 13.0,
            escaped(name),
            at % 8,
            wide(*value),
            left + wide(*low),
            left + wide(*high),
            left + wide(*high) + 8.0,
            y + 13.0,
            short(*value),
            escaped(unit),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// How busy each core was: a row for each system, a cell for each core.
pub(super) fn heat(title: &str, rows: &[(String, Vec<f64>)]) -> String {
    let height = 26.0 * rows.len() as f64 + 34.0;
    let points = rows.iter().map(|row| row.1.len()).sum();
    let mut svg = open(title, points, height);
    let most = rows.iter().map(|row| row.1.len()).max().unwrap_or(0).max(1);
    let (left, room) = (300.0, WIDTH - 300.0 - 10.0);
    let wide = (room / most as f64).min(60.0);
    for (at, (name, cores)) in rows.iter().enumerate() {
        let y = 6.0 + 26.0 * at as f64;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 15.0,
            escaped(name)
        );
        for (core, busy) in cores.iter().enumerate() {
            let x = left + wide * core as f64;
            let _ = write!(
                svg,
                "<rect class=\"heat\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"22\" fill-opacity=\"{:.2}\">\
                 <title>core {core}: {busy:.0} %</title></rect>",
                wide - 2.0,
                (busy / 100.0).clamp(0.03, 1.0)
            );
            if wide >= 34.0 {
                let _ = write!(
                    svg,
                    "<text class=\"cell\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{busy:.0}</text>",
                    x + wide / 2.0 - 1.0,
                    y + 15.0
                );
            }
        }
    }
    let _ = write!(svg, "<text x=\"{left}\" y=\"{}\">percent busy, each core</text></svg>", height - 8.0);
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for most in [0.7, 1.0, 9.3, 99.0, 123_456.0] {
            let step = step(most);
            let marks = (most / step).ceil();
            assert!((2.0..=6.0).contains(&marks), "{most}: {marks} steps of {step}");
        }
    }

    #[test]
    fn gaps_stay_gaps() {
        let series =
            [Series { name: "a<b".into(), values: vec![Some(1.0), None, Some(3.0)], on_right: false }];
        let svg = lines("t", &["4K".into(), "8K".into(), "16K".into()], ("IOPS", ""), &series);
        assert!(svg.contains("data-points=\"2\"") && svg.contains("a&lt;b") && !svg.contains("a<b"));
        let path = svg.split(" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0));
    }
}
