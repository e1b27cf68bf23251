//! Two ends of a link, with what may go wrong between them.

use std::sync::Arc;
use std::time::Duration;

use group::{
    Answer, Command, GroupId, LinkMessage, LinkPayload, LostController, ResetAnswer, Snapshot, Term,
};
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{
    Durability, Extent, Failure, Fault, Geometry, Identity, Notice, NoticeCause, NoticeReceivers, Op,
    Outcome, PathAccess, PortId, Refusal, Requester, SanitizeKind, Span, UnservableReason, Uuid,
    VolumeRequest,
};

use super::*;

type Message = LinkMessage<LinkPayload>;

fn context(me: u64, group: &str, key: u8) -> LinkContext {
    LinkContext::new(InstanceId(me), &group.parse().unwrap(), &GroupKey::new([key; 32])).unwrap()
}

fn pair(one: &LinkContext, to: u64, other: &LinkContext) -> [Link; 2] {
    [Link::connect(one, Time(0), InstanceId(to)).unwrap(), Link::accept(other, Time(0)).unwrap()]
}

/// Carries bytes both ways, `step` at a time, until there are none; what each end has told.
fn run(ends: &mut [Link; 2], step: usize) -> [Vec<LinkEvent>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    let mut bytes = vec![0; step];
    loop {
        let mut moved = 0;
        for from in [0, 1] {
            let count = ends[from].poll_transmit(&mut bytes);
            moved += count;
            ends[1 - from].handle_received(&bytes[..count]);
            for (events, end) in events.iter_mut().zip(ends.iter_mut()) {
                events.extend(std::iter::from_fn(|| end.poll_event()));
            }
        }
        if moved == 0 {
            return events;
        }
    }
}

fn up() -> [Link; 2] {
    let mut ends = pair(&context(7, "g", 1), 8, &context(8, "g", 1));
    let events = run(&mut ends, 4096);
    assert!(matches!(events[0][..], [LinkEvent::Up(InstanceId(8))]), "{events:?}");
    assert!(matches!(events[1][..], [LinkEvent::Up(InstanceId(7))]), "{events:?}");
    ends
}

fn fault(events: &[LinkEvent]) -> LinkFault {
    match events {
        [LinkEvent::Ended(fault)] => fault.clone(),
        other => panic!("{other:?}"),
    }
}

fn keep_alive() -> Message {
    LinkMessage::KeepAlive { store_silent: Duration::from_millis(1500) }
}

fn host() -> Arc<Identity> {
    Arc::new(Identity::Host([9; 16]))
}

fn initiator() -> Arc<Identity> {
    Arc::new(Identity::Initiator { name: "iqn.2026-11.example:ä".into(), isid: [6; 6], port: PortId(3) })
}

fn who() -> Requester {
    Requester { identity: initiator(), port: PortId(3), read_only: true }
}

fn operations() -> Vec<Op> {
    let span = Span { lba: u64::MAX, blocks: 3 };
    let overwrite = SanitizeKind::Overwrite { pattern: [1, 2].into(), passes: 31, invert: true };
    vec![
        Op::Read(span),
        Op::Write(span, Durability::Cached),
        Op::Write(span, Durability::Stable),
        Op::WriteAtomic(span),
        Op::Flush,
        Op::Compare(span),
        Op::CompareAndWrite(span),
        Op::WriteZeroes { span, unmap: true },
        Op::WriteSame(span),
        Op::Or(span),
        Op::Unmap(vec![span; 300]),
        Op::Verify(span),
        Op::MarkBad(span),
        Op::Prefetch(span),
        Op::Extents(span),
        Op::Sanitize(overwrite),
        Op::Sanitize(SanitizeKind::BlockErase),
    ]
}

fn actions() -> Vec<Action> {
    let (key, kind) = (Some(Key(1)), ReservationType::ExclusiveAccessAll);
    let mut also = RegistrationRequest::new(Some(Key(0)), Key(u64::MAX));
    also.also = vec![host(), initiator()];
    also.ports = vec![PortId(1), PortId(u16::MAX)];
    also.nqn = Some("nqn.2014-08.org.nvmexpress:uuid:1".into());
    also.persist = Some(false);
    let modes = [RegisterMode::Set, RegisterMode::Add, RegisterMode::Replace, RegisterMode::Remove];
    let registers = modes
        .map(|mode| Action::Register(RegistrationRequest { mode, ..RegistrationRequest::new(None, Key(5)) }));
    let mut actions = registers.to_vec();
    actions.extend(ReservationType::ALL.map(|kind| Action::Reserve { key: None, kind }));
    actions.extend([
        Action::Register(also),
        Action::Move { key: Key(1), new: Key(2), to: host(), unregister: true, persist: None },
        Action::Release { key, kind },
        Action::Clear { key },
        Action::Preempt { key, victim: Key(0), kind, abort: true },
        Action::Persist { on: true },
        Action::LegacyReserve,
        Action::LegacyRelease,
    ]);
    actions
}

fn requests() -> Vec<VolumeRequest> {
    let span = Span { lba: 1, blocks: 2 };
    let reserve = actions().into_iter().map(|action| VolumeRequest::Reserve { who: who(), action });
    let mut requests: Vec<VolumeRequest> = reserve.collect();
    let states = [
        PathAccess::Optimized,
        PathAccess::NonOptimized,
        PathAccess::Inaccessible,
        PathAccess::PersistentLoss,
        PathAccess::Transition,
    ];
    requests.extend(states.map(|to| VolumeRequest::SetAccess { ports: vec![PortId(2)], to, by: None }));
    requests.extend([
        VolumeRequest::Resize(Geometry { blocks: 77, thin: true, ..Geometry::UNKNOWN }),
        VolumeRequest::WriteProtect(true),
        VolumeRequest::BackingReadOnly(false),
        VolumeRequest::WriteProtectByHost { by: host(), on: true },
        VolumeRequest::HostSettings { by: host(), bits: 0x8000_0001 },
        VolumeRequest::PreventRemoval { by: initiator(), on: false },
        VolumeRequest::Eject { by: Some(host()) },
        VolumeRequest::Load { by: None },
        VolumeRequest::Stop,
        VolumeRequest::Start,
        VolumeRequest::Reset,
        VolumeRequest::ClearTasks { by: host() },
        VolumeRequest::AbortTasks { of: host() },
        VolumeRequest::NexusLost(initiator()),
        VolumeRequest::SetPreferred { ports: vec![PortId(2), PortId(3)], on: true },
        VolumeRequest::SanitizeStart { who: who() },
        VolumeRequest::FormatStart { who: who() },
        VolumeRequest::SanitizeEnd { done: true },
        VolumeRequest::SanitizeForgive,
        VolumeRequest::MarkBad { who: who(), span },
        VolumeRequest::ClearBad { who: who(), span },
        VolumeRequest::Withdraw,
        VolumeRequest::Refresh,
        VolumeRequest::Remove,
    ]);
    requests
}

fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::Conflict,
        Refusal::Inaccessible(PathAccess::Transition),
        Refusal::OutOfRange,
        Refusal::ReadOnly,
        Refusal::AtomicUnit,
        Refusal::NotReady(UnservableReason::Stopped),
        Refusal::NotReady(UnservableReason::NoMedium),
        Refusal::NotReady(UnservableReason::Sanitizing(65_535)),
        Refusal::NotReady(UnservableReason::SanitizeFailed),
        Refusal::NotReady(UnservableReason::SyncFailed),
        Refusal::NotReady(UnservableReason::Removed),
        Refusal::Unsupported,
        Refusal::Busy,
        Refusal::NoRegistrationSpace,
        Refusal::NoMarkSpace,
        Refusal::NotRegistered,
        Refusal::InvalidRelease,
        Refusal::InvalidAction,
        Refusal::NothingReserved,
        Refusal::NotDurable,
        Refusal::RemovalPrevented,
        Refusal::NotFenced,
    ]
}

fn answers() -> Vec<Answer<LinkPayload>> {
    let extent = Extent { span: Span { lba: 0, blocks: 8 }, mapped: true };
    let faults = [
        Fault::Medium(7),
        Fault::Unwritable(8),
        Fault::Miscompare(512),
        Fault::NoSpace,
        Fault::Sync,
        Fault::PathLost,
        Fault::Aborted,
        Fault::Internal,
    ];
    let mut results: Vec<Result<Outcome, Failure>> =
        vec![Ok(Outcome::Complete), Ok(Outcome::Extents(vec![extent]))];
    results.extend(faults.map(|fault| Err(Failure::Failed(fault))));
    results.extend(refusals().into_iter().map(|refusal| Err(Failure::Refused(refusal))));
    let payload = Some(LinkPayload(vec![5; 100_000].into()));
    let mut answers: Vec<Answer<LinkPayload>> =
        results.into_iter().map(|result| Answer::Io { result, payload: None }).collect();
    answers.push(Answer::Io { result: Ok(Outcome::Complete), payload });
    answers.push(Answer::Change(Ok(())));
    answers.extend(refusals().into_iter().map(|refusal| Answer::Change(Err(refusal))));
    answers
}

fn notices() -> Arc<[Notice]> {
    let receivers = [
        NoticeReceivers::All,
        NoticeReceivers::AllBut(host()),
        NoticeReceivers::Initiators,
        NoticeReceivers::InitiatorsBut(initiator()),
        NoticeReceivers::These([host(), initiator()].into()),
    ];
    let causes = [
        NoticeCause::RegistrationsPreempted,
        NoticeCause::ReservationsReleased,
        NoticeCause::ReservationsPreempted,
        NoticeCause::CapacityChanged,
        NoticeCause::AccessChanged,
        NoticeCause::IdentityChanged,
        NoticeCause::InventoryChanged,
        NoticeCause::WriteProtectChanged,
        NoticeCause::SettingsChanged,
        NoticeCause::MediumChanged,
        NoticeCause::SanitizeDone,
        NoticeCause::TasksCleared,
        NoticeCause::Reset,
    ];
    let all = receivers.iter().flat_map(|to| causes.map(|cause| Notice { to: to.clone(), cause }));
    all.collect()
}

fn snapshot() -> Snapshot {
    let geometry = Geometry { blocks: 77, lends: false, ..Geometry::UNKNOWN };
    Snapshot { geometry, record: (0..90_000_u32).map(|at| at as u8).collect() }
}

/// One of each kind, with what it may hold.
fn messages() -> Vec<Message> {
    let (group, term, volume) = (GroupId(u32::MAX), Term(3), Uuid([0xab; 16]));
    let forward = |command| LinkMessage::Forward { number: 5, group, term, volume, who: who(), command };
    let mut messages = vec![keep_alive(), LinkMessage::Settled];
    let payload = || Some(LinkPayload((0..70_000_u32).map(|at| at as u8).collect()));
    messages.extend(operations().into_iter().map(|op| forward(Command::Io { op, payload: payload() })));
    messages.extend(requests().into_iter().map(|request| forward(Command::Change(request))));
    messages.extend(answers().into_iter().map(|answer| LinkMessage::Answer { number: u64::MAX, answer }));
    messages.extend([
        LinkMessage::NotOwner { number: 1 },
        LinkMessage::Busy { number: 2 },
        LinkMessage::Cancel { number: 3 },
        LinkMessage::Notices { group, term, sequence: 9, volume, notices: notices() },
        LinkMessage::NoticesSoFar { group, term, sequence: 10 },
        LinkMessage::Snapshot { group, term, volume, snapshot: snapshot() },
        LinkMessage::SettleInstance { instance: InstanceId(7) },
        LinkMessage::InstanceSettled { instance: InstanceId(u64::MAX) },
    ]);
    let controller = LostController {
        cntlid: 65,
        uniquifier: 3,
        random_number: u64::MAX,
        subsystem: "nqn.2026-11.io.blockwire:db".into(),
        host: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
        host_id: [9; 16],
    };
    messages.push(LinkMessage::ResetController { number: 11, controller });
    let answers = [ResetAnswer::Gone, ResetAnswer::NotPermitted, ResetAnswer::Unknown];
    messages.extend(answers.map(|answer| LinkMessage::ControllerReset { number: 12, answer }));
    messages
}

fn received(events: Vec<LinkEvent>) -> Vec<String> {
    let messages = events.into_iter().map(|event| match event {
        LinkEvent::Message(message) => format!("{message:?}"),
        other => panic!("{other:?}"),
    });
    messages.collect()
}

#[test]
fn each_message_comes_as_it_was_sent_however_it_is_cut() {
    let expected: Vec<String> = messages().iter().map(|message| format!("{message:?}")).collect();
    for step in [1 << 20, 16_384, 1000] {
        let mut ends = up();
        for message in messages() {
            ends[0].send(&message).unwrap();
        }
        ends[1].send(&keep_alive()).unwrap();
        let [one, other] = run(&mut ends, step);
        assert_eq!(received(other), expected);
        assert_eq!(received(one), [format!("{:?}", keep_alive())]);
    }
    // The handshake byte by byte.
    let mut ends = pair(&context(7, "g", 1), 8, &context(8, "g", 1));
    let events = run(&mut ends, 1);
    assert!(matches!(events[0][..], [LinkEvent::Up(_)]) && matches!(events[1][..], [LinkEvent::Up(_)]));
}

#[test]
fn what_is_cut_off_or_changed_is_a_message_or_refused_and_nothing_else() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for message in messages() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let decode = |bytes: &[u8]| {
            let mut from = Reader::new(bytes);
            Message::decode(&mut from).and_then(|message| from.close().map(|()| message))
        };
        assert_eq!(format!("{:?}", decode(&bytes).unwrap()), format!("{message:?}"));
        for cut in (0..bytes.len().min(200)).chain([bytes.len() - 1]) {
            assert!(decode(&bytes[..cut]).is_err(), "{message:?} up to {cut}");
        }
        let longer = [&bytes[..], b"\0"].concat();
        assert!(decode(&longer).is_err(), "a byte behind {message:?}");
        for _ in 0..200 {
            let mut other = bytes.clone();
            let at = next() % other.len().min(400);
            other[at] ^= 1 << (next() % 8);
            if let Ok(read) = decode(&other) {
                let mut again = Vec::new();
                read.encode(&mut again);
                assert!(again == other, "two ways to say {read:?}");
            }
        }
    }
}

#[test]
fn lists_that_promise_more_than_has_come_take_no_memory() {
    // An Unmap of 2^32 - 1 spans in a frame of some bytes.
    let mut bytes = Vec::new();
    let forward: Message = LinkMessage::Forward {
        number: 1,
        group: GroupId(1),
        term: Term(1),
        volume: Uuid([1; 16]),
        who: who(),
        command: Command::Io { op: Op::Unmap(Vec::new()), payload: None },
    };
    forward.encode(&mut bytes);
    let at = bytes.len() - 5;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Message::decode(&mut Reader::new(&bytes)).is_err());
}

#[test]
fn blocks_that_cannot_be_are_refused() {
    let encoded = |geometry: Geometry| {
        let mut bytes = Vec::new();
        VolumeRequest::Resize(geometry).encode(&mut bytes);
        VolumeRequest::decode(&mut Reader::new(&bytes))
    };
    let sound = Geometry { blocks: 8, logical: 4096, physical: 16_384, ..Geometry::UNKNOWN };
    assert!(encoded(sound).is_ok() && encoded(Geometry::UNKNOWN).is_ok());
    for wrong in [
        Geometry { logical: 0, ..sound },
        Geometry { logical: 256, ..sound },
        Geometry { logical: 768, ..sound },
        Geometry { physical: 0, ..sound },
        Geometry { physical: 512, ..sound },
        Geometry { physical: 12_288, ..sound },
        Geometry { dio_align: 0, ..sound },
        Geometry { dio_align: 3, ..sound },
        Geometry { atomic_powerfail: 0, ..sound },
    ] {
        assert!(encoded(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn attack_114_a_stranger_without_the_key_gets_nothing() {
    // Another key, another group's key under the same group, another group.
    for stranger in [context(7, "g", 2), context(7, "h", 1)] {
        let mut ends = pair(&stranger, 8, &context(8, "g", 1));
        let [stranger, ours] = run(&mut ends, 4096);
        assert!(matches!(fault(&ours), LinkFault::Tls(_)), "{ours:?}");
        assert!(matches!(fault(&stranger), LinkFault::Tls(_)), "{stranger:?}");
    }
    // No TLS at all, and other protocols.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"BWGL\x01\0\x01\0g", &[0; 48], &[0x16; 4096]] {
        let mut ours = Link::accept(&context(8, "g", 1), Time(0)).unwrap();
        ours.handle_received(bytes);
        let events: Vec<LinkEvent> = std::iter::from_fn(|| ours.poll_event()).collect();
        let mut sent = [0; 256];
        let count = ours.poll_transmit(&mut sent);
        // At most an alert of TLS.
        assert!(count <= 7, "{count} bytes for {bytes:?}");
        assert!(
            events.iter().all(|event| matches!(event, LinkEvent::Ended(LinkFault::Tls(_)))),
            "{events:?}"
        );
        assert_eq!(ours.send(&keep_alive()), Err(SendRefused));
    }
    // Our side does not trust who has another key, either.
    let mut ends = pair(&context(8, "g", 1), 7, &context(7, "g", 2));
    let [ours, _] = run(&mut ends, 4096);
    assert!(matches!(fault(&ours), LinkFault::Tls(_)), "{ours:?}");
}

#[test]
fn attack_115_a_peer_that_is_slow_or_floods_before_its_proof_is_cut_off() {
    let mut ours = Link::accept(&context(8, "g", 1), Time(0)).unwrap();
    let until = ours.poll_timeout().unwrap();
    assert_eq!(until, Time(0) + HANDSHAKE_TIME);
    ours.handle_timeout(Time(until.0 - 1));
    assert!(ours.poll_event().is_none());
    ours.handle_timeout(until);
    assert!(matches!(ours.poll_event(), Some(LinkEvent::Ended(LinkFault::Slow))));
    assert_eq!(ours.poll_timeout(), None);
    // TLS done, but no hello: the same deadline.
    let mut ends = pair(&context(7, "g", 1), 8, &context(8, "g", 1));
    ends[0].outbox.clear();
    while !matches!(ends[1].stage, Stage::Hello(_)) {
        let mut bytes = [0; 4096];
        for from in [0, 1] {
            let count = ends[from].poll_transmit(&mut bytes);
            ends[1 - from].handle_received(&bytes[..count]);
        }
        ends[0].outbox.clear();
    }
    ends[1].handle_timeout(until);
    assert!(matches!(ends[1].poll_event(), Some(LinkEvent::Ended(LinkFault::Slow))));
    // A ClientHello that never ends: one record of 16 KiB, then more.
    let mut ours = Link::accept(&context(8, "g", 1), Time(0)).unwrap();
    let mut record = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + (1 << 14), 0);
    for _ in 0..4 {
        ours.handle_received(&record);
    }
    assert!(matches!(ours.poll_event(), Some(LinkEvent::Ended(LinkFault::Tls(_)))));
    assert!(ours.poll_event().is_none());
}

/// A member that lies: it has the key, and sends these bytes as a frame or more.
fn lie(bytes: &[u8], at_hello: bool) -> LinkFault {
    let mut ends = if at_hello { pair(&context(7, "g", 1), 8, &context(8, "g", 1)) } else { up() };
    if at_hello {
        ends[0].to = None;
    }
    loop {
        if let Stage::Hello(channel) | Stage::Up(channel) = &mut ends[0].stage {
            channel.encrypt(bytes).unwrap();
            let [_, ours] = run(&mut ends, 4096);
            return fault(&ours);
        }
        let mut some = [0; 4096];
        for from in [1, 0] {
            let count = ends[from].poll_transmit(&mut some);
            ends[1 - from].handle_received(&some[..count]);
        }
    }
}

#[test]
fn attack_116_frames_that_cannot_be_end_the_link_before_they_have_come() {
    let frame = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
    let too_long = (FRAME_MAX as u32 + 1).to_le_bytes();
    assert_eq!(lie(&too_long, false), LinkFault::TooLong(FRAME_MAX as u64 + 1));
    assert_eq!(lie(&u32::MAX.to_le_bytes(), false), LinkFault::TooLong(u32::MAX.into()));
    assert_eq!(lie(&frame(b""), false), LinkFault::Malformed);
    assert_eq!(lie(&frame(b"\xff"), false), LinkFault::Malformed);
    // A message and bytes behind it.
    assert_eq!(lie(&frame(b"\x01\0"), false), LinkFault::Malformed);
    // Instead of a hello: a message, another magic, one that is longer than any.
    assert_eq!(lie(&frame(b"\x01"), true), LinkFault::Malformed);
    assert_eq!(lie(&frame(b"BWGX\x01\0\x01\0g"), true), LinkFault::Malformed);
    assert_eq!(lie(&1000_u32.to_le_bytes(), true), LinkFault::TooLong(1000));
    assert_eq!(lie(&frame(b"BWGL\x09\0more"), true), LinkFault::Version(9));
}

#[test]
fn the_other_side_learns_who_is_there() {
    // It has started again: another instance is there.
    let mut ends = pair(&context(7, "g", 1), 8, &context(9, "g", 1));
    let [one, other] = run(&mut ends, 4096);
    assert_eq!(fault(&one), LinkFault::OtherInstance(InstanceId(9)));
    assert_eq!(fault(&other), LinkFault::OtherInstance(InstanceId(8)));
    // A gateway of another version.
    let mut ends = pair(&context(7, "g", 1), 8, &context(8, "g", 1));
    while ends[0].outbox.is_empty() {
        let mut bytes = [0; 4096];
        for from in [0, 1] {
            let count = ends[from].poll_transmit(&mut bytes);
            ends[1 - from].handle_received(&bytes[..count]);
            if !ends[0].outbox.is_empty() {
                break;
            }
        }
    }
    ends[0].outbox[0][8] = 9;
    let [one, other] = run(&mut ends, 4096);
    assert_eq!(fault(&other), LinkFault::Version(9));
    // It was answered with this gateway's own version before the end.
    assert!(
        matches!(one[..], [LinkEvent::Up(InstanceId(8)), LinkEvent::Ended(LinkFault::Tls(TlsFault::Closed))]),
        "{one:?}"
    );
}

#[test]
fn what_waits_to_be_sent_is_bounded_and_a_long_message_is_refused() {
    let mut ends = up();
    let command = |len: usize| Command::Io {
        op: Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached),
        payload: Some(LinkPayload(vec![0; len].into())),
    };
    let forward = |len| LinkMessage::Forward {
        number: 1,
        group: GroupId(1),
        term: Term(1),
        volume: Uuid([1; 16]),
        who: who(),
        command: command(len),
    };
    assert_eq!(ends[0].send(&forward(FRAME_MAX)), Err(SendRefused));
    let mut taken = 0;
    while ends[0].send(&forward(2 << 20)).is_ok() {
        taken += 1;
    }
    assert!(taken * (2 << 20) <= BACKLOG_MAX && (taken + 2) * (2 << 20) > BACKLOG_MAX, "{taken}");
    // The other side reads: all of it comes, and there is room again.
    let [_, other] = run(&mut ends, 1 << 20);
    assert_eq!(other.len(), taken);
    assert_eq!((ends[0].waiting, ends[0].send(&keep_alive())), (0, Ok(())));
}
