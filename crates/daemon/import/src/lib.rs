//! Configurations of other targets, written again as a configuration of ours.
//!
//! Each format has a module that turns its text into a [`ImportModel`]; `render_toml` writes the model as TOML. Invariant:
//! each setting of a source ends as a [`Note`] (applied, emulated, meaningless, or an error); none is left out
//! silently. What is written is read by the parser of `serve` before it is handed out, so it is never written
//! as complete when it would be refused.
//!
//! The meaning of the formats is that of their own software: LIO's `saveconfig.json` as rtslib writes it,
//! `targets.conf(5)` of tgt, `scst.conf(5)`, FreeBSD's `ctl.conf(5)`, nvmetcli's `config.json` and the
//! configuration that SPDK's `save_config` prints.

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

mod blocks;
mod ctl;
mod json;
mod lio;
mod model;
mod note;
mod nvmet;
pub mod output;
mod render;
mod scst;
mod section;
mod source;
mod spdk;
mod tgt;

use std::{fmt, path::Path};

use config::{
    check::{self, CommandLineOptions},
    diagnostic::{Diagnostic, Sink, SourceText},
    draft::Draft,
};

pub use model::{ImportModel, Secret};
pub use note::{Note, NoteOutcome};
pub use render::SecretFormat;
pub use source::{IncludedFiles, SourceError};

/// A format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// LIO: `saveconfig.json`.
    Lio,
    /// tgt: `targets.conf`, or what `tgt-admin --dump` prints.
    Tgt,
    /// SCST: `scst.conf`.
    Scst,
    /// FreeBSD's CAM target layer: `ctl.conf`.
    Ctl,
    /// The kernel's NVMe target: nvmetcli's `config.json`.
    Nvmet,
    /// SPDK: what `rpc.py save_config` prints.
    Spdk,
}

impl SourceFormat {
    /// All of them, by the words of the command line.
    pub const WORDS: [(&str, SourceFormat); 6] = [
        ("lio", SourceFormat::Lio),
        ("tgt", SourceFormat::Tgt),
        ("scst", SourceFormat::Scst),
        ("ctl", SourceFormat::Ctl),
        ("nvmet", SourceFormat::Nvmet),
        ("spdk", SourceFormat::Spdk),
    ];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        SourceFormat::WORDS.iter().find(|(_, format)| *format == self).map_or("", |(word, _)| word)
    }
}

impl fmt::Display for SourceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a file became.
#[derive(Debug)]
pub struct ImportResult {
    model: ImportModel,
    source: String,
    format: SourceFormat,
    /// Whether it can be served beyond this machine only with `--allow-anonymous`.
    needs_anonymous: bool,
    refused: Vec<Diagnostic>,
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, or is not of this format; with file and line.
pub fn import_file(format: SourceFormat, path: &Path) -> Result<ImportResult, SourceError> {
    let name = path.to_string_lossy().into_owned();
    let text = source::load(path)?;
    import_text(format, &name, &text, &mut IncludedFiles::from_disk(path))
}

/// Reads a text; `files` is asked for those that it includes.
///
/// # Errors
/// It is not of this format; with file and line.
pub fn import_text(
    format: SourceFormat,
    name: &str,
    text: &str,
    files: &mut IncludedFiles<'_>,
) -> Result<ImportResult, SourceError> {
    let mut model = match format {
        SourceFormat::Lio => lio::read_lio(&json::parse(name, text)?),
        SourceFormat::Nvmet => nvmet::read_nvmet(&json::parse(name, text)?),
        SourceFormat::Spdk => spdk::read_spdk(&json::parse(name, text)?),
        SourceFormat::Tgt => tgt::read_tgt(&blocks::parse_angled(name, text, files)?),
        SourceFormat::Scst => scst::read_scst(&blocks::parse_braced(name, text)?),
        SourceFormat::Ctl => ctl::read_ctl_conf(&blocks::parse_braced(name, text)?),
    };
    model.sort_notes();
    let mut imported =
        ImportResult { model, source: name.to_owned(), format, needs_anonymous: false, refused: Vec::new() };
    imported.validate();
    Ok(imported)
}

impl ImportResult {
    /// The configuration as TOML, with a note on each setting.
    pub fn to_toml(&self, secrets: SecretFormat) -> String {
        render::render_toml(self, secrets)
    }

    /// Notes on all settings, in the order of the source.
    pub fn notes(&self) -> Vec<&Note> {
        self.model.all_notes()
    }

    /// What could not be carried over: notes that are errors, and what `serve` would refuse of the result.
    pub fn errors(&self) -> Vec<String> {
        let notes = self.notes().into_iter().filter(|note| note.outcome == NoteOutcome::Error);
        notes.map(ToString::to_string).chain(self.refused.iter().map(ToString::to_string)).collect()
    }

    /// Whether `serve` must be told `--allow-anonymous`: someone beyond this machine needs no secret.
    pub fn needs_anonymous(&self) -> bool {
        self.needs_anonymous
    }

    /// Whether the result holds secrets.
    pub fn has_secrets(&self) -> bool {
        self.model.has_secrets()
    }

    /// Files that the configuration names, to be written beside it with mode 0600.
    pub fn key_files(&self) -> Vec<(String, &Secret)> {
        self.model.key_files()
    }

    /// Reads the result as `serve` does. Files with DH-HMAC-CHAP secrets are not there yet, so they are not asked for.
    fn validate(&mut self) {
        let text = render::render_toml(self, SecretFormat::WithoutKeyFiles);
        let check = |allow_anonymous: bool| {
            let sink = Sink::default();
            let mut draft = Draft::default();
            let text = SourceText::new("the result", text.clone());
            config::read_text(&text, Path::new("/"), false, &sink, &mut draft);
            if sink.is_clean() {
                let options = CommandLineOptions { allow_anonymous, ..CommandLineOptions::default() };
                check::resolve_draft(draft, &options, &sink);
            }
            sink.into_result(()).err().unwrap_or_default()
        };
        let refused = check(false);
        self.refused = if refused.is_empty() { refused } else { check(true) };
        self.needs_anonymous = self.model.has_anonymous_remote_access();
    }
}

#[cfg(test)]
mod tests;
