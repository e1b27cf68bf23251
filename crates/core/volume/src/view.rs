//! One core's copy of a volume's state.
//!
//! Invariant: a view never changes. The home core makes a new one, and a shard swaps its copy between two
//! turns, so all decisions within a turn are consistent.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::Geometry;
use crate::bad_blocks::BadBlocks;
use crate::io::{CommandClass, Epoch, Op, Refusal, Span, UnservableReason};
use crate::requester::{PathAccess, PortId, Requester};
use crate::reservation::Reservations;

/// Write protection by a host: one state for both protocols. The standard of the host that set it decides
/// how long it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostWriteProtection {
    /// Not protected.
    #[default]
    None,
    /// Until it is cleared, a logical unit reset, or the end of the daemon: SCSI's SWP, a mode
    /// parameter that is not saved (SPC-4 §7.5.8).
    UntilReset,
    /// Until it is cleared: NVMe's Write Protect state, which persists over power cycles (NVMe Base
    /// §8.12).
    Lasting,
}

impl HostWriteProtection {
    /// Whether writes are refused.
    pub fn is_on(self) -> bool {
        self != HostWriteProtection::None
    }
}

/// The state of a volume at one moment. Read it through a [`View`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Which view it is.
    pub epoch: Epoch,
    /// What the blocks are like.
    pub geometry: Geometry,
    /// Registrations, keys and holder.
    pub reservations: Arc<Reservations>,
    /// Blocks whose reads fail until they are written.
    pub bad: Arc<BadBlocks>,
    /// Ports whose paths are not [`PathAccess::Optimized`], ascending.
    pub access: Vec<(PortId, PathAccess)>,
    /// Ports that the operator prefers, ascending: SCSI reports it (PREF), NVMe has no field for it.
    pub preferred: Vec<PortId>,
    /// Write protection by the configuration or the operator.
    pub write_protected: bool,
    /// The backend takes no writes ([`Backend::is_read_only`](crate::Backend::is_read_only)).
    pub backing_read_only: bool,
    /// Write protection that a host asked for.
    pub host_protection: HostWriteProtection,
    /// Settings that the hosts of one protocol share, in that protocol's own bits: its server makes
    /// and reads them, nothing here does. (SCSI: bits of shared mode pages.)
    pub host_settings: u32,
    /// Why nothing can be read or written, if so. A sanitize's progress stands in `sanitized`.
    pub not_ready: Option<UnservableReason>,
    /// How far a running sanitize is.
    pub sanitized: SanitizeProgress,
    /// A sanitize was started and has not succeeded: data that it was to erase may still be there, and other data
    /// may be missing. This state survives a power failure.
    pub owes_sanitize: bool,
    /// A change could not be fenced in time: no operation is admitted on any port until those that
    /// hang in the backend have ended.
    pub closed: bool,
    /// Another gateway of a group executes what is asked here, and decides on it: nothing is refused for what may have
    /// changed there meanwhile.
    pub decided_elsewhere: bool,
    /// How this gateway of a group reaches the volume, and so how paths by its ports are shown as long as `access` says
    /// nothing of them. What comes by them is admitted all the same: it is executed, forwarded, or held.
    pub gateway_access: PathAccess,
    /// The same of the other gateways' ports; ascending.
    pub gateway_paths: Arc<[(PortId, PathAccess)]>,
}

impl VolumeState {
    /// Whether writes are refused for a reason that no host can take away.
    pub fn is_write_protected_for_all(&self) -> bool {
        self.write_protected || self.backing_read_only
    }
}

/// The progress of a sanitize, as the shard that executes it last stored it. It is the only part of a view that
/// changes, so that reporting progress needs no message.
#[derive(Clone, Debug, Default)]
pub struct SanitizeProgress(Arc<AtomicU32>);

impl SanitizeProgress {
    /// In 65536ths.
    pub fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed).min(u32::from(u16::MAX)) as u16
    }

    /// Up to 65536.
    pub(crate) fn set(&self, to: u32) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// The same sanitize's progress is equal to itself, however far it is.
impl PartialEq for SanitizeProgress {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SanitizeProgress {}

/// A core's copy of a volume's state between two turns. Clones share it.
/// ```
/// use std::sync::Arc;
/// use blockwire_volume::{PathAccess, Identity, Requester, Op, PortId, RamDisk, Refusal, Span, View};
///
/// let view = View::without_reservations(RamDisk::new(8, 8, 4096, 4096).geometry());
/// assert_eq!(view.path_access(PortId(1)), PathAccess::Optimized);
/// let who = Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: true };
/// assert_eq!(view.admit(&who, &Op::Read(Span { lba: 0, blocks: 8 })), Ok(()));
/// assert_eq!(view.admit(&who, &Op::Read(Span { lba: 1, blocks: 8 })), Err(Refusal::OutOfRange));
/// assert_eq!(view.admit(&who, &Op::Unmap(vec![])), Err(Refusal::ReadOnly));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View(Arc<VolumeState>);

impl Deref for View {
    type Target = VolumeState;
    fn deref(&self) -> &VolumeState {
        &self.0
    }
}

impl From<VolumeState> for View {
    fn from(standing: VolumeState) -> Self {
        View(Arc::new(standing))
    }
}

impl View {
    /// The first view of a volume without reservations, open on every port: for a volume that has
    /// no home (a remote one), and for tests.
    pub fn without_reservations(geometry: Geometry) -> View {
        View::from(VolumeState {
            epoch: Epoch(0),
            geometry,
            reservations: Arc::default(),
            bad: Arc::default(),
            access: Vec::new(),
            preferred: Vec::new(),
            write_protected: false,
            backing_read_only: false,
            host_protection: HostWriteProtection::None,
            host_settings: 0,
            not_ready: None,
            sanitized: SanitizeProgress::default(),
            owes_sanitize: false,
            closed: false,
            decided_elsewhere: false,
            gateway_access: PathAccess::Optimized,
            gateway_paths: Arc::default(),
        })
    }

    /// The state of the paths by `port`.
    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    pub fn path_access(&self, port: PortId) -> PathAccess {
        if self.closed {
            return PathAccess::Inaccessible;
        }
        match self.access.binary_search_by_key(&port, |(port, _)| *port) {
            Ok(at) => self.access[at].1,
            Err(_) => PathAccess::Optimized,
        }
    }

    /// The state of the paths by `port` as hosts are told (ALUA, ANA): as for admission, or as a group's gateways
    /// reach the volume.
    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    pub fn shown_path_access(&self, port: PortId) -> PathAccess {
        match (self.path_access(port), self.gateway_paths.binary_search_by_key(&port, |(port, _)| *port)) {
            (PathAccess::Optimized, Ok(at)) => self.gateway_paths[at].1,
            (PathAccess::Optimized, Err(_)) => self.gateway_access,
            (access, _) => access,
        }
    }

    /// Whether `who` may do `op` now. Takes no lock and allocates nothing. Ask when a command
    /// arrives, so as to refuse before its data is solicited; [`Gate::submit`](crate::Gate::submit)
    /// asks again, bindingly. Where another gateway decides, it is asked there.
    pub fn admit(&self, who: &Requester, op: &Op) -> Result<(), Refusal> {
        match self.admit_here(who, op) {
            Ok(()) => Ok(()),
            Err(refusal) => self.unless_decided_elsewhere(refusal),
        }
    }

    #[cold]
    fn unless_decided_elsewhere(&self, refusal: Refusal) -> Result<(), Refusal> {
        if self.decided_elsewhere { Ok(()) } else { Err(refusal) }
    }

    fn admit_here(&self, who: &Requester, op: &Op) -> Result<(), Refusal> {
        self.admit_class(who, op.command_class())?;
        let sanitize = matches!(op, Op::Sanitize(_));
        self.check_ready(sanitize)?;
        if op.is_write() && self.is_read_only(who) {
            return Err(Refusal::ReadOnly);
        }
        self.admit_range(op)
    }

    /// Whether `who` may do something of this class that is no operation on blocks (the tables
    /// "commands that are allowed in the presence of various reservations" of SPC and SBC): first
    /// the path, then the reservation.
    pub fn admit_class(&self, who: &Requester, class: CommandClass) -> Result<(), Refusal> {
        let access = self.path_access(who.port);
        if !access.allows_io() {
            return self.unless_decided_elsewhere(Refusal::Inaccessible(access));
        }
        if self.reservations.admits(&who.identity, class) {
            return Ok(());
        }
        self.unless_decided_elsewhere(Refusal::Conflict)
    }

    /// Whether a reservation of others keeps `who` from reading.
    pub fn excludes_reads_by(&self, who: &Requester) -> bool {
        !self.reservations.admits(&who.identity, CommandClass::Read)
    }

    /// Whether the medium can be read (what TEST UNIT READY tells).
    pub fn check_medium_ready(&self) -> Result<(), Refusal> {
        self.check_ready(false)
    }

    /// Whether writes by `who` are refused as [`Refusal::ReadOnly`].
    pub fn is_read_only(&self, who: &Requester) -> bool {
        self.is_write_protected_for_all() || self.host_protection.is_on() || who.read_only
    }

    fn check_ready(&self, sanitize: bool) -> Result<(), Refusal> {
        match self.not_ready {
            None => Ok(()),
            Some(
                UnservableReason::Sanitizing(_)
                | UnservableReason::Formatting(_)
                | UnservableReason::SanitizeFailed,
            ) if sanitize => Ok(()),
            Some(UnservableReason::Formatting(_)) => {
                Err(Refusal::NotReady(UnservableReason::Formatting(self.sanitized.get())))
            }
            Some(UnservableReason::Sanitizing(_)) => {
                Err(Refusal::NotReady(UnservableReason::Sanitizing(self.sanitized.get())))
            }
            Some(why) => Err(Refusal::NotReady(why)),
        }
    }

    fn admit_range(&self, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Read(span) | Op::Write(span, _) | Op::Compare(span) => self.check_span_in_range(span),
            Op::WriteZeroes { span, .. } | Op::WriteSame(span) | Op::Or(span) => {
                self.check_span_in_range(span)
            }
            Op::Verify(span) | Op::MarkBad(span) | Op::Prefetch(span) => self.check_span_in_range(span),
            Op::Extents(span) if span.lba >= self.geometry.blocks => Err(Refusal::OutOfRange),
            Op::Extents(span) => self.check_span_in_range(span),
            Op::WriteAtomic(span) => {
                self.check_span_in_range(span)?;
                self.check_span_len(span, self.geometry.atomic)
            }
            Op::CompareAndWrite(span) => {
                self.check_span_in_range(span)?;
                self.check_span_len(span, self.geometry.caw_max)
            }
            Op::Unmap(spans) => spans.iter().try_for_each(|span| self.check_span_in_range(span)),
            Op::Flush | Op::Sanitize(_) => Ok(()),
        }
    }

    /// An empty span may stand at the end, but not behind it.
    fn check_span_in_range(&self, span: &Span) -> Result<(), Refusal> {
        match span.end() {
            Some(end) if end <= self.geometry.blocks => Ok(()),
            Some(_) | None => Err(Refusal::OutOfRange),
        }
    }

    fn check_span_len(&self, span: &Span, blocks_max: u32) -> Result<(), Refusal> {
        if span.blocks <= u64::from(blocks_max) { Ok(()) } else { Err(Refusal::AtomicUnit) }
    }
}
