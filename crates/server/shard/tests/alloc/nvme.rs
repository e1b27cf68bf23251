//! The same over NVMe/TCP.

use ::nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use ::nvme::{HostId, Nqn, Opcode, Sqe};
use endpoint::ListenerId;
use volume::Backend;
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use crate::world::World;
use crate::{BLOCKS, ram, world};
use testkit::counting_alloc;
use testkit::nvme_host::{CommandResult, TestQueue, TestTransport};
use testkit::target::SUBSYSTEM_NQN;

impl TestTransport for World {
    fn open(&mut self, listener: ListenerId) -> usize {
        self.connect_to(listener)
    }

    fn send_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.hands.wires[at].to_shard.extend(bytes);
    }

    fn take_received(&mut self, at: usize) -> Vec<u8> {
        std::mem::replace(&mut self.hands.wires[at].to_peer, Vec::with_capacity(1 << 20))
    }
}

fn finish(world: &mut World, pipe: &mut TestQueue) {
    while !pipe.is_idle() {
        assert!(!world.hands.wires[pipe.at].gone, "the queue lives");
        world.settle(pipe.at);
        pipe.poll(world);
    }
}

fn ask(
    world: &mut World,
    pipe: &mut TestQueue,
    act: impl FnOnce(&mut TestQueue, &mut World) -> u16,
) -> CommandResult {
    world.settle(pipe.at);
    pipe.poll(world);
    let cid = act(pipe, world);
    finish(world, pipe);
    let ended = pipe.take_result(cid).unwrap();
    assert!(ended.status.is_success(), "{ended:?}");
    ended
}

fn connect(world: &mut World, qid: u16, cntlid: u16, digests: bool) -> (TestQueue, u16) {
    let mut pipe = TestQueue::open_connection(world, ListenerId(1), (digests, digests));
    let connect = Connect { qid, entries: 32, flow_control: false, individual_deletion: false, kato_ms: 0 };
    let names = ConnectNames {
        host_id: HostId::new([1; 16]).unwrap(),
        cntlid,
        subsystem: Nqn::parse(SUBSYSTEM_NQN).unwrap(),
        host: Nqn::parse("nqn.2026-11.test:host").unwrap(),
    };
    let ended = ask(world, &mut pipe, |pipe, world| pipe.send_connect(world, &connect, &names));
    (pipe, ConnectResult::parse(ended.result).cntlid)
}

/// A controller's I/O queue.
fn queue(world: &mut World, digests: bool) -> (TestQueue, TestQueue) {
    let (mut admin, cntlid) = connect(world, 0, ConnectData::DYNAMIC, digests);
    let enable = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
    ask(world, &mut admin, |pipe, world| pipe.send_command(world, enable, &[], false, 0));
    let (io, _) = connect(world, 1, cntlid, digests);
    (admin, io)
}

fn round(world: &mut World, pipe: &mut TestQueue, data: &[u8], depth: usize, number: usize) {
    let blocks = (data.len() / 512) as u64;
    for opcode in [1, 2] {
        for slot in 0..depth {
            let lba = ((number * depth + slot) as u64 * blocks) % (BLOCKS - blocks) / 8 * 8;
            let mut sqe = Sqe::new_zeroed();
            (sqe.opcode, sqe.nsid) = (Opcode(opcode), U32::new(1));
            (sqe.cdw10[0], sqe.cdw10[2]) = (U32::new(lba as u32), U32::new(blocks as u32 - 1));
            match opcode {
                1 => pipe.send_command(world, sqe, data, data.len() <= 4096, 0),
                _ => pipe.send_command(world, sqe, &[], false, data.len()),
            };
        }
        finish(world, pipe);
        assert!(pipe.ended.drain(..).all(|ended| ended.status.is_success()));
    }
    world.sleep(50_000);
}

fn allocates_nothing<B: Backend + 'static>(disk: impl Fn() -> B + Clone + Send + 'static, digests: bool) {
    let mut world = world(64 << 20, disk);
    let (_admin, mut io) = queue(&mut world, digests);
    const DEPTH: usize = 16;
    for len in [4096, 65_536] {
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        for number in 0..64 {
            round(&mut world, &mut io, &data, DEPTH, number);
        }
        counting_alloc::take_allocation_count();
        let before = world.pool.usage();
        for number in 0..10_000 / DEPTH {
            round(&mut world, &mut io, &data, DEPTH, number);
        }
        let count = counting_alloc::take_allocation_count();
        assert_eq!(
            count.calls,
            0,
            "{len} bytes: {count:?} in 10,000 reads and writes; {:?}",
            counting_alloc::first_allocation_site()
        );
        assert_eq!(world.pool.usage(), before, "all memory came back");
    }
}

#[test]
fn nvme_reads_and_writes_allocate_nothing() {
    allocates_nothing(ram(), false);
}

#[test]
fn nvme_reads_and_writes_with_digests_allocate_nothing() {
    allocates_nothing(ram(), true);
}
