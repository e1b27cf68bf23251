//! SendTargets: the request and the text of its answer (RFC 7143 Appendix C).

use crate::name::{IscsiName, TargetAddress};
use crate::negotiate::SessionType;

/// Which targets are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// All that the initiator may see. Discovery sessions only.
    All,
    /// One by name; a normal session learns of no other than its own.
    Named(IscsiName),
    /// The session's own target. Normal sessions only.
    Own,
}

impl SendTargets {
    /// Parses the value of the key; `None` where the session may not ask so, which is answered Reject.
    #[must_use]
    pub fn parse(value: &str, session_type: SessionType) -> Option<Self> {
        match (value, session_type) {
            ("All", SessionType::Discovery) => Some(Self::All),
            ("", SessionType::Normal) => Some(Self::Own),
            (name, _) => IscsiName::parse(name).ok().map(Self::Named),
        }
    }
}

/// The text of a list of targets. It has no bound of its own: it is as long as the configuration, not
/// as a peer wishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetList(Vec<u8>);

impl TargetList {
    /// Begins the record of a target.
    pub fn push_target(&mut self, name: &str) {
        self.push_pair("TargetName", name);
    }

    /// Adds an address of the last target, with its portal group tag.
    pub fn push_address(&mut self, address: &TargetAddress) {
        self.push_pair("TargetAddress", &address.to_string());
    }

    fn push_pair(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// The records, each pair with its zero byte.
    #[must_use]
    pub fn into_text(self) -> Box<[u8]> {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_ask_for_what() {
        let name = IscsiName::parse("iqn.2026-11.io.example:disk").unwrap();
        let ask = SendTargets::parse;
        assert_eq!(ask("All", SessionType::Discovery), Some(SendTargets::All));
        assert_eq!(ask("All", SessionType::Normal), None);
        assert_eq!(ask("", SessionType::Normal), Some(SendTargets::Own));
        assert_eq!(ask("", SessionType::Discovery), None);
        assert_eq!(ask(name.as_str(), SessionType::Normal), Some(SendTargets::Named(name.clone())));
        assert_eq!(ask(name.as_str(), SessionType::Discovery), Some(SendTargets::Named(name.clone())));
        assert_eq!(ask("../../etc", SessionType::Discovery), None);
    }

    #[test]
    fn records_follow_each_other() {
        let mut list = TargetList::default();
        list.push_target("iqn.2026-11.io.example:a");
        list.push_address(&TargetAddress::of_portal("10.0.0.1:3260".parse().unwrap(), 1));
        list.push_address(&TargetAddress::of_portal("[fe80::1]:3260".parse().unwrap(), 2));
        list.push_target("iqn.2026-11.io.example:b");
        let want = b"TargetName=iqn.2026-11.io.example:a\0TargetAddress=10.0.0.1:3260,1\0\
            TargetAddress=[fe80::1]:3260,2\0TargetName=iqn.2026-11.io.example:b\0";
        assert_eq!(list.into_text()[..], want[..]);
    }
}
