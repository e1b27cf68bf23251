//! Memory of volumes in the hands of hosts that may read no more.
//!
//! A volume in memory lends its blocks to reads, and they are read when they are sent. While hosts are registered with
//! it, or one has reserved it, it lends nothing; but what was lent before a reservation would be sent to a host that the
//! reservation shuts out, with what others have written since. So before this shard acknowledges such a change, what
//! waits to be sent to that host is copied. What its socket has already is awaited for [`GRACE`], and then the link is
//! reset: no fence waits for a host that reads slowly. A session or queue that has ended and still sends what was queued
//! has no nexus any more, and is treated like one that is shut out. A link that is closed with lent memory in its socket
//! is reset at once, so that none of it is read when its connection is forgotten.
//!
//! Invariant: of open links only those are reset whose hosts reach the volume, are shut out of it, and have lent memory
//! in the socket, or had some that there was no memory to copy.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Errno, Time};
use endpoint::LinkId;
use volume::{Ack, VolumeId};

use super::Shard;
use super::conns::ConnKind;
use crate::message::Message;

/// How long a change waits for what the sockets of hosts have that it shuts out. A socket holds some MiB at most, which
/// a host that reads takes within milliseconds. A host whose network has just lost a segment may need longer, and loses
/// its connection: it connects again, while a change that waits holds up every host of the volume. It is far below the
/// fence time-out of the volume's home (10 s), so that slow readers do not close the volume.
const GRACE: Duration = Duration::from_millis(50);
/// What is noted for a link that is reset: ETIMEDOUT.
const NOT_READ: Errno = Errno(110);

/// Changes that are acknowledged when lent memory is back, oldest first.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    queue: VecDeque<Recall>,
}

#[derive(Debug)]
struct Recall {
    volume: VolumeId,
    ack: Ack,
    /// Links whose sockets have lent memory.
    links: Vec<LinkId>,
    /// When they are reset; `None`: they were.
    until: Option<Time>,
}

impl Recalls {
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.queue.iter().filter_map(|recall| recall.until).min()
    }
}

impl Shard {
    /// Tells a volume's home that a change is in force here, as soon as nobody whom it shuts out can be sent what is
    /// written after it.
    pub(super) fn acknowledge(&mut self, cx: &mut Cx<'_>, volume: VolumeId, ack: Ack) {
        let links = self.recall(cx, volume);
        // In their order.
        let waits = self.recalls.queue.iter().any(|recall| recall.volume == volume);
        if links.is_empty() && !waits {
            return self.outbox.post(self.volumes.home_of(volume), Message::Ack(volume, ack));
        }
        self.recalls.queue.push_back(Recall { volume, ack, links, until: Some(cx.now + GRACE) });
    }

    /// Copies what waits to be sent to hosts that may read the volume no more. Gives the links whose sockets have more.
    fn recall(&mut self, cx: &mut Cx<'_>, volume: VolumeId) -> Vec<LinkId> {
        if !self.may_be_read_late(volume) {
            return Vec::new();
        }
        let Some(view) = self.volumes.get(volume).map(|local| local.gate.view().clone()) else {
            return Vec::new();
        };
        let (mut out, mut not_copied) = (Vec::new(), Vec::new());
        for (_, conn) in self.conns.iter_mut() {
            match &mut conn.kind {
                ConnKind::Session(session) => {
                    let spec = session.nexus.map(|key| self.iscsi.server.nexus(key));
                    let may_read = spec.is_some_and(|spec| {
                        let reaches = spec.luns.iter().any(|entry| entry.volume == volume);
                        !reaches || !view.shuts_out(&spec.nexus)
                    });
                    if may_read {
                        continue;
                    }
                    let left = session.proto.copy_lent(cx.pool);
                    for link in &session.links {
                        let to = if left.contains(&link.link) { &mut not_copied } else { &mut out };
                        to.push(link.id);
                    }
                }
                ConnKind::Queue(queue) => {
                    let server = &self.nvme.server;
                    let may_read = queue.server_key().is_some_and(|key| {
                        !server.reaches(key, volume) || !view.shuts_out(server.nexus(key))
                    });
                    if may_read {
                        continue;
                    }
                    let copied = queue.proto.copy_lent(cx.pool);
                    if copied { out.push(queue.id) } else { not_copied.push(queue.id) }
                }
                ConnKind::Login(_) => {}
            }
        }
        // The copies may have been all that was lent.
        if !self.may_be_read_late(volume) {
            return Vec::new();
        }
        for link in &not_copied {
            self.reset(cx, *link);
        }
        out.append(&mut not_copied);
        out.retain(|link| self.conns.links.has_lent(*link));
        out
    }

    fn may_be_read_late(&self, volume: VolumeId) -> bool {
        self.volumes.get(volume).is_some_and(|local| local.gate.may_be_read_late())
    }

    fn reset(&mut self, cx: &mut Cx<'_>, link: LinkId) {
        self.conns.links.reset_at_departure(link);
        self.conn_written(cx, link, Err(NOT_READ));
    }

    /// Acknowledges what has nothing to wait for any more.
    pub(super) fn run_recalls(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.recalls.queue.is_empty() {
            return false;
        }
        let mut worked = false;
        let mut waits = VecDeque::new();
        for mut recall in std::mem::take(&mut self.recalls.queue) {
            recall.links.retain(|link| self.conns.links.has_lent(*link));
            let is_first = waits.iter().all(|other: &Recall| other.volume != recall.volume);
            if recall.links.is_empty() && is_first {
                let home = self.volumes.home_of(recall.volume);
                self.outbox.post(home, Message::Ack(recall.volume, recall.ack));
                worked = true;
                continue;
            }
            if recall.until.take_if(|until| *until <= cx.now).is_some() {
                for link in &recall.links {
                    self.reset(cx, *link);
                }
                worked = true;
            }
            waits.push_back(recall);
        }
        self.recalls.queue = waits;
        worked
    }
}
