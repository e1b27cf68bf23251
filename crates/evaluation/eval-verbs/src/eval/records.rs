//! Records as files.

use std::path::Path;

use eval::record::Record;

use process::exit::Failure;

/// What a record is called in the directory of its run.
pub const RECORD: &str = "record.json";

/// Reads a record: a file, or a directory that holds one.
///
/// # Errors
/// If there is none, or it is none; with its path.
pub fn read(path: &Path) -> Result<Record, Failure> {
    let path = if path.is_dir() { path.join(RECORD) } else { path.to_owned() };
    let text = std::fs::read_to_string(&path).map_err(|why| {
        Failure::failed(format!(
            "{}: {why}; a record is written by `blockwire eval import`, or by a run of an experiment",
            path.display()
        ))
    })?;
    Record::parse(&text).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}
