//! The same over NVMe/TCP, against our own target's side.

use blockwire_multipath::PathEvent;
use blockwire_multipath::nvme::{NvmePath, Settings};
use nvme::{HostId, Nqn};
use volume::{Durability, Op, Span};

use crate::DEPTH;
use crate::nvme_world::World;
use testkit::counting_alloc::{self, count_allocations};
use testkit::target;

fn up(digests: bool) -> World<NvmePath> {
    let mut settings = Settings::new(
        vec!["127.0.0.1:4420".parse().unwrap()],
        Nqn::parse(target::SUBSYSTEM_NQN).unwrap(),
        1,
        Nqn::parse("nqn.2026-11.test:host").unwrap(),
        HostId::new([1; 16]).unwrap(),
    );
    (settings.header_digest, settings.data_digest) = (digests, digests);
    let mut world =
        World::new(NvmePath::new(settings), target::build_exports(&target::TargetLimits::default()));
    world.connect().unwrap();
    world.around = |act| count_allocations(act);
    world
}

fn round(world: &mut World<NvmePath>, len: usize) {
    let blocks = len as u64 / 512;
    for write in [true, false] {
        for slot in 0..DEPTH {
            let span = Span { lba: slot * blocks, blocks };
            match write {
                true => {
                    let out = world.out(&vec![slot as u8; len]);
                    world.start(Op::Write(span, Durability::Cached), out)
                }
                false => {
                    let room = world.room(len);
                    world.start(Op::Read(span), room)
                }
            };
        }
        let mut left = DEPTH;
        world.until("end of all", |events| {
            for event in events.drain(..) {
                assert!(matches!(event, PathEvent::Done { how: Ok(_), .. }), "{event:?}");
                left -= 1;
            }
            (left == 0).then_some(())
        });
    }
}

#[test]
fn reads_and_writes_by_a_path_over_nvme_tcp_allocate_nothing() {
    for digests in [false, true] {
        let mut world = up(digests);
        for len in [4096, 65_536] {
            (0..12).for_each(|_| round(&mut world, len));
            let warm = counting_alloc::take_allocation_count();
            assert!(warm.calls > 0 || digests || len > 4096, "what is counted is what the path asks for");
            let before = world.host_usage();
            (0..16).for_each(|_| round(&mut world, len));
            let count = counting_alloc::take_allocation_count();
            assert_eq!(
                count.calls,
                0,
                "{len} bytes, digests {digests}: {count:?}; {:?}",
                counting_alloc::first_allocation_site()
            );
            assert_eq!(world.host_usage(), before, "all memory came back");
        }
    }
}
