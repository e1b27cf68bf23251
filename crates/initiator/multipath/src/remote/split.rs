//! Operations too long for a path: one piece after the other.
//!
//! A read, a write or a comparison longer than [`Geometry::max_io`](volume::Geometry::max_io) is cut for the
//! path that takes it, from where it is done. So a path with a smaller limit may take over in the middle. For
//! everything else it is one operation: overlapping operations wait for its end. Invariant: between two
//! pieces its memory is whole.

use std::mem;

use buf::{Payload, SgMut};
use volume::{Failure, Fault, Op, Span};

/// How far an operation is.
#[derive(Debug, Default)]
pub(super) struct SplitProgress {
    /// Blocks that are done, and of the piece that is in work.
    done: u64,
    piece: u64,
    /// Bytes of a block.
    block: u64,
    /// Memory before the piece and behind it; of what is written or compared, all of it.
    before: SgMut,
    behind: SgMut,
    whole: Payload,
}

impl SplitProgress {
    /// The next piece of an operation with this memory, of at most so many bytes. What cannot be cut is given
    /// as it is: who cannot carry it will say so.
    pub(super) fn next_piece(
        of: &mut Option<Box<Self>>,
        op: &Op,
        most: u64,
        payload: Payload,
    ) -> (Op, Payload) {
        let (Op::Read(span) | Op::Write(span, _) | Op::Compare(span) | Op::Or(span)) = *op else {
            return (op.clone(), payload);
        };
        let block = payload.len() as u64 / span.blocks.max(1);
        if block == 0 || most < block || payload.len() as u64 != span.blocks * block {
            return (op.clone(), payload);
        }
        let split = of.get_or_insert_default();
        (split.block, split.piece) = (block, (most / block).min(span.blocks - split.done));
        let piece = Span { lba: span.lba + split.done, blocks: split.piece };
        let bytes = |blocks: u64| (blocks * block) as usize;
        let payload = match payload {
            Payload::In(mut memory) => {
                let mut rest = memory.split_off(bytes(split.done));
                split.behind = rest.split_off(bytes(split.piece));
                split.before = memory;
                Payload::In(rest)
            }
            Payload::Out(data) => {
                let part = data.slice(bytes(split.done)..bytes(split.done + split.piece));
                split.whole = Payload::Out(data);
                Payload::Out(part)
            }
            Payload::None => Payload::None,
        };
        let op = match *op {
            Op::Read(_) => Op::Read(piece),
            Op::Write(_, durability) => Op::Write(piece, durability),
            Op::Or(_) => Op::Or(piece),
            _ => Op::Compare(piece),
        };
        (op, payload)
    }

    /// A path has given a piece back: the memory of all of it.
    pub(super) fn restore_payload(of: &mut Option<Box<Self>>, piece: Payload) -> Payload {
        let Some(split) = of else { return piece };
        match (piece, mem::take(&mut split.whole)) {
            (Payload::In(piece), _) => {
                let mut memory = mem::take(&mut split.before);
                memory.append(piece);
                memory.append(mem::take(&mut split.behind));
                Payload::In(memory)
            }
            (_, whole) => whole,
        }
    }

    /// A piece is done: whether there is another.
    pub(super) fn finish_piece(of: &mut Option<Box<Self>>, op: &Op) -> bool {
        let (Op::Read(span) | Op::Write(span, _) | Op::Compare(span) | Op::Or(span), Some(split)) = (op, of)
        else {
            return false;
        };
        split.done += mem::take(&mut split.piece);
        split.done < span.blocks
    }

    /// A piece has failed: where that is in the whole.
    pub(super) fn failure_in_whole(of: Option<&Self>, failure: Failure) -> Failure {
        match (failure, of) {
            (Failure::Failed(Fault::Miscompare(at)), Some(split)) => {
                let at = u64::from(at).saturating_add(split.done * split.block);
                Fault::Miscompare(u32::try_from(at).unwrap_or(u32::MAX)).into()
            }
            (failure, _) => failure,
        }
    }
}
