//! A path to a namespace over NVMe/TCP (NVMe Base 2.0, NVMe-TCP 1.0), without I/O; and discovery.
//!
//! A path is an association with one controller: an admin queue for set-up, events and keep-alive, and I/O
//! queues. An operation goes to the I/O queue with the fewest in flight. Payload goes directly from and to
//! the caller's memory; once a path is up, reads and writes allocate nothing.
//!
//! Everything a controller sends is checked (`requests`, and the transport below), and every wait ends
//! ([`Timeouts`]).
//!
//! **Loss.** When a connection is lost, or a command is not answered even after Abort, the path is down. All
//! its queues are closed with a reset, so that nothing left in our socket reaches the controller later. If
//! the admin queue still works, it resets the controller (CC.EN = 0, then RDY = 0); after that no command of
//! the association can run. Otherwise the path waits until the controller must have given up: twice the KATO,
//! or three times if any traffic keeps the association alive, plus its Command Quiesce Time (NVMe Base 2.1
//! §9.6). If the admin queue was closed in good order, the association has ended for the controller too, and
//! one KATO is enough. Less is not: a middlebox may have closed the connection, and a busy processor of the
//! controller may be late in reading its sockets. It ends sooner if another controller of the subsystem resets the
//! lost one (`cross_reset`).
//!
//! Invariants:
//! - Each operation ends once; [`PathEvent::Down`] follows the last of them.
//! - A queue is used for operations only while the path is up.

mod admin_commands;
mod association_start;
mod bringup;
mod controller_watch;
mod cross_reset;
mod discovery;
mod discovery_connection;
mod discovery_watch;
mod down_reasons;
mod facts;
mod fence;
mod io_queues;
mod operation;
mod operations;
mod queue_links;
mod queue_setup;
mod raw_commands;
mod reservation;
mod settings;
mod status;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use endpoint::{CloseMode, OutboundSockets};
use nvme::Cqe;
use stream::{Slab, Tag, earliest};
use volume::{IoId, Op};

use crate::trace::Trace;
use crate::{DownReason, LostController, Path, PathEvent, Protocol, RawCommand, ReservationOp, VolumeInfo};

pub use discovery::{
    CONTROLLERS_MAX, DiscoveredSubsystem, Discovery, DiscoveryReport, RECORDS_MAX, REFERRAL_HOPS_MAX,
};
pub use discovery_watch::{DiscoveryWatch, DiscoveryWatchEvent};
pub use settings::{IO_QUEUES_MAX, QUEUE_DEPTH_MAX, Settings, Timeouts};

use admin_commands::PendingAdminCommands;
use bringup::{BringupState, BringupStep};
use controller_watch::{ControllerWatch, Recheck};
use cross_reset::PeerResets;
use fence::ControllerFence;
use io_queues::IoQueues;
use operation::{PathFacts, PendingOperation};
use queue_links::{LinkEvent, LinkLoss, QueueId, QueueLinks, by_links};
use queue_setup::{QueueSetup, SetupContext};
use raw_commands::RawAdminCommands;

/// How long it takes until memory or room is asked for again.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// What an admin command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminPurpose {
    /// A step of the start.
    Step(BringupStep),
    /// Something is looked at again.
    Recheck(Recheck),
    /// Told when something happens.
    Event,
    /// That both sides are there.
    KeepAlive,
    /// The end of an operation.
    Abort,
    /// Another controller is to be reset: the one that has this number here.
    PeerReset(u32),
    /// Whether it is.
    PeerResetLog(u32),
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
enum PathPhase {
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
    links: QueueLinks,
    trace: Trace,
    events: VecDeque<PathEvent>,
    state: PathPhase,
    /// Counts associations; of the current one if there is one.
    association: u32,
    /// Which of the addresses is tried.
    address: usize,
    setups: Vec<QueueSetup>,
    admin_commands: PendingAdminCommands<AdminPurpose>,
    bringup: BringupState,
    known: Option<PathFacts>,
    info: Option<Arc<VolumeInfo>>,
    io_queues: IoQueues,
    operations: Slab<PendingOperation>,
    raw_admin: RawAdminCommands,
    /// Operations that wait for memory or for room.
    parked: VecDeque<Tag>,
    /// When operations are looked over for those that take too long.
    scan: Option<Time>,
    /// When something is tried again for which memory or time was short.
    retry: Option<Time>,
    watch: ControllerWatch,
    fence: ControllerFence,
    peer_resets: PeerResets,
}

impl NvmePath {
    /// A path that is down.
    pub fn new(settings: Settings) -> Self {
        NvmePath {
            links: QueueLinks::new(settings.source),
            settings: settings.clamped(),
            trace: Trace::disabled(),
            events: VecDeque::new(),
            state: PathPhase::Down,
            association: 0,
            address: 0,
            setups: Vec::new(),
            admin_commands: PendingAdminCommands::new(),
            bringup: BringupState::default(),
            known: None,
            info: None,
            io_queues: IoQueues::default(),
            operations: Slab::new(0),
            raw_admin: RawAdminCommands::default(),
            parked: VecDeque::new(),
            scan: None,
            retry: None,
            watch: ControllerWatch::default(),
            fence: ControllerFence::default(),
            peer_resets: PeerResets::default(),
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

    fn admin_queue(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn schedule_retry(&mut self, at: Time) {
        self.retry = earliest(self.retry, Some(at));
    }

    /// Takes what happened on a connection.
    fn handle_link_event(&mut self, cx: &mut Cx<'_>, who: QueueId, event: LinkEvent) {
        match event {
            LinkEvent::Dialled(dialled) => self.handle_dialled_queue(cx, who, dialled),
            LinkEvent::NotDialled(errno) => self.handle_dial_failed(cx, who, errno),
            LinkEvent::Ready => {
                self.advance_setup(cx, who, |setup, cx, context| setup.handle_transport_ready(cx, context))
            }
            LinkEvent::Completed(tag, cqe, payload) => self.handle_completed(cx, who, tag, cqe, payload),
            LinkEvent::Broken(how) => self.handle_link_lost(cx, who, how),
            LinkEvent::Closed => self.handle_link_closed(cx, who),
        }
    }

    fn handle_completed(&mut self, cx: &mut Cx<'_>, who: QueueId, tag: Tag, cqe: Cqe, payload: Payload) {
        if let Some(operation) = self.io_queues.find_queue(who).and_then(|queue| queue.take_operation(tag)) {
            self.watch.heard = true;
            return self.handle_operation_ended(cx, operation, cqe, payload);
        }
        if let Some(operation) = self.raw_admin.take_operation(who, tag) {
            return self.handle_operation_ended(cx, operation, cqe, payload);
        }
        if let Some(purpose) = self.admin_commands.take_purpose(who, tag) {
            return self.handle_admin_command_ended(cx, who, purpose, cqe, payload);
        }
        if who.association == self.association {
            self.advance_setup(cx, who, |setup, cx, context| {
                setup.handle_completed(cx, context, (tag, cqe, payload))
            });
        }
    }

    /// An admin command has ended.
    fn handle_admin_command_ended(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        purpose: AdminPurpose,
        cqe: Cqe,
        payload: Payload,
    ) {
        match purpose {
            AdminPurpose::Disable | AdminPurpose::Disabled => {
                self.handle_reset_command_ended(cx, who, purpose, cqe)
            }
            _ if who.association != self.association => {}
            AdminPurpose::Step(step) => self.handle_step_ended(cx, step, cqe, payload),
            AdminPurpose::Recheck(recheck) => self.handle_recheck_ended(cx, recheck, cqe, payload),
            AdminPurpose::Event => self.handle_async_event(cx, cqe),
            AdminPurpose::KeepAlive => self.handle_keep_alive_ended(cx, cqe),
            AdminPurpose::PeerReset(number) => self.handle_peer_reset_ended(cx, number, cqe),
            AdminPurpose::PeerResetLog(number) => self.handle_peer_reset_log(cx, number, cqe, &payload),
            // What it was for ends by itself, or by the next time-out.
            AdminPurpose::Abort => {}
            AdminPurpose::Shutdown | AdminPurpose::ShutDown => {
                self.handle_shutdown_command_ended(cx, purpose, cqe)
            }
        }
    }

    fn handle_link_lost(&mut self, cx: &mut Cx<'_>, who: QueueId, how: LinkLoss) {
        self.fence.note_link_lost(who, &how);
        let lost = self.fence.is_resetting_by(who);
        if lost {
            self.handle_reset_failed(cx);
        }
        if who.association != self.association || lost {
            return;
        }
        let setup = self.setups.iter().find(|setup| setup.who == who);
        let why = match (&self.state, setup) {
            // A controller that is shut down lets go of its queues.
            (PathPhase::Ending { told: true, .. }, _) if !who.is_admin() => return,
            (PathPhase::Ending { told: true, .. }, _) => DownReason::Ended,
            (_, Some(setup)) => setup.trace_link_lost(cx, &mut self.trace, how),
            (_, None) => down_reasons::link_lost(how),
        };
        self.end_association(cx, why);
    }

    /// Nothing is left of a connection.
    fn handle_link_closed(&mut self, cx: &mut Cx<'_>, who: QueueId) {
        // Ours are closed when the path has fallen, others when they broke: this is told before.
        if who.association == self.association && matches!(self.state, PathPhase::Starting | PathPhase::Up) {
            self.end_association(cx, down_reasons::link_lost(LinkLoss::Closed));
        }
    }

    /// Everything that was in work has come back: the path is down.
    fn finish_closing(&mut self) {
        if !self.operations.is_empty() {
            return;
        }
        if let PathPhase::Closing(why) = &mut self.state {
            let why = std::mem::replace(why, DownReason::Ended);
            self.state = PathPhase::Down;
            self.scan = None;
            self.events.push_back(PathEvent::Down(why));
        }
    }

    /// The association is over, in bad order or in good.
    fn end_association(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        if matches!(self.state, PathPhase::Down | PathPhase::Closing(_)) {
            return;
        }
        self.state = PathPhase::Closing(why);
        let admin = self.admin_queue();
        for qid in 1..=self.settings.queues {
            self.links.close_link(cx, QueueId { qid, ..admin }, CloseMode::Abort);
        }
        self.setups.clear();
        self.admin_commands.forget_queue(admin);
        self.watch = ControllerWatch::default();
        self.retry = None;
        self.end_peer_resets();
        self.start_controller_reset(cx);
        // What waits has not been sent.
        while let Some(tag) = self.parked.pop_front() {
            self.drop_parked_command(tag);
        }
        self.finish_closing();
    }

    /// Does what is due by the clock.
    fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
            self.retry_short(cx);
        }
        if let Some(setup) = self.setups.iter().find(|setup| setup.until <= now) {
            let why =
                DownReason::Silent("the controller does not answer; is it an NVMe/TCP port?".to_owned());
            let why = setup.trace_failure(cx, &mut self.trace, why);
            self.end_association(cx, why);
        }
        if let Some((who, purpose)) = self.admin_commands.find_overdue(now) {
            let resets = matches!(purpose, AdminPurpose::Disable | AdminPurpose::Disabled);
            self.admin_commands.forget_queue(who);
            if resets {
                self.handle_reset_failed(cx);
            } else if who.association == self.association {
                self.end_association(
                    cx,
                    DownReason::Silent("the controller does not answer a command of the admin queue".into()),
                );
            }
        }
        self.run_bringup_timers(cx);
        self.run_shutdown_timers(cx);
        self.run_watch_timers(cx);
        self.check_operation_timeouts(cx);
        self.run_fence_timers(cx);
        self.run_peer_reset_timers(cx);
    }

    /// What was computed for queues that come up.
    fn take_computed(&mut self, cx: &mut Cx<'_>) {
        while let Some(who) =
            self.setups.iter().find(|setup| setup.is_computation_done()).map(|setup| setup.who)
        {
            self.advance_setup(cx, who, |setup, cx, context| setup.handle_computed(cx, context));
        }
    }

    /// Memory, or a place, was short.
    fn retry_short(&mut self, cx: &mut Cx<'_>) {
        let short: Vec<QueueId> =
            self.setups.iter().filter(|setup| setup.waits_for_memory()).map(|setup| setup.who).collect();
        for who in short {
            self.advance_setup(cx, who, |setup, cx, context| setup.send_pending(cx, context));
        }
        self.retry_step(cx);
        self.retry_rechecks(cx);
    }
}

impl OutboundSockets for NvmePath {
    by_links!();

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some((who, event)) = self.links.poll_link_event(cx) {
            self.handle_link_event(cx, who, event);
        }
        self.take_computed(cx);
        self.resume_parked(cx);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        let ending = match self.state {
            PathPhase::Ending { until, next, .. } => Some(next.map_or(until, |next| next.min(until))),
            PathPhase::Down | PathPhase::Starting | PathPhase::Up | PathPhase::Closing(_) => None,
        };
        let (up, closing) =
            (matches!(self.state, PathPhase::Up), matches!(self.state, PathPhase::Closing(_)));
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
        let own = [
            self.watch.poll_timeout(up),
            self.fence.poll_timeout(closing),
            self.bringup.poll_timeout(),
            self.peer_resets.poll_timeout(),
        ];
        own.into_iter().fold(clocks, earliest)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.links.handle_timeout(cx);
        self.check_deadlines(cx);
    }
}

impl Path for NvmePath {
    fn protocol(&self) -> Protocol {
        Protocol::Nvme
    }

    fn connect(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.state, PathPhase::Down) {
            self.start_association(cx);
        }
    }

    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        self.start_operation(cx, id, op, payload)
    }

    fn submit_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        self.start_reservation_op(cx, id, request)
    }

    fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand> {
        self.start_raw_command(cx, id, command)
    }

    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.cancel_operation(cx, id);
    }

    fn fence(&mut self, cx: &mut Cx<'_>) {
        self.fence.asked = true;
        self.run_fence_timers(cx);
    }

    /// A controller belongs to its association, and no Connect ends another one.
    fn target_portals(&self) -> Option<(&str, &[SocketAddr])> {
        None
    }

    fn set_fence_portals(&mut self, _portals: Vec<SocketAddr>) {}

    fn lost_controllers(&self) -> Vec<LostController> {
        self.fence.lost_controllers()
    }

    fn reset_controller(&mut self, cx: &mut Cx<'_>, controller: &LostController) -> bool {
        self.start_peer_reset(cx, controller)
    }

    fn handle_controller_reset(&mut self, cx: &mut Cx<'_>, controller: &LostController) {
        self.handle_lost_controller_reset(cx, controller);
    }

    /// The controller tells, and where it does not, it is asked with each keep-alive.
    fn recheck_access(&mut self) {}

    fn lost_command_lifetime(&self) -> Duration {
        self.bringup.lost_command_lifetime(&self.settings, self.known.map(|facts| facts.controller), false)
    }

    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.start_shutdown(cx, grace);
    }

    fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }
}

/// Gives a joining queue its surroundings.
fn setup_context<'a>(
    settings: &'a Settings,
    links: &'a mut QueueLinks,
    trace: &'a mut Trace,
) -> SetupContext<'a> {
    SetupContext { settings, links, trace }
}
