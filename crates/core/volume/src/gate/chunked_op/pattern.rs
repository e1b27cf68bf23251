//! Writing the same data repeatedly: the pattern of a sanitize, or one block everywhere.

use buf::{Payload, Sg, SgMut};

use super::super::byte_ops::overwrite_scratch;
use super::super::chunk::ChunkPlan;
use super::ChunkedOp;
use crate::io::SanitizeKind;

impl ChunkedOp {
    /// Fills the scratch memory with the pattern and keeps it for the next chunks.
    #[expect(
        clippy::indexing_slicing,
        reason = "the pattern is not empty, and the remainder is below its length"
    )]
    pub(in super::super) fn make_pattern(&mut self, mut scratch: SgMut, logical: usize) -> Sg {
        match (&self.plan, &self.payload) {
            (ChunkPlan::Sanitize { kind: SanitizeKind::Overwrite { pattern, invert, .. }, pass, .. }, _) => {
                let flip = *invert && pass % 2 == 1;
                let pattern = if pattern.is_empty() { &[0][..] } else { pattern };
                let mut at = 0;
                for slice in scratch.slices_mut(0..scratch.len()) {
                    for byte in slice {
                        // The pattern starts again in every block.
                        let value = pattern[at % logical % pattern.len()];
                        *byte = if flip { !value } else { value };
                        at += 1;
                    }
                }
            }
            (_, Payload::Out(block)) => {
                for at in (0..scratch.len()).step_by(logical) {
                    overwrite_scratch(block, 0, &mut scratch, at, logical);
                }
            }
            (_, Payload::None | Payload::In(_)) => scratch.zero(0..scratch.len()),
        }
        let pattern = scratch.freeze();
        self.pattern = Some(pattern.clone());
        pattern
    }
}
