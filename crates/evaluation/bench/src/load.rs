//! The load: a number of requests in flight on each of a number of connections, one issued for each that
//! ends, all in one thread.

mod plan;

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::spin::{SpinEstimator, WaitStats};
use crate::system::{self, Epoll};
use crate::usage;
use crate::wire_protocol::{LoadOp, Outgoing, ProtocolClient, WireRequest};

pub use plan::{BackgroundLoad, LoadMeasurement, LoadPhase, LoadPlan};

/// What one receive may bring at most: it stays in the processor's cache.
const RECEIVE_BYTES_MAX: usize = 256 << 10;

/// What a connection with a load of its own sends at most before the others are looked at: what they wait for is to
/// be the server's doing, not the generator's.
const BACKGROUND_SEND_BYTES: usize = 32 << 10;

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// A connection that is ready to be asked.
#[derive(Debug)]
pub struct ReadyConnection<F> {
    /// Its socket.
    pub socket: TcpStream,
    /// What speaks on it.
    pub client: F,
    /// Requests in flight on it.
    pub depth: u32,
    /// What is added to offsets.
    pub first: u64,
    /// What it does in place of the plan's requests; these are counted apart.
    pub background: Option<BackgroundLoad>,
}

impl<F> ReadyConnection<F> {
    /// A connection that does what the plan says.
    pub fn new(socket: TcpStream, client: F, depth: u32) -> Self {
        ReadyConnection { socket, client, depth, first: 0, background: None }
    }
}

/// Connects with the given congestion control.
pub fn connect(to: SocketAddr, congestion: Option<&str>) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    if let Some(name) = congestion {
        system::set_socket_congestion_control(&socket, name)?;
    }
    Ok(socket)
}

struct Connection<F> {
    socket: TcpStream,
    client: F,
    input: Vec<u8>,
    /// Bytes of `input` that wait for more.
    kept: usize,
    /// What is added to offsets.
    first: u64,
    out: Outgoing,
    /// When each request in flight was issued, or was to be, by tag; and whether it is a write.
    issued: Vec<(Instant, bool)>,
    free: Vec<u32>,
    writable_wanted: bool,
    background: Option<BackgroundLoad>,
}

/// The generator.
struct LoadGenerator<'a, F> {
    plan: &'a LoadPlan,
    /// Who is told.
    tell: &'a dyn Fn(LoadPhase),
    /// When progress is told next.
    told: Instant,
    connections: Vec<Connection<F>>,
    epoll: Epoll,
    spin: SpinEstimator,
    random: u64,
    /// The next offset of a run from end to end.
    next: u64,
    in_flight: u64,
    /// When the next request is to begin, where there is a rate, and on which connection.
    begins: (Instant, usize),
    measured: LoadMeasurement,
    measuring: bool,
    ending: bool,
    done: Vec<u32>,
    /// Requests to be issued after a gap.
    due: VecDeque<(Instant, usize)>,
    last_event: Instant,
}

/// Runs `plan` over connections that are ready to be asked.
pub fn run_load<F: ProtocolClient>(
    plan: &LoadPlan,
    connections: Vec<ReadyConnection<F>>,
) -> io::Result<LoadMeasurement> {
    run_load_with_progress(plan, connections, &|_| ())
}

/// The same, and tells how it goes.
pub fn run_load_with_progress<F: ProtocolClient>(
    plan: &LoadPlan,
    connections: Vec<ReadyConnection<F>>,
    tell: &dyn Fn(LoadPhase),
) -> io::Result<LoadMeasurement> {
    let now = Instant::now();
    let mut load = LoadGenerator {
        plan,
        tell,
        told: now,
        connections: Vec::new(),
        epoll: Epoll::new()?,
        spin: SpinEstimator::new(plan.wait, plan.poll),
        random: plan.seed | 1,
        next: 0,
        in_flight: 0,
        begins: (now, 0),
        measured: LoadMeasurement::default(),
        measuring: false,
        ending: false,
        done: Vec::new(),
        due: VecDeque::new(),
        last_event: now,
    };
    for ready in connections {
        load.add_connection(ready)?;
    }
    load.run()
}

impl<F: ProtocolClient> LoadGenerator<'_, F> {
    fn add_connection(&mut self, ready: ReadyConnection<F>) -> io::Result<()> {
        let ReadyConnection { socket, client, depth, first, background } = ready;
        socket.set_nonblocking(true)?;
        self.epoll.add(socket.as_raw_fd(), self.connections.len() as u64)?;
        self.connections.push(Connection {
            socket,
            client,
            input: vec![0; RECEIVE_BYTES_MAX],
            kept: 0,
            first,
            out: Outgoing::new(background.map_or(self.plan.len, |load| load.len) as usize),
            issued: vec![(self.last_event, false); depth as usize],
            free: (0..depth).rev().collect(),
            writable_wanted: false,
            background,
        });
        Ok(())
    }

    fn run(mut self) -> io::Result<LoadMeasurement> {
        let begin = Instant::now();
        self.begins.0 = begin;
        for index in 0..self.connections.len() {
            self.refill(index, begin)?;
        }
        if !self.plan.once {
            self.run_until(begin + self.plan.warmup)?;
        }
        let own = std::process::id();
        let server = |pid: Option<u32>| pid.map_or(Ok(0), usage::cpu_ns);
        let (server_before, own_before, waits) =
            (server(self.plan.server)?, usage::cpu_ns(own)?, self.spin.waits);
        let start = Instant::now();
        self.measuring = true;
        (self.tell)(LoadPhase::Measuring);
        self.told = start + PROGRESS_INTERVAL;
        self.run_until(start + if self.plan.once { Duration::from_secs(3600) } else { self.plan.measure })?;
        self.measuring = false;
        (self.tell)(LoadPhase::Measured);
        let mut measured = std::mem::take(&mut self.measured);
        let end = Instant::now();
        measured.seconds = (end - start).as_secs_f64();
        (measured.unfinished, measured.unfinished_oldest) = self.outstanding(end);
        measured.server_cpu_ns =
            self.plan.server.map_or(Ok(0), |pid| usage::cpu_ns_since(pid, server_before))?;
        measured.client_cpu_ns = usage::cpu_ns_since(own, own_before)?;
        measured.waits = waits_since(self.spin.waits, waits);
        self.drain()?;
        Ok(measured)
    }

    /// Requests of the plan that are out, and the age of the oldest.
    fn outstanding(&self, now: Instant) -> (u64, Duration) {
        let planned = self.connections.iter().filter(|connection| connection.background.is_none());
        let issued = planned.flat_map(|connection| {
            let is_out = |tag: &u32| !connection.free.contains(tag);
            (0u32..)
                .zip(&connection.issued)
                .filter(move |(tag, _)| is_out(tag))
                .map(|(_, (issued, _))| *issued)
        });
        let oldest =
            issued.clone().min().map_or(Duration::ZERO, |issued| now.saturating_duration_since(issued));
        (issued.count() as u64, oldest)
    }

    /// Lets all requests end, then says good-bye.
    fn drain(&mut self) -> io::Result<()> {
        self.ending = true;
        self.due.clear();
        self.run_until(Instant::now() + Duration::from_secs(10))?;
        if self.in_flight > 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{} requests are never answered", self.in_flight),
            ));
        }
        for connection in &mut self.connections {
            connection.client.encode_end(&mut connection.out);
            connection.socket.set_nonblocking(false)?;
            connection.out.flush(&mut connection.socket)?;
            // What a target says to a good-bye is no concern of a load.
            connection.socket.shutdown(std::net::Shutdown::Both).ok();
        }
        Ok(())
    }

    /// Runs until `end`, or until nothing more is to be done.
    fn run_until(&mut self, end: Instant) -> io::Result<()> {
        let mut now = Instant::now();
        while now < end {
            if self.in_flight == 0 && self.due.is_empty() && (self.ending || self.plan.rate.is_none()) {
                return Ok(());
            }
            self.turn(now, end)?;
            now = Instant::now();
            self.issue_due(now)?;
            self.issue_scheduled(now)?;
            if self.measuring && now >= self.told {
                self.told = now + PROGRESS_INTERVAL;
                (self.tell)(LoadPhase::Progress(self.measured.latency.count()));
            }
        }
        Ok(())
    }

    /// Begins what was to begin by now. What finds no room begins later, and counts from when it was to.
    fn issue_scheduled(&mut self, now: Instant) -> io::Result<()> {
        let Some(rate) = self.plan.rate.filter(|_| !self.ending) else { return Ok(()) };
        let between = Duration::from_secs_f64(1.0 / rate);
        let all = self.connections.len();
        while self.begins.0 <= now {
            let (when, first) = self.begins;
            let Some(index) = (0..all).map(|n| (first + n) % all).find(|index| self.issue(*index, when))
            else {
                return Ok(());
            };
            self.flush(index)?;
            self.begins = (when + between, (index + 1) % all);
        }
        Ok(())
    }

    /// When there is something to do even if nothing comes.
    fn next_wake(&self, end: Instant) -> Instant {
        // Without a rate nothing is looked for: there may be thousands of connections.
        let is_timed = self.plan.rate.is_some() && !self.ending;
        let has_room = || self.connections.iter().any(|connection| !connection.free.is_empty());
        if is_timed && has_room() { end.min(self.begins.0) } else { end }
    }

    /// Waits for something and handles it.
    fn turn(&mut self, now: Instant, end: Instant) -> io::Result<()> {
        let end = self.next_wake(end);
        let mut came = self.receive_all()?;
        if !came && self.due.is_empty() {
            // The spin needs the loop's own state to look, so it is taken out for the time.
            let mut spin =
                std::mem::replace(&mut self.spin, SpinEstimator::new(self.plan.wait, self.plan.poll));
            let mut result = Ok(());
            came = spin.poll(|| match self.receive_all() {
                Ok(came) => came || Instant::now() >= end,
                Err(error) => {
                    result = Err(error);
                    true
                }
            });
            self.spin = spin;
            result?;
            if !came {
                let tokens: Vec<u64> = self.epoll.wait(Some(end.saturating_duration_since(now)))?.collect();
                self.spin.note_sleep(self.last_event.elapsed());
                for token in tokens {
                    came |= self.receive(token as usize)?;
                }
            }
        }
        if came {
            self.last_event = Instant::now();
        }
        Ok(())
    }

    /// Looks at all connections; whether something came.
    fn receive_all(&mut self) -> io::Result<bool> {
        if self.connections.len() == 1 {
            return self.receive(0);
        }
        let tokens: Vec<u64> = self.epoll.wait(Some(Duration::ZERO))?.collect();
        let mut came = false;
        for token in tokens {
            came |= self.receive(token as usize)?;
        }
        Ok(came)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "an index is one that `add` gave out, and no connection is removed; no more is kept than came"
    )]
    fn receive(&mut self, index: usize) -> io::Result<bool> {
        let connection = &mut self.connections[index];
        if !connection.out.is_empty() {
            self.flush(index)?;
        }
        let connection = &mut self.connections[index];
        let kept = connection.kept;
        let came = match connection.socket.read(&mut connection.input[kept..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(came) => came,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(error),
        };
        let end = kept + came;
        let taken =
            connection.client.handle_input(&connection.input[..end], &mut connection.out, &mut self.done)?;
        connection.input.copy_within(taken..end, 0);
        connection.kept = end - taken;
        let now = Instant::now();
        self.handle_completion(index, now)?;
        self.refill(index, now)?;
        Ok(true)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "an index is one that `add` gave out, and no connection is removed"
    )]
    fn handle_completion(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let connection = &mut self.connections[index];
        for tag in self.done.drain(..) {
            let issued = connection.issued.get(tag as usize).copied();
            let is_idle = connection.free.len() >= connection.issued.len();
            let Some((issued, is_write)) = issued.filter(|_| !is_idle) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to no request came"));
            };
            connection.free.push(tag);
            self.in_flight -= 1;
            match connection.background {
                Some(load) if self.measuring => self.measured.background_bytes += u64::from(load.len),
                None if self.measuring => {
                    self.measured.writes += u64::from(is_write);
                    self.measured.latency.record((now - issued).as_nanos() as u64);
                }
                Some(_) | None => {}
            }
            if !self.plan.gap.is_zero() && !self.ending {
                self.due.push_back((now + self.plan.gap, index));
            }
        }
        Ok(())
    }

    fn issue_due(&mut self, now: Instant) -> io::Result<()> {
        while let Some((_, index)) = self.due.front().copied().filter(|(when, _)| *when <= now) {
            self.due.pop_front();
            self.issue(index, now);
            self.flush(index)?;
        }
        Ok(())
    }

    /// Issues as many requests as are free, if there is no gap to keep.
    #[expect(
        clippy::indexing_slicing,
        reason = "an index is one that `add` gave out, and no connection is removed"
    )]
    fn refill(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let connection = &self.connections[index];
        let first = connection.free.len() == connection.issued.len() && self.due.is_empty();
        if self.plan.rate.is_none() && (self.plan.gap.is_zero() || first) {
            while !self.ending && self.issue(index, now) {}
        }
        self.flush(index)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "an index is one that `add` gave out, and no connection is removed; a free tag is below the depth"
    )]
    fn issue(&mut self, index: usize, now: Instant) -> bool {
        let connection = &mut self.connections[index];
        let Some(tag) = connection.free.pop() else { return false };
        let (len, size) =
            connection.background.map_or((self.plan.len, self.plan.size), |load| (load.len, load.size));
        let places = (size / u64::from(len)).max(1);
        let place = if self.plan.once {
            if self.next == places {
                connection.free.push(tag);
                return false;
            }
            self.next
        } else if self.plan.is_sequential {
            self.next % places
        } else {
            next_random(&mut self.random) % places
        };
        let offset = connection.first + place * u64::from(len);
        let op = match (connection.background, self.plan.reads) {
            (Some(load), _) => load.op,
            (None, None) => self.plan.op,
            (None, Some(percent)) if next_random(&mut self.random) % 100 < u64::from(percent) => LoadOp::Read,
            (None, Some(_)) => LoadOp::Write,
        };
        let request = WireRequest { tag, op, offset, len };
        if !connection.client.encode_request(request, &mut connection.out) {
            connection.free.push(tag);
            self.measured.window_stalls += 1;
            return false;
        }
        self.next += 1;
        connection.issued[tag as usize] = (now, op == LoadOp::Write);
        self.in_flight += 1;
        true
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "an index is one that `add` gave out, and no connection is removed"
    )]
    fn flush(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let most = connection.background.map_or(usize::MAX, |_| BACKGROUND_SEND_BYTES);
        let wanted = !connection.out.flush_part(&mut connection.socket, most)?;
        if wanted != connection.writable_wanted {
            connection.writable_wanted = wanted;
            self.epoll.set_writable(connection.socket.as_raw_fd(), index as u64, wanted)?;
        }
        Ok(())
    }
}

fn waits_since(now: WaitStats, then: WaitStats) -> WaitStats {
    WaitStats {
        polls_useful: now.polls_useful - then.polls_useful,
        polls_idle: now.polls_idle - then.polls_idle,
        polls_idle_ns: now.polls_idle_ns - then.polls_idle_ns,
        polled_ns: now.polled_ns - then.polled_ns,
        sleeps: now.sleeps - then.sleeps,
    }
}

/// Marsaglia's xorshift with a multiplication behind it: even enough for offsets.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::spin::WaitMode;
    use crate::wire_protocol::bare::{BareClient, HEADER_LEN, reply_header};

    fn plan(measure: Duration) -> LoadPlan {
        LoadPlan {
            op: LoadOp::Read,
            reads: None,
            rate: None,
            len: 512,
            depth: 1,
            size: 512,
            is_sequential: false,
            once: false,
            warmup: Duration::ZERO,
            measure,
            gap: Duration::ZERO,
            wait: WaitMode::Sleep,
            poll: Duration::ZERO,
            server: None,
            seed: 1,
        }
    }

    /// One connection.
    fn ready(address: SocketAddr, depth: u32) -> Vec<ReadyConnection<BareClient>> {
        vec![ReadyConnection::new(connect(address, None).unwrap(), BareClient::default(), depth)]
    }

    /// A target that stops answering before the end was seen in no figure.
    #[test]
    fn a_stall_at_the_end_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let answer = [&reply_header(0, 512)[..], &[0; 512]].concat();
            for answered in 0.. {
                if socket.read_exact(&mut [0; HEADER_LEN]).is_err() {
                    return;
                }
                // The eleventh comes when the load is over.
                let wait = if answered == 10 { Duration::from_millis(800) } else { Duration::ZERO };
                std::thread::sleep(wait);
                if socket.write_all(&answer).is_err() {
                    return;
                }
            }
        });
        let measured = run_load(&plan(Duration::from_millis(400)), ready(address, 1)).unwrap();
        assert_eq!((measured.latency.count(), measured.unfinished), (10, 1));
        let oldest = measured.unfinished_oldest;
        assert!(oldest.as_nanos() > u128::from(measured.latency.max()), "{oldest:?}");
        drop(server.join());
    }

    /// Answers each request of a connection.
    fn answering(listener: std::net::TcpListener) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let (mut header, mut data) = ([0; HEADER_LEN], vec![0; 512]);
            while socket.read_exact(&mut header).is_ok() {
                let request = crate::wire_protocol::bare::parse_request(&header).unwrap();
                let answer = match request.op {
                    LoadOp::Read => [&reply_header(request.tag, 512)[..], &[0; 512]].concat(),
                    LoadOp::Write => {
                        socket.read_exact(&mut data).unwrap();
                        reply_header(request.tag, 0).to_vec()
                    }
                };
                if socket.write_all(&answer).is_err() {
                    return;
                }
            }
        })
    }

    #[test]
    fn a_rate_and_a_mix_are_kept() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = answering(listener);
        let plan = LoadPlan { rate: Some(1000.0), reads: Some(70), depth: 8, ..plan(Duration::from_secs(1)) };
        let measured = run_load(&plan, ready(address, 8)).unwrap();
        let count = measured.latency.count();
        // A busy machine does fewer, and none does more.
        assert!((500..=1010).contains(&count), "{count}");
        let part = measured.writes as f64 / count as f64;
        assert!((0.15..0.45).contains(&part), "{part}");
        drop(server.join());
    }

    #[test]
    fn what_a_connection_does_beside_the_plan_is_counted_apart() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let servers = [listener.try_clone().unwrap(), listener].map(answering);
        let mut open = ready(address, 2);
        open.extend(ready(address, 3));
        open[1].background = Some(BackgroundLoad { op: LoadOp::Write, len: 512, size: 4096 });
        let measured = run_load(&plan(Duration::from_millis(200)), open).unwrap();
        assert!(measured.latency.count() > 0 && measured.background_bytes > 0);
        assert_eq!((measured.writes, measured.background_bytes % 512), (0, 0));
        assert!(measured.unfinished <= 2, "those of the plan only: {}", measured.unfinished);
        servers.into_iter().for_each(|server| drop(server.join()));
    }

    #[test]
    fn a_request_that_is_answered_twice_ends_the_load_with_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; HEADER_LEN]).unwrap();
            socket.write_all(&[reply_header(0, 0), reply_header(0, 0)].concat()).unwrap();
            socket
        });
        let why = run_load(&plan(Duration::from_secs(5)), ready(address, 1)).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{why}");
        drop(server.join());
    }
}
