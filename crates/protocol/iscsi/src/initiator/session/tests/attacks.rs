//! Attacks by a hostile target in full feature phase, each with fixed bytes. In every case the session ends
//! or answers in a defined way, every command comes back once with its memory, and no old byte is returned.

use super::super::*;
use super::scripted_target::*;
use super::wire::*;
use crate::discovery::SendTargets;
use crate::session::SenseBytes;
use crate::wire::{
    AsyncEvent, AsyncMessage, BHS_LEN, Bhs, DataInFlags, NopIn, NopOut, OpByte, Opcode, Pdu, R2t, Reject,
    RejectReason, ResponseFlags, ScsiStatus, Sn, TextResponse, TmfFunction, TmfResponse, Ttt,
};

fn answered(status: ScsiStatus, transferred: u32, residual: Residual) -> Response {
    Response::Scsi(ScsiAnswer { status, transferred, residual, sense: SenseBytes::new() })
}

#[test]
fn attack_79_sense_longer_than_its_segment() {
    for data in [&[0, 19, 0x70, 0, 5][..], &[0xff, 0xff, 0x70, 0], &[0]] {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(status(ScsiStatus::CHECK_CONDITION), data);
        peer.assert_ended(Fault::Sense, &[]);
    }
    // A whole segment of sense: 252 bytes of it are taken.
    let mut peer = ScriptedTarget::reading(512);
    peer.say(status(ScsiStatus::CHECK_CONDITION), &[&[0x1f, 0xfe][..], &[0x70; 0x1ffe]].concat());
    let (Response::Scsi(answer), data) = peer.outcome() else { panic!() };
    assert_eq!((answer.sense.len(), data), (252, vec![0; 512]));
}

#[test]
fn attack_80_check_condition_without_sense() {
    for data in [&[][..], &[0, 0], &[0, 0, 0x70, 0]] {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(status(ScsiStatus::CHECK_CONDITION), data);
        peer.assert_ended(Fault::Sense, &[]);
    }
    let mut peer = ScriptedTarget::reading(512);
    let mut riding = data_in(0, 0, true);
    riding.status = ScsiStatus::CHECK_CONDITION;
    peer.say(riding, &[1; 512]);
    peer.assert_ended(Fault::Status, &[]);
}

#[test]
fn attack_81_data_beyond_behind_and_over() {
    let cases = [
        (data_in(0, 0, false), 513, Fault::DataBeyond),
        (data_in(0, 511, false), 2, Fault::DataBeyond),
        (data_in(0, u32::MAX, false), 4, Fault::DataBeyond),
        (data_in(0, 0xffff_ff00, false), 512, Fault::DataBeyond),
        (data_in(0, 4, false), 4, Fault::DataOrder),
        (data_in(1, 0, false), 4, Fault::DataOrder),
    ];
    for (pdu, len, fault) in cases {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(pdu, &vec![0xaa; len]);
        peer.assert_ended(fault, &[]);
    }
    // Overlaps, and gaps, behind good data.
    for at in [0, 96, 104] {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(data_in(0, 0, false), &[1; 100]);
        peer.say(data_in(1, at, false), &[2; 100]);
        peer.assert_ended(Fault::DataOrder, &[1; 100]);
    }
    // GOOD after half of it.
    let mut peer = ScriptedTarget::reading(512);
    peer.say(data_in(0, 0, false), &[1; 100]);
    peer.say(status(ScsiStatus::GOOD), &[]);
    let (response, data) = peer.outcome();
    assert_eq!(response, Response::Lost(NoAnswer::Short));
    assert_eq!(data, [&[1; 100][..], &[0; 412]].concat());
    // As long as the residual says: an answer, as short as it is.
    let mut peer = ScriptedTarget::reading(512);
    let mut short = data_in(0, 0, true);
    (short.flags, short.residual) = (short.flags.with(DataInFlags::UNDERFLOW), 412.into());
    peer.say(short, &[1; 100]);
    let (response, data) = peer.outcome();
    assert_eq!(response, answered(ScsiStatus::GOOD, 100, Residual::Underflow(412)));
    assert_eq!(data, [&[1; 100][..], &[0; 412]].concat());
}

#[test]
fn attack_82_data_for_what_does_not_read() {
    let mut peer = ScriptedTarget::writing(512);
    peer.say(data_in(0, 0, false), &[1; 4]);
    assert_eq!(peer.fault, Some(Fault::WrongTask(Opcode::DATA_IN)));
    assert_eq!(peer.outcome(), (Response::Lost(NoAnswer::Unknown), pattern(512, 0)));
    // For a command that was answered, and for one that never was.
    let mut peer = ScriptedTarget::reading(4);
    peer.say(data_in(0, 0, true), &[1; 4]);
    assert_eq!(peer.outcome().1, [1; 4]);
    peer.say(data_in(1, 0, false), &[2; 4]);
    assert_eq!(peer.fault, Some(Fault::UnknownTask(Opcode::DATA_IN)));
    let mut peer = ScriptedTarget::reading(512);
    let mut stray = data_in(0, 0, false);
    stray.itt = Itt::new(77);
    peer.say(stray, &[1; 4]);
    peer.assert_ended(Fault::UnknownTask(Opcode::DATA_IN), &[]);
}

#[test]
fn attack_83_tags_beyond_all_tables() {
    for itt in [0x8000_0000, 0x7fff_ffff, u32::MAX, 0, 0x1_0001] {
        let mut read = data_in(0, 0, true);
        read.itt = Itt::new(itt);
        let mut response = status(ScsiStatus::GOOD);
        response.itt = Itt::new(itt);
        let mut r2t = r2t(0, 0, 4);
        r2t.itt = Itt::new(itt);
        let (mut task, mut text) = (TmfResponse::new(), TextResponse::new());
        (task.itt, text.itt) = (Itt::new(itt), Itt::new(itt));
        let headers = [read.to_bhs(), response.to_bhs(), r2t.to_bhs(), task.to_bhs(), text.to_bhs()];
        for bhs in headers {
            let mut peer = ScriptedTarget::reading(512);
            let bytes = peer.framed(bhs.bytes(), &[]);
            peer.feed(&bytes);
            peer.assert_ended(Fault::UnknownTask(bhs.opcode()), &[]);
        }
    }
}

#[test]
fn attack_84_a_task_response_for_a_command() {
    let mut peer = ScriptedTarget::reading(512);
    let mut task = TmfResponse::new();
    task.itt = Itt::new(ITT);
    peer.say(task, &[]);
    peer.assert_ended(Fault::WrongTask(Opcode::TMF_RESPONSE), &[]);
    let mut peer = ScriptedTarget::new();
    let reset = TaskManagement { function: TmfFunction::LOGICAL_UNIT_RESET, lun: [0; 8], referenced: None };
    peer.submit(Request::Task(reset), Payload::None).unwrap();
    peer.say(status(ScsiStatus::GOOD), &[]);
    peer.assert_ended(Fault::WrongTask(Opcode::SCSI_RESPONSE), &[]);
}

#[test]
fn attack_85_r2ts_that_ask_for_what_is_not() {
    let mut for_a_read = ScriptedTarget::reading(512);
    for_a_read.say(r2t(0, 0, 4), &[]);
    for_a_read.assert_ended(Fault::WrongTask(Opcode::R2T), &[]);
    let mut none = r2t(0, 4096, 4);
    none.ttt = Ttt::NONE;
    // 20,000 bytes, of which 4,096 went unasked.
    let cases = [
        (r2t(0, 4096, 0), Fault::R2tRange),
        (r2t(0, 4096, 15_905), Fault::R2tRange),
        (r2t(0, 4096, 8193), Fault::R2tRange),
        (r2t(0, u32::MAX, 8), Fault::R2tRange),
        (none, Fault::R2tRange),
        (r2t(0, 0, 8), Fault::R2tOrder),
        (r2t(0, 4097, 8), Fault::R2tOrder),
        (r2t(1, 4096, 8), Fault::R2tOrder),
    ];
    for (pdu, fault) in cases {
        let mut peer = ScriptedTarget::writing(20_000);
        peer.sent();
        peer.say(pdu, &[]);
        assert_eq!((peer.fault, peer.sent().len()), (Some(fault), 0), "{pdu:?}");
        assert_eq!(peer.outcome(), (Response::Lost(NoAnswer::Unknown), pattern(20_000, 0)));
    }
    // Three where two were agreed, before any data could leave.
    let mut peer = ScriptedTarget::writing(20_000);
    let three = [r2t(0, 4096, 8), r2t(1, 4104, 8), r2t(2, 4112, 8)].map(|pdu| peer.pdu(pdu, &[]));
    peer.feed(&three.concat());
    assert_eq!(peer.fault, Some(Fault::R2tTooMany));
}

#[test]
fn attack_85_good_for_a_write_whose_data_was_not_all_asked_for() {
    // 20,000 bytes, of which 4,096 went unasked: nothing was asked for, a part was, and the last stretch was but
    // has not left.
    let asked: [&[R2t]; 3] = [&[], &[r2t(0, 4096, 8192)], &[r2t(0, 4096, 8192), r2t(1, 12_288, 7712)]];
    for pdus in asked {
        let mut peer = ScriptedTarget::writing(20_000);
        let mut bytes: Vec<u8> = pdus.iter().flat_map(|pdu| peer.pdu(*pdu, &[])).collect();
        bytes.extend(peer.pdu(status(ScsiStatus::GOOD), &[]));
        peer.feed(&bytes);
        assert_eq!(peer.fault, Some(Fault::WriteShort), "{pdus:?}");
        assert_eq!(peer.outcome(), (Response::Lost(NoAnswer::Unknown), pattern(20_000, 0)));
    }
    // A residual that leaves out less than was not asked for.
    let mut peer = ScriptedTarget::writing(20_000);
    let mut pdu = status(ScsiStatus::GOOD);
    (pdu.flags, pdu.residual) = (pdu.flags.with(ResponseFlags::UNDERFLOW), 15_903.into());
    peer.say(pdu, &[]);
    assert_eq!(peer.fault, Some(Fault::WriteShort));
    // As much as was sent is what a target may say that it took, and of an error it is never more.
    let mut peer = ScriptedTarget::writing(20_000);
    pdu.residual = 15_904.into();
    peer.say(pdu, &[]);
    assert_eq!(peer.outcome().0, answered(ScsiStatus::GOOD, 4096, Residual::Underflow(15_904)));
    let mut peer = ScriptedTarget::writing(20_000);
    peer.say(status(ScsiStatus::BUSY), &[]);
    assert_eq!(peer.outcome().0, answered(ScsiStatus::BUSY, 4096, Residual::None));
    // All of it was asked for, and has left.
    let mut peer = ScriptedTarget::writing(20_000);
    peer.say(r2t(0, 4096, 8192), &[]);
    peer.say(r2t(1, 12_288, 7712), &[]);
    peer.say(status(ScsiStatus::GOOD), &[]);
    assert_eq!(peer.outcome().0, answered(ScsiStatus::GOOD, 20_000, Residual::None));
}

#[test]
fn attack_86_windows_that_cannot_be() {
    for (exp, max) in [(2u32, 0u32), (2, 2 + (1 << 31)), (1000, 2000), (0, 62)] {
        let mut peer = ScriptedTarget::reading(4);
        let mut header = *data_in(0, 0, true).as_bhs().bytes();
        header[28..32].copy_from_slice(&exp.to_be_bytes());
        header[32..36].copy_from_slice(&max.to_be_bytes());
        header[7] = 4;
        let bytes = peer.framed(&header, &[1; 4]);
        peer.feed(&bytes);
        assert_eq!((peer.fault, peer.ended.len()), (None, 1));
        assert!(peer.host.commands.window.exp == Sn::new(1), "{exp} is no number that we sent");
        assert!(
            peer.host.commands.window.available_commands() >= 62
                && peer.submit(scsi(0), Payload::None).is_some()
        );
    }
}

#[test]
fn attack_86_a_window_that_stays_closed() {
    let mut peer = ScriptedTarget::with(false, |limits| {
        (limits.nop_interval, limits.command_timeout) = (None, Some(Duration::from_secs(9)));
    });
    for _ in 0..64 {
        peer.submit(scsi(0), Payload::None).unwrap();
    }
    assert!(peer.submit(scsi(0), Payload::None).is_none(), "MaxCmdSN is 64");
    // Everything is answered, and the window never moves.
    for itt in 1..=64 {
        let mut response = status(ScsiStatus::GOOD);
        response.itt = Itt::new(itt);
        (response.exp_cmd_sn, response.max_cmd_sn) = (Sn::new(65), Sn::new(64));
        peer.say(response, &[]);
    }
    assert_eq!((peer.ended.len(), peer.fault), (64, None));
    peer.pass(Duration::from_secs(9));
    assert_eq!((peer.fault, peer.closed), (Some(Fault::WindowClosed), true));
    // Nor does a command hang that is never answered.
    let mut peer = ScriptedTarget::with(false, |limits| {
        (limits.nop_interval, limits.command_timeout) = (None, Some(Duration::from_secs(9)));
    })
    .reads(512);
    peer.pass(Duration::from_secs(8));
    assert_eq!(peer.fault, None);
    peer.pass(Duration::from_secs(1));
    peer.assert_ended(Fault::CommandTimeout, &[]);
}

#[test]
fn attack_87_residuals_that_contradict() {
    let (over, under) = (ResponseFlags::OVERFLOW, ResponseFlags::UNDERFLOW);
    for (flags, count) in [(over.with(under), 1), (under, 513), (under, u32::MAX)] {
        let mut peer = ScriptedTarget::reading(512);
        let mut pdu = status(ScsiStatus::GOOD);
        (pdu.flags, pdu.residual) = (pdu.flags.with(flags), count.into());
        peer.say(pdu, &[]);
        peer.assert_ended(Fault::Residual, &[]);
        let mut peer = ScriptedTarget::reading(512);
        let mut pdu = data_in(0, 0, true);
        (pdu.flags, pdu.residual) = (pdu.flags.with(DataInFlags(flags.0)), count.into());
        peer.say(pdu, &[1; 512]);
        peer.assert_ended(Fault::Residual, &[]);
    }
    // Without the status a residual means nothing.
    let mut peer = ScriptedTarget::reading(512);
    let mut pdu = data_in(0, 0, false);
    (pdu.flags, pdu.residual) = (DataInFlags::UNDERFLOW.with(DataInFlags::OVERFLOW), u32::MAX.into());
    peer.say(pdu, &[1; 512]);
    peer.say(status(ScsiStatus::GOOD), &[]);
    assert_eq!(peer.outcome(), (answered(ScsiStatus::GOOD, 512, Residual::None), vec![1; 512]));
    // Fewer bytes than came, says the residual: they do not count.
    let mut peer = ScriptedTarget::reading(512);
    let mut pdu = data_in(0, 0, true);
    (pdu.flags, pdu.residual) = (pdu.flags.with(DataInFlags::UNDERFLOW), 512.into());
    peer.say(pdu, &[1; 512]);
    assert_eq!(peer.outcome(), (answered(ScsiStatus::GOOD, 0, Residual::Underflow(512)), vec![0; 512]));
}

fn targets(pieces: &[&[u8]]) -> DiscoveredTargets {
    let mut peer = ScriptedTarget::new();
    peer.submit(Request::SendTargets(SendTargets::Own), Payload::None).unwrap();
    for (n, piece) in pieces.iter().enumerate() {
        let mut text = TextResponse::new();
        text.itt = Itt::new(ITT);
        if n + 1 < pieces.len() {
            (text.flags, text.ttt) = (crate::wire::TextFlags::CONTINUE, Ttt::new(n as u32));
        }
        peer.say(text, piece);
        if !peer.ended.is_empty() {
            break;
        }
    }
    let (Response::Targets(targets), _) = peer.outcome() else { panic!("{:?}", peer.fault) };
    targets
}

#[test]
fn attack_89_records_without_end() {
    let record = b"TargetName=iqn.2026-11.io.example:a\0TargetAddress=10.0.0.1\0".repeat(1000);
    let listed = targets(&[&record[..]; 100]);
    assert_eq!((listed.records.len(), listed.is_cut), (TARGETS_MAX, true));
    let name = &b"TargetName=iqn.2026-11.io.example:a\0"[..];
    let addresses = b"TargetAddress=10.0.0.1\0".repeat(1000);
    let listed = targets(&[name, &addresses]);
    assert_eq!((listed.records[0].addresses.len(), listed.ignored), (ADDRESSES_MAX, 1000 - 32));
    // One record of a mebibyte.
    let long = vec![b'x'; 1 << 16];
    let listed =
        targets(&[&[&b"TargetName=iqn.2026-11.io.example:"[..]], &[&long[..]; 16][..], &[b"\0"]].concat());
    assert_eq!((listed.records.len(), listed.ignored), (0, 1));
}

#[test]
fn attack_89_names_and_addresses_that_are_none() {
    let text = b"TargetName=iqn.2026-11.io.example:$(rm -r)\0TargetAddress=10.0.0.1\0\
        TargetName=iqn.2026-11.io.example:b\0TargetAddress=host:0\0TargetAddress=[::1\0\
        TargetAddress=a;b:3260\0TargetAddress=10.0.0.2:3260,1\0\xff\xfe=1\0Key\0";
    let listed = targets(&[text]);
    assert_eq!((listed.records.len(), listed.ignored), (1, 7));
    assert_eq!(listed.records[0].name.as_str(), "iqn.2026-11.io.example:b");
    let addresses: Vec<_> = listed.records[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.2:3260,1"]);
}

#[test]
fn attack_93_events_of_every_kind() {
    let event = |event, two: u16, three: u16| {
        let mut pdu = AsyncMessage::new();
        (pdu.event, pdu.parameter2, pdu.parameter3) = (event, two.into(), three.into());
        pdu
    };
    // Log out at once: in a second, at most.
    let mut peer = ScriptedTarget::reading(512);
    peer.say(event(AsyncEvent::LOGOUT_REQUEST, 0, 0), &[]);
    assert_eq!(peer.notices, [Notice::LogoutRequested { within: Duration::from_secs(1) }]);
    assert!(!peer.closed && peer.submit(scsi(0), Payload::None).is_none());
    peer.pass(Duration::from_secs(1));
    assert!(peer.closed && peer.fault.is_none());
    assert_eq!(peer.outcome().0, Response::Lost(NoAnswer::Unknown));
    // Come back in eighteen hours.
    for drop in [AsyncEvent::SESSION_DROP, AsyncEvent::CONNECTION_DROP] {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(event(drop, 65_535, 65_535), &[]);
        assert_eq!(peer.notices, [Notice::Dropped { wait: Duration::from_secs(60) }]);
        assert!(peer.closed);
        assert_eq!(peer.outcome().0, Response::Lost(NoAnswer::Unknown));
    }
    // What nobody knows changes nothing, a thousand times.
    let mut peer = ScriptedTarget::reading(4);
    let unknown: Vec<u8> = (0..1000).flat_map(|_| peer.pdu(event(AsyncEvent(77), 1, 1), &[])).collect();
    peer.feed(&unknown);
    assert_eq!(peer.notices.len(), 1000);
    peer.say(data_in(0, 0, true), &[1; 4]);
    assert_eq!(peer.outcome().1, [1; 4]);
    let mut peer = ScriptedTarget::reading(4);
    peer.say(event(AsyncEvent::SCSI_EVENT, 0, 0), &[0, 9, 0x70]);
    peer.assert_ended(Fault::Sense, &[]);
}

#[test]
fn attack_94_digests_that_are_wrong_or_were_not_agreed() {
    let digesting = || ScriptedTarget::with(true, |_| ()).reads(512);
    let mut peer = digesting();
    let mut bytes = peer.pdu(data_in(0, 0, true), &[1; 512]);
    bytes[BHS_LEN] ^= 1;
    peer.feed(&bytes);
    peer.assert_ended(Fault::HeaderDigest, &[]);
    // Wrong data fails the command, and nothing else.
    let mut peer = digesting().reads(4);
    let mut bytes = peer.pdu(data_in(0, 0, true), &[1; 512]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    peer.feed(&bytes);
    assert_eq!(peer.outcome().0, Response::Lost(NoAnswer::DataDigest));
    let mut other = data_in(0, 0, true);
    other.itt = Itt::new(ITT + 1);
    peer.say(other, &[7; 4]);
    assert_eq!(peer.outcome(), (answered(ScsiStatus::GOOD, 4, Residual::None), vec![7; 4]));
    let mut peer = digesting();
    let mut bytes = peer.pdu(status(ScsiStatus::CHECK_CONDITION), &[0, 2, 0x70, 0]);
    bytes[BHS_LEN + 4 + 3] ^= 1;
    peer.feed(&bytes);
    peer.assert_ended(Fault::DataDigest(Opcode::SCSI_RESPONSE), &[]);
    // A digest that was not agreed stands where a header should.
    let mut peer = ScriptedTarget::reading(4);
    let mut bytes = peer.pdu(data_in(0, 0, true), &[1; 4]);
    bytes.extend([0x0f; 4]);
    bytes.extend(peer.pdu(data_in(0, 0, true), &[1; 4]));
    peer.feed(&bytes);
    assert_eq!((peer.fault.is_some(), peer.closed, peer.outcome().1), (true, true, vec![1; 4]));
}

#[test]
fn attack_94_the_end_of_the_stream_at_every_byte() {
    for digest in [false, true] {
        let mut whole = ScriptedTarget::with(digest, |_| ()).reads(6);
        let bytes = whole.pdu(data_in(0, 0, true), &[1; 6]);
        for end in 0..bytes.len() {
            let mut peer = ScriptedTarget::with(digest, |_| ()).reads(6);
            peer.feed(&bytes[..end]);
            let op = peer.end.op.take().unwrap();
            peer.host.handle_recv(cx!(peer), LinkNumber(0), op, Received::End).unwrap();
            peer.turn();
            assert!(peer.closed, "{end}");
            let (response, data) = peer.outcome();
            assert_eq!((response, data), (Response::Lost(NoAnswer::Unknown), vec![0; 6]), "{end}");
        }
        whole.feed(&bytes);
        assert_eq!(whole.outcome().1, [1; 6]);
    }
}

#[test]
fn segments_and_pdus_that_no_target_sends() {
    let mut peer = ScriptedTarget::reading(4);
    let mut header = *data_in(0, 0, true).as_bhs().bytes();
    header[5..8].copy_from_slice(&[0xff; 3]);
    peer.feed(&header);
    peer.assert_ended(Fault::SegmentTooLong(0xff_ffff), &[]);
    let mut peer = ScriptedTarget::reading(4);
    header[4] = 1;
    peer.feed(&header);
    peer.assert_ended(Fault::UnexpectedAhs, &[]);
    for opcode in [0x00u8, 0x01, 0x05, 0x23, 0x1f, 0x3e] {
        let mut peer = ScriptedTarget::reading(4);
        let mut header = [0u8; BHS_LEN];
        header[0] = opcode;
        peer.feed(&header);
        peer.assert_ended(Fault::Unexpected(Opcode(opcode)), &[]);
    }
}

#[test]
fn a_refused_command_comes_back_and_what_follows_for_it_is_skipped() {
    let mut peer = ScriptedTarget::writing(512);
    let sent = peer.sent();
    let mut reject = Reject::new();
    reject.reason = RejectReason::DATA_DIGEST_ERROR;
    peer.say(reject, &sent[..BHS_LEN]);
    let lost = Response::Lost(NoAnswer::Rejected(RejectReason::DATA_DIGEST_ERROR));
    assert_eq!(peer.outcome(), (lost, pattern(512, 0)));
    peer.say(status(ScsiStatus::CHECK_CONDITION), &[0, 2, 0x70, 0]);
    assert_eq!((peer.fault, peer.ended.len()), (None, 0));
    // Twice is once too often.
    peer.say(status(ScsiStatus::GOOD), &[]);
    assert_eq!(peer.fault, Some(Fault::UnknownTask(Opcode::SCSI_RESPONSE)));
}

/// The number of a refused command is missing at the target (RFC 7143 §7.3).
#[test]
fn the_number_of_a_refused_command_is_taken_by_a_nop_out() {
    let mut peer = ScriptedTarget::writing(512);
    let sent = peer.sent();
    let mut reject = Reject::new();
    reject.reason = RejectReason::INVALID_PDU_FIELD;
    (reject.exp_cmd_sn, reject.max_cmd_sn) = (Sn::new(1), Sn::new(64));
    peer.say(reject, &sent[..BHS_LEN]);
    assert_eq!(peer.outcome().0, Response::Lost(NoAnswer::Rejected(RejectReason::INVALID_PDU_FIELD)));
    let sent = peer.sent();
    let nop = *NopOut::from_bhs(Bhs::from_prefix(&sent).unwrap());
    assert_eq!((sent.len(), nop.op, nop.cmd_sn), (BHS_LEN, OpByte::new(Opcode::NOP_OUT), Sn::new(1)));
    let mut answer = NopIn::new();
    answer.itt = nop.itt;
    peer.say(answer, &[]);
    assert_eq!(peer.fault, None);
    // Once is enough.
    peer.say(answer, &[]);
    assert_eq!(peer.fault, Some(Fault::UnknownTask(Opcode::NOP_IN)));
}

#[test]
fn pings_without_end_wait_for_their_answers_to_leave() {
    let mut peer = ScriptedTarget::new();
    let mut ping = crate::wire::NopIn::new();
    ping.ttt = Ttt::new(5);
    let pings: Vec<u8> = (0..1000).flat_map(|_| peer.pdu(ping, &[])).collect();
    peer.end.inbox.extend(&pings);
    let op = peer.end.op.take().unwrap();
    let (op, came) = peer.end.delivery.fill_recv(&peer.pool, op, &mut peer.end.inbox);
    peer.host.handle_recv(cx!(peer), LinkNumber(0), op, came).unwrap();
    assert!(
        peer.host.commands.links.get_mut(LinkNumber(0)).unwrap().out.len() <= link::QUEUED_PING_ANSWERS_MAX
    );
    peer.turn();
    assert_eq!((peer.sent().len(), peer.fault), (1000 * BHS_LEN, None));
}

#[test]
fn pings_with_data_or_without_f_are_not_answered() {
    let ping = || {
        let mut ping = crate::wire::NopIn::new();
        ping.ttt = Ttt::new(7);
        ping
    };
    let mut peer = ScriptedTarget::reading(512);
    peer.say(ping(), &[1; 4]);
    peer.assert_ended(Fault::Ping, &[]);
    let mut peer = ScriptedTarget::reading(512);
    let mut bare = ping();
    bare.flags = 0;
    peer.say(bare, &[]);
    peer.assert_ended(Fault::Ping, &[]);
}

#[test]
fn a_stat_sn_that_jumps_is_not_acknowledged() {
    for (jump, ends) in [(0, false), (1, false), (5000, true), (0x7fff_fff0, true)] {
        let mut peer = ScriptedTarget::reading(512);
        peer.say(data_in(0, 0, false), &[1; 512]);
        peer.stat_sn += jump;
        peer.say(status(ScsiStatus::GOOD), &[]);
        if ends {
            peer.assert_ended(Fault::StatSn, &[1; 512]);
        } else {
            assert_eq!(peer.outcome().0, answered(ScsiStatus::GOOD, 512, Residual::None));
        }
    }
}
