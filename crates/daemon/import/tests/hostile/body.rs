//! Arbitrary bytes as the configuration of another target. The first byte chooses the format.
//!
//! Holds: an import ends; what it gives without errors, `serve` would accept; no file is looked for.

use blockwire_import::{IncludedFiles, NoteOutcome, SecretFormat, SourceFormat};

/// One input.
pub fn import(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let (_, format) = SourceFormat::WORDS[usize::from(choice) % SourceFormat::WORDS.len()];
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A file that is included is this one again.
    let mut files = IncludedFiles::from_fn(|_| Ok(vec![("again".to_owned(), text.to_owned())]));
    let Ok(imported) = blockwire_import::import_text(format, "file", text, &mut files) else { return };
    imported.to_toml(SecretFormat::Yes);
    let notes = imported.notes();
    assert!(notes.iter().all(|note| note.line > 0), "a note without a line");
    if imported.errors().is_empty() {
        assert!(notes.iter().all(|note| note.outcome != NoteOutcome::Error));
    }
}
