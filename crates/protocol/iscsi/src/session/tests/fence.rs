//! The response fence over several links.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;

/// Two links, with a read answered on each and nothing of it acknowledged.
fn two_links() -> (ScriptedInitiator, usize) {
    let mut peer = ScriptedInitiator::new();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    peer.feed(second, &pdu(&read(1, 0, 512), &[]));
    assert_eq!((peer.take(0).len(), peer.take(second).len()), (1, 1));
    peer.mode = ServerMode::Keep;
    (peer, second)
}

fn reset(n: u32, itt: u32) -> TmfRequest {
    let mut pdu = TmfRequest::new();
    pdu.set_function(TmfFunction::LOGICAL_UNIT_RESET);
    pdu.op = pdu.op.with_immediate();
    (pdu.lun, pdu.itt, pdu.cmd_sn) = (lun(), Itt::new(itt), sn(n));
    (pdu.exp_stat_sn, pdu.referenced_tag) = (Sn::new(100), Itt::NONE);
    pdu
}

/// Resets the unit by link 0, and lets the server say that it is done.
fn reset_done(peer: &mut ScriptedInitiator, n: u32, itt: u32) {
    peer.feed(0, &pdu(&reset(n, itt), &[]));
    let (tag, _) = *peer.kept.iter().rfind(|(_, request)| matches!(request, Request::Task(_))).unwrap();
    peer.answer(tag, Response::Task(TmfResponseCode::COMPLETE));
    peer.pump();
}

fn ops(got: &[ReceivedPdu]) -> Vec<Opcode> {
    got.iter().map(ReceivedPdu::op).collect()
}

/// The answer to the last of these if it is a ping, acknowledging all before `exp`.
fn pong(got: &[ReceivedPdu], exp: u32) -> Vec<u8> {
    let ping: NopIn = got.last().unwrap().as_pdu();
    assert!(ping.itt.is_none() && !ping.ttt.is_none());
    let mut pong = nop(0, 0);
    pong.op = pong.op.with_immediate();
    (pong.itt, pong.ttt, pong.exp_stat_sn) = (Itt::NONE, ping.ttt, Sn::new(exp));
    pdu(&pong, &[])
}

#[test]
fn one_link_needs_no_fence() {
    let mut peer = ScriptedInitiator::keeping();
    reset_done(&mut peer, 0, 900);
    assert_eq!(ops(&peer.take(0)), [Opcode::TMF_RESPONSE]);
    assert_eq!(peer.session.tasks.fences.acknowledgment_deadline(), None);
}

#[test]
fn the_end_of_a_reset_follows_every_acknowledgment_and_goes_before_what_follows() {
    let (mut peer, second) = two_links();
    reset_done(&mut peer, 2, 900);
    let (first_pings, second_pings) = (peer.take(0), peer.take(second));
    assert_eq!((ops(&first_pings), ops(&second_pings)), (vec![Opcode::NOP_IN], vec![Opcode::NOP_IN]));
    // A command that comes meanwhile is carried out, and its answer waits.
    peer.kept.clear();
    let mut other = read(3, 0, 8);
    other.lun = Lun::single_level(4).unwrap();
    peer.feed(second, &[pdu(&read(2, 0, 8), &[]), pdu(&other, &[])].concat());
    for (tag, _) in peer.kept.clone() {
        peer.answer(tag, Response::Scsi(ScsiResult::good(0)));
    }
    peer.pump();
    let got = peer.take(second);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].bhs.itt, Itt::new(3), "another unit's is not held");
    peer.feed(0, &pong(&first_pings, 101));
    assert_eq!(peer.take(0), [], "the other link has acknowledged nothing");
    peer.feed(second, &pong(&second_pings, 101));
    let got = peer.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN]);
    assert_eq!(got[0].as_pdu::<TmfResponse>().stat_sn, Sn::new(101));
    assert_eq!(peer.take(second), [], "until the initiator has the end of the reset");
    peer.feed(0, &pong(&got, 102));
    assert_eq!(peer.take(second)[0].bhs.itt, Itt::new(2));
    assert_eq!((peer.session.tasks_in_work(), peer.violations.len()), (0, 0));
    assert_eq!(peer.session.tasks.fences.acknowledgment_deadline(), None);
}

#[test]
fn acknowledgments_ride_on_any_request() {
    let (mut peer, second) = two_links();
    let mut early = nop(2, 70);
    early.exp_stat_sn = Sn::new(101);
    peer.feed(second, &pdu(&early, &[]));
    peer.take(second);
    // That ping's answer is not acknowledged yet.
    reset_done(&mut peer, 3, 900);
    assert_eq!((peer.take(0).len(), peer.take(second).len()), (1, 1));
    let mut ping = nop(3, 71);
    ping.exp_stat_sn = Sn::new(102);
    peer.feed(second, &pdu(&ping, &[]));
    let mut ping = nop(4, 72);
    ping.exp_stat_sn = Sn::new(101);
    peer.feed(0, &pdu(&ping, &[]));
    assert!(ops(&peer.take(0)).contains(&Opcode::TMF_RESPONSE));
}

#[test]
fn a_link_that_acknowledges_nothing_is_dropped() {
    for answers in [false, true] {
        let (mut peer, second) = two_links();
        reset_done(&mut peer, 2, 900);
        let (first, other) = (peer.take(0), peer.take(second));
        peer.feed(0, &pong(&first, 101));
        if answers {
            // An answer that acknowledges nothing is none.
            peer.feed(second, &pong(&other, 100));
        }
        assert_eq!(peer.session.poll_timeout().map(|at| at.since(peer.now)), Some(Duration::from_secs(15)));
        peer.pass(Duration::from_secs(29));
        assert!(!peer.ends[second].shut);
        let pings: Vec<ReceivedPdu> = peer.take(0);
        if !pings.is_empty() {
            peer.feed(0, &pong(&pings, 101));
        }
        peer.pass(Duration::from_secs(1));
        assert_eq!(peer.violations, [Fault::Unacknowledged], "{answers}");
        assert!(peer.ends[second].shut && !peer.ends[0].shut);
        let got = peer.take(0);
        assert!(ops(&got).contains(&Opcode::TMF_RESPONSE), "{got:?}");
        assert_eq!(peer.session.tasks.fences.acknowledgment_deadline(), None, "one link is left");
    }
}

#[test]
fn what_the_server_marks_is_fenced_and_comes_once() {
    let (mut peer, second) = two_links();
    peer.feed(second, &[pdu(&read(2, 0, 8), &[]), pdu(&read(3, 0, 8), &[])].concat());
    let tags: Vec<Tag> = peer.kept.iter().map(|(tag, _)| *tag).collect();
    let attention =
        ScsiResult { fence: true, ..ScsiResult::check_condition(&[0x70, 0, 6, 0, 0, 0, 0, 0], 0) };
    peer.answer(tags[0], Response::Scsi(attention));
    peer.answer(tags[1], Response::Scsi(ScsiResult::good(0)));
    peer.pump();
    let (first, other) = (peer.take(0), peer.take(second));
    assert_eq!((ops(&first), ops(&other)), (vec![Opcode::NOP_IN], vec![Opcode::NOP_IN]));
    peer.feed(0, &pong(&first, 101));
    peer.feed(second, &pong(&other, 101));
    let got = peer.take(second);
    assert_eq!(ops(&got), [Opcode::SCSI_RESPONSE, Opcode::NOP_IN]);
    assert_eq!(got[0].bhs.itt, Itt::new(2));
    peer.feed(second, &pong(&got, 102));
    assert_eq!(peer.take(second)[0].bhs.itt, Itt::new(3));
    assert_eq!(peer.session.tasks_in_work(), 0);
}

/// The server had answered a task before it heard that it is to be aborted, and a fence withheld that
/// answer: it does not come behind the end of the abort.
#[test]
fn a_withheld_answer_does_not_follow_the_end_of_its_abort() {
    for (function, ends) in [
        (TmfFunction::ABORT_TASK, TmfResponseCode::COMPLETE),
        (TmfFunction::QUERY_TASK, TmfResponseCode::SUCCEEDED),
    ] {
        let (mut peer, second) = two_links();
        peer.feed(second, &pdu(&read(2, 0, 8), &[]));
        let (named, _) = *peer.kept.last().unwrap();
        let mut abort = reset(3, 900);
        abort.set_function(function);
        (abort.referenced_tag, abort.ref_cmd_sn) = (Itt::new(2), sn(2));
        peer.feed(second, &pdu(&abort, &[]));
        let (asked, _) = *peer.kept.last().unwrap();
        reset_done(&mut peer, 3, 901);
        let (first, other) = (peer.take(0), peer.take(second));
        peer.answer(named, Response::Scsi(ScsiResult::good(0)));
        peer.answer(asked, Response::Task(TmfResponseCode::NO_TASK));
        peer.pump();
        let got = peer.take(second);
        assert_eq!(ops(&got), [Opcode::TMF_RESPONSE]);
        assert_eq!(got[0].as_pdu::<TmfResponse>().response, ends);
        peer.feed(0, &pong(&first, 101));
        peer.feed(second, &pong(&other, 102));
        let end = peer.take(0);
        peer.feed(0, &pong(&end, 102));
        let late = peer.take(second);
        let came = late.iter().any(|got| got.bhs.itt == Itt::new(2));
        assert_eq!(came, function == TmfFunction::QUERY_TASK, "{late:?}");
        assert_eq!(peer.session.tasks_in_work(), 0);
    }
}

#[test]
fn functions_go_through_one_after_the_other() {
    let (mut peer, second) = two_links();
    reset_done(&mut peer, 2, 900);
    let (first, other) = (peer.take(0), peer.take(second));
    reset_done(&mut peer, 2, 901);
    assert_eq!((peer.take(0), peer.take(second)), (vec![], vec![]));
    peer.feed(second, &pong(&other, 101));
    peer.feed(0, &pong(&first, 101));
    let got = peer.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN]);
    peer.feed(0, &pong(&got, 102));
    let got = peer.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN], "all else is acknowledged");
    peer.feed(0, &pong(&got, 103));
    assert_eq!(
        (peer.session.tasks.fences.acknowledgment_deadline(), peer.session.tasks_in_work()),
        (None, 0)
    );
}

#[test]
fn a_fence_ends_with_its_link_and_lets_others_go_on() {
    for logout in [false, true] {
        let (mut peer, second) = two_links();
        let third = usize::from(peer.attach(link_params(2)).0);
        peer.feed(third, &pdu(&read(2, 0, 8), &[]));
        reset_done(&mut peer, 3, 900);
        let (tag, _) = peer.kept[0];
        peer.answer(tag, Response::Scsi(ScsiResult::good(0)));
        peer.pump();
        assert_eq!(peer.take(third), [], "held");
        let other = peer.take(second);
        if logout {
            let mut leave = LogoutRequest::new();
            leave.set_reason(LogoutReason::CLOSE_CONNECTION);
            leave.op = leave.op.with_immediate();
            (leave.itt, leave.cmd_sn, leave.cid) = (Itt::new(9), sn(3), Cid::new(0));
            peer.feed(0, &pdu(&leave, &[]));
            assert_eq!(ops(&peer.take(0)).last(), Some(&Opcode::LOGOUT_RESPONSE));
        } else {
            peer.hang_up(0);
        }
        assert!(peer.ends[0].shut, "{logout}");
        let got = peer.take(third);
        assert!(got.iter().any(|got| got.bhs.itt == Itt::new(2)), "{logout}: {got:?}");
        peer.feed(second, &pong(&other, 101));
        assert_eq!((peer.session.tasks_in_work(), peer.violations.len()), (0, 0));
    }
}

#[test]
fn attack_34_resets_without_end_that_nobody_acknowledges_are_bounded() {
    let (mut peer, _) = two_links();
    let mut refused = 0;
    for n in 0..100 {
        peer.feed(0, &pdu(&reset(2, 900 + n), &[]));
        for (tag, _) in peer.kept.clone() {
            peer.answer(tag, Response::Task(TmfResponseCode::COMPLETE));
        }
        peer.pump();
        refused += peer.take(0).iter().filter(|got| got.op() == Opcode::REJECT).count();
    }
    assert_eq!(refused, 96, "as many as immediate commands may be in work");
    peer.pass(Duration::from_secs(30));
    assert!(peer.closed, "neither link has acknowledged anything");
}
