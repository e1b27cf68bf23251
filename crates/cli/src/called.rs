//! Volumes as who uses them named them: URLs that may hold passwords.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// A volume as its user named it, perhaps with passwords. To open it by, not to show: it has no `Display`,
/// and its `Debug` says nothing, so neither has anything that holds it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Called(String);

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Deref for Called {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Called {
    fn from(text: &str) -> Self {
        Called(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::attached::Wish;
    use crate::cli::Cli;
    use crate::control::{AttachRequest, Request};

    const URL: &str = "iscsi://user%open5esame@127.0.0.1/iqn.2026-11.x:y/0";

    fn assert_silent(what: &impl fmt::Debug) {
        for said in [format!("{what:?}"), format!("{what:#?}")] {
            assert!(!said.contains("open5esame"), "{said}");
        }
    }

    #[test]
    fn what_holds_a_url_does_not_show_its_password() {
        assert_silent(&Called::from(URL));
        let dir = PathBuf::from("/run");
        let (at, timeout) = (None, Duration::ZERO);
        let wish = Wish {
            url: URL.into(),
            via: None,
            at,
            recover: false,
            force: false,
            timeout,
            dir,
            control: None,
        };
        assert_silent(&wish);
        let request = AttachRequest {
            url: URL.into(),
            via: None,
            at: None,
            recover: false,
            force: false,
            timeout_ms: 0,
        };
        // The daemon gets it whole.
        let sent = serde_json::to_string(&Request::Attach(request.clone())).unwrap();
        assert!(sent.contains(URL), "{sent}");
        assert_silent(&Request::Attach(request));
    }

    #[test]
    fn a_command_line_with_a_password_does_not_show_it() {
        for words in [
            &["info", URL][..],
            &["discover", URL],
            &["doctor", URL],
            &["read", URL],
            &["write", URL],
            &["copy", URL, "file"],
            &["copy", "file", URL],
            &["verify", URL, URL],
            &["reserve", URL, "report"],
            &["attach", URL, "--daemon"],
            &["bench", URL, URL],
            &["bench", "--job", "file", &format!("--map=a={URL}")],
        ] {
            let words = std::iter::once("blockwire").chain(words.iter().copied());
            assert_silent(&Cli::try_parse_from(words).unwrap());
        }
    }
}
