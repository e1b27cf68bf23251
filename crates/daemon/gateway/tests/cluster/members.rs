//! The group's state machine on a real store: members join, share groups, lose one without a word, and hand over.
//! The links are queues in this process, and what is served is only noted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwire_gateway::{StoreEvent, VolumeImage};
use group::{
    Answer, Command, ExecutionId, GroupId, InstanceId, LinkId, LinkMessage, Member, MemberConfig, ObjectName,
    Output, RequestId, RestartCause, SavedRecord, StoreReply, StoreRequest, Term, Timing,
};
use volume::{Failure, Identity, Op, Outcome, PortId, Requester, Span, Uuid};

use crate::{Cluster, Opened, cluster, fresh, now, open};

const GROUPS: u32 = 2;

struct Gateway {
    opened: Opened,
    member: Member<u64>,
    /// What it serves, with the records that it was opened with.
    open: BTreeMap<GroupId, (Term, Vec<(Uuid, SavedRecord)>)>,
    stored: Vec<u64>,
    answers: Vec<(RequestId, bool)>,
    /// Which executions have come.
    executed: Vec<ExecutionId>,
    ended: Option<RestartCause>,
    /// It is stopped: nothing is taken from its store, and it does nothing.
    stopped: bool,
}

struct Group {
    gateways: Vec<Gateway>,
    volumes: BTreeMap<GroupId, Vec<Uuid>>,
    links: BTreeMap<LinkId, [InstanceId; 2]>,
    messages: VecDeque<(LinkId, InstanceId, LinkMessage<u64>)>,
    link: u64,
    images: BTreeMap<Uuid, VolumeImage>,
    name: String,
}

fn volume_of(group: u32) -> Uuid {
    Uuid([group as u8 + 1; 16])
}

impl Group {
    fn new(cluster: &Cluster) -> Group {
        let name = fresh("members");
        let volumes = (0..GROUPS).map(|group| (GroupId(group), vec![volume_of(group)])).collect();
        let images =
            (0..GROUPS).map(|group| (volume_of(group), cluster.image(&format!("{name}-{group}")))).collect();
        let (links, messages) = (BTreeMap::new(), VecDeque::new());
        Group { gateways: Vec::new(), volumes, links, messages, link: 0, images, name }
    }

    fn start(&mut self, cluster: &Cluster, state: u8) -> usize {
        let opened = open(cluster, &self.name);
        opened.store.set_volumes(&self.images);
        let gateway: Arc<str> = format!("gateway{state}").into();
        let config = MemberConfig {
            instance: opened.store.instance(),
            gateway: gateway.clone(),
            state: Uuid([state; 16]),
            address: gateway,
            portals: "".into(),
            groups: self.volumes.clone(),
            timing: Timing::default(),
        };
        self.gateways.push(Gateway {
            opened,
            member: Member::new(config),
            open: BTreeMap::new(),
            stored: Vec::new(),
            answers: Vec::new(),
            executed: Vec::new(),
            ended: None,
            stopped: false,
        });
        self.gateways.len() - 1
    }

    fn of(&self, instance: InstanceId) -> Option<usize> {
        self.gateways.iter().position(|gateway| gateway.member.instance() == instance)
    }

    /// Everything that is there now, once.
    fn turn(&mut self) {
        for at in 0..self.gateways.len() {
            if !self.gateways[at].stopped {
                self.take_events(at);
                self.outputs(at);
            }
        }
        while let Some((link, to, message)) = self.messages.pop_front() {
            let Some(at) = self.of(to).filter(|at| !self.gateways[*at].stopped) else { continue };
            self.gateways[at].member.handle_link_message(now(), link, message);
            self.outputs(at);
        }
    }

    fn take_events(&mut self, at: usize) {
        let Gateway { opened, member, .. } = &mut self.gateways[at];
        opened.store.handle_timeout(now());
        while let Ok(event) = opened.events.try_recv() {
            match event {
                StoreEvent::Reply { ticket, reply } => member.handle_reply(now(), ticket, reply),
                StoreEvent::Changed(object) => member.handle_notification(now(), object),
                StoreEvent::ChangesMissed => {
                    let owners = (0..GROUPS).map(|group| ObjectName::Owner(GroupId(group)));
                    let all = [ObjectName::Members, ObjectName::Configuration, ObjectName::Allocations];
                    all.into_iter().chain(owners).for_each(|one| member.handle_notification(now(), one));
                }
                StoreEvent::Fenced => member.handle_fenced(now()),
                StoreEvent::Refused(why) => eprintln!("refused: {why}"),
            }
        }
        if member.poll_timeout().is_none_or(|until| until <= now()) {
            member.handle_timeout(now());
        }
    }

    fn outputs(&mut self, at: usize) {
        while let Some(output) = self.gateways[at].member.poll_output() {
            let me = self.gateways[at].member.instance();
            let gateway = &mut self.gateways[at];
            match output {
                Output::Store { ticket, request } => gateway.opened.store.ask(now(), ticket, request),
                Output::Connect { instance, .. } => self.connect(me, instance),
                Output::Send { link, message } => {
                    let ends = self.links.get(&link).copied();
                    let other = ends.and_then(|ends| ends.into_iter().find(|end| *end != me));
                    self.messages.extend(other.map(|other| (link, other, message)));
                }
                Output::Open { group, term, records } => drop(gateway.open.insert(group, (term, records))),
                Output::Quiesce { group, round } => gateway.member.handle_quiesced(now(), group, round),
                Output::Close(group) => drop(gateway.open.remove(&group)),
                Output::Execute { execution, .. } => {
                    gateway.executed.push(execution);
                    let answer = Answer::Io { result: Ok(Outcome::Complete), payload: None };
                    gateway.member.handle_executed(now(), execution, answer);
                }
                Output::Answer { id, result } => {
                    let good = matches!(result, Ok(Answer::Io { result: Ok::<_, Failure>(_), .. }));
                    gateway.answers.push((id, good));
                }
                Output::RecordStored { ticket, .. } => gateway.stored.push(ticket),
                Output::Restart(cause) => {
                    gateway.ended = Some(cause);
                    gateway.open.clear();
                }
                Output::Damaged { object, damage } => panic!("{object:?}: {damage}"),
                Output::CloseLink(link) => drop(self.links.remove(&link)),
                _ => {}
            }
        }
    }

    fn connect(&mut self, me: InstanceId, other: InstanceId) {
        let Some(to) = self.of(other).filter(|to| !self.gateways[*to].stopped) else { return };
        if self.links.values().any(|ends| ends.contains(&me) && ends.contains(&other)) {
            return;
        }
        self.link += 1;
        let link = LinkId(self.link);
        self.links.insert(link, [me, other]);
        let from = self.of(me).unwrap();
        self.gateways[from].member.handle_link_up(now(), link, other);
        self.gateways[to].member.handle_link_up(now(), link, me);
    }

    fn until(&mut self, what: &str, mut is: impl FnMut(&Group) -> bool) -> Duration {
        let begun = Instant::now();
        while !is(self) {
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
            assert!(begun.elapsed() < Duration::from_secs(90), "{what}: {:?}", self.state());
        }
        begun.elapsed()
    }

    fn state(&self) -> Vec<(InstanceId, Vec<GroupId>, Option<RestartCause>)> {
        let state = self.gateways.iter().map(|gateway| {
            (gateway.member.instance(), gateway.open.keys().copied().collect(), gateway.ended)
        });
        state.collect()
    }

    fn owner(&self, group: u32) -> Option<usize> {
        let mut owners = self
            .gateways
            .iter()
            .enumerate()
            .filter(|(_, gateway)| !gateway.stopped && gateway.open.contains_key(&GroupId(group)));
        let owner = owners.next().map(|(at, _)| at);
        assert!(owners.next().is_none(), "two gateways serve group {group}: {:?}", self.state());
        owner
    }

    fn are_all_served(&self) -> bool {
        (0..GROUPS).all(|group| self.owner(group).is_some())
    }
}

fn requester() -> Requester {
    let identity = Identity::Host([5; 16]);
    Requester { identity: Arc::new(identity), port: PortId(1), read_only: false }
}

#[test]
fn members_take_over_hand_over_and_keep_records_on_a_cluster() {
    let Some(cluster) = cluster() else { return };
    let mut group = Group::new(&cluster);
    let first = group.start(&cluster, 1);
    let served = group.until("one member serves all", Group::are_all_served);
    println!("the first gateway serves both groups after {served:?}");
    // Its record, and a second gateway, to which a group is moved for balance, with the disk's lock.
    let (term, records) = group.gateways[first].open[&GroupId(0)].clone();
    assert_eq!(records, [(volume_of(0), Ok(None))]);
    group.gateways[first].member.store_record(now(), volume_of(0), term, 7, b"reservations");
    group.until("the record is durable", |group| group.gateways[first].stored == [7]);
    let second = group.start(&cluster, 2);
    group.until("each has one", |group| group.gateways[second].open.len() == 1 && group.are_all_served());
    let moved = group.gateways[second].open.keys().next().unwrap().0;
    assert!(group.gateways[second].opened.store.image(volume_of(moved)).is_some());
    // A command of a host at the one is executed at the other.
    let read = || Command::Io { op: Op::Read(Span { lba: 0, blocks: 1 }), payload: None };
    group.gateways[first].member.submit(now(), RequestId(1), volume_of(moved), requester(), read());
    group.until("it is answered", |group| group.gateways[first].answers == [(RequestId(1), true)]);
    assert_eq!(group.gateways[second].executed.len(), 1);

    // The first is stopped without a word, with the other group: it is barred and its lock broken.
    let kept = 1 - moved;
    group.gateways[first].stopped = true;
    let others = group.until("the survivor serves all", |group| {
        (0..GROUPS).all(|number| group.owner(number) == Some(second))
    });
    println!("a gateway that is stopped is replaced after {others:?}");
    let (later, _) = group.gateways[second].open[&GroupId(kept)];
    let (_, records) = group.gateways[second].open[&GroupId(0)].clone();
    assert_eq!(records, [(volume_of(0), Ok(Some(Arc::from(&b"reservations"[..]))))]);
    assert!(later > group.gateways[first].open[&GroupId(kept)].0);

    // Woken, it finds itself barred, serves nothing, and can write neither an object nor a record.
    let version = match group.gateways[second].opened.ask(StoreRequest::Read(ObjectName::Members)) {
        StoreReply::Contents { version, .. } => version,
        other => panic!("{other:?}"),
    };
    let value = b"late".to_vec();
    let late = StoreRequest::Swap { object: ObjectName::Members, expected: version, value };
    assert_eq!(group.gateways[first].opened.ask(late), StoreReply::Fenced);
    group.gateways[first].stopped = false;
    group.until("it ends", |group| group.gateways[first].ended.is_some());
    assert!(
        matches!(group.gateways[first].ended, Some(RestartCause::Blocklisted | RestartCause::Expelled)),
        "{:?}",
        group.gateways[first].ended
    );

    // It starts again as another instance; the other one is drained onto it.
    let third = group.start(&cluster, 1);
    group.until("it is a member", |group| !group.gateways[third].open.is_empty());
    group.gateways[second].member.drain(now());
    let drained =
        group.until("it has all", |group| (0..GROUPS).all(|number| group.owner(number) == Some(third)));
    println!("a gateway is drained after {drained:?}");
    assert_eq!(group.gateways[second].ended, None);
    let (_, records) = group.gateways[third].open[&GroupId(0)].clone();
    assert_eq!(records, [(volume_of(0), Ok(Some(Arc::from(&b"reservations"[..]))))]);
}
