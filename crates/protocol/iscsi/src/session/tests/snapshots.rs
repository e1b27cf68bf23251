//! Snapshots: what is refused and why, and the bytes of version 1.

use super::super::request::ScsiCommand;
use super::super::*;
use super::scripted_initiator::*;
use crate::wire::{CommandFlags, Itt, Pdu, R2t, TextFlags, TextRequest};
use buf::{MemoryClass, Pool, PoolAccount};
use proptest::prelude::*;
use stream::snapshot::SnapshotDamage;
use testkit::snapshots::{with_damaged_body, with_version};

/// A session of version 1, with half a Data-Out of a write, a read, a command that came early, and part of a header.
const VERSION_1: &[u8] = include_bytes!("session_v1.snapshot");

/// Brings the peer's session to rest, as a daemon that is replaced does.
fn bring_to_rest(peer: &mut ScriptedInitiator, placed: Vec<(Tag, ScsiCommand)>) {
    peer.session.quiesce();
    let op = peer.ends[0].op.take().expect("a receive is out");
    peer.with_cx(|session, cx| session.handle_recv(cx, LinkNumber(0), op, Received::Cancelled).unwrap());
    let kept = std::mem::take(&mut peer.kept).into_iter().filter_map(|(tag, command)| match command {
        Request::Scsi(command) => Some((tag, command)),
        Request::Task(_) | Request::SendTargets(_) => None,
    });
    for (tag, command) in kept.chain(placed) {
        peer.session.withdraw(tag, command).unwrap();
    }
    peer.writes.clear();
}

/// The session that [`VERSION_1`] was made from, at rest, and the rest of what the initiator sends.
fn eventful() -> (ScriptedInitiator, Vec<u8>) {
    let link = LinkParams { header_digest: true, data_digest: true, ..link_params(0) };
    let mut peer = ScriptedInitiator::with(session_params(), link, limits());
    peer.mode = ServerMode::Keep;
    let data = pattern(20_000);
    peer.talk(&digested(&write(0, 8192, 20_000), &[], &data[..5000], true, true));
    let (tag, Request::Scsi(command)) = peer.kept.pop().unwrap() else { panic!() };
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 20_000).unwrap();
    peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
    peer.pump();
    let r2t: R2t = peer.take(0)[0].as_pdu();
    let mut bytes = digested(&read(1, 512, 4000), &[], &[], true, true);
    bytes.extend(digested(&read(3, 1024, 100), &[], &[], true, true));
    let first = bytes.len();
    bytes.extend(digested(&data_out(0, r2t.ttt, 0, 5000, false), &[], &data[5000..12_000], true, true));
    bytes.extend(digested(&data_out(0, r2t.ttt, 1, 12_000, true), &[], &data[12_000..], true, true));
    bytes.extend(digested(&read(2, 0, 700), &[], &[], true, true));
    let rest = bytes.split_off(first + 3333);
    peer.feed(0, &bytes);
    bring_to_rest(&mut peer, vec![(tag, command)]);
    (peer, rest)
}

fn restored(peer: &mut ScriptedInitiator, bytes: &[u8]) -> Result<(), SessionRestoreError> {
    let snapshot = SessionSnapshot::from_bytes(bytes.into());
    peer.session = peer.with_cx(|_, cx| TargetSession::restore(cx, &snapshot, &limits()))?;
    Ok(())
}

#[test]
fn a_session_of_version_1_is_written_and_read_as_ever() {
    let (mut peer, rest) = eventful();
    let saved = peer.with_cx(|session, cx| session.save(cx)).unwrap();
    assert!(saved.as_bytes() == VERSION_1, "the format has changed: raise its version, and read both");
    assert!(!format!("{saved:?}").contains("123"), "no data in logs");
    restored(&mut peer, VERSION_1).unwrap();
    assert_eq!(peer.session.link_numbers().collect::<Vec<_>>(), [LinkNumber(0)]);
    peer.mode = ServerMode::Serve;
    let got = peer.talk(&rest);
    // The write has all its data; the reads come in the order of their numbers.
    assert_eq!(peer.disk[8192..28_192], pattern(20_000));
    let mut answered: Vec<u32> = got.iter().map(|pdu| pdu.bhs.itt.value()).collect();
    answered.retain(|itt| *itt != u32::MAX);
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2, 3]);
    assert_eq!((peer.session.tasks_in_work(), peer.violations.as_slice()), (0, &[][..]));
}

#[test]
fn what_is_withdrawn_and_taken_back_goes_on_here() {
    let (mut peer, rest) = eventful();
    peer.session.resume();
    peer.mode = ServerMode::Serve;
    peer.talk(&rest);
    assert_eq!(peer.disk[8192..28_192], pattern(20_000));
    peer.hang_up(0);
    assert!(peer.closed && peer.pool.usage().lent == 0);
}

#[test]
fn a_session_that_is_lost_at_rest_ends_as_any_other() {
    let (mut peer, _) = eventful();
    peer.with_cx(|session, cx| session.close(cx, ConnectionClose::Now));
    peer.pump();
    assert!(peer.closed && peer.pool.usage().lent == 0);
    assert_eq!(peer.session.tasks_in_work(), 0);
}

/// What was made bytes of for another process dies with the link.
#[test]
fn a_link_that_is_lost_sends_nothing_more() {
    let mut peer = ScriptedInitiator::keeping();
    peer.talk(&pdu(&read(0, 0, 9000), &[]));
    let (tag, _) = peer.kept.pop().unwrap();
    peer.send_read(tag, 0, 9000);
    bring_to_rest(&mut peer, Vec::new());
    peer.with_cx(|session, cx| session.save(cx)).unwrap();
    assert!(peer.link_state(0).tx.transmit_queue.unsent_len() > 9000);
    peer.with_cx(|session, cx| session.close(cx, ConnectionClose::Now));
    peer.pump();
    assert!(peer.closed && peer.ends[0].sent.is_empty());
}

#[test]
fn a_batch_that_comes_back_to_a_lost_link_is_the_last_that_its_session_waits_for() {
    let mut peer = ScriptedInitiator::keeping();
    peer.talk(&pdu(&read(0, 0, 9000), &[]));
    let (tag, _) = peer.kept.pop().unwrap();
    peer.send_read(tag, 0, 9000);
    let op = peer.with_cx(|session, cx| session.poll_send(cx, LinkNumber(0))).unwrap();
    bring_to_rest(&mut peer, Vec::new());
    peer.with_cx(|session, cx| session.close(cx, ConnectionClose::Now));
    assert!(!peer.session.poll_nexus_end());
    peer.with_cx(|session, cx| session.handle_send_cut(cx, LinkNumber(0), op, 100));
    assert!(peer.session.poll_nexus_end() && peer.pool.usage().lent == 0);
}

#[test]
fn what_cannot_be_saved_is_refused_by_name() {
    let refusal = |peer: &mut ScriptedInitiator| peer.with_cx(|session, cx| session.save(cx)).unwrap_err();
    let mut peer = ScriptedInitiator::keeping();
    peer.talk(&pdu(&read(0, 0, 512), &[]));
    assert_eq!(refusal(&mut peer), SessionSaveRefusal::TasksWithServer(1));
    let (tag, Request::Scsi(command)) = peer.kept[0].clone() else { panic!() };
    assert_eq!(peer.session.withdraw(tag, command.clone()), Err(command.clone()), "it goes on");
    peer.session.quiesce();
    assert_eq!(peer.session.withdraw(tag, command.clone()), Ok(()));
    assert_eq!(peer.session.withdraw(tag, command.clone()), Err(command), "once");
    assert_eq!(refusal(&mut peer), SessionSaveRefusal::Busy, "a receive is out");

    let mut peer = ScriptedInitiator::with(
        SessionParams { discovery: true, ..session_params() },
        link_params(0),
        limits(),
    );
    assert_eq!(refusal(&mut peer), SessionSaveRefusal::Discovery);

    let mut peer = ScriptedInitiator::new();
    let mut text = TextRequest::new();
    (text.itt, text.flags, text.cmd_sn) = (Itt::new(9), TextFlags::CONTINUE, sn(0));
    peer.talk(&pdu(&text, b"SendTar"));
    assert_eq!(refusal(&mut peer), SessionSaveRefusal::TextExchange);

    let mut peer = ScriptedInitiator::new();
    peer.with_cx(|session, cx| {
        session.close(cx, ConnectionClose::AfterLogout(cx.now + Duration::from_secs(9)))
    });
    assert_eq!(refusal(&mut peer), SessionSaveRefusal::Ending);
    assert!(SessionSaveRefusal::TasksWithServer(3).to_string().starts_with("3 of its commands"));
}

/// Of a command of which the initiator has seen something, or the server has data, nothing is taken back.
#[test]
fn a_command_that_had_an_effect_is_executed_to_its_end() {
    let mut peer = ScriptedInitiator::keeping();
    peer.talk(&pdu(&read(0, 0, 9000), &[]));
    let (tag, Request::Scsi(command)) = peer.kept.pop().unwrap() else { panic!() };
    let memory = peer.pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
    peer.with_cx(|session, cx| session.send_data(cx, tag, 0, memory.freeze()));
    peer.session.quiesce();
    assert_eq!(peer.session.withdraw(tag, command.clone()), Err(command));

    let mut peer = ScriptedInitiator::keeping();
    peer.talk(&pdu(&write(0, 0, 8192), &pattern(4096)));
    let (tag, Request::Scsi(command)) = peer.kept.pop().unwrap() else { panic!() };
    for at in [0, 4096] {
        let memory = peer.pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
        peer.with_cx(|session, cx| session.recv_data(cx, tag, at, memory));
    }
    let delivered = peer.session.poll_event();
    assert!(matches!(delivered, Some(TargetEvent::DataReceived { at: 0, .. })), "{delivered:?}");
    peer.session.quiesce();
    assert_eq!(peer.session.withdraw(tag, command.clone()), Err(command));
}

#[test]
fn a_session_without_its_memory_is_not_restored() {
    let (mut peer, _) = eventful();
    peer.pool = Pool::new(1 << 20);
    let others = peer.pool.reservable_bytes(PoolAccount::Iscsi) - (16 << 10);
    assert!(peer.pool.reserve(PoolAccount::Iscsi, others));
    assert_eq!(restored(&mut peer, VERSION_1), Err(SessionRestoreError::NoMemory));
    assert_eq!((peer.pool.usage().lent, peer.pool.usage().reserved), (0, others));
}

#[test]
fn another_version_is_refused_by_name() {
    let (mut peer, _) = eventful();
    let later = with_version(VERSION_1, 2);
    let refused = Err(SessionRestoreError::Damage(SnapshotDamage::Version(2)));
    assert_eq!(restored(&mut peer, &later), refused);
    assert_eq!(
        restored(&mut peer, &VERSION_1[1..]),
        Err(SessionRestoreError::Damage(SnapshotDamage::Foreign))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a body says, what comes of it is refused, or a session that keeps its rules.
    #[test]
    fn a_body_is_parsed_and_never_trusted(
        hits in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<usize>()),
        late: bool,
    ) {
        let (mut peer, rest) = eventful();
        let bytes = with_damaged_body(VERSION_1, &hits, cut);
        peer.pool = Pool::new_poisoned(32 << 20);
        if restored(&mut peer, &bytes).is_ok() {
            (peer.mode, peer.bounded, peer.place_late) = (ServerMode::Keep, true, late);
            peer.talk(&rest);
            let kept = std::mem::take(&mut peer.kept);
            for (tag, _) in kept {
                peer.answer(tag, Response::Scsi(ScsiResult::good(0)));
            }
            peer.pump();
            let mut open = write(9, 0, 8192);
            open.flags = open.flags.without(CommandFlags::FINAL);
            peer.feed(0, &pdu(&open, &[]));
            peer.pass(Duration::from_secs(100));
            for link in peer.session.link_numbers().collect::<Vec<_>>() {
                if usize::from(link.0) < peer.ends.len() {
                    peer.hang_up(link.0.into());
                }
            }
        } else {
            prop_assert_eq!((peer.pool.usage().lent, peer.pool.usage().reserved), (0, 0));
        }
    }
}
