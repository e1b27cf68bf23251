//! Links over sockets: what a gateway sends comes whole and in order, also much at once both ways, and a peer that is
//! killed is noticed.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blockwire_gateway::{GroupKey, Link, LinkContext, LinkEvent, LinkFault};
use buf::Time;
use group::{Answer, InstanceId, LinkMessage, LinkPayload};
use volume::Outcome;

const MESSAGES: u64 = 40;
const PAYLOAD: usize = 1 << 20;

fn context(me: u64) -> LinkContext {
    LinkContext::new(InstanceId(me), &"g".parse().unwrap(), &GroupKey::new([1; 32])).unwrap()
}

fn answer(number: u64) -> LinkMessage<LinkPayload> {
    let payload = LinkPayload(Arc::from(vec![number as u8; PAYLOAD]));
    LinkMessage::Answer {
        number,
        answer: Answer::Io { result: Ok(Outcome::Complete), payload: Some(payload) },
    }
}

/// Sends all messages when the link is up, and goes on until so many have come; how many came, and why the link had
/// ended. A side that leaves in good order sends first what is left.
fn exchange(mut link: Link, mut socket: TcpStream, leave_after: u64) -> (u64, Option<LinkFault>) {
    socket.set_nonblocking(true).unwrap();
    let (mut got, mut fault) = (0, None);
    let (mut buffer, mut unsent) = (vec![0; 256 << 10], Vec::new());
    loop {
        if unsent.is_empty() {
            let count = link.poll_transmit(&mut buffer);
            unsent.extend_from_slice(&buffer[..count]);
        }
        if got >= leave_after && (unsent.is_empty() || leave_after < MESSAGES) {
            return (got, fault);
        }
        let mut moved = 0;
        match socket.write(&unsent) {
            Ok(count) => {
                unsent.drain(..count);
                moved += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // A peer that is gone is noticed by the read.
            Err(_) => unsent.clear(),
        }
        match socket.read(&mut buffer) {
            Ok(0) => return (got, fault),
            Ok(count) => {
                link.handle_received(&buffer[..count]);
                moved += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return (got, fault),
        }
        while let Some(event) = link.poll_event() {
            match event {
                LinkEvent::Up(_) => (0..MESSAGES).for_each(|number| link.send(&answer(number)).unwrap()),
                LinkEvent::Message(message) => {
                    check(message, got);
                    got += 1;
                }
                LinkEvent::Ended(why) => fault = Some(why),
            }
        }
        if moved == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn check(message: LinkMessage<LinkPayload>, expected: u64) {
    let LinkMessage::Answer { number, answer: Answer::Io { payload: Some(payload), .. } } = message else {
        panic!("{message:?}")
    };
    assert_eq!((number, payload.0.len()), (expected, PAYLOAD));
    assert!(payload.0.iter().all(|byte| *byte == number as u8));
}

fn both(connector_leaves_after: u64) -> [(u64, Option<LinkFault>); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connector = thread::spawn(move || {
        let link = Link::connect(&context(1), Time(0), InstanceId(2)).unwrap();
        exchange(link, TcpStream::connect(address).unwrap(), connector_leaves_after)
    });
    let (socket, _) = listener.accept().unwrap();
    let link = Link::accept(&context(2), Time(0)).unwrap();
    let acceptor = exchange(link, socket, u64::MAX);
    [connector.join().unwrap(), acceptor]
}

#[test]
fn forty_mebibytes_each_way_at_once() {
    let [connector, acceptor] = both(MESSAGES);
    assert_eq!(connector, (MESSAGES, None));
    assert_eq!(acceptor, (MESSAGES, None));
}

#[test]
fn a_peer_that_leaves_in_the_middle_is_noticed() {
    let [connector, acceptor] = both(3);
    // Both have come back: neither waits for what never comes.
    assert!((3..=MESSAGES).contains(&connector.0) && acceptor.0 <= MESSAGES, "{connector:?} {acceptor:?}");
}
