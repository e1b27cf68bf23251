//! A well-behaved host.

use super::super::*;
use super::pair::*;
use crate::LinkFault;
use crate::queue::LINK;
use crate::wire::{FatalError, Flags, HPDA_MAX, IcReq, IcResp, PduType};
use nvme::Status;
use stream::{Connection, ConnectionClose};
use zerocopy::IntoBytes;

#[test]
fn terms_are_agreed_and_connect_comes_up() {
    let limits = QueueLimits { cpda: 1, max_h2c_data: 10_001, ..QueueLimits::default() };
    let mut pair = Pair::fresh(limits);
    pair.mode = Mode::Keep;
    pair.feed(IcReq::new(HPDA_MAX, true, true, 7).as_bytes());
    let answer = *IcResp::from_prefix(&pair.sent).unwrap();
    pair.sent.clear();
    assert_eq!((answer.cpda, answer.dgst, answer.maxh2cdata.get()), (1, 3, 10_000));
    let parameters = *pair.queue.parameters();
    assert_eq!((parameters.host_alignment, parameters.controller_alignment, parameters.r2ts), (128, 8, 7));
    let bytes = pair.dialect().pdu(crate::wire::CapsuleCmd::new(connect(5)).as_bytes(), 80, &[1; 1024]);
    pair.feed(&bytes);
    assert_eq!(pair.kept.len(), 1);
    let (tag, command) = pair.kept[0];
    assert_eq!(command, connect(5));
    assert!(pair.with_cx(|queue, cx| queue.finish_connect(cx, SIZE)));
    pair.answer(tag, Completion { result: 1, status: Status::SUCCESS });
    pair.pump();
    let cqe = pair.take().pop().unwrap().cqe();
    assert_eq!((cqe.cid.get(), cqe.result.get(), cqe.sqhd.get()), (5, 1, 1));
}

#[test]
fn digest_policies_decide() {
    let limits = QueueLimits {
        header_digest: DigestPolicy::Never,
        data_digest: DigestPolicy::Required,
        ..QueueLimits::default()
    };
    let mut pair = Pair::fresh(limits.clone());
    pair.feed(IcReq::new(0, true, true, 1).as_bytes());
    assert_eq!(IcResp::from_prefix(&pair.sent).unwrap().dgst, 2);
    let mut pair = Pair::fresh(limits);
    let answer = pair.talk(IcReq::new(0, true, false, 1).as_bytes());
    assert_eq!(answer[0].term(), FatalError::unsupported_parameter(11));
}

#[test]
fn a_queue_that_is_handed_off_goes_on_elsewhere() {
    let mut pair = Pair::fresh(QueueLimits::default());
    pair.mode = Mode::Keep;
    pair.feed(IcReq::new(3, true, true, 2).as_bytes());
    pair.sent.clear();
    let dialect = pair.dialect();
    // The host is in a hurry: the next command comes with the Connect.
    let mut bytes = dialect.capsule(&connect(9), &[7; 1024]);
    bytes.extend(dialect.capsule(&read(10, 0, 512), &[]));
    assert!(!pair.queue.can_hand_off());
    pair.feed(&bytes);
    assert_eq!(pair.kept.len(), 1, "one command at a time");
    assert!(pair.queue.can_hand_off());
    let fresh = Pair::fresh(QueueLimits::default());
    let old = std::mem::replace(&mut pair.queue, fresh.queue);
    let handoff = old.hand_off().unwrap();
    assert_eq!(*handoff.connect_command(), connect(9));
    let (queue, tag) =
        pair.with_cx(|_, cx| ControllerQueue::from_handoff(cx, QueueLimits::default(), handoff));
    pair.queue = queue;
    pair.mode = Mode::Serve;
    assert!(pair.with_cx(|queue, cx| queue.finish_connect(cx, SIZE)));
    pair.answer(tag, Completion::SUCCESS);
    pair.pump();
    let got = pair.take();
    assert_eq!(got[0].cqe().cid.get(), 9);
    assert_eq!((got[1].data.len(), got[2].cqe().cid.get()), (512, 10));
}

#[test]
fn nothing_is_read_beyond_an_unanswered_connect() {
    let mut pair = Pair::fresh(QueueLimits::default());
    pair.mode = Mode::Keep;
    pair.feed(IcReq::new(0, false, false, 1).as_bytes());
    pair.feed(&PLAIN.capsule(&connect(1), &[0; 1024]));
    assert!(pair.with_cx(|queue, cx| queue.poll_recv(cx, LINK)).is_none());
    let (tag, _) = pair.kept[0];
    pair.answer(tag, Status::CONNECT_INVALID_PARAMETERS.into());
    pair.pump();
    assert!(!pair.queue.can_hand_off() && !pair.with_cx(|queue, cx| queue.finish_connect(cx, SIZE)));
}

#[test]
fn the_data_of_a_connect_may_be_asked_for() {
    let mut pair = Pair::fresh(QueueLimits::default());
    pair.mode = Mode::Keep;
    pair.feed(IcReq::new(0, true, true, 1).as_bytes());
    pair.sent.clear();
    let mut connect = connect(1);
    connect.dptr.identifier = nvme::SglDescriptor::TRANSPORT;
    let r2t = pair.command(&connect, &[])[0].r2t();
    assert!(!pair.queue.can_hand_off());
    let dialect = pair.dialect();
    assert!(pair.talk(&dialect.h2c(&r2t, 0, &[9; 1024], true)).is_empty());
    assert!(pair.queue.can_hand_off());
}

#[test]
fn a_read_that_succeeds_needs_no_capsule_without_flow_control() {
    let size = ConnectedQueueSize { flow_control: false, ..SIZE };
    let mut pair = Pair::open(IcReq::new(0, false, false, 1), size);
    let got = pair.command(&read(3, 512, 4096), &[]);
    assert_eq!(got.len(), 1);
    assert!(got[0].frame.flags.contains(Flags(Flags::LAST.0 | Flags::SUCCESS.0)));
    assert_eq!(got[0].data, pair.disk[512..4608]);
    // With a result or an error it needs one.
    pair.mode = Mode::Keep;
    assert!(pair.command(&read(4, 0, 512), &[]).is_empty());
    let (tag, _) = pair.kept[0];
    let mut memory = pair.pool.take_sg(buf::MemoryClass::Solicited, 512).unwrap();
    memory.zero(0..512);
    pair.with_cx(|queue, cx| queue.send_data(cx, tag, 0, memory.freeze()));
    pair.answer(tag, Completion { result: 9, status: Status::SUCCESS });
    pair.pump();
    let got = pair.take();
    assert_eq!(got[0].frame.flags, Flags::LAST);
    assert_eq!((got[1].cqe().result.get(), got[1].cqe().sqhd.get()), (9, 0));
}

#[test]
fn the_head_counts_completions_with_flow_control() {
    let mut pair = Pair::plain();
    for n in 0..20u16 {
        let got = pair.command(&read(n, 0, 512), &[]);
        assert_eq!(got[0].frame.flags, Flags::LAST);
        assert_eq!(got[1].cqe().sqhd.get(), (n + 2) % SIZE.entries, "the Connect was the first");
    }
}

#[test]
fn data_to_the_host_begins_where_it_asked() {
    for hpda in [0u8, 1, 7, 31] {
        for digests in [false, true] {
            let mut pair = Pair::open(IcReq::new(hpda, digests, digests, 1), SIZE);
            let (data, rest) = gather(pair.command(&read(1, 7, 300_000), &[]), 300_000);
            assert_eq!(data, pair.disk[7..300_007], "{hpda}");
            assert_eq!(rest[0].status(), Status::SUCCESS);
        }
    }
}

#[test]
fn in_capsule_data_lands_where_it_belongs() {
    for digests in [false, true] {
        let mut pair = Pair::open(IcReq::new(0, digests, digests, 1), SIZE);
        let data = pattern(4096);
        let got = pair.command(&write_here(1, 100, 4096), &data);
        assert_eq!(got[0].status(), Status::SUCCESS);
        assert_eq!(pair.disk[100..4196], data);
        // The SGL may name a part of it.
        let mut part = write_here(2, 50_000, 1000);
        part.dptr.address.set(96);
        let got = pair.command(&part, &data);
        assert_eq!(got[0].status(), Status::SUCCESS);
        assert_eq!(pair.disk[50_000..51_000], data[96..1096]);
    }
}

#[test]
fn r2ts_ask_for_what_has_a_place() {
    let limits = QueueLimits { max_h2c_data: 8192, r2t_len_max: 16384, ..QueueLimits::default() };
    for (offered, digests) in [(1, false), (2, true), (9, false)] {
        let mut pair = Pair::fresh(limits.clone());
        pair.establish(IcReq::new(0, digests, digests, offered), SIZE);
        pair.write_step = 50_000;
        let data = pattern(100_000);
        let mut got = pair.command(&write(3, 1000, 100_000), &[]);
        let mut asked = 0;
        loop {
            assert!(got.len() <= offered.min(R2T_MAX as u32) as usize);
            let mut bytes = Vec::new();
            for pdu in &got {
                if pdu.frame.pdu_type == PduType::CAPSULE_RESP {
                    assert_eq!(pdu.status(), Status::SUCCESS);
                    assert_eq!((asked, &pair.disk[1000..101_000]), (100_000, &data[..]));
                    break;
                }
                let r2t = pdu.r2t();
                let (at, len) = (r2t.r2to.get(), r2t.r2tl.get());
                assert_eq!(at, asked);
                asked += len;
                for from in (at..at + len).step_by(8192) {
                    let end = (from + 8192).min(at + len);
                    let part = &data[from as usize..end as usize];
                    bytes.extend(pair.dialect().h2c(&r2t, from, part, end == at + len));
                }
            }
            if bytes.is_empty() {
                break;
            }
            got = pair.talk(&bytes);
        }
        assert_eq!(asked, 100_000);
    }
}

#[test]
fn a_queue_drains_before_it_closes() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(1, 0, 512), &[]);
    let until = pair.now + Duration::from_secs(5);
    pair.with_cx(|queue, cx| queue.close(cx, ConnectionClose::AfterLogout(until)));
    let got = pair.command(&read(2, 0, 512), &[]);
    assert_eq!(got[0].status(), Status::ABORTED_SQ_DELETION);
    let (tag, _) = pair.kept[0];
    pair.send_read(tag, 0, 512);
    pair.pump();
    assert_eq!(pair.take()[1].cqe().cid.get(), 1);
    pair.assert_gone();
}

#[test]
fn a_host_that_goes_leaves_nothing() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&sqe(FLUSH, 1, 0, 0, 0), &[]);
    pair.command(&write(2, 0, 8192), &[]);
    pair.hang_up();
    assert_eq!(pair.aborted.len(), 2);
    pair.assert_gone();
}

#[test]
fn a_handshake_has_one_deadline() {
    let mut pair = Pair::fresh(QueueLimits::default());
    pair.pass(Duration::from_secs(10));
    pair.feed(IcReq::new(0, false, false, 1).as_bytes());
    pair.pass(Duration::from_secs(6));
    assert_eq!(pair.violations, [LinkFault::HandshakeTimeout]);
    pair.assert_gone();
}

/// The server sees only what is let through, and would take them for neighbours.
#[test]
fn a_command_that_is_refused_here_parts_the_halves_of_a_pair() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    let half = |cid, part| {
        let mut half = write(cid, 0, 512);
        half.flags |= part;
        half
    };
    let before = pair.kept.len();
    assert!(pair.command(&half(1, 1), &[]).is_empty());
    let refused = pair.command(&sqe(READ, 2, 0, 0x11, 512), &[]);
    assert_eq!(refused[0].status(), Status::SGL_TYPE_INVALID.with_do_not_retry());
    for cid in [3, 4] {
        let second = pair.command(&half(cid, 2), &[]);
        assert_eq!(second[0].status(), Status::ABORTED_MISSING_FUSED.with_do_not_retry());
    }
    for (cid, part) in [(5, 0), (6, 1), (7, 2)] {
        assert!(pair.command(&half(cid, part), &[]).is_empty());
    }
    let through: Vec<u16> = pair.kept[before..].iter().map(|(_, sqe)| sqe.cid.get()).collect();
    assert_eq!(through, [5, 6, 7]);
}

/// The server would wait for what it does not hear of.
#[test]
fn the_first_of_a_pair_ends_when_what_stands_behind_it_is_refused_here() {
    for (part, status) in [(0, Status::ABORTED_MISSING_FUSED), (2, Status::ABORTED_FAILED_FUSED)] {
        let mut pair = Pair::plain();
        pair.mode = Mode::Keep;
        let mut first = write(1, 0, 512);
        first.flags |= 1;
        assert!(pair.command(&first, &[]).is_empty());
        let (tag, _) = pair.kept[pair.kept.len() - 1];
        let mut behind = sqe(READ, 2, 0, 0x11, 512);
        behind.flags |= part;
        let mut got = pair.command(&behind, &[]);
        pair.with_cx(|queue, cx| queue.end_without_response(cx, tag));
        pair.pump();
        got.extend(pair.take());
        let ends: Vec<_> = got.iter().map(|got| (got.cqe().cid.get(), got.status())).collect();
        assert!(ends.contains(&(1, status.with_do_not_retry())), "{ends:?}");
        assert_eq!((ends.len(), pair.queue.tasks_in_work()), (2, 0));
    }
}

#[test]
fn payload_is_at_hand_if_it_is_whole_and_undamaged() {
    for digest in [false, true] {
        let mut pair = Pair::open(IcReq::new(0, digest, digest, 1), SIZE);
        pair.at_hand = Some(0);
        let (dialect, data) = (pair.dialect(), pattern(1000));
        let put = |cid, at| dialect.capsule(&write_here(cid, at, 1000), &data);
        let got = pair.talk(&[put(1, 0), put(2, 5000)].concat());
        assert_eq!(got.iter().map(Got::status).collect::<Vec<_>>(), [Status::SUCCESS; 2]);
        assert_eq!((&pair.disk[..1000], &pair.disk[5000..6000]), (&data[..], &data[..]));
        assert_eq!((pair.at_hand, pair.queue.tasks_in_work(), pair.pool.usage().lent), (Some(2), 0, 0));
        // Cut off by the end of the stage it is filled up by the next receive.
        pair.delivery.stage_max = 700;
        assert_eq!(pair.talk(&put(3, 20_000))[0].status(), Status::SUCCESS);
        assert_eq!((pair.at_hand, &pair.disk[20_000..21_000]), (Some(3), &data[..]));
        // What needs a third is placed as ever.
        let bytes = put(4, 30_000);
        pair.feed(&bytes[..200]);
        pair.feed(&bytes[200..400]);
        assert_eq!(pair.talk(&bytes[400..])[0].status(), Status::SUCCESS);
        assert_eq!((pair.at_hand, &pair.disk[30_000..31_000]), (Some(3), &data[..]));
        assert_eq!((pair.queue.tasks_in_work(), pair.pool.usage().lent), (0, 0));
    }
    let mut pair = Pair::open(IcReq::new(0, true, true, 1), SIZE);
    pair.at_hand = Some(0);
    let mut damaged = pair.dialect().capsule(&write_here(1, 0, 1000), &pattern(1000));
    *damaged.last_mut().unwrap() ^= 1;
    let before = pair.disk.clone();
    assert_eq!(pair.talk(&damaged)[0].status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(pair.at_hand == Some(0) && pair.disk == before);
}
