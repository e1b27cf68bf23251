//! A path to a namespace over NVMe/TCP (NVMe Base 2.0, NVMe-TCP 1.0), without I/O; and discovery.
//!
//! A path is an association with one controller: an admin queue for set-up, events and keep-alive, and I/O
//! queues. An operation goes to the I/O queue with the fewest in flight. Payload goes directly from and to
//! the caller's memory; once a path is up, reads and writes allocate nothing.
//!
//! Everything a controller sends is checked (`requests`, and the transport below), and every wait ends
//! ([`Times`]).
//!
//! **Loss.** When a connection is lost, or a command is not answered even after Abort, the path is down. All
//! its queues are closed with a reset, so that nothing left in our socket reaches the controller later. If
//! the admin queue still works, it resets the controller (CC.EN = 0, then RDY = 0); after that no command of
//! the association can run. Otherwise the path waits until the controller must have given up: twice the KATO,
//! or three times if any traffic keeps the association alive, plus its Command Quiesce Time (NVMe Base 2.1
//! §9.6). If the admin queue was closed in good order, the association has ended for the controller too, and
//! one KATO is enough. Less is not: a middlebox may have closed the connection, and a busy processor of the
//! controller may be late in reading its sockets.
//!
//! Invariants:
//! - Each operation ends once; [`Event::Down`] follows the last of them.
//! - A queue is used for operations only while the path is up.

mod admin_commands;
mod bringup;
mod discovery;
mod facts;
mod fence;
mod io_queues;
mod links;
mod operation;
mod operations;
mod queue_setup;
mod reasons;
mod reservation;
mod settings;
mod start;
mod status;
mod watch;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use endpoint::{CloseMode, Sockets};
use nvme::Cqe;
use stream::{Slab, Tag, earliest};
use volume::{IoId, Op};

use crate::trace::Trace;
use crate::{DownReason, Event, Path, Protocol, ReservationOp, VolumeInfo};

pub use discovery::{CONTROLLERS_MAX, Discovered, Discovery, DiscoveryReport, HOPS_MAX, RECORDS_MAX};
pub use settings::{DEPTH_MAX, QUEUES_MAX, Settings, Times};

use admin_commands::AdminCommands;
use bringup::{Bringup, Step};
use fence::Fence;
use io_queues::IoQueues;
use links::{LinkEvent, LinkLoss, Links, QueueId, by_links};
use operation::{Operation, PathFacts};
use queue_setup::{QueueSetup, SetupContext};
use watch::{ControllerWatch, Recheck};

/// How long it takes until memory or room is asked for again.
const RETRY: Duration = Duration::from_millis(1);

/// What an admin command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminPurpose {
    /// A step of the start.
    Step(Step),
    /// Something is looked at again.
    Recheck(Recheck),
    /// Told when something happens.
    Event,
    /// That both sides are there.
    KeepAlive,
    /// The end of an operation.
    Abort,
    /// EN = 0 was written, to fence.
    Disable,
    /// Whether RDY = 0.
    Disabled,
    /// SHN = 1 was written.
    Shutdown,
    /// Whether SHST says complete.
    ShutDown,
}

/// The life of a path.
#[derive(Debug)]
enum State {
    Down,
    /// It is coming up.
    Starting,
    Up,
    /// It ends in good order, at the latest at this time; `told`: the controller knows.
    Ending {
        until: Time,
        told: bool,
        next: Option<Time>,
    },
    /// It is lost; what was in work is coming back.
    Closing(DownReason),
}

/// A path to a namespace over NVMe/TCP.
#[derive(Debug)]
pub struct NvmePath {
    settings: Settings,
    links: Links,
    trace: Trace,
    events: VecDeque<Event>,
    state: State,
    /// Counts associations; of the current one if there is one.
    association: u32,
    /// Which of the addresses is tried.
    address: usize,
    setups: Vec<QueueSetup>,
    admin_commands: AdminCommands<AdminPurpose>,
    bringup: Bringup,
    known: Option<PathFacts>,
    info: Option<Arc<VolumeInfo>>,
    io_queues: IoQueues,
    operations: Slab<Operation>,
    /// Operations that wait for memory or for room.
    parked: VecDeque<Tag>,
    /// When operations are looked over for those that take too long.
    scan: Option<Time>,
    /// When something is tried again for which memory or time was short.
    retry: Option<Time>,
    watch: ControllerWatch,
    fence: Fence,
}

impl NvmePath {
    /// A path that is down.
    pub fn new(settings: Settings) -> Self {
        NvmePath {
            settings: settings.sane(),
            links: Links::default(),
            trace: Trace::off(),
            events: VecDeque::new(),
            state: State::Down,
            association: 0,
            address: 0,
            setups: Vec::new(),
            admin_commands: AdminCommands::new(),
            bringup: Bringup::default(),
            known: None,
            info: None,
            io_queues: IoQueues::default(),
            operations: Slab::new(0),
            parked: VecDeque::new(),
            scan: None,
            retry: None,
            watch: ControllerWatch::default(),
            fence: Fence::default(),
        }
    }

    /// What it was told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is said while it comes up, for who turned it on.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn admin(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn retry_at(&mut self, at: Time) {
        self.retry = earliest(self.retry, Some(at));
    }

    /// Takes what happened on a connection.
    fn handle_link_event(&mut self, cx: &mut Cx<'_>, who: QueueId, event: LinkEvent) {
        match event {
            LinkEvent::Dialled(dialled) => self.dialled(cx, who, dialled),
            LinkEvent::NotDialled(errno) => self.not_dialled(cx, who, errno),
            LinkEvent::Ready => self.join(cx, who, |setup, cx, context| setup.ready(cx, context)),
            LinkEvent::Completed(tag, cqe, payload) => self.completed(cx, who, tag, cqe, payload),
            LinkEvent::Broken(how) => self.broken(cx, who, how),
            LinkEvent::Closed => self.closed(cx, who),
        }
    }

    fn completed(&mut self, cx: &mut Cx<'_>, who: QueueId, tag: Tag, cqe: Cqe, payload: Payload) {
        if let Some(operation) = self.io_queues.find(who).and_then(|queue| queue.take(tag)) {
            self.watch.heard = true;
            return self.command_ended(cx, operation, cqe, payload);
        }
        if let Some(purpose) = self.admin_commands.ended(who, tag) {
            return self.ran(cx, who, purpose, cqe, payload);
        }
        if who.association == self.association {
            self.join(cx, who, |setup, cx, context| setup.completed(cx, context, (tag, cqe, payload)));
        }
    }

    /// An admin command has ended.
    fn ran(&mut self, cx: &mut Cx<'_>, who: QueueId, purpose: AdminPurpose, cqe: Cqe, payload: Payload) {
        match purpose {
            AdminPurpose::Disable | AdminPurpose::Disabled => self.reset_ran(cx, who, purpose, cqe),
            _ if who.association != self.association => {}
            AdminPurpose::Step(step) => self.step_ended(cx, step, cqe, payload),
            AdminPurpose::Recheck(recheck) => self.rechecked(cx, recheck, cqe, payload),
            AdminPurpose::Event => self.event(cx, cqe),
            AdminPurpose::KeepAlive => self.kept_alive(cx, cqe),
            // What it was for ends by itself, or by the next time-out.
            AdminPurpose::Abort => {}
            AdminPurpose::Shutdown | AdminPurpose::ShutDown => self.shutdown_ran(cx, purpose, cqe),
        }
    }

    fn broken(&mut self, cx: &mut Cx<'_>, who: QueueId, how: LinkLoss) {
        self.fence.broken(who, &how);
        let lost = self.fence.resets(who);
        if lost {
            self.reset_failed(cx);
        }
        if who.association != self.association || lost {
            return;
        }
        let setup = self.setups.iter().find(|setup| setup.who == who);
        let why = match (&self.state, setup) {
            // A controller that is shut down lets go of its queues.
            (State::Ending { told: true, .. }, _) if !who.is_admin() => return,
            (State::Ending { told: true, .. }, _) => DownReason::Ended,
            (_, Some(setup)) => setup.cut(cx, &mut self.trace, how),
            (_, None) => reasons::broken(how),
        };
        self.end(cx, why);
    }

    /// Nothing is left of a connection.
    fn closed(&mut self, cx: &mut Cx<'_>, who: QueueId) {
        // Ours are closed when the path has fallen, others when they broke: this is told before.
        if who.association == self.association && matches!(self.state, State::Starting | State::Up) {
            self.end(cx, reasons::broken(LinkLoss::Closed));
        }
    }

    /// Everything that was in work has come back: the path is down.
    fn finish_closing(&mut self) {
        if !self.operations.is_empty() {
            return;
        }
        if let State::Closing(why) = &mut self.state {
            let why = std::mem::replace(why, DownReason::Ended);
            self.state = State::Down;
            self.scan = None;
            self.events.push_back(Event::Down(why));
        }
    }

    /// The association is over, in bad order or in good.
    fn end(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        if matches!(self.state, State::Down | State::Closing(_)) {
            return;
        }
        self.state = State::Closing(why);
        let admin = self.admin();
        for qid in 1..=self.settings.queues {
            self.links.close(cx, QueueId { qid, ..admin }, CloseMode::Abort);
        }
        self.setups.clear();
        self.admin_commands.forget(admin);
        self.watch = ControllerWatch::default();
        self.retry = None;
        self.lost(cx);
        // What waits has not been sent.
        while let Some(tag) = self.parked.pop_front() {
            self.unpark(tag);
        }
        self.finish_closing();
    }

    /// Does what is due by the clock.
    fn look_at_clocks(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
            self.try_again(cx);
        }
        if let Some(setup) = self.setups.iter().find(|setup| setup.until <= now) {
            let why =
                DownReason::Silent("the controller does not answer; is it an NVMe/TCP port?".to_owned());
            let why = setup.broke(cx, &mut self.trace, why);
            self.end(cx, why);
        }
        if let Some((who, purpose)) = self.admin_commands.overdue(now) {
            let resets = matches!(purpose, AdminPurpose::Disable | AdminPurpose::Disabled);
            self.admin_commands.forget(who);
            if resets {
                self.reset_failed(cx);
            } else if who.association == self.association {
                self.end(
                    cx,
                    DownReason::Silent("the controller does not answer a command of the admin queue".into()),
                );
            }
        }
        self.start_clock(cx);
        self.ending_clock(cx);
        self.watch_clock(cx);
        self.scan_clock(cx);
        self.fence_clock(cx);
    }

    /// What was computed for queues that come up.
    fn take_answers(&mut self, cx: &mut Cx<'_>) {
        while let Some(who) = self.setups.iter().find(|setup| setup.is_answered()).map(|setup| setup.who) {
            self.join(cx, who, |setup, cx, context| setup.computed(cx, context));
        }
    }

    /// Memory, or a place, was short.
    fn try_again(&mut self, cx: &mut Cx<'_>) {
        let short: Vec<QueueId> =
            self.setups.iter().filter(|setup| setup.is_short()).map(|setup| setup.who).collect();
        for who in short {
            self.join(cx, who, |setup, cx, context| setup.go(cx, context));
        }
        self.step_again(cx);
        self.recheck_again(cx);
    }
}

impl Sockets for NvmePath {
    by_links!();

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some((who, event)) = self.links.poll(cx) {
            self.handle_link_event(cx, who, event);
        }
        self.take_answers(cx);
        self.resume_parked(cx);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        let ending = match self.state {
            State::Ending { until, next, .. } => Some(next.map_or(until, |next| next.min(until))),
            State::Down | State::Starting | State::Up | State::Closing(_) => None,
        };
        let (up, closing) = (matches!(self.state, State::Up), matches!(self.state, State::Closing(_)));
        let setups = self.setups.iter().map(|setup| setup.until).min();
        let clocks = [
            self.links.poll_timeout(),
            self.retry,
            setups,
            self.admin_commands.poll_timeout(),
            self.scan,
            ending,
        ];
        let clocks = clocks.into_iter().fold(None, earliest);
        let own =
            [self.watch.poll_timeout(up), self.fence.poll_timeout(closing), self.bringup.poll_timeout()];
        own.into_iter().fold(clocks, earliest)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.links.handle_timeout(cx);
        self.look_at_clocks(cx);
    }
}

impl Path for NvmePath {
    fn protocol(&self) -> Protocol {
        Protocol::Nvme
    }

    fn connect(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.state, State::Down) {
            self.begin(cx);
        }
    }

    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        self.operate(cx, id, op, payload)
    }

    fn request_reservation(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        self.ask(cx, id, request)
    }

    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.cancel_operation(cx, id);
    }

    fn fence(&mut self, cx: &mut Cx<'_>) {
        self.fence.asked = true;
        self.fence_clock(cx);
    }

    /// A controller belongs to its association, and no other one ends it.
    fn portals(&self) -> Option<(&str, &[SocketAddr])> {
        None
    }

    fn fence_by(&mut self, _portals: Vec<SocketAddr>) {}

    /// The controller tells, and where it does not, it is asked with each keep-alive.
    fn look_now(&mut self) {}

    fn lands_for(&self) -> Duration {
        self.bringup.patience(&self.settings, self.known.map(|facts| facts.controller), false)
    }

    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.shut_down(cx, grace);
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Gives a joining queue its surroundings.
fn context<'a>(settings: &'a Settings, links: &'a mut Links, trace: &'a mut Trace) -> SetupContext<'a> {
    SetupContext { settings, links, trace }
}
