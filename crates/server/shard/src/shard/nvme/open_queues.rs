//! A queue opens on the shard where it lives, and its Connect is answered.

use std::sync::Arc;

use buf::Cx;
use endpoint::{AcceptedSocket, LinkDeparture, LinkId};
use nvme::fabrics::{Connect, ConnectNames, ConnectRefusal};
use nvme::{Nqn, TransferMax};
use nvme_server::{
    ADMIN_ENTRIES_MAX, ANA_GROUPS_MAX, ControllerLimits, ControllerSpec, DiscoverySpec, HostIdentity,
    NAMESPACES_MAX, QueueKey, Subsystem,
};
use nvme_tcp::{ConnectedQueueSize, ControllerQueue};
use stream::{Tag, TargetConnection};
use volume::{Identity, Requester};

use super::NvmeFront;
use super::accept::may_connect;
use super::memory_offer::{affordable_limits, reservable_bytes};
use super::tls;
use super::{ConnectRequest, KnownController, OpenQueue, QueueConn, QueueState, placement_query};
use crate::exports::{Exports, SubsystemExport};
use crate::log::ConnectFailure;
use crate::message::{AdmittedQueue, NvmeLinkHandoff, QueueGrant};
use crate::shard::protocol_front::ProtocolFront;
use crate::shard::throttle::HostLimit;
use crate::shard::{SharedParts, set_slot};

/// In-capsule data of an admin queue (NVMe-TCP §3.3): what Connect may carry anyway.
const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

type ConnectRejection = (ConnectRefusal, ConnectFailure);

impl NvmeFront {
    /// A link comes whose Connect is granted.
    pub(in crate::shard) fn attach_queue(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: LinkId,
        handoff: NvmeLinkHandoff,
    ) {
        let NvmeLinkHandoff { parked, accepted, connect, names, grant } = handoff;
        let limits = parts.exports.queue_limits(&accepted);
        let (proto, tag) = ControllerQueue::from_handoff(cx, limits, parked);
        let connecting = ConnectRequest { tag, connect, names, draw: 0 };
        let room = !self.is_queue_limit_reached() && parts.stopping.is_none();
        let queue = room.then(|| QueueConn::new(cx.now, id, proto, accepted, false));
        match queue.and_then(|queue| self.insert_queue(parts, queue)) {
            Some(conn) => self.open_queue(cx, parts, conn, connecting, grant),
            None => {
                self.release_grant(&mut parts.outbox, grant);
                parts.conns.departures.push_back((id, LinkDeparture::Close));
            }
        }
    }

    pub(super) fn open_queue(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        connecting: ConnectRequest,
        grant: QueueGrant,
    ) {
        // What ends commands of a queue that was here before goes to its connection, not to this one, which may
        // get its key.
        self.run_steps(cx, parts);
        let opened = match &grant {
            QueueGrant::Admin { cntlid, left } => {
                self.open_admin_queue(cx, parts, conn, &connecting, (*cntlid, *left))
            }
            QueueGrant::Io(joined) => self.open_io_queue(cx, parts, conn, &connecting, joined),
        };
        let (cntlid, qid, tag) = (grant.cntlid(), connecting.connect.qid, connecting.tag);
        let admin = match &grant {
            QueueGrant::Admin { .. } => None,
            QueueGrant::Io(joined) => Some(joined.admin),
        };
        let key = match opened {
            Ok(key) => key,
            Err((refusal, cause)) => {
                self.release_grant(&mut parts.outbox, grant);
                if let Some(queue) = parts.conns.queue_mut(conn) {
                    queue.state = QueueState::AwaitingGrant(Box::new(connecting));
                }
                return self.refuse_connect(cx, parts, conn, tag, refusal.into(), cause);
            }
        };
        set_slot(&mut self.conns, key.0 as usize, conn);
        let completion = self.server.connect_completion(key);
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        queue.key = Some(key);
        let limiter = parts.exports.limiter_of_host(&connecting.names, &queue.accepted);
        queue.limit = HostLimit::new(connecting.names.host.as_str(), limiter);
        queue.state =
            QueueState::Open(Box::new(OpenQueue { key, cntlid, qid, names: connecting.names, admin }));
        queue.proto.respond(cx, tag, completion);
        let stranger = self.server.must_authenticate(key);
        self.set_queue_unauthenticated(cx, parts, conn, stranger);
        if qid == 0 && !stranger {
            self.log_connected(&mut parts.log, cntlid);
        }
        parts.conns.mark_pending(conn);
    }

    fn open_io_queue(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        connecting: &ConnectRequest,
        joined: &AdmittedQueue,
    ) -> Result<QueueKey, ConnectRejection> {
        let Some(queue) = parts.conns.queue_mut(conn) else {
            return Err((ConnectRefusal::Busy, ConnectFailure::NoMemory));
        };
        let accepted = queue.accepted;
        // The exports may have changed on the way, and nobody could tell the queue before it is open.
        let namespaces = parts
            .exports
            .namespaces_by_portal(&connecting.names, &accepted)
            .ok_or((ConnectRefusal::Host, ConnectFailure::NotAllowed))?;
        if !parts.exports.have_same_rule(&connecting.names, &accepted, &joined.admin) {
            return Err((ConnectRefusal::Host, ConnectFailure::OtherRule));
        }
        let mut spec = joined.spec.clone();
        spec.set_namespaces(namespaces);
        let size = ConnectedQueueSize {
            entries: u16::try_from(spec.entries).unwrap_or(u16::MAX),
            flow_control: spec.flow_control,
            in_capsule_max: spec.in_capsule,
        };
        self.reserve_queue_memory(cx, parts, conn, size)?;
        let key = self.server.open_queue(cx, spec);
        Ok(key)
    }

    fn open_admin_queue(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        connecting: &ConnectRequest,
        (cntlid, left_elsewhere): (u16, u64),
    ) -> Result<QueueKey, ConnectRejection> {
        let Some(queue) = parts.conns.queue_mut(conn) else {
            return Err((ConnectRefusal::Busy, ConnectFailure::NoMemory));
        };
        let accepted = queue.accepted;
        // The exports may have changed on the way.
        let tls = tls::identity_of(&queue.proto);
        let from = (&accepted, tls.as_ref());
        may_connect(parts, cx.now, &connecting.connect, &connecting.names, from)?;
        let asked = (&connecting.names, &connecting.connect);
        let mut spec = controller_spec(&parts.exports, cntlid, asked, from)
            .ok_or((ConnectRefusal::SUBNQN, ConnectFailure::NoSubsystem))?;
        if spec.entries > ADMIN_ENTRIES_MAX {
            return Err((ConnectRefusal::SQSIZE, ConnectFailure::Refused(ConnectRefusal::SQSIZE)));
        }
        // Its queues go round the shards that a rule leaves it.
        let query = placement_query(&connecting.names, &accepted);
        let rule = parts.exports.matching_rule_index(&query);
        let rule = rule.and_then(|at| parts.exports.placement.get(at));
        let shards = rule.map_or(parts.shards, |rule| rule.shards.len() as u16);
        let shards = parts.exports.shard_preference(&query, 0).effective_shard_count(shards);
        spec.limits = affordable_limits(left_elsewhere.min(reservable_bytes(cx)), spec.limits, shards);
        let size = ConnectedQueueSize {
            entries: u16::try_from(spec.entries).unwrap_or(u16::MAX),
            flow_control: spec.flow_control,
            in_capsule_max: ADMIN_IN_CAPSULE_BYTES,
        };
        self.reserve_queue_memory(cx, parts, conn, size)?;
        let key = self.server.open_controller(cx, spec);
        let names = connecting.names.clone();
        self.controllers
            .insert(cntlid, KnownController { names, accepted, is_logged: false, tls, generated: None });
        Ok(key)
    }

    fn reserve_queue_memory(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        size: ConnectedQueueSize,
    ) -> Result<(), ConnectRejection> {
        let room = !self.is_queue_limit_reached();
        let open =
            room && parts.conns.queue_mut(conn).is_some_and(|queue| queue.proto.finish_connect(cx, size));
        open.then_some(()).ok_or((ConnectRefusal::Busy, ConnectFailure::NoMemory))
    }
}

/// What the exports make of a controller that is asked for like this; `None`: there is no such subsystem, or not for
/// this host.
pub(in crate::shard) fn controller_spec(
    exports: &Exports,
    cntlid: u16,
    (names, connect): (&ConnectNames, &Connect),
    (accepted, identity): (&AcceptedSocket, Option<&nvme::tls::PskIdentity>),
) -> Option<ControllerSpec> {
    let portal = exports.nvme.portal(accepted.listener)?;
    let host = HostIdentity { nqn: names.host.clone(), id: names.host_id };
    let requester = Arc::new(Identity::Host(names.host_id.bytes()));
    let mut spec = ControllerSpec {
        cntlid,
        subsystem: Arc::new(discovery_subsystem_spec()),
        host,
        nexus: Requester { identity: requester, port: portal.port, read_only: false },
        kato_ms: connect.kato_ms,
        keep_alive: exports.nvme.keep_alive,
        entries: connect.entries,
        flow_control: connect.flow_control,
        individual_deletion: connect.individual_deletion,
        namespaces: Vec::new(),
        limits: ControllerLimits { queues: 1, entries: 128, transfer: TransferMax::MAX, in_capsule: 0 },
        discovery: None,
        auth: None,
    };
    if names.subsystem.is_discovery_service() {
        let entries = Arc::new(exports.discovery_entries(names, accepted));
        spec.discovery = Some(DiscoverySpec { entries, local: accepted.local });
        spec.auth = exports.required_discovery_authentication(names, (accepted, identity))?;
        return Some(spec);
    }
    let export = exports.nvme.subsystem(names.subsystem.as_str(), portal.port)?;
    spec.subsystem = Arc::new(subsystem_spec(export, &names.subsystem));
    spec.namespaces = exports.namespaces_of_subsystem(export, names, accepted)?;
    spec.auth = exports.required_authentication(export, names, (accepted, identity))?;
    spec.limits = ControllerLimits {
        queues: export.limits.queues,
        entries: export.limits.entries.into(),
        transfer: export.limits.transfer_max,
        in_capsule: export.limits.in_capsule_max,
    };
    Some(spec)
}

/// Text in a field, filled with spaces.
fn space_padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = if byte.is_ascii_graphic() { byte } else { b' ' };
    }
    field
}

fn subsystem_spec(export: &SubsystemExport, nqn: &Nqn) -> Subsystem {
    Subsystem {
        nqn: nqn.clone(),
        serial: space_padded(&export.product.serial),
        model: space_padded(&export.product.model),
        firmware: space_padded(&export.product.firmware),
        nsid_max: NAMESPACES_MAX,
        ana_group_max: ANA_GROUPS_MAX,
    }
}

fn discovery_subsystem_spec() -> Subsystem {
    Subsystem {
        nqn: Nqn::discovery_service(),
        serial: space_padded("0"),
        model: space_padded("Blockwire discovery"),
        firmware: space_padded(env!("CARGO_PKG_VERSION")),
        nsid_max: 1,
        ana_group_max: 1,
    }
}
