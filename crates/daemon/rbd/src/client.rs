//! A connected client of a cluster (`rados_t`). What goes by one client is cut off together when that client is
//! blocklisted.
//!
//! Invariant: the cluster's handle is shut down once, when nothing uses it any more, by a thread that may wait.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::Library;
use crate::open_error::OpenError;
use crate::symbols::{Functions, Handle};

/// How long the monitors have for the connection, in seconds: less than for everything, so that librados says what went
/// wrong.
pub(crate) const CONNECT_SECONDS: &str = "15";
/// By when callbacks of ended calls have let go of their client. A handover of an image waits so long if others use its
/// client.
const CALLBACKS_END: Duration = Duration::from_millis(20);
/// Where the cluster is described if nothing is said.
const CONF: &str = "/etc/ceph/ceph.conf";
/// As whom to connect if nothing is said.
const USER: &str = "admin";

/// Settings that must be taken. An operation timeout of librados would end writes that may still arrive later.
const SETTINGS: [(&str, &str); 3] =
    [("client_mount_timeout", CONNECT_SECONDS), ("rbd_cache", "false"), ("rados_osd_op_timeout", "0")];

/// Settings that some version of Ceph does not know: whose defaults do, or that only save work. librados may never wait
/// in our thread for its own limits, because the targets limit what is in flight.
const WISHES: [(&str, &str); 8] = [
    ("rbd_persistent_cache_mode", "disabled"),
    ("rbd_disable_zero_copy_writes", "false"),
    ("rbd_non_blocking_aio", "true"),
    ("rbd_blocklist_on_break_lock", "true"),
    ("objecter_inflight_ops", "1048576"),
    ("objecter_inflight_op_bytes", "17179869184"),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
];

/// Which cluster, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The cluster's configuration file; `None`: `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None`: `admin`.
    pub user: Option<String>,
}

impl ClusterOptions {
    pub(crate) fn conf(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| CONF.into())
    }

    pub(crate) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(USER)
    }
}

/// A connected client. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Client(Arc<Connected>);

struct Connected {
    functions: Arc<Functions>,
    /// Null once it has been shut down.
    handle: Handle,
}

// SAFETY: librados takes calls of any thread on the same handle at any time.
unsafe impl Send for Connected {}
// SAFETY: as above.
unsafe impl Sync for Connected {}

impl Client {
    /// Connects. Waits for the monitors for 15 s at most.
    ///
    /// # Errors
    /// What is wrong with the configuration, the user or its key; the monitors do not answer.
    pub fn connect(library: &Library, options: &ClusterOptions) -> Result<Self, OpenError> {
        Self::connect_with(library, options, &WISHES)
    }

    /// The same for a member of a group of gateways: locks that it breaks are those of clients that are blocklisted
    /// already, for longer than librbd would.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_for_group(library: &Library, options: &ClusterOptions) -> Result<Self, OpenError> {
        let own = [("rbd_blocklist_on_break_lock", "false")];
        Self::connect_with(library, options, &[WISHES.as_slice(), &own].concat())
    }

    fn connect_with(
        library: &Library,
        options: &ClusterOptions,
        wishes: &[(&str, &str)],
    ) -> Result<Self, OpenError> {
        let functions = library.0.clone();
        let (conf, user) = (options.conf(), text(options.user())?);
        let path = CString::new(conf.as_os_str().as_bytes()).map_err(|_| OpenError::BadName)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a valid string, and a place for the handle.
        let made = unsafe { (functions.rados_create)(&raw mut handle, user.as_ptr()) };
        check("create a client", made)?;
        // Dropped on an error, which shuts it down.
        let client = Client(Arc::new(Connected { functions: functions.clone(), handle }));
        let connected = client.configure_and_connect(&conf, &path, wishes);
        match connected {
            Ok(()) => Ok(client),
            Err(error) => {
                client.close();
                Err(match error {
                    Refusal::Known(known) => known,
                    Refusal::Number(libc::ENOENT) => OpenError::NoKey(conf, options.user().to_owned()),
                    Refusal::Number(libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::EINVAL) => {
                        OpenError::Refused(conf, options.user().to_owned())
                    }
                    Refusal::Number(libc::ETIMEDOUT) => OpenError::MonitorsAway(conf),
                    Refusal::Number(errno) => {
                        OpenError::Failed("connect to the cluster", self::error(-errno))
                    }
                })
            }
        }
    }

    fn configure_and_connect(
        &self,
        conf: &Path,
        path: &CStr,
        wishes: &[(&str, &str)],
    ) -> Result<(), Refusal> {
        let functions = &self.0.functions;
        // SAFETY: the handle is valid, and so are the strings.
        let read = unsafe { (functions.rados_conf_read_file)(self.0.handle, path.as_ptr()) };
        if read < 0 {
            return Err(OpenError::Conf(conf.to_owned(), error(read)).into());
        }
        for (name, value) in SETTINGS {
            let set = self.set(name, value)?;
            if set < 0 {
                return Err(OpenError::Setting(name, error(set)).into());
            }
        }
        for (name, value) in wishes {
            self.set(name, value)?;
        }
        // SAFETY: as above.
        let connected = unsafe { (functions.rados_connect)(self.0.handle) };
        if connected < 0 { Err(Refusal::Number(-connected)) } else { Ok(()) }
    }

    fn set(&self, name: &str, value: &str) -> Result<c_int, OpenError> {
        let (name, value) = (text(name)?, text(value)?);
        // SAFETY: a client, and valid strings.
        Ok(unsafe { (self.0.functions.rados_conf_set)(self.0.handle, name.as_ptr(), value.as_ptr()) })
    }

    /// Its number in the cluster: `client.NUMBER`. No other client is ever given it.
    pub fn instance(&self) -> u64 {
        // SAFETY: the cluster is connected.
        unsafe { (self.0.functions.rados_get_instance_id)(self.0.handle) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Shuts it down on this thread, which may wait, if nothing else uses it. The callback of a call that has ended may
    /// have it for a moment still. If others go on using it, the last of them shuts it down.
    pub(crate) fn close(self) {
        let (mut shared, begun) = (self.0, Instant::now());
        loop {
            match Arc::try_unwrap(shared) {
                Ok(mut connected) => return connected.shut_down(),
                Err(_) if begun.elapsed() >= CALLBACKS_END => return,
                Err(back) => shared = back,
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Connected {
    fn shut_down(&mut self) {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: it was created, and nothing else uses it.
            unsafe { (self.functions.rados_shutdown)(handle) };
        }
    }
}

impl Drop for Connected {
    /// The last one may go in a callback of librados, which must not wait.
    fn drop(&mut self) {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        if handle.is_null() {
            return;
        }
        let mut rest = Connected { functions: self.functions.clone(), handle };
        let (give, take) = channel::<Connected>();
        let closer = thread::Builder::new().name("bw-rados-close".to_owned()).spawn(move || {
            if let Ok(mut rest) = take.recv() {
                rest.shut_down();
            }
        });
        match closer {
            Ok(_) => drop(give.send(rest)),
            // Without a thread it stays connected until the process ends.
            Err(_) => rest.handle = ptr::null_mut(),
        }
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// Why a client is not connected.
enum Refusal {
    Known(OpenError),
    /// What `rados_connect` has said.
    Number(c_int),
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        Refusal::Known(error)
    }
}

pub(crate) fn text(text: &str) -> Result<CString, OpenError> {
    CString::new(text).map_err(|_| OpenError::BadName)
}

/// A string of librados or librbd.
///
/// # Safety
/// It is null, or ends with a zero.
pub(crate) unsafe fn string(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

pub(crate) fn check(what: &'static str, result: c_int) -> Result<(), OpenError> {
    if result < 0 { Err(OpenError::Failed(what, error(result))) } else { Ok(()) }
}

pub(crate) fn error(result: c_int) -> io::Error {
    io::Error::from_raw_os_error(-result)
}
