//! The figures of five papers, and whether they are consistent.
//!
//! The figures are data (`data/published.toml`), each with its place in the paper. A derived figure is not
//! trusted: its relation to the others is data too, and [`inconsistent_figures`] recomputes it over the range of the printed
//! digits. A contradiction is a [`InconsistentFigures`].

mod relation;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::figure_range::FigureRange;
pub use relation::{FigureRelation, InconsistentFigures, inconsistent_figures};

/// One paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Short name, by which presets refer to it.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Who published it.
    pub by: String,
    /// When: year, or year and month; `None` if it does not say.
    pub date: Option<String>,
    /// What was measured on, in short.
    pub set_up: String,
}

/// How a figure was qualified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Qualifier {
    /// As it stands, to its last digit.
    #[default]
    Exactly,
    /// "About", "almost": a whole step to either side.
    About,
    /// "Over", "more than".
    Over,
    /// "Up to".
    UpTo,
    /// "Slightly less than about": from a step beyond it down to four fifths of it.
    SlightlyLess,
}

/// One printed figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigure {
    /// Its name: the paper's, a dot, and its own.
    pub id: String,
    /// What it is of, in words.
    pub what: String,
    /// The number.
    pub value: f64,
    /// What its last digit counts.
    pub step: f64,
    /// `x` (ratio), `%` (change in percent), `us`, `ms`, `IOPS`, `MB/s`, `Gb/s`, `cores`, `%cpu` …
    pub unit: String,
    /// Its qualification.
    #[serde(default)]
    pub bound: Qualifier,
    /// Where it stands.
    pub at: String,
}

impl std::fmt::Display for PublishedFigure {
    /// As it was printed: "over 3.5x", "+43 %", "109.15 us".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.bound {
            Qualifier::Exactly => "",
            Qualifier::About => "about ",
            Qualifier::Over => "over ",
            Qualifier::UpTo => "up to ",
            Qualifier::SlightlyLess => "slightly less than ",
        })?;
        let value = printed_number(self.value);
        match self.unit.as_str() {
            "x" => write!(f, "{value}x"),
            "%" if self.value > 0.0 => write!(f, "+{value} %"),
            "%cpu" => write!(f, "{value} % CPU"),
            "%cpu/IOPS" => write!(f, "{value} % CPU per IOPS"),
            unit => write!(f, "{value} {unit}"),
        }
    }
}

/// All digits that were printed, with commas between thousands.
fn printed_number(value: f64) -> String {
    let text = format!("{}", value.abs());
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

impl PublishedFigure {
    /// Which paper it is of.
    pub fn paper(&self) -> &str {
        self.id.split('.').next().unwrap_or_default()
    }

    /// All that it may stand for. A change in percent is taken as a ratio: +43 % is 1.43.
    pub fn value_range(&self) -> FigureRange {
        let as_ratio = |value: f64| if self.unit == "%" { 1.0 + value / 100.0 } else { value };
        let (low, high) = match self.bound {
            Qualifier::Exactly => (self.value - self.step / 2.0, self.value + self.step / 2.0),
            Qualifier::About => (self.value - self.step, self.value + self.step),
            Qualifier::Over => (self.value, f64::INFINITY),
            Qualifier::UpTo => (f64::NEG_INFINITY, self.value),
            Qualifier::SlightlyLess => {
                let (far, near) = (self.value + self.step * self.value.signum(), self.value * 0.8);
                (far.min(near), far.max(near))
            }
        };
        FigureRange::new(as_ratio(low), as_ratio(high))
    }
}

/// All that was published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The papers.
    #[serde(rename = "paper")]
    pub papers: Vec<Paper>,
    /// Their figures.
    #[serde(rename = "figure")]
    pub figures: Vec<PublishedFigure>,
    /// How figures depend on each other.
    #[serde(rename = "relation")]
    pub relations: Vec<FigureRelation>,
}

impl Published {
    /// The figure of this name.
    pub fn figure(&self, id: &str) -> Option<&PublishedFigure> {
        self.figures.iter().find(|figure| figure.id == id)
    }

    /// The figures of a paper, in its order.
    pub fn figures_of<'a>(&'a self, paper: &'a str) -> impl Iterator<Item = &'a PublishedFigure> {
        self.figures.iter().filter(move |figure| figure.paper() == paper)
    }

    /// Names that stand twice, papers and figures that are named and do not exist.
    fn defects(&self) -> Vec<String> {
        let mut seen = BTreeMap::new();
        for figure in &self.figures {
            *seen.entry(figure.id.as_str()).or_insert(0) += 1;
        }
        let twice = seen.iter().filter(|(_, count)| **count > 1).map(|(id, _)| format!("{id}: stands twice"));
        let lost = self.figures.iter().filter(|figure| !self.papers.iter().any(|p| p.id == figure.paper()));
        let named = self.relations.iter().flat_map(FigureRelation::figure_ids);
        let unknown = named.filter(|id| self.figure(id).is_none()).map(|id| format!("{id}: is no figure"));
        twice.chain(lost.map(|figure| format!("{}: of no paper", figure.id))).chain(unknown).collect()
    }
}

/// What was published.
#[expect(clippy::expect_used, reason = "the data is part of the program, and a test reads all of it")]
pub fn published_data() -> &'static Published {
    static DATA: OnceLock<Published> = OnceLock::new();
    DATA.get_or_init(|| {
        let data: Published = toml::from_str(include_str!("../../data/published.toml"))
            .expect("the data is part of the program");
        let defects = data.defects();
        assert!(defects.is_empty(), "the data is part of the program: {defects:?}");
        data
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_as_they_were_printed() {
        let shown = |id: &str| published_data().figure(id).unwrap().to_string();
        assert_eq!(shown("demartek.target-read-effectiveness"), "over 3.5x");
        assert_eq!(shown("demartek.target-write-iops"), "+43 %");
        assert_eq!(shown("demartek.target-write-cpu"), "-49 %");
        assert_eq!(shown("sdc2021.aic-8k-iops"), "112,353.6 IOPS");
        assert_eq!(shown("sdc2021.aic-8k-cpu-per-iop"), "0.000689 % CPU per IOPS");
        assert_eq!(shown("windows-100g.connections"), "16,384 connections");
    }
}
