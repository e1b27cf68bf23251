//! Gateways in step with each other, the store that they share, and the links between them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use group::{GroupId, InstanceId, LinkId, LinkMessage, LinkPayload, StoreReply, StoreTicket};
use sim::SimRng;
use volume::{Uuid, VolumeId};

use crate::gateway::{Gateway, Want};
use crate::image::Image;
use crate::store::Store;

/// How far gateways get before they hear of each other.
const TICK: Duration = Duration::from_micros(50);
pub const BLOCKS: u64 = 64;

/// Something that a gateway, or what carries its messages, leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// A group is given away although commands are in flight.
    NotQuiesced,
    /// Shards are not told that a group is given away.
    NotClosed,
    /// A group is opened without the records that stand.
    RecordNotRead,
    /// A record is said to be durable before it is.
    RecordNotAwaited,
    /// A forward does not name who asks.
    Requester,
    /// Other gateways do not hear of changes.
    Notices,
    /// Nor of the state behind them.
    Snapshots,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub gateways: usize,
    pub shards: u16,
    pub volumes: usize,
    pub disk_delay_max: Duration,
    pub balance: Duration,
    pub omission: Option<Omission>,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let mut chance = SimRng::new(seed ^ 0x6a7e);
        Plan {
            seed,
            gateways: 3,
            shards: chance.between(1, 3) as u16,
            volumes: 2,
            disk_delay_max: Duration::from_micros(*chance.pick(&[50, 300, 2_000])),
            balance: Duration::from_secs(3600),
            omission: None,
        }
    }
}

pub fn uuid_of(volume: VolumeId) -> Uuid {
    let mut uuid = [7; 16];
    uuid[15] = volume.0 as u8;
    Uuid(uuid)
}

pub fn group_of(volume: VolumeId) -> GroupId {
    GroupId(volume.0 as u32 + 1)
}

struct Link {
    ends: [(usize, InstanceId); 2],
    up: bool,
}

enum Event {
    Reply(StoreTicket, StoreReply),
    LinkUp(LinkId, InstanceId),
    LinkDown(LinkId),
    Refused(InstanceId),
    Message(LinkId, LinkMessage<LinkPayload>),
    Notify(group::ObjectName),
}

pub struct Cluster {
    pub plan: Plan,
    pub chance: SimRng,
    pub gateways: Vec<Gateway>,
    pub store: Store,
    pub images: BTreeMap<VolumeId, Arc<Image>>,
    links: BTreeMap<LinkId, Link>,
    /// What reaches each gateway, in order, with its tick.
    inbox: Vec<VecDeque<(u64, InstanceId, Event)>>,
    requests: Vec<(u64, usize, InstanceId, StoreTicket, group::StoreRequest)>,
    tick: u64,
    instances: u64,
    made: u64,
}

impl Cluster {
    /// Gateways that have found each other, and serve all volumes.
    pub fn new(plan: Plan) -> Cluster {
        let images: BTreeMap<VolumeId, Arc<Image>> =
            (0..plan.volumes).map(|volume| (VolumeId(volume as u64), Image::new(BLOCKS))).collect();
        let mut store = Store::default();
        store.images = images.iter().map(|(id, image)| (uuid_of(*id), image.clone())).collect();
        let mut cluster = Cluster {
            chance: SimRng::new(plan.seed ^ 0xc1),
            gateways: Vec::new(),
            store,
            images,
            links: BTreeMap::new(),
            inbox: (0..plan.gateways).map(|_| VecDeque::new()).collect(),
            requests: Vec::new(),
            tick: 0,
            instances: 0,
            made: 0,
            plan,
        };
        for number in 0..cluster.plan.gateways {
            let gateway = cluster.start(number);
            cluster.gateways.push(gateway);
        }
        cluster.until("all groups to be served", |cluster| cluster.is_whole());
        cluster
    }

    fn start(&mut self, number: usize) -> Gateway {
        self.instances += 1;
        let instance = InstanceId(self.instances);
        self.store.running.insert(instance);
        let now = self.gateways.first().map_or_else(Default::default, Gateway::now);
        Gateway::new(&self.plan, number, instance, now, &self.images)
    }

    /// A process that has ended is started again, as another instance.
    pub fn restart(&mut self, number: usize) {
        let now = self.gateways.iter().map(Gateway::now).max().expect("there are gateways");
        self.instances += 1;
        let instance = InstanceId(self.instances);
        self.store.running.insert(instance);
        self.gateways[number] = Gateway::new(&self.plan, number, instance, now, &self.images);
    }

    /// Whether every volume has one owner, and each gateway that runs a path to it.
    pub fn is_whole(&self) -> bool {
        self.images.keys().all(|volume| {
            let runs = || self.gateways.iter().filter(|gateway| !gateway.ended && !gateway.stopped);
            let served = runs().filter(|gateway| gateway.member.serves(group_of(*volume)).is_some()).count();
            let reached = runs().all(|gateway| {
                let serves = gateway.member.serves(group_of(*volume)).is_some();
                let wanted =
                    if serves { group::PathState::Optimized } else { group::PathState::NonOptimized };
                gateway.path(*volume) == Some(wanted)
            });
            served == 1 && reached
        })
    }

    /// The gateway that owns a volume.
    pub fn owner(&self, volume: VolumeId) -> usize {
        let serves = |gateway: &Gateway| !gateway.ended && gateway.member.serves(group_of(volume)).is_some();
        self.gateways.iter().position(serves).expect("the volume is served")
    }

    /// A process ends, or stops without a word.
    pub fn kill(&mut self, number: usize, silent: bool) {
        let gateway = &mut self.gateways[number];
        (gateway.stopped, gateway.ended) = (true, !silent);
        if !silent {
            let instance = self.gateways[number].instance;
            self.store.running.remove(&instance);
            // What it had not sent yet is lost.
            self.requests.retain(|(_, _, by, ..)| *by != instance);
            self.drop_links_of(number);
        }
    }

    /// One that was stopped goes on.
    pub fn wake(&mut self, number: usize) {
        let now = self.gateways.iter().filter(|gateway| !gateway.stopped).map(Gateway::now).max();
        let gateway = &mut self.gateways[number];
        gateway.stopped = false;
        // Its clock has gone on; what its disks have done meanwhile it hears of now.
        let behind = now.expect("another runs").since(gateway.now());
        gateway.run(behind);
    }

    fn drop_links_of(&mut self, number: usize) {
        let tick = self.tick;
        for (id, link) in &mut self.links {
            if link.up && link.ends.iter().any(|(gateway, _)| *gateway == number) {
                link.up = false;
                for (gateway, instance) in link.ends {
                    self.inbox[gateway].push_back((tick + 2, instance, Event::LinkDown(*id)));
                }
            }
        }
    }

    /// The link between two gateways is lost.
    pub fn cut(&mut self, one: usize, other: usize) {
        let tick = self.tick;
        for (id, link) in &mut self.links {
            let between = link.ends.iter().all(|(gateway, _)| *gateway == one || *gateway == other);
            if link.up && between {
                link.up = false;
                for (gateway, instance) in link.ends {
                    self.inbox[gateway].push_back((tick + 2, instance, Event::LinkDown(*id)));
                }
            }
        }
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        for _ in 0..2_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        let states: Vec<_> = self.gateways.iter().map(|gateway| (gateway.stopped, gateway.ended)).collect();
        panic!("seed {}: waited too long for {what}: {states:?}", self.plan.seed);
    }

    pub fn run_for(&mut self, time: Duration) {
        for _ in 0..time.as_nanos() / TICK.as_nanos() {
            self.step();
        }
    }

    /// All gateways work for one tick, and then hear of what is due.
    pub fn step(&mut self) {
        self.tick += 1;
        for number in 0..self.gateways.len() {
            self.gateways[number].run(TICK);
        }
        for number in 0..self.gateways.len() {
            self.deliver(number);
            self.carry_out(number);
        }
        self.run_store();
    }

    fn deliver(&mut self, number: usize) {
        if self.gateways[number].stopped {
            return;
        }
        while self.inbox[number].front().is_some_and(|(at, ..)| *at <= self.tick) {
            let Some((_, instance, event)) = self.inbox[number].pop_front() else { return };
            let gateway = &mut self.gateways[number];
            if gateway.instance != instance || gateway.ended {
                continue;
            }
            let now = gateway.now();
            match event {
                Event::Reply(ticket, reply) => gateway.member.handle_reply(now, ticket, reply),
                Event::Notify(object) => gateway.member.handle_notification(now, object),
                Event::LinkUp(link, other) => gateway.member.handle_link_up(now, link, other),
                Event::LinkDown(link) => gateway.member.handle_link_down(now, link),
                Event::Refused(other) => gateway.member.handle_refused(now, other),
                Event::Message(link, message) => gateway.member.handle_link_message(now, link, message),
            }
            gateway.run_outputs();
        }
    }

    fn carry_out(&mut self, number: usize) {
        let by = self.gateways[number].instance;
        for want in std::mem::take(&mut self.gateways[number].wants) {
            match want {
                Want::Store(ticket, request) => {
                    let at = self.tick + self.chance.between(1, 8);
                    self.requests.push((at, number, by, ticket, request));
                }
                Want::Connect(to) => self.connect(number, by, to),
                Want::CloseLink(link) => {
                    let Some(known) = self.links.get_mut(&link).filter(|known| known.up) else { continue };
                    known.up = false;
                    let (gateway, instance) = known.ends[usize::from(known.ends[0].1 == by)];
                    self.inbox[gateway].push_back((self.tick + 2, instance, Event::LinkDown(link)));
                }
                Want::Send(link, message) => {
                    let Some(known) = self.links.get(&link).filter(|known| known.up) else { continue };
                    let (gateway, instance) = known.ends[usize::from(known.ends[0].1 == by)];
                    self.inbox[gateway].push_back((self.tick + 2, instance, Event::Message(link, message)));
                }
                Want::Ended => {
                    self.store.running.remove(&by);
                    self.drop_links_of(number);
                }
            }
        }
    }

    fn connect(&mut self, number: usize, by: InstanceId, to: InstanceId) {
        let other = self.gateways.iter().position(|gateway| gateway.instance == to && !gateway.ended);
        let Some(other) = other else {
            return self.inbox[number].push_back((self.tick + 2, by, Event::Refused(to)));
        };
        let linked = self
            .links
            .values()
            .any(|link| link.up && link.ends.iter().all(|(_, instance)| *instance == by || *instance == to));
        if linked || self.gateways[other].stopped {
            return;
        }
        self.made += 1;
        let link = LinkId(self.made);
        self.links.insert(link, Link { ends: [(number, by), (other, to)], up: true });
        self.inbox[number].push_back((self.tick + 2, by, Event::LinkUp(link, to)));
        self.inbox[other].push_back((self.tick + 2, to, Event::LinkUp(link, by)));
    }

    fn run_store(&mut self) {
        let (due, later) =
            std::mem::take(&mut self.requests).into_iter().partition(|(at, ..)| *at <= self.tick);
        self.requests = later;
        let due: Vec<(u64, usize, InstanceId, StoreTicket, group::StoreRequest)> = due;
        for (_, number, by, ticket, request) in due {
            if self.store.cut.contains(&by) {
                self.inbox[number].push_back((
                    self.tick + 10_000,
                    by,
                    Event::Reply(ticket, StoreReply::Unknown),
                ));
                continue;
            }
            if let group::StoreRequest::Notify(object) = request {
                for (inbox, gateway) in self.inbox.iter_mut().zip(&self.gateways) {
                    inbox.push_back((self.tick + 2, gateway.instance, Event::Notify(object)));
                }
            }
            let reply = self.store.execute(by, request);
            self.inbox[number].push_back((self.tick + 1, by, Event::Reply(ticket, reply)));
        }
    }

    /// How often an operation was executed for a term that is over.
    pub fn stale(&self) -> u64 {
        self.images.values().map(|image| image.state().stale).sum()
    }
}
