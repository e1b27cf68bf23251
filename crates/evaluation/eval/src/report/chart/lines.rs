//! Lines over ordered categories, as the papers draw throughput and processor use against I/O size.

use std::fmt::Write;

use super::super::colour::SystemColour;
use super::super::markup::escape_html;
use super::{DECADE, WIDTH, fit_text, log_marks, mark_label, mark_step, open_svg};
use crate::figure_range::format_short;

const HEIGHT: f64 = 270.0;
const SIDE: f64 = 52.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const LEGEND: f64 = 19.0;

/// One line of a chart.
pub(in super::super) struct LineSeries {
    /// What it is.
    pub(in super::super) name: String,
    /// Its colour.
    pub(in super::super) colour: SystemColour,
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
pub(in super::super) fn line_chart(
    title: &str,
    places: &[String],
    axis: &Axis,
    series: &[LineSeries],
) -> String {
    let points = series.iter().map(|one| one.values.iter().flatten().count()).sum();
    let named: Vec<&LineSeries> = series.iter().filter(|one| !one.on_right).collect();
    let mut svg = open_svg(title, points, HEIGHT + LEGEND * named.len() as f64 + 4.0);
    let right = if axis.right.is_empty() { 14.0 } else { SIDE };
    let (plot_w, plot_h) = (WIDTH - SIDE - right, HEIGHT - TOP - BOTTOM);
    let x = |at: usize| SIDE + plot_w * (at as f64 + 0.5) / places.len().max(1) as f64;
    let mut is_log = false;
    for on_right in [false, true] {
        let values = series.iter().filter(|one| one.on_right == on_right);
        let most = values.flat_map(|one| one.values.iter().flatten()).copied().fold(0.0, f64::max);
        if most <= 0.0 {
            continue;
        }
        let least = series.iter().filter(|one| one.on_right == on_right);
        let least = least.flat_map(|one| one.values.iter().flatten()).copied().filter(|value| *value > 0.0);
        let least = least.fold(most, f64::min);
        let is_here_log = !on_right && (axis.is_log || most / least >= DECADE);
        is_log |= is_here_log;
        let (marks, low, top) = if is_here_log { log_marks(least, most) } else { even_marks(most) };
        let y = |value: f64| {
            let part = if low > 0.0 { (value.max(low) / low).ln() / (top / low).ln() } else { value / top };
            TOP + plot_h * (1.0 - part)
        };
        draw_axis(&mut svg, on_right, &marks, right, &y);
        for one in series.iter().filter(|one| one.on_right == on_right) {
            draw_line(&mut svg, one, &x, y);
        }
    }
    let said = if is_log { ", logarithmic" } else { "" };
    let _ = write!(svg, "<text class=\"unit\" x=\"4\" y=\"14\">{}{said}</text>", axis.left);
    if !axis.right.is_empty() {
        let at = WIDTH - 4.0;
        let _ =
            write!(svg, "<text class=\"unit\" x=\"{at}\" y=\"14\" text-anchor=\"end\">{}</text>", axis.right);
    }
    for (at, place) in places.iter().enumerate() {
        let (x, y, place) = (x(at), HEIGHT - BOTTOM + 16.0, escape_html(place));
        let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{place}</text>");
    }
    let _ = write!(
        svg,
        "<text class=\"unit\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        SIDE + plot_w / 2.0,
        HEIGHT - BOTTOM + 33.0,
        axis.below
    );
    draw_legend(&mut svg, &named);
    svg.push_str("</svg>");
    svg
}

/// Marks in even steps, from 0.
fn even_marks(most: f64) -> (Vec<f64>, f64, f64) {
    let step = mark_step(most);
    let count = (most / step).ceil();
    ((0..=count as usize).map(|at| step * at as f64).collect(), 0.0, step * count)
}

/// Marks of an axis, and grid lines of the left one.
fn draw_axis(svg: &mut String, on_right: bool, marks: &[f64], right: f64, y: &impl Fn(f64) -> f64) {
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
            mark_label(value)
        );
    }
}

fn draw_legend(svg: &mut String, named: &[&LineSeries]) {
    for (number, one) in named.iter().enumerate() {
        let y = HEIGHT + 10.0 + LEGEND * number as f64;
        let _ = write!(
            svg,
            "<line class=\"{0}\" x1=\"8\" x2=\"30\" y1=\"{1}\" y2=\"{1}\"/><text x=\"38\" y=\"{y}\"{2}>{3}</text>",
            one.colour.stroke_classes(),
            y - 4.5,
            fit_text(&one.name, WIDTH - 42.0),
            escape_html(&one.name)
        );
    }
}

fn draw_line(svg: &mut String, one: &LineSeries, x: &impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) {
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
        let (fill, r) = (one.colour.fill_classes(), if one.on_right { 2.5 } else { 3.5 });
        let (tag, place) = if one.colour.is_square {
            ("rect", format!("x=\"{:.1}\" y=\"{:.1}\" width=\"{2}\" height=\"{2}\"", x - r, y - r, 2.0 * r))
        } else {
            ("circle", format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\""))
        };
        let said = format!("{}: {}", escape_html(&one.name), format_short(*value));
        let _ = write!(dots, "<{tag} class=\"{fill}\" {place}><title>{said}</title></{tag}>");
    }
    let dash = if one.on_right { " dashed" } else { "" };
    let _ = write!(svg, "<path class=\"{}{dash}\" d=\"{path}\"/>{dots}", one.colour.stroke_classes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    fn colour() -> SystemColour {
        SystemColour::of(&point("tgt", "randread", 4096, 1000))
    }

    #[test]
    fn gaps_stay_gaps() {
        let values = vec![Some(1.0), None, Some(3.0)];
        let series = [LineSeries { name: "a<b".into(), colour: colour(), values, on_right: false }];
        let axis = Axis { left: "IOPS", right: "", below: "size", is_log: false };
        let svg = line_chart("t", &["4K".into(), "8K".into(), "16K".into()], &axis, &series);
        assert!(svg.contains("data-points=\"2\"") && svg.contains("a&lt;b") && !svg.contains("a<b"));
        let path = svg.split(" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0));
    }

    #[test]
    fn values_that_span_decades_have_a_logarithmic_axis() {
        let drawn = |values: [f64; 2]| {
            let values = values.map(Some).to_vec();
            let series = [LineSeries { name: "a".into(), colour: colour(), values, on_right: false }];
            let axis = Axis { left: "IOPS", right: "", below: "size", is_log: false };
            line_chart("t", &["4K".into(), "8K".into()], &axis, &series)
        };
        assert!(
            drawn([10.0, 200.0]).contains("IOPS, logarithmic")
                && !drawn([10.0, 90.0]).contains("logarithmic")
        );
    }
}
