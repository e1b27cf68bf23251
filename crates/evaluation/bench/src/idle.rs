//! Idle sessions: their cost for a target in memory and in processor time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::system::Epoll;
use crate::wire_protocol::association::NvmeAssociation;
use crate::wire_protocol::iscsi::IscsiClient;
use crate::wire_protocol::login::log_in;
use crate::wire_protocol::{Outgoing, ProtocolClient};
use crate::{load, usage};

/// Commands that the I/O queue of an idle association may have in flight: 32 entries, since a target
/// may set memory aside for each.
const IDLE_DEPTH: u32 = 31;

/// What idle sessions came to.
#[derive(Clone, Copy, Debug)]
pub struct IdleFigures {
    /// Sessions that were logged in.
    pub sessions: u32,
    /// The server's resident memory before the first and after the last, in bytes.
    pub resident: (u64, u64),
    /// The server's share of one processor while nothing was asked, 0 to 1.
    pub cpu_share: f64,
    /// Time to log all of them in, in seconds.
    pub login_seconds: f64,
}

/// Logs `sessions` sessions in to an iSCSI target, lets them rest for `rest`, and answers nothing but
/// pings meanwhile.
pub fn measure_iscsi(
    address: SocketAddr,
    target: &str,
    lun: u8,
    sessions: u32,
    rest: Duration,
    server: u32,
) -> io::Result<IdleFigures> {
    let mut epoll = Epoll::new()?;
    let open = |number| {
        let mut socket = load::connect(address, None)?;
        let session = log_in(&mut socket, target, lun, number)?;
        socket.set_nonblocking(true)?;
        epoll.add(socket.as_raw_fd(), u64::from(number))?;
        Ok((socket, IscsiClient::new(session)))
    };
    let open = open_sessions(sessions, server, open)?;
    observe_idle(open, server, rest, |open, time| stay_idle(time, &mut epoll, open))
}

/// Sets `associations` with one I/O queue each up on an NVMe/TCP controller and lets them rest.
pub fn measure_nvme(
    address: SocketAddr,
    subsystem: &str,
    nsid: u32,
    associations: u32,
    rest: Duration,
    server: u32,
) -> io::Result<IdleFigures> {
    let open = |number| {
        let association = NvmeAssociation::open(load::connect(address, None)?, subsystem, nsid, 1, number)?;
        let mut socket = load::connect(address, None)?;
        association.connect_queue(&mut socket, 1, IDLE_DEPTH)?;
        Ok((association, socket))
    };
    let open = open_sessions(associations, server, open)?;
    observe_idle(open, server, rest, |_, time| {
        std::thread::sleep(time);
        Ok(())
    })
}

/// What was opened, how much memory the server had before that, and how long it took.
struct OpenedSessions<T> {
    all: Vec<T>,
    resident_before: u64,
    seconds: f64,
}

fn open_sessions<T>(
    count: u32,
    server: u32,
    open: impl FnMut(u32) -> io::Result<T>,
) -> io::Result<OpenedSessions<T>> {
    let resident_before = usage::resident_bytes(server)?;
    let start = Instant::now();
    let all = (0..count).map(open).collect::<io::Result<Vec<T>>>()?;
    Ok(OpenedSessions { all, resident_before, seconds: start.elapsed().as_secs_f64() })
}

fn observe_idle<T>(
    mut opened: OpenedSessions<T>,
    server: u32,
    time: Duration,
    mut rest: impl FnMut(&mut [T], Duration) -> io::Result<()>,
) -> io::Result<IdleFigures> {
    // What the logins left to be done is not idleness.
    rest(&mut opened.all, Duration::from_secs(1))?;
    let resident = (opened.resident_before, usage::resident_bytes(server)?);
    let (cpu, start) = (usage::cpu_ns(server)?, Instant::now());
    rest(&mut opened.all, time)?;
    let used = usage::cpu_ns_since(server, cpu)? as f64 / 1e9;
    let cpu_share = used / start.elapsed().as_secs_f64();
    Ok(IdleFigures { sessions: opened.all.len() as u32, resident, cpu_share, login_seconds: opened.seconds })
}

fn stay_idle(time: Duration, epoll: &mut Epoll, open: &mut [(TcpStream, IscsiClient)]) -> io::Result<()> {
    let end = Instant::now() + time;
    let mut input = vec![0; 64 << 10];
    while Instant::now() < end {
        let tokens: Vec<u64> = epoll.wait(Some(end.saturating_duration_since(Instant::now())))?.collect();
        for token in tokens {
            let Some((socket, client)) = open.get_mut(token as usize) else { continue };
            let came = io::Read::read(socket, &mut input)?;
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut out = Outgoing::new(0);
            client.handle_input(input.get(..came).unwrap_or_default(), &mut out, &mut Vec::new())?;
            out.flush(socket)?;
        }
    }
    Ok(())
}
