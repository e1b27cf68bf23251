//! From an accepted socket to a Connect whose names are known (NVMe Base §6.3).

use std::net::IpAddr;

use buf::{Cx, MemoryClass, Time};
use endpoint::{AcceptedSocket, LinkDeparture, LinkId};
use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectRefusal};
use nvme::tls::{PskIdentity, PskKind};
use nvme::{Completion, FabricsType, Opcode, Sqe, Status};
use nvme_tcp::ControllerQueue;
use stream::{Connection, ConnectionClose, LinkNumber, Tag, TargetConnection, TargetEvent};

use super::NvmeFront;
use super::tls;
use super::{ConnectRequest, FINAL_SEND_TIMEOUT, QueueConn, QueueState};
use crate::exports::{HostNotAllowed, HostRule, NvmeService, TlsMode, is_proven};
use crate::link_table::LinkOwner;
use crate::log::{ConnectFailure, LogLine, NvmeLogLine};
use crate::shard::SharedParts;
use crate::shard::connections::{Conn, ConnKind};

/// The leave to connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectPermit {
    /// How many controllers the subsystem may have.
    pub(super) controllers: u16,
    /// Where it came from, and how many controllers that source may have, if that is bounded.
    pub(super) source: Option<(IpAddr, u16)>,
    /// Whether the host has still to prove who it is.
    pub(super) proves: bool,
}

impl NvmeFront {
    /// A host connects. Who has not said who it is counts among the logins.
    pub(in crate::shard) fn accept_host(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: LinkId,
        accepted: AcceptedSocket,
    ) {
        let limits = parts.exports.queue_limits(&accepted);
        let mut proto = ControllerQueue::new(cx, limits);
        let nvme = &parts.exports.nvme;
        if !tls::expect_tls_if_enabled(&mut proto, nvme, nvme.portal(accepted.listener)) {
            return parts.conns.departures.push_back((id, LinkDeparture::Abort));
        }
        match self.insert_queue(parts, QueueConn::new(cx.now, id, proto, accepted, true)) {
            Some(tag) => parts.admission.note_youngest(&parts.conns, tag),
            None => parts.conns.departures.push_back((id, LinkDeparture::Abort)),
        }
    }

    /// Makes a connection known. `None`: there are as many as a shard can hold.
    pub(super) fn insert_queue(&mut self, parts: &mut SharedParts, queue: QueueConn) -> Option<Tag> {
        let id = queue.id;
        let is_stranger = queue.is_stranger;
        let conn = Conn::new(ConnKind::Queue(Box::new(queue)));
        let tag = parts.conns.insert(conn).ok()?;
        if is_stranger {
            parts.admission.logins += 1;
        } else {
            self.queues += 1;
        }
        parts.conns.links.insert(id, LinkOwner { conn: tag, link: LinkNumber(0) });
        parts.conns.mark_pending(tag);
        parts.conns.mark_ready(id);
        Some(tag)
    }

    /// What a connection says that is no queue.
    pub(super) fn handle_unconnected_event(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        event: TargetEvent<Sqe>,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        match event {
            TargetEvent::Command { tag, command, data_out } => match queue.state {
                QueueState::AwaitingConnect => {
                    self.handle_first_command(cx, parts, conn, tag, &command, data_out)
                }
                QueueState::ReadingConnect(_)
                | QueueState::AwaitingGrant(_)
                | QueueState::Granted(_)
                | QueueState::Open(_)
                | QueueState::Ended => {
                    queue.proto.end_without_response(cx, tag);
                }
            },
            TargetEvent::DataReceived { tag, data, .. } => {
                let QueueState::ReadingConnect(connect) = queue.state else { return };
                queue.state = QueueState::AwaitingConnect;
                let mut bytes = [0; ConnectData::LEN as usize];
                if data.len() == bytes.len() {
                    data.copy_to(0, &mut bytes);
                }
                match ConnectData::parse(&bytes).names() {
                    Ok(names) => {
                        let draw = cx.entropy.next_u64();
                        self.check_connect(cx, parts, conn, ConnectRequest { tag, connect, names, draw });
                    }
                    Err(refusal) => {
                        self.refuse_connect(
                            cx,
                            parts,
                            conn,
                            tag,
                            refusal.into(),
                            ConnectFailure::Refused(refusal),
                        );
                    }
                }
            }
            TargetEvent::Aborted { tag } => {
                // Of a queue that was open, the server ends the commands.
                if queue.key.is_none() {
                    queue.proto.end_without_response(cx, tag);
                }
                if let QueueState::ReadingConnect(_) = queue.state {
                    queue.state = QueueState::AwaitingConnect;
                }
            }
            TargetEvent::Closed => {}
        }
    }

    /// The first command must be a Connect.
    fn handle_first_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        tag: Tag,
        sqe: &Sqe,
        data_out: u32,
    ) {
        if sqe.opcode != Opcode::FABRICS || sqe.fabrics_type() != FabricsType::CONNECT {
            let completion = Status::COMMAND_SEQUENCE_ERROR.into();
            return self.refuse_connect(cx, parts, conn, tag, completion, ConnectFailure::NotConnect);
        }
        let connect = match Connect::parse(sqe) {
            Ok(connect) => connect,
            Err(refusal) => {
                return self.refuse_connect(
                    cx,
                    parts,
                    conn,
                    tag,
                    refusal.into(),
                    ConnectFailure::Refused(refusal),
                );
            }
        };
        if data_out != ConnectData::LEN {
            let completion = Status::SGL_LENGTH_INVALID.into();
            return self.refuse_connect(cx, parts, conn, tag, completion, ConnectFailure::NotConnect);
        }
        let Some(memory) = cx.pool.take_sg(MemoryClass::Wire, data_out as usize) else {
            let completion = ConnectRefusal::Busy.into();
            return self.refuse_connect(cx, parts, conn, tag, completion, ConnectFailure::NoMemory);
        };
        if let Some(queue) = parts.conns.queue_mut(conn) {
            queue.state = QueueState::ReadingConnect(connect);
            queue.proto.recv_data(cx, tag, 0, memory);
        }
    }

    /// A host has said who it is and what it wants.
    fn check_connect(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        connecting: ConnectRequest,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let accepted = queue.accepted;
        let identity = tls::identity_of(&queue.proto);
        match may_connect(
            parts,
            cx.now,
            &connecting.connect,
            &connecting.names,
            (&accepted, identity.as_ref()),
        ) {
            Ok(permit) => self.request_grant(parts, conn, connecting, permit),
            Err((refusal, cause)) => {
                let tag = connecting.tag;
                if let Some(queue) = parts.conns.queue_mut(conn) {
                    queue.state = QueueState::AwaitingGrant(Box::new(connecting));
                }
                self.refuse_connect(cx, parts, conn, tag, refusal.into(), cause);
            }
        }
    }

    /// Answers a Connect, or what came instead of one, with a refusal; the connection ends.
    pub(super) fn refuse_connect(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        tag: Tag,
        completion: Completion,
        cause: ConnectFailure,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let (peer, names) = (queue.accepted.peer, queue.host_and_subsystem_nqn());
        queue.state = QueueState::Ended;
        queue.proto.respond(cx, tag, completion);
        queue.proto.close(cx, ConnectionClose::AfterLogout(cx.now + FINAL_SEND_TIMEOUT));
        parts.conns.mark_pending(conn);
        parts.log.push(LogLine::Nvme(NvmeLogLine::NotConnected { peer, names, cause: Some(cause) }));
    }
}

/// Whether the exports let a host connect, and as what.
pub(super) fn may_connect(
    parts: &SharedParts,
    now: Time,
    connect: &Connect,
    names: &ConnectNames,
    (accepted, identity): (&AcceptedSocket, Option<&PskIdentity>),
) -> Result<ConnectPermit, (ConnectRefusal, ConnectFailure)> {
    if parts.stopping.is_some() {
        return Err((ConnectRefusal::Busy, ConnectFailure::Refused(ConnectRefusal::Busy)));
    }
    if parts.exports.blocked.contains(names.host.as_str(), accepted.peer.ip()) {
        return Err((ConnectRefusal::Host, ConnectFailure::Blocked));
    }
    if connect.qid == 0 && names.cntlid != ConnectData::DYNAMIC {
        let refusal = ConnectRefusal::CNTLID;
        return Err((refusal, ConnectFailure::Refused(refusal)));
    }
    let nowhere = (ConnectRefusal::SUBNQN, ConnectFailure::NoSubsystem);
    let Some(portal) = parts.exports.nvme.portal(accepted.listener) else { return Err(nowhere) };
    if connect.qid == 0 && parts.exports.nvme.keep_alive.granted_timeout_ms(connect.kato_ms).is_none() {
        let refusal = ConnectRefusal::KeepAlive;
        return Err((refusal, ConnectFailure::Refused(refusal)));
    }
    let (host, from) = (names.host.as_str(), accepted.peer.ip());
    tls::check_tls_identity(identity, names, TlsMode::Allow)?;
    if names.subsystem.is_discovery_service() {
        let nvme = &parts.exports.nvme;
        let rule = nvme
            .discovery_rule(host, names.host_id, from)
            .map_err(|HostNotAllowed| (ConnectRefusal::Host, ConnectFailure::NotAllowed))?;
        let source = nvme.discovery_per_source.map(|limit| (from, limit));
        let rules = nvme.discovery.as_deref().unwrap_or_default();
        let rule = rule.map(|rule| rule_to_prove(rule, rules, identity)).transpose()?.flatten();
        return permit_by_rule(parts, now, rule, from, (DISCOVERY_CONTROLLERS_MAX, source));
    }
    if portal.service == NvmeService::Discovery {
        return Err(nowhere);
    }
    let Some(subsystem) = parts.exports.nvme.subsystem(names.subsystem.as_str(), portal.port) else {
        return Err(nowhere);
    };
    let rule = subsystem.rule_for(host, names.host_id, from);
    // Who authenticates may generate the PSK that TLS goes by, without which it is served nothing.
    let concatenates = connect.qid == 0
        && rule.is_some_and(|rule| rule.auth.host().is_some())
        && parts.exports.nvme.offers_concatenation(portal);
    let demanded =
        if concatenates && subsystem.tls == TlsMode::Require { TlsMode::Allow } else { subsystem.tls };
    tls::check_tls_identity(identity, names, demanded)?;
    match rule {
        Some(_) if subsystem.is_away && connect.qid == 0 => Err((ConnectRefusal::Busy, ConnectFailure::Away)),
        Some(rule) => {
            let rule = rule_to_prove(rule, &subsystem.rules, identity)?;
            permit_by_rule(parts, now, rule, from, (subsystem.limits.controllers, None))
        }
        None => Err((ConnectRefusal::Host, ConnectFailure::NotAllowed)),
    }
}

/// The rule that a host is let in by, if it has not proved what that asks; `None`: it has. A rule without a secret is not
/// for who comes by a PSK that was generated: another rule's secret says nothing of who this one lets in.
fn rule_to_prove<'a>(
    rule: &'a HostRule,
    rules: &[HostRule],
    identity: Option<&PskIdentity>,
) -> Result<Option<&'a HostRule>, (ConnectRefusal, ConnectFailure)> {
    let is_generated = identity.is_some_and(|identity| identity.kind == PskKind::Generated);
    if is_generated && rule.auth.host().is_none() {
        return Err((ConnectRefusal::Host, ConnectFailure::OtherRule));
    }
    Ok((!is_proven(identity, rules, rule)).then_some(rule))
}

/// The leave that a rule gives, unless the source has to wait.
fn permit_by_rule(
    parts: &SharedParts,
    now: Time,
    rule: Option<&HostRule>,
    from: IpAddr,
    (controllers, source): (u16, Option<(IpAddr, u16)>),
) -> Result<ConnectPermit, (ConnectRefusal, ConnectFailure)> {
    let proves = rule.is_some_and(|rule| rule.auth.host().is_some());
    if proves && parts.admission.backoff.must_wait(now, from) {
        return Err((ConnectRefusal::Busy, ConnectFailure::PutOff));
    }
    Ok(ConnectPermit { controllers, source, proves })
}

/// How many discovery controllers the daemon has at most: hosts that ask and go, and such as stay to
/// be told of changes.
const DISCOVERY_CONTROLLERS_MAX: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::{HostAuth, HostRule};

    #[test]
    fn a_rule_without_a_secret_is_not_for_generated_psks() {
        let generated = PskIdentity::parse(format!("NVMe1G01 nqn.h nqn.s {:044}", 7).as_bytes()).unwrap();
        let retained = PskIdentity::parse(b"NVMe0R01 nqn.h nqn.s").unwrap();
        let rule = HostRule { auth: HostAuth::None, ..HostRule::allow_any() };
        let judge = |identity| rule_to_prove(&rule, std::slice::from_ref(&rule), identity).map(|_| ());
        assert_eq!(judge(Some(&generated)), Err((ConnectRefusal::Host, ConnectFailure::OtherRule)));
        assert_eq!((judge(Some(&retained)), judge(None)), (Ok(()), Ok(())));
    }
}
