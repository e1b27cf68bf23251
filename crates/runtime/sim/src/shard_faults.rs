//! What goes wrong with shards: their threads stand still, their timers are late, the control plane reaches them
//! one after the other, and they have no room for a link that another shard hands over.

use std::cmp::Reverse;
use std::time::Duration;

use buf::Time;
use endpoint::Endpoint;

use crate::rng::SimRng;
use crate::world::{Event, ScheduledEvent, World};

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
    pub fn of(chance: &mut SimRng) -> ShardFaults {
        if chance.permille(500) {
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

impl<E: Endpoint> World<E> {
    /// What goes wrong with shards from now on.
    pub fn set_shard_faults(&mut self, faults: ShardFaults) {
        self.config.shard_faults = faults;
    }

    /// A time up to `most`. Nothing is drawn if that is zero, so that a history without the fault stays as it was.
    pub(crate) fn drawn(&mut self, most: Duration) -> Duration {
        match most.as_nanos() as u64 {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.chance.below(most + 1)),
        }
    }

    pub(crate) fn refuses_a_move(&mut self) -> bool {
        let permille = self.config.shard_faults.refuse_move_permille;
        permille > 0 && self.chance.permille(permille)
    }

    /// Which timer is heard next, and when.
    pub(crate) fn next_timer(&mut self) -> Option<(Time, usize)> {
        let mut next: Option<(Time, usize)> = None;
        for at in 0..self.shards.len() {
            let Some(due) = self.shards[at].end.poll_timeout() else { continue };
            let heard = match self.shards[at].late {
                Some((of, heard)) if of == due => heard,
                _ => {
                    let heard = due + self.drawn(self.config.shard_faults.timer_late_max);
                    self.shards[at].late = Some((due, heard));
                    heard
                }
            };
            let heard = heard.max(self.shards[at].stands_until);
            next = Some(next.map_or((heard, at), |next| next.min((heard, at))));
        }
        next
    }

    /// Puts off what happens on a shard that stands still; it keeps its turn.
    pub(crate) fn put_off(&mut self, due: ScheduledEvent<E::Message>) -> Option<ScheduledEvent<E::Message>> {
        let Some(shard) = self.shard_of(&due.what) else { return Some(due) };
        let ShardFaults { stand_permille, stand_max, .. } = self.config.shard_faults;
        if stand_permille > 0
            && self.shards[shard].stands_until <= self.now
            && self.chance.permille(stand_permille)
        {
            self.shards[shard].stands_until = self.now + self.drawn(stand_max);
        }
        let until = self.shards[shard].stands_until;
        if until <= self.now {
            return Some(due);
        }
        self.queue.heap.push(Reverse(ScheduledEvent { at: (until, due.at.1), what: due.what }));
        None
    }

    /// Whose thread hears of it. What the system does by itself is nobody's.
    fn shard_of(&self, what: &Event<E::Message>) -> Option<usize> {
        let shard = match what {
            Event::Receive(peer) | Event::Transmit(peer) | Event::Release(peer) => self.wires[peer.0].home?.0,
            Event::DiskEnded(shard, ..)
            | Event::Message(shard, _)
            | Event::Arrive(shard, ..)
            | Event::Dial(shard, _)
            | Event::DialFailed(shard, ..) => *shard,
            Event::Disk(..) | Event::DiskRest(..) | Event::Carry(_) | Event::Lose(..) => {
                return None;
            }
        };
        Some(usize::from(shard.0))
    }
}
