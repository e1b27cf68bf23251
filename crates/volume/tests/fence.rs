//! Two shards, a home core, and messages that arrive when the schedule says: after a preempt is
//! answered, nothing that the preempted wrote before lands.

extern crate blockwire_volume as volume;

mod slow;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use slow::{World, geometry, nexus};
use volume::reservation::{Action, Key, Kind, Register, RegisterMode};
use volume::{
    Access, Ack, Adoption, Answer, Ask, AskId, Durability, Facts, Failure, Home, Nexus, Op, PortId, Refusal,
    Shard, Span, Time, Uuid, VolumeId,
};

const SHARDS: usize = 2;
const VICTIM: u8 = 1;
const FENCER: u8 = 2;

fn facts() -> Facts {
    Facts {
        id: VolumeId(1),
        name: "test".into(),
        uuid: Uuid([3; 16]),
        oui: None,
        vendor: "BLKWIRE".into(),
        product: "volume".into(),
        revision: "1".into(),
        removable: true,
        rpm: 0,
    }
}

fn home() -> Home {
    Home::restore(facts(), geometry(64, 512), SHARDS as u16, false, None).unwrap()
}

fn register(who: &Nexus, key: u64, persist: bool) -> Ask {
    let register = Register {
        mode: RegisterMode::Set,
        current: None,
        new: Key(key),
        also: Vec::new(),
        ports: Vec::new(),
        persist: Some(persist),
    };
    Ask::Reserve { who: who.clone(), action: Action::Register(register) }
}

/// A home, its shards, and what is under way between them.
struct Daemon {
    world: World,
    home: Home,
    to_shards: Vec<VecDeque<Adoption>>,
    to_home: Vec<VecDeque<Ack>>,
    answers: Vec<Answer>,
    asks: u64,
    ios: u64,
    refused: u32,
}

impl Daemon {
    fn new() -> Daemon {
        let home = home();
        let world = World::new(SHARDS as u16, 64, 512, Some(home.view().clone()));
        let queues = || (0..SHARDS).map(|_| VecDeque::new()).collect();
        let to_home = (0..SHARDS).map(|_| VecDeque::new()).collect();
        Daemon { world, home, to_shards: queues(), to_home, answers: Vec::new(), asks: 0, ios: 0, refused: 0 }
    }

    fn ask(&mut self, ask: Ask) {
        self.asks += 1;
        self.home.handle_ask(self.world.now, Shard(0), AskId(self.asks), ask);
        self.drain_home();
    }

    fn drain_home(&mut self) {
        while let Some(store) = self.home.poll_store() {
            self.home.handle_stored(self.world.now, store.ticket, true);
        }
        while let Some(adoption) = self.home.poll_adoption() {
            self.to_shards.iter_mut().for_each(|queue| queue.push_back(adoption.clone()));
        }
        self.answers.extend(std::iter::from_fn(|| self.home.poll_answer()));
    }

    fn deliver(&mut self, shard: usize) {
        if let Some(adoption) = self.to_shards[shard].pop_front() {
            self.world.gates[shard].adopt(&adoption);
        }
    }

    fn resume(&mut self, shard: usize) {
        for done in self.world.resume(shard) {
            if let Err(Failure::Refused(Refusal::Conflict)) = done.result {
                self.refused += 1;
            }
        }
        self.to_home[shard].extend(std::iter::from_fn(|| self.world.gates[shard].poll_ack()));
    }

    fn acknowledge(&mut self, shard: usize) {
        if let Some(ack) = self.to_home[shard].pop_front() {
            self.home.handle_ack(self.world.now, ack);
            self.drain_home();
        }
    }

    fn write(&mut self, shard: usize, who: u8, lba: u64, exclusive: bool) {
        self.ios += 1;
        let span = Span { lba, blocks: 1 };
        let payload = self.world.payload(&[who; 512]);
        let op = if exclusive { Op::WriteAtomic(span) } else { Op::Write(span, Durability::Cached) };
        self.world.submit(shard, &nexus(who), self.ios, op, payload);
    }

    fn land(&mut self, pick: usize) {
        self.world.disk.borrow_mut().land(pick);
    }

    /// Everything goes on until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..200 {
            for shard in 0..SHARDS {
                self.deliver(shard);
                self.resume(shard);
                self.acknowledge(shard);
            }
            self.land(0);
        }
    }

    fn answer_to(&self, ask: u64) -> Option<Result<(), Refusal>> {
        self.answers.iter().find(|answer| answer.id == AskId(ask)).map(|answer| answer.result)
    }

    fn landed_of(&self, who: u8) -> usize {
        self.world.disk.borrow().landed.iter().filter(|by| **by == who).count()
    }

    /// The victim holds the volume exclusively, and the fencer is registered.
    fn held() -> Daemon {
        let mut daemon = Daemon::new();
        daemon.ask(register(&nexus(VICTIM), 11, false));
        daemon.ask(register(&nexus(FENCER), 22, false));
        let action = Action::Reserve { key: Some(Key(11)), kind: Kind::WriteExclusive };
        daemon.ask(Ask::Reserve { who: nexus(VICTIM), action });
        daemon.settle();
        assert_eq!(daemon.answer_to(3), Some(Ok(())));
        daemon
    }

    fn preempt(&mut self) -> u64 {
        let action =
            Action::Preempt { key: Some(Key(22)), victim: Key(11), kind: Kind::WriteExclusive, abort: true };
        self.ask(Ask::Reserve { who: nexus(FENCER), action });
        self.asks
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { shard: usize, lba: u64, exclusive: bool },
    Land(usize),
    Deliver(usize),
    Resume(usize),
    Acknowledge(usize),
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SHARDS, 0..4u64, any::<bool>())
            .prop_map(|(shard, lba, exclusive)| Step::Write { shard, lba, exclusive }),
        4 => any::<usize>().prop_map(Step::Land),
        2 => (0..SHARDS).prop_map(Step::Deliver),
        4 => (0..SHARDS).prop_map(Step::Resume),
        2 => (0..SHARDS).prop_map(Step::Acknowledge),
        1 => Just(Step::Later),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn after_a_preempt_is_answered_no_old_write_lands(
        before in proptest::collection::vec(step(), 0..40),
        after in proptest::collection::vec(step(), 0..80),
    ) {
        let mut daemon = Daemon::held();
        let mut preempt = None;
        let mut landed = None;
        for (at, step) in before.iter().chain(&after).enumerate() {
            if at == before.len() {
                preempt = Some(daemon.preempt());
            }
            match *step {
                Step::Write { shard, lba, exclusive } => daemon.write(shard, VICTIM, lba, exclusive),
                Step::Land(pick) => daemon.land(pick),
                Step::Deliver(shard) => daemon.deliver(shard),
                Step::Resume(shard) => daemon.resume(shard),
                Step::Acknowledge(shard) => daemon.acknowledge(shard),
                Step::Later => {
                    daemon.world.now = daemon.world.now + Duration::from_secs(7);
                    daemon.home.handle_timeout(daemon.world.now);
                    daemon.drain_home();
                }
            }
            match (preempt.and_then(|ask| daemon.answer_to(ask)), landed) {
                (Some(Ok(())), None) => landed = Some(daemon.landed_of(VICTIM)),
                (_, Some(count)) => prop_assert_eq!(daemon.landed_of(VICTIM), count, "a late write landed"),
                _ => {}
            }
        }
        let ask = preempt.unwrap_or_else(|| daemon.preempt());
        daemon.settle();
        let answer = daemon.answer_to(ask);
        prop_assert!(matches!(answer, Some(Ok(()) | Err(Refusal::NotFenced))), "{:?}", answer);
        let count = landed.unwrap_or_else(|| daemon.landed_of(VICTIM));
        daemon.write(1, VICTIM, 0, false);
        daemon.write(0, FENCER, 0, false);
        let refused = daemon.refused;
        daemon.settle();
        prop_assert_eq!(daemon.refused, refused + 1);
        prop_assert_eq!(daemon.landed_of(VICTIM), count);
        prop_assert!(daemon.landed_of(FENCER) > 0, "the volume is open again");
        prop_assert!(daemon.home.is_idle());
    }
}

#[test]
fn a_fence_that_cannot_be_kept_closes_the_volume() {
    let mut daemon = Daemon::held();
    daemon.write(1, VICTIM, 0, false);
    let ask = daemon.preempt();
    let stuck = |daemon: &mut Daemon| {
        for shard in [0, 1, 0, 1] {
            daemon.deliver(shard);
            daemon.resume(shard);
            daemon.acknowledge(shard);
        }
    };
    stuck(&mut daemon);
    for _ in 0..2 {
        assert_eq!(daemon.answer_to(ask), None);
        daemon.world.now = daemon.home.poll_timeout().expect("a fence has a deadline");
        daemon.home.handle_timeout(daemon.world.now);
        daemon.drain_home();
        stuck(&mut daemon);
        assert_eq!(daemon.home.view().access(PortId(1)), Access::Inaccessible);
        assert_eq!(daemon.world.gates[0].view().access(PortId(1)), Access::Inaccessible);
    }
    assert_eq!(daemon.answer_to(ask), Some(Err(Refusal::NotFenced)));
    // The change stands; a repeated ask must wait for the stuck write too, though it changes nothing.
    let action = Action::Reserve { key: Some(Key(22)), kind: Kind::WriteExclusive };
    daemon.ask(Ask::Reserve { who: nexus(FENCER), action });
    let again = daemon.asks;
    stuck(&mut daemon);
    assert_eq!(daemon.answer_to(again), None);
    daemon.settle();
    assert_eq!(daemon.answer_to(again), Some(Ok(())));
    assert_eq!(daemon.home.view().access(PortId(1)), Access::Optimized);
    assert!(daemon.home.is_idle());
}

#[test]
fn reservations_that_persist_are_durable_before_anyone_adopts_them() {
    let (mut home, now) = (home(), Time(0));
    home.handle_ask(now, Shard(0), AskId(1), register(&nexus(1), 5, true));
    let store = home.poll_store().expect("a store");
    assert!(home.poll_adoption().is_none() && home.poll_answer().is_none());
    assert_eq!(store.name, "03030303-0303-0303-0303-030303030303.reservations");
    home.handle_stored(now, store.ticket, false);
    let answer = home.poll_answer().expect("an answer");
    assert_eq!(answer.result, Err(Refusal::NotDurable));
    assert!(home.view().reservations.registrants().is_empty());

    // Which contents the disk has now is not known: even a change of nothing durable writes again.
    home.handle_ask(now, Shard(0), AskId(2), register(&nexus(1), 5, false));
    let store = home.poll_store().expect("a store that puts things right");
    home.handle_stored(now, store.ticket, true);
    assert!(home.poll_adoption().is_some());
    for shard in 0..SHARDS as u16 {
        let ack = Ack { from: Shard(shard), change: volume::ChangeId(1) };
        assert!(home.poll_answer().is_none());
        home.handle_ack(now, ack);
    }
    assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Ok(())));

    home.handle_ask(now, Shard(0), AskId(3), register(&nexus(1), 6, true));
    let store = home.poll_store().expect("a store");
    let again = Home::restore(facts(), geometry(64, 512), 2, false, Some(&store.bytes)).unwrap();
    assert_eq!(again.view().reservations.key_of(&nexus(1).identity), Some(Key(6)));
    let mut damaged = store.bytes.clone();
    damaged[30] ^= 1;
    assert!(Home::restore(facts(), geometry(64, 512), 2, false, Some(&damaged)).is_err());
    assert!(Home::restore(facts(), geometry(64, 512), 2, false, Some(&[])).is_err());
}

#[test]
fn the_medium_moves_only_when_nobody_prevents_it() {
    let mut daemon = Daemon::new();
    let (a, b) = (Arc::new((*nexus(1).identity).clone()), nexus(2).identity);
    let mut asked = |ask: Ask| {
        daemon.ask(ask);
        daemon.settle();
        daemon.answer_to(daemon.asks).expect("an answer")
    };
    assert_eq!(asked(Ask::PreventRemoval { by: a.clone(), on: true }), Ok(()));
    assert_eq!(asked(Ask::Eject { by: Some(b.clone()) }), Err(Refusal::RemovalPrevented));
    assert_eq!(asked(Ask::NexusLost(a.clone())), Ok(()));
    assert_eq!(asked(Ask::Eject { by: Some(b.clone()) }), Ok(()));
    assert_eq!(asked(Ask::Eject { by: Some(b.clone()) }), Ok(()));
    assert_eq!(asked(Ask::PreventRemoval { by: a.clone(), on: true }), Ok(()));
    assert_eq!(asked(Ask::Load { by: Some(b.clone()) }), Err(Refusal::RemovalPrevented));
    assert_eq!(asked(Ask::Reset), Ok(()));
    assert_eq!(asked(Ask::SanitizeStart), Err(Refusal::NotReady(volume::Why::NoMedium)));
    assert_eq!(asked(Ask::Load { by: Some(b) }), Ok(()));
    assert_eq!(asked(Ask::SanitizeStart), Ok(()));
    assert_eq!(asked(Ask::SanitizeStart), Err(Refusal::NotReady(volume::Why::Sanitizing(0))));
    assert_eq!(asked(Ask::SanitizeEnd { done: false }), Ok(()));
    assert_eq!(asked(Ask::Start), Err(Refusal::NotReady(volume::Why::SanitizeFailed)));
    assert_eq!(asked(Ask::SanitizeForgive), Ok(()));
    assert_eq!(asked(Ask::Remove), Ok(()));
}
