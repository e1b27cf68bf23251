//! The listener. A thread accepts, and each connection has a thread for its one request.
//!
//! Invariants: at most `CONNECTIONS_MAX` connections are served at a time, each for at most `READ_MAX` until its
//! request is here and `WRITE_MAX` until its answer has left. The shards are asked at most once in `FRESH`,
//! however many clients there are; while one client waits for the shards, the others wait for the same answer.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    families,
    request::{self, Asked, BadRequest},
};
use control::{Refused, report::ObservationReport};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send its request.
const READ_MAX: Duration = Duration::from_secs(5);
/// How long a client may take to read the answer.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// Longest request, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// How old an observation may be that is given again.
const FRESH: Duration = Duration::from_millis(500);

const INDEX: &str = "blockwire: metrics are at /metrics\n";

/// Who knows what there is.
pub trait Observe: Send + Sync + 'static {
    /// All of it, as it is now. May take as long as the shards need.
    fn observe(&self) -> Result<ObservationReport, Refused>;
}

/// A bound address. Dropping it ends the listener.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

/// What all connections share.
struct Shared {
    source: Weak<dyn Observe>,
    is_loopback: bool,
    connections: AtomicUsize,
    latest: Mutex<Option<(Instant, Arc<ObservationReport>)>>,
}

impl Listener {
    /// Binds an address.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address, ended: Arc::default() })
    }

    /// Where it is, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves what `source` observes, from threads of its own, as long as someone else holds it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn serve(&self, source: &Arc<dyn Observe>) -> io::Result<()> {
        let socket = self.socket.try_clone()?;
        let shared = Arc::new(Shared {
            source: Arc::downgrade(source),
            is_loopback: self.address.ip().to_canonical().is_loopback(),
            connections: AtomicUsize::new(0),
            latest: Mutex::default(),
        });
        let ended = self.ended.clone();
        let accept = move || accept(&socket, &shared, &ended);
        thread::Builder::new().name("http".to_owned()).spawn(accept)?;
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Its thread waits for somebody.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

fn accept(socket: &TcpListener, shared: &Arc<Shared>, ended: &AtomicBool) {
    loop {
        let accepted = socket.accept();
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!(%why, "http: cannot accept");
                // Out of descriptors, most likely: do not spin.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(place) = Place::take(shared) else {
            let busy = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.set_nonblocking(true).and_then(|()| (&stream).write_all(busy.as_bytes()));
            continue;
        };
        let spawned = thread::Builder::new().name("http-client".to_owned()).spawn(move || {
            // A client that goes away is its own affair.
            let _ = talk(&stream, &place.0);
            drop(place);
        });
        if let Err(why) = spawned {
            tracing::warn!(%why, "http: cannot start a thread");
        }
    }
}

/// One of the places for connections.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        // One thread takes, and any gives back.
        if shared.connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return None;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Some(Place(shared.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers the one request of a connection.
fn talk(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let asked = match read(stream, shared.is_loopback)? {
        Ok(asked) => asked,
        Err(why) => {
            let (status, text) = why.status();
            let more = if why == BadRequest::Method { "Allow: GET, HEAD\r\n" } else { "" };
            return write(stream, status, (TEXT, more), text, false);
        }
    };
    match asked {
        Asked::Index(head) => write(stream, OK, (TEXT, ""), INDEX, head),
        Asked::Metrics(format, head) => match shared.observe() {
            Ok(observed) => {
                let text = families::text(&observed, format);
                write(stream, OK, (format.content_type(), ""), &text, head)
            }
            Err(why) => {
                let text = format!("{}\n", why.message);
                write(stream, "503 Service Unavailable", (TEXT, "Retry-After: 1\r\n"), &text, head)
            }
        },
    }
}

const OK: &str = "200 OK";
const TEXT: &str = "text/plain; charset=utf-8";

/// Reads a request. It is here in time, or the connection ends.
fn read(stream: &TcpStream, is_loopback: bool) -> io::Result<Result<Asked, BadRequest>> {
    let (until, mut bytes, mut piece) = (Instant::now() + READ_MAX, Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let len = (&*stream).read(&mut piece)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(piece.get(..len).unwrap_or_default());
        match request::parse(&bytes, is_loopback) {
            Ok(Some(asked)) => return Ok(Ok(asked)),
            Ok(None) if bytes.len() >= REQUEST_MAX => return Ok(Err(BadRequest::Malformed)),
            Ok(None) => {}
            Err(why) => return Ok(Err(why)),
        }
    }
}

fn write(
    stream: &TcpStream,
    status: &str,
    (content_type, more): (&str, &str),
    text: &str,
    head: bool,
) -> io::Result<()> {
    let fields = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n{more}\r\n",
        text.len()
    );
    let until = Instant::now() + WRITE_MAX;
    write_by(stream, fields.as_bytes(), until)?;
    if !head {
        write_by(stream, text.as_bytes(), until)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // What the client still sends is swallowed, a little of it, so that a reset does not take the answer away.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _ = (&*stream).read(&mut [0; 1024]);
    Ok(())
}

/// Writes all of it until then.
fn write_by(stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        let len = (&*stream).write(bytes)?;
        if len == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(len..).unwrap_or_default();
    }
    Ok(())
}

impl Shared {
    /// What there is now, or was a moment ago.
    fn observe(&self) -> Result<Arc<ObservationReport>, Refused> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, observed)) = &*latest
            && when.elapsed() < FRESH
        {
            return Ok(observed.clone());
        }
        let stopping = || Refused::new(control::Code::Unavailable, "the daemon is stopping");
        let source = self.source.upgrade().ok_or_else(stopping)?;
        let observed = Arc::new(source.observe()?);
        *latest = Some((Instant::now(), observed.clone()));
        Ok(observed)
    }
}

#[cfg(test)]
mod tests;
