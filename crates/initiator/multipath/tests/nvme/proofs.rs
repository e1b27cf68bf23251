//! Authentication of the host, and its trace.

use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::nvme::{NvmePath, Settings};
use blockwire_multipath::trace::TraceEvent;
use blockwire_multipath::{DownReason, Path, PathEvent};
use endpoint::OutboundSockets;
use nvme::auth::{DhGroup, DhchapPolicy, DhchapSecret, Hash};
use shard::{Exports, HostAuth};

use crate::world::World;
use crate::{exports, settings};

const SECRET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn secret(text: &str) -> DhchapSecret {
    DhchapSecret::parse(text).unwrap()
}

fn guarded() -> Arc<Exports> {
    let mut exports = Exports::clone(&exports());
    for rule in exports.nvme.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.rules) {
        rule.auth = HostAuth::Required(Arc::new(secret(SECRET)));
    }
    Arc::new(exports)
}

fn connect(settings: Settings) -> (Result<(), DownReason>, String) {
    connect_to(settings, guarded())
}

fn connect_to(settings: Settings, exports: Arc<Exports>) -> (Result<(), DownReason>, String) {
    let mut world = World::new(NvmePath::new(settings), exports);
    world.path.trace().set_enabled(true);
    let how = world.connect().map(|_| ());
    let mut told = String::new();
    while let Some(line) = world.path.trace().poll_line() {
        told += &format!("{} {} {:?}\n", line.connection, line.stage, line.event);
    }
    (how, told)
}

#[test]
fn every_hash_and_group_gets_in_and_the_trace_shows_no_secret() {
    let hashes = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
    let groups = [DhGroup::Null, DhGroup::Ffdhe2048, DhGroup::Ffdhe3072];
    for (hash, group) in hashes.into_iter().zip(groups) {
        let policy = DhchapPolicy { hashes: vec![hash], groups: vec![group] };
        let (how, told) = connect(Settings { secret: Some(secret(SECRET)), policy, queues: 2, ..settings() });
        assert_eq!(how, Ok(()), "{hash:?} {group:?}\n{told}");
        for words in ["SUBNQN", "DH-HMAC-CHAP_Challenge", "CNTLID", "MAXH2CDATA", "Identify Namespace"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(told.contains("2 Authentication Ends"), "{told}");
        assert!(!told.contains("ia6zGod"), "{told}");
    }
}

/// A path on its way up, whose powers nobody has computed yet.
fn computing() -> World<NvmePath> {
    let policy = DhchapPolicy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe8192] };
    let wanted = Settings { secret: Some(secret(SECRET)), policy, queues: 1, ..settings() };
    let mut world = World::new(NvmePath::new(wanted), guarded());
    world.holds = true;
    world.host(|path, cx| path.connect(cx));
    while world.step() {}
    assert_eq!(world.work.len(), 1);
    assert!(world.work[0].is_wanted() && world.path.poll_event().is_none());
    world
}

#[test]
fn powers_of_the_controllers_choosing_keep_nobody_waiting() {
    let mut world = computing();
    // Its turns go by while nobody computes.
    world.run_for(Duration::from_millis(500));
    assert!(world.work.len() == 1 && world.path.poll_event().is_none());
    world.compute();
    world.holds = false;
    let up = world.until("connection", |events| events.pop());
    assert!(matches!(up, PathEvent::Up(_)), "{up:?}");
}

#[test]
fn an_answer_that_comes_after_the_path_has_gone_is_dropped_and_nothing_is_computed_for_it() {
    let mut world = computing();
    world.host(|path, cx| path.disconnect(cx, Duration::ZERO));
    let down = world.until("end", |events| events.pop());
    assert!(matches!(down, PathEvent::Down(_)), "{down:?}");
    assert!(!world.work[0].is_wanted());
    world.compute();
    while world.step() {}
    assert!(world.path.poll_event().is_none());
    world.holds = false;
    assert!(world.connect().is_ok());
}

#[test]
fn a_worker_that_refuses_or_never_answers_ends_the_attempt_in_time() {
    let mut world = computing();
    world.work.clear();
    world.path.handle_computed();
    let down = world.until("end", |events| events.pop());
    assert!(matches!(down, PathEvent::Down(DownReason::Lost(_))), "{down:?}");
    let mut world = computing();
    let down = world.until("end", |events| events.pop());
    assert!(matches!(down, PathEvent::Down(DownReason::Silent(_))), "{down:?}");
}

#[test]
fn attack_109_a_proof_is_asked_for_and_there_is_no_secret() {
    let (how, told) = connect(Settings { secret: Some(secret(OTHER)), ..settings() });
    let Err(DownReason::Unproven(why)) = how else { panic!("{how:?}") };
    assert!(why.contains("its secret for this host is not the one that is set here"), "{why}");
    assert!(told.contains("Authentication Fails"), "{told}");
    let (how, _) = connect(settings());
    let Err(DownReason::Unproven(why)) = how else { panic!("{how:?}") };
    assert!(why.contains("no secret of this host is set"), "{why}");
}

#[test]
fn a_controller_that_must_prove_itself_is_refused_without_the_right_key() {
    const CONTROLLER: &str = "DHHC-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let wanted = |controller: &str| Settings {
        secret: Some(secret(SECRET)),
        controller_secret: Some(secret(controller)),
        queues: 2,
        ..settings()
    };
    let (how, _) = connect(wanted(CONTROLLER));
    assert!(matches!(how, Err(DownReason::Unproven(_))), "it has none: {how:?}");
    let mut keyed = Exports::clone(&guarded());
    for rule in keyed.nvme.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.rules) {
        let (host, controller) = (Arc::new(secret(SECRET)), Arc::new(secret(CONTROLLER)));
        rule.auth = HostAuth::Mutual { host, controller };
    }
    let keyed = Arc::new(keyed);
    let (how, told) = connect_to(wanted(CONTROLLER), keyed.clone());
    assert_eq!(how, Ok(()), "{told}");
    let (how, told) = connect_to(wanted(OTHER), keyed);
    let Err(DownReason::Unproven(why)) = how else { panic!("{how:?}") };
    assert!(why.contains("controller"), "{why}");
    assert!(!told.contains("VRLbtnN9"), "{told}");
}

#[test]
fn a_host_that_is_not_let_in_and_a_subsystem_that_is_not_there_are_told_with_advice() {
    let mut wanted = settings();
    wanted.subsystem = nvme::Nqn::parse("nqn.2026-11.io.blockwire:nothing").unwrap();
    let mut world = World::new(NvmePath::new(wanted), exports());
    world.path.trace().set_enabled(true);
    let how = world.connect();
    let Err(DownReason::Absent(why)) = how else { panic!("{how:?}") };
    assert!(why.contains("discover"), "{why}");
    let failed = std::iter::from_fn(|| world.path.trace().poll_line())
        .any(|line| line.stage == "Connect" && matches!(line.event, TraceEvent::Fails { .. }));
    assert!(failed);
    let wanted = Settings { nsid: 9, ..settings() };
    let how = World::new(NvmePath::new(wanted), exports()).connect();
    assert!(matches!(how, Err(DownReason::Absent(_))), "{how:?}");
}
