//! Records as files.

use std::path::Path;

use eval::record::Record;

use process::exit::Failure;

/// What a record is called in the directory of its run.
pub const RECORD_FILE: &str = "record.json";

/// Refuses a directory that holds a record already: hours of a run may be in it.
///
/// # Errors
/// If there is one, or that cannot be told.
pub fn refuse_existing_record(directory: &Path) -> Result<(), Failure> {
    let path = directory.join(RECORD_FILE);
    match path.symlink_metadata() {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(why) => Err(Failure::failed(format!("{}: {why}", path.display()))),
        Ok(_) => Err(Failure::usage(format!(
            "{} is the record of another run: name another directory with --out, or replace it with --force",
            path.display()
        ))),
    }
}

/// Reads a record: a file, or a directory that holds one.
///
/// # Errors
/// If there is none, or it is none; with its path.
pub fn read_record(path: &Path) -> Result<Record, Failure> {
    let path = if path.is_dir() { path.join(RECORD_FILE) } else { path.to_owned() };
    let text = std::fs::read_to_string(&path).map_err(|why| {
        Failure::failed(format!(
            "{}: {why}; a record is written by `blockwire eval import`, or by a run of an experiment",
            path.display()
        ))
    })?;
    Record::parse(&text).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}
