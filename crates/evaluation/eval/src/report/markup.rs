//! Building blocks of HTML: escaped text, tables, figures, and what is folded away.

use std::fmt::Write;

/// Text as HTML.
pub(super) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table: figures stand at the right, words at the left.
pub(super) fn write_table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    page.push_str("<div class=\"wide\"><table><thead><tr>");
    for name in head {
        let _ = write!(page, "<th>{}</th>", escape_html(name));
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let is_figure = cell.starts_with(|first: char| first.is_ascii_digit() || "–+-".contains(first));
            let class = if is_figure { " class=\"n\"" } else { "" };
            let _ = write!(page, "<td{class}>{}</td>", escape_html(&cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

/// A chart under its caption.
pub(super) fn push_figure(figures: &mut Vec<String>, caption: &str, svg: &str) {
    figures.push(format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escape_html(caption)));
}

/// What is shown when it is asked for; all of it is printed.
pub(super) fn write_details(page: &mut String, summary: &str, inside: impl FnOnce(&mut String)) {
    let _ = write!(page, "<details><summary>{}</summary>", escape_html(summary));
    inside(page);
    page.push_str("</details>");
}
