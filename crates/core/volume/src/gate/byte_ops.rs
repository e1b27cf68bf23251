//! Byte work of operations in steps: the host's data against the contents of scratch memory.

use buf::{Sg, SgMut};

use crate::io::Fault;

/// Compares `len` bytes of `given` from `at` on with the scratch memory from `from` on. The
/// difference is counted from the start of `given`.
#[expect(clippy::indexing_slicing, reason = "bounded by the length of the slice and of the array")]
pub(super) fn compare_with_scratch(
    given: &Sg,
    at: usize,
    scratch: &mut SgMut,
    from: usize,
    len: usize,
) -> Result<(), Fault> {
    let mut piece = [0; 512];
    let mut done = 0;
    for mut slice in scratch.slices_mut(from..from + len) {
        while !slice.is_empty() {
            let n = slice.len().min(piece.len());
            given.copy_to(at + done, &mut piece[..n]);
            if slice[..n] != piece[..n] {
                let differs = slice.iter().zip(&piece).position(|(is, should)| is != should).unwrap_or(0);
                return Err(Fault::Miscompare((at + done + differs) as u32));
            }
            done += n;
            slice = &mut slice[n..];
        }
    }
    Ok(())
}

/// Copies `len` bytes of `given` from `at` on over the scratch memory from `from` on.
pub(super) fn overwrite_scratch(given: &Sg, at: usize, scratch: &mut SgMut, from: usize, len: usize) {
    let mut done = 0;
    for slice in scratch.slices_mut(from..from + len) {
        given.copy_to(at + done, slice);
        done += slice.len();
    }
}

/// Sets the bits of `given` in the scratch memory.
#[expect(clippy::indexing_slicing, reason = "bounded by the length of the slice and of the array")]
pub(super) fn or_into_scratch(given: &Sg, at: usize, scratch: &mut SgMut, from: usize, len: usize) {
    let mut piece = [0; 512];
    let mut done = 0;
    for mut slice in scratch.slices_mut(from..from + len) {
        while !slice.is_empty() {
            let n = slice.len().min(piece.len());
            given.copy_to(at + done, &mut piece[..n]);
            slice[..n].iter_mut().zip(&piece).for_each(|(to, bits)| *to |= bits);
            done += n;
            slice = &mut slice[n..];
        }
    }
}
