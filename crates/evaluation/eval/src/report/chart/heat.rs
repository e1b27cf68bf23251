//! Busy cores: a row for each system, a cell for each core.

use std::fmt::Write;

use super::super::markup::escape_html;
use super::{WIDTH, open_svg};

/// A system and how busy each of its cores was, in percent.
pub(in super::super) type HeatRow = (String, Vec<(u32, f64)>);

/// Cells in one line; more cores go on in the next.
const CELLS_PER_LINE: usize = 16;

/// Draws them.
pub(in super::super) fn heat_map(title: &str, rows: &[HeatRow]) -> String {
    const NAME: f64 = 20.0;
    const CELL: f64 = 26.0;
    let lines = |row: &HeatRow| row.1.len().div_ceil(CELLS_PER_LINE).max(1);
    let height: f64 = rows.iter().map(|row| NAME + CELL * lines(row) as f64 + 6.0).sum();
    let points = rows.iter().map(|row| row.1.len()).sum();
    let mut svg = open_svg(title, points, height);
    let most = rows.iter().map(|row| row.1.len()).max().unwrap_or(1).clamp(1, CELLS_PER_LINE);
    let wide = ((WIDTH - 16.0) / most as f64).min(58.0);
    let mut y = 0.0;
    for row in rows {
        let _ = write!(svg, "<text x=\"8\" y=\"{:.1}\">{}</text>", y + 14.0, escape_html(&row.0));
        y += NAME;
        for (at, (core, busy)) in row.1.iter().enumerate() {
            let (x, y) = (8.0 + wide * (at % CELLS_PER_LINE) as f64, y + CELL * (at / CELLS_PER_LINE) as f64);
            // Ten steps, so that a cell's letters can be dark or light.
            let level = (busy / 10.0).round().clamp(0.0, 10.0) as u32;
            let _ = write!(
                svg,
                "<rect class=\"heat h{level}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"23\" rx=\"2\">\
                 <title>core {core}: {busy:.0} %</title></rect>\
                 <text class=\"cell h{level}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{busy:.0}</text>",
                wide - 2.0,
                x + wide / 2.0 - 1.0,
                y + 16.0
            );
        }
        y += CELL * lines(row) as f64 + 6.0;
    }
    svg.push_str("</svg>");
    svg
}
