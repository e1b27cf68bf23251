//! The cost of one 4 KiB command in a shard: bytes in, answer out, without a socket.
//!
//!     cargo run --release -p blockwire-shard --example shard_cost
//!
//! prints nanoseconds per command. Under `valgrind --tool=callgrind --toggle-collect='*measured_turn*'` the
//! instructions are those of the shard alone, without its set-up: divide by the number of commands that is
//! printed. `tests/cost.sh` does this. Arguments: `read` or `write` over iSCSI, `nvme-read` or `nvme-write`
//! over NVMe/TCP, behind `movable-` on a RAM volume that can move; depth (over iSCSI at most 16, as far as the window
//! opens in the warm-up); rounds; connections, which take turns (with 16,384 of them an NVMe/TCP host takes 32,768
//! links).

mod driven_shard;

use endpoint::LinkId;

use blockwire_shard::VolumeSpec;
use driven_shard::{
    BLOCK_LEN, Client, MeasuredShard, NoOthers, Random, WARM_UP, exports, movable_volume, written_volume,
};

/// Blocks of 4 KiB: a volume that fits no cache.
const BLOCKS: u64 = 1 << 16;

fn main() {
    assert_eq!(BLOCK_LEN, 4096, "as told above");
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "read".into());
    let depth: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(16);
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let write = what.ends_with("write");
    let connections: u16 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (what, make_volume) = match what.strip_prefix("movable-") {
        Some(what) => (what, movable_volume as fn(u64, u16) -> Vec<VolumeSpec>),
        None => (what.as_str(), written_volume as fn(u64, u16) -> Vec<VolumeSpec>),
    };
    let volume = make_volume(BLOCKS, 1).remove(0);
    let offered = exports(|exports| exports.nvme.subsystems[0].limits.controllers = connections.max(8));
    let mut world = MeasuredShard::new(0, 1, offered, volume, NoOthers);
    if connections > 1 {
        world.set_connections(connections.into());
    }
    let is_nvme = what.starts_with("nvme-");
    let mut clients: Vec<(Client, LinkId)> =
        (0..connections).map(|number| Client::connect(&mut world, number, is_nvme, depth)).collect();
    let mut random = Random::default();
    let (mut stream, mut answers) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP * u32::from(connections) + rounds {
        // Each connection has its window open, and its memory touched, before it is measured.
        let (turn, at) = (round / u32::from(connections), round % u32::from(connections));
        world.is_measured = turn >= WARM_UP;
        let (client, link) = &mut clients[at as usize];
        stream.clear();
        answers.clear();
        for number in 0..depth {
            client.push_command(&mut stream, number, random.next_block(BLOCKS), write);
        }
        let wanted = depth as usize * client.answer_len(write);
        world.exchange(*link, &stream, &mut answers, wanted);
        assert_eq!(answers.len(), wanted, "every command is answered with success");
    }
    let commands = u64::from(depth) * u64::from(rounds);
    println!(
        "{commands} of {what} at depth {depth}, {connections} connections: {:.0} ns each",
        world.spent.as_nanos() as f64 / commands as f64
    );
}
