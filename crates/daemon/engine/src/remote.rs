//! Volumes of other machines, which this daemon serves on.
//!
//! Each is opened once when the daemon starts, or as soon as it can be, to learn what it is like and to say at once
//! what is wrong; then every shard connects to it by itself. Invariants: what shards connect with is what was tried
//! here, but that each path of each shard is a session of its own, and of no other volume; what they find is the volume
//! that was found here, or it is refused with both named. So is what is found here, if it is not what was found at an
//! earlier start.

use std::{net::SocketAddr, time::Duration};

use buf::Cx;
use client::{Initiator, Settings};
use multipath::{AnyPath, Expected, HostIdentity, RemoteVolume, Secrets, Terms, Url, VolumeMismatch};
use uuid::Uuid;
use volume::Geometry;

/// How long hosts wait for a volume that cannot be reached, unless the URL says otherwise: less than the 30 s
/// after which they give up by themselves.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);

/// Memory for the one time that a volume is opened to look at it, bytes.
const LOOK_MEMORY: usize = 8 << 20;

/// What hosts may move by one command, bytes: what volumes of our own take, and what we tell (MDTS, block limits).
const MAX_IO: u32 = 1 << 20;

/// A volume of another machine, as it was found.
#[derive(Clone, Debug)]
pub struct Remote {
    who: HostIdentity,
    ways: Vec<RemotePath>,
    terms: Terms,
    /// What its blocks were like.
    pub geometry: Geometry,
    /// Which volume it is.
    pub expected: Expected,
    /// Its identity, if the target tells it.
    pub uuid: Option<Uuid>,
}

/// One path.
#[derive(Clone, Debug)]
struct RemotePath {
    url: Url,
    addresses: Vec<SocketAddr>,
    secrets: Secrets,
}

impl RemotePath {
    fn path(&self, who: &HostIdentity, number: u16) -> Result<AnyPath, String> {
        AnyPath::of(&self.url, self.addresses.clone(), who, &self.secrets, number)
            .map_err(|why| format!("{}: {why}", self.url))
    }
}

/// Why a volume of another machine is not served.
#[derive(Debug)]
pub enum RemoteError {
    /// What is wrong here, with which URL, and what to do.
    Unusable(String),
    /// What the other machine says, or that it says nothing. It may be another thing later.
    Absent(String),
    /// Another volume than before is there: what each is known by.
    Replaced(VolumeMismatch),
}

impl From<String> for RemoteError {
    fn from(why: String) -> Self {
        RemoteError::Unusable(why)
    }
}

/// Looks at the volume that these URLs name, which is `known` if it was found there before.
///
/// # Errors
/// Why it is not served.
pub fn open(urls: &str, known: Option<&Expected>) -> Result<Remote, RemoteError> {
    let said = |why: client::Error| match why.kind {
        client::Kind::Usage => RemoteError::Unusable(why.message),
        _ => RemoteError::Absent(why.message),
    };
    let parsed = Url::parse_joined(urls).map_err(|why| why.to_string())?;
    // What is ours to mend is said first, who answers.
    let secrets = parsed.iter().map(|url| client::secrets(url).map_err(|why| format!("{url}: {why}")));
    let secrets = secrets.collect::<Result<Vec<Secrets>, String>>()?;
    let mut ways = Vec::new();
    for (url, secrets) in parsed.into_iter().zip(secrets) {
        let absent = |why: client::Error| RemoteError::Absent(format!("{url}: {why}"));
        let addresses = client::resolve(&url).map_err(absent)?;
        ways.push(RemotePath { url, addresses, secrets });
    }
    let settings = Settings { memory: LOOK_MEMORY, ..Settings::default() };
    let mut initiator = Initiator::new(settings).map_err(said)?;
    let who = initiator.who().clone();
    // What the shards will make of them without asking again.
    for way in &ways {
        way.path(&who, 0)?;
    }
    let volume = initiator.open(urls).map_err(said)?;
    let lost = "the volume was lost as soon as it was open; try again";
    let (found, volume_info) = initiator
        .geometry(volume)
        .zip(initiator.volume_info(volume))
        .ok_or_else(|| RemoteError::Absent(lost.to_owned()))?;
    // What a path carries at once is no matter of our hosts: theirs goes in pieces.
    let geometry = Geometry { max_io: MAX_IO.max(found.logical), ..found };
    let (uuid, serial) = (volume_info.uuid, volume_info.serial.clone());
    // A target that does not let go in time is no reason against serving its volume.
    let _ = initiator.close(volume);
    // Each shard comes to it by itself: what it finds must be what was found here.
    let expected = Expected { uuid, serial, logical: found.logical };
    known.map_or(Ok(()), |known| known.accept(&volume_info)).map_err(RemoteError::Replaced)?;
    let (uuid, max_io) = (uuid.map(|uuid| Uuid::from_bytes(uuid.0)), Some(geometry.max_io));
    let first = ways.first().ok_or_else(|| RemoteError::Unusable("there is no URL".to_owned()))?;
    let terms = Terms { expected: Some(expected.clone()), max_io, ..terms(&first.url) };
    Ok(Remote { who, ways, terms, geometry, expected, uuid })
}

/// A daemon does not give up: a volume that comes back is served again, however late. And its hosts may try
/// again on another shard, which knows nothing of what this one has in doubt: so they hear that a write failed
/// when it can land no more, and not before.
fn terms(url: &Url) -> Terms {
    let said = &url.options.volume;
    Terms {
        queue_timeout: said.queue_timeout.unwrap_or(QUEUE_TIMEOUT),
        loss_timeout: said.loss_timeout.unwrap_or(Duration::MAX),
        open_timeout: said.open_timeout.unwrap_or(Duration::MAX),
        certain: true,
        ..Terms::of(&url.options)
    }
}

impl Remote {
    /// By this number targets know its iSCSI sessions, and no other volume's.
    pub fn set_nexus(&mut self, nexus: [u8; 3]) {
        self.who.isid = nexus;
    }

    /// The volume on a shard; it begins to connect.
    #[expect(
        clippy::expect_used,
        reason = "`open` made the same paths of the same parts, but for their numbers"
    )]
    pub fn on_shard(&self, cx: &mut Cx<'_>, shard: u16) -> RemoteVolume<AnyPath> {
        // A session of its own for each path: those of one number and qualifier would end each other.
        let number = |at: usize| shard.wrapping_mul(multipath::url::URLS_MAX as u16).wrapping_add(at as u16);
        let paths = self.ways.iter().enumerate().map(|(at, way)| {
            way.path(&self.who, number(at)).expect("the same was made when the volume was looked at")
        });
        RemoteVolume::open(cx, paths.collect(), self.terms.clone())
    }
}
