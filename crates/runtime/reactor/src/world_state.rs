//! Shared by both worlds: the shard's mail, its disks, its listeners, its events.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use buf::{BufMut, Errno, MemoryClass, Pool, Time};
use endpoint::{Dial, LinkArrival, ListenerId, ShardId};
use stream::Tag;
use volume::{DiskId, DiskOp};

use crate::active_links::ActiveLinks;
use crate::blocking::{BlockingCall, BlockingPool};
use crate::config::TcpOptions;
use crate::counters::Counters;
use crate::disk::{DiskFile, DiskSyscall, DiskTable, PendingDiskCall};
use crate::endpoint_event::EndpointEvent;
use crate::library::{CallEnd, EndedCall, EndedCalls};
use crate::mailbox::{IncomingLink, MailboxSender, PostOutcome, ShardMail, ShardWaker};
use crate::slot_table::SlotTable;
use crate::socket::{self, AcceptOutcome};

/// Connections accepted in one go.
const ACCEPTS_MAX: usize = 16;
/// How long accepting rests when descriptors or memory are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is told that accepting found nothing left.
const EXHAUSTED_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// How soon to try again what found a full mailbox or an empty pool.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The smallest stage worth receiving into, in bytes.
const STAGING_LEN_MIN: usize = 512;

/// What became of a connection for which there is no descriptor.
enum RejectOutcome {
    /// It was reset.
    Away,
    /// None waits.
    Nobody,
    /// It waits on: accepting is of no use for a while.
    NotNow,
}

pub(crate) struct WorldState<M> {
    pub(crate) id: ShardId,
    pub(crate) pool: Pool,
    pub(crate) now: Time,
    pub(crate) active: ActiveLinks,
    pub(crate) events: VecDeque<EndpointEvent<M>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waker: Arc<ShardWaker>,
    /// Links here and on their way here, as other shards see them.
    links: Arc<AtomicUsize>,
    /// By slot, which names them to the system.
    pub(crate) listeners: Vec<Option<Listener>>,
    /// Nothing is accepted any more.
    is_shut: bool,
    pub(crate) disk_calls: SlotTable<PendingDiskCall>,
    pub(crate) links_max: usize,
    pub(crate) linger: Duration,
    closing_max: usize,
    on_exhausted: Option<fn()>,
    /// When it may be called again.
    exhausted_again: Time,
    outward: TcpOptions,
    /// Pool memory that the world itself keeps ready, in bytes.
    pub(crate) kept: usize,
    inbox: Receiver<ShardMail<M>>,
    mailboxes: Arc<[MailboxSender<M>]>,
    control: SyncSender<M>,
    /// Messages that found a full mailbox. While there are any, the shard does not pump.
    held: VecDeque<(ShardId, ShardMail<M>)>,
    disks: DiskTable,
    /// Calls of libraries that have ended.
    ended: Arc<EndedCalls>,
    /// Where they are put to be gone through.
    ended_now: Vec<EndedCall>,
    jobs: BlockingPool,
    /// Links that are being closed, by the time when that takes too long; all took the same `linger`,
    /// so they stand in order. Links that are gone by now are among them.
    closing: VecDeque<(Time, Tag)>,
    /// How many of them are there still.
    closing_now: usize,
    /// How many of them, the oldest first, are to go before their time, for want of descriptors.
    shed: usize,
    /// A descriptor that is kept for the time when there is none left: with it a connection that waits can be
    /// accepted and reset, instead of waiting for ever. `None`: there was none to keep.
    spare: Option<OwnedFd>,
    /// Connections that are being made, by the time when their makers give up.
    dialling: BTreeSet<(Time, Tag)>,
    /// Where the search for the emptiest shard starts.
    next_shard: usize,
}

/// A listening socket of this shard.
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) socket: TcpListener,
    /// Accepting rests until then.
    pub(crate) rests_until: Option<Time>,
    /// It accepts no more, and keeps its slot until the system has forgotten it.
    pub(crate) is_closing: bool,
}

impl Listener {
    fn of(id: ListenerId, socket: TcpListener) -> Self {
        Listener { id, socket, rests_until: None, is_closing: false }
    }
}

/// Everything that a [`WorldState`] is made of.
pub(crate) struct WorldStateParts<M> {
    pub(crate) id: ShardId,
    /// The shard's own among `mailboxes`.
    pub(crate) mailbox: MailboxSender<M>,
    pub(crate) pool: Pool,
    pub(crate) counters: Arc<Counters>,
    pub(crate) listeners: Vec<(ListenerId, TcpListener)>,
    pub(crate) links_max: usize,
    pub(crate) linger: Duration,
    pub(crate) closing_max: usize,
    pub(crate) on_exhausted: Option<fn()>,
    pub(crate) outward: TcpOptions,
    pub(crate) inbox: Receiver<ShardMail<M>>,
    pub(crate) mailboxes: Arc<[MailboxSender<M>]>,
    pub(crate) control: SyncSender<M>,
    pub(crate) jobs: BlockingPool,
}

impl<M> WorldState<M> {
    pub(crate) fn new(parts: WorldStateParts<M>) -> Self {
        let listeners = parts.listeners.into_iter();
        WorldState {
            ended: Arc::new(EndedCalls::new(parts.mailbox.waker.clone())),
            ended_now: Vec::new(),
            waker: parts.mailbox.waker,
            links: parts.mailbox.load,
            id: parts.id,
            pool: parts.pool,
            now: crate::clock::now(),
            active: ActiveLinks::default(),
            events: VecDeque::with_capacity(256),
            counters: parts.counters,
            listeners: listeners.map(|(id, socket)| Some(Listener::of(id, socket))).collect(),
            is_shut: false,
            disk_calls: SlotTable::new(),
            links_max: parts.links_max,
            linger: parts.linger,
            closing_max: parts.closing_max,
            on_exhausted: parts.on_exhausted,
            exhausted_again: Time(0),
            outward: parts.outward,
            kept: 0,
            inbox: parts.inbox,
            mailboxes: parts.mailboxes,
            control: parts.control,
            held: VecDeque::new(),
            disks: DiskTable::default(),
            jobs: parts.jobs,
            closing: VecDeque::new(),
            closing_now: 0,
            shed: 0,
            spare: socket::open_spare_fd(),
            dialling: BTreeSet::new(),
            next_shard: usize::from(parts.id.0),
        }
    }

    // Mail.

    /// The next message for this shard; ask until there is none, after a wake-up.
    pub(crate) fn next_mail(&mut self) -> Option<ShardMail<M>> {
        self.inbox.try_recv().ok()
    }

    /// Posts a message from the endpoint.
    pub(crate) fn post_message(&mut self, to: ShardId, message: M) {
        if to == ShardId::CONTROL_PLANE {
            if self.control.try_send(message).is_err() {
                self.counters.control_lost.add(1);
            }
        } else {
            self.post_or_hold(to, ShardMail::Message(message));
        }
    }

    /// Posts a link on its way.
    pub(crate) fn post_link(&mut self, to: ShardId, fd: OwnedFd, how: IncomingLink<M>) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) {
            mailbox.load.fetch_add(1, Ordering::Relaxed);
        }
        self.post_or_hold(to, ShardMail::Link { fd, how });
    }

    fn post_or_hold(&mut self, to: ShardId, mail: ShardMail<M>) {
        if !self.held.is_empty() {
            self.held.push_back((to, mail));
            return;
        }
        self.try_post(to, mail);
    }

    fn try_post(&mut self, to: ShardId, mail: ShardMail<M>) -> bool {
        // Endpoints post to shards that exist.
        let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) else { return true };
        match mailbox.try_post(mail) {
            PostOutcome::Done(woken) => self.counters.wakeups.add(u64::from(woken)),
            PostOutcome::Full(mail) => {
                self.held.push_front((to, mail));
                return false;
            }
            // It has ended, as this one will soon.
            PostOutcome::Gone => {}
        }
        true
    }

    /// Tries again what found a full mailbox; true if nothing is held.
    pub(crate) fn flush_held_mail(&mut self) -> bool {
        while let Some((to, mail)) = self.held.pop_front() {
            if !self.try_post(to, mail) {
                return false;
            }
        }
        true
    }

    // Links.

    /// A link is made on this shard.
    fn count_link_added(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// A socket that was to become a link of this shard does not: the caller resets it. What another shard sent with
    /// it arrives alone, so that the shard does not wait for the link.
    pub(crate) fn refuse_link(&mut self, how: LinkArrival<M>) {
        self.count_link_removed();
        self.counters.refused.add(1);
        if let LinkArrival::Moved(message) = how {
            self.events.push_back(EndpointEvent::Message(message));
        }
    }

    /// A link is gone from this shard.
    pub(crate) fn count_link_removed(&self) {
        self.links.fetch_sub(1, Ordering::Relaxed);
    }

    /// The listener in a slot, while it accepts.
    pub(crate) fn listener(&self, at: usize) -> Option<&Listener> {
        self.listeners.get(at)?.as_ref().filter(|listener| !listener.is_closing)
    }

    fn listener_mut(&mut self, at: usize) -> Option<&mut Listener> {
        self.listeners.get_mut(at)?.as_mut()
    }

    /// Gives one more listener a slot, which is returned; `None`: nothing is accepted any more.
    pub(crate) fn add_listener(&mut self, id: ListenerId, socket: TcpListener) -> Option<usize> {
        if self.is_shut {
            return None;
        }
        let free = self.listeners.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.listeners.push(None);
            self.listeners.len() - 1
        });
        *self.listeners.get_mut(at)? = Some(Listener::of(id, socket));
        Some(at)
    }

    /// The slot of a listener that accepts.
    pub(crate) fn find_listener(&self, id: ListenerId) -> Option<usize> {
        (0..self.listeners.len()).find(|at| self.listener(*at).is_some_and(|listener| listener.id == id))
    }

    /// What a listener accepts from now on comes by another one, with other options.
    pub(crate) fn change_listener(&mut self, from: ListenerId, to: ListenerId, tcp: &TcpOptions) {
        let Some(at) = self.find_listener(from) else { return };
        let Some(listener) = self.listener_mut(at) else { return };
        listener.id = to;
        // The system took them for another socket before: what it refuses here is not worth a listener.
        let _ = socket::change_options(&listener.socket, tcp);
    }

    /// The sockets that are listened on once more, as another process is to have them.
    pub(crate) fn duplicate_listeners(&self) -> io::Result<Vec<(ListenerId, OwnedFd)>> {
        let open = self.listeners.iter().flatten().filter(|listener| !listener.is_closing);
        open.map(|listener| Ok((listener.id, listener.socket.try_clone()?.into()))).collect()
    }

    /// Takes a listener from its slot, which is free again.
    pub(crate) fn take_listener(&mut self, at: usize) -> Option<Listener> {
        self.listeners.get_mut(at)?.take()
    }

    /// Takes all of them; none comes after.
    pub(crate) fn take_listeners(&mut self) -> impl Iterator<Item = Listener> + use<M> {
        self.is_shut = true;
        std::mem::take(&mut self.listeners).into_iter().flatten()
    }

    /// The slots of listeners that have rested long enough.
    pub(crate) fn rested(&mut self) -> Vec<usize> {
        let now = self.now;
        let mut all = Vec::new();
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            if let Some(listener) = listener
                && listener.rests_until.take_if(|until| *until <= now).is_some()
            {
                all.push(at);
            }
        }
        all
    }

    /// Accepts what waits on a listener and posts each socket to the shard with the fewest links.
    pub(crate) fn accept_waiting(&mut self, at: usize) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = self.listener(at) else { return };
            match socket::accept(&listener.socket, listener.id) {
                AcceptOutcome::Socket(fd, accepted) => {
                    self.counters.accepted.add(1);
                    let to = self.least_loaded_shard();
                    self.post_link(to, fd, IncomingLink::Accepted(accepted));
                }
                AcceptOutcome::Empty => return,
                AcceptOutcome::Exhausted => {
                    self.report_exhausted();
                    if self.closing_now > 0 {
                        // What we have closed ourselves gives its descriptors back first.
                        self.shed = ACCEPTS_MAX;
                        self.pause_accepting(at, RETRY_INTERVAL);
                        return;
                    }
                    match self.reject_waiting(at) {
                        RejectOutcome::Away => {}
                        RejectOutcome::Nobody => return,
                        RejectOutcome::NotNow => {
                            return self.pause_accepting(at, ACCEPT_PAUSE);
                        }
                    }
                }
            }
        }
    }

    /// Accepts nothing on a listener for a while.
    pub(crate) fn pause_accepting(&mut self, at: usize, how_long: Duration) {
        let until = self.now + how_long;
        if let Some(listener) = self.listener_mut(at) {
            listener.rests_until = Some(until);
        }
    }

    fn report_exhausted(&mut self) {
        self.counters.exhausted.add(1);
        if let Some(tell) = self.on_exhausted
            && self.now >= self.exhausted_again
        {
            self.exhausted_again = self.now + EXHAUSTED_REPORT_INTERVAL;
            tell();
        }
    }

    /// Resets a connection that waits, with the descriptor that is kept for it.
    fn reject_waiting(&mut self, at: usize) -> RejectOutcome {
        let had_one = self.spare.take().is_some();
        let accepted = match self.listener(at) {
            Some(listener) if had_one => socket::accept(&listener.socket, listener.id),
            Some(_) | None => AcceptOutcome::Exhausted,
        };
        let turned = match accepted {
            AcceptOutcome::Socket(fd, _) => {
                socket::reset_on_close(&fd);
                self.counters.refused.add(1);
                RejectOutcome::Away
            }
            AcceptOutcome::Empty => RejectOutcome::Nobody,
            // It is not descriptors that are short, or somebody else had this one first.
            AcceptOutcome::Exhausted => RejectOutcome::NotNow,
        };
        self.spare = socket::open_spare_fd();
        if self.spare.is_none() { RejectOutcome::NotNow } else { turned }
    }

    fn least_loaded_shard(&mut self) -> ShardId {
        let count = self.mailboxes.len();
        let from = self.next_shard;
        self.next_shard = (from + 1) % count;
        let load = |at: usize| Some((self.mailboxes.get(at)?.load.load(Ordering::Relaxed), at));
        let loads = (from..count).chain(0..from).filter_map(load);
        loads.min_by_key(|&(load, _)| load).map_or(self.id, |(_, at)| ShardId(at as u16))
    }

    /// A link starts to close: [`WorldState::poll_overdue_close`] names it when it takes too long. The caller calls
    /// [`WorldState::note_closed`] when it is gone, or is aborted.
    pub(crate) fn note_closing(&mut self, tag: Tag) {
        self.closing.push_back((self.now + self.linger, tag));
        self.closing_now += 1;
    }

    /// A link closes no longer.
    pub(crate) fn note_closed(&mut self) {
        self.closing_now -= 1;
    }

    /// A link to abort: its closing has taken too long, or the place is wanted (or it is closed already).
    pub(crate) fn poll_overdue_close(&mut self) -> Option<Tag> {
        let &(time, tag) = self.closing.front()?;
        if self.shed == 0 && self.closing_now <= self.closing_max && time > self.now {
            return None;
        }
        self.shed = self.shed.saturating_sub(1);
        self.closing.pop_front();
        if self.closing.is_empty() {
            self.shed = 0;
        }
        Some(tag)
    }

    /// A socket on its way to where a dial wants it; the caller calls [`WorldState::note_dialling`] or fails it.
    pub(crate) fn start_connect(&self, dial: &Dial) -> Result<OwnedFd, Errno> {
        socket::start_connect(dial.to, dial.source, &self.outward)
    }

    /// A link's connection is being made: [`WorldState::poll_timed_out_dial`] names it when that takes too long.
    pub(crate) fn note_dialling(&mut self, tag: Tag, dial: &Dial) {
        self.count_link_added();
        self.dialling.insert((dial.until, tag));
    }

    /// A connection is being made no longer.
    pub(crate) fn note_dial_ended(&mut self, tag: Tag, dial: &Dial) {
        self.dialling.remove(&(dial.until, tag));
    }

    /// A link whose connection has taken too long to make; each is named once.
    pub(crate) fn poll_timed_out_dial(&mut self) -> Option<Tag> {
        let (time, tag) = *self.dialling.first()?;
        (time <= self.now).then(|| {
            self.dialling.pop_first();
            tag
        })
    }

    /// When the world itself has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let closing = self.closing.front().map(|&(time, _)| time);
        let dialling = self.dialling.first().map(|&(time, _)| time);
        let held = (!self.held.is_empty()).then(|| self.now + RETRY_INTERVAL);
        let resting = self.listeners.iter().flatten().filter_map(|listener| listener.rests_until).min();
        [closing, dialling, held, resting].into_iter().flatten().min()
    }

    /// When to try again what found an empty pool.
    pub(crate) fn retry_time(&self) -> Time {
        self.now + RETRY_INTERVAL
    }

    /// Memory for what stands behind a payload in the stream: as much as `len`, or less when the pool
    /// is short.
    pub(crate) fn staging_buffer(&self, len: usize) -> Option<BufMut> {
        let mut want = len.min(1 << 20);
        while want > 0 {
            if let Some(stage) = self.pool.take(MemoryClass::Wire, want) {
                return Some(stage);
            }
            want = if want > STAGING_LEN_MIN { (want / 2).max(STAGING_LEN_MIN) } else { 0 };
        }
        None
    }

    // Disks.

    pub(crate) fn set_disk(&mut self, id: DiskId, file: Option<DiskFile>) {
        self.disks.set(id, file);
    }

    /// Puts a disk operation in a slot and says what to call for it; `None` if there is no such disk,
    /// which the endpoint hears, or if a library has been given it.
    pub(crate) fn start_disk_call(&mut self, op: DiskOp) -> Option<(u32, DiskSyscall)> {
        let Some(file) = self.disks.file(op.disk) else {
            self.events.push_back(EndpointEvent::Disk(op, Err(Errno(libc::ENODEV))));
            return None;
        };
        let library = file.library();
        let slot = self.disk_calls.allocate();
        let call = self.disk_calls.slot_mut(slot).start(file, op);
        let Some(library) = library else { return Some((slot, call)) };
        match call.for_library() {
            Some(call) => library.start(call, CallEnd::new(self.ended.clone(), slot)),
            None => self.finish_disk_call(slot, Ok(0), None),
        }
        None
    }

    /// Gives a call to the blocking threads.
    pub(crate) fn submit_blocking(&mut self, disk: DiskId, slot: u32, call: DiskSyscall) {
        self.jobs.submit(BlockingCall { disk, shard: self.id.0, slot, call });
    }

    /// Takes back what libraries have ended, after a wake-up.
    pub(crate) fn finish_library_calls(&mut self) {
        let mut ended = std::mem::take(&mut self.ended_now);
        self.ended.take(&mut ended);
        for (slot, came, data) in ended.drain(..) {
            self.finish_disk_call(slot, came, data);
        }
        self.ended_now = ended;
    }

    /// A disk operation has ended.
    pub(crate) fn finish_disk_call(
        &mut self,
        slot: u32,
        came: Result<usize, Errno>,
        found: Option<(u64, u64)>,
    ) {
        let Some(op) = self.disk_calls.slot_mut(slot).finish(found) else { return };
        self.disk_calls.release(slot);
        self.counters.disks.add(1);
        self.events.push_back(EndpointEvent::Disk(op, came));
    }
}

impl<M> Drop for WorldState<M> {
    /// Only a panic brings us here with operations out. The kernel, or a blocking thread, may still use their
    /// memory, and their descriptors' numbers, which would soon be those of other files.
    fn drop(&mut self) {
        if self.disk_calls.in_use() > 0 {
            std::mem::forget(std::mem::replace(&mut self.disk_calls, SlotTable::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn what_a_blocking_thread_may_still_use_is_not_let_go_with_its_shard() {
        let (sender, inbox) = sync_channel(1);
        let jobs = BlockingPool::without_threads(1);
        let waker = Arc::new(ShardWaker::new().unwrap());
        let mailbox: MailboxSender<()> = MailboxSender { sender, waker, load: Arc::new(AtomicUsize::new(0)) };
        let mut base = WorldState::new(WorldStateParts {
            id: ShardId(0),
            pool: Pool::new(1 << 20),
            counters: Arc::default(),
            listeners: Vec::new(),
            links_max: 1,
            linger: Duration::ZERO,
            closing_max: 1,
            on_exhausted: None,
            outward: TcpOptions::default(),
            inbox,
            mailboxes: Arc::new([mailbox.clone()]),
            mailbox,
            control: sync_channel(1).0,
            jobs: jobs.clone(),
        });
        let (file, mut other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        base.set_disk(volume::DiskId(0), Some(DiskFile::new(std::sync::Arc::new(file.into()))));
        let ticket = volume::DiskTicket(0);
        let op = DiskOp { disk: volume::DiskId(0), ticket, kind: volume::DiskKind::Sync };
        let (slot, call) = base.start_disk_call(op).unwrap();
        base.submit_blocking(volume::DiskId(0), slot, call);
        drop(base);
        assert!(jobs.take_call().is_some(), "a thread may come to it still");
        assert_eq!(other.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "its file is open");
    }
}
