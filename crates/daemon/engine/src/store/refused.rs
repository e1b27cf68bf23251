//! Why a volume cannot be opened, as a message for the operator.

use std::{fmt, io, path::PathBuf};

use multipath::VolumeMismatch;
use uuid::Uuid;

use config::name::VolumeName;

/// Why a volume cannot be opened.
#[derive(Debug)]
pub struct VolumeOpenError {
    pub(super) volume: VolumeName,
    pub(super) why: Why,
}

/// What stands against it.
#[derive(Debug)]
pub(super) enum Why {
    Io(&'static str, PathBuf, io::Error),
    NotAFile(PathBuf),
    NotADevice(PathBuf),
    Missing(PathBuf),
    Gone(PathBuf, VolumeName),
    Empty(PathBuf),
    Locked(PathBuf),
    Moved(PathBuf),
    InUseBySystem(PathBuf),
    Alias(PathBuf, VolumeName),
    BlockTooSmall(PathBuf, u32),
    NoDirect(PathBuf),
    SameUuid(Uuid, VolumeName),
    Remote(String),
    Absent(String),
    Replaced(String, VolumeName, VolumeMismatch),
    Leg(usize, Box<Why>),
    SameLeg(usize),
    Nested,
    Misfit(backends::stripe::StripeMismatch),
    Unfit(backends::UnsuitableFile),
    TooLarge(u64, u64),
    NoRandomness(io::Error),
}

impl fmt::Display for VolumeOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume \"{}\": {}", self.volume, self.why)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Io(what, path, why) => write!(f, "cannot {what} {}: {why}", path.display()),
            Why::NotAFile(path) => {
                write!(f, "{} is not a regular file (a device is named without \"file:\")", path.display())
            }
            Why::NotADevice(path) => write!(f, "{} is not a block device", path.display()),
            Why::Missing(path) => {
                write!(
                    f,
                    "{} does not exist; mount its file system, or give size= to create it",
                    path.display()
                )
            }
            Why::Gone(path, name) => write!(
                f,
                "{} is missing and is not created again because it existed before: mount its file system or \
                 restore it, then run `blockwire volume retry {name}`; if its contents are lost for good, run \
                 `blockwire volume delete {name}` and create it again (or create the file with truncate(1) if the \
                 volume is configured)",
                path.display()
            ),
            Why::Empty(path) => write!(f, "{} is smaller than one block; set size=", path.display()),
            Why::Moved(path) => {
                write!(f, "{} was removed or replaced while it was being opened; try again", path.display())
            }
            Why::Locked(path) => write!(f, "{} is in use by another process", path.display()),
            Why::InUseBySystem(path) => {
                write!(f, "{} is in use by this system (mounted, or part of another device)", path.display())
            }
            Why::Alias(path, other) => write!(f, "{} is already open as volume \"{other}\"", path.display()),
            Why::BlockTooSmall(path, block) => {
                write!(f, "{} has blocks of {block} bytes; set block={block}", path.display())
            }
            Why::NoDirect(path) => {
                write!(f, "{} cannot be opened with O_DIRECT (direct)", path.display())
            }
            Why::Remote(why) | Why::Absent(why) => f.write_str(why),
            Why::Replaced(place, name, stranger) => write!(
                f,
                "{place}: it is not the volume that was served before: {stranger}. To serve the new one, run \
                 `blockwire volume delete {name}`, then create it again, or restart the daemon if the volume is \
                 configured"
            ),
            Why::Leg(leg, why) => write!(f, "leg {leg} of the stripe: {why}"),
            Why::SameLeg(leg) => write!(f, "it is the same volume as leg {leg}"),
            Why::Nested => f.write_str("a stripe cannot be a leg of another"),
            Why::Misfit(why) => why.fmt(f),
            Why::Unfit(why) => why.fmt(f),
            Why::NoRandomness(why) => write!(f, "it cannot be given an identity: {why}"),
            Why::TooLarge(size, most) => {
                let (size, most) = (config::size::exact(*size), config::size::exact(*most));
                write!(f, "size={size} is more than the legs of the stripe have, {most}")
            }
            Why::SameUuid(uuid, other) => {
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
        match self.root() {
            Why::Alias(..)
            | Why::BlockTooSmall(..)
            | Why::NoDirect(_)
            | Why::SameUuid(..)
            | Why::Remote(_) => true,
            Why::Leg(..)
            | Why::SameLeg(_)
            | Why::Nested
            | Why::Misfit(_)
            | Why::Unfit(_)
            | Why::TooLarge(..) => true,
            Why::Io(..) | Why::NotAFile(_) | Why::NotADevice(_) | Why::Missing(_) | Why::Gone(..) => false,
            Why::Empty(_) | Why::Locked(_) | Why::Moved(_) | Why::InUseBySystem(_) => false,
            Why::Absent(_) | Why::Replaced(..) | Why::NoRandomness(_) => false,
        }
    }

    /// Whether the configuration may be right, and only somebody's word is missing that a running daemon takes.
    pub fn is_for_the_operator(&self) -> bool {
        matches!(self.root(), Why::Replaced(..) | Why::Gone(..))
    }

    /// Whether it is for another machine, and may pass by itself.
    pub fn is_absent(&self) -> bool {
        matches!(self.root(), Why::Absent(_))
    }

    fn root(&self) -> &Why {
        match &self.why {
            Why::Leg(_, why) => why,
            why => why,
        }
    }
}
