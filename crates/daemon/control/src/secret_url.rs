//! URLs of volumes as users gave them; they may contain passwords.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// A volume as its user named it, perhaps with passwords. To open it by, not to show: it has no `Display`,
/// and its `Debug` says nothing, so neither has anything that holds it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Deref for SecretUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SecretUrl {
    fn from(text: &str) -> Self {
        SecretUrl(text.to_owned())
    }
}

/// The text without what stands between `%` and `@` of a URL in it. A password may hold anything, blanks and
/// quotes too, so it ends at the last `@` of its line; rather too much is left out than a piece of one shown.
pub fn redact_url_passwords(text: &str) -> String {
    let (mut safe, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        safe.push_str(before);
        let line = url.split('\n').next().unwrap_or_default();
        let name = line.split(|c: char| c.is_whitespace() || "/?'".contains(c)).next().unwrap_or_default();
        match (name.find('%'), line.rfind('@')) {
            (Some(from), Some(to)) if from < to => {
                safe.push_str(line.split_at(from).0);
                safe.push_str("%...");
                rest = url.split_at(to).1;
            }
            _ => rest = url,
        }
    }
    safe + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_is_not_shown() {
        let called = SecretUrl::from("iscsi://user%open5esame@127.0.0.1/iqn.2026-11.x:y/0");
        for said in [format!("{called:?}"), format!("{called:#?}")] {
            assert!(!said.contains("open5esame"), "{said}");
        }
    }

    #[test]
    fn a_password_is_not_said_again() {
        let said =
            "invalid value 'v=iscsi://user%secret/word@host/iqn/0,ro' for '--volume': a URL, x://a%b@c";
        let safe = "invalid value 'v=iscsi://user%...@c";
        assert_eq!(redact_url_passwords(said), safe);
        let said = "unexpected argument 'iscsi://user%my 'quoted' pass@host/iqn/0' found\n\nUsage: a@b";
        let safe = "unexpected argument 'iscsi://user%...@host/iqn/0' found\n\nUsage: a@b";
        assert_eq!(redact_url_passwords(said), safe);
        let plain = "iscsi://user@host/iqn%20x/0 and iscsi://host/a%20b";
        assert_eq!(redact_url_passwords(plain), plain);
    }
}
