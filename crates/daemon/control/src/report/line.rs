//! The report on each line of a Chelsio file with which the daemon was started.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Treatment {
    /// It holds as it stands.
    Applied,
    /// Something else is done to the same end; the note says what.
    Emulated,
    /// It is about the vendor's hardware or driver; there is nothing here that it could be said to.
    Meaningless,
    /// The file itself switches it off.
    Unused,
}

impl Treatment {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Treatment::Applied => "applied",
            Treatment::Emulated => "emulated",
            Treatment::Meaningless => "meaningless",
            Treatment::Unused => "unused",
        }
    }
}

/// What became of a line, or of a word in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineReport {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// `global`, `policy`, or the name of a target.
    pub block: String,
    /// What stands there, without secrets.
    pub text: String,
    /// What became of it.
    pub treatment: Treatment,
    /// How, or why not; may be empty.
    pub note: String,
}

/// The report as people read it: one line per setting, under the name of its file.
pub fn format_lines(lines: &[LineReport]) -> String {
    let mut out = String::new();
    let width = lines.iter().map(|line| line.text.chars().count()).max().unwrap_or(0).min(48);
    let mut file = None;
    for line in lines {
        if file != Some(&line.file) {
            file = Some(&line.file);
            let _ = writeln!(out, "{}:", line.file);
        }
        let (number, text, word) = (line.line, &line.text, line.treatment.as_str());
        let shown = format!("{number:>5}  {text:<width$}  {word:<11}  {}", line.note);
        let _ = writeln!(out, "{}", shown.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_lines_up_under_its_file() {
        let line = |line, text: &str, treatment, note: &str| LineReport {
            file: "a.conf".into(),
            line,
            block: "global".into(),
            text: text.into(),
            treatment,
            note: note.into(),
        };
        let lines = [
            line(5, "iscsi_offload_mode=TOE", Treatment::Meaningless, "no TOE"),
            line(12, "MaxConnections=4", Treatment::Applied, ""),
        ];
        assert_eq!(
            format_lines(&lines),
            "a.conf:\n    5  iscsi_offload_mode=TOE  meaningless  no TOE\n   12  MaxConnections=4        applied\n"
        );
        assert_eq!(format_lines(&[]), "");
    }
}
