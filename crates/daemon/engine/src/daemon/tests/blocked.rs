use super::*;

const NAME: &str = "iqn.2026-11.test:db1";

fn session(id: u64, initiator: &str) -> SessionReport {
    SessionReport { id, ..sessions::example_session(Protocol::Iscsi, initiator) }
}

/// A host is reported as blocked when nothing of it is in flight any more, not even of a session that logged in while
/// the block came into force.
#[test]
fn a_session_that_logs_in_meanwhile_is_waited_for_too() {
    let fixture = fixture();
    let other = session(3, "iqn.2026-11.test:other");
    *fixture.engine.sessions.lock().unwrap() = vec![(session(1, NAME), 2), (other, usize::MAX)];
    *fixture.engine.log_in_late.lock().unwrap() = vec![(session(2, NAME), 4)];
    let answer = fixture.daemon.handle_request(Request::HostBlock { name: NAME.to_owned() });
    let Ok(Answer::HostBlocked(report)) = answer else { panic!("{answer:?}") };
    let ids = |sessions: &[SessionReport]| sessions.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(&report.sessions), [1, 2]);
    assert_eq!(ids(&fixture.engine.sessions().unwrap()), [3]);
    assert_eq!(fixture.engine.take(), [format!("block {NAME}")]);
}
