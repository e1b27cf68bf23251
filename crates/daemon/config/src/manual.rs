//! The manual page of the configuration file, from the same table as docs/configuration.md.

use std::fmt::Write as _;

use crate::{EXAMPLE_TOML, schema::SECTIONS};

/// `blockwire.toml(5)`; `files` is its section FILES.
pub fn configuration_page(files: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(
        ".TH blockwire.toml 5 \"\" \"blockwire {version}\"\n.SH NAME\nblockwire.toml \\- configuration of the block \
         storage target blockwire\n.SH DESCRIPTION\n"
    );
    out.push_str(
        ".B blockwire serve\nreads this file in the format TOML, and then every file\n.I conf.d/*.toml\nbeside it, in \
         the order of their names. An unknown key, and whatever else is wrong, is reported with file, line and column, \
         all of it at once, and nothing is served;\n.B blockwire serve \\-\\-check FILE\nreports it without serving.\n.PP\n\
         Sizes are numbers of bytes or texts with K, M, G, T or P, which are binary. Others than owner and group must not \
         be able to read a file that holds a secret.\n",
    );
    for section in SECTIONS {
        let _ = writeln!(out, ".SH {}", quote_argument(&escape_roff(section.title)));
        let _ = writeln!(out, "{}", markdown_to_roff(section.about));
        for key in section.keys {
            let _ = writeln!(out, ".TP\n.B {}\n{}", escape_roff(key.name), markdown_to_roff(key.about));
            let _ = writeln!(
                out,
                "Takes: {}. Without it: {}.",
                markdown_to_roff(key.takes),
                markdown_to_roff(key.default)
            );
        }
    }
    out.push_str(".SH EXAMPLE\n.nf\n");
    for line in EXAMPLE_TOML.lines() {
        let _ = writeln!(out, "{}", escape_roff(line));
    }
    out.push_str(".fi\n");
    out.push_str(files);
    out.push_str(
        ".SH \"SEE ALSO\"\n.BR blockwire (1),\n.BR blockwire\\-serve (1),\n.BR blockwire\\-import (1)\n",
    );
    out
}

/// Markdown of the reference as roff: code in bold, links as their texts.
fn markdown_to_roff(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[']) {
        let (before, after) = rest.split_at(at);
        out.push_str(&escape_roff(before));
        if let Some(inner) = after.strip_prefix('`') {
            is_code = !is_code;
            out.push_str(if is_code { "\\fB" } else { "\\fR" });
            rest = inner;
        } else if let Some((label, behind)) = split_link(after).filter(|_| !is_code) {
            out.push_str(&escape_roff(label));
            rest = behind;
        } else {
            out.push('[');
            rest = after.strip_prefix('[').unwrap_or_default();
        }
    }
    out.push_str(&escape_roff(rest));
    out
}

/// The label of a link at the beginning of a text, and what is behind the link.
fn split_link(text: &str) -> Option<(&str, &str)> {
    let (label, behind) = text.strip_prefix('[')?.split_once("](")?;
    let (_, behind) = behind.split_once(')')?;
    (!label.contains('[')).then_some((label, behind))
}

/// A text as roff shows it, also at the beginning of a line.
pub fn escape_roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// A text as one argument of a macro.
fn quote_argument(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_sees_no_requests_in_text() {
        assert_eq!(escape_roff(".x-y\\z"), "\\&.x\\-y\\ez");
        assert_eq!(markdown_to_roff("see [here](a.md#b) and `[[host]]`"), "see here and \\fB[[host]]\\fR");
    }
}
