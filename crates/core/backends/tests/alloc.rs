//! Memory: a stripe that is warm allocates nothing per operation on no more chunks than there are legs.

use std::sync::Arc;

use blockwire_backends::{LegBackend, Stripe};
use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use testkit::counting_alloc::{self, count_allocations};
use volume::{Backend, Durability, Epoch, Io, IoId, Op, RamBackend, RamDisk, Span};

#[global_allocator]
static ALLOCATOR: testkit::counting_alloc::CountingAllocator = testkit::counting_alloc::CountingAllocator;

const CHUNK: u32 = 16 << 10;
const LEGS: u64 = 4;

fn stripe() -> Stripe<LegBackend> {
    let leg = |_| {
        let disk = Arc::new(RamDisk::new(1 << 12, 1 << 12, 512, 4096));
        (LegBackend::Local(Box::new(RamBackend::new(disk))), None)
    };
    Stripe::new((0..LEGS).map(leg).collect(), CHUNK, None, None)
}

fn round(stripe: &mut Stripe<LegBackend>, pool: &Pool, len: usize) {
    let mut entropy = Entropy::new([0; 32]);
    let mut cx = Cx { now: Time(0), pool, entropy: &mut entropy };
    for slot in 0..64 {
        let memory = pool.take_sg(MemoryClass::Wire, len).expect("there is memory");
        // Off the chunks' edges: the longest lies on as many chunks as there are legs.
        let span = Span { lba: slot * (len as u64 / 512) / 2 * 2 + 8, blocks: len as u64 / 512 };
        let (op, payload) = match slot % 2 {
            0 => (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze())),
            _ => (Op::Read(span), Payload::In(memory)),
        };
        count_allocations(|| stripe.submit(&mut cx, Io { id: IoId(slot), epoch: Epoch(0), op, payload }));
        let done = count_allocations(|| stripe.poll_done()).expect("memory answers at once");
        assert!(done.result.is_ok(), "{done:?}");
        assert_eq!(done.payload.len(), len);
    }
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let (mut stripe, pool) = (stripe(), Pool::new(8 << 20));
    for len in [4096, 16 << 10, 48 << 10] {
        (0..4).for_each(|_| round(&mut stripe, &pool, len));
        counting_alloc::take_allocation_count();
        let before = pool.usage();
        (0..8).for_each(|_| round(&mut stripe, &pool, len));
        let count = counting_alloc::take_allocation_count();
        assert_eq!(count.calls, 0, "{len} bytes: {count:?}; {:?}", counting_alloc::first_allocation_site());
        assert_eq!(pool.usage(), before, "all memory came back");
    }
}
