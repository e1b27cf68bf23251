//! How answers are laid out: tables and cards that fit the terminal, with colour for what needs attention.
//!
//! Without a terminal each row is one line, however long, and there is no colour: `grep` and `awk` see what they
//! always saw. On a terminal, columns for which there is no room follow below their row, with their names, so that
//! long names can be copied whole.
//!
//! Invariant: text becomes [`DisplayText`] only here, with its hidden characters escaped; so the only control
//! sequences in it are those of this file.

use std::{
    io::{self, IsTerminal},
    ops::AddAssign,
};

use process::printable;

/// What is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// How wide it is; `None`: lines may have any length.
    columns: Option<usize>,
    has_color: bool,
}

/// Text that may be written to a terminal as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisplayText(String);

/// Why a text has colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    /// The head of a table, or the name of a value.
    Head,
    /// It works as it should.
    Good,
    /// It may need attention.
    Warning,
    /// Something does not work.
    Problem,
}

/// Between two columns.
const GAP: usize = 2;
/// In front of what follows below its row. With a name of nine letters an NQN with a UUID just fits 80 columns.
const INDENT: usize = 2;
/// The narrowest room that text is broken into; less is left to the terminal.
const WRAP_COLUMNS_MIN: usize = 20;

impl Terminal {
    /// No terminal: a file, a pipe, a test.
    pub const NONE: Terminal = Terminal { columns: None, has_color: false };

    /// What standard output leads to.
    pub fn of_stdout() -> Terminal {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Terminal::NONE;
        }
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        Terminal { columns: Some(columns.unwrap_or(80)), has_color: is_color_wanted() }
    }

    /// Marks text that is shown already.
    fn mark(self, emphasis: Option<Emphasis>, shown: &str) -> String {
        let code = match emphasis.filter(|_| self.has_color && !shown.is_empty()) {
            None => return shown.to_owned(),
            Some(Emphasis::Head) => 1,
            Some(Emphasis::Good) => 32,
            Some(Emphasis::Warning) => 33,
            Some(Emphasis::Problem) => 31,
        };
        format!("\x1b[{code}m{shown}\x1b[0m")
    }

    /// A line that is broken between words where the terminal ends, and goes on at column `indent`. It may begin with
    /// blanks.
    pub fn paragraph(self, emphasis: Option<Emphasis>, text: &str, indent: usize) -> DisplayText {
        let shown = printable::escape_line(text);
        let words = shown.trim_start_matches(' ');
        let begin = shown.len() - words.len();
        let lines = self.mark(emphasis, &self.wrap(words, begin, indent));
        DisplayText(format!("{:begin$}{lines}\n", ""))
    }

    /// A paragraph, broken between words where the terminal ends; its first line begins at column `begin`, the others
    /// at `indent`. Words are never broken: they may be names.
    fn wrap(self, shown: &str, begin: usize, indent: usize) -> String {
        let fits = self.columns.is_none_or(|columns| begin + shown.chars().count() <= columns);
        let room = self.columns.unwrap_or(usize::MAX).saturating_sub(indent);
        if fits || room < WRAP_COLUMNS_MIN {
            return shown.to_owned();
        }
        let (mut out, mut column) = (String::new(), begin);
        for word in shown.split(' ') {
            let len = word.chars().count();
            if column > begin.max(indent) && column + 1 + len > indent + room {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            } else if !out.is_empty() {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += len;
        }
        out
    }
}

/// NO_COLOR (no-color.org) counts unless it is empty; a terminal that is called dumb has none.
fn is_color_wanted() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_color && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

impl DisplayText {
    /// Text of any origin, without its hidden characters; line ends stay.
    pub fn escaped(text: &str) -> DisplayText {
        DisplayText(printable::escape_lines(text).into_owned())
    }

    /// What is to be written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AddAssign<DisplayText> for DisplayText {
    fn add_assign(&mut self, other: DisplayText) {
        self.0.push_str(&other.0);
    }
}

/// Whether a cell is the state of something, and whether it is as it should be.
fn state_emphasis(cell: &str) -> Option<Emphasis> {
    match cell {
        "inaccessible" | "persistent-loss" | "FAILED" | "fails" => Some(Emphasis::Problem),
        "non-optimized" | "standby" | "transition" | "stopped" => Some(Emphasis::Warning),
        "optimized" | "serving" | "ready" => Some(Emphasis::Good),
        _ if cell.starts_with("FAILED: ") => Some(Emphasis::Problem),
        _ if cell.starts_with("waits ") || cell.starts_with("unknown: ") => Some(Emphasis::Warning),
        _ => None,
    }
}

/// Columns as wide as their widest cell, two spaces apart; a hint if there is nothing.
pub fn render_table<const N: usize>(
    terminal: Terminal,
    head: [&str; N],
    rows: Vec<[String; N]>,
    empty: &str,
) -> DisplayText {
    if rows.is_empty() {
        return DisplayText::escaped(&format!("{empty}\n"));
    }
    // What a peer has named neither ends a line nor moves what stands beside it.
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| printable::escape_line(&cell).into_owned())).collect();
    let mut widths = head.map(|cell| cell.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let is_below = columns_below(terminal, widths);
    let label_width =
        head.iter().zip(is_below).filter(|(_, below)| *below).map(|(cell, _)| cell.len()).max().unwrap_or(0);
    let mut out = DisplayText::default();
    out.0.push_str(&render_line(terminal, &head, &widths, &is_below, Some(Emphasis::Head)));
    for row in &rows {
        out.0.push_str(&render_line(terminal, &row.each_ref().map(String::as_str), &widths, &is_below, None));
        let below = head.iter().zip(row).zip(is_below).filter(|(_, below)| *below);
        // What is not there needs no line of its own.
        for ((name, cell), _) in below.filter(|((_, cell), _)| !matches!(cell.as_str(), "" | "-")) {
            let label = format!("{:<label_width$}", name.to_lowercase());
            let begin = INDENT + label_width + 1;
            let cell = terminal.mark(state_emphasis(cell), &terminal.wrap(cell, begin, begin));
            out.0.push_str(&format!("{:INDENT$}{label} {cell}\n", ""));
        }
    }
    out
}

/// Which columns stand below their row: the widest, until the others fit. The first never does.
fn columns_below<const N: usize>(terminal: Terminal, widths: [usize; N]) -> [bool; N] {
    let mut is_below = [false; N];
    let Some(columns) = terminal.columns else { return is_below };
    loop {
        let beside = || widths.iter().zip(is_below).enumerate().filter(|(_, (_, below))| !below);
        let total: usize = beside().map(|(_, (width, _))| width + GAP).sum();
        let widest = beside().skip(1).max_by_key(|(_, (width, _))| **width).map(|(at, _)| at);
        match widest.and_then(|at| is_below.get_mut(at)) {
            Some(below) if total.saturating_sub(GAP) > columns => *below = true,
            Some(_) | None => return is_below,
        }
    }
}

fn render_line<const N: usize>(
    terminal: Terminal,
    row: &[&str; N],
    widths: &[usize; N],
    is_below: &[bool; N],
    emphasis: Option<Emphasis>,
) -> String {
    let beside = row.iter().zip(widths).zip(is_below).filter(|(_, below)| !**below);
    let (mut line, mut pad) = (String::new(), 0);
    for ((cell, width), _) in beside {
        if !cell.is_empty() {
            line.push_str(&format!("{:pad$}", ""));
            line.push_str(&terminal.mark(emphasis.or_else(|| state_emphasis(cell)), cell));
            pad = 0;
        }
        pad += width - cell.chars().count() + GAP;
    }
    line.push('\n');
    line
}

/// One `name  value` per line; values that are absent are left out.
pub fn render_card(terminal: Terminal, rows: &[(&str, Option<String>)]) -> DisplayText {
    let rows: Vec<(&str, &String)> =
        rows.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = DisplayText::default();
    for (name, value) in rows {
        let emphasis = if name == "failed" { Some(Emphasis::Problem) } else { state_emphasis(value) };
        let value = terminal.wrap(&printable::escape_line(value), width + GAP, width + GAP);
        out.0.push_str(&format!("{name:<width$}{:GAP$}{}\n", "", terminal.mark(emphasis, &value)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Terminal = Terminal { columns: Some(40), has_color: false };
    const COLORED: Terminal = Terminal { columns: Some(40), has_color: true };

    fn rows() -> Vec<[String; 3]> {
        [["1", "iqn.2026-11.com.example:a-long-name", "optimized"], ["22", "b", "inaccessible"]]
            .map(|row| row.map(str::to_owned))
            .to_vec()
    }

    #[test]
    fn what_has_no_room_beside_stands_below_with_its_name() {
        let text = render_table(NARROW, ["ID", "INITIATOR", "STATE"], rows(), "none");
        assert_eq!(
            text.as_str(),
            "ID  STATE\n\
             1   optimized\n  initiator iqn.2026-11.com.example:a-long-name\n\
             22  inaccessible\n  initiator b\n"
        );
        let text = render_table(Terminal::NONE, ["ID", "INITIATOR", "STATE"], rows(), "none");
        assert_eq!(text.as_str().lines().count(), 3, "one line each without a terminal: {text:?}");
        assert_eq!(render_table(NARROW, ["ID"], Vec::new(), "none").as_str(), "none\n");
    }

    #[test]
    fn colour_says_what_does_not_work_and_moves_nothing() {
        let text = render_table(COLORED, ["ID", "INITIATOR", "STATE"], rows(), "none").0;
        assert!(
            text.contains("\x1b[31minaccessible\x1b[0m") && text.contains("\x1b[1mID\x1b[0m"),
            "{text:?}"
        );
        let plain = ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"];
        let plain = plain.iter().fold(text, |text, code| text.replace(code, ""));
        assert_eq!(plain, render_table(NARROW, ["ID", "INITIATOR", "STATE"], rows(), "none").0);
    }

    #[test]
    fn a_name_cannot_colour_or_end_a_line() {
        let row = [["\x1b[31mevil\nname".to_owned(), String::new()]].to_vec();
        let text = render_table(COLORED, ["A", "B"], row, "none").0;
        assert!(text.contains("\\u001b[31mevil\\u000aname") && text.lines().count() == 2, "{text:?}");
        let text = render_card(COLORED, &[("name", Some("\x1b[31mevil\nname".to_owned()))]).0;
        assert!(text.contains("\\u001b[31mevil\\u000aname") && text.lines().count() == 1, "{text:?}");
        assert_eq!(DisplayText::escaped("\x1b[2J\n").as_str(), "\\u001b[2J\n");
    }

    #[test]
    fn values_are_broken_between_words_only() {
        let value = "one two three four five six seven eight nine";
        let text = render_card(NARROW, &[("name", Some(value.to_owned())), ("state", None)]);
        assert_eq!(text.as_str(), "name  one two three four five six seven\n      eight nine\n");
        let text = NARROW.paragraph(Some(Emphasis::Problem), &format!("  a: {value}"), 4);
        assert_eq!(text.as_str(), "  a: one two three four five six seven\n    eight nine\n");
        let long = "x".repeat(60);
        let text = render_card(NARROW, &[("name", Some(long.clone()))]);
        assert_eq!(text.as_str(), format!("name  {long}\n"), "a name stays whole");
    }
}
