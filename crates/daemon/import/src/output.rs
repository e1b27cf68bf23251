//! The configuration as files, or on standard output.
//!
//! Invariant: a secret goes into files that only their owner can read, or to a pipe; never to a terminal
//! or to a file that other users can read.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use config::{
    check::{self, CommandLineOptions},
    diagnostic::{Diagnostic, Sink},
    draft::Draft,
};
use process::{exit::Failure, log, private_file::create_private_file};
use rustix::fs::FileType;

use crate::{ImportResult, SecretFormat};

/// Whether secrets may be written there: to a pipe or socket, or to a file that only its owner reads.
pub fn is_private_output(out: &impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(out) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::Socket => true,
        FileType::RegularFile => stat.st_mode & 0o077 == 0,
        _ => false,
    }
}

/// Writes the configuration and the files that it names; none of them may exist. On an error what was made is removed.
///
/// # Errors
/// A file exists, or cannot be written.
pub fn write_files(imported: &ImportResult, path: &Path) -> Result<(), Failure> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let keys = imported.key_files().into_iter();
    let keys = keys.map(|(name, secret)| (directory.join(name), format!("{}\n", secret.expose())));
    let whole = std::iter::once((path.to_owned(), imported.to_toml(SecretFormat::Yes)));
    let mut made = Vec::new();
    let written = keys.chain(whole).try_for_each(|(path, text)| {
        create_private_file(&path, &[text.as_bytes()])
            .map_err(|why| Failure::failed(format!("cannot write {}: {why}", path.display())))?;
        made.push(path);
        Ok(())
    });
    if written.is_err() {
        for path in made {
            if let Err(why) = fs::remove_file(&path) {
                log::write_stderr(&format!("blockwire: {} stays: {why}\n", path.display()));
            }
        }
    }
    written
}

/// What `serve` would say against the file that was written.
pub fn serve_errors(path: &Path, allow_anonymous: bool) -> Vec<Diagnostic> {
    let sink = Sink::default();
    let mut draft = Draft::default();
    config::read_file(path, &sink, &mut draft);
    if sink.is_clean() {
        check::resolve_draft(
            draft,
            &CommandLineOptions { allow_anonymous, ..CommandLineOptions::default() },
            &sink,
        );
    }
    sink.into_result(()).err().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_printed_to_pipes_and_private_files_only() {
        let (pipe, _other) = io::pipe().unwrap();
        assert!(is_private_output(&pipe));
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = |mode| file.as_file().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        own(0o600);
        assert!(is_private_output(file.as_file()));
        own(0o640);
        assert!(!is_private_output(file.as_file()));
        assert!(!is_private_output(&fs::File::open("/dev/null").unwrap()));
    }
}
