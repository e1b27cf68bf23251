//! Memory of one operation in several pieces.
//!
//! Invariant: memory handed out for a command lies within the pieces, and is as long as the command.

use std::ptr::NonNull;

/// A piece of an operation's memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
}

/// The stretches of memory that hold an operation's bytes from `begin` on: of its pieces, or of the one piece
/// at `data`.
pub(crate) fn for_each_memory_slice(
    pieces: Option<&[Piece]>,
    data: NonNull<u8>,
    begin: usize,
    len: usize,
    mut each: impl FnMut(NonNull<u8>, usize),
) {
    let Some(pieces) = pieces else {
        // SAFETY: the operation is longer than `begin`, and the caller's memory is as long.
        return each(unsafe { data.add(begin) }, len);
    };
    let (mut skip, mut left) = (begin, len);
    for piece in pieces {
        let now = piece.len.saturating_sub(skip).min(left);
        if now > 0 {
            // SAFETY: `skip` is less than the piece's length.
            each(unsafe { piece.at.add(skip) }, now);
        }
        skip = skip.saturating_sub(piece.len);
        left -= now;
    }
    assert_eq!(left, 0, "the pieces are as long as the operation");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_its_part_of_the_pieces() {
        let mut memory = [0_u8; 16];
        let mut at = |from: usize| NonNull::new(memory.as_mut_ptr().wrapping_add(from)).unwrap();
        let base = at(0);
        let pieces = [Piece { at: at(8), len: 3 }, Piece { at: at(0), len: 1 }, Piece { at: at(2), len: 5 }];
        let stretches = |pieces: Option<&[Piece]>, begin, len| {
            let mut found = Vec::new();
            for_each_memory_slice(pieces, base, begin, len, |at, len| {
                found.push((at.as_ptr().addr() - base.as_ptr().addr(), len));
            });
            found
        };
        assert_eq!(stretches(Some(&pieces), 0, 9), [(8, 3), (0, 1), (2, 5)]);
        assert_eq!(stretches(Some(&pieces), 2, 3), [(10, 1), (0, 1), (2, 1)]);
        assert_eq!(stretches(Some(&pieces), 4, 5), [(2, 5)]);
        assert_eq!(stretches(None, 4, 5), [(4, 5)]);
    }
}
