//! The world of a history: gateways with clocks of their own, the network between them, hosts, and the store.

mod direct;
mod hosts;
mod links;
mod processes;
mod steps;
mod store;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use sim::SimRng;
use volume::reservation::{Action, Key, RegistrationRequest, ReservationType};
use volume::{Durability, Op, PortId, Requester, Span, Uuid, VolumeRequest};

use crate::ids::{ExecutionId, GroupId, InstanceId, LinkId, MapEpoch, RequestId, StoreTicket, Term};
use crate::link::{Answer, Command, LinkMessage, PathState, ResetAnswer, Snapshot};
use crate::member::{Member, MemberConfig, Output, RestartCause, Timing};
use crate::object::{Members, Membership, Ownership};
use crate::register::peek;
use crate::store::{ObjectName, StoreReply, StoreRequest};
use crate::tests::check::{Answered, Ask, Checks, Pending, Tally, host};
use crate::tests::cluster::{Cluster, Operation, Outcome, SERVERS, STRANGER};
use crate::tests::script::{FAULTS_END, MS, Plan, Step};
use crate::tests::target::{BLOCKS, BlockIo, Target, Want};

/// What a dead process has sent arrives within this time.
const ORPHAN: u64 = 4_000 * MS;
/// When faults have ended, every group is served and every command answered within this time.
const PROGRESS: u64 = 40_000 * MS;
/// A request to the store without a reply is given up after this time.
const STORE_TIMEOUT: u64 = 700 * MS;

/// Something that reaches a process.
#[derive(Debug)]
enum Input {
    Timeout,
    Reply(StoreTicket, StoreReply),
    Notify(ObjectName),
    LinkUp(LinkId, InstanceId),
    LinkDown(LinkId),
    Refused(InstanceId),
    Message(LinkId, LinkMessage<u64>),
    Io(BlockIo, Outcome),
    Submit(u64, Uuid, Requester, Command<u64>),
    Drain(bool),
    Apply(u64, Option<u64>, Arc<[u8]>),
    Port(u64, u8),
    Bind(u64, u8, u8),
    Expel(InstanceId),
    Reset(u64, u16, InstanceId),
    Groups,
    Quiesced(GroupId, u64),
}

/// Something that happens.
#[derive(Debug)]
enum Event {
    Input(InstanceId, Input),
    /// A client sends a request to the store.
    Send(InstanceId, Sending),
    /// It arrives.
    Arrive(InstanceId, usize, Sending),
    /// A message arrives over a link, in this direction.
    Message(LinkId, usize, LinkMessage<u64>),
    Step(Step),
    Resume(usize, u64),
    Start(usize),
    Heal(usize, usize),
    StoreHeal(usize),
    Undrain(usize),
    Expire(InstanceId),
    Learn,
    Host(u8),
}

#[derive(Clone, Debug)]
enum Sending {
    Store(StoreTicket, StoreRequest, bool),
    Io(BlockIo),
}

#[derive(Debug)]
struct Process {
    instance: InstanceId,
    member: Member<u64>,
    target: Target,
    inbox: Vec<Input>,
    /// What its client did not send, because the process does not run or the store is away.
    unsent: Vec<Sending>,
    replied: BTreeSet<StoreTicket>,
    wake: Option<u64>,
    applying: BTreeMap<u64, Arc<[u8]>>,
    naming: BTreeMap<u64, (u8, u8)>,
    version: u64,
    paths: BTreeMap<GroupId, PathState>,
    direct: direct::Direct,
    /// The state of volumes at their owners, as it was told last.
    shown: BTreeMap<Uuid, (Term, Snapshot)>,
    /// Resets of controllers, and whose they are.
    resetting: BTreeMap<u64, InstanceId>,
}

#[derive(Debug)]
struct Gateway {
    process: Option<Process>,
    paused: Option<u64>,
    store_cut: bool,
    /// Its machine is off: connections are not refused.
    silent: bool,
    clock: u64,
    /// Events of links reach it in order.
    links: u64,
}

#[derive(Debug)]
struct Link {
    ends: [(usize, InstanceId); 2],
    up: bool,
    /// The last arrival in each direction, and what waits while the two are cut off.
    last: [u64; 2],
    stalled: Vec<(usize, LinkMessage<u64>)>,
    /// What arrives later is lost.
    until: [u64; 2],
}

pub(super) struct World {
    plan: Plan,
    now: u64,
    rng: SimRng,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    number: u64,
    cluster: Cluster,
    gateways: Vec<Gateway>,
    links: BTreeMap<LinkId, Link>,
    cut: BTreeSet<(usize, usize)>,
    layout: BTreeMap<GroupId, Vec<Uuid>>,
    pending: BTreeMap<u64, (InstanceId, Pending)>,
    keys: BTreeMap<(u8, Uuid), u64>,
    checks: Checks,
    instances: u64,
    /// How long drains took, by the clock on the wall.
    pub(super) drained: Vec<u64>,
    draining: BTreeMap<InstanceId, u64>,
    /// Objects that a process has named as damaged.
    pub(super) damaged: BTreeSet<ObjectName>,
    quiet: bool,
}

pub(super) fn uuid(group: u32) -> Uuid {
    Uuid([group as u8; 16])
}

/// Marks second volumes; groups have smaller numbers.
pub(super) const SECOND: u8 = 0x77;

fn second_volume(group: u32) -> Uuid {
    let mut uuid = [SECOND; 16];
    uuid[0] = group as u8;
    Uuid(uuid)
}

impl World {
    pub(super) fn new(plan: Plan) -> World {
        let layout: BTreeMap<GroupId, Vec<Uuid>> =
            (1..=plan.groups as u32).map(|group| (GroupId(group), vec![uuid(group)])).collect();
        let gateways = plan.clocks.iter().map(|clock| Gateway {
            process: None,
            paused: None,
            store_cut: false,
            silent: false,
            clock: *clock,
            links: 0,
        });
        let mut world = World {
            now: 0,
            rng: SimRng::new(plan.seed),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            number: 0,
            cluster: Cluster::new(),
            gateways: gateways.collect(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            layout,
            pending: BTreeMap::new(),
            keys: BTreeMap::new(),
            checks: Checks::default(),
            instances: 0,
            drained: Vec::new(),
            draining: BTreeMap::new(),
            damaged: BTreeSet::new(),
            quiet: false,
            plan,
        };
        for gateway in 0..world.gateways.len() {
            let at = world.rng.below(300 * MS);
            world.at(at, Event::Start(gateway));
        }
        for (at, step) in world.plan.script.clone() {
            world.at(at * MS, Event::Step(step));
        }
        for host in 1..=world.plan.hosts as u8 {
            world.at(400 * MS, Event::Host(host));
            world.at(450 * MS, Event::Host(host));
        }
        world.at(MS, Event::Learn);
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.queue.push(Reverse((at, self.number)));
        self.events.insert(self.number, event);
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Plays until all faults have ended and everything has come to rest.
    pub(super) fn play(mut self) -> Tally {
        self.run_until(FAULTS_END * MS);
        self.heal_all();
        let end = self.now + PROGRESS;
        while self.now < end && !self.is_at_rest() {
            self.run_until(self.now + 500 * MS);
        }
        assert!(
            self.is_at_rest(),
            "no progress {} s after the last fault: {}",
            PROGRESS / MS / 1000,
            self.state()
        );
        // What is on its way arrives.
        self.run_until(self.now + 100 * MS);
        self.compare_reservations();
        self.checks.tally.whole += 1;
        self.checks.finish();
        self.checks.tally
    }

    /// Plays up to this time.
    pub(super) fn run_until(&mut self, until: u64) {
        while let Some(&Reverse((at, number))) = self.queue.peek() {
            if at > until {
                break;
            }
            self.queue.pop();
            self.now = at;
            let event = self.events.remove(&number).expect("an event that is queued");
            self.happen(event);
        }
        self.now = until;
    }

    fn heal_all(&mut self) {
        self.quiet = true;
        for gateway in 0..self.gateways.len() {
            if let Some(until) = self.gateways[gateway].paused {
                self.happen(Event::Resume(gateway, until));
            }
            self.happen(Event::StoreHeal(gateway));
            self.happen(Event::Undrain(gateway));
            if self.gateways[gateway].process.is_none() {
                self.happen(Event::Start(gateway));
            }
        }
        for (one, other) in self.cut.clone() {
            self.happen(Event::Heal(one, other));
        }
    }

    fn is_at_rest(&self) -> bool {
        let open = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref()).all(|process| {
            let mut served = self.layout.iter().filter(|(group, _)| process.member.serves(**group).is_some());
            served.all(|(_, volumes)| volumes.iter().all(|volume| process.target.has(*volume)))
        });
        let served = self.layout.keys().all(|group| {
            let processes = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
            processes.filter(|process| process.member.serves(*group).is_some()).count() == 1
        });
        let told = self.gateways.iter().all(|gateway| {
            let Some(process) = &gateway.process else { return false };
            self.layout.keys().all(|group| {
                let owner = process.member.ownership(*group).and_then(|ownership| ownership.owner);
                self.gateways
                    .iter()
                    .filter_map(|gateway| gateway.process.as_ref())
                    .any(|other| owner == Some(other.instance) && other.member.serves(*group).is_some())
            })
        });
        let stands = self.configuration_version();
        let same = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
        let same = same.into_iter().all(|process| process.version == stands && process.applying.is_empty());
        open && served && told && same && self.members_agree() && self.pending.is_empty()
    }

    /// Whether each process knows those that run as members, and no others.
    fn members_agree(&self) -> bool {
        let runs = |instance| self.gateway_of(instance).is_some();
        let mut processes = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
        processes.all(|process| {
            let joined = |entry: &&crate::object::MemberEntry| entry.membership == Membership::Joined;
            let members = process.member.members();
            let joined: Vec<_> = members.iter().filter(joined).collect();
            joined.len() == self.gateways.len() && joined.iter().all(|entry| runs(entry.instance))
        })
    }

    fn configuration_version(&self) -> u64 {
        self.cluster.objects.get(&ObjectName::Configuration).map_or(0, |(version, _)| version.0)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(instance, input) => self.input(instance, input),
            Event::Send(instance, sending) => self.send(instance, sending),
            Event::Arrive(instance, map, sending) => self.arrive(instance, map, sending),
            Event::Message(link, to, message) => self.arrive_message(link, to, message),
            Event::Step(step) => self.step(step),
            Event::Resume(gateway, until) => self.resume(gateway, until),
            Event::Start(gateway) => self.start(gateway),
            Event::Heal(one, other) => self.heal(one, other),
            Event::StoreHeal(gateway) => {
                self.gateways[gateway].store_cut = false;
                self.send_unsent(gateway);
            }
            Event::Undrain(gateway) => {
                if let Some(instance) = self.instance_of(gateway) {
                    self.input(instance, Input::Drain(false));
                }
            }
            Event::Expire(instance) => self.cluster.remove_from_blocklist(instance),
            Event::Learn => self.learn(),
            Event::Host(host) => self.host_turn(host),
        }
    }

    /// Somebody learns of the latest map by chance.
    fn learn(&mut self) {
        let server = self.rng.below(SERVERS as u64) as usize;
        self.cluster.server_learns(server);
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        if let Some(instance) = self.instance_of(gateway).filter(|_| self.runs(gateway)) {
            self.cluster.client_learns(instance);
        }
        let delay = self.rng.between(1, self.plan.lazy) * MS;
        self.after(delay, Event::Learn);
    }

    /// The time, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Does something now.
    pub(super) fn take(&mut self, step: Step) {
        self.step(step);
    }

    /// The gateway that serves a group; one that does not run does not serve.
    pub(super) fn server_of(&self, group: GroupId) -> Option<usize> {
        self.servers_of(group).next()
    }

    /// All that believe so.
    pub(super) fn servers_of(&self, group: GroupId) -> impl Iterator<Item = usize> {
        (0..self.gateways.len()).filter(move |gateway| {
            let process = self.gateways[*gateway].process.as_ref().filter(|_| self.runs(*gateway));
            process.is_some_and(|process| process.member.serves(group).is_some())
        })
    }

    /// A bit of an object flips.
    pub(super) fn damage(&mut self, object: ObjectName) {
        let (version, value) = self.cluster.objects.get_mut(&object).expect("an object");
        version.0 += 1;
        *value.last_mut().expect("bytes") ^= 1;
    }

    fn runs(&self, gateway: usize) -> bool {
        self.gateways[gateway].process.is_some() && self.gateways[gateway].paused.is_none()
    }

    fn instance_of(&self, gateway: usize) -> Option<InstanceId> {
        self.gateways[gateway].process.as_ref().map(|process| process.instance)
    }

    fn gateway_of(&self, instance: InstanceId) -> Option<usize> {
        (0..self.gateways.len()).find(|gateway| self.instance_of(*gateway) == Some(instance))
    }

    fn local(&self, gateway: usize) -> Time {
        Time(1_000_000_000_000 + self.now / 1000 * self.gateways[gateway].clock)
    }

    fn input(&mut self, instance: InstanceId, input: Input) {
        let Some(gateway) = self.gateway_of(instance) else { return };
        let now = self.local(gateway);
        let paused = self.gateways[gateway].paused.is_some();
        let Some(process) = &mut self.gateways[gateway].process else { return };
        if paused {
            return process.inbox.push(input);
        }
        let member = &mut process.member;
        match input {
            Input::Timeout => {
                process.wake = None;
                member.handle_timeout(now);
                let wants = process.target.handle_timeout(now);
                self.wants(gateway, wants);
            }
            Input::Reply(ticket, reply) => {
                if process.replied.insert(ticket) {
                    member.handle_reply(now, ticket, reply);
                }
            }
            Input::Notify(object) => member.handle_notification(now, object),
            Input::LinkUp(link, peer) => member.handle_link_up(now, link, peer),
            Input::LinkDown(link) => member.handle_link_down(now, link),
            Input::Refused(peer) => member.handle_refused(now, peer),
            Input::Message(link, message) => member.handle_link_message(now, link, message),
            Input::Io(_, Outcome::Fenced) => member.handle_fenced(now),
            Input::Io(io, outcome) => {
                let read = if let Outcome::Block(value) = outcome { value } else { 0 };
                let wants = process.target.io_done(now, &io, read);
                self.wants(gateway, wants);
            }
            Input::Submit(id, volume, who, command)
                if process.direct.takes(volume) && process.target.has(volume) =>
            {
                let execution = process.direct.begin(id, volume);
                let wants = process.target.execute(now, execution, volume, &who, command);
                self.wants(gateway, wants);
            }
            Input::Quiesced(group, round) => member.handle_quiesced(now, group, round),
            Input::Submit(id, volume, who, command) => {
                member.submit(now, RequestId(id), volume, who, command)
            }
            Input::Drain(true) => member.drain(now),
            Input::Drain(false) => member.undrain(now),
            Input::Apply(id, base, bytes) => {
                let base = base.map(|_| process.version);
                process.applying.insert(id, bytes.clone());
                member.apply(now, RequestId(id), base, &bytes);
            }
            Input::Port(id, name) => {
                process.naming.insert(id, (name, 0));
                member.allocate_port(now, RequestId(id), &format!("target{name}"));
            }
            Input::Bind(id, host, nqn) => {
                process.naming.insert(id, (host, nqn));
                member.bind_host(now, RequestId(id), [host; 16], &format!("nqn{nqn}"));
            }
            Input::Expel(lost) => member.expel(now, lost),
            Input::Reset(id, cntlid, lost) => {
                process.resetting.insert(id, lost);
                member.reset_controller(now, RequestId(id), processes::controller(cntlid));
            }
            Input::Groups => member.set_groups(now, &self.layout),
        }
        self.drain_outputs(gateway);
    }

    fn drain_outputs(&mut self, gateway: usize) {
        while let Some(process) = &mut self.gateways[gateway].process {
            let instance = process.instance;
            let Some(output) = process.member.poll_output() else { break };
            self.output(gateway, instance, output);
        }
        let clock = self.gateways[gateway].clock;
        let local = self.local(gateway);
        let Some(process) = &mut self.gateways[gateway].process else { return };
        let first =
            [process.member.poll_timeout(), process.target.poll_timeout()].into_iter().flatten().min();
        let Some(first) = first else { return };
        let at = self.now + (first.since(local).as_nanos() as u64 * 1000 / clock).max(MS);
        if process.wake.is_none_or(|wake| wake > at) {
            process.wake = Some(at);
            let instance = process.instance;
            self.at(at, Event::Input(instance, Input::Timeout));
        }
    }

    fn output(&mut self, gateway: usize, instance: InstanceId, output: Output<u64>) {
        let now = self.local(gateway);
        let Some(process) = &mut self.gateways[gateway].process else { return };
        match output {
            Output::Store { ticket, request } => self.ask_store(instance, ticket, request),
            Output::Connect { instance: to, .. } => self.connect(gateway, instance, to),
            Output::CloseLink(link) => self.close_link(link, instance),
            Output::Send { link, message } => {
                if let LinkMessage::Notices { group, term, sequence, notices, .. } = &message {
                    self.checks.notices_sent(*group, *term, *sequence, notices);
                }
                self.send_message(link, instance, message);
            }
            Output::Open { group, term, records } => {
                self.checks.opened(&self.cluster, instance, (group, term), &records);
                let whole = records.into_iter().filter_map(|(volume, record)| Some((volume, record.ok()?)));
                let open = |(volume, record): (Uuid, Option<Arc<[u8]>>)| {
                    process.target.open(volume, term, record.as_deref())
                };
                let wants = whole.flat_map(open).collect();
                self.wants(gateway, wants);
            }
            Output::Quiesce { group, round } => {
                process.direct.quiesce(group, round);
                self.tell_quiesced(gateway);
            }
            Output::Snapshot { volume, term, snapshot } => {
                let known = process.shown.insert(volume, (term, snapshot));
                assert!(known.is_none_or(|(known, _)| known <= term), "states of earlier owners come first");
            }
            Output::Close(group) => {
                for volume in [uuid(group.0), second_volume(group.0)] {
                    process.target.close(volume);
                }
            }
            Output::Execute { execution, volume, who, command } => {
                let wants = process.target.execute(now, execution, volume, &who, command);
                self.wants(gateway, wants);
            }
            Output::Answer { id, result } => self.host_answer(id.0, Self::as_seen(result)),
            Output::RecordStored { volume, ticket } => {
                let wants = process.target.stored(now, volume, ticket);
                self.wants(gateway, wants);
            }
            Output::ControllerIds { first, count } => self.checks.range(instance, first, count),
            Output::Port { id, result } => {
                let (name, _) = process.naming.remove(&id.0).expect("a port was asked for");
                self.checks.port(name, result.expect("there are numbers").0);
            }
            Output::HostBound { id, result } => {
                let (host, nqn) = process.naming.remove(&id.0).expect("a host was bound");
                if result.is_ok() {
                    self.checks.bound(&self.cluster, instance, host, nqn);
                }
            }
            Output::Applied { id, result } => {
                let bytes = process.applying.remove(&id.0).expect("a configuration was applied");
                if let Ok(version) = result {
                    self.checks.applied(version, &bytes);
                }
            }
            Output::Configuration { version, bytes } => {
                assert!(version > process.version, "versions grow");
                process.version = version;
                self.checks.configuration(version, &bytes);
            }
            Output::Drained => {
                if let Some(begin) = self.draining.remove(&instance) {
                    self.drained.push(self.now - begin);
                }
            }
            Output::Restart(cause) => self.restart(gateway, cause),
            Output::Notices { notices, .. } => self.checks.notices_heard(instance, &notices),
            Output::NoticesLost(group) => self.checks.notices_lost(instance, group),
            Output::Path { group, state } => {
                process.direct.set(group, state == PathState::Optimized);
                process.paths.insert(group, state);
            }
            // Its host has not asked for that.
            Output::NotDrained(_) | Output::Cancel { .. } => {}
            Output::ResetController { number, .. } => {
                process.member.handle_controller_reset(now, number, ResetAnswer::NotPermitted);
            }
            Output::ControllerReset { id, answer } => self.controller_reset(gateway, id.0, answer),
            Output::Damaged { object, .. } => {
                self.damaged.insert(object);
            }
            Output::NoControllerIds => panic!("{output:?}"),
        }
    }
}
