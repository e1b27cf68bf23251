//! The volume SPEC of the command line, `KIND:ARG[,key=value]...`, and the volume it describes.
//!
//! A `[[volume]]` table of the configuration has the same keys. A comma inside an argument is written `\,`, a
//! plus sign `\+`. Every error names its key. A stripe's argument is other SPECs, joined by plus signs.
//!
//! A volume of another machine is written as its URL, or as several joined by commas. Everything belongs to
//! the URL, except a `,` and one of [`KEYS`] at the very end; a comma that the URL itself needs there is
//! written `%2C`. Invariant: no [`Spec`] holds a password, so it can be recorded and shown.

mod nbd;
mod rbd;
mod spec_error;
mod stripe;
mod url_keys;

use std::{fmt, path::PathBuf};

use multipath::{Url, url::RelativeSecretFile};
use uuid::Uuid;

pub use self::{
    nbd::{NbdExport, NbdServer},
    rbd::RbdImage,
    spec_error::SpecError,
    stripe::StripeSpec,
};
use crate::limit_keys::LimitKeys;
use crate::size;

/// The keys that may follow the argument, in the order in which help lists them.
pub const KEYS: [&str; 23] = [
    "size",
    "chunk",
    "block",
    "physical",
    "ro",
    "uuid",
    "cache",
    "direct",
    "thin",
    "thin_threshold",
    "removable",
    "movable",
    "tas",
    "sanitize_rate",
    "iops_limit",
    "iops_burst",
    "bandwidth_limit",
    "bandwidth_burst",
    "persist",
    "conf",
    "user",
    "queue_timeout",
    "break_lock",
];

/// The kinds that can be built now.
pub const KINDS: [&str; 5] = ["ram", "file", "null", "stripe", "rbd"];

/// What a URL begins with, to tell one that lacks its `//` from an unknown kind.
const URL_SCHEMES: [&str; 2] = ["iscsi", "nvme+tcp"];

/// The keys that mean something for a volume of another machine: the rest is as it is there.
const REMOTE_KEYS: [&str; 10] = [
    "ro",
    "uuid",
    "removable",
    "tas",
    "sanitize_rate",
    "iops_limit",
    "iops_burst",
    "bandwidth_limit",
    "bandwidth_burst",
    "persist",
];

/// What is said where `thin=off` of memory is left out.
pub const THIN_IGNORED_WARNING: &str = "thin=off is ignored: RAM volumes always allocate memory when it is written and \
                                free it when it is unmapped; remove the option";

/// Largest physical block, bytes; the exponent field of READ CAPACITY (16) could say more, no disk does.
const PHYSICAL_BLOCK_BYTES_MAX: u64 = 64 << 10;

/// Where a volume's bytes live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// Memory of this process; gone when it ends.
    Ram,
    /// A regular file.
    File(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// Nowhere: writes are dropped, reads give zeroes. For measuring.
    Null,
    /// A volume of another machine: the URLs of its paths, joined by commas. They make sense, each names a
    /// volume, and none holds a password.
    Remote(String),
    /// Several volumes as one, chunk by chunk.
    Stripe(StripeSpec),
    /// An image of Ceph.
    Rbd(Box<RbdImage>),
    /// An export of an NBD server.
    Nbd(Box<NbdExport>),
}

impl VolumeSource {
    /// The file or device behind the volume.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            VolumeSource::File(path) | VolumeSource::Device(path) => Some(path),
            VolumeSource::Ram
            | VolumeSource::Null
            | VolumeSource::Remote(_)
            | VolumeSource::Stripe(_)
            | VolumeSource::Rbd(_)
            | VolumeSource::Nbd(_) => None,
        }
    }

    /// Does something with each path of a file, those of a stripe's legs and of clusters' configurations among them.
    pub fn for_each_file(&mut self, act: &mut dyn FnMut(&mut PathBuf)) {
        match self {
            VolumeSource::File(path) => act(path),
            VolumeSource::Rbd(image) => image.conf.iter_mut().for_each(act),
            VolumeSource::Stripe(striped) => {
                striped.legs.iter_mut().for_each(|leg| leg.source.for_each_file(act))
            }
            VolumeSource::Ram | VolumeSource::Null | VolumeSource::Device(_) => {}
            VolumeSource::Remote(_) | VolumeSource::Nbd(_) => {}
        }
    }

    /// Whether a file is named by a path that depends on the current directory.
    pub fn has_relative_file(&self) -> bool {
        match self {
            VolumeSource::File(path) => path.is_relative(),
            VolumeSource::Rbd(image) => image.conf.as_ref().is_some_and(|conf| conf.is_relative()),
            VolumeSource::Stripe(striped) => striped.legs.iter().any(|leg| leg.source.has_relative_file()),
            VolumeSource::Ram | VolumeSource::Null | VolumeSource::Device(_) => false,
            VolumeSource::Remote(_) | VolumeSource::Nbd(_) => false,
        }
    }

    /// Where the volume is, as shown to users: the file, the device, or the URLs without their options.
    pub fn display_location(&self) -> Option<String> {
        match self {
            VolumeSource::File(path) | VolumeSource::Device(path) => Some(path.display().to_string()),
            VolumeSource::Remote(urls) => {
                let urls = Url::parse_joined(urls).ok()?;
                Some(urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            VolumeSource::Stripe(striped) => Some(striped.display_location()),
            VolumeSource::Rbd(image) => Some(format!("rbd:{}", image.name())),
            VolumeSource::Nbd(export) => Some(export.url().to_owned()),
            VolumeSource::Ram | VolumeSource::Null => None,
        }
    }

    /// A file with a secret that is named by a path that depends on the current directory.
    pub fn relative_secret_file(&self) -> Option<RelativeSecretFile> {
        match self {
            VolumeSource::Remote(urls) => {
                RelativeSecretFile::find_in(&Url::parse_joined(urls).unwrap_or_default())
            }
            VolumeSource::Stripe(striped) => {
                striped.legs.iter().find_map(|leg| leg.source.relative_secret_file())
            }
            VolumeSource::Ram
            | VolumeSource::File(_)
            | VolumeSource::Device(_)
            | VolumeSource::Null
            | VolumeSource::Rbd(_)
            | VolumeSource::Nbd(_) => None,
        }
    }

    /// The kind as listed to users.
    pub fn kind(&self) -> &'static str {
        match self {
            VolumeSource::Ram => "ram",
            VolumeSource::File(_) => "file",
            VolumeSource::Device(_) => "device",
            VolumeSource::Null => "null",
            VolumeSource::Remote(_) => "remote",
            VolumeSource::Stripe(_) => "stripe",
            VolumeSource::Rbd(_) => "rbd",
            VolumeSource::Nbd(_) => "nbd",
        }
    }

    /// The keys that mean something, and what to say of the others.
    fn allowed_keys(&self) -> (&'static [&'static str], &'static str) {
        match self {
            VolumeSource::Remote(_) => {
                (&REMOTE_KEYS, "is set by the other machine and cannot be chosen here")
            }
            VolumeSource::Stripe(_) => {
                (&stripe::KEYS, "belongs to the legs; append it to a leg, with \"\\,\" before it")
            }
            VolumeSource::Rbd(_) => (&rbd::KEYS, "does not apply to volumes of kind rbd"),
            VolumeSource::Nbd(_) => (&nbd::OWN_KEYS, "does not apply to exports of NBD servers"),
            VolumeSource::Ram | VolumeSource::File(_) | VolumeSource::Device(_) | VolumeSource::Null => {
                (&KEYS, "")
            }
        }
    }
}

/// A volume as asked for, before anything is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where the bytes live.
    pub source: VolumeSource,
    /// Bytes, a multiple of `block`. `None`: as large as what is there (an existing file, a device).
    pub size: Option<u64>,
    /// Logical block, bytes: 512 or 4096.
    pub block: u32,
    /// Physical block, bytes, a power of two of at least `block`; `None`: what the backing says.
    pub physical: Option<u32>,
    /// Initiators may only read.
    pub read_only: bool,
    /// The identity to show instead of the one that the state directory keeps.
    pub uuid: Option<Uuid>,
    /// A volatile write cache is reported and used: only FLUSH and FUA reach stable storage.
    /// Off: every write does.
    pub cache: bool,
    /// Pass by the page cache (O_DIRECT).
    pub direct: bool,
    /// Unmapped blocks are given back, and this is reported.
    pub thin: bool,
    /// Initiators are told when so many percent of the capacity are allocated: 1 to 99. `None`: they are not.
    pub thin_threshold: Option<u8>,
    /// Reported as a removable medium.
    pub removable: bool,
    /// Memory that another process can go on with, of a RAM volume.
    pub movable: bool,
    /// TAS: a SCSI command that another initiator ends is answered with TASK ABORTED.
    pub task_aborted_status: bool,
    /// Bytes per second that a sanitize writes at most; `None`: as many as it can.
    pub sanitize_rate: Option<u64>,
    /// How much hosts may do with it per second.
    pub limits: LimitKeys,
    /// Reservations survive a restart even if the hosts that made them did not ask for it.
    pub persist: bool,
}

impl Spec {
    /// A volume of `source` with every option at its default.
    pub fn new(source: VolumeSource) -> Self {
        let on_disk = source.path().is_some();
        Spec {
            size: None,
            block: 512,
            physical: None,
            read_only: false,
            uuid: None,
            cache: on_disk,
            direct: false,
            thin: !matches!(source, VolumeSource::Device(_)),
            thin_threshold: None,
            removable: false,
            movable: false,
            task_aborted_status: true,
            sanitize_rate: None,
            limits: LimitKeys::default(),
            persist: false,
            source,
        }
    }

    /// Sets the key `key` from its written value; `None` for a bare key such as `ro`.
    pub fn set_key(&mut self, key: &str, value: Option<&str>) -> Result<(), SpecError> {
        let bad = |why: String| SpecError::BadValue { key: key.to_owned(), why };
        let (keys, otherwise) = self.source.allowed_keys();
        if KEYS.contains(&key) && !keys.contains(&key) {
            return Err(bad(otherwise.to_owned()));
        }
        let need = || value.ok_or_else(|| bad("needs a value".to_owned()));
        match key {
            "size" => self.size = Some(size::parse(need()?).map_err(|e| bad(e.to_string()))?),
            "conf" | "user" | "break_lock" => self.source.set_rbd(key, value).map_err(bad)?,
            "queue_timeout" => self.source.set_queue_timeout(need()?).map_err(bad)?,
            "chunk" => self.source.set_chunk(need()?).map_err(bad)?,
            "block" => {
                self.block = match size::parse(need()?) {
                    Ok(512) => 512,
                    Ok(4096) => 4096,
                    _ => return Err(bad(format!("is 512 or 4096, not \"{}\"", need()?))),
                }
            }
            "physical" => {
                let bytes = size::parse(need()?).map_err(|e| bad(e.to_string()))?;
                if !bytes.is_power_of_two() || !(512..=PHYSICAL_BLOCK_BYTES_MAX).contains(&bytes) {
                    return Err(bad("is a power of two from 512 to 64K".to_owned()));
                }
                self.physical = Some(bytes as u32);
            }
            "uuid" => {
                let uuid: Uuid = need()?.parse().map_err(|e| bad(format!("is not a UUID: {e}")))?;
                if uuid.is_nil() {
                    return Err(bad("must not be all zero".to_owned()));
                }
                self.uuid = Some(uuid);
            }
            "ro" => self.read_only = parse_switch(value).map_err(bad)?,
            "cache" => self.cache = parse_switch(value).map_err(bad)?,
            "direct" => self.direct = parse_switch(value).map_err(bad)?,
            "thin" => self.thin = parse_switch(value).map_err(bad)?,
            "thin_threshold" => {
                let percent = need()?.strip_suffix('%').and_then(|number| number.parse().ok());
                let percent = percent.filter(|percent| (1..=99).contains(percent));
                let wrong = || bad(format!("is 1% to 99%, not \"{}\"", value.unwrap_or_default()));
                self.thin_threshold = Some(percent.ok_or_else(wrong)?);
            }
            "removable" => self.removable = parse_switch(value).map_err(bad)?,
            "movable" => self.movable = parse_switch(value).map_err(bad)?,
            "tas" => self.task_aborted_status = parse_switch(value).map_err(bad)?,
            "sanitize_rate" => {
                let rate = size::parse(need()?).map_err(|e| bad(e.to_string()))?;
                if rate == 0 {
                    return Err(bad("must not be zero".to_owned()));
                }
                self.sanitize_rate = Some(rate);
            }
            "iops_limit" | "iops_burst" | "bandwidth_limit" | "bandwidth_burst" => {
                self.limits.set_key(key, need()?).map_err(bad)?;
            }
            "persist" => {
                self.persist = match need()? {
                    "force" => true,
                    "host" => false,
                    other => return Err(bad(format!("is force or host, not \"{other}\""))),
                }
            }
            _ => return Err(SpecError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// Leaves out `thin=off` of memory, which earlier versions took and did nothing about; whether it was there.
    pub fn discard_ineffective_thin(&mut self) -> bool {
        match &mut self.source {
            VolumeSource::Ram | VolumeSource::Null => !std::mem::replace(&mut self.thin, true),
            VolumeSource::Stripe(striped) => striped
                .legs
                .iter_mut()
                .map(Spec::discard_ineffective_thin)
                .fold(false, |before, it| before | it),
            VolumeSource::File(_)
            | VolumeSource::Device(_)
            | VolumeSource::Remote(_)
            | VolumeSource::Rbd(_)
            | VolumeSource::Nbd(_) => false,
        }
    }

    /// Checks what involves several keys at once. Nothing is opened.
    pub fn check(&self) -> Result<(), SpecError> {
        let bad =
            |key: &str, why: &str| Err(SpecError::BadValue { key: key.to_owned(), why: why.to_owned() });
        match (&self.source, self.size) {
            (VolumeSource::Ram | VolumeSource::Null, None) => {
                return bad("size", "is needed for this kind of volume");
            }
            (VolumeSource::Device(_), Some(_)) => {
                return bad("size", "cannot be chosen for a device: it has its own");
            }
            _ => {}
        }
        if let VolumeSource::Stripe(striped) = &self.source {
            striped.check(self.size)?;
        }
        if let Err((key, why)) = self.limits.rates() {
            return bad(key, why);
        }
        if let Some(size) = self.size {
            if size == 0 {
                return bad("size", "must not be zero");
            }
            if size % u64::from(self.block) != 0 {
                return bad("size", "is not a multiple of the block size");
            }
        }
        if self.physical.is_some_and(|physical| physical < self.block) {
            return bad("physical", "must not be smaller than the logical block");
        }
        if self.movable && self.source != VolumeSource::Ram {
            return bad("movable", "applies only to RAM volumes: others move as they are");
        }
        if self.direct && self.source.path().is_none() {
            return bad("direct", "applies only to files and devices");
        }
        if !self.thin && matches!(self.source, VolumeSource::Ram | VolumeSource::Null) {
            return bad(
                "thin",
                "cannot be off: RAM volumes allocate memory when it is written and free it when it is unmapped",
            );
        }
        let knows_allocation = self.thin && matches!(self.source, VolumeSource::Ram | VolumeSource::File(_));
        if self.thin_threshold.is_some() && !knows_allocation {
            return bad("thin_threshold", "applies only to RAM volumes and thin files");
        }
        if self.cache && self.source.path().is_none() {
            return bad("cache", "applies only to files and devices");
        }
        Ok(())
    }
}

/// `on`, `off` and their usual synonyms; a bare key means on.
fn parse_switch(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("on" | "yes" | "true" | "1") => Ok(true),
        Some("off" | "no" | "false" | "0") => Ok(false),
        Some(other) => Err(format!("is on or off, not \"{other}\"")),
    }
}

/// A written SPEC, cut but not yet checked as a whole: the configuration adds its own keys first.
pub fn parse_parts(text: &str) -> Result<(Spec, Vec<String>), SpecError> {
    let (mut spec, fields) = if is_url(text) {
        let (urls, keys) = url_keys::split_keys_behind_host(text);
        (Spec::new(parse_remote_urls(urls)?), keys.into_iter().map(str::to_owned).collect())
    } else if nbd::is_meant(text) {
        let (url, keys) = url_keys::split_keys(text, 0);
        let export = VolumeSource::Nbd(Box::new(NbdExport::parse(url)?));
        (Spec::new(export), keys.into_iter().map(str::to_owned).collect())
    } else if backends::stripe::is_meant(text) {
        let (striped, fields) = StripeSpec::parse(text)?;
        (Spec::new(VolumeSource::Stripe(striped)), fields)
    } else {
        let mut fields = split_fields(text)?;
        let head = fields.remove(0);
        (parse_source(&head)?, fields)
    };
    let mut given: Vec<String> = Vec::new();
    if spec.size.is_some() {
        given.push("size".to_owned());
    }
    for field in fields {
        let (key, value) = match field.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value)),
            None => (field.trim(), None),
        };
        if given.iter().any(|seen| seen == key) {
            return Err(SpecError::Repeated(key.to_owned()));
        }
        spec.set_key(key, value)?;
        given.push(key.to_owned());
    }
    Ok((spec, given))
}

/// The volume that a complete SPEC describes.
pub fn parse(text: &str) -> Result<Spec, SpecError> {
    let (spec, _) = parse_parts(text)?;
    spec.check()?;
    Ok(spec)
}

/// The same of one that was written for an earlier version, and whether it says `thin=off` of memory, which is left
/// out.
pub fn parse_legacy(text: &str) -> Result<(Spec, bool), SpecError> {
    let (mut spec, _) = parse_parts(text)?;
    let left_out = spec.discard_ineffective_thin();
    spec.check()?;
    Ok((spec, left_out))
}

/// Whether a URL is meant.
fn is_url(text: &str) -> bool {
    Url::has_known_scheme(text) || text.split_once(':').is_some_and(|(kind, _)| URL_SCHEMES.contains(&kind))
}

fn parse_remote_urls(urls: &str) -> Result<VolumeSource, SpecError> {
    let parsed = Url::parse_joined(urls).map_err(|why| SpecError::BadUrl(why.to_string()))?;
    if parsed.iter().any(|url| url.user.as_ref().is_some_and(|user| user.secret.is_some())) {
        return Err(SpecError::Password);
    }
    match parsed.iter().find(|url| !url.has_volume()) {
        Some(url) => Err(SpecError::BadUrl(url.missing_volume_error().to_string())),
        None => Ok(VolumeSource::Remote(urls.to_owned())),
    }
}

/// The first field: `KIND:ARG` or `/dev/NAME`.
fn parse_source(head: &str) -> Result<Spec, SpecError> {
    if head.starts_with("/dev/") && head.len() > 5 {
        return Ok(Spec::new(VolumeSource::Device(head.into())));
    }
    if head.starts_with('/') {
        return Err(SpecError::NotADevice(head.to_owned()));
    }
    let (kind, argument) = head.split_once(':').unwrap_or((head, ""));

    let sized = |source, kind| {
        if argument.is_empty() {
            return Err(SpecError::NoArgument(kind));
        }
        let mut spec = Spec::new(source);
        spec.set_key("size", Some(argument))?;
        Ok(spec)
    };
    match kind {
        "ram" => sized(VolumeSource::Ram, "ram"),
        "null" => sized(VolumeSource::Null, "null"),
        "rbd" => Ok(Spec::new(VolumeSource::Rbd(Box::new(RbdImage::parse(argument)?)))),
        "file" if argument.is_empty() => Err(SpecError::NoArgument("file")),
        "file" => Ok(Spec::new(VolumeSource::File(argument.into()))),
        _ => Err(SpecError::UnknownKind(kind.to_owned())),
    }
}

/// Cuts at commas that no backslash protects, and takes the backslashes away.
fn split_fields(text: &str) -> Result<Vec<String>, SpecError> {
    let (mut fields, mut last) = (Vec::new(), String::new());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ (',' | '+' | '\\')) => last.push(escaped),
                _ => return Err(SpecError::BadEscape),
            },
            ',' => fields.push(std::mem::take(&mut last)),
            c => last.push(c),
        }
    }
    fields.push(last);
    Ok(fields)
}

/// The SPEC that [`parse`] reads back to the same value; this is how volumes are recorded.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Spec::new(self.source.clone());
        let mut size = self.size;
        match &self.source {
            VolumeSource::Ram | VolumeSource::Null => {
                write!(f, "{}:{}", self.source.kind(), size::format_exact(size.take().unwrap_or(0)))?;
            }
            VolumeSource::File(path) => write!(f, "file:{}", escape(&path.to_string_lossy()))?,
            VolumeSource::Device(path) => write!(f, "{}", escape(&path.to_string_lossy()))?,
            VolumeSource::Remote(urls) => f.write_str(urls)?,
            VolumeSource::Stripe(striped) => striped.fmt(f)?,
            VolumeSource::Rbd(image) => image.fmt(f)?,
            VolumeSource::Nbd(export) => export.fmt(f)?,
        }
        if let Some(bytes) = size {
            write!(f, ",size={}", size::format_exact(bytes))?;
        }
        // What a volume of another machine or a stripe's leg is like is found there again at each start.
        let keys = self.source.allowed_keys().0;
        let chosen = keys.contains(&"block");
        if chosen && self.block != default.block {
            write!(f, ",block={}", self.block)?;
        }
        if let Some(physical) = self.physical {
            write!(f, ",physical={physical}")?;
        }
        if let Some(uuid) = self.uuid {
            write!(f, ",uuid={uuid}")?;
        }
        for (key, value, usual) in [
            ("ro", self.read_only, default.read_only),
            ("cache", self.cache, default.cache),
            ("direct", self.direct, default.direct),
            ("thin", self.thin, default.thin),
            ("removable", self.removable, default.removable),
            ("movable", self.movable, default.movable),
            ("tas", self.task_aborted_status, default.task_aborted_status),
        ] {
            if value != usual && keys.contains(&key) {
                write!(f, ",{key}={}", if value { "on" } else { "off" })?;
            }
        }
        if let Some(percent) = self.thin_threshold {
            write!(f, ",thin_threshold={percent}%")?;
        }
        if let Some(rate) = self.sanitize_rate {
            write!(f, ",sanitize_rate={}", size::format_exact(rate))?;
        }
        self.limits.fmt(f)?;
        if self.persist {
            write!(f, ",persist=force")?;
        }
        Ok(())
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
