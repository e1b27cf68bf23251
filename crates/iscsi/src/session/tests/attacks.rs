//! What a hostile initiator may try in full feature phase, each with fixed bytes. "Survives" always
//! means: the session goes on, or ends as the protocol says, and every byte of memory comes back.

use super::super::*;
use super::pair::*;
use crate::wire::*;
use buf::Class;

const CRC: [u8; 3] = [0x0b, 0x47, 0x05];
const UNEXPECTED: [u8; 3] = [0x0b, 0x0c, 0x0c];
const AMOUNT: [u8; 3] = [0x0b, 0x0c, 0x0d];

fn rejected(got: &Got) -> RejectReason {
    let reject: Reject = got.as_pdu();
    assert_eq!((reject.itt, got.data.len()), (Itt::NONE, BHS_LEN));
    reject.reason
}

/// Key, code and qualifier of a CHECK CONDITION.
fn sense(got: &Got) -> [u8; 3] {
    let response: ScsiResponse = got.as_pdu();
    assert_eq!(response.status, ScsiStatus::CHECK_CONDITION);
    assert_eq!(got.data[..2], [0, 18]);
    [got.data[4], got.data[14], got.data[15]]
}

/// The session still serves the command with this number.
fn still_serves(pair: &mut Pair, n: u32) {
    let got = pair.talk(&pdu(&read(n, 512, 512), &[]));
    assert_eq!(got.last().map(|pdu| pdu.data.clone()), Some(pair.disk[512..1024].to_vec()));
    assert_eq!(pair.session.tasks_in_work(), 0);
}

fn open_write(n: u32, len: u32) -> crate::wire::ScsiCommand {
    let mut command = write(n, 0, len);
    command.flags = command.flags.without(CommandFlags::FINAL);
    command
}

#[test]
fn attack_24_extended_cdb_where_none_may_be() {
    let mut pair = Pair::new();
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([9; 16]);
    let got = pair.talk(&digested(&read(0, 0, 512), &ahs, &[], false, false));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    // 300 bytes of CDB.
    let mut ahs = vec![1, 29, 1, 0];
    ahs.resize(288, 9);
    let mut command = read(0, 0, 512);
    command.cdb[0] = 0x7f;
    let got = pair.talk(&digested(&command, &ahs, &[], false, false));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    // The number of a refused command is still to come.
    still_serves(&mut pair, 0);
}

#[test]
fn attack_25_a_segment_longer_than_declared() {
    let mut pair = Pair::new();
    let mut bytes = pdu(&write(0, 0, 0x00ff_ffff), &[]);
    bytes[5..8].fill(0xff);
    let before = pair.pool.usage();
    pair.feed(0, &bytes);
    assert_eq!(pair.violations, [Fault::SegmentTooLong(0x00ff_ffff)]);
    assert!(pair.ends[0].shut && pair.closed);
    assert_eq!(pair.pool.usage(), before);
}

#[test]
fn attack_26_data_out_with_wrong_tags() {
    let mut pair = Pair::new();
    let second = pair.attach(link_params(1));
    let data = pattern(512);
    let mut command = write(0, 0, 512);
    command.op = OpByte::new(Opcode::SCSI_COMMAND);
    let ttt = pair.talk(&pdu(&command, &[]))[0].as_pdu::<R2t>().ttt;
    let mut wrong_lun = data_out(0, ttt, 0, 0, true);
    wrong_lun.lun = Lun::single_level(4).unwrap();
    for bad in [
        data_out(99, Ttt::NONE, 0, 0, true),
        data_out(0, Ttt::new(ttt.value() ^ 0x100), 0, 0, true),
        wrong_lun,
    ] {
        let got = pair.talk(&pdu(&bad, &data));
        assert_eq!((got.len(), rejected(&got[0])), (1, RejectReason::INVALID_PDU_FIELD));
    }
    pair.feed(usize::from(second.0), &pdu(&data_out(0, ttt, 0, 0, true), &data));
    assert_eq!(rejected(&pair.take(usize::from(second.0))[0]), RejectReason::INVALID_PDU_FIELD);
    // The command goes on.
    let got = pair.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data));
    assert_eq!(got[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(pair.disk[..512], data);
    still_serves(&mut pair, 1);
}

#[test]
fn attack_27_more_or_less_data_than_asked() {
    let data = pattern(8192);
    for (first, rest) in [(600, None), (256, None), (256, Some(512))] {
        let mut pair = Pair::new();
        let ttt = pair.talk(&pdu(&write(0, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
        let mut bytes = pdu(&data_out(0, ttt, 0, 0, rest.is_none()), &data[..first]);
        if let Some(rest) = rest {
            bytes.extend(pdu(&data_out(0, ttt, 1, first as u32, true), &data[..rest]));
        }
        let got = pair.talk(&bytes);
        assert_eq!((got.len(), sense(&got[0])), (1, AMOUNT));
        assert_eq!(pair.aborted.len(), 1);
        still_serves(&mut pair, 1);
    }
}

#[test]
fn attack_27_data_after_the_last_of_a_sequence() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let data = pattern(8192);
    pair.feed(0, &pdu(&write(0, 0, 32768), &[]));
    let (tag, _) = pair.kept[0];
    let memory = pair.pool.take_sg(Class::Solicited, 32768).unwrap();
    pair.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    pair.pump();
    let asked: Vec<R2t> = pair.take(0).iter().map(Got::as_pdu).collect();
    let ttt = asked[0].ttt;
    let mut bytes = pdu(&data_out(0, ttt, 0, 0, false), &data);
    bytes.extend(pdu(&data_out(0, ttt, 1, 8192, true), &data));
    bytes.extend(pdu(&data_out(0, ttt, 2, 16384, true), &data));
    assert_eq!(pair.talk(&bytes), []);
    assert_eq!(pair.aborted.len(), 1);
    // The answer waits for the other sequence that was asked for.
    let got = pair.talk(&pdu(&data_out(0, asked[1].ttt, 0, 16384, true), &data));
    assert_eq!(sense(&got[0]), AMOUNT);
    // Unsolicited data after its last PDU.
    let mut bytes = pdu(&open_write(1, 8192), &data[..4096]);
    bytes.extend(pdu(&data_out(1, Ttt::NONE, 0, 4096, true), &data[..4096]));
    bytes.extend(pdu(&data_out(1, Ttt::NONE, 0, 4096, true), &data[..4096]));
    let got = pair.talk(&bytes);
    assert_eq!(sense(&got[0]), AMOUNT);
    pair.mode = Mode::Serve;
    still_serves(&mut pair, 2);
}

#[test]
fn attack_28_data_sn_gap_repeat_and_wrap() {
    let data = pattern(512);
    for numbers in [[1, 2], [0, 0], [0, 2], [u32::MAX, 0], [27, 1]] {
        let mut pair = Pair::new();
        let ttt = pair.talk(&pdu(&write(0, 0, 1024), &[]))[0].as_pdu::<R2t>().ttt;
        let mut bytes = pdu(&data_out(0, ttt, numbers[0], 0, false), &data);
        bytes.extend(pdu(&data_out(0, ttt, numbers[1], 512, true), &data));
        let got = pair.talk(&bytes);
        assert_eq!((got.len(), sense(&got[0])), (1, CRC), "{numbers:?}");
        assert_eq!(pair.disk[0], 0, "nothing is written");
        still_serves(&mut pair, 1);
    }
}

#[test]
fn attack_29_unsolicited_data_that_was_not_agreed() {
    let data = pattern(8192);
    // A Data-Out unasked although InitialR2T=Yes.
    let strict = SessionParams { initial_r2t: true, ..session_params() };
    let mut pair = Pair::with(strict.clone(), link_params(0), limits());
    let mut bytes = pdu(&open_write(0, 1024), &[]);
    bytes.extend(pdu(&data_out(0, Ttt::NONE, 0, 0, true), &data[..1024]));
    let got = pair.talk(&bytes);
    let answer = got.iter().find(|pdu| pdu.op() == Opcode::SCSI_RESPONSE);
    // An R2T may have gone out before; its sequence is then still owed.
    if let Some(answer) = answer {
        assert_eq!(sense(answer), UNEXPECTED);
    } else {
        let ttt = got[0].as_pdu::<R2t>().ttt;
        let got = pair.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data[..1024]));
        assert_eq!(sense(&got[0]), UNEXPECTED);
    }
    still_serves(&mut pair, 1);
    // Immediate data although ImmediateData=No.
    let none = SessionParams { immediate_data: false, ..strict };
    let mut pair = Pair::with(none, link_params(0), limits());
    let got = pair.talk(&pdu(&write(0, 0, 512), &data[..512]));
    assert_eq!(sense(&got[0]), UNEXPECTED);
    assert_eq!(pair.log, Vec::<String>::new(), "the server never hears of it");
    still_serves(&mut pair, 1);
    // More than FirstBurstLength, immediate and as Data-Out; less than announced.
    let small = SessionParams { first_burst: 1024, ..session_params() };
    let mut pair = Pair::with(small, link_params(0), limits());
    let got = pair.talk(&pdu(&write(0, 0, 8192), &data[..2048]));
    assert_eq!(sense(&got[0]), AMOUNT);
    for (n, len) in [(1, 2048), (2, 100)] {
        let mut bytes = pdu(&open_write(n, 8192), &data[..512]);
        bytes.extend(pdu(&data_out(n, Ttt::NONE, 0, 512, true), &data[..len]));
        assert_eq!(sense(&pair.talk(&bytes)[0]), AMOUNT);
    }
    still_serves(&mut pair, 3);
    assert_eq!(pair.pool.usage().lent, 0);
}

#[test]
fn attack_30_numbers_outside_the_window_and_duplicates() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let mut bytes = Vec::new();
    for far in [8, 9, 1 << 31, u32::MAX] {
        bytes.extend(pdu(&read(far, 0, 512), &[]));
        bytes.extend(pdu(&nop(far, far ^ 0x1000), b"ping"));
    }
    assert_eq!(pair.talk(&bytes), []);
    assert_eq!(pair.kept.len(), 0);
    pair.feed(0, &pdu(&read(0, 0, 512), &[]));
    let mut again = read(0, 0, 512);
    again.itt = Itt::new(50);
    assert_eq!(pair.talk(&pdu(&again, &[])), []);
    // Early, then early again with the same number.
    pair.feed(0, &pdu(&read(2, 0, 512), &[]));
    again.cmd_sn = sn(2);
    pair.feed(0, &pdu(&again, &[]));
    assert_eq!((pair.kept.len(), pair.session.tasks_in_work()), (1, 2));
    // The window is full: a flood behind it is ignored.
    for n in [1, 3, 4, 5, 6, 7] {
        pair.feed(0, &pdu(&read(n, 0, 512), &[]));
    }
    for n in 8..2000 {
        pair.feed(0, &pdu(&read(n, 0, 512), &[]));
    }
    assert_eq!((pair.kept.len(), pair.session.tasks_in_work()), (8, 8));
    assert_eq!(pair.take(0), []);
    for (tag, _) in pair.kept.clone() {
        pair.send_read(tag, 0, 512);
    }
    pair.pump();
    assert_eq!(pair.take(0).len(), 8);
    pair.mode = Mode::Serve;
    still_serves(&mut pair, 8);
}

#[test]
fn attack_31_a_hole_kept_open() {
    let mut pair = Pair::with(session_params(), link_params(0), SessionLimits { commands: 65, ..limits() });
    let mut bytes = Vec::new();
    for n in 1..=64 {
        bytes.extend(pdu(&read(n, 0, 512), &[]));
    }
    let mut ping = nop(0, 7000);
    ping.op = ping.op.immediate();
    bytes.extend(pdu(&ping, b"there?"));
    let got = pair.talk(&bytes);
    assert_eq!((got.len(), got[0].op(), &got[0].data[..]), (1, Opcode::NOP_IN, &b"there?"[..]));
    assert_eq!((pair.session.tasks_in_work(), pair.log.len()), (64, 0));
    let got = pair.talk(&pdu(&read(0, 0, 512), &[]));
    assert_eq!(got.len(), 65);
    let order: Vec<u32> = got.iter().map(|pdu| pdu.bhs.itt.value()).collect();
    assert_eq!(order, (0..65).collect::<Vec<_>>());
}

#[test]
fn attack_32_immediate_commands_without_end() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let mut bytes = Vec::new();
    for n in 0..1000 {
        let mut command = read(0, 0, 512);
        command.op = command.op.immediate();
        command.itt = Itt::new(n);
        bytes.extend(pdu(&command, &[]));
    }
    let got = pair.talk(&bytes);
    assert_eq!((pair.kept.len(), got.len()), (4, 996));
    assert!(got.iter().all(|pdu| rejected(pdu) == RejectReason::TOO_MANY_IMMEDIATE));
    // Ordered commands still have their own room.
    let mut last = read(0, 0, 512);
    last.itt = Itt::new(5000);
    pair.feed(0, &pdu(&last, &[]));
    assert_eq!(pair.kept.len(), 5);
}

fn tmf(n: u32, itt: u32, function: TmfFunction, referenced: u32) -> TmfRequest {
    let mut pdu = TmfRequest::new();
    pdu.set_function(function);
    pdu.op = pdu.op.immediate();
    (pdu.lun, pdu.itt, pdu.cmd_sn) = (lun(), Itt::new(itt), sn(n));
    pdu.referenced_tag = Itt::new(referenced);
    pdu.ref_cmd_sn = sn(referenced);
    pdu
}

fn outcome(got: &[Got]) -> TmfResponseCode {
    got.last().unwrap().as_pdu::<TmfResponse>().response
}

#[test]
fn attack_33_aborts_of_what_cannot_be_aborted() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let itself = tmf(0, 900, TmfFunction::ABORT_TASK, 900);
    assert_eq!(outcome(&pair.talk(&pdu(&itself, &[]))), TmfResponseCode::REJECTED);
    pair.feed(0, &pdu(&tmf(0, 901, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    let of_a_tmf = tmf(0, 902, TmfFunction::ABORT_TASK, 901);
    assert_eq!(outcome(&pair.talk(&pdu(&of_a_tmf, &[]))), TmfResponseCode::REJECTED);
    let unknown = tmf(0, 903, TmfFunction::ABORT_TASK, 500);
    assert_eq!(outcome(&pair.talk(&pdu(&unknown, &[]))), TmfResponseCode::NO_TASK);
}

#[test]
fn attack_33_abort_of_a_write_that_waits_for_data() {
    let mut pair = Pair::new();
    let data = pattern(512);
    let ttt = pair.talk(&pdu(&write(0, 0, 512), &[]))[0].as_pdu::<R2t>().ttt;
    let abort = pdu(&tmf(1, 900, TmfFunction::ABORT_TASK, 0), &[]);
    assert_eq!(outcome(&pair.talk(&abort)), TmfResponseCode::COMPLETE);
    // Data that was on its way is dropped without a word, and a second abort finds nothing.
    assert_eq!(pair.talk(&pdu(&data_out(0, ttt, 0, 0, true), &data)), []);
    let mut again = tmf(1, 901, TmfFunction::ABORT_TASK, 0);
    again.ref_cmd_sn = sn(0);
    assert_eq!(outcome(&pair.talk(&pdu(&again, &[]))), TmfResponseCode::NO_TASK);
    assert_eq!(pair.disk[0], 0);
    still_serves(&mut pair, 1);
    assert_eq!(pair.pool.usage().lent, 0);
}

#[test]
fn attack_33_abort_of_a_command_that_never_came_plugs_the_hole() {
    let mut pair = Pair::new();
    pair.feed(0, &pdu(&read(1, 0, 512), &[]));
    assert_eq!(pair.take(0), []);
    let got = pair.talk(&pdu(&tmf(2, 900, TmfFunction::ABORT_TASK, 0), &[]));
    let ops: Vec<Opcode> = got.iter().map(Got::op).collect();
    assert_eq!(ops, [Opcode::TMF_RESPONSE, Opcode::DATA_IN]);
    assert_eq!(outcome(&got[..1]), TmfResponseCode::COMPLETE);
    still_serves(&mut pair, 2);
}

#[test]
fn attack_34_resets_in_a_loop() {
    let mut pair = Pair::new();
    for n in 0..50 {
        pair.mode = Mode::Keep;
        let mut bytes = pdu(&write(n, 0, 4096), &[]);
        bytes.extend(pdu(&tmf(n + 1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
        pair.feed(0, &bytes);
        let (write, reset) = (pair.kept[0].0, pair.kept[1].0);
        pair.with_cx(|session, cx| session.retire(cx, write));
        pair.answer(reset, Response::Task(TmfResponseCode::COMPLETE));
        pair.kept.clear();
        pair.pump();
        assert_eq!(outcome(&pair.take(0)), TmfResponseCode::COMPLETE);
    }
    pair.mode = Mode::Serve;
    still_serves(&mut pair, 50);
}

#[test]
fn attack_34_a_reset_waits_for_the_commands_before_it() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let second = pair.attach(link_params(1));
    pair.feed(0, &pdu(&tmf(1, 900, TmfFunction::LOGICAL_UNIT_RESET, u32::MAX), &[]));
    assert_eq!(pair.kept.len(), 0);
    pair.feed(usize::from(second.0), &pdu(&read(0, 0, 512), &[]));
    assert!(matches!(pair.kept[0].1, Request::Scsi(_)) && matches!(pair.kept[1].1, Request::Task(_)));
}

#[test]
fn attack_35_task_reassign_and_functions_of_a_higher_level() {
    let params = SessionParams { protocol_level: 1, ..session_params() };
    let mut pair = Pair::with(params, link_params(0), limits());
    for (function, want) in [
        (TmfFunction::TASK_REASSIGN, TmfResponseCode::NO_REASSIGNMENT),
        (TmfFunction::QUERY_TASK, TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction::I_T_NEXUS_RESET, TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction(0), TmfResponseCode::NOT_SUPPORTED),
        (TmfFunction(0x7f), TmfResponseCode::NOT_SUPPORTED),
    ] {
        assert_eq!(outcome(&pair.talk(&pdu(&tmf(0, 900, function, 0), &[]))), want, "{function:?}");
    }
}

#[test]
fn attack_36_our_ping_is_never_answered() {
    let mut pair = Pair::new();
    pair.pass(Duration::from_secs(15));
    assert_eq!(pair.take(0).len(), 1);
    // Other PDUs are no answer.
    pair.feed(0, &pdu(&read(0, 0, 512), &[]));
    pair.pass(Duration::from_secs(29));
    assert!(!pair.ends[0].shut);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.violations, [Fault::PingUnanswered]);
    assert!(pair.ends[0].shut && pair.closed);
}

#[test]
fn attack_37_a_peer_that_never_reads() {
    let limits = SessionLimits { read_bytes: 256 << 10, nop_interval: None, ..limits() };
    let mut pair = Pair::with(session_params(), link_params(0), limits);
    pair.mode = Mode::Keep;
    pair.ends[0].deaf = true;
    for n in 0..8 {
        pair.feed(0, &pdu(&read(n, 0, 128 << 10), &[]));
    }
    let allowed: Vec<bool> = pair
        .kept
        .clone()
        .into_iter()
        .map(|(tag, _)| {
            let allowed = pair.session.reserve_read(tag, 128 << 10);
            if allowed {
                pair.send_read(tag, 0, 128 << 10);
            }
            allowed
        })
        .collect();
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 2);
    // Pings without end: the session stops reading instead of answering.
    let mut ping = nop(8, 7000);
    ping.op = ping.op.immediate();
    for _ in 0..10_000 {
        pair.ends[0].inbox.extend(pdu(&ping, &[0; 4096]));
    }
    pair.pump();
    assert!(!pair.ends[0].inbox.is_empty());
    assert!(pair.pool.usage().lent < 4 << 20, "{:?}", pair.pool.usage());
    pair.pass(Duration::from_secs(60));
    pair.pump();
    assert_eq!(pair.violations, [Fault::Stalled]);
    assert!(pair.closed);
    assert_eq!(pair.pool.usage().lent, 0);
}

#[test]
fn attack_37_one_read_is_always_allowed() {
    let limits = SessionLimits { read_bytes: 1000, ..limits() };
    let mut pair = Pair::with(session_params(), link_params(0), limits);
    pair.mode = Mode::Keep;
    pair.feed(0, &[pdu(&read(0, 0, 4096), &[]), pdu(&read(1, 0, 4096), &[])].concat());
    let (first, second) = (pair.kept[0].0, pair.kept[1].0);
    assert!(pair.session.reserve_read(first, 4096));
    assert!(!pair.session.reserve_read(second, 4096));
    pair.send_read(first, 0, 4096);
    assert!(!pair.session.reserve_read(second, 4096));
    pair.pump();
    assert!(pair.session.reserve_read(second, 4096));
    pair.with_cx(|session, cx| session.retire(cx, second));
    assert_eq!(pair.session.links[0].read_bytes, 0);
}

#[test]
fn attack_38_snack_has_no_place() {
    let mut pair = Pair::new();
    for (beg, run) in [(0, 0), (5, 100), (u32::MAX, u32::MAX)] {
        let mut snack = Snack::new();
        (snack.beg_run, snack.run_length) = (beg.into(), run.into());
        assert_eq!(rejected(&pair.talk(&pdu(&snack, &[]))[0]), RejectReason::PROTOCOL_ERROR);
    }
    still_serves(&mut pair, 0);
}

#[test]
fn attack_39_exp_stat_sn_far_off() {
    let mut pair = Pair::new();
    for (n, exp) in [0, 50, 100_000, 1 << 31, u32::MAX].into_iter().enumerate() {
        let mut command = read(n as u32, 0, 512);
        command.exp_stat_sn = Sn::new(exp);
        assert_eq!(pair.talk(&pdu(&command, &[])).len(), 1);
        assert_eq!(pair.session.links[0].acked, Sn::new(99));
    }
    let mut command = read(5, 0, 512);
    command.exp_stat_sn = Sn::new(104);
    pair.feed(0, &pdu(&command, &[]));
    assert_eq!(pair.session.links[0].acked, Sn::new(103));
}

fn digests() -> LinkParams {
    LinkParams { header_digest: true, data_digest: true, ..link_params(0) }
}

#[test]
fn attack_40_bad_header_digest() {
    let mut pair = Pair::with(session_params(), digests(), limits());
    let mut bytes = digested(&read(0, 0, 512), &[], &[], true, true);
    assert_eq!(pair.talk(&bytes).len(), 1);
    bytes[50] ^= 1;
    pair.feed(0, &bytes);
    assert_eq!(pair.violations, [Fault::HeaderDigest]);
    assert!(pair.ends[0].shut && pair.closed);
}

#[test]
fn attack_40_bad_data_digest_on_every_kind_of_data() {
    let data = pattern(1001);
    let spoil = |mut bytes: Vec<u8>| {
        let last = bytes.len() - 9;
        bytes[last] ^= 0x40;
        bytes
    };
    let mut pair = Pair::with(session_params(), digests(), limits());
    // Immediate data: the header stands, so the command fails and its number counts.
    let got = pair.talk(&spoil(digested(&write(0, 0, 1001), &[], &data, true, true)));
    assert_eq!(rejected(&got[0]), RejectReason::DATA_DIGEST_ERROR);
    assert_eq!(sense(&got[1]), CRC);
    // Solicited data: the command fails after the last of it.
    let got = pair.talk(&digested(&write(1, 0, 2002), &[], &[], true, true));
    let ttt = got[0].as_pdu::<R2t>().ttt;
    let bad = spoil(digested(&data_out(1, ttt, 0, 0, false), &[], &data, true, true));
    assert_eq!(rejected(&pair.talk(&bad)[0]), RejectReason::DATA_DIGEST_ERROR);
    let last = digested(&data_out(1, ttt, 1, 1001, true), &[], &data, true, true);
    let got = pair.talk(&last);
    assert_eq!((got.len(), sense(&got[0])), (1, CRC));
    assert_eq!(pair.disk[0], 0);
    // A ping: it alone is lost, and its number is still to come.
    let ping = digested(&nop(2, 70), &[], &data, true, true);
    let got = pair.talk(&spoil(ping.clone()));
    assert_eq!((got.len(), rejected(&got[0])), (1, RejectReason::DATA_DIGEST_ERROR));
    assert_eq!(pair.talk(&ping)[0].data, data);
    let got = pair.talk(&digested(&read(3, 0, 512), &[], &[], true, true));
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
        let mut pair = Pair::with(session_params(), digests(), limits());
        pair.mode = Mode::Keep;
        pair.feed(0, &bytes[..cut]);
        pair.hang_up(0);
        assert!(pair.closed && pair.ends[0].shut, "cut at {cut}");
        assert_eq!(pair.pool.usage().lent, 0, "cut at {cut}");
    }
}

#[test]
fn pdus_that_have_no_place_are_refused() {
    let mut pair = Pair::new();
    for op in [0x07, 0x0f, 0x1c, 0x20, 0x3f] {
        let mut bytes = pdu(&nop(0, 1), &pattern(100));
        bytes[0] = op;
        assert_eq!(rejected(&pair.talk(&bytes)[0]), RejectReason::COMMAND_NOT_SUPPORTED);
    }
    let mut bytes = pdu(&LoginRequest::new(), &[]);
    bytes[16] = 1;
    assert_eq!(rejected(&pair.talk(&bytes)[0]), RejectReason::PROTOCOL_ERROR);
    // Inconsistent commands.
    let mut no_final = read(0, 0, 512);
    no_final.flags = CommandFlags::READ;
    let mut no_way = read(0, 0, 512);
    no_way.flags = CommandFlags::FINAL;
    let mut no_tag = read(0, 0, 512);
    no_tag.itt = Itt::NONE;
    for bad in [no_final, no_way, no_tag] {
        assert_eq!(rejected(&pair.talk(&pdu(&bad, &[]))[0]), RejectReason::INVALID_PDU_FIELD);
    }
    let got = pair.talk(&pdu(&read(0, 0, 512), b"data of a read"));
    assert_eq!(rejected(&got[0]), RejectReason::INVALID_PDU_FIELD);
    still_serves(&mut pair, 0);
    // A tag that is in use.
    pair.mode = Mode::Keep;
    pair.feed(0, &pdu(&read(1, 0, 512), &[]));
    let mut again = read(2, 0, 512);
    again.itt = Itt::new(1);
    assert_eq!(rejected(&pair.talk(&pdu(&again, &[]))[0]), RejectReason::TASK_IN_PROGRESS);
    // Additional header segments end the session.
    let mut bytes = pdu(&nop(2, 5), &[]);
    bytes[4] = 1;
    bytes.extend([0, 1, 9, 0]);
    pair.feed(0, &bytes);
    assert_eq!(pair.violations, [Fault::UnexpectedAhs]);
    assert!(pair.closed);
}

#[test]
fn attack_22_a_list_longer_than_a_segment() {
    let params = SessionParams { discovery: true, ..session_params() };
    let link = LinkParams { initiator_mrdsl: 512, ..link_params(0) };
    let mut pair = Pair::with(params, link, limits());
    let mut request = TextRequest::new();
    (request.itt, request.flags, request.cmd_sn) = (Itt::new(5), TextFlags::FINAL, sn(0));
    pair.records = pair.records.repeat(5000);
    let mut answer = pair.talk(&pdu(&request, b"SendTargets=All\0"));
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
        answer = pair.talk(&pdu(&request, &[]));
    }
    assert!(whole == pair.records);
    // SCSI has no place in a discovery session.
    assert_eq!(rejected(&pair.talk(&pdu(&read(n, 0, 512), &[]))[0]), RejectReason::PROTOCOL_ERROR);
}

#[test]
fn attack_23_texts_out_of_step() {
    let mut pair = Pair::new();
    let mut request = TextRequest::new();
    (request.itt, request.cmd_sn) = (Itt::new(5), sn(0));
    let reason = |pair: &mut Pair, request: &TextRequest| rejected(&pair.talk(&pdu(request, &[]))[0]);
    request.flags = TextFlags::FINAL.with(TextFlags::CONTINUE);
    assert_eq!(reason(&mut pair, &request), RejectReason::PROTOCOL_ERROR);
    (request.flags, request.ttt) = (TextFlags::FINAL, Ttt::new(77));
    assert_eq!(reason(&mut pair, &request), RejectReason::INVALID_PDU_FIELD);
    // One exchange open, another begun.
    (request.flags, request.ttt) = (TextFlags::CONTINUE, Ttt::NONE);
    let open = pair.talk(&pdu(&request, b"SendTar"));
    let ttt = open[0].as_pdu::<TextResponse>().ttt;
    (request.itt, request.cmd_sn) = (Itt::new(6), sn(1));
    assert_eq!(reason(&mut pair, &request), RejectReason::PROTOCOL_ERROR);
    // A stale tag, then the right one.
    (request.itt, request.ttt) = (Itt::new(5), Ttt::new(ttt.value() ^ 1));
    assert_eq!(reason(&mut pair, &request), RejectReason::INVALID_PDU_FIELD);
    (request.ttt, request.flags) = (ttt, TextFlags::FINAL);
    let got = pair.talk(&pdu(&request, b"gets=\0"));
    assert!(got[0].data.starts_with(b"TargetName="));
}

#[test]
fn attack_06_a_text_without_end() {
    let mut pair = Pair::new();
    let mut request = TextRequest::new();
    (request.itt, request.flags) = (Itt::new(5), TextFlags::CONTINUE);
    let mut last = Vec::new();
    for n in 0..4 {
        request.cmd_sn = sn(n);
        last = pair.talk(&pdu(&request, &[b'K'; 8000]));
        match last[0].op() {
            Opcode::TEXT_RESPONSE => request.ttt = last[0].as_pdu::<TextResponse>().ttt,
            _other => break,
        }
    }
    assert_eq!(rejected(&last[0]), RejectReason::PROTOCOL_ERROR);
    assert!(pair.session.links[0].text.is_none());
}
