//! Memory of RAM volumes that is still being sent to hosts that may no longer read.
//!
//! A RAM volume lends its blocks to reads, and they are read when they are sent. While hosts are registered,
//! or one holds a reservation, it lends nothing. But memory lent before a reservation would be sent to an
//! excluded host with data that others have written since. So before this shard acknowledges such a change,
//! data queued for that host is copied. Data in its socket gets [`RECALL_GRACE`] to leave, and then the link is
//! reset: no fence waits for a host that reads slowly. The same holds for hosts from which a change of the
//! exports takes a volume: the change is reported when none of it is sent to them any more. A session or
//! queue that has ended and still sends queued data has no nexus, and is treated as excluded. A link that is
//! closed with lent memory in its socket is reset at once, so that none of it is read after its connection is
//! forgotten.
//!
//! Invariant: of open links, only those are reset whose hosts reach the volume, are excluded from it, and
//! have lent memory in the socket, or had some for whose copy there was no memory.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Errno, Pool, Time};
use endpoint::{AcceptedSocket, LinkId};
use volume::{Ack, VolumeId};

use super::connections::{ConnKind, Connections};
use super::protocol_front::ProtocolFront;
use super::{Shard, SharedParts};
use crate::exports::Exports;
use crate::message::Message;

/// How long a change waits for what the sockets of hosts have that it shuts out. A socket holds some MiB at most, which
/// a host that reads takes within milliseconds. A host whose network has just lost a segment may need longer, and loses
/// its connection: it connects again, while a change that waits holds up every host of the volume. It is far below the
/// fence time-out of the volume's home (10 s), so that slow readers do not close the volume.
const RECALL_GRACE: Duration = Duration::from_millis(50);
/// What is noted for a link that is reset: ETIMEDOUT.
const RECALL_RESET_ERRNO: Errno = Errno(110);

/// Changes that hold when lent memory is back, oldest first.
#[derive(Debug, Default)]
pub(super) struct LoanRecalls {
    queue: VecDeque<PendingRecall>,
}

#[derive(Debug)]
struct PendingRecall {
    change: RecallCause,
    /// Links whose sockets have lent memory.
    links: Vec<LinkId>,
    /// When they are reset; `None`: they were.
    until: Option<Time>,
}

/// A change that shuts hosts out of volumes.
#[derive(Debug)]
enum RecallCause {
    /// Of a volume; its home awaits this.
    View(VolumeId, Ack),
    /// Of the exports, by this request of the control plane.
    Exports(u64),
}

impl RecallCause {
    fn concerns_volume(&self, volume: VolumeId) -> bool {
        matches!(self, RecallCause::View(of, _) if *of == volume)
    }
}

impl LoanRecalls {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.queue.iter().filter_map(|recall| recall.until).min()
    }
}

impl Shard {
    /// Tells a volume's home that a change is in force here, as soon as nobody whom it shuts out can be sent what is
    /// written after it.
    pub(super) fn acknowledge_view_change(&mut self, cx: &mut Cx<'_>, volume: VolumeId, ack: Ack) {
        let links = self.recall_volume(cx, volume);
        // In their order.
        let waits = self.recalls.queue.iter().any(|recall| recall.change.concerns_volume(volume));
        if links.is_empty() && !waits {
            return self.parts.outbox.post(self.parts.volumes.home_of(volume), Message::Ack(volume, ack));
        }
        self.recalls.queue.push_back(PendingRecall {
            change: RecallCause::View(volume, ack),
            links,
            until: Some(cx.now + RECALL_GRACE),
        });
    }

    /// Reports a change of the exports as soon as nobody from whom it takes a volume can be sent what is written to that
    /// after it.
    pub(super) fn recall_for_exports(&mut self, cx: &mut Cx<'_>, old: &Exports, id: u64) {
        // Commands that the change ends have ended.
        self.iscsi.run_steps(cx, &mut self.parts);
        self.nvme.run_steps(cx, &mut self.parts);
        let new = &self.parts.exports;
        let (mut out, mut not_copied) =
            copy_lent_sends(cx.pool, &mut self.parts.conns, |kind| still_reaches_volumes(kind, old, new));
        reset_links(cx, &mut self.parts, &not_copied);
        out.append(&mut not_copied);
        out.retain(|link| self.parts.conns.links.has_lent_send(*link));
        if out.is_empty() {
            return self.report_when_applied(cx, id);
        }
        let (change, until) = (RecallCause::Exports(id), Some(cx.now + RECALL_GRACE));
        self.recalls.queue.push_back(PendingRecall { change, links: out, until });
    }

    /// Copies what waits to be sent to hosts that may read the volume no more. Gives the links whose sockets have more.
    fn recall_volume(&mut self, cx: &mut Cx<'_>, volume: VolumeId) -> Vec<LinkId> {
        if !self.parts.volumes.may_have_stale_loans(volume) {
            return Vec::new();
        }
        let Some(view) = self.parts.volumes.get(volume).map(|local| local.gate.view().clone()) else {
            return Vec::new();
        };
        let (scsi, nvme) = (&self.iscsi.server, &self.nvme.server);
        let (mut out, mut not_copied) = copy_lent_sends(cx.pool, &mut self.parts.conns, |kind| match kind {
            ConnKind::Session(session) => session.nexus.map(|key| scsi.nexus(key)).is_some_and(|spec| {
                let reaches = spec.luns.iter().any(|entry| entry.volume == volume);
                !reaches || !view.excludes_reads_by(&spec.nexus)
            }),
            ConnKind::Queue(queue) => queue.server_key().is_some_and(|key| {
                !nvme.reaches_volume(key, volume) || !view.excludes_reads_by(nvme.nexus(key))
            }),
            ConnKind::Login(_) => true,
        });
        // The copies may have been all that was lent.
        if !self.parts.volumes.may_have_stale_loans(volume) {
            return Vec::new();
        }
        reset_links(cx, &mut self.parts, &not_copied);
        out.append(&mut not_copied);
        out.retain(|link| self.parts.conns.links.has_lent_send(*link));
        out
    }

    /// Acknowledges what has nothing to wait for any more.
    pub(super) fn run_recalls(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.recalls.queue.is_empty() {
            return false;
        }
        let mut worked = false;
        let mut waits = VecDeque::new();
        for mut recall in std::mem::take(&mut self.recalls.queue) {
            recall.links.retain(|link| self.parts.conns.links.has_lent_send(*link));
            let is_first =
                |volume| waits.iter().all(|other: &PendingRecall| !other.change.concerns_volume(volume));
            match recall.change {
                RecallCause::View(volume, ack) if recall.links.is_empty() && is_first(volume) => {
                    let home = self.parts.volumes.home_of(volume);
                    self.parts.outbox.post(home, Message::Ack(volume, ack));
                    worked = true;
                    continue;
                }
                RecallCause::Exports(id) if recall.links.is_empty() => {
                    self.report_when_applied(cx, id);
                    worked = true;
                    continue;
                }
                RecallCause::View(..) | RecallCause::Exports(_) => {}
            }
            if recall.until.take_if(|until| *until <= cx.now).is_some() {
                reset_links(cx, &mut self.parts, &recall.links);
                worked = true;
            }
            waits.push_back(recall);
        }
        self.recalls.queue = waits;
        worked
    }
}

/// Resets links: their connections hear of it now.
fn reset_links(cx: &mut Cx<'_>, parts: &mut SharedParts, links: &[LinkId]) {
    let SharedParts { conns, volumes, .. } = parts;
    for link in links {
        conns.links.reset_at_departure(*link);
        conns.handle_written(cx, volumes, *link, Err(RECALL_RESET_ERRNO));
    }
}

/// Copies what waits to be sent to those for which `keeps` does not hold. Gives the links of which all was copied, and
/// those for which there was not enough memory.
fn copy_lent_sends(
    pool: &Pool,
    conns: &mut Connections,
    keeps: impl Fn(&ConnKind) -> bool,
) -> (Vec<LinkId>, Vec<LinkId>) {
    let (mut copied, mut not_copied) = (Vec::new(), Vec::new());
    for conn in conns.iter_mut().map(|(_, conn)| &mut conn.kind) {
        if keeps(conn) {
            continue;
        }
        match conn {
            ConnKind::Session(session) => {
                let left = session.proto.copy_lent_data(pool);
                for link in &session.links {
                    let to = if left.contains(&link.link) { &mut not_copied } else { &mut copied };
                    to.push(link.id);
                }
            }
            ConnKind::Queue(queue) => {
                let to = if queue.proto.copy_lent_data(pool) { &mut copied } else { &mut not_copied };
                to.push(queue.id);
            }
            ConnKind::Login(_) => {}
        }
    }
    (copied, not_copied)
}

/// Whether a connection still reaches all volumes that it reached by the exports of before.
fn still_reaches_volumes(kind: &ConnKind, old: &Exports, new: &Exports) -> bool {
    let all_of = |old: Option<Vec<VolumeId>>, new: Option<Vec<VolumeId>>| {
        let new = new.unwrap_or_default();
        old.unwrap_or_default().iter().all(|volume| new.contains(volume))
    };
    match kind {
        ConnKind::Session(session) => {
            let Some(target) = &session.target else { return true };
            let volumes = |exports: &Exports, by: &AcceptedSocket| {
                let luns = exports.reachable_luns(target, &session.initiator, session.user.is_some(), by)?;
                Some(luns.iter().map(|entry| entry.volume).collect())
            };
            let latest = session.links.is_empty().then_some(&session.latest);
            let mut links = session.links.iter().map(|link| &link.accepted).chain(latest);
            session.nexus.is_some() && links.all(|by| all_of(volumes(old, by), volumes(new, by)))
        }
        ConnKind::Queue(queue) => queue.open_names().is_some_and(|names| {
            let volumes = |exports: &Exports| {
                let seen = exports.namespaces_by_portal(names, &queue.accepted)?;
                Some(seen.iter().map(|entry| entry.volume).collect())
            };
            all_of(volumes(old), volumes(new))
        }),
        ConnKind::Login(_) => true,
    }
}
