//! Parameters and faults of a world.

use std::time::Duration;

use crate::rng::SimRng;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decides everything.
    pub seed: u64,
    /// How many shards.
    pub shards: u16,
    /// Memory of each shard's pool, in bytes.
    pub pool_bytes: usize,
    /// Receives that bring pages of the world's own choice instead of filling the op, in thousandths.
    pub loaned_permille: u32,
    /// The longest delay of a disk operation.
    pub disk_delay_max: Duration,
    /// The longest time between the end of a disk operation and its shard's hearing of it.
    pub disk_tell_delay_max: Duration,
    /// The longest delay of a message between shards.
    pub message_delay_max: Duration,
    /// The longest delay of bytes on the wire.
    pub wire_delay_max: Duration,
    /// Bytes that a peer's window takes before it reads.
    pub window: usize,
    /// The longest that making a connection takes, where it is answered at all.
    pub dial_delay_max: Duration,
    /// What goes wrong with connections between shards.
    pub lines: ConnectionFaults,
    /// What goes wrong with the shards themselves.
    pub shard_faults: ShardFaults,
}

impl Config {
    /// Ordinary delays, no faults.
    pub fn new(seed: u64) -> Self {
        Config {
            seed,
            shards: 2,
            pool_bytes: 16 << 20,
            loaned_permille: 0,
            disk_delay_max: Duration::from_micros(200),
            disk_tell_delay_max: Duration::ZERO,
            message_delay_max: Duration::from_micros(20),
            wire_delay_max: Duration::from_micros(100),
            window: 1 << 20,
            dial_delay_max: Duration::from_micros(500),
            lines: ConnectionFaults::default(),
            shard_faults: ShardFaults::default(),
        }
    }
}

/// What goes wrong with connections between shards: chances in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFaults {
    /// A dial is refused although somebody listens.
    pub refused_permille: u32,
    /// A dial is never answered.
    pub unanswered_permille: u32,
    /// A connection gets lost some time after it was made.
    pub lost_permille: u32,
    /// At most so long after.
    pub lost_after_max: Duration,
    /// Of those that get lost, so many are lost in silence: neither end is told, nothing arrives.
    pub silent_permille: u32,
}

/// How often shards misbehave. By default never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardFaults {
    /// A shard stands still before something happens on it, in thousandths: its thread is not run, or its machine
    /// is. The network and the disks go on meanwhile.
    pub stand_permille: u32,
    /// For how long at most.
    pub stand_max: Duration,
    /// How late timers are at most.
    pub timer_late_max: Duration,
    /// The longest time between what the control plane says and a shard's hearing of it.
    pub control_delay_max: Duration,
    /// Links that are moved to a shard which has no room for them, in thousandths: they are reset, and only the
    /// message arrives.
    pub refuse_move_permille: u32,
}

impl ShardFaults {
    /// None in every other history; else each of them, more or less.
    pub fn random(chance: &mut SimRng) -> ShardFaults {
        if chance.chance_permille(500) {
            return ShardFaults::default();
        }
        let mut up_to_us = |most| Duration::from_micros(chance.below(most));
        ShardFaults {
            stand_max: up_to_us(3_000),
            timer_late_max: up_to_us(5_000),
            control_delay_max: up_to_us(1_000),
            stand_permille: chance.below(20) as u32,
            refuse_move_permille: *chance.pick(&[0, 0, 100, 300]),
        }
    }
}
