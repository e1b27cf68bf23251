//! Both roles over TLS, and peers that misuse it.

use std::sync::Arc;

use super::*;
use crate::ServerTls;
use tls::{ClientContext, Handshake, Psk, PskLookup, ServerContext, TlsFault};

const SHA256: [u8; 2] = [0x13, 0x01];

struct One;

impl PskLookup for One {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        (identity == b"me").then(|| Psk::new(SHA256, &[7; 32]))
    }
}

impl Wire {
    /// The controller takes hosts with or without TLS, or with TLS only.
    fn expect_tls(&mut self, is_required: bool) {
        let context = ServerContext::new(Arc::new(One)).unwrap();
        self.controller.queue.expect_tls(ServerTls { context, is_required });
    }

    /// The host begins with TLS.
    fn start_tls(&mut self, key: [u8; 32]) {
        let context = ClientContext::new(b"me".to_vec(), Psk::new(SHA256, &key)).unwrap();
        self.host.queue.start_tls(Handshake::new_client(&context).unwrap());
    }

    pub(super) fn use_tls(&mut self) {
        self.expect_tls(true);
        self.start_tls([7; 32]);
    }

    /// Computes what handshakes wait for.
    pub(super) fn shake(&mut self) -> bool {
        let mut shaken = false;
        if let Some(handshake) = self.host.queue.poll_handshake() {
            self.host.queue.handle_handshake(Some(handshake.step()));
            shaken = true;
        }
        if let Some(handshake) = self.controller.queue.poll_handshake() {
            self.controller.queue.handle_handshake(Some(handshake.step()));
            shaken = true;
        }
        for fault in [self.host.queue.poll_link_fault(), self.controller.queue.poll_link_fault()] {
            shaken |= fault.is_some();
            self.faults.extend(fault);
        }
        shaken
    }

    fn over_tls() -> Wire {
        let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
        wire.use_tls();
        wire.establish(SIZE);
        assert_eq!(wire.controller.queue.tls_identity(), Some(&b"me"[..]));
        wire
    }
}

#[test]
fn a_host_without_tls_is_served_where_it_is_not_required() {
    let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
    wire.expect_tls(false);
    wire.establish(SIZE);
    assert_eq!(wire.controller.queue.tls_identity(), None);
    wire.end();
}

#[test]
fn a_host_without_tls_is_closed_where_it_is_required() {
    let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
    wire.expect_tls(true);
    wire.run();
    assert_eq!(wire.controller.violation, Some(LinkFault::TlsRequired));
    assert!(wire.controller.shut && !wire.ready);
}

#[test]
fn another_key_opens_nothing_and_both_sides_end() {
    let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
    wire.expect_tls(true);
    wire.start_tls([8; 32]);
    wire.run();
    assert!(!wire.ready && wire.host.shut && wire.controller.shut);
    assert!(
        wire.faults.contains(&LinkFault::Tls(Box::new(TlsFault::WrongKey("me".into())))),
        "{:?}",
        wire.faults
    );
    assert_eq!(wire.pool.usage().lent, 0);
}

#[test]
fn a_handshake_that_nobody_computes_ends_the_connection() {
    let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
    wire.use_tls();
    let handshake = wire.host.queue.poll_handshake().unwrap();
    wire.host.queue.handle_handshake(Some(handshake.step()));
    let (hello, _) = wire.host.turn(cx!(wire));
    wire.controller.inbox.extend(hello);
    wire.controller.turn(cx!(wire));
    drop(wire.controller.queue.poll_handshake().unwrap());
    wire.controller.queue.handle_handshake(None);
    assert_eq!(wire.controller.queue.poll_link_fault(), Some(LinkFault::TlsNotComputed));
    wire.controller.turn(cx!(wire));
    assert!(wire.controller.shut);
}

#[test]
fn records_that_are_too_long_or_changed_end_an_open_queue() {
    let mut long = vec![0x17, 3, 3, 0x41, 0x01];
    long.resize(5 + 0x4101, 0);
    let mut changed = vec![0x17, 3, 3, 0, 64];
    changed.resize(5 + 64, 9);
    for bytes in [long, changed] {
        let mut wire = Wire::over_tls();
        wire.controller.inbox.extend(bytes);
        wire.run();
        assert!(
            matches!(&wire.controller.violation, Some(LinkFault::Tls(_))),
            "{:?}",
            wire.controller.violation
        );
        assert!(wire.controller.shut && wire.closed.1);
        wire.host.hang_up(cx!(wire));
        wire.run();
        assert!(wire.closed.0);
        assert_eq!(wire.pool.usage().lent, 0);
    }
}

#[test]
fn a_stream_that_is_cut_off_anywhere_gives_all_memory_back() {
    for turns in 0..12 {
        let mut wire = Wire::new(HostQueueSettings::default(), QueueLimits::default());
        wire.use_tls();
        wire.host.delivery.chunks = vec![700];
        wire.controller.delivery.chunks = vec![90];
        if turns > 6 {
            wire.establish(SIZE);
            let (room, data) = (wire.room(100_000), wire.out(&[1; 100_000]));
            wire.submit(sqe(READ, 0), room);
            wire.submit(sqe(WRITE, 0), data);
        }
        for _ in 0..turns * 5 {
            wire.shake();
            let (bytes, _) = wire.host.turn(cx!(wire));
            wire.controller.inbox.extend(bytes);
            let (bytes, _) = wire.controller.turn(cx!(wire));
            wire.host.inbox.extend(bytes);
            wire.serve();
        }
        wire.host.hang_up(cx!(wire));
        wire.controller.hang_up(cx!(wire));
        wire.host.queue.close(cx!(wire), ConnectionClose::Now);
        wire.controller.queue.close(cx!(wire), ConnectionClose::Now);
        wire.host.take_shut(cx!(wire));
        wire.controller.take_shut(cx!(wire));
        wire.serve();
        wire.take_events();
        assert_eq!(wire.closed, (true, true), "after {turns}");
        wire.ended.clear();
        wire.host.inbox.clear();
        assert_eq!(wire.pool.usage().lent, 0, "after {turns}");
    }
}

/// The queue kept its own receive for the rest of the record, and waited for it without end.
#[test]
fn a_record_that_comes_in_part_after_the_end_keeps_no_queue_nor_its_memory() {
    for bytes in [0, 3, 40] {
        let mut wire = Wire::over_tls();
        let room = wire.room(100_000);
        wire.submit(sqe(READ, 0), room);
        for _ in 0..4 {
            let (sent, _) = wire.host.turn(cx!(wire));
            wire.controller.inbox.extend(sent);
            let (sent, _) = wire.controller.turn(cx!(wire));
            wire.host.inbox.extend(sent);
            wire.serve();
        }
        // The receives are with the world.
        wire.host.inbox.clear();
        wire.host.turn(cx!(wire));
        wire.controller.inbox.clear();
        wire.controller.turn(cx!(wire));
        let record = [[0x17, 3, 3, 0, 64].as_slice(), &[9; 59]].concat();
        for side in [0, 1] {
            let fill = |op: RecvOp| {
                let mut inbox = record[..bytes].iter().copied().collect();
                let mut whole = RecvDelivery::unlimited();
                match bytes {
                    0 => (op, Received::Cancelled),
                    _ => whole.fill_recv(&wire.pool, op, &mut inbox),
                }
            };
            if side == 0 {
                let op = wire.host.op.take().expect("a receive is out");
                wire.host.queue.close(cx!(wire), ConnectionClose::Now);
                let (op, received) = fill(op);
                wire.host.note(|queue| queue.handle_recv(cx!(wire), LINK, op, received));
                wire.host.take_shut(cx!(wire));
            } else {
                let op = wire.controller.op.take().expect("a receive is out");
                wire.controller.queue.close(cx!(wire), ConnectionClose::Now);
                let (op, received) = fill(op);
                wire.controller.note(|queue| queue.handle_recv(cx!(wire), LINK, op, received));
                wire.controller.take_shut(cx!(wire));
            }
        }
        wire.serve();
        wire.take_events();
        assert_eq!(wire.closed, (true, true), "{bytes} bytes of a record");
        wire.ended.clear();
        assert_eq!(wire.pool.usage().lent, 0, "{bytes} bytes of a record");
    }
}
