//! Starting the shards, and requests to them from outside.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use buf::{Cx, Entropy, Pool};
use endpoint::{Endpoint, LinkId, ListenerId, ShardId};
use volume::DiskId;

use crate::blocking::{BlockingPool, BlockingThreads};
use crate::busy_poll::BusyPollEstimate;
use crate::clock;
use crate::config::{Config, IoChoice, IoKind, ListenConfig, TcpOptions};
use crate::counters::{Counters, ShardStats};
use crate::disk::DiskFile;
use crate::epoll::Epoll;
use crate::event_loop::EventLoop;
use crate::library::DiskSource;
use crate::mailbox::{IncomingLink, MAILBOX_LEN_MAX, MailboxSender, ShardMail, ShardWaker};
use crate::socket;
use crate::uring::{self, Uring};
use crate::world::World;
use crate::world_state::{WorldState, WorldStateParts};

/// Messages that may wait for the control plane. Beyond it they are dropped and counted
/// ([`ShardStats::control_lost`]): the data path never waits for the control plane.
pub(crate) const CONTROL_MESSAGES_MAX: usize = 16 << 10;

/// How long an address that is in use is waited for. What a killed process had out on a ring, and the sockets
/// with it, the kernel ends some time after the process: who is started in its place must not fail by that.
const ADDRESS_IN_USE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two tries.
const ADDRESS_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks whether a thread has ended, where it is not waited for without end.
const JOIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The real world.
#[derive(Debug)]
pub struct Reactor;

/// Why the reactor did not start.
#[derive(Debug)]
pub enum SpawnError {
    /// This address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// These options of connections outwards cannot be had.
    Outward(io::Error),
    /// io_uring was asked for and cannot be had.
    Uring(io::Error),
    /// This core cannot be used.
    Core(usize, io::Error),
    /// A thread or a descriptor could not be had.
    System(io::Error),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::Listen(address, e) => write!(f, "cannot listen on {address}: {e}"),
            SpawnError::Outward(e) => write!(f, "the options of connections outwards cannot be had: {e}"),
            SpawnError::Uring(e) => write!(f, "io_uring cannot be had: {e}"),
            SpawnError::Core(core, e) => write!(f, "cannot run on core {core}: {e}"),
            SpawnError::System(e) => write!(f, "cannot start: {e}"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// Shards that run. Dropping it stops them at once.
pub struct ReactorHandle<M> {
    io: IoKind,
    addresses: Vec<SocketAddr>,
    mailboxes: Arc<[MailboxSender<M>]>,
    counters: Vec<Arc<Counters>>,
    threads: Mutex<ShardThreads>,
    /// Locked once, by who takes it; the lock lets threads share all the rest.
    control: Mutex<Option<Receiver<M>>>,
    next_disk: AtomicU32,
}

/// What is waited for at the end.
#[derive(Default)]
struct ShardThreads {
    shards: Vec<thread::JoinHandle<()>>,
    blocking: Option<BlockingThreads>,
}

impl Reactor {
    /// Starts the shards. `factory` builds each shard's endpoint on the shard's own thread.
    pub fn spawn<E, F>(config: Config, factory: F) -> Result<ReactorHandle<E::Message>, SpawnError>
    where
        E: Endpoint,
        E::Message: Send + 'static,
        F: Fn(ShardId, &mut Cx<'_>) -> E + Send + Sync + 'static,
    {
        let io = choose_io_kind(config.io)?;
        socket::check_options(&config.outward).map_err(SpawnError::Outward)?;
        let count = config.cores.len().max(1);
        if count >= usize::from(ShardId::CONTROL_PLANE.0) {
            return Err(SpawnError::System(io::ErrorKind::InvalidInput.into()));
        }
        let mut mailboxes = Vec::new();
        let mut inboxes = Vec::new();
        for _ in 0..count {
            // Its disks stand there before it reads for the first time.
            let (sender, inbox) = sync_channel(MAILBOX_LEN_MAX + config.disks.len());
            let waker = Arc::new(ShardWaker::new().map_err(SpawnError::System)?);
            mailboxes.push(MailboxSender { sender, waker, load: Arc::new(AtomicUsize::new(0)) });
            inboxes.push(inbox);
        }
        let mailboxes: Arc<[MailboxSender<E::Message>]> = mailboxes.into();
        let jobs =
            BlockingPool::start(config.blocking_threads, mailboxes.clone()).map_err(SpawnError::System)?;
        // A shard reads its mail before it accepts.
        for (at, file) in config.disks.iter().enumerate() {
            for mailbox in mailboxes.iter() {
                let file = DiskFile::of(file);
                mailbox.post(ShardMail::Disk { id: DiskId(at as u32), file: Some(file) });
            }
        }
        let (control_in, control) = sync_channel(CONTROL_MESSAGES_MAX);
        let mut running = ReactorHandle {
            io,
            addresses: Vec::new(),
            counters: (0..count).map(|_| Arc::default()).collect(),
            mailboxes,
            threads: Mutex::new(ShardThreads { shards: Vec::new(), blocking: Some(jobs.thread_handles()) }),
            control: Mutex::new(Some(control)),
            next_disk: AtomicU32::new(config.disks.len() as u32),
        };
        // Dropped before `running` is, on every way out: the blocking threads end with the last of these.
        let jobs = jobs;
        let mut listeners: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
        for (at, how) in config.listeners.iter().enumerate() {
            let failed = |e| SpawnError::Listen(how.address, e);
            let socket = listen_with_retry(how).map_err(failed)?;
            running.addresses.push(socket.local_addr().map_err(failed)?);
            if let Some(of) = listeners.get_mut(at % count) {
                of.push((ListenerId(at as u16), socket));
            }
        }
        let factory = Arc::new(factory);
        let (ready_in, ready) = channel();
        let (counters, mailboxes) = (running.counters.clone(), running.mailboxes.clone());
        let shards = inboxes.into_iter().zip(listeners).zip(counters).zip(mailboxes.iter().cloned());
        for (at, (((inbox, listeners), counters), mailbox)) in shards.enumerate() {
            let start = ShardStart {
                core: config.cores.get(at).copied(),
                id: ShardId(at as u16),
                is_uring: matches!(running.io, IoKind::Uring),
                pool_bytes: config.pool_bytes,
                poll_ns_max: config.poll_ns_max,
                links_max: config.links_max,
                linger: config.linger,
                closing_max: config.closing_max,
                on_exhausted: config.on_exhausted,
                outward: config.outward.clone(),
                counters,
                listeners,
                inbox,
                mailbox,
                mailboxes: mailboxes.clone(),
                control: control_in.clone(),
                jobs: jobs.clone(),
            };
            let (factory, ready) = (factory.clone(), ready_in.clone());
            let name = format!("bw-shard-{at}");
            let thread = thread::Builder::new().name(name).spawn(move || start.run(&*factory, ready));
            running.lock_threads().shards.push(thread.map_err(SpawnError::System)?);
        }
        drop((ready_in, jobs));
        for _ in 0..count {
            // A shard that panics while it starts says nothing more.
            ready.recv().unwrap_or_else(|_| Err(SpawnError::System(io::ErrorKind::Other.into())))?;
        }
        Ok(running)
    }
}

pub(crate) fn choose_io_kind(choice: IoChoice) -> Result<IoKind, SpawnError> {
    match choice {
        IoChoice::Epoll => Ok(IoKind::Epoll),
        IoChoice::Uring => uring::probe().map(|()| IoKind::Uring).map_err(SpawnError::Uring),
        IoChoice::Auto => match uring::probe() {
            Ok(()) => Ok(IoKind::Uring),
            Err(why) => Ok(IoKind::EpollInstead(why)),
        },
    }
}

/// What one shard's thread needs.
struct ShardStart<M> {
    core: Option<usize>,
    id: ShardId,
    is_uring: bool,
    pool_bytes: usize,
    poll_ns_max: u64,
    links_max: usize,
    linger: Duration,
    closing_max: usize,
    on_exhausted: Option<fn()>,
    outward: TcpOptions,
    counters: Arc<Counters>,
    listeners: Vec<(ListenerId, std::net::TcpListener)>,
    inbox: Receiver<ShardMail<M>>,
    mailbox: MailboxSender<M>,
    mailboxes: Arc<[MailboxSender<M>]>,
    control: std::sync::mpsc::SyncSender<M>,
    jobs: BlockingPool,
}

impl<M: Send + 'static> ShardStart<M> {
    fn run<E>(self, factory: &dyn Fn(ShardId, &mut Cx<'_>) -> E, ready: Sender<Result<(), SpawnError>>)
    where
        E: Endpoint<Message = M>,
    {
        // Nobody listens any more if another shard failed before; then this one is stopped as well. The
        // sender goes with the telling, so that a shard that panics before is not waited for.
        let tell = move |how| drop(ready.send(how));
        if let Some(core) = self.core
            && let Err(e) = clock::pin_to_core(core)
        {
            return tell(Err(SpawnError::Core(core, e)));
        }
        let seed = match clock::random_seed() {
            Ok(seed) => seed,
            Err(e) => return tell(Err(SpawnError::System(e))),
        };
        let pool = Pool::new(self.pool_bytes);
        let mut entropy = Entropy::new(seed);
        let mut cx = Cx { now: clock::now(), pool: &pool, entropy: &mut entropy };
        let end = factory(self.id, &mut cx);
        let spin = BusyPollEstimate::new(self.poll_ns_max);
        let base = WorldState::new(WorldStateParts {
            id: self.id,
            mailbox: self.mailbox,
            pool: pool.clone(),
            counters: self.counters,
            listeners: self.listeners,
            links_max: self.links_max,
            linger: self.linger,
            closing_max: self.closing_max,
            on_exhausted: self.on_exhausted,
            outward: self.outward,
            inbox: self.inbox,
            mailboxes: self.mailboxes,
            control: self.control,
            jobs: self.jobs,
        });
        if self.is_uring {
            let mut ring = match uring::create_ring() {
                Ok(ring) => ring,
                Err(e) => return tell(Err(SpawnError::Uring(e))),
            };
            match Uring::new(base, &mut ring) {
                Ok(world) => report_ready_and_run(
                    tell,
                    EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false },
                ),
                Err(e) => tell(Err(SpawnError::Uring(e))),
            }
        } else {
            match Epoll::new(base) {
                Ok(world) => report_ready_and_run(
                    tell,
                    EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false },
                ),
                Err(e) => tell(Err(SpawnError::System(e))),
            }
        }
    }
}

/// A socket that listens, and on which nothing is accepted yet.
#[derive(Debug)]
pub struct BoundListener {
    socket: TcpListener,
    address: SocketAddr,
}

impl BoundListener {
    /// Binds an address, with the options of its connections.
    ///
    /// # Errors
    /// What the system says: the address is in use, or not of this machine.
    pub fn bind(how: &ListenConfig) -> io::Result<Self> {
        let socket = socket::listen(how)?;
        let address = socket.local_addr()?;
        Ok(BoundListener { socket, address })
    }

    /// A socket that another process has bound, with its options.
    ///
    /// # Errors
    /// It is no such socket.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(BoundListener { socket, address })
    }

    /// Whether the system takes the options of an address that is listened on already.
    ///
    /// # Errors
    /// What it says.
    pub fn try_options(how: &ListenConfig) -> io::Result<()> {
        socket::try_listen_options(how)
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn listen_with_retry(how: &ListenConfig) -> io::Result<TcpListener> {
    let until = Instant::now() + ADDRESS_IN_USE_TIMEOUT;
    loop {
        match socket::listen(how) {
            Err(why) if why.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                thread::sleep(ADDRESS_RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

fn report_ready_and_run<E, W>(tell: impl FnOnce(Result<(), SpawnError>), shard: EventLoop<E, W>)
where
    E: Endpoint,
    W: World<E::Message>,
{
    tell(Ok(()));
    shard.run();
}

impl<M> ReactorHandle<M> {
    /// Which system interface is in use, and why.
    pub fn io_kind(&self) -> &IoKind {
        &self.io
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> u16 {
        self.mailboxes.len() as u16
    }

    /// The addresses listened on, in the order of the configuration, with the ports that the system
    /// chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts on a socket that was bound, as listener `id`, which no listener ever was before. False if its shard has
    /// ended.
    pub fn add_listener(&self, id: ListenerId, listener: BoundListener) -> bool {
        let at = usize::from(id.0) % self.mailboxes.len().max(1);
        let mail = ShardMail::OpenListener { id, socket: listener.socket };
        self.mailboxes.get(at).is_some_and(|mailbox| mailbox.post(mail))
    }

    /// What a listener accepts from now on comes by listener `to`, with other options. Its shard stays: `to` must be one
    /// of the same shard (see [`ReactorHandle::shard_count`]: by the remainder), and no other listener ever.
    pub fn change_listener(&self, from: ListenerId, to: ListenerId, tcp: TcpOptions) {
        let at = usize::from(from.0) % self.mailboxes.len().max(1);
        if let Some(mailbox) = self.mailboxes.get(at) {
            mailbox.post(ShardMail::ChangeListener { from, to, tcp: Box::new(tcp) });
        }
    }

    /// The sockets of links of a shard, all at rest, once more: for another process. They stay links here. Waits at most
    /// `patience` for the shard.
    ///
    /// # Errors
    /// One of them is not there, there is no descriptor left, or the shard does not answer.
    pub fn duplicate_links(
        &self,
        of: ShardId,
        links: Vec<LinkId>,
        patience: Duration,
    ) -> io::Result<Vec<OwnedFd>> {
        let (reply, answer) = channel();
        let mailbox = self.mailboxes.get(usize::from(of.0)).ok_or(io::ErrorKind::NotFound)?;
        mailbox.post(ShardMail::DuplicateLinks { links, reply });
        answer.recv_timeout(patience).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// The sockets that are listened on once more, for another process. They stay open here. Waits at most `patience` for
    /// each shard.
    ///
    /// # Errors
    /// There is no descriptor left, or a shard does not answer.
    pub fn duplicate_listeners(&self, patience: Duration) -> io::Result<Vec<(ListenerId, OwnedFd)>> {
        let mut all = Vec::new();
        for mailbox in self.mailboxes.iter() {
            let (reply, answer) = channel();
            mailbox.post(ShardMail::DuplicateListeners { reply });
            let own = answer.recv_timeout(patience).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            all.extend(own?);
        }
        Ok(all)
    }

    /// Gives a shard a socket that another process has left. It arrives with `message`. False if the shard has ended.
    pub fn adopt_link(&self, to: ShardId, socket: OwnedFd, message: M) -> bool {
        let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) else { return false };
        mailbox.load.fetch_add(1, Ordering::Relaxed);
        mailbox.post(ShardMail::Link { fd: socket, how: IncomingLink::Moved(message) })
    }

    /// Accepts no more on a listener; what was accepted is still served.
    pub fn remove_listener(&self, id: ListenerId) {
        let at = usize::from(id.0) % self.mailboxes.len().max(1);
        if let Some(mailbox) = self.mailboxes.get(at) {
            mailbox.post(ShardMail::CloseListener { id });
        }
    }

    /// Says something to a shard; waits while its mailbox is full. False if the shard has ended.
    pub fn post(&self, to: ShardId, message: M) -> bool {
        self.mailboxes.get(usize::from(to.0)).is_some_and(|mailbox| mailbox.post(ShardMail::Message(message)))
    }

    /// Where messages to [`ShardId::CONTROL_PLANE`] arrive, in order per shard; it ends when every shard has.
    /// `None` if it was taken before. At most 16,384 messages wait there; those beyond are dropped and
    /// counted, so fetch them promptly.
    pub fn take_control_inbox(&mut self) -> Option<Receiver<M>> {
        self.control.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Makes an open file or device, or a library's disk, known to every shard. What is posted afterwards may name it.
    pub fn add_disk(&self, source: DiskSource) -> io::Result<DiskId> {
        let files: Vec<_> = self.mailboxes.iter().map(|_| DiskFile::of(&source)).collect();
        // A number is never given twice: what is out on a disk that was taken away bears it still.
        let next = self.next_disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        let id = DiskId(next.map_err(|_| io::Error::other("more files were opened than can be counted"))?);
        for (mailbox, file) in self.mailboxes.iter().zip(files) {
            mailbox.post(ShardMail::Disk { id, file: Some(file) });
        }
        Ok(id)
    }

    /// Takes a disk away: operations that are out still end, later ones fail with ENODEV.
    pub fn remove_disk(&self, id: DiskId) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(ShardMail::Disk { id, file: None });
        }
    }

    /// What each shard has counted.
    pub fn stats(&self) -> Vec<ShardStats> {
        self.counters.iter().map(|counters| counters.stats()).collect()
    }

    /// Accepts no more; what was accepted is still served.
    pub fn stop_accepting(&self) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(ShardMail::CloseListeners);
        }
    }

    /// Ends each shard when its last link is gone, or after `grace` with a reset of those left. To
    /// part from peers politely, say so to the endpoints first.
    pub fn stop(&self, grace: Duration) {
        let deadline = clock::now() + grace;
        for mailbox in self.mailboxes.iter() {
            mailbox.post(ShardMail::Stop { deadline });
        }
    }

    /// Waits until every shard has ended. Another thread may [`ReactorHandle::stop`] meanwhile.
    ///
    /// # Errors
    /// If a shard panicked; what it said went to standard error.
    pub fn join(&self) -> Result<(), ShardPanicked> {
        self.join_until(None).map(drop)
    }

    /// The same, but waits no longer than `patience`. False: some thread waits still for what the system does not
    /// end, such as a disk that does not answer; it ends with the process, and is waited for no more.
    ///
    /// # Errors
    /// As [`ReactorHandle::join`].
    pub fn join_within(&self, patience: Duration) -> Result<bool, ShardPanicked> {
        self.join_until(Some(Instant::now() + patience))
    }

    fn join_until(&self, until: Option<Instant>) -> Result<bool, ShardPanicked> {
        let ShardThreads { shards, blocking } = std::mem::take(&mut *self.lock_threads());
        let shards = join_all(shards, until);
        let blocking = join_all(blocking.map_or_else(Vec::new, |blocking| blocking.take_handles()), until);
        Ok(shards? & blocking?)
    }

    fn lock_threads(&self) -> MutexGuard<'_, ShardThreads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the end of threads, but not beyond `until`. False: some have not ended.
fn join_all(threads: Vec<thread::JoinHandle<()>>, until: Option<Instant>) -> Result<bool, ShardPanicked> {
    let (mut all, mut how) = (true, Ok(()));
    for thread in threads {
        while until.is_some_and(|until| !thread.is_finished() && Instant::now() < until) {
            thread::sleep(JOIN_POLL_INTERVAL);
        }
        if until.is_some() && !thread.is_finished() {
            all = false;
            continue;
        }
        how = how.and(thread.join().map_err(|_| ShardPanicked));
    }
    how.map(|()| all)
}

/// A shard has panicked: a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPanicked;

impl<M> Drop for ReactorHandle<M> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
        // A panic was reported by the thread itself.
        let _ = self.join();
    }
}

impl<M> fmt::Debug for ReactorHandle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReactorHandle").field("io", &self.io).field("addresses", &self.addresses).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_come_back_from_a_disk_is_not_waited_for_without_end() {
        let (answer, disk) = channel::<()>();
        let hung = thread::spawn(move || assert!(disk.recv().is_err()));
        let begun = Instant::now();
        let until = Some(begun + Duration::from_millis(100));
        assert_eq!(join_all(vec![thread::spawn(|| ()), hung, thread::spawn(|| ())], until), Ok(false));
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(answer);
        let until = Some(Instant::now() + Duration::from_secs(30));
        assert_eq!(join_all(vec![thread::spawn(|| ()), thread::spawn(|| ())], until), Ok(true));
        assert_eq!(join_all(vec![thread::spawn(|| ())], None), Ok(true));
    }
}
