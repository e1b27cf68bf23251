//! A path over iSCSI against our own target, in one process and without sockets.

mod doubt;
mod fence;
mod hostile;
mod hostile_paths;
mod raw_commands;
mod terms;
mod world;

use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::iscsi::{Discovery, DiscoverySettings, IscsiPath, Settings, Timeouts};
use blockwire_multipath::trace::{Speaker, TraceEvent};
use blockwire_multipath::{DownReason, IoError, Path, PathEvent, ReservationOp, Reservations, VolumeInfo};
use buf::Payload;
use endpoint::{OutboundSockets, ShardId};
use iscsi::wire::Isid;
use shard::{ControlRequest, Message, Shard};
use testkit::delivery;
use testkit::target;
use volume::reservation::{Action, Key, RegistrationRequest, ReservationType};
use volume::{
    Backend, DiskId, Durability, Extent, Failure, Fault, IoId, Op, Outcome, PathAccess, RamBackend, RamDisk,
    Refusal, Span, Uuid,
};
use world::World;

const BLOCKS: u64 = 1 << 15;
const SOON: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    let portals = vec!["127.0.0.1:3260".parse().unwrap()];
    let isid = Isid::random([1, 2, 3], 4);
    Settings::new(portals, target::TARGET_NAME.to_owned(), 0, "iqn.2026-11.test:host".to_owned(), isid)
}

fn world(settings: Settings, terms: &target::TargetLimits) -> World<IscsiPath> {
    world_of(IscsiPath::new(settings).unwrap(), terms)
}

fn world_of<S: OutboundSockets>(path: S, terms: &target::TargetLimits) -> World<S> {
    let shard = Shard::new(ShardId(0), 1, target::build_exports(terms));
    let mut world = World::new(path, shard);
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let make = move |_| RamBackend::new(disk.clone());
    let geometry = make(0).geometry();
    for spec in target::volume_specs(1, geometry, &[DiskId(0)], None, make) {
        world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
    }
    world
}

/// Lets things happen until the path says something.
#[track_caller]
fn next(world: &mut World<IscsiPath>) -> PathEvent {
    let mut event = None;
    world.run(Duration::from_secs(300), |world| {
        event = world.path.poll_event();
        event.is_some()
    });
    event.expect("the path says something in time")
}

#[track_caller]
fn up(world: &mut World<IscsiPath>) -> Arc<VolumeInfo> {
    world.with(|path, cx| path.connect(cx));
    match next(world) {
        PathEvent::Up(info) => info,
        other => panic!("{other:?}"),
    }
}

/// Does one operation.
#[track_caller]
fn run(world: &mut World<IscsiPath>, op: Op, payload: Payload) -> (Result<Outcome, String>, Payload) {
    world.with(|path, cx| path.submit(cx, IoId(7), op, payload)).expect("there is room");
    loop {
        match next(world) {
            PathEvent::Done { id: IoId(7), how, payload } => {
                return (how.map_err(|error| format!("{error:?}")), payload);
            }
            PathEvent::Changed(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

#[test]
fn a_path_comes_up_and_tells_what_it_found() {
    let mut world = world(settings(), &target::TargetLimits::default());
    let info = up(&mut world);
    assert_eq!(info.uuid, Some(Uuid([7; 16])));
    let geometry = info.geometry.unwrap();
    assert_eq!((geometry.blocks, geometry.logical), (BLOCKS, 512));
    assert_eq!((geometry.physical, info.access), (4096, PathAccess::Optimized));
    assert_eq!(info.product, "BLOCKWIR Volume 0");
    assert!(!info.read_only && info.depth == 128);
    world.with(|path, cx| path.disconnect(cx, SOON));
    assert!(matches!(next(&mut world), PathEvent::Down(DownReason::Ended)));
    world.settle();
    assert_eq!(world.open(), 0);
    up(&mut world);
}

#[test]
fn what_is_written_is_read() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    for (lba, blocks, durability) in
        [(0, 1, Durability::Cached), (8, 8, Durability::Stable), (100, 2048, Durability::Cached)]
    {
        let content: Vec<u8> = (0..blocks * 512).map(|at| (at * 7 + lba) as u8).collect();
        let payload = delivery::payload_with_bytes(&world.pool, &content);
        let (how, payload) = run(&mut world, Op::Write(span(lba, blocks), durability), payload);
        assert_eq!(how, Ok(Outcome::Complete));
        assert_eq!(payload.len(), content.len());
        let room = delivery::payload_for_read(&world.pool, content.len());
        let (how, payload) = run(&mut world, Op::Read(span(lba, blocks)), room);
        assert_eq!(how, Ok(Outcome::Complete));
        assert!(delivery::payload_bytes(payload) == content);
    }
    let (how, _) = run(&mut world, Op::Flush, Payload::None);
    assert_eq!(how, Ok(Outcome::Complete));
}

#[test]
fn every_operation_has_its_command() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let full = vec![0xa5; 16 * 512];
    let mut go = |op: Op, content: Option<&[u8]>| {
        let payload = content.map_or(Payload::None, |bytes| delivery::payload_with_bytes(&world.pool, bytes));
        run(&mut world, op, payload).0
    };
    let done = Ok(Outcome::Complete);
    assert_eq!(go(Op::Write(span(0, 16), Durability::Cached), Some(&full)), done);
    assert_eq!(go(Op::Compare(span(0, 16)), Some(&full)), done);
    let mut other = full.clone();
    other[1000] = 0;
    let differs = format!("{:?}", IoError::Failed(Failure::Failed(Fault::Miscompare(1000))));
    assert_eq!(go(Op::Compare(span(0, 16)), Some(&other)), Err(differs));
    let swap = [vec![0xa5; 512], vec![0x5a; 512]].concat();
    assert_eq!(go(Op::CompareAndWrite(span(3, 1)), Some(&swap)), done);
    assert!(go(Op::CompareAndWrite(span(3, 1)), Some(&swap)).is_err());
    assert_eq!(go(Op::Or(span(3, 1)), Some(&[0x01; 512])), done);
    assert_eq!(go(Op::Compare(span(3, 1)), Some(&[0x5b; 512])), done);
    assert_eq!(go(Op::WriteSame(span(4, 100)), Some(&[9; 512])), done);
    assert_eq!(go(Op::WriteZeroes { span: span(5, 20_000), unmap: false }, None), done);
    assert_eq!(go(Op::Compare(span(4, 2)), Some(&[[9; 512], [0; 512]].concat())), done);
    assert_eq!(go(Op::WriteZeroes { span: span(0, BLOCKS), unmap: true }, None), done);
    assert_eq!(go(Op::Compare(span(4, 1)), Some(&[0; 512])), done);
    assert_eq!(go(Op::Verify(span(0, BLOCKS)), None), done);
    assert_eq!(go(Op::Prefetch(span(0, 100)), None), done);
    assert_eq!(go(Op::Write(span(64, 16), Durability::Cached), Some(&full)), done);
    assert_eq!(go(Op::Unmap(vec![span(8, 8), span(0, 0), span(64, 8)]), None), done);
    match go(Op::Extents(span(0, 100)), None) {
        Ok(Outcome::Extents(extents)) => {
            assert!(matches!(extents[0], Extent { span: Span { lba: 0, .. }, .. }), "{extents:?}");
        }
        other => panic!("{other:?}"),
    }
    for (op, refusal) in [
        (Op::MarkBad(span(0, 1)), Refusal::Unsupported),
        (Op::Verify(span(BLOCKS, 1)), Refusal::OutOfRange),
        (Op::Verify(span(u64::MAX, 2)), Refusal::OutOfRange),
    ] {
        let error = IoError::Failed(Failure::Refused(refusal));
        assert_eq!(go(op, None), Err(format!("{error:?}")));
    }
}

/// Asks about reservations.
fn request(world: &mut World<IscsiPath>, request: ReservationOp) -> Result<Option<Reservations>, String> {
    world.with(|path, cx| path.submit_reservation_op(cx, IoId(9), request)).expect("there is room");
    match next(world) {
        PathEvent::ReservationReply { id: IoId(9), how } => how.map_err(|error| format!("{error:?}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reservations_are_taken_and_told() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let act = |action| ReservationOp::Change(action);
    let register = |current, new| act(Action::Register(RegistrationRequest::new(current, new)));
    let empty = request(&mut world, ReservationOp::Report).unwrap().unwrap();
    assert_eq!((empty.held, empty.registrations.len()), (None, 0));
    let kind = ReservationType::WriteExclusiveRegistrants;
    let refused = |refusal| Err(format!("{:?}", IoError::Failed(Failure::Refused(refusal))));
    let key = Some(Key(5));
    assert_eq!(request(&mut world, act(Action::Clear { key })), refused(Refusal::NotRegistered));
    assert_eq!(request(&mut world, register(None, Key(5))), Ok(None));
    assert_eq!(request(&mut world, act(Action::Reserve { key, kind })), Ok(None));
    let report = request(&mut world, ReservationOp::Report).unwrap().unwrap();
    assert_eq!((report.held, report.registrations.len()), (Some(kind), 1));
    let ours = &report.registrations[0];
    assert!(ours.ours && ours.holds && ours.key == Key(5), "{ours:?}");
    let wrong = ReservationType::ExclusiveAccess;
    let released = request(&mut world, act(Action::Release { key, kind: wrong }));
    assert_eq!(released, refused(Refusal::InvalidRelease));
    assert_eq!(request(&mut world, act(Action::Release { key, kind })), Ok(None));
    assert_eq!(request(&mut world, act(Action::Reserve { key: None, kind })), refused(Refusal::Unsupported));
    assert_eq!(request(&mut world, register(key, Key::NONE)), Ok(None));
    assert_eq!(request(&mut world, ReservationOp::Report).unwrap().unwrap().registrations.len(), 0);
}

#[test]
fn a_write_lost_with_its_connection_is_fenced_by_the_next_login() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let payload = delivery::payload_with_bytes(&world.pool, &[1; 65_536]);
    world
        .with(|path, cx| path.submit(cx, IoId(1), Op::Write(span(0, 128), Durability::Cached), payload))
        .unwrap();
    let payload = delivery::payload_for_read(&world.pool, 512);
    world.with(|path, cx| path.submit(cx, IoId(2), Op::Read(span(0, 1)), payload)).unwrap();
    // The write's first bytes leave, then the connection breaks.
    world.send_only();
    world.cut();
    let mut errors = Vec::new();
    loop {
        match next(&mut world) {
            PathEvent::Done { id, how: Err(error), payload } => {
                errors.push((id, format!("{error:?}"), payload.len()))
            }
            PathEvent::Down(why) => break assert!(matches!(why, DownReason::Lost(_)), "{why:?}"),
            other => panic!("{other:?}"),
        }
    }
    errors.sort();
    assert_eq!(errors[0], (IoId(1), "InDoubt".to_owned(), 65_536));
    assert_eq!(errors[1], (IoId(2), "NotDone(0ns)".to_owned(), 512));
    assert_eq!(world.open(), 0);
    world.with(|path, cx| path.fence(cx));
    let before = world.now;
    assert!(matches!(next(&mut world), PathEvent::Fenced));
    assert!(world.now.since(before) < Duration::from_secs(1), "by a login, not by time");
    assert_eq!(world.open(), 1);
    up(&mut world);
    assert_eq!(world.open(), 1, "the fence's session serves");
    world.with(|path, cx| path.fence(cx));
    assert!(matches!(next(&mut world), PathEvent::Fenced), "nothing is open");
}

#[test]
fn a_fence_that_no_login_brings_comes_by_time() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let payload = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    world
        .with(|path, cx| path.submit(cx, IoId(1), Op::Write(span(0, 1), Durability::Cached), payload))
        .unwrap();
    world.send_only();
    world.cut();
    while !matches!(next(&mut world), PathEvent::Down(_)) {}
    world.shut = settings().portals;
    let before = world.now;
    world.with(|path, cx| path.fence(cx));
    assert!(matches!(next(&mut world), PathEvent::Fenced));
    let took = world.now.since(before);
    assert!((95..=105).contains(&took.as_secs()), "{took:?}");
    world.with(|path, cx| path.connect(cx));
    assert!(matches!(next(&mut world), PathEvent::Down(DownReason::Unreachable(_))));
    world.shut.clear();
    up(&mut world);
}

#[test]
fn many_operations_are_in_work_at_once() {
    let terms = target::TargetLimits {
        limits: iscsi::session::SessionLimits::default(),
        ..target::TargetLimits::default()
    };
    let mut world = world(settings(), &terms);
    up(&mut world);
    // The target opens its window as it is used: what finds no room waits for an end.
    let (mut begun, mut left, mut most) = (0, 96, 0);
    while left > 0 {
        while begun < 96 {
            let payload = delivery::payload_for_read(&world.pool, 4096);
            let op = Op::Read(span(begun * 8, 8));
            if world.with(|path, cx| path.submit(cx, IoId(begun), op, payload)).is_err() {
                break;
            }
            begun += 1;
        }
        most = most.max(begun + left - 96);
        match next(&mut world) {
            PathEvent::Done { how: Ok(_), .. } => left -= 1,
            other => panic!("{left} left: {other:?}"),
        }
    }
    assert!(most >= 16, "at most {most} at once");
}

#[test]
fn what_is_submitted_before_ends_are_drained_ends_too() {
    let mut world = world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let submit = |world: &mut World<IscsiPath>, id| {
        let payload = delivery::payload_for_read(&world.pool, 512);
        world.with(|path, cx| path.submit(cx, IoId(id), Op::Read(span(id, 1)), payload)).unwrap();
    };
    (0..8).for_each(|id| submit(&mut world, id));
    let mut ended = std::collections::BTreeSet::new();
    for id in 8..64 {
        // Each receive is followed by a submission at once, which gets the slot that has just become free.
        world.step_received(|world| submit(world, id));
        while let Some(event) = world.path.poll_event() {
            let PathEvent::Done { id, how: Ok(_), .. } = event else { panic!("{event:?}") };
            assert!(ended.insert(id));
        }
    }
    while ended.len() < 64 {
        let PathEvent::Done { id, how: Ok(_), .. } = next(&mut world) else { panic!() };
        assert!(ended.insert(id));
    }
}

fn discovery(world: &mut World<Discovery>) -> Result<iscsi::initiator::DiscoveredTargets, DownReason> {
    world.with(|discovery, cx| discovery.start(cx));
    let mut outcome = None;
    world.run(Duration::from_secs(100), |world| {
        outcome = world.path.poll_outcome();
        outcome.is_some()
    });
    outcome.expect("a discovery ends")
}

fn question() -> DiscoverySettings {
    DiscoverySettings {
        portal: "127.0.0.1:3260".parse().unwrap(),
        initiator: "iqn.2026-11.test:host".to_owned(),
        isid: Isid::random([1, 2, 3], 5),
        credentials: None,
        target: None,
        timeouts: Timeouts::default(),
        source: endpoint::DialSource::default(),
    }
}

#[test]
fn targets_are_discovered() {
    let shard = Shard::new(ShardId(0), 1, target::build_exports(&target::TargetLimits::default()));
    let mut world = World::new(Discovery::new(question()), shard);
    for name in [None, Some(target::TARGET_NAME)] {
        let target = name.map(|name| iscsi::name::IscsiName::parse(name).unwrap());
        world.path = Discovery::new(DiscoverySettings { target, ..question() });
        let targets = discovery(&mut world).unwrap();
        assert_eq!(targets.records.len(), 1);
        assert_eq!(targets.records[0].name.as_str(), target::TARGET_NAME);
        assert_eq!(targets.records[0].addresses[0].to_string(), "127.0.0.1:3260,1");
        world.settle();
        assert_eq!(world.open(), 0);
    }
    world.shut.push(question().portal);
    assert!(matches!(discovery(&mut world), Err(DownReason::Unreachable(_))));
}

#[test]
fn a_trace_tells_each_step_and_no_secret() {
    use iscsi::chap::{Algorithm, ChapAccount, Secret};
    use iscsi::login::{AuthPolicy, ChapAccounts};
    let account = |name: &str, secret: &str| ChapAccount {
        name: name.to_owned(),
        secret: Secret::new(secret.as_bytes().to_vec()),
    };
    for algorithm in Algorithm::ALL {
        for right in [true, false] {
            let mut exports = (*target::build_exports(&target::TargetLimits::default())).clone();
            exports.targets[0].rules[0].auth = AuthPolicy::Required(ChapAccounts {
                accounts: vec![account("alice", "our secret of length")],
                mutual: Some(account("disk", "the target's own one")),
                demands_mutual: false,
                algorithms: Algorithm::ALL.to_vec(),
            });
            let shard = Shard::new(ShardId(0), 1, Arc::new(exports));
            let ours = account("alice", if right { "our secret of length" } else { "a wrong one of length" });
            let credentials = iscsi::initiator::Credentials {
                ours,
                target: Some(account("disk", "the target's own one")),
                algorithms: vec![algorithm],
            };
            let mut settings = settings();
            (settings.credentials, settings.alias) = (Some(credentials), Some("probe".to_owned()));
            let mut world = World::new(IscsiPath::new(settings).unwrap(), shard);
            let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
            let make = move |_| RamBackend::new(disk.clone());
            for spec in target::volume_specs(1, make(0).geometry(), &[DiskId(0)], None, make) {
                world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
            }
            world.path.trace().set_enabled(true);
            world.with(|path, cx| path.connect(cx));
            match next(&mut world) {
                PathEvent::Up(_) => assert!(right),
                PathEvent::Down(DownReason::Unproven(text)) => {
                    assert!(!right && text.contains("secret"), "{text}")
                }
                other => panic!("{other:?}"),
            }
            let lines: Vec<_> = std::iter::from_fn(|| world.path.trace().poll_line()).collect();
            let said = |name: &str, side: Speaker| {
                lines.iter().find_map(|line| match &line.event {
                    TraceEvent::Field { by, name: at, value } if *by == side && at == name => {
                        Some(value.clone())
                    }
                    _ => None,
                })
            };
            assert_eq!(said("InitiatorAlias", Speaker::Us).as_deref(), Some("probe"));
            assert_eq!(said("CHAP_A", Speaker::Target), Some(algorithm.0.to_string()));
            for side in [Speaker::Us, Speaker::Target] {
                assert_eq!(said("CHAP_C", side).as_deref(), Some("(not shown)"));
            }
            assert_eq!(said("CHAP_R", Speaker::Us).as_deref(), Some("(not shown)"));
            assert_eq!(said("MaxBurstLength", Speaker::Target).is_some(), right);
            let failed = lines.iter().any(|line| matches!(line.event, TraceEvent::Fails { .. }));
            let surveyed = lines.iter().any(|line| line.stage == "READ CAPACITY(16)");
            assert_eq!((failed, surveyed), (!right, right));
            assert!(!format!("{lines:?}").contains("0x"), "no challenge and no response: {lines:?}");
        }
    }
}
