//! Requests and replies over a real socket, and forbidden actions of a client.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener, net::UnixStream},
    path::Path,
    sync::Arc,
};

use super::{
    server::{ControlService, ControlSocket},
    *,
};
use process::exit::Exit;

/// Does not answer who wants to see volumes until this is dropped.
struct Silent(std::sync::Mutex<std::sync::mpsc::Receiver<()>>, std::sync::mpsc::Sender<()>);

impl ControlService for Silent {
    fn handle_request(&self, request: Request) -> Result<Answer, RequestRefusal> {
        if request == Request::VolumeList {
            let _ = self.1.send(());
            let _ = self.0.lock().unwrap().recv();
        }
        Echo.handle_request(request)
    }

    fn reply_written(&self, _: &Request, _: bool) {}
}

struct Echo;

impl ControlService for Echo {
    fn handle_request(&self, request: Request) -> Result<Answer, RequestRefusal> {
        match request {
            Request::VolumeShow { name, .. } => {
                Err(RequestRefusal::new(RefusalCode::NotFound, format!("there is no volume \"{name}\"")))
            }
            Request::Stop { .. } => Ok(Answer::Stopping { pid: 7 }),
            _ => Ok(Answer::Sessions(Vec::new())),
        }
    }

    fn reply_written(&self, _: &Request, _: bool) {}
}

fn served() -> (tempfile::TempDir, ControlSocket, Arc<dyn ControlService>) {
    let root = tempfile::tempdir().unwrap();
    let socket = ControlSocket::bind(&root.path().join("d/control.sock"), None).unwrap();
    let service: Arc<dyn ControlService> = Arc::new(Echo);
    socket.serve(&service).unwrap();
    (root, socket, service)
}

fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(bytes).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn ask_and_answer() {
    let (_root, socket, _service) = served();
    assert_eq!(client::send_request(socket.path(), Request::SessionList), Ok(Answer::Sessions(Vec::new())));
    assert_eq!(
        client::send_request(socket.path(), Request::Stop { now: true }),
        Ok(Answer::Stopping { pid: 7 })
    );
    let why = client::send_request(socket.path(), Request::VolumeShow { name: "x".into(), latency: false })
        .unwrap_err();
    assert_eq!((why.exit, why.message.as_str()), (Exit::NothingFound, "there is no volume \"x\""));
}

#[test]
fn the_wire_form_is_fixed() {
    let call = RequestEnvelope {
        version: 1,
        request: Request::VolumeResize { name: "a".into(), size_bytes: 5, shrink: false },
    };
    let line =
        r#"{"version":1,"verb":"volume-resize","arguments":{"name":"a","size_bytes":5,"shrink":false}}"#;
    assert_eq!(serde_json::to_string(&call).unwrap(), line);
    assert_eq!(serde_json::from_str::<RequestEnvelope>(line).unwrap(), call);
    let call: RequestEnvelope = serde_json::from_str(r#"{"version":1,"verb":"status"}"#).unwrap();
    assert_eq!(call.request, Request::Status);
    let reply = ReplyEnvelope {
        version: 1,
        outcome: ReplyOutcome::Error(RequestRefusal::new(RefusalCode::NotFound, "no")),
    };
    assert_eq!(
        serde_json::to_string(&reply).unwrap(),
        r#"{"version":1,"error":{"code":"not_found","message":"no"}}"#
    );
}

#[test]
fn nonsense_is_answered_and_bounded() {
    let (_root, socket, _service) = served();
    for (line, want) in [
        ("{}\n", "malformed request"),
        ("nonsense\n", "malformed request"),
        ("{\"version\":2,\"verb\":\"status\"}\n", "version 1 of the control protocol"),
        ("{\"version\":1,\"verb\":\"explode\"}\n", "malformed request"),
        ("{\"version\":1,\"verb\":\"volume-show\",\"arguments\":{}}\n", "malformed request"),
    ] {
        let got = raw(socket.path(), line.as_bytes());
        assert!(got.contains(want), "{line} {got}");
    }
    let long = vec![b'a'; REQUEST_BYTES_MAX as usize];
    assert!(raw(socket.path(), &long).contains("too long"));
    // Two requests in one write, the first of them malformed: both are answered.
    let mut stream = UnixStream::connect(socket.path()).unwrap();
    stream.write_all(b"x\n{\"version\":1,\"verb\":\"session-list\"}\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.next().unwrap().unwrap().contains("malformed"));
    assert!(lines.next().unwrap().unwrap().contains("sessions"));
}

#[test]
fn clients_that_hold_on_and_ask_nothing_keep_nobody_out() {
    let (_root, socket, _service) = served();
    let mut held: Vec<UnixStream> = (0..64).map(|_| UnixStream::connect(socket.path()).unwrap()).collect();
    client::send_request(socket.path(), Request::SessionList).unwrap();
    // The oldest have been hung up on; the last one is still heard.
    let mut byte = [0];
    assert_eq!(held[0].read(&mut byte).unwrap(), 0);
    let last = held.last_mut().unwrap();
    last.write_all(b"{\"version\":1,\"verb\":\"session-list\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(last).read_line(&mut line).unwrap();
    assert!(line.contains("ok"), "{line}");
}

/// A disk that does not answer has every client wait that asks for its volume.
#[test]
fn clients_that_are_not_answered_keep_neither_status_nor_stop_out() {
    let root = tempfile::tempdir().unwrap();
    let socket = ControlSocket::bind(&root.path().join("s"), None).unwrap();
    let (answered, silent) = std::sync::mpsc::channel();
    let (tell, heard) = std::sync::mpsc::channel();
    let service: Arc<dyn ControlService> = Arc::new(Silent(silent.into(), tell));
    socket.serve(&service).unwrap();
    let held: Vec<UnixStream> = (0..16)
        .map(|_| {
            let mut stream = UnixStream::connect(socket.path()).unwrap();
            stream.write_all(b"{\"version\":1,\"verb\":\"volume-list\"}\n").unwrap();
            heard.recv().unwrap();
            stream
        })
        .collect();
    let why = client::send_request(socket.path(), Request::SessionList).unwrap_err();
    assert!(why.message.contains("too many clients"), "{why}");
    for _ in 0..8 {
        client::send_request(socket.path(), Request::Status).unwrap();
    }
    assert_eq!(
        client::send_request(socket.path(), Request::Stop { now: false }),
        Ok(Answer::Stopping { pid: 7 })
    );
    drop(answered);
    drop(held);
}

#[test]
fn who_stops_the_daemon_can_wait_for_its_end() {
    let (_root, socket, _service) = served();
    let mut said = None;
    let patience = std::time::Duration::from_millis(300);
    let why =
        client::stop_daemon(socket.path(), true, patience, |answer| said = Some(answer.clone())).unwrap_err();
    assert_eq!(said, Some(Answer::Stopping { pid: 7 }));
    assert!(why.exit == Exit::RequestTimeout && why.message.contains("is still stopping"), "{why:?}");

    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        stream.write_all(b"{\"version\":1,\"ok\":{\"stopping\":{\"pid\":7}}}\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
    });
    client::stop_daemon(&path, false, std::time::Duration::from_secs(30), |_| {}).unwrap();
    daemon.join().unwrap();
}

#[test]
fn only_the_owner_may_connect_and_the_socket_goes_with_the_daemon() {
    let (root, socket, _service) = served();
    let path = root.path().join("d/control.sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_living_daemon_is_not_replaced_and_a_dead_one_is() {
    let (_root, socket, _service) = served();
    let why = ControlSocket::bind(socket.path(), None).unwrap_err();
    assert!(why.message.contains("another daemon answers"), "{why}");

    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves the socket behind");
    let why = client::send_request(&path, Request::Status).unwrap_err();
    assert!(why.message.contains("no daemon answers at"), "{why}");
    let socket = ControlSocket::bind(&path, None).unwrap();
    let service: Arc<dyn ControlService> = Arc::new(Echo);
    socket.serve(&service).unwrap();
    client::send_request(&path, Request::SessionList).unwrap();
    // Who answered lets go of it a moment after the answer.
    while Arc::strong_count(&service) > 1 {
        std::thread::yield_now();
    }
    drop(service);
    let why = client::send_request(&path, Request::SessionList).unwrap_err();
    assert!(why.message.contains("has stopped"), "{why}");

    let file = root.path().join("f");
    std::fs::write(&file, "x").unwrap();
    assert!(ControlSocket::bind(&file, None).unwrap_err().message.contains("is not a control socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
}

#[test]
fn a_daemon_that_hangs_up_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || drop(listener.accept()));
    let why = client::send_request(&path, Request::Status).unwrap_err();
    assert_eq!(why.exit, Exit::Failure);
    thread.join().unwrap();
    let why = client::send_request(&root.path().join("none"), Request::Status).unwrap_err();
    assert!(why.message.contains("start one with `blockwire serve`"), "{why}");
}

#[test]
fn a_request_to_attach_carries_its_password_and_does_not_show_it() {
    let url = "iscsi://user%open5esame@127.0.0.1/iqn.2026-11.x:y/0";
    let request = Request::Attach(AttachRequest {
        url: url.into(),
        via: None,
        at: None,
        recover: false,
        force: false,
        timeout_ms: 0,
    });
    // The daemon gets it whole.
    let sent = serde_json::to_string(&request).unwrap();
    assert!(sent.contains(url), "{sent}");
    for said in [format!("{request:?}"), format!("{request:#?}")] {
        assert!(!said.contains("open5esame"), "{said}");
    }
}

/// What a thread of another user and group gets for requests to `path`.
fn as_other(user: u32, group: u32, path: &Path, request: Request) -> Result<Answer, String> {
    use rustix::{
        process::{Gid, Uid},
        thread,
    };
    let path = path.to_owned();
    let ask = move || {
        thread::set_thread_groups(&[]).unwrap();
        thread::set_thread_gid(Gid::from_raw(group)).unwrap();
        thread::set_thread_uid(Uid::from_raw(user)).unwrap();
        client::send_request(&path, request).map_err(|why| why.message)
    };
    std::thread::spawn(ask).join().unwrap()
}

/// Only root has users to try it with.
#[test]
fn members_of_the_group_may_look_and_change_nothing_and_others_not_even_connect() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tried: only root can be another user");
        return;
    }
    const GROUP: u32 = 64_123;
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = root.path().join("d/control.sock");
    let readers = readers::ReaderGroup::find(&GROUP.to_string()).unwrap();
    let socket = ControlSocket::bind(&path, Some(readers)).unwrap();
    let service: Arc<dyn ControlService> = Arc::new(Echo);
    socket.serve(&service).unwrap();
    let member = |request| as_other(64_001, GROUP, &path, request);
    assert_eq!(member(Request::SessionList), Ok(Answer::Sessions(Vec::new())));
    for request in [
        Request::VolumeRetry { name: "x".to_owned() },
        Request::Apply { file: None },
        Request::Plan { file: Some("/etc/shadow".into()) },
        Request::SessionEnd { id: 1 },
    ] {
        // The client does not even send it to another user's daemon unless that is root's, as here.
        let said = member(request.clone()).unwrap_err();
        assert!(said.contains("may look and change nothing"), "{request:?}: {said}");
    }
    assert!(member(Request::Stop { now: true }).is_err());
    let stranger = as_other(64_001, GROUP + 1, &path, Request::SessionList).unwrap_err();
    assert!(stranger.contains("control_group"), "{stranger}");
    assert_eq!(client::send_request(&path, Request::Apply { file: None }), Ok(Answer::Sessions(Vec::new())));
    // A socket that somebody opened to all: who is no member is not heard, and members are no more.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(root.path().join("d"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(as_other(64_001, GROUP + 1, &path, Request::SessionList).is_err());
    assert!(member(Request::SessionList).is_err());
}
