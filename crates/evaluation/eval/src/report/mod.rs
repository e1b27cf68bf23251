//! A record as people read it: HTML (one file, works offline), Markdown, CSV.
//!
//! Invariant: a report shows nothing that is not in its record, in the published figures, or computed
//! from them; what is not known is shown as a dash, never as zero.

mod chart;
mod charts;
mod groups;
mod html;
mod markup;
mod paper;
mod summary;
mod tables;
mod text;

pub use html::html;
pub use tables::{csv, markdown};
