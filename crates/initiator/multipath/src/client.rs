//! Remote volumes on one shard, driven by its caller: the base of a library or a command.
//!
//! A [`Client`] is an [`Endpoint`] that opens connections and accepts none. Its shard sends no messages to
//! others. Local volumes (a file, a null volume) may be opened too, so that both ends of a copy are alike.
//!
//! Long computations (powers for DH-HMAC-CHAP) run on the thread that drives the client, one piece per turn.
//!
//! Invariants: a [`VolumeHandle`] never names another volume than the one it was given for; a turn looks only at
//! volumes with activity.

mod raw_commands;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use backends::Stripe;
use backends::stripe::StripeMismatch;
use buf::{Cx, Errno, Time};
use endpoint::{Dial, DialId, Dialled, Endpoint, LinkDeparture, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp, Slab, Tag, TimerQueue};
use volume::{Backend, DiskId, DiskOp, Geometry, Io, IoCompletion, IoId};

use crate::path::{Path, ReservationOp, VolumeInfo};
use crate::remote::{PathInfo, RemoteVolume, ReservationReply, VolumeEvent, VolumeSettings};
use crate::sockets_endpoint::{NoShardMessage, departure_of_close, run_one_computation, without_peers};
use crate::striped::StripedVolume;

/// Most volumes of one client.
pub const VOLUMES_MAX: usize = 32_768;

/// Names a volume of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeHandle(Tag);

impl VolumeHandle {
    /// A number below [`VOLUMES_MAX`] that no other volume of the same client has while this one is open, for
    /// tables of the caller's.
    pub fn slot_index(self) -> usize {
        self.0.slot()
    }
}

/// Where the blocks are.
enum VolumeBackend<P> {
    Remote(Box<RemoteVolume<P>>),
    /// On several remote volumes in turn.
    Stripe(Box<StripedVolume<P>>),
    /// With the disks that are its own.
    Local(Box<dyn Backend>, Vec<DiskId>),
}

/// What sockets do, whichever volume has them.
macro_rules! elsewhere {
    ($kind:expr, $volume:ident => $what:expr, else $otherwise:expr) => {
        match $kind {
            VolumeBackend::Remote(remote) => {
                let $volume = &mut **remote;
                $what
            }
            VolumeBackend::Stripe(striped) => {
                let $volume = &mut striped.stripe;
                $what
            }
            VolumeBackend::Local(..) => $otherwise,
        }
    };
}

struct VolumeSlot<P> {
    kind: VolumeBackend<P>,
    /// It is in the list of those to be looked at.
    touched: bool,
    /// It is in the list of those that may have ended something.
    busy: bool,
    /// Its note in the timers.
    noted: Option<Time>,
    /// A local one cannot refuse: what is in work is counted.
    in_work: usize,
    read_only: bool,
}

/// Whose a link is.
#[derive(Clone, Copy)]
struct LinkOwner {
    link: LinkId,
    volume: Tag,
    /// It was left; what is out still comes back.
    left: bool,
}

/// See the module.
pub struct Client<P> {
    slots: Slab<VolumeSlot<P>>,
    touched: VecDeque<Tag>,
    /// Those that were looked at in this turn and may have something to start.
    ready: VecDeque<Tag>,
    /// Those that may have ended something since they were last named; each once.
    busy: VecDeque<Tag>,
    /// Of those, local ones whose disks may be asked for something, and remote ones that may have links that
    /// leave, or want a connection.
    disks: VecDeque<Tag>,
    leaving: VecDeque<Tag>,
    dialling: VecDeque<Tag>,
    timers: TimerQueue<Tag>,
    /// By the low half of a link's name: its name and its volume.
    links: Vec<Option<LinkOwner>>,
    /// Links that nobody wants any more.
    cuts: VecDeque<LinkId>,
    dials: Vec<(DialId, Tag, DialId)>,
    next_dial: u64,
}

impl<P: Path> Default for Client<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Path> Client<P> {
    /// Without volumes.
    pub fn new() -> Self {
        Client {
            slots: Slab::new(VOLUMES_MAX),
            touched: VecDeque::new(),
            ready: VecDeque::new(),
            busy: VecDeque::new(),
            disks: VecDeque::new(),
            leaving: VecDeque::new(),
            dialling: VecDeque::new(),
            timers: TimerQueue::default(),
            links: Vec::new(),
            cuts: VecDeque::new(),
            dials: Vec::new(),
            next_dial: 0,
        }
    }

    /// Opens a remote volume by these paths, as [`RemoteVolume::open`] does; `None`: there are
    /// [`VOLUMES_MAX`] already.
    pub fn open(&mut self, cx: &mut Cx<'_>, paths: Vec<P>, settings: VolumeSettings) -> Option<VolumeHandle> {
        if self.slots.is_full() {
            return None;
        }
        let read_only = settings.read_only;
        self.insert(VolumeBackend::Remote(Box::new(RemoteVolume::open(cx, paths, settings))), read_only)
    }

    /// Opens a stripe of remote volumes, each by these paths; `chunk` is in bytes, as
    /// [`Stripe::new`] takes it. It is open when all of them are. `None` as for [`Client::open`].
    ///
    /// # Panics
    /// As [`Stripe::new`].
    pub fn open_stripe(
        &mut self,
        cx: &mut Cx<'_>,
        legs: Vec<(Vec<P>, VolumeSettings)>,
        chunk: u32,
    ) -> Option<VolumeHandle> {
        if self.slots.is_full() {
            return None;
        }
        let legs = legs.into_iter().map(|(paths, settings)| (RemoteVolume::open(cx, paths, settings), None));
        let stripe = Stripe::new(legs.collect(), chunk, None, None);
        self.insert(VolumeBackend::Stripe(Box::new(StripedVolume::new(stripe))), false)
    }

    /// Takes a backend that is open, with the disks that are its own; `None`: there are [`VOLUMES_MAX`]
    /// already.
    pub fn add_backend(
        &mut self,
        backend: Box<dyn Backend>,
        disks: Vec<DiskId>,
        read_only: bool,
    ) -> Option<VolumeHandle> {
        self.insert(VolumeBackend::Local(backend, disks), read_only)
    }

    fn insert(&mut self, kind: VolumeBackend<P>, read_only: bool) -> Option<VolumeHandle> {
        let slot = VolumeSlot { kind, touched: false, busy: false, noted: None, in_work: 0, read_only };
        let tag = self.slots.insert(slot).ok()?;
        self.mark_pending(tag);
        Some(VolumeHandle(tag))
    }

    /// A remote volume, to look at.
    pub fn remote_volume(&self, volume: VolumeHandle) -> Option<&RemoteVolume<P>> {
        match &self.slots.get(volume.0)?.kind {
            VolumeBackend::Remote(remote) => Some(remote),
            VolumeBackend::Stripe(_) | VolumeBackend::Local(..) => None,
        }
    }

    /// Whether a volume has paths.
    pub fn has_paths(&self, volume: VolumeHandle) -> bool {
        self.slots.get(volume.0).is_some_and(|slot| !matches!(slot.kind, VolumeBackend::Local(..)))
    }

    /// What a volume that is elsewhere is like; `None` before it is open.
    pub fn info(&self, volume: VolumeHandle) -> Option<Arc<VolumeInfo>> {
        match &self.slots.get(volume.0)?.kind {
            VolumeBackend::Remote(remote) => remote.info().cloned(),
            VolumeBackend::Stripe(striped) => striped.info().map(Arc::new),
            VolumeBackend::Local(..) => None,
        }
    }

    /// The UUIDs of a stripe's legs; `None` if it is none, or one has no UUID, or is not open.
    pub fn leg_uuids(&self, volume: VolumeHandle) -> Option<Vec<[u8; 16]>> {
        match &self.slots.get(volume.0)?.kind {
            VolumeBackend::Stripe(striped) => striped.leg_uuids(),
            VolumeBackend::Remote(_) | VolumeBackend::Local(..) => None,
        }
    }

    /// The paths of a volume; of a stripe, those of all legs in their order.
    pub fn paths(&self, volume: VolumeHandle) -> Vec<PathInfo> {
        match self.slots.get(volume.0).map(|slot| &slot.kind) {
            Some(VolumeBackend::Remote(remote)) => {
                (0..remote.path_count()).filter_map(|path| remote.path_info(path)).collect()
            }
            Some(VolumeBackend::Stripe(striped)) => striped.paths(),
            Some(VolumeBackend::Local(..)) | None => Vec::new(),
        }
    }

    /// Whether a volume's geometry or protection has changed since this was last asked.
    pub fn take_geometry_changed(&mut self, volume: VolumeHandle) -> bool {
        self.any_remote_volume(volume, RemoteVolume::has_geometry_changed)
    }

    /// Whether [`PathInfo::lands_for`] of a path of this volume has grown, or is told by its target for the first time,
    /// since this was last asked.
    pub fn take_lost_command_lifetime_changed(&mut self, volume: VolumeHandle) -> bool {
        self.any_remote_volume(volume, RemoteVolume::has_lost_command_lifetime_changed)
    }

    fn any_remote_volume(&mut self, volume: VolumeHandle, asked: fn(&mut RemoteVolume<P>) -> bool) -> bool {
        match self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            Some(VolumeBackend::Remote(remote)) => asked(remote),
            Some(VolumeBackend::Stripe(striped)) => striped.any_leg_reports(asked),
            Some(VolumeBackend::Local(..)) | None => false,
        }
    }

    /// Why the legs of a stripe, as far as they are known, make none.
    pub fn stripe_mismatch(&self, volume: VolumeHandle) -> Option<StripeMismatch> {
        match &self.slots.get(volume.0)?.kind {
            VolumeBackend::Stripe(striped) => striped.stripe.mismatch(),
            VolumeBackend::Remote(_) | VolumeBackend::Local(..) => None,
        }
    }

    /// What a volume's blocks are like; `None` before it is open.
    pub fn geometry(&self, volume: VolumeHandle) -> Option<Geometry> {
        match &self.slots.get(volume.0)?.kind {
            VolumeBackend::Remote(remote) => remote.known_geometry(),
            VolumeBackend::Stripe(striped) => {
                Some(striped.stripe.geometry()).filter(|geometry| geometry.blocks > 0)
            }
            VolumeBackend::Local(backend, _) => Some(backend.geometry()),
        }
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self, volume: VolumeHandle) -> bool {
        self.slots.get(volume.0).is_some_and(|slot| match &slot.kind {
            VolumeBackend::Remote(remote) => remote.is_read_only(),
            VolumeBackend::Stripe(striped) => striped.stripe.is_read_only(),
            VolumeBackend::Local(..) => slot.read_only,
        })
    }

    /// Starts an operation. It ends by [`Client::poll_done`]; gives it back if the volume holds as many as it
    /// can, or is not there any more.
    #[inline]
    pub fn submit(&mut self, cx: &mut Cx<'_>, volume: VolumeHandle, io: Io) -> Result<(), Io> {
        let Some(slot) = self.slots.get_mut(volume.0) else { return Err(io) };
        match &mut slot.kind {
            VolumeBackend::Remote(remote) if !remote.has_room() => return Err(io),
            VolumeBackend::Remote(remote) => remote.submit(cx, io),
            VolumeBackend::Stripe(striped) if !striped.has_room() => return Err(io),
            VolumeBackend::Stripe(striped) => striped.stripe.submit(cx, io),
            VolumeBackend::Local(..) if slot.in_work >= VolumeSettings::default().in_work => return Err(io),
            VolumeBackend::Local(backend, _) => {
                slot.in_work += 1;
                backend.submit(cx, io);
            }
        }
        self.mark_pending(volume.0);
        Ok(())
    }

    /// Asks that an operation end early. It still ends by [`Client::poll_done`].
    pub fn cancel(&mut self, volume: VolumeHandle, id: IoId) {
        match self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            Some(VolumeBackend::Remote(remote)) => remote.cancel(id),
            Some(VolumeBackend::Stripe(striped)) => striped.stripe.cancel(id),
            Some(VolumeBackend::Local(backend, _)) => backend.cancel(id),
            None => return,
        }
        self.mark_pending(volume.0);
    }

    /// An operation of this volume that has ended.
    #[inline]
    pub fn poll_done(&mut self, volume: VolumeHandle) -> Option<IoCompletion> {
        let slot = self.slots.get_mut(volume.0)?;
        match &mut slot.kind {
            VolumeBackend::Remote(remote) => remote.poll_done(),
            VolumeBackend::Stripe(striped) => striped.stripe.poll_done(),
            VolumeBackend::Local(backend, _) => {
                let done = backend.poll_done()?;
                slot.in_work -= 1;
                Some(done)
            }
        }
    }

    /// A volume that [`Client::poll_done`] may have something for. It is named again only after more has
    /// happened to it, so who asks takes all that has ended of it.
    #[inline]
    pub fn poll_ended_volume(&mut self) -> Option<VolumeHandle> {
        loop {
            let tag = self.busy.pop_front()?;
            if let Some(slot) = self.slots.get_mut(tag) {
                slot.busy = false;
                return Some(VolumeHandle(tag));
            }
        }
    }

    /// What has changed about this volume.
    pub fn poll_event(&mut self, volume: VolumeHandle) -> Option<VolumeEvent> {
        match &mut self.slots.get_mut(volume.0)?.kind {
            VolumeBackend::Remote(remote) => remote.poll_event(),
            VolumeBackend::Stripe(striped) => striped.poll_event(),
            VolumeBackend::Local(..) => None,
        }
    }

    /// Asks something about a remote volume's reservations; false if it is no remote one, or too many are
    /// asked already.
    pub fn submit_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeHandle,
        id: IoId,
        request: ReservationOp,
    ) -> bool {
        self.mark_pending(volume.0);
        match self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            Some(VolumeBackend::Remote(remote)) => remote.submit_reservation_op(cx, id, request),
            Some(VolumeBackend::Stripe(striped)) => striped.refuse_reservation(id),
            Some(VolumeBackend::Local(..)) | None => false,
        }
    }

    /// How such a question ended.
    pub fn poll_reservation_reply(&mut self, volume: VolumeHandle) -> Option<ReservationReply> {
        match &mut self.slots.get_mut(volume.0)?.kind {
            VolumeBackend::Remote(remote) => remote.poll_reservation_reply(),
            VolumeBackend::Stripe(striped) => striped.poll_reservation_reply(),
            VolumeBackend::Local(..) => None,
        }
    }

    /// Ends a remote volume, as [`RemoteVolume::close`] does. A local one is closed at once.
    pub fn close(&mut self, cx: &mut Cx<'_>, volume: VolumeHandle, grace: Duration) {
        self.mark_pending(volume.0);
        match self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            Some(VolumeBackend::Remote(remote)) => remote.close(cx, grace),
            Some(VolumeBackend::Stripe(striped)) => striped.stripe.close(cx, grace),
            Some(VolumeBackend::Local(..)) | None => self.drop_volume(volume),
        }
    }

    /// Drops a volume with everything that it holds; its sockets, if it has any, are cut.
    pub fn drop_volume(&mut self, volume: VolumeHandle) {
        if self.slots.get(volume.0).is_some_and(|slot| slot.busy) {
            self.busy.retain(|tag| *tag != volume.0);
        }
        self.slots.discard(volume.0);
        for owned in self.links.iter_mut().flatten().filter(|owned| owned.volume == volume.0) {
            if !std::mem::replace(&mut owned.left, true) {
                self.cuts.push_back(owned.link);
            }
        }
    }

    #[inline]
    fn mark_pending(&mut self, tag: Tag) {
        if let Some(slot) = self.slots.get_mut(tag)
            && !slot.touched
        {
            slot.touched = true;
            self.touched.push_back(tag);
        }
    }

    #[inline]
    fn volume_of_link(&self, link: LinkId) -> Option<Tag> {
        let owned = (*self.links.get(link.0 as u32 as usize)?)?;
        (owned.link == link).then_some(owned.volume)
    }

    /// Everything that a volume wants now was started: what is left is for later.
    #[inline]
    fn schedule_volume_followups(&mut self, tag: Tag) {
        let Some(VolumeSlot { kind, noted, .. }) = self.slots.get_mut(tag) else { return };
        let wanted = elsewhere!(kind, volume => volume.poll_timeout(), else None);
        self.timers.update_timer(tag, wanted, noted);
        self.leaving.push_back(tag);
        self.dialling.push_back(tag);
    }
}

impl<P: Path> Endpoint for Client<P> {
    without_peers!();

    #[inline]
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        if let Some(tag) = self.volume_of_link(link)
            && let Some(slot) = self.slots.get_mut(tag)
        {
            elsewhere!(&mut slot.kind, volume => volume.handle_recv(cx, link, op, came), else {});
            self.mark_pending(tag);
        }
    }

    #[inline]
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        if let Some(tag) = self.volume_of_link(link)
            && let Some(slot) = self.slots.get_mut(tag)
        {
            elsewhere!(&mut slot.kind, volume => volume.handle_written(cx, link, how), else {});
            self.mark_pending(tag);
        }
    }

    #[inline]
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        if let Some(tag) = self.volume_of_link(link)
            && let Some(slot) = self.slots.get_mut(tag)
        {
            elsewhere!(&mut slot.kind, volume => volume.handle_send_released(cx, link, op), else {});
            self.mark_pending(tag);
        }
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let owner = self.slots.iter_mut().find_map(|(tag, slot)| match &mut slot.kind {
            VolumeBackend::Local(backend, disks) if disks.contains(&op.disk) => Some((tag, backend)),
            _ => None,
        });
        if let Some((tag, backend)) = owner {
            backend.handle_disk(cx, op, came);
            self.mark_pending(tag);
        }
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        while let Some((time, tag)) = self.timers.pop_due(cx.now) {
            let Some(slot) = self.slots.get_mut(tag).filter(|slot| slot.noted == Some(time)) else {
                continue;
            };
            slot.noted = None;
            elsewhere!(&mut slot.kind, volume => volume.handle_timeout(cx), else {});
            // When it has been looked at, it notes its next time.
            self.mark_pending(tag);
        }
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut more = false;
        for _ in 0..self.touched.len() {
            let Some(tag) = self.touched.pop_front() else { break };
            let Some(slot) = self.slots.get_mut(tag) else { continue };
            slot.touched = false;
            if !std::mem::replace(&mut slot.busy, true) {
                self.busy.push_back(tag);
            }
            let again = elsewhere!(&mut slot.kind, volume => volume.turn(cx) | run_one_computation(volume), else false);
            if again {
                slot.touched = true;
                self.touched.push_back(tag);
                more = true;
            }
            match slot.kind {
                VolumeBackend::Remote(_) | VolumeBackend::Stripe(_) => self.ready.push_back(tag),
                VolumeBackend::Local(..) => self.disks.push_back(tag),
            }
        }
        more
    }

    #[inline]
    fn poll_ready(&mut self) -> Option<LinkId> {
        while let Some(&tag) = self.ready.front() {
            if let Some(slot) = self.slots.get_mut(tag)
                && let Some(link) = elsewhere!(&mut slot.kind, volume => volume.poll_ready(), else None)
            {
                return Some(link);
            }
            self.ready.pop_front();
            self.schedule_volume_followups(tag);
        }
        None
    }

    #[inline]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let slot = self.slots.get_mut(self.volume_of_link(link)?)?;
        elsewhere!(&mut slot.kind, volume => volume.poll_recv(cx, link), else None)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let slot = self.slots.get_mut(self.volume_of_link(link)?)?;
        elsewhere!(&mut slot.kind, volume => volume.poll_send(cx, link), else None)
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        while let Some(&tag) = self.disks.front() {
            if let Some(VolumeSlot { kind: VolumeBackend::Local(backend, _), .. }) = self.slots.get_mut(tag)
                && let Some(op) = backend.poll_disk()
            {
                return Some(op);
            }
            self.disks.pop_front();
        }
        None
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<NoShardMessage>)> {
        if let Some(link) = self.cuts.pop_front() {
            return Some((link, LinkDeparture::Abort));
        }
        let (link, how) = loop {
            let slot = self.slots.get_mut(*self.leaving.front()?);
            match slot
                .and_then(|slot| elsewhere!(&mut slot.kind, volume => volume.poll_link_close(), else None))
            {
                Some(leave) => break leave,
                None => self.leaving.pop_front(),
            };
        };
        if let Some(Some(owned)) = self.links.get_mut(link.0 as u32 as usize) {
            owned.left = true;
        }
        Some((link, departure_of_close(how)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.next_time()
    }

    fn poll_dial(&mut self) -> Option<Dial> {
        let (tag, dial) = loop {
            let tag = *self.dialling.front()?;
            let slot = self.slots.get_mut(tag);
            match slot.and_then(|slot| elsewhere!(&mut slot.kind, volume => volume.poll_dial(), else None)) {
                Some(dial) => break (tag, dial),
                None => self.dialling.pop_front(),
            };
        };
        let id = DialId(self.next_dial);
        self.next_dial += 1;
        self.dials.push((id, tag, dial.id));
        Some(Dial { id, ..dial })
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        let Some(known) = self.dials.iter().position(|(known, ..)| *known == id) else { return };
        let (_, tag, inner) = self.dials.swap_remove(known);
        if let Ok(dialled) = &how {
            let at = dialled.link.0 as u32 as usize;
            if self.links.len() <= at {
                self.links.resize(at + 1, None);
            }
            let gone = self.slots.get(tag).is_none();
            if let Some(owned) = self.links.get_mut(at) {
                *owned = Some(LinkOwner { link: dialled.link, volume: tag, left: gone });
            }
            if gone {
                return self.cuts.push_back(dialled.link);
            }
        }
        if let Some(slot) = self.slots.get_mut(tag) {
            elsewhere!(&mut slot.kind, volume => volume.handle_dialled(cx, inner, how), else {});
            self.mark_pending(tag);
        }
    }
}

impl<P> std::fmt::Debug for Client<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({} volumes)", self.slots.len())
    }
}
