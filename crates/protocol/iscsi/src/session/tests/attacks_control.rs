//! Attacks by a hostile initiator with task management, texts, pings and by not reading.

use super::super::*;
use super::attacks::{rejected, still_serves};
use super::scripted_initiator::*;
use crate::wire::*;

fn tmf(n: u32, itt: u32, function: TmfFunction, referenced: u32) -> TmfRequest {
    let mut pdu = TmfRequest::new();
    pdu.set_function(function);
    pdu.op = pdu.op.with_immediate();
    (pdu.lun, pdu.itt, pdu.cmd_sn) = (lun(), Itt::new(itt), sn(n));
    pdu.referenced_tag = Itt::new(referenced);
    pdu.ref_cmd_sn = sn(referenced);
    pdu
}

fn outcome(got: &[ReceivedPdu]) -> TmfResponseCode {
    got.last().unwrap().as_pdu::<TmfResponse>().response
}

#[test]
fn attack_33_aborts_of_what_cannot_be_aborted() {
    let mut peer = ScriptedInitiator::keeping();
    let itself = tmf(0, 900, TmfFunction::ABORT_TASK, 900);
    assert_eq!(outcome(&peer.talk(&pdu(&itself, &[]))), TmfResponseCode::REJECTED);
    peer.feed(0, &pdu(&tmf(0, 901, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    let of_a_tmf = tmf(0, 902, TmfFunction::ABORT_TASK, 901);
    assert_eq!(outcome(&peer.talk(&pdu(&of_a_tmf, &[]))), TmfResponseCode::REJECTED);
    let unknown = tmf(0, 903, TmfFunction::ABORT_TASK, 500);
    assert_eq!(outcome(&peer.talk(&pdu(&unknown, &[]))), TmfResponseCode::NO_TASK);
}

#[test]
fn attack_33_abort_of_a_write_that_waits_for_data() {
    let mut peer = ScriptedInitiator::new();
    let data = pattern(512);
    let ttt = peer.talk(&pdu(&write(0, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
    let abort = pdu(&tmf(1, 900, TmfFunction::ABORT_TASK, 0), &[]);
    assert_eq!(outcome(&peer.talk(&abort)), TmfResponseCode::COMPLETE);
    // Data that was on its way is dropped without a word, and a second abort finds nothing.
    assert_eq!(peer.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data)), []);
    let mut again = tmf(1, 901, TmfFunction::ABORT_TASK, 0);
    again.ref_cmd_sn = sn(0);
    assert_eq!(outcome(&peer.talk(&pdu(&again, &[]))), TmfResponseCode::NO_TASK);
    assert_eq!(peer.disk[0], 0);
    still_serves(&mut peer, 1);
    assert_eq!(peer.pool.usage().lent, 0);
}

/// One reset may end as many writes as there are commands, each in the middle of its burst; what the peer
/// still sends for them it sends in good faith (RFC 7143 §4.2.3.3).
#[test]
fn late_data_of_many_aborted_writes_is_not_rejected() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { commands: 200, ..limits() });
    let asked: Vec<Ttt> = (0..200)
        .map(|n| {
            let ttt = peer.talk(&pdu(&write(n, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
            let abort = pdu(&tmf(n + 1, 900, TmfFunction::ABORT_TASK, n), &[]);
            assert_eq!(outcome(&peer.talk(&abort)), TmfResponseCode::COMPLETE);
            ttt
        })
        .collect();
    for (n, ttt) in asked.iter().enumerate() {
        assert_eq!(peer.talk(&pdu(&data_out(n as u32, *ttt, 0, 0, true), &pattern(512))), [], "{n}");
    }
    still_serves(&mut peer, 200);
}

/// What a NOP-Out may say (RFC 7143 §11.18): the final bit, and a transfer tag of a ping of ours or none.
#[test]
fn nop_outs_that_answer_nothing_are_refused() {
    let mut peer = ScriptedInitiator::new();
    let immediate = |itt| {
        let mut pong = nop(0, itt);
        pong.op = pong.op.with_immediate();
        pong
    };
    let refused = |got: Vec<ReceivedPdu>| {
        let reasons: Vec<_> = got.iter().map(|got| got.as_pdu::<Reject>().reason).collect();
        reasons == [RejectReason::INVALID_PDU_FIELD]
    };
    // A tag that nobody gave, with and without a wish for an answer.
    for itt in [u32::MAX, 77] {
        let mut pong = immediate(itt);
        pong.ttt = Ttt::new(12345);
        assert!(refused(peer.talk(&pdu(&pong, &[]))));
    }
    let mut unfinished = pdu(&immediate(77), &[]);
    unfinished[1] = 0;
    assert!(refused(peer.talk(&unfinished)));
    // An answer, but only one, to each of ours.
    peer.pass(Duration::from_secs(15));
    let mut pong = immediate(u32::MAX);
    pong.ttt = peer.take(0)[0].as_pdu::<NopIn>().ttt;
    assert_eq!(peer.talk(&pdu(&pong, b"data of an answer is nobody's")), []);
    assert!(refused(peer.talk(&pdu(&pong, &[]))));
    still_serves(&mut peer, 0);
}

/// A NOP-Out may answer our ping and ask for an answer itself (RFC 7143 §11.18).
#[test]
fn a_ping_that_answers_ours_is_not_taken_for_silence() {
    for is_immediate in [true, false] {
        let mut peer = ScriptedInitiator::new();
        peer.pass(Duration::from_secs(15));
        let mut both = nop(0, 77);
        both.op = if is_immediate { both.op.with_immediate() } else { both.op };
        both.ttt = peer.take(0)[0].as_pdu::<NopIn>().ttt;
        let got = peer.talk(&pdu(&both, b"hello"));
        assert_eq!((got[0].as_pdu::<NopIn>().itt, &got[0].data[..]), (Itt::new(77), &b"hello"[..]));
        peer.pass(Duration::from_secs(14));
        assert!(peer.take(0).is_empty());
        peer.pass(Duration::from_secs(17));
        assert!(peer.violations.is_empty() && !peer.ends[0].shut, "the next ping has its own time");
    }
}

#[test]
fn attack_33_abort_of_a_command_that_never_came_plugs_the_hole() {
    let mut peer = ScriptedInitiator::new();
    peer.feed(0, &pdu(&read(1, 0, 512), &[]));
    assert_eq!(peer.take(0), []);
    let got = peer.talk(&pdu(&tmf(2, 900, TmfFunction::ABORT_TASK, 0), &[]));
    let ops: Vec<Opcode> = got.iter().map(ReceivedPdu::op).collect();
    assert_eq!(ops, [Opcode::TMF_RESPONSE, Opcode::DATA_IN]);
    assert_eq!(outcome(&got[..1]), TmfResponseCode::COMPLETE);
    still_serves(&mut peer, 2);
}

#[test]
fn attack_34_resets_in_a_loop() {
    let mut peer = ScriptedInitiator::new();
    for n in 0..50 {
        peer.mode = ServerMode::Keep;
        let mut bytes = pdu(&write(n, 0, 4096), &[]);
        bytes.extend(pdu(&tmf(n + 1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
        peer.feed(0, &bytes);
        let (write, reset) = (peer.kept[0].0, peer.kept[1].0);
        peer.with_cx(|session, cx| session.end_without_response(cx, write));
        peer.answer(reset, Response::Task(TmfResponseCode::COMPLETE));
        peer.kept.clear();
        peer.pump();
        assert_eq!(outcome(&peer.take(0)), TmfResponseCode::COMPLETE);
    }
    peer.mode = ServerMode::Serve;
    still_serves(&mut peer, 50);
}

#[test]
fn attack_34_a_reset_waits_for_the_commands_before_it() {
    let mut peer = ScriptedInitiator::keeping();
    let second = peer.attach(link_params(1));
    peer.feed(0, &pdu(&tmf(1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    assert_eq!(peer.kept.len(), 0);
    peer.feed(usize::from(second.0), &pdu(&read(0, 0, 512), &[]));
    assert!(matches!(peer.kept[0].1, Request::Scsi(_)) && matches!(peer.kept[1].1, Request::Task(_)));
}

/// A reset waits for commands that never come, and nothing else does.
#[test]
fn attack_31_a_reset_behind_a_hole_does_not_keep_the_session_for_ever() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { nop_interval: None, ..limits() });
    peer.mode = ServerMode::Keep;
    peer.feed(0, &pdu(&tmf(1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    peer.pass(Duration::from_secs(40));
    // The command comes, and the reset is told; another reset waits for another command.
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    assert_eq!(peer.kept.len(), 2);
    peer.feed(0, &pdu(&tmf(3, 901, TmfFunction::TARGET_WARM_RESET, u32::MAX), &[]));
    peer.pass(Duration::from_secs(40));
    assert!(!peer.closed && peer.violations.is_empty());
    peer.pass(Duration::from_secs(20));
    assert_eq!(peer.violations, [Fault::CommandMissing]);
    // One that died with its link is waited for by nobody: the other link goes on.
    let mut peer = ScriptedInitiator::limited(SessionLimits { nop_interval: None, ..limits() });
    peer.mode = ServerMode::Keep;
    let second = peer.attach(link_params(1));
    peer.feed(usize::from(second.0), &pdu(&tmf(1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    peer.hang_up(usize::from(second.0));
    peer.pass(Duration::from_secs(70));
    assert!(!peer.closed && peer.violations.is_empty());
}

#[test]
fn attack_35_task_reassign_and_functions_of_a_higher_level() {
    let params = SessionParams { protocol_level: 1, ..session_params() };
    let mut peer = ScriptedInitiator::with(params, link_params(0), limits());
    for (function, want) in [
        (TmfFunction::TASK_REASSIGN, TmfResponseCode::NO_REASSIGNMENT),
        (TmfFunction::QUERY_TASK, TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction::I_T_NEXUS_RESET, TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction(0), TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction(0x7f), TmfResponseCode::NOT_SUPPORTED),
    ] {
        assert_eq!(outcome(&peer.talk(&pdu(&tmf(0, 900, function, 0), &[]))), want, "{function:?}");
    }
}

#[test]
fn attack_36_our_ping_is_never_answered() {
    let mut peer = ScriptedInitiator::new();
    peer.pass(Duration::from_secs(15));
    assert_eq!(peer.take(0).len(), 1);
    // Other PDUs are no answer.
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    peer.pass(Duration::from_secs(29));
    assert!(!peer.ends[0].shut);
    peer.pass(Duration::from_secs(1));
    assert_eq!(peer.violations, [Fault::PingUnanswered]);
    assert!(peer.ends[0].shut && peer.closed);
}

#[test]
fn attack_37_a_peer_that_never_reads() {
    let limits = SessionLimits { read_bytes: 256 << 10, nop_interval: None, ..limits() };
    let mut peer = ScriptedInitiator::limited(limits);
    peer.mode = ServerMode::Keep;
    peer.ends[0].deaf = true;
    for n in 0..8 {
        peer.feed(0, &pdu(&read(n, 0, 128 << 10), &[]));
    }
    let allowed: Vec<bool> = peer
        .kept
        .clone()
        .into_iter()
        .map(|(tag, _)| {
            let allowed = peer.session.reserve_send_window(tag, 128 << 10);
            if allowed {
                peer.send_read(tag, 0, 128 << 10);
            }
            allowed
        })
        .collect();
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 2);
    // Pings without end: the session stops reading instead of answering.
    let mut ping = nop(8, 7000);
    ping.op = ping.op.with_immediate();
    for _ in 0..10_000 {
        peer.ends[0].inbox.extend(pdu(&ping, &[0; 4096]));
    }
    peer.pump();
    assert!(!peer.ends[0].inbox.is_empty());
    assert!(peer.pool.usage().lent < 4 << 20, "{:?}", peer.pool.usage());
    peer.pass(Duration::from_secs(60));
    peer.pump();
    assert_eq!(peer.violations, [Fault::Stalled]);
    assert!(peer.closed);
    assert_eq!(peer.pool.usage().lent, 0);
}

/// Who may look for targets need not have proved who it is, and may come a thousand times.
#[test]
fn attack_37_a_discovery_session_that_reads_nothing_holds_little() {
    let params = SessionParams { discovery: true, ..session_params() };
    let mut peer = ScriptedInitiator::with(params, link_params(0), limits());
    peer.ends[0].deaf = true;
    for n in 0..100 {
        let mut ping = nop(0, 7000 + n);
        ping.op = ping.op.with_immediate();
        peer.ends[0].inbox.extend(pdu(&ping, &[0; 4096]));
    }
    peer.pump();
    assert!(!peer.ends[0].inbox.is_empty());
    assert!(peer.pool.usage().lent <= 64 << 10, "{:?}", peer.pool.usage());
}

#[test]
fn attack_37_one_read_is_always_allowed() {
    let limits = SessionLimits { read_bytes: 1000, ..limits() };
    let mut peer = ScriptedInitiator::limited(limits);
    peer.mode = ServerMode::Keep;
    peer.feed(0, &[pdu(&read(0, 0, 4096), &[]), pdu(&read(1, 0, 4096), &[])].concat());
    let (first, second) = (peer.kept[0].0, peer.kept[1].0);
    assert!(peer.session.reserve_send_window(first, 4096));
    assert!(!peer.session.reserve_send_window(second, 4096));
    peer.send_read(first, 0, 4096);
    assert!(!peer.session.reserve_send_window(second, 4096));
    peer.pump();
    assert!(peer.session.reserve_send_window(second, 4096));
    peer.with_cx(|session, cx| session.end_without_response(cx, second));
    assert_eq!(peer.link_state(0).tx.read_bytes, 0);
}

#[test]
fn attack_38_snack_has_no_place() {
    let mut peer = ScriptedInitiator::new();
    for (beg, run) in [(0, 0), (5, 100), (u32::MAX, u32::MAX)] {
        let mut snack = DataOut::new();
        (snack.op, snack.data_sn) = (OpByte::new(Opcode::SNACK), Sn::new(run));
        snack.buffer_offset = beg.into();
        assert_eq!(rejected(&peer.talk(&pdu(&snack, &[]))[0]), RejectReason::PROTOCOL_ERROR);
    }
    still_serves(&mut peer, 0);
}

#[test]
fn attack_39_exp_stat_sn_far_off() {
    let mut peer = ScriptedInitiator::new();
    for (n, exp) in [0, 50, 100_000, 1 << 31, u32::MAX].into_iter().enumerate() {
        let mut command = read(n as u32, 0, 512);
        command.exp_stat_sn = Sn::new(exp);
        assert_eq!(peer.talk(&pdu(&command, &[])).len(), 1);
        assert_eq!(peer.link_state(0).acked, Sn::new(99));
    }
    let mut command = read(5, 0, 512);
    command.exp_stat_sn = Sn::new(104);
    peer.feed(0, &pdu(&command, &[]));
    assert_eq!(peer.link_state(0).acked, Sn::new(103));
}

#[test]
fn attack_22_a_list_longer_than_a_segment() {
    let params = SessionParams { discovery: true, ..session_params() };
    let link = LinkParams { initiator_mrdsl: 512, ..link_params(0) };
    let mut peer = ScriptedInitiator::with(params, link, limits());
    let mut request = TextRequest::new();
    (request.itt, request.flags, request.cmd_sn) = (Itt::new(5), TextFlags::FINAL, sn(0));
    peer.records = peer.records.repeat(5000);
    let mut answer = peer.talk(&pdu(&request, b"SendTargets=All\0"));
    let mut n = 1;
    let mut whole = Vec::new();
    loop {
        let response: TextResponse = answer[0].as_pdu();
        assert!(answer[0].data.len() <= 512);
        whole.extend(answer[0].data.clone());
        if response.flags.contains(TextFlags::FINAL) {
            break;
        }
        (request.ttt, request.cmd_sn) = (response.ttt, sn(n));
        n += 1;
        answer = peer.talk(&pdu(&request, &[]));
    }
    assert!(whole == peer.records);
    // SCSI has no place in a discovery session.
    assert_eq!(rejected(&peer.talk(&pdu(&read(n, 0, 512), &[]))[0]), RejectReason::PROTOCOL_ERROR);
}

#[test]
fn attack_23_texts_out_of_step() {
    let mut peer = ScriptedInitiator::new();
    let mut request = TextRequest::new();
    (request.itt, request.cmd_sn) = (Itt::new(5), sn(0));
    let reason =
        |peer: &mut ScriptedInitiator, request: &TextRequest| rejected(&peer.talk(&pdu(request, &[]))[0]);
    request.flags = TextFlags::FINAL.with(TextFlags::CONTINUE);
    assert_eq!(reason(&mut peer, &request), RejectReason::PROTOCOL_ERROR);
    (request.flags, request.ttt) = (TextFlags::FINAL, Ttt::new(77));
    assert_eq!(reason(&mut peer, &request), RejectReason::INVALID_PDU_FIELD);
    // One exchange open; another one begun takes its place.
    (request.flags, request.ttt) = (TextFlags::CONTINUE, Ttt::NONE);
    let open = peer.talk(&pdu(&request, b"SendTar"));
    let ttt = open[0].as_pdu::<TextResponse>().ttt;
    (request.itt, request.cmd_sn) = (Itt::new(6), sn(1));
    let open = peer.talk(&pdu(&request, b"SendTar"));
    assert_ne!(open[0].as_pdu::<TextResponse>().ttt, ttt);
    // The tag of the exchange that was left, then the right one.
    (request.ttt, request.cmd_sn) = (ttt, sn(2));
    assert_eq!(reason(&mut peer, &request), RejectReason::INVALID_PDU_FIELD);
    (request.ttt, request.flags) = (open[0].as_pdu::<TextResponse>().ttt, TextFlags::FINAL);
    let got = peer.talk(&pdu(&request, b"gets=\0"));
    assert!(got[0].data.starts_with(b"TargetName="));
}

#[test]
fn attack_06_a_text_without_end() {
    let mut peer = ScriptedInitiator::new();
    let mut request = TextRequest::new();
    (request.itt, request.flags) = (Itt::new(5), TextFlags::CONTINUE);
    let mut last = Vec::new();
    for n in 0..4 {
        request.cmd_sn = sn(n);
        last = peer.talk(&pdu(&request, &[b'K'; 8000]));
        match last[0].op() {
            Opcode::TEXT_RESPONSE => request.ttt = last[0].as_pdu::<TextResponse>().ttt,
            _other => break,
        }
    }
    assert_eq!(rejected(&last[0]), RejectReason::PROTOCOL_ERROR);
    assert!(peer.link_state(0).text.is_none());
}
