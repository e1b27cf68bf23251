//! Opening a group's store, and letting it go.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;

use buf::Errno;
use group::InstanceId;
use rbd::{Client, Contents, Library, Pool, WriteIf};

use super::blocking_calls::{BlockingCalls, Subject};
use super::{
    GroupKey, GroupStore, Mailbox, SLOW_ANSWER, Shared, StoreError, StoreOptions, lock, names, watching,
};

/// Longer than any of the objects that are read here.
const SMALL: usize = 4096;

impl GroupStore {
    /// Connects to the cluster, leaves the addresses of this instance, has or makes the group's key, and begins to watch.
    /// Waits for the cluster.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn open(
        library: &Library,
        options: StoreOptions,
        mailbox: Mailbox,
    ) -> Result<GroupStore, StoreError> {
        let client = Client::connect_for_group(library, &options.cluster)?;
        let pool = Pool::enter(library, &client, &options.pool, options.namespace.as_deref())?;
        let own_addresses = client.addresses(library)?;
        if own_addresses.is_empty() {
            return Err(StoreError::NoAddress);
        }
        let name = names::addresses(&options.group, InstanceId(client.instance()));
        let text = own_addresses.join("\n");
        write(&pool, &name, WriteIf::Always, text.as_bytes())
            .map_err(|why| why.of("write the addresses of this gateway"))?;
        let notices = names::notices(&options.group);
        match write(&pool, &notices, WriteIf::Absent, b"") {
            Ok(()) | Err(NoAnswer::Refused(Errno(libc::EEXIST))) => {}
            Err(why) => return Err(why.of("create the group's notices")),
        }
        let key = group_key(&pool, &options)?;
        let shared = Arc::new(Shared {
            library: library.clone(),
            client,
            pool,
            options,
            own_addresses,
            mailbox,
            waiting: Mutex::new(BTreeMap::new()),
            calls: AtomicUsize::new(0),
            blocking_calls: BlockingCalls::default(),
            volumes: Mutex::new(BTreeMap::new()),
            watch: Mutex::new(None),
        });
        begin_watch(&shared).map_err(|why| why.of("watch the group's notices"))?;
        Ok(GroupStore { shared, key })
    }
}

impl Drop for GroupStore {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        // Both wait for the cluster. If there is no thread for it they are left to the end of the process.
        let ended = thread::Builder::new().name("bw-group-store".to_owned()).spawn(move || {
            drop(lock(&shared.watch).take());
            drop(std::mem::take(&mut *lock(&shared.volumes)));
        });
        drop(ended);
    }
}

impl Drop for Shared {
    /// A watch that was made while the store was let go. This may be a callback of librados, which must not wait.
    fn drop(&mut self) {
        let Some(watch) = lock(&self.watch).take() else { return };
        let (give, take) = sync_channel(1);
        let ended = thread::Builder::new().name("bw-group-store".to_owned()).spawn(move || drop(take.recv()));
        match ended {
            Ok(_) => drop(give.try_send(watch)),
            Err(_) => std::mem::forget(watch),
        }
    }
}

/// The group's key; the first gateway makes it.
fn group_key(pool: &Pool, options: &StoreOptions) -> Result<GroupKey, StoreError> {
    let name = names::key(&options.group);
    match write(pool, &name, WriteIf::Absent, &options.new_key.encode()) {
        Ok(()) => return Ok(options.new_key.clone()),
        Err(NoAnswer::Refused(Errno(libc::EEXIST))) => {}
        Err(why) => return Err(why.of("make the group's key")),
    }
    let contents = read(pool, &name).map_err(|why| why.of("read the group's key"))?;
    let key = contents.and_then(|contents| GroupKey::decode(&contents.bytes));
    key.ok_or(StoreError::KeyDamaged(name))
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoAnswer {
    Refused(Errno),
    Silent,
}

impl NoAnswer {
    fn of(self, what: &'static str) -> StoreError {
        match self {
            NoAnswer::Refused(errno) => StoreError::Object(what, errno),
            NoAnswer::Silent => StoreError::Silent(what),
        }
    }
}

/// Reads a small object, and waits for it; of one that is longer, a part.
pub(super) fn read(pool: &Pool, name: &str) -> Result<Option<Contents>, NoAnswer> {
    let (tell, told) = sync_channel(1);
    pool.read(name, SMALL, move |result| {
        let _ = tell.try_send(result);
    });
    told.recv_timeout(SLOW_ANSWER).map_err(|_| NoAnswer::Silent)?.map_err(NoAnswer::Refused)
}

fn write(pool: &Pool, name: &str, condition: WriteIf, bytes: &[u8]) -> Result<(), NoAnswer> {
    let (tell, told) = sync_channel(1);
    pool.write(name, condition, bytes, move |result| {
        let _ = tell.try_send(result);
    });
    let answer = told.recv_timeout(SLOW_ANSWER).map_err(|_| NoAnswer::Silent)?;
    answer.map(|_version| ()).map_err(NoAnswer::Refused)
}

/// Removes an object, and waits for it; one that is not there is removed.
pub(super) fn remove(pool: &Pool, name: &str) -> Result<(), NoAnswer> {
    let (tell, told) = sync_channel(1);
    pool.remove(name, move |result| {
        let _ = tell.try_send(result);
    });
    match told.recv_timeout(SLOW_ANSWER).map_err(|_| NoAnswer::Silent)? {
        Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(NoAnswer::Refused(errno)),
    }
}

/// Watches, on the watch's thread: if the watch is lost while it is made, it is made again behind that.
fn begin_watch(shared: &Arc<Shared>) -> Result<(), NoAnswer> {
    let (tell, told) = sync_channel(1);
    let own = shared.clone();
    let is_begun = shared.blocking_calls.run(Subject::Watch, move || {
        let _ = tell.try_send(watching::begin(&own));
    });
    if !is_begun {
        return Err(NoAnswer::Refused(Errno(libc::EAGAIN)));
    }
    told.recv_timeout(SLOW_ANSWER).map_err(|_| NoAnswer::Silent)?.map_err(NoAnswer::Refused)
}

/// A watch that was lost is made again on the watch's thread.
pub(super) fn watch_again(shared: &Arc<Shared>) {
    let own = shared.clone();
    // If it cannot be begun, the member still reads the objects from time to time.
    let _ = shared.blocking_calls.run(Subject::Watch, move || watching::begin_again(&own));
}
