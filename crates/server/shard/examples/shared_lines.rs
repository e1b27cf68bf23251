//! Two shards of one target, each with a client of its own on one volume: for a trace of what both write.
//!
//!     valgrind --tool=lackey --trace-mem=yes target/release/examples/shared_lines nvme-read 16 20
//!
//! The shards take turns, each on a thread of its own, so that a trace in which turns are marked tells whose each
//! store is. A cache line that both store to in every round is a line that two processors would take from each
//! other for every command. `tests/shared-lines.sh` finds them. The first line of output names the markers' addresses.
//! Arguments as those of `shard_cost`.

#[allow(dead_code, reason = "shard_cost uses all of it")]
mod driven_shard;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use blockwire_shard::{Condition, Exports, Message, PlacementPolicy, PlacementRule};
use driven_shard::{
    BEGUN, Client, ENDED, MeasuredShard, OtherShards, Random, WARM_UP, exports, written_volume,
};
use endpoint::ShardId;

const SHARDS: u16 = 2;
/// Blocks of each shard's half of the volume.
const BLOCKS: u64 = 1 << 8;

/// How many are connected to their clients.
static READY: AtomicU32 = AtomicU32::new(0);

/// The other one, on its thread.
struct OtherThread {
    to: Sender<Message>,
    from: Receiver<Message>,
}

impl OtherShards for OtherThread {
    fn post(&mut self, _to: ShardId, message: Message) {
        // It has gone when all is done.
        let _ = self.to.send(message);
    }

    fn poll(&mut self) -> Option<Message> {
        self.from.try_recv().ok()
    }
}

/// Each client is served by the shard of its number.
fn place_clients(exports: &mut Exports) {
    for number in 0..SHARDS {
        let names = [true, false].map(|is_nvme| Client::name(number, is_nvme).into());
        exports.placement.push(PlacementRule {
            listeners: None,
            sources: Vec::new(),
            peers: Some(names.to_vec()),
            destinations: None,
            when: Condition::Always,
            shards: Arc::from([ShardId(number)]),
            bind: PlacementPolicy::LeastLoaded,
        });
    }
}

/// Whose turn it is. Who waits is blocked, and stores nothing.
struct Turns {
    mine: Receiver<()>,
    others: Sender<()>,
}

fn run_shard(
    world: &mut MeasuredShard<OtherThread>,
    number: u16,
    turns: &Turns,
    (what, depth, rounds): (&str, u32, u32),
) {
    let write = what.ends_with("write");
    let (mut client, link) = Client::connect(world, number, what.starts_with("nvme-"), depth);
    READY.fetch_add(1, Ordering::SeqCst);
    while READY.load(Ordering::SeqCst) < u32::from(SHARDS) {
        world.take_messages();
        std::thread::yield_now();
    }
    let mut random = Random::default();
    let (mut stream, mut answers) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        turns.mine.recv().expect("the other shard runs");
        world.is_measured = round >= WARM_UP;
        stream.clear();
        answers.clear();
        for command in 0..depth {
            let block = random.next_block(BLOCKS) + u32::from(number) * BLOCKS as u32;
            client.push_command(&mut stream, command, block, write);
        }
        let wanted = depth as usize * client.answer_len(write);
        world.exchange(link, &stream, &mut answers, wanted);
        assert_eq!(answers.len(), wanted, "every command is answered with success");
        // The last one has nobody to hand over to.
        let _ = turns.others.send(());
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "read".into());
    let depth: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(16);
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    let address = |marker: &driven_shard::Marker| std::ptr::from_ref(&marker.0).addr();
    println!("markers {:x} {:x} {:x}", address(&BEGUN[0]), address(&BEGUN[1]), address(&ENDED));
    let exports = exports(place_clients);
    let (to_first, of_first) = channel();
    let (to_second, of_second) = channel();
    let ends = [(to_second, of_first), (to_first, of_second)];
    let ((first, first_turn), (second, second_turn)) = (channel(), channel());
    first.send(()).expect("it is received");
    let turns = [Turns { mine: first_turn, others: second }, Turns { mine: second_turn, others: first }];
    let specs = written_volume(BLOCKS * u64::from(SHARDS), SHARDS);
    std::thread::scope(|scope| {
        for (number, ((spec, turns), (to, from))) in (0..SHARDS).zip(specs.into_iter().zip(turns).zip(ends)) {
            let (exports, what) = (exports.clone(), what.as_str());
            scope.spawn(move || {
                let mut world = MeasuredShard::new(number, SHARDS, exports, spec, OtherThread { to, from });
                run_shard(&mut world, number, &turns, (what, depth, rounds));
            });
        }
    });
    println!("{} of {what} on each of {SHARDS} shards", depth * rounds);
}
