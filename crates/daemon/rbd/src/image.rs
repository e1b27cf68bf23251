//! An open image: what is known of it, its worker thread, and how it is closed.
//!
//! Invariant: the handles are closed once, by a thread that may wait, after the last call that is out has ended.

use std::fmt;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::Library;
use crate::changes;
use crate::client::Client;
use crate::confirmation::Confirmation;
use crate::open_error::OpenError;
use crate::symbols::{Functions, Handle};

/// Marks [`Inner::out`] of an image that takes no more calls.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Between two looks whether the last call has ended.
const PAUSE: Duration = Duration::from_millis(2);

/// Which image it is, on every machine and under every name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageIdentity {
    /// The cluster's UUID, as text.
    pub fsid: String,
    /// The pool's number.
    pub pool: i64,
    /// The namespace in the pool; empty: the default one.
    pub namespace: String,
    /// The image's identifier, which it keeps when it is renamed.
    pub id: String,
}

/// An open image. Clones are the same one; it is closed in the background when the last one is gone and no call is
/// out.
#[derive(Clone, Debug)]
pub struct Image(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) functions: Arc<Functions>,
    /// Valid while a call is counted in `out`.
    pub(crate) image: Handle,
    handles: Mutex<Option<Handles>>,
    name: String,
    identity: ImageIdentity,
    client: u64,
    pub(crate) read_only: bool,
    /// The object map tells where data is.
    pub(crate) has_fast_diff: bool,
    /// What reads wait for that librbd may have answered without the cluster; `None`: there are none, or no other gateway
    /// serves the image.
    pub(crate) confirmation: Option<Arc<Confirmation>>,
    /// Calls that are out, and [`CLOSED`].
    out: AtomicUsize,
    bytes: AtomicU64,
    fenced: AtomicBool,
    pub(crate) jobs: Sender<Job>,
}

// SAFETY: librados and librbd take calls of any thread on the same handle at any time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What an image's worker thread does: what may wait.
pub(crate) enum Job {
    /// Something about the image has changed.
    Updated,
    /// A call that librbd answers only when it is done.
    Blocking(Box<dyn FnOnce() + Send>),
}

/// What is to be closed. Closing waits for the cluster.
pub(crate) struct Handles {
    pub(crate) functions: Arc<Functions>,
    pub(crate) client: Option<Client>,
    pub(crate) pool: Handle,
    pub(crate) image: Handle,
    /// The watch's number, and its argument.
    pub(crate) watch: Option<(u64, *mut Sender<Job>)>,
    /// What uses the client too, until the image is closed.
    pub(crate) confirmation: Option<Arc<Confirmation>>,
    /// We have its lock.
    lock: Option<HeldLock>,
}

// SAFETY: as for `Inner`; the argument of the watch is only touched by the watch, and after it ended.
unsafe impl Send for Handles {}

impl Handles {
    pub(crate) fn new(functions: Arc<Functions>) -> Self {
        let none = ptr::null_mut();
        Handles {
            functions,
            client: None,
            pool: none,
            image: none,
            watch: None,
            confirmation: None,
            lock: None,
        }
    }

    /// The cluster's handle; null before it is connected.
    pub(crate) fn cluster(&self) -> Handle {
        self.client.as_ref().map_or(ptr::null_mut(), Client::handle)
    }

    /// Its lock has been taken; closing the image gives it up.
    pub(crate) fn has_lock(&mut self, image: &ImageIdentity) {
        locked().push(image.clone());
        self.lock = Some(HeldLock(image.clone()));
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let functions = self.functions.clone();
        // SAFETY: each handle that is not null was opened and is closed here only, the outer ones last. After
        // `rbd_update_unwatch` the callback does not run any more, so its argument is ours again.
        unsafe {
            if let Some((number, argument)) = self.watch.take() {
                let _ = (functions.rbd_update_unwatch)(self.image, number);
                drop(Box::from_raw(argument));
            }
            if !self.image.is_null() {
                let _ = (functions.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (functions.rados_ioctx_destroy)(self.pool);
            }
        }
        if let Some(confirmation) = self.confirmation.take() {
            confirmation.close();
        }
        if let Some(client) = self.client.take() {
            client.close();
        }
        self.lock = None;
    }
}

/// The images that this process has locked, those that are being closed among them.
static LOCKED: Mutex<Vec<ImageIdentity>> = Mutex::new(Vec::new());
static UNLOCKED: Condvar = Condvar::new();

fn locked() -> MutexGuard<'static, Vec<ImageIdentity>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until this process does not have an image's lock, for `limit` at most: it may be closing it. False: it has it
/// still.
pub(crate) fn wait_unlocked(image: &ImageIdentity, limit: Duration) -> bool {
    let waited = UNLOCKED.wait_timeout_while(locked(), limit, |locked| locked.contains(image));
    !waited.unwrap_or_else(PoisonError::into_inner).0.contains(image)
}

/// An image that is locked.
struct HeldLock(ImageIdentity);

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut locked = locked();
        if let Some(at) = locked.iter().position(|image| *image == self.0) {
            locked.swap_remove(at);
        }
        drop(locked);
        UNLOCKED.notify_all();
    }
}

/// What was found out of an image when it was opened.
pub(crate) struct Opened {
    pub(crate) handles: Handles,
    pub(crate) name: String,
    pub(crate) identity: ImageIdentity,
    pub(crate) client: u64,
    pub(crate) read_only: bool,
    pub(crate) has_fast_diff: bool,
    pub(crate) confirmation: Option<Arc<Confirmation>>,
    pub(crate) bytes: u64,
    pub(crate) jobs: (Sender<Job>, Receiver<Job>),
}

/// The images that are open, to be closed when the process ends.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Image {
    pub(crate) fn of(opened: Opened) -> io::Result<Self> {
        let Opened { handles, name, identity, client, read_only, has_fast_diff, confirmation, bytes, jobs } =
            opened;
        let (jobs, done) = jobs;
        let inner = Arc::new(Inner {
            functions: handles.functions.clone(),
            image: handles.image,
            handles: Mutex::new(Some(handles)),
            name,
            identity,
            client,
            read_only,
            has_fast_diff,
            confirmation,
            out: AtomicUsize::new(0),
            bytes: AtomicU64::new(bytes),
            fenced: AtomicBool::new(false),
            jobs,
        });
        let own = Arc::downgrade(&inner);
        thread::Builder::new().name("bw-rbd-worker".to_owned()).spawn(move || work(&done, &own))?;
        let mut all = all();
        all.retain(|image| image.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        Ok(Image(inner))
    }

    /// Its name, `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Which image it is.
    pub fn identity(&self) -> &ImageIdentity {
        &self.0.identity
    }

    /// The number of our client in the cluster: `client.NUMBER`.
    pub fn client(&self) -> u64 {
        self.0.client
    }

    /// Its size now, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// The numbers of the pools that have its blocks and what describes them: the image's, and that of its data if that
    /// is another.
    ///
    /// # Errors
    /// The library is too old, the image is closed, or librbd does not say: none is left out.
    pub fn pools(&self, library: &Library) -> Result<Vec<i64>, OpenError> {
        let functions = library.objects()?;
        if !self.0.begin() {
            return pools_of(self.0.identity.pool, -i64::from(libc::EBADF));
        }
        // SAFETY: the image is open, as a call is counted.
        let data = unsafe { (functions.rbd_get_data_pool_id)(self.0.image) };
        self.0.finish();
        pools_of(self.0.identity.pool, data)
    }

    /// Takes no more calls, waits until none is out, and closes the image, which gives its lock up. False: calls are out
    /// after `patience`; it is closed when they have ended and the last handle of it is gone.
    pub fn close(&self, patience: Duration) -> bool {
        self.0.close(Instant::now() + patience)
    }

    /// Whether our client is blocklisted: every operation fails from now on, because another client may serve the image.
    pub fn is_fenced(&self) -> bool {
        self.0.fenced.load(Ordering::Acquire)
    }
}

impl Inner {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Counts one more call; false: the image takes none any more.
    pub(crate) fn begin(&self) -> bool {
        if self.out.fetch_add(1, Ordering::AcqRel) & CLOSED == 0 {
            return true;
        }
        self.finish();
        false
    }

    /// A call that was counted has ended.
    pub(crate) fn finish(&self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Our client is blocklisted.
    pub(crate) fn fence(&self) {
        if !self.fenced.swap(true, Ordering::AcqRel) {
            changes::tell();
        }
    }

    /// Reads the size again.
    fn measure(&self) {
        if !self.begin() {
            return;
        }
        let mut bytes = 0;
        // SAFETY: the image is open, as a call is counted; the number is ours.
        let result = unsafe { (self.functions.rbd_get_size)(self.image, &raw mut bytes) };
        self.finish();
        if result == -libc::ESHUTDOWN {
            return self.fence();
        }
        if result >= 0 && self.bytes.swap(bytes, Ordering::AcqRel) != bytes {
            changes::tell();
        }
    }

    /// Takes no more calls, waits until none is out, and closes; gives up at `until`.
    fn close(&self, until: Instant) -> bool {
        self.out.fetch_or(CLOSED, Ordering::AcqRel);
        while self.out.load(Ordering::Acquire) != CLOSED {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(PAUSE);
        }
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(handles);
        true
    }
}

impl Drop for Inner {
    /// The last handle may go on a shard's thread or in a callback of librbd, neither of which may wait.
    fn drop(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(handles) = handles else { return };
        let (give, take) = channel();
        let closer = thread::Builder::new().name("bw-rbd-close".to_owned()).spawn(move || {
            drop::<Option<Handles>>(take.recv().ok());
        });
        match closer {
            Ok(_) => drop(give.send(handles)),
            // Without a thread the image stays open until the process ends.
            Err(_) => std::mem::forget(handles),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("name", &self.name)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// The pools of an image; `data`: what librbd says of that of its data, which is `own` if it has no other.
fn pools_of(own: i64, data: i64) -> Result<Vec<i64>, OpenError> {
    if data < 0 {
        let errno = i32::try_from(data.saturating_neg()).unwrap_or(libc::EIO);
        return Err(OpenError::Failed("find the pool of its data", io::Error::from_raw_os_error(errno)));
    }
    Ok(if data == own { vec![own] } else { vec![own, data] })
}

/// The worker thread of an image: ends when the image is closed.
fn work(jobs: &Receiver<Job>, image: &Weak<Inner>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Updated => {
                if let Some(image) = image.upgrade() {
                    image.measure();
                }
            }
            Job::Blocking(call) => call(),
        }
    }
}

/// Closes every image, and gives up its lock, so that another client, or the next start, has it at once. Waits for
/// `patience` at most; false: an image is locked still, because calls are out or the cluster does not answer.
pub fn close_all(patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let images: Vec<Arc<Inner>> = all().iter().filter_map(Weak::upgrade).collect();
    for image in images {
        let closer = thread::Builder::new().name("bw-rbd-close".to_owned()).spawn(move || image.close(until));
        if closer.is_err() {
            return false;
        }
    }
    // Others may be closing already.
    let waited = UNLOCKED.wait_timeout_while(locked(), patience, |locked| !locked.is_empty());
    waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier owner's writes to a pool that was left out might still land.
    #[test]
    fn no_pool_of_an_image_is_left_out() {
        assert_eq!(pools_of(3, 3).unwrap(), [3]);
        assert_eq!(pools_of(3, 0).unwrap(), [3, 0]);
        for (said, errno) in [(-i64::from(libc::ESHUTDOWN), libc::ESHUTDOWN), (i64::MIN, libc::EIO)] {
            let Err(OpenError::Failed(_, why)) = pools_of(3, said) else { panic!("{said}") };
            assert_eq!(why.raw_os_error(), Some(errno));
        }
    }
}
