//! The client end of the control socket, for the command line.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::Path,
    time::Duration,
};

use super::{Answer, Call, Code, Outcome, REPLY_BYTES_MAX, Reply, Request, VERSION, read_line};
use process::exit::{Exit, Failure};
use process::owned::{Peer, user};

/// How long a request may take. The daemon itself gives up on its shards before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the daemon at `path` once: one of our own user or of root, or, if we are root, of the user whose
/// directory the socket stands in. Requests may carry passwords, and answers are believed.
pub fn ask(path: &Path, request: Request) -> Result<Answer, Failure> {
    ask_ours(path, request).map(|(answer, _)| answer)
}

/// Ends the daemon at `path`, and waits until its process has gone. `said` is given its answer before.
pub fn stop(path: &Path, now: bool, patience: Duration, said: impl FnOnce(&Answer)) -> Result<(), Failure> {
    let (answer, mut stream) = ask_ours(path, Request::Stop { now })?;
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

fn ask_ours(path: &Path, request: Request) -> Result<(Answer, UnixStream), Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let owner = std::fs::metadata(directory).map(|facts| facts.uid());
    ask_whom(path, request, |peer| {
        peer.commands_us() || user() == 0 && owner.is_ok_and(|owner| owner == peer.user)
    })
}

/// The same as [`ask`], of a daemon of this user and no other.
pub fn ask_user(path: &Path, request: Request, owner: u32) -> Result<Answer, Failure> {
    ask_whom(path, request, |peer| peer.user == owner).map(|(answer, _)| answer)
}

fn ask_whom(
    path: &Path,
    request: Request,
    is_meant: impl FnOnce(Peer) -> bool,
) -> Result<(Answer, UnixStream), Failure> {
    let stream = UnixStream::connect(path).map_err(|why| unreachable(path, &why))?;
    let peer = Peer::of(&stream).map_err(|why| unreachable(path, &why))?;
    if !is_meant(peer) {
        return Err(Failure::failed(format!(
            "what answers at {} is process {} of another user ({}): nothing was sent to it; name the socket of \
             your daemon with --control PATH",
            path.display(),
            peer.pid,
            peer.user
        )));
    }
    let answered = exchange(&stream, request).map_err(|why| match why.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::new(
            Exit::RequestTimeout,
            format!("the daemon at {} did not answer in time", path.display()),
        ),
        _ => Failure::failed(format!("talking to the daemon at {} failed: {why}", path.display())),
    })?;
    match answered.outcome {
        Outcome::Ok(answer) => Ok((*answer, stream)),
        Outcome::Error(refused) => {
            let exit = match refused.code {
                Code::NotFound => Exit::NothingFound,
                Code::Invalid => Exit::Usage,
                Code::TimedOut => Exit::RequestTimeout,
                Code::Attached => Exit::Exists,
                Code::Unreachable => Exit::ConnectTimeout,
                Code::Unproven => Exit::NotAuthenticated,
                Code::Conflict | Code::Failed | Code::Unavailable | Code::Version => Exit::Failure,
            };
            Err(Failure::new(exit, refused.message))
        }
    }
}

fn exchange(mut stream: &UnixStream, request: Request) -> io::Result<Reply> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&Call { version: VERSION, request })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let line =
        read_line(&mut BufReader::new(stream), REPLY_BYTES_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&line)?)
}

fn unreachable(path: &Path, why: &io::Error) -> Failure {
    let path = path.display();
    match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::failed(format!(
            "no daemon answers at {path}; start one with `blockwire serve`, or name its socket with --control PATH"
        )),
        io::ErrorKind::PermissionDenied => Failure::failed(format!(
            "the control socket {path} may only be used by the user who runs the daemon (and root)"
        )),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Failure::new(Exit::ConnectTimeout, format!("the daemon at {path} does not accept connections"))
        }
        _ => Failure::failed(format!("cannot connect to the daemon at {path}: {why}")),
    }
}
