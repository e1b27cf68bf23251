//! Several links, one order of commands; links and sessions that end.

use super::super::*;
use super::pair::*;
use crate::wire::*;

/// The unit that commands of the tests go to.
const UNIT: [u8; 8] = [0, 3, 0, 0, 0, 0, 0, 0];

fn order(pair: &Pair) -> Vec<usize> {
    // The CDB's offset tells the commands apart.
    let commands = pair.kept.iter().filter_map(|(_, request)| match request {
        Request::Scsi(scsi) => Some(usize::from(scsi.cdb.as_slice()[5])),
        Request::Task(_) | Request::SendTargets(_) => None,
    });
    commands.collect()
}

#[test]
fn commands_are_delivered_in_one_order_over_all_links() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.feed(second, &[pdu(&read(1, 1, 8), &[]), pdu(&read(3, 3, 8), &[])].concat());
    assert_eq!(order(&pair), []);
    pair.feed(0, &pdu(&read(0, 0, 8), &[]));
    assert_eq!(order(&pair), [0, 1]);
    pair.feed(0, &[pdu(&read(2, 2, 8), &[]), pdu(&read(4, 4, 8), &[])].concat());
    assert_eq!(order(&pair), [0, 1, 2, 3, 4]);
    // Each is answered where it came.
    for (tag, _) in pair.kept.clone() {
        pair.send_read(tag, 0, 8);
    }
    pair.pump();
    let itts = |got: Vec<Got>| got.iter().map(|pdu| pdu.bhs.itt.value()).collect::<Vec<_>>();
    assert_eq!((itts(pair.take(0)), itts(pair.take(second))), (vec![0, 2, 4], vec![1, 3]));
}

#[test]
fn a_write_out_of_turn_keeps_its_data_until_it_is_due() {
    let mut pair = Pair::new();
    let second = usize::from(pair.attach(link_params(1)).0);
    let data = pattern(4096);
    pair.feed(second, &[pdu(&write(1, 0, 4096), &data), pdu(&nop_immediate(1, 70), b"x")].concat());
    // The link is not blocked by it.
    assert_eq!(pair.take(second)[0].op(), Opcode::NOP_IN);
    assert_eq!(pair.log.len(), 0);
    pair.feed(0, &pdu(&nop(0, 71), &[]));
    assert_eq!(pair.take(second)[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(pair.disk[..4096], data);
    assert_eq!(pair.pool.usage().lent, 0);
}

fn nop_immediate(n: u32, itt: u32) -> NopOut {
    let mut ping = nop(n, itt);
    ping.op = ping.op.immediate();
    ping
}

#[test]
fn a_lost_link_takes_its_own_tasks_with_it() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.feed(0, &pdu(&read(0, 0, 8), &[]));
    pair.feed(second, &pdu(&read(1, 1, 8), &[]));
    pair.hang_up(0);
    assert_eq!((pair.aborted.len(), order(&pair)), (1, vec![1]));
    assert!(pair.ends[0].shut && !pair.closed);
    let tag = pair.kept[0].0;
    assert_eq!(pair.take(second)[0].op(), Opcode::NOP_IN, "where the window stands");
    pair.send_read(tag, 0, 8);
    pair.pump();
    assert_eq!(pair.take(second).len(), 1);
    // Its place may be taken again.
    assert_eq!(pair.attach(link_params(0)), Link(0));
    pair.hang_up(0);
    pair.hang_up(second);
    assert!(pair.closed);
}

#[test]
fn attack_18_connection_reinstatement_during_io() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    pair.feed(0, &pdu(&write(0, 0, 4096), &[]));
    let tag = pair.kept[0].0;
    let memory = pair.pool.take_sg(buf::Class::Solicited, 4096).unwrap();
    pair.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    pair.pump();
    let ttt = pair.take(0)[0].as_pdu::<R2t>().ttt;
    // Half of the data, then the same CID logs in again.
    let half = pdu(&data_out(0, ttt, 0, 0, true), &pattern(4096));
    pair.feed(0, &half[..2000]);
    let link = usize::from(pair.attach(link_params(0)).0);
    assert_ne!(link, 0);
    pair.pump();
    assert!(pair.ends[0].shut && !pair.closed);
    assert_eq!(pair.aborted, [tag]);
    assert_eq!(pair.session.tasks_in_work(), 0);
    assert_eq!(pair.take(link)[0].op(), Opcode::NOP_IN, "where the window stands");
    pair.mode = Mode::Serve;
    pair.feed(link, &pdu(&read(1, 0, 8), &[]));
    assert_eq!(pair.take(link).len(), 1);
    assert_eq!(pair.pool.usage().lent, 0);
}

#[test]
fn attack_19_more_links_than_agreed() {
    let params = SessionParams { max_connections: 2, ..session_params() };
    let mut pair = Pair::with(params, link_params(0), limits());
    pair.attach(link_params(1));
    for cid in 2..100 {
        let result = pair.with_cx(|session, cx| session.attach(cx, link_params(cid), &[]));
        assert_eq!(result, Err(AttachError::TooManyLinks));
    }
    assert!(pair.session.has_connection(Cid::new(1)) && !pair.session.has_connection(Cid::new(2)));
}

#[test]
fn a_connection_is_let_in_only_where_a_place_is_kept_for_it() {
    let params =
        SessionParams { max_connections: 4, first_burst: 65_536, max_burst: 65_536, ..session_params() };
    let mut pair = Pair::with(params, link_params(0), SessionLimits { commands: 2, ..limits() });
    let whole = pair.pool.usage().promise_max();
    let others = whole - pair.pool.usage().reserved - 65_536;
    assert!(pair.pool.reserve(buf::Account::Iscsi, others));
    let until = Time(1 << 40);
    let keep = |pair: &mut Pair, cid| {
        pair.with_cx(|session, cx| {
            session.reinstate(cx, Cid::new(cid), until);
            session.keep_place(Cid::new(cid))
        })
    };
    // Two commands and an immediate one have a burst each: enough for two links; and there is one more.
    assert_eq!((keep(&mut pair, 1), keep(&mut pair, 2)), (Ok(()), Ok(())));
    assert_eq!(keep(&mut pair, 3), Err(AttachError::NoMemory));
    pair.with_cx(|session, cx| session.expect_no_more(cx, Cid::new(3)));
    // Commands that end give nothing of it back.
    pair.talk(&pdu(&read(0, 0, 8), &[]));
    assert_eq!(pair.pool.left_to_promise(buf::Account::Iscsi), 0);
    pair.attach(link_params(2));
    pair.attach(link_params(1));
    // With memory enough, the number that was negotiated bounds them.
    pair.pool.unreserve(buf::Account::Iscsi, others);
    assert_eq!((keep(&mut pair, 3), keep(&mut pair, 4)), (Ok(()), Err(AttachError::TooManyLinks)));
    assert_eq!(pair.session.keep_place(Cid::new(5)), Err(AttachError::Closing), "nobody expects it");
}

#[test]
fn a_session_ends_when_its_only_connection_does_not_come() {
    let mut pair = Pair::new();
    pair.with_cx(|session, cx| session.reinstate(cx, Cid::new(0), Time(1 << 40)));
    pair.pump();
    assert!(!pair.closed, "it waits for the new one");
    pair.with_cx(|session, cx| session.expect_no_more(cx, Cid::new(0)));
    pair.pump();
    assert!(pair.closed);
    assert_eq!(pair.session.keep_place(Cid::new(0)), Err(AttachError::Closing));
}

#[test]
fn one_link_can_log_another_out() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.feed(second, &pdu(&read(0, 0, 8), &[]));
    let mut logout = LogoutRequest::new();
    logout.set_reason(LogoutReason::CLOSE_CONNECTION);
    (logout.itt, logout.cmd_sn, logout.cid) = (Itt::new(9), sn(1), Cid::new(1));
    let got = pair.talk(&pdu(&logout, &[]));
    assert_eq!(got[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert_eq!((pair.aborted.len(), pair.ends[second].shut, pair.ends[0].shut), (1, true, false));
    logout.cid = Cid::new(0);
    (logout.itt, logout.cmd_sn) = (Itt::new(10), sn(2));
    let got = pair.talk(&pdu(&logout, &[]));
    assert_eq!(got[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert!(pair.closed);
}

#[test]
fn leftover_bytes_of_the_login_are_parsed_first() {
    let mut pair = Pair::new();
    let bytes = pdu(&read(0, 512, 512), &[]);
    let link = pair.with_cx(|session, cx| session.attach(cx, link_params(1), &bytes[..60.min(bytes.len())]));
    assert_eq!(link, Ok(Link(1)));
    pair.ends.push(WireEnd::default());
    pair.pump();
    assert_eq!(pair.take(1)[0].data, pair.disk[512..1024]);
}

#[test]
fn windows_are_small_when_memory_is_short() {
    let pool = buf::Pool::new(1 << 20);
    let mut entropy = buf::Entropy::new([0; 32]);
    let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
    let params = SessionParams { first_burst: 65_536, max_burst: 65_536, ..session_params() };
    let first = TargetSession::new(&mut cx, params.clone(), limits()).unwrap();
    assert_eq!(first.command_window(), 7);
    assert_eq!(first.command_numbers(), (sn(0), sn(6)));
    let refused = TargetSession::new(&mut cx, params.clone(), limits());
    assert_eq!(refused.err(), Some(AttachError::NoMemory));
    let solicited = SessionParams { initial_r2t: true, immediate_data: false, ..params.clone() };
    assert_eq!(TargetSession::new(&mut cx, solicited, limits()).unwrap().command_window(), 8);
    drop(first);
    assert_eq!(TargetSession::new(&mut cx, params, limits()).unwrap().command_window(), 7);
}

#[test]
fn a_window_that_grows_is_told_when_the_initiator_has_used_up_what_it_knows() {
    let mut pair = Pair::with(session_params(), link_params(0), SessionLimits { commands: 64, ..limits() });
    pair.mode = Mode::Keep;
    let reserved = pair.pool.usage().reserved;
    for n in 0..8 {
        assert_eq!(pair.take(0), [], "there is no need");
        pair.feed(0, &pdu(&read(n, 0, 8), &[]));
    }
    let news: NopIn = pair.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.exp_cmd_sn, news.max_cmd_sn), (Itt::NONE, sn(8), sn(15)));
    assert_eq!(pair.pool.usage().reserved, reserved + 8 * 8192);
    // Answers tell it as well.
    for n in 8..16 {
        pair.feed(0, &pdu(&read(n, 0, 8), &[]));
        let (tag, _) = pair.kept.remove(0);
        pair.send_read(tag, 0, 8);
        pair.pump();
        let got = pair.take(0);
        assert_eq!((got.len(), got[0].op()), (1, Opcode::DATA_IN));
    }
    assert_eq!(pair.session.command_window(), 32);
}

#[test]
fn a_closed_window_that_opens_without_an_answer_is_told() {
    let mut pair = Pair::with(session_params(), link_params(0), SessionLimits { commands: 1, ..limits() });
    pair.mode = Mode::Keep;
    pair.feed(0, &pdu(&read(0, 0, 8), &[]));
    let tag = pair.kept[0].0;
    pair.with_cx(|session, cx| session.retire(cx, tag));
    pair.pump();
    let news: NopIn = pair.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.ttt), (Itt::NONE, Ttt::NONE));
    assert_eq!((news.exp_cmd_sn, news.max_cmd_sn), (sn(1), sn(1)));
}

#[test]
fn a_command_that_failed_before_its_turn_ends_with_its_link() {
    let mut pair = Pair::new();
    let mut early = write(1, 0, 8192);
    early.flags = early.flags.without(CommandFlags::FINAL);
    // DataSN 3 is wrong: the write is lost, and the server never heard of it.
    let data = pdu(&data_out(1, Ttt::NONE, 3, 0, true), &pattern(8192));
    let got = pair.talk(&[pdu(&early, &[]), data].concat());
    assert_eq!((got.len(), pair.session.tasks_in_work()), (0, 1), "no answer before its turn");
    pair.hang_up(0);
    assert!(pair.closed && pair.aborted.is_empty());
}

#[test]
fn a_lost_link_tells_which_units_lost_commands_and_where_the_window_stands() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.feed(second, &[pdu(&read(0, 0, 8), &[]), pdu(&read(1, 1, 8), &[])].concat());
    assert_eq!(pair.session.poll_cleared(), None);
    // One is answered, and the answer is lost with the link.
    pair.ends[second].deaf = true;
    let tag = pair.kept[0].0;
    pair.send_read(tag, 0, 8);
    pair.pump();
    pair.hang_up(second);
    assert_eq!(pair.session.poll_cleared(), Some(UNIT));
    assert_eq!(pair.session.poll_cleared(), None, "a unit is told once");
    let news: NopIn = pair.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.exp_cmd_sn), (Itt::NONE, sn(2)));
    assert_eq!(news.max_cmd_sn, pair.session.command_numbers().1);
    // A link that is logged out tells its initiator itself what becomes of its tasks.
    pair.feed(0, &pdu(&read(2, 2, 8), &[]));
    pair.hang_up(0);
    assert_eq!(pair.session.poll_cleared(), None, "nobody is left to be told");
    assert!(pair.closed);
}

#[test]
fn a_connection_is_reinstated_when_its_old_tasks_have_ended() {
    let mut pair = Pair::new();
    pair.mode = Mode::Keep;
    pair.feed(0, &pdu(&read(0, 0, 8), &[]));
    let tag = pair.kept[0].0;
    // The server is slow to let go.
    let until = pair.now + Duration::from_secs(15);
    pair.with_cx(|session, cx| session.reinstate(cx, Cid::new(0), until));
    assert!(!pair.session.has_connection(Cid::new(0)) && !pair.session.is_clear_of(Cid::new(0)));
    pair.pump();
    assert_eq!(pair.aborted, [tag]);
    assert!(pair.session.is_clear_of(Cid::new(0)), "now the login may be answered");
    assert!(!pair.closed, "the session waits, though it has no link");
    let link = usize::from(pair.attach(link_params(0)).0);
    assert_eq!(pair.session.poll_cleared(), Some(UNIT));
    pair.mode = Mode::Serve;
    pair.feed(link, &pdu(&read(1, 0, 8), &[]));
    assert!(pair.take(link).iter().any(|got| got.op() == Opcode::DATA_IN));
    // A CID that nobody bears ends nothing.
    pair.with_cx(|session, cx| session.reinstate(cx, Cid::new(9), until));
    assert!(pair.session.has_connection(Cid::new(0)) && pair.session.is_clear_of(Cid::new(9)));
}

#[test]
fn a_reinstatement_that_never_comes_ends_the_session() {
    let mut pair = Pair::new();
    let until = pair.now + Duration::from_secs(15);
    pair.with_cx(|session, cx| session.reinstate(cx, Cid::new(0), until));
    pair.pump();
    assert!(!pair.closed);
    assert_eq!(pair.session.poll_timeout(), Some(until));
    pair.now = until;
    pair.with_cx(|session, cx| session.handle_timeout(cx));
    pair.pump();
    assert!(pair.closed);
}

#[test]
fn a_session_waits_for_a_connection_on_its_way_when_its_last_one_dies() {
    let mut pair = Pair::new();
    let second = usize::from(pair.attach(link_params(1)).0);
    pair.hang_up(second);
    // Its CID is to be borne again; nothing is left that bears it.
    let until = pair.now + Duration::from_secs(15);
    pair.with_cx(|session, cx| session.reinstate(cx, Cid::new(1), until));
    pair.hang_up(0);
    assert!(!pair.closed, "its login may be answered already");
    let third = usize::from(pair.attach(link_params(1)).0);
    pair.feed(third, &pdu(&read(0, 0, 8), &[]));
    assert!(pair.take(third).iter().any(|got| got.op() == Opcode::DATA_IN));
    pair.hang_up(third);
    assert!(pair.closed);
}
