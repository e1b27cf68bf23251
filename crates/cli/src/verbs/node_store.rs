//! Nodes as they are kept: one file each in a directory of this user's.
//!
//! Invariants: a file holds no secret (its URL names files or variables that do); it is replaced whole or not at all;
//! what another user could have written is not read.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::urls_of_name;
use multipath::url::SecretSource;
use process::exit::{Exit, Failure};
use process::owned_dir::OwnedDir;
use process::paths::DefaultPaths;
use recovery::record::to_millis;
use serde_json::{Map, Value, json};

use super::attach::parse_timeout;
use super::node::{NodeSettings, NodesDir};
use crate::reports::NodeReport;

/// The longest file that is read.
const NODE_FILE_LEN_MAX: u64 = 64 << 10;
/// What the name of a node's file ends with.
const SUFFIX: &str = ".json";
const TIMEOUT_DEFAULT: &str = "120s";

pub(super) fn parse_via_name(text: &str) -> Result<String, String> {
    recovery::parse_via(text).map(|via| via.cli_name().to_owned())
}

pub(super) fn parse_timeout_text(text: &str) -> Result<String, String> {
    parse_timeout(text).map(|_| text.to_owned())
}

/// A node as its file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) url: String,
    pub(super) autostart: bool,
    pub(super) via: Option<String>,
    pub(super) at: Option<PathBuf>,
    pub(super) timeout: String,
}

/// What a URL of a node must be: of a remote volume, without a password, and read alike in any directory.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    let (urls, _) = urls_of_name(url).map_err(|why| why.message)?;
    if urls.is_empty() {
        return Err("it names no volume of another machine".to_owned());
    }
    let secrets = urls
        .iter()
        .flat_map(|url| [&url.options.secret, &url.options.mutual_secret, &url.options.tls_key])
        .flatten();
    for secret in secrets {
        if let SecretSource::File(path) = secret
            && path.is_relative()
        {
            return Err(format!(
                "the daemon, which reads {}, runs in another directory: give its absolute path",
                path.display()
            ));
        }
    }
    match urls.iter().any(|url| url.user.as_ref().is_some_and(|user| user.secret.is_some())) {
        true => {
            Err("it holds a password: write that to a file of mode 0600, and add ?secret_file=FILE"
                .to_owned())
        }
        false => Ok(()),
    }
}

impl Node {
    pub(super) fn new(url: String) -> Node {
        Node { url, autostart: false, via: None, at: None, timeout: TIMEOUT_DEFAULT.to_owned() }
    }

    pub(super) fn apply(&mut self, settings: &NodeSettings) -> Result<(), Failure> {
        self.autostart = settings.autostart.unwrap_or(self.autostart);
        self.via = settings.via.clone().or(self.via.take());
        if let Some(at) = &settings.at {
            let absolute = std::path::absolute(at).map_err(|why| Failure::failed(format!("--at: {why}")))?;
            self.at = Some(absolute);
        }
        if let Some(timeout) = &settings.timeout {
            self.timeout.clone_from(timeout);
        }
        Ok(())
    }

    pub(super) fn report(&self, name: &str) -> NodeReport {
        NodeReport {
            name: name.to_owned(),
            url: self.url.clone(),
            autostart: self.autostart,
            via: self.via.clone(),
            at: self.at.as_ref().map(|at| at.display().to_string()),
            timeout_ms: to_millis(self.recovery_timeout()),
        }
    }

    /// As its file has it.
    fn to_json(&self) -> Value {
        json!({
            "url": self.url, "autostart": self.autostart, "via": self.via, "at": self.at, "timeout": self.timeout,
        })
    }

    /// Reads a file; the error names the key.
    fn parse(bytes: &[u8]) -> Result<Node, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
        let Value::Object(mut fields) = value else { return Err("it is no JSON object".to_owned()) };
        let url = take_text(&mut fields, "url")?.ok_or("\"url\" is missing")?;
        check_url(&url).map_err(|why| format!("\"url\": {why}"))?;
        let autostart = match fields.remove("autostart") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(autostart)) => autostart,
            Some(_) => return Err("\"autostart\" is neither true nor false".to_owned()),
        };
        let via = take_text(&mut fields, "via")?.map(|via| parse_via_name(&via));
        let via = via.transpose().map_err(|why| format!("\"via\": {why}"))?;
        let at = take_text(&mut fields, "at")?.map(PathBuf::from);
        if at.as_deref().is_some_and(Path::is_relative) {
            return Err("\"at\" is no absolute path".to_owned());
        }
        let timeout = take_text(&mut fields, "timeout")?.unwrap_or_else(|| TIMEOUT_DEFAULT.to_owned());
        parse_timeout(&timeout).map_err(|why| format!("\"timeout\": {why}"))?;
        match fields.keys().next() {
            Some(key) => Err(format!("unknown key \"{key}\"; known: url, autostart, via, at, timeout")),
            None => Ok(Node { url, autostart, via, at, timeout }),
        }
    }

    /// The URL as attachments are recorded.
    pub(super) fn shown_url(&self) -> String {
        urls_of_name(&self.url).map_or_else(|_| String::new(), |(_, shown)| shown)
    }

    pub(super) fn recovery_timeout(&self) -> Duration {
        // It was looked at when it was read.
        parse_timeout(&self.timeout).unwrap_or(recovery::RECOVERY_TIMEOUT_DEFAULT)
    }
}

fn take_text(fields: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("\"{key}\" is no text")),
    }
}

/// A name that is a file's too.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
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
pub(super) struct Nodes(OwnedDir);

impl Nodes {
    fn path(given: &NodesDir) -> PathBuf {
        given.nodes.clone().unwrap_or_else(|| {
            let config = DefaultPaths::of_process().config;
            config.parent().unwrap_or(Path::new("/etc/blockwire")).join("nodes.d")
        })
    }

    /// For changes: it is made if it is not there.
    pub(super) fn create(given: &NodesDir) -> Result<Nodes, Failure> {
        OwnedDir::create_for_option(&Nodes::path(given), "--nodes DIRECTORY").map(Nodes)
    }

    /// `None`: there are none.
    pub(super) fn find(given: &NodesDir) -> Result<Option<Nodes>, Failure> {
        let path = std::path::absolute(Nodes::path(given)).map_err(Failure::failed)?;
        Ok(OwnedDir::find_existing(&path)?.map(Nodes))
    }

    pub(super) fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Failure {
        Failure::failed(format!("{}: {why}", self.0.path().join(format!("{name}{SUFFIX}")).display()))
    }

    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        let failed = |why: std::io::Error| Failure::failed(format!("{}: {why}", self.0.path().display()));
        let names = self.0.entry_names().map_err(failed)?;
        let node = |name: &std::ffi::OsString| {
            let name = name.to_str()?.strip_suffix(SUFFIX)?;
            check_name(name).ok().map(|()| name.to_owned())
        };
        let mut names: Vec<String> = names.iter().filter_map(node).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn read(&self, name: &str) -> Result<Node, Failure> {
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

    pub(super) fn unknown(&self, name: &str) -> Failure {
        let names = self.names().unwrap_or_default();
        let hint = multipath::suggest::nearest_word(name, names.iter().map(String::as_str));
        let hint = hint.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
        Failure::new(
            Exit::NothingFound,
            format!("there is no node \"{name}\" in {}{hint}", self.0.path().display()),
        )
    }

    /// Removes a node's file.
    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        check_name(name)?;
        let removed = self.0.remove_file(OsStr::new(&format!("{name}{SUFFIX}")));
        removed.map_err(|why| match why.kind() {
            std::io::ErrorKind::NotFound => self.unknown(name),
            _ => self.failed(name, &why),
        })
    }

    pub(super) fn write(&self, name: &str, node: &Node, is_new: bool) -> Result<(), Failure> {
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

pub(super) fn nodes_or_unknown(dir: &NodesDir, name: &str) -> Result<Nodes, Failure> {
    let missing = || {
        let path = Nodes::path(dir);
        Failure::new(
            Exit::NothingFound,
            format!("there is no node \"{name}\": {} is not there", path.display()),
        )
    };
    Nodes::find(dir)?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_all_of_a_node_and_nothing_else() {
        let url = "iscsi://h/iqn.2026-11.x:y/0";
        let node =
            Node { autostart: true, via: Some("nbd".into()), at: Some("/a".into()), ..Node::new(url.into()) };
        let text = node.to_json().to_string();
        assert_eq!(Node::parse(text.as_bytes()), Ok(node));
        assert_eq!(Node::parse(format!("{{\"url\":\"{url}\"}}").as_bytes()), Ok(Node::new(url.into())));
        for (text, word) in [
            ("[]", "object"),
            ("{", "EOF"),
            ("{}", "\"url\" is missing"),
            ("{\"url\":1}", "\"url\" is no text"),
            ("{\"url\":\"iscsi://u%secret@h/iqn.2026-11.x:y/0\"}", "password"),
            ("{\"url\":\"ftp://h/x\"}", "\"url\""),
            ("{\"url\":\"iscsi://u@h/iqn.2026-11.x:y/0?secret_file=k\"}", "absolute"),
            ("{\"url\":\"nvme+tcp://h/nqn.2026-11.x:y/1?tls_key_file=./k\"}", "absolute"),
        ] {
            let why = Node::parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(word) && !why.contains("secret@"), "{text}: {why}");
        }
        for (field, word) in [
            ("\"autostart\":1", "autostart"),
            ("\"via\":\"carrier\"", "via"),
            ("\"at\":\"a\"", "absolute"),
            ("\"timeout\":\"25h\"", "timeout"),
            ("\"autostrat\":true", "unknown key"),
        ] {
            let why = Node::parse(format!("{{\"url\":\"{url}\",{field}}}").as_bytes()).unwrap_err();
            assert!(why.contains(word), "{field}: {why}");
        }
    }

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
