//! Why an image cannot be opened, as a message for the operator.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::LibraryError;
use crate::client::CONNECT_SECONDS;

/// Why an image cannot be opened. The text goes behind the image's name.
#[derive(Debug)]
pub enum OpenError {
    /// The libraries cannot be had.
    Library(LibraryError),
    /// A name has a zero byte in it.
    BadName,
    /// The configuration file cannot be read.
    Conf(PathBuf, io::Error),
    /// librados does not take a setting that is needed.
    Setting(&'static str, io::Error),
    /// There is no monitor or no key.
    NoKey(PathBuf, String),
    /// The cluster does not accept the user or its key.
    Refused(PathBuf, String),
    /// No monitor has answered.
    MonitorsAway(PathBuf),
    /// There is no such pool.
    NoPool(String),
    /// There is no such image in the pool.
    NoImage(String, String),
    /// The image has no exclusive lock.
    NoLock(String),
    /// This process has the image open already.
    OpenHere,
    /// Another client has the lock. Whether it is connected.
    Locked(String, bool),
    /// A client of this number has the lock, and is not known to be blocklisted.
    HeldBy(u64),
    /// A setting of the image or its pool would make writes unstable.
    Cached(String, String),
    /// The cluster has not answered in this time; what was asked.
    Silent(Duration, &'static str),
    /// An earlier attempt to open it still waits for the cluster.
    StillOpening,
    /// This attempt was given up.
    GivenUp,
    /// The monitors have refused what they were asked; what they said.
    Monitors(String, io::Error),
    /// Something else went wrong; what was asked.
    Failed(&'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Library(why) => why.fmt(f),
            OpenError::BadName => f.write_str("a name must not hold a zero byte"),
            OpenError::Conf(path, why) => {
                write!(f, "cannot read the configuration of Ceph, {}: {why}; set conf=", path.display())
            }
            OpenError::Setting(name, why) => write!(f, "librados does not take the setting {name}: {why}"),
            OpenError::NoKey(path, user) => write!(
                f,
                "{} names no monitor (mon_host), or no readable keyring has a key of client.{user}",
                path.display()
            ),
            OpenError::Refused(path, user) => write!(
                f,
                "the cluster of {} refuses client.{user}: check the user, its key and its capabilities",
                path.display()
            ),
            OpenError::MonitorsAway(path) => {
                write!(f, "no monitor of {} answers within {CONNECT_SECONDS} s", path.display())
            }
            OpenError::NoPool(pool) => write!(f, "there is no pool \"{pool}\""),
            OpenError::NoImage(image, pool) => write!(f, "there is no image \"{image}\" in \"{pool}\""),
            OpenError::NoLock(name) => write!(
                f,
                "the image has no exclusive lock, which keeps two daemons from serving it: run `rbd feature enable \
                 {name} exclusive-lock`"
            ),
            OpenError::OpenHere => f.write_str("it is already open as another volume of this daemon"),
            OpenError::Locked(owner, true) => {
                write!(f, "it is in use by another client, {owner}, which is connected")
            }
            OpenError::Locked(owner, false) => write!(
                f,
                "it is locked by a client that is not connected, {owner}: if that has ended for good, set \
                 break_lock=on, which blocklists it and takes the lock"
            ),
            OpenError::HeldBy(client) => write!(f, "client.{client} has its lock"),
            OpenError::Cached(option, value) => write!(
                f,
                "{option} is \"{value}\" for this image, so that written data could be lost: remove that with `rbd \
                 config image rm` or `rbd config pool rm`"
            ),
            OpenError::Silent(time, what) => {
                write!(f, "the cluster does not answer within {time:?} ({what})")
            }
            OpenError::StillOpening => f.write_str(
                "an earlier attempt to open it still waits for the cluster; try again when that answers",
            ),
            OpenError::GivenUp => f.write_str("the attempt to open it was given up"),
            OpenError::Monitors(said, why) => write!(f, "the monitors refuse it: {why} {said}"),
            OpenError::Failed(what, why) => write!(f, "cannot {what}: {why}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<LibraryError> for OpenError {
    fn from(error: LibraryError) -> Self {
        OpenError::Library(error)
    }
}

impl OpenError {
    /// Whether it may pass without a change of the configuration: another client has the image, or the cluster does not
    /// answer.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            OpenError::Locked(..)
                | OpenError::HeldBy(_)
                | OpenError::Monitors(..)
                | OpenError::MonitorsAway(_)
                | OpenError::Silent(..)
                | OpenError::Failed(..)
                | OpenError::StillOpening
        )
    }

    /// Whether the cluster has not answered.
    pub fn is_silent(&self) -> bool {
        matches!(self, OpenError::MonitorsAway(_) | OpenError::Silent(..) | OpenError::StillOpening)
    }

    /// Whether another client has the image now.
    pub fn is_locked(&self) -> bool {
        matches!(self, OpenError::Locked(..) | OpenError::HeldBy(_))
    }
}
