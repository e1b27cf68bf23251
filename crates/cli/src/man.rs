//! Man pages: one for each verb, with the files that it reads and the pages beside it, and one for the configuration
//! file, from the same table as docs/configuration.md.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use clap::Command;

use config::manual::{configuration_page, escape_roff};

/// Verbs that ask the daemon, by its control socket.
const DAEMON_VERBS: [&str; 16] = [
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
    "upgrade",
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
    fs::write(directory.join("blockwire.toml.5"), configuration_page(&files_section("blockwire")))
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use config::schema;

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
}
