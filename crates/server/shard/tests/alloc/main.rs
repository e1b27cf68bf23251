//! Memory: reads and writes allocate nothing once a connection is warm, and an idle session costs
//! little.

mod initiator;
mod nvme;
mod world;

use std::sync::Arc;

use backends::{FileBackend, FileDisk, FileFacts, NullBackend};
use blockwire_shard::{ControlRequest, Message, Shard};
use buf::Entropy;
use endpoint::ShardId;
use iscsi::initiator::{InitiatorLogin, LoggedInConnection, LoginProgress};
use iscsi::negotiate::{Digest, NegotiationLimits};
use iscsi::session::SessionLimits;
use iscsi::wire::{
    BHS_LEN, Bhs, CommandFlags, DataIn, DataInFlags, DataOut, DataOutFlags, Itt, Opcode, Pdu, R2t,
    ScsiCommand, ScsiResponse, Sn, padded_len,
};
use testkit::counting_alloc;
use testkit::target::{self, TargetLimits};
use volume::{Backend, DiskId, RamBackend, RamDisk};
use world::World;

#[global_allocator]
static ALLOCATOR: testkit::counting_alloc::CountingAllocator = testkit::counting_alloc::CountingAllocator;

const BLOCKS: u64 = 1 << 16;

fn terms() -> TargetLimits {
    let negotiation = NegotiationLimits {
        mrdsl: 65_536,
        first_burst: 65_536,
        max_burst: 262_144,
        ..NegotiationLimits::default()
    };
    TargetLimits { negotiation, limits: SessionLimits::default() }
}

fn world<B: Backend + 'static>(pool: usize, disk: impl Fn() -> B + Clone + Send + 'static) -> World {
    let shard = Shard::new(ShardId(0), 1, target::build_exports(&terms()));
    let mut world = World::new(shard, pool);
    let geometry = disk().geometry();
    for spec in target::volume_specs(1, geometry, &[DiskId(0)], None, move |_| disk()) {
        world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
    }
    assert_eq!(world.hands.reports, 1);
    world
}

/// A RAM volume.
fn ram() -> impl Fn() -> RamBackend + Clone + Send {
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    move || RamBackend::new(disk.clone())
}

/// The other end: it keeps the rules and allocates nothing that matters.
struct Client {
    at: usize,
    logged: LoggedInConnection,
    cmd_sn: Sn,
    max_cmd_sn: Sn,
    exp_stat_sn: Sn,
    itt: u32,
    inbox: Vec<u8>,
}

impl Client {
    fn log_in(world: &mut World, isid: u16, digests: bool) -> Self {
        let at = world.connect();
        let mut wanted = target::login_config(isid);
        wanted.limits.mrdsl = 262_144;
        wanted.limits.initial_r2t = true;
        if digests {
            wanted.limits.header_digest = vec![Digest::Crc32c];
            wanted.limits.data_digest = vec![Digest::Crc32c];
        }
        let (mut login, first) = InitiatorLogin::start(wanted).unwrap();
        let mut entropy = Entropy::new([1; 32]);
        let mut pdu = first;
        loop {
            let wire = &mut world.hands.wires[at];
            wire.to_shard.extend(pdu.bhs.bytes());
            wire.to_shard.extend(&pdu.text);
            wire.to_shard.resize(wire.to_shard.len().next_multiple_of(4), 0);
            world.settle(at);
            let came = std::mem::take(&mut world.hands.wires[at].to_peer);
            let bhs = *Bhs::from_prefix(&came).expect("the target answers");
            let text = &came[BHS_LEN..BHS_LEN + bhs.data_len()];
            match login.handle_response(&bhs, text, &mut entropy).unwrap() {
                LoginProgress::Send(next) => pdu = next,
                LoginProgress::Established(logged) => {
                    let (cmd_sn, max_cmd_sn) = (logged.cmd_sn, logged.max_cmd_sn);
                    let exp_stat_sn = logged.exp_stat_sn;
                    world.hands.wires[at].to_peer.reserve(1 << 20);
                    let inbox = Vec::with_capacity(1 << 20);
                    return Client { at, logged: *logged, cmd_sn, max_cmd_sn, exp_stat_sn, itt: 1, inbox };
                }
            }
        }
    }

    fn put(&self, world: &mut World, bhs: &Bhs, data: &[u8]) {
        let wire = &mut world.hands.wires[self.at].to_shard;
        let digests = self.logged.params.header_digest == Digest::Crc32c;
        wire.extend(bhs.bytes());
        if digests {
            wire.extend(buf::crc32c::crc32c(bhs.bytes()).to_le_bytes());
        }
        wire.extend(data);
        if digests && !data.is_empty() {
            wire.extend(buf::crc32c::crc32c(data).to_le_bytes());
        }
    }

    fn start(&mut self, world: &mut World, cdb: &[u8], out: &[u8], read: usize) {
        let mut pdu = ScsiCommand::new();
        self.itt += 1;
        pdu.itt = Itt::new(self.itt);
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        pdu.expected_data_len = (out.len().max(read) as u32).into();
        let way = if out.is_empty() { CommandFlags::READ } else { CommandFlags::WRITE };
        pdu.flags = CommandFlags(1).with(CommandFlags::FINAL).with(way);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        assert!(self.cmd_sn.le(self.max_cmd_sn), "no window is open");
        self.cmd_sn = self.cmd_sn.next();
        let params = &self.logged.params;
        let immediate =
            if params.immediate_data { out.len().min(params.first_burst as usize).min(8_192) } else { 0 };
        pdu.set_data_len(immediate);
        self.put(world, pdu.as_bhs(), &out[..immediate]);
    }

    /// Answers until `commands` have ended with GOOD.
    fn finish(&mut self, world: &mut World, mut commands: usize, out: &[u8]) {
        while commands > 0 {
            world.settle(self.at);
            let wire = &mut world.hands.wires[self.at];
            assert!(!wire.gone && !wire.to_peer.is_empty(), "{commands} commands are not answered");
            std::mem::swap(&mut self.inbox, &mut wire.to_peer);
            let inbox = std::mem::take(&mut self.inbox);
            let mut at = 0;
            while at < inbox.len() {
                let bhs = *Bhs::from_prefix(&inbox[at..]).expect("batches hold whole PDUs");
                let digest = if self.logged.params.header_digest == Digest::Crc32c { 4 } else { 0 };
                let data = padded_len(bhs.data_len()).unwrap();
                at += BHS_LEN + digest + data + if data > 0 { digest } else { 0 };
                commands -= usize::from(self.take(world, &bhs, out));
            }
            self.inbox = inbox;
            self.inbox.clear();
        }
    }

    /// Whether a command ended.
    fn take(&mut self, world: &mut World, bhs: &Bhs, out: &[u8]) -> bool {
        self.max_cmd_sn = DataIn::from_bhs(bhs).max_cmd_sn;
        let (stat_sn, status) = match bhs.opcode() {
            Opcode::SCSI_RESPONSE => {
                let pdu = ScsiResponse::from_bhs(bhs);
                (pdu.stat_sn, pdu.status)
            }
            Opcode::DATA_IN => {
                let pdu = DataIn::from_bhs(bhs);
                if !pdu.flags.contains(DataInFlags::STATUS) {
                    return false;
                }
                (pdu.stat_sn, pdu.status)
            }
            Opcode::R2T => {
                let asked = R2t::from_bhs(bhs);
                let mut pdu = DataOut::new();
                (pdu.itt, pdu.ttt, pdu.lun) = (asked.itt, asked.ttt, asked.lun);
                (pdu.buffer_offset, pdu.exp_stat_sn) = (asked.buffer_offset, self.exp_stat_sn);
                pdu.flags = pdu.flags.with(DataOutFlags::FINAL);
                let len = asked.desired_len.get() as usize;
                let from = asked.buffer_offset.get() as usize;
                pdu.set_data_len(len);
                self.put(world, pdu.as_bhs(), &out[from..from + len]);
                return false;
            }
            // The window has grown.
            Opcode::NOP_IN => return false,
            other => panic!("an unexpected PDU {other:?}"),
        };
        assert_eq!(stat_sn, self.exp_stat_sn);
        assert_eq!(status.0, 0);
        self.exp_stat_sn = stat_sn.next();
        true
    }

    /// Clears the unit attention of a new nexus.
    fn greet(&mut self, world: &mut World) {
        self.start(world, &[0; 6], &[], 0);
        world.settle(self.at);
        let answer = Bhs::from_prefix(&world.hands.wires[self.at].to_peer).expect("the session lives");
        self.max_cmd_sn = DataIn::from_bhs(answer).max_cmd_sn;
        world.hands.wires[self.at].to_peer.clear();
        self.exp_stat_sn = self.exp_stat_sn.next();
    }
}

fn cdb(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    [opcode, 0, a, b, c, d, 0, e, f, 0]
}

/// One round of `depth` commands of each kind.
fn round(world: &mut World, client: &mut Client, data: &[u8], depth: usize, number: usize) {
    let blocks = (data.len() / 512) as u16;
    for opcode in [0x2a, 0x28] {
        for slot in 0..depth {
            let lba = ((number * depth + slot) * usize::from(blocks)) as u64 % (BLOCKS - u64::from(blocks));
            // A little off, too, so that ragged writes are among them.
            let lba = lba as u32 / 8 * 8;
            let (out, read) = if opcode == 0x2a { (data, 0) } else { (&[][..], data.len()) };
            client.start(world, &cdb(opcode, lba, blocks), out, read);
        }
        client.finish(world, depth, data);
    }
    world.sleep(50_000);
}

fn allocates_nothing<B: Backend + 'static>(disk: impl Fn() -> B + Clone + Send + 'static, digests: bool) {
    let mut world = world(64 << 20, disk);
    let mut client = Client::log_in(&mut world, 1, digests);
    client.greet(&mut world);
    const DEPTH: usize = 16;
    for len in [4096, 65_536] {
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        for number in 0..64 {
            // The window grows with what is used of it.
            let depth = if number < 4 { DEPTH / 2 } else { DEPTH };
            round(&mut world, &mut client, &data, depth, number);
        }
        counting_alloc::take_allocation_count();
        let before = world.pool.usage();
        for number in 0..10_000 / DEPTH {
            round(&mut world, &mut client, &data, DEPTH, number);
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
fn reads_and_writes_of_memory_allocate_nothing() {
    allocates_nothing(ram(), false);
}

#[test]
fn reads_and_writes_with_digests_allocate_nothing() {
    allocates_nothing(ram(), true);
}

#[test]
fn reads_and_writes_of_a_file_allocate_nothing() {
    let facts = FileFacts::new(BLOCKS * 512);
    let disk = Arc::new(FileDisk::new(DiskId(0), &facts, 1).unwrap());
    allocates_nothing(move || FileBackend::new(disk.clone(), 0), false);
}

#[test]
fn reads_and_writes_of_nothing_allocate_nothing() {
    allocates_nothing(|| NullBackend::new(BLOCKS, 512), false);
}

/// Bytes on the heap of an idle session, its connection, its nexus and its entry in the directory.
const HEAP_PER_SESSION_MAX: i64 = 16 << 10;

/// More sessions of one initiator than fit its share of the pool of one shard: each gets in, the first 14 with
/// whole first bursts, then bursts shrink; and all can still read and write.
#[test]
fn two_thousand_idle_sessions_cost_little() {
    const SESSIONS: u16 = 2_000;
    let mut world = world(64 << 20, ram());
    counting_alloc::take_allocation_count();
    let mut clients: Vec<Client> = (0..SESSIONS)
        .map(|isid| {
            let mut client = Client::log_in(&mut world, isid, false);
            client.greet(&mut world);
            client.inbox = Vec::new();
            world.hands.wires[client.at].forget();
            client
        })
        .collect();
    let count = counting_alloc::take_allocation_count();
    let heap = count.bytes / i64::from(SESSIONS);
    let usage = world.pool.usage();
    println!("{SESSIONS} idle sessions: {heap} bytes of heap each (limit {HEAP_PER_SESSION_MAX}),");
    println!("{} of {} bytes of the pool set aside, none lent", usage.reserved, usage.capacity);
    assert!((1_024..=HEAP_PER_SESSION_MAX).contains(&heap), "{heap} bytes");
    assert!(usage.reserved <= usage.capacity / 2);
    assert_eq!(usage.lent, 0, "an idle session pins no buffer");
    // 9 × 64 KiB each, while that is no more than a quarter of 32 MiB, one initiator's share.
    let whole = clients.iter().take_while(|client| client.logged.params.first_burst == 65_536).count();
    assert_eq!(whole, 14);
    let data = [7; 4096];
    for client in [0, 40, 1_999] {
        round(&mut world, &mut clients[client], &data, 1, 0);
    }
}

#[test]
fn the_counter_counts() {
    counting_alloc::take_allocation_count();
    let boxed = counting_alloc::count_allocations(|| Box::new(5u64));
    assert_eq!(
        counting_alloc::take_allocation_count(),
        counting_alloc::AllocationCount { calls: 1, bytes: 8 }
    );
    counting_alloc::count_allocations(|| drop(boxed));
    assert_eq!(
        counting_alloc::take_allocation_count(),
        counting_alloc::AllocationCount { calls: 0, bytes: -8 }
    );
    assert!(counting_alloc::first_allocation_site().is_some());
}
