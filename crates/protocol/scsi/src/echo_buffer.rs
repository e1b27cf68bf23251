//! READ BUFFER and WRITE BUFFER (SPC-4 §6.18, §6.49): only the echo buffer.
//!
//! [`EchoBufferAccess`] is checked by mode, offset and length against the size of the buffer, so the range lies
//! inside.

use crate::cdb::BufferAccess;
use crate::sense::Sense;
use crate::wire::Writer;

/// MODE: echo buffer.
const ECHO: u8 = 0x0a;
/// MODE of READ BUFFER: echo buffer descriptor.
const ECHO_DESCRIPTOR: u8 = 0x0b;

/// What a READ BUFFER or WRITE BUFFER may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EchoBufferAccess {
    /// Move so many bytes from or to the beginning of the echo buffer.
    Data(u16),
    /// Report the echo buffer's size (READ BUFFER only).
    Descriptor,
}

impl EchoBufferAccess {
    /// Judges a READ BUFFER; a longer allocation length than the buffer is no fault.
    pub fn from_read_buffer(access: &BufferAccess, size: u16) -> Result<EchoBufferAccess, Sense> {
        match access.mode {
            ECHO_DESCRIPTOR => Ok(EchoBufferAccess::Descriptor),
            ECHO => {
                check_id_and_offset(access)?;
                Ok(EchoBufferAccess::Data(u16::try_from(access.len).unwrap_or(size).min(size)))
            }
            _ => Err(Sense::invalid_cdb_field(1, Some(4))),
        }
    }

    /// Judges a WRITE BUFFER; data beyond the buffer is refused.
    pub fn from_write_buffer(access: &BufferAccess, size: u16) -> Result<EchoBufferAccess, Sense> {
        if access.mode != ECHO {
            return Err(Sense::invalid_cdb_field(1, Some(4)));
        }
        check_id_and_offset(access)?;
        match u16::try_from(access.len) {
            Ok(len) if len <= size => Ok(EchoBufferAccess::Data(len)),
            _ => Err(Sense::invalid_cdb_field(6, None)),
        }
    }
}

/// BUFFER ID and BUFFER OFFSET are not used by echo modes.
fn check_id_and_offset(access: &BufferAccess) -> Result<(), Sense> {
    match (access.id, access.offset) {
        (0, 0) => Ok(()),
        (0, _) => Err(Sense::invalid_cdb_field(3, None)),
        _ => Err(Sense::invalid_cdb_field(2, None)),
    }
}

/// Writes the echo buffer descriptor; `size` in bytes, at most 4096. The buffer is that of the I_T nexus
/// (EBOS = 1).
pub fn encode_echo_descriptor(size: u16, w: &mut Writer<'_>) {
    w.put(&[1, 0]);
    w.u16(size);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: BufferAccess = BufferAccess { mode: 0x0a, id: 0, offset: 0, len: 512 };

    /// Attack row 48: nothing beyond the buffer.
    #[test]
    fn bounds() {
        #[rustfmt::skip]
        let cases = [
            (ACCESS, Ok(EchoBufferAccess::Data(512)), Ok(EchoBufferAccess::Data(512))),
            (BufferAccess { len: 513, ..ACCESS }, Ok(EchoBufferAccess::Data(512)), Err(Sense::invalid_cdb_field(6, None))),
            (BufferAccess { len: 0xff_ffff, ..ACCESS }, Ok(EchoBufferAccess::Data(512)), Err(Sense::invalid_cdb_field(6, None))),
            (BufferAccess { offset: 1, ..ACCESS }, Err(Sense::invalid_cdb_field(3, None)), Err(Sense::invalid_cdb_field(3, None))),
            (BufferAccess { id: 1, ..ACCESS }, Err(Sense::invalid_cdb_field(2, None)), Err(Sense::invalid_cdb_field(2, None))),
            (BufferAccess { mode: 0x0b, ..ACCESS }, Ok(EchoBufferAccess::Descriptor), Err(Sense::invalid_cdb_field(1, Some(4)))),
            (BufferAccess { mode: 0x02, ..ACCESS }, Err(Sense::invalid_cdb_field(1, Some(4))), Err(Sense::invalid_cdb_field(1, Some(4)))),
        ];
        for (access, read, write) in cases {
            assert_eq!(EchoBufferAccess::from_read_buffer(&access, 512), read, "{access:?}");
            assert_eq!(EchoBufferAccess::from_write_buffer(&access, 512), write, "{access:?}");
        }
        let mut out = [0xee; 5];
        encode_echo_descriptor(512, &mut Writer::new(&mut out));
        assert_eq!(out, [1, 0, 2, 0, 0xee]);
    }
}
