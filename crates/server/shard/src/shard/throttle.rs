//! Steps that wait for the limits of their volume and of their host.
//!
//! A step waits before memory is taken for it: a read before its buffer, a write before its data is asked for. What came
//! with a command holds what was promised to it, and waits with its operation. Nothing that waits here has begun: it is
//! in no epoch of its volume, no fence waits for it, and an abort takes it out. Flushes, reservations and all that moves
//! no blocks never come here.
//!
//! The steps of one host on one volume are a *flow*, in order. Of each flow one step at a time has reserved what it needs
//! ([`RateLimiter::reserve`]), so flows share a limit in turn, however many steps wait in each. A step reserves with its
//! host first, and when its time there has come, with its volume. It counts for its host from then on: what a step holds
//! while it waits for a slow volume would be lost to all other volumes of the host.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use buf::{Cx, Time};
use smallvec::SmallVec;
use volume::{Op, VolumeId};

use super::Shard;
use super::payload_step::{AnyStep, IoStep, StepName};
use super::protocol_front::ProtocolFront;
use crate::rate_limit::{Charge, RateLimiter};

/// How many steps go on before the world has its turn.
const RESUMED_PER_TURN_MAX: usize = 64;
/// Flows without steps are kept up to this number, so that they need not be made again.
const IDLE_FLOWS_MAX: usize = 1024;

/// By what a connection is limited.
#[derive(Clone, Debug, Default)]
pub(super) struct HostLimit {
    /// The limit of its host, if that has one.
    pub(super) limiter: Option<Arc<RateLimiter>>,
    /// Its host among others: connections of one name have the same.
    host: u64,
}

impl HostLimit {
    pub(super) fn new(name: &str, limiter: Option<Arc<RateLimiter>>) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        HostLimit { limiter, host: hasher.finish() }
    }
}

/// The limits that a step has to pass.
#[derive(Clone, Debug)]
pub(super) struct LimitsOfStep {
    pub(super) host: HostLimit,
    pub(super) volume: (VolumeId, Option<Arc<RateLimiter>>),
}

impl LimitsOfStep {
    /// Steps of one key go by the same limits.
    fn key(&self) -> FlowKey {
        let limiter = self.host.limiter.as_ref().map(|limiter| Arc::as_ptr(limiter).addr());
        (self.volume.0, self.host.host, limiter)
    }
}

/// A volume, the name of a host, and the limit that this host has, which may depend on where it comes from.
type FlowKey = (VolumeId, u64, Option<usize>);

#[derive(Debug)]
struct WaitingStep {
    /// Grows from step to step of a flow.
    number: u64,
    step: AnyStep,
    charge: Charge,
    since: Time,
}

/// What the first step of a flow has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing yet.
    None,
    /// With its host, from this time on.
    Host(Time),
    /// With its volume, from this time on. Its host's limit has let it through.
    Volume(Time),
}

impl Stage {
    /// When to go on.
    fn time(self) -> Time {
        match self {
            Stage::None => Time(0),
            Stage::Host(time) | Stage::Volume(time) => time,
        }
    }
}

#[derive(Debug)]
struct Flow {
    limits: LimitsOfStep,
    steps: VecDeque<WaitingStep>,
    stage: Stage,
    /// Entries of the timetable bear it: others are of steps that have gone.
    turn: u64,
    /// The first step was kept up last by its volume's limit, not by its host's.
    waits_for_volume: bool,
}

/// Steps that wait for limits.
#[derive(Debug, Default)]
pub(super) struct ThrottledSteps {
    /// Whether any limit is in force on this shard, or anything waits here. While not, nothing else is looked at.
    in_force: bool,
    flows: Vec<Flow>,
    by_key: HashMap<FlowKey, usize>,
    /// How many flows there may be before those without steps are dropped.
    flows_max: usize,
    /// When the first step of which flow is to be looked at, and the turn of that flow.
    timetable: BinaryHeap<Reverse<(Time, u64, usize)>>,
    turns: u64,
    /// Where the steps of a name wait, so that one is taken out without a look at the others.
    places: HashMap<StepName, (FlowKey, SmallVec<[u64; 1]>)>,
    /// Steps that were ever pushed.
    pushed: u64,
    waiting: usize,
    /// Everything goes on, whatever the limits: the daemon stops.
    lifted: bool,
}

impl ThrottledSteps {
    /// Whether limits have to be looked at.
    #[inline]
    pub(super) fn is_in_force(&self) -> bool {
        self.in_force
    }

    pub(super) fn set_in_force(&mut self, in_force: bool) {
        self.in_force = !self.lifted && (in_force || self.waiting > 0);
    }

    /// Lets everything go on whatever the limits, or takes that back.
    pub(super) fn set_lifted(&mut self, lifted: bool) {
        self.lifted = lifted;
    }

    /// Whether any step waits here.
    pub(super) fn has_steps(&self) -> bool {
        self.waiting > 0
    }

    /// When something is to go on.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.timetable.peek().map(|Reverse((time, ..))| *time)
    }

    /// Whether a step may go on now; its tokens are taken then. If not, it is to be [`ThrottledSteps::push`]ed.
    pub(super) fn try_pass(&mut self, now: Time, limits: &LimitsOfStep, charge: Charge) -> bool {
        let flow = self.by_key.get(&limits.key()).and_then(|at| self.flows.get(*at));
        if flow.is_some_and(|flow| !flow.steps.is_empty()) {
            return false;
        }
        let at = self.flow_of(limits);
        let Some(flow) = self.flows.get_mut(at) else { return true };
        flow.limits = limits.clone();
        flow.stage = Stage::None;
        flow.advance(now, charge).is_none()
    }

    /// Lets a step wait that may not go on.
    pub(super) fn push(&mut self, now: Time, limits: &LimitsOfStep, charge: Charge, step: AnyStep) {
        let at = self.flow_of(limits);
        let Some(flow) = self.flows.get_mut(at) else { return };
        let number = self.pushed;
        self.pushed += 1;
        let (_, numbers) = self.places.entry(step.name()).or_insert_with(|| (limits.key(), SmallVec::new()));
        numbers.push(number);
        flow.steps.push_back(WaitingStep { number, step, charge, since: now });
        self.waiting += 1;
        if flow.steps.len() == 1 {
            self.note_turn(at);
        }
    }

    fn flow_of(&mut self, limits: &LimitsOfStep) -> usize {
        if let Some(at) = self.by_key.get(&limits.key()) {
            return *at;
        }
        if self.flows.len() >= self.flows_max {
            self.remove_idle();
            self.flows_max = (2 * self.flows.len()).max(IDLE_FLOWS_MAX);
        }
        let at = self.flows.len();
        self.flows.push(Flow {
            limits: limits.clone(),
            steps: VecDeque::new(),
            stage: Stage::None,
            turn: 0,
            waits_for_volume: false,
        });
        self.by_key.insert(limits.key(), at);
        at
    }

    /// Drops flows without steps.
    fn remove_idle(&mut self) {
        let all = std::mem::take(&mut self.flows);
        self.by_key.clear();
        self.timetable.clear();
        for flow in all.into_iter().filter(|flow| !flow.steps.is_empty()) {
            let at = self.flows.len();
            self.by_key.insert(flow.limits.key(), at);
            self.flows.push(flow);
            self.note_turn(at);
        }
    }

    /// The first step of a flow is to be looked at when its time has come.
    fn note_turn(&mut self, at: usize) {
        self.turns += 1;
        let turn = self.turns;
        let Some(flow) = self.flows.get_mut(at) else { return };
        flow.turn = turn;
        self.timetable.push(Reverse((flow.stage.time(), turn, at)));
        if self.timetable.len() > 2 * self.flows.len() + IDLE_FLOWS_MAX {
            // What was aborted has left its entries.
            self.timetable.clear();
            let waiting = self.flows.iter().enumerate().filter(|(_, flow)| !flow.steps.is_empty());
            self.timetable.extend(waiting.map(|(at, flow)| Reverse((flow.stage.time(), flow.turn, at))));
        }
    }

    /// A step whose time has come.
    fn pop_due(&mut self, now: Time) -> Option<AnyStep> {
        while let Some(&Reverse((time, turn, at))) = self.timetable.peek() {
            if time > now {
                return None;
            }
            self.timetable.pop();
            let Some(flow) = self.flows.get_mut(at).filter(|flow| flow.turn == turn) else { continue };
            let Some(charge) = flow.steps.front().map(|first| first.charge) else { continue };
            if flow.advance(now, charge).is_some() {
                self.note_turn(at);
                continue;
            }
            let Some(first) = flow.steps.pop_front() else { continue };
            let delayed = now.since(first.since).as_nanos();
            flow.count_delay(u64::try_from(delayed).unwrap_or(u64::MAX));
            flow.stage = Stage::None;
            self.waiting -= 1;
            if !flow.steps.is_empty() {
                self.note_turn(at);
            }
            forget_place(&mut self.places, &first);
            return Some(first.step);
        }
        None
    }

    /// Takes out the steps of a name, which are not wanted any more; whether there were any.
    pub(super) fn remove_named(&mut self, name: StepName) -> bool {
        let Some((key, numbers)) = self.places.remove(&name) else { return false };
        let Some(at) = self.by_key.get(&key).copied() else { return false };
        for number in numbers {
            let Some(flow) = self.flows.get_mut(at) else { return false };
            let Ok(place) = flow.steps.binary_search_by_key(&number, |waiting| waiting.number) else {
                continue;
            };
            flow.give_back_if(place == 0);
            flow.steps.remove(place);
            self.waiting -= 1;
            if place == 0 {
                self.note_turn(at);
            }
        }
        true
    }

    /// Drops the transfers of commands that have ended.
    pub(super) fn remove_transfers<F: ProtocolFront>(&mut self, ended: impl Fn(F::Command) -> bool) {
        if self.waiting == 0 {
            return;
        }
        let goes = |waiting: &WaitingStep| {
            F::as_own_step(&waiting.step)
                .is_some_and(|step| !step.outlives_command() && ended(step.command()))
        };
        for at in 0..self.flows.len() {
            let Some(flow) = self.flows.get_mut(at) else { continue };
            let (first_goes, before) = (flow.steps.front().is_some_and(goes), flow.steps.len());
            flow.give_back_if(first_goes);
            flow.steps
                .iter()
                .filter(|waiting| goes(waiting))
                .for_each(|waiting| forget_place(&mut self.places, waiting));
            flow.steps.retain(|waiting| !goes(waiting));
            self.waiting -= before - flow.steps.len();
            if first_goes {
                self.note_turn(at);
            }
        }
    }

    /// Takes out all steps of volumes that are meant.
    fn take_steps(&mut self, is_meant: impl Fn(VolumeId) -> bool) -> Vec<AnyStep> {
        let mut taken = Vec::new();
        for flow in self.flows.iter_mut().filter(|flow| is_meant(flow.limits.volume.0)) {
            flow.give_back_if(true);
            flow.steps.iter().for_each(|waiting| forget_place(&mut self.places, waiting));
            taken.extend(flow.steps.drain(..).map(|waiting| waiting.step));
        }
        self.waiting -= taken.len();
        taken
    }
}

/// A step waits no more.
fn forget_place(places: &mut HashMap<StepName, (FlowKey, SmallVec<[u64; 1]>)>, waiting: &WaitingStep) {
    let name = waiting.step.name();
    let Some((_, numbers)) = places.get_mut(&name) else { return };
    numbers.retain(|number| *number != waiting.number);
    if numbers.is_empty() {
        places.remove(&name);
    }
}

impl Flow {
    /// Goes on with the first step, as far as its time has come; gives when to go on, or `None` if it may begin.
    fn advance(&mut self, now: Time, charge: Charge) -> Option<Time> {
        let (host, volume) = (&self.limits.host.limiter, &self.limits.volume.1);
        if self.stage == Stage::None {
            self.stage = Stage::Host(host.as_ref().map_or(now, |host| host.reserve(now, charge)));
        }
        if let Stage::Host(time) = self.stage {
            self.waits_for_volume = false;
            if time > now {
                return Some(time);
            }
            host.iter().for_each(|host| host.consume(charge));
            self.stage = Stage::Volume(volume.as_ref().map_or(now, |volume| volume.reserve(now, charge)));
        }
        if let Stage::Volume(time) = self.stage
            && time > now
        {
            self.waits_for_volume = true;
            return Some(time);
        }
        volume.iter().for_each(|volume| volume.consume(charge));
        self.stage = Stage::None;
        None
    }

    /// Gives back what the first step has reserved, if that step goes.
    fn give_back_if(&mut self, goes: bool) {
        let Some(charge) = self.steps.front().map(|first| first.charge).filter(|_| goes) else { return };
        let (host, volume) = (&self.limits.host.limiter, &self.limits.volume.1);
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::None => {}
            Stage::Host(_) => host.iter().for_each(|limiter| limiter.give_back(charge)),
            Stage::Volume(_) => {
                host.iter().for_each(|host| host.refund(charge));
                volume.iter().for_each(|volume| volume.give_back(charge));
            }
        }
    }

    /// A step has waited: it counts for the limit that kept the flow up last.
    fn count_delay(&self, ns: u64) {
        let limiter = if self.waits_for_volume { &self.limits.volume.1 } else { &self.limits.host.limiter };
        limiter.iter().for_each(|limiter| limiter.count_delay(ns));
    }
}

/// What an operation takes from the limits; `None`: it is not limited. `logical`: bytes of a block.
pub(super) fn charge_of_op(op: &Op, logical: u32) -> Option<Charge> {
    let blocks = match op {
        Op::Read(span) | Op::Write(span, _) | Op::WriteAtomic(span) | Op::CompareAndWrite(span) => {
            span.blocks
        }
        Op::Compare(span) | Op::Or(span) | Op::Verify(span) | Op::WriteSame(span) => span.blocks,
        Op::WriteZeroes { span, .. } => span.blocks,
        // Blocks are given back or marked, and none is moved.
        Op::Unmap(_) | Op::MarkBad(_) => 0,
        Op::Flush | Op::Extents(_) | Op::Prefetch(_) | Op::Sanitize(_) => return None,
    };
    Some(Charge { operations: 1, bytes: blocks.saturating_mul(logical.into()) })
}

/// What an operation of a command takes from the limits; `None`: nothing, or its command has paid when its data was
/// asked for.
pub(super) fn charge_of_io<C>(
    step: &IoStep<C>,
    logical: u32,
    is_paid: impl FnOnce() -> bool,
) -> Option<Charge> {
    let charge = charge_of_op(&step.io.op, logical)?;
    let brings_data = matches!(step.io.payload, volume::Payload::Out(_));
    (!(brings_data && is_paid())).then_some(charge)
}

impl Shard {
    /// Goes on with steps whose time has come.
    pub(super) fn resume_throttled(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..RESUMED_PER_TURN_MAX {
            let Some(step) = self.parts.throttled.pop_due(cx.now) else { break };
            self.start_passed_step(cx, step);
        }
    }

    /// Limits have changed: what waits is judged by those of now.
    pub(super) fn update_limits(&mut self, cx: &mut Cx<'_>) {
        let waiting = self.parts.throttled.take_steps(|_| true);
        self.parts.update_host_limits();
        let in_force = self.parts.exports.has_limits();
        self.parts.throttled.set_in_force(in_force);
        for step in waiting {
            match step {
                AnyStep::Scsi(step) => self.iscsi.start_payload_step(cx, &mut self.parts, step),
                AnyStep::Nvme(step) => self.nvme.start_payload_step(cx, &mut self.parts, step),
            }
        }
    }

    /// Nothing waits for limits any more: that the daemon stops, or a volume goes, is not to be waited for.
    pub(super) fn release_throttled(&mut self, cx: &mut Cx<'_>, volume: Option<VolumeId>) {
        if volume.is_none() {
            self.parts.throttled.lifted = true;
        }
        for step in self.parts.throttled.take_steps(|of| volume.is_none_or(|volume| volume == of)) {
            self.start_passed_step(cx, step);
        }
        let in_force = self.parts.exports.has_limits();
        self.parts.throttled.set_in_force(in_force);
    }

    fn start_passed_step(&mut self, cx: &mut Cx<'_>, step: AnyStep) {
        match step {
            AnyStep::Scsi(step) => self.iscsi.start_passed_step(cx, &mut self.parts, step),
            AnyStep::Nvme(step) => self.nvme.start_passed_step(cx, &mut self.parts, step),
        }
    }
}

#[cfg(test)]
mod tests {
    use scsi_server::{NexusKey, TaskKey};
    use volume::{Epoch, Io, IoId, Payload, Span};

    use super::super::payload_step::{PayloadStep, ReceiveStep};
    use super::*;
    use crate::rate_limit::{Rate, RateLimits};

    const NOW: Time = Time(1 << 40);

    fn limits(limiter: &Arc<RateLimiter>, host: &str) -> LimitsOfStep {
        LimitsOfStep { host: HostLimit::new(host, None), volume: (VolumeId(0), Some(limiter.clone())) }
    }

    fn read(id: u64) -> (AnyStep, Charge) {
        let op = Op::Read(Span { lba: 0, blocks: 8 });
        let charge = charge_of_op(&op, 512).unwrap();
        assert_eq!(charge, Charge { operations: 1, bytes: 4096 });
        let io = Io { id: IoId(id), epoch: Epoch::default(), op, payload: Payload::None };
        let command = TaskKey { nexus: NexusKey(0), tag: id };
        let step = IoStep { command, volume: VolumeId(0), io, want: 4096, to_peer: true };
        (AnyStep::Scsi(PayloadStep::Io(step)), charge)
    }

    fn limiter(per_second: u64) -> Arc<RateLimiter> {
        let iops = Rate::new(per_second, Some(1));
        Arc::new(RateLimiter::new(RateLimits { iops, ..RateLimits::NONE }))
    }

    /// Lets it pass or wait; says whether it passed.
    fn submit(throttled: &mut ThrottledSteps, now: Time, limits: &LimitsOfStep, id: u64) -> bool {
        let (step, charge) = read(id);
        let passes = throttled.try_pass(now, limits, charge);
        if !passes {
            throttled.push(now, limits, charge, step);
        }
        passes
    }

    fn remove_io(throttled: &mut ThrottledSteps, id: u64) -> bool {
        throttled.remove_named(StepName::Io(IoId(id)))
    }

    fn is_due(throttled: &mut ThrottledSteps, now: Time) -> Option<u64> {
        let step = throttled.pop_due(now)?;
        (0..100_000).find(|id| step.is_io(IoId(*id)))
    }

    /// A host that aborts what it has just sent, again and again, takes neither memory nor the limit of others.
    #[test]
    fn what_is_aborted_leaves_nothing_behind() {
        let (mut throttled, limiter) = (ThrottledSteps::default(), limiter(1));
        let limits = limits(&limiter, "a");
        assert!(submit(&mut throttled, NOW, &limits, 0));
        for id in 1..10_000 {
            assert!(!submit(&mut throttled, NOW, &limits, id));
            assert!(remove_io(&mut throttled, id) && !remove_io(&mut throttled, id));
            assert!(throttled.timetable.len() <= 2 + IDLE_FLOWS_MAX, "{}", throttled.timetable.len());
        }
        assert_eq!(throttled.waiting, 0);
        assert!(!submit(&mut throttled, NOW, &limits, 10_000));
        let second = Time(NOW.0 + 1_000_000_000);
        assert_eq!(is_due(&mut throttled, Time(second.0 - 1)), None);
        assert_eq!(is_due(&mut throttled, second), Some(10_000));
        assert_eq!(limiter.delays(), (1, std::time::Duration::from_secs(1)));
    }

    /// Two hosts take turns, however many steps each has waiting; the steps of each go in order.
    #[test]
    fn flows_take_turns() {
        let (mut throttled, limiter) = (ThrottledSteps::default(), limiter(1000));
        let (many, few) = (limits(&limiter, "many"), limits(&limiter, "few"));
        assert!(submit(&mut throttled, NOW, &many, 0));
        (1..20).for_each(|id| assert!(!submit(&mut throttled, NOW, &many, id)));
        (20..23).for_each(|id| assert!(!submit(&mut throttled, NOW, &few, id)));
        let mut order = Vec::new();
        for tick in 1..9 {
            // One that comes a little late is not let through twice.
            let now = Time(NOW.0 + tick * 1_000_000 + 10);
            order.extend(is_due(&mut throttled, now));
            assert_eq!(is_due(&mut throttled, now), None);
        }
        assert_eq!(order, [1, 20, 2, 21, 3, 22, 4, 5]);
    }

    /// What waits for a slow volume, however large it is, takes nothing of its host's limit from other volumes; and what
    /// is aborted there is given back to the host.
    #[test]
    fn a_slow_volume_slows_no_other_volume_of_its_host() {
        let bandwidth = |per_second| {
            let bandwidth = Rate::new(per_second, None);
            Some(Arc::new(RateLimiter::new(RateLimits { bandwidth, ..RateLimits::NONE })))
        };
        let (mut throttled, host) = (ThrottledSteps::default(), HostLimit::new("a", bandwidth(1 << 20)));
        let of = |volume, limiter| LimitsOfStep { host: host.clone(), volume: (VolumeId(volume), limiter) };
        let (slow, other) = (of(1, bandwidth(1 << 10)), of(2, None));
        let large = Charge { operations: 1, bytes: 1 << 20 };
        let at = |seconds: u64| Time(NOW.0 + seconds * 1_000_000_000);
        assert!(throttled.try_pass(at(0), &slow, large));
        assert!(!throttled.try_pass(at(10), &slow, large));
        throttled.push(at(10), &slow, large, read(1).0);
        assert_eq!(is_due(&mut throttled, at(10)), None);
        assert!(submit(&mut throttled, at(20), &other, 2), "the bucket of the host is full again");
        // The host is at its limit when what waits for the volume goes.
        assert!(throttled.try_pass(at(30), &other, large));
        assert!(remove_io(&mut throttled, 1));
        assert!(submit(&mut throttled, at(30), &other, 3), "what was not used is there");
        assert_eq!(throttled.waiting, 0);
    }

    /// A host with many commands waiting, each of which it aborts: this takes time in proportion to their number. Steps
    /// of one command go together, and others stay in order.
    #[test]
    fn steps_are_taken_out_by_their_names() {
        const STEPS: u64 = 50_000;
        let (mut throttled, limiter) = (ThrottledSteps::default(), limiter(1));
        let limits = limits(&limiter, "a");
        assert!(submit(&mut throttled, NOW, &limits, 0));
        let command = TaskKey { nexus: NexusKey(0), tag: 7 };
        let receive = |at| ReceiveStep { command, at, len: 4096, volume: Some(VolumeId(0)) };
        let charge = read(0).1;
        for id in 1..STEPS {
            assert!(!submit(&mut throttled, NOW, &limits, id));
            if id == 10 || id == 20 {
                throttled.push(NOW, &limits, charge, AnyStep::Scsi(PayloadStep::Receive(receive(id as u32))));
            }
        }
        let begin = std::time::Instant::now();
        (3..STEPS - 1).rev().for_each(|id| assert!(remove_io(&mut throttled, id)));
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(throttled.waiting, 5);
        assert!(
            throttled.remove_named(StepName::Scsi(command))
                && !throttled.remove_named(StepName::Scsi(command))
        );
        let later = |seconds: u64| Time(NOW.0 + seconds * 1_000_000_000);
        let order: Vec<_> = (1..5).filter_map(|second| is_due(&mut throttled, later(second))).collect();
        assert_eq!((order, throttled.waiting, throttled.places.len()), (vec![1, 2, STEPS - 1], 0, 0));
    }

    /// Flows that nothing waits in are kept up to a bound.
    #[test]
    fn idle_flows_do_not_pile_up() {
        let (mut throttled, limiter) = (ThrottledSteps::default(), limiter(1 << 40));
        for host in 0..5000 {
            let limits = limits(&limiter, &host.to_string());
            assert!(submit(&mut throttled, Time(NOW.0 + host), &limits, host));
            assert!(throttled.flows.len() <= IDLE_FLOWS_MAX);
        }
        assert_eq!(throttled.waiting, 0);
    }
}
