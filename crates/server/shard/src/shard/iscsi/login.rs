//! From an accepted socket to a link of a session. The exports decide whether the initiator is admitted, the
//! directory which session the login becomes; then the link goes to the session's shard.

use std::sync::Arc;

use buf::{Cx, Pool, PoolAccount};
use endpoint::{AcceptedSocket, LinkDeparture, LinkId};
use iscsi::login::{
    AuthPolicy, Authorization, EstablishedConnection, LoginCompletion, LoginEndCause, LoginIdentity,
    LoginPolicy, SessionQuestion,
};
use iscsi::negotiate::{NegotiationLimits, SessionType};
use iscsi::session::{INITIAL_WINDOW, SessionLimits, SessionParams};
use iscsi::wire::{LoginStatus, Sn, Tsih};
use stream::{LinkNumber, Tag};

use super::IscsiFront;
use crate::exports::{Exports, PlacementQuery};
use crate::link_table::LinkOwner;
use crate::log::LogLine;
use crate::login_link::{LoginEvent, LoginLink};
use crate::message::{LinkHandoff, Message, SessionMemoryNeeds};
use crate::session_directory::{
    AdmissionReply, AdmissionRequest, DirectoryAction, MatchedRule, SessionDirectory, SessionName,
};
use crate::shard::connections::{Conn, ConnKind, JoinRequest, PendingLogin};
use crate::shard::protocol_front::ProtocolFront;
use crate::shard::{DIRECTORY_SHARD, SharedParts};

impl IscsiFront {
    /// A link comes that is to log in. It counts among the strangers.
    pub(in crate::shard) fn accept_login(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: LinkId,
        accepted: AcceptedSocket,
    ) {
        let login = LoginLink::new(cx.now + parts.exports.admission.login_time, accepted);
        let memory = SessionMemoryNeeds::default();
        let pending_login =
            PendingLogin { id, login, cid: None, memory, grant: None, asked: false, gone: false };
        let conn = Conn::new(ConnKind::Login(Box::new(pending_login)));
        match parts.conns.insert(conn) {
            Ok(tag) => {
                parts.admission.logins += 1;
                parts.admission.note_youngest(&parts.conns, tag);
                parts.conns.links.insert(id, LinkOwner { conn: tag, link: LinkNumber(0) });
                parts.conns.mark_pending(tag);
                parts.conns.mark_ready(id);
            }
            Err(_) => parts.conns.departures.push_back((id, LinkDeparture::Abort)),
        }
    }

    pub(in crate::shard) fn run_login_events(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, tag: Tag) {
        while let Some(pending_login) = parts.conns.pending_login_mut(tag) {
            let Some(event) = pending_login.login.poll_event() else { break };
            let (id, accepted) = (pending_login.id, pending_login.login.accepted);
            match event {
                LoginEvent::Authorize(question) => {
                    let reply = self.authorize_login(cx, parts, &question, &accepted);
                    if let Some(pending_login) = parts.conns.pending_login_mut(tag) {
                        pending_login.login.authorize(cx, reply);
                    }
                }
                LoginEvent::Complete(question) => {
                    let cid = question.identity.cid;
                    let preference = parts.exports.shard_preference(
                        &placement_query(&question.identity, &accepted),
                        cx.entropy.next_u64(),
                    );
                    let request = AdmissionRequest {
                        from: (parts.id, tag.to_bits()),
                        name: session_name(&parts.exports, &question.identity, &accepted),
                        tsih: question.identity.tsih,
                        cid,
                        connections_max: u16::try_from(question.params.max_connections).unwrap_or(u16::MAX),
                        user: question.user.clone(),
                        accepted,
                        preference,
                    };
                    let memory = session_memory(&parts.exports, &question, &accepted);
                    if let Some(pending_login) = parts.conns.pending_login_mut(tag) {
                        pending_login.asked = true;
                        (pending_login.cid, pending_login.memory) = (Some(cid), memory);
                    }
                    parts.outbox.post(DIRECTORY_SHARD, Message::AdmissionRequest(request));
                }
                LoginEvent::Done(established) => self.hand_off_login(cx, parts, tag, *established),
                LoginEvent::Over(cause) => {
                    if cause == Some(LoginEndCause::Authentication) {
                        parts.outbox.broadcast(|| Message::AuthenticationFailed(accepted.peer.ip()));
                    }
                    let names = parts.conns.pending_login_mut(tag).and_then(|one| one.login.claimed_names());
                    parts.log.push(LogLine::LoginFailed { peer: accepted.peer, names, cause });
                    // Who lost the place to another is told nothing: the descriptor is free at once.
                    let evicted = parts
                        .conns
                        .pending_login_mut(tag)
                        .is_some_and(|pending_login| pending_login.login.is_evicted());
                    let how = if evicted { LinkDeparture::Abort } else { LinkDeparture::Close };
                    self.depart_link(parts, id, how);
                }
            }
        }
        if let Some(pending_login) = parts.conns.pending_login_mut(tag) {
            let id = pending_login.id;
            parts.conns.mark_ready(id);
        }
    }

    fn authorize_login(
        &self,
        cx: &Cx<'_>,
        parts: &SharedParts,
        question: &LoginIdentity,
        accepted: &AcceptedSocket,
    ) -> Authorization {
        let Some(portal) = parts.exports.portal(accepted.listener) else {
            return Authorization::Refused(LoginStatus::SERVICE_UNAVAILABLE);
        };
        if parts.exports.blocked.contains(question.initiator_name.as_str(), accepted.peer.ip()) {
            return Authorization::Refused(LoginStatus::AUTHORIZATION_FAILURE);
        }
        let held = parts.admission.backoff.must_wait(cx.now, accepted.peer.ip());
        let grant = |auth: &AuthPolicy, limits: &NegotiationLimits, alias: Option<&Arc<str>>| {
            if held && !matches!(auth, AuthPolicy::None) {
                return Authorization::Refused(LoginStatus::SERVICE_UNAVAILABLE);
            }
            Authorization::Granted(Box::new(LoginPolicy {
                auth: auth.clone(),
                limits: limits.clone(),
                portal_group_tag: portal.group,
                target_alias: alias.map(|alias| alias.to_string()),
            }))
        };
        match (question.session_type, &question.target_name) {
            (SessionType::Discovery, _) => {
                grant(&parts.exports.discovery_auth, &NegotiationLimits::default(), None)
            }
            (SessionType::Normal, None) => Authorization::Refused(LoginStatus::MISSING_PARAMETER),
            (SessionType::Normal, Some(name)) => {
                let Some(target) = parts.exports.target(name.as_str(), portal) else {
                    return Authorization::Refused(LoginStatus::TARGET_NOT_FOUND);
                };
                if let Some(redirect) = &target.redirect {
                    let address = redirect.address.clone();
                    return match redirect.permanent {
                        true => Authorization::MovedPermanently(address),
                        false => Authorization::MovedTemporarily(address),
                    };
                }
                if let Some(address) = target.redirect_for(portal.group, accepted) {
                    return Authorization::MovedTemporarily(address.clone());
                }
                match target.rule_for(question.initiator_name.as_str(), accepted) {
                    Some(_) if target.is_away => Authorization::Refused(LoginStatus::SERVICE_UNAVAILABLE),
                    Some(rule) => {
                        let held = self.promised_by_initiator.get(question.initiator_name.as_str()).copied();
                        let offer = affordable_limits(
                            cx.pool,
                            &target.negotiation,
                            target.limits.commands,
                            held.unwrap_or(0),
                        );
                        grant(&rule.auth, &offer, target.alias.as_ref())
                    }
                    None => Authorization::Refused(LoginStatus::AUTHORIZATION_FAILURE),
                }
            }
        }
    }

    pub(in crate::shard) fn update_directory(
        &mut self,
        parts: &mut SharedParts,
        change: impl FnOnce(&mut SessionDirectory, &mut Vec<DirectoryAction>),
    ) {
        let Some(directory) = &mut self.directory else { return };
        let mut actions = Vec::new();
        change(directory, &mut actions);
        for action in actions {
            match action {
                DirectoryAction::Answer { shard, token, reply } => {
                    parts.outbox.post(shard, Message::AdmissionReply(token, reply))
                }
                DirectoryAction::End { shard, tsih } => parts.outbox.post(shard, Message::EndSession(tsih)),
            }
        }
    }

    pub(in crate::shard) fn admit_to_directory(
        &mut self,
        parts: &mut SharedParts,
        request: AdmissionRequest,
    ) {
        let exports = parts.exports.clone();
        let rules = |name: &SessionName, accepted: &AcceptedSocket| matched_rule(&exports, name, accepted);
        self.update_directory(parts, |directory, actions| directory.admit(request, &rules, actions));
    }

    /// The directory has answered a login of this shard.
    pub(in crate::shard) fn handle_admission_reply(
        &mut self,
        parts: &mut SharedParts,
        token: u64,
        reply: AdmissionReply,
    ) {
        let tag = Tag::from_bits(token);
        let Some(pending_login) = parts.conns.pending_login_mut(tag) else { return };
        match reply {
            AdmissionReply::Granted { tsih, shard, new } => {
                pending_login.grant = Some((shard, tsih, new));
                match pending_login.cid {
                    Some(cid) if !new => {
                        parts.outbox.post(shard, Message::JoinSession(tsih, cid, parts.id, token))
                    }
                    // A claim names its connection.
                    Some(_) | None => {
                        let memory = pending_login.memory;
                        parts.outbox.post(shard, Message::ReserveMemory(tsih, memory, parts.id, token));
                    }
                }
            }
            AdmissionReply::NoSuchSession => {
                self.complete_login(parts, tag, LoginCompletion::Refused(LoginStatus::SESSION_DOES_NOT_EXIST))
            }
            AdmissionReply::TooManyConnections => {
                self.complete_login(parts, tag, LoginCompletion::Refused(LoginStatus::TOO_MANY_CONNECTIONS))
            }
            AdmissionReply::NotTheirs => {
                self.complete_login(parts, tag, LoginCompletion::Refused(LoginStatus::AUTHORIZATION_FAILURE))
            }
            AdmissionReply::Full => {
                self.complete_login(parts, tag, LoginCompletion::Refused(LoginStatus::OUT_OF_RESOURCES))
            }
        }
    }

    /// Memory for the session was set aside where it shall live, or not.
    pub(in crate::shard) fn handle_memory_reserved(
        &mut self,
        parts: &mut SharedParts,
        token: u64,
        memory: Result<(), LoginStatus>,
    ) {
        let tag = Tag::from_bits(token);
        let Some(pending_login) = parts.conns.pending_login_mut(tag) else { return };
        let Some((_, tsih, _)) = pending_login.grant else { return };
        let wanted = pending_login.login.awaits_answer();
        match memory {
            // Every session starts with a window of one command; it opens as far as memory was set aside
            // for it, with the first response.
            Ok(()) => self.complete_login(parts, tag, LoginCompletion::NewSession { tsih, window: 1 }),
            Err(LoginStatus::OUT_OF_RESOURCES) if wanted => {
                pending_login.grant = None;
                parts.outbox.post(DIRECTORY_SHARD, Message::PlaceElsewhere(tsih, parts.id, token));
            }
            Err(status) => {
                pending_login.grant = None;
                parts.outbox.post(DIRECTORY_SHARD, Message::SessionGone(tsih));
                self.complete_login(parts, tag, LoginCompletion::Refused(status));
            }
        }
    }

    pub(in crate::shard) fn handle_join_request(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        tsih: Tsih,
        joining: JoinRequest,
    ) {
        let until = cx.now + parts.exports.admission.login_time;
        if !self.sessions.contains_key(&tsih) {
            self.postpone_join(cx, parts, tsih, joining);
        } else if !self.start_join(cx, &mut parts.conns, until, (tsih, joining)) {
            parts.outbox.post(
                joining.from,
                Message::JoinReply(joining.token, Err(LoginStatus::SESSION_DOES_NOT_EXIST)),
            );
        }
    }

    pub(in crate::shard) fn handle_join_reply(
        &mut self,
        parts: &mut SharedParts,
        token: u64,
        window: Result<(Sn, Sn), LoginStatus>,
    ) {
        let completion = match window {
            Ok((exp_cmd_sn, max_cmd_sn)) => LoginCompletion::Join { exp_cmd_sn, max_cmd_sn },
            Err(status) => LoginCompletion::Refused(status),
        };
        self.complete_login(parts, Tag::from_bits(token), completion);
    }

    fn complete_login(&mut self, parts: &mut SharedParts, tag: Tag, completion: LoginCompletion) {
        let Some(pending_login) = parts.conns.pending_login_mut(tag) else { return };
        pending_login.asked = false;
        if pending_login.login.awaits_answer() {
            pending_login.login.complete_login(completion);
            parts.conns.mark_pending(tag);
        } else {
            self.forget_login(parts, tag);
        }
    }

    /// The last response is sent: the link goes where its session lives.
    fn hand_off_login(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        tag: Tag,
        established: EstablishedConnection,
    ) {
        let Some(Conn { kind: ConnKind::Login(pending_login), .. }) = parts.conns.remove(tag) else { return };
        parts.admission.logins -= 1;
        let (id, accepted) = (pending_login.id, pending_login.login.accepted);
        // A login ends after its grant.
        let Some((shard, _, new)) = pending_login.grant else {
            return self.depart_link(parts, id, LinkDeparture::Abort);
        };
        let rest = pending_login.login.into_unparsed_bytes();
        let handoff = LinkHandoff { established, accepted, new, rest };
        if shard == parts.id {
            self.attach_link(cx, parts, id, handoff);
        } else {
            let message = Message::Link(Box::new(handoff));
            self.depart_link(parts, id, LinkDeparture::Move { to: shard, message });
        }
    }

    /// Forgets a login whose link is gone and whom nobody owes an answer.
    pub(in crate::shard) fn forget_login(&mut self, parts: &mut SharedParts, tag: Tag) {
        let Some(pending_login) = parts.conns.pending_login_mut(tag) else { return };
        if !pending_login.gone || pending_login.asked {
            return;
        }
        match (pending_login.grant, pending_login.cid) {
            // What was granted never came to be.
            (Some((shard, tsih, true)), _) => parts.outbox.post(shard, Message::LoginAborted(tsih)),
            (Some((shard, tsih, false)), Some(cid)) => {
                parts.outbox.post(shard, Message::JoinAborted(tsih, cid, parts.id, tag.to_bits()));
            }
            (Some((.., false)) | None, _) => {}
        }
        parts.conns.remove(tag);
        parts.admission.logins -= 1;
    }

    /// The peer's address and target of a link that is lost on its way between shards.
    pub(in crate::shard) fn handoff_without_link(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        handoff: &LinkHandoff,
    ) {
        let (tsih, cid) = (handoff.established.tsih, handoff.established.identity.cid);
        if handoff.new {
            self.handle_login_aborted(cx, parts, tsih);
        } else {
            self.handle_link_never_arrived(cx, (&mut parts.conns, &mut parts.outbox), tsih, cid);
        }
    }
}

fn session_name(exports: &Exports, identity: &LoginIdentity, accepted: &AcceptedSocket) -> SessionName {
    SessionName {
        initiator: identity.initiator_name.as_str().into(),
        isid: identity.isid,
        target: identity.target_name.as_ref().map_or("", |name| name.as_str()).into(),
        portal_group: exports.portal(accepted.listener).map_or(0, |portal| portal.group),
    }
}

/// What the session that a login founds needs set aside.
fn session_memory(
    exports: &Exports,
    question: &SessionQuestion,
    accepted: &AcceptedSocket,
) -> SessionMemoryNeeds {
    let identity = &question.identity;
    let target = || {
        let portal = exports.portal(accepted.listener)?;
        exports.target(identity.target_name.as_ref()?.as_str(), portal)
    };
    let commands = target().map_or(SessionLimits::default().commands, |target| target.limits.commands);
    let params =
        SessionParams::from_negotiated(&question.params, identity.isid, identity.tsih, question.cmd_sn);
    SessionMemoryNeeds { unsolicited: params.unsolicited_burst_len(), commands }
}

/// What lets a connection of a session in that came like this.
fn matched_rule(exports: &Exports, name: &SessionName, accepted: &AcceptedSocket) -> Option<MatchedRule> {
    if name.target.is_empty() {
        return Some(MatchedRule { rule: None, proves: !matches!(exports.discovery_auth, AuthPolicy::None) });
    }
    let target = exports.target(&name.target, exports.portal(accepted.listener)?)?;
    let at = target.rule_index_for(&name.initiator, accepted)?;
    let proves = !matches!(target.rules.get(at)?.auth, AuthPolicy::None);
    Some(MatchedRule { rule: Some(at), proves })
}

/// Who logs in, as rules of placement see it.
pub(in crate::shard) fn placement_query<'a>(
    identity: &'a LoginIdentity,
    accepted: &'a AcceptedSocket,
) -> PlacementQuery<'a> {
    PlacementQuery {
        by: accepted,
        peer: identity.initiator_name.as_str(),
        destination: identity.target_name.as_ref().map_or("", |name| name.as_str()),
    }
}

/// The first burst that is offered when memory grows short: one 4 KiB write.
const REDUCED_FIRST_BURST: u32 = 4096;

/// One initiator's sessions are promised one part in so many of it at most; beyond that they send no data unasked.
const HOST_SHARE_DIVISOR: usize = 4;

/// What a session begins with, in bytes: a burst for each command of its first window, and one for immediate
/// commands.
pub(in crate::shard) fn initial_promise_bytes(commands: u16, burst: u32) -> usize {
    (usize::from(commands.min(INITIAL_WINDOW)) + 1) * burst as usize
}

/// What can be offered with the memory that is left to promise (law 3): a whole first burst for each
/// command that a session begins with; or a short one; or no unsolicited data at all, which needs no
/// promise. That may take a quarter of what is left, so that the next ones are served too. `held`: what is
/// promised to other sessions of the initiator on this shard, in bytes.
fn affordable_limits(
    pool: &Pool,
    wanted: &NegotiationLimits,
    commands: u16,
    held: usize,
) -> NegotiationLimits {
    let left = pool.reservable_bytes(PoolAccount::Iscsi) / 4;
    let most = pool.usage().reservable_max() / HOST_SHARE_DIVISOR;
    let fits = |burst: u32| {
        let need = initial_promise_bytes(commands, burst);
        need <= left && held + need <= most
    };
    let mut offer = wanted.clone();
    let burst = if wanted.initial_r2t { wanted.first_burst.min(wanted.mrdsl) } else { wanted.first_burst };
    if !wanted.immediate_data && wanted.initial_r2t || fits(burst) {
        return offer;
    }
    offer.initial_r2t = true;
    if fits(REDUCED_FIRST_BURST) {
        offer.first_burst = wanted.first_burst.min(REDUCED_FIRST_BURST);
    } else {
        offer.immediate_data = false;
    }
    offer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_shrinks_with_the_memory_that_is_left() {
        let pool = Pool::new(64 << 20);
        let wanted = NegotiationLimits { first_burst: 16_384, ..NegotiationLimits::default() };
        assert_eq!(affordable_limits(&pool, &wanted, 128, 0), wanted);
        assert!(pool.reserve(PoolAccount::Iscsi, (32 << 20) - (576 << 10) + 512));
        let short = affordable_limits(&pool, &wanted, 128, 0);
        assert_eq!((short.first_burst, short.immediate_data, short.initial_r2t), (4096, true, true));
        assert!(pool.reserve(PoolAccount::Iscsi, 432 << 10));
        let none = affordable_limits(&pool, &wanted, 128, 0);
        assert_eq!((none.immediate_data, none.initial_r2t), (false, true));
    }

    #[test]
    fn one_initiator_is_not_promised_what_others_may_need() {
        let pool = Pool::new(64 << 20);
        let wanted = NegotiationLimits { first_burst: 16_384, ..NegotiationLimits::default() };
        let offered = |held| {
            let offer = affordable_limits(&pool, &wanted, 128, held);
            (offer.first_burst, offer.immediate_data)
        };
        let most = 8 << 20;
        assert_eq!(offered(most - (144 << 10)), (16_384, true));
        assert_eq!(offered(most - (144 << 10) + 1), (4096, true));
        assert_eq!(offered(most - (36 << 10)), (4096, true));
        assert!(!offered(most - (36 << 10) + 1).1);
    }
}
