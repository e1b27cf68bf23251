//! Attacks by a hostile initiator in full feature phase, each with fixed bytes. "Survives" always means: the
//! session continues, or ends as the protocol says, and every byte of memory comes back.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;
use buf::MemoryClass;

const CRC: [u8; 3] = [0x0b, 0x47, 0x05];
const UNEXPECTED: [u8; 3] = [0x0b, 0x0c, 0x0c];
const AMOUNT: [u8; 3] = [0x0b, 0x0c, 0x0d];

pub(super) fn rejected(got: &ReceivedPdu) -> RejectReason {
    let reject: Reject = got.as_pdu();
    assert_eq!((reject.itt, got.data.len()), (Itt::NONE, BHS_LEN));
    reject.reason
}

/// Key, code and qualifier of a CHECK CONDITION.
fn sense(got: &ReceivedPdu) -> [u8; 3] {
    let response: ScsiResponse = got.as_pdu();
    assert_eq!(response.status, ScsiStatus::CHECK_CONDITION);
    assert_eq!(got.data[..2], [0, 18]);
    [got.data[4], got.data[14], got.data[15]]
}

/// The session still serves the command with this number.
pub(super) fn still_serves(peer: &mut ScriptedInitiator, n: u32) {
    let got = peer.talk(&pdu(&read(n, 512, 512), &[]));
    assert_eq!(got.last().map(|pdu| pdu.data.clone()), Some(peer.disk[512..1024].to_vec()));
    assert_eq!(peer.session.tasks_in_work(), 0);
}

fn open_write(n: u32, len: u32) -> crate::wire::ScsiCommand {
    let mut command = write(n, 0, len);
    command.flags = command.flags.without(CommandFlags::FINAL);
    command
}

#[test]
fn attack_24_extended_cdb_where_none_may_be() {
    let mut peer = ScriptedInitiator::new();
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([9; 16]);
    let got = peer.talk(&digested(&read(0, 0, 512), &ahs, &[], false, false));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    // 300 bytes of CDB.
    let mut ahs = vec![1, 29, 1, 0];
    ahs.resize(288, 9);
    let mut command = read(0, 0, 512);
    command.cdb[0] = 0x7f;
    let got = peer.talk(&digested(&command, &ahs, &[], false, false));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    // The number of a refused command is still to come.
    still_serves(&mut peer, 0);
}

#[test]
fn attack_25_a_segment_longer_than_declared() {
    let mut peer = ScriptedInitiator::new();
    let mut bytes = pdu(&write(0, 0, 0x00ff_ffff), &[]);
    bytes[5..8].fill(0xff);
    let before = peer.pool.usage();
    peer.feed(0, &bytes);
    assert_eq!(peer.violations, [Fault::SegmentTooLong(0x00ff_ffff)]);
    assert!(peer.ends[0].shut && peer.closed);
    assert_eq!(peer.pool.usage(), before);
}

#[test]
fn attack_26_data_out_with_wrong_tags() {
    let mut peer = ScriptedInitiator::new();
    let second = peer.attach(link_params(1));
    let data = pattern(512);
    let mut command = write(0, 0, 512);
    command.op = OpByte::new(Opcode::SCSI_COMMAND);
    let ttt = peer.talk(&pdu(&command, &[]))[0].as_pdu::<R2t>().ttt;
    let mut wrong_lun = data_out(0, ttt, 0, 0, true);
    wrong_lun.lun = Lun::single_level(4).unwrap();
    for bad in [
        data_out(99, Ttt::NONE, 0, 0, true),
        data_out(0, Ttt::new(ttt.value() ^ 0x100), 0, 0, true),
        wrong_lun,
    ] {
        let got = peer.talk(&pdu(&bad, &data));
        assert_eq!((got.len(), rejected(&got[0])), (1, RejectReason::INVALID_PDU_FIELD));
    }
    peer.feed(usize::from(second.0), &pdu(&data_out(0, ttt, 0, 0, true), &data));
    assert_eq!(rejected(&peer.take(usize::from(second.0))[0]), RejectReason::INVALID_PDU_FIELD);
    // The command goes on.
    let got = peer.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data));
    assert_eq!(got[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(peer.disk[..512], data);
    still_serves(&mut peer, 1);
}

#[test]
fn attack_27_more_or_less_data_than_asked() {
    let data = pattern(8192);
    for (first, rest) in [(600, None), (256, None), (256, Some(512))] {
        let mut peer = ScriptedInitiator::new();
        let ttt = peer.talk(&pdu(&write(0, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
        let mut bytes = pdu(&data_out(0, ttt, 0, 0, rest.is_none()), &data[..first]);
        if let Some(rest) = rest {
            bytes.extend(pdu(&data_out(0, ttt, 1, first as u32, true), &data[..rest]));
        }
        let got = peer.talk(&bytes);
        assert_eq!((got.len(), sense(&got[0])), (1, AMOUNT));
        assert_eq!(peer.aborted.len(), 1);
        still_serves(&mut peer, 1);
    }
}

#[test]
fn attack_27_a_little_data_now_and_then_is_no_progress() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { nop_interval: None, ..limits() });
    let ttt = peer.talk(&pdu(&write(0, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
    for n in 0..6 {
        assert!(peer.violations.is_empty());
        peer.feed(0, &pdu(&data_out(0, ttt, n, 8 * n, false), &[7; 8]));
        peer.pass(Duration::from_secs(10));
    }
    assert_eq!(peer.violations, [Fault::Stalled]);
    assert!(peer.closed);
}

#[test]
fn attack_27_what_is_asked_for_and_does_not_come_is_bounded() {
    let limits = SessionLimits { write_bytes: 1000, ..limits() };
    let mut peer = ScriptedInitiator::limited(limits);
    peer.mode = ServerMode::Keep;
    peer.feed(0, &[0, 1, 2].map(|n| pdu(&write(n, 0, 4096), &[])).concat());
    let (first, second, third) = (peer.kept[0].0, peer.kept[1].0, peer.kept[2].0);
    assert!(peer.session.reserve_receive_window(first, 4096), "one is always allowed");
    assert!(!peer.session.reserve_receive_window(second, 512));
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
    peer.writes.push((first, 0, 4096));
    peer.with_cx(|session, cx| session.recv_data(cx, first, 0, memory));
    peer.pump();
    let ttt = peer.take(0)[0].as_pdu::<R2t>().ttt;
    peer.feed(0, &pdu(&data_out(0, ttt, 0, 0, true), &pattern(4096)));
    assert!(peer.session.reserve_receive_window(second, 512));
    assert!(!peer.session.reserve_receive_window(third, 4096));
    peer.with_cx(|session, cx| session.end_without_response(cx, second));
    assert!(peer.session.reserve_receive_window(third, 4096));
}

#[test]
fn attack_27_data_after_the_last_of_a_sequence() {
    let mut peer = ScriptedInitiator::keeping();
    let data = pattern(8192);
    peer.feed(0, &pdu(&write(0, 0, 32768), &[]));
    let (tag, _) = peer.kept[0];
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 32768).unwrap();
    peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    peer.pump();
    let asked: Vec<R2t> = peer.take(0).iter().map(ReceivedPdu::as_pdu).collect();
    let ttt = asked[0].ttt;
    let mut bytes = pdu(&data_out(0, ttt, 0, 0, false), &data);
    bytes.extend(pdu(&data_out(0, ttt, 1, 8192, true), &data));
    bytes.extend(pdu(&data_out(0, ttt, 2, 16384, true), &data));
    assert_eq!(peer.talk(&bytes), []);
    assert_eq!(peer.aborted.len(), 1);
    // The answer waits for the other sequence that was asked for.
    let got = peer.talk(&pdu(&data_out(0, asked[1].ttt, 0, 16384, true), &data));
    assert_eq!(sense(&got[0]), AMOUNT);
    // Unsolicited data after its last PDU.
    let mut bytes = pdu(&open_write(1, 8192), &data[..4096]);
    bytes.extend(pdu(&data_out(1, Ttt::NONE, 0, 4096, true), &data[..4096]));
    bytes.extend(pdu(&data_out(1, Ttt::NONE, 0, 4096, true), &data[..4096]));
    let got = peer.talk(&bytes);
    assert_eq!(sense(&got[0]), AMOUNT);
    peer.mode = ServerMode::Serve;
    still_serves(&mut peer, 2);
}

#[test]
fn attack_28_data_sn_gap_repeat_and_wrap() {
    let data = pattern(512);
    for numbers in [[1, 2], [0, 0], [0, 2], [u32::MAX, 0], [27, 1]] {
        let mut peer = ScriptedInitiator::new();
        let ttt = peer.talk(&pdu(&write(0, 0, 1024), &[]))[0].as_pdu::<R2t>().ttt;
        let mut bytes = pdu(&data_out(0, ttt, numbers[0], 0, false), &data);
        bytes.extend(pdu(&data_out(0, ttt, numbers[1], 512, true), &data));
        let got = peer.talk(&bytes);
        assert_eq!((got.len(), sense(&got[0])), (1, CRC), "{numbers:?}");
        assert_eq!(peer.disk[0], 0, "nothing is written");
        still_serves(&mut peer, 1);
    }
}

#[test]
fn attack_29_unsolicited_data_that_was_not_agreed() {
    let data = pattern(8192);
    // A Data-Out unasked although InitialR2T=Yes.
    let strict = SessionParams { initial_r2t: true, ..session_params() };
    let mut peer = ScriptedInitiator::with(strict.clone(), link_params(0), limits());
    let mut bytes = pdu(&open_write(0, 1024), &[]);
    bytes.extend(pdu(&data_out(0, Ttt::NONE, 0, 0, true), &data[..1024]));
    let got = peer.talk(&bytes);
    let answer = got.iter().find(|pdu| pdu.op() == Opcode::SCSI_RESPONSE);
    // An R2T may have gone out before; its sequence is then still owed.
    if let Some(answer) = answer {
        assert_eq!(sense(answer), UNEXPECTED);
    } else {
        let ttt = got[0].as_pdu::<R2t>().ttt;
        let got = peer.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data[..1024]));
        assert_eq!(sense(&got[0]), UNEXPECTED);
    }
    still_serves(&mut peer, 1);
    // Immediate data although ImmediateData=No.
    let none = SessionParams { immediate_data: false, ..strict };
    let mut peer = ScriptedInitiator::with(none, link_params(0), limits());
    let got = peer.talk(&pdu(&write(0, 0, 512), &data[..512]));
    assert_eq!(sense(&got[0]), UNEXPECTED);
    assert_eq!(peer.log, Vec::<String>::new(), "the server never hears of it");
    still_serves(&mut peer, 1);
    // More with the command than was set aside, by a link whose segments may be longer.
    let narrow = SessionParams { initial_r2t: true, segment_max: 1024, ..session_params() };
    let mut peer = ScriptedInitiator::with(narrow, link_params(0), limits());
    let got = peer.talk(&pdu(&write(0, 0, 8192), &data[..2048]));
    assert_eq!(sense(&got[0]), AMOUNT);
    still_serves(&mut peer, 1);
    // More than FirstBurstLength, immediate and as Data-Out; less than announced.
    let small = SessionParams { first_burst: 1024, ..session_params() };
    let mut peer = ScriptedInitiator::with(small, link_params(0), limits());
    let got = peer.talk(&pdu(&write(0, 0, 8192), &data[..2048]));
    assert_eq!(sense(&got[0]), AMOUNT);
    for (n, len) in [(1, 2048), (2, 100)] {
        let mut bytes = pdu(&open_write(n, 8192), &data[..512]);
        bytes.extend(pdu(&data_out(n, Ttt::NONE, 0, 512, true), &data[..len]));
        assert_eq!(sense(&peer.talk(&bytes)[0]), AMOUNT);
    }
    still_serves(&mut peer, 3);
    assert_eq!(peer.pool.usage().lent, 0);
}

#[test]
fn attack_30_numbers_outside_the_window_and_duplicates() {
    let mut peer = ScriptedInitiator::keeping();
    let mut bytes = Vec::new();
    for far in [8, 9, 1 << 31, u32::MAX] {
        bytes.extend(pdu(&read(far, 0, 512), &[]));
        bytes.extend(pdu(&nop(far, far ^ 0x1000), b"ping"));
    }
    assert_eq!(peer.talk(&bytes), []);
    assert_eq!(peer.kept.len(), 0);
    peer.feed(0, &pdu(&read(0, 0, 512), &[]));
    let mut again = read(0, 0, 512);
    again.itt = Itt::new(50);
    assert_eq!(peer.talk(&pdu(&again, &[])), []);
    // Early, then early again with the same number.
    peer.feed(0, &pdu(&read(2, 0, 512), &[]));
    again.cmd_sn = sn(2);
    peer.feed(0, &pdu(&again, &[]));
    assert_eq!((peer.kept.len(), peer.session.tasks_in_work()), (1, 2));
    // The window is full: a flood behind it is ignored.
    for n in [1, 3, 4, 5, 6, 7] {
        peer.feed(0, &pdu(&read(n, 0, 512), &[]));
    }
    for n in 8..2000 {
        peer.feed(0, &pdu(&read(n, 0, 512), &[]));
    }
    assert_eq!((peer.kept.len(), peer.session.tasks_in_work()), (8, 8));
    assert_eq!(peer.take(0), []);
    for (tag, _) in peer.kept.clone() {
        peer.send_read(tag, 0, 512);
    }
    peer.pump();
    assert_eq!(peer.take(0).len(), 8);
    peer.mode = ServerMode::Serve;
    still_serves(&mut peer, 8);
}

#[test]
fn attack_31_a_hole_kept_open() {
    // Nothing comes unasked, so the whole window is open from the start.
    let params = SessionParams { initial_r2t: true, immediate_data: false, ..session_params() };
    let mut peer =
        ScriptedInitiator::with(params, link_params(0), SessionLimits { commands: 65, ..limits() });
    let mut bytes = Vec::new();
    for n in 1..=64 {
        bytes.extend(pdu(&read(n, 0, 512), &[]));
    }
    let mut ping = nop(0, 7000);
    ping.op = ping.op.with_immediate();
    bytes.extend(pdu(&ping, b"there?"));
    let got = peer.talk(&bytes);
    assert_eq!((got.len(), got[0].op(), &got[0].data[..]), (1, Opcode::NOP_IN, &b"there?"[..]));
    assert_eq!((peer.session.tasks_in_work(), peer.log.len()), (64, 0));
    let got = peer.talk(&pdu(&read(0, 0, 512), &[]));
    assert_eq!(got.len(), 65);
    let order: Vec<u32> = got.iter().map(|pdu| pdu.bhs.itt.value()).collect();
    assert_eq!(order, (0..65).collect::<Vec<_>>());
}

#[test]
fn attack_31_a_hole_kept_open_for_ever_ends_the_session() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { nop_interval: None, ..limits() });
    peer.mode = ServerMode::Keep;
    peer.feed(0, &[pdu(&read(0, 0, 512), &[]), pdu(&read(2, 0, 512), &[])].concat());
    peer.pass(Duration::from_secs(40));
    // The hole is filled, and there is another one.
    peer.feed(0, &[pdu(&read(1, 0, 512), &[]), pdu(&read(4, 0, 512), &[])].concat());
    peer.pass(Duration::from_secs(40));
    // What waits behind it as well does not lengthen the time.
    peer.feed(0, &pdu(&read(5, 0, 512), &[]));
    assert!(!peer.closed && peer.violations.is_empty());
    let kept = peer.kept.clone();
    peer.pass(Duration::from_secs(20));
    kept.iter().for_each(|(tag, _)| peer.with_cx(|session, cx| session.end_without_response(cx, *tag)));
    peer.pump();
    assert_eq!(peer.violations, [Fault::CommandMissing]);
    assert!(peer.closed);
}

#[test]
fn attack_31_pings_behind_a_hole_hold_no_memory_to_speak_of() {
    let params = SessionParams { initial_r2t: true, immediate_data: false, ..session_params() };
    let mut peer =
        ScriptedInitiator::with(params, link_params(0), SessionLimits { commands: 65, ..limits() });
    let len = 8192;
    let mut rejects = 0;
    for n in 1..=64 {
        let got = peer.talk(&pdu(&nop(n, n), &vec![7; len]));
        rejects += got.iter().filter(|pdu| pdu.op() == Opcode::REJECT).count();
    }
    // Of each as much is kept as can be answered: 4 KiB.
    assert_eq!(rejects, 64 - 16, "all but 64 KiB of them");
    assert!(peer.pool.usage().lent < 256 << 10, "{:?}", peer.pool.usage());
    // The hole is filled: what was held is answered, and what was refused is not missed.
    let got = peer.talk(&pdu(&nop(0, 0), &[]));
    assert_eq!(got.iter().filter(|pdu| pdu.op() == Opcode::NOP_IN).count(), 17);
    assert_eq!(peer.talk(&pdu(&nop(65, 65), b"x")).len(), 1);
}

#[test]
fn attack_32_immediate_commands_without_end() {
    let mut peer = ScriptedInitiator::keeping();
    let mut bytes = Vec::new();
    for n in 0..1000 {
        let mut command = read(0, 0, 512);
        command.op = command.op.with_immediate();
        command.itt = Itt::new(n);
        bytes.extend(pdu(&command, &[]));
    }
    let got = peer.talk(&bytes);
    assert_eq!((peer.kept.len(), got.len()), (4, 996));
    assert!(got.iter().all(|pdu| rejected(pdu) == RejectReason::TOO_MANY_IMMEDIATE));
    // Ordered commands still have their own room.
    let mut last = read(0, 0, 512);
    last.itt = Itt::new(5000);
    peer.feed(0, &pdu(&last, &[]));
    assert_eq!(peer.kept.len(), 5);
}

fn digests() -> LinkParams {
    LinkParams { header_digest: true, data_digest: true, ..link_params(0) }
}

#[test]
fn attack_32_immediate_commands_with_unsolicited_data_share_one_burst() {
    let mut peer = ScriptedInitiator::keeping();
    let mut bytes = Vec::new();
    for n in 0..3 {
        let mut command = write(0, 0, 8192);
        command.op = command.op.with_immediate();
        command.itt = Itt::new(n);
        bytes.extend(pdu(&command, &pattern(8192)));
    }
    let got = peer.talk(&bytes);
    assert_eq!((peer.kept.len(), got.len()), (1, 2));
    assert!(got.iter().all(|pdu| rejected(pdu) == RejectReason::TOO_MANY_IMMEDIATE));
    assert_eq!(peer.pool.usage().lent, 8192);
    let tag = peer.kept[0].0;
    peer.answer(tag, Response::Scsi(ScsiResult::check_condition(&[0x70, 0, 5], 0)));
    let mut again = write(0, 0, 512);
    (again.op, again.itt) = (again.op.with_immediate(), Itt::new(9));
    peer.feed(0, &pdu(&again, &pattern(512)));
    assert_eq!(peer.kept.len(), 1);
}

#[test]
fn attack_40_bad_header_digest() {
    let mut peer = ScriptedInitiator::with(session_params(), digests(), limits());
    let mut bytes = digested(&read(0, 0, 512), &[], &[], true, true);
    assert_eq!(peer.talk(&bytes).len(), 1);
    bytes[50] ^= 1;
    peer.feed(0, &bytes);
    assert_eq!(peer.violations, [Fault::HeaderDigest]);
    assert!(peer.ends[0].shut && peer.closed);
}

#[test]
fn attack_40_bad_data_digest_on_every_kind_of_data() {
    let data = pattern(1001);
    let spoil = |mut bytes: Vec<u8>| {
        let last = bytes.len() - 9;
        bytes[last] ^= 0x40;
        bytes
    };
    let mut peer = ScriptedInitiator::with(session_params(), digests(), limits());
    // Immediate data: the header stands, so the command fails and its number counts.
    let got = peer.talk(&spoil(digested(&write(0, 0, 1001), &[], &data, true, true)));
    assert_eq!(rejected(&got[0]), RejectReason::DATA_DIGEST_ERROR);
    assert_eq!(sense(&got[1]), CRC);
    // Solicited data: the command fails after the last of it.
    let got = peer.talk(&digested(&write(1, 0, 2002), &[], &[], true, true));
    let ttt = got[0].as_pdu::<R2t>().ttt;
    let bad = spoil(digested(&data_out(1, ttt, 0, 0, false), &[], &data, true, true));
    assert_eq!(rejected(&peer.talk(&bad)[0]), RejectReason::DATA_DIGEST_ERROR);
    let last = digested(&data_out(1, ttt, 1, 1001, true), &[], &data, true, true);
    let got = peer.talk(&last);
    assert_eq!((got.len(), sense(&got[0])), (1, CRC));
    assert_eq!(peer.disk[0], 0);
    // A ping: it alone is lost, and its number is still to come.
    let ping = digested(&nop(2, 70), &[], &data, true, true);
    let got = peer.talk(&spoil(ping.clone()));
    assert_eq!((got.len(), rejected(&got[0])), (1, RejectReason::DATA_DIGEST_ERROR));
    assert_eq!(peer.talk(&ping)[0].data, data);
    let got = peer.talk(&digested(&read(3, 0, 512), &[], &[], true, true));
    assert_eq!(got.len(), 1);
}

#[test]
fn attack_41_fin_anywhere() {
    let mut command = write(0, 0, 4098);
    command.cdb[0] = 0x7f;
    command.cdb[7] = 24;
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([9; 16]);
    let bytes = digested(&command, &ahs, &pattern(4098), true, true);
    for cut in (0..bytes.len()).step_by(7).chain([47, 48, 67, 68, 71, 72, bytes.len() - 1]) {
        let mut peer = ScriptedInitiator::with(session_params(), digests(), limits());
        peer.mode = ServerMode::Keep;
        peer.feed(0, &bytes[..cut]);
        peer.hang_up(0);
        assert!(peer.closed && peer.ends[0].shut, "cut at {cut}");
        assert_eq!(peer.pool.usage().lent, 0, "cut at {cut}");
    }
}

#[test]
fn pdus_that_have_no_place_are_refused() {
    let mut peer = ScriptedInitiator::new();
    for op in [0x07, 0x0f, 0x1c, 0x20, 0x3f] {
        let mut bytes = pdu(&nop(0, 1), &pattern(100));
        bytes[0] = op;
        assert_eq!(rejected(&peer.talk(&bytes)[0]), RejectReason::COMMAND_NOT_SUPPORTED);
    }
    let mut bytes = pdu(&LoginRequest::new(), &[]);
    bytes[16] = 1;
    assert_eq!(rejected(&peer.talk(&bytes)[0]), RejectReason::PROTOCOL_ERROR);
    // Inconsistent commands.
    let mut no_final = read(0, 0, 512);
    no_final.flags = CommandFlags::READ;
    let mut no_way = read(0, 0, 512);
    no_way.flags = CommandFlags::FINAL;
    let mut no_tag = read(0, 0, 512);
    no_tag.itt = Itt::NONE;
    for bad in [no_final, no_way, no_tag] {
        assert_eq!(rejected(&peer.talk(&pdu(&bad, &[]))[0]), RejectReason::INVALID_PDU_FIELD);
    }
    let got = peer.talk(&pdu(&read(0, 0, 512), b"data of a read"));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    still_serves(&mut peer, 0);
    // A tag that is in use.
    peer.mode = ServerMode::Keep;
    peer.feed(0, &pdu(&read(1, 0, 512), &[]));
    let mut again = read(2, 0, 512);
    again.itt = Itt::new(1);
    assert_eq!(rejected(&peer.talk(&pdu(&again, &[]))[0]), RejectReason::TASK_IN_PROGRESS);
    // AdditionalSense header segments end the session.
    let mut bytes = pdu(&nop(2, 5), &[]);
    bytes[4] = 1;
    bytes.extend([0, 1, 9, 0]);
    peer.feed(0, &bytes);
    assert_eq!(peer.violations, [Fault::UnexpectedAhs]);
    assert!(peer.closed);
}
