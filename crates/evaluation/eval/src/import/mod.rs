//! Results of other tools as records: fio's JSON, vdbench's flat file and summary.
//!
//! Invariant: values that a tool did not write stay unknown; nothing is made up.

mod fio;
mod vdbench;

use std::fmt;

use crate::record::ImplausibleFigure;
use crate::record::{Point, Record};

/// What a file does not say itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportContext {
    /// The target's name.
    pub target: String,
    /// The initiator's.
    pub initiator: String,
    /// What carried it.
    pub protocol: String,
    /// Connections.
    pub connections: u32,
    /// MTU of the link.
    pub mtu: u32,
}

/// Why another tool's results are not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// It is of none of the known forms.
    UnknownForm,
    /// It is said to be fio's JSON and is not, with what the parser says.
    NotJson(Option<String>),
    /// A part of it, named first, does not tell what is needed, or not as the tool writes it.
    Damaged(Option<String>, String),
    /// Nothing in it did any I/O.
    NoRun,
    /// It has a figure that cannot be.
    BadFigure(ImplausibleFigure),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::UnknownForm => f.write_str(
                "neither fio's JSON (--output-format=json or json+) nor vdbench's flatfile.html or \
                 summary.html",
            ),
            ImportError::NotJson(None) => {
                f.write_str("not JSON output of fio: run fio with --output-format=json+")
            }
            ImportError::NotJson(Some(why)) => write!(f, "not JSON output of fio: {why}"),
            ImportError::Damaged(None, why) => f.write_str(why),
            ImportError::Damaged(Some(place), why) => write!(f, "{place}: {why}"),
            ImportError::NoRun => f.write_str("it holds no run that did any I/O"),
            ImportError::BadFigure(why) => write!(f, "impossible figures: {why}"),
        }
    }
}

impl std::error::Error for ImportError {}

/// How the note on what was imported begins.
pub(crate) const IMPORTED: &str = "Imported from";

/// Adds what a file holds to a record: further runs of loads that it has already, or new loads.
///
/// # Errors
/// If the text is of none of the known forms, or breaks off; with the line where that can be said.
pub fn import(record: &mut Record, about: &ImportContext, text: &str) -> Result<(), ImportError> {
    let start = text.trim_start();
    let (points, note) = if start.starts_with('{') || start.starts_with("fio:") {
        fio::fio_points(about, start)?
    } else if vdbench::is_flat_file(text) {
        vdbench::flat_file_points(about, text)?
    } else if vdbench::is_summary(text) {
        vdbench::summary_points(about, text)?
    } else {
        return Err(ImportError::UnknownForm);
    };
    if points.is_empty() {
        return Err(ImportError::NoRun);
    }
    // Nothing of it is taken unless all of it can be written down.
    let all = Record { points, ..Record::default() };
    all.check_figures().map_err(ImportError::BadFigure)?;
    for point in all.points {
        add_point(record, point);
    }
    if !record.notes.contains(&note) {
        record.notes.push(note);
    }
    Ok(())
}

/// A load that is there already has one more run.
fn add_point(record: &mut Record, mut fresh: Point) {
    let bare = |point: &Point| Point { runs: Vec::new(), ..point.clone() };
    match record.points.iter_mut().find(|point| bare(point) == bare(&fresh)) {
        Some(point) => point.runs.append(&mut fresh.runs),
        None => record.points.push(fresh),
    }
}

impl ImportContext {
    fn empty_point(&self) -> Point {
        Point {
            target: self.target.clone(),
            initiator: self.initiator.clone(),
            protocol: self.protocol.clone(),
            connections: self.connections,
            mtu: self.mtu,
            ..Point::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn about() -> ImportContext {
        ImportContext {
            target: "tgt".into(),
            initiator: "kernel".into(),
            protocol: "iscsi".into(),
            connections: 1,
            mtu: 1500,
        }
    }

    #[test]
    fn the_same_load_again_is_another_run() {
        let mut record = Record::default();
        let text = include_str!("fio-json.json");
        import(&mut record, &about(), text).unwrap();
        let loads = record.points.len();
        import(&mut record, &about(), text).unwrap();
        assert_eq!(record.points.len(), loads);
        assert!(record.points.iter().all(|point| point.runs.len() == 2));
    }

    /// Whatever stands in place of a figure: it is refused by a message, or taken and can be written and read.
    #[test]
    fn a_hostile_result_never_ends_the_program() {
        let values = ["1e308", "-1e308", "18446744073709551615", "-1", "0", "1e-300", "null", "\"x\"", "[]"];
        let mut taken = 0;
        for name in [
            "min",
            "max",
            "mean",
            "stddev",
            "N",
            "total_ios",
            "io_bytes",
            "runtime",
            "job_runtime",
            "usr_cpu",
        ] {
            for value in values {
                for text in [include_str!("fio-json.json"), include_str!("fio-json-plus.json")] {
                    // Every line that gives this figure.
                    let changed: Vec<String> = text
                        .lines()
                        .map(|line| match line.split_once(&format!("\"{name}\": ")) {
                            Some((start, rest)) if !rest.starts_with(['{', '[', '"']) => {
                                let comma = if rest.trim_end().ends_with(',') { "," } else { "" };
                                format!("{start}\"{name}\": {value}{comma}")
                            }
                            _ => line.to_owned(),
                        })
                        .collect();
                    assert_ne!(changed, text.lines().collect::<Vec<_>>(), "{name} is there");
                    let mut record =
                        Record { schema: crate::record::RECORD_SCHEMA_VERSION, ..Record::default() };
                    if import(&mut record, &about(), &changed.join("\n")).is_ok() {
                        assert!(Record::parse(&record.to_text().unwrap()).is_ok(), "{name} {value}");
                        assert!(!crate::report::render_html(&record).is_empty());
                        taken += 1;
                    } else {
                        assert!(record.points.is_empty(), "{name} {value}: it was refused and is there");
                    }
                }
            }
        }
        assert!(taken > 20, "{taken}");
    }

    #[test]
    fn what_is_no_result_is_refused() {
        let mut record = Record::default();
        for (text, word) in [("", "neither"), ("hello", "neither"), ("{\"a\":1}", "fio"), ("{", "fio")] {
            assert!(import(&mut record, &about(), text).unwrap_err().to_string().contains(word), "{text}");
        }
        assert!(record.points.is_empty());
    }
}
