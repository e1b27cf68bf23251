//! `ACL=[iname=NAME[,NAME]...][;sip=IP[,IP]...][;dip=IP[,IP]...][;lun=LIST:R|RW]`
//!
//! All conditions of a line must match; it must have one of the first three. LIST is `ALL`, or numbers and
//! ranges such as `0,2~4`. A list may be followed by another with its own permission, so that one line can
//! make some logical units writable and others read-only.

use std::net::IpAddr;

use super::{error::ValueError, value};
use config::{draft::LUN_MAX, name, network::Network};
use multipath::suggest;

/// Most names or addresses of a line.
const LIST_ELEMENTS_MAX: usize = 256;

/// Whom a line lets in, and to what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Initiator names, normalized; empty: any.
    pub names: Vec<String>,
    /// Where they come from; empty: anywhere.
    pub sources: Vec<Network>,
    /// Addresses of ours by which they come; empty: any.
    pub locals: Vec<IpAddr>,
    /// Which logical units.
    pub luns: LunAccess,
}

/// Logical units, and whether they may only be read.
#[derive(Debug, PartialEq, Eq)]
pub enum LunAccess {
    /// All of the target's.
    All {
        /// Whether they may only be read.
        read_only: bool,
    },
    /// These: first, last, and whether they may only be read. Ranges may reach beyond what there is.
    Some(Vec<(u16, u16, bool)>),
}

impl Default for LunAccess {
    fn default() -> Self {
        LunAccess::All { read_only: false }
    }
}

impl LunAccess {
    /// What is said of one logical unit; `None`: nothing, so it is not shown. The last list that names it
    /// decides.
    pub fn access_of(&self, lun: u16) -> Option<bool> {
        match self {
            LunAccess::All { read_only } => Some(*read_only),
            LunAccess::Some(ranges) => {
                let found = ranges.iter().rev().find(|(first, last, _)| (*first..=*last).contains(&lun));
                found.map(|(.., read_only)| *read_only)
            }
        }
    }
}

/// Parses the value of `ACL=`.
pub fn parse_acl(text: &str) -> Result<Acl, ValueError> {
    let (mut acl, mut seen) = (Acl::default(), Vec::new());
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| ValueError::NoAclKey(part.to_owned()))?;
        let key = key.trim();
        if seen.contains(&key) {
            return Err(ValueError::SameAclKey(key.to_owned()));
        }
        seen.push(key);
        match key {
            "iname" => {
                acl.names = parse_list(value, |one| name::parse_iscsi_name(one).map_err(ValueError::Name))?
            }
            "sip" => {
                acl.sources = parse_list(value, |one| {
                    parse_address(one)?.to_string().parse().map_err(|_| ValueError::Address(one.to_owned()))
                })?
            }
            "dip" => acl.locals = parse_list(value, parse_address)?,
            "lun" => acl.luns = parse_luns(value)?,
            _ => {
                let hint = suggest::unknown_word_hint(key, ["iname", "sip", "dip", "lun"]);
                return Err(ValueError::AclKey(key.to_owned(), hint.to_string()));
            }
        }
    }
    if !["iname", "sip", "dip"].iter().any(|key| seen.contains(key)) {
        return Err("needs iname=, sip= or dip= to say who may connect".into());
    }
    Ok(acl)
}

fn parse_list<T>(value: &str, parse: impl Fn(&str) -> Result<T, ValueError>) -> Result<Vec<T>, ValueError> {
    let parts = value::split_parts(value)?;
    if parts.len() > LIST_ELEMENTS_MAX {
        return Err(ValueError::TooMany(LIST_ELEMENTS_MAX, "in one list"));
    }
    parts.into_iter().map(parse).collect()
}

fn parse_address(text: &str) -> Result<IpAddr, ValueError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().map_err(|_| ValueError::Address(text.to_owned()))?;
    Ok(address.to_canonical())
}

fn parse_luns(value: &str) -> Result<LunAccess, ValueError> {
    let (mut ranges, mut open, mut all) = (Vec::new(), Vec::new(), None);
    for part in value::split_parts(value)? {
        let (what, permission) =
            part.split_once(':').map_or((part, None), |(a, b)| (a.trim(), Some(b.trim())));
        match what {
            "ALL" => all = Some(()),
            _ => open.push(parse_lun_range(what)?),
        }
        if ranges.len() + open.len() > LIST_ELEMENTS_MAX {
            return Err(ValueError::TooMany(LIST_ELEMENTS_MAX, "lists of logical units"));
        }
        let Some(permission) = permission else { continue };
        let read_only = value::parse_keyword(permission, &[("R", true), ("RW", false), ("WR", false)])?;
        if all.is_some() {
            return match (value::split_parts(value)?.len(), open.is_empty() && ranges.is_empty()) {
                (1, true) => Ok(LunAccess::All { read_only }),
                _ => Err("names ALL beside other logical units".into()),
            };
        }
        ranges.extend(open.drain(..).map(|(first, last)| (first, last, read_only)));
    }
    if !open.is_empty() || all.is_some() {
        return Err("needs :R or :RW after its list of logical units".into());
    }
    Ok(LunAccess::Some(ranges))
}

fn parse_lun_range(text: &str) -> Result<(u16, u16), ValueError> {
    let (first, last) = text.split_once('~').unwrap_or((text, text));
    let number = |text: &str| {
        value::parse_number(text.trim(), 0..=LUN_MAX)
            .map(|n| n as u16)
            .map_err(|why| why.within_part("lun= ", ""))
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(ValueError::Range(text.to_owned()));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_users_guide() {
        let acl = parse_acl("iname=iqn.2006-02.com.chelsio.san1").unwrap();
        assert_eq!(acl.names, ["iqn.2006-02.com.chelsio.san1"]);
        assert_eq!(acl.luns, LunAccess::All { read_only: false });
        let acl = parse_acl("sip=102.50.50.101").unwrap();
        assert!(acl.sources[0].contains("102.50.50.101".parse().unwrap()));
        assert!(!acl.sources[0].contains("102.50.50.102".parse().unwrap()));
        let acl = parse_acl("dip=192.0.2.50;lun=ALL:R").unwrap();
        assert_eq!((acl.locals.len(), &acl.luns), (1, &LunAccess::All { read_only: true }));
        let long = "iname=iqn.2006-02.com.chelsio.san2;sip=102.50.50.22;dip=102.50.50.25;lun=ALL:R";
        let acl = parse_acl(long).unwrap();
        assert_eq!((acl.names.len(), acl.sources.len(), acl.locals.len()), (1, 1, 1));
        assert!(
            parse_acl("iname=iqn.2004-08.com.chelsio.test1;").is_ok(),
            "an empty part at the end is none"
        );
    }

    #[test]
    fn lists_of_logical_units() {
        let luns = |text: &str| parse_acl(&format!("sip=192.0.2.1;lun={text}")).unwrap().luns;
        let seen = |luns: &LunAccess| (0..6).map(|lun| luns.access_of(lun)).collect::<Vec<_>>();
        let (ro, rw) = (Some(true), Some(false));
        assert_eq!(seen(&luns("0,2~4:R")), [ro, None, ro, ro, ro, None]);
        assert_eq!(seen(&luns("0:R,1~2:RW")), [ro, rw, rw, None, None, None]);
        assert_eq!(seen(&luns("0~5:R,3:WR")), [ro, ro, ro, rw, ro, ro], "the last one decides");
        assert_eq!(seen(&luns("ALL:RW")), [rw; 6]);
        assert_eq!(seen(&luns("0~16383:R")), [ro; 6]);
    }

    #[test]
    fn what_is_no_acl() {
        for (text, why) in [
            ("", "needs iname="),
            ("lun=ALL:R", "needs iname="),
            ("iname=", "empty element"),
            ("iname=bad name", "bad name"),
            ("sip=192.0.2.0/24", "not an IP address"),
            ("sip=192.0.2.1;sip=192.0.2.2", "sip= twice"),
            ("src=192.0.2.1", "has no part \"src\""),
            ("sip=192.0.2.1;lun=0", "needs :R or :RW"),
            ("sip=192.0.2.1;lun=ALL", "needs :R or :RW"),
            ("sip=192.0.2.1;lun=0:X", "\"R\" or \"RW\""),
            ("sip=192.0.2.1;lun=4~2:R", "ends before it begins"),
            ("sip=192.0.2.1;lun=16384:R", "from 0 to 16383"),
            ("sip=192.0.2.1;lun=0,ALL:R", "ALL beside other"),
            ("sip=192.0.2.1;lun=ALL:R,0:RW", "ALL beside other"),
            ("192.0.2.1", "expected iname="),
        ] {
            let said = parse_acl(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        let many = vec!["192.0.2.1"; 257].join(",");
        assert!(parse_acl(&format!("sip={many}")).unwrap_err().to_string().contains("more than 256"));
    }
}
