//! A record as a report: HTML (one file, works offline), Markdown, CSV.
//!
//! Invariant: a report shows only what its record and the published figures contain, or what is computed from
//! them; an unknown value is shown as a dash, never as zero.

mod answer;
mod chart;
mod charts;
mod colour;
mod groups;
mod headline;
mod html;
mod limit;
mod markup;
mod paper;
mod summary;
mod sweep_charts;
mod tables;
mod text;

pub use html::render_html;
pub use tables::{render_csv, render_markdown};
