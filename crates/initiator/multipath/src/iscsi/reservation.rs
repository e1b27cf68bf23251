//! Persistent reservations through this path (SPC-4 §5.13): each request from its submission to its one end.

use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, MemoryClass, Payload, SgMut, Time};
use iscsi::initiator::{NoAnswer, Response};
use iscsi::wire::ScsiStatus;
use scsi::cdb::{PrInAction, PrOutAction, ReserveOut};
use scsi::persistent_reservation::{self, RegisterAndMoveParameters, ReserveOutParameters};
use scsi::transport_id::TransportId;
use scsi::{Command, Sense, Writer};
use stream::Tag;
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{Failure, Fault, Identity, IoId, PortId, Refusal, Span};

use super::disposition::{self, CommandDisposition};
use super::{IscsiPath, RequestOwner};
use crate::{IoError, PathEvent, Registration, ReservationOp, Reservations};

/// Most requests in work at once; with the probe's question they fit the path's own commands.
pub(super) const RESERVATION_REQUESTS_MAX: usize = 4;
/// The most data of a report that is taken, in bytes.
const REPORT_LEN_MAX: u16 = 0x8000;
/// The longest parameter list: one TransportID.
const PARAMETER_LIST_LEN_MAX: usize =
    persistent_reservation::PARAMETER_LIST_LEN + scsi::transport_id::LEN_MAX;
/// How often a command is repeated because of unit attentions, or because the target is busy.
const COMMAND_ATTEMPTS_MAX: u32 = 64;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// A request in work.
#[derive(Debug)]
pub(super) struct ReservationRequest {
    id: IoId,
    request: ReservationOp,
    step: ReservationStep,
    report: Reservations,
    begun: Time,
    /// When its next command is to be sent; `None`: it is sent.
    due: Option<Time>,
    attempts: u32,
}

/// What is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationStep {
    Act,
    FullStatus,
    /// Of a target that knows no full status.
    Keys,
    Reservation,
    Capabilities,
}

impl IscsiPath {
    /// Takes a request on, or gives it back.
    pub(super) fn start_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        if !self.is_up() || self.is_identity_in_doubt() || self.requests.len() >= RESERVATION_REQUESTS_MAX {
            return Err(request);
        }
        let step = match request {
            ReservationOp::Change(_) => ReservationStep::Act,
            ReservationOp::Report => ReservationStep::FullStatus,
        };
        let report = Reservations {
            generation: 0,
            persists: None,
            held: None,
            registrations: Vec::new(),
            named: true,
            whole: true,
        };
        let pending =
            ReservationRequest { id, request, step, report, begun: cx.now, due: Some(cx.now), attempts: 0 };
        if let Ok(tag) = self.requests.insert(pending) {
            self.send_reservation_command(cx, tag);
        }
        Ok(())
    }

    /// Nothing is sent before it is known whether another volume stands there by now.
    fn send_reservation_command(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, limit) = (self.is_identity_in_doubt(), self.settings.timeouts.retry);
        let Some(pending) = self.requests.get_mut(tag) else { return };
        if unsure && cx.now > pending.begun + limit {
            return self.finish_reservation_op(tag, Err(IoError::NotDone(RETRY_DELAY_MAX)));
        }
        pending.due = Some(cx.now + RETRY_DELAY_MIN);
        self.operations.look_at = stream::earliest(self.operations.look_at, pending.due);
        if unsure {
            return;
        }
        let read = |action| Command::ReserveIn { action, allocation: REPORT_LEN_MAX };
        let (command, list) = match (pending.step, &pending.request) {
            (ReservationStep::Act, ReservationOp::Change(action)) => match command_of_action(action) {
                Ok(made) => made,
                Err(refusal) => return self.finish_reservation_op(tag, Err(IoError::Failed(refusal.into()))),
            },
            (ReservationStep::Act | ReservationStep::FullStatus, _) => {
                (read(PrInAction::ReadFullStatus), None)
            }
            (ReservationStep::Keys, _) => (read(PrInAction::ReadKeys), None),
            (ReservationStep::Reservation, _) => (read(PrInAction::ReadReservation), None),
            (ReservationStep::Capabilities, _) => (read(PrInAction::ReportCapabilities), None),
        };
        let payload = match (&command, list) {
            (_, Some(list)) => match cx.pool.take(MemoryClass::Wire, list.len()) {
                Some(mut memory) => {
                    memory.copy_from_slice(&list);
                    Payload::Out(SgMut::from(memory).freeze())
                }
                None => return,
            },
            (Command::ReserveIn { .. }, None) => {
                match cx.pool.take_sg(MemoryClass::Solicited, usize::from(REPORT_LEN_MAX)) {
                    Some(memory) => Payload::In(memory),
                    None => return,
                }
            }
            (_, None) => Payload::None,
        };
        if let Ok(at) = self.submit_command(cx, &command, false, payload) {
            self.owners.insert_owner(at, RequestOwner::ReservationOp(tag));
            if let Some(pending) = self.requests.get_mut(tag) {
                pending.due = None;
            }
        }
    }

    /// Sends what is due.
    pub(super) fn send_due_reservation_ops(&mut self, cx: &mut Cx<'_>) {
        let due = |pending: &ReservationRequest| pending.due.is_some_and(|due| due <= cx.now);
        let all: Vec<Tag> =
            self.requests.iter().filter(|(_, pending)| due(pending)).map(|(tag, _)| tag).collect();
        for tag in all {
            self.send_reservation_command(cx, tag);
        }
        let next = self.requests.iter().filter_map(|(_, pending)| pending.due).min();
        self.operations.look_at = stream::earliest(self.operations.look_at, next);
    }

    /// Ends what no session has.
    pub(super) fn fail_unsent_reservation_ops(&mut self) {
        let all: Vec<Tag> =
            self.requests.iter().filter(|(_, pending)| pending.due.is_some()).map(|(tag, _)| tag).collect();
        for tag in all {
            self.finish_reservation_op(tag, Err(IoError::NotDone(Duration::ZERO)));
        }
    }

    fn finish_reservation_op(&mut self, tag: Tag, how: Result<Option<Reservations>, IoError>) {
        if let Some(ReservationRequest { id, .. }) = self.requests.remove(tag) {
            self.unknown |= matches!(how, Err(IoError::InDoubt));
            self.events.push_back(PathEvent::ReservationReply { id, how });
        }
    }

    /// A request's command has ended.
    pub(super) fn handle_reservation_ended(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        response: Response,
        payload: Payload,
    ) {
        let Some(pending) = self.requests.get_mut(tag) else { return };
        pending.due = Some(cx.now);
        let acts = pending.step == ReservationStep::Act;
        match response {
            Response::Scsi(answer) => {
                let mut data = Vec::new();
                if let Payload::In(memory) = payload {
                    data.resize(memory.len().min(answer.transferred as usize), 0);
                    memory.freeze().copy_to(0, &mut data);
                }
                self.handle_reservation_answer(cx, tag, answer.status, &answer.sense, &data);
            }
            Response::Lost(NoAnswer::NotSent | NoAnswer::Rejected(_)) => {
                self.finish_reservation_op(tag, Err(IoError::NotDone(Duration::ZERO)));
            }
            Response::Lost(_) | Response::TargetFailure if acts => {
                self.finish_reservation_op(tag, Err(IoError::InDoubt));
            }
            Response::Lost(_) | Response::TargetFailure => {
                self.finish_reservation_op(tag, Err(IoError::NotDone(Duration::ZERO)));
            }
            // The session gives a SCSI command a SCSI answer. What became of any other is not known.
            Response::Task(_) | Response::Targets(_) => {
                self.finish_reservation_op(tag, Err(IoError::InDoubt))
            }
        }
    }

    fn handle_reservation_answer(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        status: ScsiStatus,
        sense: &[u8],
        data: &[u8],
    ) {
        let classified = disposition::classify_status(status, sense, Span { lba: 0, blocks: 0 });
        self.request_refresh(classified.refresh);
        let Some(pending) = self.requests.get_mut(tag) else { return };
        match classified.disposition {
            CommandDisposition::Done => self.finish_reservation_step(cx, tag, data),
            CommandDisposition::Retry(after) => {
                pending.attempts += 1;
                if pending.attempts > COMMAND_ATTEMPTS_MAX {
                    return self.finish_reservation_op(tag, Err(IoError::NotDone(RETRY_DELAY_MAX)));
                }
                let pause = after.saturating_mul(pending.attempts).min(RETRY_DELAY_MAX);
                pending.due = Some(cx.now + pause);
                self.operations.look_at = stream::earliest(self.operations.look_at, Some(cx.now + pause));
                if pause.is_zero() {
                    self.send_reservation_command(cx, tag);
                }
            }
            CommandDisposition::OtherPath(after) => {
                self.finish_reservation_op(tag, Err(IoError::NotDone(after)))
            }
            CommandDisposition::Failed(_) | CommandDisposition::Unsupported
                if pending.step == ReservationStep::FullStatus =>
            {
                pending.step = ReservationStep::Keys;
                self.send_reservation_command(cx, tag);
            }
            CommandDisposition::Failed(_) | CommandDisposition::Unsupported
                if pending.step == ReservationStep::Capabilities =>
            {
                let report = pending.report.clone();
                self.finish_reservation_op(tag, Ok(Some(report)));
            }
            CommandDisposition::Failed(failure) => {
                let failure = match (failure, &pending.request) {
                    (Failure::Refused(Refusal::Conflict), ReservationOp::Change(action)) => {
                        conflict_refusal(action).into()
                    }
                    (other, _) => other,
                };
                self.finish_reservation_op(tag, Err(IoError::Failed(failure)));
            }
            CommandDisposition::Unsupported => {
                let refusal = refusal_of_sense(sense);
                self.finish_reservation_op(tag, Err(IoError::Failed(refusal.into())));
            }
        }
    }

    fn finish_reservation_step(&mut self, cx: &mut Cx<'_>, tag: Tag, data: &[u8]) {
        let (ours, isid) = (self.settings.initiator.to_lowercase(), self.settings.isid.0);
        let port = self.facts.as_ref().and_then(|facts| facts.relative_port());
        let Some(pending) = self.requests.get_mut(tag) else { return };
        let report = &mut pending.report;
        let sound = match pending.step {
            ReservationStep::Act => return self.finish_reservation_op(tag, Ok(None)),
            // More registrations than one answer carries: the keys of all of them fit.
            ReservationStep::FullStatus if is_truncated(data) => {
                pending.step = ReservationStep::Keys;
                Some(())
            }
            ReservationStep::FullStatus => {
                pending.step = ReservationStep::Capabilities;
                parse_full_status(data, report, &ours, |id, at| {
                    id.isid == Some(isid) && (at.is_none() || port.is_none() || at == port)
                })
            }
            ReservationStep::Keys => {
                pending.step = ReservationStep::Reservation;
                parse_keys(data, report)
            }
            ReservationStep::Reservation => {
                pending.step = ReservationStep::Capabilities;
                parse_reservation(data, report)
            }
            ReservationStep::Capabilities => {
                report.persists =
                    persistent_reservation::Capabilities::decode(data).map(|can| can.persist_active);
                let report = report.clone();
                return self.finish_reservation_op(tag, Ok(Some(report)));
            }
        };
        match sound {
            Some(()) => self.send_reservation_command(cx, tag),
            None => self.finish_reservation_op(tag, Err(IoError::Failed(Failure::Failed(Fault::Internal)))),
        }
    }
}

/// An initiator that the target does not name, or not in iSCSI's way.
fn unknown_initiator() -> Identity {
    Identity::Initiator { name: Arc::from("unknown"), isid: [0; 6], port: PortId(0) }
}

/// Whether the data end before what their head announces (SPC-4 §6.15: ADDITIONAL LENGTH is of all).
fn is_truncated(data: &[u8]) -> bool {
    let announced = data.get(4..8).and_then(|len| Some(u32::from_be_bytes(*len.first_chunk()?)));
    announced.is_some_and(|len| data.len().saturating_sub(8) < len as usize)
}

/// `name` is the initiator's; `port` says whether a port of it is this path's.
fn parse_full_status(
    data: &[u8],
    report: &mut Reservations,
    name: &str,
    port: impl Fn(&TransportId<'_>, Option<u16>) -> bool,
) -> Option<()> {
    let (generation, entries) = persistent_reservation::decode_full_status(data)?;
    report.generation = generation;
    for entry in entries {
        let at = entry.relative_port;
        // An NVMe host has another name, and may be this machine.
        let kin = entry.initiator.filter(|id| !id.name.starts_with("nqn.")).map(|id| id.name == name);
        let ours = kin == Some(true) && entry.initiator.is_some_and(|id| port(&id, at));
        let identity = entry.initiator.map_or_else(unknown_initiator, |id| Identity::Initiator {
            name: Arc::from(id.name),
            isid: id.isid.unwrap_or_default(),
            port: PortId(at.unwrap_or(0)),
        });
        let holds = entry.holds.is_some();
        if let Some(kind) = entry.holds {
            // Something is held that we have no word for: that is not nothing.
            report.held = Some(ReservationType::from_scsi(kind.0)?);
        }
        report.registrations.push(Registration { identity, key: Key(entry.key), holds, ours, kin });
    }
    Some(())
}

fn parse_keys(data: &[u8], report: &mut Reservations) -> Option<()> {
    let (generation, keys) = persistent_reservation::decode_keys(data)?;
    (report.generation, report.named, report.whole) = (generation, false, !is_truncated(data));
    let registration = |key| Registration {
        identity: unknown_initiator(),
        key: Key(key),
        holds: false,
        ours: false,
        kin: None,
    };
    report.registrations = keys.map(registration).collect();
    Some(())
}

fn parse_reservation(data: &[u8], report: &mut Reservations) -> Option<()> {
    let (_, held) = persistent_reservation::decode_reservation(data)?;
    let Some(held) = held else { return Some(()) };
    report.held = Some(ReservationType::from_scsi(held.kind.0)?);
    let all = report.held.is_some_and(ReservationType::is_all_registrants);
    for registration in &mut report.registrations {
        registration.holds = all || registration.key == Key(held.key);
    }
    Some(())
}

/// What RESERVATION CONFLICT means for an action (SPC-4 §5.13.5, §6.16): only reserving can meet another's
/// reservation, all else a key that is not ours.
fn conflict_refusal(action: &Action) -> Refusal {
    match action {
        Action::Reserve { .. } | Action::LegacyReserve | Action::LegacyRelease => Refusal::Conflict,
        Action::Register(_) | Action::Move { .. } | Action::Release { .. } => Refusal::NotRegistered,
        Action::Clear { .. } | Action::Preempt { .. } => Refusal::NotRegistered,
        Action::Persist { .. } => Refusal::Unsupported,
    }
}

fn refusal_of_sense(sense: &[u8]) -> Refusal {
    match Sense::decode(sense).map(|decoded| decoded.sense.code) {
        Some(code) if code == Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION.code => {
            Refusal::InvalidRelease
        }
        Some(code) if code == Sense::INVALID_OPCODE.code => Refusal::Unsupported,
        Some(_) | None => Refusal::InvalidAction,
    }
}

/// The command of an action, and its parameter list; what SCSI cannot say is refused.
fn command_of_action(action: &Action) -> Result<(Command, Option<Vec<u8>>), Refusal> {
    let plain = |key: Option<Key>, action_key: Key| {
        let Some(key) = key else { return Err(Refusal::Unsupported) };
        Ok(ReserveOutParameters {
            key: key.0,
            action_key: action_key.0,
            all_target_ports: false,
            persist: false,
            initiator_ports: None,
        })
    };
    let (act, kind, list) = match action {
        Action::Register(register) => {
            let (act, list) = register_parameters(register)?;
            (act, None, list)
        }
        Action::Move { key, new, to, unregister, persist } => {
            return register_and_move_command(*key, *new, to, *unregister, *persist);
        }
        Action::Reserve { key, kind } => (PrOutAction::Reserve, Some(kind), plain(*key, Key::NONE)?),
        Action::Release { key, kind } => (PrOutAction::Release, Some(kind), plain(*key, Key::NONE)?),
        Action::Clear { key } => (PrOutAction::Clear, None, plain(*key, Key::NONE)?),
        Action::Preempt { key, victim, kind, abort } => {
            let act = if *abort { PrOutAction::PreemptAndAbort } else { PrOutAction::Preempt };
            (act, Some(kind), plain(*key, *victim)?)
        }
        // SCSI says it by a registration only.
        Action::Persist { .. } => return Err(Refusal::Unsupported),
        Action::LegacyReserve => return Ok((Command::Reserve, None)),
        Action::LegacyRelease => return Ok((Command::Release, None)),
    };
    let kind = kind.map_or(0, |kind| kind.to_scsi());
    Ok(reserve_out_command(act, kind, |w| list.encode(w)))
}

fn reserve_out_command(
    action: PrOutAction,
    kind: u8,
    encode: impl Fn(&mut Writer<'_>),
) -> (Command, Option<Vec<u8>>) {
    let mut list = vec![0; PARAMETER_LIST_LEN_MAX];
    let mut w = Writer::new(&mut list);
    encode(&mut w);
    let len = w.written_len();
    list.truncate(len);
    (Command::ReserveOut(ReserveOut { action, scope: 0, kind, list_len: len as u32 }), Some(list))
}

fn register_parameters(
    register: &RegistrationRequest,
) -> Result<(PrOutAction, ReserveOutParameters<'static>), Refusal> {
    // Others are registered by themselves, or by Move.
    if !register.also.is_empty() {
        return Err(Refusal::Unsupported);
    }
    let new = match register.mode {
        RegisterMode::Remove => Key::NONE,
        RegisterMode::Set | RegisterMode::Add | RegisterMode::Replace => register.new,
    };
    let current = match register.mode {
        // Only who is not registered may.
        RegisterMode::Add => Some(Key::NONE),
        RegisterMode::Set | RegisterMode::Replace | RegisterMode::Remove => register.current,
    };
    let act = if current.is_some() { PrOutAction::Register } else { PrOutAction::RegisterAndIgnore };
    let list = ReserveOutParameters {
        key: current.unwrap_or(Key::NONE).0,
        action_key: new.0,
        all_target_ports: !register.ports.is_empty(),
        persist: register.persist == Some(true),
        initiator_ports: None,
    };
    Ok((act, list))
}

fn register_and_move_command(
    key: Key,
    new: Key,
    to: &Identity,
    unregister: bool,
    persist: Option<bool>,
) -> Result<(Command, Option<Vec<u8>>), Refusal> {
    let Identity::Initiator { name, isid, port } = to else { return Err(Refusal::Unsupported) };
    if name.is_empty() || name.len() > scsi::transport_id::NAME_LEN_MAX {
        return Err(Refusal::InvalidAction);
    }
    let list = RegisterAndMoveParameters {
        key: key.0,
        action_key: new.0,
        unregister,
        persist: persist == Some(true),
        relative_port: port.0,
        initiator: TransportId { name, isid: Some(*isid) },
    };
    Ok(reserve_out_command(PrOutAction::RegisterAndMove, 0, |w| list.encode(w)))
}
