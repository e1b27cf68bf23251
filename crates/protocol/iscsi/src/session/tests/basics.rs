//! Reads, writes, pings, texts, logout: the normal course of a session.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::{self, *};

#[test]
fn a_read_comes_as_data_in_with_status() {
    let mut peer = ScriptedInitiator::new();
    let got = peer.talk(&pdu(&read(0, 512, 10_000), &[]));
    assert_eq!(got.len(), 3);
    let whole: Vec<u8> = got.iter().flat_map(|pdu| pdu.data.clone()).collect();
    assert_eq!(whole, peer.disk[512..10_512]);
    for (i, pdu) in got.iter().enumerate() {
        let data: DataIn = pdu.as_pdu();
        assert_eq!((data.data_sn.value(), data.buffer_offset.get()), (i as u32, 4096 * i as u32));
        assert_eq!(data.flags.contains(DataInFlags::STATUS), i == 2);
        assert_eq!(data.flags.contains(DataInFlags::FINAL), i == 2);
    }
    let last: DataIn = got[2].as_pdu();
    assert_eq!((last.status, last.stat_sn, last.residual.get()), (ScsiStatus::GOOD, Sn::new(100), 0));
    assert_eq!((last.exp_cmd_sn, last.max_cmd_sn), (sn(1), sn(8)));
    assert_eq!(peer.session.tasks_in_work(), 0);
}

#[test]
fn sequences_end_at_max_burst() {
    let mut peer = ScriptedInitiator::new();
    let got = peer.talk(&pdu(&read(0, 0, 40_000), &[]));
    let finals: Vec<u32> = got
        .iter()
        .map(|pdu| pdu.as_pdu::<DataIn>())
        .filter(|data| data.flags.contains(DataInFlags::FINAL))
        .map(|data| data.buffer_offset.get() + data.data_segment_len.value())
        .collect();
    assert_eq!(finals, [16384, 32768, 40_000]);
}

#[test]
fn a_write_with_immediate_data_goes_through() {
    let mut peer = ScriptedInitiator::new();
    let data = pattern(4096);
    let got = peer.talk(&pdu(&write(0, 8192, 4096), &data));
    assert_eq!(peer.disk[8192..12288], data);
    let response: ScsiResponse = got[0].as_pdu();
    assert_eq!((got.len(), response.status, response.exp_data_sn), (1, ScsiStatus::GOOD, Sn::new(0)));
    assert_eq!(response.flags, ResponseFlags::FINAL);
}

#[test]
fn a_write_asks_for_the_rest_by_r2t() {
    let mut peer = ScriptedInitiator::new();
    let data = pattern(40_000);
    let got = peer.talk(&pdu(&write(0, 0, 40_000), &data[..4096]));
    let asked: Vec<R2t> = got.iter().map(ReceivedPdu::as_pdu).collect();
    let spans: Vec<_> = asked
        .iter()
        .map(|r2t| (r2t.r2t_sn.value(), r2t.buffer_offset.get(), r2t.desired_len.get()))
        .collect();
    // MaxOutstandingR2T is 2, MaxBurstLength 16384.
    assert_eq!(spans, [(0, 4096, 16384), (1, 20480, 16384)]);
    let mut bytes = Vec::new();
    for (i, start) in (4096..20480).step_by(8192).enumerate() {
        let out = data_out(0, asked[0].ttt, i as u32, start as u32, i == 1);
        bytes.extend(pdu(&out, &data[start..start + 8192]));
    }
    let got = peer.talk(&bytes);
    let third: R2t = got[0].as_pdu();
    assert_eq!((third.buffer_offset.get(), third.desired_len.get()), (36864, 40_000 - 36864));
    let mut bytes = Vec::new();
    for (i, start) in (20480..36864).step_by(8192).enumerate() {
        bytes.extend(pdu(
            &data_out(0, asked[1].ttt, i as u32, start as u32, i == 1),
            &data[start..start + 8192],
        ));
    }
    bytes.extend(pdu(&data_out(0, third.ttt, 0, 36864, true), &data[36864..]));
    let got = peer.talk(&bytes);
    let response: ScsiResponse = got[0].as_pdu();
    assert_eq!((response.status, response.exp_data_sn.value()), (ScsiStatus::GOOD, 3));
    assert_eq!(peer.disk[..40_000], data);
}

#[test]
fn unsolicited_data_out_needs_no_r2t() {
    let mut peer = ScriptedInitiator::new();
    let data = pattern(8192);
    let mut command = write(0, 0, 8192);
    command.flags = command.flags.without(CommandFlags::FINAL);
    let mut bytes = pdu(&command, &data[..1000]);
    bytes.extend(pdu(&data_out(0, Ttt::NONE, 0, 1000, false), &data[1000..4000]));
    bytes.extend(pdu(&data_out(0, Ttt::NONE, 1, 4000, true), &data[4000..]));
    let got = peer.talk(&bytes);
    assert_eq!(got[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(peer.disk[..8192], data);
}

#[test]
fn residuals_compare_the_scsi_length_with_the_expected_one() {
    let mut peer = ScriptedInitiator::keeping();
    let mut answers = Vec::new();
    for (n, transferred) in [(0, 600), (1, 512), (2, 100)] {
        peer.feed(0, &pdu(&read(n, 0, 512), &[]));
        let (tag, _) = peer.kept.pop().unwrap();
        let mut data = peer.pool.take_sg(buf::MemoryClass::Solicited, transferred as usize).unwrap();
        data.zero(0..transferred as usize);
        peer.with_cx(|session, cx| {
            session.send_data(cx, tag, 0, data.freeze());
            session.respond(cx, tag, Response::Scsi(ScsiResult::good(transferred)));
        });
        peer.pump();
        let got = peer.take(0);
        let data: DataIn = got[0].as_pdu();
        answers.push((data.flags.without(DataInFlags::FINAL).0, data.residual.get(), got[0].data.len()));
    }
    assert_eq!(answers, [(0x05, 88, 512), (0x01, 0, 512), (0x03, 412, 100)]);
}

#[test]
fn check_condition_carries_sense_and_qualifier() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    let (tag, _) = peer.kept.pop().unwrap();
    let result = ScsiResult { qualifier: 0x1234, ..ScsiResult::check_condition(&[0x70, 0, 5], 0) };
    peer.answer(tag, Response::Scsi(result));
    peer.pump();
    let got = peer.take(0);
    let response: ScsiResponse = got[0].as_pdu();
    assert_eq!(got[0].data, [0, 3, 0x70, 0, 5]);
    assert_eq!((response.status, response.status_qualifier.get()), (ScsiStatus::CHECK_CONDITION, 0x1234));
    assert_eq!((response.flags.contains(ResponseFlags::UNDERFLOW), response.residual.get()), (true, 512));
}

#[test]
fn target_failure_has_no_status() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    let (tag, _) = peer.kept.pop().unwrap();
    peer.answer(tag, Response::TargetFailure);
    peer.pump();
    let response: ScsiResponse = peer.take(0)[0].as_pdu();
    assert_eq!((response.response, response.flags.0), (ScsiResponseCode::TARGET_FAILURE, 0x80));
}

#[test]
fn a_long_cdb_and_a_bidirectional_command_are_delivered() {
    let mut peer = ScriptedInitiator::keeping();
    let mut command = write(0, 0, 512);
    command.flags = command.flags.with(CommandFlags::READ);
    command.cdb = [0x7f; 16];
    command.cdb[7] = 24;
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([9; 16]);
    ahs.extend([0, 5, 2, 0, 0, 0, 4, 0]);
    peer.feed(0, &digested(&command, &ahs, &[], false, false));
    let (tag, Request::Scsi(scsi)) = peer.kept.pop().unwrap() else { panic!("a SCSI command") };
    assert_eq!(scsi.cdb.as_slice().len(), 32);
    assert_eq!((scsi.read, scsi.write, scsi.edtl, scsi.bidi_read_len), (true, true, 512, 1024));
    peer.answer(tag, Response::Scsi(ScsiResult::check_condition(&[0x70], 0)));
    peer.pump();
    let response: ScsiResponse = peer.take(0)[0].as_pdu();
    assert!(response.flags.contains(ResponseFlags::BIDI_UNDERFLOW.with(ResponseFlags::UNDERFLOW)));
    assert_eq!((response.bidi_residual.get(), response.residual.get()), (1024, 512));
}

#[test]
fn pings_are_echoed_and_ours_are_answered() {
    let mut peer = ScriptedInitiator::new();
    let mut ping = nop(0, 77);
    let got = peer.talk(&pdu(&ping, b"hello"));
    let echo: NopIn = got[0].as_pdu();
    assert_eq!((echo.itt, echo.ttt, &got[0].data[..]), (Itt::new(77), Ttt::NONE, &b"hello"[..]));
    assert_eq!((echo.stat_sn, echo.exp_cmd_sn), (Sn::new(100), sn(1)));
    ping.op = ping.op.with_immediate();
    ping.cmd_sn = sn(1);
    let echo: NopIn = peer.talk(&pdu(&ping, &[]))[0].as_pdu();
    assert_eq!((echo.stat_sn, echo.exp_cmd_sn), (Sn::new(101), sn(1)));
    peer.pass(Duration::from_secs(15));
    let ours: NopIn = peer.take(0)[0].as_pdu();
    assert_eq!((ours.itt, ours.stat_sn), (Itt::NONE, Sn::new(102)));
    assert!(!ours.ttt.is_none());
    let mut pong = nop(1, u32::MAX);
    pong.op = pong.op.with_immediate();
    pong.ttt = ours.ttt;
    assert_eq!(peer.talk(&pdu(&pong, &[])), []);
    peer.pass(Duration::from_secs(10));
    assert!(!peer.ends[0].shut);
}

#[test]
fn logout_ends_the_session_when_its_tasks_are_gone() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    let mut logout = LogoutRequest::new();
    logout.set_reason(LogoutReason::CLOSE_SESSION);
    (logout.itt, logout.cmd_sn) = (Itt::new(9), sn(1));
    let got = peer.talk(&pdu(&logout, &[]));
    let response: LogoutResponse = got[0].as_pdu();
    assert_eq!((response.response, response.time2wait.get()), (LogoutResponseCode::CLOSED, 2));
    assert_eq!((peer.aborted.len(), peer.closed, peer.ends[0].shut), (1, true, true));
    assert_eq!(peer.session.poll_timeout(), None);
    assert_eq!(peer.pool.usage().lent, 0);
}

fn logout_request(itt: u32, n: u32) -> Vec<u8> {
    let mut logout = LogoutRequest::new();
    logout.set_reason(LogoutReason::CLOSE_SESSION);
    (logout.itt, logout.cmd_sn) = (Itt::new(itt), sn(n));
    pdu(&logout, &[])
}

/// A reservation of the nexus, for one, is gone when the initiator hears that it is out.
#[test]
fn logout_is_not_answered_before_nothing_is_left_of_the_nexus() {
    let mut peer = ScriptedInitiator::new();
    peer.keeps_nexus = true;
    assert_eq!(peer.talk(&logout_request(9, 0)), []);
    assert_eq!((peer.leavings, peer.closed), (1, false));
    // Nor does anything come to it meanwhile.
    let late = peer.with_cx(|session, cx| session.attach_link(cx, link_params(1), &[]));
    assert_eq!(late, Err(AttachError::Closing));
    peer.with_cx(|session, cx| session.handle_nexus_ended(cx));
    peer.pump();
    assert_eq!(peer.take(0)[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert!(peer.closed && peer.ends[0].shut);
    assert_eq!(peer.leavings, 1, "asked once");
}

#[test]
fn a_nexus_that_does_not_end_does_not_hold_a_logout_for_ever() {
    let mut peer = ScriptedInitiator::new();
    peer.keeps_nexus = true;
    assert_eq!(peer.talk(&logout_request(9, 0)), []);
    peer.pass(Duration::from_millis(4_999));
    assert_eq!((peer.take(0), peer.closed), (vec![], false));
    assert!(
        peer.with_cx(|session, _| session.poll_timeout())
            .is_some_and(|time| time <= peer.now + Duration::from_millis(1))
    );
    peer.pass(Duration::from_millis(1));
    assert_eq!(peer.take(0)[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert!(peer.closed);
    // What comes too late changes nothing.
    peer.with_cx(|session, cx| session.handle_nexus_ended(cx));
}

/// A session that is reinstated gives its name to the next only then.
#[test]
fn a_session_that_is_cut_off_is_not_told_as_closed_before_nothing_is_left_of_its_nexus() {
    for late in [false, true] {
        let mut peer = ScriptedInitiator::new();
        peer.keeps_nexus = true;
        peer.with_cx(|session, cx| session.close(cx, ConnectionClose::Now));
        peer.pump();
        assert_eq!((peer.leavings, peer.closed), (1, false));
        if late {
            peer.pass(Duration::from_secs(5));
        } else {
            peer.with_cx(|session, cx| session.handle_nexus_ended(cx));
            peer.pump();
        }
        assert!(peer.closed, "{late}");
        assert_eq!(peer.leavings, 1);
    }
}

/// One of several connections: the nexus goes on, and what it has made stays.
#[test]
fn the_logout_of_one_connection_of_two_ends_nothing_of_the_nexus() {
    let mut peer = ScriptedInitiator::new();
    peer.attach(link_params(1));
    let mut logout = LogoutRequest::new();
    logout.set_reason(LogoutReason::CLOSE_CONNECTION);
    (logout.itt, logout.cmd_sn, logout.cid) = (Itt::new(9), sn(0), Cid::new(1));
    let got = peer.talk(&pdu(&logout, &[]));
    assert_eq!(got[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert_eq!(peer.leavings, 0);
    (logout.itt, logout.cmd_sn, logout.cid) = (Itt::new(10), sn(1), Cid::new(0));
    peer.keeps_nexus = true;
    assert_eq!(peer.talk(&pdu(&logout, &[])), [], "the last one");
    assert_eq!(peer.leavings, 1);
}

#[test]
fn logouts_that_cannot_be_are_answered() {
    let mut peer = ScriptedInitiator::new();
    for (n, reason, cid, want) in [
        (0, LogoutReason::CLOSE_CONNECTION, 7, LogoutResponseCode::CID_NOT_FOUND),
        (1, LogoutReason::REMOVE_FOR_RECOVERY, 0, LogoutResponseCode::RECOVERY_NOT_SUPPORTED),
    ] {
        let mut logout = LogoutRequest::new();
        logout.set_reason(reason);
        (logout.itt, logout.cmd_sn, logout.cid) = (Itt::new(9), sn(n), Cid::new(cid));
        assert_eq!(peer.talk(&pdu(&logout, &[]))[0].as_pdu::<LogoutResponse>().response, want);
    }
    assert!(!peer.ends[0].shut);
}

fn text(n: u32, itt: u32, ttt: Ttt, flags: TextFlags) -> TextRequest {
    let mut pdu = TextRequest::new();
    (pdu.itt, pdu.ttt, pdu.flags, pdu.cmd_sn) = (Itt::new(itt), ttt, flags, sn(n));
    pdu
}

#[test]
fn send_targets_in_pieces() {
    let mut link = link_params(0);
    link.initiator_mrdsl = 512;
    let mut params = session_params();
    params.discovery = true;
    let mut peer = ScriptedInitiator::with(params, link, limits());
    let first = peer.talk(&pdu(&text(0, 5, Ttt::NONE, TextFlags::CONTINUE), b"SendTar"));
    let more: TextResponse = first[0].as_pdu();
    assert_eq!((more.flags.0, first[0].data.len()), (0, 0));
    let got = peer.talk(&pdu(&text(1, 5, more.ttt, TextFlags::FINAL), b"gets=All\0"));
    let last: TextResponse = got[0].as_pdu();
    assert_eq!((last.flags, last.ttt, last.itt), (TextFlags::FINAL, Ttt::NONE, Itt::new(5)));
    assert!(got[0].data.starts_with(b"TargetName=iqn.x:a\0"));
    assert!(peer.log[0].contains("SendTargets(All)"));
}

#[test]
fn declared_segment_length_takes_effect() {
    let mut peer = ScriptedInitiator::new();
    let request = text(0, 5, Ttt::NONE, TextFlags::FINAL);
    let got = peer.talk(&pdu(&request, b"MaxRecvDataSegmentLength=1024\0X-com.example=1\0"));
    assert!(got[0].data.ends_with(b"X-com.example=NotUnderstood\0"));
    let got = peer.talk(&pdu(&read(1, 0, 2048), &[]));
    assert_eq!(got.len(), 2);
}

#[test]
fn close_after_logout_asks_and_then_ends() {
    let mut peer = ScriptedInitiator::new();
    let until = peer.now + Duration::from_secs(5);
    peer.with_cx(|session, cx| session.close(cx, ConnectionClose::AfterLogout(until)));
    peer.pump();
    let message: wire::AsyncMessage = peer.take(0)[0].as_pdu();
    assert_eq!((message.event, message.parameter3.get()), (AsyncEvent::LOGOUT_REQUEST, 5));
    // Commands in flight are still served.
    assert_eq!(peer.talk(&pdu(&read(0, 0, 512), &[])).len(), 1);
    // Who is asked again gets no more time.
    peer.pass(Duration::from_secs(3));
    let until = peer.now + Duration::from_secs(5);
    peer.with_cx(|session, cx| session.close(cx, ConnectionClose::AfterLogout(until)));
    peer.pump();
    let message: wire::AsyncMessage = peer.take(0)[0].as_pdu();
    assert_eq!((message.event, message.parameter3.get()), (AsyncEvent::LOGOUT_REQUEST, 2));
    peer.pass(Duration::from_secs(2));
    assert!(peer.closed && peer.ends[0].shut);
}
