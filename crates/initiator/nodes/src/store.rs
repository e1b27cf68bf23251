//! The directory of the nodes: one file each.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use process::exit::{Exit, Failure};
use process::owned_dir::OwnedDir;
use process::paths::DefaultPaths;

use crate::node::Node;

/// The longest file that is read.
const NODE_FILE_LEN_MAX: u64 = 64 << 10;
/// What the name of a node's file ends with.
const SUFFIX: &str = ".json";

/// A name that is a file's too.
///
/// # Errors
/// What a name may hold.
pub fn check_name(name: &str) -> Result<(), Failure> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let fits = (1..=223).contains(&name.len()) && !name.starts_with('.') && name.chars().all(allowed);
    match fits {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "\"{}\" is no name of a node: letters, digits, and . - _ : inside, at most 223 characters",
            process::printable::escape_line(name)
        ))),
    }
}

/// The directory of the nodes.
#[derive(Debug)]
pub struct Nodes(OwnedDir);

impl Nodes {
    fn path(given: Option<&Path>) -> PathBuf {
        given.map_or_else(
            || {
                let config = DefaultPaths::of_process().config;
                config.parent().unwrap_or(Path::new("/etc/blockwire")).join("nodes.d")
            },
            Path::to_owned,
        )
    }

    /// For changes: it is made if it is not there. `given`: another than the default.
    ///
    /// # Errors
    /// It cannot be made, or other users can change it.
    pub fn create(given: Option<&Path>) -> Result<Nodes, Failure> {
        OwnedDir::create_for_option(&Nodes::path(given), "--nodes DIRECTORY").map(Nodes)
    }

    /// `None`: there are none. `given`: another directory than the default.
    ///
    /// # Errors
    /// Other users can change it.
    pub fn find(given: Option<&Path>) -> Result<Option<Nodes>, Failure> {
        let path = std::path::absolute(Nodes::path(given)).map_err(Failure::failed)?;
        Ok(OwnedDir::find_existing(&path)?.map(Nodes))
    }

    /// The directory that has a node of this name, if there is one at all.
    ///
    /// # Errors
    /// There is no directory of nodes.
    pub fn find_for(given: Option<&Path>, name: &str) -> Result<Nodes, Failure> {
        let missing = || {
            let path = Nodes::path(given);
            Failure::new(
                Exit::NothingFound,
                format!("there is no node \"{name}\": {} is not there", path.display()),
            )
        };
        Nodes::find(given)?.ok_or_else(missing)
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Failure {
        Failure::failed(format!("{}: {why}", self.0.path().join(format!("{name}{SUFFIX}")).display()))
    }

    /// The names of all nodes, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let failed = |why: std::io::Error| Failure::failed(format!("{}: {why}", self.0.path().display()));
        let names = self.0.entry_names().map_err(failed)?;
        let node = |name: &OsString| {
            let name = name.to_str()?.strip_suffix(SUFFIX)?;
            check_name(name).ok().map(|()| name.to_owned())
        };
        let mut names: Vec<String> = names.iter().filter_map(node).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// A node.
    ///
    /// # Errors
    /// There is none of that name; its file says something else, or could be another user's.
    pub fn read(&self, name: &str) -> Result<Node, Failure> {
        check_name(name)?;
        let file = format!("{name}{SUFFIX}");
        let bytes = match self.0.read_trusted(OsStr::new(&file), NODE_FILE_LEN_MAX) {
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Err(self.unknown(name)),
            Err(why) if why.kind() == std::io::ErrorKind::PermissionDenied => {
                let why =
                    "it is not trusted: it must be this user's file, writable by no other (chown, chmod)";
                return Err(self.failed(name, &why));
            }
            other => other.map_err(|why| self.failed(name, &why))?,
        };
        Node::parse(&bytes).map_err(|why| self.failed(name, &why))
    }

    fn unknown(&self, name: &str) -> Failure {
        let names = self.names().unwrap_or_default();
        let hint = multipath::suggest::nearest_word(name, names.iter().map(String::as_str));
        let hint = hint.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
        Failure::new(
            Exit::NothingFound,
            format!("there is no node \"{name}\" in {}{hint}", self.0.path().display()),
        )
    }

    /// Removes a node's file.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        check_name(name)?;
        let removed = self.0.remove_file(OsStr::new(&format!("{name}{SUFFIX}")));
        removed.map_err(|why| match why.kind() {
            std::io::ErrorKind::NotFound => self.unknown(name),
            _ => self.failed(name, &why),
        })
    }

    /// Writes a node's file. `is_new`: there must be none of that name.
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    pub fn write(&self, name: &str, node: &Node, is_new: bool) -> Result<(), Failure> {
        check_name(name)?;
        let (file, text) = (format!("{name}{SUFFIX}"), format!("{:#}\n", node.to_json()));
        let written = match is_new {
            true => self.0.write_new_file(OsStr::new(&file), text.as_bytes()),
            false => self.0.replace_file(OsStr::new(&file), text.as_bytes()),
        };
        written.map_err(|why| match why.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::new(
                Exit::Exists,
                format!("there is a node \"{name}\": change it with `blockwire node set`"),
            ),
            _ => self.failed(name, &why),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_and_targets() {
        for name in ["db", "iqn.2026-11.io.blockwire:db", "nqn.2026-11.io.blockwire:db", "a_b-c.d"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(224);
        for name in ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\n", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
