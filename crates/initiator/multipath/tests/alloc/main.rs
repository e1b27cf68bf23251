//! Memory: a path that is warm allocates nothing per operation, over iSCSI and over NVMe/TCP.

mod nvme;
#[allow(dead_code, reason = "the tests of paths over NVMe/TCP use all of it")]
#[path = "../nvme/world.rs"]
mod nvme_world;
#[allow(dead_code, reason = "the tests of paths use all of it")]
#[path = "../iscsi/world.rs"]
mod world;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::iscsi::{IscsiPath, Settings};
use blockwire_multipath::{Path, PathEvent};
use buf::{MemoryClass, Payload, Time};
use endpoint::{CloseMode, LinkId, OutboundSockets, ShardId};
use iscsi::negotiate::Digest;
use iscsi::session::SessionLimits;
use iscsi::wire::Isid;
use shard::{ControlRequest, Message, Shard};
use testkit::counting_alloc::{self, count_allocations};
use testkit::target;
use volume::{Backend, DiskId, Durability, IoId, Op, RamBackend, RamDisk, Span};
use world::World;

#[global_allocator]
static ALLOCATOR: testkit::counting_alloc::CountingAllocator = testkit::counting_alloc::CountingAllocator;

const BLOCKS: u64 = 1 << 15;
const DEPTH: u64 = 16;

/// A path whose every call is counted.
struct Counted(IscsiPath);

macro_rules! inner {
    ($path:expr, $inner:ident => $call:expr) => {{
        let $inner = &mut $path.0;
        count_allocations(|| $call)
    }};
}

impl OutboundSockets for Counted {
    testkit::forward_links!(inner);
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        count_allocations(|| self.0.poll_link_close())
    }
    fn poll_timeout(&self) -> Option<Time> {
        count_allocations(|| self.0.poll_timeout())
    }
}

fn up(digest: Digest) -> World<Counted> {
    let isid = Isid::random([1, 2, 3], 4);
    let portals = vec!["127.0.0.1:3260".parse().unwrap()];
    let mut settings =
        Settings::new(portals, target::TARGET_NAME.to_owned(), 0, "iqn.2026-11.test:host".to_owned(), isid);
    settings.negotiation.header_digest = vec![digest];
    settings.negotiation.data_digest = vec![digest];
    let terms = target::TargetLimits { limits: SessionLimits::default(), ..target::TargetLimits::default() };
    let shard = Shard::new(ShardId(0), 1, target::build_exports(&terms));
    let mut world = World::new(Counted(IscsiPath::new(settings).unwrap()), shard);
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let make = move |_| RamBackend::new(disk.clone());
    for spec in target::volume_specs(1, make(0).geometry(), &[DiskId(0)], None, make) {
        world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
    }
    world.with(|path, cx| path.0.connect(cx));
    assert!(world.run(Duration::from_secs(10), |world| {
        matches!(world.path.0.poll_event(), Some(PathEvent::Up(_)))
    }));
    world
}

/// Submits as much as there is room for.
fn submit(world: &mut World<Counted>, waiting: &mut VecDeque<(IoId, Op, Payload)>) {
    while let Some((id, op, payload)) = waiting.pop_front() {
        let back = world.with(|path, cx| count_allocations(|| path.0.submit(cx, id, op, payload)));
        if let Err((op, payload)) = back {
            return waiting.push_front((id, op, payload));
        }
    }
}

fn round(world: &mut World<Counted>, len: usize) {
    let blocks = len as u64 / 512;
    let mut waiting = VecDeque::new();
    for write in [true, false] {
        for slot in 0..DEPTH {
            let memory = world.pool.take_sg(MemoryClass::Solicited, len).expect("there is memory");
            let span = Span { lba: slot * blocks, blocks };
            let (op, payload) = match write {
                true => (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze())),
                false => (Op::Read(span), Payload::In(memory)),
            };
            waiting.push_back((IoId(slot), op, payload));
        }
        // The target opens its window as it is used: what finds no room waits for an end.
        let mut left = DEPTH;
        submit(world, &mut waiting);
        world.run(Duration::from_secs(10), |world| {
            while let Some(event) = count_allocations(|| world.path.0.poll_event()) {
                assert!(matches!(event, PathEvent::Done { how: Ok(_), .. }), "{event:?}");
                left -= 1;
            }
            submit(world, &mut waiting);
            left == 0
        });
        assert_eq!(left, 0);
    }
}

#[test]
fn reads_and_writes_by_a_path_over_iscsi_allocate_nothing() {
    for digest in [Digest::None, Digest::Crc32c] {
        let mut world = up(digest);
        for len in [4096, 65_536] {
            (0..12).for_each(|_| round(&mut world, len));
            counting_alloc::take_allocation_count();
            let before = world.pool.usage();
            (0..16).for_each(|_| round(&mut world, len));
            let count = counting_alloc::take_allocation_count();
            assert_eq!(
                count.calls,
                0,
                "{len} bytes: {count:?}; {:?}",
                counting_alloc::first_allocation_site()
            );
            assert_eq!(world.pool.usage(), before, "all memory came back");
        }
    }
}
