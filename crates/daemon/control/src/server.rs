//! The daemon's end of the control socket.

mod hand_over;

use std::{
    fs,
    io::{self, BufReader, Write},
    net::Shutdown,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::Mode;

use super::accept_gate::AcceptGate;
use super::audit::AuditedChange;
use super::{
    Answer, PROTOCOL_VERSION, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, RefusalCode, ReplyEnvelope, ReplyOutcome,
    Request, RequestEnvelope, RequestRefusal, read_bounded_line, readers::ReaderGroup,
};
use process::exit::Failure;
use process::log::area;
use process::{
    owned_dir::{self, PeerProcess, current_uid},
    random,
};

/// Clients at one time; each costs a thread.
const CLIENTS_MAX: usize = 16;
/// Further ones while all those are being answered, of which nothing is heard but how the daemon is and that it is to
/// end.
const SPARE_CLIENTS: usize = 4;
/// Clients that were hung up on while they waited for an answer; each costs a thread until that comes.
const HUNG_UP_CLIENTS_MAX: usize = 16;
/// Of all these, clients who may only look.
const READERS_MAX: usize = 4;
/// Who has not been answered for so long has lost patience (a little more than a client's).
const REPLY_TIMEOUT: Duration = Duration::from_secs(65);
/// A client that says nothing for so long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A client that takes nothing for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What answers requests.
pub trait ControlService: Send + Sync + 'static {
    /// Answers one request. May take as long as the shards need.
    fn handle_request(&self, request: Request) -> Result<Answer, RequestRefusal>;
    /// Called when the reply to `request` has been written, with the answer given.
    fn reply_written(&self, request: &Request, done: bool);
}

/// The bound socket. Dropping it removes it from the file system.
#[derive(Debug)]
pub struct ControlSocket {
    listener: Arc<UnixListener>,
    path: PathBuf,
    /// Device and number of its inode, if it is ours to remove.
    inode: Option<(u64, u64)>,
    /// Who may look, beside this user and root.
    readers: Option<ReaderGroup>,
    gate: AcceptGate,
}

impl ControlSocket {
    /// Takes the path. A socket that nobody serves any more is replaced; one that answers is not. Members of `readers`
    /// may look.
    pub fn bind(path: &Path, readers: Option<ReaderGroup>) -> Result<Self, Failure> {
        let failed = |what: &str, why: io::Error| {
            Failure::failed(format!("cannot {what} the control socket {}: {why}", path.display()))
        };
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        owned_dir::make_socket_dir(directory)?;
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(Failure::failed(format!(
                    "{} exists and is not a control socket",
                    path.display()
                )));
            }
            Ok(meta) if meta.uid() != current_uid() => {
                return Err(Failure::failed(format!(
                    "{} is a socket of another user ({}): give this daemon --control PATH",
                    path.display(),
                    meta.uid()
                )));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(Failure::failed(format!(
                    "another daemon answers at {}; stop it with `blockwire stop`, or give this one --control PATH and --state DIR",
                    path.display()
                )));
            }
            _ => {}
        }
        // Bound under another name and renamed: there is no moment in which others could connect, and a
        // stale socket is replaced in one step. That name is nobody's.
        let mut new = path.as_os_str().to_owned();
        new.push(format!(
            "~{:08x}",
            u32::from_ne_bytes(random::random_bytes().map_err(|why| failed("name", why))?)
        ));
        let new = PathBuf::from(new);
        let listener = bind_listener(&new).map_err(|why| failed("bind", why))?;
        if let Some(readers) = &readers {
            readers.admit(&new, directory).inspect_err(|_| drop(fs::remove_file(&new)))?;
        }
        let place = || {
            fs::rename(&new, path)?;
            let meta = fs::symlink_metadata(path)?;
            Ok((meta.dev(), meta.ino()))
        };
        let inode = place().map_err(|why| {
            let _ = fs::remove_file(&new);
            failed("place", why)
        })?;
        Ok(ControlSocket {
            listener: Arc::new(listener),
            path: path.to_owned(),
            inode: Some(inode),
            readers,
            gate: AcceptGate::default(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers clients from threads of its own, as long as someone else holds the service: what it
    /// holds (locks, files) goes when its owner lets go, whatever clients are connected.
    pub fn serve(&self, service: &Arc<dyn ControlService>) -> io::Result<()> {
        // No descriptor more: a process that takes over must not fail here.
        let listener = self.listener.clone();
        listener.set_nonblocking(true)?;
        let (service, gate) = (Arc::downgrade(service), self.gate.clone());
        let guard = self.readers.clone().map(|readers| (readers, self.path.clone()));
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            accept_clients(&listener, &gate, &service, |peer| client_right(peer, guard.as_ref()));
        })?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Another daemon may have replaced it: that one is not ours to remove.
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| Some((meta.dev(), meta.ino())) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path where nothing is yet.
fn bind_listener(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // What is bound has this mode from the first moment.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// What a client may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientRight {
    /// All.
    Change,
    /// What changes nothing.
    Look,
}

/// What a process may ask, as the kernel knows it; `None`: nothing. `readers`: who may look, and the socket by whose
/// mode the kernel let them in.
fn client_right(peer: PeerProcess, readers: Option<&(ReaderGroup, PathBuf)>) -> Option<ClientRight> {
    if peer.is_trusted() {
        return Some(ClientRight::Change);
    }
    readers.filter(|(group, socket)| group.guards(socket)).map(|_| ClientRight::Look)
}

fn accept_clients(
    listener: &UnixListener,
    gate: &AcceptGate,
    service: &Weak<dyn ControlService>,
    right_of: impl Fn(PeerProcess) -> Option<ClientRight>,
) {
    let slots = Arc::new(ClientSlots::default());
    loop {
        let (stream, right) = match gate.accept(listener) {
            Ok(stream) => match PeerProcess::of(&stream).ok().and_then(&right_of) {
                Some(right) => (stream, right),
                // The socket's mode keeps them out; this, if somebody changes the mode.
                None => continue,
            },
            Err(why) => {
                tracing::warn!(target: area::CONTROL, %why, "control socket: cannot accept");
                // Out of descriptors, most likely: do not spin.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let (slot, service) = (slots.claim(&stream, right, Instant::now()), service.clone());
        let spawned = thread::Builder::new().name("control-client".to_owned()).spawn(move || {
            // A client that goes away is its own affair.
            let _ = serve_client(&stream, right, &service, slot.as_ref());
        });
        if let Err(why) = spawned {
            tracing::warn!(target: area::CONTROL, %why, "control socket: cannot start a thread");
        }
    }
}

/// The [`CLIENTS_MAX`] places. When all are taken a new client gets that of the one that has asked nothing for
/// longest, so that clients that hold on keep nobody out; else that of one that has lost patience. A spare place is
/// given away only when those are taken, too. Threads are bounded: of clients that were hung up on, only so many may
/// still be in the daemon.
#[derive(Default)]
struct ClientSlots {
    taken: Mutex<(u64, Vec<ClientEntry>)>,
}

struct ClientEntry {
    number: u64,
    /// To hang up on it.
    stream: UnixStream,
    /// It may ask this.
    right: ClientRight,
    /// It is a spare place.
    is_spare: bool,
    /// Its place is another's; its thread has not ended yet.
    is_hung_up: bool,
    does: ClientActivity,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientActivity {
    /// It has asked nothing since then.
    Nothing(Instant),
    /// It has been waiting for an answer since then.
    Asks(Instant),
    /// It waits for the daemon's end.
    Waits,
}

/// One of the places.
struct ClientSlot {
    slots: Arc<ClientSlots>,
    number: u64,
    is_spare: bool,
}

impl ClientSlots {
    fn lock_entries(&self) -> MutexGuard<'_, (u64, Vec<ClientEntry>)> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(self: &Arc<Self>, stream: &UnixStream, right: ClientRight, now: Instant) -> Option<ClientSlot> {
        let stream = stream.try_clone().ok()?;
        let mut guard = self.lock_entries();
        let (last, all) = &mut *guard;
        // Who may only look takes places of its like alone, and no spare one.
        let looks = right == ClientRight::Look;
        let is_gone = |one: &&ClientEntry| one.is_hung_up && !matches!(one.does, ClientActivity::Asks(_));
        let readers = all.iter().filter(|one| one.right == ClientRight::Look && !is_gone(one)).count();
        if looks && readers >= READERS_MAX {
            idle_reader(all)?.hang_up();
        }
        let count = |all: &[ClientEntry], is_spare| {
            all.iter().filter(|one| !one.is_hung_up && one.is_spare == is_spare).count()
        };
        let is_full = |all: &[ClientEntry]| count(all, false) >= CLIENTS_MAX;
        let are_spares_full = |all: &[ClientEntry]| count(all, true) >= SPARE_CLIENTS;
        if is_full(all) {
            let may_be_spare = are_spares_full(all);
            if looks {
                idle_reader(all)?.hang_up();
            } else if let Some(leaver) = evictable_slot(all, now, may_be_spare) {
                leaver.hang_up();
            }
        }
        let is_spare = is_full(all);
        if is_spare && are_spares_full(all) {
            return None;
        }
        *last += 1;
        all.push(ClientEntry {
            number: *last,
            stream,
            right,
            is_spare,
            is_hung_up: false,
            does: ClientActivity::Nothing(now),
        });
        Some(ClientSlot { slots: self.clone(), number: *last, is_spare })
    }
}

impl ClientEntry {
    /// Its place is free from now on.
    fn hang_up(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.is_hung_up = true;
    }
}

/// Whose place another one who may only look may have: that of the one like it that has asked nothing for longest.
fn idle_reader(all: &mut [ClientEntry]) -> Option<&mut ClientEntry> {
    let idle = all.iter_mut().filter(|one| one.right == ClientRight::Look && !one.is_hung_up);
    let idle = idle.filter_map(|one| match one.does {
        ClientActivity::Nothing(since) => Some((since, one)),
        ClientActivity::Asks(_) | ClientActivity::Waits => None,
    });
    idle.min_by_key(|(since, _)| *since).map(|(_, one)| one)
}

/// Whose place another one may have: a spare one only if there is no other, and if it may be.
fn evictable_slot(all: &mut [ClientEntry], now: Instant, may_be_spare: bool) -> Option<&mut ClientEntry> {
    let waits = |one: &&ClientEntry| one.is_hung_up && matches!(one.does, ClientActivity::Asks(_));
    let may_wait = all.iter().filter(waits).count() < HUNG_UP_CLIENTS_MAX;
    let may_go = |one: &&mut ClientEntry| !one.is_hung_up && (may_be_spare || !one.is_spare);
    let rank = |one: &ClientEntry| match one.does {
        ClientActivity::Nothing(since) => Some((one.is_spare, 0, since)),
        ClientActivity::Asks(since) if may_wait && now.saturating_duration_since(since) >= REPLY_TIMEOUT => {
            Some((one.is_spare, 1, since))
        }
        ClientActivity::Asks(_) | ClientActivity::Waits => None,
    };
    let ranked = all.iter_mut().filter(may_go).filter_map(|one| Some((rank(one)?, one)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, one)| one)
}

impl ClientSlot {
    /// What it does from now on; false: it was hung up on, and begins nothing more.
    fn set_activity(&self, does: ClientActivity) -> bool {
        let mut taken = self.slots.lock_entries();
        let own = taken.1.iter_mut().find(|one| one.number == self.number && !one.is_hung_up);
        own.map(|own| own.does = does).is_some()
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.slots.lock_entries().1.retain(|one| one.number != self.number);
    }
}

/// The verb, as it stands in the request's JSON.
fn verb_name(request: &Request) -> String {
    let request = serde_json::to_value(request).unwrap_or_default();
    request.get("verb").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

fn serve_client(
    stream: &UnixStream,
    right: ClientRight,
    service: &Weak<dyn ControlService>,
    slot: Option<&ClientSlot>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let full = || {
        let why =
            "too many clients at the control socket; `blockwire status` and `blockwire stop` still work";
        send_reply(stream, Err(RequestRefusal::new(RefusalCode::Unavailable, why)))
    };
    let Some(slot) = slot else { return full() };
    loop {
        let line = match read_bounded_line(&mut reader, REQUEST_BYTES_MAX) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(why) if why.kind() == io::ErrorKind::InvalidData => {
                return send_reply(stream, Err(RequestRefusal::new(RefusalCode::Invalid, why)));
            }
            Err(why) => return Err(why),
        };
        let request = match parse_request(&line) {
            Ok(request) => request,
            Err(why) => {
                send_reply(stream, Err(why))?;
                continue;
            }
        };
        if right == ClientRight::Look && !request.is_read_only() {
            // No line of the audit: those are never suppressed, and a reader could write any number of them.
            let user = PeerProcess::of(stream).map_or(0, |peer| peer.user);
            tracing::warn!(target: area::CONTROL, user, verb = %verb_name(&request), "a reader may not");
            let why =
                "members of control_group may look and change nothing; ask as root or as the daemon's user";
            send_reply(stream, Err(RequestRefusal::new(RefusalCode::Failed, why)))?;
            continue;
        }
        if slot.is_spare && !matches!(request, Request::Status | Request::Stop { .. }) {
            return full();
        }
        let Some(service) = service.upgrade() else {
            return send_reply(
                stream,
                Err(RequestRefusal::new(RefusalCode::Unavailable, "the daemon has stopped")),
            );
        };
        if !slot.set_activity(ClientActivity::Asks(Instant::now())) {
            return Ok(());
        }
        let change = AuditedChange::of(&request, &*service);
        let answer = service.handle_request(request.clone());
        match change {
            Some(change) => change.log(PeerProcess::of(stream).ok(), &answer),
            None => tracing::debug!(target: area::CONTROL, verb = %verb_name(&request), "asked"),
        }
        let done = answer.is_ok();
        let sent = send_reply(stream, answer);
        service.reply_written(&request, done);
        sent?;
        if matches!(request, Request::Stop { .. }) && done {
            // It may wait for the end of the process, which is the end of this connection.
            stream.set_read_timeout(None)?;
            slot.set_activity(ClientActivity::Waits);
        } else {
            slot.set_activity(ClientActivity::Nothing(Instant::now()));
        }
    }
}

fn parse_request(line: &[u8]) -> Result<Request, RequestRefusal> {
    /// Read first, so that a request of another version gets an answer that says so.
    #[derive(serde::Deserialize)]
    struct VersionProbe {
        version: u32,
    }
    let invalid = |why: serde_json::Error| {
        RequestRefusal::new(RefusalCode::Invalid, format!("malformed request: {why}"))
    };
    let VersionProbe { version } = serde_json::from_slice(line).map_err(invalid)?;
    if version != PROTOCOL_VERSION {
        let message = format!(
            "this daemon speaks version {PROTOCOL_VERSION} of the control protocol, the client {version}"
        );
        return Err(RequestRefusal::new(RefusalCode::Version, message));
    }
    serde_json::from_slice::<RequestEnvelope>(line).map(|call| call.request).map_err(invalid)
}

fn send_reply(mut stream: &UnixStream, answer: Result<Answer, RequestRefusal>) -> io::Result<()> {
    let outcome = match answer {
        Ok(answer) => ReplyOutcome::Ok(Box::new(answer)),
        Err(why) => ReplyOutcome::Error(why),
    };
    let mut line = serde_json::to_vec(&ReplyEnvelope { version: PROTOCOL_VERSION, outcome })?;
    if line.len() as u64 >= REPLY_BYTES_MAX {
        let why = RequestRefusal::new(RefusalCode::Failed, "the answer is too long for the control protocol");
        line = serde_json::to_vec(&ReplyEnvelope {
            version: PROTOCOL_VERSION,
            outcome: ReplyOutcome::Error(why),
        })?;
    }
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(slots: &Arc<ClientSlots>, now: Instant) -> Option<ClientSlot> {
        slots.claim(&UnixStream::pair().unwrap().0, ClientRight::Change, now)
    }

    fn hung_up(slots: &ClientSlots) -> usize {
        slots.lock_entries().1.iter().filter(|one| one.is_hung_up).count()
    }

    #[test]
    fn who_asks_for_the_status_is_not_hung_up_on_while_spare_places_are_free() {
        let (slots, now) = (Arc::new(ClientSlots::default()), Instant::now());
        let busy: Vec<_> = (0..CLIENTS_MAX).map(|_| client(&slots, now).unwrap()).collect();
        assert!(busy.iter().all(|slot| slot.set_activity(ClientActivity::Asks(now))));
        let spare: Vec<_> = (0..SPARE_CLIENTS).map(|_| client(&slots, now).unwrap()).collect();
        assert!(spare.iter().all(|slot| slot.is_spare));
        assert_eq!(hung_up(&slots), 0, "while there was another spare place");
        assert!(client(&slots, now).unwrap().is_spare);
        assert!(!spare[0].set_activity(ClientActivity::Asks(now)), "it begins nothing more");
        assert!(spare[1].set_activity(ClientActivity::Asks(now)));
    }

    #[test]
    fn clients_that_are_never_answered_do_not_cost_a_thread_each_without_end() {
        let (slots, mut now, mut threads) = (Arc::new(ClientSlots::default()), Instant::now(), Vec::new());
        for _ in 0..10 * CLIENTS_MAX {
            now += REPLY_TIMEOUT;
            if let Some(slot) = client(&slots, now) {
                assert!(slot.set_activity(ClientActivity::Asks(now)));
                threads.push(slot);
            }
        }
        assert_eq!(
            (threads.len(), hung_up(&slots)),
            (CLIENTS_MAX + SPARE_CLIENTS + HUNG_UP_CLIENTS_MAX, HUNG_UP_CLIENTS_MAX)
        );
        // Once one of them is answered there is room again.
        threads.remove(0);
        assert!(client(&slots, now + REPLY_TIMEOUT).is_some());
    }

    #[test]
    fn readers_take_few_places_and_others_always_find_one() {
        let (slots, now) = (Arc::new(ClientSlots::default()), Instant::now());
        let look = || slots.claim(&UnixStream::pair().unwrap().0, ClientRight::Look, now);
        let asks = |slot: &ClientSlot| slot.set_activity(ClientActivity::Asks(now));
        let readers: Vec<_> = (0..3 * READERS_MAX).filter_map(|_| look().filter(asks)).collect();
        assert_eq!(readers.len(), READERS_MAX);
        let others: Vec<_> = (0..CLIENTS_MAX - READERS_MAX).filter_map(|_| client(&slots, now)).collect();
        assert_eq!((others.len(), hung_up(&slots)), (CLIENTS_MAX - READERS_MAX, 0));
        assert!(others.iter().all(|slot| !slot.is_spare));
        drop(readers);
        assert!(look().is_some(), "when one has gone there is room again");
    }

    /// One who may only look cannot keep the others of its group out, nor take the place of one who may do more.
    #[test]
    fn idle_readers_give_way_to_readers_and_nobody_else_does() {
        let (slots, now) = (Arc::new(ClientSlots::default()), Instant::now());
        let look = |at: u64| {
            let at = now + Duration::from_secs(at);
            slots.claim(&UnixStream::pair().unwrap().0, ClientRight::Look, at)
        };
        let asks = |slot: &ClientSlot| slot.set_activity(ClientActivity::Asks(now));
        let held: Vec<_> = (0..READERS_MAX as u64).map(|at| look(at).unwrap()).collect();
        let another = look(100).unwrap();
        assert_eq!(held.iter().map(asks).collect::<Vec<_>>(), [false, true, true, true]);
        assert!(asks(&another) && look(101).is_none(), "all are being answered");
        drop((held, another));

        let others: Vec<_> = (0..CLIENTS_MAX).filter_map(|_| client(&slots, now)).collect();
        assert!(look(200).is_none());
        assert!(others.iter().all(|slot| !slot.is_spare && asks(slot)), "each still has its place");
    }

    #[test]
    fn a_stranger_may_look_only_by_a_guarded_socket() {
        let own = PeerProcess { user: current_uid(), pid: 1 };
        let stranger = PeerProcess { user: current_uid() + 1, pid: 1 };
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("socket");
        let group = rustix::process::getegid().as_raw().to_string();
        let readers = ReaderGroup::find(&group).unwrap();
        let socket = ControlSocket::bind(&path, Some(readers.clone())).unwrap();
        let guard = (readers, path);
        assert_eq!(client_right(own, Some(&guard)), Some(ClientRight::Change));
        assert_eq!(client_right(own, None), Some(ClientRight::Change));
        assert_eq!(client_right(stranger, None), None);
        assert_eq!(client_right(stranger, Some(&guard)), Some(ClientRight::Look));
        drop(socket);
        assert_eq!(client_right(stranger, Some(&guard)), None, "there is no such socket any more");
    }
}
