//! Discovery (NVMe Base §3.1.2.3, §5.16.1.23): the entries, and what one host that arrived at one address
//! sees of them.
//!
//! Invariant: a log is made of one [`DiscoveryEntries`] and has its generation counter. A host that reads the
//! log in pieces, header first and last, and sees the same counter twice, has the records of one state.
//! Pieces are built on request: a log may have megabytes, and a thousand unauthenticated hosts may read one.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::Nqn;
use nvme::log::discovery::{DiscoveryLogHeader, DiscoveryRecord, RECORD_LEN};
use volume::PortId;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromZeros, IntoBytes};

/// All that can be discovered at this daemon; there is a new one for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntries {
    /// Counts the changes (GENCTR).
    pub generation: u64,
    /// Where to find what: as many as the configuration has listeners of subsystems, and referrals.
    pub entries: Vec<DiscoveryEntry>,
}

impl DiscoveryEntries {
    /// The records that this host sees which came by `local`.
    fn visible_entries(
        &self,
        host: &Nqn,
        local: SocketAddr,
    ) -> impl Iterator<Item = (&DiscoveryEntry, SocketAddr)> {
        self.entries.iter().filter_map(move |entry| Some((entry, entry.visible_address(host, local)?)))
    }

    /// Whether this host sees the same records in another state.
    pub fn is_same_for_host(&self, other: &DiscoveryEntries, host: &Nqn, local: SocketAddr) -> bool {
        let key = |(entry, at): (&DiscoveryEntry, SocketAddr)| {
            (entry.kind, entry.subsystem.clone(), at, entry.port)
        };
        self.visible_entries(host, local).map(key).eq(other.visible_entries(host, local).map(key))
    }

    /// How long the log page is for this host which came by `local`, in bytes.
    pub fn log_len(&self, host: &Nqn, local: SocketAddr) -> u64 {
        (1 + self.visible_entries(host, local).count() as u64) * RECORD_LEN as u64
    }

    /// A piece of the log page as this host sees it which came by `local`: the bytes from `offset` on, as far as there
    /// are any; the rest of `into` stays as it is.
    pub fn copy_log(&self, host: &Nqn, local: SocketAddr, offset: u64, into: &mut [u8]) {
        let end = offset.saturating_add(into.len() as u64);
        let mut put = |at: u64, bytes: &[u8]| {
            // Where the piece begins within these bytes, and these bytes within the piece.
            let (skip, place) = (offset.saturating_sub(at), at.saturating_sub(offset));
            let from = usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..));
            let to = usize::try_from(place).ok().and_then(|place| into.get_mut(place..));
            if let (Some(from), Some(to)) = (from, to) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        };
        let mut header = DiscoveryLogHeader::new_zeroed();
        header.generation = U64::new(self.generation);
        header.records = U64::new(self.visible_entries(host, local).count() as u64);
        put(0, header.as_bytes());
        let begins = |place: usize| (1 + place as u64) * RECORD_LEN as u64;
        for (place, (entry, at)) in self.visible_entries(host, local).enumerate() {
            if begins(place) >= end {
                return;
            }
            if begins(place + 1) > offset {
                put(begins(place), log_record(entry, at).as_bytes());
            }
        }
    }
}

/// The most entries of an admin queue: what the discovery log offers (ASQSZ).
pub const ADMIN_ENTRIES_MAX: u32 = 128;

/// What the log says of an entry that is found there.
fn log_record(entry: &DiscoveryEntry, at: SocketAddr) -> DiscoveryRecord {
    let (subtype, flags) = match entry.kind {
        EntryKind::Referral => (DiscoveryRecord::SUBTYPE_REFERRAL, 0),
        EntryKind::Nvm => (DiscoveryRecord::SUBTYPE_NVM, 0),
        EntryKind::Current => (
            DiscoveryRecord::SUBTYPE_CURRENT_DISCOVERY,
            DiscoveryRecord::EFLAGS_PERSISTENT | DiscoveryRecord::EFLAGS_DUPLICATE,
        ),
    };
    let entries = ADMIN_ENTRIES_MAX as u16;
    let mut record = DiscoveryRecord::new_tcp(subtype, &entry.subsystem, at, entry.port.0, entries);
    record.flags = U16::new(flags);
    match entry.tls {
        EntryTls::None => {}
        EntryTls::Allowed => record.set_tls_requirement(false),
        EntryTls::Required => record.set_tls_requirement(true),
    }
    record
}

/// A subsystem at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// What is there.
    pub kind: EntryKind,
    /// Its name; of [`EntryKind::Referral`] and [`EntryKind::Current`] that of discovery.
    pub subsystem: Nqn,
    /// Where. A listener's address may be unspecified: then the address is shown by which the host
    /// came, if it is of that family. One on loopback is shown to who came by loopback.
    pub address: SocketAddr,
    /// The port (PORTID).
    pub port: PortId,
    /// Who is shown it.
    pub hosts: VisibleTo,
    /// Whether hosts use TLS there.
    pub tls: EntryTls,
}

/// Whether hosts use TLS at an address (TREQ, SECTYPE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryTls {
    /// There is none, or nothing is known of it.
    #[default]
    None,
    /// They may.
    Allowed,
    /// They must.
    Required,
}

/// What an entry is about (SUBTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Another discovery service.
    Referral,
    /// An NVM subsystem.
    Nvm,
    /// This discovery service.
    Current,
}

/// Who is shown an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisibleTo {
    /// Everyone.
    All,
    /// These.
    These(Arc<[Nqn]>),
}

impl DiscoveryEntry {
    /// Where this host, which came by `local`, finds it; `None` if it is not shown.
    pub fn visible_address(&self, host: &Nqn, local: SocketAddr) -> Option<SocketAddr> {
        let allowed = match &self.hosts {
            VisibleTo::All => true,
            VisibleTo::These(these) => these.contains(host),
        };
        if !allowed {
            return None;
        }
        let here = local.ip().to_canonical();
        match self.address.ip() {
            // A listener takes one family.
            ip if ip.is_unspecified() => {
                (ip.is_ipv4() == here.is_ipv4()).then(|| SocketAddr::new(here, self.address.port()))
            }
            // Elsewhere that is another machine; a referral is what the operator says.
            ip if ip.is_loopback() && !here.is_loopback() && self.kind != EntryKind::Referral => None,
            _ => Some(self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, hosts: VisibleTo) -> DiscoveryEntry {
        DiscoveryEntry {
            kind: EntryKind::Nvm,
            subsystem: Nqn::parse("nqn.2026-11.io.blockwire:a").unwrap(),
            address: address.parse().unwrap(),
            port: PortId(1),
            hosts,
            tls: EntryTls::None,
        }
    }

    #[test]
    fn an_unspecified_address_is_shown_as_the_one_that_the_host_came_by() {
        let host = Nqn::parse("nqn.host").unwrap();
        let shown = |entry: &str, local: &str| {
            let at = self::entry(entry, VisibleTo::All).visible_address(&host, local.parse().unwrap());
            at.map(|at| at.to_string())
        };
        assert_eq!(shown("192.0.2.1:4420", "198.51.100.7:8009").unwrap(), "192.0.2.1:4420");
        assert_eq!(shown("0.0.0.0:4420", "198.51.100.7:8009").unwrap(), "198.51.100.7:4420");
        assert_eq!(shown("0.0.0.0:4420", "[::ffff:198.51.100.7]:8009").unwrap(), "198.51.100.7:4420");
        assert_eq!(shown("0.0.0.0:4420", "[2001:db8::1]:8009"), None);
        assert_eq!(shown("[::]:4420", "[2001:db8::1]:8009").unwrap(), "[2001:db8::1]:4420");
        assert_eq!(shown("[::]:4420", "198.51.100.7:8009"), None);
        assert_eq!(shown("127.0.0.1:4420", "198.51.100.7:8009"), None);
        assert_eq!(shown("127.0.0.1:4420", "[::1]:8009").unwrap(), "127.0.0.1:4420");
        let referral =
            DiscoveryEntry { kind: EntryKind::Referral, ..self::entry("127.0.0.1:8010", VisibleTo::All) };
        assert!(referral.visible_address(&host, "198.51.100.7:8009".parse().unwrap()).is_some());
    }

    #[test]
    fn whether_tls_is_used_is_said() {
        let local = "192.0.2.1:8009".parse().unwrap();
        for (tls, requirements, sectype) in
            [(EntryTls::None, 0, 0), (EntryTls::Allowed, 2, 2), (EntryTls::Required, 1, 2)]
        {
            let entry = DiscoveryEntry { tls, ..entry("192.0.2.1:4420", VisibleTo::All) };
            let record = log_record(&entry, local);
            assert_eq!((record.requirements & 3, record.specific[0]), (requirements, sectype));
            assert_eq!(record.wants_tls(), tls == EntryTls::Required);
        }
    }

    #[test]
    fn pieces_make_up_the_whole_log_and_nothing_behind_it() {
        let host = Nqn::parse("nqn.host").unwrap();
        let local = "192.0.2.1:8009".parse().unwrap();
        let port = |port| entry(&format!("192.0.2.1:{port}"), VisibleTo::All);
        let hidden = entry("192.0.2.1:4420", VisibleTo::These([].into()));
        let entries = vec![port(4420), hidden, port(4421), port(4422)];
        let book = DiscoveryEntries { generation: 7, entries };
        let len = book.log_len(&host, local) as usize;
        assert_eq!(len, 4 * RECORD_LEN);
        let mut whole = vec![0; len];
        book.copy_log(&host, local, 0, &mut whole);
        assert_eq!((whole[0], whole[8]), (7, 3));
        assert!(whole[3 * RECORD_LEN..].windows(4).any(|bytes| bytes == b"4422"));
        for size in [4, 1000, RECORD_LEN, 2500, len] {
            for offset in (0..=len).step_by(size) {
                let mut piece = vec![0xaa; size];
                book.copy_log(&host, local, offset as u64, &mut piece);
                let there = size.min(len - offset);
                assert_eq!(piece[..there], whole[offset..offset + there], "{size} at {offset}");
                assert!(piece[there..].iter().all(|byte| *byte == 0xaa));
            }
        }
    }

    #[test]
    fn a_host_is_shown_what_it_may_reach() {
        let [a, b] = ["nqn.a", "nqn.b"].map(|name| Nqn::parse(name).unwrap());
        let entry = entry("192.0.2.1:4420", VisibleTo::These([a.clone()].into()));
        let local = "192.0.2.1:8009".parse().unwrap();
        assert!(entry.visible_address(&a, local).is_some());
        assert!(entry.visible_address(&b, local).is_none());
    }
}
