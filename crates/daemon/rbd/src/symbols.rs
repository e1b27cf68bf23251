//! The functions of librados and librbd that are used, as their headers declare them (`rados/librados.h`,
//! `rbd/librbd.h` of Ceph 16), looked up when the libraries are opened. Nothing of Ceph is needed to build.
//!
//! Invariant: the libraries stay open as long as the process runs, so a function that was found can be called.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t` are untyped pointers in C, too.
pub(crate) type Handle = *mut c_void;

/// `rbd_callback_t`, `rados_callback_t`.
pub(crate) type Completed = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);
/// `rbd_update_callback_t`.
pub(crate) type Updated = unsafe extern "C" fn(argument: *mut c_void);
/// The callback of `rbd_diff_iterate2`: a negative value ends the search.
pub(crate) type Differs = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rados_watchcb2_t`: argument, number of the notification, watch, who notifies, what it says.
pub(crate) type Notified = unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// `rados_watcherrcb_t`: argument, watch, error.
pub(crate) type WatchLost = unsafe extern "C" fn(*mut c_void, u64, c_int);

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_uint,
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const EXCLUSIVE: c_uint = 0;
/// `LIBRADOS_CREATE_EXCLUSIVE`, `LIBRADOS_CREATE_IDEMPOTENT`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;
pub(crate) const CREATE_IDEMPOTENT: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const THICK: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_OBJECT_MAP`.
pub(crate) const FEATURE_OBJECT_MAP: u64 = 1 << 3;
/// `RBD_FEATURE_FAST_DIFF`.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;

/// The files that are looked for, and the Debian package of each.
const FILES: [(&CStr, &str); 2] = [(c"librados.so.2", "librados2"), (c"librbd.so.1", "librbd1")];

/// The libraries, open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libraries([(usize, &'static CStr); 2]);

macro_rules! functions {
    ($(#[$about:meta])* $of:ident { $($library:tt $name:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $of {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $of {
            pub(crate) fn look_up(libraries: Libraries) -> Result<Self, LibraryError> {
                Ok($of {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let address = symbol(libraries.0[$library], name)?;
                        // SAFETY: the function of this name has this type (see the headers); a pointer to data is as
                        // large as one to a function on every system that has dlopen.
                        unsafe {
                            std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                        }
                    },)*
                })
            }
        }
    };
}

// Before each stands the library: 0 is librados, 1 librbd.
functions! {
    /// What images need.
    Functions {
        0 rados_create(*mut Handle, *const c_char) -> c_int;
        0 rados_conf_read_file(Handle, *const c_char) -> c_int;
        0 rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        0 rados_connect(Handle) -> c_int;
        0 rados_shutdown(Handle);
        0 rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
        0 rados_get_instance_id(Handle) -> u64;
        0 rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
        0 rados_wait_for_latest_osdmap(Handle) -> c_int;
        0 rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        0 rados_ioctx_destroy(Handle);
        0 rados_ioctx_get_id(Handle) -> i64;
        0 rados_ioctx_set_namespace(Handle, *const c_char);
        1 rbd_version(*mut c_int, *mut c_int, *mut c_int);
        1 rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        1 rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        1 rbd_close(Handle) -> c_int;
        1 rbd_get_size(Handle, *mut u64) -> c_int;
        1 rbd_get_features(Handle, *mut u64) -> c_int;
        1 rbd_get_id(Handle, *mut c_char, usize) -> c_int;
        1 rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        1 rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        1 rbd_lock_acquire(Handle, c_uint) -> c_int;
        1 rbd_lock_get_owners(Handle, *mut c_uint, *mut *mut c_char, *mut usize) -> c_int;
        1 rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        1 rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
        1 rbd_watchers_list_cleanup(*mut Watcher, usize);
        1 rbd_update_watch(Handle, *mut u64, Updated, *mut c_void) -> c_int;
        1 rbd_update_unwatch(Handle, u64) -> c_int;
        1 rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, Differs, *mut c_void) -> c_int;
        1 rbd_aio_create_completion(*mut c_void, Completed, *mut Handle) -> c_int;
        1 rbd_aio_get_return_value(Handle) -> isize;
        1 rbd_aio_release(Handle);
        1 rbd_aio_readv(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
        1 rbd_aio_writev(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
        1 rbd_aio_flush(Handle, Handle) -> c_int;
        1 rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    }
}

functions! {
    /// What a store of objects needs, and images whose lock belongs to a group of gateways.
    ObjectFunctions {
        0 rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
        0 rados_mon_command(
            Handle,
            *const *const c_char,
            usize,
            *const c_char,
            usize,
            *mut *mut c_char,
            *mut usize,
            *mut *mut c_char,
            *mut usize
        ) -> c_int;
        0 rados_buffer_free(*mut c_char);
        0 rados_pool_reverse_lookup(Handle, i64, *mut c_char, usize) -> c_int;
        0 rados_ioctx_create2(Handle, i64, *mut Handle) -> c_int;
        0 rados_aio_create_completion2(*mut c_void, Completed, *mut Handle) -> c_int;
        0 rados_aio_get_return_value(Handle) -> c_int;
        0 rados_aio_get_version(Handle) -> u64;
        0 rados_aio_release(Handle);
        0 rados_create_write_op() -> Handle;
        0 rados_release_write_op(Handle);
        0 rados_write_op_assert_version(Handle, u64);
        0 rados_write_op_create(Handle, c_int, *const c_char);
        0 rados_write_op_write_full(Handle, *const c_char, usize);
        0 rados_write_op_remove(Handle);
        0 rados_aio_write_op_operate(Handle, Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
        0 rados_create_read_op() -> Handle;
        0 rados_release_read_op(Handle);
        0 rados_read_op_stat(Handle, *mut u64, *mut libc::time_t, *mut c_int);
        0 rados_read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
        0 rados_aio_read_op_operate(Handle, Handle, Handle, *const c_char, c_int) -> c_int;
        0 rados_watch3(Handle, *const c_char, *mut u64, Notified, WatchLost, u32, *mut c_void) -> c_int;
        0 rados_unwatch2(Handle, u64) -> c_int;
        0 rados_watch_flush(Handle) -> c_int;
        0 rados_aio_notify(
            Handle,
            *const c_char,
            Handle,
            *const c_char,
            c_int,
            u64,
            *mut *mut c_char,
            *mut usize
        ) -> c_int;
        0 rados_notify_ack(Handle, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
        1 rbd_get_data_pool_id(Handle) -> i64;
        1 rbd_get_overlap(Handle, *mut u64) -> c_int;
        1 rbd_lock_break(Handle, c_uint, *const c_char) -> c_int;
        1 rbd_list_lockers(
            Handle,
            *mut c_int,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize
        ) -> isize;
    }
}

impl fmt::Debug for ObjectFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectFunctions")
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functions")
    }
}

impl Functions {
    /// Opens both libraries where the system's loader finds them.
    pub(crate) fn open() -> Result<(Self, Libraries), LibraryError> {
        let [rados, rbd] = FILES.map(|(file, package)| open(file).map_err(|why| absent(file, package, &why)));
        let (rados, rbd) = (rados? as usize, rbd? as usize);
        let libraries = Libraries([(rados, FILES[0].0), (rbd, FILES[1].0)]);
        Ok((Functions::look_up(libraries)?, libraries))
    }

    /// Opens the libraries of these files, for tests.
    pub(crate) fn open_files(files: [&CStr; 2]) -> Result<(Self, Libraries), LibraryError> {
        let [rados, rbd] = files.map(|file| open(file).map_err(|why| absent(file, "(a test's)", &why)));
        let (rados, rbd) = (rados? as usize, rbd? as usize);
        let libraries = Libraries([(rados, FILES[0].0), (rbd, FILES[1].0)]);
        Ok((Functions::look_up(libraries)?, libraries))
    }

    /// The version of librbd.
    pub(crate) fn version(&self) -> (c_int, c_int, c_int) {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: three numbers are written, which are ours.
        unsafe { (self.rbd_version)(&raw mut major, &raw mut minor, &raw mut extra) };
        (major, minor, extra)
    }
}

/// Why the libraries cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryError {
    /// A file was not found, or cannot be loaded.
    Absent {
        /// The file.
        file: String,
        /// The package of Debian that has it.
        package: String,
        /// What the loader said.
        why: String,
    },
    /// A library lacks a function: it is too old.
    Lacks {
        /// The file.
        file: String,
        /// The function.
        function: String,
    },
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibraryError::Absent { file, package, why } => {
                write!(f, "{file} cannot be loaded ({why}): install the package {package}")
            }
            LibraryError::Lacks { file, function } => {
                write!(f, "{file} has no function {function}: Ceph 16 or later is needed")
            }
        }
    }
}

impl std::error::Error for LibraryError {}

fn absent(file: &CStr, package: &str, why: &str) -> LibraryError {
    LibraryError::Absent {
        file: file.to_string_lossy().into_owned(),
        package: package.to_owned(),
        why: why.to_owned(),
    }
}

/// Opens a library, for as long as the process runs.
fn open(file: &CStr) -> Result<Handle, String> {
    // SAFETY: a valid string. The library's own initializers run.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(last_error()) } else { Ok(handle) }
}

fn symbol((library, file): (usize, &CStr), name: &'static str) -> Result<Handle, LibraryError> {
    // SAFETY: an open library and a string that ends with a zero.
    let address = unsafe { libc::dlsym(library as Handle, name.as_ptr().cast()) };
    if address.is_null() {
        let function = name.trim_end_matches('\0').to_owned();
        return Err(LibraryError::Lacks { file: file.to_string_lossy().into_owned(), function });
    }
    Ok(address)
}

/// What the loader says of its last failure on this thread.
fn last_error() -> String {
    // SAFETY: the string stays until the next call of the loader on this thread.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above; it ends with a zero.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}
