//! Text that we send: bounded, and cut into pieces that the peer accepts (RFC 7143 §6.2).

use super::{TEXT_LEN_MAX, TextError};

const _: () = assert!(TEXT_LEN_MAX.is_multiple_of(GROWTH_STEP));

/// Growth of a text in bytes: no doubling, so that the bound of the text is the bound of its memory.
const GROWTH_STEP: usize = 2048;

/// A text being composed; at most [`TEXT_LEN_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextBuf(Vec<u8>);

impl TextBuf {
    /// An empty text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `key=value` and its delimiter.
    pub fn push(&mut self, key: &str, value: &str) -> Result<(), TextError> {
        let len = self.0.len() + key.len() + value.len() + 2;
        if len > TEXT_LEN_MAX {
            return Err(TextError::TooLong);
        }
        if len > self.0.capacity() {
            self.0.reserve_exact(len.next_multiple_of(GROWTH_STEP) - self.0.len());
        }
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'=');
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        Ok(())
    }

    /// Appends `key=value` with a number.
    pub fn push_number(&mut self, key: &str, value: u64) -> Result<(), TextError> {
        self.push(key, &value.to_string())
    }

    /// The text so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Cuts off the first piece of at most `limit` bytes; what remains is for later PDUs. A cut may fall inside
    /// a pair, so every piece but the last goes out with the C bit.
    #[must_use]
    pub fn take_piece(&mut self, limit: usize) -> Vec<u8> {
        let rest = self.0.split_off(self.0.len().min(limit));
        core::mem::replace(&mut self.0, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_whole() {
        let mut text = TextBuf::new();
        for i in 0..1000 {
            text.push_number("Key", i).unwrap();
        }
        let whole = text.as_bytes().to_vec();
        let mut joined = Vec::new();
        while !text.is_empty() {
            let piece = text.take_piece(512);
            assert!(!piece.is_empty() && piece.len() <= 512);
            joined.extend(piece);
        }
        assert_eq!(joined, whole);
    }

    #[test]
    fn the_bound_holds() {
        let mut text = TextBuf::new();
        let value = "v".repeat(254);
        let pushed = (0..1000).take_while(|_| text.push("Key", &value).is_ok()).count();
        assert_eq!(pushed, TEXT_LEN_MAX / (3 + 254 + 2));
        assert!(text.0.len() <= TEXT_LEN_MAX && text.0.capacity() <= TEXT_LEN_MAX);
    }
}
