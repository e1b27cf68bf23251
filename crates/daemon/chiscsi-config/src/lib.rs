//! Files of Chelsio's iSCSI target: `chiscsi.conf`, and offload policies in the source form of `cop`.
//!
//! They are read into the same [`Draft`] as a TOML configuration, so all later checks are the same.
//! Invariant: each setting of a file ends as a [`LineReport`] (done, done in another way, or without meaning
//! in software), or as an error that names file and line; none is ignored silently.
//!
//! The meaning of the formats is taken from the vendor's published documents: the "iSCSI Software User Guide
//! for Linux" (release 5.4: keys, values, defaults, ACLs, CHAP, redirection, reload), the manual page
//! iscsictl(8) of July 2013, the sample `chiscsi.conf` of the Unified Wire package, and the manual page
//! cop(8) of August 2009. Where they are ambiguous, `docs/chiscsi.md` says what is done here.

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

mod access;
mod block;
mod chap;
mod device;
mod error;
pub mod iscsictl;
mod key;
mod policy;
mod portal;
mod target;
mod translate;
mod value;

use std::path::Path;

use config::{
    diagnostic::{Place, Sink, SourceText},
    draft::Draft,
    file,
};
use control::report::line::LineReport;

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a `chiscsi.conf` into `draft`, and says what became of each line. What is wrong goes to `sink`.
pub fn read_file(path: &Path, sink: &Sink, draft: &mut Draft) -> Vec<LineReport> {
    let Some((text, is_world_readable)) = load_text(path, sink) else { return Vec::new() };
    let directory = path.parent().unwrap_or(Path::new("."));
    translate::read_into_draft(&text, directory, is_world_readable, sink, draft)
}

/// Reads a policy likewise: each rule becomes one of placement.
pub fn read_policy(path: &Path, sink: &Sink, draft: &mut Draft) -> Vec<LineReport> {
    match load_text(path, sink) {
        Some((text, _)) => policy::read_policy(&text, sink, draft),
        None => Vec::new(),
    }
}

/// A file's text, and whether everybody may read it.
fn load_text(path: &Path, sink: &Sink) -> Option<(SourceText, bool)> {
    let shown = path.to_string_lossy();
    match file::read_text(path, FILE_BYTES_MAX) {
        Ok((content, is_world_readable)) => Some((SourceText::new(&shown, content), is_world_readable)),
        Err(why) => {
            sink.note_error(&Place::outside_file(&shown), why);
            None
        }
    }
}

#[cfg(test)]
mod tests;
