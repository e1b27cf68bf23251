//! Opens volumes and drives them on one thread.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use buf::{Class, Cx, SgMut, Time};
use multipath::url::{Machine, Url};
use multipath::{
    AnyPath, Client, Handle, HostIdentity, PathInfo, ReservationOp, Reservations, Secrets, VolumeEvent,
    VolumeSettings,
};
use reactor::{Config, InlineReactor, IoChoice, SpawnError};
use volume::{Done, Geometry, Io, IoId};

use crate::error::{Error, Kind, unserved};
use crate::identity::{self, Nexus};
use crate::name::{Name, stripe_uuid};
use crate::secret;

/// How an initiator is set up.
/// ```
/// use std::time::Duration;
/// use blockwire_client::{Initiator, IoChoice, Settings};
///
/// let settings = Settings { io: IoChoice::Epoll, open_timeout: Duration::from_secs(5), ..Settings::default() };
/// let initiator = Initiator::new(settings)?;
/// assert_eq!(initiator.io().to_string(), "epoll, as asked");
/// # Ok::<(), blockwire_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which system interface moves the bytes.
    pub io: IoChoice,
    /// Memory for payloads, in bytes (rounded up to whole MiB).
    pub memory: usize,
    /// How long a wait may look at memory before it sleeps, in nanoseconds: less latency for more
    /// processor. 0: never.
    pub poll_ns_max: u64,
    /// Which nexus targets see.
    pub nexus: Nexus,
    /// The paths of a process that is gone ([`Initiator::identities`]), with [`Nexus::Inherited`]: a path to the same
    /// place is the same nexus again, and any other path is another one, in whatever order they are opened.
    pub inherited: Vec<PathIdentity>,
    /// Longest time for a volume to open, beside what its URL says.
    pub open_timeout: Duration,
    /// How long [`Initiator::close`] waits for a polite end.
    pub close_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            io: IoChoice::Auto,
            memory: 64 << 20,
            poll_ns_max: 0,
            nexus: Nexus::Passing,
            inherited: Vec::new(),
            open_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(2),
        }
    }
}

/// A path, as another process must know it to be the same nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathIdentity {
    /// Where it leads, and as whom.
    pub place: String,
    /// What tells its nexus apart from those of this process's other paths.
    pub number: u16,
}

/// Where a path leads, and over iSCSI as whom: over NVMe no nexus is known by that.
fn place_of(url: &Url, who: &HostIdentity) -> String {
    match url.protocol {
        multipath::Protocol::Iscsi => {
            let name = url.options.initiator.as_ref().map_or(&*who.initiator, |name| name.as_str());
            format!("{url} as {name}")
        }
        multipath::Protocol::Nvme => url.to_string(),
    }
}

/// Remote volumes on one thread. See the crate.
/// A loop of the caller's own, which waits for none of its volumes:
///
/// ```
/// use std::time::Duration;
/// use blockwire_client::{Initiator, Settings, VolumeEvent};
///
/// let mut initiator = Initiator::new(Settings::default())?;
/// // Nothing listens there, so this volume does not open.
/// let url = "iscsi://127.0.0.1:1/iqn.2026-11.io.blockwire:demo/0?open_timeout=1";
/// let volume = initiator.begin(url)?;
/// let news = loop {
///     initiator.turn(Some(Duration::from_secs(1)));
///     match initiator.poll_event(volume) {
///         Some(VolumeEvent::Path(_)) | None => {}
///         Some(news) => break news,
///     }
/// };
/// assert_eq!(news, VolumeEvent::Failed);
/// assert!(initiator.known(volume).is_err(), "a size that nobody has told is not zero");
/// initiator.forget(volume);
/// # Ok::<(), blockwire_client::Error>(())
/// ```
pub struct Initiator {
    inline: InlineReactor<Client<AnyPath>>,
    who: HostIdentity,
    settings: Settings,
    next_id: u64,
    /// Volumes that are stripes, and the bytes of their chunks.
    chunks: Vec<(Handle, u32)>,
    /// Paths that were made: the qualifier of the next one's ISID. Two volumes of one target must not end
    /// each other's sessions.
    paths_made: u16,
    /// Those of a process that is gone which nobody has taken yet; and numbers that are theirs.
    inherited: Vec<PathIdentity>,
    inherited_numbers: Vec<u16>,
    identities: Vec<(Handle, Vec<PathIdentity>)>,
    /// Operations of other volumes that ended while one was waited for.
    pub(crate) ended: Vec<(Handle, Done)>,
}

impl Initiator {
    /// Sets one up.
    ///
    /// # Errors
    /// If the system does not give what it needs.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let config = Config {
            io: settings.io,
            pool_bytes: settings.memory,
            poll_ns_max: settings.poll_ns_max,
            linger: settings.close_timeout,
            ..Config::default()
        };
        let failed = |why: SpawnError| Error::new(Kind::Failed, why);
        let mut inline = InlineReactor::new(config, |_| Client::new()).map_err(failed)?;
        let mut entropy = [0; 3];
        inline.with(|_, cx| cx.entropy.fill(&mut entropy));
        let who = identity::who(settings.nexus, entropy)?;
        let inherited = settings.inherited.clone();
        let inherited_numbers = inherited.iter().map(|identity| identity.number).collect();
        Ok(Initiator {
            inline,
            who,
            settings,
            next_id: 0,
            chunks: Vec::new(),
            paths_made: 0,
            inherited,
            inherited_numbers,
            identities: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Who we are to targets.
    pub fn who(&self) -> &HostIdentity {
        &self.who
    }

    /// How it was set up.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which system interface moves the bytes, and why.
    pub fn io(&self) -> &reactor::IoKind {
        self.inline.io()
    }

    /// What its loop has counted since it was set up.
    pub fn stats(&self) -> reactor::ShardStats {
        self.inline.stats()
    }

    /// Opens a volume by all the paths that the URLs name (joined by commas), and waits until one serves; or a
    /// stripe of such volumes, `stripe:URL+URL[,chunk=SIZE]`, and waits until all do.
    ///
    /// # Errors
    /// A URL that makes no sense or names no volume; a host that has no address; a secret that is not
    /// there; no path that comes up in time, with what each said last.
    pub fn open(&mut self, urls: &str) -> Result<Handle, Error> {
        let volume = self.begin(urls)?;
        self.finish(volume, urls)
    }

    /// Begins to open a volume, without waiting for more than the resolving of names. [`VolumeEvent::Open`] or
    /// [`VolumeEvent::Failed`] follows; operations that are submitted before wait.
    ///
    /// # Errors
    /// As [`Initiator::open`], but for the paths.
    pub fn begin(&mut self, urls: &str) -> Result<Handle, Error> {
        let name = Name::parse(urls)?;
        let (mut legs, mut identities) = (Vec::new(), Vec::new());
        for urls in &name.legs {
            let (paths, its_identities) = self.paths_of(urls)?;
            identities.extend(its_identities);
            let first = urls.first().ok_or_else(|| Error::usage("a leg of the stripe names no volume"))?;
            legs.push((paths, VolumeSettings::of(&first.options)));
        }
        let opened = self.inline.with(|client, cx| match (name.chunk, legs.pop()) {
            (None, Some((paths, terms))) => client.open(cx, paths, terms),
            (Some(chunk), Some(last)) => {
                legs.push(last);
                client.open_stripe(cx, legs, chunk)
            }
            (_, None) => None,
        });
        let volume = opened.ok_or_else(|| Error::new(Kind::Failed, "too many volumes are open"))?;
        self.identities.retain(|(of, _)| *of != volume);
        self.identities.push((volume, identities));
        if let Some(chunk) = name.chunk {
            self.chunks.push((volume, chunk));
        }
        Ok(volume)
    }

    fn paths_of(&mut self, urls: &[Url]) -> Result<(Vec<AnyPath>, Vec<PathIdentity>), Error> {
        let (mut paths, mut identities) = (Vec::new(), Vec::new());
        for url in urls {
            let (addresses, secrets) = (resolve(url)?, secrets(url)?);
            let place = place_of(url, &self.who);
            let taken =
                |number: u16| identities.iter().any(|identity: &PathIdentity| identity.number == number);
            let number = self.number_of(&place, taken).ok_or_else(|| {
                Error::new(Kind::Failed, "65,536 paths are open: close volumes that are not needed")
            })?;
            let path = AnyPath::of(url, addresses, &self.who, &secrets, number);
            identities.push(PathIdentity { place, number });
            paths.push(path.map_err(Error::usage)?);
        }
        Ok((paths, identities))
    }

    /// The number of a path to this place: that of the path there before, or the one that no path has and that was
    /// given last the longest time ago. With the number of a path that is open it would end that one's sessions.
    /// `None`: none is left.
    fn number_of(&mut self, place: &str, taken: impl Fn(u16) -> bool) -> Option<u16> {
        if let Some(at) = self.inherited.iter().position(|identity| identity.place == place) {
            return Some(self.inherited.swap_remove(at).number);
        }
        let open = |number| {
            let mut identities = self.identities.iter().flat_map(|(_, identities)| identities);
            identities.any(|identity| identity.number == number)
        };
        let next = (0..=u16::MAX).map(|step| self.paths_made.wrapping_add(step));
        let number = next
            .into_iter()
            .find(|number| !self.inherited_numbers.contains(number) && !open(*number) && !taken(*number))?;
        self.paths_made = number.wrapping_add(1);
        Some(number)
    }

    /// The paths of a volume, in the order of [`Initiator::paths`], as another process must know them that goes on
    /// after this one.
    pub fn identities(&self, volume: Handle) -> &[PathIdentity] {
        self.identities.iter().find(|(of, _)| *of == volume).map_or(&[], |(_, identities)| identities)
    }

    /// Why a volume that was begun by these URLs is not open: what its paths said last.
    pub fn why_not_open(&self, volume: Handle, urls: &str) -> Error {
        Error::of_paths(&shown(urls), &self.paths(volume))
    }

    /// Why an operation of a volume failed, in words: if for want of a path, with what its paths say last.
    pub fn failed(&self, volume: Handle, failure: volume::Failure, what: &str) -> Error {
        Error::of_volume(failure, what, &self.paths(volume))
    }

    /// Waits until a volume that was begun by these URLs serves. Who opens many begins several before
    /// it waits for the first.
    ///
    /// # Errors
    /// As [`Initiator::open`]; the volume is forgotten then.
    pub fn finish(&mut self, volume: Handle, urls: &str) -> Result<Handle, Error> {
        // What a URL's own times allow is more important than ours, which only stops what never ends.
        let begun = Instant::now();
        let mut is_open = false;
        loop {
            while let Some(event) = self.poll_event(volume) {
                match event {
                    VolumeEvent::Open => is_open = true,
                    VolumeEvent::Failed => {
                        let why = self.why_not_open(volume, urls);
                        self.forget(volume);
                        return Err(why);
                    }
                    VolumeEvent::Changed | VolumeEvent::Path(_) | VolumeEvent::Closed => {}
                }
            }
            // A path that does not serve need not tell how large the volume is: another may.
            if is_open && let Some(usable) = self.is_usable(volume) {
                if usable.is_err() {
                    self.forget(volume);
                }
                return usable.map(|()| volume);
            }
            let Some(left) = self.settings.open_timeout.checked_sub(begun.elapsed()) else {
                let why = self.too_late(volume, urls);
                self.forget(volume);
                return Err(why);
            };
            self.turn(Some(left));
        }
    }

    /// Whether a volume that has said [`VolumeEvent::Open`] can be used; `None` while nothing is known of its blocks.
    ///
    /// # Errors
    /// If the legs of a stripe make none.
    pub fn is_usable(&self, volume: Handle) -> Option<Result<(), Error>> {
        match self.inline.endpoint().misfit(volume) {
            Some(misfit) => Some(Err(Error::usage(misfit))),
            None => self.known(volume).is_ok().then_some(Ok(())),
        }
    }

    /// Why a volume that was begun by these URLs was not open in time.
    pub fn too_late(&self, volume: Handle, urls: &str) -> Error {
        let mut why = self.why_not_open(volume, urls);
        let is_up = self.paths(volume).iter().any(|path| path.state == multipath::PathState::Up);
        if why.kind == Kind::Failed && !is_up {
            why.kind = Kind::TimedOut;
        }
        why
    }

    /// What a volume's blocks are like, once its target has told: size and block are not zero.
    ///
    /// # Errors
    /// If no path has told yet. Nothing may be concluded then from [`Initiator::geometry`].
    pub fn known(&self, volume: Handle) -> Result<Geometry, Error> {
        let geometry = self.geometry(volume).filter(|geometry| geometry.bytes() > 0);
        geometry.ok_or_else(|| {
            Error::new(
                Kind::Failed,
                format!("the size of the volume is not known: {}", unserved(&self.paths(volume))),
            )
        })
    }

    /// Whether a path serves a volume now.
    ///
    /// # Errors
    /// If none does: why not.
    pub fn is_served(&self, volume: Handle) -> Result<(), Error> {
        let paths = self.paths(volume);
        let serves = |path: &PathInfo| {
            path.state == multipath::PathState::Up
                && path.info.as_ref().is_some_and(|info| info.access.serves())
        };
        match paths.iter().any(serves) {
            true => Ok(()),
            false => Err(Error::new(Kind::Failed, format!("nothing serves it now: {}", unserved(&paths)))),
        }
    }

    /// The reservations of a volume that is open by this name; of a stripe, those of each of its legs. None
    /// for a target that knows no reservations.
    ///
    /// # Errors
    /// As [`Initiator::request_reservation`]; of a stripe, as [`Initiator::open`] too.
    pub fn reservations(&mut self, volume: Handle, name: &str) -> Result<Vec<Reservations>, Error> {
        let name = Name::parse(name)?;
        if name.chunk.is_none() {
            return Ok(self.report(volume)?.into_iter().collect());
        }
        let mut all = Vec::new();
        for urls in &name.legs {
            let first = urls.first().ok_or_else(|| Error::usage("a leg of the stripe names no volume"))?;
            let ((paths, _), terms) = (self.paths_of(urls)?, VolumeSettings::of(&first.options));
            let leg = self.inline.with(|client, cx| client.open(cx, paths, terms));
            let leg = leg.ok_or_else(|| Error::new(Kind::Failed, "too many volumes are open"))?;
            let shown: Vec<String> = urls.iter().map(ToString::to_string).collect();
            let leg = self.finish(leg, &shown.join(","))?;
            let report = self.report(leg);
            self.close(leg)?;
            all.extend(report?);
        }
        Ok(all)
    }

    fn report(&mut self, volume: Handle) -> Result<Option<Reservations>, Error> {
        use volume::{Failure::Refused, Refusal::Unsupported};
        match self.request_reservation(volume, ReservationOp::Report) {
            Err(Error { failure: Some(Refused(Unsupported)), .. }) => Ok(None),
            other => other,
        }
    }

    /// What a volume's blocks are like; all zero before it is open.
    pub fn geometry(&self, volume: Handle) -> Option<Geometry> {
        self.inline.endpoint().geometry(volume)
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self, volume: Handle) -> bool {
        self.inline.endpoint().is_read_only(volume)
    }

    /// What its target says of itself; `None` before it is open. A stripe has a UUID if all of its legs have one;
    /// else its serial number is its chunk and what each leg is known by, and empty if a leg tells nothing.
    pub fn info(&self, volume: Handle) -> Option<std::sync::Arc<multipath::VolumeInfo>> {
        let mut info = self.inline.endpoint().info(volume)?;
        if let Some((_, chunk)) = self.chunks.iter().find(|(of, _)| *of == volume) {
            let legs = self.inline.endpoint().leg_uuids(volume);
            name_stripe(std::sync::Arc::make_mut(&mut info), legs.as_deref(), *chunk);
        }
        Some(info)
    }

    /// The state of its paths.
    pub fn paths(&self, volume: Handle) -> Vec<PathInfo> {
        self.inline.endpoint().paths(volume)
    }

    /// Whether size, access or protection has changed since this was last asked.
    pub fn has_changed(&mut self, volume: Handle) -> bool {
        self.inline.take(|client| client.has_changed(volume))
    }

    /// Whether the time for which commands of a path may still be carried out after its loss
    /// ([`PathInfo::lands_for`]) has grown, or is told by its target for the first time, since this was last asked: who
    /// keeps a record of it for the time after this process writes it again.
    pub fn has_landing_changed(&mut self, volume: Handle) -> bool {
        self.inline.take(|client| client.has_landing_changed(volume))
    }

    /// What has happened to a volume.
    pub fn poll_event(&mut self, volume: Handle) -> Option<VolumeEvent> {
        self.inline.take(|client| client.poll_event(volume))
    }

    /// Memory for a payload. `None`: none is left; ask again when something has ended.
    pub fn memory(&mut self, len: usize) -> Option<SgMut> {
        self.inline.with(|_, cx| cx.pool.take_sg(Class::Wire, len))
    }

    /// A name for an operation that no other has had.
    pub fn fresh_id(&mut self) -> IoId {
        self.next_id += 1;
        IoId(self.next_id)
    }

    /// Starts an operation. It ends by [`Initiator::poll_done`]; it comes back if as many are in work as
    /// can be, or the volume is not there.
    /// ```no_run
    /// use blockwire_client::{Handle, Initiator, Io, Op, Span};
    ///
    /// fn read_first_block(initiator: &mut Initiator, volume: Handle) -> Option<buf::Payload> {
    ///     let payload = buf::Payload::In(initiator.memory(4096)?);
    ///     let (id, op) = (initiator.fresh_id(), Op::Read(Span { lba: 0, blocks: 8 }));
    ///     initiator.submit(volume, Io { id, epoch: volume::Epoch(0), op, payload }).ok()?;
    ///     loop {
    ///         initiator.turn(None);
    ///         if let Some(done) = initiator.poll_done(volume) {
    ///             return done.result.is_ok().then_some(done.payload);
    ///         }
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn submit(&mut self, volume: Handle, io: Io) -> Result<(), Io> {
        self.inline.with(|client, cx| client.submit(cx, volume, io))
    }

    /// Asks that an operation end early. It still ends by [`Initiator::poll_done`].
    pub fn cancel(&mut self, volume: Handle, id: IoId) {
        self.inline.with(|client, _| client.cancel(volume, id));
    }

    /// An operation of this volume that has ended.
    #[inline]
    pub fn poll_done(&mut self, volume: Handle) -> Option<Done> {
        if !self.ended.is_empty()
            && let Some(at) = self.ended.iter().position(|(of, _)| *of == volume)
        {
            return Some(self.ended.remove(at).1);
        }
        self.inline.take(|client| client.poll_done(volume))
    }

    /// A volume that [`Initiator::poll_done`] may have something for. It is named again only after more has
    /// happened to it, so who asks takes all that has ended of it: a loop over thousands of volumes looks
    /// at those alone that did something.
    #[inline]
    pub fn poll_ended_volume(&mut self) -> Option<Handle> {
        match self.ended.first() {
            Some((volume, _)) => Some(*volume),
            None => self.inline.take(|client| client.poll_ended_volume()),
        }
    }

    /// Moves what is ready, and if that is nothing waits for at most this long (zero: not at all; `None`:
    /// until something happens).
    #[inline]
    pub fn turn(&mut self, wait: Option<Duration>) {
        self.inline.turn(wait);
    }

    /// When [`Initiator::turn`] has something to do even if the descriptor does not become readable.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        self.inline.poll_timeout()
    }

    /// The clock of [`Initiator::poll_timeout`]: CLOCK_MONOTONIC in nanoseconds.
    pub fn now() -> Time {
        InlineReactor::<Client<AnyPath>>::now()
    }

    /// How long a loop of the caller's own may wait for the descriptor; `None`: as long as it likes.
    pub fn wait_max(&mut self) -> Option<Duration> {
        self.inline.wait_max()
    }

    /// Asks about, or changes, a volume's reservations, and waits for the answer.
    /// ```no_run
    /// use blockwire_client::{Handle, Initiator, ReservationOp};
    ///
    /// fn is_reserved(initiator: &mut Initiator, volume: Handle) -> Result<bool, blockwire_client::Error> {
    ///     let report = initiator.request_reservation(volume, ReservationOp::Report)?;
    ///     Ok(report.is_some_and(|report| report.held.is_some()))
    /// }
    /// ```
    ///
    /// # Errors
    /// What the target refused; no answer in time.
    pub fn request_reservation(
        &mut self,
        volume: Handle,
        request: ReservationOp,
    ) -> Result<Option<Reservations>, Error> {
        let id = self.fresh_id();
        let acts = matches!(request, ReservationOp::Change(_));
        if !self.inline.with(|client, cx| client.request_reservation(cx, volume, id, request)) {
            return Err(Error::new(Kind::Failed, "too many reservation requests are in work"));
        }
        loop {
            if let Some((of, how)) = self.inline.take(|client| client.poll_reservation_reply(volume))
                && of == id
            {
                return how.map_err(|failure| {
                    let error = self.failed(volume, failure, "reservation");
                    let is_unknown = acts && failure == volume::Failure::Failed(volume::Fault::PathLost);
                    if is_unknown { error.in_doubt() } else { error }
                });
            }
            self.turn(None);
        }
    }

    /// Ends a volume: what is in work is finished, the target is told.
    ///
    /// # Errors
    /// If the target did not let go in time; the volume is closed all the same.
    pub fn close(&mut self, volume: Handle) -> Result<(), Error> {
        let grace = self.settings.close_timeout;
        if !self.inline.endpoint().is_elsewhere(volume) {
            self.forget(volume);
            return Ok(());
        }
        self.inline.with(|client, cx| client.close(cx, volume, grace));
        let begun = Instant::now();
        loop {
            while let Some(event) = self.poll_event(volume) {
                if event == VolumeEvent::Closed {
                    self.forget(volume);
                    self.settle();
                    return Ok(());
                }
            }
            let Some(left) = (grace + Duration::from_secs(1)).checked_sub(begun.elapsed()) else {
                self.forget(volume);
                return Err(Error::new(
                    Kind::TimedOut,
                    "the target did not let go in time: the connection was cut",
                ));
            };
            self.turn(Some(left));
        }
    }

    /// Lets last words leave.
    fn settle(&mut self) {
        (0..2).for_each(|_| self.turn(Some(Duration::ZERO)));
    }

    /// Drops a volume at once.
    pub fn forget(&mut self, volume: Handle) {
        self.inline.with(|client, _| client.forget(volume));
        self.ended.retain(|(of, _)| *of != volume);
        self.chunks.retain(|(of, _)| *of != volume);
        self.identities.retain(|(of, _)| *of != volume);
    }

    /// Speaks with the endpoint beneath, for what has no call here.
    pub fn with<R>(&mut self, act: impl FnOnce(&mut Client<AnyPath>, &mut Cx<'_>) -> R) -> R {
        self.inline.with(act)
    }
}

impl AsFd for Initiator {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inline.as_fd()
    }
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Initiator").field("initiator", &self.who.initiator).finish_non_exhaustive()
    }
}

/// Names a stripe by its legs: the same legs in another order, or with other chunks, are another volume.
fn name_stripe(info: &mut multipath::VolumeInfo, legs: Option<&[[u8; 16]]>, chunk: u32) {
    match legs {
        Some(legs) => info.uuid = Some(volume::Uuid(stripe_uuid(legs, chunk))),
        None if info.serial.split('+').any(str::is_empty) => info.serial.clear(),
        None => info.serial.insert_str(0, &format!("{chunk}+")),
    }
}

/// A volume's name as it may be shown: without passwords.
pub(crate) fn shown(urls: &str) -> String {
    Name::parse(urls).map_or_else(|_| "the URL".to_owned(), |name| name.shown())
}

/// The addresses of a URL's machine.
///
/// # Errors
/// If it has none.
pub fn resolve(url: &Url) -> Result<Vec<SocketAddr>, Error> {
    match &url.machine {
        Machine::Address(address) => Ok(vec![SocketAddr::new(*address, url.port)]),
        Machine::Name(name) => {
            let failed = |why: &dyn std::fmt::Display| {
                Error::new(
                    Kind::Unreachable,
                    format!("host \"{name}\" has no address: {why}; check the name"),
                )
            };
            let found: Vec<SocketAddr> =
                (name.as_str(), url.port).to_socket_addrs().map_err(|why| failed(&why))?.collect();
            if found.is_empty() { Err(failed(&"the resolver found none")) } else { Ok(found) }
        }
    }
}

/// The secrets of a URL, fetched from where it says.
///
/// # Errors
/// If one is not there, or others can read it.
pub fn secrets(url: &Url) -> Result<Secrets, Error> {
    let fetch = |at: &Option<multipath::url::SecretAt>| at.as_ref().map(secret::fetch).transpose();
    Ok(Secrets { ours: fetch(&url.options.secret)?, target: fetch(&url.options.mutual_secret)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(initiator: &mut Initiator, ports: &[u16]) -> Vec<u16> {
        let url = |port: &u16| format!("iscsi://127.0.0.1:{port}/iqn.2026-11.io.blockwire:a/0");
        let urls: Vec<String> = ports.iter().map(url).collect();
        let volume = initiator.begin(&urls.join(",")).unwrap();
        initiator.identities(volume).iter().map(|identity| identity.number).collect()
    }

    #[test]
    fn the_number_of_an_open_path_is_given_to_no_other_and_closed_volumes_leave_nothing() {
        let mut initiator = Initiator::new(Settings::default()).unwrap();
        assert_eq!(numbers(&mut initiator, &[1]), [0]);
        // As after 65,535 paths that were opened and closed.
        initiator.paths_made = u16::MAX;
        assert_eq!(numbers(&mut initiator, &[2, 3, 4]), [u16::MAX, 1, 2], "0 is the first volume's");
        let open: Vec<Handle> = initiator.identities.iter().map(|(volume, _)| *volume).collect();
        open.into_iter().for_each(|volume| initiator.forget(volume));
        assert!(initiator.identities.is_empty());
    }

    #[test]
    fn a_stripe_of_volumes_without_uuids_is_not_taken_for_one_of_other_legs_or_chunks() {
        let named = |serial: &str, legs: Option<&[[u8; 16]]>, chunk| {
            let mut info = multipath::VolumeInfo {
                uuid: None,
                geometry: None,
                read_only: false,
                access: volume::Access::Optimized,
                product: String::new(),
                serial: serial.into(),
                depth: 1,
                terms: Vec::new(),
            };
            name_stripe(&mut info, legs, chunk);
            (info.uuid, info.serial)
        };
        let all = [named("A+B", None, 4096), named("B+A", None, 4096), named("A+B", None, 8192)];
        assert!(all[0] != all[1] && all[0] != all[2]);
        assert_eq!(named("A+", None, 4096), (None, String::new()), "a leg that tells nothing");
        assert!(named("A+B", Some(&[[1; 16], [2; 16]]), 4096).0.is_some());
    }

    #[test]
    fn whose_paths_are_inherited_in_another_order_is_the_same_nexus_on_each() {
        let mut first = Initiator::new(Settings::default()).unwrap();
        assert_eq!(numbers(&mut first, &[1, 2]), [0, 1]);
        let inherited = first.identities.iter().flat_map(|(_, identities)| identities.clone()).collect();
        let nexus = Nexus::Inherited(first.who().isid);
        let mut second = Initiator::new(Settings { nexus, inherited, ..Settings::default() }).unwrap();
        // Not that of another path's session, which it would end.
        assert_eq!(numbers(&mut second, &[3, 2, 1]), [2, 1, 0]);
    }
}
