//! Why a volume cannot be opened, as a message for the operator.

use std::{fmt, io, path::PathBuf};

use multipath::VolumeMismatch;
use uuid::Uuid;

use config::name::VolumeName;

/// Why a volume cannot be opened.
#[derive(Debug)]
pub struct VolumeOpenError {
    pub(super) volume: VolumeName,
    pub(super) why: OpenErrorReason,
}

/// What stands against it.
#[derive(Debug)]
pub(super) enum OpenErrorReason {
    Io(&'static str, PathBuf, io::Error),
    NotAFile(PathBuf),
    NotADevice(PathBuf),
    Missing(PathBuf),
    Gone(PathBuf, VolumeName),
    Empty(PathBuf),
    Locked(PathBuf),
    HandOver(HandOverMismatch),
    Moved(PathBuf),
    InUseBySystem(PathBuf),
    Alias(PathBuf, VolumeName),
    BlockTooSmall(PathBuf, u32),
    NoDirect(PathBuf),
    SameUuid(Uuid, VolumeName),
    Rbd(String, Box<rbd::OpenError>),
    Nbd(String, Box<nbd_disk::OpenError>),
    Remote(String),
    Absent(String),
    Replaced(String, VolumeName, VolumeMismatch),
    Leg(usize, Box<OpenErrorReason>),
    SameLeg(usize),
    Nested,
    Misfit(backends::stripe::StripeMismatch),
    Unfit(backends::UnsuitableFile),
    TooLarge(u64, u64),
    NoRandomness(io::Error),
}

/// What does not go from one process to another as it is.
#[derive(Debug)]
pub(super) enum HandOverMismatch {
    /// The configuration makes the file larger than the process that serves has.
    Larger(PathBuf),
    /// Memory of a RAM volume that is to move: what cannot be done with it.
    Memory(&'static str, io::Error),
    /// Its memory has blocks of so many bytes.
    OtherBlocks(u32),
}

impl fmt::Display for HandOverMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandOverMismatch::Larger(path) => write!(
                f,
                "{} is to be larger than the daemon that serves has made it: run `blockwire apply` first",
                path.display()
            ),
            HandOverMismatch::Memory(what, why) => write!(f, "cannot {what} memory that can move: {why}"),
            HandOverMismatch::OtherBlocks(bytes) => {
                write!(f, "its memory has blocks of {bytes} bytes: to change `block`, restart the daemon")
            }
        }
    }
}

impl fmt::Display for VolumeOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume \"{}\": {}", self.volume, self.why)
    }
}

impl fmt::Display for OpenErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenErrorReason::Io(what, path, why) => {
                write!(f, "cannot {what} {}: {why}", path.display())?;
                let hint = sandbox::file_hint(path, sandbox::Access::Write, why);
                hint.map_or(Ok(()), |hint| write!(f, "; {hint}"))
            }
            OpenErrorReason::NotAFile(path) => {
                write!(f, "{} is not a regular file (a device is named without \"file:\")", path.display())
            }
            OpenErrorReason::NotADevice(path) => write!(f, "{} is not a block device", path.display()),
            OpenErrorReason::Missing(path) => {
                write!(
                    f,
                    "{} does not exist; mount its file system, or give size= to create it",
                    path.display()
                )
            }
            OpenErrorReason::Gone(path, name) => write!(
                f,
                "{} is missing and is not created again because it existed before: mount its file system or \
                 restore it, then run `blockwire volume retry {name}`; if its contents are lost for good, run \
                 `blockwire volume delete {name}` and create it again (or create the file with truncate(1) if the \
                 volume is configured)",
                path.display()
            ),
            OpenErrorReason::HandOver(why) => why.fmt(f),
            OpenErrorReason::Empty(path) => {
                write!(f, "{} is smaller than one block; set size=", path.display())
            }
            OpenErrorReason::Moved(path) => {
                write!(f, "{} was removed or replaced while it was being opened; try again", path.display())
            }
            OpenErrorReason::Locked(path) => write!(f, "{} is in use by another process", path.display()),
            OpenErrorReason::InUseBySystem(path) => {
                write!(f, "{} is in use by this system (mounted, or part of another device)", path.display())
            }
            OpenErrorReason::Alias(path, other) => {
                write!(f, "{} is already open as volume \"{other}\"", path.display())
            }
            OpenErrorReason::BlockTooSmall(path, block) => {
                write!(f, "{} has blocks of {block} bytes; set block={block}", path.display())
            }
            OpenErrorReason::NoDirect(path) => {
                write!(f, "{} cannot be opened with O_DIRECT (direct)", path.display())
            }
            OpenErrorReason::Rbd(place, why) => write!(f, "{place}: {why}"),
            OpenErrorReason::Nbd(place, why) => write!(f, "{place}: {why}"),
            OpenErrorReason::Remote(why) | OpenErrorReason::Absent(why) => f.write_str(why),
            OpenErrorReason::Replaced(place, name, stranger) => write!(
                f,
                "{place}: it is not the volume that was served before: {stranger}. To serve the new one, run \
                 `blockwire volume delete {name}`, then create it again, or restart the daemon if the volume is \
                 configured"
            ),
            OpenErrorReason::Leg(leg, why) => write!(f, "leg {leg} of the stripe: {why}"),
            OpenErrorReason::SameLeg(leg) => write!(f, "it is the same volume as leg {leg}"),
            OpenErrorReason::Nested => f.write_str("a stripe cannot be a leg of another"),
            OpenErrorReason::Misfit(why) => why.fmt(f),
            OpenErrorReason::Unfit(why) => why.fmt(f),
            OpenErrorReason::NoRandomness(why) => write!(f, "it cannot be given an identity: {why}"),
            OpenErrorReason::TooLarge(size, most) => {
                let (size, most) = (config::size::format_exact(*size), config::size::format_exact(*most));
                write!(f, "size={size} is more than the legs of the stripe have, {most}")
            }
            OpenErrorReason::SameUuid(uuid, other) => {
                write!(f, "the UUID {uuid} is already used by volume \"{other}\"")
            }
        }
    }
}

impl std::error::Error for VolumeOpenError {}

impl VolumeOpenError {
    /// Whether the configuration is wrong, and not only what this machine has now (a file system that is not mounted, a
    /// disk that is not there, a file that another process has).
    pub fn is_misconfiguration(&self) -> bool {
        match self.root_reason() {
            OpenErrorReason::Alias(..)
            | OpenErrorReason::BlockTooSmall(..)
            | OpenErrorReason::NoDirect(_)
            | OpenErrorReason::SameUuid(..)
            | OpenErrorReason::Remote(_) => true,
            OpenErrorReason::Leg(..)
            | OpenErrorReason::SameLeg(_)
            | OpenErrorReason::Nested
            | OpenErrorReason::Misfit(_)
            | OpenErrorReason::Unfit(_)
            | OpenErrorReason::TooLarge(..) => true,
            // Another client may let go of it, and the cluster may answer later.
            OpenErrorReason::Rbd(_, why) => !why.may_pass(),
            OpenErrorReason::Nbd(_, why) => !why.may_pass(),
            OpenErrorReason::Io(..)
            | OpenErrorReason::NotAFile(_)
            | OpenErrorReason::NotADevice(_)
            | OpenErrorReason::Missing(_)
            | OpenErrorReason::Gone(..) => false,
            OpenErrorReason::Empty(_)
            | OpenErrorReason::Locked(_)
            | OpenErrorReason::Moved(_)
            | OpenErrorReason::HandOver(_)
            | OpenErrorReason::InUseBySystem(_) => false,
            OpenErrorReason::Absent(_) | OpenErrorReason::Replaced(..) | OpenErrorReason::NoRandomness(_) => {
                false
            }
        }
    }

    /// Whether the configuration may be right, and only somebody's word is missing that a running daemon takes.
    pub fn needs_operator(&self) -> bool {
        matches!(self.root_reason(), OpenErrorReason::Replaced(..) | OpenErrorReason::Gone(..))
    }

    /// Whether it is for another machine or a cluster that does not answer, and may pass by itself.
    pub fn is_remote_absent(&self) -> bool {
        match self.root_reason() {
            OpenErrorReason::Absent(_) => true,
            OpenErrorReason::Rbd(_, why) => why.is_silent(),
            OpenErrorReason::Nbd(_, why) => why.may_pass(),
            _ => false,
        }
    }

    fn root_reason(&self) -> &OpenErrorReason {
        match &self.why {
            OpenErrorReason::Leg(_, why) => why,
            why => why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_does_not_answer_is_absent_and_no_misconfiguration() {
        let error = |why| VolumeOpenError {
            volume: VolumeName::parse("x").unwrap(),
            why: OpenErrorReason::Rbd("rbd:a/b".to_owned(), Box::new(why)),
        };
        let silent = error(rbd::OpenError::MonitorsAway("/etc/ceph/ceph.conf".into()));
        assert!(silent.is_remote_absent() && !silent.is_misconfiguration());
        let locked = error(rbd::OpenError::Locked("192.0.2.1:0/77".to_owned(), true));
        assert!(!locked.is_remote_absent() && !locked.is_misconfiguration());
        let wrong = error(rbd::OpenError::NoPool("a".to_owned()));
        assert!(!wrong.is_remote_absent() && wrong.is_misconfiguration());
    }
}
