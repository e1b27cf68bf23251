//! A shard whose log lines go through a bounded channel, so that a slow stderr never slows the data path:
//! lines that do not fit are dropped. Of lines that unauthenticated peers can cause at will only a few per
//! second are written; the others are counted.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use buf::{Cx, Errno, Time};
use endpoint::{Dial, DialId, Dialled, Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use iscsi::login::LoginEndCause;
use nvme::Nqn;
use process::log::area;
use shard::{ConnectFailure, ControllerEnd, LogLine, LoginNames, Message, NvmeLogLine, Shard};
use stream::{Received, RecvOp, SendOp};
use volume::{DiskOp, OperatorNotice};

use super::group::JoinedGroup;
use crate::DownPath;

/// Lines that may wait to be written.
const LINES_MAX: usize = 1024;

/// How many lines of strangers are written in each [`RATE_WINDOW`].
const UNAUTHENTICATED_LINES_MAX: u32 = 20;
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// A bounded channel for the log lines of all shards.
pub fn log_line_channel() -> (SyncSender<LogLine>, Receiver<LogLine>) {
    sync_channel(LINES_MAX)
}

/// Which paths to volumes of other machines are down, as the shards said last.
#[derive(Clone, Debug, Default)]
pub struct DownPaths(Arc<Mutex<Vec<DownPath>>>);

impl DownPaths {
    /// Those that are down, in order.
    pub fn list(&self) -> Vec<DownPath> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, name: &str, remark: &OperatorNotice) {
        let (is_down, &(leg, path), why) = match remark {
            OperatorNotice::PathDown { path, why } => (true, path, why.as_str()),
            OperatorNotice::PathUp { path } => (false, path, ""),
            _ => return,
        };
        let mut down = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        down.retain(|one| (one.volume.as_str(), one.leg, one.path) != (name, leg, path));
        if is_down && down.len() < DOWN_PATHS_MAX {
            down.push(DownPath { volume: name.to_owned(), leg, path, why: why.to_owned() });
            down.sort();
        }
    }
}

/// How many paths that are down are kept. Those of volumes that are served no more are among them.
const DOWN_PATHS_MAX: usize = 4096;

/// Writes the lines to the log until every shard has ended; run by the log thread.
pub fn write_log_lines(lines: Receiver<LogLine>, down: &DownPaths) {
    let mut flood = LineRateLimit::new(Instant::now());
    loop {
        let line = lines.recv_timeout(RATE_WINDOW);
        let passes = match &line {
            Ok(LogLine::LoginFailed { .. } | LogLine::LinkFault { .. } | LogLine::Volume { .. }) => {
                flood.admits(Instant::now())
            }
            Ok(LogLine::Nvme(line)) => !line.is_from_unauthenticated() || flood.admits(Instant::now()),
            Ok(LogLine::LoggedIn { .. } | LogLine::LoggedOut { .. }) | Err(_) => true,
        };
        let kept = flood.take_suppressed(Instant::now());
        if kept > 0 {
            tracing::warn!(target: area::SESSION, lines = kept, "more failed logins and protocol violations, not logged one by one");
        }
        if let Ok(LogLine::Volume { name, remark }) = &line {
            down.update(name, remark);
        }
        match line {
            Ok(line) if passes => write_line(line),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What is shown for a name that was not given.
const NO_NAME: &str = "-";

fn write_line(line: LogLine) {
    match line {
        LogLine::LoginFailed { peer, names, cause } => write_failed_login(peer, names.as_deref(), cause),
        LogLine::LoggedIn { peer, initiator, target } => match target {
            Some(target) => tracing::info!(target: area::ISCSI, %peer, %initiator, %target, "logged in"),
            None => tracing::info!(target: area::ISCSI, %peer, %initiator, "discovery"),
        },
        LogLine::LoggedOut { peer, initiator, target: Some(target) } => {
            tracing::info!(target: area::ISCSI, %peer, %initiator, %target, "session ended");
        }
        // It ends as it should; its beginning was noted.
        LogLine::LoggedOut { peer, initiator, target: None } => {
            tracing::debug!(target: area::ISCSI, %peer, %initiator, "discovery ended");
        }
        LogLine::LinkFault { peer, initiator, target, violation } => tracing::warn!(
            target: area::ISCSI,
            %peer,
            %initiator,
            target = target.as_deref().unwrap_or(NO_NAME),
            violation = %violation.fault,
            "protocol broken"
        ),
        LogLine::Volume { name, remark } => write_notice(&name, remark),
        LogLine::Nvme(line) => write_nvme_line(line),
    }
}

/// What an initiator says of itself is not authenticated; none of it is a secret.
fn write_failed_login(peer: SocketAddr, names: Option<&LoginNames>, cause: Option<LoginEndCause>) {
    let initiator = names.map_or(NO_NAME, |names| &names.initiator);
    let target = names.and_then(|names| names.target.as_deref()).unwrap_or(NO_NAME);
    let user = names.and_then(|names| names.user.as_deref()).unwrap_or(NO_NAME);
    match cause {
        Some(LoginEndCause::Authentication) if names.is_some_and(|names| names.user.is_none()) => {
            tracing::warn!(
                target: area::ISCSI,
                %peer,
                initiator,
                target,
                cause = "the initiator gave no CHAP user, or no method and algorithm that may be used here: give it one \
                         that is configured here",
                "login failed"
            )
        }
        Some(cause) => {
            tracing::warn!(target: area::ISCSI, %peer, initiator, target, user, %cause, "login failed")
        }
        None => tracing::info!(
            target: area::ISCSI,
            %peer,
            initiator,
            target,
            cause = "the initiator closed the connection, or took too long",
            "login not finished"
        ),
    }
}

fn write_nvme_line(line: NvmeLogLine) {
    match line {
        NvmeLogLine::NotConnected { peer, names, cause: Some(cause) } => {
            write_refused_connect(peer, names, &cause)
        }
        NvmeLogLine::NotConnected { peer, names, cause: None } => {
            let (host, subsystem) = shown_names(names);
            tracing::info!(
                target: area::NVME,
                %peer,
                host,
                subsystem,
                cause = "the host closed the connection, or took too long",
                "connect not finished"
            );
        }
        NvmeLogLine::Connected { peer, host, subsystem, cntlid } => {
            tracing::info!(target: area::NVME, %peer, %host, %subsystem, cntlid, "connected");
        }
        NvmeLogLine::Disconnected { peer, host, subsystem, cntlid, why } => {
            write_ended_controller(peer, &host, &subsystem, (cntlid, &why));
        }
        NvmeLogLine::LinkFault { peer, names, violation } => {
            let (host, subsystem) = shown_names(names);
            tracing::warn!(target: area::NVME, %peer, host, subsystem, %violation, "protocol broken");
        }
    }
}

/// Host and subsystem.
fn shown_names(names: Option<(Nqn, Nqn)>) -> (String, String) {
    names.map_or_else(
        || (NO_NAME.to_owned(), NO_NAME.to_owned()),
        |(host, subsystem)| (host.to_string(), subsystem.to_string()),
    )
}

fn write_refused_connect(peer: SocketAddr, names: Option<(Nqn, Nqn)>, cause: &ConnectFailure) {
    let (host, subsystem) = shown_names(names);
    match cause {
        ConnectFailure::IdentifierTaken(other) => tracing::warn!(
            target: area::NVME,
            %peer,
            host,
            subsystem,
            bearer = %other,
            "connect refused: the host identifier is in use by another host; give each machine its own \
             (nvme gen-hostnqn, /etc/nvme/hostid)"
        ),
        ConnectFailure::PutOff => tracing::warn!(
            target: area::NVME,
            %peer,
            host,
            subsystem,
            "connect delayed: hosts from this address failed to authenticate several times; it may retry in a \
             few seconds"
        ),
        ConnectFailure::OtherRule => tracing::warn!(
            target: area::NVME,
            %peer,
            host,
            subsystem,
            "connect of an I/O queue refused: its address matches a different host rule than the admin queue \
             of its controller; use one rule for all addresses of a host"
        ),
        cause => tracing::warn!(target: area::NVME, %peer, host, subsystem, %cause, "connect refused"),
    }
}

fn write_ended_controller(
    peer: SocketAddr,
    host: &Nqn,
    subsystem: &Nqn,
    (cntlid, why): (u16, &ControllerEnd),
) {
    match why {
        ControllerEnd::Unauthenticated => tracing::warn!(
            target: area::NVME,
            %peer,
            %host,
            %subsystem,
            "the host failed to authenticate: its key differs from the one configured here, or it has none \
             (nvme connect --dhchap-secret, /etc/nvme/hosts)"
        ),
        ControllerEnd::NoControllerKey => tracing::warn!(
            target: area::NVME,
            %peer,
            %host,
            %subsystem,
            "the host requests authentication of the controller, and no key is configured for that: set \
             dhchap_controller_key_file in its [[host]], or connect without --dhchap-ctrl-secret"
        ),
        ControllerEnd::RefusedByHost(cause) => tracing::warn!(
            target: area::NVME,
            %peer,
            %host,
            %subsystem,
            %cause,
            "the host refused the controller: compare its controller key (nvme connect --dhchap-ctrl-secret) \
             with dhchap_controller_key_file"
        ),
        ControllerEnd::Overloaded => tracing::warn!(
            target: area::NVME,
            %peer,
            %host,
            %subsystem,
            "delayed: too many hosts are waiting to authenticate, from this address or in total; it may retry"
        ),
        why => tracing::info!(target: area::NVME, %peer, %host, %subsystem, cntlid, %why, "controller ended"),
    }
}

fn write_notice(volume: &str, remark: OperatorNotice) {
    match remark {
        OperatorNotice::Persistence { by, persists, registrants } => tracing::warn!(
            target: area::VOLUME,
            volume,
            %by,
            persists,
            registrants,
            "a registration changed for all registrants whether reservations survive power loss"
        ),
        OperatorNotice::Closed => tracing::error!(
            target: area::VOLUME,
            volume,
            "closed: earlier operations did not complete in time for a change; it reopens when they complete"
        ),
        OperatorNotice::Opened => {
            tracing::warn!(target: area::VOLUME, volume, "open again: the stuck operations have completed")
        }
        OperatorNotice::NoSpace => tracing::error!(
            target: area::VOLUME,
            volume,
            "no space left for a write, which failed; free space on the backing file system, or discard unused \
             blocks from the hosts (fstrim)"
        ),
        OperatorNotice::ThinThreshold { allocated, capacity } => tracing::warn!(
            target: area::VOLUME,
            volume,
            allocated,
            capacity,
            "as much is allocated as thin_threshold says: initiators are told; discard unused blocks from the hosts \
             (fstrim), or see that what the volume lies on has space"
        ),
        OperatorNotice::SyncFailed => tracing::error!(
            target: area::VOLUME,
            volume,
            "a sync has failed: writes since the last successful sync may be lost, and writes are refused; check \
             the disk, then acknowledge with `blockwire volume retry`; a restart alone changes nothing"
        ),
        OperatorNotice::NotFlushed => tracing::error!(
            target: area::VOLUME,
            volume,
            "not flushed: writes since the last successful flush may be lost; check the disk, or the machine that \
             owns it, before hosts continue"
        ),
        OperatorNotice::PathDown { path: (leg, path), why } => {
            tracing::warn!(target: area::PATH, volume, leg, path, cause = why, "a path to the remote volume is down");
        }
        OperatorNotice::PathUp { path: (leg, path) } => {
            tracing::info!(target: area::PATH, volume, leg, path, "a path to the remote volume is up again");
        }
        OperatorNotice::RecordUnreadable => tracing::error!(
            target: area::VOLUME,
            volume,
            "not served: the record that its last owner left in the group's store is damaged; restore it, then restart \
             this gateway"
        ),
        OperatorNotice::BadBlocksFull { by } => {
            tracing::warn!(target: area::VOLUME, volume, %by, "no more blocks can be marked bad: write the marked ones first");
        }
    }
}

/// Counts lines that anybody can cause.
struct LineRateLimit {
    since: Instant,
    written: u32,
    kept: u64,
}

impl LineRateLimit {
    fn new(now: Instant) -> Self {
        LineRateLimit { since: now, written: 0, kept: 0 }
    }

    /// Whether one more line may be written now.
    fn admits(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= RATE_WINDOW && self.kept == 0 {
            (self.since, self.written) = (now, 0);
        }
        let passes = self.written < UNAUTHENTICATED_LINES_MAX;
        self.written += u32::from(passes);
        self.kept += u64::from(!passes);
        passes
    }

    /// How many were not, once per span.
    fn take_suppressed(&mut self, now: Instant) -> u64 {
        if self.kept == 0 || now.duration_since(self.since) < RATE_WINDOW {
            return 0;
        }
        (self.since, self.written) = (now, 0);
        std::mem::take(&mut self.kept)
    }
}

/// The shard.
pub struct LoggedShard {
    /// The shard itself.
    pub shard: Shard,
    /// Where its lines go.
    pub lines: SyncSender<LogLine>,
    /// The group of gateways, which takes what shards have for it.
    pub group: Option<Arc<JoinedGroup>>,
}

impl Endpoint for LoggedShard {
    type Message = Message;

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Message>) {
        self.shard.handle_arrival(cx, link, how);
    }
    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        self.shard.handle_message(cx, message);
    }
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.shard.handle_recv(cx, link, op, came);
    }
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.shard.handle_written(cx, link, how);
    }
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.shard.handle_send_released(cx, link, op);
    }
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.shard.handle_disk(cx, op, came);
    }
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.shard.handle_timeout(cx);
    }
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let more = self.shard.turn(cx);
        while let Some(line) = self.shard.poll_log() {
            // Full: the writer is behind, and these lines are of a flood.
            let _ = self.lines.try_send(line);
        }
        more
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        self.shard.poll_ready()
    }
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        self.shard.poll_recv(cx, link)
    }
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.shard.poll_send(cx, link)
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.shard.poll_disk()
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Message>)> {
        self.shard.poll_departure()
    }
    fn poll_halt(&mut self) -> Option<LinkId> {
        self.shard.poll_halt()
    }
    fn handle_send_cut(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp, written: usize) {
        self.shard.handle_send_cut(cx, link, op, written);
    }
    fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        loop {
            match (self.shard.poll_message()?, &self.group) {
                // Not by the control plane's inbox, which drops what is too much.
                ((_, Message::ToGateway(message)), Some(group)) => group.handle(*message),
                (message, _) => return Some(message),
            }
        }
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.shard.poll_timeout()
    }
    fn poll_dial(&mut self) -> Option<Dial> {
        self.shard.poll_dial()
    }
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.shard.handle_dialled(cx, id, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_a_trickle_is_written() {
        let begin = Instant::now();
        let mut flood = LineRateLimit::new(begin);
        assert!((0..UNAUTHENTICATED_LINES_MAX).all(|_| flood.admits(begin)));
        assert!((0..1000).all(|_| !flood.admits(begin)));
        assert_eq!(flood.take_suppressed(begin), 0, "not before the span is over");
        let later = begin + RATE_WINDOW;
        assert_eq!((flood.take_suppressed(later), flood.take_suppressed(later)), (1000, 0));
        assert!(flood.admits(later));
        // One line a second is written for ever.
        assert!((2..200).all(|second| flood.admits(begin + RATE_WINDOW * second)));
    }
}
