//! NBD over a Unix socket: fixed newstyle, structured replies, block status.
//!
//! Any number of connections of any NBD client (qemu, libnbd, nbdcopy, fio's nbd engine, nbdkit, `nbd-client
//! -unix`) are served at the same time, and are coherent: a write answered on one is visible on all, and a
//! flush on one covers writes of all (NBD_FLAG_CAN_MULTI_CONN). There is no TCP port and no TLS: any process
//! that may open the socket (mode 0600) may use the volume.
//!
//! # Sizes
//! NBD tells a client the size of an export once, when it connects. A volume that grows is seen by clients
//! that connect later; existing connections keep the size that they know (with the kernel's client,
//! `nbd-client -d` and connect again). Requests beyond the end of a volume that shrank are refused: EINVAL,
//! and ENOSPC for writes.
//!
//! # Protection
//! A client is also told once, when it negotiates, whether it may write. Each request is checked against the
//! current state: writes to a volume that has been protected meanwhile fail with EPERM. When protection is
//! lifted, clients that connect again may write.

mod client;
mod replies;
mod session;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::nbd as wire;
use buf::Time;
pub use session::{CommandKind, Export, OPTION_LEN_MAX, OPTIONS_MAX, Request, Session, SessionEvent};

use crate::disk::Disk;
use crate::event_loop::{self, EventHandler, StopMode};
use crate::event_waiter::{EpollWaiter, EventKey, ReadyEvent, ServerStop, monotonic_now};
use crate::io_vectors::IoVectors;
use crate::requests::{EndedRequest, RequestTable};
use crate::socket::{AcceptGate, Listener};
use crate::statistics::Statistics;
use client::Client;
use replies::PendingReply;

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the socket shall be. A socket there that nobody listens on any more is replaced.
    pub path: PathBuf,
    /// The socket's permissions; 0600 unless others shall use the volume.
    pub mode: u32,
    /// The export's name; clients that name none get it too.
    pub name: String,
    /// A line about it for people.
    pub description: String,
    /// Connections at a time, 1 to 1,024.
    pub clients_max: u32,
    /// Requests at work at a time, of all clients together.
    pub depth: u16,
    /// How long a client may leave a request or an answer half transferred while it holds memory.
    pub stall: Duration,
}

impl Settings {
    /// What fits most: mode 0600, the empty name, 64 connections, 256 requests, a minute.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Settings {
            path: path.into(),
            mode: 0o600,
            name: String::new(),
            description: String::new(),
            clients_max: 64,
            depth: 256,
            stall: Duration::from_secs(60),
        }
    }
}

/// An NBD server that listens.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    socket: Listener,
    statistics: Arc<Statistics>,
}

impl Server {
    /// Makes the socket: clients may connect, and wait until [`Server::run`] serves them.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if another server listens there, or something that is no socket
    /// is in the way.
    pub fn new(settings: Settings) -> io::Result<Server> {
        let socket = Listener::new(&settings.path, settings.mode)?;
        Ok(Server { settings, socket, statistics: Arc::default() })
    }

    /// Counters, which go on while the server runs.
    pub fn io_counters(&self) -> Arc<Statistics> {
        self.statistics.clone()
    }

    /// Where clients connect, as qemu and libnbd write it: `nbd+unix:///NAME?socket=PATH`.
    pub fn url(&self) -> String {
        let mut url = String::from("nbd+unix:///");
        percent_encode(self.settings.name.as_bytes(), &mut url);
        url.push_str("?socket=");
        percent_encode(std::os::unix::ffi::OsStrExt::as_bytes(self.settings.path.as_os_str()), &mut url);
        url
    }

    /// Serves `disk` until `stop` is asked, and answers what was taken.
    ///
    /// # Errors
    /// Of the disk, when it is gone: all that was out has been answered with an error. Of the system, if
    /// it gives no descriptors or waits no more.
    pub fn run(&mut self, disk: &mut dyn Disk, stop: &ServerStop) -> io::Result<()> {
        let mut handler = NbdHandler {
            export: export_of(&self.settings, disk),
            requests: RequestTable::new(disk, self.settings.depth, self.statistics.clone()),
            clients: Vec::new(),
            generation: 0,
            gate: AcceptGate::default(),
            stopped: false,
            vectors: IoVectors::default(),
            server: self,
        };
        event_loop::run_event_loop(&mut handler, disk, stop)
    }
}

fn export_of(settings: &Settings, disk: &dyn Disk) -> Export {
    let geometry = disk.geometry();
    Export {
        name: settings.name.clone(),
        description: settings.description.clone(),
        size: geometry.capacity_bytes(),
        read_only: disk.is_read_only(),
        minimum: geometry.logical,
        preferred: geometry.physical,
        fast_zero: geometry.thin,
        unmapped_is_zero: geometry.dealloc_reads_zero,
    }
}

fn percent_encode(bytes: &[u8], into: &mut String) {
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                into.push(byte.into());
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

const LISTENER_KEY: EventKey = EventKey(u64::MAX >> 1);

/// A server at work.
struct NbdHandler<'a> {
    server: &'a Server,
    export: Export,
    requests: RequestTable<PendingReply>,
    clients: Vec<Option<Client>>,
    generation: u32,
    gate: AcceptGate,
    stopped: bool,
    vectors: IoVectors,
}

impl NbdHandler<'_> {
    fn count_clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }

    fn accept(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        while self.count_clients() < self.server.settings.clients_max.clamp(1, 1024) as usize {
            // Without a descriptor for the next one, it waits.
            let Some(fd) = self.gate.accept(&self.server.socket) else { break };
            let index = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
            self.generation = (self.generation + 1) & 0x3fff_ffff;
            let key = EventKey(u64::from(self.generation) << 32 | index as u64);
            if waiter.add_fd(fd.as_fd(), key, true, false).is_err() {
                // It finds its connection closed; those who are there stay.
                self.gate.pause_accepting();
                break;
            }
            let client = Client::new(fd, index as u32, self.generation, key);
            if index == self.clients.len() {
                self.clients.push(None);
            }
            // cannot fail: it is a place that was found, or the one that was just made.
            self.clients[index] = Some(client);
            self.server.statistics.set_clients(self.count_clients() as u64);
        }
        self.watch_listener(waiter)
    }

    fn watch_listener(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let may =
            !self.stopped && self.count_clients() < self.server.settings.clients_max.clamp(1, 1024) as usize;
        self.gate.update_watch(&self.server.socket, LISTENER_KEY, waiter, may)
    }

    fn drop_stalled_clients(&mut self) {
        let stall = self.server.settings.stall;
        let now = monotonic_now();
        for client in self.clients.iter_mut().flatten() {
            if client.stalled_since().is_some_and(|since| now >= since + stall) {
                client.abort_connection();
            }
        }
    }
}

impl EventHandler for NbdHandler<'_> {
    type Token = PendingReply;

    fn requests(&mut self) -> &mut RequestTable<PendingReply> {
        &mut self.requests
    }

    fn handle_ready(
        &mut self,
        _disk: &mut dyn Disk,
        waiter: &EpollWaiter,
        ready: ReadyEvent,
    ) -> io::Result<()> {
        if ready.key == LISTENER_KEY {
            return self.accept(waiter);
        }
        let index = (ready.key.0 & 0xffff_ffff) as u32;
        let Some(Some(client)) = self.clients.get_mut(index as usize) else { return Ok(()) };
        if u64::from(client.generation()) == ready.key.0 >> 32 {
            client.handle_ready(ready, &self.requests, &mut self.vectors);
        }
        Ok(())
    }

    fn handle_request_ended(&mut self, ended: EndedRequest<PendingReply>) -> io::Result<()> {
        let Some(Some(client)) = self.clients.get_mut(ended.token.client as usize) else { return Ok(()) };
        if client.generation() == ended.token.generation {
            client.handle_request_ended(ended, &self.export);
        }
        Ok(())
    }

    fn handle_geometry_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.export = export_of(&self.server.settings, disk);
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &EpollWaiter) -> io::Result<bool> {
        // A client that negotiates is told what holds now, and a write that is refused now is refused with EPERM.
        self.export.read_only = disk.is_read_only();
        self.drop_stalled_clients();
        // Who waits for room or memory has it first that waited: the list is short.
        let mut started = false;
        for index in 0..self.clients.len() {
            let Some(client) = &mut self.clients[index] else { continue };
            if std::mem::take(&mut client.touched) || client.has_parked_request() {
                started |= client.send_and_start(disk, &mut self.requests, &self.export, &mut self.vectors);
                client.update_watch(waiter)?;
            }
            if client.is_finished() {
                self.clients[index] = None;
                self.server.statistics.set_clients(self.count_clients() as u64);
            }
        }
        self.watch_listener(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let stall = self.server.settings.stall;
        let owes = self.clients.iter().flatten().filter_map(Client::stalled_since).min();
        [owes.map(|since| since + stall), self.gate.poll_timeout()].into_iter().flatten().min()
    }

    fn waits_for_memory(&self) -> bool {
        self.clients.iter().flatten().any(Client::has_parked_request)
    }

    fn start_stop(&mut self, waiter: &EpollWaiter, _how: StopMode) -> bool {
        self.stopped = true;
        // An error here would only say that it was not watched.
        let _ = self.watch_listener(waiter);
        self.clients.iter_mut().flatten().for_each(Client::stop_receiving);
        false
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.clients.iter().flatten().all(Client::is_output_drained)
    }
}
