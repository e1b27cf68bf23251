//! The other end is OpenSSL's own command, `openssl s_client` and `openssl s_server`.

#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwire_tls::{
    Channel, ClientContext, DecryptOutcome, Handshake, HandshakeProgress, Psk, PskLookup, ServerContext,
    TlsFault,
};

const IDENTITY: &str = "NVMe0R01 nqn.host nqn.subsystem";
const KEY: [u8; 32] = [0x4b; 32];
const WAIT: Duration = Duration::from_secs(20);

struct One;

impl PskLookup for One {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        (identity == IDENTITY.as_bytes()).then(|| Psk::new([0x13, 0x01], &KEY))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(words: &[&str]) -> Process {
    let child = Command::new("openssl")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is installed");
    Process(child)
}

/// Runs a handshake over a socket.
fn shake(mut side: Handshake, socket: &mut TcpStream) -> Result<Channel, TlsFault> {
    let mut room = [0; 4096];
    loop {
        match side.step() {
            HandshakeProgress::Done(mut channel) => {
                flush(&mut channel, socket);
                return Ok(channel);
            }
            HandshakeProgress::Failed(fault, last) => {
                let _ = socket.write_all(&last);
                return Err(fault);
            }
            HandshakeProgress::Wait(on) => {
                side = on;
                socket.write_all(&side.take_outgoing()).unwrap();
                let bytes = socket.read(&mut room).unwrap();
                assert!(bytes > 0, "the peer closed within the handshake");
                side.feed_incoming(&room[..bytes]);
            }
        }
    }
}

fn flush(channel: &mut Channel, socket: &mut TcpStream) {
    let mut out = vec![0; channel.outgoing_len()];
    channel.take_outgoing(&mut out);
    socket.write_all(&out).unwrap();
}

fn receive(channel: &mut Channel, socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let (mut all, mut room, mut wire) = (Vec::new(), vec![0; 4096], [0; 4096]);
    while all.len() < len {
        match channel.decrypt(&mut room).unwrap() {
            DecryptOutcome::Bytes(bytes) => all.extend_from_slice(&room[..bytes]),
            DecryptOutcome::Wait => {
                flush(channel, socket);
                let bytes = socket.read(&mut wire).unwrap();
                assert!(bytes > 0, "the peer closed");
                channel.feed_incoming(&wire[..bytes]);
            }
        }
    }
    all
}

fn accept(words: &[&str]) -> (Process, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let process = openssl(&[&["s_client", "-connect", &at, "-tls1_3", "-quiet"], words].concat());
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    (process, socket)
}

#[test]
fn its_client_is_served_and_may_change_keys() {
    let key = hex(&KEY);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    // Not -quiet: then a line that begins with K asks for a key update both ways.
    let words = ["s_client", "-connect", &at, "-tls1_3", "-psk", &key, "-psk_identity", IDENTITY];
    let mut client = openssl(&words);
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let context = ServerContext::new(Arc::new(One)).unwrap();
    let mut channel = shake(Handshake::new_server(&context).unwrap(), &mut socket).unwrap();
    assert_eq!((channel.identity(), channel.suite()), (IDENTITY.as_bytes(), "TLS_AES_128_GCM_SHA256"));
    let input = client.0.stdin.as_mut().unwrap();
    input.write_all(b"before\n").unwrap();
    assert_eq!(receive(&mut channel, &mut socket, 7), b"before\n");
    input.write_all(b"K\n").unwrap();
    input.flush().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    input.write_all(b"after\n").unwrap();
    assert_eq!(receive(&mut channel, &mut socket, 6), b"after\n");
    channel.encrypt(b"under a new key\n").unwrap();
    flush(&mut channel, &mut socket);
    let output = client.0.stdout.as_mut().unwrap();
    let mut said = Vec::new();
    let until = Instant::now() + WAIT;
    while !String::from_utf8_lossy(&said).contains("under a new key\n") {
        assert!(Instant::now() < until);
        let mut room = [0; 4096];
        let bytes = output.read(&mut room).unwrap();
        assert!(bytes > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&room[..bytes]);
    }
    drop(client);
}

#[test]
fn its_client_with_another_key_or_name_or_none_is_refused() {
    let (good, other) = (hex(&KEY), hex(&[1; 32]));
    let context = ServerContext::new(Arc::new(One)).unwrap();
    for (words, fault) in [
        (vec!["-psk", &other, "-psk_identity", IDENTITY], TlsFault::WrongKey(IDENTITY.into())),
        (vec!["-psk", &good, "-psk_identity", "who"], TlsFault::UnknownIdentity("who".into())),
        (vec![], TlsFault::NoKey),
    ] {
        let (_process, mut socket) = accept(&words);
        let end = shake(Handshake::new_server(&context).unwrap(), &mut socket);
        assert_eq!(end.unwrap_err(), fault);
    }
}

/// OpenSSL's server would choose AES-256 with SHA-384, with which this key cannot be used.
#[test]
fn a_client_that_offers_both_suites_gets_the_one_of_its_key() {
    let (key, context) = (hex(&KEY), ServerContext::new(Arc::new(One)).unwrap());
    let shake_with = |suites: &str| {
        let (process, mut socket) =
            accept(&["-psk", &key, "-psk_identity", IDENTITY, "-ciphersuites", suites]);
        let end = shake(Handshake::new_server(&context).unwrap(), &mut socket);
        drop(process);
        end
    };
    let (stronger, own) = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256");
    for suites in [format!("{stronger}:{own}"), format!("{own}:{stronger}"), own.to_owned()] {
        let channel = shake_with(&suites).unwrap();
        assert_eq!((channel.identity(), channel.suite()), (IDENTITY.as_bytes(), own), "{suites}");
    }
}

#[test]
fn an_older_version_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let key = hex(&KEY);
    let _process =
        openssl(&["s_client", "-connect", &at, "-tls1_2", "-psk", &key, "-psk_identity", IDENTITY, "-quiet"]);
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let context = ServerContext::new(Arc::new(One)).unwrap();
    let end = shake(Handshake::new_server(&context).unwrap(), &mut socket);
    assert!(matches!(end.unwrap_err(), TlsFault::Protocol(_)));
}

/// A server of OpenSSL on a free port.
fn server(words: &[&str]) -> (Process, TcpStream) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = port.to_string();
    let process = openssl(&[&["s_server", "-accept", &at, "-tls1_3", "-quiet"], words].concat());
    let until = Instant::now() + WAIT;
    let socket = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(socket) => break socket,
            Err(why) => assert!(Instant::now() < until, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    socket.set_read_timeout(Some(WAIT)).unwrap();
    (process, socket)
}

#[test]
fn its_server_serves_us() {
    let key = hex(&KEY);
    let (mut process, mut socket) = server(&[
        "-nocert",
        "-psk",
        &key,
        "-psk_identity",
        IDENTITY,
        "-ciphersuites",
        "TLS_AES_128_GCM_SHA256",
    ]);
    let context = ClientContext::new(IDENTITY.into(), Psk::new([0x13, 0x01], &KEY)).unwrap();
    let mut channel = shake(Handshake::new_client(&context).unwrap(), &mut socket).unwrap();
    process.0.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
    assert_eq!(receive(&mut channel, &mut socket, 6), b"hello\n");
}

/// A server that has a certificate and no key of ours proves nothing to us.
#[test]
fn its_server_with_a_certificate_is_not_taken_for_one_with_our_key() {
    let directory = std::env::temp_dir().join(format!("blockwire-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (cert, private) = (directory.join("cert.pem"), directory.join("key.pem"));
    let (cert, private) = (cert.to_str().unwrap(), private.to_str().unwrap());
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=localhost", "-days", "1", "-keyout", private, "-out", cert])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    let (process, mut socket) = server(&["-cert", cert, "-key", private]);
    let context = ClientContext::new(IDENTITY.into(), Psk::new([0x13, 0x01], &KEY)).unwrap();
    let end = shake(Handshake::new_client(&context).unwrap(), &mut socket);
    assert!(end.is_err(), "{end:?}");
    drop(process);
    std::fs::remove_dir_all(&directory).unwrap();
}
