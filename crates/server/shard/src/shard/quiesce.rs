//! A shard that is quiesced, so that another process can go on with what it has.
//!
//! 1. *Draining*: commands that come are held by their connections, not started. What executes is answered as ever,
//!    and data that it waits for is taken. Logins and Connects under way stand still, and sockets that come are kept.
//! 2. *Halting*: when nothing executes, connections receive and parse nothing more. Commands that are held, and
//!    requests for events, are withdrawn, and what is out on sockets comes back.
//! 3. *Quiesced*: nothing is out, and nothing begins. Now the shard can be saved (see `snapshot`).
//!
//! [`ControlRequest::Resume`](crate::ControlRequest::Resume) takes it all back: commands are announced again, in their
//! order.
//!
//! Invariant: a command that is held, or was withdrawn, has had no effect but what its connection may carry over. In
//! the phases 2 and 3 no operation begins.

use buf::Cx;
use endpoint::{LinkArrival, LinkDeparture, LinkId};
use iscsi::session::{Request, ScsiCommand};
use nvme::{Opcode, Sqe};
use stream::Tag;

use super::connections::ConnKind;
use super::{LOGIN_CONNS_MAX, Shard, SharedParts};
use crate::message::{ControlReport, Message, QuiesceBlocker};

/// How far the shard is quiesced.
#[derive(Debug)]
pub(super) struct QuiesceProgress {
    /// The control plane's, to be told when the shard is quiesced.
    request: u64,
    phase: QuiescePhase,
    /// Time is over: connections whose commands do not end are left.
    forced: bool,
    /// Sockets that came meanwhile; at most [`LOGIN_CONNS_MAX`], the others are reset.
    arrivals: Vec<(LinkId, LinkArrival<Message>)>,
    /// Logins and Connects that have something to say.
    frozen: Vec<Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuiescePhase {
    Draining,
    Halting,
    Quiesced,
}

/// A command that came while the shard is being quiesced: its name, itself, and how much data it brings.
pub(super) type HeldCommand<C> = (Tag, C, u32);

impl SharedParts {
    /// Commands that come are held.
    #[inline]
    pub(super) fn is_quiescing(&self) -> bool {
        self.quiesce.is_some()
    }

    /// Nothing begins any more.
    pub(super) fn is_halting(&self) -> bool {
        self.quiesce.as_ref().is_some_and(|progress| progress.phase != QuiescePhase::Draining)
    }

    /// Keeps a socket that comes; gives it back if the shard is not being quiesced.
    pub(super) fn keep_arrival(
        &mut self,
        link: LinkId,
        how: LinkArrival<Message>,
    ) -> Option<LinkArrival<Message>> {
        let Some(progress) = &mut self.quiesce else { return Some(how) };
        if progress.arrivals.len() < LOGIN_CONNS_MAX {
            progress.arrivals.push((link, how));
        } else {
            self.conns.departures.push_back((link, LinkDeparture::Abort));
        }
        None
    }
}

/// Lets a login, or a Connect, stand still. False: the shard is not being quiesced.
#[inline]
pub(super) fn freeze_login(quiesce: &mut Option<Box<QuiesceProgress>>, tag: Tag) -> bool {
    let Some(progress) = quiesce else { return false };
    if !progress.frozen.contains(&tag) {
        progress.frozen.push(tag);
    }
    true
}

impl Shard {
    /// Begins to quiesce. The report follows when the shard is still.
    pub(super) fn start_quiesce(&mut self, cx: &mut Cx<'_>, request: u64) {
        if self.parts.stopping.is_some() {
            return self.report_blocker(request, QuiesceBlocker::Stopping);
        }
        if self.parts.quiesce.is_some() {
            return self.report_blocker(request, QuiesceBlocker::Quiescing);
        }
        if let Some(volume) = self.parts.volumes.first_group_volume() {
            return self.report_blocker(request, QuiesceBlocker::GroupVolume(volume));
        }
        if let Some(volume) = self.parts.volumes.first_remote_volume() {
            return self.report_blocker(request, QuiesceBlocker::RemoteVolume(volume));
        }
        // What is in work is to be answered in time.
        self.release_throttled(cx, None);
        self.parts.quiesce = Some(Box::new(QuiesceProgress {
            request,
            phase: QuiescePhase::Draining,
            forced: false,
            arrivals: Vec::new(),
            frozen: Vec::new(),
        }));
    }

    fn report_blocker(&mut self, request: u64, blocker: QuiesceBlocker) {
        self.parts.outbox.send_report(request, ControlReport::NotQuiesced(blocker));
    }

    /// Time is over: connections whose commands do not end are left behind. What has begun on a volume is still waited
    /// for.
    pub(super) fn force_quiesce(&mut self, request: u64) {
        match &mut self.parts.quiesce {
            Some(progress) => {
                progress.forced = true;
                self.parts.outbox.send_report(request, ControlReport::Done);
            }
            None => self.report_blocker(request, QuiesceBlocker::Active),
        }
    }

    /// Goes on as if nothing had happened.
    pub(super) fn end_quiesce(&mut self, cx: &mut Cx<'_>) {
        let Some(progress) = self.parts.quiesce.take() else { return };
        self.parts.deferred.halted = false;
        // While nothing was received no host could show that it is there.
        self.nvme.server.restart_keep_alive_timers(cx.now);
        self.parts.throttled.set_lifted(false);
        self.parts.throttled.set_in_force(self.parts.exports.has_limits());
        let tags: Vec<Tag> = self.parts.conns.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.resume_connection(cx, tag);
            self.parts.conns.mark_pending(tag);
        }
        for tag in progress.frozen {
            self.parts.conns.mark_pending(tag);
        }
        for (link, how) in progress.arrivals {
            endpoint::Endpoint::handle_arrival(self, cx, link, how);
        }
    }

    fn resume_connection(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(conn) = self.parts.conns.get_mut(tag) else { return };
        let mut links = smallvec::SmallVec::<[LinkId; 8]>::new();
        match &mut conn.kind {
            ConnKind::Session(session) => {
                links.extend(session.links.iter().map(|link| link.id));
                session.quiesced = false;
                session.proto.resume();
                self.start_held_scsi(cx, tag);
            }
            ConnKind::Queue(queue) => {
                links.push(queue.id);
                queue.quiesced = false;
                queue.proto.resume();
                self.start_held_nvme(cx, tag);
            }
            ConnKind::Login(pending_login) => links.push(pending_login.id),
        }
        for link in links {
            self.parts.conns.mark_ready(link);
        }
    }

    fn start_held_scsi(&mut self, cx: &mut Cx<'_>, conn: Tag) {
        self.iscsi.start_held(cx, &mut self.parts, conn);
    }

    fn start_held_nvme(&mut self, cx: &mut Cx<'_>, conn: Tag) {
        self.nvme.start_held(cx, &mut self.parts, conn);
    }

    /// Goes on quiescing; true if it did something.
    pub(super) fn advance_quiesce(&mut self) -> bool {
        let Some(progress) = &self.parts.quiesce else { return false };
        match progress.phase {
            QuiescePhase::Draining if self.find_work(!progress.forced).is_none() => {
                self.halt_connections();
                true
            }
            QuiescePhase::Halting if self.parts.conns.links.are_idle(self.carried_links()) => {
                let request = progress.request;
                if let Some(progress) = &mut self.parts.quiesce {
                    progress.phase = QuiescePhase::Quiesced;
                }
                self.parts.outbox.send_report(request, ControlReport::Done);
                true
            }
            QuiescePhase::Draining | QuiescePhase::Halting | QuiescePhase::Quiesced => false,
        }
    }

    /// Why the shard is not quiesced; `None`: it is.
    pub(super) fn quiesce_blocker(&self) -> Option<QuiesceBlocker> {
        let Some(progress) = &self.parts.quiesce else { return Some(QuiesceBlocker::Active) };
        if let Some(blocker) = self.find_work(!progress.forced) {
            return Some(blocker);
        }
        (progress.phase != QuiescePhase::Quiesced).then_some(QuiesceBlocker::Sockets)
    }

    /// Something that is in work; `all`: also what waits for hosts, and has begun on no volume.
    fn find_work(&self, all: bool) -> Option<QuiesceBlocker> {
        let scsi = self.iscsi.server.work_count();
        let nvme = self.nvme.server.work_count();
        if all && scsi + nvme > 0 {
            return Some(self.busiest_connection(scsi + nvme));
        }
        let waits = !self.parts.memory_waiters.is_empty()
            || !self.parts.deferred.is_empty()
            || self.parts.throttled.has_steps();
        if all && waits {
            return Some(QuiesceBlocker::Memory);
        }
        let ends = self.iscsi.nexus_ends.is_busy() || !self.nvme.formats.is_empty();
        if self.requests.is_busy() || ends || !self.recalls.is_empty() {
            return Some(QuiesceBlocker::Requests);
        }
        self.parts.volumes.first_busy_volume().map(|(volume, why)| QuiesceBlocker::Volume(volume, why))
    }

    /// Who has most commands in work.
    fn busiest_connection(&self, commands: usize) -> QuiesceBlocker {
        let counted = self.parts.conns.iter().filter_map(|(_, conn)| match &conn.kind {
            ConnKind::Session(session) => {
                let held = session.held.len();
                Some((session.proto.tasks_in_work().saturating_sub(held), session.initiator.clone()))
            }
            ConnKind::Queue(queue) => {
                let names = queue.open_names()?;
                let held = queue.held.len();
                Some((queue.proto.tasks_in_work().saturating_sub(held), names.host.as_str().into()))
            }
            ConnKind::Login(_) => None,
        });
        match counted.max_by_key(|(tasks, _)| *tasks) {
            Some((_, host)) => QuiesceBlocker::Commands { host, commands },
            None => QuiesceBlocker::Requests,
        }
    }

    /// Sockets of sessions and queues.
    fn carried_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.parts.conns.iter().flat_map(|(_, conn)| {
            let (links, queue) = match &conn.kind {
                ConnKind::Session(session) => (Some(session.links.iter().map(|link| link.id)), None),
                ConnKind::Queue(queue) if queue.quiesced && !queue.gone => (None, Some(queue.id)),
                ConnKind::Queue(_) | ConnKind::Login(_) => (None, None),
            };
            links.into_iter().flatten().chain(queue)
        })
    }

    /// Nothing executes: connections are quiesced, and what is out on their sockets comes back.
    fn halt_connections(&mut self) {
        if let Some(progress) = &mut self.parts.quiesce {
            progress.phase = QuiescePhase::Halting;
        }
        self.parts.deferred.halted = true;
        for (_, conn) in self.parts.conns.iter_mut() {
            match &mut conn.kind {
                ConnKind::Session(session) => {
                    session.quiesced = true;
                    session.proto.quiesce();
                    session.held = withdraw_held(std::mem::take(&mut session.held), |tag, command| {
                        session.proto.withdraw(tag, command)
                    });
                }
                ConnKind::Queue(queue) if queue.open_state().is_some() => {
                    queue.quiesced = true;
                    queue.proto.quiesce();
                    queue.held = withdraw_held(std::mem::take(&mut queue.held), |tag, command| {
                        queue.proto.withdraw(tag, command)
                    });
                }
                ConnKind::Queue(_) | ConnKind::Login(_) => {}
            }
        }
        self.nvme.withdraw_event_requests(&mut self.parts.conns);
        let links: Vec<LinkId> = self.carried_links().collect();
        let busy = |link: &LinkId| !self.parts.conns.links.are_idle(std::iter::once(*link));
        self.parts.halts.extend(links.into_iter().filter(busy));
    }
}

/// Commands that could not be withdrawn stay held.
fn withdraw_held<C>(
    held: Vec<HeldCommand<C>>,
    mut withdraw: impl FnMut(Tag, C) -> Result<(), C>,
) -> Vec<HeldCommand<C>> {
    let keep = |(tag, command, data)| Some((tag, withdraw(tag, command).err()?, data));
    held.into_iter().filter_map(keep).collect()
}

/// Which SCSI command of a session may be held.
pub(super) enum Holdable {
    /// It waits.
    Held(ScsiCommand),
    /// It is started, behind what was held before.
    Started(Request),
}

impl From<Request> for Holdable {
    /// A task management function acts on commands before it, which are to be with the server then.
    fn from(request: Request) -> Self {
        match request {
            Request::Scsi(command) => Holdable::Held(command),
            request @ (Request::Task(_) | Request::SendTargets(_)) => Holdable::Started(request),
        }
    }
}

impl super::iscsi::IscsiFront {
    /// A command comes while the shard is being quiesced.
    #[cold]
    pub(super) fn hold_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        (tag, request, data_out): HeldCommand<Request>,
    ) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        match Holdable::from(request) {
            Holdable::Held(command) if session.nexus.is_some() => session.held.push((tag, command, data_out)),
            Holdable::Held(command) => {
                self.start_command(cx, parts, conn, tag, Request::Scsi(command), data_out)
            }
            Holdable::Started(request) => {
                self.start_held(cx, parts, conn);
                self.start_command(cx, parts, conn, tag, request, data_out);
            }
        }
    }

    /// Starts the commands that a session has held, in their order.
    #[cold]
    pub(super) fn start_held(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        for (tag, command, data_out) in std::mem::take(&mut session.held) {
            self.start_command(cx, parts, conn, tag, Request::Scsi(command), data_out);
        }
    }
}

impl super::nvme::NvmeFront {
    /// A command comes to an open queue while the shard is being quiesced. One that may be the second half of a fused pair
    /// is started, for its first half executes. So is a Keep Alive: draining may take longer than its host's timeout.
    #[cold]
    pub(super) fn hold_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        (tag, command, data_out): HeldCommand<Sqe>,
    ) {
        let is_halting = parts.is_halting();
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let completes_pair = queue.held.is_empty()
            && queue.server_key().is_some_and(|key| self.server.awaits_second_half(key));
        let is_admin = queue.open_state().is_some_and(|open| open.qid == 0);
        let keeps_alive = is_admin && command.opcode == Opcode::KEEP_ALIVE && !is_halting;
        if completes_pair || keeps_alive {
            return self.start_command(cx, parts, conn, (tag, command, data_out));
        }
        queue.held.push((tag, command, data_out));
    }

    /// Starts the commands that a queue has held, in their order.
    #[cold]
    pub(super) fn start_held(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        for held in std::mem::take(&mut queue.held) {
            self.start_command(cx, parts, conn, held);
        }
    }
}
