//! Big-endian fields and bit fields of SCSI structures (SPC-4 §4.3), and the writer of parameter data.
//!
//! All shifting and masking of this crate is here. Readers get bytes whose presence the caller has checked; a
//! [`Writer`] never writes past its slice.

/// The bytes at `at`, which are there; zeros, if the caller is wrong.
#[inline]
const fn bytes_at<const LEN: usize>(b: &[u8], at: usize) -> [u8; LEN] {
    debug_assert!(b.len() >= at + LEN, "a field lies within its structure");
    if let Some((_, rest)) = b.split_at_checked(at)
        && let Some(field) = rest.first_chunk::<LEN>()
    {
        return *field;
    }
    [0; LEN]
}

/// The 16-bit field at `at`.
#[inline]
pub(crate) const fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes_at(b, at))
}

/// The 24-bit field at `at`.
#[inline]
pub(crate) const fn be24(b: &[u8], at: usize) -> u32 {
    let [high, middle, low] = bytes_at(b, at);
    u32::from_be_bytes([0, high, middle, low])
}

/// The 32-bit field at `at`.
#[inline]
pub(crate) const fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes_at(b, at))
}

/// The 64-bit field at `at`.
#[inline]
pub(crate) const fn be64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes_at(b, at))
}

/// Bit `n` (0 is the least significant) of a byte.
pub(crate) const fn bit(byte: u8, n: u8) -> bool {
    byte >> n & 1 == 1
}

/// Bits `high..=low` of a byte, moved down.
pub(crate) const fn bits(byte: u8, high: u8, low: u8) -> u8 {
    (byte >> low) & (0xff >> (7 - (high - low)))
}

/// A flag as bit `n`.
pub(crate) const fn flag_bit(set: bool, n: u8) -> u8 {
    (set as u8) << n
}

/// The low bits of `value` as the field `high..=low`; what does not fit is cut off.
pub(crate) const fn place_bits(value: u8, high: u8, low: u8) -> u8 {
    (value & (0xff >> (7 - (high - low)))) << low
}

/// The digit of four bits, as text shows them.
pub(crate) const fn hex_digit(nibble: u8) -> u8 {
    match nibble & 0xf {
        digit @ 0..=9 => b'0' + digit,
        digit => b'a' + digit - 10,
    }
}

/// Copies as many bytes as there is room for.
pub(crate) fn copy_truncated(room: &mut [u8], bytes: &[u8]) {
    room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// The most significant set bit of a non-zero byte.
pub(crate) const fn top_bit(byte: u8) -> u8 {
    7 - byte.leading_zeros() as u8
}

/// Writes parameter data into a buffer that may be shorter than the data.
///
/// The writer counts everything that is put, and keeps what fits: so length fields inside the data are
/// those of the whole, as SPC-4 §4.2.5.6 (ALLOCATION LENGTH) demands, and only the transfer is cut.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// A writer into the whole of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    /// A writer into at most `allocation` bytes of `out`: the ALLOCATION LENGTH of a CDB.
    pub fn with_allocation_length(out: &'a mut [u8], allocation: usize) -> Self {
        let room = out.len().min(allocation);
        Writer { out: out.split_at_mut(room).0, len: 0 }
    }

    /// Bytes put so far, whether they fitted or not.
    #[expect(clippy::len_without_is_empty, reason = "a count of what was put, not a container")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are in the buffer: what is to be transferred.
    pub fn written_len(&self) -> usize {
        self.len.min(self.out.len())
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(self.len..) {
            copy_truncated(room, bytes);
        }
        self.len += bytes.len();
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) {
        self.put(&[v]);
    }

    /// Appends a 16-bit field.
    pub fn u16(&mut self, v: u16) {
        self.put(&v.to_be_bytes());
    }

    /// Appends a 24-bit field; higher bits of `v` are cut off.
    pub fn u24(&mut self, v: u32) {
        self.put(&v.to_be_bytes()[1..]);
    }

    /// Appends a 32-bit field.
    pub fn u32(&mut self, v: u32) {
        self.put(&v.to_be_bytes());
    }

    /// Appends a 64-bit field.
    pub fn u64(&mut self, v: u64) {
        self.put(&v.to_be_bytes());
    }

    /// Appends `n` zero bytes.
    pub fn zeros(&mut self, n: usize) {
        if let Some(room) = self.out.get_mut(self.len..) {
            room.iter_mut().take(n).for_each(|byte| *byte = 0);
        }
        self.len += n;
    }

    /// Appends `text` left aligned in a field of `width` bytes, padded with spaces (SPC-4 §4.3.1).
    /// Longer text is cut, a byte outside 20h..7Eh becomes a space.
    pub fn padded_ascii(&mut self, text: &[u8], width: usize) {
        for at in 0..width {
            let byte = text.get(at).copied().unwrap_or(b' ');
            self.u8(if (0x20..=0x7e).contains(&byte) { byte } else { b' ' });
        }
    }

    /// Overwrites bytes put earlier, as far as they are in the buffer: for lengths known at the end.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "only what was put can be patched");
        if let Some(room) = self.out.get_mut(at..) {
            copy_truncated(room, bytes);
        }
    }

    /// Writes the count of bytes after the 16-bit field at `at` into it.
    pub(crate) fn patch_length_u16(&mut self, at: usize) {
        let n = u16::try_from(self.len - at - 2).unwrap_or(u16::MAX);
        self.patch(at, &n.to_be_bytes());
    }

    /// Writes the count of bytes after the 32-bit field at `at` into it.
    pub(crate) fn patch_length_u32(&mut self, at: usize) {
        let n = u32::try_from(self.len - at - 4).unwrap_or(u32::MAX);
        self.patch(at, &n.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let b = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0];
        assert_eq!(be16(&b, 1), 0x3456);
        assert_eq!(be24(&b, 0), 0x12_3456);
        assert_eq!(be32(&b, 2), 0x5678_9abc);
        assert_eq!(be64(&b, 0), 0x1234_5678_9abc_def0);
        assert!(bit(0x80, 7) && !bit(0x7f, 7));
        assert_eq!(bits(0b1011_0110, 5, 2), 0b1101);
        assert_eq!(bits(0xff, 7, 0), 0xff);
        assert_eq!(place_bits(0xff, 4, 2), 0b1_1100);
        assert_eq!(top_bit(0x28), 5);
        assert_eq!([0, 9, 10, 15].map(hex_digit), *b"09af");
    }

    #[test]
    fn a_writer_cuts_but_counts() {
        let mut out = [0xee; 8];
        let mut w = Writer::with_allocation_length(&mut out, 5);
        w.u16(0);
        w.u32(0x0102_0304);
        w.zeros(3);
        w.patch_length_u16(0);
        assert_eq!((w.len(), w.written_len()), (9, 5));
        assert_eq!(out, [0, 7, 1, 2, 3, 0xee, 0xee, 0xee]);
    }

    #[test]
    fn ascii_is_padded_cut_and_cleaned() {
        let mut out = [0; 8];
        let mut w = Writer::new(&mut out);
        w.padded_ascii(b"a\x01b", 5);
        w.padded_ascii(b"wxyz", 3);
        assert_eq!(&out, b"a b  wxy");
    }
}
