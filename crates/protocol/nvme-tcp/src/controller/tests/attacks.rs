//! Known attacks on the transport, with fixed bytes: handshakes, headers, digests, queues.

use super::super::*;
use super::pair::*;
use crate::LinkFault;
use crate::queue::LINK;
use crate::wire::{CapsuleCmd, FatalError, FatalStatus, Flags, IcReq, PduType, TermReq};
use buf::{Entropy, Errno, MemoryClass, Pool, Time};
use nvme::{Completion, FabricsType, Opcode, SglDescriptor, Sqe, Status};
use stream::{Connection, Received};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// A TermReq that says this, and nothing after it; the link closes when the host does, or in time.
fn assert_fatal(mut pair: Pair, bytes: &[u8], fatal: FatalError) {
    let got = pair.talk(bytes);
    let term = got.last().unwrap_or_else(|| panic!("no answer to {bytes:02x?}"));
    assert_eq!(term.term(), fatal, "{bytes:02x?}");
    assert_eq!(pair.violations.len(), 1);
    // What it repeats is how the offending PDU begins.
    assert!(term.data.len() >= 8 && bytes.windows(term.data.len()).any(|part| part == term.data));
    // Whatever comes now is swallowed.
    assert!(pair.talk(&[0xff; 5000]).is_empty() && pair.violations.len() == 1);
    assert!(!pair.shut, "the host has time to read it");
    pair.pass(Duration::from_secs(30));
    assert_eq!(pair.violations.len(), 1);
    pair.assert_gone();
}

/// A capsule whose common header begins with these bytes.
fn bent(dialect: Dialect, begin: &[u8]) -> Vec<u8> {
    let mut bytes = dialect.capsule(&read(1, 0, 512), &[]);
    bytes[..begin.len()].copy_from_slice(begin);
    bytes
}

fn both() -> Pair {
    Pair::open(IcReq::new(0, true, true, 1), SIZE)
}

#[test]
fn attack_54_ten_thousand_handshakes_that_go_at_once() {
    let pool = Pool::new(1 << 20);
    let mut entropy = Entropy::new([1; 32]);
    let request = IcReq::new(0, true, true, 1);
    for round in 0..10_000 {
        let mut cx = Cx { now: Time(round), pool: &pool, entropy: &mut entropy };
        let mut queue = ControllerQueue::new(&mut cx, QueueLimits::default());
        let mut op = queue.poll_recv(&mut cx, LINK).unwrap();
        let mut stage = pool.take(MemoryClass::Wire, 128).unwrap();
        stage.copy_from_slice(request.as_bytes());
        op.stage = Some(stage);
        queue.handle_recv(&mut cx, LINK, op, Received::Bytes(128)).unwrap();
        let answer = queue.poll_send(&mut cx, LINK).unwrap();
        let op = queue.poll_recv(&mut cx, LINK).unwrap();
        // Every other host resets while ICResp is being sent.
        if round % 2 == 0 {
            queue.handle_written(&mut cx, LINK, Err(Errno(104)));
            queue.handle_recv(&mut cx, LINK, op, Received::Failed(Errno(104))).unwrap();
        } else {
            queue.handle_recv(&mut cx, LINK, op, Received::End).unwrap();
            queue.handle_written(&mut cx, LINK, Ok(()));
        }
        assert_eq!(queue.poll_link_to_close(), Some(LINK));
        assert!(queue.poll_event().is_none(), "the batch is not back");
        queue.handle_send_released(&mut cx, LINK, answer);
        assert!(matches!(queue.poll_event(), Some(TargetEvent::Closed)));
        assert!(queue.poll_link_to_close().is_none() && queue.poll_event().is_none(), "one teardown");
    }
    assert_eq!(pool.usage().lent, 0);
}

/// The connection ends with a TermReq, which the host has its time to read.
#[test]
fn a_header_that_came_in_pieces_and_breaks_the_rules_is_not_called_unfinished_too() {
    let mut pair = Pair::fresh(QueueLimits { pdu_timeout: Duration::from_secs(1), ..QueueLimits::default() });
    let mut request = IcReq::new(0, false, false, 1);
    request.hpda = 0xff;
    pair.feed(&request.as_bytes()[..64]);
    pair.feed(&request.as_bytes()[64..]);
    let wrong = LinkFault::Fatal(FatalError::invalid_field(10));
    assert_eq!(pair.violations, std::slice::from_ref(&wrong));
    pair.pass(Duration::from_secs(2));
    assert_eq!((&pair.violations[..], pair.shut), (&[wrong][..], false));
}

#[test]
fn attack_54_a_host_that_says_nothing_is_closed() {
    let mut pair = Pair::fresh(QueueLimits::default());
    assert_eq!(pair.queue.poll_timeout(), Some(pair.now + Duration::from_secs(15)));
    pair.pass(Duration::from_secs(15));
    assert_eq!(pair.violations, [LinkFault::HandshakeTimeout]);
    pair.assert_gone();
    // Half an ICReq, or a capsule that never ends, buys no time.
    let mut pair = Pair::fresh(QueueLimits::default());
    pair.feed(&IcReq::new(0, false, false, 1).as_bytes()[..64]);
    pair.pass(Duration::from_secs(15));
    pair.assert_gone();
    let mut pair = Pair::plain();
    pair.feed(&PLAIN.capsule(&write_here(1, 0, 4096), &[1; 4096])[..100]);
    for _ in 0..59 {
        pair.feed(&[1]);
        pair.pass(Duration::from_secs(1));
    }
    assert!(!pair.shut);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.violations, [LinkFault::PduTimeout]);
    pair.assert_gone();
}

#[test]
fn attack_54_icreqs_that_make_no_sense() {
    let limits = QueueLimits::default;
    let good = IcReq::new(0, false, false, 1);
    let mut version = good;
    version.pfv.set(1);
    assert_fatal(Pair::fresh(limits()), version.as_bytes(), FatalError::unsupported_parameter(8));
    assert_fatal(
        Pair::fresh(limits()),
        IcReq::new(32, false, false, 1).as_bytes(),
        FatalError::invalid_field(10),
    );
    // Another PDU first, and a second ICReq.
    let early = PLAIN.capsule(&connect(1), &[0; 1024]);
    assert_fatal(Pair::fresh(limits()), &early, FatalError::sequence_error(0));
    assert_fatal(Pair::plain(), good.as_bytes(), FatalError::sequence_error(0));
}

#[test]
fn attack_55_a_header_length_of_255() {
    assert_fatal(both(), &bent(both().dialect(), &[4, 1, 255]), FatalError::invalid_field(2));
    assert_fatal(both(), &bent(both().dialect(), &[4, 1, 0]), FatalError::invalid_field(2));
    assert_fatal(both(), &bent(both().dialect(), &[6, 1, 72]), FatalError::invalid_field(2));
    assert_fatal(
        Pair::fresh(QueueLimits::default()),
        &[0, 0, 72, 0, 128, 0, 0, 0],
        FatalError::invalid_field(2),
    );
}

#[test]
fn attack_56_pdu_lengths_that_cannot_be() {
    for plen in [0u32, 1, 71, 72 + 8192 + 260, u32::MAX] {
        let mut begin = vec![4, 0, 72, 0];
        begin.extend(plen.to_le_bytes());
        assert_fatal(Pair::plain(), &bent(PLAIN, &begin), FatalError::invalid_field(4));
        begin[3] = 72;
        assert_fatal(Pair::plain(), &bent(PLAIN, &begin), FatalError::invalid_field(4));
    }
    // More in-capsule data than was granted: 8192 for fabrics commands, less for others.
    let small = ConnectedQueueSize { in_capsule_max: 4096, ..SIZE };
    let pair = || Pair::open(IcReq::new(0, false, false, 1), small);
    assert_fatal(pair(), &PLAIN.capsule(&write_here(1, 0, 4100), &[0; 4100]), FatalError::invalid_field(4));
    let mut pair = pair();
    pair.mode = Mode::Keep;
    let mut fabrics = connect(1);
    fabrics.dptr.length.set(8192);
    pair.command(&fabrics, &[0; 8192]);
    assert_eq!((pair.kept.len(), pair.violations.len()), (1, 0));
    for plen in [0u32, 23, u32::MAX] {
        let mut bytes = vec![6, 0, 24, 24];
        bytes.extend(plen.to_le_bytes());
        bytes.resize(24, 0);
        assert_fatal(Pair::plain(), &bytes, FatalError::invalid_field(4));
    }
    assert_fatal(
        Pair::fresh(QueueLimits::default()),
        &[0, 0, 128, 0, 127, 0, 0, 0],
        FatalError::invalid_field(4),
    );
}

#[test]
fn attack_57_digest_flags_that_were_not_agreed() {
    let dialect = both().dialect();
    assert_fatal(Pair::plain(), &bent(PLAIN, &[4, 1]), FatalError::invalid_field(1));
    assert_fatal(both(), &bent(dialect, &[4, 0]), FatalError::invalid_field(1));
    let mut data = dialect.capsule(&write_here(1, 0, 512), &[0; 512]);
    data[1] = 1;
    assert_fatal(both(), &data, FatalError::invalid_field(1));
    let mut data = PLAIN.capsule(&write_here(1, 0, 512), &[0; 512]);
    data[1] = 2;
    assert_fatal(Pair::plain(), &data, FatalError::invalid_field(1));
    let mut request = IcReq::new(0, true, true, 1);
    request.common.flags = Flags::HEADER_DIGEST;
    assert_fatal(Pair::fresh(QueueLimits::default()), request.as_bytes(), FatalError::invalid_field(1));
}

#[test]
fn attack_58_a_wrong_header_digest_is_fatal() {
    let mut bytes = both().dialect().capsule(&read(1, 0, 512), &[]);
    bytes[72..76].copy_from_slice(&[0xef, 0xbe, 0xad, 0xde]);
    let fatal = FatalError { fes: FatalStatus::HEADER_DIGEST, fei: 0xdead_beef };
    assert_fatal(both(), &bytes, fatal);
}

#[test]
fn attack_58_a_wrong_data_digest_fails_the_command_only() {
    // In a capsule.
    let mut pair = both();
    let dialect = pair.dialect();
    let before = pair.disk.clone();
    let mut bytes = dialect.capsule(&write_here(1, 0, 4096), &[9; 4096]);
    *bytes.last_mut().unwrap() ^= 1;
    let got = pair.talk(&bytes);
    assert_eq!((got[0].status(), pair.aborted.len()), (Status::TRANSIENT_TRANSPORT_ERROR, 1));
    // In H2CData: the rest of what was asked for is skipped, then the answer goes.
    let r2t = pair.command(&write(2, 0, 8192), &[])[0].r2t();
    let mut bytes = dialect.h2c(&r2t, 0, &[9; 4096], false);
    *bytes.last_mut().unwrap() ^= 1;
    assert!(pair.talk(&bytes).is_empty());
    let got = pair.talk(&dialect.h2c(&r2t, 4096, &[9; 4096], true));
    assert_eq!((got[0].status(), pair.aborted.len()), (Status::TRANSIENT_TRANSPORT_ERROR, 2));
    // Of a Connect.
    let mut pair2 = Pair::fresh(QueueLimits::default());
    pair2.mode = Mode::Keep;
    pair2.feed(IcReq::new(0, true, true, 1).as_bytes());
    pair2.sent.clear();
    let mut bytes = dialect.capsule(&connect(3), &[9; 1024]);
    *bytes.last_mut().unwrap() ^= 1;
    let got = pair2.talk(&bytes);
    assert_eq!((got[0].status(), pair2.aborted.len()), (Status::TRANSIENT_TRANSPORT_ERROR, 1));
    assert!(!pair2.shut && !pair2.queue.can_hand_off());
    // Nothing was written, and the queue lives.
    assert!(pair.disk == before && pair.violations.is_empty());
    assert_eq!(pair.command(&read(3, 0, 512), &[])[1].status(), Status::SUCCESS);
}

#[test]
fn attack_62_an_sgl_of_four_gib_takes_no_memory() {
    let mut pair = Pair::plain();
    let lent = pair.pool.usage();
    for command in [write(1, 0, u32::MAX), read(2, 0, u32::MAX)] {
        let got = pair.command(&command, &[]);
        assert_eq!(got[0].status(), Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    // In a capsule it cannot be.
    let got = pair.command(&write_here(3, 0, u32::MAX), &[1; 512]);
    assert_eq!(got[0].status(), Status::SGL_LENGTH_INVALID.with_do_not_retry());
    assert_eq!((pair.pool.usage(), pair.log.len()), (lent, 2), "the last one is not even announced");
}

#[test]
fn attack_62_sgls_of_every_form() {
    let mut pair = Pair::plain();
    let data = pattern(512);
    for identifier in 0..=255u8 {
        let (here, there) = (identifier == 0x01, identifier == 0x5a);
        let got = pair.command(&sqe(WRITE, 1, 0, identifier, 512), if there { &[] } else { &data });
        if here {
            assert_eq!(got[0].status(), Status::SUCCESS);
        } else if there {
            let r2t = got[0].r2t();
            assert_eq!(pair.talk(&PLAIN.h2c(&r2t, 0, &data, true))[0].status(), Status::SUCCESS);
        } else {
            assert_eq!(got[0].status(), Status::SGL_TYPE_INVALID.with_do_not_retry(), "{identifier:02x}");
        }
        let got = pair.command(&sqe(READ, 1, 0, identifier, 512), &[]);
        let want = if there { Status::SUCCESS } else { Status::SGL_TYPE_INVALID.with_do_not_retry() };
        assert_eq!(got.last().unwrap().status(), want, "{identifier:02x}");
    }
    for (offset, len, status) in [
        (513, 1, Status::SGL_OFFSET_INVALID),
        (u64::MAX, 512, Status::SGL_OFFSET_INVALID),
        (1 << 32, 512, Status::SGL_OFFSET_INVALID),
        (1, 512, Status::SGL_LENGTH_INVALID),
        (0, 513, Status::SGL_LENGTH_INVALID),
    ] {
        let mut command = write_here(1, 0, len);
        command.dptr.address.set(offset);
        assert_eq!(pair.command(&command, &data)[0].status(), status.with_do_not_retry(), "{offset} {len}");
    }
    for psdt in [0u8, 2, 3] {
        let mut command = read(1, 0, 512);
        command.flags = psdt << 6;
        assert_eq!(pair.command(&command, &[])[0].status(), Status::INVALID_FIELD.with_do_not_retry());
    }
    assert!(pair.violations.is_empty());
}

#[test]
fn attack_64_types_that_are_none() {
    let theirs = [1, 3, 5, 7, 9];
    for pdu_type in theirs.into_iter().chain([8]).chain(10..=255u8) {
        assert_fatal(
            Pair::fresh(QueueLimits::default()),
            &[pdu_type, 0, 24, 0, 24, 0, 0, 0],
            FatalError::invalid_field(0),
        );
    }
    for pdu_type in [1, 8, 9, 0xff] {
        assert_fatal(Pair::plain(), &[pdu_type, 0, 24, 0, 24, 0, 0, 0], FatalError::invalid_field(0));
    }
}

#[test]
fn attack_64_a_term_req_is_never_answered() {
    let told = FatalError { fes: FatalStatus::LIMIT_EXCEEDED, fei: 0 };
    for (plen, fatal) in [
        (24u32, told),
        (152, told),
        (153, FatalError::invalid_field(4)),
        (1 << 20, FatalError::invalid_field(4)),
    ] {
        for fresh in [false, true] {
            let mut pair = if fresh { Pair::fresh(QueueLimits::default()) } else { Pair::plain() };
            let mut bytes = TermReq::new(PduType::H2C_TERM_REQ, told, 0);
            bytes.common.plen.set(plen);
            assert!(pair.talk(bytes.as_bytes()).is_empty());
            assert_eq!(pair.violations, [LinkFault::Terminated(fatal)]);
            pair.assert_gone();
        }
    }
}

#[test]
fn attack_65_more_commands_than_entries() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    for cid in 0..SIZE.entries {
        pair.command(&read(cid, 0, 512), &[]);
    }
    assert_eq!((pair.kept.len(), pair.violations.len()), (8, 0));
    let got = pair.command(&read(99, 0, 512), &[]);
    assert_eq!(got[0].term(), FatalError::sequence_error(0));
    assert_eq!(got[0].data, CapsuleCmd::new(read(99, 0, 512)).as_bytes());
    assert_eq!(pair.violations, [LinkFault::TooManyCommands]);
    assert_eq!(pair.aborted.len(), 8);
    pair.hang_up();
    pair.assert_gone();
}

#[test]
fn attack_65_the_same_identifier_twice() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(7, 0, 512), &[]);
    let got = pair.command(&write_here(7, 0, 512), &[1; 512]);
    assert_eq!((got.len(), got[0].status()), (1, Status::COMMAND_ID_CONFLICT.with_do_not_retry()));
    assert_eq!(pair.kept.len(), 1);
    let (tag, _) = pair.kept[0];
    pair.send_read(tag, 0, 512);
    pair.pump();
    assert_eq!(pair.take()[1].cqe().cid.get(), 7, "the first one is not disturbed");
}

fn fabrics(kind: FabricsType, cid: u16) -> Sqe {
    let mut command = sqe(Opcode::FABRICS, cid, 0, SglDescriptor::TRANSPORT, 0);
    command.nsid = U32::new(kind.0.into());
    command
}

/// SPDK's hosts shut their controller down by commands with the identifiers of Asynchronous Event Requests
/// that they have given up.
#[test]
fn a_host_that_gives_its_event_requests_up_can_still_shut_down() {
    for kind in [FabricsType::PROPERTY_GET, FabricsType::PROPERTY_SET] {
        let mut pair = Pair::plain();
        pair.mode = Mode::Keep;
        let event_request = sqe(Opcode::ASYNC_EVENT_REQUEST, 7, 0, SglDescriptor::TRANSPORT, 0);
        assert_eq!(pair.command(&event_request, &[]), []);
        let (request, _) = pair.kept[0];
        assert_eq!(pair.command(&fabrics(kind, 7), &[]), [], "with the server");
        assert_eq!((pair.aborted.as_slice(), pair.kept.len()), (&[request][..], 1));
        let (tag, command) = pair.kept[0];
        assert_eq!(command.fabrics_type(), kind);
        // The request is not answered any more, whatever the server says of it.
        pair.answer(request, Completion::SUCCESS);
        pair.pump();
        assert_eq!(pair.take(), []);
        pair.answer(tag, Completion::SUCCESS);
        pair.pump();
        let got = pair.take();
        assert_eq!((got.len(), got[0].cqe().cid.get(), got[0].status()), (1, 7, Status::SUCCESS));
        // Its name is free again.
        assert_eq!(pair.command(&fabrics(kind, 7), &[]), []);
        assert_eq!(pair.kept.last().unwrap().1.cid.get(), 7);
    }
}

/// A request whose end the server has not heard of yet does not take the name from the command behind it.
#[test]
fn an_event_request_that_ends_late_does_not_free_the_name_of_what_took_its_place() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    let event_request = sqe(Opcode::ASYNC_EVENT_REQUEST, 7, 0, SglDescriptor::TRANSPORT, 0);
    pair.command(&event_request, &[]);
    let set = fabrics(FabricsType::PROPERTY_SET, 7);
    pair.command(&set, &[]);
    assert_eq!(pair.aborted.len(), 1);
    let got = pair.command(&set, &[]);
    assert_eq!(got[0].status(), Status::COMMAND_ID_CONFLICT.with_do_not_retry());
}

#[test]
fn attack_65_no_other_command_takes_the_identifier_of_an_event_request_nor_of_anything_else() {
    let event_request = sqe(Opcode::ASYNC_EVENT_REQUEST, 7, 0, SglDescriptor::TRANSPORT, 0);
    let set = fabrics(FabricsType::PROPERTY_SET, 7);
    let again = [read(7, 0, 512), event_request, fabrics(FabricsType::DISCONNECT, 7)];
    let cases = again.map(|second| (true, event_request, second));
    // On an I/O Queue the same opcode is Verify.
    for (admin, first, second) in
        cases.into_iter().chain([(false, event_request, set), (true, read(7, 0, 512), set)])
    {
        let mut pair = Pair::plain();
        pair.mode = Mode::Keep;
        pair.queue.role.admin = admin;
        pair.command(&first, &[]);
        let got = pair.command(&second, &[]);
        assert_eq!(
            (got.len(), got[0].status()),
            (1, Status::COMMAND_ID_CONFLICT.with_do_not_retry()),
            "{second:?}"
        );
        assert_eq!((pair.kept.len(), pair.aborted.len()), (1, 0));
    }
}

#[test]
fn attack_65_commands_without_end_wait_for_their_refusals_to_leave() {
    let mut pair = Pair::plain();
    pair.deaf = true;
    let mut bad = read(1, 0, 512);
    bad.flags = 0;
    let bytes = PLAIN.capsule(&bad, &[]).repeat(10_000);
    pair.feed(&bytes);
    assert!(pair.queue.out.pdus.len() <= 2 * usize::from(SIZE.entries) + 64);
    assert!(!pair.inbox.is_empty(), "the rest stays in the socket");
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.violations, [LinkFault::Stalled]);
    pair.assert_gone();
}

#[test]
fn attack_66_a_host_that_never_reads() {
    let limits = QueueLimits { read_bytes: 64 << 10, ..QueueLimits::default() };
    let mut pair = Pair::fresh(limits);
    pair.establish(IcReq::new(0, false, false, 1), SIZE);
    pair.mode = Mode::Keep;
    pair.deaf = true;
    for cid in 0..4 {
        pair.command(&read(cid, 0, 48 << 10), &[]);
    }
    let tags: Vec<Tag> = pair.kept.iter().map(|(tag, _)| *tag).collect();
    assert!(pair.queue.reserve_send_window(tags[0], 1 << 20), "one is always allowed");
    assert!(!pair.queue.reserve_send_window(tags[1], 512));
    pair.send_read(tags[0], 0, 48 << 10);
    pair.pump();
    assert!(!pair.queue.reserve_send_window(tags[1], 48 << 10), "the kernel still has the first");
    assert!(pair.queue.reserve_send_window(tags[1], 4 << 10));
    pair.pass(Duration::from_secs(59));
    assert!(!pair.shut);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.violations, [LinkFault::Stalled]);
    pair.assert_gone();
}

/// An answer that found no memory asks for leave again, each time that some has come back.
#[test]
fn who_asks_again_is_not_counted_twice() {
    let limits = QueueLimits { read_bytes: 8 << 20, ..QueueLimits::default() };
    let mut pair = Pair::fresh(limits);
    pair.establish(IcReq::new(0, false, false, 1), SIZE);
    pair.mode = Mode::Keep;
    for cid in 0..4 {
        pair.command(&read(cid, 0, 1 << 20), &[]);
    }
    let tags: Vec<Tag> = pair.kept.iter().map(|(tag, _)| *tag).collect();
    for _ in 0..20 {
        for tag in &tags {
            assert!(pair.queue.reserve_send_window(*tag, 1 << 20), "four of eight mebibytes are taken");
        }
    }
    tags.iter().for_each(|tag| pair.with_cx(|queue, cx| queue.end_without_response(cx, *tag)));
    assert_eq!(pair.queue.role.tasks.read_bytes, 0);
    // Alone it is allowed whatever its length, and however often it asks.
    pair.command(&read(4, 0, 1 << 20), &[]);
    let tag = pair.kept[4].0;
    assert!(pair.queue.reserve_send_window(tag, 32 << 20) && pair.queue.reserve_send_window(tag, 32 << 20));
}

/// Structures of 4 KiB need no leave to be sent: who leaves them unread asks for no more of them.
#[test]
fn attack_66_small_answers_that_nobody_reads_hold_little() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.deaf = true;
    for cid in 0..8 {
        pair.command(&read(cid, 0, 4096), &[]);
        if let Some((tag, _)) = pair.kept.get(usize::from(cid)).copied() {
            pair.send_read(tag, 0, 4096);
            pair.pump();
        }
    }
    let kept = pair.kept.len();
    assert!((4..8).contains(&kept), "{kept} answers wait");
    // However short an answer is, it holds a block.
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.deaf = true;
    let mut pdu_since = 0;
    for cid in 0..60 {
        pair.command(&read(cid, 0, 64), &[]);
        if let Some((tag, _)) = pair.kept.pop() {
            pdu_since += 1;
            pair.send_read(tag, 0, 64);
            pair.answer(tag, Completion::SUCCESS);
            pair.pump();
        }
    }
    assert!((32..40).contains(&pdu_since), "{pdu_since} short answers wait");
}
