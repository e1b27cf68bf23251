//! Instances that run, with real sockets on loopback and a store in memory: they find each other, forward, take over
//! what was killed or stopped, hand over, and refuse connections of strangers.

mod proxy;
mod store;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blockwire_gateway::{
    GroupKey, GroupStatus, GroupTarget, Inbox, LinkContext, Runtime, RuntimeConfig, RuntimeRequest,
    RuntimeWarning,
};
use group::{
    Answer, Command, ExecutionId, GroupId, InstanceId, LinkPayload, MemberConfig, Output, PathError,
    PathState, RequestId, RestartCause, Snapshot, Term, Timing,
};
use proxy::Proxy;
use store::Shared;
use volume::{Durability, Geometry, Identity, Op, Outcome, PortId, Requester, Span, Uuid};

const GROUPS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(20);

/// What an instance's target was told.
#[derive(Default)]
struct Told {
    open: BTreeMap<GroupId, Term>,
    paths: BTreeMap<GroupId, PathState>,
    answers: BTreeMap<u64, Result<Answer<LinkPayload>, PathError>>,
    executed: Vec<u64>,
    shown: BTreeMap<Uuid, Vec<u8>>,
    warnings: Vec<RuntimeWarning>,
    restart: Option<RestartCause>,
    /// Executions are kept, and not answered.
    holds: bool,
    held: Vec<ExecutionId>,
    /// The runtime's thread stops for so long, once.
    freeze: Option<Duration>,
}

struct Target {
    told: Arc<Mutex<Told>>,
    inbox: Inbox,
}

fn volume_of(group: GroupId) -> Uuid {
    Uuid([group.0 as u8; 16])
}

impl GroupTarget for Target {
    fn handle_output(&mut self, output: Output<LinkPayload>) {
        let mut told = self.told.lock().unwrap();
        match output {
            Output::Open { group, term, .. } => {
                told.open.insert(group, term);
                let record: Arc<[u8]> = term.0.to_le_bytes().as_slice().into();
                let snapshot = Snapshot { geometry: Geometry { blocks: 9, ..Geometry::UNKNOWN }, record };
                let volume = volume_of(group);
                self.inbox.post(RuntimeRequest::Publish { volume, term, snapshot, notices: Vec::new() });
            }
            Output::Quiesce { group, round } => {
                assert!(self.inbox.post(RuntimeRequest::Quiesced { group, round }))
            }
            Output::Close(group) => drop(told.open.remove(&group)),
            Output::Execute { execution, command, .. } => {
                let Command::Io { op, payload } = command else { panic!("{command:?}") };
                told.executed.push(u64::from(op.is_write()));
                if told.holds {
                    return told.held.push(execution);
                }
                let answer = Answer::Io { result: Ok(Outcome::Complete), payload };
                self.inbox.post(RuntimeRequest::Executed { execution, answer });
            }
            Output::Answer { id, result } => {
                let twice = told.answers.insert(id.0, result);
                assert!(twice.is_none(), "a command is answered once");
            }
            Output::Path { group, state } => drop(told.paths.insert(group, state)),
            Output::Snapshot { volume, snapshot, .. } => {
                drop(told.shown.insert(volume, snapshot.record.to_vec()))
            }
            Output::Restart(cause) => {
                told.open.clear();
                told.restart = Some(cause);
            }
            Output::Damaged { object, damage } => panic!("{object:?}: {damage}"),
            _ => {}
        }
        if let Some(pause) = told.freeze.take() {
            drop(told);
            thread::sleep(pause);
        }
    }

    fn warn(&mut self, what: RuntimeWarning) {
        self.told.lock().unwrap().warnings.push(what);
    }
}

struct Gateway {
    runtime: Option<Runtime>,
    told: Arc<Mutex<Told>>,
    instance: InstanceId,
    inbox: Inbox,
    /// Where it listens.
    address: SocketAddr,
    proxy: Option<Proxy>,
}

impl Gateway {
    fn start(store: &Shared, state: u8, key: u8, proxied: bool) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = proxied.then(|| Proxy::to(address));
        let advertised = proxy.as_ref().map_or(address, |proxy| proxy.address);
        let inbox = Inbox::new().unwrap();
        let client = store.connect(&inbox);
        let instance = client.instance;
        let name = "g".parse().unwrap();
        let member = MemberConfig {
            instance,
            gateway: format!("gateway{state}").into(),
            state: Uuid([state; 16]),
            address: advertised.to_string().into(),
            portals: "".into(),
            groups: groups(),
            timing: Timing::default(),
        };
        let links = LinkContext::new(instance, &name, &GroupKey::new([key; 32])).unwrap();
        let told: Arc<Mutex<Told>> = Arc::default();
        let target = Target { told: told.clone(), inbox: inbox.clone() };
        let config = RuntimeConfig { member, links, listener };
        let runtime = Some(Runtime::start(config, inbox.clone(), client, target).unwrap());
        Gateway { runtime, told, instance, inbox, address, proxy }
    }

    fn kill(&mut self) {
        self.runtime = None;
        self.told.lock().unwrap().open.clear();
    }

    fn status(&self) -> GroupStatus {
        let (tell, told) = sync_channel(1);
        assert!(self.inbox.post(RuntimeRequest::Status(tell)));
        told.recv_timeout(PATIENCE).unwrap()
    }

    fn opens(&self, group: GroupId) -> bool {
        self.told.lock().unwrap().open.contains_key(&group)
    }

    fn owned(&self) -> usize {
        self.told.lock().unwrap().open.len()
    }

    fn path(&self, group: GroupId) -> Option<PathState> {
        self.told.lock().unwrap().paths.get(&group).copied()
    }

    fn submit(&self, id: u64, group: GroupId, command: Command<LinkPayload>) {
        let who =
            Requester { identity: Arc::new(Identity::Host([5; 16])), port: PortId(1), read_only: false };
        let volume = volume_of(group);
        assert!(self.inbox.post(RuntimeRequest::Submit { id: RequestId(id), volume, who, command }));
    }

    fn answer(&self, id: u64) -> Option<Result<Answer<LinkPayload>, PathError>> {
        self.told.lock().unwrap().answers.remove(&id)
    }

    fn wait_answer(&self, id: u64) -> Result<Answer<LinkPayload>, PathError> {
        let mut answer = None;
        until("an answer", || {
            answer = self.answer(id);
            answer.is_some()
        });
        answer.unwrap()
    }
}

fn groups() -> BTreeMap<GroupId, Vec<Uuid>> {
    (1..=GROUPS).map(GroupId).map(|group| (group, vec![volume_of(group)])).collect()
}

/// Waits until `second`, which has just started, is linked to the owner of group 1 and no other link replaces that one:
/// both ends may have connected at once, and what was sent by the link that goes is in doubt.
fn wait_linked(second: &Gateway) {
    until("they are linked", || second.path(GroupId(1)) == Some(PathState::NonOptimized));
    thread::sleep(Duration::from_millis(1500));
}

fn until(what: &str, mut is: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

fn write(byte: u8, len: usize) -> Command<LinkPayload> {
    let op = Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached);
    Command::Io { op, payload: Some(LinkPayload(vec![byte; len].into())) }
}

fn read() -> Command<LinkPayload> {
    Command::Io { op: Op::Read(Span { lba: 0, blocks: 1 }), payload: None }
}

/// Each group has one owner, and the others are linked to it.
fn are_served(gateways: &[&Gateway]) -> bool {
    (1..=GROUPS).map(GroupId).all(|group| {
        let owners = gateways.iter().filter(|one| one.opens(group)).count();
        let paths = gateways.iter().filter(|one| one.path(group) == Some(PathState::NonOptimized)).count();
        owners == 1 && paths == gateways.len() - 1
    })
}

fn owner<'a>(gateways: &[&'a Gateway], group: GroupId) -> &'a Gateway {
    gateways.iter().find(|one| one.opens(group)).unwrap()
}

#[test]
fn gateways_that_start_together_link_once_and_forward() {
    for _ in 0..5 {
        let store = Shared::default();
        let all: Vec<Gateway> = (1..=3).map(|state| Gateway::start(&store, state, 1, false)).collect();
        let all: Vec<&Gateway> = all.iter().collect();
        until("all are linked", || are_served(&all));
        let linked = || all.iter().all(|one| one.status().linked.len() == 2);
        until("each has one link to each other", linked);
        for (at, gateway) in all.iter().enumerate() {
            for number in 0..20 {
                let id = at as u64 * 100 + number;
                gateway.submit(id, GroupId(1), write(number as u8, 300_000));
            }
            for number in 0..20 {
                let answer = gateway.wait_answer(at as u64 * 100 + number);
                let Ok(Answer::Io { result: Ok(Outcome::Complete), payload: Some(payload) }) = answer else {
                    panic!("{answer:?}")
                };
                assert!(payload.0.len() == 300_000 && payload.0.iter().all(|byte| *byte == number as u8));
            }
        }
        let owner = owner(&all, GroupId(1));
        assert_eq!(owner.told.lock().unwrap().executed.len(), 60);
        let others = all.iter().filter(|one| one.instance != owner.instance);
        others.for_each(|one| {
            until("it is shown the volume", || {
                one.told.lock().unwrap().shown.contains_key(&volume_of(GroupId(1)))
            });
        });
    }
}

#[test]
fn what_a_killed_gateway_owned_is_served_at_once() {
    let store = Shared::default();
    let mut first = Gateway::start(&store, 1, 1, false);
    until("the first serves all", || first.owned() == 2);
    let second = Gateway::start(&store, 2, 1, false);
    until("they are linked", || second.path(GroupId(1)) == Some(PathState::NonOptimized));
    first.kill();
    let gap = until("the second serves all", || second.owned() == 2);
    assert!(store.is_barred(first.instance));
    assert!(gap < Duration::from_millis(1500), "a reset is noticed before silence is: {gap:?}");
    println!("a gateway that was killed is replaced after {gap:?}");
    second.submit(1, GroupId(1), read());
    assert!(second.wait_answer(1).is_ok());

    // It starts again as another instance, and gets a group when nothing has changed for 5 s.
    let third = Gateway::start(&store, 1, 1, false);
    until("balance", || are_served(&[&second, &third]) && third.owned() == 1);
    assert!(third.instance != first.instance && !store.is_barred(third.instance));
}

#[test]
fn a_gateway_that_stands_still_is_replaced_and_starts_again() {
    let store = Shared::default();
    let first = Gateway::start(&store, 1, 1, false);
    until("the first serves all", || first.owned() == 2);
    let second = Gateway::start(&store, 2, 1, false);
    until("they are linked", || second.path(GroupId(2)) == Some(PathState::NonOptimized));
    first.told.lock().unwrap().freeze = Some(Duration::from_secs(5));
    first.submit(7, GroupId(1), read());
    let gap = until("the second serves all", || second.owned() == 2);
    println!("a gateway that stands still is replaced after {gap:?}");
    assert!(
        gap > Duration::from_millis(1400) && gap < Duration::from_secs(4),
        "after 2 s of silence: {gap:?}"
    );
    until("the first learns of it", || first.told.lock().unwrap().restart.is_some());
    let cause = first.told.lock().unwrap().restart;
    assert!(matches!(cause, Some(RestartCause::Blocklisted | RestartCause::Expelled)), "{cause:?}");
    until("its thread ends", || first.runtime.as_ref().unwrap().has_ended());
    assert!(!first.inbox.post(RuntimeRequest::Fenced), "it takes nothing any more");
    // Who asked is told that there is no answer.
    assert!(second.status().members.iter().any(|one| one.instance == first.instance));
}

#[test]
fn a_drain_hands_all_over_and_commands_go_on() {
    let store = Shared::default();
    let first = Gateway::start(&store, 1, 1, false);
    until("the first serves all", || first.owned() == 2);
    let second = Gateway::start(&store, 2, 1, false);
    wait_linked(&second);
    let (tell, told) = sync_channel(1);
    let begun = Instant::now();
    assert!(first.inbox.post(RuntimeRequest::Drain(tell)));
    for id in 0..50 {
        first.submit(id, GroupId(1 + (id % 2) as u32), write(1, 4096));
        thread::sleep(Duration::from_micros(200));
    }
    told.recv_timeout(PATIENCE).unwrap();
    println!("a gateway is drained after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    (0..50).for_each(|id| assert_eq!(first.wait_answer(id).err(), None, "command {id}"));
    assert_eq!((first.owned(), second.owned()), (0, 2));
    assert!(!store.is_barred(first.instance) && first.told.lock().unwrap().restart.is_none());
    assert_eq!(second.status().members.iter().filter(|one| one.draining).count(), 1);
}

#[test]
fn a_link_that_is_cut_is_made_again_and_leaves_no_command_without_an_answer() {
    let store = Shared::default();
    let first = Gateway::start(&store, 1, 1, true);
    until("the first serves all", || first.owned() == 2);
    let second = Gateway::start(&store, 2, 1, true);
    wait_linked(&second);
    first.told.lock().unwrap().holds = true;
    second.submit(1, GroupId(1), write(1, 4096));
    second.submit(2, GroupId(1), read());
    until("both are in execution", || first.told.lock().unwrap().held.len() == 2);
    [&first, &second].into_iter().for_each(|one| one.proxy.as_ref().unwrap().cut());
    // The read is sent again, the write is not, and is not answered while it may still be executed.
    // More than once, if both ends connect at the same time and one of the two links stays.
    until("the read has come again", || first.told.lock().unwrap().held.len() >= 3);
    thread::sleep(Duration::from_millis(100));
    assert!(second.answer(1).is_none(), "a write is in doubt while it is executed");
    first.told.lock().unwrap().holds = false;
    for execution in std::mem::take(&mut first.told.lock().unwrap().held) {
        let answer = Answer::Io { result: Ok(Outcome::Complete), payload: None };
        first.inbox.post(RuntimeRequest::Executed { execution, answer });
    }
    assert_eq!(second.wait_answer(1).err(), Some(PathError::InDoubt));
    assert!(second.wait_answer(2).is_ok());
    assert!(first.told.lock().unwrap().restart.is_none() && first.owned() == 2, "nothing was taken over");
}

#[test]
fn strangers_keep_no_gateway_out_and_are_shown_the_door() {
    let store = Shared::default();
    let first = Gateway::start(&store, 1, 1, false);
    until("the first serves all", || first.owned() == 2);
    let begun = Instant::now();
    let mut silent: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(first.address).unwrap()).collect();
    let mut loud = TcpStream::connect(first.address).unwrap();
    let _ = loud.write_all(&[b'x'; 40_000]);
    let second = Gateway::start(&store, 2, 1, false);
    until("they are linked", || second.path(GroupId(1)) == Some(PathState::NonOptimized));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    // Most were displaced at once, the last ones end when their time is over.
    let mut byte = [0; 64];
    for stranger in &mut silent {
        stranger.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let end = stranger.read(&mut byte);
        assert!(!matches!(&end, Ok(count) if *count > 0), "nothing is said to a stranger: {end:?}");
        let ended = end.is_ok() || end.is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(ended, "a silent stranger is let go");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // One with another key takes no part, and finds the group in no hurry.
    let third = Gateway::start(&store, 3, 9, false);
    until("it is told why", || {
        let told = third.told.lock().unwrap();
        told.warnings.iter().any(|one| matches!(one, RuntimeWarning::Link(..)))
    });
    thread::sleep(Duration::from_secs(1));
    assert!(third.status().linked.is_empty() && second.status().linked.len() == 1);
}
