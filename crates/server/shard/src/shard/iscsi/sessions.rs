//! Sessions: links that join them, their events, and their end.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use buf::Cx;
use endpoint::{AcceptedSocket, LinkDeparture, LinkId};
use flight_recorder::{Event, EventKind, TextField};
use iscsi::discovery::SendTargets;
use iscsi::login::EstablishedConnection;
use iscsi::negotiate::SessionType;
use iscsi::session::{
    LinkParams, Request, Response, ScsiCommand, ScsiResult, SessionLimits, SessionParams, TargetSession,
    TaskManagement,
};
use iscsi::wire::{TmfFunction, TmfResponseCode, Tsih};
use scsi_server::{IncomingCommand, ManagementFunction, NexusSpec, TaskAttribute, TaskKey};
use stream::{Connection, ConnectionClose, Tag, TargetConnection, TargetEvent};
use volume::{Identity, Requester};

use super::IscsiFront;
use super::joins::answer_pending_joins;
use super::login::{initial_promise_bytes, placement_query};
use crate::exports::Exports;
use crate::link_table::LinkOwner;
use crate::log::LogLine;
use crate::message::{IoCounters, LinkHandoff, Message};
use crate::shard::command_times::CommandTimes;
use crate::shard::connections::{Conn, ConnKind, Connections, Session, SessionLink};
use crate::shard::payload_step::ParkedSteps;
use crate::shard::protocol_front::ProtocolFront;
use crate::shard::throttle::HostLimit;
use crate::shard::{DIRECTORY_SHARD, SharedParts, set_slot};

impl IscsiFront {
    /// A link that has logged in comes to its session.
    pub(in crate::shard) fn attach_link(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: LinkId,
        handoff: LinkHandoff,
    ) {
        let tsih = handoff.established.tsih;
        let conn = match handoff.new {
            true if self.pending_sessions.is_session_wanted(tsih) => self.create_session(cx, parts, &handoff),
            true => None,
            false => self.sessions.get(&tsih).copied(),
        };
        let attached = conn.and_then(|conn| self.join_link(cx, parts, conn, id, &handoff));
        if attached.is_none() {
            parts.conns.departures.push_back((id, LinkDeparture::Close));
        }
        match (handoff.new, attached) {
            (true, Some(())) => self.resume_postponed(cx, parts, tsih),
            (true, None) => self.handle_login_aborted(cx, parts, tsih),
            (false, Some(())) => {}
            (false, None) => self.handle_link_never_arrived(
                cx,
                (&mut parts.conns, &mut parts.outbox),
                tsih,
                handoff.established.identity.cid,
            ),
        }
    }

    /// Makes the session that a login founds. `None`: what it logged in to is not there any more.
    fn create_session(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        handoff: &LinkHandoff,
    ) -> Option<Tag> {
        let memory = self.pending_sessions.take_memory(handoff.established.tsih)?;
        let established = &handoff.established;
        let initiator: Arc<str> = established.identity.initiator_name.as_str().into();
        let discovery = established.identity.session_type == SessionType::Discovery;
        if parts.stopping.is_some() {
            return None;
        }
        let (target, limits, nexus) = if discovery {
            let proved = established.user.is_some();
            parts.exports.may_discover(&initiator, proved, &handoff.accepted).then_some(())?;
            (None, SessionLimits::default(), None)
        } else {
            let (target, limits, spec) = nexus_spec(&parts.exports, &initiator, handoff)?;
            (Some(target), limits, Some(spec))
        };
        let EstablishedConnection { identity, tsih, params, exp_cmd_sn, .. } = established;
        let params = SessionParams::from_negotiated(params, identity.isid, *tsih, *exp_cmd_sn);
        let promised = initial_promise_bytes(limits.commands, params.unsolicited_burst_len());
        let proto = TargetSession::with_memory(cx, params, limits, memory);
        let nexus = nexus.map(|spec| self.server.open_nexus(spec));
        let placed = parts
            .exports
            .placement_outcome(&placement_query(&established.identity, &handoff.accepted), parts.id);
        let limiter = target
            .as_deref()
            .and_then(|target| parts.exports.limiter_of_initiator(target, &initiator, &handoff.accepted));
        let session = Session {
            proto,
            limit: HostLimit::new(&initiator, limiter),
            placed,
            tsih: established.tsih,
            initiator: initiator.clone(),
            promised,
            isid: established.identity.isid,
            target: target.clone(),
            user: established.user.clone(),
            nexus,
            links: Vec::new(),
            parked: ParkedSteps::default(),
            latest: handoff.accepted,
            io: IoCounters::default(),
            times: CommandTimes::new(cx.now),
            joining: Vec::new(),
            admitted: Vec::new(),
            cold_reset: None,
            homes_left: 0,
            leaves: false,
            closed: false,
            held: Vec::new(),
            quiesced: false,
        };
        let conn = Conn::new(ConnKind::Session(Box::new(session)));
        let Ok(tag) = parts.conns.insert(conn) else {
            // The directory grants no more sessions than a shard can hold.
            if let Some(nexus) = nexus {
                self.server.close_nexus(nexus);
            }
            return None;
        };
        self.note_session(established.tsih, tag, (initiator.clone(), promised));
        if let Some(nexus) = nexus {
            set_slot(&mut self.nexuses, nexus.0 as usize, tag);
        }
        parts.log.push(LogLine::LoggedIn { peer: handoff.accepted.peer, initiator, target });
        Some(tag)
    }

    fn join_link(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        id: LinkId,
        handoff: &LinkHandoff,
    ) -> Option<()> {
        let established = &handoff.established;
        self.has_same_access(parts, conn, &handoff.accepted).then_some(())?;
        let session = parts.conns.session_mut(conn)?;
        if session.closed {
            return None;
        }
        let params =
            LinkParams::from_negotiated(&established.params, established.identity.cid, established.stat_sn);
        let digests = (params.header_digest, params.data_digest);
        let segments = (params.initiator_mrdsl, params.target_mrdsl);
        let link = session.proto.attach_link(cx, params, &handoff.rest).ok()?;
        let cid = established.identity.cid;
        session.admitted.retain(|admitted| admitted.cid != cid);
        session.latest = handoff.accepted;
        session.links.push(SessionLink {
            id,
            link,
            cid,
            accepted: handoff.accepted,
            digests,
            segments,
            algorithm: established.algorithm,
        });
        // A link that stays on its shard has its entry since it was accepted.
        let owner = LinkOwner { conn, link };
        if parts.conns.links.owner_if_active(id).is_some() {
            parts.conns.links.set_owner(id, owner);
        } else {
            parts.conns.links.insert(id, owner);
        }
        parts.conns.mark_pending(conn);
        parts.conns.mark_ready(id);
        Some(())
    }

    pub(in crate::shard) fn run_session_events(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
    ) {
        loop {
            let Some(session) = parts.conns.session_mut(conn) else { return };
            if let Some(event) = session.proto.poll_event() {
                self.handle_session_event(cx, parts, conn, event);
                continue;
            }
            // Places for payload are given before parsing goes on, or it would have to be kept apart.
            if self.run_steps(cx, parts) {
                continue;
            }
            let Some(session) = parts.conns.session_mut(conn) else { return };
            if session.proto.has_notices() {
                self.handle_session_notice(cx, parts, conn);
                continue;
            }
            if let Err(violation) = session.proto.resume_parsing(cx) {
                parts.log.push(session.fault_line(violation));
                continue;
            }
            if let Some(violation) = session.proto.poll_link_fault() {
                parts.log.push(session.fault_line(violation));
                continue;
            }
            // Parsing on may have brought more to tell.
            match session.proto.poll_event() {
                Some(event) => self.handle_session_event(cx, parts, conn, event),
                None => break,
            }
        }
        self.resume_parked(cx, parts, conn);
        answer_pending_joins(cx, &mut parts.conns, &mut parts.outbox, conn);
        let Some(session) = parts.conns.session_mut(conn) else { return };
        let links: smallvec::SmallVec<[LinkId; 8]> = session.links.iter().map(|link| link.id).collect();
        for id in links {
            parts.conns.mark_ready(id);
        }
        forget_session(&mut parts.conns, conn);
    }

    /// A link of a session is to be closed, a logical unit was cleared of its commands, or its nexus ends.
    #[cold]
    fn handle_session_notice(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        if let Some(link) = session.proto.poll_link_to_close() {
            let id = session.links.iter().find(|known| known.link == link).map(|known| (known.id, known.cid));
            let tsih = session.tsih;
            if let Some((id, cid)) = id {
                self.report_connection_gone((&mut parts.conns, &mut parts.outbox), tsih, cid);
                self.depart_link(parts, id, LinkDeparture::Close);
            }
        } else if let Some(lun) = session.proto.poll_cleared_unit() {
            if let Some(nexus) = session.nexus {
                self.server.handle_commands_cleared(nexus, lun);
            }
        } else if session.proto.poll_nexus_end() {
            self.report_nexus_loss(cx, parts, conn);
        }
    }

    fn handle_session_event(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        event: TargetEvent<Request>,
    ) {
        match event {
            TargetEvent::Command { tag, command, data_out } => {
                if parts.is_quiescing() {
                    return self.hold_command(cx, parts, conn, (tag, command, data_out));
                }
                self.start_command(cx, parts, conn, tag, command, data_out)
            }
            TargetEvent::DataReceived { tag, at, data } => {
                if let Some(key) = self.task_key(parts, conn, tag) {
                    self.server.handle_data(cx, key, at, data);
                }
            }
            TargetEvent::Aborted { tag } => match self.task_key_of_aborted(parts, conn, tag) {
                Some(key) => self.server.abort_command(key),
                None => {
                    if let Some(session) = parts.conns.session_mut(conn) {
                        session.proto.end_without_response(cx, tag);
                    }
                }
            },
            TargetEvent::Closed => self.handle_session_closed(parts, conn),
        }
    }

    /// A command that is held is held no more.
    fn task_key_of_aborted(&mut self, parts: &mut SharedParts, conn: Tag, tag: Tag) -> Option<TaskKey> {
        if let Some(session) = parts.conns.session_mut(conn) {
            session.held.retain(|(held, ..)| *held != tag);
        }
        self.task_key(parts, conn, tag)
    }

    fn task_key(&mut self, parts: &mut SharedParts, conn: Tag, tag: Tag) -> Option<TaskKey> {
        let nexus = parts.conns.session_mut(conn)?.nexus?;
        Some(TaskKey { nexus, tag: tag.to_bits() })
    }

    pub(in crate::shard) fn start_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        tag: Tag,
        command: Request,
        data_out: u32,
    ) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        let Some(nexus) = session.nexus else {
            return self.answer_discovery_command(cx, parts, conn, tag, command);
        };
        let key = TaskKey { nexus, tag: tag.to_bits() };
        match command {
            Request::Scsi(scsi) => {
                if scsi.read && scsi.write {
                    let result = bidirectional_refusal();
                    session.proto.respond(cx, tag, Response::Scsi(result));
                    return;
                }
                session.io.reads += u64::from(scsi.read && scsi.edtl > 0);
                session.io.writes += u64::from(scsi.write && scsi.edtl > 0);
                let arrived = incoming_command(&scsi, data_out);
                if !self.try_command_inline(cx, parts, conn, key, &arrived) {
                    if let Some(session) = parts.conns.session_mut(conn) {
                        session.times.start_task(cx.now, tag);
                    }
                    self.server.start_command(cx, key, arrived);
                }
            }
            Request::Task(task) => match management_function(&task) {
                Some(what) => {
                    if task.function == TmfFunction::TARGET_COLD_RESET {
                        session.cold_reset = Some(tag);
                    }
                    let event = Event::new(EventKind::TaskManagement)
                        .with_number(u64::from_be_bytes(task.lun))
                        .with_text(TextField::Cause, management_words(&what));
                    parts.log.record(&event.with_text(TextField::Host, &session.initiator));
                    self.server.start_management(key, what);
                }
                None => session.proto.respond(cx, tag, Response::Task(TmfResponseCode::NOT_SUPPORTED)),
            },
            Request::SendTargets(which) => self.answer_send_targets(cx, parts, conn, tag, &which),
        }
    }

    fn answer_discovery_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        tag: Tag,
        command: Request,
    ) {
        match command {
            Request::SendTargets(which) => self.answer_send_targets(cx, parts, conn, tag, &which),
            // The session itself rejects what a discovery session may not ask.
            Request::Scsi(_) | Request::Task(_) => {
                if let Some(session) = parts.conns.session_mut(conn) {
                    session.proto.end_without_response(cx, tag);
                }
            }
        }
    }

    fn answer_send_targets(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        tag: Tag,
        which: &SendTargets,
    ) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        let (initiator, own) = (session.initiator.clone(), session.target.clone());
        let Some(accepted) = session.links.first().map(|link| link.accepted) else { return };
        let text = match which {
            SendTargets::All => parts.exports.send_targets_text(&initiator, &accepted, None),
            // A normal session learns of its own target only (RFC 7143 Appendix C).
            SendTargets::Named(name) if own.as_deref().is_some_and(|own| own != name.as_str()) => {
                Box::default()
            }
            SendTargets::Named(name) => {
                parts.exports.send_targets_text(&initiator, &accepted, Some(name.as_str()))
            }
            SendTargets::Own => parts.exports.send_targets_text(&initiator, &accepted, own.as_deref()),
        };
        if let Some(session) = parts.conns.session_mut(conn) {
            session.proto.respond(cx, tag, Response::Targets(text));
        }
    }

    /// The directory wants a session's end: it is being reinstated.
    pub(in crate::shard) fn end_session(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, tsih: Tsih) {
        match self.sessions.get(&tsih).copied() {
            Some(conn) => {
                if let Some(session) = parts.conns.session_mut(conn) {
                    session.proto.close(cx, ConnectionClose::Now);
                }
                parts.conns.mark_pending(conn);
            }
            None => self.postpone_end(cx, tsih),
        }
    }

    fn handle_session_closed(&mut self, parts: &mut SharedParts, conn: Tag) {
        let Some(session) = parts.conns.session_mut(conn) else { return };
        session.closed = true;
        let (tsih, nexus) = (session.tsih, session.nexus.take());
        let (initiator, promised) = (session.initiator.clone(), session.promised);
        let line = LogLine::LoggedOut {
            peer: session.latest.peer,
            initiator: session.initiator.clone(),
            target: session.target.clone(),
        };
        parts.log.push(line);
        if self.sessions.remove(&tsih).is_some()
            && let Entry::Occupied(mut all) = self.promised_by_initiator.entry(initiator)
        {
            *all.get_mut() -= promised;
            if *all.get() == 0 {
                all.remove();
            }
        }
        if let Some(nexus) = nexus {
            self.close_nexus(nexus);
        }
        parts.outbox.post(DIRECTORY_SHARD, Message::SessionGone(tsih));
    }
}

fn nexus_spec(
    exports: &Exports,
    initiator: &Arc<str>,
    handoff: &LinkHandoff,
) -> Option<(Arc<str>, SessionLimits, NexusSpec)> {
    let established = &handoff.established;
    let name = established.identity.target_name.as_ref()?;
    let names = (initiator, established.identity.isid.0, name.as_str());
    session_spec(exports, names, established.user.is_some(), &handoff.accepted)
}

/// What the exports of now make of a session of this initiator and ISID with a target of this name, which came like
/// this; `None`: it reaches nothing.
pub(in crate::shard) fn session_spec(
    exports: &Exports,
    (initiator, isid, target): (&Arc<str>, [u8; 6], &str),
    proved: bool,
    accepted: &AcceptedSocket,
) -> Option<(Arc<str>, SessionLimits, NexusSpec)> {
    let portal = exports.portal(accepted.listener)?;
    let target = exports.target(target, portal)?;
    // The exports may have changed since its login was judged.
    let luns = exports.reachable_luns(&target.name, initiator, proved, accepted)?;
    let port = target.port_id(portal);
    let identity = Identity::Initiator { name: initiator.clone(), isid, port };
    let spec = NexusSpec {
        nexus: Requester { identity: Arc::new(identity), port, read_only: false },
        target: target.name.clone(),
        portal_group: portal.group,
        ports: exports.target_ports(target),
        luns,
        product: target.product.clone(),
        explicit_alua: target.explicit_alua,
    };
    Some((target.name.clone(), target.limits.clone(), spec))
}

/// Forgets a session that has ended and whose links are all gone.
pub(super) fn forget_session(conns: &mut Connections, conn: Tag) {
    if conns.session_mut(conn).is_some_and(|session| session.closed && session.links.is_empty()) {
        conns.remove(conn);
    }
}

fn incoming_command(scsi: &ScsiCommand, data_out: u32) -> IncomingCommand<'_> {
    IncomingCommand {
        lun: scsi.lun,
        cdb: scsi.cdb.as_slice(),
        attr: TaskAttribute(scsi.attr.0),
        data_in: if scsi.read { scsi.edtl } else { 0 },
        data_out,
    }
}

/// No command of a disk moves data both ways: INVALID FIELD IN CDB would be a guess, INVALID
/// COMMAND OPERATION CODE is what it is.
fn bidirectional_refusal() -> ScsiResult {
    let mut sense = [0; scsi::Sense::LEN_MAX];
    let len = scsi::Sense::INVALID_OPCODE.encode(false, &mut sense);
    ScsiResult::check_condition(sense.get(..len).unwrap_or_default(), 0)
}

fn management_function(task: &TaskManagement) -> Option<ManagementFunction> {
    let tag = task.referenced.map(Tag::to_bits);
    Some(match task.function {
        TmfFunction::ABORT_TASK => ManagementFunction::AbortTask { tag },
        TmfFunction::ABORT_TASK_SET => ManagementFunction::AbortTaskSet(task.lun),
        TmfFunction::CLEAR_ACA => ManagementFunction::ClearAca(task.lun),
        TmfFunction::CLEAR_TASK_SET => ManagementFunction::ClearTaskSet(task.lun),
        TmfFunction::LOGICAL_UNIT_RESET => ManagementFunction::LogicalUnitReset(task.lun),
        TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET => ManagementFunction::TargetReset,
        TmfFunction::QUERY_TASK => ManagementFunction::QueryTask { tag },
        TmfFunction::QUERY_TASK_SET => ManagementFunction::QueryTaskSet(task.lun),
        TmfFunction::I_T_NEXUS_RESET => ManagementFunction::NexusReset,
        TmfFunction::QUERY_ASYNCHRONOUS_EVENT => ManagementFunction::QueryAsyncEvent(task.lun),
        _ => return None,
    })
}

fn management_words(function: &ManagementFunction) -> &'static str {
    match function {
        ManagementFunction::AbortTask { .. } => "abort task",
        ManagementFunction::AbortTaskSet(_) => "abort task set",
        ManagementFunction::ClearAca(_) => "clear ACA",
        ManagementFunction::ClearTaskSet(_) => "clear task set",
        ManagementFunction::LogicalUnitReset(_) => "logical unit reset",
        ManagementFunction::TargetReset => "target reset",
        ManagementFunction::NexusReset => "I_T nexus reset",
        ManagementFunction::QueryTask { .. } => "query task",
        ManagementFunction::QueryTaskSet(_) => "query task set",
        ManagementFunction::QueryAsyncEvent(_) => "query asynchronous event",
    }
}
