//! Operations: how they are cut for the legs, and how the results are combined.

use std::mem;

use buf::{Cx, Payload, Sg, SgMut};
use endpoint::OutboundSockets;
use stream::Tag;
use volume::{Backend, Epoch, Extent, Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, Refusal, Span};

use super::Stripe;
use super::layout::StripeLayout;

/// How many chunks one [`Op::Extents`] looks at, so that an answer is prompt.
const EXTENT_CHUNKS_MAX: u64 = 4096;

/// An operation in work.
#[derive(Debug)]
pub(super) struct StripeOp {
    id: IoId,
    merge: MergeKind,
    /// Legs that have not ended their part.
    out: u64,
    /// All of it, while no leg has it.
    payload: Payload,
    /// What was read, by legs; empty if one leg has all.
    parts: Vec<SgMut>,
    /// What is told of what failed, and where that is, in bytes of the stripe.
    failure: Option<(u64, Failure)>,
}

/// What must be known to make one answer of the parts.
#[derive(Debug)]
enum MergeKind {
    /// Nothing.
    Plain,
    /// Where the bytes belong.
    Read(Span),
    /// Where the compared range begins.
    Compare(Span),
    /// What legs have found.
    Extents(Span, Vec<Vec<Extent>>),
}

impl StripeOp {
    pub(super) fn has_id(&self, id: IoId) -> bool {
        self.id == id
    }

    pub(super) fn outstanding_legs(&self) -> u64 {
        self.out
    }

    /// Notes a failure. A failed sync is told before all others, since what was answered before may be lost by it;
    /// what fails as a whole before what fails at a place, and the first place before others: so the answer does not
    /// hang on who ends first.
    fn note_failure(&mut self, place: u64, failure: Failure) {
        let rank = |place: u64, failure: Failure| (failure != Failure::Failed(Fault::Sync), place);
        if self.failure.is_none_or(|(known, other)| rank(place, failure) < rank(known, other)) {
            self.failure = Some((place, failure));
        }
    }
}

impl<L: Backend + OutboundSockets> Stripe<L> {
    /// Takes an operation on.
    #[inline]
    #[expect(
        clippy::expect_used,
        clippy::unreachable,
        reason = "`refuses` has looked for room, and what was just put in is there"
    )]
    pub(super) fn start_op(&mut self, cx: &mut Cx<'_>, io: Io) {
        let Io { id, epoch, mut op, payload } = io;
        let refused = match self.layout.filter(|_| self.fits) {
            None => Err(Failure::Failed(Fault::PathLost)),
            Some(layout) => self.check_op(&layout, &op).map(|()| layout),
        };
        let layout = match refused {
            Ok(layout) => layout,
            Err(failure) => return self.done.push_back(IoCompletion { id, result: Err(failure), payload }),
        };
        if let Op::Extents(span) = &mut op {
            let most = EXTENT_CHUNKS_MAX * layout.chunk_blocks() - span.lba % layout.chunk_blocks();
            span.blocks = span.blocks.min(most);
        }
        let out = self.op_leg_mask(&layout, &op);
        let merge = match &op {
            Op::Read(span) => MergeKind::Read(*span),
            Op::Compare(span) => MergeKind::Compare(*span),
            Op::Extents(span) => MergeKind::Extents(*span, vec![Vec::new(); self.legs.len()]),
            _ => MergeKind::Plain,
        };
        let stripe_op = StripeOp { id, merge, out, payload: Payload::None, parts: Vec::new(), failure: None };
        let Ok(tag) = self.ops.insert(stripe_op) else { unreachable!("room was looked for") };
        match out.count_ones() {
            0 => {
                self.ops.get_mut(tag).expect("just inserted").payload = payload;
                self.finish_op(tag);
            }
            1 => {
                let leg = out.trailing_zeros() as usize;
                self.submit_to_leg(cx, tag, epoch, leg, op_for_leg(&layout, &op, leg), payload);
            }
            _ => self.submit_parts(cx, (tag, epoch), &layout, (&op, out), payload),
        }
    }

    fn check_op(&self, layout: &StripeLayout, op: &Op) -> Result<(), Failure> {
        let within = |span: &Span| span.end().is_some_and(|end| end <= self.end);
        let fits = match op {
            Op::Read(span) | Op::Write(span, _) | Op::Compare(span) | Op::WriteZeroes { span, .. } => {
                within(span)
            }
            Op::Verify(span) | Op::Prefetch(span) | Op::Extents(span) => within(span),
            Op::Unmap(spans) => spans.iter().all(within),
            Op::Flush => true,
            Op::WriteAtomic(span) | Op::CompareAndWrite(span) => {
                if within(span) && !layout.is_within_chunk(span) {
                    return Err(Refusal::AtomicUnit.into());
                }
                within(span)
            }
            Op::WriteSame(_) | Op::Or(_) | Op::MarkBad(_) | Op::Sanitize(_) => {
                return Err(Refusal::Unsupported.into());
            }
        };
        if !fits {
            return Err(Refusal::OutOfRange.into());
        }
        if self.ops.is_full() { Err(Refusal::Busy.into()) } else { Ok(()) }
    }

    /// The legs that an operation goes to.
    fn op_leg_mask(&self, layout: &StripeLayout, op: &Op) -> u64 {
        match op {
            Op::Read(span) | Op::Write(span, _) | Op::WriteAtomic(span) | Op::Compare(span) => {
                layout.leg_mask(span)
            }
            Op::CompareAndWrite(span) | Op::WriteZeroes { span, .. } => layout.leg_mask(span),
            Op::Verify(span) | Op::Prefetch(span) | Op::Extents(span) => layout.leg_mask(span),
            Op::Unmap(spans) => spans.iter().fold(0, |legs, span| legs | layout.leg_mask(span)),
            Op::Flush => u64::MAX >> (64 - self.legs.len()),
            Op::WriteSame(_) | Op::Or(_) | Op::MarkBad(_) | Op::Sanitize(_) => 0,
        }
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the layout has as many legs as the stripe")]
    fn submit_to_leg(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        epoch: Epoch,
        leg: usize,
        op: Op,
        payload: Payload,
    ) {
        self.legs[leg].volume.submit(cx, Io { id: IoId(tag.to_bits()), epoch, op, payload });
        self.mark_leg_ready(leg);
    }

    /// Gives each of several legs its part.
    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "a part for each leg was made just before, and the task was put in by the caller"
    )]
    fn submit_parts(
        &mut self,
        cx: &mut Cx<'_>,
        (tag, epoch): (Tag, Epoch),
        layout: &StripeLayout,
        (op, out): (&Op, u64),
        payload: Payload,
    ) {
        let block = self.block_bytes(layout);
        let mut parts = Vec::new();
        let mut whole = payload;
        if let (Payload::In(into), Op::Read(span)) = (&mut whole, op) {
            parts = self.spare.pop().unwrap_or_default();
            parts.resize_with(self.legs.len(), SgMut::new);
            split_read_buffer(layout, *span, block, mem::take(into), &mut parts);
        }
        for leg in (0..self.legs.len()).filter(|leg| out >> leg & 1 == 1) {
            let part = match (&whole, op) {
                (Payload::Out(from), Op::Write(span, _) | Op::Compare(span)) => {
                    Payload::Out(leg_payload(layout, *span, block, from, leg))
                }
                (Payload::In(_), Op::Read(_)) => Payload::In(mem::take(&mut parts[leg])),
                _ => Payload::None,
            };
            self.submit_to_leg(cx, tag, epoch, leg, op_for_leg(layout, op, leg), part);
        }
        let stripe_op = self.ops.get_mut(tag).expect("it ends when its legs' ends are taken");
        (stripe_op.payload, stripe_op.parts) = (whole, parts);
    }

    /// Bytes of a block.
    fn block_bytes(&self, layout: &StripeLayout) -> usize {
        (u64::from(self.chunk) / layout.chunk_blocks()) as usize
    }

    /// A leg has ended its part.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        clippy::unreachable,
        reason = "a leg ends only what it was given, for which there was a layout, and there is a list for each leg"
    )]
    pub(super) fn handle_leg_done(&mut self, leg: usize, done: IoCompletion) {
        let tag = Tag::from_bits(done.id.0);
        let Some(layout) = self.layout else { unreachable!("nothing was taken on without it") };
        let block = self.block_bytes(&layout) as u64;
        let Some(stripe_op) = self.ops.get_mut(tag).filter(|stripe_op| stripe_op.out >> leg & 1 == 1) else {
            return;
        };
        stripe_op.out &= !(1 << leg);
        match done.result {
            Ok(Outcome::Complete) => {}
            Ok(Outcome::Extents(extents)) => {
                if let MergeKind::Extents(_, found) = &mut stripe_op.merge {
                    found[leg] = extents;
                }
            }
            Err(failure) => {
                let (place, failure) = translate_failure(&layout, block, &stripe_op.merge, leg, failure);
                stripe_op.note_failure(place, failure);
            }
        }
        match (done.payload, stripe_op.parts.get_mut(leg)) {
            (Payload::In(part), Some(place)) => *place = part,
            // Of what is written the whole was kept.
            (_, _) if !stripe_op.payload.is_empty() => {}
            (payload, _) => stripe_op.payload = payload,
        }
        if stripe_op.out == 0 {
            self.finish_op(tag);
        }
    }

    /// Ends an operation: makes one of its parts.
    #[inline]
    #[expect(
        clippy::expect_used,
        reason = "its callers have found the task, which was taken on with a layout"
    )]
    fn finish_op(&mut self, tag: Tag) {
        let mut stripe_op = self.ops.remove(tag).expect("found by the caller");
        let mut result = match stripe_op.failure {
            Some((_, failure)) => Err(failure),
            None => Ok(Outcome::Complete),
        };
        let layout = self.layout.expect("nothing was taken on without it");
        match &stripe_op.merge {
            MergeKind::Read(span) if !stripe_op.parts.is_empty() => {
                let block = self.block_bytes(&layout);
                let whole = join_read_parts(&layout, *span, block, &mut stripe_op.parts);
                if result.is_ok() && whole.len() as u64 != span.blocks * block as u64 {
                    result = Err(Fault::Internal.into());
                }
                stripe_op.payload = Payload::In(whole);
            }
            MergeKind::Extents(span, found) if result.is_ok() => {
                result = Ok(Outcome::Extents(merge_extents(&layout, *span, found)));
            }
            _ => {}
        }
        if stripe_op.parts.capacity() > 0 {
            stripe_op.parts.clear();
            self.spare.push(stripe_op.parts);
        }
        self.done.push_back(IoCompletion { id: stripe_op.id, result, payload: stripe_op.payload });
    }
}

/// What an operation means for a leg.
#[expect(clippy::unreachable, reason = "`refuses` lets none of these through")]
fn op_for_leg(layout: &StripeLayout, op: &Op, leg: usize) -> Op {
    let part = |span: &Span| layout.leg_span(span, leg);
    match op {
        Op::Read(span) => Op::Read(part(span)),
        Op::Write(span, durability) => Op::Write(part(span), *durability),
        Op::WriteAtomic(span) => Op::WriteAtomic(part(span)),
        Op::Compare(span) => Op::Compare(part(span)),
        Op::CompareAndWrite(span) => Op::CompareAndWrite(part(span)),
        Op::WriteZeroes { span, unmap } => Op::WriteZeroes { span: part(span), unmap: *unmap },
        Op::Verify(span) => Op::Verify(part(span)),
        Op::Prefetch(span) => Op::Prefetch(part(span)),
        Op::Extents(span) => Op::Extents(part(span)),
        Op::Unmap(spans) => Op::Unmap(spans.iter().map(part).filter(|part| part.blocks > 0).collect()),
        Op::Flush => Op::Flush,
        Op::WriteSame(_) | Op::Or(_) | Op::MarkBad(_) | Op::Sanitize(_) => unreachable!("refused before"),
    }
}

/// A leg's failure in the stripe's words, and where it is; 0 for what is about the whole.
fn translate_failure(
    layout: &StripeLayout,
    block: u64,
    merge: &MergeKind,
    leg: usize,
    failure: Failure,
) -> (u64, Failure) {
    let at = |lba: u64| lba.saturating_mul(block).saturating_add(1);
    match (failure, merge) {
        (Failure::Failed(Fault::Medium(lba)), _) => {
            let lba = layout.stripe_lba(leg, lba);
            (at(lba), Fault::Medium(lba).into())
        }
        (Failure::Failed(Fault::Unwritable(lba)), _) => {
            let lba = layout.stripe_lba(leg, lba);
            (at(lba), Fault::Unwritable(lba).into())
        }
        (Failure::Failed(Fault::Miscompare(offset)), MergeKind::Compare(span)) => {
            let (blocks, rest) = (u64::from(offset) / block, u64::from(offset) % block);
            // Where it is may be what another machine says.
            let lba = layout.stripe_lba(leg, layout.leg_span(span, leg).lba.saturating_add(blocks));
            let offset = lba.saturating_sub(span.lba).saturating_mul(block).saturating_add(rest);
            (
                at(lba).saturating_add(rest),
                Fault::Miscompare(u32::try_from(offset).unwrap_or(u32::MAX)).into(),
            )
        }
        // One leg has all of it.
        (failure, _) => (0, failure),
    }
}

/// Cuts what is to be read for the legs.
#[expect(
    clippy::indexing_slicing,
    reason = "the layout names legs below their number, and there is a part or list for each"
)]
fn split_read_buffer(layout: &StripeLayout, span: Span, block: usize, mut whole: SgMut, parts: &mut [SgMut]) {
    for piece in layout.chunk_pieces(span) {
        let rest = whole.split_off(piece.on_leg.blocks as usize * block);
        parts[piece.leg].append(mem::replace(&mut whole, rest));
    }
}

/// Makes one of what legs have read. From the end on: so each cut leaves one piece, and each joint makes one.
/// It is shorter than the span if a leg gave less memory back than it was given.
#[expect(
    clippy::indexing_slicing,
    reason = "the layout names legs below their number, and there is a part or list for each"
)]
fn join_read_parts(layout: &StripeLayout, span: Span, block: usize, parts: &mut [SgMut]) -> SgMut {
    let mut whole = SgMut::new();
    for piece in layout.chunk_pieces(span).rev() {
        let part = &mut parts[piece.leg];
        let mut last = part.split_off(part.len().saturating_sub(piece.on_leg.blocks as usize * block));
        last.append(whole);
        whole = last;
    }
    whole
}

/// A leg's part of what is to be written.
fn leg_payload(layout: &StripeLayout, span: Span, block: usize, whole: &Sg, leg: usize) -> Sg {
    let mut part = Sg::new();
    for piece in layout.chunk_pieces(span).filter(|piece| piece.leg == leg) {
        let begin = piece.before as usize * block;
        part.append(whole.slice(begin..begin + piece.on_leg.blocks as usize * block));
    }
    part
}

/// Makes one list of what legs have found, as far as all of them have looked.
#[expect(
    clippy::indexing_slicing,
    reason = "the layout names legs below their number, and there is a part or list for each"
)]
fn merge_extents(layout: &StripeLayout, span: Span, found: &[Vec<Extent>]) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    let mut next = vec![0; found.len()];
    'pieces: for piece in layout.chunk_pieces(span) {
        let (mut lba, end) = (piece.on_leg.lba, piece.on_leg.lba + piece.on_leg.blocks);
        while lba < end {
            let list = &found[piece.leg];
            let Some(extent) = list.get(next[piece.leg]) else { break 'pieces };
            let (begin, until) = (extent.span.lba, extent.span.lba.saturating_add(extent.span.blocks));
            if until <= lba {
                next[piece.leg] += 1;
                continue;
            }
            // Of what a leg says nothing of, nobody knows that it is no data.
            let (until, mapped) = if begin > lba { (begin, true) } else { (until, extent.mapped) };
            let blocks = until.min(end) - lba;
            let at = span.lba + piece.before + (lba - piece.on_leg.lba);
            match all.last_mut() {
                Some(last) if last.mapped == mapped => last.span.blocks += blocks,
                _ => all.push(Extent { span: Span { lba: at, blocks }, mapped }),
            }
            lba += blocks;
        }
    }
    if all.is_empty() {
        // Who knows nothing says that all is data.
        all.push(Extent { span, mapped: true });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(lba: u64, blocks: u64, mapped: bool) -> Extent {
        Extent { span: Span { lba, blocks }, mapped }
    }

    #[test]
    fn what_a_leg_says_nothing_of_is_not_taken_for_a_hole() {
        let layout = StripeLayout::new(2, 4);
        // The first leg says nothing of its blocks 0 and 1, and that 2 and 3 are a hole.
        let found = [vec![extent(2, 2, false)], vec![extent(0, 4, false)]];
        let all = merge_extents(&layout, Span { lba: 0, blocks: 8 }, &found);
        assert_eq!(all, [extent(0, 2, true), extent(2, 6, false)]);
    }

    #[test]
    fn a_failed_sync_of_one_leg_is_not_hidden_by_what_another_failed_with() {
        let failures: [(u64, Failure); 4] = [
            (0, Fault::Sync.into()),
            (0, Fault::PathLost.into()),
            (9, Fault::Unwritable(8).into()),
            (0, Refusal::Busy.into()),
        ];
        for turn in 0..failures.len() {
            let (id, merge, payload) = (IoId(1), MergeKind::Plain, Payload::None);
            let mut stripe_op = StripeOp { id, merge, out: 0, payload, parts: Vec::new(), failure: None };
            (0..failures.len()).map(|at| failures[(turn + at) % failures.len()]).for_each(
                |(place, failure)| {
                    stripe_op.note_failure(place, failure);
                },
            );
            assert_eq!(stripe_op.failure, Some((0, Fault::Sync.into())), "{turn}");
        }
    }

    #[test]
    fn a_place_that_is_nowhere_ends_no_daemon() {
        let layout = StripeLayout::new(2, 4);
        let span = Span { lba: u64::MAX >> 1, blocks: 16 };
        let lie = Failure::Failed(Fault::Miscompare(u32::MAX));
        let (_, told) = translate_failure(&layout, 4096, &MergeKind::Compare(span), 1, lie);
        assert!(matches!(told, Failure::Failed(Fault::Miscompare(_))));
        let mut parts = vec![SgMut::new(), SgMut::new()];
        assert_eq!(join_read_parts(&layout, Span { lba: 0, blocks: 8 }, 512, &mut parts).len(), 0);
    }
}
