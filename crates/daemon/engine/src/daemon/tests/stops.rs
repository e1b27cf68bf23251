//! Stops while another process takes over.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;

/// From the commit on this process has nothing to stop: a stop is for the one that serves.
#[test]
fn a_stop_is_passed_on_to_the_process_that_serves() {
    let stopping = StopSignal::default();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    assert_eq!(stopping.pass_on(other.id(), || Err("not told")), Some(Err("not told")));
    assert!(!stopping.has_passed_on());
    assert_eq!(stopping.pass_on(other.id(), || Ok::<_, ()>(())), Some(Ok(())));
    assert!(stopping.has_passed_on());
    stopping.request_stop(StopMode::Clean);
    assert_eq!(other.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    assert!(!stopping.wait_for_immediate_stop(|| true));
}

#[test]
fn a_process_that_is_to_stop_hands_nothing_over() {
    let stopping = StopSignal::default();
    stopping.request_stop(StopMode::Clean);
    let commit = || -> Result<(), ()> { panic!("nothing is committed") };
    assert_eq!(stopping.pass_on(1, commit), None);
    assert_eq!(stopping.wait(), StopMode::Clean);
}

/// Another process reads the configuration, in which the target is.
#[test]
fn a_target_that_was_stopped_is_not_served_again_by_an_upgrade() {
    let Fixture { root: _root, daemon, .. } = fixture();
    let upgrade = || {
        let binary = Some("/nonexistent".into());
        daemon.handle_request(Request::Upgrade { binary, within_ms: 1 }).unwrap_err()
    };
    assert!(!upgrade().message.contains("was stopped"));
    daemon.handle_request(Request::TargetStop { names: vec![] }).unwrap();
    let why = upgrade();
    assert!(why.code == RefusalCode::Conflict && why.message.contains("was stopped"), "{why:?}");
}
