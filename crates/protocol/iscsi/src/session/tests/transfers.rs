//! Where data goes and when answers are sent, in less common cases.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;
use buf::{MemoryClass, Region, RegionHandle};
use std::sync::Arc;

fn digests() -> LinkParams {
    LinkParams { header_digest: true, data_digest: true, ..link_params(0) }
}

#[test]
fn digests_cover_every_pdu_both_ways() {
    let mut peer = ScriptedInitiator::with(session_params(), digests(), limits());
    let data = pattern(5001);
    let got = peer.talk(&digested(&write(0, 100, 5001), &[], &data, true, true));
    assert_eq!(got[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    let got = peer.talk(&digested(&read(1, 100, 5001), &[], &[], true, true));
    assert_eq!(got.iter().flat_map(|pdu| pdu.data.clone()).collect::<Vec<_>>(), data);
    let got = peer.talk(&digested(&write(2, 0, 10_000), &[], &[], true, true));
    let ttt = got[0].as_pdu::<R2t>().ttt;
    let data = pattern(10_000);
    let mut bytes = digested(&data_out(2, ttt, 0, 0, false), &[], &data[..8191], true, true);
    bytes.extend(digested(&data_out(2, ttt, 1, 8191, true), &[], &data[8191..], true, true));
    assert_eq!(peer.talk(&bytes)[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(peer.disk[..10_000], data);
}

#[test]
fn a_digest_holds_though_the_volume_changes_before_the_bytes_leave() {
    let link = LinkParams { initiator_mrdsl: 1 << 20, ..digests() };
    let params = SessionParams { max_burst: 1 << 20, ..session_params() };
    let mut peer = ScriptedInitiator::with(params, link, limits());
    peer.mode = ServerMode::Keep;
    let region = Arc::new(Region::new(1 << 20));
    let handle = RegionHandle::new(region.clone());
    peer.feed(0, &digested(&read(0, 0, 600_000), &[], &[], true, true));
    let tag = peer.kept[0].0;
    peer.with_cx(|session, cx| {
        session.send_data(cx, tag, 0, handle.view(0, 600_000).into());
        session.respond(cx, tag, Response::Scsi(ScsiResult::good(600_000)));
        let mut ops = Vec::new();
        let mut bytes = Vec::new();
        while let Some(op) = session.poll_send(cx, LinkNumber(0)) {
            session.handle_written(cx, LinkNumber(0), Ok(()));
            ops.push(op);
        }
        // The kernel reads the memory only now.
        region.write(0, &vec![0xee; 600_000]);
        for op in ops {
            let at = bytes.len();
            bytes.resize(at + op.len, 0);
            op.copy_to(0, &mut bytes[at..]);
            session.handle_send_released(cx, LinkNumber(0), op);
        }
        let got = parse(&bytes, true, true);
        assert!(got.len() >= 5 && got.last().unwrap().as_pdu::<DataIn>().flags.contains(DataInFlags::STATUS));
        for (i, pdu) in got.iter().enumerate() {
            assert_eq!(pdu.as_pdu::<DataIn>().data_sn.value(), i as u32);
        }
    });
}

#[test]
fn payload_is_at_hand_if_it_is_whole_and_undamaged() {
    for digest in [false, true] {
        let link = if digest { digests() } else { link_params(0) };
        let mut peer = ScriptedInitiator::with(session_params(), link, limits());
        peer.at_hand = true;
        let data = pattern(1001);
        let write_of = |itt, at| digested(&write(itt, at, 1001), &[], &data, digest, digest);
        let got = peer.talk(&[write_of(0, 0), write_of(1, 8192)].concat());
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|got| got.as_pdu::<ScsiResponse>().status == ScsiStatus::GOOD));
        assert_eq!((&peer.disk[..1001], &peer.disk[8192..9193]), (&data[..], &data[..]));
        assert_eq!((peer.hands, peer.pool.usage().lent), (2, 0));
        // Cut off by the end of the stage it is filled up by the next receive; without all of its data it
        // is placed as ever.
        peer.delivery.stage_max = 700;
        assert_eq!(peer.talk(&write_of(2, 20_000)).len(), 1);
        let more = digested(&write(3, 30_000, 8192), &[], &data[..1000], digest, digest);
        assert_eq!(peer.talk(&more)[0].op(), Opcode::R2T);
        assert_eq!((peer.hands, &peer.disk[20_000..21_001]), (3, &data[..]));
    }
    let mut peer = ScriptedInitiator::with(session_params(), digests(), limits());
    peer.at_hand = true;
    let mut damaged = digested(&write(0, 0, 1001), &[], &pattern(1001), true, true);
    damaged[100] ^= 1;
    let before = peer.disk.clone();
    let got = peer.talk(&damaged);
    assert_eq!(got[0].op(), Opcode::REJECT);
    assert!(peer.hands == 0 && peer.disk == before);
}

#[test]
fn data_that_nobody_placed_in_time_waits_in_memory_set_aside() {
    let mut peer = ScriptedInitiator::keeping();
    let data = pattern(8192);
    let mut bytes = pdu(&write(0, 0, 20_000), &data[..8192]);
    bytes.extend(pdu(&read(1, 0, 512), &[]));
    peer.feed(0, &bytes);
    assert_eq!(peer.kept.len(), 2, "the read behind the data is delivered");
    assert!(peer.pool.usage().lent >= 8192);
    // Placed in three stretches, with one left out.
    let tag = peer.kept[0].0;
    for (at, len) in [(0, 5000), (6000, 4000), (10_000, 10_000)] {
        let memory = peer.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        peer.with_cx(|session, cx| session.recv_data(cx, tag, at, memory));
    }
    let TargetEvent::DataReceived { at: 0, data: first, .. } = peer.session.poll_event().unwrap() else {
        panic!("the first stretch is full")
    };
    let mut got = vec![0; 5000];
    first.copy_to(0, &mut got);
    assert_eq!(got, data[..5000]);
    assert!(peer.session.poll_event().is_none());
    let op = peer.with_cx(|session, cx| session.poll_send(cx, LinkNumber(0))).unwrap();
    let wire = testkit::delivery::send_op_bytes(&op);
    let r2ts: Vec<_> = parse(&wire, false, false)
        .iter()
        .map(|got| got.as_pdu::<R2t>())
        .map(|r2t| (r2t.buffer_offset.get(), r2t.desired_len.get()))
        .collect();
    assert_eq!(r2ts, [(8192, 1808), (10_000, 10_000)]);
}

#[test]
fn an_early_answer_waits_for_the_data_that_is_owed() {
    let mut peer = ScriptedInitiator::keeping();
    let mut command = write(0, 0, 8192);
    command.flags = command.flags.without(CommandFlags::FINAL);
    peer.feed(0, &pdu(&command, &pattern(1000)));
    let tag = peer.kept[0].0;
    peer.answer(tag, Response::Scsi(ScsiResult::check_condition(&[0x70, 0, 5], 0)));
    peer.pump();
    assert_eq!(peer.take(0), []);
    assert_eq!(peer.pool.usage().lent, 0, "no memory waits for it");
    let got = peer.talk(&pdu(&data_out(0, Ttt::NONE, 0, 1000, false), &pattern(3000)));
    assert_eq!(got, []);
    let got = peer.talk(&pdu(&data_out(0, Ttt::NONE, 1, 4000, true), &pattern(4192)));
    assert_eq!(got[0].as_pdu::<ScsiResponse>().status, ScsiStatus::CHECK_CONDITION);
}

#[test]
fn a_refused_write_with_all_its_data_is_answered_at_once() {
    let mut peer = ScriptedInitiator::keeping();
    let whole = pdu(&write(0, 0, 4096), &pattern(4096));
    peer.feed(0, &whole[..1000]);
    assert!(peer.kept.is_empty(), "the command may be whole in a moment");
    peer.feed(0, &whole[1000..2000]);
    let tag = peer.kept[0].0;
    peer.answer(tag, Response::Scsi(ScsiResult::check_condition(&[0x70, 0, 7], 0)));
    peer.pump();
    assert_eq!(peer.take(0).len(), 1);
    let mut rest = whole[2000..].to_vec();
    rest.extend(pdu(&read(1, 0, 512), &[]));
    peer.feed(0, &rest);
    assert_eq!(peer.kept.len(), 1, "the rest of the data is skipped");
}

#[test]
fn data_that_is_owed_and_never_comes_ends_the_link() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { nop_interval: None, ..limits() });
    peer.feed(0, &pdu(&write(0, 0, 4096), &[]));
    assert_eq!(peer.session.poll_timeout(), Some(peer.now + Duration::from_secs(60)));
    peer.pass(Duration::from_secs(59));
    assert!(!peer.closed);
    peer.pass(Duration::from_secs(1));
    assert_eq!(peer.violations, [Fault::Stalled]);
    assert!(peer.closed);
}

#[test]
fn a_task_that_dies_while_its_buffer_is_out_gets_it_back_later() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&write(0, 0, 8192), &[]));
    let tag = peer.kept[0].0;
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 8192).unwrap();
    peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    peer.pump();
    let ttt = peer.take(0)[0].as_pdu::<R2t>().ttt;
    let bytes = pdu(&data_out(0, ttt, 0, 0, true), &pattern(8192));
    // The receive into the server's buffer is out when the task ends.
    peer.feed(0, &bytes[..1000]);
    assert!(peer.pool.usage().lent >= 8192);
    peer.with_cx(|session, cx| session.end_without_response(cx, tag));
    assert_eq!(peer.session.tasks_in_work(), 0);
    assert!(peer.pool.usage().lent >= 8192, "the world still writes there");
    let mut rest = bytes[1000..].to_vec();
    rest.extend(pdu(&nop(1, 70), b"after"));
    let got = peer.talk(&rest);
    assert_eq!((got.len(), &got[0].data[..]), (1, &b"after"[..]));
    assert_eq!(peer.pool.usage().lent, 0);
}

#[test]
fn a_place_given_while_the_hold_is_out_gets_what_came() {
    let mut peer = ScriptedInitiator::keeping();
    let data = pattern(8192);
    let bytes = pdu(&write(0, 0, 8192), &data);
    peer.feed(0, &bytes[..500]);
    peer.feed(0, &bytes[500..1000]);
    // A receive into the hold is out now.
    let tag = peer.kept[0].0;
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 8192).unwrap();
    peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    peer.ends[0].inbox.extend(&bytes[1000..3000]);
    peer.delivery.chunks = vec![700];
    peer.pump_without_serving();
    peer.ends[0].inbox.extend(&bytes[3000..]);
    peer.pump_without_serving();
    let Some(TargetEvent::DataReceived { data: got, .. }) = peer.session.poll_event() else {
        panic!("all data is here")
    };
    let mut copy = vec![0; 8192];
    got.copy_to(0, &mut copy);
    assert!(copy == data);
}
