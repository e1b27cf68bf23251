//! Lines over ordered categories, as the papers draw throughput and processor use against I/O size.

use std::fmt::Write;

use super::super::markup::escaped;
use super::{WIDTH, mark, open, step};
use crate::interval::short;

const HEIGHT: f64 = 270.0;
const SIDE: f64 = 52.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const LEGEND: f64 = 19.0;

/// One line of a chart.
pub(in super::super) struct Series {
    /// What it is.
    pub(in super::super) name: String,
    /// Its colour.
    pub(in super::super) colour: usize,
    /// A value for each place of the x axis.
    pub(in super::super) values: Vec<Option<f64>>,
    /// Whether it is drawn against the right axis, dashed. Then it has no line of its own in the legend.
    pub(in super::super) on_right: bool,
}

/// What stands at an axis.
pub(in super::super) struct Axis {
    /// The left one's unit.
    pub(in super::super) left: &'static str,
    /// The right one's; empty: there is none.
    pub(in super::super) right: &'static str,
    /// What places are, under them.
    pub(in super::super) below: &'static str,
    /// Whether the left one grows by powers of ten.
    pub(in super::super) is_log: bool,
}

/// Draws them.
pub(in super::super) fn lines(title: &str, places: &[String], axis: &Axis, series: &[Series]) -> String {
    let points = series.iter().map(|one| one.values.iter().flatten().count()).sum();
    let named: Vec<&Series> = series.iter().filter(|one| !one.on_right).collect();
    let mut svg = open(title, points, HEIGHT + LEGEND * named.len() as f64 + 4.0);
    let right = if axis.right.is_empty() { 14.0 } else { SIDE };
    let (plot_w, plot_h) = (WIDTH - SIDE - right, HEIGHT - TOP - BOTTOM);
    let x = |at: usize| SIDE + plot_w * (at as f64 + 0.5) / places.len().max(1) as f64;
    for on_right in [false, true] {
        let values = series.iter().filter(|one| one.on_right == on_right);
        let most = values.flat_map(|one| one.values.iter().flatten()).copied().fold(0.0, f64::max);
        if most <= 0.0 {
            continue;
        }
        let least = series.iter().filter(|one| one.on_right == on_right);
        let least = least.flat_map(|one| one.values.iter().flatten()).copied().filter(|value| *value > 0.0);
        let least = least.fold(most, f64::min);
        let (marks, low, top) = if axis.is_log && !on_right { powers(least, most) } else { even(most) };
        let y = |value: f64| {
            let part = if low > 0.0 { (value.max(low) / low).ln() / (top / low).ln() } else { value / top };
            TOP + plot_h * (1.0 - part)
        };
        scale(&mut svg, on_right, &marks, right, &y);
        for one in series.iter().filter(|one| one.on_right == on_right) {
            line(&mut svg, one, &x, y);
        }
    }
    let _ = write!(
        svg,
        "<text class=\"unit\" x=\"{}\" y=\"14\" text-anchor=\"end\">{}</text>",
        SIDE - 6.0,
        axis.left
    );
    if !axis.right.is_empty() {
        let at = WIDTH - right + 6.0;
        let _ = write!(svg, "<text class=\"unit\" x=\"{at}\" y=\"14\">{}</text>", axis.right);
    }
    for (at, place) in places.iter().enumerate() {
        let (x, y, place) = (x(at), HEIGHT - BOTTOM + 16.0, escaped(place));
        let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{place}</text>");
    }
    let _ = write!(
        svg,
        "<text class=\"unit\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        SIDE + plot_w / 2.0,
        HEIGHT - BOTTOM + 33.0,
        axis.below
    );
    legend(&mut svg, &named);
    svg.push_str("</svg>");
    svg
}

/// Marks in even steps, from 0.
fn even(most: f64) -> (Vec<f64>, f64, f64) {
    let step = step(most);
    let count = (most / step).ceil();
    ((0..=count as usize).map(|at| step * at as f64).collect(), 0.0, step * count)
}

/// Marks at 1, 2 and 5 of powers of ten, or at powers only where those are many.
fn powers(least: f64, most: f64) -> (Vec<f64>, f64, f64) {
    let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let steps: &[f64] = if most / least > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all: Vec<f64> =
        (from..=to).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect();
    let low = all.iter().copied().filter(|mark| *mark <= least).reduce(f64::max);
    let low = low.or(all.first().copied()).unwrap_or(least);
    let top = all.iter().copied().find(|mark| *mark >= most && *mark > low).unwrap_or(low * 10.0);
    (all.into_iter().filter(|mark| *mark >= low && *mark <= top).collect(), low, top)
}

/// Marks of an axis, and grid lines of the left one.
fn scale(svg: &mut String, on_right: bool, marks: &[f64], right: f64, y: &impl Fn(f64) -> f64) {
    let (at, anchor) = if on_right { (WIDTH - right + 6.0, "start") } else { (SIDE - 6.0, "end") };
    for value in marks.iter().copied() {
        let y = y(value);
        if !on_right {
            let end = WIDTH - right;
            let _ =
                write!(svg, "<line class=\"grid\" x1=\"{SIDE}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
        let _ = write!(
            svg,
            "<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            y + 4.5,
            mark(value)
        );
    }
}

fn legend(svg: &mut String, named: &[&Series]) {
    for (number, one) in named.iter().enumerate() {
        let y = HEIGHT + 10.0 + LEGEND * number as f64;
        let _ = write!(
            svg,
            "<line class=\"c{}\" x1=\"8\" x2=\"30\" y1=\"{}\" y2=\"{}\"/><text x=\"38\" y=\"{y}\">{}</text>",
            one.colour,
            y - 4.5,
            y - 4.5,
            escaped(&one.name)
        );
    }
}

fn line(svg: &mut String, one: &Series, x: &impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) {
    let (mut path, mut dots) = (String::new(), String::new());
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
            dots,
            "<circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\"><title>{}: {}</title></circle>",
            one.colour,
            if one.on_right { 2.5 } else { 3.5 },
            escaped(&one.name),
            short(*value)
        );
    }
    let dash = if one.on_right { " dashed" } else { "" };
    let _ = write!(svg, "<path class=\"c{}{dash}\" d=\"{path}\"/>{dots}", one.colour);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_stay_gaps() {
        let values = vec![Some(1.0), None, Some(3.0)];
        let series = [Series { name: "a<b".into(), colour: 0, values, on_right: false }];
        let axis = Axis { left: "IOPS", right: "", below: "size", is_log: false };
        let svg = lines("t", &["4K".into(), "8K".into(), "16K".into()], &axis, &series);
        assert!(svg.contains("data-points=\"2\"") && svg.contains("a&lt;b") && !svg.contains("a<b"));
        let path = svg.split(" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0));
    }

    #[test]
    fn powers_hold_what_they_mark() {
        for (least, most) in [(3.0, 900.0), (10.0, 10.0), (0.02, 5e6), (99.0, 101.0)] {
            let (marks, low, top) = powers(least, most);
            assert!(low <= least && top >= most && low < top, "{least} to {most}: {marks:?}");
            assert!((2..=12).contains(&marks.len()), "{marks:?}");
        }
    }
}
