//! `PortalGroup=TAG@ADDRESS[:PORT][,ADDRESS[:PORT]]...[,timeout=SECONDS][,[TAG,TAG...]]`

use std::{net::SocketAddr, time::Duration};

use super::{
    error::{PORTAL_FORM, ValueError},
    value,
};
use config::network;

/// Most addresses of one line.
const ADDRESSES_MAX: usize = 64;

/// A portal group of a target.
#[derive(Debug, PartialEq, Eq)]
pub struct PortalGroup {
    /// Its tag, 1 to 65535.
    pub tag: u16,
    /// Where it is; at least one address.
    pub addresses: Vec<SocketAddr>,
    /// After what silence a connection counts as lost.
    pub timeout: Option<Duration>,
    /// Groups of the same target to which logins are sent; empty: they are served.
    pub sent_to: Vec<u16>,
}

/// Parses the value of `PortalGroup=`.
pub fn parse_portal_group(text: &str) -> Result<PortalGroup, ValueError> {
    let (tag, rest) = text.split_once('@').ok_or(PORTAL_FORM)?;
    let mut group = PortalGroup {
        tag: parse_tag(tag.trim())?,
        addresses: Vec::new(),
        timeout: None,
        sent_to: Vec::new(),
    };
    for part in split_outside_brackets(rest) {
        let part = part.trim();
        if let Some(seconds) = part.strip_prefix("timeout=") {
            if group.timeout.is_some() {
                return Err("names its timeout twice".into());
            }
            let seconds = value::parse_number(seconds.trim(), 1..=3600)
                .map_err(|why| why.within_part("timeout ", ""))?;
            group.timeout = Some(Duration::from_secs(seconds));
        } else if let Some(tags) = redirection_tags(part) {
            if !group.sent_to.is_empty() {
                return Err("names groups to redirect to twice".into());
            }
            group.sent_to = tags.split(',').map(|tag| parse_tag(tag.trim())).collect::<Result<_, _>>()?;
        } else {
            let address = network::listen_address(part).map_err(ValueError::Portal)?;
            if group.addresses.contains(&address) {
                return Err(ValueError::SameAddress(address));
            }
            group.addresses.push(address);
        }
    }
    match group.addresses.len() {
        0 => Err(PORTAL_FORM.into()),
        1..=ADDRESSES_MAX => Ok(group),
        _ => Err(ValueError::TooMany(ADDRESSES_MAX, "addresses")),
    }
}

fn parse_tag(text: &str) -> Result<u16, ValueError> {
    value::parse_number(text, 1..=0xffff)
        .map(|tag| tag as u16)
        .map_err(|why| why.within_part("has a tag that ", ""))
}

/// What stands in brackets, if that is tags and no IPv6 address.
fn redirection_tags(part: &str) -> Option<&str> {
    let inner = part.strip_prefix('[')?.strip_suffix(']')?;
    inner.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b' ').then_some(inner)
}

/// Parts between commas that do not stand in brackets.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut is_inside = false;
    let is_cut = |c| {
        is_inside = c == '[' || is_inside && c != ']';
        c == ',' && !is_inside
    };
    text.split(is_cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> (u16, Vec<String>, Option<u64>, Vec<u16>) {
        let group = parse_portal_group(text).unwrap();
        let addresses = group.addresses.iter().map(ToString::to_string).collect();
        (group.tag, addresses, group.timeout.map(|time| time.as_secs()), group.sent_to)
    }

    #[test]
    fn groups() {
        let one = |address: &str| vec![address.to_owned()];
        assert_eq!(group("1@102.11.11.32:3260"), (1, one("102.11.11.32:3260"), None, vec![]));
        assert_eq!(group("5@192.0.2.178"), (5, one("192.0.2.178:3260"), None, vec![]));
        assert_eq!(
            group("2@192.0.2.1:3260, 192.0.2.2:3261,timeout=60,[2,3]"),
            (2, vec!["192.0.2.1:3260".into(), "192.0.2.2:3261".into()], Some(60), vec![2, 3])
        );
        let six = vec!["[fe80::1]:3260".to_owned(), "[2001:db8::2]:3261".to_owned()];
        assert_eq!(group("1@[fe80::1],[2001:db8::2]:3261,[4]"), (1, six, None, vec![4]));
    }

    #[test]
    fn what_is_no_group() {
        for (text, why) in [
            ("", "TAG@ADDRESS"),
            ("192.0.2.1:3260", "TAG@ADDRESS"),
            ("0@192.0.2.1", "1 to 65535"),
            ("65536@192.0.2.1", "1 to 65535"),
            ("x@192.0.2.1", "1 to 65535"),
            ("1@", "TAG@ADDRESS"),
            ("1@192.0.2.1:99999", "not an address"),
            ("1@host.example:3260", "not an address"),
            ("1@192.0.2.1,192.0.2.1:3260", "twice"),
            ("1@192.0.2.1,timeout=0", "timeout takes a number from 1 to 3600"),
            ("1@192.0.2.1,timeout=9,timeout=9", "timeout twice"),
            ("1@192.0.2.1,[]", "a tag that"),
            ("1@[2]", "TAG@ADDRESS"),
            ("1@192.0.2.1,[2,]", "a tag that"),
        ] {
            let said = parse_portal_group(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("192.0.2.{n}")).collect();
        assert!(
            parse_portal_group(&format!("1@{}", many.join(",")))
                .unwrap_err()
                .to_string()
                .contains("more than 64")
        );
    }
}
