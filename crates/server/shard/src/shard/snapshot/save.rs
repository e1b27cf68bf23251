//! From a quiesced shard to plain data.
//!
//! Invariant: saving changes nothing that a host sees: the shard can still go on.

use std::sync::Arc;

use buf::Cx;
use iscsi::session::SessionSaveRefusal;
use nvme_tcp::controller::QueueSaveRefusal;
use scsi_server::NexusSpec;
use stream::Tag;
use volume::{Identity, VolumeId};

use super::super::Shard;
use super::super::connections::{ConnKind, Session};
use super::super::nvme::queue_conn::QueueConn;
use crate::message::{ControlReport, QuiesceBlocker};
use crate::target_snapshot::{
    AcceptedBody, ControllerBody, LeftBehind, LeftBehindCause, LinkBody, LostNexusBody, NamesBody, QueueBody,
    SessionBody, ShardBody, ShardSnapshot,
};

/// A session or queue is left behind, or nothing can be saved now.
enum NotSaved {
    Left(LeftBehindCause),
    Blocked(QuiesceBlocker),
}

impl From<SessionSaveRefusal> for NotSaved {
    fn from(why: SessionSaveRefusal) -> Self {
        match why {
            SessionSaveRefusal::NoMemory => NotSaved::Blocked(QuiesceBlocker::NoMemory),
            SessionSaveRefusal::Busy
            | SessionSaveRefusal::TasksWithServer(_)
            | SessionSaveRefusal::Discovery
            | SessionSaveRefusal::Ending
            | SessionSaveRefusal::TextExchange => NotSaved::Left(LeftBehindCause::Session(why)),
        }
    }
}

impl From<QueueSaveRefusal> for NotSaved {
    fn from(why: QueueSaveRefusal) -> Self {
        match why {
            QueueSaveRefusal::NoMemory => NotSaved::Blocked(QuiesceBlocker::NoMemory),
            QueueSaveRefusal::Busy
            | QueueSaveRefusal::TasksWithServer(_)
            | QueueSaveRefusal::Connecting
            | QueueSaveRefusal::Ending
            | QueueSaveRefusal::Tls => NotSaved::Left(LeftBehindCause::Queue(why)),
        }
    }
}

impl From<nvme_server::AssociationSaveRefusal> for NotSaved {
    fn from(why: nvme_server::AssociationSaveRefusal) -> Self {
        NotSaved::Left(LeftBehindCause::Association(why))
    }
}

impl Shard {
    /// Saves what the shard has, or says what keeps it from being quiesced.
    pub(in crate::shard) fn save_report(&mut self, cx: &mut Cx<'_>) -> ControlReport {
        match self.save(cx) {
            Ok(snapshot) => ControlReport::Saved(Box::new(snapshot)),
            Err(blocker) => ControlReport::NotQuiesced(blocker),
        }
    }

    fn save(&mut self, cx: &mut Cx<'_>) -> Result<ShardSnapshot, QuiesceBlocker> {
        if let Some(blocker) = self.quiesce_blocker() {
            return Err(blocker);
        }
        let mut saved = ShardSnapshot {
            body: ShardBody {
                shard: self.parts.id.0,
                shards: self.parts.shards,
                sessions: Vec::new(),
                controllers: Vec::new(),
                queues: Vec::new(),
                volumes: Vec::new(),
                lost: Vec::new(),
            },
            left: Vec::new(),
        };
        let tags: Vec<Tag> = self.parts.conns.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.save_connection(cx, tag, &mut saved)?;
        }
        self.save_controllers(cx, &mut saved);
        let volumes: Result<Vec<_>, _> = self.parts.volumes.running_volumes().collect();
        // Looked at just before.
        saved.body.volumes = volumes.map_err(|_| QuiesceBlocker::Requests)?;
        Ok(saved)
    }

    fn save_connection(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        saved: &mut ShardSnapshot,
    ) -> Result<(), QuiesceBlocker> {
        let Some(conn) = self.parts.conns.get_mut(tag) else { return Ok(()) };
        let (why, left) = match &mut conn.kind {
            ConnKind::Login(pending_login) => {
                let peer = pending_login.login.accepted.peer;
                let why = NotSaved::Left(LeftBehindCause::LoggingIn);
                (why, LeftBehind { peer, host: None, target: None, why: LeftBehindCause::LoggingIn })
            }
            ConnKind::Session(session) => match save_session(cx, session, &self.iscsi.server) {
                Ok(body) => {
                    saved.body.sessions.push(body);
                    return Ok(());
                }
                Err(why) => {
                    let lost = session.nexus.map(|nexus| self.iscsi.server.nexus(nexus));
                    let uuid_of = |volume| self.nvme.server.volume_info(volume).map(|info| info.facts.uuid.0);
                    saved.body.lost.extend(lost.and_then(|spec| lost_nexus(spec, uuid_of)));
                    let (peer, host) = (session.latest.peer, Some(session.initiator.clone()));
                    let target = session.target.clone();
                    (why, LeftBehind { peer, host, target, why: LeftBehindCause::LoggingIn })
                }
            },
            ConnKind::Queue(queue) => match save_queue(cx, queue, &self.nvme.server) {
                Ok(body) => {
                    saved.body.queues.push(body);
                    return Ok(());
                }
                Err(why) => {
                    let names = queue.host_and_subsystem_nqn();
                    let (host, target) = match &names {
                        Some((host, subsystem)) => {
                            (Some(host.as_str().into()), Some(subsystem.as_str().into()))
                        }
                        None => (None, None),
                    };
                    let peer = queue.accepted.peer;
                    (why, LeftBehind { peer, host, target, why: LeftBehindCause::LoggingIn })
                }
            },
        };
        match why {
            NotSaved::Left(why) => saved.left.push(LeftBehind { why, ..left }),
            NotSaved::Blocked(blocker) => return Err(blocker),
        }
        Ok(())
    }

    /// Controllers of this shard. One that cannot be saved leaves its queues behind.
    fn save_controllers(&self, cx: &Cx<'_>, saved: &mut ShardSnapshot) {
        let mut known: Vec<_> = self.nvme.known_controllers().collect();
        known.sort_by_key(|(cntlid, ..)| *cntlid);
        for (cntlid, names, accepted, is_logged) in known {
            match self.nvme.server.save_controller(cx.now, cntlid) {
                Ok(snapshot) => saved.body.controllers.push(ControllerBody {
                    snapshot,
                    names: NamesBody::of(names),
                    accepted: AcceptedBody::of(accepted),
                    is_logged,
                }),
                Err(why) => {
                    let is_its = |queue: &mut QueueBody| queue.cntlid == cntlid && queue.qid == 0;
                    let admin = saved.body.queues.extract_if(.., is_its).next();
                    saved.left.extend(admin.map(|_| LeftBehind {
                        peer: accepted.peer,
                        host: Some(names.host.as_str().into()),
                        target: Some(names.subsystem.as_str().into()),
                        why: LeftBehindCause::Association(why),
                    }));
                }
            }
        }
    }
}

fn save_session(
    cx: &mut Cx<'_>,
    session: &mut Session,
    server: &scsi_server::Server,
) -> Result<SessionBody, NotSaved> {
    let (Some(nexus), Some(target)) = (session.nexus, session.target.clone()) else {
        return Err(SessionSaveRefusal::Discovery.into());
    };
    let ends = session.closed || session.leaves || session.cold_reset.is_some();
    let joins = !session.joining.is_empty() || !session.admitted.is_empty();
    if ends || joins || !session.quiesced || !session.held.is_empty() {
        return Err(SessionSaveRefusal::Ending.into());
    }
    let protocol = session.proto.save(cx)?;
    let links = session.links.iter().map(|link| LinkBody {
        id: link.id.0,
        number: link.link.0,
        cid: link.cid.value(),
        accepted: AcceptedBody::of(&link.accepted),
        digests: link.digests,
        segments: link.segments,
        algorithm: link.algorithm.map(|algorithm| algorithm.0),
    });
    let io = &session.io;
    Ok(SessionBody {
        protocol: protocol.as_bytes().to_vec(),
        tsih: session.tsih.value(),
        initiator: session.initiator.as_ref().into(),
        isid: session.isid.0,
        target: target.as_ref().into(),
        user: session.user.clone(),
        promised: session.promised as u64,
        connections_max: session.proto.params().max_connections,
        nexus: server.save_nexus(nexus),
        links: links.collect(),
        latest: AcceptedBody::of(&session.latest),
        io: [io.reads, io.read_bytes, io.writes, io.written_bytes],
    })
}

fn save_queue(
    cx: &mut Cx<'_>,
    queue: &mut QueueConn,
    server: &nvme_server::Server,
) -> Result<QueueBody, NotSaved> {
    let Some(open) = queue.open_state() else { return Err(NotSaved::Left(LeftBehindCause::LoggingIn)) };
    if queue.is_stranger || queue.gone || queue.closed || !queue.quiesced || !queue.held.is_empty() {
        return Err(QueueSaveRefusal::Ending.into());
    }
    let (cntlid, qid) = (open.cntlid, open.qid);
    let (names, admin) = (NamesBody::of(&open.names), open.admin.as_ref().map(AcceptedBody::of));
    let of_server = server.save_queue(open.key)?;
    let protocol = queue.proto.save(cx)?;
    Ok(QueueBody {
        link: queue.id.0,
        protocol: protocol.as_bytes().to_vec(),
        cntlid,
        qid,
        server: (qid != 0).then_some(of_server),
        names,
        accepted: AcceptedBody::of(&queue.accepted),
        admin,
    })
}

/// A nexus that ends, and the volumes that it reached.
fn lost_nexus(spec: &NexusSpec, uuid_of: impl Fn(VolumeId) -> Option<[u8; 16]>) -> Option<LostNexusBody> {
    let identity: &Arc<Identity> = &spec.nexus.identity;
    let Identity::Initiator { name, isid, port } = &**identity else { return None };
    let mut volumes: Vec<[u8; 16]> = spec.luns.iter().filter_map(|entry| uuid_of(entry.volume)).collect();
    volumes.sort_unstable();
    volumes.dedup();
    Some(LostNexusBody { initiator: name.as_ref().into(), isid: *isid, port: port.0, volumes })
}
