//! Man pages: one for each verb, with the files that it reads and the pages beside it, and one for the configuration
//! file, from the same table as docs/configuration.md.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use clap::Command;

use config::{EXAMPLE_TOML, schema};

/// Verbs that ask the daemon, by its control socket.
const DAEMON_VERBS: [&str; 15] = [
    "volume",
    "target",
    "subsystem",
    "host",
    "gateway",
    "reservation",
    "path",
    "session",
    "connection",
    "shard",
    "plan",
    "apply",
    "rollback",
    "status",
    "stop",
];

/// Writes all of them into a directory, which is created.
///
/// # Errors
/// A page cannot be written.
pub fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let verbs: Vec<String> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| format!("blockwire-{}", verb.get_name()))
        .collect();
    clap_mangen::generate_to(command, directory)?;
    for path in section_1_pages(directory)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let page = fs::read_to_string(&path)?;
        let page = strip_version(&page);
        fs::write(&path, format!("{page}{}{}", files_section(&name), see_also_section(&name, &verbs)))?;
    }
    fs::write(directory.join("blockwire.toml.5"), configuration_page())
}

/// The pages of section 1 in a directory.
fn section_1_pages(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("blockwire") && name.ends_with(".1") {
            pages.push(path);
        }
    }
    Ok(pages)
}

/// The page without its section VERSION: the footer has it.
fn strip_version(page: &str) -> String {
    match page.find(".SH VERSION\n") {
        Some(at) => page.get(..at).unwrap_or(page).to_owned(),
        None => page.to_owned(),
    }
}

/// `FILES` of a page.
fn files_section(name: &str) -> String {
    const CONFIG: &str = ".TP\n.I /etc/blockwire/blockwire.toml\nThe configuration, and \
        .I conf.d/*.toml\nbeside it; see\n.BR blockwire.toml (5).\nOf an ordinary user:\n\
        .IR $XDG_CONFIG_HOME/blockwire/blockwire.toml .\n";
    const SOCKET: &str = ".TP\n.I /run/blockwire/control.sock\nThe control socket of the daemon. Of an ordinary user:\n\
        .IR $XDG_RUNTIME_DIR/blockwire/control.sock .\n";
    const STATE: &str = ".TP\n.I /var/lib/blockwire\nThe state of the daemon: identities, volumes that were created at \
        run time, reservations. Of an ordinary user:\n.IR $XDG_STATE_HOME/blockwire .\n";
    let config = CONFIG.replacen("and .I", "and\n.I", 1);
    let verb = name.split('-').nth(1).unwrap_or_default();
    match verb {
        "" | "serve" => format!(".SH FILES\n{config}{SOCKET}{STATE}"),
        "import" => format!(".SH FILES\n{config}"),
        "plan" | "apply" | "rollback" | "backup" | "restore" => format!(".SH FILES\n{config}{SOCKET}{STATE}"),
        verb if DAEMON_VERBS.contains(&verb) => format!(".SH FILES\n{SOCKET}"),
        _ => String::new(),
    }
}

/// `SEE ALSO` of a page.
fn see_also_section(name: &str, verbs: &[String]) -> String {
    let mut pages: Vec<(&str, u8)> = Vec::new();
    if name == "blockwire" {
        pages.extend(verbs.iter().map(|verb| (verb.as_str(), 1)));
    } else {
        pages.push(("blockwire", 1));
        if name != "blockwire-serve" {
            pages.push(("blockwire-serve", 1));
        }
    }
    pages.push(("blockwire.toml", 5));
    let mut out = ".SH \"SEE ALSO\"\n".to_owned();
    let last = pages.len() - 1;
    for (at, (page, section)) in pages.iter().enumerate() {
        let end = if at == last { "" } else { "," };
        let _ = writeln!(out, ".BR {} ({section}){end}", escape_roff(page));
    }
    out
}

/// `blockwire.toml(5)`.
fn configuration_page() -> String {
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
    for section in schema::SECTIONS {
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
    out.push_str(&files_section("blockwire"));
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
fn escape_roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// A text as one argument of a macro.
fn quote_argument(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn pages_have_files_and_neighbours_and_the_configuration_has_one() {
        let root = tempfile::tempdir().unwrap();
        write_pages(Cli::command(), root.path()).unwrap();
        let page = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        for (name, words) in [
            (
                "blockwire.1",
                ["/etc/blockwire/blockwire.toml", "blockwire\\-volume (1),", ".BR blockwire.toml (5)"],
            ),
            ("blockwire-serve.1", ["/var/lib/blockwire", ".BR blockwire (1),", ".BR blockwire.toml (5)"]),
            (
                "blockwire-volume-list.1",
                ["control.sock", ".BR blockwire\\-serve (1),", ".BR blockwire.toml (5)"],
            ),
        ] {
            for word in words {
                assert!(page(name).contains(word), "{name}: {word}");
            }
            assert!(!page(name).contains(".SH VERSION"), "{name}");
        }
        let page = page("blockwire.toml.5");
        for section in schema::SECTIONS {
            for key in section.keys {
                assert!(page.contains(&format!(".B {}\n", escape_roff(key.name))), "{}", key.name);
            }
        }
        assert!(!page.contains("]("), "a link stayed");
    }

    #[test]
    fn roff_sees_no_requests_in_text() {
        assert_eq!(escape_roff(".x-y\\z"), "\\&.x\\-y\\ez");
        assert_eq!(markdown_to_roff("see [here](a.md#b) and `[[host]]`"), "see here and \\fB[[host]]\\fR");
    }
}
