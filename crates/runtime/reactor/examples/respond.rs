//! The cost of the reactor itself: requests of 48 bytes, answered by 48 bytes and 4 KiB from memory, without
//! a protocol. The client runs in the same process on another core and polls; the shard's processor time is
//! read from its thread.
//!
//! `serve_bare` is a plain loop of receives and gathering sends without the reactor, for comparison.
//!
//! `respond [uring|epoll|bare] [connections] [depth] [seconds] [gap between answer and request, µs]
//! [congestion control] [longest poll, µs]`

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwire_reactor::{Config, IoChoice, ListenConfig, Reactor, TcpOptions};
use buf::{Cx, Errno, MemoryClass, Region, RegionHandle};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId};
use smallvec::SmallVec;
use stream::{Received, RecvOp, SendOp, SendPiece};

const REQUEST_LEN: usize = 48;
const HEADER_LEN: usize = 48;
const DATA_LEN: usize = 4096;
const REGION_LEN: usize = 1 << 20;

#[derive(Default)]
struct Conn {
    /// Bytes of requests that are not answered.
    due: usize,
    recv_out: bool,
    send_out: bool,
    gone: bool,
}

struct Responder {
    links: HashMap<LinkId, Conn>,
    ready: VecDeque<LinkId>,
    departures: VecDeque<LinkId>,
    region: RegionHandle,
    at: usize,
    spare: Vec<SmallVec<[SendPiece; 8]>>,
}

impl Endpoint for Responder {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, link: LinkId, _: LinkArrival<()>) {
        self.links.insert(link, Conn::default());
        self.ready.push_back(link);
    }
    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}
    fn handle_recv(&mut self, _: &mut Cx<'_>, link: LinkId, _: RecvOp, came: Received) {
        let Some(conn) = self.links.get_mut(&link) else { return };
        conn.recv_out = false;
        match came {
            Received::Bytes(n) => conn.due += n,
            Received::Loaned(_) | Received::Cancelled => {}
            Received::End | Received::Failed(_) => {
                conn.gone = true;
                self.departures.push_back(link);
            }
        }
        self.ready.push_back(link);
    }
    fn handle_written(&mut self, _: &mut Cx<'_>, link: LinkId, _: Result<(), Errno>) {
        if let Some(conn) = self.links.get_mut(&link) {
            conn.send_out = false;
            self.ready.push_back(link);
        }
    }
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, mut op: SendOp) {
        op.pieces.clear();
        self.spare.push(op.pieces);
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_front()
    }
    fn poll_recv(&mut self, _: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let conn = self.links.get_mut(&link)?;
        if conn.recv_out || conn.gone {
            return None;
        }
        conn.recv_out = true;
        Some(RecvOp { direct: None, stage_len: 16 << 10, stage: None })
    }
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let conn = self.links.get_mut(&link)?;
        let count = conn.due / REQUEST_LEN;
        if conn.send_out || conn.gone || count == 0 {
            return None;
        }
        conn.send_out = true;
        conn.due -= count * REQUEST_LEN;
        let head = cx.pool.take(MemoryClass::Wire, count * HEADER_LEN)?;
        let mut pieces = self.spare.pop().unwrap_or_default();
        for i in 0..count as u32 {
            pieces.push(SendPiece::Head(i * HEADER_LEN as u32..(i + 1) * HEADER_LEN as u32));
            pieces.push(SendPiece::Shared(self.region.view(self.at, DATA_LEN)));
            self.at = (self.at + DATA_LEN * 37) % REGION_LEN;
        }
        Some(SendOp { head: Some(head), pieces, len: count * (HEADER_LEN + DATA_LEN) })
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        self.departures.pop_front().map(|link| (link, LinkDeparture::Close))
    }
}

fn shard_cpu_time() -> Duration {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "bw-shard-0") {
            let stat = std::fs::read_to_string(path.join("schedstat")).unwrap();
            return Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap());
        }
    }
    Duration::ZERO
}

fn pin_to_core(core: usize) {
    // SAFETY: a cpu_set_t is plain bits, valid for the calls; the core's number is small.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Keeps `depth` requests going on each connection; gives how many were answered.
fn run_load(address: SocketAddr, connections: usize, depth: usize, until: Instant, gap: Duration) -> u64 {
    let mut streams: Vec<_> = (0..connections).map(|_| (TcpStream::connect(address).unwrap(), 0)).collect();
    let requests = vec![1; REQUEST_LEN * depth];
    let mut polls = Vec::new();
    for (stream, _) in &mut streams {
        stream.set_nodelay(true).unwrap();
        stream.write_all(&requests).unwrap();
        polls.push(libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    }
    let mut into = vec![0; 256 << 10];
    let mut answered = 0;
    while Instant::now() < until {
        if connections > 1 {
            // SAFETY: the list is valid for its length.
            unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, 1000) };
        }
        for ((stream, partial), poll) in streams.iter_mut().zip(&polls) {
            if connections > 1 && poll.revents == 0 {
                continue;
            }
            *partial += stream.read(&mut into).unwrap();
            let count = *partial / (HEADER_LEN + DATA_LEN);
            *partial %= HEADER_LEN + DATA_LEN;
            if count > 0 {
                let start = Instant::now();
                while start.elapsed() < gap {
                    std::hint::spin_loop();
                }
                stream.write_all(&requests[..count * REQUEST_LEN]).unwrap();
                answered += count as u64;
            }
        }
    }
    answered
}

/// Answers the same requests by poll, recv and one sendmsg per batch, and nothing else.
fn serve_bare(listener: std::net::TcpListener, region: &Region) {
    pin_to_core(0);
    let base = vec![7u8; REGION_LEN];
    let header = [0u8; HEADER_LEN];
    let mut streams: Vec<(TcpStream, usize)> = Vec::new();
    let mut polls = vec![libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    let (mut into, mut iov, mut at) = (vec![0; 16 << 10], Vec::new(), 0);
    region.write(0, &base);
    loop {
        // SAFETY: the list is valid for its length.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, -1) };
        for (i, _) in polls.clone().iter().enumerate().filter(|(_, poll)| poll.revents != 0) {
            if i == 0 {
                let (stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                polls.push(libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 });
                streams.push((stream, 0));
                continue;
            }
            let (stream, due) = &mut streams[i - 1];
            let Ok(got @ 1..) = stream.read(&mut into) else {
                polls[i].fd = -1;
                continue;
            };
            *due += got;
            let count = *due / REQUEST_LEN;
            *due %= REQUEST_LEN;
            iov.clear();
            for _ in 0..count {
                iov.push(libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: HEADER_LEN });
                iov.push(libc::iovec { iov_base: base[at..].as_ptr().cast_mut().cast(), iov_len: DATA_LEN });
                at = (at + DATA_LEN * 37) % REGION_LEN;
            }
            for part in iov.chunks_mut(1024) {
                // SAFETY: the header names a list of live memory. The socket blocks, so all is sent.
                unsafe {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (part.as_mut_ptr(), part.len());
                    libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
                }
            }
        }
    }
}

fn run_bare(args: &[String], region: Arc<Region>) {
    let number = |at: usize, or: u64| args.get(at).map_or(or, |arg| arg.parse().unwrap());
    let (connections, depth) = (number(1, 1) as usize, number(2, 32) as usize);
    let (seconds, gap) = (number(3, 2), Duration::from_micros(number(4, 0)));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::Builder::new()
        .name("bw-shard-0".into())
        .spawn(move || serve_bare(listener, &region))
        .unwrap();
    pin_to_core(1);
    run_load(address, connections, depth, Instant::now() + Duration::from_millis(200), gap);
    let (cpu, start) = (shard_cpu_time(), Instant::now());
    let answered = run_load(address, connections, depth, start + Duration::from_secs(seconds), gap);
    let (took, cpu) = (start.elapsed(), shard_cpu_time() - cpu);
    println!(
        "bare {connections}c qd{depth} gap {gap:?}: {:.0} K/s, {:.0} ns CPU per request",
        answered as f64 / took.as_secs_f64() / 1e3,
        cpu.as_nanos() as f64 / answered as f64
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).map_or(or, |arg| arg.parse().unwrap());
    let io = match args.first().map(String::as_str) {
        Some("epoll") => IoChoice::Epoll,
        _ => IoChoice::Uring,
    };
    let (connections, depth) = (number(1, 1) as usize, number(2, 32) as usize);
    let (seconds, gap) = (number(3, 2), Duration::from_micros(number(4, 0)));
    let tcp =
        TcpOptions { congestion: args.get(5).filter(|cc| *cc != "-").cloned(), ..TcpOptions::default() };
    let listen = ListenConfig { address: "127.0.0.1:0".parse().unwrap(), tcp };
    let poll_ns_max = number(6, 50) * 1000;
    let config = Config { cores: vec![0], io, listeners: vec![listen], poll_ns_max, ..Config::default() };
    let region = Arc::new(Region::new(REGION_LEN));
    region.write(0, &vec![7; REGION_LEN]);
    if args.first().is_some_and(|arg| arg == "bare") {
        return run_bare(&args, region);
    }
    let world = Reactor::spawn(config, move |_, _| Responder {
        links: HashMap::new(),
        ready: VecDeque::new(),
        departures: VecDeque::new(),
        region: RegionHandle::new(region.clone()),
        at: 0,
        spare: Vec::new(),
    })
    .unwrap();
    pin_to_core(1);
    let address = world.addresses()[0];
    run_load(address, connections, depth, Instant::now() + Duration::from_millis(200), gap);
    let (before, cpu, start) = (world.stats()[0], shard_cpu_time(), Instant::now());
    let answered = run_load(address, connections, depth, start + Duration::from_secs(seconds), gap);
    let (took, cpu, after) = (start.elapsed(), shard_cpu_time() - cpu, world.stats()[0]);
    let per = |n: u64| n as f64 / answered as f64;
    println!(
        "{io:?} {connections}c qd{depth} gap {gap:?}: {:.0} K/s, {:.0} ns CPU per request ({:.0} of it polling), \
         {:.1} µs mean latency, {:.3} syscalls, {:.3} turns, {:.3} sleeps, {:.3} useful and {:.3} idle polls per request",
        answered as f64 / took.as_secs_f64() / 1e3,
        per(cpu.as_nanos() as u64),
        per(after.poll_ns - before.poll_ns),
        took.as_secs_f64() * 1e6 * (connections * depth) as f64 / answered as f64,
        per(after.syscalls - before.syscalls),
        per(after.turns - before.turns),
        per(after.sleeps - before.sleeps),
        per(after.polls_useful - before.polls_useful),
        per(after.polls_idle - before.polls_idle),
    );
    world.stop(Duration::from_millis(200));
    world.join().unwrap();
}
