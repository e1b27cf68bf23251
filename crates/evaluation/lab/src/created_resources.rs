//! What a run creates outside of its directory, as listed in that directory.
//!
//! Invariant: an entry of a list is ours only if its name contains the run's token.

use std::path::Path;

use crate::memory_limit;

/// How names of these directories begin, before the token.
pub(crate) const DIRECTORY_PREFIX: &str = "blockwire-";
/// The locked marker.
pub(crate) const LOCK_FILE: &str = "lock";
/// The list of what was made elsewhere.
pub(crate) const LIST_FILE: &str = "made";
/// Where volumes in memory are.
pub(crate) const MEMORY_DIRECTORY: &str = "/dev/shm";
/// Digits of a token: 64 bits.
pub(crate) const TOKEN_DIGITS: usize = 16;

/// Something that a run made outside of its directory, or mounted in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CreatedResource {
    /// A network namespace.
    Namespace(String),
    /// The directory in [`MEMORY_DIRECTORY`] for volumes.
    Memory,
    /// A mount below the directory, by its path from there, and the kind of its file system.
    Mount(String, String),
    /// Exports of LIO whose names begin so.
    Lio(String),
    /// Exports of nvmet whose names begin so.
    Nvmet(String),
    /// An interface of open-iscsi, with the sessions over it.
    IscsiInterface(String),
    /// Controllers of NVMe that were connected with this host identifier.
    NvmeHost(String),
    /// A control group, by its directory.
    MemoryGroup(String),
}

impl CreatedResource {
    /// As a line of the list has it.
    pub(crate) fn to_words(&self) -> Vec<&str> {
        match self {
            CreatedResource::Namespace(name) => vec!["namespace", name],
            CreatedResource::Memory => vec!["memory"],
            CreatedResource::Mount(at, kind) => vec!["mount", at, kind],
            CreatedResource::Lio(own) => vec!["lio", own],
            CreatedResource::Nvmet(own) => vec!["nvmet", own],
            CreatedResource::IscsiInterface(name) => vec!["iscsi-interface", name],
            CreatedResource::NvmeHost(id) => vec!["nvme-host", id],
            CreatedResource::MemoryGroup(path) => vec!["memory-group", path],
        }
    }

    /// Reads a line; `None`: it is none, or names what does not carry the token.
    pub(crate) fn parse(line: &str, token: &str) -> Option<CreatedResource> {
        let words: Vec<String> = serde_json::from_str(line).ok()?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let own = |start: &str, name: &str| {
            let rest = name.strip_prefix(start)?.strip_prefix(token)?;
            let is_plain = rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            is_plain.then(|| name.to_owned())
        };
        Some(match words[..] {
            ["namespace", name] => CreatedResource::Namespace(own("bw-", name)?),
            ["memory"] => CreatedResource::Memory,
            ["mount", at, kind] => {
                let is_below =
                    Path::new(at).components().all(|part| matches!(part, std::path::Component::Normal(_)));
                is_below.then(|| CreatedResource::Mount(at.to_owned(), kind.to_owned()))?
            }
            ["lio", name] => CreatedResource::Lio(own("bw", name)?),
            ["nvmet", name] => CreatedResource::Nvmet(own("bw", name)?),
            ["iscsi-interface", name] => CreatedResource::IscsiInterface(own("bw-", name)?),
            ["nvme-host", id] => {
                (id == nvme_host_id(token)).then(|| CreatedResource::NvmeHost(id.to_owned()))?
            }
            ["memory-group", path] => {
                let name = Path::new(path).file_name()?.to_str()?;
                let is_ours = own("bw-", name).is_some() && memory_limit::is_group_path(Path::new(path));
                is_ours.then(|| CreatedResource::MemoryGroup(path.to_owned()))?
            }
            _ => return None,
        })
    }
}

/// The identifier (a UUID of version 8, RFC 9562) of a run's NVMe hosts.
pub(crate) fn nvme_host_id(token: &str) -> String {
    let digit = |from: usize, to: usize| token.get(from..to).unwrap_or_default();
    format!("b10c317e-0000-8000-8{}-{}", digit(0, 3), digit(4, 16))
}
