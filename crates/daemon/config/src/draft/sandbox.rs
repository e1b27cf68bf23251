//! `[sandbox]`: what the daemon may use beside what the configuration names.

use std::path::PathBuf;

use super::super::reader::TableReader;
use crate::plan::SandboxSettings;

pub(super) fn read_sandbox(table: &TableReader<'_>) -> SandboxSettings {
    let paths = table.parsed_list("paths", parse_path).unwrap_or_default();
    let ports = table.numbers("ports", 1..=u64::from(u16::MAX)).unwrap_or_default();
    SandboxSettings {
        is_enabled: table.boolean("enabled").is_none_or(|on| on.value),
        paths: paths.into_iter().map(|path| path.value).collect(),
        ports: ports.into_iter().filter_map(|port| u16::try_from(port.value).ok()).collect(),
    }
}

/// One that holds in any directory, and that is not all there is.
fn parse_path(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    match path.parent() {
        _ if path.is_relative() => Err("a path of [sandbox] begins with /"),
        None => Err("/ would leave nothing outside of the sandbox; to have no sandbox, set enabled = false"),
        Some(_) => Ok(path),
    }
}
