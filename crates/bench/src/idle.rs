//! Sessions that do nothing: what they cost a target in memory and in processor time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::form::iscsi::{Iscsi, log_in};
use crate::form::{Form, Outgoing};
use crate::system::Epoll;
use crate::{load, usage};

/// What idle sessions came to.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// Sessions that were logged in.
    pub sessions: u32,
    /// The server's resident memory before the first and after the last, in bytes.
    pub resident: (u64, u64),
    /// The server's share of one processor while nothing was asked, 0 to 1.
    pub cpu_share: f64,
    /// Time to log all of them in, in seconds.
    pub login_seconds: f64,
}

/// Logs `sessions` sessions in, lets them rest for `rest`, and answers nothing but pings meanwhile.
pub fn measure(
    address: SocketAddr,
    target: &str,
    lun: u8,
    sessions: u32,
    rest: Duration,
    server: u32,
) -> io::Result<Idle> {
    let before = usage::resident_bytes(server)?;
    let start = Instant::now();
    let mut epoll = Epoll::new()?;
    let mut open: Vec<(TcpStream, Iscsi)> = Vec::new();
    for number in 0..sessions {
        let mut socket = load::connect(address, None)?;
        let session = log_in(&mut socket, target, lun, number)?;
        socket.set_nonblocking(true)?;
        epoll.add(socket.as_raw_fd(), u64::from(number))?;
        open.push((socket, Iscsi::new(session)));
    }
    let login_seconds = start.elapsed().as_secs_f64();
    // What the logins left to be done is not idleness.
    rest_for(Duration::from_secs(1), &mut epoll, &mut open)?;
    let resident = (before, usage::resident_bytes(server)?);
    let (cpu, start) = (usage::cpu_ns(server)?, Instant::now());
    rest_for(rest, &mut epoll, &mut open)?;
    let used = (usage::cpu_ns(server)? - cpu) as f64 / 1e9;
    Ok(Idle { sessions, resident, cpu_share: used / start.elapsed().as_secs_f64(), login_seconds })
}

fn rest_for(time: Duration, epoll: &mut Epoll, open: &mut [(TcpStream, Iscsi)]) -> io::Result<()> {
    let end = Instant::now() + time;
    let mut input = vec![0; 64 << 10];
    while Instant::now() < end {
        let tokens: Vec<u64> = epoll.wait(Some(end - Instant::now()))?.collect();
        for token in tokens {
            let Some((socket, form)) = open.get_mut(token as usize) else { continue };
            let came = io::Read::read(socket, &mut input)?;
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut out = Outgoing::new(0);
            form.take(&input[..came], &mut out, &mut Vec::new())?;
            out.flush(socket)?;
        }
    }
    Ok(())
}
