//! The worker against a server that the test plays, and the handshake against what is no server.

use std::io::{self, Cursor, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use buf::Errno;
use nbd::{command, command_flag, error, flag, info, option, reply};
use reactor::LibraryCall;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::{CallSink, OpenError, Options, Shared, end_without_server};
use crate::handshake::{ExportInfo, HandshakeError, negotiate};
use crate::socket::ServerAddress;
use crate::worker::Worker;

const BYTES: u64 = 1 << 20;
const USUAL: u16 = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_WRITE_ZEROES;
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells the test which call has ended, and how.
struct TestSink(Sender<(u32, Result<usize, Errno>)>, u32);

impl CallSink for TestSink {
    fn end(self, came: Result<usize, Errno>) {
        self.0.send((self.1, came)).unwrap();
    }
}

/// Memory in two pieces, which stays to the end of the process.
fn memory(bytes: &[u8]) -> (&'static [libc::iovec], *mut u8) {
    let at = Box::leak(bytes.to_vec().into_boxed_slice()).as_mut_ptr();
    let half = bytes.len() / 2;
    let piece = |from: usize, len| libc::iovec { iov_base: at.wrapping_add(from).cast(), iov_len: len };
    (Box::leak(Box::new([piece(0, half), piece(half, bytes.len() - half)])), at)
}

fn write_call(offset: u64, bytes: &[u8]) -> LibraryCall {
    let (iov, _) = memory(bytes);
    LibraryCall::Write { iov: iov.as_ptr(), count: iov.len(), offset }
}

fn read_call(offset: u64, len: usize) -> (LibraryCall, *mut u8) {
    let (iov, at) = memory(&vec![0; len]);
    (LibraryCall::Read { iov: iov.as_ptr(), count: iov.len(), offset }, at)
}

/// What has been read there.
fn bytes_at(at: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: the memory was leaked, and its call has ended.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// The server's end of a connection.
struct Peer(UnixStream);

impl Peer {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The next request, and its payload: command, flags, cookie, offset and length.
    fn request(&mut self) -> (u16, u16, u64, u64, Vec<u8>) {
        let bytes = self.receive(size_of::<nbd::RequestHeader>());
        let header = nbd::RequestHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.magic.get(), nbd::REQUEST_MAGIC);
        let is_write = header.command.get() == command::WRITE;
        let payload = if is_write { self.receive(header.len.get() as usize) } else { Vec::new() };
        (header.command.get(), header.flags.get(), header.cookie.get(), header.offset.get(), payload)
    }

    fn reply(&mut self, cookie: u64, number: u32, data: &[u8]) {
        let head = nbd::SimpleReply {
            magic: nbd::SIMPLE_REPLY_MAGIC.into(),
            error: number.into(),
            cookie: cookie.into(),
        };
        self.send(&[head.as_bytes(), data].concat());
    }
}

fn greeting() -> Vec<u8> {
    let flags = (nbd::FLAG_FIXED_NEWSTYLE | nbd::FLAG_NO_ZEROES).into();
    let (magic, newstyle) = (nbd::NBDMAGIC.into(), nbd::IHAVEOPT.into());
    nbd::Greeting { magic, newstyle, flags }.as_bytes().to_vec()
}

fn answer(kind: u32, data: &[u8]) -> Vec<u8> {
    let head = nbd::OptionReply {
        magic: nbd::OPTION_REPLY_MAGIC.into(),
        option: option::GO.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

fn export_answers(bytes: u64, flags: u16) -> Vec<u8> {
    let told = nbd::InfoExport { kind: info::EXPORT.into(), size: bytes.into(), flags: flags.into() };
    [answer(reply::INFO, told.as_bytes()), answer(reply::ACK, &[])].concat()
}

/// A server that the test plays, and the worker of a disk on it.
struct World {
    _place: TempDir,
    listener: UnixListener,
    shared: Arc<Shared<TestSink>>,
    worker: Option<JoinHandle<()>>,
    ended: Receiver<(u32, Result<usize, Errno>)>,
    tell: Sender<(u32, Result<usize, Errno>)>,
    flags: u16,
}

impl World {
    /// With the server's end of the first connection.
    fn new(flags: u16, queue_timeout: Duration) -> (Self, Peer) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nbd");
        let listener = UnixListener::bind(&path).unwrap();
        let options = Options {
            server: ServerAddress::Unix(path),
            export: "disk".to_owned(),
            read_only: false,
            block: 512,
            queue_timeout,
            volume: "v".to_owned(),
        };
        let (shared, wakeups) = Shared::new().unwrap();
        let shared = Arc::new(shared);
        let (tell, ended) = channel();
        let mut world =
            World { _place: place, listener, shared: shared.clone(), worker: None, ended, tell, flags };
        world.worker = Some(thread::spawn(move || {
            let (socket, info) = options.connect().unwrap();
            Worker::new(options, info, shared, wakeups).run(socket);
        }));
        let peer = world.accept();
        (world, peer)
    }

    fn accept(&self) -> Peer {
        self.accept_with(BYTES)
    }

    fn accept_with(&self, bytes: u64) -> Peer {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Peer(stream);
        peer.send(&greeting());
        peer.receive(4);
        let head = nbd::OptionHeader::read_from_bytes(&peer.receive(16)).unwrap();
        let data = peer.receive(head.len.get() as usize);
        assert_eq!((head.option.get(), &data[4..8]), (option::GO, b"disk".as_slice()));
        peer.send(&export_answers(bytes, self.flags));
        peer
    }

    fn start(&self, number: u32, call: LibraryCall) {
        self.shared.push(call, TestSink(self.tell.clone(), number));
    }

    fn ended(&self) -> (u32, Result<usize, Errno>) {
        self.ended.recv_timeout(PATIENCE).unwrap()
    }

    fn assert_nothing_ended(&self) {
        assert!(self.ended.recv_timeout(Duration::from_millis(50)).is_err());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shared.close();
        if !thread::panicking() {
            self.worker.take().unwrap().join().unwrap();
        }
    }
}

#[test]
fn calls_become_requests_and_replies_in_any_order_end_them() {
    let (world, mut peer) = World::new(USUAL, PATIENCE);
    let (read, at) = read_call(4096, 2000);
    world.start(1, write_call(512, &[7; 1000]));
    world.start(2, read);
    world.start(3, LibraryCall::Punch { offset: 0, len: 8192 });
    world.start(4, LibraryCall::Zero { offset: 512, len: 512 });
    world.start(5, LibraryCall::Sync);
    let requests: Vec<_> = (0..5).map(|_| peer.request()).collect();
    let seen: Vec<_> =
        requests.iter().map(|(command, flags, _, offset, _)| (*command, *flags, *offset)).collect();
    let fua = command_flag::FUA;
    assert_eq!(
        seen,
        [
            (command::WRITE, fua, 512),
            (command::READ, 0, 4096),
            (command::WRITE_ZEROES, fua, 0),
            (command::WRITE_ZEROES, fua | command_flag::NO_HOLE, 512),
            (command::FLUSH, 0, 0),
        ]
    );
    assert_eq!(requests[0].4, [7; 1000]);
    world.assert_nothing_ended();
    peer.reply(requests[1].2, 0, &[9; 2000]);
    assert_eq!(world.ended(), (2, Ok(2000)));
    assert_eq!(bytes_at(at, 2000), [9; 2000]);
    peer.reply(requests[0].2, 0, &[]);
    assert_eq!(world.ended(), (1, Ok(1000)));
    for (at, number, came) in
        [(3, error::IO, libc::EIO), (2, error::NOTSUP, libc::EOPNOTSUPP), (4, error::PERM, libc::ENOTCONN)]
    {
        peer.reply(requests[at].2, number, &[]);
        assert_eq!(world.ended(), (at as u32 + 1, Err(Errno(came))));
    }
}

/// Nothing that a server sends beside the protocol ends a call well: the connection is given up, and an honest server
/// answers the same calls behind it.
#[test]
fn a_server_that_lies_is_not_believed() {
    type Lie = fn(&mut Peer, u64, u64);
    let lies: [(&str, Lie); 7] = [
        ("bad magic", |peer, write, _| {
            let mut bytes = nbd::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            bytes.extend_from_slice(&write.to_be_bytes());
            peer.send(&bytes);
        }),
        ("unknown cookie", |peer, write, read| peer.reply(write + read, 0, &[])),
        ("cookie of nothing", |peer, _, _| peer.reply(u64::MAX, 0, &[0; 4096])),
        ("short payload", |peer, _, read| peer.reply(read, 0, &[1; 1000])),
        ("more payload than asked for", |peer, _, read| peer.reply(read, 0, &[1; 4000])),
        ("the same reply twice", |peer, _, read| {
            peer.reply(read, 0, &[1; 2000]);
            peer.reply(read, 0, &[1; 2000]);
        }),
        ("half a reply", |peer, _, _| peer.send(&nbd::SIMPLE_REPLY_MAGIC.to_be_bytes())),
    ];
    for (name, lie) in lies {
        let (world, mut peer) = World::new(USUAL, PATIENCE);
        let (read, at) = read_call(0, 2000);
        world.start(1, write_call(0, &[3; 512]));
        world.start(2, read);
        let (write, read) = (peer.request().2, peer.request().2);
        lie(&mut peer, write, read);
        drop(peer);
        let mut peer = world.accept();
        let mut left = 2;
        if let Ok(early) = world.ended.recv_timeout(Duration::from_millis(50)) {
            // What was answered well before the lie.
            assert_eq!(
                (early, name.contains("twice") || name.contains("more")),
                ((2, Ok(2000)), true),
                "{name}"
            );
            left = 1;
        }
        let mut ended = Vec::new();
        for _ in 0..left {
            let (command, _, cookie, _, payload) = peer.request();
            match command {
                command::WRITE => assert_eq!(payload, [3; 512], "{name}"),
                command => assert_eq!(command, command::READ, "{name}"),
            }
            peer.reply(cookie, 0, if command == command::READ { &[5; 2000] } else { &[] });
            ended.push(world.ended());
        }
        ended.sort_by_key(|(number, _)| *number);
        assert_eq!(ended.first(), Some(&(1, Ok(512))), "{name}");
        if left == 2 {
            assert_eq!((ended[1], bytes_at(at, 2000)), ((2, Ok(2000)), vec![5; 2000]), "{name}");
        }
    }
}

/// A reply to a request of which the server does not have the whole payload would end a call whose memory is still sent.
#[test]
fn a_reply_before_the_end_of_its_request_is_a_violation() {
    let (world, mut peer) = World::new(USUAL, PATIENCE);
    // More than the socket holds.
    world.start(1, write_call(0, &vec![1; BYTES as usize]));
    let header = nbd::RequestHeader::read_from_bytes(&peer.receive(28)).unwrap();
    peer.reply(header.cookie.get(), 0, &[]);
    let mut again = world.accept();
    world.assert_nothing_ended();
    let (_, _, cookie, _, payload) = again.request();
    assert_eq!(payload.len() as u64, BYTES);
    again.reply(cookie, 0, &[]);
    assert_eq!(world.ended(), (1, Ok(BYTES as usize)));
}

#[test]
fn what_was_not_answered_is_made_again_in_order() {
    let (world, mut peer) = World::new(USUAL, PATIENCE);
    for number in 1..=3 {
        world.start(number, write_call(u64::from(number) * 512, &[number as u8; 512]));
    }
    let cookies: Vec<u64> = (0..3).map(|_| peer.request().2).collect();
    peer.reply(cookies[1], 0, &[]);
    assert_eq!(world.ended(), (2, Ok(512)));
    // Going away in good order is no answer either.
    peer.reply(cookies[0], error::SHUTDOWN, &[]);
    let mut peer = world.accept();
    world.start(4, LibraryCall::Sync);
    for number in [1, 3] {
        let (command, _, cookie, offset, payload) = peer.request();
        assert_eq!((command, offset, payload[0]), (command::WRITE, number * 512, number as u8));
        peer.reply(cookie, 0, &[]);
        assert_eq!(world.ended(), (number as u32, Ok(512)));
    }
    let (command, _, cookie, ..) = peer.request();
    assert_eq!(command, command::FLUSH);
    peer.reply(cookie, 0, &[]);
    assert_eq!(world.ended(), (4, Ok(0)));
}

/// Hosts have been told that its path is lost: it must not reach the medium behind what they do next.
#[test]
fn what_waits_too_long_for_a_server_that_is_away_is_not_made_again() {
    let limit = Duration::from_millis(300);
    let (world, mut peer) = World::new(USUAL, limit);
    world.start(1, write_call(0, &[1; 512]));
    peer.request();
    // It listens, and says nothing: the handshake waits.
    drop(peer);
    let (silent, _) = world.listener.accept().unwrap();
    assert_eq!(world.ended(), (1, Err(Errno(libc::ENOTCONN))));
    drop(silent);
    world.start(2, write_call(512, &[2; 512]));
    let mut peer = world.accept();
    let (_, _, cookie, offset, _) = peer.request();
    assert_eq!(offset, 512, "the first write is not made again");
    peer.reply(cookie, 0, &[]);
    assert_eq!(world.ended(), (2, Ok(512)));
}

#[test]
fn without_fua_a_write_is_flushed_and_made_again_if_the_flush_has_no_answer() {
    let (world, mut peer) = World::new(flag::HAS_FLAGS | flag::SEND_FLUSH, PATIENCE);
    world.start(1, write_call(0, &[1; 512]));
    let (_, flags, cookie, ..) = peer.request();
    assert_eq!(flags, 0);
    peer.reply(cookie, 0, &[]);
    let (command, _, flush, ..) = peer.request();
    assert_eq!(command, command::FLUSH);
    assert_ne!(flush, cookie, "a second reply to the write must not be taken for the flush's");
    drop(peer);
    let mut peer = world.accept();
    let (command, _, cookie, ..) = peer.request();
    assert_eq!(command, command::WRITE, "what was not flushed may be lost with the server");
    peer.reply(cookie, 0, &[]);
    let flush = peer.request().2;
    world.assert_nothing_ended();
    peer.reply(flush, 0, &[]);
    assert_eq!(world.ended(), (1, Ok(512)));
}

#[test]
fn an_export_that_is_smaller_than_before_is_not_used() {
    let (world, peer) = World::new(USUAL, PATIENCE);
    drop(peer);
    world.start(1, write_call(0, &[1; 512]));
    let mut smaller = world.accept_with(BYTES - 512);
    assert_eq!(smaller.0.read(&mut [0; 1]).unwrap(), 0, "it is asked for nothing");
    let mut peer = world.accept_with(BYTES + 512);
    let cookie = peer.request().2;
    peer.reply(cookie, 0, &[]);
    assert_eq!(world.ended(), (1, Ok(512)));
}

#[test]
fn what_the_export_cannot_do_is_not_asked_for() {
    let info = ExportInfo { bytes: BYTES, flags: flag::HAS_FLAGS, block_min: 1, payload_max: 1 << 25 };
    let all = ExportInfo { flags: USUAL, ..info };
    let errno = |number| Some(Err(Errno(number)));
    let punch = LibraryCall::Punch { offset: 0, len: 512 };
    assert_eq!(end_without_server(&punch, &info, false), errno(libc::EOPNOTSUPP));
    assert_eq!(end_without_server(&punch, &all, false), None);
    assert_eq!(end_without_server(&punch, &all, true), errno(libc::EROFS));
    assert_eq!(end_without_server(&LibraryCall::Sync, &info, false), Some(Ok(0)));
    assert_eq!(end_without_server(&LibraryCall::Sync, &all, false), None);
    assert_eq!(
        end_without_server(&LibraryCall::NextData { offset: 0 }, &all, false),
        errno(libc::EOPNOTSUPP)
    );
    for (offset, came) in
        [(BYTES - 512, None), (BYTES - 511, errno(libc::ENXIO)), (u64::MAX, errno(libc::ENXIO))]
    {
        assert_eq!(end_without_server(&write_call(offset, &[0; 512]), &all, false), came);
    }
}

/// Both directions of a connection.
struct Conversation {
    says: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Read for Conversation {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.says.read(into)
    }
}

impl Write for Conversation {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hears(says: Vec<u8>) -> Result<ExportInfo, HandshakeError> {
    negotiate(&mut Conversation { says: Cursor::new(says), heard: Vec::new() }, "disk")
}

#[test]
fn the_handshake_takes_exports_that_make_sense_and_no_others() {
    let after_greeting = |answers: &[Vec<u8>]| [greeting(), answers.concat()].concat();
    let sizes = |minimum: u32, preferred: u32, most: u32| {
        let kind = info::BLOCK_SIZE.into();
        let (minimum, preferred, payload_max) = (minimum.into(), preferred.into(), most.into());
        answer(reply::INFO, nbd::InfoBlockSize { kind, minimum, preferred, payload_max }.as_bytes())
    };
    let good = export_answers(BYTES, USUAL);
    let known = hears(after_greeting(&[sizes(1, 4096, 1 << 25), good.clone()])).unwrap();
    assert_eq!(known, ExportInfo { bytes: BYTES, flags: USUAL, block_min: 1, payload_max: 1 << 25 });
    assert_eq!(hears(after_greeting(std::slice::from_ref(&good))).unwrap().block_min, 512);

    let refused = |says: Vec<u8>| hears(says).unwrap_err().to_string();
    let mut oldstyle = greeting();
    oldstyle[8..16].copy_from_slice(&0x0000_4202_8186_1253_u64.to_be_bytes());
    let mut unfixed = greeting();
    unfixed[17] = 0;
    let mut foreign = good.clone();
    foreign[0] ^= 1;
    let long = nbd::OptionReply {
        magic: nbd::OPTION_REPLY_MAGIC.into(),
        option: option::GO.into(),
        kind: reply::INFO.into(),
        len: u32::MAX.into(),
    };
    let endless = vec![answer(reply::INFO, &[0, 9]); 1000];
    for (says, why) in [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(), "it greets otherwise"),
        (oldstyle, "oldstyle"),
        (unfixed, "fixed newstyle"),
        (after_greeting(&[foreign]), "belongs to no option"),
        (after_greeting(&[long.as_bytes().to_vec()]), "too long"),
        (after_greeting(&[answer(reply::ACK, &[])]), "does not tell the export's size"),
        (after_greeting(&[answer(reply::INFO, &[0])]), "wrong length"),
        (after_greeting(&[answer(reply::INFO, &[0; 11])]), "wrong length"),
        (after_greeting(&endless), "without end"),
        (after_greeting(&[export_answers(u64::MAX, USUAL)]), "impossible size"),
        (after_greeting(&[export_answers(BYTES, 0)]), "what the export can do"),
        (after_greeting(&[sizes(3, 4096, 1 << 25), good.clone()]), "impossible block sizes"),
        (after_greeting(&[sizes(1 << 17, 1 << 17, 1 << 25), good.clone()]), "impossible block sizes"),
        (after_greeting(&[sizes(512, 4096, 512), good.clone()]), "impossible block sizes"),
        (after_greeting(&[answer(reply::ERR_UNKNOWN, b"no\x1b[2Jdisk")]), "no such export (\"no[2Jdisk\")"),
        (after_greeting(&[answer(reply::ERR_TLS_REQD, b"")]), "TLS"),
        (after_greeting(&[answer(reply::ERR_POLICY, b"")]), "0x80000002"),
        (greeting()[..10].to_vec(), "closed the connection"),
    ] {
        assert!(refused(says.clone()).contains(why), "{why}: {}", refused(says));
    }
}

#[test]
fn an_export_that_does_not_fit_is_refused_with_what_to_do() {
    for (error, text, passes) in [
        (OpenError::ReadOnly, "\",ro\"", false),
        (OpenError::Block(4096), "block=4096", false),
        (OpenError::Block(8192), "at most 4096", false),
        (OpenError::Connect(io::ErrorKind::ConnectionRefused.into()), "running?", true),
        (OpenError::Handshake(HandshakeError::Tls), "UNIX socket", false),
        (OpenError::Handshake(HandshakeError::NoExport(String::new())), "nbdinfo", true),
    ] {
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.may_pass(), passes, "{error}");
    }
}
