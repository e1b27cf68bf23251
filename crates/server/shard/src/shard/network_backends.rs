//! Remote volumes of a shard, and their sockets.
//!
//! A remote is a backend of its gate and has sockets for the shard to serve, so both share it. It is polled
//! when one of its sockets was active, its time has come, or its gate was run; its completed operations then
//! go to the gate. Invariant: operations in flight on a link of a remote come back to it, or are dropped with
//! it. A shard without remotes only checks an empty list per turn.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use buf::{Cx, Errno, Time};
use endpoint::{CloseMode, Dial, DialId, Dialled, LinkDeparture, LinkId, NetworkBackend, ShardId};
use stream::{Received, RecvOp, SendOp, Slab, Tag, TimerQueue, earliest};
use volume::{Backend, DiskOp, Geometry, Io, IoCompletion, IoId, VolumeId, VolumeRequest};

use super::{Shard, set_slot};
use crate::log::LogLine;
use crate::message::{CONTROL_PLANE, Message};

/// No bound that a table in memory can meet.
const REMOTES_MAX: usize = u32::MAX as usize;
/// How long a remote that is dropped may take to part from its peers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What gate and shard share.
struct SharedRemote {
    remote: Box<dyn NetworkBackend>,
    /// Operations that have ended.
    done: VecDeque<IoCompletion>,
}

/// The gate's side of a remote.
struct RemoteBackend(Rc<RefCell<SharedRemote>>);

impl Backend for RemoteBackend {
    fn geometry(&self) -> Geometry {
        self.0.borrow().remote.geometry()
    }

    fn erase_max(&self) -> u32 {
        self.0.borrow().remote.erase_max()
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.0.borrow_mut().remote.submit(cx, io);
    }

    fn resume(&mut self) {
        self.0.borrow_mut().remote.resume();
    }

    fn wants_resume(&self) -> bool {
        self.0.borrow().remote.wants_resume()
    }

    fn cancel(&mut self, id: IoId) {
        self.0.borrow_mut().remote.cancel(id);
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        let mut shared = self.0.borrow_mut();
        shared.done.pop_front().or_else(|| shared.remote.poll_done())
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.0.borrow_mut().remote.poll_disk()
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.0.borrow_mut().remote.handle_disk(cx, op, came);
    }

    fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        self.0.borrow_mut().remote.poll_shard_to_wake()
    }

    fn handle_wake(&mut self) {
        self.0.borrow_mut().remote.handle_wake();
    }
}

/// The shard's side.
struct RemoteSlot {
    shared: Rc<RefCell<SharedRemote>>,
    volume: VolumeId,
    /// It is in the list of those to be looked at.
    touched: bool,
    /// Its note in the timers.
    noted: Option<Time>,
    /// What its volume's home was told.
    geometry: Geometry,
    read_only: bool,
    /// Its gate is gone: it has until then to part from its peers.
    closes_until: Option<Time>,
}

/// Whose a link is.
#[derive(Clone, Copy)]
struct RemoteLink {
    link: LinkId,
    of: Tag,
    /// It has departed: nothing is asked of it any more.
    left: bool,
}

/// All remotes of a shard.
pub(super) struct RemoteBackends {
    entries: Slab<RemoteSlot>,
    touched: VecDeque<Tag>,
    timers: TimerQueue<Tag>,
    /// By the low half of a link's name.
    links: Vec<Option<RemoteLink>>,
    dials: VecDeque<Dial>,
    /// Our name of each connection that is wanted, whose it is, and the name that he knows.
    dialling: Vec<(DialId, Tag, DialId)>,
    dialled: u64,
}

impl RemoteBackends {
    pub(super) fn new() -> Self {
        RemoteBackends {
            entries: Slab::new(REMOTES_MAX),
            touched: VecDeque::new(),
            timers: TimerQueue::default(),
            links: Vec::new(),
            dials: VecDeque::new(),
            dialling: Vec::new(),
            dialled: 0,
        }
    }

    /// Takes a remote on: its name here, and what its gate gets.
    #[expect(clippy::panic, reason = "2^32 remote volumes do not fit into memory")]
    pub(super) fn insert(
        &mut self,
        volume: VolumeId,
        geometry: Geometry,
        remote: Box<dyn NetworkBackend>,
    ) -> (Tag, Box<dyn Backend>) {
        let shared = Rc::new(RefCell::new(SharedRemote { remote, done: VecDeque::new() }));
        let backend = Box::new(RemoteBackend(shared.clone()));
        let entry = RemoteSlot {
            shared,
            volume,
            touched: false,
            noted: None,
            geometry,
            read_only: false,
            closes_until: None,
        };
        let Ok(tag) = self.entries.insert(entry) else { panic!("at most {REMOTES_MAX} remote volumes") };
        self.mark_pending(tag);
        (tag, backend)
    }

    /// Lets a remote go whose gate is gone, or which nobody wants any more.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(entry) = self.entries.get_mut(tag) else { return };
        if entry.closes_until.is_none() {
            entry.closes_until = Some(cx.now + CLOSE_TIMEOUT);
            entry.shared.borrow_mut().remote.close(cx, CLOSE_TIMEOUT);
        }
        self.mark_pending(tag);
    }

    /// Lets all go; true if none is left.
    pub(super) fn close_all(&mut self, cx: &mut Cx<'_>) -> bool {
        let tags: Vec<Tag> = self.entries.iter().map(|(tag, _)| tag).collect();
        for tag in &tags {
            if self.entries.get(*tag).is_some_and(|entry| entry.closes_until.is_none()) {
                self.close(cx, *tag);
            }
        }
        tags.is_empty()
    }

    /// Notes that a remote may have something to say.
    pub(super) fn mark_pending(&mut self, tag: Tag) {
        if let Some(entry) = self.entries.get_mut(tag)
            && !std::mem::replace(&mut entry.touched, true)
        {
            self.touched.push_back(tag);
        }
    }

    fn link_owner(&self, link: LinkId) -> Option<RemoteLink> {
        let owned = (*self.links.get(link.0 as u32 as usize)?)?;
        (owned.link == link).then_some(owned)
    }

    /// Does something with the remote whose link this is.
    fn with_backend_of(&mut self, link: LinkId, act: impl FnOnce(&mut dyn NetworkBackend)) {
        let Some(owned) = self.link_owner(link) else { return };
        if let Some(entry) = self.entries.get(owned.of) {
            act(&mut *entry.shared.borrow_mut().remote);
        }
        self.mark_pending(owned.of);
    }

    pub(super) fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.with_backend_of(link, |remote| remote.handle_recv(cx, link, op, came));
    }

    pub(super) fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.with_backend_of(link, |remote| remote.handle_written(cx, link, how));
    }

    pub(super) fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.with_backend_of(link, |remote| remote.handle_send_released(cx, link, op));
    }

    pub(super) fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let owned = self.link_owner(link).filter(|owned| !owned.left)?;
        self.entries.get(owned.of)?.shared.borrow_mut().remote.poll_recv(cx, link)
    }

    pub(super) fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let owned = self.link_owner(link).filter(|owned| !owned.left)?;
        self.entries.get(owned.of)?.shared.borrow_mut().remote.poll_send(cx, link)
    }

    pub(super) fn poll_dial(&mut self) -> Option<Dial> {
        self.dials.pop_front()
    }

    /// A connection stands, or failed. A link that nobody wants any more is given back.
    pub(super) fn handle_dialled(
        &mut self,
        cx: &mut Cx<'_>,
        id: DialId,
        how: Result<Dialled, Errno>,
    ) -> Option<LinkId> {
        let at = self.dialling.iter().position(|(known, ..)| *known == id)?;
        let (_, of, inner) = self.dialling.swap_remove(at);
        let Some(entry) = self.entries.get(of) else { return how.ok().map(|dialled| dialled.link) };
        if let Ok(Dialled { link, .. }) = how {
            set_slot(&mut self.links, link.0 as u32 as usize, RemoteLink { link, of, left: false });
        }
        entry.shared.borrow_mut().remote.handle_dialled(cx, inner, how);
        self.mark_pending(of);
        None
    }

    /// Something was computed for a remote, which may be gone.
    pub(super) fn handle_computed(&mut self, tag: Tag) {
        if let Some(entry) = self.entries.get(tag) {
            entry.shared.borrow_mut().remote.handle_computed();
            self.mark_pending(tag);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.timers.next_time()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        while let Some((time, tag)) = self.timers.pop_due(cx.now) {
            let Some(entry) = self.entries.get_mut(tag).filter(|entry| entry.noted == Some(time)) else {
                continue;
            };
            entry.noted = None;
            entry.shared.borrow_mut().remote.handle_timeout(cx);
            // When it is looked at, it notes its next time.
            self.mark_pending(tag);
        }
    }

    /// Marks a link as departed.
    fn mark_link_departed(&mut self, link: LinkId) {
        if let Some(Some(owned)) = self.links.get_mut(link.0 as u32 as usize)
            && owned.link == link
        {
            owned.left = true;
        }
    }

    /// Forgets a remote; gives the links that it still had.
    fn remove(&mut self, tag: Tag) -> Vec<LinkId> {
        self.entries.discard(tag);
        let owned = self.links.iter_mut().flatten().filter(|owned| owned.of == tag && !owned.left);
        owned
            .map(|owned| {
                owned.left = true;
                owned.link
            })
            .collect()
    }
}

impl Shard {
    /// Hears what remotes that were touched have to say. True if some of them may have more when what they
    /// want now was started.
    pub(super) fn run_pending_remotes(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut again = false;
        for _ in 0..self.remotes.touched.len() {
            let Some(tag) = self.remotes.touched.pop_front() else { break };
            again |= self.run_remote(cx, tag);
        }
        again
    }

    fn run_remote(&mut self, cx: &mut Cx<'_>, tag: Tag) -> bool {
        let Some(entry) = self.remotes.entries.get_mut(tag) else { return false };
        entry.touched = false;
        let (volume, shared) = (entry.volume, entry.shared.clone());
        let shared = &mut *shared.borrow_mut();
        let again = shared.remote.turn(cx);
        while let Some(remark) = shared.remote.poll_operator_notice() {
            if let Some(name) = self.parts.volumes.get(volume).map(|local| local.name().clone()) {
                self.parts.log.push(LogLine::Volume { name, remark });
            }
        }
        while let Some(done) = shared.remote.poll_done() {
            shared.done.push_back(done);
        }
        while let Some(link) = shared.remote.poll_ready() {
            self.parts.conns.ready.push_back(link);
        }
        while let Some((link, how)) = shared.remote.poll_link_close() {
            self.remotes.mark_link_departed(link);
            let how = match how {
                CloseMode::Close => LinkDeparture::Close,
                CloseMode::Abort => LinkDeparture::Abort,
            };
            self.parts.conns.departures.push_back((link, how));
        }
        while let Some(dial) = shared.remote.poll_dial() {
            let id = DialId(self.remotes.dialled);
            self.remotes.dialled += 1;
            self.remotes.dialling.push((id, tag, dial.id));
            self.remotes.dials.push_back(Dial { id, ..dial });
        }
        while let Some(work) = shared.remote.poll_computation() {
            self.parts.outbox.post(CONTROL_PLANE, Message::Compute(self.parts.id, tag, work));
        }
        let Some(entry) = self.remotes.entries.get_mut(tag) else { return false };
        let wanted = earliest(shared.remote.poll_timeout(), entry.closes_until);
        self.remotes.timers.update_timer(tag, wanted, &mut entry.noted);
        if let Some(until) = entry.closes_until {
            if shared.remote.is_closed() || until <= cx.now {
                let links = self.remotes.remove(tag);
                self.parts
                    .conns
                    .departures
                    .extend(links.into_iter().map(|link| (link, LinkDeparture::Abort)));
            }
            return again;
        }
        let now = shared.remote.geometry();
        let resized = (now.blocks > 0 && now != entry.geometry).then_some(now);
        // Limits may differ with the paths that each shard has; the home's count. A size is the same for all.
        let is_home = self.parts.volumes.home_of(volume) == self.parts.id;
        let resized = resized.filter(|now| is_home || now.blocks != entry.geometry.blocks);
        if let Some(geometry) = resized {
            entry.geometry = geometry;
        }
        let read_only = shared.remote.is_read_only();
        let protected = (read_only != entry.read_only).then_some(read_only);
        entry.read_only = read_only;
        if !shared.done.is_empty() {
            self.parts.volumes.mark_pending(volume);
        }
        if again {
            self.remotes.mark_pending(tag);
        }
        // A far end tells a session only when that session does I/O: whichever shard hears first asks. What
        // the home knows already changes nothing there.
        let requests = [resized.map(VolumeRequest::Resize), protected.map(VolumeRequest::BackingReadOnly)];
        requests.into_iter().flatten().for_each(|request| self.request_without_reply(cx, volume, request));
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backends::{LegBackend, Stripe};

    /// A disk that erases more at once than it transfers.
    struct Erasing;

    impl Backend for Erasing {
        fn geometry(&self) -> Geometry {
            Geometry { blocks: 1 << 20, logical: 512, max_io: 1 << 20, ..Geometry::UNKNOWN }
        }
        fn erase_max(&self) -> u32 {
            32 << 20
        }
        fn submit(&mut self, _: &mut Cx<'_>, io: Io) {
            panic!("nothing is submitted, and {:?} came", io.op);
        }
        fn cancel(&mut self, _: IoId) {}
        fn poll_done(&mut self) -> Option<IoCompletion> {
            None
        }
    }

    #[test]
    fn a_stripe_erases_as_much_at_once_as_its_legs() {
        let legs = (0..2).map(|_| (LegBackend::Local(Box::new(Erasing)), None)).collect();
        let stripe = Stripe::new(legs, 1 << 20, None, None);
        let geometry = stripe.geometry();
        let mut remotes = RemoteBackends::new();
        let (_, backend) = remotes.insert(VolumeId(0), geometry, Box::new(stripe));
        assert_eq!((geometry.max_io, backend.erase_max()), (1 << 20, 32 << 20));
    }
}
