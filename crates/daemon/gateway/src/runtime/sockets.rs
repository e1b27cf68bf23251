//! The links of an instance and their sockets: who connects, who is let in, which of two links stays.
//!
//! Invariants:
//! - What is told of a link begins with `Up` and ends with `Down`, unless the member has closed it; nothing is told
//!   after that.
//! - Those that have not proved that they hold the key are bounded in number and time.
//! - Between two instances one link stays. Where both have connected at the same time it is that of the instance with
//!   the smaller number, at both ends.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use buf::Time;
use group::{InstanceId, LinkId, LinkMessage, LinkPayload};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::link::{Link, LinkContext, LinkEvent, LinkFault};

/// Accepted connections that have not proved yet that they hold the key. One more costs the oldest its place, so that
/// strangers who are silent keep no gateway out.
const UNPROVED_MAX: usize = 16;
/// Two links that come up within this time were begun at the same time by both ends: the peer of a link that was lost
/// connects again and again, and is let in after it.
const RACE: Duration = Duration::from_secs(1);
/// How long what is left may take to be sent when a link has ended.
const LINGER: Duration = Duration::from_secs(1);
/// How long is waited before an address is tried again whose handshake has failed: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Bytes that are read of one socket before the others have their turn.
const READ_TURN: usize = 1 << 20;
/// Bytes that one system call moves at most.
const BUFFER: usize = 256 << 10;
/// The listener's and the bell's tokens; connections have greater ones.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// Events of one wait.
const EVENTS_MAX: usize = 64;

/// What the sockets tell.
#[derive(Debug)]
pub(super) enum SocketEvent {
    Up(LinkId, InstanceId),
    Message(LinkId, LinkMessage<LinkPayload>),
    Down(LinkId),
    /// Nobody listens where this instance should be, or another instance does.
    Refused(InstanceId),
    /// A link has failed in a way that the operator must hear of.
    Failed(SocketAddr, LinkFault),
}

struct Connection {
    socket: TcpStream,
    peer: SocketAddr,
    /// Whom this side looks for, if it has connected.
    to: Option<InstanceId>,
    /// It is not connected yet.
    is_connecting: bool,
    link: Link,
    /// What of the link is not sent yet.
    unsent: Vec<u8>,
    up: Option<InstanceId>,
    /// When it came up.
    since: Time,
    /// It has ended, and is closed when what is left was sent, or then.
    closes: Option<Time>,
    wants_out: bool,
}

struct Backoff {
    until: Time,
    pause: Duration,
}

pub(super) struct Sockets {
    me: InstanceId,
    context: LinkContext,
    epoll: OwnedFd,
    listener: TcpListener,
    connections: BTreeMap<u64, Connection>,
    last: u64,
    backoff: BTreeMap<InstanceId, Backoff>,
    events: VecDeque<SocketEvent>,
    buffer: Vec<u8>,
    /// Tokens that are ready, and for what.
    ready: Vec<(u64, EventFlags)>,
    /// Links that have something to be sent.
    touched: Vec<u64>,
}

impl Sockets {
    pub(super) fn new(
        me: InstanceId,
        context: LinkContext,
        listener: TcpListener,
        bell: BorrowedFd<'_>,
    ) -> io::Result<Sockets> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Sockets {
            me,
            context,
            epoll,
            listener,
            connections: BTreeMap::new(),
            last: BELL,
            backoff: BTreeMap::new(),
            events: VecDeque::new(),
            buffer: vec![0; BUFFER],
            ready: Vec::with_capacity(EVENTS_MAX),
            touched: Vec::new(),
        })
    }

    pub(super) fn poll_event(&mut self) -> Option<SocketEvent> {
        self.events.pop_front()
    }

    /// How many links are up.
    pub(super) fn linked(&self) -> Vec<InstanceId> {
        self.connections.values().filter(|one| one.closes.is_none()).filter_map(|one| one.up).collect()
    }

    /// Waits until something has happened, for `limit` at most.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.ready.clear();
        // Rounded up, so that what is waited for has come.
        let limit = limit.map(|limit| limit + Duration::from_micros(1));
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            Ok((events, _)) => {
                self.ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Does what the sockets are ready for.
    pub(super) fn handle_ready(&mut self, now: Time) {
        let mut ready = std::mem::take(&mut self.ready);
        for (token, flags) in ready.drain(..) {
            match token {
                LISTENER => self.accept(now),
                BELL => {}
                _ => self.handle_connection(now, token, flags),
            }
        }
        self.ready = ready;
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.connections.values().filter_map(|one| one.closes.or_else(|| one.link.poll_timeout())).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        let due: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, one)| one.closes.or_else(|| one.link.poll_timeout()).is_some_and(|at| at <= now))
            .map(|(token, _)| *token)
            .collect();
        for token in due {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            if connection.closes.is_some() {
                self.connections.remove(&token);
                continue;
            }
            connection.link.handle_timeout(now);
            self.take_events(now, token);
        }
    }

    /// Connects to an instance, unless that is under way or has just failed.
    pub(super) fn connect(&mut self, now: Time, to: InstanceId, address: SocketAddr) {
        let known = self.connections.values().any(|one| {
            one.closes.is_none() && (one.to == Some(to) && one.up.is_none() || one.up == Some(to))
        });
        if known || self.backoff.get(&to).is_some_and(|backoff| backoff.until > now) {
            return;
        }
        let link = match Link::connect(&self.context, now, to) {
            Ok(link) => link,
            Err(_) => return,
        };
        match begin_connect(address) {
            Ok(socket) => self.insert(now, socket, address, (Some(to), true), link),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.events.push_back(SocketEvent::Refused(to));
            }
            // No route, no descriptor: the member asks again.
            Err(_) => {}
        }
    }

    /// Sends a message. A link that takes no more is lost.
    pub(super) fn send(&mut self, id: LinkId, message: &LinkMessage<LinkPayload>) {
        let Some(connection) = self.connections.get_mut(&id.0).filter(|one| one.closes.is_none()) else {
            return;
        };
        match connection.link.send(message) {
            Ok(()) => self.touched.push(id.0),
            Err(_) => self.lose(id.0),
        }
    }

    /// The member wants this link no longer; nothing is told of it any more.
    pub(super) fn close(&mut self, id: LinkId) {
        self.connections.remove(&id.0);
        self.events.retain(|event| match event {
            SocketEvent::Up(of, _) | SocketEvent::Message(of, _) | SocketEvent::Down(of) => *of != id,
            SocketEvent::Refused(_) | SocketEvent::Failed(..) => true,
        });
    }

    /// Sends what waits, as far as the sockets take it.
    pub(super) fn flush(&mut self, now: Time) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for token in touched.drain(..) {
            self.transmit(now, token);
        }
        if self.touched.is_empty() {
            self.touched = touched;
        }
    }

    fn insert(
        &mut self,
        now: Time,
        socket: TcpStream,
        peer: SocketAddr,
        (to, is_connecting): (Option<InstanceId>, bool),
        link: Link,
    ) {
        self.last += 1;
        let token = self.last;
        let flags = if is_connecting { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags).is_err() {
            return;
        }
        let connection = Connection {
            socket,
            peer,
            to,
            is_connecting,
            link,
            unsent: Vec::new(),
            up: None,
            since: now,
            closes: None,
            wants_out: is_connecting,
        };
        self.connections.insert(token, connection);
    }

    fn accept(&mut self, now: Time) {
        // As many as one wait may bring; the listener is still ready if there are more.
        for _ in 0..UNPROVED_MAX {
            let Ok((socket, peer)) = self.listener.accept() else { return };
            if socket.set_nonblocking(true).is_err() || socket.set_nodelay(true).is_err() {
                continue;
            }
            let unproved: Vec<u64> = self
                .connections
                .iter()
                .filter(|(_, one)| one.to.is_none() && one.up.is_none())
                .map(|(token, _)| *token)
                .collect();
            if let Some(oldest) = unproved.first().filter(|_| unproved.len() >= UNPROVED_MAX) {
                self.connections.remove(oldest);
            }
            if let Ok(link) = Link::accept(&self.context, now) {
                self.insert(now, socket, peer, (None, false), link);
            }
        }
    }

    fn handle_connection(&mut self, now: Time, token: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_connecting {
            match connection.socket.take_error() {
                Ok(None) if flags.contains(EventFlags::OUT) => {
                    connection.is_connecting = false;
                    let _ = connection.socket.set_nodelay(true);
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => {
                    let to = connection.to.filter(|_| error.kind() == ErrorKind::ConnectionRefused);
                    self.connections.remove(&token);
                    self.events.extend(to.map(SocketEvent::Refused));
                    return;
                }
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.receive(now, token);
        }
        self.transmit(now, token);
    }

    fn receive(&mut self, now: Time, token: u64) {
        let mut taken = 0;
        while taken < READ_TURN
            && let Some(connection) = self.connections.get_mut(&token)
        {
            match connection.socket.read(&mut self.buffer) {
                Ok(0) => return self.lose(token),
                Ok(count) => {
                    taken += count;
                    // What comes behind the end is not looked at.
                    connection.link.handle_received(self.buffer.get(..count).unwrap_or_default());
                    self.take_events(now, token);
                    if count < BUFFER {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.lose(token),
            }
        }
    }

    /// Takes what a link tells.
    fn take_events(&mut self, now: Time, token: u64) {
        while let Some(connection) = self.connections.get_mut(&token)
            && let Some(event) = connection.link.poll_event()
        {
            match event {
                LinkEvent::Up(instance) => self.come_up(now, token, instance),
                LinkEvent::Message(message) if connection.closes.is_none() => {
                    self.events.push_back(SocketEvent::Message(LinkId(token), message));
                }
                LinkEvent::Message(_) => {}
                LinkEvent::Ended(fault) => self.ended(now, token, fault),
            }
        }
        self.touched.push(token);
    }

    fn come_up(&mut self, now: Time, token: u64, instance: InstanceId) {
        self.backoff.remove(&instance);
        let own = |one: &Connection| one.to.is_some();
        let Some(is_own) = self.connections.get(&token).map(own) else { return };
        let other = self
            .connections
            .iter()
            .find(|(other, one)| **other != token && one.up == Some(instance) && one.closes.is_none());
        if let Some((_, known)) = other {
            let at_once = now.since(known.since) < RACE && own(known) != is_own;
            // The link of the instance with the smaller number stays.
            let stays = if is_own { self.me < instance } else { instance < self.me };
            if at_once && !stays {
                self.connections.remove(&token);
                return;
            }
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            (connection.up, connection.since) = (Some(instance), now);
            // The member closes the link that this one replaces.
            self.events.push_back(SocketEvent::Up(LinkId(token), instance));
        }
    }

    fn ended(&mut self, now: Time, token: u64, fault: LinkFault) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.closes.is_some() {
            return;
        }
        connection.closes = Some(now + LINGER);
        let (to, peer) = (connection.to, connection.peer);
        if connection.up.is_some() {
            self.events.push_back(SocketEvent::Down(LinkId(token)));
            self.events.push_back(SocketEvent::Failed(peer, fault));
            return;
        }
        let Some(to) = to else { return };
        if let LinkFault::OtherInstance(_) = fault {
            return self.events.push_back(SocketEvent::Refused(to));
        }
        let pause = self.backoff.get(&to).map_or(BACKOFF.0, |known| (known.pause * 2).min(BACKOFF.1));
        self.backoff.insert(to, Backoff { until: now + pause, pause });
        self.events.push_back(SocketEvent::Failed(peer, fault));
    }

    /// A socket has failed, or its peer has closed it.
    fn lose(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        if connection.up.is_some() && connection.closes.is_none() {
            self.events.push_back(SocketEvent::Down(LinkId(token)));
        }
    }

    fn transmit(&mut self, now: Time, token: u64) {
        loop {
            let Some(connection) = self.connections.get_mut(&token) else { return };
            if connection.is_connecting {
                return;
            }
            if connection.unsent.is_empty() {
                let count = connection.link.poll_transmit(&mut self.buffer);
                connection.unsent.extend_from_slice(self.buffer.get(..count).unwrap_or_default());
            }
            if connection.unsent.is_empty() {
                if connection.closes.is_some() {
                    self.connections.remove(&token);
                    return;
                }
                return self.watch_out(token, false);
            }
            match connection.socket.write(&connection.unsent) {
                Ok(count) => drop(connection.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.watch_out(token, true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.lose(token),
            }
            // Encrypting may have failed.
            self.take_faults(now, token);
        }
    }

    fn take_faults(&mut self, now: Time, token: u64) {
        while let Some(connection) = self.connections.get_mut(&token)
            && connection.closes.is_none()
            && let Some(event) = connection.link.poll_event()
        {
            if let LinkEvent::Ended(fault) = event {
                self.ended(now, token, fault);
            }
        }
    }

    fn watch_out(&mut self, token: u64, on: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.wants_out, on) == on {
            return;
        }
        let flags = if on { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        // It is registered; without memory for the change the next write tells.
        let _ = epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(token), flags);
    }
}

/// A socket that connects, and does not wait for it.
fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno.into()),
    }
}
