//! Both ends without a socket, and hostile ones.

#![allow(missing_docs)]

use std::sync::Arc;

use blockwire_tls::{
    Channel, ClientContext, DecryptOutcome, Handshake, HandshakeProgress, Psk, PskLookup, RECORD_CONTENT_MAX,
    RECORD_OVERHEAD, ServerContext, TlsFault,
};

const SHA256: [u8; 2] = [0x13, 0x01];
const SHA384: [u8; 2] = [0x13, 0x02];

struct Keys(Vec<(&'static str, Psk)>);

impl PskLookup for Keys {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        self.0.iter().find(|(known, _)| known.as_bytes() == identity).map(|(_, psk)| psk.clone())
    }
}

fn server(keys: Vec<(&'static str, Psk)>) -> Handshake {
    Handshake::new_server(&ServerContext::new(Arc::new(Keys(keys))).unwrap()).unwrap()
}

fn client(identity: &str, psk: Psk) -> Handshake {
    Handshake::new_client(&ClientContext::new(identity.into(), psk).unwrap()).unwrap()
}

fn key(suite: [u8; 2], fill: u8) -> Psk {
    Psk::new(suite, &vec![fill; if suite == SHA384 { 48 } else { 32 }])
}

/// How one side ended.
type End = Result<Channel, TlsFault>;

/// One step of a side, with what it sends.
fn step(side: Handshake, from: &[u8]) -> (Result<Handshake, End>, Vec<u8>) {
    let mut side = side;
    side.feed_incoming(from);
    match side.step() {
        HandshakeProgress::Wait(mut side) => {
            let sent = side.take_outgoing();
            (Ok(side), sent)
        }
        HandshakeProgress::Done(mut channel) => {
            let mut sent = vec![0; channel.outgoing_len()];
            channel.take_outgoing(&mut sent);
            (Err(Ok(channel)), sent)
        }
        HandshakeProgress::Failed(fault, sent) => (Err(Err(fault)), sent),
    }
}

/// Runs both sides against each other, `cut` bytes at a time.
fn meet(mut client: Handshake, mut server: Handshake, cut: usize) -> (End, End) {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut client_end, mut server_end) = (None, None);
    for _ in 0..10_000 {
        if client_end.is_none() {
            let taken: Vec<u8> = to_client.drain(..to_client.len().min(cut)).collect();
            let (next, sent) = step(client, &taken);
            to_server.extend(sent);
            match next {
                Ok(on) => client = on,
                Err(end) => {
                    client_end = Some(end);
                    client = self::client("unused", key(SHA256, 0));
                }
            }
        }
        if server_end.is_none() {
            let taken: Vec<u8> = to_server.drain(..to_server.len().min(cut)).collect();
            let (next, sent) = step(server, &taken);
            to_client.extend(sent);
            match next {
                Ok(on) => server = on,
                Err(end) => {
                    server_end = Some(end);
                    server = self::server(Vec::new());
                }
            }
        }
        if let (Some(_), Some(_)) = (&client_end, &server_end) {
            break;
        }
        if to_client.is_empty() && to_server.is_empty() && (client_end.is_some() || server_end.is_some()) {
            let missing = || Err(TlsFault::Truncated);
            return (client_end.unwrap_or_else(missing), server_end.unwrap_or_else(missing));
        }
    }
    (client_end.unwrap(), server_end.unwrap())
}

fn pair(suite: [u8; 2]) -> (Channel, Channel) {
    let (client, server) = meet(client("me", key(suite, 7)), server(vec![("me", key(suite, 7))]), usize::MAX);
    (client.unwrap(), server.unwrap())
}

fn sealed(channel: &mut Channel, plain: &[u8]) -> Vec<u8> {
    channel.encrypt(plain).unwrap();
    let mut sent = vec![0; channel.outgoing_len()];
    assert_eq!(channel.take_outgoing(&mut sent), sent.len());
    sent
}

fn opened(channel: &mut Channel) -> Result<Vec<u8>, TlsFault> {
    let (mut all, mut room) = (Vec::new(), vec![0; 5000]);
    while let DecryptOutcome::Bytes(bytes) = channel.decrypt(&mut room)? {
        all.extend_from_slice(&room[..bytes]);
    }
    Ok(all)
}

#[test]
fn both_suites_carry_bytes_both_ways_however_they_are_cut() {
    for (suite, name) in [(SHA256, "TLS_AES_128_GCM_SHA256"), (SHA384, "TLS_AES_256_GCM_SHA384")] {
        for cut in [1, 7, 100_000] {
            let keys = vec![("other", key(SHA256, 1)), ("me", key(suite, 7))];
            let (client, server) = meet(client("me", key(suite, 7)), server(keys), cut);
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            assert_eq!((client.suite(), server.suite()), (name, name));
            assert_eq!(server.identity(), b"me");
            let long: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
            let sent = sealed(&mut client, &long);
            let records = long.len().div_ceil(RECORD_CONTENT_MAX);
            assert_eq!(sent.len(), long.len() + records * RECORD_OVERHEAD);
            let mut came = Vec::new();
            for piece in sent.chunks(cut.max(1000)) {
                server.feed_incoming(piece);
                came.extend(opened(&mut server).unwrap());
            }
            assert_eq!(came, long);
            let sent = sealed(&mut server, b"answer");
            client.feed_incoming(&sent);
            assert_eq!(opened(&mut client).unwrap(), b"answer");
            server.send_close_notify();
            let mut last = vec![0; server.outgoing_len()];
            server.take_outgoing(&mut last);
            client.feed_incoming(&last);
            assert_eq!(opened(&mut client).unwrap_err(), TlsFault::Closed);
        }
    }
}

#[test]
fn a_wrong_key_and_an_unknown_identity_are_told_apart_and_open_nothing() {
    let (client_end, server_end) =
        meet(client("me", key(SHA256, 1)), server(vec![("me", key(SHA256, 2))]), usize::MAX);
    assert_eq!(server_end.unwrap_err(), TlsFault::WrongKey("me".into()));
    assert!(matches!(client_end.unwrap_err(), TlsFault::Protocol(_)));
    let (client_end, server_end) =
        meet(client("who", key(SHA256, 1)), server(vec![("me", key(SHA256, 1))]), usize::MAX);
    assert_eq!(server_end.unwrap_err(), TlsFault::UnknownIdentity("who".into()));
    assert!(matches!(client_end.unwrap_err(), TlsFault::Protocol(_)));
    // What a peer says is shown on one line.
    let (_, server_end) = meet(client("a\nb", key(SHA256, 1)), server(vec![]), usize::MAX);
    assert_eq!(server_end.unwrap_err(), TlsFault::UnknownIdentity("a\u{fffd}b".into()));
}

#[test]
fn a_key_is_used_with_its_own_suite_only() {
    let (_, server_end) =
        meet(client("me", key(SHA256, 7)), server(vec![("me", key(SHA384, 7))]), usize::MAX);
    assert!(server_end.is_err());
    let odd = Psk::new([0x13, 0x03], &[7; 32]);
    let (_, server_end) = meet(client("me", key(SHA256, 7)), server(vec![("me", odd)]), usize::MAX);
    assert!(server_end.is_err());
}

#[test]
fn garbage_instead_of_and_behind_a_client_hello_fails() {
    let (next, _) = step(server(vec![("me", key(SHA256, 7))]), &[0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5]);
    assert!(matches!(next, Err(Err(TlsFault::Protocol(_)))));
    // ICReq is no record.
    let mut ic_req = [0; 128];
    ic_req[2] = 128;
    let (next, _) = step(server(vec![("me", key(SHA256, 7))]), &ic_req);
    assert!(matches!(next, Err(Err(TlsFault::Protocol(_)))));
    let (_, hello) = step(client("me", key(SHA256, 7)), &[]);
    let (next, _) = step(server(vec![("me", key(SHA256, 7))]), &[&hello[..], &[0xff; 64]].concat());
    assert!(matches!(next, Err(Err(TlsFault::Protocol(_)))), "{next:?}");
    // One bit of the hello, wherever it is, is covered by the binder or the parser.
    for at in (0..hello.len()).step_by(3) {
        let mut changed = hello.clone();
        changed[at] ^= 1;
        let (next, _) = step(server(vec![("me", key(SHA256, 7))]), &changed);
        assert!(!matches!(next, Err(Ok(_))), "byte {at}");
    }
}

#[test]
fn a_record_that_is_too_long_ends_the_channel() {
    let (_, mut server) = pair(SHA256);
    // 2^14 + 256 + 1 bytes of content, one more than any record may have.
    let len = (RECORD_CONTENT_MAX + 257) as u16;
    let [high, low] = len.to_be_bytes();
    server.feed_incoming(&[0x17, 3, 3, high, low]);
    server.feed_incoming(&vec![0; usize::from(len)]);
    assert!(matches!(opened(&mut server).unwrap_err(), TlsFault::Protocol(_)));
    // And it stays ended.
    assert!(matches!(opened(&mut server).unwrap_err(), TlsFault::Protocol(_)));
}

#[test]
fn a_changed_record_is_refused_and_what_came_before_is_delivered() {
    let (mut client, mut server) = pair(SHA384);
    let good = sealed(&mut client, b"good");
    let mut bad = sealed(&mut client, b"bad");
    *bad.last_mut().unwrap() ^= 1;
    server.feed_incoming(&[good, bad].concat());
    let mut room = [0; 100];
    assert_eq!(server.decrypt(&mut room).unwrap(), DecryptOutcome::Bytes(4));
    assert_eq!(&room[..4], b"good");
    assert!(matches!(server.decrypt(&mut room).unwrap_err(), TlsFault::Protocol(_)));
}

#[test]
fn a_stream_that_is_cut_off_gives_nothing_of_its_last_record() {
    let (mut client, mut server) = pair(SHA256);
    let sent = sealed(&mut client, b"not all of it");
    server.feed_incoming(&sent[..sent.len() - 1]);
    assert_eq!(server.decrypt(&mut [0; 100]).unwrap(), DecryptOutcome::Wait);
}

#[test]
fn nothing_shows_a_key() {
    let psk = Psk::new(SHA256, &[0x5a; 32]);
    assert_eq!(format!("{psk:?}"), "Psk([13, 01], ..)");
    let (client, _) = pair(SHA256);
    assert_eq!(format!("{client:?}"), "Channel(TLS_AES_128_GCM_SHA256)");
}
