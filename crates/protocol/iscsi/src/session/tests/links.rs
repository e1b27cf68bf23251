//! Several links, one order of commands; links and sessions that end.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;

/// The unit that commands of the tests go to.
const UNIT: [u8; 8] = [0, 3, 0, 0, 0, 0, 0, 0];

fn order(peer: &ScriptedInitiator) -> Vec<usize> {
    // The CDB's offset tells the commands apart.
    let commands = peer.kept.iter().filter_map(|(_, request)| match request {
        Request::Scsi(scsi) => Some(usize::from(scsi.cdb.as_slice()[5])),
        Request::Task(_) | Request::SendTargets(_) => None,
    });
    commands.collect()
}

#[test]
fn commands_are_delivered_in_one_order_over_all_links() {
    let mut peer = ScriptedInitiator::keeping();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(second, &[pdu(&read(1, 1, 8), &[]), pdu(&read(3, 3, 8), &[])].concat());
    assert_eq!(order(&peer), []);
    peer.feed(0, &pdu(&read(0, 0, 8), &[]));
    assert_eq!(order(&peer), [0, 1]);
    peer.feed(0, &[pdu(&read(2, 2, 8), &[]), pdu(&read(4, 4, 8), &[])].concat());
    assert_eq!(order(&peer), [0, 1, 2, 3, 4]);
    // Each is answered where it came.
    for (tag, _) in peer.kept.clone() {
        peer.send_read(tag, 0, 8);
    }
    peer.pump();
    let itts = |got: Vec<ReceivedPdu>| got.iter().map(|pdu| pdu.bhs.itt.value()).collect::<Vec<_>>();
    assert_eq!((itts(peer.take(0)), itts(peer.take(second))), (vec![0, 2, 4], vec![1, 3]));
}

#[test]
fn a_write_out_of_turn_keeps_its_data_until_it_is_due() {
    let mut peer = ScriptedInitiator::new();
    let second = usize::from(peer.attach(link_params(1)).0);
    let data = pattern(4096);
    peer.feed(second, &[pdu(&write(1, 0, 4096), &data), pdu(&nop_immediate(1, 70), b"x")].concat());
    // The link is not blocked by it.
    assert_eq!(peer.take(second)[0].op(), Opcode::NOP_IN);
    assert_eq!(peer.log.len(), 0);
    peer.feed(0, &pdu(&nop(0, 71), &[]));
    assert_eq!(peer.take(second)[0].as_pdu::<ScsiResponse>().status, ScsiStatus::GOOD);
    assert_eq!(peer.disk[..4096], data);
    assert_eq!(peer.pool.usage().lent, 0);
}

fn nop_immediate(n: u32, itt: u32) -> NopOut {
    let mut ping = nop(n, itt);
    ping.op = ping.op.with_immediate();
    ping
}

#[test]
fn a_lost_link_takes_its_own_tasks_with_it() {
    let mut peer = ScriptedInitiator::keeping();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(0, &pdu(&read(0, 0, 8), &[]));
    peer.feed(second, &pdu(&read(1, 1, 8), &[]));
    peer.hang_up(0);
    assert_eq!((peer.aborted.len(), order(&peer)), (1, vec![1]));
    assert!(peer.ends[0].shut && !peer.closed);
    let tag = peer.kept[0].0;
    assert_eq!(peer.take(second)[0].op(), Opcode::NOP_IN, "where the window stands");
    peer.send_read(tag, 0, 8);
    peer.pump();
    assert_eq!(peer.take(second).len(), 1);
    // Its place may be taken again.
    assert_eq!(peer.attach(link_params(0)), LinkNumber(0));
    peer.hang_up(0);
    peer.hang_up(second);
    assert!(peer.closed);
}

#[test]
fn attack_18_connection_reinstatement_during_io() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&write(0, 0, 4096), &[]));
    let tag = peer.kept[0].0;
    let memory = peer.pool.take_sg(buf::MemoryClass::Solicited, 4096).unwrap();
    peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    peer.pump();
    let ttt = peer.take(0)[0].as_pdu::<R2t>().ttt;
    // Half of the data, then the same CID logs in again.
    let half = pdu(&data_out(0, ttt, 0, 0, true), &pattern(4096));
    peer.feed(0, &half[..2000]);
    let link = usize::from(peer.attach(link_params(0)).0);
    assert_ne!(link, 0);
    peer.pump();
    assert!(peer.ends[0].shut && !peer.closed);
    assert_eq!(peer.aborted, [tag]);
    assert_eq!(peer.session.tasks_in_work(), 0);
    assert_eq!(peer.take(link)[0].op(), Opcode::NOP_IN, "where the window stands");
    peer.mode = ServerMode::Serve;
    peer.feed(link, &pdu(&read(1, 0, 8), &[]));
    assert_eq!(peer.take(link).len(), 1);
    assert_eq!(peer.pool.usage().lent, 0);
}

#[test]
fn attack_19_more_links_than_agreed() {
    let params = SessionParams { max_connections: 2, ..session_params() };
    let mut peer = ScriptedInitiator::with(params, link_params(0), limits());
    peer.attach(link_params(1));
    for cid in 2..100 {
        let result = peer.with_cx(|session, cx| session.attach_link(cx, link_params(cid), &[]));
        assert_eq!(result, Err(AttachError::TooManyLinks));
    }
    assert!(peer.session.has_connection(Cid::new(1)) && !peer.session.has_connection(Cid::new(2)));
}

#[test]
fn a_connection_is_let_in_only_where_a_place_is_kept_for_it() {
    let params =
        SessionParams { max_connections: 4, first_burst: 65_536, max_burst: 65_536, ..session_params() };
    let mut peer = ScriptedInitiator::with(params, link_params(0), SessionLimits { commands: 2, ..limits() });
    let whole = peer.pool.usage().reservable_max();
    let others = whole - peer.pool.usage().reserved - 65_536;
    assert!(peer.pool.reserve(buf::PoolAccount::Iscsi, others));
    let until = Time(1 << 40);
    let keep = |peer: &mut ScriptedInitiator, cid| {
        peer.with_cx(|session, cx| {
            session.reinstate_connection(cx, Cid::new(cid), until);
            session.reserve_connection_slot(Cid::new(cid))
        })
    };
    // Two commands and an immediate one have a burst each: enough for two links; and there is one more.
    assert_eq!((keep(&mut peer, 1), keep(&mut peer, 2)), (Ok(()), Ok(())));
    assert_eq!(keep(&mut peer, 3), Err(AttachError::NoMemory));
    peer.with_cx(|session, cx| session.cancel_expected_connection(cx, Cid::new(3)));
    // Commands that end give nothing of it back.
    peer.talk(&pdu(&read(0, 0, 8), &[]));
    assert_eq!(peer.pool.reservable_bytes(buf::PoolAccount::Iscsi), 0);
    peer.attach(link_params(2));
    peer.attach(link_params(1));
    // With memory enough, the number that was negotiated bounds them.
    peer.pool.unreserve(buf::PoolAccount::Iscsi, others);
    assert_eq!((keep(&mut peer, 3), keep(&mut peer, 4)), (Ok(()), Err(AttachError::TooManyLinks)));
    assert_eq!(
        peer.session.reserve_connection_slot(Cid::new(5)),
        Err(AttachError::Closing),
        "nobody expects it"
    );
}

#[test]
fn a_session_ends_when_its_only_connection_does_not_come() {
    let mut peer = ScriptedInitiator::new();
    peer.with_cx(|session, cx| session.reinstate_connection(cx, Cid::new(0), Time(1 << 40)));
    peer.pump();
    assert!(!peer.closed, "it waits for the new one");
    peer.with_cx(|session, cx| session.cancel_expected_connection(cx, Cid::new(0)));
    peer.pump();
    assert!(peer.closed);
    assert_eq!(peer.session.reserve_connection_slot(Cid::new(0)), Err(AttachError::Closing));
}

#[test]
fn one_link_can_log_another_out() {
    let mut peer = ScriptedInitiator::keeping();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(second, &pdu(&read(0, 0, 8), &[]));
    let mut logout = LogoutRequest::new();
    logout.set_reason(LogoutReason::CLOSE_CONNECTION);
    (logout.itt, logout.cmd_sn, logout.cid) = (Itt::new(9), sn(1), Cid::new(1));
    let got = peer.talk(&pdu(&logout, &[]));
    assert_eq!(got[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert_eq!((peer.aborted.len(), peer.ends[second].shut, peer.ends[0].shut), (1, true, false));
    logout.cid = Cid::new(0);
    (logout.itt, logout.cmd_sn) = (Itt::new(10), sn(2));
    let got = peer.talk(&pdu(&logout, &[]));
    assert_eq!(got[0].as_pdu::<LogoutResponse>().response, LogoutResponseCode::CLOSED);
    assert!(peer.closed);
}

#[test]
fn leftover_bytes_of_the_login_are_parsed_first() {
    let mut peer = ScriptedInitiator::new();
    let bytes = pdu(&read(0, 512, 512), &[]);
    let link =
        peer.with_cx(|session, cx| session.attach_link(cx, link_params(1), &bytes[..60.min(bytes.len())]));
    assert_eq!(link, Ok(LinkNumber(1)));
    peer.ends.push(WireEnd::default());
    peer.pump();
    assert_eq!(peer.take(1)[0].data, peer.disk[512..1024]);
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
    let mut peer = ScriptedInitiator::limited(SessionLimits { commands: 64, ..limits() });
    peer.mode = ServerMode::Keep;
    let reserved = peer.pool.usage().reserved;
    for n in 0..8 {
        assert_eq!(peer.take(0), [], "there is no need");
        peer.feed(0, &pdu(&read(n, 0, 8), &[]));
    }
    let news: NopIn = peer.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.exp_cmd_sn, news.max_cmd_sn), (Itt::NONE, sn(8), sn(15)));
    assert_eq!(peer.pool.usage().reserved, reserved + 8 * 8192);
    // Answers tell it as well.
    for n in 8..16 {
        peer.feed(0, &pdu(&read(n, 0, 8), &[]));
        let (tag, _) = peer.kept.remove(0);
        peer.send_read(tag, 0, 8);
        peer.pump();
        let got = peer.take(0);
        assert_eq!((got.len(), got[0].op()), (1, Opcode::DATA_IN));
    }
    assert_eq!(peer.session.command_window(), 32);
}

#[test]
fn a_closed_window_that_opens_without_an_answer_is_told() {
    let mut peer = ScriptedInitiator::limited(SessionLimits { commands: 1, ..limits() });
    peer.mode = ServerMode::Keep;
    peer.feed(0, &pdu(&read(0, 0, 8), &[]));
    let tag = peer.kept[0].0;
    peer.with_cx(|session, cx| session.end_without_response(cx, tag));
    peer.pump();
    let news: NopIn = peer.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.ttt), (Itt::NONE, Ttt::NONE));
    assert_eq!((news.exp_cmd_sn, news.max_cmd_sn), (sn(1), sn(1)));
}

#[test]
fn a_command_that_failed_before_its_turn_ends_with_its_link() {
    let mut peer = ScriptedInitiator::new();
    let mut early = write(1, 0, 8192);
    early.flags = early.flags.without(CommandFlags::FINAL);
    // DataSN 3 is wrong: the write is lost, and the server never heard of it.
    let data = pdu(&data_out(1, Ttt::NONE, 3, 0, true), &pattern(8192));
    let got = peer.talk(&[pdu(&early, &[]), data].concat());
    assert_eq!((got.len(), peer.session.tasks_in_work()), (0, 1), "no answer before its turn");
    peer.hang_up(0);
    assert!(peer.closed && peer.aborted.is_empty());
}

#[test]
fn a_lost_link_tells_which_units_lost_commands_and_where_the_window_stands() {
    let mut peer = ScriptedInitiator::keeping();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(second, &[pdu(&read(0, 0, 8), &[]), pdu(&read(1, 1, 8), &[])].concat());
    assert_eq!(peer.session.poll_cleared_unit(), None);
    // One is answered, and the answer is lost with the link.
    peer.ends[second].deaf = true;
    let tag = peer.kept[0].0;
    peer.send_read(tag, 0, 8);
    peer.pump();
    peer.hang_up(second);
    assert_eq!(peer.session.poll_cleared_unit(), Some(UNIT));
    assert_eq!(peer.session.poll_cleared_unit(), None, "a unit is told once");
    let news: NopIn = peer.take(0)[0].as_pdu();
    assert_eq!((news.itt, news.exp_cmd_sn), (Itt::NONE, sn(2)));
    assert_eq!(news.max_cmd_sn, peer.session.command_numbers().1);
    // A link that is logged out tells its initiator itself what becomes of its tasks.
    peer.feed(0, &pdu(&read(2, 2, 8), &[]));
    peer.hang_up(0);
    assert_eq!(peer.session.poll_cleared_unit(), None, "nobody is left to be told");
    assert!(peer.closed);
}

#[test]
fn a_connection_is_reinstated_when_its_old_tasks_have_ended() {
    let mut peer = ScriptedInitiator::keeping();
    peer.feed(0, &pdu(&read(0, 0, 8), &[]));
    let tag = peer.kept[0].0;
    // The server is slow to let go.
    let until = peer.now + Duration::from_secs(15);
    peer.with_cx(|session, cx| session.reinstate_connection(cx, Cid::new(0), until));
    assert!(!peer.session.has_connection(Cid::new(0)) && !peer.session.is_connection_cleared(Cid::new(0)));
    peer.pump();
    assert_eq!(peer.aborted, [tag]);
    assert!(peer.session.is_connection_cleared(Cid::new(0)), "now the login may be answered");
    assert!(!peer.closed, "the session waits, though it has no link");
    let link = usize::from(peer.attach(link_params(0)).0);
    assert_eq!(peer.session.poll_cleared_unit(), Some(UNIT));
    peer.mode = ServerMode::Serve;
    peer.feed(link, &pdu(&read(1, 0, 8), &[]));
    assert!(peer.take(link).iter().any(|got| got.op() == Opcode::DATA_IN));
    // A CID that nobody bears ends nothing.
    peer.with_cx(|session, cx| session.reinstate_connection(cx, Cid::new(9), until));
    assert!(peer.session.has_connection(Cid::new(0)) && peer.session.is_connection_cleared(Cid::new(9)));
}

#[test]
fn a_reinstatement_that_never_comes_ends_the_session() {
    let mut peer = ScriptedInitiator::new();
    let until = peer.now + Duration::from_secs(15);
    peer.with_cx(|session, cx| session.reinstate_connection(cx, Cid::new(0), until));
    peer.pump();
    assert!(!peer.closed);
    assert_eq!(peer.session.poll_timeout(), Some(until));
    peer.now = until;
    peer.with_cx(|session, cx| session.handle_timeout(cx));
    peer.pump();
    assert!(peer.closed);
}

#[test]
fn a_session_waits_for_a_connection_on_its_way_when_its_last_one_dies() {
    let mut peer = ScriptedInitiator::new();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.hang_up(second);
    // Its CID is to be borne again; nothing is left that bears it.
    let until = peer.now + Duration::from_secs(15);
    peer.with_cx(|session, cx| session.reinstate_connection(cx, Cid::new(1), until));
    peer.hang_up(0);
    assert!(!peer.closed, "its login may be answered already");
    let third = usize::from(peer.attach(link_params(1)).0);
    peer.feed(third, &pdu(&read(0, 0, 8), &[]));
    assert!(peer.take(third).iter().any(|got| got.op() == Opcode::DATA_IN));
    peer.hang_up(third);
    assert!(peer.closed);
}
