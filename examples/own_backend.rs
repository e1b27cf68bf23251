//! Your own backend: a volume that keeps written blocks in a map, and reads zeroes elsewhere.
//!
//! It shows the contract of [`Backend`]: take operations and return each exactly once, with its memory. A
//! backend never blocks, reads no clock and starts no thread; one that needs a disk requests operations by
//! `poll_disk`. The [`Gate`] handles ranges, reservations, order and atomicity. So this program needs no
//! server: it drives a gate as a server does. To serve the backend, use it instead of `Ram` in `serve.rs`.
//!
//! `cargo run -p blockwire-examples --example own_backend`

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use volume::{
    Backend, Durability, Epoch, Extent, Fault, Gate, Geometry, Identity, Io, IoCompletion, IoId, Op, Outcome,
    PortId, Requester, ShardId, SharedGateState, Span, View,
};

const BLOCK: usize = 4096;

/// Blocks in a map.
struct Sparse {
    blocks: u64,
    written: BTreeMap<u64, Box<[u8]>>,
    done: VecDeque<IoCompletion>,
}

impl Sparse {
    fn new(blocks: u64) -> Self {
        Sparse { blocks, written: BTreeMap::new(), done: VecDeque::new() }
    }

    /// Carries an operation out. The gate has checked that it lies within the volume.
    fn execute(&mut self, op: Op, payload: &mut Payload) -> Result<Outcome, Fault> {
        match (op, payload) {
            (Op::Read(span), Payload::In(into)) => {
                into.zero(0..into.len());
                for (lba, block) in self.written.range(span.lba..span.lba + span.blocks) {
                    into.copy_from((lba - span.lba) as usize * BLOCK, block);
                }
            }
            (Op::Write(span, _), Payload::Out(from)) => {
                for at in 0..span.blocks {
                    let mut block = vec![0; BLOCK].into_boxed_slice();
                    from.copy_to(at as usize * BLOCK, &mut block);
                    self.written.insert(span.lba + at, block);
                }
            }
            (Op::WriteZeroes { span, .. }, Payload::None) => self.forget(span),
            (Op::Unmap(spans), Payload::None) => spans.into_iter().for_each(|span| self.forget(span)),
            // There is no cache, so what was answered is as stable as it gets.
            (Op::Flush | Op::Prefetch(_), Payload::None) => {}
            (Op::Extents(span), Payload::None) => {
                let mapped = self.written.contains_key(&span.lba);
                let same = |lba: &u64| self.written.contains_key(lba) == mapped;
                let blocks = (span.lba..span.lba + span.blocks).take_while(same).count() as u64;
                return Ok(Outcome::Extents(vec![Extent { span: Span { blocks, ..span }, mapped }]));
            }
            // The gate makes all others of these.
            _ => return Err(Fault::Internal),
        }
        Ok(Outcome::Complete)
    }

    fn forget(&mut self, span: Span) {
        self.written.retain(|lba, _| !(span.lba..span.lba + span.blocks).contains(lba));
    }
}

impl Backend for Sparse {
    fn geometry(&self) -> Geometry {
        let block = BLOCK as u32;
        Geometry {
            blocks: self.blocks,
            logical: block,
            physical: block,
            dio_align: block,
            max_io: 1 << 20,
            thin: true,
            write_cache: false,
            atomic: 256,
            atomic_powerfail: 1,
            caw_max: 255,
            dealloc_reads_zero: true,
            lends: false,
        }
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        let Io { id, op, mut payload, .. } = io;
        let result = self.execute(op, &mut payload).map_err(Into::into);
        self.done.push_back(IoCompletion { id, result, payload });
    }

    fn cancel(&mut self, _id: IoId) {
        // It has ended already; its end is in the queue.
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }
}

fn main() {
    let sparse = Sparse::new(1 << 30);
    let view = View::without_reservations(sparse.geometry());
    let mut gate = Gate::new(ShardId(0), SharedGateState::new(1), view, Box::new(sparse));
    let who = Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: false };

    // All that a gate sees of the world: the time, memory, and randomness.
    let (pool, mut entropy) = (Pool::new(4 << 20), Entropy::new([0; 32]));
    let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
    let mut ids = 0..;
    let mut run = |op, payload| {
        let id = IoId(ids.next().expect("numbers do not end here"));
        gate.submit(&mut cx, &who, Io { id, epoch: Epoch::default(), op, payload });
        while gate.resume(&mut cx) {}
        gate.poll_done().expect("this backend ends an operation at once")
    };
    let memory = |byte: u8| {
        let mut memory = pool.take_sg(MemoryClass::Wire, BLOCK).expect("the pool has 4 MiB");
        memory.copy_from(0, &[byte; BLOCK]);
        memory
    };

    let far = Span { lba: (1 << 30) - 1, blocks: 1 };
    let written = run(Op::Write(far, Durability::Cached), Payload::Out(memory(0x5a).freeze()));
    assert_eq!(written.result, Ok(Outcome::Complete));
    // The backend knows no compare-and-write: the gate makes it of a read and a write, and keeps others out.
    let mut both = memory(0x5a);
    both.append(memory(0x77));
    let swapped = run(Op::CompareAndWrite(far), Payload::Out(both.freeze()));
    assert_eq!(swapped.result, Ok(Outcome::Complete));
    let read = run(Op::Read(far), Payload::In(memory(0)));
    let mut block = [0; BLOCK];
    read.payload.into_sg().copy_to(0, &mut block);
    assert_eq!(block, [0x77; BLOCK]);
    // What lies beyond the end never reaches the backend.
    let beyond = run(Op::Read(Span { lba: 1 << 30, blocks: 1 }), Payload::In(memory(0)));
    assert!(beyond.result.is_err());
    println!("a volume of 4 TiB with one block in memory: byte {:#x}", block[0]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_keeps_what_was_written() {
        super::main();
    }
}
