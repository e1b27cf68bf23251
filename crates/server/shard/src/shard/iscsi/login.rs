//! From an accepted socket to a link of a session. The exports decide whether the initiator is admitted, the
//! directory which session the login becomes; then the link goes to the session's shard.

use std::sync::Arc;

use buf::{Cx, Pool, PoolAccount};
use endpoint::{Accepted, Departure, LinkId};
use iscsi::login::{
    AuthPolicy, Authorization, Cause, Completion, Established, LoginIdentity, LoginPolicy, SessionQuestion,
};
use iscsi::negotiate::{Limits, SessionType};
use iscsi::session::{SessionLimits, SessionParams, WINDOW_START};
use iscsi::wire::{LoginStatus, Sn, Tsih};
use stream::{Link, Tag};

use super::IscsiFront;
use crate::directory::{
    AdmissionReply, AdmissionRequest, Directory, DirectoryAction, MatchedRule, SessionName,
};
use crate::exports::{Exports, PlacementQuery};
use crate::links::LinkOwner;
use crate::log::LogLine;
use crate::login_link::{LoginEvent, LoginLink};
use crate::message::{LinkHandoff, Message, SessionMemory};
use crate::shard::conns::{Conn, ConnKind, JoinRequest, PendingLogin};
use crate::shard::front::Front;
use crate::shard::{DIRECTORY, Parts};

impl IscsiFront {
    /// A link comes that is to log in. It counts among the strangers.
    pub(in crate::shard) fn accept(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        id: LinkId,
        accepted: Accepted,
    ) {
        let login = LoginLink::new(cx.now + parts.exports.admission.login_time, accepted);
        let memory = SessionMemory::default();
        let pending_login =
            PendingLogin { id, login, cid: None, memory, grant: None, asked: false, gone: false };
        let conn = Conn::new(ConnKind::Login(Box::new(pending_login)));
        match parts.conns.insert(conn) {
            Ok(tag) => {
                parts.admission.logins += 1;
                parts.admission.note_age(&parts.conns, tag);
                parts.conns.links.insert(id, LinkOwner { conn: tag, link: Link(0) });
                parts.conns.touch(tag);
                parts.conns.mark_ready(id);
            }
            Err(_) => parts.conns.departures.push_back((id, Departure::Abort)),
        }
    }

    pub(in crate::shard) fn run_login(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, tag: Tag) {
        while let Some(pending_login) = parts.conns.pending_login(tag) {
            let Some(event) = pending_login.login.poll_event() else { break };
            let (id, accepted) = (pending_login.id, pending_login.login.accepted);
            match event {
                LoginEvent::Authorize(question) => {
                    let reply = self.authorize(cx, parts, &question, &accepted);
                    if let Some(pending_login) = parts.conns.pending_login(tag) {
                        pending_login.login.authorize(cx, reply);
                    }
                }
                LoginEvent::Complete(question) => {
                    let cid = question.identity.cid;
                    let preference = parts
                        .exports
                        .preference(&placement_query(&question.identity, &accepted), cx.entropy.next_u64());
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
                    if let Some(pending_login) = parts.conns.pending_login(tag) {
                        pending_login.asked = true;
                        (pending_login.cid, pending_login.memory) = (Some(cid), memory);
                    }
                    parts.outbox.post(DIRECTORY, Message::AdmissionRequest(request));
                }
                LoginEvent::Done(established) => self.hand_off_login(cx, parts, tag, *established),
                LoginEvent::Over(cause) => {
                    if cause == Some(Cause::Authentication) {
                        parts.outbox.broadcast(|| Message::AuthenticationFailed(accepted.peer.ip()));
                    }
                    parts.log.push(LogLine::LoginFailed { peer: accepted.peer, cause });
                    // Who lost the place to another is told nothing: the descriptor is free at once.
                    let evicted = parts
                        .conns
                        .pending_login(tag)
                        .is_some_and(|pending_login| pending_login.login.is_evicted());
                    let how = if evicted { Departure::Abort } else { Departure::Close };
                    self.depart(parts, id, how);
                }
            }
        }
        if let Some(pending_login) = parts.conns.pending_login(tag) {
            let id = pending_login.id;
            parts.conns.mark_ready(id);
        }
    }

    fn authorize(
        &self,
        cx: &Cx<'_>,
        parts: &Parts,
        question: &LoginIdentity,
        accepted: &Accepted,
    ) -> Authorization {
        let Some(portal) = parts.exports.portal(accepted.listener) else {
            return Authorization::Refused(LoginStatus::SERVICE_UNAVAILABLE);
        };
        let held = parts.admission.backoff.holds(cx.now, accepted.peer.ip());
        let grant = |auth: &AuthPolicy, limits: &Limits, alias: Option<&Arc<str>>| {
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
            (SessionType::Discovery, _) => grant(&parts.exports.discovery_auth, &Limits::default(), None),
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
                if let Some(address) = target.sent_on(portal.group, accepted) {
                    return Authorization::MovedTemporarily(address.clone());
                }
                match target.rule(question.initiator_name.as_str(), accepted) {
                    Some(_) if target.is_away => Authorization::Refused(LoginStatus::SERVICE_UNAVAILABLE),
                    Some(rule) => {
                        let held = self.promised_by_initiator.get(question.initiator_name.as_str()).copied();
                        let offer = affordable(
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

    pub(in crate::shard) fn directory_change(
        &mut self,
        parts: &mut Parts,
        change: impl FnOnce(&mut Directory, &mut Vec<DirectoryAction>),
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

    pub(in crate::shard) fn admit(&mut self, parts: &mut Parts, request: AdmissionRequest) {
        let exports = parts.exports.clone();
        let rules = |name: &SessionName, accepted: &Accepted| matched_rule(&exports, name, accepted);
        self.directory_change(parts, |directory, actions| directory.admit(request, &rules, actions));
    }

    /// The directory has answered a login of this shard.
    pub(in crate::shard) fn admission_reply(&mut self, parts: &mut Parts, token: u64, reply: AdmissionReply) {
        let tag = Tag::from_bits(token);
        let Some(pending_login) = parts.conns.pending_login(tag) else { return };
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
                self.complete(parts, tag, Completion::Refused(LoginStatus::SESSION_DOES_NOT_EXIST))
            }
            AdmissionReply::TooManyConnections => {
                self.complete(parts, tag, Completion::Refused(LoginStatus::TOO_MANY_CONNECTIONS))
            }
            AdmissionReply::NotTheirs => {
                self.complete(parts, tag, Completion::Refused(LoginStatus::AUTHORIZATION_FAILURE))
            }
            AdmissionReply::Full => {
                self.complete(parts, tag, Completion::Refused(LoginStatus::OUT_OF_RESOURCES))
            }
        }
    }

    /// Memory for the session was set aside where it shall live, or not.
    pub(in crate::shard) fn memory_reserved(
        &mut self,
        parts: &mut Parts,
        token: u64,
        memory: Result<(), LoginStatus>,
    ) {
        let tag = Tag::from_bits(token);
        let Some(pending_login) = parts.conns.pending_login(tag) else { return };
        let Some((_, tsih, _)) = pending_login.grant else { return };
        let wanted = pending_login.login.awaits_answer();
        match memory {
            // Every session starts with a window of one command; it opens as far as memory was set aside
            // for it, with the first response.
            Ok(()) => self.complete(parts, tag, Completion::NewSession { tsih, window: 1 }),
            Err(LoginStatus::OUT_OF_RESOURCES) if wanted => {
                pending_login.grant = None;
                parts.outbox.post(DIRECTORY, Message::PlaceElsewhere(tsih, parts.id, token));
            }
            Err(status) => {
                pending_login.grant = None;
                parts.outbox.post(DIRECTORY, Message::SessionGone(tsih));
                self.complete(parts, tag, Completion::Refused(status));
            }
        }
    }

    pub(in crate::shard) fn join_session(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        tsih: Tsih,
        joining: JoinRequest,
    ) {
        let until = cx.now + parts.exports.admission.login_time;
        if !self.sessions.contains_key(&tsih) {
            self.join_of_absent(cx, parts, tsih, joining);
        } else if !self.start_join(cx, &mut parts.conns, until, (tsih, joining)) {
            parts.outbox.post(
                joining.from,
                Message::JoinReply(joining.token, Err(LoginStatus::SESSION_DOES_NOT_EXIST)),
            );
        }
    }

    pub(in crate::shard) fn join_reply(
        &mut self,
        parts: &mut Parts,
        token: u64,
        window: Result<(Sn, Sn), LoginStatus>,
    ) {
        let completion = match window {
            Ok((exp_cmd_sn, max_cmd_sn)) => Completion::Join { exp_cmd_sn, max_cmd_sn },
            Err(status) => Completion::Refused(status),
        };
        self.complete(parts, Tag::from_bits(token), completion);
    }

    fn complete(&mut self, parts: &mut Parts, tag: Tag, completion: Completion) {
        let Some(pending_login) = parts.conns.pending_login(tag) else { return };
        pending_login.asked = false;
        if pending_login.login.awaits_answer() {
            pending_login.login.complete(completion);
            parts.conns.touch(tag);
        } else {
            self.forget_login(parts, tag);
        }
    }

    /// The last response is sent: the link goes where its session lives.
    fn hand_off_login(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, tag: Tag, established: Established) {
        let Some(Conn { kind: ConnKind::Login(pending_login), .. }) = parts.conns.remove(tag) else { return };
        parts.admission.logins -= 1;
        let (id, accepted) = (pending_login.id, pending_login.login.accepted);
        // A login ends after its grant.
        let Some((shard, _, new)) = pending_login.grant else {
            return self.depart(parts, id, Departure::Abort);
        };
        let rest = pending_login.login.into_rest();
        let handoff = LinkHandoff { established, accepted, new, rest };
        if shard == parts.id {
            self.attach(cx, parts, id, handoff);
        } else {
            let message = Message::Link(Box::new(handoff));
            self.depart(parts, id, Departure::Move { to: shard, message });
        }
    }

    /// Forgets a login whose link is gone and whom nobody owes an answer.
    pub(in crate::shard) fn forget_login(&mut self, parts: &mut Parts, tag: Tag) {
        let Some(pending_login) = parts.conns.pending_login(tag) else { return };
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
        parts: &mut Parts,
        handoff: &LinkHandoff,
    ) {
        let (tsih, cid) = (handoff.established.tsih, handoff.established.identity.cid);
        if handoff.new {
            self.login_aborted(cx, parts, tsih);
        } else {
            self.link_never_came(cx, (&mut parts.conns, &mut parts.outbox), tsih, cid);
        }
    }
}

fn session_name(exports: &Exports, identity: &LoginIdentity, accepted: &Accepted) -> SessionName {
    SessionName {
        initiator: identity.initiator_name.as_str().into(),
        isid: identity.isid,
        target: identity.target_name.as_ref().map_or("", |name| name.as_str()).into(),
        portal_group: exports.portal(accepted.listener).map_or(0, |portal| portal.group),
    }
}

/// What the session that a login founds needs set aside.
fn session_memory(exports: &Exports, question: &SessionQuestion, accepted: &Accepted) -> SessionMemory {
    let identity = &question.identity;
    let target = || {
        let portal = exports.portal(accepted.listener)?;
        exports.target(identity.target_name.as_ref()?.as_str(), portal)
    };
    let commands = target().map_or(SessionLimits::default().commands, |target| target.limits.commands);
    let params = SessionParams::negotiated(&question.params, identity.isid, identity.tsih, question.cmd_sn);
    SessionMemory { unsolicited: params.unsolicited(), commands }
}

/// What lets a connection of a session in that came like this.
fn matched_rule(exports: &Exports, name: &SessionName, accepted: &Accepted) -> Option<MatchedRule> {
    if name.target.is_empty() {
        return Some(MatchedRule { rule: None, proves: !matches!(exports.discovery_auth, AuthPolicy::None) });
    }
    let target = exports.target(&name.target, exports.portal(accepted.listener)?)?;
    let at = target.rule_at(&name.initiator, accepted)?;
    let proves = !matches!(target.rules.get(at)?.auth, AuthPolicy::None);
    Some(MatchedRule { rule: Some(at), proves })
}

/// Who logs in, as rules of placement see it.
pub(in crate::shard) fn placement_query<'a>(
    identity: &'a LoginIdentity,
    accepted: &'a Accepted,
) -> PlacementQuery<'a> {
    PlacementQuery {
        by: accepted,
        peer: identity.initiator_name.as_str(),
        destination: identity.target_name.as_ref().map_or("", |name| name.as_str()),
    }
}

/// The first burst that is offered when memory grows short: one 4 KiB write.
const SHORT_BURST: u32 = 4096;

/// One initiator's sessions are promised one part in so many of it at most; beyond that they send no data unasked.
const HOST_SHARE: usize = 4;

/// What a session begins with, in bytes: a burst for each command of its first window, and one for immediate
/// commands.
pub(in crate::shard) fn promise(commands: u16, burst: u32) -> usize {
    (usize::from(commands.min(WINDOW_START)) + 1) * burst as usize
}

/// What can be offered with the memory that is left to promise (law 3): a whole first burst for each
/// command that a session begins with; or a short one; or no unsolicited data at all, which needs no
/// promise. That may take a quarter of what is left, so that the next ones are served too. `held`: what is
/// promised to other sessions of the initiator on this shard, in bytes.
fn affordable(pool: &Pool, wanted: &Limits, commands: u16, held: usize) -> Limits {
    let left = pool.left_to_promise(PoolAccount::Iscsi) / 4;
    let most = pool.usage().promise_max() / HOST_SHARE;
    let fits = |burst: u32| {
        let need = promise(commands, burst);
        need <= left && held + need <= most
    };
    let mut offer = wanted.clone();
    let burst = if wanted.initial_r2t { wanted.first_burst.min(wanted.mrdsl) } else { wanted.first_burst };
    if !wanted.immediate_data && wanted.initial_r2t || fits(burst) {
        return offer;
    }
    offer.initial_r2t = true;
    if fits(SHORT_BURST) {
        offer.first_burst = wanted.first_burst.min(SHORT_BURST);
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
        let wanted = Limits { first_burst: 16_384, ..Limits::default() };
        assert_eq!(affordable(&pool, &wanted, 128, 0), wanted);
        assert!(pool.reserve(PoolAccount::Iscsi, (32 << 20) - (576 << 10) + 512));
        let short = affordable(&pool, &wanted, 128, 0);
        assert_eq!((short.first_burst, short.immediate_data, short.initial_r2t), (4096, true, true));
        assert!(pool.reserve(PoolAccount::Iscsi, 432 << 10));
        let none = affordable(&pool, &wanted, 128, 0);
        assert_eq!((none.immediate_data, none.initial_r2t), (false, true));
    }

    #[test]
    fn one_initiator_is_not_promised_what_others_may_need() {
        let pool = Pool::new(64 << 20);
        let wanted = Limits { first_burst: 16_384, ..Limits::default() };
        let offered = |held| {
            let offer = affordable(&pool, &wanted, 128, held);
            (offer.first_burst, offer.immediate_data)
        };
        let most = 8 << 20;
        assert_eq!(offered(most - (144 << 10)), (16_384, true));
        assert_eq!(offered(most - (144 << 10) + 1), (4096, true));
        assert_eq!(offered(most - (36 << 10)), (4096, true));
        assert!(!offered(most - (36 << 10) + 1).1);
    }
}
