//! Settings of a remote volume: how it uses its paths, its time-outs, and which volume it must be.

use std::time::Duration;

use super::report::VolumeMismatch;
use crate::path::VolumeInfo;
use crate::url::{Options, PathPolicy};

/// Most operations in work on a volume.
pub const IN_WORK_MAX: usize = 16_384;

/// Which volume is meant: what was found of it before, perhaps by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedVolume {
    /// Its UUID, if its target gives one.
    pub uuid: Option<volume::Uuid>,
    /// Its serial number, by which it is known where there is no UUID.
    pub serial: String,
    /// Bytes of its blocks.
    pub logical: u32,
}

/// Whether a volume without a UUID that was known by this serial number is the one that a path found. Where either
/// lacks the namespace's own name that follows the number (records of older versions; a path that tells nothing of
/// the volume in its state), the number decides. A stripe's is those of its legs, joined by `+`.
pub fn matches_serial(known: &str, found: &VolumeInfo) -> bool {
    let named = |rest: &str| rest.starts_with(" NGUID ") || rest.starts_with(" EUI64 ");
    let is_same = |known: &str, told: &str| {
        known == told
            || told.strip_prefix(known).is_some_and(named)
            || found.geometry.is_none() && known.strip_prefix(told).is_some_and(named)
    };
    let (legs, told) = (known.split('+'), found.serial.split('+'));
    legs.clone().count() == told.clone().count() && legs.zip(told).all(|(one, other)| is_same(one, other))
}

impl ExpectedVolume {
    /// Whether what a path found is that volume.
    ///
    /// # Errors
    /// What each of both is known by.
    pub fn check_volume(&self, found: &VolumeInfo) -> Result<(), VolumeMismatch> {
        match (self.uuid, found.uuid) {
            (Some(volume), Some(path)) if volume != path => {
                return Err(VolumeMismatch::OtherUuid { volume, path });
            }
            (Some(_), Some(_)) => {}
            (None, None) if matches_serial(&self.serial, found) => {}
            (volume, path) => {
                let name = |uuid: Option<volume::Uuid>, serial: &str| match uuid {
                    Some(uuid) => format!("the UUID {uuid}"),
                    None => format!("the serial number \"{serial}\" and no UUID"),
                };
                let (volume, path) = (name(volume, &self.serial), name(path, &found.serial));
                return Err(VolumeMismatch::Other { volume, path });
            }
        }
        match found.geometry {
            Some(geometry) if geometry.logical != self.logical => {
                Err(VolumeMismatch::OtherBlocks { volume: self.logical, path: geometry.logical })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// How a volume uses its paths. [`Duration::MAX`] is for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Which path is next.
    pub policy: PathPolicy,
    /// Most operations in work or waiting: 1 to [`IN_WORK_MAX`].
    pub in_work: usize,
    /// Whether writes are refused here.
    pub read_only: bool,
    /// From the loss of a path to the first attempt to connect it again, more or less a quarter by
    /// chance; twice as long each time up to `reconnect_delay_max`, until the path has been up for so long.
    pub reconnect_delay: Duration,
    /// See `reconnect_delay`.
    pub reconnect_delay_max: Duration,
    /// A path that has been down for so long is given up.
    pub loss_timeout: Duration,
    /// When no path has served for so long, what waits fails, and what comes fails at once, until one
    /// serves again.
    pub fast_fail: Duration,
    /// An operation that has waited so long for a path that serves, or for a fence, fails. Zero: no
    /// operation waits.
    pub queue_timeout: Duration,
    /// Whether an operation that may have been done ends only when it is certain that it can land no more,
    /// however long that takes: for who tells others that it failed, and cannot keep them from trying again by
    /// another way.
    pub certain: bool,
    /// Which volume it must be; `None`: what the first path finds.
    pub expected: Option<ExpectedVolume>,
    /// What one operation carries is this, in bytes, however little a path carries: what is longer goes in
    /// pieces. `None`: what every path carries. For who has told others already.
    pub max_io: Option<u32>,
    /// How long attempts to open go on while every path fails; each is tried once at least. A wrong
    /// secret, or another volume's path, is not tried again.
    pub open_timeout: Duration,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            policy: PathPolicy::LeastQueue,
            in_work: 1024,
            read_only: false,
            reconnect_delay: Duration::from_millis(100),
            reconnect_delay_max: Duration::from_secs(10),
            loss_timeout: Duration::from_secs(600),
            fast_fail: Duration::MAX,
            queue_timeout: Duration::from_secs(120),
            certain: false,
            expected: None,
            max_io: None,
            open_timeout: Duration::ZERO,
        }
    }
}

impl VolumeSettings {
    /// The defaults, but for what a URL says.
    pub fn from_options(options: &Options) -> VolumeSettings {
        let (said, plain) = (&options.volume, VolumeSettings::default());
        let reconnect_delay = said.reconnect_delay.unwrap_or(plain.reconnect_delay);
        VolumeSettings {
            policy: said.policy.unwrap_or(plain.policy),
            in_work: plain.in_work,
            read_only: options.read_only.unwrap_or(plain.read_only),
            reconnect_delay,
            reconnect_delay_max: said
                .reconnect_delay_max
                .unwrap_or(plain.reconnect_delay_max)
                .max(reconnect_delay),
            loss_timeout: said.loss_timeout.unwrap_or(plain.loss_timeout),
            fast_fail: said.fast_fail.unwrap_or(plain.fast_fail),
            queue_timeout: said.queue_timeout.unwrap_or(plain.queue_timeout),
            certain: plain.certain,
            expected: plain.expected,
            max_io: plain.max_io,
            open_timeout: said.open_timeout.unwrap_or(plain.open_timeout),
        }
    }
}
