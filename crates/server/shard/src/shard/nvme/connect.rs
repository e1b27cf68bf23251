//! Granting a Connect: the directory grants new controllers, a controller its queues. Then the link goes to
//! its shard.

use std::sync::Arc;

use buf::Cx;
use endpoint::{LinkDeparture, ShardId};
use nvme::fabrics::ConnectRefusal;
use nvme_server::{HostIdentity, IoQueueConnect};
use stream::Tag;

use super::NvmeFront;
use super::accept::ConnectPermit;
use super::tls;
use super::{ConnectRequest, KnownController, QueueState, placement_query};
use crate::controller_directory::{ControllerReply, ControllerRequest};
use crate::exports::ShardPreference;
use crate::log::ConnectFailure;
use crate::message::{
    AdmittedQueue, CONTROL_PLANE, Message, NvmeLinkHandoff, NvmeMessage, QueueGrant, QueueRefusal,
    QueueRequest, ToGateway,
};
use crate::shard::connections::{Conn, ConnKind};
use crate::shard::protocol_front::ProtocolFront;
use crate::shard::{DIRECTORY_SHARD, SharedParts};

/// Where an I/O queue is to live, and what it is; or why it may not be.
pub(super) type QueueAdmission = Result<(ShardId, Box<AdmittedQueue>), QueueRefusal>;

impl NvmeFront {
    /// Asks who can grant a Connect that the exports allow.
    pub(super) fn request_grant(
        &mut self,
        parts: &mut SharedParts,
        conn: Tag,
        connecting: ConnectRequest,
        permit: ConnectPermit,
    ) {
        let (id, names) = (parts.id, &connecting.names);
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let (accepted, tls) = (queue.accepted, tls::identity_of(&queue.proto));
        let message = if connecting.connect.qid == 0 {
            let bound = (!names.subsystem.is_discovery_service()).then(|| names.host_id.bytes());
            let request = ControllerRequest {
                from: (id, conn.to_bits()),
                subsystem: names.subsystem.as_str().into(),
                host: names.host.as_str().into(),
                host_id: bound,
                limit: permit.controllers,
                source: permit.source,
                binds: !permit.proves,
                preference: parts
                    .exports
                    .shard_preference(&placement_query(names, &accepted), connecting.draw),
            };
            (DIRECTORY_SHARD, NvmeMessage::ControllerRequest(request))
        } else {
            // A number that is nobody's is refused where its bearer would live.
            let home = ShardId(names.cntlid % parts.shards);
            let join = IoQueueConnect {
                qid: connecting.connect.qid,
                entries: connecting.connect.entries,
                flow_control: connecting.connect.flow_control,
                subsystem: names.subsystem.clone(),
                host: HostIdentity { nqn: names.host.clone(), id: names.host_id },
                // The controller's shard knows where its other queues are.
                shard: home,
            };
            let preference =
                parts.exports.shard_preference(&placement_query(names, &accepted), connecting.draw);
            let request = QueueRequest { join, preference, names: names.clone(), accepted, tls };
            (home, NvmeMessage::JoinController(names.cntlid, id, conn.to_bits(), Box::new(request)))
        };
        if let Some(queue) = parts.conns.queue_mut(conn) {
            queue.state = QueueState::AwaitingGrant(Box::new(connecting));
            parts.outbox.post(message.0, Message::Nvme(message.1));
        }
    }

    /// The directory judges a claim.
    pub(super) fn admit_controller(&mut self, parts: &mut SharedParts, request: &ControllerRequest) {
        let registered = request.host_id.and_then(|id| registered_host_nqn(parts, &request.subsystem, &id));
        let Some(directory) = &mut self.directory else { return };
        directory.set_in_group(parts.exports.group.is_some());
        let reply = directory.admit(request, registered);
        let bound = match reply {
            ControllerReply::Granted { cntlid, .. } => directory.bound_host_id(cntlid),
            ControllerReply::Full | ControllerReply::SourceFull | ControllerReply::Taken(_) => None,
        };
        if directory.wants_range() {
            parts.outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(ToGateway::ControllerIdsWanted)));
        }
        self.count_group_host(bound);
        parts.outbox.post(request.from.0, Message::Nvme(NvmeMessage::ControllerReply(request.from.1, reply)));
    }

    /// On the directory's shard: the group has given numbers for controllers.
    pub(in crate::shard) fn add_controller_range(&mut self, first: u16, count: u16) {
        if let Some(directory) = &mut self.directory {
            directory.add_range(first, count);
        }
    }

    pub(super) fn handle_controller_reply(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        token: u64,
        reply: ControllerReply,
    ) {
        let conn = Tag::from_bits(token);
        match reply {
            ControllerReply::Granted { cntlid, shard, left } => {
                self.handle_connect_granted(cx, parts, conn, shard, QueueGrant::Admin { cntlid, left });
            }
            ControllerReply::Full => {
                self.handle_connect_rejected(
                    cx,
                    parts,
                    conn,
                    ConnectRefusal::Busy,
                    ConnectFailure::TooManyControllers,
                );
            }
            ControllerReply::SourceFull => {
                self.handle_connect_rejected(
                    cx,
                    parts,
                    conn,
                    ConnectRefusal::Busy,
                    ConnectFailure::TooManyOfSource,
                );
            }
            ControllerReply::Taken(name) => {
                self.handle_connect_rejected(
                    cx,
                    parts,
                    conn,
                    ConnectRefusal::Host,
                    ConnectFailure::IdentifierTaken(name),
                );
            }
        }
    }

    /// Lets an I/O queue into a controller of this shard, and says where it is to live.
    pub(super) fn admit_queue(
        &mut self,
        parts: &mut SharedParts,
        cntlid: u16,
        request: &mut QueueRequest,
    ) -> QueueAdmission {
        let unknown = QueueRefusal::Refused(ConnectRefusal::CNTLID);
        let KnownController { names, accepted: admin, tls: channel, .. } =
            self.controllers.get(&cntlid).ok_or(unknown)?;
        let (asks, admin) = (&request.names, *admin);
        // Who is not its host is told that, and learns nothing of its rule.
        let its = (&names.subsystem, &names.host, names.host_id);
        let named = its == (&asks.subsystem, &asks.host, asks.host_id);
        if named && !parts.exports.have_same_rule(asks, &request.accepted, &admin) {
            return Err(QueueRefusal::OtherRule);
        }
        if named && !tls::is_of_one_channel(channel.as_ref(), request.tls.as_ref()) {
            return Err(QueueRefusal::OtherChannel);
        }
        let mut load = vec![0; usize::from(parts.shards)];
        for shard in self.server.queue_shards(cntlid) {
            if let Some(load) = load.get_mut(usize::from(shard.0)) {
                *load += 1;
            }
        }
        let shard = choose_queue_shard(&request.preference, parts.id, request.join.qid, &load);
        request.join.shard = shard;
        let spec = self.server.admit_io_queue(cntlid, &request.join).map_err(QueueRefusal::Refused)?;
        Ok((shard, Box::new(AdmittedQueue { spec, admin })))
    }

    pub(super) fn handle_queue_reply(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        token: u64,
        answer: QueueAdmission,
    ) {
        let conn = Tag::from_bits(token);
        match answer {
            Ok((shard, joined)) => {
                self.handle_connect_granted(cx, parts, conn, shard, QueueGrant::Io(joined))
            }
            Err(QueueRefusal::Refused(refusal)) => {
                self.handle_connect_rejected(cx, parts, conn, refusal, ConnectFailure::Refused(refusal));
            }
            Err(QueueRefusal::OtherRule) => {
                self.handle_connect_rejected(
                    cx,
                    parts,
                    conn,
                    ConnectRefusal::Host,
                    ConnectFailure::OtherRule,
                );
            }
            Err(QueueRefusal::OtherChannel) => {
                self.handle_connect_rejected(cx, parts, conn, ConnectRefusal::Host, ConnectFailure::TlsMixed);
            }
        }
    }

    fn handle_connect_granted(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        shard: ShardId,
        grant: QueueGrant,
    ) {
        let state =
            parts.conns.queue_mut(conn).map(|queue| std::mem::replace(&mut queue.state, QueueState::Ended));
        match (state, parts.conns.queue_mut(conn)) {
            (Some(QueueState::AwaitingGrant(connecting)), Some(queue)) => {
                queue.state = QueueState::Granted(Box::new((*connecting, shard, grant)));
                self.move_granted_queue(cx, parts, conn);
                parts.conns.mark_pending(conn);
            }
            // It went away while it was asked for.
            (Some(other), Some(queue)) => {
                queue.state = other;
                self.release_grant(&mut parts.outbox, grant);
            }
            (_, _) => self.release_grant(&mut parts.outbox, grant),
        }
    }

    fn handle_connect_rejected(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        refusal: ConnectRefusal,
        cause: ConnectFailure,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        if let QueueState::AwaitingGrant(connecting) = &queue.state {
            let tag = connecting.tag;
            self.refuse_connect(cx, parts, conn, tag, refusal.into(), cause);
        }
    }

    /// Lets a connection go where it is to live, when nothing is out on it.
    pub(super) fn move_granted_queue(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let id = parts.id;
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let granted = match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::Granted(granted) if granted.1 == id || queue.proto.can_hand_off() => granted,
            state => {
                queue.state = state;
                return;
            }
        };
        let (connecting, shard, grant) = *granted;
        if shard == id {
            return self.open_queue(cx, parts, conn, connecting, grant);
        }
        let Some(Conn { kind: ConnKind::Queue(queue), .. }) = parts.conns.remove(conn) else {
            return self.release_grant(&mut parts.outbox, grant);
        };
        parts.admission.logins -= usize::from(queue.is_stranger);
        let (link, accepted) = (queue.id, queue.accepted);
        let Some(parked) = queue.proto.hand_off() else {
            self.release_grant(&mut parts.outbox, grant);
            return self.depart_link(parts, link, LinkDeparture::Abort);
        };
        let (connect, names) = (connecting.connect, connecting.names);
        let handoff = NvmeLinkHandoff { parked, accepted, connect, names, grant };
        let message = Message::Nvme(NvmeMessage::Link(Box::new(handoff)));
        self.depart_link(parts, link, LinkDeparture::Move { to: shard, message });
    }
}

/// The name under which an identifier is registered with a volume of a subsystem.
fn registered_host_nqn(parts: &SharedParts, subsystem: &str, host_id: &[u8; 16]) -> Option<Arc<str>> {
    let subsystem = parts.exports.nvme.subsystems.iter().find(|known| &*known.nqn == subsystem)?;
    subsystem.namespaces.iter().find_map(|namespace| {
        let view = parts.volumes.get(namespace.volume)?.gate.view();
        view.reservations.host_nqn(host_id).cloned()
    })
}

/// Where an I/O queue lives: a controller's queues go round the shards that may carry them, its own last; or
/// where their bytes come in, as long as its others are in balance (`load`: how many of them each shard has).
fn choose_queue_shard(preference: &ShardPreference, home: ShardId, qid: u16, load: &[u32]) -> ShardId {
    let shards = load.len() as u32;
    let of_all = ShardId(((u32::from(home.0) + u32::from(qid)) % shards) as u16);
    let turn = preference.among.as_ref().and_then(|among| {
        let own = among.iter().position(|shard| *shard == home).unwrap_or_default();
        among.iter().cycle().nth((own + usize::from(qid)).checked_rem(among.len())?).copied()
    });
    let turn = turn.unwrap_or(of_all);
    if preference.queue.is_none() {
        return turn;
    }
    let order =
        preference.ordered_shards(load, |shard| (u32::from(shard.0) + shards - u32::from(turn.0)) % shards);
    order.first().copied().unwrap_or(turn)
}
