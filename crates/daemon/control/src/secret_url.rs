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
}
