//! Opening an image: connecting, the pool, the image, its lock and its watch, each with an error that names what is
//! wrong.
//!
//! Invariant: what could not be opened is closed again; a thread that waits for the cluster is given up after
//! [`Options::answer`], takes no lock after that, and closes by itself what it comes to open.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, ClusterOptions, check, error, string, text};
use crate::confirmation::Confirmation;
use crate::image::{Handles, Image, ImageIdentity, Job, Opened, wait_unlocked};
use crate::objects::Pool;
use crate::open_error::OpenError;
use crate::symbols::{
    ConfigOption, EXCLUSIVE, FEATURE_EXCLUSIVE_LOCK, FEATURE_FAST_DIFF, FEATURE_OBJECT_MAP, Handle,
    ObjectFunctions, Watcher,
};
use crate::{BLOCKLISTED_SECONDS, Library};

/// How long the cluster has for everything that opening an image takes.
pub const ANSWER: Duration = Duration::from_secs(20);
/// How long it is waited for that a client that is gone is seen to be: its watch ends 30 s after its last word
/// (`osd_client_watch_timeout`).
pub const LOCK_WAIT: Duration = Duration::from_secs(40);
/// How long it is waited for that this process itself has closed the image.
const CLOSE: Duration = Duration::from_secs(5);
/// Between two looks for that.
const GONE_PAUSE: Duration = Duration::from_secs(1);
/// Options of an image that librbd lists at most.
const OPTIONS_MAX: usize = 1024;
/// What the lockers of an image may be called, in bytes: an exclusive lock has one.
const LOCKERS_BYTES: usize = 512;
/// Clients that may have an image open.
const WATCHERS_MAX: usize = 1024;

/// Which image to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The pool's name.
    pub pool: String,
    /// The namespace in it; `None`: the default one.
    pub namespace: Option<String>,
    /// The image's name.
    pub image: String,
    /// The cluster's configuration file; `None`: `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None`: `admin`.
    pub user: Option<String>,
    /// Only reads: the image is not locked.
    pub read_only: bool,
    /// The lock of a client that is gone may be broken, and that client blocklisted.
    pub break_lock: bool,
    /// How long the cluster has for everything: [`ANSWER`].
    pub answer: Duration,
    /// How much longer a client that is gone has to be seen to be, if its lock may be broken: [`LOCK_WAIT`].
    pub lock_wait: Duration,
}

impl Options {
    /// Its name, `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`.
    pub fn name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.pool, self.image),
            None => format!("{}/{}", self.pool, self.image),
        }
    }

    fn cluster(&self) -> ClusterOptions {
        ClusterOptions { conf: self.conf.clone(), user: self.user.clone() }
    }

    fn conf(&self) -> PathBuf {
        self.cluster().conf()
    }
}

impl Image {
    /// Opens an image. Waits for the cluster for 20 s at most, and 40 s more for a client that is gone if its lock may
    /// be broken.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn open(library: &Library, options: &Options) -> Result<Self, OpenError> {
        let place = OpeningPlace::take(options, None).ok_or(OpenError::StillOpening)?;
        let stage = Arc::new(Mutex::new("connecting"));
        let given_up = Arc::new(AtomicBool::new(false));
        let (tell, opened) = channel();
        let opener = Opener {
            client: None,
            locking: Locking::Alone,
            library: library.clone(),
            options: options.clone(),
            stage: stage.clone(),
            given_up: given_up.clone(),
        };
        let begun = thread::Builder::new().name("bw-rbd-open".to_owned()).spawn(move || {
            let opened = opener.open();
            drop(place);
            // Nobody listens any more: what was opened is closed here.
            let _ = tell.send(opened);
        });
        begun.map_err(|why| OpenError::Failed("start a thread", why))?;
        let more = if options.break_lock { options.lock_wait } else { Duration::ZERO };
        match opened.recv_timeout(options.answer + more) {
            Ok(opened) => opened,
            Err(RecvTimeoutError::Timeout) => {
                given_up.store(true, Ordering::Release);
                let stage = *stage.lock().unwrap_or_else(PoisonError::into_inner);
                Err(OpenError::Silent(options.answer, stage))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(OpenError::Failed("open it", io::Error::other("the thread has ended")))
            }
        }
    }
}

impl Image {
    /// Opens an image by a client that is connected, and takes its lock for a member of a group. Waits for the cluster as
    /// long as it takes.
    ///
    /// # Errors
    /// [`OpenError::HeldBy`] names the client that has the lock, if `is_barred` does not say that its address is
    /// blocklisted; else what is wrong.
    pub fn open_in_group(
        library: &Library,
        client: &Client,
        options: &Options,
        is_barred: impl Fn(&str) -> Result<bool, OpenError> + Send + 'static,
    ) -> Result<Self, OpenError> {
        let place = OpeningPlace::take(options, Some(client)).ok_or(OpenError::StillOpening)?;
        let opener = Opener {
            client: Some(client.clone()),
            locking: Locking::Group(Box::new(is_barred)),
            library: library.clone(),
            options: options.clone(),
            stage: Arc::new(Mutex::new("connecting")),
            given_up: Arc::new(AtomicBool::new(false)),
        };
        let opened = opener.open();
        drop(place);
        opened
    }
}

/// Who may have the lock that is taken.
enum Locking {
    /// This daemon alone; see [`Options::break_lock`].
    Alone,
    /// One member of a group. The lock of a client is broken if this says that the client, by its address, is blocklisted.
    Group(IsBarred),
}

/// Whether the client of an address is blocklisted.
type IsBarred = Box<dyn Fn(&str) -> Result<bool, OpenError> + Send>;

/// Opens one image, on a thread of its own.
struct Opener {
    /// `None`: a client of its own is connected.
    client: Option<Client>,
    locking: Locking,
    library: Library,
    options: Options,
    /// What is being waited for.
    stage: Arc<Mutex<&'static str>>,
    /// Nobody waits for it any more: it takes no client's lock away.
    given_up: Arc<AtomicBool>,
}

/// The images that are being opened, by cluster, name, whether they are only read, and the client if it is a group's. A thread that the cluster keeps
/// waiting cannot be ended, so there is one for each of them at most.
static OPENING: Mutex<Vec<Opening>> = Mutex::new(Vec::new());

type Opening = (PathBuf, String, bool, Option<u64>);

/// One of them.
struct OpeningPlace(Opening);

impl OpeningPlace {
    /// `None`: it is being opened already.
    fn take(options: &Options, client: Option<&Client>) -> Option<Self> {
        let key = (options.conf(), options.name(), options.read_only, client.map(Client::instance));
        let mut opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if opening.contains(&key) {
            return None;
        }
        opening.push(key.clone());
        Some(OpeningPlace(key))
    }
}

/// Whether a thread is opening an image, also if the caller has given up waiting for it.
pub fn is_opening() -> bool {
    !OPENING.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

impl Drop for OpeningPlace {
    fn drop(&mut self) {
        let mut opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        opening.retain(|one| *one != self.0);
    }
}

impl Opener {
    fn open(&self) -> Result<Image, OpenError> {
        let functions = self.library.0.clone();
        let mut handles = Handles::new(functions);
        handles.client = Some(match &self.client {
            Some(client) => client.clone(),
            None => Client::connect(&self.library, &self.options.cluster())?,
        });
        self.enter(&mut handles)?;
        self.at("opening the image");
        self.open_image(&mut handles)?;
        let image = handles.image;
        let bytes = self.number("read its size", image, handles.functions.rbd_get_size)?;
        let features = self.number("read its features", image, handles.functions.rbd_get_features)?;
        let identity = self.identity(&handles)?;
        self.check_cache(&handles)?;
        if !self.options.read_only {
            if features & FEATURE_EXCLUSIVE_LOCK == 0 {
                return Err(OpenError::NoLock(self.options.name()));
            }
            match &self.locking {
                Locking::Alone => {
                    // It was served by this process a moment ago.
                    if !wait_unlocked(&identity, CLOSE) {
                        return Err(OpenError::OpenHere);
                    }
                    self.lock(&handles)?;
                }
                // An earlier instance of this process is another client: the cluster knows which of them has the lock.
                Locking::Group(is_barred) => self.lock_in_group(&handles, is_barred)?,
            }
            handles.has_lock(&identity);
        }
        let confirmation = self.confirmation(&handles, &identity, features)?;
        handles.confirmation = confirmation.clone();
        let (jobs, done) = channel();
        watch(&mut handles, jobs.clone())?;
        // It may have been resized before the watch began.
        let _ = jobs.send(Job::Updated);
        let client = handles.client.as_ref().map_or(0, Client::instance);
        let opened = Opened {
            handles,
            name: self.options.name(),
            identity,
            client,
            read_only: self.options.read_only,
            has_fast_diff: features & FEATURE_FAST_DIFF != 0,
            confirmation,
            bytes,
            jobs: (jobs, done),
        };
        Image::of(opened).map_err(|why| OpenError::Failed("start a thread", why))
    }

    /// What reads of a group's image wait for.
    fn confirmation(
        &self,
        handles: &Handles,
        identity: &ImageIdentity,
        features: u64,
    ) -> Result<Option<Arc<Confirmation>>, OpenError> {
        let in_group = matches!(self.locking, Locking::Group(_)) && features & FEATURE_OBJECT_MAP != 0;
        let Some(client) = handles.client.as_ref().filter(|_| in_group) else { return Ok(None) };
        let ask = self.library.objects()?.rbd_get_overlap;
        let overlap = self.number("read how much of its parent it has", handles.image, ask)?;
        let within = Some(identity.namespace.as_str()).filter(|name| !name.is_empty());
        let pool = Pool::enter_by_number(&self.library, client, identity.pool, within)?;
        Ok(Some(Confirmation::new(pool, overlap > 0)))
    }

    fn at(&self, stage: &'static str) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Finds the pool and the namespace.
    fn enter(&self, handles: &mut Handles) -> Result<(), OpenError> {
        let functions = handles.functions.clone();
        self.at("looking for the pool");
        let pool = text(&self.options.pool)?;
        let cluster = handles.cluster();
        // SAFETY: a connected cluster, a valid string, and a place for the handle.
        let found = unsafe { (functions.rados_ioctx_create)(cluster, pool.as_ptr(), &raw mut handles.pool) };
        if found == -libc::ENOENT {
            return Err(OpenError::NoPool(self.options.pool.clone()));
        }
        check("enter the pool", found)?;
        if let Some(namespace) = &self.options.namespace {
            let namespace = text(namespace)?;
            // SAFETY: an open pool and a valid string.
            unsafe { (functions.rados_ioctx_set_namespace)(handles.pool, namespace.as_ptr()) };
        }
        Ok(())
    }

    fn open_image(&self, handles: &mut Handles) -> Result<(), OpenError> {
        let functions = handles.functions.clone();
        let open = if self.options.read_only { functions.rbd_open_read_only } else { functions.rbd_open };
        let name = text(&self.options.image)?;
        let mut image = ptr::null_mut();
        // SAFETY: an open pool, a valid string, a place for the handle; no snapshot.
        let opened = unsafe { open(handles.pool, name.as_ptr(), &raw mut image, ptr::null()) };
        match -opened {
            ..=0 => {
                handles.image = image;
                Ok(())
            }
            libc::ENOENT => {
                let pool = match &self.options.namespace {
                    Some(namespace) => format!("{}/{namespace}", self.options.pool),
                    None => self.options.pool.clone(),
                };
                Err(OpenError::NoImage(self.options.image.clone(), pool))
            }
            libc::EACCES | libc::EPERM => {
                Err(OpenError::Refused(self.options.conf(), self.options.cluster().user().to_owned()))
            }
            errno => Err(OpenError::Failed("open the image", error(-errno))),
        }
    }

    fn number(
        &self,
        what: &'static str,
        image: Handle,
        ask: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    ) -> Result<u64, OpenError> {
        let mut number = 0;
        // SAFETY: an open image, and a place for the number.
        check(what, unsafe { ask(image, &raw mut number) })?;
        Ok(number)
    }

    fn identity(&self, handles: &Handles) -> Result<ImageIdentity, OpenError> {
        let functions = &handles.functions;
        let (mut fsid, mut id) = ([0; 64], [0; 256]);
        // SAFETY: a connected cluster, and memory of the length that is given.
        let read = unsafe {
            (functions.rados_cluster_fsid)(handles.cluster(), fsid.as_mut_ptr().cast(), fsid.len())
        };
        check("read the cluster's identifier", read)?;
        // SAFETY: an open image, and memory of the length that is given.
        let read = unsafe { (functions.rbd_get_id)(handles.image, id.as_mut_ptr().cast(), id.len()) };
        check("read the image's identifier (images of format 1 are not supported)", read)?;
        // SAFETY: an open pool.
        let pool = unsafe { (functions.rados_ioctx_get_id)(handles.pool) };
        let namespace = self.options.namespace.clone().unwrap_or_default();
        Ok(ImageIdentity { fsid: until_zero(&fsid), pool, namespace, id: until_zero(&id) })
    }

    /// Settings of the pool or the image override ours: without a cache a write is stable when it has ended.
    fn check_cache(&self, handles: &Handles) -> Result<(), OpenError> {
        let none = ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut options = vec![none; OPTIONS_MAX];
        let mut count = OPTIONS_MAX as c_int;
        // SAFETY: an open image, and room for as many options as is said.
        let listed = unsafe {
            (handles.functions.rbd_config_image_list)(handles.image, options.as_mut_ptr(), &raw mut count)
        };
        check("read its settings", listed)?;
        let listed = options.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default();
        let mut found = Ok(());
        for option in listed {
            // SAFETY: librbd has filled the options that it counts with strings.
            let (name, value) = unsafe { (string(option.name), string(option.value)) };
            let is_safe = match name.as_str() {
                "rbd_cache" => value == "false",
                "rbd_persistent_cache_mode" => value == "disabled",
                _ => true,
            };
            if !is_safe {
                found = Err(OpenError::Cached(name, value));
            }
        }
        // SAFETY: the options that librbd has filled.
        unsafe { (handles.functions.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        found
    }

    /// Refuses once [`Image::open`] has given up: the image may be another daemon's since.
    fn check_wanted(&self) -> Result<(), OpenError> {
        if self.given_up.load(Ordering::Acquire) { Err(OpenError::GivenUp) } else { Ok(()) }
    }

    /// Takes the exclusive lock; that of a client that is connected is never taken away.
    fn lock(&self, handles: &Handles) -> Result<(), OpenError> {
        self.at("looking for its lock");
        let mut gone = None;
        let until = Instant::now() + self.options.lock_wait;
        while let Some(owner) = owner(handles)? {
            let is_connected = watchers(handles)?.contains(&owner);
            if !self.options.break_lock {
                return Err(OpenError::Locked(owner, is_connected));
            }
            if !is_connected {
                gone = Some(owner);
                break;
            }
            if Instant::now() >= until {
                return Err(OpenError::Locked(owner, true));
            }
            self.check_wanted()?;
            thread::sleep(GONE_PAUSE);
        }
        self.at("taking its lock");
        self.check_wanted()?;
        gone.iter().try_for_each(|gone| blocklist(handles, gone))?;
        self.check_wanted()?;
        // SAFETY: an open image. If a client that is gone has the lock, librbd breaks it.
        let locked = unsafe { (handles.functions.rbd_lock_acquire)(handles.image, EXCLUSIVE) };
        match -locked {
            // librbd has blocklisted the client again, for as long as the cluster does by default, which is shorter.
            ..=0 => gone.iter().try_for_each(|gone| blocklist(handles, gone)),
            libc::EROFS | libc::EBUSY | libc::EAGAIN => {
                Err(OpenError::Locked(owner(handles)?.unwrap_or_else(|| "another".to_owned()), true))
            }
            errno => Err(OpenError::Failed("take the exclusive lock", error(-errno))),
        }
    }
}

impl Opener {
    /// Takes the exclusive lock; that of a client that is not blocklisted is never taken away, connected or not.
    fn lock_in_group(
        &self,
        handles: &Handles,
        is_barred: &dyn Fn(&str) -> Result<bool, OpenError>,
    ) -> Result<(), OpenError> {
        let functions = self.library.objects()?;
        if let Some(address) = owner(handles)? {
            if !is_barred(&address)? {
                return Err(held_by(&functions, handles)?);
            }
            let address = text(&address)?;
            // SAFETY: an open image and a valid string.
            let broken = unsafe { (functions.rbd_lock_break)(handles.image, EXCLUSIVE, address.as_ptr()) };
            // ENOENT: it has been given up, or broken by another, meanwhile.
            if broken != -libc::ENOENT {
                check("break the lock of a client that is blocklisted", broken)?;
            }
        }
        // SAFETY: an open image.
        let locked = unsafe { (handles.functions.rbd_lock_acquire)(handles.image, EXCLUSIVE) };
        match -locked {
            ..=0 => Ok(()),
            libc::EROFS | libc::EBUSY | libc::EAGAIN => Err(held_by(&functions, handles)?),
            errno => Err(OpenError::Failed("take the exclusive lock", error(-errno))),
        }
    }
}

/// The client that has the lock, by its number: none any more is told as a failure, after which it is tried again.
fn held_by(functions: &ObjectFunctions, handles: &Handles) -> Result<OpenError, OpenError> {
    let mut texts = [[0u8; LOCKERS_BYTES]; 4];
    let mut lengths = [LOCKERS_BYTES; 4];
    let mut exclusive = 0;
    let [tag, clients, cookies, addresses] = texts.each_mut().map(|text| text.as_mut_ptr().cast());
    let [tag_len, clients_len, cookies_len, addresses_len] = lengths.each_mut().map(ptr::from_mut);
    // SAFETY: an open image, and memory of the lengths that are given.
    let listed = unsafe {
        (functions.rbd_list_lockers)(
            handles.image,
            &raw mut exclusive,
            tag,
            tag_len,
            clients,
            clients_len,
            cookies,
            cookies_len,
            addresses,
            addresses_len,
        )
    };
    if listed < 0 {
        return Err(OpenError::Failed("look who has its lock", error(listed as c_int)));
    }
    let [_, clients, _, _] = texts;
    let first = if listed > 0 { until_zero(&clients) } else { String::new() };
    match first.strip_prefix("client.").and_then(|number| number.parse().ok()) {
        Some(number) => Ok(OpenError::HeldBy(number)),
        None => Err(OpenError::Failed("take the exclusive lock", io::Error::from_raw_os_error(libc::EBUSY))),
    }
}

/// Fences a client for [`BLOCKLISTED_SECONDS`], and waits until our client knows of it: OSDs that hear from us later
/// take nothing from that client any more.
fn blocklist(handles: &Handles, client: &str) -> Result<(), OpenError> {
    let address = text(client)?.into_raw();
    // SAFETY: a connected cluster and a valid string, which is only read.
    let listed =
        unsafe { (handles.functions.rados_blocklist_add)(handles.cluster(), address, BLOCKLISTED_SECONDS) };
    // SAFETY: made above, and not changed.
    drop(unsafe { CString::from_raw(address) });
    check("blocklist the client that had the lock", listed)?;
    // SAFETY: a connected cluster.
    let known = unsafe { (handles.functions.rados_wait_for_latest_osdmap)(handles.cluster()) };
    check("wait for the latest map of the cluster", known)
}

/// The address of the client that has the lock.
fn owner(handles: &Handles) -> Result<Option<String>, OpenError> {
    let mut mode = 0;
    let mut owners = [ptr::null_mut::<c_char>(); 8];
    let mut count = owners.len();
    // SAFETY: an open image, and room for as many strings as is said.
    let asked = unsafe {
        (handles.functions.rbd_lock_get_owners)(
            handles.image,
            &raw mut mode,
            owners.as_mut_ptr(),
            &raw mut count,
        )
    };
    if asked == -libc::ENOENT {
        return Ok(None);
    }
    check("look for its lock", asked)?;
    let first = owners.first().filter(|_| count > 0).copied();
    // SAFETY: librbd has filled what it counts with strings.
    let owner = first.map(|first| unsafe { string(first) });
    // SAFETY: the strings that librbd has made.
    unsafe { (handles.functions.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
    Ok(owner)
}

/// The addresses of the clients that have the image open for writing.
fn watchers(handles: &Handles) -> Result<Vec<String>, OpenError> {
    let none = Watcher { address: ptr::null_mut(), id: 0, cookie: 0 };
    let mut watchers = vec![none; WATCHERS_MAX];
    let mut count = watchers.len();
    // SAFETY: an open image, and room for as many as is said.
    let listed = unsafe {
        (handles.functions.rbd_watchers_list)(handles.image, watchers.as_mut_ptr(), &raw mut count)
    };
    check("look who has it open", listed)?;
    // SAFETY: librbd has filled what it counts with strings.
    let addresses = watchers.iter().take(count).map(|one| unsafe { string(one.address) }).collect();
    // SAFETY: the watchers that librbd has filled.
    unsafe { (handles.functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
    Ok(addresses)
}

/// Has changes of the image told to its worker.
fn watch(handles: &mut Handles, jobs: Sender<Job>) -> Result<(), OpenError> {
    let argument = Box::into_raw(Box::new(jobs));
    let mut number = 0;
    // SAFETY: an open image, a callback of the type that is asked for, and an argument that stays until the watch ends.
    let watched = unsafe {
        (handles.functions.rbd_update_watch)(handles.image, &raw mut number, updated, argument.cast())
    };
    if watched < 0 {
        // SAFETY: nobody has it.
        drop(unsafe { Box::from_raw(argument) });
        return check("watch the image", watched);
    }
    handles.watch = Some((number, argument));
    Ok(())
}

/// The image has changed. librbd must not be called from here.
unsafe extern "C" fn updated(argument: *mut std::ffi::c_void) {
    // SAFETY: the argument of `watch`, which stays until the watch has ended.
    let jobs = unsafe { &*argument.cast::<Sender<Job>>() };
    let _ = jobs.send(Job::Updated);
}

/// What librbd has written, up to the zero.
fn until_zero(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}
