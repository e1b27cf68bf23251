//! The configuration: TOML files, read with the place of every value, merged with the command line and
//! checked as a whole before anything is opened; and the value types of both: names, addresses, sizes,
//! specifications of volumes.
//!
//! Invariant: the daemon serves a [`plan::Plan`], and a plan exists only if its whole input was valid.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod check;
mod dhchap;
pub mod diagnostic;
pub mod difference;
pub mod draft;
pub mod file;
mod files;
pub mod limit_keys;
pub mod manual;
pub mod name;
pub mod network;
pub mod plan;
mod reader;
pub mod schema;
mod secret;
pub mod size;
pub mod spec;
mod tls;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml::de::DeTable;

use self::{
    diagnostic::{Sink, SourceText},
    draft::Draft,
    reader::{FileContext, TableReader},
};

pub use files::{ConfigFile, ConfigFiles};

/// The example of docs/configuration.md, which is sound.
pub const EXAMPLE_TOML: &str = include_str!("example.toml");

/// Largest configuration file, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The `*.toml` files of a directory; none if there is no directory.
fn drop_in_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(why) if matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(why) => return Err(why),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads one file, without those of a `conf.d`.
pub fn read_file(path: &Path, sink: &Sink, draft: &mut Draft) {
    ConfigFiles::read_one(path, sink).read_into(sink, draft);
}

/// Reads the text of one file.
pub fn read_text(text: &SourceText, directory: &Path, world_readable: bool, sink: &Sink, draft: &mut Draft) {
    let (table, errors) = DeTable::parse_recoverable(&text.text);
    if !errors.is_empty() {
        // After a syntax error the rest of the tree is a guess: its keys are not judged.
        for error in errors {
            let at = text.place_of_span(error.span().unwrap_or(0..0));
            sink.note_error(&at, error.message());
        }
        return;
    }
    let context = FileContext { text, directory, world_readable, sink };
    draft.add_file(&TableReader::new(context, &schema::ROOT, table.get_ref(), 0));
}

#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod nvme_tests;
#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod tests;
