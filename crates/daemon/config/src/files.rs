//! The files of a configuration, read once: the same texts give the same draft again, whatever becomes of the files.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use crate::{
    FILE_BYTES_MAX,
    diagnostic::{Place, Sink, SourceText},
    draft::Draft,
    drop_in_files, file, read_text,
};

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it was.
    pub path: PathBuf,
    /// What stood in it.
    pub text: String,
    /// Whether others could read it, so that it must hold no secret.
    pub world_readable: bool,
}

impl fmt::Debug for ConfigFile {
    /// It may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A file and those of the `conf.d` beside it, in the order in which they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFiles(pub Vec<ConfigFile>);

impl ConfigFiles {
    /// Reads `path` and the `*.toml` of the `conf.d` beside it, in the order of their names. What cannot be read goes
    /// to `sink`.
    pub fn read(path: &Path, sink: &Sink) -> Self {
        let mut files = ConfigFiles::default();
        files.add(path, sink);
        let parts = path.parent().unwrap_or(Path::new(".")).join("conf.d");
        match drop_in_files(&parts) {
            Ok(paths) => paths.iter().for_each(|path| files.add(path, sink)),
            Err(why) => {
                sink.note_error(
                    &Place::outside_file(&parts.to_string_lossy()),
                    format!("cannot be listed: {why}"),
                );
            }
        }
        files
    }

    /// Reads one file alone.
    pub fn read_one(path: &Path, sink: &Sink) -> Self {
        let mut files = ConfigFiles::default();
        files.add(path, sink);
        files
    }

    fn add(&mut self, path: &Path, sink: &Sink) {
        match file::read_text(path, FILE_BYTES_MAX) {
            Ok((text, world_readable)) => {
                self.0.push(ConfigFile { path: path.to_owned(), text, world_readable });
            }
            Err(why) => sink.note_error(&Place::outside_file(&path.to_string_lossy()), why),
        }
    }

    /// What the texts say. What is wrong goes to `sink`; files of secrets that they name are read now.
    pub fn draft(&self, sink: &Sink) -> Draft {
        let mut draft = Draft::default();
        self.read_into(sink, &mut draft);
        draft
    }

    /// The same, added to what a draft has.
    pub fn read_into(&self, sink: &Sink, draft: &mut Draft) {
        for file in &self.0 {
            let directory = file.path.parent().unwrap_or(Path::new("."));
            let text = SourceText::new(&file.path.to_string_lossy(), file.text.clone());
            read_text(&text, directory, file.world_readable, sink, draft);
        }
    }

    /// The files of secrets that the texts name: what keys that end in `_file` say.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for file in &self.0 {
            let directory = file.path.parent().unwrap_or(Path::new("."));
            let (table, _) = DeTable::parse_recoverable(&file.text);
            collect_secret_files(table.get_ref(), &mut |path| found.push(directory.join(path)));
        }
        found
    }

    /// The same with paths that hold in any directory.
    #[must_use]
    pub fn absolute(mut self) -> Self {
        for file in &mut self.0 {
            file.path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
        }
        self
    }
}

fn collect_secret_files(table: &DeTable<'_>, found: &mut dyn FnMut(&str)) {
    for (key, value) in table {
        match value.get_ref() {
            DeValue::String(path) if key.get_ref().ends_with("_file") => found(path),
            value => collect_in_value(value, found),
        }
    }
}

fn collect_in_value(value: &DeValue<'_>, found: &mut dyn FnMut(&str)) {
    match value {
        DeValue::Table(table) => collect_secret_files(table, found),
        DeValue::Array(list) => list.iter().for_each(|one| collect_in_value(one.get_ref(), found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_secrets_are_found_at_any_depth() {
        let text = "[auth]\ndhchap_key_file = \"a.key\"\n[[host]]\nchap = [{ user = \"u\", secret_file = \"/k/b\" }]\n\
                    [[target]]\nname = \"x\"\nchap = { secret_file = \"c\" }\n";
        let file =
            ConfigFile { path: "/etc/bw/main.toml".into(), text: text.to_owned(), world_readable: false };
        let mut found = ConfigFiles(vec![file]).secret_files();
        found.sort();
        assert_eq!(found, ["/etc/bw/a.key", "/etc/bw/c", "/k/b"].map(PathBuf::from));
    }
}
