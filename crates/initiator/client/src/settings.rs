//! How an initiator is set up.

use std::time::Duration;

use reactor::IoChoice;

use crate::identity::{IsidChoice, PathIdentity};

/// How an initiator is set up.
/// ```
/// use std::time::Duration;
/// use blockwire_client::{Initiator, IoChoice, Settings};
///
/// let settings = Settings { io: IoChoice::Epoll, open_timeout: Duration::from_secs(5), ..Settings::default() };
/// let initiator = Initiator::new(settings)?;
/// assert_eq!(initiator.io_backend().to_string(), "epoll, as asked");
/// # Ok::<(), blockwire_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which system interface moves the bytes.
    pub io: IoChoice,
    /// Memory for payloads, in bytes (rounded up to whole MiB).
    pub memory: usize,
    /// How long a wait may look at memory before it sleeps, in nanoseconds: less latency for more
    /// processor. 0: never.
    pub poll_ns_max: u64,
    /// Which ISID iSCSI targets see.
    pub isid: IsidChoice,
    /// The paths of a process that is gone ([`Initiator::path_identities`](crate::Initiator::path_identities)), with
    /// [`IsidChoice::Inherited`]: a path to the same place is the same nexus again, and any other path is another
    /// one, in whatever order they are opened.
    pub inherited: Vec<PathIdentity>,
    /// Longest time for a volume to open, beside what its URL says.
    pub open_timeout: Duration,
    /// Told what is allowed, but probably a mistake, in the URL of a volume that is opened, for people. Never a secret.
    pub warn: fn(&str),
    /// How long [`Initiator::close`](crate::Initiator::close) waits for a polite end.
    pub close_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            io: IoChoice::Auto,
            memory: 64 << 20,
            poll_ns_max: 0,
            isid: IsidChoice::Passing,
            inherited: Vec::new(),
            open_timeout: Duration::from_secs(30),
            warn: |_| (),
            close_timeout: Duration::from_secs(2),
        }
    }
}
