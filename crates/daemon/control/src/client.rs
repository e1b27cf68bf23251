//! The client end of the control socket, for the command line.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::Path,
    time::Duration,
};

use super::{
    Answer, PROTOCOL_VERSION, REPLY_BYTES_MAX, RefusalCode, ReplyEnvelope, ReplyOutcome, Request,
    RequestEnvelope, read_bounded_line,
};
use process::exit::{Exit, Failure, FaultSide};
use process::owned_dir::{PeerProcess, current_uid};

/// How long a request may take. The daemon itself gives up on its shards before.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks the daemon at `path` once: one of our own user or of root, or, if we are root or only look, of the user whose
/// directory the socket stands in. Requests may carry passwords, and answers are believed.
pub fn send_request(path: &Path, request: Request) -> Result<Answer, Failure> {
    send_to_own_daemon(path, request).map(|(answer, _)| answer)
}

/// Ends the daemon at `path`, and waits until its process has gone. `said` is given its answer before.
pub fn stop_daemon(
    path: &Path,
    now: bool,
    patience: Duration,
    said: impl FnOnce(&Answer),
) -> Result<(), Failure> {
    let (answer, mut stream) = send_to_own_daemon(path, Request::Stop { now })?;
    said(&answer);
    let waits = |why: io::Error| Failure::failed(format!("cannot wait for the daemon to exit: {why}"));
    stream.set_read_timeout(Some(patience)).map_err(waits)?;
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            // Whatever ends the connection ends with the process.
            Err(why) if why.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let message = format!(
                    "the daemon at {} is still stopping; its log shows what it is waiting for; `blockwire stop \
                     --now` stops it at once",
                    path.display()
                );
                return Err(Failure::new(Exit::RequestTimeout, message));
            }
            Err(why) => return Err(waits(why)),
        }
    }
}

fn send_to_own_daemon(path: &Path, request: Request) -> Result<(Answer, UnixStream), Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let owner = std::fs::metadata(directory).map(|facts| facts.uid());
    // What only looks holds no password, and may be meant for a daemon whose readers this user is among.
    let may_be_others = current_uid() == 0 || request.is_read_only();
    connect_and_exchange(path, request, |peer| {
        peer.is_trusted() || may_be_others && owner.is_ok_and(|owner| owner == peer.user)
    })
}

/// The same as [`send_request`], of a daemon of this user and no other.
pub fn send_request_to_user(path: &Path, request: Request, owner: u32) -> Result<Answer, Failure> {
    connect_and_exchange(path, request, |peer| peer.user == owner).map(|(answer, _)| answer)
}

fn connect_and_exchange(
    path: &Path,
    request: Request,
    is_meant: impl FnOnce(PeerProcess) -> bool,
) -> Result<(Answer, UnixStream), Failure> {
    let stream = UnixStream::connect(path).map_err(|why| unreachable_failure(path, &why))?;
    let peer = PeerProcess::of(&stream).map_err(|why| unreachable_failure(path, &why))?;
    if !is_meant(peer) {
        return Err(Failure::failed(format!(
            "what answers at {} is process {} of another user ({}): nothing was sent to it; name the socket of \
             your daemon with --control PATH",
            path.display(),
            peer.pid,
            peer.user
        )));
    }
    let answered = exchange_messages(&stream, request).map_err(|why| match why.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::new(
            Exit::RequestTimeout,
            format!("the daemon at {} did not answer in time", path.display()),
        )
        .with_fault(FaultSide::Daemon),
        _ => Failure::failed(format!("talking to the daemon at {} failed: {why}", path.display()))
            .with_fault(FaultSide::Daemon),
    })?;
    match answered.outcome {
        ReplyOutcome::Ok(answer) => Ok((*answer, stream)),
        ReplyOutcome::Error(refused) => {
            let exit = match refused.code {
                RefusalCode::NotFound => Exit::NothingFound,
                RefusalCode::Invalid => Exit::Usage,
                RefusalCode::TimedOut => Exit::RequestTimeout,
                RefusalCode::Attached => Exit::Exists,
                RefusalCode::Unreachable => Exit::ConnectTimeout,
                RefusalCode::Unproven => Exit::NotAuthenticated,
                RefusalCode::Conflict
                | RefusalCode::Failed
                | RefusalCode::Unavailable
                | RefusalCode::Version => Exit::Failure,
            };
            let fault = match refused.code {
                RefusalCode::NotFound
                | RefusalCode::Invalid
                | RefusalCode::Attached
                | RefusalCode::Conflict => FaultSide::Caller,
                RefusalCode::Unreachable | RefusalCode::Unproven => FaultSide::Peer,
                RefusalCode::TimedOut
                | RefusalCode::Failed
                | RefusalCode::Unavailable
                | RefusalCode::Version => FaultSide::Daemon,
            };
            Err(Failure::new(exit, refused.message).with_fault(fault))
        }
    }
}

fn exchange_messages(mut stream: &UnixStream, request: Request) -> io::Result<ReplyEnvelope> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = serde_json::to_vec(&RequestEnvelope { version: PROTOCOL_VERSION, request })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let line = read_bounded_line(&mut BufReader::new(stream), REPLY_BYTES_MAX)?
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&line)?)
}

fn unreachable_failure(path: &Path, why: &io::Error) -> Failure {
    let path = path.display();
    let failure = match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::failed(format!(
            "no daemon answers at {path}; start one with `blockwire serve`, or name its socket with --control PATH"
        )),
        io::ErrorKind::PermissionDenied => Failure::failed(format!(
            "the control socket {path} may only be used by the user who runs the daemon, root, and to look by members \
             of its control_group"
        )),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Failure::new(Exit::ConnectTimeout, format!("the daemon at {path} does not accept connections"))
        }
        _ => Failure::failed(format!("cannot connect to the daemon at {path}: {why}")),
    };
    match why.kind() {
        io::ErrorKind::PermissionDenied => failure.with_fault(FaultSide::Caller),
        _ => failure.with_fault(FaultSide::Daemon),
    }
}
