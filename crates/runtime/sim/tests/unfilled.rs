//! A shard that sends or stores memory that it has not filled is detected, by the wire and by the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use blockwire_sim::{Config, UNFILLED_PANIC, World};
use buf::{Cx, Errno, MemoryClass, SgMut};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId};
use stream::{Received, RecvOp, SendOp, SendPiece};
use volume::{DiskId, DiskKind, DiskOp, DiskTicket};

/// Bytes that go out.
const LEN: usize = 4096;

/// Sends a block to each peer that connects, and writes one; `filled` bytes of each are its own.
struct Careless {
    filled: usize,
    send: Option<(LinkId, SendOp)>,
    disk: Option<DiskOp>,
}

impl Careless {
    fn block(&self, cx: &Cx<'_>) -> SgMut {
        // What stood there last is another's.
        let mut other = cx.pool.take(MemoryClass::Wire, LEN).expect("memory");
        other.fill(0x77);
        drop(other);
        let mut block = cx.pool.take_sg(MemoryClass::Wire, LEN).expect("memory");
        block.copy_from(0, &vec![0x33; self.filled]);
        block
    }
}

impl Endpoint for Careless {
    type Message = ();

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, _: LinkArrival<()>) {
        let pieces = self.block(cx).freeze().pieces().iter().cloned().map(SendPiece::Shared).collect();
        self.send = Some((link, SendOp { head: None, pieces, len: LEN }));
    }

    fn handle_message(&mut self, cx: &mut Cx<'_>, (): ()) {
        let kind = DiskKind::Write { offset: 0, from: self.block(cx).freeze(), skip: 0, durable: false };
        self.disk = Some(DiskOp { disk: DiskId(0), ticket: DiskTicket(0), kind });
    }

    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}
    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}
    fn handle_disk(&mut self, _: &mut Cx<'_>, _: DiskOp, _: Result<usize, Errno>) {}

    fn poll_ready(&mut self) -> Option<LinkId> {
        self.send.as_ref().map(|(link, _)| *link)
    }

    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }

    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        self.send.take().map(|(_, op)| op)
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.disk.take()
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        None
    }
}

fn world(filled: usize) -> World<Careless> {
    World::new(Config { shards: 1, ..Config::new(1) }, |_, _| Careless { filled, send: None, disk: None })
}

/// What ends the run in which a block that is filled so far goes out, by a wire and to a disk.
fn ends(filled: usize) -> [Option<String>; 2] {
    let run = |act: fn(&mut World<Careless>)| {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = world(filled);
            act(&mut world);
            world.run_for(Duration::from_millis(1));
        }));
        outcome.err().map(|why| why.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    [
        run(|world| {
            world.connect(ListenerId(0));
        }),
        run(|world| world.send_message(ShardId(0), ())),
    ]
}

#[test]
fn memory_that_nobody_filled_never_leaves_a_shard_unnoticed() {
    assert_eq!(ends(LEN), [None, None]);
    for filled in [0, 512, LEN - 16] {
        for end in ends(filled) {
            assert!(end.as_ref().is_some_and(|why| why.contains(UNFILLED_PANIC)), "{filled}: {end:?}");
        }
    }
}
