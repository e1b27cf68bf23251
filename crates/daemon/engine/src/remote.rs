//! Remote volumes that this daemon exports.
//!
//! Each is opened once when the daemon starts, or as soon as possible, to learn its geometry and to report problems at
//! once; then every shard connects on its own. Invariants: shards connect with the parameters that were tried here, and
//! each path of each shard has its own session, shared with no other volume. A shard refuses any volume other than the
//! one found here, naming both. Likewise a volume is refused here if it differs from an earlier start.

use std::{net::SocketAddr, time::Duration};

use buf::Cx;
use client::{Initiator, Settings};
use multipath::{
    AnyPath, ExpectedVolume, HostIdentity, RemoteVolume, Url, UrlSecrets, VolumeMismatch, VolumeSettings,
};
use uuid::Uuid;
use volume::Geometry;

/// How long I/O waits for an unreachable volume, unless the URL says otherwise: less than the 30 s after which hosts give
/// up.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);

/// Memory for probing a volume, bytes.
const PROBE_MEMORY: usize = 8 << 20;

/// The largest transfer of hosts, bytes: the limit of our own volumes, and the one that we report (MDTS, block limits).
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// A remote volume, as it was found.
#[derive(Clone, Debug)]
pub struct ProbedRemote {
    who: HostIdentity,
    ways: Vec<RemotePath>,
    terms: VolumeSettings,
    /// Its geometry.
    pub geometry: Geometry,
    /// Its identity as a remote volume.
    pub expected: ExpectedVolume,
    /// Its UUID, if the target reports one.
    pub uuid: Option<Uuid>,
}

/// One path.
#[derive(Clone, Debug)]
struct RemotePath {
    url: Url,
    addresses: Vec<SocketAddr>,
    secrets: UrlSecrets,
}

impl RemotePath {
    fn build_path(&self, who: &HostIdentity, number: u16) -> Result<AnyPath, String> {
        AnyPath::from_url(&self.url, self.addresses.clone(), who, &self.secrets, number)
            .map_err(|why| format!("{}: {why}", self.url))
    }
}

/// Why a remote volume is not served.
#[derive(Debug)]
pub enum RemoteError {
    /// A local problem: which URL, and what to do.
    Unusable(String),
    /// An error of the other machine, or no response. It may be temporary.
    Absent(String),
    /// A different volume was found: the identities of both.
    Replaced(VolumeMismatch),
}

impl From<String> for RemoteError {
    fn from(why: String) -> Self {
        RemoteError::Unusable(why)
    }
}

/// Probes the volume of these URLs; `known` is its identity from an earlier start.
///
/// # Errors
/// Why it is not served.
pub fn probe_remote(urls: &str, known: Option<&ExpectedVolume>) -> Result<ProbedRemote, RemoteError> {
    let said = |why: client::Error| match why.kind {
        client::ErrorKind::Usage => RemoteError::Unusable(why.message),
        _ => RemoteError::Absent(why.message),
    };
    let parsed = Url::parse_joined(urls).map_err(|why| why.to_string())?;
    if let Some(denied) = parsed.iter().find(|url| !sandbox::may_connect(url.port)) {
        return Err(RemoteError::Unusable(format!("{denied}: {}", sandbox::CONNECT_HINT)));
    }
    // What is ours to mend is said first, who answers.
    let secrets = parsed.iter().map(|url| client::fetch_secrets(url).map_err(|why| format!("{url}: {why}")));
    let secrets = secrets.collect::<Result<Vec<UrlSecrets>, String>>()?;
    let mut ways = Vec::new();
    for (url, secrets) in parsed.into_iter().zip(secrets) {
        let absent = |why: client::Error| RemoteError::Absent(format!("{url}: {why}"));
        let addresses = client::resolve_addresses(&url).map_err(absent)?;
        ways.push(RemotePath { url, addresses, secrets });
    }
    let settings = Settings { memory: PROBE_MEMORY, ..Settings::default() };
    let mut initiator = Initiator::new(settings).map_err(said)?;
    let who = initiator.host_identity().clone();
    // What the shards will make of them without asking again.
    for way in &ways {
        way.build_path(&who, 0)?;
    }
    let volume = initiator.open(urls).map_err(said)?;
    let lost = "the volume was lost as soon as it was open; try again";
    let (found, info) = initiator
        .geometry(volume)
        .zip(initiator.info(volume))
        .ok_or_else(|| RemoteError::Absent(lost.to_owned()))?;
    // What a path carries at once is no matter of our hosts: theirs goes in pieces.
    let geometry = Geometry { max_io: TRANSFER_BYTES_MAX.max(found.logical), ..found };
    let (uuid, serial) = (info.uuid, info.serial.clone());
    // A target that does not let go in time is no reason against serving its volume.
    let _ = initiator.close(volume);
    // Each shard comes to it by itself: what it finds must be what was found here.
    let expected = ExpectedVolume { uuid, serial, logical: found.logical };
    known.map_or(Ok(()), |known| known.check_volume(&info)).map_err(RemoteError::Replaced)?;
    let (uuid, max_io) = (uuid.map(|uuid| Uuid::from_bytes(uuid.0)), Some(geometry.max_io));
    let first = ways.first().ok_or_else(|| RemoteError::Unusable("there is no URL".to_owned()))?;
    let terms = VolumeSettings { expected: Some(expected.clone()), max_io, ..volume_settings(&first.url) };
    Ok(ProbedRemote { who, ways, terms, geometry, expected, uuid })
}

/// A daemon does not give up: a volume that comes back is served again, however late. And its hosts may try
/// again on another shard, which knows nothing of what this one has in doubt: so they hear that a write failed
/// when it can land no more, and not before.
fn volume_settings(url: &Url) -> VolumeSettings {
    let said = &url.options.volume;
    VolumeSettings {
        queue_timeout: said.queue_timeout.unwrap_or(QUEUE_TIMEOUT),
        loss_timeout: said.loss_timeout.unwrap_or(Duration::MAX),
        open_timeout: said.open_timeout.unwrap_or(Duration::MAX),
        certain: true,
        ..VolumeSettings::from_options(&url.options)
    }
}

impl ProbedRemote {
    /// By this number targets know its iSCSI sessions, and no other volume's.
    pub fn set_nexus_number(&mut self, nexus: [u8; 3]) {
        self.who.isid = nexus;
    }

    /// The volume on a shard; it begins to connect.
    #[expect(
        clippy::expect_used,
        reason = "`open` made the same paths of the same parts, but for their numbers"
    )]
    pub fn volume_for_shard(&self, cx: &mut Cx<'_>, shard: u16) -> RemoteVolume<AnyPath> {
        // A session of its own for each path: those of one number and qualifier would end each other.
        let number = |at: usize| shard.wrapping_mul(multipath::url::URLS_MAX as u16).wrapping_add(at as u16);
        let paths = self.ways.iter().enumerate().map(|(at, way)| {
            way.build_path(&self.who, number(at)).expect("the same was made when the volume was looked at")
        });
        RemoteVolume::open(cx, paths.collect(), self.terms.clone())
    }
}
