//! Blocks that a host has marked bad (NVMe Write Uncorrectable): reads of them fail, over either
//! protocol, until they are written.
//!
//! Invariant: spans are ascending, not empty, and neither overlap nor touch; together they have at
//! most [`BAD_BLOCKS_MAX`] blocks, so there are at most half as many spans, whatever is cleared.

use crate::io::Span;

/// How many blocks of a volume can be bad at a time: 16 MiB of 4096-byte blocks. The bound is on
/// blocks, since a write into the middle of a bad run must never be refused for making two of it.
/// At most 2,048 spans follow: 32 KiB of memory and of the volume's record.
pub const BAD_BLOCKS_MAX: u64 = 4096;

/// The bad blocks of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    spans: Vec<Span>,
}

impl BadBlocks {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// How many blocks are bad.
    pub fn count(&self) -> u64 {
        self.spans.iter().map(|span| span.blocks).sum()
    }

    /// The bad runs, ascending.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The first bad block of `span`.
    pub fn first_in(&self, span: Span) -> Option<u64> {
        let at = self.spans.partition_point(|bad| bad.lba + bad.blocks <= span.lba);
        let bad = self.spans.get(at).filter(|bad| bad.overlaps(&span))?;
        Some(bad.lba.max(span.lba))
    }

    /// How many blocks of `span` are bad.
    pub fn count_in(&self, span: Span) -> u64 {
        self.count() - self.without_span(span).count()
    }

    /// The same and all of `span`; `None` if that would be more than [`BAD_BLOCKS_MAX`].
    pub(crate) fn with_span(&self, span: Span) -> Option<BadBlocks> {
        if span.blocks == 0 {
            return Some(self.clone());
        }
        let end = span.end()?;
        let touches = |bad: &&Span| bad.lba <= end && span.lba <= bad.lba + bad.blocks;
        let first = self.spans.iter().filter(touches).map(|bad| bad.lba).min();
        let last = self.spans.iter().filter(touches).map(|bad| bad.lba + bad.blocks).max();
        let lba = first.map_or(span.lba, |first| first.min(span.lba));
        let whole = Span { lba, blocks: last.map_or(end, |last| last.max(end)) - lba };
        let mut spans: Vec<Span> = self.spans.iter().filter(|bad| !touches(bad)).copied().collect();
        let at = spans.partition_point(|bad| bad.lba < whole.lba);
        spans.insert(at, whole);
        let all = BadBlocks { spans };
        (all.count() <= BAD_BLOCKS_MAX).then_some(all)
    }

    /// The same without the blocks of `span`.
    pub(crate) fn without_span(&self, span: Span) -> BadBlocks {
        let end = span.end().unwrap_or(u64::MAX);
        let left = |bad: &Span| {
            let before = Span { lba: bad.lba, blocks: span.lba.saturating_sub(bad.lba).min(bad.blocks) };
            let start = end.max(bad.lba);
            let behind = Span { lba: start, blocks: (bad.lba + bad.blocks).saturating_sub(start) };
            [before, behind]
        };
        let cut = |bad: &Span| if span.blocks == 0 { [*bad, Span { blocks: 0, ..*bad }] } else { left(bad) };
        BadBlocks { spans: self.spans.iter().flat_map(cut).filter(|part| part.blocks > 0).collect() }
    }

    /// The spans again, if they keep the invariant.
    #[expect(clippy::indexing_slicing, reason = "windows of two have two")]
    pub(crate) fn from_spans(spans: Vec<Span>) -> Option<BadBlocks> {
        let apart = |pair: &[Span]| pair[0].end().is_some_and(|end| end < pair[1].lba);
        let sound = spans.iter().all(|span| span.blocks > 0 && span.end().is_some());
        let all = BadBlocks { spans };
        (sound && all.spans.windows(2).all(apart) && all.count() <= BAD_BLOCKS_MAX).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn span(lba: u64, blocks: u64) -> Span {
        Span { lba, blocks }
    }

    proptest! {
        #[test]
        fn spans_are_the_set_of_blocks(steps in proptest::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 0..40)) {
            let (mut bad, mut set) = (BadBlocks::default(), BTreeSet::new());
            for (mark, lba, blocks) in steps {
                if mark {
                    bad = bad.with_span(span(lba, blocks)).unwrap();
                    set.extend(lba..lba + blocks);
                } else {
                    bad = bad.without_span(span(lba, blocks));
                    set.retain(|block| !(lba..lba + blocks).contains(block));
                }
                prop_assert_eq!(bad.count(), set.len() as u64);
                for lba in 0..90 {
                    let first = set.range(lba..lba + 3).next().copied();
                    prop_assert_eq!(bad.first_in(span(lba, 3)), first);
                }
                prop_assert_eq!(BadBlocks::from_spans(bad.spans().to_vec()), Some(bad.clone()));
            }
        }
    }

    #[test]
    fn the_bound_is_on_blocks_and_a_clear_always_fits() {
        let full = BadBlocks::default().with_span(span(10, BAD_BLOCKS_MAX)).unwrap();
        assert_eq!(full.with_span(span(0, 1)), None);
        assert_eq!(full.with_span(span(10, 5)), Some(full.clone()), "what is marked already costs nothing");
        let mut holes = full;
        for at in (1..BAD_BLOCKS_MAX).step_by(2) {
            holes = holes.without_span(span(10 + at, 1));
        }
        assert_eq!(holes.spans().len() as u64, BAD_BLOCKS_MAX / 2);
        assert_eq!(BadBlocks::default().with_span(span(u64::MAX, 2)), None);
        let overlapping = vec![span(0, 2), span(2, 1)];
        assert_eq!(BadBlocks::from_spans(overlapping), None);
        assert_eq!(BadBlocks::from_spans(vec![span(0, 0)]), None);
    }
}
