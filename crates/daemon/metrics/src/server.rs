//! The listener. A thread accepts, and each connection has a thread for its one request.
//!
//! Invariants: at most `CONNECTIONS_MAX` connections are served at a time, each for at most `READ_TIMEOUT` until its
//! request is here and `WRITE_TIMEOUT` until its answer has left. The shards are asked at most once in `OBSERVATION_AGE_MAX`,
//! however many clients there are, and each text is made once of what they have answered; while one client waits for the
//! shards, the others wait for the same answer, also if it is that there is none.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    exposition::ExpositionFormat,
    families,
    live::{self, PAGE, PAGE_POLICY, Sample},
    request::{self, BadRequest, Resource},
};
use control::{RequestRefusal, report::ObservationReport};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send its request.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read the answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// How old an observation may be that is given again.
const OBSERVATION_AGE_MAX: Duration = Duration::from_millis(500);

/// Who knows what there is.
pub trait ObservationSource: Send + Sync + 'static {
    /// All of it, as it is now. May take as long as the shards need.
    fn observe(&self) -> Result<ObservationReport, RequestRefusal>;
}

/// A bound address. Dropping it ends the listener.
#[derive(Debug)]
pub struct MetricsListener {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

/// What all connections share.
struct ServerState {
    source: Weak<dyn ObservationSource>,
    is_loopback: bool,
    connections: AtomicUsize,
    samples: Mutex<RecentSamples>,
}

/// The last two samples of what the shards report.
#[derive(Default)]
struct RecentSamples {
    latest: Option<ReportSample>,
    before: Option<ReportSample>,
    /// What has been made of the latest.
    texts: HashMap<SampleText, Arc<str>>,
    /// The last try, if it brought nothing.
    failure: Option<(Instant, RequestRefusal)>,
}

/// What is made of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SampleText {
    Metrics(ExpositionFormat),
    Live,
}

impl SampleText {
    fn content_type(self) -> &'static str {
        match self {
            SampleText::Metrics(format) => format.content_type(),
            SampleText::Live => "application/json",
        }
    }
}

type ReportSample = Sample<Arc<ObservationReport>>;

impl MetricsListener {
    /// Binds an address.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        MetricsListener::adopt(socket)
    }

    /// The socket of a daemon that hands over to this process.
    ///
    /// # Errors
    /// It is no such socket.
    pub fn adopt(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(MetricsListener { socket: Arc::new(socket), address, ended: Arc::default() })
    }

    /// The socket, for a process that takes over.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Where it is, with the port that the system chose.
    pub fn bound_address(&self) -> SocketAddr {
        self.address
    }

    /// Serves what `source` observes, from threads of its own, as long as someone else holds it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn serve(&self, source: &Arc<dyn ObservationSource>) -> io::Result<()> {
        // No descriptor more: a process that takes over must not fail here.
        let socket = self.socket.clone();
        let shared = Arc::new(ServerState {
            source: Arc::downgrade(source),
            is_loopback: self.address.ip().to_canonical().is_loopback(),
            connections: AtomicUsize::new(0),
            samples: Mutex::default(),
        });
        let ended = self.ended.clone();
        let accept = move || accept_clients(&socket, &shared, &ended);
        thread::Builder::new().name("http".to_owned()).spawn(accept)?;
        Ok(())
    }
}

impl Drop for MetricsListener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Its thread waits for somebody.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

fn accept_clients(socket: &TcpListener, shared: &Arc<ServerState>, ended: &AtomicBool) {
    loop {
        let accepted = socket.accept();
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!(target: "metrics", %why, "http: cannot accept");
                // Out of descriptors, most likely: do not spin.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(place) = ConnectionSlot::claim(shared) else {
            let busy = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.set_nonblocking(true).and_then(|()| (&stream).write_all(busy.as_bytes()));
            continue;
        };
        let spawned = thread::Builder::new().name("http-client".to_owned()).spawn(move || {
            // A client that goes away is its own affair.
            let _ = serve_connection(&stream, &place.0);
            drop(place);
        });
        if let Err(why) = spawned {
            tracing::warn!(target: "metrics", %why, "http: cannot start a thread");
        }
    }
}

/// One of the places for connections.
struct ConnectionSlot(Arc<ServerState>);

impl ConnectionSlot {
    fn claim(shared: &Arc<ServerState>) -> Option<Self> {
        // One thread takes, and any gives back.
        if shared.connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return None;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot(shared.clone()))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers the one request of a connection.
fn serve_connection(stream: &TcpStream, shared: &ServerState) -> io::Result<()> {
    let asked = match read_request(stream, shared.is_loopback)? {
        Ok(asked) => asked,
        Err(why) => {
            let (status, text) = why.status_and_text();
            let more = if why == BadRequest::Method { "Allow: GET, HEAD\r\n" } else { "" };
            return write_response(stream, status, (PLAIN_TEXT, more), text, false);
        }
    };
    let (text, head) = match asked {
        Resource::Page(head) => {
            let fields = format!(
                "Content-Security-Policy: {PAGE_POLICY}\r\nReferrer-Policy: no-referrer\r\n\
                 Cross-Origin-Resource-Policy: same-origin\r\n"
            );
            return write_response(stream, STATUS_OK, ("text/html; charset=utf-8", &fields), PAGE, head);
        }
        Resource::Metrics(format, head) => (SampleText::Metrics(format), head),
        Resource::Live(head) => (SampleText::Live, head),
    };
    match shared.render(text) {
        Ok(rendered) => {
            let fields = "Cross-Origin-Resource-Policy: same-origin\r\n";
            write_response(stream, STATUS_OK, (text.content_type(), fields), &rendered, head)
        }
        Err(why) => {
            let text = format!("{}\n", why.message);
            write_response(stream, "503 Service Unavailable", (PLAIN_TEXT, "Retry-After: 1\r\n"), &text, head)
        }
    }
}

fn render_live_sample(now: &ReportSample, before: Option<&ReportSample>) -> Result<String, RequestRefusal> {
    let of = |sample: &'_ ReportSample| (sample.when, sample.processor);
    let sample = |((when, processor), seen)| Sample { when, processor, seen };
    let before = before.map(|before| sample((of(before), &*before.seen)));
    live::render_live(&sample((of(now), &*now.seen)), before.as_ref())
        .map_err(|why| RequestRefusal::new(control::RefusalCode::Failed, why.to_string()))
}

const STATUS_OK: &str = "200 OK";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Reads a request. It is here in time, or the connection ends.
fn read_request(stream: &TcpStream, is_loopback: bool) -> io::Result<Result<Resource, BadRequest>> {
    let (until, mut bytes, mut piece) = (Instant::now() + READ_TIMEOUT, Vec::new(), [0; 1024]);
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
            Ok(None) if bytes.len() >= REQUEST_BYTES_MAX => return Ok(Err(BadRequest::Malformed)),
            Ok(None) => {}
            Err(why) => return Ok(Err(why)),
        }
    }
}

fn write_response(
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
    let until = Instant::now() + WRITE_TIMEOUT;
    write_until(stream, fields.as_bytes(), until)?;
    if !head {
        write_until(stream, text.as_bytes(), until)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // What the client still sends is swallowed, a little of it, so that a reset does not take the answer away.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _ = (&*stream).read(&mut [0; 1024]);
    Ok(())
}

/// Writes all of it until then.
fn write_until(stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
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

impl ServerState {
    /// The text of what there is now, or was a moment ago.
    fn render(&self, text: SampleText) -> Result<Arc<str>, RequestRefusal> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = &mut *samples;
        let latest = self.sample(samples)?;
        if let Some(rendered) = samples.texts.get(&text) {
            return Ok(rendered.clone());
        }
        let rendered: Arc<str> = match text {
            SampleText::Metrics(format) => families::render_metrics(&latest.seen, format),
            SampleText::Live => render_live_sample(&latest, samples.before.as_ref())?,
        }
        .into();
        samples.texts.insert(text, rendered.clone());
        Ok(rendered)
    }

    /// What there is now, or was a moment ago.
    fn sample(&self, samples: &mut RecentSamples) -> Result<ReportSample, RequestRefusal> {
        if let Some(latest) = &samples.latest
            && latest.when.elapsed() < OBSERVATION_AGE_MAX
        {
            return Ok(latest.clone());
        }
        let stopping = || RequestRefusal::new(control::RefusalCode::Unavailable, "the daemon is stopping");
        let source = self.source.upgrade().ok_or_else(stopping)?;
        if let Some((when, why)) = &samples.failure
            && when.elapsed() < OBSERVATION_AGE_MAX
        {
            return Err(why.clone());
        }
        match source.observe() {
            Ok(seen) => {
                let (when, processor) = (Instant::now(), processor_time());
                let latest = Sample { when, processor, seen: Arc::new(seen) };
                samples.before = samples.latest.replace(latest.clone());
                samples.texts.clear();
                Ok(latest)
            }
            Err(why) => {
                samples.failure = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }
}

/// Processor time of this process, of all its threads.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests;
