//! How an initiator is set up.

use std::time::Duration;

use reactor::IoChoice;

use crate::identity::{IsidChoice, PathIdentity};

/// Settings of an initiator.
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
    /// Which system interface does the I/O.
    pub io: IoChoice,
    /// Memory for payloads, in bytes (rounded up to whole MiB).
    pub memory: usize,
    /// How long a wait polls before it sleeps, in nanoseconds: less latency for more processor time.
    /// 0: it does not poll.
    pub poll_ns_max: u64,
    /// Which ISID iSCSI targets see.
    pub isid: IsidChoice,
    /// The paths of a process that has ended ([`Initiator::path_identities`](crate::Initiator::path_identities)), for
    /// [`IsidChoice::Inherited`]: a path to the same portal becomes the same nexus again, and any other path a
    /// different one, in whatever order they are opened.
    pub inherited: Vec<PathIdentity>,
    /// Longest time to open a volume, in addition to the limits of its URL.
    pub open_timeout: Duration,
    /// Called with a warning, for people, if the URL of a volume is valid but probably a mistake. Never with a secret.
    pub warn: fn(&str),
    /// How long [`Initiator::close`](crate::Initiator::close) waits for an orderly end.
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
