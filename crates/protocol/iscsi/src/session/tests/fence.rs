//! The response fence over several links.

use super::super::*;
use super::pair::*;
use crate::wire::*;

/// Two links, with a read answered on each and nothing of it acknowledged.
fn two_links() -> (Pair, usize) {
    let mut pair = Pair::new();
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.feed(0, &pdu(&read(0, 0, 512), &[]));
    pair.feed(second, &pdu(&read(1, 0, 512), &[]));
    assert_eq!((pair.take(0).len(), pair.take(second).len()), (1, 1));
    pair.mode = Mode::Keep;
    (pair, second)
}

fn reset(n: u32, itt: u32) -> TmfRequest {
    let mut pdu = TmfRequest::new();
    pdu.set_function(TmfFunction::LOGICAL_UNIT_RESET);
    pdu.op = pdu.op.immediate();
    (pdu.lun, pdu.itt, pdu.cmd_sn) = (lun(), Itt::new(itt), sn(n));
    (pdu.exp_stat_sn, pdu.referenced_tag) = (Sn::new(100), Itt::NONE);
    pdu
}

/// Resets the unit by link 0, and lets the server say that it is done.
fn reset_done(pair: &mut Pair, n: u32, itt: u32) {
    pair.feed(0, &pdu(&reset(n, itt), &[]));
    let (tag, _) = *pair.kept.iter().rfind(|(_, request)| matches!(request, Request::Task(_))).unwrap();
    pair.answer(tag, Response::Task(TmfResponseCode::COMPLETE));
    pair.pump();
}

fn ops(got: &[Got]) -> Vec<Opcode> {
    got.iter().map(Got::op).collect()
}

/// The answer to the last of these if it is a ping, acknowledging all before `exp`.
fn pong(got: &[Got], exp: u32) -> Vec<u8> {
    let ping: NopIn = got.last().unwrap().as_pdu();
    assert!(ping.itt.is_none() && !ping.ttt.is_none());
    let mut pong = nop(0, 0);
    pong.op = pong.op.immediate();
    (pong.itt, pong.ttt, pong.exp_stat_sn) = (Itt::NONE, ping.ttt, Sn::new(exp));
    pdu(&pong, &[])
}

#[test]
fn one_link_needs_no_fence() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    reset_done(&mut pair, 0, 900);
    assert_eq!(ops(&pair.take(0)), [Opcode::TMF_RESPONSE]);
    assert_eq!(pair.session.tasks.fence_deadline(), None);
}

#[test]
fn the_end_of_a_reset_follows_every_acknowledgment_and_goes_before_what_follows() {
    let (mut pair, second) = two_links();
    reset_done(&mut pair, 2, 900);
    let (first_pings, second_pings) = (pair.take(0), pair.take(second));
    assert_eq!((ops(&first_pings), ops(&second_pings)), (vec![Opcode::NOP_IN], vec![Opcode::NOP_IN]));
    // A command that comes meanwhile is carried out, and its answer waits.
    pair.kept.clear();
    let mut other = read(3, 0, 8);
    other.lun = Lun::single_level(4).unwrap();
    pair.feed(second, &[pdu(&read(2, 0, 8), &[]), pdu(&other, &[])].concat());
    for (tag, _) in pair.kept.clone() {
        pair.answer(tag, Response::Scsi(ScsiResult::good(0)));
    }
    pair.pump();
    let got = pair.take(second);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].bhs.itt, Itt::new(3), "another unit's is not held");
    pair.feed(0, &pong(&first_pings, 101));
    assert_eq!(pair.take(0), [], "the other link has acknowledged nothing");
    pair.feed(second, &pong(&second_pings, 101));
    let got = pair.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN]);
    assert_eq!(got[0].as_pdu::<TmfResponse>().stat_sn, Sn::new(101));
    assert_eq!(pair.take(second), [], "until the initiator has the end of the reset");
    pair.feed(0, &pong(&got, 102));
    assert_eq!(pair.take(second)[0].bhs.itt, Itt::new(2));
    assert_eq!((pair.session.tasks_in_work(), pair.violations.len()), (0, 0));
    assert_eq!(pair.session.tasks.fence_deadline(), None);
}

#[test]
fn acknowledgments_ride_on_any_request() {
    let (mut pair, second) = two_links();
    let mut early = nop(2, 70);
    early.exp_stat_sn = Sn::new(101);
    pair.feed(second, &pdu(&early, &[]));
    pair.take(second);
    // That ping's answer is not acknowledged yet.
    reset_done(&mut pair, 3, 900);
    assert_eq!((pair.take(0).len(), pair.take(second).len()), (1, 1));
    let mut ping = nop(3, 71);
    ping.exp_stat_sn = Sn::new(102);
    pair.feed(second, &pdu(&ping, &[]));
    let mut ping = nop(4, 72);
    ping.exp_stat_sn = Sn::new(101);
    pair.feed(0, &pdu(&ping, &[]));
    assert!(ops(&pair.take(0)).contains(&Opcode::TMF_RESPONSE));
}

#[test]
fn a_link_that_acknowledges_nothing_is_dropped() {
    for answers in [false, true] {
        let (mut pair, second) = two_links();
        reset_done(&mut pair, 2, 900);
        let (first, other) = (pair.take(0), pair.take(second));
        pair.feed(0, &pong(&first, 101));
        if answers {
            // An answer that acknowledges nothing is none.
            pair.feed(second, &pong(&other, 100));
        }
        assert_eq!(pair.session.poll_timeout().map(|at| at.since(pair.now)), Some(Duration::from_secs(15)));
        pair.pass(Duration::from_secs(29));
        assert!(!pair.ends[second].shut);
        let pings: Vec<Got> = pair.take(0);
        if !pings.is_empty() {
            pair.feed(0, &pong(&pings, 101));
        }
        pair.pass(Duration::from_secs(1));
        assert_eq!(pair.violations, [Fault::Unacknowledged], "{answers}");
        assert!(pair.ends[second].shut && !pair.ends[0].shut);
        let got = pair.take(0);
        assert!(ops(&got).contains(&Opcode::TMF_RESPONSE), "{got:?}");
        assert_eq!(pair.session.tasks.fence_deadline(), None, "one link is left");
    }
}

#[test]
fn what_the_server_marks_is_fenced_and_comes_once() {
    let (mut pair, second) = two_links();
    pair.feed(second, &[pdu(&read(2, 0, 8), &[]), pdu(&read(3, 0, 8), &[])].concat());
    let tags: Vec<Tag> = pair.kept.iter().map(|(tag, _)| *tag).collect();
    let attention =
        ScsiResult { fence: true, ..ScsiResult::check_condition(&[0x70, 0, 6, 0, 0, 0, 0, 0], 0) };
    pair.answer(tags[0], Response::Scsi(attention));
    pair.answer(tags[1], Response::Scsi(ScsiResult::good(0)));
    pair.pump();
    let (first, other) = (pair.take(0), pair.take(second));
    assert_eq!((ops(&first), ops(&other)), (vec![Opcode::NOP_IN], vec![Opcode::NOP_IN]));
    pair.feed(0, &pong(&first, 101));
    pair.feed(second, &pong(&other, 101));
    let got = pair.take(second);
    assert_eq!(ops(&got), [Opcode::SCSI_RESPONSE, Opcode::NOP_IN]);
    assert_eq!(got[0].bhs.itt, Itt::new(2));
    pair.feed(second, &pong(&got, 102));
    assert_eq!(pair.take(second)[0].bhs.itt, Itt::new(3));
    assert_eq!(pair.session.tasks_in_work(), 0);
}

/// The server had answered a task before it heard that it is to be aborted, and a fence withheld that
/// answer: it does not come behind the end of the abort.
#[test]
fn a_withheld_answer_does_not_follow_the_end_of_its_abort() {
    for (function, ends) in [
        (TmfFunction::ABORT_TASK, TmfResponseCode::COMPLETE),
        (TmfFunction::QUERY_TASK, TmfResponseCode::SUCCEEDED),
    ] {
        let (mut pair, second) = two_links();
        pair.feed(second, &pdu(&read(2, 0, 8), &[]));
        let (named, _) = *pair.kept.last().unwrap();
        let mut abort = reset(3, 900);
        abort.set_function(function);
        (abort.referenced_tag, abort.ref_cmd_sn) = (Itt::new(2), sn(2));
        pair.feed(second, &pdu(&abort, &[]));
        let (asked, _) = *pair.kept.last().unwrap();
        reset_done(&mut pair, 3, 901);
        let (first, other) = (pair.take(0), pair.take(second));
        pair.answer(named, Response::Scsi(ScsiResult::good(0)));
        pair.answer(asked, Response::Task(TmfResponseCode::NO_TASK));
        pair.pump();
        let got = pair.take(second);
        assert_eq!(ops(&got), [Opcode::TMF_RESPONSE]);
        assert_eq!(got[0].as_pdu::<TmfResponse>().response, ends);
        pair.feed(0, &pong(&first, 101));
        pair.feed(second, &pong(&other, 102));
        let end = pair.take(0);
        pair.feed(0, &pong(&end, 102));
        let late = pair.take(second);
        let came = late.iter().any(|got| got.bhs.itt == Itt::new(2));
        assert_eq!(came, function == TmfFunction::QUERY_TASK, "{late:?}");
        assert_eq!(pair.session.tasks_in_work(), 0);
    }
}

#[test]
fn functions_go_through_one_after_the_other() {
    let (mut pair, second) = two_links();
    reset_done(&mut pair, 2, 900);
    let (first, other) = (pair.take(0), pair.take(second));
    reset_done(&mut pair, 2, 901);
    assert_eq!((pair.take(0), pair.take(second)), (vec![], vec![]));
    pair.feed(second, &pong(&other, 101));
    pair.feed(0, &pong(&first, 101));
    let got = pair.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN]);
    pair.feed(0, &pong(&got, 102));
    let got = pair.take(0);
    assert_eq!(ops(&got), [Opcode::TMF_RESPONSE, Opcode::NOP_IN], "all else is acknowledged");
    pair.feed(0, &pong(&got, 103));
    assert_eq!((pair.session.tasks.fence_deadline(), pair.session.tasks_in_work()), (None, 0));
}

#[test]
fn a_fence_ends_with_its_link_and_lets_others_go_on() {
    for logout in [false, true] {
        let (mut pair, second) = two_links();
        let third = usize::from(pair.attach(link_params(2)).0);
        pair.feed(third, &pdu(&read(2, 0, 8), &[]));
        reset_done(&mut pair, 3, 900);
        let (tag, _) = pair.kept[0];
        pair.answer(tag, Response::Scsi(ScsiResult::good(0)));
        pair.pump();
        assert_eq!(pair.take(third), [], "held");
        let other = pair.take(second);
        if logout {
            let mut leave = LogoutRequest::new();
            leave.set_reason(LogoutReason::CLOSE_CONNECTION);
            leave.op = leave.op.immediate();
            (leave.itt, leave.cmd_sn, leave.cid) = (Itt::new(9), sn(3), Cid::new(0));
            pair.feed(0, &pdu(&leave, &[]));
            assert_eq!(ops(&pair.take(0)).last(), Some(&Opcode::LOGOUT_RESPONSE));
        } else {
            pair.hang_up(0);
        }
        assert!(pair.ends[0].shut, "{logout}");
        let got = pair.take(third);
        assert!(got.iter().any(|got| got.bhs.itt == Itt::new(2)), "{logout}: {got:?}");
        pair.feed(second, &pong(&other, 101));
        assert_eq!((pair.session.tasks_in_work(), pair.violations.len()), (0, 0));
    }
}

#[test]
fn attack_34_resets_without_end_that_nobody_acknowledges_are_bounded() {
    let (mut pair, _) = two_links();
    let mut refused = 0;
    for n in 0..100 {
        pair.feed(0, &pdu(&reset(2, 900 + n), &[]));
        for (tag, _) in pair.kept.clone() {
            pair.answer(tag, Response::Task(TmfResponseCode::COMPLETE));
        }
        pair.pump();
        refused += pair.take(0).iter().filter(|got| got.op() == Opcode::REJECT).count();
    }
    assert_eq!(refused, 96, "as many as immediate commands may be in work");
    pair.pass(Duration::from_secs(30));
    assert!(pair.closed, "neither link has acknowledged anything");
}
