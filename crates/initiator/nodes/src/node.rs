//! A node: what its file says.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::urls_of_name;
use multipath::url::RelativeSecretFile;
use process::exit::Failure;
use recovery::parse_timeout;
use serde_json::{Map, Value, json};

const TIMEOUT_DEFAULT: &str = "120s";

/// The name of a way to attach, if there is one of it.
///
/// # Errors
/// The known names.
pub fn parse_via_name(text: &str) -> Result<String, String> {
    recovery::parse_via(text).map(|via| via.cli_name().to_owned())
}

/// A time-out as a node keeps it: its text.
///
/// # Errors
/// What a time-out looks like.
pub fn parse_timeout_text(text: &str) -> Result<String, String> {
    parse_timeout(text).map(|_| text.to_owned())
}

/// A node as its file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The volume; several URLs joined by commas are its paths.
    pub url: String,
    /// `connect-all` attaches it.
    pub autostart: bool,
    /// `ublk`, `fuse`, `nbd` or `vhost-user`; `None`: what this machine can.
    pub via: Option<String>,
    /// Directory, socket or device to create; `None`: one of the daemon's choice.
    pub at: Option<PathBuf>,
    /// How long I/O waits if the holder is killed, as text.
    pub timeout: String,
}

/// How a node is attached; what is `None` stays as it is, or at its default.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// Whether `connect-all` attaches it.
    pub autostart: Option<bool>,
    /// As [`parse_via_name`] gives it.
    pub via: Option<String>,
    /// Directory, socket or device to create.
    pub at: Option<PathBuf>,
    /// As [`parse_timeout_text`] gives it.
    pub timeout: Option<String>,
}

/// What keeps a URL from being that of a node.
#[derive(Debug)]
pub enum NodeUrlError {
    /// It is not a URL.
    Invalid(client::Error),
    /// It names no volume of another machine.
    NotRemote,
    /// A file with a secret is named relative to the caller's directory.
    RelativeSecret(RelativeSecretFile),
    /// It contains a password.
    Password,
}

impl fmt::Display for NodeUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeUrlError::Invalid(why) => f.write_str(&why.message),
            NodeUrlError::NotRemote => f.write_str("it names no volume of another machine"),
            NodeUrlError::RelativeSecret(secret) => secret.fmt(f),
            NodeUrlError::Password => f.write_str(
                "it holds a password: write that to a file of mode 0600, and add ?secret_file=FILE",
            ),
        }
    }
}

impl Error for NodeUrlError {}

/// What is wrong in a node's file.
#[derive(Debug)]
pub enum NodeFileError {
    /// It is not JSON.
    Json(serde_json::Error),
    /// It is JSON, and no object.
    NoObject,
    /// A value that must be a text, under this key.
    NoText(&'static str),
    /// There is no `url`.
    UrlMissing,
    /// `url`.
    Url(NodeUrlError),
    /// `autostart` is neither true nor false.
    Autostart,
    /// `via`: the known names.
    Via(String),
    /// `at` is a relative path.
    AtRelative,
    /// `timeout`: what one looks like.
    Timeout(String),
    /// A key that is not known.
    UnknownKey(String),
}

impl fmt::Display for NodeFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeFileError::Json(why) => write!(f, "{why}"),
            NodeFileError::NoObject => f.write_str("it is no JSON object"),
            NodeFileError::NoText(key) => write!(f, "\"{key}\" is no text"),
            NodeFileError::UrlMissing => f.write_str("\"url\" is missing"),
            NodeFileError::Url(why) => write!(f, "\"url\": {why}"),
            NodeFileError::Autostart => f.write_str("\"autostart\" is neither true nor false"),
            NodeFileError::Via(why) => write!(f, "\"via\": {why}"),
            NodeFileError::AtRelative => f.write_str("\"at\" is no absolute path"),
            NodeFileError::Timeout(why) => write!(f, "\"timeout\": {why}"),
            NodeFileError::UnknownKey(key) => {
                write!(f, "unknown key \"{key}\"; known: url, autostart, via, at, timeout")
            }
        }
    }
}

impl Error for NodeFileError {}

/// What a URL of a node must be: of a remote volume, without a password, and read alike in any directory.
///
/// # Errors
/// What it is not.
pub fn check_url(url: &str) -> Result<(), NodeUrlError> {
    let (urls, _) = urls_of_name(url).map_err(NodeUrlError::Invalid)?;
    if urls.is_empty() {
        return Err(NodeUrlError::NotRemote);
    }
    if let Some(secret) = RelativeSecretFile::find_in(&urls) {
        return Err(NodeUrlError::RelativeSecret(secret));
    }
    match urls.iter().any(|url| url.user.as_ref().is_some_and(|user| user.secret.is_some())) {
        true => Err(NodeUrlError::Password),
        false => Ok(()),
    }
}

impl Node {
    /// One that is attached in the default way, and not by `connect-all`.
    pub fn new(url: String) -> Node {
        Node { url, autostart: false, via: None, at: None, timeout: TIMEOUT_DEFAULT.to_owned() }
    }

    /// Changes what the settings name.
    ///
    /// # Errors
    /// A relative path cannot be made absolute.
    pub fn apply(&mut self, settings: &NodeSettings) -> Result<(), Failure> {
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

    /// As its file has it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "url": self.url, "autostart": self.autostart, "via": self.via, "at": self.at, "timeout": self.timeout,
        })
    }

    /// Reads a file; the error names the key.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Node, NodeFileError> {
        let value: Value = serde_json::from_slice(bytes).map_err(NodeFileError::Json)?;
        let Value::Object(mut fields) = value else { return Err(NodeFileError::NoObject) };
        let url = take_text(&mut fields, "url")?.ok_or(NodeFileError::UrlMissing)?;
        check_url(&url).map_err(NodeFileError::Url)?;
        let autostart = match fields.remove("autostart") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(autostart)) => autostart,
            Some(_) => return Err(NodeFileError::Autostart),
        };
        let via = take_text(&mut fields, "via")?.map(|via| parse_via_name(&via));
        let via = via.transpose().map_err(NodeFileError::Via)?;
        let at = take_text(&mut fields, "at")?.map(PathBuf::from);
        if at.as_deref().is_some_and(Path::is_relative) {
            return Err(NodeFileError::AtRelative);
        }
        let timeout = take_text(&mut fields, "timeout")?.unwrap_or_else(|| TIMEOUT_DEFAULT.to_owned());
        parse_timeout(&timeout).map_err(NodeFileError::Timeout)?;
        match fields.keys().next() {
            Some(key) => Err(NodeFileError::UnknownKey(key.clone())),
            None => Ok(Node { url, autostart, via, at, timeout }),
        }
    }

    /// The URL as attachments are recorded.
    pub fn shown_url(&self) -> String {
        urls_of_name(&self.url).map_or_else(|_| String::new(), |(_, shown)| shown)
    }

    /// How long I/O waits if the holder is killed.
    pub fn recovery_timeout(&self) -> Duration {
        // It was looked at when it was read.
        parse_timeout(&self.timeout).unwrap_or(recovery::RECOVERY_TIMEOUT_DEFAULT)
    }
}

fn take_text(fields: &mut Map<String, Value>, key: &'static str) -> Result<Option<String>, NodeFileError> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(NodeFileError::NoText(key)),
    }
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
        assert_eq!(Node::parse(text.as_bytes()).unwrap(), node);
        let least = format!("{{\"url\":\"{url}\"}}");
        assert_eq!(Node::parse(least.as_bytes()).unwrap(), Node::new(url.into()));
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
            let why = Node::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(word) && !why.contains("secret@"), "{text}: {why}");
        }
        for (field, word) in [
            ("\"autostart\":1", "autostart"),
            ("\"via\":\"carrier\"", "via"),
            ("\"at\":\"a\"", "absolute"),
            ("\"timeout\":\"25h\"", "timeout"),
            ("\"autostrat\":true", "unknown key"),
        ] {
            let why =
                Node::parse(format!("{{\"url\":\"{url}\",{field}}}").as_bytes()).unwrap_err().to_string();
            assert!(why.contains(word), "{field}: {why}");
        }
    }
}
