//! The process that served until now, as the one that takes over sees it: descriptors, what is served, and the commit.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use endpoint::{ListenerId, ShardId};
use uuid::Uuid;

use super::channel::Channel;
use super::{ChannelError, HandOverMessage, OfferedListener, VARIABLE};
use config::name::VolumeName;
use config::plan::{Plan, Portal};

/// How long the old process may take to come to rest: more than any `--within`.
const REST_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest reason of a refusal, in characters: well within what the old process receives.
const REASON_CHARS_MAX: usize = 8 << 10;

/// Files of volumes that the old process had open: with its locks, and the kernel's notes of failed syncs.
#[derive(Debug, Default)]
pub struct HandedFiles {
    files: HashMap<(u64, u64), File>,
    /// Of RAM volumes, by their names.
    memories: HashMap<String, (Uuid, File)>,
}

impl HandedFiles {
    pub(crate) fn of(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut files = HashMap::new();
        for file in descriptors.into_iter().map(File::from) {
            let facts = file.metadata()?;
            files.insert((facts.dev(), facts.ino()), file);
        }
        Ok(HandedFiles { files, memories: HashMap::new() })
    }

    /// The memory of a RAM volume, once, and its UUID.
    pub fn take_memory(&mut self, volume: &VolumeName) -> Option<(Uuid, File)> {
        self.memories.remove(volume.as_str())
    }

    /// Its descriptor of what a path leads to, if it has one.
    pub fn at(&self, path: &Path) -> Option<File> {
        let facts = std::fs::metadata(path).ok()?;
        self.files.get(&(facts.dev(), facts.ino()))?.try_clone().ok()
    }

    /// The old process' descriptor of what `file` is, if it has one.
    pub fn same_as(&self, file: &File) -> Option<File> {
        let facts = file.metadata().ok()?;
        self.files.get(&(facts.dev(), facts.ino()))?.try_clone().ok()
    }
}

/// The sockets that came for each shard.
type LinksByShard = Vec<(ShardId, Vec<OwnedFd>)>;

/// The old process.
#[derive(Debug)]
pub struct Predecessor {
    channel: Mutex<Channel>,
    shards: u16,
    state: Mutex<Option<File>>,
    control: Mutex<Option<UnixListener>>,
    metrics: Mutex<Option<TcpListener>>,
    flight: Option<String>,
    listeners: Mutex<Vec<(OfferedListener, OwnedFd)>>,
    files: Mutex<HandedFiles>,
}

/// A portal of the plan: its number in the old process, where it listens, and its socket.
pub type HandedListener = (ListenerId, SocketAddr, OwnedFd);

impl Predecessor {
    /// The one that has started this process, if one has.
    ///
    /// # Errors
    /// There is one, and it cannot be talked to.
    pub fn from_environment() -> Result<Option<Self>, ChannelError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        Predecessor::of(UnixStream::from(socket)).map(Some)
    }

    fn of(socket: UnixStream) -> Result<Self, ChannelError> {
        let mut channel = Channel::to_predecessor(socket, REST_TIMEOUT);
        let (HandOverMessage::Offer(body), descriptors) = channel.receive()? else {
            return Err(ChannelError::Unexpected);
        };
        channel.send(&HandOverMessage::Hello, &[])?;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(ChannelError::Unexpected);
        let (state, control) = (File::from(next()?), UnixListener::from(next()?));
        let metrics = body.has_metrics.then(&mut next).transpose()?.map(TcpListener::from);
        let listeners = body.listeners.into_iter().map(|listener| Ok((listener, next()?)));
        let listeners = listeners.collect::<Result<Vec<_>, ChannelError>>()?;
        let mut files: Vec<OwnedFd> = descriptors.collect();
        if files.len().checked_sub(body.memories.len()) != Some(body.files as usize) {
            return Err(ChannelError::Unexpected);
        }
        let memories = files.split_off(body.files as usize).into_iter().zip(body.memories);
        let memories = memories.map(|(file, of)| (of.volume, (Uuid::from_bytes(of.uuid), File::from(file))));
        let files = HandedFiles { memories: memories.collect(), ..HandedFiles::of(files)? };
        Ok(Predecessor {
            channel: Mutex::new(channel),
            shards: body.shards,
            state: Mutex::new(Some(state)),
            control: Mutex::new(Some(control)),
            metrics: Mutex::new(metrics),
            flight: body.flight,
            listeners: Mutex::new(listeners),
            files: Mutex::new(files),
        })
    }

    fn lock_channel(&self) -> MutexGuard<'_, Channel> {
        lock(&self.channel)
    }

    /// How many shards served.
    pub fn shard_count(&self) -> u16 {
        self.shards
    }

    /// The start of its flight recorders, whose files are not this process' to remove.
    pub fn flight_start(&self) -> Option<&str> {
        self.flight.as_deref()
    }

    /// The lock of the state directory, once.
    pub fn take_state_lock(&self) -> Option<File> {
        lock(&self.state).take()
    }

    /// The control socket, once.
    pub fn take_control_listener(&self) -> Option<UnixListener> {
        lock(&self.control).take()
    }

    /// The socket of metrics, once.
    pub fn take_metrics_listener(&self) -> Option<TcpListener> {
        lock(&self.metrics).take()
    }

    /// Files that it has open, once.
    pub fn take_files(&self) -> HandedFiles {
        std::mem::take(&mut *lock(&self.files))
    }

    /// For each portal of the plan the old one's socket and number, once: the others are closed here.
    ///
    /// # Errors
    /// The address of a portal that is not among those of the old process.
    pub fn take_listeners(&self, plan: &Plan) -> Result<Vec<HandedListener>, SocketAddr> {
        let mut handed = std::mem::take(&mut *lock(&self.listeners));
        let fits = |portal: &Portal, one: &OfferedListener| {
            let port = portal.address.port();
            one.protocol == portal.protocol.as_str()
                && one.tag == portal.tag
                && one.address.ip() == portal.address.ip()
                && (port == 0 || port == one.address.port())
        };
        let mut all = Vec::new();
        for portal in &plan.portals {
            let at = handed.iter().position(|(one, _)| fits(portal, one)).ok_or(portal.address)?;
            let (one, socket) = handed.remove(at);
            all.push((ListenerId(one.id), one.address, socket));
        }
        Ok(all)
    }

    /// Says that all is open and checked, and waits for what is served.
    ///
    /// # Errors
    /// It cannot be talked to, or goes on itself.
    pub fn wait_for_target(&self) -> Result<Vec<u8>, ChannelError> {
        let mut channel = self.lock_channel();
        channel.send(&HandOverMessage::Prepared, &[])?;
        match channel.receive()?.0 {
            HandOverMessage::Target(bytes) => Ok(bytes),
            _ => Err(ChannelError::Unexpected),
        }
    }

    /// Says that all is restored, and waits for the sockets, of each shard `count` many, and for the commit. Whatever
    /// fails before that: the old process serves on, and this one is to end.
    ///
    /// # Errors
    /// It cannot be talked to, or goes on itself; there are not as many descriptors left.
    pub fn wait_for_commit(&self, count: impl Fn(ShardId) -> usize) -> Result<LinksByShard, ChannelError> {
        let mut channel = self.lock_channel();
        channel.send(&HandOverMessage::Restored, &[])?;
        let mut links = Vec::new();
        for of in (0..self.shards).map(ShardId) {
            match channel.receive()? {
                (HandOverMessage::Links { shard }, sockets)
                    if shard == of.0 && sockets.len() == count(of) =>
                {
                    links.push((of, sockets));
                }
                _ => return Err(ChannelError::Unexpected),
            }
        }
        channel.send(&HandOverMessage::Held, &[])?;
        match channel.receive()?.0 {
            HandOverMessage::Commit => Ok(links),
            _ => Err(ChannelError::Unexpected),
        }
    }

    /// Says that this process serves. The old one may have gone.
    pub fn confirm(&self) {
        let _ = self.lock_channel().send(&HandOverMessage::Taken, &[]);
    }

    /// Says why this process does not take over.
    pub fn refuse(&self, why: &str) {
        let why = why.chars().take(REASON_CHARS_MAX).collect();
        // It may have gone; then nobody waits for the reason.
        let _ = self.lock_channel().send(&HandOverMessage::Refused(why), &[]);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
