//! Maps blocks of a stripe to its legs.
//!
//! Chunks are distributed in turn: chunk `c` is chunk `c / legs` of leg `c mod legs`. Invariant: the blocks
//! of a span on one leg are one contiguous run there, in the same order.

use volume::Span;

/// How blocks lie on the legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripeLayout {
    /// How many legs, at least one.
    legs: u64,
    /// Blocks of a chunk, at least one.
    chunk: u64,
}

/// The blocks of a span that lie in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPiece {
    pub(super) leg: usize,
    /// Where on the leg.
    pub(super) on_leg: Span,
    /// Blocks of the span before these.
    pub(super) before: u64,
}

impl StripeLayout {
    pub(super) fn new(legs: usize, chunk: u64) -> Self {
        assert!(legs > 0 && chunk > 0, "a stripe has legs and chunks");
        StripeLayout { legs: legs as u64, chunk }
    }

    /// Blocks of a chunk.
    pub(super) fn chunk_blocks(&self) -> u64 {
        self.chunk
    }

    /// The leg of a block.
    pub(super) fn leg_of_lba(&self, lba: u64) -> usize {
        (lba / self.chunk % self.legs) as usize
    }

    /// How many blocks before `lba` lie on `leg`.
    fn leg_blocks_before(&self, lba: u64, leg: usize) -> u64 {
        let (row, rest) = (lba / self.chunk / self.legs, lba % (self.chunk * self.legs));
        row * self.chunk + rest.saturating_sub(leg as u64 * self.chunk).min(self.chunk)
    }

    /// The stripe's block that is this one of a leg. A number that no stripe reaches gives the last of all.
    pub(super) fn stripe_lba(&self, leg: usize, on_leg: u64) -> u64 {
        let chunk = (on_leg / self.chunk).saturating_mul(self.legs).saturating_add(leg as u64);
        chunk.saturating_mul(self.chunk).saturating_add(on_leg % self.chunk)
    }

    /// What of a span lies on `leg`; no blocks if nothing does.
    pub(super) fn leg_span(&self, span: &Span, leg: usize) -> Span {
        let first = self.leg_blocks_before(span.lba, leg);
        let end = self.leg_blocks_before(span.lba.saturating_add(span.blocks), leg);
        Span { lba: first, blocks: end - first }
    }

    /// Whether a span lies in one chunk.
    pub(super) fn is_within_chunk(&self, span: &Span) -> bool {
        span.lba % self.chunk + span.blocks <= self.chunk
    }

    /// The legs that a span lies on, a bit each.
    pub(super) fn leg_mask(&self, span: &Span) -> u64 {
        if span.blocks == 0 {
            return 0;
        }
        let chunks = (span.lba % self.chunk + span.blocks - 1) / self.chunk + 1;
        if chunks >= self.legs {
            return u64::MAX >> (64 - self.legs);
        }
        (0..chunks).fold(0, |legs, step| legs | 1 << ((span.lba / self.chunk + step) % self.legs))
    }

    /// A span chunk by chunk, in order.
    pub(super) fn chunk_pieces(&self, span: Span) -> impl DoubleEndedIterator<Item = ChunkPiece> + use<> {
        let (this, first) = (*self, span.lba / self.chunk);
        let count =
            if span.blocks == 0 { 0 } else { (span.lba % self.chunk + span.blocks - 1) / self.chunk + 1 };
        (0..count).map(move |step| {
            let begin = ((first + step) * this.chunk).max(span.lba);
            let end = ((first + step + 1) * this.chunk).min(span.lba + span.blocks);
            let leg = this.leg_of_lba(begin);
            let on_leg = Span { lba: this.leg_blocks_before(begin, leg), blocks: end - begin };
            ChunkPiece { leg, on_leg, before: begin - span.lba }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By counting.
    fn slowly(layout: &StripeLayout, lba: u64) -> (usize, u64) {
        let chunk = lba / layout.chunk;
        ((chunk % layout.legs) as usize, chunk / layout.legs * layout.chunk + lba % layout.chunk)
    }

    proptest! {
        #[test]
        fn each_block_has_one_place(legs in 1_usize..9, chunk in 1_u64..9, lba in 0_u64..400, blocks in 0_u64..150) {
            let layout = StripeLayout::new(legs, chunk);
            let span = Span { lba, blocks };
            let mut counted = vec![Vec::new(); legs];
            for at in lba..lba + blocks {
                let (leg, on_leg) = slowly(&layout, at);
                prop_assert_eq!(layout.leg_of_lba(at), leg);
                prop_assert_eq!(layout.stripe_lba(leg, on_leg), at);
                counted[leg].push(on_leg);
            }
            let mut touched = 0;
            for (leg, blocks) in counted.iter().enumerate() {
                let part = layout.leg_span(&span, leg);
                prop_assert_eq!(&(part.lba..part.lba + part.blocks).collect::<Vec<_>>(), blocks);
                touched |= u64::from(!blocks.is_empty()) << leg;
            }
            prop_assert_eq!(layout.leg_mask(&span), touched);
            let mut again = vec![Vec::new(); legs];
            let mut before = 0;
            for piece in layout.chunk_pieces(span) {
                prop_assert_eq!(piece.before, before);
                let here = Span { lba: lba + before, blocks: piece.on_leg.blocks };
                prop_assert!(layout.is_within_chunk(&here));
                before += piece.on_leg.blocks;
                again[piece.leg].extend(piece.on_leg.lba..piece.on_leg.lba + piece.on_leg.blocks);
            }
            prop_assert_eq!(before, blocks);
            prop_assert_eq!(again, counted);
        }
    }
}
