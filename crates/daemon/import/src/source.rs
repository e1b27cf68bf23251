//! Files of other targets, as text, and errors with file and line.
//!
//! Invariant: no file is larger than [`FILE_BYTES_MAX`], and no more than [`FILES_MAX`] are read, however
//! they include each other.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use config::{file, size};

/// Largest file, bytes: ten thousand LUNs of LIO need about 20 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Most files that one configuration may include.
const FILES_MAX: usize = 256;

/// Why a source cannot be read, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    file: String,
    line: Option<usize>,
    why: String,
}

impl SourceError {
    /// What is wrong with a line, counted from 1.
    pub fn at(file: &str, line: usize, why: impl fmt::Display) -> Self {
        SourceError { file: file.to_owned(), line: Some(line), why: why.to_string() }
    }

    fn in_file(file: &str, why: impl fmt::Display) -> Self {
        SourceError { file: file.to_owned(), line: None, why: why.to_string() }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.why),
            None => write!(f, "{}: {}", self.file, self.why),
        }
    }
}

impl std::error::Error for SourceError {}

/// The text of a file.
pub fn load(path: &Path) -> Result<String, SourceError> {
    let name = path.to_string_lossy();
    let (open, _) = file::open_regular(path).map_err(|why| SourceError::in_file(&name, why))?;
    let bytes = file::read_bounded(open, FILE_BYTES_MAX).map_err(|why| SourceError::in_file(&name, why))?;
    let too_large =
        || SourceError::in_file(&name, format!("is larger than {}", size::format_human(FILE_BYTES_MAX)));
    let bytes = bytes.ok_or_else(too_large)?;
    String::from_utf8(bytes).map_err(|why| {
        let good = why.as_bytes().iter().take(why.utf8_error().valid_up_to());
        let line = 1 + good.filter(|byte| **byte == b'\n').count();
        SourceError::at(&name, line, "this line is not UTF-8 text")
    })
}

/// The name and the text of each file that a pattern stands for, or why they cannot be read.
pub type FoundFiles = Result<Vec<(String, String)>, String>;

/// Where included files come from.
pub struct IncludedFiles<'a> {
    read: usize,
    find: Box<dyn FnMut(&str) -> FoundFiles + 'a>,
}

impl fmt::Debug for IncludedFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("read", &self.read).finish_non_exhaustive()
    }
}

impl<'a> IncludedFiles<'a> {
    /// Files of this machine; relative names begin at the directory of `path`.
    pub fn from_disk(path: &Path) -> Self {
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        IncludedFiles { read: 0, find: Box::new(move |pattern| find_on_disk(&directory, pattern)) }
    }

    /// None: whatever is included is not there.
    pub fn none() -> Self {
        IncludedFiles { read: 0, find: Box::new(|_| Ok(Vec::new())) }
    }

    /// Files that `find` gives for a pattern: names and texts.
    pub fn from_fn(find: impl FnMut(&str) -> FoundFiles + 'a) -> Self {
        IncludedFiles { read: 0, find: Box::new(find) }
    }

    /// The files that a pattern of `file`, line `line`, names.
    pub(crate) fn find_pattern(
        &mut self,
        file: &str,
        line: usize,
        pattern: &str,
    ) -> Result<Vec<(String, String)>, SourceError> {
        let files = (self.find)(pattern).map_err(|why| SourceError::at(file, line, why))?;
        self.read += files.len();
        if self.read > FILES_MAX {
            let why = format!("more than {FILES_MAX} files are included; does one include itself?");
            return Err(SourceError::at(file, line, why));
        }
        Ok(files)
    }
}

fn find_on_disk(directory: &Path, pattern: &str) -> FoundFiles {
    let whole = directory.join(pattern);
    let found = glob::glob(&whole.to_string_lossy()).map_err(|why| format!("include: {why}"))?;
    let mut files = Vec::new();
    for path in found.take(FILES_MAX + 1) {
        let path: PathBuf = path.map_err(|why| format!("include: {why}"))?;
        if path.is_dir() {
            continue;
        }
        files.push((path.to_string_lossy().into_owned(), load(&path).map_err(|why| why.to_string())?));
    }
    Ok(files)
}
