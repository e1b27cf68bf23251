//! A plain TCP stream at full speed: traffic that shares a link with block I/O.
//!
//! A sender repeats the same data; a receiver discards it. Both report events on standard error for
//! [`crate::initiator`]. Invariant: bytes are counted where they arrive, and the receiver tells the sender at
//! the end, so that data in queues is not counted as sent.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

/// Bytes of one write, and of one "I/O" in figures.
pub const CHUNK_BYTES: usize = 65_536;
/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Receives one stream after another until it is ended. Prints `listening PORT` first.
///
/// # Errors
/// If the address cannot be listened on, or standard output is closed.
pub fn receive_streams(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("listening {}", listener.local_addr()?.port());
    io::stdout().flush()?;
    loop {
        let (mut stream, _) = listener.accept()?;
        std::thread::spawn(move || drain_stream(&mut stream));
    }
}

/// Reads until the sender shuts down, and answers each request for the count of bytes so far.
fn drain_stream(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 4 * CHUNK_BYTES];
    let mut count = 0u64;
    let mut told = Instant::now();
    loop {
        let read = stream.read(&mut buffer)?;
        count += read as u64;
        // Small enough not to be traffic: ten times a second.
        if read == 0 || told.elapsed() > PROGRESS_INTERVAL / 3 {
            told = Instant::now();
            stream.write_all(&count.to_be_bytes())?;
        }
        if read == 0 {
            return Ok(());
        }
    }
}

/// What a sender came to, while figures counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SentFigures {
    /// How long.
    pub seconds: f64,
    /// Bytes that arrived.
    pub bytes: u64,
}

/// Sends for `ramp` and then for `runtime`; `tell` hears events as lines of JSON.
///
/// # Errors
/// If nobody receives there, or the connection breaks.
pub fn send_streams(
    address: SocketAddr,
    ramp: Duration,
    runtime: Duration,
    mut tell: impl FnMut(String),
) -> io::Result<SentFigures> {
    let mut stream = TcpStream::connect(address)?;
    let news = stream.try_clone()?;
    news.set_read_timeout(Some(Duration::from_millis(1)))?;
    let chunk = vec![0x5a; CHUNK_BYTES];
    let begun = Instant::now();
    let mut arrived = ReceivedCount { news, part: Vec::new(), count: 0 };
    let mut before = None;
    let mut told = begun;
    while begun.elapsed() < ramp + runtime {
        stream.write_all(&chunk)?;
        if before.is_none() && begun.elapsed() >= ramp {
            before = Some((Instant::now(), arrived.poll_count()?));
            tell(json!({ "event": "begin" }).to_string());
        }
        if let Some((from, count)) = before.filter(|_| told.elapsed() >= PROGRESS_INTERVAL) {
            told = Instant::now();
            let bytes = arrived.poll_count()? - count;
            let seconds = from.elapsed().as_secs_f64();
            let ios = bytes / CHUNK_BYTES as u64;
            tell(json!({ "event": "progress", "seconds": seconds, "ios": ios, "bytes": bytes }).to_string());
        }
    }
    let (from, count) = before.ok_or_else(|| io::Error::other("there was no time for figures"))?;
    tell(json!({ "event": "end" }).to_string());
    let bytes = arrived.poll_count()? - count;
    Ok(SentFigures { seconds: from.elapsed().as_secs_f64(), bytes })
}

/// What the receiver said that it has.
struct ReceivedCount {
    news: TcpStream,
    part: Vec<u8>,
    count: u64,
}

impl ReceivedCount {
    fn poll_count(&mut self) -> io::Result<u64> {
        let mut buffer = [0; 4096];
        match self.news.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.part.extend(buffer.iter().take(read)),
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(why) => return Err(why),
        }
        let (whole, _) = self.part.as_chunks();
        if let Some(last) = whole.last() {
            // It never goes back, whatever the other end says.
            self.count = self.count.max(u64::from_be_bytes(*last));
        }
        let whole = self.part.len() / 8 * 8;
        self.part.drain(..whole);
        Ok(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = std::thread::spawn(move || drain_stream(&mut listener.accept().unwrap().0));
        let mut events = Vec::new();
        let (ramp, runtime) = (Duration::from_millis(100), Duration::from_millis(700));
        let sent = send_streams(address, ramp, runtime, |line| events.push(line)).unwrap();
        assert!(sent.bytes > 1 << 20 && sent.seconds >= 0.69, "{sent:?}");
        assert!(events[0].contains("begin") && events.last().unwrap().contains("end"), "{events:?}");
        assert!(events.len() >= 3, "{events:?}");
        let _ = receiver.join().unwrap();
    }
}
