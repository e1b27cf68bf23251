//! From plain data to a shard that goes on.
//!
//! The shard has its exports and volumes already. What a host may do is judged by those exports: then sessions and
//! controllers are as after any change of them. Links arrive afterwards, each with its number.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use buf::{Cx, Errno};
use endpoint::{AcceptedSocket, LinkId, ListenerId, ShardId};
use iscsi::chap::Algorithm;
use iscsi::session::{SessionRestoreError, SessionSnapshot, TargetSession};
use iscsi::wire::{Cid, Isid, Tsih};
use nvme::fabrics::{Connect, ConnectNames};
use nvme_server::{AssociationRestoreError, ControllerSnapshot, HostIdentity, QueueKey};
use nvme_tcp::ControllerQueue;
use nvme_tcp::controller::{QueueRestoreError, QueueSnapshot};
use scsi_server::NexusRestoreError;
use stream::LinkNumber;
use volume::{Identity, PortId, Requester, VolumeId, VolumeRequest};

use super::super::command_times::CommandTimes;
use super::super::connections::{Conn, ConnKind, Session, SessionLink};
use super::super::nvme::queue_conn::{OpenQueue, QueueConn, QueueState};
use super::super::payload_step::{CommandConn, ParkedSteps};
use super::super::throttle::HostLimit;
use super::super::{Shard, set_slot};
use crate::exports::PlacementQuery;
use crate::link_table::LinkOwner;
use crate::message::IoCounters;
use crate::target_snapshot::{
    AcceptedBody, ControllerBody, LinkBody, QueueBody, SessionBody, ShardBody, TargetSnapshot,
};

/// Of a link that has not arrived: no world names one so.
const NO_LINK: LinkId = LinkId(u64::MAX);
/// What is noted for a link that did not arrive: ECONNRESET.
const LOST_ERRNO: Errno = Errno(104);

/// Which listener of now is one of before, by its number then.
pub type CarriedNumbers<'a> = &'a dyn Fn(ListenerId) -> Option<ListenerId>;

/// A session or controller that cannot go on, so that nothing does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreError {
    /// The initiator or host.
    pub host: Arc<str>,
    /// Why.
    pub why: RestoreFailure,
}

/// Why a session or controller cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreFailure {
    /// Its target or subsystem is not served to it, or not where it came by.
    NotServed,
    /// The connection of the session.
    Session(SessionRestoreError),
    /// What the SCSI server is to know of it.
    Nexus(NexusRestoreError),
    /// The connection of the queue.
    Queue(QueueRestoreError),
    /// What the NVMe server is to know of it.
    Association(AssociationRestoreError),
    /// There are as many as there can be.
    Full,
    /// The snapshot contradicts itself, in this.
    Contradiction(&'static str),
}

/// In words.
impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.host)?;
        match &self.why {
            RestoreFailure::NotServed => f.write_str("it may not reach any more what it is connected to"),
            RestoreFailure::Session(why) => why.fmt(f),
            RestoreFailure::Nexus(why) => why.fmt(f),
            RestoreFailure::Queue(why) => why.fmt(f),
            RestoreFailure::Association(why) => why.fmt(f),
            RestoreFailure::Full => f.write_str("there are as many sessions and queues as there can be"),
            RestoreFailure::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
        }
    }
}

impl std::error::Error for RestoreError {}

type Restored<T> = Result<T, RestoreFailure>;

fn check(sound: bool, what: &'static str) -> Restored<()> {
    if sound { Ok(()) } else { Err(RestoreFailure::Contradiction(what)) }
}

fn accepted(body: AcceptedBody, listener_of: CarriedNumbers<'_>) -> Restored<AcceptedSocket> {
    let listener = listener_of(ListenerId(body.listener)).ok_or(RestoreFailure::NotServed)?;
    Ok(body.to_accepted(listener))
}

impl Shard {
    /// Goes on with what this shard of another process had. The shard is new: it has its exports and volumes, and no
    /// connection. Links arrive afterwards with [`Message::CarriedLink`](crate::Message::CarriedLink).
    ///
    /// # Errors
    /// Somebody cannot go on. The shard is of no use then.
    pub fn restore(
        &mut self,
        cx: &mut Cx<'_>,
        snapshot: &TargetSnapshot,
        listener_of: CarriedNumbers<'_>,
    ) -> Result<(), RestoreError> {
        let Some(body) = snapshot.shard(self.parts.id) else { return Ok(()) };
        let failed = |host: &str| {
            let host: Arc<str> = host.into();
            move |why| RestoreError { host, why }
        };
        let mut number = 0;
        for session in &body.sessions {
            self.restore_session(cx, session, listener_of, &mut number)
                .map_err(failed(&session.initiator))?;
        }
        let mut admin_keys = HashMap::new();
        for controller in &body.controllers {
            let key = self.restore_controller(cx, controller, body, listener_of);
            let key = key.map_err(failed(&controller.names.host))?;
            admin_keys.insert(controller.snapshot.admin_queue().cntlid(), key);
        }
        for queue in &body.queues {
            let admin = admin_keys.get(&queue.cntlid).copied();
            self.restore_queue(cx, queue, admin, listener_of, number).map_err(failed(&queue.names.host))?;
            number += 1;
        }
        for other in snapshot.shards() {
            self.restore_directories(other, listener_of);
        }
        self.nvme.apply_exports_to_controllers(cx, &mut self.parts);
        self.iscsi.apply_exports_to_sessions(cx, &mut self.parts);
        self.end_lost_nexuses(cx, body);
        Ok(())
    }

    fn restore_session(
        &mut self,
        cx: &mut Cx<'_>,
        body: &SessionBody,
        listener_of: CarriedNumbers<'_>,
        number: &mut u32,
    ) -> Restored<()> {
        let latest = accepted(body.latest, listener_of)?;
        let initiator: Arc<str> = body.initiator.as_str().into();
        let proved = body.user.is_some();
        let exports = self.parts.exports.clone();
        let served = super::super::iscsi::session_spec(
            &exports,
            (&initiator, body.isid, &body.target),
            proved,
            &latest,
        );
        let (target, limits, spec) = served.ok_or(RestoreFailure::NotServed)?;
        let snapshot = SessionSnapshot::from_bytes(body.protocol.clone().into());
        let proto = TargetSession::restore(cx, &snapshot, &limits).map_err(RestoreFailure::Session)?;
        let tsih = Tsih::new(body.tsih);
        check(proto.params().tsih == tsih && proto.params().isid.0 == body.isid, "a session's names")?;
        let numbers: BTreeSet<u16> = proto.link_numbers().map(|number| number.0).collect();
        let listed: BTreeSet<u16> = body.links.iter().map(|link| link.number).collect();
        check(numbers == listed && listed.len() == body.links.len(), "the links of a session")?;
        let links = body.links.iter().map(|link| session_link(link, listener_of));
        let links = links.collect::<Restored<Vec<_>>>()?;
        let nexus = self.iscsi.server.restore_nexus(spec, &body.nexus).map_err(RestoreFailure::Nexus)?;
        let query = PlacementQuery { by: &latest, peer: &initiator, destination: &target };
        let placed = exports.placement_outcome(&query, self.parts.id);
        let limiter = exports.limiter_of_initiator(&target, &initiator, &latest);
        let [reads, read_bytes, writes, written_bytes] = body.io;
        let promised = usize::try_from(body.promised).unwrap_or(usize::MAX);
        let session = Session {
            proto,
            limit: HostLimit::new(&initiator, limiter),
            placed,
            tsih,
            initiator: initiator.clone(),
            promised,
            isid: Isid(body.isid),
            target: Some(target),
            user: body.user.clone(),
            nexus: Some(nexus),
            links,
            parked: ParkedSteps::default(),
            latest,
            io: IoCounters { reads, read_bytes, writes, written_bytes },
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
        let tag = self.parts.conns.insert(conn).map_err(|_| RestoreFailure::Full)?;
        self.iscsi.note_session(tsih, tag, (initiator, promised));
        set_slot(&mut self.iscsi.nexuses, nexus.0 as usize, tag);
        for link in &body.links {
            let owner = LinkOwner { conn: tag, link: LinkNumber(link.number) };
            self.parts.carried_links.insert(*number, owner);
            *number += 1;
        }
        Ok(())
    }

    fn restore_controller(
        &mut self,
        cx: &mut Cx<'_>,
        body: &ControllerBody,
        shard: &ShardBody,
        listener_of: CarriedNumbers<'_>,
    ) -> Restored<QueueKey> {
        let snapshot: &ControllerSnapshot = &body.snapshot;
        let admin = snapshot.admin_queue();
        let cntlid = admin.cntlid();
        let names = names_of(body.names.to_names(cntlid))?;
        let is_admin = |queue: &&QueueBody| queue.cntlid == cntlid && queue.qid == 0;
        check(shard.queues.iter().filter(is_admin).count() == 1, "the admin queue of a controller")?;
        let accepted = accepted(body.accepted, listener_of)?;
        let (kato_ms, individual_deletion) = snapshot.connect_attributes();
        let connect = Connect {
            qid: 0,
            entries: admin.entries(),
            flow_control: admin.has_flow_control(),
            individual_deletion,
            kato_ms,
        };
        let exports = self.parts.exports.clone();
        let spec =
            super::super::nvme::controller_spec(&exports, cntlid, (&names, &connect), (&accepted, None));
        let spec = spec.filter(|spec| spec.discovery.is_none()).ok_or(RestoreFailure::NotServed)?;
        check(!self.nvme.has_controller(cntlid), "a controller's number")?;
        let key = self.nvme.server.restore_controller(cx, spec, snapshot);
        let key = key.map_err(RestoreFailure::Association)?;
        self.nvme.note_controller(cntlid, names, accepted, body.is_logged);
        Ok(key)
    }

    fn restore_queue(
        &mut self,
        cx: &mut Cx<'_>,
        body: &QueueBody,
        admin_key: Option<QueueKey>,
        listener_of: CarriedNumbers<'_>,
        number: u32,
    ) -> Restored<()> {
        let names = names_of(body.names.to_names(body.cntlid))?;
        let here = accepted(body.accepted, listener_of)?;
        let exports = self.parts.exports.clone();
        let snapshot = QueueSnapshot::from_bytes(body.protocol.clone().into());
        let limits = exports.queue_limits(&here);
        let proto = ControllerQueue::restore(cx, &snapshot, limits).map_err(RestoreFailure::Queue)?;
        let admin = body.admin.map(|admin| accepted(admin, listener_of)).transpose()?;
        let key = match (&body.server, admin_key, admin) {
            (None, Some(key), None) if body.qid == 0 => key,
            (Some(server), _, Some(admin)) if body.qid != 0 => {
                check((server.cntlid(), server.qid()) == (body.cntlid, body.qid), "a queue's names")?;
                self.restore_io_queue(cx, server, &names, &admin)?
            }
            _ => return Err(RestoreFailure::Contradiction("a queue's kind")),
        };
        let limiter = exports.limiter_of_host(&names, &here);
        let mut queue = QueueConn::new(cx.now, NO_LINK, proto, here, false);
        queue.key = Some(key);
        queue.limit = HostLimit::new(names.host.as_str(), limiter);
        let open = OpenQueue { key, cntlid: body.cntlid, qid: body.qid, names, admin };
        queue.state = QueueState::Open(Box::new(open));
        let conn = Conn::new(ConnKind::Queue(Box::new(queue)));
        let tag = self.parts.conns.insert(conn).map_err(|_| RestoreFailure::Full)?;
        self.nvme.note_queue(key, tag);
        self.parts.carried_links.insert(number, LinkOwner { conn: tag, link: LinkNumber(0) });
        Ok(())
    }

    /// What its host must prove is what the rule of the admin queue says.
    fn restore_io_queue(
        &mut self,
        cx: &mut Cx<'_>,
        server: &nvme_server::ServerQueueSnapshot,
        names: &ConnectNames,
        admin: &AcceptedSocket,
    ) -> Restored<QueueKey> {
        let exports = self.parts.exports.clone();
        let portal = exports.nvme.portal(admin.listener).ok_or(RestoreFailure::NotServed)?;
        let export = exports.nvme.subsystem(names.subsystem.as_str(), portal.port);
        let export = export.ok_or(RestoreFailure::NotServed)?;
        let auth = exports.required_authentication(export, names, (admin, None));
        let auth = auth.ok_or(RestoreFailure::NotServed)?;
        let host = HostIdentity { nqn: names.host.clone(), id: names.host_id };
        let identity = Arc::new(Identity::Host(names.host_id.bytes()));
        let nexus = Requester { identity, port: portal.port, read_only: false };
        let restored = self.nvme.server.restore_io_queue(cx, server, (host, nexus), auth);
        restored.map_err(RestoreFailure::Association)
    }

    /// On the directories' shard: what lives on a shard.
    fn restore_directories(&mut self, shard: &ShardBody, listener_of: CarriedNumbers<'_>) {
        let exports = self.parts.exports.clone();
        let here = ShardId(shard.shard);
        for session in &shard.sessions {
            let Ok(latest) = accepted(session.latest, listener_of) else { continue };
            let connections = session
                .links
                .iter()
                .filter_map(|link| Some((Cid::new(link.cid), accepted(link.accepted, listener_of).ok()?)));
            let query =
                PlacementQuery { by: &latest, peer: &session.initiator, destination: &session.target };
            let preference = exports.shard_preference(&query, 0);
            self.iscsi.restore_directory_entry(
                &exports,
                session,
                (here, latest, connections.collect()),
                preference,
            );
        }
        for controller in &shard.controllers {
            let cntlid = controller.snapshot.admin_queue().cntlid();
            let Ok(accepted) = accepted(controller.accepted, listener_of) else { continue };
            let Some(names) = controller.names.to_names(cntlid) else { continue };
            self.nvme.restore_directory_entry(&exports, cntlid, &names, &accepted);
        }
    }

    /// Homes of volumes let go of nexuses that have ended with the old process.
    fn end_lost_nexuses(&mut self, cx: &mut Cx<'_>, body: &ShardBody) {
        for lost in &body.lost {
            let name = lost.initiator.as_str().into();
            let identity = Identity::Initiator { name, isid: lost.isid, port: PortId(lost.port) };
            let identity = Arc::new(identity);
            let volumes: Vec<VolumeId> = self
                .parts
                .volumes
                .volume_ids()
                .into_iter()
                .filter(|volume| {
                    let info = self.nvme.server.volume_info(*volume);
                    info.is_some_and(|info| lost.volumes.contains(&info.facts.uuid.0))
                })
                .collect();
            for volume in volumes {
                self.request_without_reply(cx, volume, VolumeRequest::NexusLost(identity.clone()));
            }
        }
    }

    /// A link of a connection that was restored is here.
    pub(in crate::shard) fn attach_carried_link(&mut self, id: LinkId, number: u32) {
        let Some(owner) = self.parts.carried_links.remove(&number) else {
            return self.parts.conns.departures.push_back((id, endpoint::LinkDeparture::Abort));
        };
        match self.parts.conns.get_mut(owner.conn).map(|conn| &mut conn.kind) {
            Some(ConnKind::Session(session)) => {
                for link in session.links.iter_mut().filter(|link| link.link == owner.link) {
                    link.id = id;
                }
            }
            Some(ConnKind::Queue(queue)) => queue.id = id,
            Some(ConnKind::Login(_)) | None => {
                return self.parts.conns.departures.push_back((id, endpoint::LinkDeparture::Abort));
            }
        }
        self.parts.conns.links.insert(id, owner);
        self.parts.conns.mark_pending(owner.conn);
        self.parts.conns.mark_ready(id);
    }

    /// A link of a connection that was restored does not come: it is lost.
    pub(in crate::shard) fn lose_carried_link(&mut self, cx: &mut Cx<'_>, number: u32) {
        let Some(owner) = self.parts.carried_links.remove(&number) else { return };
        let volumes = &mut self.parts.volumes;
        match self.parts.conns.get_mut(owner.conn).map(|conn| &mut conn.kind) {
            Some(ConnKind::Session(session)) => {
                session.links.retain(|link| link.link != owner.link);
                session.handle_written(cx, volumes, owner.link, Err(LOST_ERRNO));
            }
            Some(ConnKind::Queue(queue)) => {
                queue.gone = true;
                queue.handle_written(cx, volumes, owner.link, Err(LOST_ERRNO));
            }
            Some(ConnKind::Login(_)) | None => {}
        }
        self.parts.conns.mark_pending(owner.conn);
    }
}

fn names_of(names: Option<ConnectNames>) -> Restored<ConnectNames> {
    names.ok_or(RestoreFailure::Contradiction("a host's names"))
}

fn session_link(body: &LinkBody, listener_of: CarriedNumbers<'_>) -> Restored<SessionLink> {
    Ok(SessionLink {
        id: NO_LINK,
        link: LinkNumber(body.number),
        cid: Cid::new(body.cid),
        accepted: accepted(body.accepted, listener_of)?,
        digests: body.digests,
        segments: body.segments,
        algorithm: body.algorithm.map(Algorithm),
    })
}
