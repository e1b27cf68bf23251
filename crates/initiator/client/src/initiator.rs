//! Opens volumes and drives them on one thread.

mod opening;
mod raw_commands;
mod reservations;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use buf::{Cx, MemoryClass, SgMut, Time};
use multipath::{AnyPath, Client, HostIdentity, PathInfo, RawCompletion, VolumeEvent, VolumeHandle};
use reactor::{Config, InlineReactor, SpawnError};
use volume::{Geometry, Io, IoCompletion, IoId};

use crate::error::{Error, ErrorKind, serves, unserved_reason};
use crate::identity::{self, PathIdentity};
use crate::settings::Settings;
use crate::volume_name::stripe_uuid;

pub use opening::{fetch_secrets, resolve_addresses};
pub use raw_commands::RawData;

/// Remote volumes on one thread. See the crate.
/// An event loop of the caller, which does not block on any volume:
///
/// ```
/// use std::time::Duration;
/// use blockwire_client::{Initiator, Settings, VolumeEvent};
///
/// let mut initiator = Initiator::new(Settings::default())?;
/// // Nothing listens there, so this volume does not open.
/// let url = "iscsi://127.0.0.1:1/iqn.2026-11.io.blockwire:demo/0?open_timeout=1";
/// let volume = initiator.start_open(url)?;
/// let news = loop {
///     initiator.turn(Some(Duration::from_secs(1)));
///     match initiator.poll_event(volume) {
///         Some(VolumeEvent::Path(_)) | None => {}
///         Some(news) => break news,
///     }
/// };
/// assert_eq!(news, VolumeEvent::Failed);
/// assert!(initiator.known_geometry(volume).is_err(), "a size that nobody has told is not zero");
/// initiator.drop_volume(volume);
/// # Ok::<(), blockwire_client::Error>(())
/// ```
pub struct Initiator {
    inline: InlineReactor<Client<AnyPath>>,
    who: HostIdentity,
    settings: Settings,
    next_id: u64,
    /// Volumes that are stripes, and the bytes of their chunks.
    chunks: Vec<(VolumeHandle, u32)>,
    /// Paths that were made: the qualifier of the next one's ISID. Two volumes of one target must not end
    /// each other's sessions.
    paths_made: u16,
    /// Those of a process that is gone which nobody has taken yet; and numbers that are theirs.
    inherited: Vec<PathIdentity>,
    inherited_numbers: Vec<u16>,
    identities: Vec<(VolumeHandle, Vec<PathIdentity>)>,
    /// Operations of other volumes that ended while one was waited for.
    pub(crate) ended: Vec<(VolumeHandle, IoCompletion)>,
    /// Raw commands that ended while another was waited for.
    raw_ended: Vec<(VolumeHandle, RawCompletion)>,
}

impl Initiator {
    /// Creates an initiator.
    ///
    /// # Errors
    /// If the system does not provide a resource: memory, descriptors, io_uring or epoll.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let config = Config {
            io: settings.io,
            pool_bytes: settings.memory,
            poll_ns_max: settings.poll_ns_max,
            linger: settings.close_timeout,
            ..Config::default()
        };
        let failed = |why: SpawnError| Error::new(ErrorKind::Failed, why);
        let mut inline = InlineReactor::new(config, |_| Client::new()).map_err(failed)?;
        let mut entropy = [0; 3];
        inline.with_endpoint(|_, cx| cx.entropy.fill(&mut entropy));
        let who = identity::host_identity(settings.isid, entropy)?;
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
            raw_ended: Vec::new(),
        })
    }

    /// The names by which targets know this initiator.
    pub fn host_identity(&self) -> &HostIdentity {
        &self.who
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which system interface does the I/O, and why.
    pub fn io_backend(&self) -> &reactor::IoKind {
        self.inline.io_kind()
    }

    /// Counters of its event loop since it was created.
    pub fn loop_stats(&self) -> reactor::ShardStats {
        self.inline.stats()
    }

    /// Why an operation of a volume failed, in words. If no path was usable, with the last error of each path.
    pub fn operation_error(&self, volume: VolumeHandle, failure: volume::Failure, what: &str) -> Error {
        Error::from_volume_failure(failure, what, &self.paths(volume))
    }

    /// The geometry of a volume, once its target has reported it: size and block length are not zero.
    ///
    /// # Errors
    /// If no path has reported it yet. [`Initiator::geometry`] is then meaningless.
    pub fn known_geometry(&self, volume: VolumeHandle) -> Result<Geometry, Error> {
        let geometry = self.geometry(volume).filter(|geometry| geometry.capacity_bytes() > 0);
        geometry.ok_or_else(|| {
            Error::new(
                ErrorKind::Failed,
                format!("the size of the volume is not known: {}", unserved_reason(&self.paths(volume))),
            )
        })
    }

    /// Checks that at least one path to a volume is usable now.
    ///
    /// # Errors
    /// If none is, with the reason.
    pub fn check_served(&self, volume: VolumeHandle) -> Result<(), Error> {
        let paths = self.paths(volume);
        match paths.iter().any(serves) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Failed,
                format!("nothing serves it now: {}", unserved_reason(&paths)),
            )),
        }
    }

    /// The geometry of a volume; all zero before it is open.
    pub fn geometry(&self, volume: VolumeHandle) -> Option<Geometry> {
        self.inline.endpoint().geometry(volume)
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self, volume: VolumeHandle) -> bool {
        self.inline.endpoint().is_read_only(volume)
    }

    /// The identity that its target reports; `None` before it is open. A stripe has a UUID if all of its legs have
    /// one. Otherwise its serial number consists of its chunk and the identity of each leg; empty if a leg has none.
    pub fn info(&self, volume: VolumeHandle) -> Option<std::sync::Arc<multipath::VolumeInfo>> {
        let mut info = self.inline.endpoint().info(volume)?;
        if let Some((_, chunk)) = self.chunks.iter().find(|(of, _)| *of == volume) {
            let legs = self.inline.endpoint().leg_uuids(volume);
            set_stripe_identity(std::sync::Arc::make_mut(&mut info), legs.as_deref(), *chunk);
        }
        Some(info)
    }

    /// The state of its paths.
    pub fn paths(&self, volume: VolumeHandle) -> Vec<PathInfo> {
        self.inline.endpoint().paths(volume)
    }

    /// Whether size, access or protection has changed since this was last asked.
    pub fn has_geometry_changed(&mut self, volume: VolumeHandle) -> bool {
        self.inline.take_from_endpoint(|client| client.take_geometry_changed(volume))
    }

    /// Whether [`PathInfo::lands_for`] of a path (the time for which its commands may still be executed after its loss)
    /// has grown, or was reported for the first time, since the last call. A caller that records this time for its
    /// successor then writes the record again.
    pub fn has_lost_command_lifetime_changed(&mut self, volume: VolumeHandle) -> bool {
        self.inline.take_from_endpoint(|client| client.take_lost_command_lifetime_changed(volume))
    }

    /// The next event of a volume.
    pub fn poll_event(&mut self, volume: VolumeHandle) -> Option<VolumeEvent> {
        self.inline.take_from_endpoint(|client| client.poll_event(volume))
    }

    /// Memory for a payload of `len` bytes. `None` if none is free: try again when an operation has ended.
    pub fn alloc_payload(&mut self, len: usize) -> Option<SgMut> {
        self.inline.with_endpoint(|_, cx| cx.pool.take_sg(MemoryClass::Wire, len))
    }

    /// Memory for a read whose data is used once and dropped. It is reserved now, and taken from the pool when
    /// the first bytes arrive ([`buf::Pool::take_sg_later`]).
    pub fn set_aside_payload(&mut self, len: usize) -> Option<SgMut> {
        self.inline.with_endpoint(|_, cx| cx.pool.take_sg_later(MemoryClass::Wire, len))
    }

    /// A unique identifier for an operation.
    pub fn next_io_id(&mut self) -> IoId {
        self.next_id += 1;
        IoId(self.next_id)
    }

    /// Starts an operation. [`Initiator::poll_done`] returns it when it has ended. It is given back at once if too many
    /// are in flight, or if the volume does not exist.
    /// ```no_run
    /// use blockwire_client::{VolumeHandle, Initiator, Io, Op, Span};
    ///
    /// fn read_first_block(initiator: &mut Initiator, volume: VolumeHandle) -> Option<buf::Payload> {
    ///     let payload = buf::Payload::In(initiator.alloc_payload(4096)?);
    ///     let (id, op) = (initiator.next_io_id(), Op::Read(Span { lba: 0, blocks: 8 }));
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
    pub fn submit(&mut self, volume: VolumeHandle, io: Io) -> Result<(), Io> {
        self.inline.with_endpoint(|client, cx| client.submit(cx, volume, io))
    }

    /// Requests that an operation end early. [`Initiator::poll_done`] still returns it.
    pub fn cancel(&mut self, volume: VolumeHandle, id: IoId) {
        self.inline.with_endpoint(|client, _| client.cancel(volume, id));
    }

    /// An operation of this volume that has ended.
    #[inline]
    pub fn poll_done(&mut self, volume: VolumeHandle) -> Option<IoCompletion> {
        if !self.ended.is_empty()
            && let Some(at) = self.ended.iter().position(|(of, _)| *of == volume)
        {
            return Some(self.ended.remove(at).1);
        }
        self.inline.take_from_endpoint(|client| client.poll_done(volume))
    }

    /// A volume for which [`Initiator::poll_done`] may return something. It is returned again only after a new event,
    /// so the caller must take all completions of it. A loop over thousands of volumes then visits only the active
    /// ones.
    #[inline]
    pub fn poll_ended_volume(&mut self) -> Option<VolumeHandle> {
        match self.ended.first() {
            Some((volume, _)) => Some(*volume),
            None => self.inline.take_from_endpoint(|client| client.poll_ended_volume()),
        }
    }

    /// Does the I/O that is ready. If there is none, waits for at most this long (zero: does not wait; `None`: until
    /// something happens).
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

    /// How long the caller's event loop may wait for the descriptor; `None`: without limit.
    pub fn descriptor_wait_max(&mut self) -> Option<Duration> {
        self.inline.wait_max()
    }

    /// Closes a volume: operations in flight are completed, then the sessions are logged out.
    ///
    /// # Errors
    /// If the target did not answer in time; the volume is closed anyway.
    pub fn close(&mut self, volume: VolumeHandle) -> Result<(), Error> {
        let grace = self.settings.close_timeout;
        if !self.inline.endpoint().has_paths(volume) {
            self.drop_volume(volume);
            return Ok(());
        }
        self.inline.with_endpoint(|client, cx| client.close(cx, volume, grace));
        let begun = Instant::now();
        loop {
            while let Some(event) = self.poll_event(volume) {
                if event == VolumeEvent::Closed {
                    self.drop_volume(volume);
                    self.flush_outgoing();
                    return Ok(());
                }
            }
            let Some(left) = (grace + Duration::from_secs(1)).checked_sub(begun.elapsed()) else {
                self.drop_volume(volume);
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    "the target did not let go in time: the connection was cut",
                ));
            };
            self.turn(Some(left));
        }
    }

    /// Lets the last PDUs be sent.
    fn flush_outgoing(&mut self) {
        (0..2).for_each(|_| self.turn(Some(Duration::ZERO)));
    }

    /// Closes a volume at once, without waiting for operations or a logout.
    pub fn drop_volume(&mut self, volume: VolumeHandle) {
        self.inline.with_endpoint(|client, _| client.drop_volume(volume));
        self.ended.retain(|(of, _)| *of != volume);
        self.raw_ended.retain(|(of, _)| *of != volume);
        self.chunks.retain(|(of, _)| *of != volume);
        self.identities.retain(|(of, _)| *of != volume);
    }

    /// Access to the endpoint below, for functions that have no call here.
    pub fn with_client<R>(&mut self, act: impl FnOnce(&mut Client<AnyPath>, &mut Cx<'_>) -> R) -> R {
        self.inline.with_endpoint(act)
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
fn set_stripe_identity(info: &mut multipath::VolumeInfo, legs: Option<&[[u8; 16]]>, chunk: u32) {
    match legs {
        Some(legs) => info.uuid = Some(volume::Uuid(stripe_uuid(legs, chunk))),
        None if info.serial.split('+').any(str::is_empty) => info.serial.clear(),
        None => info.serial.insert_str(0, &format!("{chunk}+")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_of_volumes_without_uuids_is_not_taken_for_one_of_other_legs_or_chunks() {
        let named = |serial: &str, legs: Option<&[[u8; 16]]>, chunk| {
            let mut info = multipath::VolumeInfo {
                uuid: None,
                geometry: None,
                read_only: false,
                access: volume::PathAccess::Optimized,
                product: String::new(),
                serial: serial.into(),
                depth: 1,
                terms: Vec::new(),
            };
            set_stripe_identity(&mut info, legs, chunk);
            (info.uuid, info.serial)
        };
        let all = [named("A+B", None, 4096), named("B+A", None, 4096), named("A+B", None, 8192)];
        assert!(all[0] != all[1] && all[0] != all[2]);
        assert_eq!(named("A+", None, 4096), (None, String::new()), "a leg that tells nothing");
        assert!(named("A+B", Some(&[[1; 16], [2; 16]]), 4096).0.is_some());
    }
}
