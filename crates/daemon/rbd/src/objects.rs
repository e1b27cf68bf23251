//! Objects of a pool: asynchronous reads and conditional writes, notifications, watches.
//!
//! Each call is ended once, by the closure that was given with it, on a thread of librados, where nothing may wait. No
//! call has a time limit: one that the cluster does not answer is ended when it answers, so a caller that waits for
//! less must take the outcome as unknown. Errors are numbers of Linux; ESHUTDOWN says that the client is blocklisted.
//!
//! Invariants: what librados writes to or reads from lives until the callback; a version is what the cluster has said of
//! the operation itself, never of an earlier one.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use buf::Errno;

use crate::Library;
use crate::client::{Client, check, text};
use crate::open_error::OpenError;
use crate::symbols::{CREATE_EXCLUSIVE, CREATE_IDEMPOTENT, Handle, ObjectFunctions};

/// How long the watchers of an object have to acknowledge a notification.
const NOTIFY_MS: u64 = 5_000;
/// A watch whose client is silent for so long is ended by the cluster; librados renews it several times meanwhile.
const WATCH_SECONDS: u32 = 10;

/// The objects of a pool and a namespace, through one client. Clones are the same.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Entered>);

struct Entered {
    functions: Arc<ObjectFunctions>,
    pool: Handle,
    destroy: unsafe extern "C" fn(Handle),
    client: Client,
    number: i64,
}

// SAFETY: librados takes calls of any thread on the same handle at any time.
unsafe impl Send for Entered {}
// SAFETY: as above.
unsafe impl Sync for Entered {}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The cluster's number of the object's last change.
    pub version: u64,
    /// How many bytes it has.
    pub bytes_total: u64,
    /// Its bytes, as many as were asked for.
    pub bytes: Vec<u8>,
}

impl Contents {
    /// Whether all bytes of the object are here. A part of an object is not what was written.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.bytes_total
    }
}

/// What a conditional write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteIf {
    /// It creates the object: EEXIST if it is there.
    Absent,
    /// The object has this version: ERANGE if it has a later one, EOVERFLOW if it has an earlier one or is not there.
    Version(u64),
    /// Whatever stands.
    Always,
}

/// What a watch has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Another client has notified the watchers.
    Notified {
        /// The client's number.
        by: u64,
        /// What it said.
        message: Vec<u8>,
    },
    /// The watch has ended, with this error: notifications may have been missed, and none will come. It is to be made
    /// again.
    Lost(Errno),
}

type Done = Box<dyn FnOnce(Result<(), Errno>, u64) + Send>;

/// A call that librados has. It keeps the pool, and so the client, until it has ended.
struct Call {
    pool: Pool,
    done: Done,
    /// What the operation was built in, and how that is given back.
    operation: Option<(Handle, unsafe extern "C" fn(Handle))>,
}

impl Pool {
    /// The objects of a pool, in a namespace if one is named. Waits for the cluster's map.
    ///
    /// # Errors
    /// There is no such pool; the library is too old.
    pub fn enter(
        library: &Library,
        client: &Client,
        pool: &str,
        namespace: Option<&str>,
    ) -> Result<Self, OpenError> {
        let name = text(pool)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a connected cluster, a valid string, and a place for the handle.
        let found =
            unsafe { (library.0.rados_ioctx_create)(client.handle(), name.as_ptr(), &raw mut handle) };
        if found == -libc::ENOENT {
            return Err(OpenError::NoPool(pool.to_owned()));
        }
        check("enter the pool", found)?;
        Self::of(library, client, handle, namespace)
    }

    /// The same by the pool's number.
    ///
    /// # Errors
    /// As [`Pool::enter`].
    pub fn enter_by_number(
        library: &Library,
        client: &Client,
        number: i64,
        namespace: Option<&str>,
    ) -> Result<Self, OpenError> {
        let functions = library.objects()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a connected cluster, and a place for the handle.
        let found = unsafe { (functions.rados_ioctx_create2)(client.handle(), number, &raw mut handle) };
        if found == -libc::ENOENT {
            return Err(OpenError::NoPool(number.to_string()));
        }
        check("enter the pool", found)?;
        Self::of(library, client, handle, namespace)
    }

    fn of(
        library: &Library,
        client: &Client,
        pool: Handle,
        namespace: Option<&str>,
    ) -> Result<Self, OpenError> {
        let destroy = library.0.rados_ioctx_destroy;
        let functions = match library.objects() {
            Ok(functions) => functions,
            Err(error) => {
                // SAFETY: an open pool that nobody else has.
                unsafe { destroy(pool) };
                return Err(error.into());
            }
        };
        // SAFETY: an open pool.
        let number = unsafe { (library.0.rados_ioctx_get_id)(pool) };
        let entered = Pool(Arc::new(Entered { functions, pool, destroy, client: client.clone(), number }));
        if let Some(namespace) = namespace {
            let namespace = text(namespace)?;
            // SAFETY: an open pool and a valid string.
            unsafe { (library.0.rados_ioctx_set_namespace)(pool, namespace.as_ptr()) };
        }
        Ok(entered)
    }

    /// The pool's number in the cluster.
    pub fn number(&self) -> i64 {
        self.0.number
    }

    /// The client that it goes through.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Whether the cluster's map, as the client has it, has the pool: an object of a pool that was deleted is said not
    /// to exist.
    pub fn exists(&self) -> bool {
        let mut name = [0u8; 256];
        // SAFETY: a connected cluster, and memory of the length that is given.
        let found = unsafe {
            (self.0.functions.rados_pool_reverse_lookup)(
                self.0.client.handle(),
                self.0.number,
                name.as_mut_ptr().cast(),
                name.len(),
            )
        };
        found >= 0 || found == -libc::ERANGE
    }

    /// Reads the first `most` bytes of an object, its length and its version, as they stand together; `None`: there is
    /// no such object.
    pub fn read(
        &self,
        object: &str,
        most: usize,
        done: impl FnOnce(Result<Option<Contents>, Errno>) + Send + 'static,
    ) {
        let Ok(name) = CString::new(object) else { return done(Err(Errno(libc::EINVAL))) };
        let functions = &self.0.functions;
        let found = Found { size: 0, read: 0, results: [0; 2], bytes: vec![0; most] };
        let place = Place(Box::into_raw(Box::new(found)));
        // SAFETY: it makes an operation, which is given back in the callback.
        let operation = unsafe { (functions.rados_create_read_op)() };
        let into = place.0;
        // SAFETY: what is written to stays in its place until the callback.
        unsafe {
            let memory = (*into).bytes.as_mut_ptr().cast();
            let results = (&raw mut (*into).results).cast::<c_int>();
            (functions.rados_read_op_stat)(operation, &raw mut (*into).size, ptr::null_mut(), results);
            let read = &raw mut (*into).read;
            (functions.rados_read_op_read)(operation, 0, most, memory, read, results.add(1));
        }
        let done = move |result: Result<(), Errno>, version| {
            let found = place.take();
            done(match result {
                Ok(()) => found.contents(version).map(Some),
                Err(Errno(libc::ENOENT)) => Ok(None),
                Err(errno) => Err(errno),
            });
        };
        let release = functions.rados_release_read_op;
        self.give(Box::new(done), Some((operation, release)), |completion| {
            // SAFETY: an open pool, an operation that stays until the callback, and a valid string, which is copied.
            unsafe {
                (functions.rados_aio_read_op_operate)(operation, self.0.pool, completion, name.as_ptr(), 0)
            }
        });
    }

    /// Puts these bytes in the place of an object's, if the condition holds; gives its version then.
    pub fn write(
        &self,
        object: &str,
        condition: WriteIf,
        bytes: &[u8],
        done: impl FnOnce(Result<u64, Errno>) + Send + 'static,
    ) {
        let functions = &self.0.functions;
        let build = |operation| {
            // SAFETY: an operation, and memory of the length that is given, which is copied.
            unsafe {
                match condition {
                    WriteIf::Absent => {
                        (functions.rados_write_op_create)(operation, CREATE_EXCLUSIVE, ptr::null());
                    }
                    WriteIf::Version(version) => {
                        (functions.rados_write_op_assert_version)(operation, version);
                    }
                    WriteIf::Always => {
                        (functions.rados_write_op_create)(operation, CREATE_IDEMPOTENT, ptr::null());
                    }
                }
                (functions.rados_write_op_write_full)(operation, bytes.as_ptr().cast(), bytes.len());
            }
        };
        self.change(object, build, done);
    }

    /// Removes an object; ENOENT if there is none.
    pub fn remove(&self, object: &str, done: impl FnOnce(Result<u64, Errno>) + Send + 'static) {
        let functions = &self.0.functions;
        // SAFETY: an operation.
        self.change(object, |operation| unsafe { (functions.rados_write_op_remove)(operation) }, done);
    }

    fn change(
        &self,
        object: &str,
        build: impl FnOnce(Handle),
        done: impl FnOnce(Result<u64, Errno>) + Send + 'static,
    ) {
        let Ok(name) = CString::new(object) else { return done(Err(Errno(libc::EINVAL))) };
        let functions = &self.0.functions;
        // SAFETY: it makes an operation, which is given back in the callback.
        let operation = unsafe { (functions.rados_create_write_op)() };
        build(operation);
        let done = move |result: Result<(), Errno>, version| done(result.map(|()| version));
        let release = functions.rados_release_write_op;
        self.give(Box::new(done), Some((operation, release)), |completion| {
            let (pool, now) = (self.0.pool, ptr::null_mut());
            // SAFETY: as for a read.
            unsafe {
                (functions.rados_aio_write_op_operate)(operation, pool, completion, name.as_ptr(), now, 0)
            }
        });
    }

    /// Tells the watchers of an object; ends when all have heard of it, or 5 s later.
    pub fn notify(
        &self,
        object: &str,
        message: &[u8],
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let Ok(name) = CString::new(object) else { return done(Err(Errno(libc::EINVAL))) };
        let Ok(len) = c_int::try_from(message.len()) else { return done(Err(Errno(libc::EMSGSIZE))) };
        let functions = &self.0.functions;
        self.give(Box::new(move |result, _| done(result)), None, |completion| {
            let none = ptr::null_mut();
            // SAFETY: an open pool; a valid string and memory of the length that is given, which are copied. No answers
            // are wanted.
            unsafe {
                (functions.rados_aio_notify)(
                    self.0.pool,
                    name.as_ptr(),
                    completion,
                    message.as_ptr().cast(),
                    len,
                    NOTIFY_MS,
                    none,
                    ptr::null_mut(),
                )
            }
        });
    }

    fn give(
        &self,
        done: Done,
        operation: Option<(Handle, unsafe extern "C" fn(Handle))>,
        start: impl FnOnce(Handle) -> c_int,
    ) {
        let functions = &self.0.functions;
        let call = Box::into_raw(Box::new(Call { pool: self.clone(), done, operation }));
        let mut completion = ptr::null_mut();
        // SAFETY: the callback fits its type, and its argument stays until it was called.
        let made =
            unsafe { (functions.rados_aio_create_completion2)(call.cast(), ended, &raw mut completion) };
        let refused = if made < 0 { made } else { start(completion) };
        if refused >= 0 {
            return;
        }
        if made >= 0 {
            // SAFETY: a completion that was not given to an operation.
            unsafe { (functions.rados_aio_release)(completion) };
        }
        // SAFETY: a call that was refused is not called back.
        unsafe { Box::from_raw(call) }.end(refused, 0);
    }

    /// Watches an object, which must be there. Waits for the cluster. `tell` is called on a thread of librados.
    ///
    /// # Errors
    /// The cluster's answer.
    pub fn watch(
        &self,
        object: &str,
        tell: impl Fn(WatchEvent) + Send + Sync + 'static,
    ) -> Result<Watch, Errno> {
        let object = CString::new(object).map_err(|_| Errno(libc::EINVAL))?;
        let watching = Watching { pool: self.clone(), object, tell: Box::new(tell) };
        let argument = Box::into_raw(Box::new(watching));
        let mut number = 0;
        // SAFETY: an open pool, a valid string, callbacks of the types that are asked for, and an argument that stays
        // until the watch has ended.
        let watched = unsafe {
            (self.0.functions.rados_watch3)(
                self.0.pool,
                (*argument).object.as_ptr(),
                &raw mut number,
                notified,
                watch_lost,
                WATCH_SECONDS,
                argument.cast(),
            )
        };
        let watch = Watch { pool: self.clone(), number: (watched >= 0).then_some(number), argument };
        if watched < 0 { Err(Errno(-watched)) } else { Ok(watch) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: an open pool; no call is out, as each keeps it.
        unsafe { (self.destroy)(self.pool) };
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What a read writes to.
struct Found {
    size: u64,
    read: usize,
    results: [c_int; 2],
    bytes: Vec<u8>,
}

/// Where that is while librados has it.
struct Place(*mut Found);

// SAFETY: one thread has it at a time.
unsafe impl Send for Place {}

impl Place {
    /// librados is done with it.
    fn take(self) -> Found {
        // SAFETY: made by `read`, and taken back once.
        *unsafe { Box::from_raw(self.0) }
    }
}

impl Found {
    fn contents(mut self, version: u64) -> Result<Contents, Errno> {
        if let Some(failed) = self.results.iter().find(|result| **result < 0) {
            return Err(Errno(-failed));
        }
        self.bytes.truncate(self.read);
        Ok(Contents { version, bytes_total: self.size, bytes: self.bytes })
    }
}

impl Call {
    fn end(self, result: c_int, version: u64) {
        let Call { pool, done, operation } = self;
        if let Some((operation, release)) = operation {
            // SAFETY: librados is done with the operation, and it is given back here only.
            unsafe { release(operation) };
        }
        done(if result < 0 { Err(Errno(-result)) } else { Ok(()) }, version);
        drop(pool);
    }
}

/// librados is done with a call.
unsafe extern "C" fn ended(completion: Handle, argument: *mut c_void) {
    // SAFETY: the argument is what `give` has made, and librados calls back once.
    let call = unsafe { Box::from_raw(argument.cast::<Call>()) };
    let functions = call.pool.0.functions.clone();
    // SAFETY: the completion is this call's, and is released here only.
    let (result, version) = unsafe {
        let result = (functions.rados_aio_get_return_value)(completion);
        let version = (functions.rados_aio_get_version)(completion);
        (functions.rados_aio_release)(completion);
        (result, version)
    };
    call.end(result, version);
}

struct Watching {
    pool: Pool,
    object: CString,
    tell: Box<dyn Fn(WatchEvent) + Send + Sync>,
}

/// A watch of an object. Dropping it ends it, and waits for the cluster.
pub struct Watch {
    pool: Pool,
    /// `None`: it was refused.
    number: Option<u64>,
    argument: *mut Watching,
}

// SAFETY: the argument is only touched by callbacks, by shared reference, and by the drop after the last of them.
unsafe impl Send for Watch {}

impl Drop for Watch {
    fn drop(&mut self) {
        let functions = &self.pool.0.functions;
        if let Some(number) = self.number.take() {
            // SAFETY: an open pool and a watch of it; after the flush no callback runs any more.
            unsafe {
                let _ = (functions.rados_unwatch2)(self.pool.0.pool, number);
                let _ = (functions.rados_watch_flush)(self.pool.0.client.handle());
            }
        }
        // SAFETY: made by `watch`, and no callback has it any more.
        drop(unsafe { Box::from_raw(self.argument) });
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("number", &self.number).finish_non_exhaustive()
    }
}

unsafe extern "C" fn notified(
    argument: *mut c_void,
    notification: u64,
    watch: u64,
    by: u64,
    data: *mut c_void,
    len: usize,
) {
    // SAFETY: the argument of `watch`, which stays until the watch has ended.
    let watching = unsafe { &*argument.cast::<Watching>() };
    let message = if data.is_null() || len == 0 {
        Vec::new()
    } else {
        // SAFETY: librados says how many bytes there are, which stay until this returns.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
    };
    (watching.tell)(WatchEvent::Notified { by, message });
    let entered = &watching.pool.0;
    let none = ptr::null::<c_char>();
    // SAFETY: an open pool and a valid string. An acknowledgement that is lost delays the other side by some seconds.
    unsafe {
        let _ = (entered.functions.rados_notify_ack)(
            entered.pool,
            watching.object.as_ptr(),
            notification,
            watch,
            none,
            0,
        );
    }
}

unsafe extern "C" fn watch_lost(argument: *mut c_void, _watch: u64, error: c_int) {
    // SAFETY: as above.
    let watching = unsafe { &*argument.cast::<Watching>() };
    (watching.tell)(WatchEvent::Lost(Errno(error.saturating_abs())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_or_shorter_than_was_read_is_not_whole() {
        let found = |size, read| Found { size, read, results: [0; 2], bytes: vec![7; 4] };
        for (size, read, is_whole) in [(4, 4, true), (0, 0, true), (5, 4, false), (4, 3, false)] {
            let contents = found(size, read).contents(1).unwrap();
            assert_eq!((contents.is_whole(), contents.bytes.len()), (is_whole, read), "{read} of {size}");
        }
    }
}
