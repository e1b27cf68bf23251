//! Joins a text that was sent in several PDUs with the C bit (RFC 7143 §6.2), within a bound.

use super::{TEXT_LEN_MAX, TextError};

/// Pieces received so far; at most [`TEXT_LEN_MAX`] bytes.
#[derive(Clone, Debug, Default)]
pub struct TextReassembly(Vec<u8>);

impl TextReassembly {
    /// Adds a piece.
    pub fn add(&mut self, piece: &[u8]) -> Result<(), TextError> {
        if self.0.len() + piece.len() > TEXT_LEN_MAX {
            self.0 = Vec::new();
            return Err(TextError::TooLong);
        }
        // Exactly: what doubling would add is not in the bound.
        self.0.reserve_exact(piece.len());
        self.0.extend_from_slice(piece);
        Ok(())
    }

    /// The whole text; what follows begins again.
    #[must_use]
    pub fn take_text(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.0)
    }

    /// Whether no piece is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_06_a_megabyte_over_many_pieces_stops_at_the_bound() {
        let mut text = TextReassembly::default();
        let accepted = (0..1024).take_while(|_| text.add(&[b'K'; 1024]).is_ok()).count();
        assert_eq!(accepted, TEXT_LEN_MAX / 1024);
        let mut uneven = TextReassembly::default();
        while uneven.add(&[b'K'; 1300]).is_ok() {
            assert!(uneven.0.capacity() <= TEXT_LEN_MAX, "the bound is of memory, not of text");
        }
        assert!(text.is_empty(), "a refused text holds no memory");
    }

    #[test]
    fn pieces_join() {
        let mut text = TextReassembly::default();
        text.add(b"Initia").unwrap();
        text.add(b"torName=x\0").unwrap();
        assert_eq!(text.take_text(), b"InitiatorName=x\0");
        assert!(text.is_empty());
    }
}
