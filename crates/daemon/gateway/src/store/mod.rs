//! The group's store on RADOS: objects of a pool, the blocklist, and the locks of the volumes' images.
//!
//! | request | on RADOS |
//! |---|---|
//! | read | `stat` and `read` as one operation; the version is the operation's |
//! | swap | `assert_version` or an exclusive `create`, with `write_full`, as one operation |
//! | notify | of one object that all members watch; it names the object that has changed |
//! | blocklist | the addresses that the instance has left in its own object; then a map is read in which they are |
//! | await map | the monitors' latest map, at the own client |
//! | spread map | a read of an object that is not there, in each placement group of the image's pools |
//! | lock, unlock | the image is opened and its exclusive lock taken; it is closed |
//!
//! Reads, swaps and notifications are asynchronous. For the rest the libraries have only calls that wait, so threads of
//! their own make them (`blocking_calls`).
//!
//! Invariants:
//! - Each request has one reply. If none has come in time it is [`StoreReply::Unknown`], and what comes later is dropped.
//! - All goes by one client of the cluster, the images' blocks too: what bars it bars everything. Its number is the
//!   instance's, and its addresses are in the pool before the instance is known to anyone.

mod blocking_calls;
mod cluster_map;
mod group_key;
mod names;
mod open;
mod placement;
mod slow;
mod watching;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use buf::{Errno, Time};
use group::{CONFIGURATION_MAX, GroupName, InstanceId, ObjectName, StoreReply, StoreRequest, StoreTicket};
use rbd::{Client, ClusterOptions, Contents, Image, Library, OpenError, Pool, Watch, WriteIf};
use volume::Uuid;

use blocking_calls::{BlockingCalls, Subject};
pub use group_key::GroupKey;
pub use placement::names as placement_names;

/// How long an object has for an answer; the member asks again after that.
const OBJECT_ANSWER: Duration = Duration::from_secs(3);
/// How long monitors, images and all placement groups of a pool have.
const SLOW_ANSWER: Duration = Duration::from_secs(30);
/// Calls that the cluster has not ended, those among them that were given up here.
const CALLS_MAX: usize = 4096;
/// What is read of an object first; most are smaller.
const FIRST_READ: usize = 32 << 10;
/// No object is longer: the configuration with what stands around it.
const OBJECT_MAX: usize = CONFIGURATION_MAX + (64 << 10);

/// Which store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The cluster.
    pub cluster: ClusterOptions,
    /// The pool that has the group's objects.
    pub pool: String,
    /// The namespace in it; `None`: the default one.
    pub namespace: Option<String>,
    /// The group.
    pub group: GroupName,
    /// Random bytes: the group's key if it has none yet.
    pub new_key: GroupKey,
}

/// The image of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeImage {
    /// Its pool.
    pub pool: String,
    /// The namespace in it; `None`: the default one.
    pub namespace: Option<String>,
    /// Its name.
    pub image: String,
}

/// What the store tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A request has ended.
    Reply {
        /// Which.
        ticket: StoreTicket,
        /// How.
        reply: StoreReply,
    },
    /// Another instance has changed an object.
    Changed(ObjectName),
    /// Notifications may have been missed: any object may have changed.
    ChangesMissed,
    /// This instance is on the blocklist.
    Fenced,
    /// What the cluster refuses, for the log: the request's outcome is told as unknown, and it is asked for again.
    Refused(String),
}

/// Takes what the store tells, on any thread, and does not wait.
pub type Mailbox = Arc<dyn Fn(StoreEvent) + Send + Sync>;

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum StoreError {
    /// The cluster, the user or the pool.
    Cluster(OpenError),
    /// An object of the group was refused; what was asked.
    Object(&'static str, Errno),
    /// The cluster has not answered; what was asked.
    Silent(&'static str),
    /// The group's key is damaged: the object.
    KeyDamaged(String),
    /// The client has no address by which it could be barred.
    NoAddress,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Cluster(why) => why.fmt(f),
            StoreError::Object(what, Errno(errno)) => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(
                    f,
                    "cannot {what}: {why}; the user needs `osd 'allow rwx pool=POOL'` for the group's pool"
                )
            }
            StoreError::Silent(what) => {
                write!(f, "the cluster does not answer within {} s ({what})", SLOW_ANSWER.as_secs())
            }
            StoreError::KeyDamaged(object) => {
                write!(
                    f,
                    "the group's key is damaged: end all gateways of the group, run `rados rm {object}` in its pool, \
                     and start them again"
                )
            }
            StoreError::NoAddress => {
                f.write_str("the client of the cluster has no address to be blocklisted by")
            }
        }
    }
}

impl std::error::Error for StoreError {}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> StoreError {
        StoreError::Cluster(error)
    }
}

/// The store of one instance. Dropping it ends the watch and closes the images, in the background.
pub struct GroupStore {
    shared: Arc<Shared>,
    key: GroupKey,
}

struct Shared {
    library: Library,
    client: Client,
    pool: Pool,
    options: StoreOptions,
    own_addresses: Vec<String>,
    mailbox: Mailbox,
    /// Requests without a reply, and until when one may come.
    waiting: Mutex<BTreeMap<StoreTicket, Time>>,
    /// Calls that the cluster has.
    calls: AtomicUsize,
    blocking_calls: BlockingCalls,
    volumes: Mutex<BTreeMap<Uuid, Volume>>,
    watch: Mutex<Option<Watch>>,
}

struct Volume {
    image: VolumeImage,
    /// It is locked.
    open: Option<Image>,
    /// It takes no more calls, and is not closed yet.
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupStore {
    /// The number of this instance: that of its client.
    pub fn instance(&self) -> InstanceId {
        InstanceId(self.shared.client.instance())
    }

    /// The key of the links between the group's gateways.
    pub fn key(&self) -> &GroupKey {
        &self.key
    }

    /// The images of the volumes from now on. One that is open stays so until it is unlocked.
    pub fn set_volumes(&self, volumes: &BTreeMap<Uuid, VolumeImage>) {
        let mut known = lock(&self.shared.volumes);
        known.retain(|volume, entry| volumes.contains_key(volume) || entry.open.is_some());
        for (volume, image) in volumes {
            let new = || Volume { image: image.clone(), open: None, closing: false };
            let entry = known.entry(*volume).or_insert_with(new);
            if entry.open.is_none() {
                entry.image = image.clone();
            }
        }
    }

    /// The image of a volume that this instance has locked.
    pub fn image(&self, volume: Uuid) -> Option<Image> {
        lock(&self.shared.volumes).get(&volume).filter(|entry| !entry.closing)?.open.clone()
    }

    /// Carries a request of the member out; the reply goes to the mailbox.
    pub fn ask(&self, now: Time, ticket: StoreTicket, request: StoreRequest) {
        let shared = &self.shared;
        let patience = match request {
            StoreRequest::Read(_) | StoreRequest::Swap { .. } | StoreRequest::Notify(_) => OBJECT_ANSWER,
            StoreRequest::Blocklist { .. }
            | StoreRequest::RemoveFromBlocklist(_)
            | StoreRequest::AwaitMap(_)
            | StoreRequest::SpreadMap(_)
            | StoreRequest::Lock(_)
            | StoreRequest::Unlock(_) => SLOW_ANSWER,
        };
        lock(&shared.waiting).insert(ticket, now + patience);
        match request {
            StoreRequest::Read(object) => Shared::read(shared, ticket, object, FIRST_READ),
            StoreRequest::Swap { object, expected, value } => {
                Shared::swap(shared, ticket, object, expected.0, &value);
            }
            StoreRequest::Notify(object) => Shared::notify(shared, ticket, object),
            StoreRequest::Blocklist { instance, expiry } => {
                Shared::run(shared, ticket, Subject::Monitors, move |shared| {
                    shared.blocklist(instance, expiry)
                });
            }
            StoreRequest::RemoveFromBlocklist(instance) => {
                Shared::run(shared, ticket, Subject::Monitors, move |shared| {
                    shared.remove_from_blocklist(instance)
                });
            }
            StoreRequest::AwaitMap(_) => {
                Shared::run(shared, ticket, Subject::Monitors, |shared| shared.await_map());
            }
            StoreRequest::SpreadMap(volume) => {
                let subject = Subject::Volume(volume);
                Shared::run(shared, ticket, subject, move |shared| shared.spread_map(volume));
            }
            StoreRequest::Lock(volume) => {
                let subject = Subject::Volume(volume);
                Shared::run(shared, ticket, subject, move |shared| shared.lock_volume(volume));
            }
            StoreRequest::Unlock(volume) => {
                let subject = Subject::Volume(volume);
                Shared::run(shared, ticket, subject, move |shared| shared.unlock_volume(volume));
            }
        }
    }

    /// When [`GroupStore::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        lock(&self.shared.waiting).values().min().copied()
    }

    /// Replies for what has waited too long: the outcome is not known.
    pub fn handle_timeout(&self, now: Time) {
        let mut waiting = lock(&self.shared.waiting);
        let late: Vec<StoreTicket> =
            waiting.iter().filter(|(_, until)| **until <= now).map(|(ticket, _)| *ticket).collect();
        for ticket in &late {
            waiting.remove(ticket);
        }
        drop(waiting);
        for ticket in late {
            (self.shared.mailbox)(StoreEvent::Reply { ticket, reply: StoreReply::Unknown });
        }
    }
}

impl Shared {
    /// The reply to a request, unless it was given.
    fn reply(&self, ticket: StoreTicket, reply: StoreReply) {
        if lock(&self.waiting).remove(&ticket).is_some() {
            (self.mailbox)(StoreEvent::Reply { ticket, reply });
        }
    }

    /// Counts a call that is given to the cluster; `None`: it has too many already.
    fn begin(shared: &Arc<Shared>) -> Option<CallCount> {
        let count = CallCount(shared.clone());
        (shared.calls.fetch_add(1, Ordering::AcqRel) < CALLS_MAX).then_some(count)
    }

    fn read(shared: &Arc<Shared>, ticket: StoreTicket, object: ObjectName, most: usize) {
        let Some(count) = Shared::begin(shared) else { return shared.reply(ticket, StoreReply::Unknown) };
        let name = names::object(&shared.options.group, object);
        shared.pool.read(&name, most, move |result| {
            let shared = &count.0;
            let reply = match result {
                Ok(Some(contents)) => match judge_contents(contents, most) {
                    Reading::Whole(reply) => reply,
                    Reading::Again(length) => return Shared::read(shared, ticket, object, length),
                    Reading::Refused(errno) => shared.refused("read", object, errno),
                },
                // Of a pool that was deleted, nothing is there, which is not the same.
                Ok(None) if shared.pool.exists() => {
                    StoreReply::Contents { version: group::Version(0), value: Vec::new() }
                }
                Ok(None) => shared.refused("read", object, Errno(libc::ENOENT)),
                Err(errno) => shared.refused("read", object, errno),
            };
            shared.reply(ticket, reply);
        });
    }

    fn swap(shared: &Arc<Shared>, ticket: StoreTicket, object: ObjectName, expected: u64, value: &[u8]) {
        let Some(count) = Shared::begin(shared) else { return shared.reply(ticket, StoreReply::Unknown) };
        let name = names::object(&shared.options.group, object);
        let condition = if expected == 0 { WriteIf::Absent } else { WriteIf::Version(expected) };
        shared.pool.write(&name, condition, value, move |result| {
            let shared = &count.0;
            let reply = match result {
                Ok(version) => StoreReply::Swapped(group::Version(version)),
                Err(Errno(libc::EEXIST | libc::ERANGE | libc::EOVERFLOW)) => StoreReply::Mismatch,
                Err(errno) => shared.refused("write", object, errno),
            };
            shared.reply(ticket, reply);
        });
    }

    fn notify(shared: &Arc<Shared>, ticket: StoreTicket, object: ObjectName) {
        let Some(count) = Shared::begin(shared) else { return shared.reply(ticket, StoreReply::Unknown) };
        let name = names::notices(&shared.options.group);
        shared.pool.notify(&name, &names::encode(object), move |result| {
            let shared = &count.0;
            let reply = match result {
                Ok(()) => StoreReply::Done,
                // A member that is gone did not acknowledge.
                Err(Errno(libc::ETIMEDOUT)) => StoreReply::Unknown,
                Err(errno) => shared.refused("notify of", object, errno),
            };
            shared.reply(ticket, reply);
        });
    }

    /// What an error of an object means: the operation may have been carried out before, or not.
    fn refused(&self, what: &str, object: ObjectName, errno: Errno) -> StoreReply {
        if errno == Errno(libc::ESHUTDOWN) {
            return StoreReply::Fenced;
        }
        let (name, pool) = (names::object(&self.options.group, object), &self.options.pool);
        let why = std::io::Error::from_raw_os_error(errno.0);
        (self.mailbox)(StoreEvent::Refused(format!(
            "cannot {what} the object {name} of the pool {pool}: {why}"
        )));
        StoreReply::Unknown
    }

    /// Has a thread carry out what waits for the cluster.
    fn run(
        shared: &Arc<Shared>,
        ticket: StoreTicket,
        subject: Subject,
        work: impl FnOnce(&Shared) -> StoreReply + Send + 'static,
    ) {
        let own = shared.clone();
        let taken = shared.blocking_calls.run(subject, move || {
            // Nobody waits for it any more, and it is asked for again if it is still wanted.
            if lock(&own.waiting).contains_key(&ticket) {
                let reply = work(&own);
                own.reply(ticket, reply);
            }
        });
        if !taken {
            shared.reply(ticket, StoreReply::Unknown);
        }
    }
}

/// What a read has given of an object.
#[derive(Debug, PartialEq, Eq)]
enum Reading {
    /// All of it.
    Whole(StoreReply),
    /// A part: so much is to be read.
    Again(usize),
    /// No part of it is used.
    Refused(Errno),
}

/// `most`: how much was asked for. A part of an object never counts as the object: a change that is made of it would
/// drop the rest.
fn judge_contents(contents: Contents, most: usize) -> Reading {
    if contents.is_whole() {
        let version = group::Version(contents.version);
        return Reading::Whole(StoreReply::Contents { version, value: contents.bytes });
    }
    match usize::try_from(contents.bytes_total) {
        Ok(length) if length > most && length <= OBJECT_MAX => Reading::Again(length),
        // It was asked for whole, and is not.
        Ok(length) if length <= most => Reading::Refused(Errno(libc::EIO)),
        Ok(_) | Err(_) => Reading::Refused(Errno(libc::EFBIG)),
    }
}

/// A call that the cluster has.
struct CallCount(Arc<Shared>);

impl Drop for CallCount {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for GroupStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupStore")
            .field("group", &self.shared.options.group)
            .field("instance", &self.instance())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_object_is_never_the_object() {
        let read = |total: u64, most: usize| {
            let bytes = vec![7; most.min(total as usize)];
            judge_contents(Contents { version: 3, bytes_total: total, bytes }, most)
        };
        let whole =
            |len| Reading::Whole(StoreReply::Contents { version: group::Version(3), value: vec![7; len] });
        assert!(
            read(100, FIRST_READ) == whole(100) && read(OBJECT_MAX as u64, OBJECT_MAX) == whole(OBJECT_MAX)
        );
        // It is longer than was asked for, or has grown since.
        assert_eq!(read(FIRST_READ as u64 + 1, FIRST_READ), Reading::Again(FIRST_READ + 1));
        assert_eq!(read(OBJECT_MAX as u64, FIRST_READ), Reading::Again(OBJECT_MAX));
        // It is longer than any, however much was asked for.
        for total in [OBJECT_MAX as u64 + 1, u64::MAX] {
            assert_eq!(read(total, FIRST_READ), Reading::Refused(Errno(libc::EFBIG)), "{total}");
        }
        assert_eq!(read(OBJECT_MAX as u64 + 1, OBJECT_MAX), Reading::Refused(Errno(libc::EFBIG)));
        // Its length and its bytes contradict each other.
        let short = Contents { version: 3, bytes_total: 5, bytes: vec![7; 4] };
        assert_eq!(judge_contents(short, FIRST_READ), Reading::Refused(Errno(libc::EIO)));
    }
}
