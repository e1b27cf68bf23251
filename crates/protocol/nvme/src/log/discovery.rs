//! Discovery (LID 70h; NVMe Base §5.16.1.23).

use std::net::{IpAddr, SocketAddr};

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::name::{NQN_FIELD_LEN, Nqn, NqnError};

/// Bytes of the header, and of a record.
pub const RECORD_LEN: usize = 1024;

/// The header: 1024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogHeader {
    /// GENCTR: counts the changes of the log.
    pub generation: U64,
    /// NUMREC: how many records follow.
    pub records: U64,
    /// RECFMT: 0.
    pub format: U16,
    /// Reserved.
    pub reserved: [u8; 1006],
}

const _: () = assert!(size_of::<DiscoveryLogHeader>() == RECORD_LEN);

/// A record: 1024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryRecord {
    /// TRTYPE: 3 for TCP.
    pub transport: u8,
    /// ADRFAM: 1 for IPv4, 2 for IPv6.
    pub family: u8,
    /// SUBTYPE.
    pub subtype: u8,
    /// TREQ: the secure channel in bits 1:0 (0: not said), SQ flow control can be disabled in bit 2.
    pub requirements: u8,
    /// PORTID.
    pub port: U16,
    /// CNTLID: FFFFh for the dynamic model.
    pub cntlid: U16,
    /// ASQSZ: the most entries of an admin queue.
    pub admin_entries: U16,
    /// EFLAGS: bit 0 the same records are told by other ports too, bit 1 explicit persistent
    /// connections.
    pub flags: U16,
    /// Reserved.
    pub reserved_12: [u8; 20],
    /// TRSVCID: the TCP port in ASCII, filled with spaces.
    pub service: [u8; 32],
    /// Reserved.
    pub reserved_64: [u8; 192],
    /// SUBNQN.
    pub subsystem: [u8; NQN_FIELD_LEN],
    /// TRADDR: the IP address in ASCII, filled with spaces.
    pub address: [u8; 256],
    /// TSAS: byte 0 is SECTYPE, 0 for no security.
    pub specific: [u8; 256],
}

const _: () = assert!(size_of::<DiscoveryRecord>() == RECORD_LEN);

impl DiscoveryLogHeader {
    /// Reads it, for a host.
    pub fn parse(bytes: &[u8; RECORD_LEN]) -> DiscoveryLogHeader {
        zerocopy::transmute!(*bytes)
    }
}

impl DiscoveryRecord {
    /// Reads one, for a host.
    pub fn parse(bytes: &[u8; RECORD_LEN]) -> DiscoveryRecord {
        zerocopy::transmute!(*bytes)
    }

    /// The address, if it is one of TCP over IP and of digits: names and scopes are nobody's here.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        let address: IpAddr = trim_text(&self.address)?.parse().ok()?;
        let fits = matches!((self.family, address), (1, IpAddr::V4(_)) | (2, IpAddr::V6(_)));
        let port = trim_text(&self.service)?.parse().ok().filter(|&port| port != 0)?;
        (self.transport == 3 && fits).then_some(SocketAddr::new(address, port))
    }

    /// The subsystem.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subsystem)
    }

    /// Whether it wants TLS: TREQ says that it is required, or does not say, and SECTYPE names one.
    pub fn wants_tls(&self) -> bool {
        match self.requirements & 3 {
            1 => true,
            2 => false,
            _ => self.specific.first().is_some_and(|sectype| *sectype != 0),
        }
    }

    /// Says whether hosts use TLS 1.3 (TREQ and SECTYPE): must, or may. Where nothing is said, there is none.
    pub fn set_tls_requirement(&mut self, is_required: bool) {
        self.requirements |= if is_required { 1 } else { 2 };
        if let Some(sectype) = self.specific.first_mut() {
            *sectype = 2;
        }
    }

    /// SUBTYPE of another discovery service.
    pub const SUBTYPE_REFERRAL: u8 = 1;
    /// SUBTYPE of an NVM subsystem.
    pub const SUBTYPE_NVM: u8 = 2;
    /// SUBTYPE of this discovery service.
    pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
    /// EFLAGS: other ports tell the same.
    pub const EFLAGS_DUPLICATE: u16 = 1;
    /// EFLAGS: a Connect with a Keep Alive Timeout makes a persistent connection.
    pub const EFLAGS_PERSISTENT: u16 = 2;

    /// A subsystem of the dynamic controller model at a TCP address.
    pub fn new_tcp(
        subtype: u8,
        subsystem: &Nqn,
        at: SocketAddr,
        port: u16,
        admin_entries: u16,
    ) -> DiscoveryRecord {
        let mut record = DiscoveryRecord::new_zeroed();
        record.transport = 3;
        record.family = if at.is_ipv4() { 1 } else { 2 };
        record.subtype = subtype;
        record.requirements = 1 << 2;
        record.port = U16::new(port);
        record.cntlid = U16::new(0xffff);
        record.admin_entries = U16::new(admin_entries);
        fill_padded(&mut record.service, at.port().to_string().as_bytes());
        record.subsystem = subsystem.to_field();
        fill_padded(&mut record.address, at.ip().to_string().as_bytes());
        record
    }
}

/// Text filled with spaces. No address and no port is longer than its field.
fn fill_padded(field: &mut [u8], text: &[u8]) {
    let spaces = std::iter::repeat(&b' ');
    field.iter_mut().zip(text.iter().chain(spaces)).for_each(|(to, from)| *to = *from);
}

/// A text field, without what fills it: spaces, or NULs as some write them.
fn trim_text(field: &[u8]) -> Option<&str> {
    let text = field.split(|&byte| byte == 0).next().unwrap_or(field);
    std::str::from_utf8(text).ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_what_is_no_address_is_none() {
        let name = Nqn::parse("nqn.2026-11.test:a").unwrap();
        for at in ["10.0.0.1:4420", "[2001:db8::1]:8009"] {
            let at: SocketAddr = at.parse().unwrap();
            let record = DiscoveryRecord::new_tcp(DiscoveryRecord::SUBTYPE_NVM, &name, at, 3, 32);
            let mut bytes = [0; RECORD_LEN];
            bytes.copy_from_slice(record.as_bytes());
            let read = DiscoveryRecord::parse(&bytes);
            assert_eq!((read.tcp_address(), read.subsystem_nqn()), (Some(at), Ok(name.clone())));
            assert!(!read.wants_tls());
            let wrong: [fn(&mut DiscoveryRecord); 6] = [
                |record| record.transport = 1,
                |record| record.family ^= 3,
                |record| record.service.fill(b' '),
                |record| record.service[..2].copy_from_slice(b"0 "),
                |record| record.address[0] = 0xff,
                |record| record.address[..3].copy_from_slice(b"$(x"),
            ];
            for act in wrong {
                let mut record = read;
                act(&mut record);
                if record.service[..2] == *b"0 " {
                    record.service[2..].fill(b' ');
                }
                assert_eq!(record.tcp_address(), None);
            }
        }
    }
}
