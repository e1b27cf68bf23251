//! The NVMe part of changed exports, the stop, and listings.

use std::sync::Arc;

use buf::{Cx, Time};
use stream::{Connection, ConnectionClose, Tag};

use super::{NvmeFront, tls};
use super::{QueueConn, QueueState, placement_query};
use crate::message::{HostAuthentication, QueueEntry};
use crate::shard::SharedParts;
use crate::shard::connections::{ConnKind, Connections};

impl NvmeFront {
    /// Controllers keep what their hosts may still reach. Those whose hosts may reach nothing any more are
    /// ended, and those of hosts that must prove now who they are and have not. Another secret holds for
    /// queues that connect from now on; digests are settled for each connection's life.
    pub(in crate::shard) fn apply_exports_to_controllers(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
    ) {
        let exports = parts.exports.clone();
        let ids: Vec<u16> = self.controllers.keys().copied().collect();
        for cntlid in ids {
            let Some(controller) = self.controllers.get(&cntlid) else { continue };
            let (names, accepted) = (&controller.names, controller.accepted);
            let from = (&accepted, controller.tls.as_ref());
            let Some(portal) = exports.nvme.portal(accepted.listener) else {
                self.server.end_controller(cntlid);
                continue;
            };
            if names.subsystem.is_discovery_service() {
                let (entries, auth) = (
                    Arc::new(parts.exports.discovery_entries(names, &accepted)),
                    parts.exports.required_discovery_authentication(names, from),
                );
                let server = &mut self.server;
                match auth {
                    Some(auth) if server.change_authentication(cntlid, &auth) => {
                        server.change_discovery(cntlid, &entries);
                    }
                    Some(_) | None => server.end_controller(cntlid),
                }
                continue;
            }
            let export = exports.nvme.subsystem(names.subsystem.as_str(), portal.port);
            let now = export.and_then(|export| {
                let namespaces = parts.exports.namespaces_of_subsystem(export, names, &accepted)?;
                Some((namespaces, parts.exports.required_authentication(export, names, from)?))
            });
            let server = &mut self.server;
            match now {
                Some((namespaces, auth)) if server.change_authentication(cntlid, &auth) => {
                    server.change_namespaces(cntlid, namespaces);
                }
                Some(_) | None => server.end_controller(cntlid),
            }
        }
        self.end_queues_of_other_rules(cx, parts);
    }

    /// I/O queues end whose addresses come under another rule now than those of their admin queues: what a
    /// controller tells its queues from now on is its own rule's.
    fn end_queues_of_other_rules(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts) {
        let keys: Vec<_> = parts
            .conns
            .iter()
            .filter_map(|(_, conn)| match &conn.kind {
                ConnKind::Queue(queue) => {
                    let open = queue.open_state()?;
                    let one =
                        parts.exports.have_same_rule(&open.names, &queue.accepted, open.admin.as_ref()?);
                    (!one).then_some(open.key)
                }
                ConnKind::Login(_) | ConnKind::Session(_) => None,
            })
            .collect();
        for key in keys {
            self.end_queue(cx, parts, key);
        }
    }

    pub(in crate::shard) fn queue_entries(&self, parts: &SharedParts) -> Vec<QueueEntry> {
        let queues = parts.conns.iter().filter_map(|(_, conn)| match &conn.kind {
            ConnKind::Queue(queue) => Some(queue),
            ConnKind::Login(_) | ConnKind::Session(_) => None,
        });
        queues.filter_map(|queue| self.queue_entry(parts, queue)).collect()
    }

    fn queue_entry(&self, parts: &SharedParts, queue: &QueueConn) -> Option<QueueEntry> {
        let open = queue.open_state()?;
        let (terms, size) = (queue.proto.parameters(), queue.proto.size());
        Some(QueueEntry {
            cntlid: open.cntlid,
            qid: open.qid,
            subsystem: open.names.subsystem.as_str().into(),
            host: open.names.host.clone(),
            host_id: open.names.host_id,
            accepted: queue.accepted,
            tls: tls::identity_of(&queue.proto),
            digests: (terms.header_digest, terms.data_digest),
            entries: size.entries,
            flow_control: size.flow_control,
            in_capsule: size.in_capsule_max,
            authentication: match self.server.dhchap_parameters(open.key) {
                Some((hash, group)) => HostAuthentication::Done(hash, group),
                None if self.server.must_authenticate(open.key) => HostAuthentication::Pending,
                None => HostAuthentication::NotRequired,
            },
            cipher_suite: queue.proto.tls_suite(),
            commands: queue.proto.tasks_in_work(),
            placed: parts.exports.placement_outcome(&placement_query(&open.names, &queue.accepted), parts.id),
            counters: self.server.queue_counters(open.key),
            latency: queue.times.latency.clone(),
            traffic: parts.conns.links.traffic(queue.id),
        })
    }
}

/// The time for the stop is over.
pub(in crate::shard) fn end_queues(cx: &mut Cx<'_>, conns: &mut Connections) {
    let queues = conns.iter().filter(|(_, conn)| matches!(conn.kind, ConnKind::Queue(_)));
    let tags: Vec<Tag> = queues.map(|(tag, _)| tag).collect();
    for tag in tags {
        if let Some(queue) = conns.queue_mut(tag) {
            queue.proto.close(cx, ConnectionClose::Now);
        }
        conns.mark_pending(tag);
    }
}

/// Whether no queue is left, for the stop.
pub(in crate::shard) fn all_queues_ended(conns: &Connections) -> bool {
    !conns.iter().any(|(_, conn)| matches!(conn.kind, ConnKind::Queue(_)))
}

/// Who is not connected yet goes; queues end with what is in work.
pub(in crate::shard) fn stop_queue(cx: &mut Cx<'_>, conns: &mut Connections, conn: Tag, deadline: Time) {
    let Some(queue) = conns.queue_mut(conn) else { return };
    match &queue.state {
        QueueState::Open(_) if queue.is_stranger => queue.proto.close(cx, ConnectionClose::Now),
        QueueState::Open(open) if open.qid > 0 => {
            queue.proto.close(cx, ConnectionClose::AfterLogout(deadline))
        }
        // An admin queue's work never ends: hosts always wait for events.
        QueueState::Open(_) | QueueState::Ended => {}
        QueueState::AwaitingConnect
        | QueueState::ReadingConnect(_)
        | QueueState::AwaitingGrant(_)
        | QueueState::Granted(_) => {
            queue.proto.close(cx, ConnectionClose::Now);
        }
    }
}
