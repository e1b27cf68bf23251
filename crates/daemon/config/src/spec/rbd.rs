//! Images of Ceph in a SPEC: `rbd:POOL/IMAGE` or `rbd:POOL/NAMESPACE/IMAGE`.
//!
//! Invariant: no part of the name is empty or holds a slash, an at sign or a control character.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use multipath::url::parse_time;

use super::{SpecError, VolumeSource, escape, parse_switch};

/// The keys that mean something for an image: size, blocks and cache are settled by the cluster.
pub(super) const KEYS: [&str; 16] = [
    "conf",
    "user",
    "queue_timeout",
    "break_lock",
    "block",
    "physical",
    "ro",
    "uuid",
    "thin",
    "tas",
    "sanitize_rate",
    "iops_limit",
    "iops_burst",
    "bandwidth_limit",
    "bandwidth_burst",
    "persist",
];

/// How long I/O waits for the cluster, unless something else is said: less than the 30 s after which hosts give up.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest that can be said.
const QUEUE_TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// An image of a RADOS block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdImage {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; `None`: the default one.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The cluster's configuration file; `None`: `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None`: `admin`.
    pub user: Option<String>,
    /// How long an operation may wait for the cluster before it fails with a path error.
    pub queue_timeout: Duration,
    /// The lock of a client that is gone may be broken, and that client blocklisted.
    pub break_lock: bool,
    /// Served by a group of gateways: none of them keeps the image open that does not own it.
    pub in_group: bool,
}

impl RbdImage {
    /// Reads what stands behind `rbd:`.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        if text.is_empty() {
            return Err(SpecError::NoArgument("rbd"));
        }
        let parts: Vec<&str> = text.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(SpecError::BadImage(text.to_owned())),
        };
        let is_name = |part: &str| {
            !part.is_empty() && !part.contains(|c: char| c == '@' || c.is_control() || c.is_whitespace())
        };
        if !is_name(pool) || !is_name(image) || !namespace.is_none_or(is_name) {
            return Err(SpecError::BadImage(text.to_owned()));
        }
        Ok(RbdImage {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            conf: None,
            user: None,
            queue_timeout: QUEUE_TIMEOUT,
            break_lock: false,
            in_group: false,
        })
    }

    /// Its name, `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`.
    pub fn name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.pool, self.image),
            None => format!("{}/{}", self.pool, self.image),
        }
    }
}

impl VolumeSource {
    /// Sets a key of an image from the value as it was written.
    pub(super) fn set_rbd(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let VolumeSource::Rbd(image) = self else {
            return Err("applies only to volumes of kind rbd".to_owned());
        };
        let need = || value.filter(|value| !value.is_empty()).ok_or_else(|| "needs a value".to_owned());
        match key {
            "conf" => image.conf = Some(need()?.into()),
            "user" => {
                let user = need()?;
                image.user = Some(user.strip_prefix("client.").unwrap_or(user).to_owned());
            }
            _ => image.break_lock = parse_switch(value)?,
        }
        Ok(())
    }

    /// Sets how long I/O waits for a cluster or a server, from the value as it was written.
    pub(super) fn set_queue_timeout(&mut self, value: &str) -> Result<(), String> {
        let limit = match self {
            VolumeSource::Rbd(image) => &mut image.queue_timeout,
            VolumeSource::Nbd(export) => &mut export.queue_timeout,
            _ => return Err("applies only to images of Ceph and exports of NBD servers".to_owned()),
        };
        let given = parse_time(value).filter(|given| !given.is_zero() && *given <= QUEUE_TIMEOUT_MAX);
        *limit = given.ok_or_else(|| "is a time from 1ms to 24h, as 500ms or 20s".to_owned())?;
        Ok(())
    }
}

/// The SPEC without the keys of other volumes.
impl fmt::Display for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rbd:{}", escape(&self.name()))?;
        if let Some(conf) = &self.conf {
            write!(f, ",conf={}", escape(&conf.to_string_lossy()))?;
        }
        if let Some(user) = &self.user {
            write!(f, ",user={}", escape(user))?;
        }
        if self.queue_timeout != QUEUE_TIMEOUT {
            write!(f, ",queue_timeout={}ms", self.queue_timeout.as_millis())?;
        }
        if self.break_lock {
            f.write_str(",break_lock=on")?;
        }
        Ok(())
    }
}
