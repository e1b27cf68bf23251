//! SendTargets: the question and the text that answers it (RFC 7143 Appendix C).

use crate::name::{IscsiName, TargetAddress};
use crate::negotiate::SessionType;
use std::sync::Arc;

/// Which targets are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// All that the initiator may see. Discovery sessions only.
    All,
    /// One by name; in a normal session only the session's own.
    Named(IscsiName),
    /// The session's own target. Normal sessions only.
    Own,
}

impl SendTargets {
    /// Parses the value of the key; `None` where the session may not ask so, which is answered Reject.
    #[must_use]
    pub fn parse(value: &str, session_type: SessionType, own: Option<&IscsiName>) -> Option<Self> {
        match (value, session_type) {
            ("All", SessionType::Discovery) => Some(Self::All),
            ("", SessionType::Normal) => Some(Self::Own),
            (name, SessionType::Discovery) => IscsiName::parse(name).ok().map(Self::Named),
            (name, SessionType::Normal) => {
                IscsiName::parse(name).ok().filter(|name| Some(name) == own).map(Self::Named)
            }
        }
    }
}

/// A finished list of targets. Cheap to clone, so that many connections can send from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetList(Arc<[u8]>);

impl TargetList {
    /// Writes one record per target: its name, then its addresses with their portal group tags.
    pub fn new<'a, A>(targets: impl IntoIterator<Item = (&'a IscsiName, A)>) -> Self
    where
        A: IntoIterator<Item = &'a TargetAddress>,
    {
        let mut text = Vec::new();
        for (name, addresses) in targets {
            push(&mut text, "TargetName", name.as_str());
            for address in addresses {
                push(&mut text, "TargetAddress", &address.to_string());
            }
        }
        Self(text.into())
    }

    pub(crate) fn into_text(self) -> Arc<[u8]> {
        self.0
    }
}

/// The list has no bound of its own: it is as long as the configuration, not as a peer wishes.
fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_ask_for_what() {
        let own = IscsiName::parse("iqn.2026-11.io.example:own").unwrap();
        let other = IscsiName::parse("iqn.2026-11.io.example:other").unwrap();
        let ask = |value, session_type| SendTargets::parse(value, session_type, Some(&own));
        assert_eq!(ask("All", SessionType::Discovery), Some(SendTargets::All));
        assert_eq!(ask("All", SessionType::Normal), None);
        assert_eq!(ask("", SessionType::Normal), Some(SendTargets::Own));
        assert_eq!(ask("", SessionType::Discovery), None);
        assert_eq!(ask(own.as_str(), SessionType::Normal), Some(SendTargets::Named(own.clone())));
        assert_eq!(ask(other.as_str(), SessionType::Normal), None);
        assert_eq!(ask(other.as_str(), SessionType::Discovery), Some(SendTargets::Named(other.clone())));
        assert_eq!(ask("../../etc", SessionType::Discovery), None);
    }

    #[test]
    fn records_follow_each_other() {
        let a = IscsiName::parse("iqn.2026-11.io.example:a").unwrap();
        let b = IscsiName::parse("iqn.2026-11.io.example:b").unwrap();
        let portals = [
            TargetAddress::of_portal("10.0.0.1:3260".parse().unwrap(), 1),
            TargetAddress::of_portal("[fe80::1]:3260".parse().unwrap(), 2),
        ];
        let list = TargetList::new([(&a, &portals[..]), (&b, &[])]);
        let want = b"TargetName=iqn.2026-11.io.example:a\0TargetAddress=10.0.0.1:3260,1\0\
            TargetAddress=[fe80::1]:3260,2\0TargetName=iqn.2026-11.io.example:b\0";
        assert_eq!(list.into_text()[..], want[..]);
    }
}
