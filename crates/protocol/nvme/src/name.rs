//! Names: NVMe Qualified Names (NVMe Base §4.5) and host identifiers.
//!
//! Invariant: a [`Nqn`] is valid: at most 223 bytes of UTF-8 that begin with `nqn.` and contain no control
//! character, so that it can be logged. Names are compared bytewise.

use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes, its terminator not counted.
pub const NQN_LEN_MAX: usize = 223;

/// Bytes of a name's field on the wire.
pub const NQN_FIELD_LEN: usize = 256;

/// An NVMe Qualified Name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(Arc<str>);

/// Why some text or field is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// It does not begin with `nqn.`, or nothing follows.
    Prefix,
    /// It is longer than [`NQN_LEN_MAX`], or does not end within its field.
    Length,
    /// It is no UTF-8, or holds a control character.
    Characters,
}

impl Nqn {
    /// The well-known name of discovery (NVMe Base §3.1.2.3).
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_LEN_MAX {
            return Err(NqnError::Length);
        }
        if text.strip_prefix("nqn.").is_none_or(str::is_empty) {
            return Err(NqnError::Prefix);
        }
        if text.chars().any(char::is_control) {
            return Err(NqnError::Characters);
        }
        Ok(Nqn(text.into()))
    }

    /// Reads a field of 256 bytes. What stands behind the terminator is not looked at.
    pub fn from_field(field: &[u8; NQN_FIELD_LEN]) -> Result<Nqn, NqnError> {
        let len = field.iter().position(|&byte| byte == 0).ok_or(NqnError::Length)?;
        if len > NQN_LEN_MAX {
            return Err(NqnError::Length);
        }
        let name = field.get(..len).ok_or(NqnError::Length)?;
        Nqn::parse(std::str::from_utf8(name).map_err(|_| NqnError::Characters)?)
    }

    /// The name of discovery.
    pub fn discovery_service() -> Nqn {
        Nqn(Self::DISCOVERY.into())
    }

    /// Whether it is the name of discovery.
    pub fn is_discovery_service(&self) -> bool {
        &*self.0 == Self::DISCOVERY
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The field of 256 bytes, filled with NULs.
    pub fn to_field(&self) -> [u8; NQN_FIELD_LEN] {
        let mut field = [0; NQN_FIELD_LEN];
        field.iter_mut().zip(self.0.bytes()).for_each(|(to, from)| *to = from);
        field
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A 128-bit Host Identifier (NVMe Base §5.27.1.25); never zero, since zero names nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId([u8; 16]);

impl HostId {
    /// Takes the bytes of a field, unless all are zero.
    pub fn new(bytes: [u8; 16]) -> Option<HostId> {
        (bytes != [0; 16]).then_some(HostId(bytes))
    }

    /// The bytes, as they stand on the wire.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Nqn::discovery_service().is_discovery_service());
        assert_eq!(Nqn::parse(Nqn::DISCOVERY).unwrap(), Nqn::discovery_service());
        assert_eq!(Nqn::parse("iqn.2026-11.io.blockwire:a"), Err(NqnError::Prefix));
        assert_eq!(Nqn::parse("nqn."), Err(NqnError::Prefix));
        assert_eq!(Nqn::parse("nqn.a\nb"), Err(NqnError::Characters));
        let long = format!("nqn.{}", "x".repeat(219));
        assert_eq!(Nqn::parse(&long).unwrap().as_str().len(), NQN_LEN_MAX);
        assert_eq!(Nqn::parse(&(long + "x")), Err(NqnError::Length));
    }

    #[test]
    fn fields_end_with_a_nul_and_no_byte_is_read_behind_it() {
        let name =
            Nqn::parse("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001").unwrap();
        let mut field = name.to_field();
        field[200] = 0xff;
        assert_eq!(Nqn::from_field(&field).unwrap(), name);
        assert_eq!(Nqn::from_field(&[b'n'; NQN_FIELD_LEN]), Err(NqnError::Length));
        assert_eq!(Nqn::from_field(&[0; NQN_FIELD_LEN]), Err(NqnError::Prefix));
        let mut latin = name.to_field();
        latin[10] = 0xe9;
        assert_eq!(Nqn::from_field(&latin), Err(NqnError::Characters));
        let mut endless = [b'x'; NQN_FIELD_LEN];
        endless[..4].copy_from_slice(b"nqn.");
        endless[224] = 0;
        assert_eq!(Nqn::from_field(&endless), Err(NqnError::Length));
    }

    #[test]
    fn a_host_identifier_of_zero_names_nobody() {
        assert_eq!(HostId::new([0; 16]), None);
        let id = HostId::new(*b"\x01\x23\x45\x67\x89\xab\x4c\xde\x8f\x00\x11\x22\x33\x44\x55\x66").unwrap();
        assert_eq!(id.to_string(), "01234567-89ab-4cde-8f00-112233445566");
    }
}
