//! The process that takes over, as the one that serves sees it: a child that is fed what is served.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use endpoint::ShardId;
use shard::{LeftBehind, TargetSnapshot};
use uuid::Uuid;

use super::channel::Channel;
use super::{ChannelError, HandOverMessage, OfferBody, OfferedListener, OfferedMemory, VARIABLE};
use crate::daemon::StopSignal;
use config::name::VolumeName;
use control::report::ListenerReport;
use process::log::area;

/// How long the new process may take until it speaks.
const HELLO_TIMEOUT: Duration = Duration::from_secs(4);
/// How long it may take to read its configuration and to open the volumes, while this process serves on.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one step of the hand-over may take, while hosts wait.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the old process goes on.
#[derive(Debug)]
pub enum HandOverError {
    /// The new binary cannot be started.
    Start(io::Error),
    /// They cannot talk.
    Channel(ChannelError),
    /// The new process does not take over, for this reason of its own.
    Refused(String),
    /// Something of the daemon cannot be handed over, or does not come to rest.
    Blocked(String),
    /// After the commit: the new process has ended. Nothing is served any more.
    Lost(ChannelError),
}

impl From<ChannelError> for HandOverError {
    fn from(why: ChannelError) -> Self {
        HandOverError::Channel(why)
    }
}

impl From<io::Error> for HandOverError {
    fn from(why: io::Error) -> Self {
        HandOverError::Channel(ChannelError::Io(why))
    }
}

/// In words.
impl fmt::Display for HandOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandOverError::Start(why) => write!(f, "the new binary cannot be started: {why}"),
            HandOverError::Channel(why) => write!(f, "the new process does not take over: {why}"),
            HandOverError::Refused(why) => write!(f, "the new process does not take over: {why}"),
            HandOverError::Blocked(why) => write!(f, "{why}"),
            HandOverError::Lost(why) => write!(f, "the new process has taken over, and then: {why}"),
        }
    }
}

impl std::error::Error for HandOverError {}

/// What is open, to be handed over.
#[derive(Debug)]
pub struct HandOverOffer {
    /// How many shards serve.
    pub shards: u16,
    /// The state directory's lock.
    pub state: OwnedFd,
    /// The control socket.
    pub control: OwnedFd,
    /// The socket of metrics.
    pub metrics: Option<OwnedFd>,
    /// The start of this process' flight recorders.
    pub flight: Option<String>,
    /// Where is listened, each with its number.
    pub listeners: Vec<(u16, ListenerReport, OwnedFd)>,
    /// The files of volumes.
    pub files: Vec<OwnedFd>,
    /// The memory of RAM volumes, by their names, and their UUIDs.
    pub memories: Vec<(VolumeName, Uuid, OwnedFd)>,
}

/// What went over.
#[derive(Clone, Debug)]
pub struct HandedOver {
    /// iSCSI sessions.
    pub sessions: usize,
    /// NVMe queues.
    pub queues: usize,
    /// Who did not.
    pub left: Vec<LeftBehind>,
    /// For how long nothing was served.
    pub pause: Duration,
}

/// The new process. Dropping it before the commit ends it.
#[derive(Debug)]
pub struct Successor {
    channel: Channel,
    child: Child,
    committed: bool,
    /// Who asks this process to stop asks the new one from the commit on.
    stopping: Arc<StopSignal>,
}

impl Successor {
    /// Starts `binary` with the arguments of this process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        binary: &Path,
        arguments: &[OsString],
        stopping: Arc<StopSignal>,
    ) -> Result<Self, HandOverError> {
        let (own, its) = UnixStream::pair()?;
        let mut command = Command::new(binary);
        command.args(arguments).env(VARIABLE, "1").stdin(Stdio::from(OwnedFd::from(its)));
        let child = command.spawn().map_err(HandOverError::Start)?;
        let channel = Channel::to_successor(own, HELLO_TIMEOUT);
        Ok(Successor { channel, child, committed: false, stopping })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it read its configuration and open the volumes, while this process serves on.
    ///
    /// # Errors
    /// It refuses, or cannot be talked to.
    pub fn prepare(&mut self, offered: &HandOverOffer) -> Result<(), HandOverError> {
        let listeners = offered.listeners.iter().map(|(id, report, _)| OfferedListener {
            id: *id,
            protocol: report.protocol.clone(),
            tag: report.tag,
            address: report.address,
        });
        let memories = offered
            .memories
            .iter()
            .map(|(volume, uuid, _)| OfferedMemory { volume: volume.to_string(), uuid: *uuid.as_bytes() });
        let body = OfferBody {
            shards: offered.shards,
            has_metrics: offered.metrics.is_some(),
            flight: offered.flight.clone(),
            listeners: listeners.collect(),
            files: offered.files.len() as u32,
            memories: memories.collect(),
        };
        let mut descriptors = vec![offered.state.as_fd(), offered.control.as_fd()];
        descriptors.extend(offered.metrics.as_ref().map(AsFd::as_fd));
        descriptors.extend(offered.listeners.iter().map(|(_, _, socket)| socket.as_fd()));
        descriptors.extend(offered.files.iter().map(AsFd::as_fd));
        descriptors.extend(offered.memories.iter().map(|(.., memory)| memory.as_fd()));
        self.channel.send(&HandOverMessage::Offer(body), &descriptors)?;
        self.expect(|message| matches!(message, HandOverMessage::Hello))?;
        self.channel.set_patience(PREPARE_TIMEOUT);
        self.expect(|message| matches!(message, HandOverMessage::Prepared))
    }

    /// Gives it what is served.
    ///
    /// # Errors
    /// It refuses, or cannot be talked to.
    pub fn restore(&mut self, snapshot: &TargetSnapshot) -> Result<(), HandOverError> {
        self.channel.set_patience(STEP_TIMEOUT);
        self.channel.send(&HandOverMessage::Target(snapshot.to_bytes()), &[])?;
        self.expect(|message| matches!(message, HandOverMessage::Restored))
    }

    /// Gives it the sockets of a shard, in the order of their numbers.
    ///
    /// # Errors
    /// It cannot be talked to.
    pub fn send_links(&mut self, shard: ShardId, sockets: &[OwnedFd]) -> Result<(), HandOverError> {
        let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        let message = HandOverMessage::Links { shard: shard.0 };
        Ok(self.channel.send(&message, &descriptors)?)
    }

    /// Waits until it has the sockets of all shards: with too few descriptors it has not.
    ///
    /// # Errors
    /// It refuses, or cannot be talked to.
    pub fn wait_until_held(&mut self) -> Result<(), HandOverError> {
        self.expect(|message| matches!(message, HandOverMessage::Held))
    }

    /// From here on it serves, and this process does not.
    ///
    /// # Errors
    /// It was not told, and this process goes on: it is to stop, or the new one does not wait for this any more.
    pub fn commit(&mut self) -> Result<(), HandOverError> {
        if !self.channel.is_quiet() {
            self.expect(|_| false)?;
        }
        let (channel, pid) = (&mut self.channel, self.child.id());
        match self.stopping.pass_on(pid, || channel.send(&HandOverMessage::Commit, &[])) {
            Some(sent) => sent?,
            None => return Err(HandOverError::Blocked("the daemon is to stop".to_owned())),
        }
        self.committed = true;
        Ok(())
    }

    /// Waits until it serves, or has not said so in time.
    ///
    /// # Errors
    /// It has ended.
    pub fn wait_until_taken(&mut self) -> Result<(), HandOverError> {
        self.channel.set_patience(STEP_TIMEOUT);
        match self.channel.receive() {
            Ok((HandOverMessage::Taken, _)) => Ok(()),
            Ok(_) => Err(HandOverError::Lost(ChannelError::Unexpected)),
            Err(ChannelError::Io(why)) if why.kind() == io::ErrorKind::WouldBlock => {
                tracing::error!(target: area::SERVE, pid = self.pid(), "the new process has not said that it serves");
                Ok(())
            }
            Err(why) => Err(HandOverError::Lost(why)),
        }
    }

    fn expect(&mut self, is_it: impl Fn(&HandOverMessage) -> bool) -> Result<(), HandOverError> {
        match self.channel.receive()?.0 {
            HandOverMessage::Refused(why) => Err(HandOverError::Refused(why)),
            message if is_it(&message) => Ok(()),
            _ => Err(ChannelError::Unexpected.into()),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.committed {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
