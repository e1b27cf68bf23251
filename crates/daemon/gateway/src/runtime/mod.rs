//! An instance of a gateway that runs: a thread that has the member, the sockets of its links, and what the store tells.
//!
//! ```text
//!  shards, operator ──► Inbox ──►  thread: Member  ──► GroupTarget (the daemon: what hosts are served)
//!             store ──► Inbox ──►    │  ▲   │
//!                                 Sockets   └──► MemberStore (requests)
//! ```
//!
//! Invariants:
//! - All of the member happens on one thread; nothing that it calls waits for the network, a disk or another thread.
//! - The target hears what concerns it in the order in which the member has put it out. After
//!   [`Output::Restart`] it hears nothing.

mod inbox;
mod sockets;
mod status;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use buf::Time;
use group::{
    GroupId, InstanceId, LinkId, LinkPayload, Member, MemberConfig, ObjectName, Output, PathState, PortError,
    RequestId, StoreRequest, StoreTicket, Timing,
};
use volume::{PortId, Uuid};

use crate::link::{LinkContext, LinkFault};
use crate::store::{GroupStore, StoreEvent};
use inbox::Input;
pub use inbox::{Inbox, RuntimeRequest};
use sockets::{SocketEvent, Sockets};
pub use status::{GroupCounters, GroupEntry, GroupStatus};

/// The store as an instance asks it; its replies come by the inbox.
pub trait MemberStore: Send {
    /// See [`GroupStore::ask`].
    fn ask(&mut self, now: Time, ticket: StoreTicket, request: StoreRequest);
    /// See [`GroupStore::poll_timeout`].
    fn poll_timeout(&self) -> Option<Time>;
    /// See [`GroupStore::handle_timeout`].
    fn handle_timeout(&mut self, now: Time);
}

impl MemberStore for Arc<GroupStore> {
    fn ask(&mut self, now: Time, ticket: StoreTicket, request: StoreRequest) {
        GroupStore::ask(self, now, ticket, request);
    }

    fn poll_timeout(&self) -> Option<Time> {
        GroupStore::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Time) {
        GroupStore::handle_timeout(self, now);
    }
}

/// What this gateway serves to its hosts. Called by the runtime's thread; it must not wait.
pub trait GroupTarget: Send {
    /// Something for the target: `Open`, `Quiesce`, `Close`, `Execute`, `Cancel`, `Answer`, `Path`, `Snapshot`, `Notices`,
    /// `NoticesLost`, `RecordStored`, `ResetController`, `ControllerReset`, `HostBound`, `ControllerIds`, `NoControllerIds`, `Configuration`, `NotDrained`, `Damaged`,
    /// `Restart`. No others come.
    fn handle_output(&mut self, output: Output<LinkPayload>);

    /// A line for the log: a link that failed, what the store refuses.
    fn warn(&mut self, what: RuntimeWarning);
}

/// What an operator should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeWarning {
    /// A link has ended.
    Link(SocketAddr, LinkFault),
    /// The cluster refuses something. It is asked for again.
    Store(String),
    /// A member is named with an address that is none.
    Address(Arc<str>),
    /// The system refuses what the runtime cannot do without.
    System(String),
}

/// With what an instance is started.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// Who it is.
    pub member: MemberConfig,
    /// What all its links have in common.
    pub links: LinkContext,
    /// Where other gateways connect to.
    pub listener: TcpListener,
}

/// An instance that runs. Dropping it ends it without a word to others.
#[derive(Debug)]
pub struct Runtime {
    inbox: Inbox,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Starts an instance, which joins its group.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn start(
        config: RuntimeConfig,
        inbox: Inbox,
        store: impl MemberStore + 'static,
        target: impl GroupTarget + 'static,
    ) -> io::Result<Runtime> {
        let RuntimeConfig { member, links, listener } = config;
        let sockets = Sockets::new(member.instance, links, listener, inbox.bell())?;
        let (timing, groups) = (member.timing, member.groups.clone());
        let mut driver = Driver {
            clock: Clock(Instant::now()),
            member: Member::new(member),
            sockets,
            store,
            target,
            inbox: inbox.clone(),
            timing,
            paths: BTreeMap::new(),
            groups,
            counters: GroupCounters::default(),
            numbers: 0,
            ports: BTreeMap::new(),
            drains: Vec::new(),
        };
        let thread = thread::Builder::new().name("gateway".to_owned()).spawn(move || driver.run())?;
        Ok(Runtime { inbox, thread: Some(thread) })
    }

    /// Where requests are put in.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether it has ended: by [`RuntimeRequest::End`], or after [`Output::Restart`].
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.inbox.post(RuntimeRequest::End);
        if let Some(thread) = self.thread.take() {
            // It has told of a panic on its own thread.
            let _ = thread.join();
        }
    }
}

/// Monotonic, from a start that is not zero: zero is before everything.
struct Clock(Instant);

impl Clock {
    fn now(&self) -> Time {
        Time(1_000_000_000) + self.0.elapsed()
    }
}

/// Whether the instance goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    On,
    End,
}

struct Driver<S, T> {
    clock: Clock,
    member: Member<LinkPayload>,
    sockets: Sockets,
    store: S,
    target: T,
    inbox: Inbox,
    timing: Timing,
    paths: BTreeMap<GroupId, PathState>,
    groups: BTreeMap<GroupId, Vec<Uuid>>,
    counters: GroupCounters,
    numbers: u64,
    ports: BTreeMap<RequestId, SyncSender<Result<PortId, PortError>>>,
    drains: Vec<SyncSender<()>>,
}

impl<S: MemberStore, T: GroupTarget> Driver<S, T> {
    fn run(&mut self) {
        let now = self.clock.now();
        self.member.handle_timeout(now);
        while self.turn() == Next::On {
            let now = self.clock.now();
            let times = [self.member.poll_timeout(), self.store.poll_timeout(), self.sockets.poll_timeout()];
            let limit = times.into_iter().flatten().min().map(|at| at.since(now));
            if let Err(why) = self.sockets.wait(limit) {
                self.target.warn(RuntimeWarning::System(why.to_string()));
                // Not in a circle.
                thread::sleep(self.timing.retry);
            }
        }
        self.inbox.end();
        // Who waits for an answer is told that there is none.
        self.ports.clear();
        self.drains.clear();
    }

    /// Does all that is due. Time is read again before each part: the member takes a gap between its calls for a pause of
    /// this process, and what came before is taken before the timers look at who is silent.
    fn turn(&mut self) -> Next {
        for input in self.inbox.take_all() {
            let now = self.clock.now();
            match input {
                Input::Store(event) => self.handle_store(now, event),
                Input::Request(RuntimeRequest::End) => return Next::End,
                Input::Request(request) => self.handle_request(now, request),
            }
        }
        if self.carry_out() == Next::End {
            return Next::End;
        }
        let now = self.clock.now();
        self.sockets.handle_ready(now);
        self.sockets.handle_timeout(now);
        self.handle_sockets(now);
        self.store.handle_timeout(now);
        if self.member.poll_timeout().is_some_and(|at| at <= now) {
            self.member.handle_timeout(now);
        }
        if self.carry_out() == Next::End {
            return Next::End;
        }
        self.sockets.flush(now);
        // Sending may have shown that a link is lost.
        self.handle_sockets(now);
        self.carry_out()
    }

    fn handle_sockets(&mut self, now: Time) {
        while let Some(event) = self.sockets.poll_event() {
            match event {
                SocketEvent::Up(link, instance) => self.member.handle_link_up(now, link, instance),
                SocketEvent::Message(link, message) => self.member.handle_link_message(now, link, message),
                SocketEvent::Down(link) => self.member.handle_link_down(now, link),
                SocketEvent::Refused(instance) => self.member.handle_refused(now, instance),
                SocketEvent::Failed(peer, fault) => self.target.warn(RuntimeWarning::Link(peer, fault)),
            }
        }
    }

    fn handle_store(&mut self, now: Time, event: StoreEvent) {
        match event {
            StoreEvent::Reply { ticket, reply } => self.member.handle_reply(now, ticket, reply),
            StoreEvent::Changed(object) => self.member.handle_notification(now, object),
            StoreEvent::ChangesMissed => {
                let all = [ObjectName::Members, ObjectName::Configuration, ObjectName::Allocations];
                let owners: Vec<ObjectName> = self.groups.keys().copied().map(ObjectName::Owner).collect();
                all.into_iter().chain(owners).for_each(|one| self.member.handle_notification(now, one));
            }
            StoreEvent::Fenced => self.member.handle_fenced(now),
            StoreEvent::Refused(why) => self.target.warn(RuntimeWarning::Store(why)),
        }
    }

    fn handle_request(&mut self, now: Time, request: RuntimeRequest) {
        let member = &mut self.member;
        match request {
            RuntimeRequest::Submit { id, volume, who, command } => {
                self.counters.submitted += 1;
                member.submit(now, id, volume, who, command);
            }
            RuntimeRequest::Cancel(id) => member.cancel(now, id),
            RuntimeRequest::Executed { execution, answer } => member.handle_executed(now, execution, answer),
            RuntimeRequest::Quiesced { group, round } => member.handle_quiesced(now, group, round),
            RuntimeRequest::StoreRecord { volume, term, ticket, bytes } => {
                member.store_record(now, volume, term, ticket, &bytes);
            }
            RuntimeRequest::Publish { volume, term, snapshot, notices } => {
                member.publish(now, volume, term, snapshot, notices);
            }
            RuntimeRequest::Fenced => member.handle_fenced(now),
            RuntimeRequest::SetGroups(groups) => {
                member.set_groups(now, &groups);
                self.groups = groups;
            }
            RuntimeRequest::AllocatePort(name, answer) => {
                self.numbers += 1;
                let id = RequestId(self.numbers);
                self.ports.insert(id, answer);
                member.allocate_port(now, id, &name);
            }
            RuntimeRequest::AllocateControllerIds => member.allocate_controller_ids(now),
            RuntimeRequest::BindHost(id, host, name) => member.bind_host(now, id, host, &name),
            RuntimeRequest::ReleaseHost(host) => member.release_host(now, host),
            RuntimeRequest::ResetController(id, controller) => member.reset_controller(now, id, controller),
            RuntimeRequest::ControllerReset(number, answer) => {
                member.handle_controller_reset(now, number, answer);
            }
            RuntimeRequest::Drain(told) => {
                self.drains.push(told);
                member.drain(now);
            }
            RuntimeRequest::Undrain => {
                self.drains.clear();
                member.undrain(now);
            }
            RuntimeRequest::Expel(instance) => member.expel(now, instance),
            RuntimeRequest::Forget(instance, answer) => {
                let _ = answer.try_send(member.forget(now, instance));
            }
            RuntimeRequest::Status(answer) => {
                let _ = answer.try_send(self.status());
            }
            RuntimeRequest::End => {}
        }
    }

    fn status(&self) -> GroupStatus {
        let groups = self.groups.iter().map(|(group, volumes)| GroupEntry {
            group: *group,
            volumes: volumes.clone(),
            ownership: self.member.ownership(*group).unwrap_or_default(),
            path: self.paths.get(group).copied(),
        });
        GroupStatus {
            instance: self.member.instance(),
            members: self.member.members().to_vec(),
            linked: self.sockets.linked(),
            groups: groups.collect(),
            counters: self.counters,
        }
    }

    /// Carries out what the member wants.
    fn carry_out(&mut self) -> Next {
        while let Some(output) = self.member.poll_output() {
            let now = self.clock.now();
            match output {
                Output::Store { ticket, request } => self.store.ask(now, ticket, request),
                Output::Connect { instance, address } => self.connect(now, instance, &address),
                Output::CloseLink(link) => self.sockets.close(link),
                Output::Send { link, message } => self.send(link, &message),
                Output::Port { id, result } => {
                    // Who asked may have lost patience.
                    let _ = self.ports.remove(&id).map(|answer| answer.try_send(result));
                }
                Output::Drained => self.drains.drain(..).for_each(|told| {
                    let _ = told.try_send(());
                }),
                // Nothing of this runtime applies a configuration.
                Output::Applied { .. } => {}
                Output::Restart(cause) => {
                    self.target.handle_output(Output::Restart(cause));
                    return Next::End;
                }
                output => {
                    self.note(&output);
                    self.target.handle_output(output);
                }
            }
        }
        Next::On
    }

    fn note(&mut self, output: &Output<LinkPayload>) {
        match output {
            Output::Path { group, state } => drop(self.paths.insert(*group, *state)),
            Output::Open { .. } => self.counters.opened += 1,
            Output::Close(_) => self.counters.closed += 1,
            Output::Execute { .. } => self.counters.executed += 1,
            Output::Answer { result: Err(_), .. } => self.counters.path_errors += 1,
            _ => {}
        }
    }

    fn connect(&mut self, now: Time, instance: InstanceId, address: &Arc<str>) {
        match address.parse() {
            Ok(address) => self.sockets.connect(now, instance, address),
            Err(_) => self.target.warn(RuntimeWarning::Address(address.clone())),
        }
    }

    fn send(&mut self, link: LinkId, message: &group::LinkMessage<LinkPayload>) {
        if let group::LinkMessage::Forward { .. } = message {
            self.counters.forwarded += 1;
        }
        self.sockets.send(link, message);
    }
}

/// How long an instance may take to hand its groups over when its daemon stops.
pub const DRAIN_TIME: Duration = Duration::from_secs(2);
