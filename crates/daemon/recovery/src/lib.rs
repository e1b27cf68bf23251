//! Attachments: remote volumes as local devices, held by a foreground process or by the daemon.
//!
//! [`Attachment::open`] connects; [`Attachment::serve`] creates the device and serves it on the calling thread. Each
//! attachment has a guardian process (module `guardian_client`). If the holder is killed, the guardian keeps I/O waiting until
//! another holder recovers the attachment or the time-out has passed. Invariant: a recovery serves nothing until writes
//! of the killed holder can no longer reach the volume, because it issues them again.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod attach_recovery;
pub mod attachments;
mod detach;
mod device_servers;
mod disk;
mod guardian_client;
mod guardian_process;
mod guardian_protocol;
pub mod list;
pub mod record;
pub mod running_process;
pub mod users;
pub mod volume_identity;
pub mod write_landing;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block_device::{DeviceInterface, ServerStop};
use client::{Initiator, IsidChoice, PathIdentity, Settings};

use self::attach_recovery::{choose_method, find_recoverable, refuse_occupied_path, refuse_unknown_device};
use self::disk::RemoteDisk;
use self::guardian_client::{GuardianLifeline, TakeoverResult, UnconfirmedGuardian};
use self::guardian_protocol::RecoveryState;
use self::list::{AttachState, FoundAttachment};
use self::record::{AttachRecord, ProcessId, RecordFile, RecordedPath, SharedRecord, to_millis};
use control::secret_url::SecretUrl;
use process::exit::Failure;
use process::owned_dir::OwnedDir;
use process::random;

pub use attach_recovery::{abandon, find, find_all};
pub use detach::detach;
pub use guardian_process::{GuardianArgs, run_guardian};

/// How long I/O waits for a new holder by default: as long as an operation waits for a path (`queue_timeout`), so that
/// both outages look alike to users, and no longer than a task may hang before Linux complains
/// (`hung_task_timeout_secs`, 120 s).
pub const RECOVERY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// The longest time that may be set.
pub const RECOVERY_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Payload memory of an attachment, bytes.
const PAYLOAD_MEMORY: usize = 128 << 20;

/// The attach method of this name.
///
/// # Errors
/// The known names.
pub fn parse_via(name: &str) -> Result<DeviceInterface, String> {
    let known = DeviceInterface::ALL.into_iter().find(|via| via.cli_name() == name);
    known.ok_or_else(|| {
        format!("the ways are {}", DeviceInterface::ALL.map(DeviceInterface::cli_name).join(", "))
    })
}

/// The time-out of this text, as [`client::parse_time`] reads it.
///
/// # Errors
/// What one looks like.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = client::parse_time(text).filter(|time| *time <= RECOVERY_TIMEOUT_MAX);
    time.ok_or_else(|| "a time of at most a day, for example 500ms, 30s or 2m".to_owned())
}

/// What to attach, and how.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The volume; several URLs joined by commas are its paths.
    pub url: SecretUrl,
    /// The method; by default the best available.
    pub via: Option<DeviceInterface>,
    /// The directory, socket or device; absolute.
    pub at: Option<PathBuf>,
    /// Recover what a killed holder left.
    pub recover: bool,
    /// Even if the device has no record.
    pub force: bool,
    /// How long I/O waits without a holder.
    pub timeout: Duration,
    /// The directory of the records.
    pub dir: PathBuf,
    /// The control socket of the daemon that holds it; `None`: held by this process.
    pub control: Option<PathBuf>,
}

/// How users reach an attachment that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPoints {
    /// What they can open, with its kind: `device`, `file`, `socket` or `url`.
    pub ways: Vec<(&'static str, String)>,
    /// Remarks for users.
    pub remarks: Vec<String>,
}

impl AccessPoints {
    /// One line each, as printed by the command line.
    pub fn display_lines(&self) -> Vec<String> {
        let ways = self.ways.iter().map(|(kind, name)| format!("{kind} {name}"));
        ways.chain(self.remarks.iter().map(|remark| format!("note {remark}"))).collect()
    }

    /// The names for a record: the device first, without URLs.
    fn record_names(&self) -> Vec<String> {
        let of = |cancellation: bool| {
            let ways = self
                .ways
                .iter()
                .filter(move |(kind, _)| *kind != "url" && (*kind == "device") == cancellation);
            ways.map(|(_, name)| name.clone())
        };
        of(true).chain(of(false)).collect()
    }
}

/// Detaches an attachment, from any thread.
#[derive(Clone, Debug)]
pub struct DetachHandle {
    stop: ServerStop,
    lifeline: Arc<Mutex<Option<Arc<GuardianLifeline>>>>,
}

impl DetachHandle {
    /// Not detached yet.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> Result<DetachHandle, Failure> {
        Ok(DetachHandle { stop: ServerStop::new().map_err(Failure::failed)?, lifeline: Arc::default() })
    }

    /// Detaches as soon as the device has no users; called again, at once.
    pub fn detach(&self) {
        if let Some(lifeline) = &*self.lifeline.lock().unwrap_or_else(PoisonError::into_inner) {
            lifeline.release_with_last_user();
        }
        self.stop.request_stop();
    }
}

/// Cancels an attachment that is being opened. Until it begins it has changed nothing; once cancelled it never begins.
#[derive(Debug)]
pub struct AttachCancellation(AtomicU8);

const OPENING: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;

impl AttachCancellation {
    /// Not cancelled yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> AttachCancellation {
        AttachCancellation(AtomicU8::new(OPENING))
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }

    /// Marks that the device is touched from now on; false: it was cancelled.
    pub fn try_begin(&self) -> bool {
        self.0.compare_exchange(OPENING, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels it; false: it has already begun.
    pub fn try_cancel(&self) -> bool {
        self.0.compare_exchange(OPENING, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// An attachment of a killed holder, taken over.
struct OrphanedAttachment {
    found: FoundAttachment,
    /// From its guardian, if that is alive.
    state: Option<(RecoveryState, Vec<OwnedFd>)>,
}

/// An open volume that is about to become a device.
pub struct Attachment {
    disk: RemoteDisk,
    records: RecoveryContext,
    /// A remark to print before the device exists.
    pub remark: Option<String>,
}

/// What recovery needs to know of an attachment: its record and its guardian.
struct RecoveryContext {
    options: AttachOptions,
    dir: Arc<OwnedDir>,
    via: DeviceInterface,
    shown: String,
    uuid: Option<String>,
    serial: Option<String>,
    block: Option<u32>,
    paths: Vec<RecordedPath>,
    nexus: [u8; 3],
    orphan: Option<OrphanedAttachment>,
    lifeline: Option<GuardianLifeline>,
    /// The record, once written; the disk keeps it up to date.
    noted: SharedRecord,
    /// Prefix of its file names.
    stem: String,
}

impl Attachment {
    /// Connects to the volume. A recovery also takes over the guardian's state, and waits until writes of the killed
    /// holder can no longer reach the volume.
    ///
    /// # Errors
    /// Errors of the volume; a path used by another attachment; a recovery of a different volume.
    pub fn open(options: AttachOptions, cancellation: &AttachCancellation) -> Result<Attachment, Failure> {
        let dir = Arc::new(OwnedDir::create(&options.dir)?);
        let (_, shown) = client::urls_of_name(&options.url)?;
        let left = find_recoverable(&options, &shown)?;
        let (via, remark) = choose_method(&options, left.as_ref())?;
        refuse_unknown_device(&options, via, left.is_some())?;
        refuse_occupied_path(&options, via)?;
        // The guardian of a stranded attachment is dead, too.
        let kept = left.as_ref().filter(|left| left.state != AttachState::Stranded);
        let taken = kept.and_then(|left| left.record.guardian.as_ref()).map(guardian_client::take_over);
        let taken = taken.transpose().map_err(|why| Failure::failed(format!("{shown}: {why}")))?;
        Attachment::connect(options, dir, (via, remark), (left, taken), cancellation)
    }

    /// The same for an attachment of a killed daemon, with the URL that its guardian knows.
    ///
    /// # Errors
    /// As [`Attachment::open`]; another process that recovers it.
    pub fn resume(
        left: FoundAttachment,
        dir: &Path,
        control: &Path,
        cancellation: &AttachCancellation,
    ) -> Result<Attachment, Failure> {
        let own = Arc::new(OwnedDir::create(dir)?);
        let why = |why: &dyn fmt::Display| Failure::failed(format!("{}: {why}", left.access_points_text()));
        let via = parse_via(&left.record.via).map_err(Failure::failed)?;
        let kept = left.record.guardian.as_ref().ok_or_else(|| why(&"it has no guardian"))?;
        let taken = guardian_client::take_over(kept).map_err(|said| why(&said))?;
        let options = AttachOptions {
            url: taken.url.clone().unwrap_or_else(|| left.record.url.as_str().into()),
            via: None,
            at: None,
            recover: true,
            force: false,
            timeout: Duration::from_millis(left.record.timeout_ms),
            dir: dir.to_owned(),
            control: Some(control.to_owned()),
        };
        Attachment::connect(options, own, (via, None), (Some(left), Some(taken)), cancellation)
    }

    fn connect(
        options: AttachOptions,
        dir: Arc<OwnedDir>,
        (via, remark): (DeviceInterface, Option<String>),
        (left, taken): (Option<FoundAttachment>, Option<TakeoverResult>),
        cancellation: &AttachCancellation,
    ) -> Result<Attachment, Failure> {
        // A name that no attachment has had before; names sort in the order of creation.
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let random = u32::from_ne_bytes(random::random_bytes().map_err(Failure::failed)?);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{}-{serial:04}-{random:08x}", std::process::id());
        let (_, shown) = client::urls_of_name(&options.url)?;
        let isid = left.as_ref().map_or(IsidChoice::Passing, |left| IsidChoice::Inherited(left.record.nexus));
        let before = left.as_ref().map(|left| left.record.paths.clone()).unwrap_or_default();
        let identity = |path: &RecordedPath| PathIdentity { place: path.place.clone(), number: path.number };
        let inherited = before.iter().map(identity).collect();
        let settings = Settings {
            memory: PAYLOAD_MEMORY,
            isid,
            inherited,
            warn: process::log::warn_on_stderr,
            ..Settings::default()
        };
        let mut initiator = Initiator::new(settings)?;
        let volume = initiator.open(&options.url)?;
        let (uuid, serial, block) = volume_identity::recorded_identity(&initiator, volume);
        if let Some(left) = &left {
            volume_identity::refuse_other_volume(left, (initiator.info(volume).as_deref(), block), &shown)?;
        }
        // Users may resend requests although there is no record: wait for everything that may still land. Requests of a
        // FUSE file failed with its holder.
        let is_bare = left.is_none() && options.recover && via != DeviceInterface::Fuse;
        if left.is_some() || is_bare {
            let dead_for = taken.as_ref().map_or(Duration::ZERO, |taken| taken.dead_for);
            write_landing::wait_for_landing((&mut initiator, volume), &before, dead_for, cancellation)?;
        }
        write_landing::wait_for_paths(&mut initiator, volume);
        let paths: Vec<_> =
            write_landing::recorded_paths(&initiator, volume).into_iter().map(|(path, _)| path).collect();
        let lands_for = paths.iter().filter(|path| !path.reinstates).map(|path| path.lands_for_ms).max();
        let slow = lands_for.filter(|lands_for| *lands_for > to_millis(options.timeout));
        let remarks = slow.map(|lands_for| {
            format!(
                "note if this process is killed, a recovery waits {} s, in which its writes may still land; a \
                 shorter keep_alive in the URL shortens that",
                lands_for / 1000
            )
        });
        let remark = match (remark, remarks) {
            (Some(one), Some(other)) => Some(format!("{one}\n{other}")),
            (one, other) => one.or(other),
        };
        let (lifeline, state) = match taken {
            Some(taken) => (Some(taken.lifeline), Some((taken.state, taken.files))),
            None => (None, None),
        };
        let orphan = left.map(|found| OrphanedAttachment { found, state });
        let nexus = initiator.host_identity().isid;
        let records = RecoveryContext {
            options,
            dir,
            via,
            shown,
            uuid,
            serial,
            block,
            paths,
            nexus,
            orphan,
            lifeline,
            noted: SharedRecord::default(),
            stem,
        };
        let disk = RemoteDisk::new(initiator, volume, records.noted.clone())
            .ok_or_else(|| Failure::failed("the volume has not reported its size: try again"))?;
        Ok(Attachment { disk, records, remark })
    }

    /// The volume, without secrets.
    pub fn url(&self) -> &str {
        &self.records.shown
    }

    /// How long its I/O waits without a holder.
    pub fn timeout(&self) -> Duration {
        self.records.options.timeout
    }

    /// The attach method.
    pub fn via(&self) -> DeviceInterface {
        self.records.via
    }

    /// Creates the device and serves it until `end` is called and its users are gone. `ready` is called once, when the
    /// device can be used.
    ///
    /// # Errors
    /// The device cannot be created; the volume is lost.
    pub fn serve(mut self, end: &DetachHandle, ready: &mut dyn FnMut(&AccessPoints)) -> Result<(), Failure> {
        let result = device_servers::serve_attachment(&mut self, end, ready);
        let lifeline = end.lifeline.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If the server or the system failed without being asked to stop, users wait as if this process had been
        // killed.
        let is_left = result.is_err() && end.stop.request_count() == 0;
        if let Some(lifeline) = lifeline.as_ref().filter(|_| !is_left) {
            lifeline.end_cleanly();
        }
        let ended = self.disk.initiator.close(self.disk.volume);
        if let Some(noted) = self.records.noted.lock().take().filter(|_| is_left && lifeline.is_some()) {
            noted.persist();
        }
        // The guardian is told only when nothing more is sent to the volume.
        drop(lifeline);
        result?;
        Ok(ended?)
    }
}

impl RecoveryContext {
    /// Takes the state that the guardian of the killed holder kept.
    fn take_kept_state(&mut self) -> Option<(RecoveryState, Vec<OwnedFd>)> {
        self.orphan.as_mut()?.state.take()
    }

    /// The path of a stranded attachment.
    fn stranded_path(&self) -> Option<&Path> {
        let found = &self.orphan.as_ref()?.found;
        (found.state == AttachState::Stranded).then(|| Path::new(found.attach_path()))
    }

    /// The path of the device: as before, as requested, or a new one.
    fn device_path(&self, was: Option<&Path>, name: &str) -> PathBuf {
        let own = || self.dir.path().join(format!("{}.{name}", self.stem));
        was.or(self.options.at.as_deref()).map_or_else(own, Path::to_owned)
    }

    /// Writes the record and hands the state to the guardian. `state` is `None` if nothing can be kept.
    fn record_and_hold(
        &mut self,
        end: &DetachHandle,
        opened: &AccessPoints,
        state: Option<(RecoveryState, Vec<BorrowedFd<'_>>)>,
    ) -> Result<(), Failure> {
        let file = OsString::from(format!("{}.json", self.stem));
        let unseen = |why| Failure::failed(format!("cannot identify this process: {why}"));
        let (holder, space) =
            (ProcessId::current().map_err(unseen)?, running_process::pid_namespace().map_err(unseen)?);
        let timeout_ms = to_millis(self.options.timeout);
        let lifeline = match (&state, self.lifeline.take()) {
            (None, _) => None,
            (Some(_), Some(lifeline)) => Some(lifeline),
            (Some(_), None) => Some(guardian_client::start_guardian(
                &self.dir.path().join(format!("{}.guardian", self.stem)),
            )?),
        };
        let record = AttachRecord {
            holder,
            space: Some(space),
            url: self.shown.clone(),
            via: self.via.cli_name().to_owned(),
            ways: opened.record_names(),
            control: self.options.control.clone(),
            guardian: lifeline.as_ref().map(|lifeline| lifeline.kept.clone()),
            timeout_ms,
            uuid: self.uuid.clone(),
            serial: self.serial.clone(),
            block: self.block,
            paths: self.paths.clone(),
            nexus: self.nexus,
        };
        // A failure before the guardian knows of us leaves the attachment waiting, as it was.
        let noted = RecordFile::write(self.dir.clone(), &file, &record)?;
        if let (Some(lifeline), Some((state, files))) = (lifeline, state) {
            let at = self.dir.path().join(&file);
            if let Err(UnconfirmedGuardian { why, is_said }) =
                lifeline.hand_over_state(state, &files, at, timeout_ms, &self.options.url)
            {
                if is_said {
                    // The guardian may have taken it; a recovery finds it by this record.
                    noted.persist();
                }
                return Err(Failure::failed(format!("the attachment's guardian: {why}")));
            }
            *end.lifeline.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(lifeline));
        }
        if let Some(OrphanedAttachment { found, .. }) = self.orphan.take() {
            // The guardian may have been faster.
            let _ = found.dir.remove_file(&found.file);
        }
        *self.noted.lock() = Some(noted);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The wish for a volume, or to go on with it.
    fn recovering(url: &str, dir: &Path, recover: bool) -> AttachOptions {
        let (url, dir) = (url.into(), dir.to_owned());
        let (via, at, control) = (None, None, None);
        AttachOptions { url, via, at, recover, force: false, timeout: RECOVERY_TIMEOUT_DEFAULT, dir, control }
    }

    #[test]
    fn a_device_of_which_nothing_is_written_down_is_not_gone_on_with_unless_that_is_said() {
        let options = |recover, force| AttachOptions {
            at: Some("/dev/ublkb0".into()),
            force,
            ..recovering("u", Path::new("/nowhere"), recover)
        };
        let refuses =
            |options: &AttachOptions, via, is_known| refuse_unknown_device(options, via, is_known).is_err();
        assert!(refuses(&options(true, false), DeviceInterface::Ublk, false));
        assert!(
            !refuses(&options(true, true), DeviceInterface::Ublk, false)
                && !refuses(&options(true, false), DeviceInterface::Ublk, true)
        );
        assert!(
            !refuses(&options(false, false), DeviceInterface::Ublk, false)
                && !refuses(&options(true, false), DeviceInterface::Nbd, false)
        );
    }

    #[test]
    fn the_time_out_that_help_names_is_the_default() {
        assert_eq!(parse_timeout("120s"), Ok(RECOVERY_TIMEOUT_DEFAULT));
        assert_eq!(parse_timeout("0"), Ok(Duration::ZERO));
        assert!(parse_timeout("25h").is_err() && parse_timeout("never").is_err());
    }

    #[test]
    fn a_wish_does_not_show_the_password_of_its_url() {
        let url = "iscsi://user%open5esame@127.0.0.1/iqn.2026-11.x:y/0";
        let options = recovering(url, Path::new("/run"), false);
        for said in [format!("{options:?}"), format!("{options:#?}")] {
            assert!(!said.contains("open5esame"), "{said}");
        }
    }

    /// Who goes on with what the guardian holds finds it by its record.
    #[test]
    fn the_record_of_what_a_guardian_may_hold_on_to_is_not_taken_away() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        for is_said in [true, false] {
            let root = tempfile::tempdir().unwrap();
            let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let kept = record::GuardianAddress {
                process: ProcessId::current().unwrap(),
                socket: root.path().join("guardian"),
            };
            let mut records = RecoveryContext {
                options: recovering("u", dir.path(), true),
                dir: dir.clone(),
                via: DeviceInterface::Ublk,
                shown: "u".to_owned(),
                uuid: None,
                serial: None,
                block: Some(512),
                paths: Vec::new(),
                nexus: [0; 3],
                orphan: None,
                lifeline: Some(GuardianLifeline::of(ours, kept)),
                noted: SharedRecord::default(),
                stem: "1".to_owned(),
            };
            // It has heard it, and then says nothing more.
            let guardian = is_said.then(|| {
                thread::spawn(move || {
                    guardian_protocol::receive_message::<guardian_protocol::GuardianRequest>(
                        &theirs,
                        Duration::from_secs(30),
                    )
                    .unwrap()
                    .unwrap();
                })
            });
            let opened =
                AccessPoints { ways: vec![("device", "/dev/ublkb0".to_owned())], remarks: Vec::new() };
            let state = RecoveryState::Ublk { number: 0, process: 1 };
            assert!(
                records
                    .record_and_hold(&DetachHandle::new().unwrap(), &opened, Some((state, Vec::new())))
                    .is_err()
            );
            guardian.into_iter().for_each(|guardian| guardian.join().unwrap());
            let records = if is_said { vec![OsString::from("1.json")] } else { Vec::new() };
            assert_eq!(dir.entry_names().unwrap(), records);
        }
    }
}
