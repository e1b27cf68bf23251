//! Configurations of other targets, written again as a configuration of ours.
//!
//! Each format has a module that turns its text into a [`Model`]; `render` writes the model as TOML. Invariant:
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
mod render;
mod scst;
mod section;
mod source;
mod spdk;
mod tgt;

use std::{fmt, path::Path};

use config::{
    check::{self, Options},
    diagnostic::{Diagnostic, Sink, Text},
    draft::Draft,
};

pub use model::{Model, Secret};
pub use note::{Note, Outcome};
pub use render::SecretsShown;
pub use source::{Files, SourceError};

/// A format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
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

impl Format {
    /// All of them, by the words of the command line.
    pub const WORDS: [(&str, Format); 6] = [
        ("lio", Format::Lio),
        ("tgt", Format::Tgt),
        ("scst", Format::Scst),
        ("ctl", Format::Ctl),
        ("nvmet", Format::Nvmet),
        ("spdk", Format::Spdk),
    ];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        Format::WORDS.iter().find(|(_, format)| *format == self).map_or("", |(word, _)| word)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a file became.
#[derive(Debug)]
pub struct Imported {
    model: Model,
    source: String,
    format: Format,
    /// Whether it can be served beyond this machine only with `--allow-anonymous`.
    needs_anonymous: bool,
    refused: Vec<Diagnostic>,
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, or is not of this format; with file and line.
pub fn read(format: Format, path: &Path) -> Result<Imported, SourceError> {
    let name = path.to_string_lossy().into_owned();
    let text = source::load(path)?;
    translate(format, &name, &text, &mut Files::of_disk(path))
}

/// Reads a text; `files` is asked for those that it includes.
///
/// # Errors
/// It is not of this format; with file and line.
pub fn translate(
    format: Format,
    name: &str,
    text: &str,
    files: &mut Files<'_>,
) -> Result<Imported, SourceError> {
    let mut model = match format {
        Format::Lio => lio::read(&json::parse(name, text)?),
        Format::Nvmet => nvmet::read(&json::parse(name, text)?),
        Format::Spdk => spdk::read(&json::parse(name, text)?),
        Format::Tgt => tgt::read(&blocks::angled(name, text, files)?),
        Format::Scst => scst::read(&blocks::braced(name, text)?),
        Format::Ctl => ctl::read(&blocks::braced(name, text)?),
    };
    model.sort_notes();
    let mut imported =
        Imported { model, source: name.to_owned(), format, needs_anonymous: false, refused: Vec::new() };
    imported.prove();
    Ok(imported)
}

impl Imported {
    /// The configuration as TOML, with a note on each setting.
    pub fn toml(&self, secrets: SecretsShown) -> String {
        render::render(self, secrets)
    }

    /// Notes on all settings, in the order of the source.
    pub fn notes(&self) -> Vec<&Note> {
        self.model.all_notes()
    }

    /// What could not be carried over: notes that are errors, and what `serve` would refuse of the result.
    pub fn errors(&self) -> Vec<String> {
        let notes = self.notes().into_iter().filter(|note| note.outcome == Outcome::Error);
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
    fn prove(&mut self) {
        let text = render::render(self, SecretsShown::WithoutKeyFiles);
        let check = |allow_anonymous: bool| {
            let sink = Sink::default();
            let mut draft = Draft::default();
            let text = Text::new("the result", text.clone());
            config::read_text(&text, Path::new("/"), false, &sink, &mut draft);
            if sink.is_clean() {
                let options = Options { allow_anonymous, ..Options::default() };
                check::check(draft, &options, &sink);
            }
            sink.finish(()).err().unwrap_or_default()
        };
        let refused = check(false);
        self.refused = if refused.is_empty() { refused } else { check(true) };
        self.needs_anonymous = self.model.has_anonymous_way_out();
    }
}

#[cfg(test)]
mod tests;
