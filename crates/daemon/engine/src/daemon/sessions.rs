//! Ending sessions and controllers at the operator's word.
//!
//! Invariant: a session is reported as ended when it is not listed any more: its commands have ended on every shard, and
//! none of them was answered after its connections were closed.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Daemon, refusal_from_engine_error};
use config::plan::Protocol;
use control::{RefusalCode, RequestRefusal, SessionSelector, report::SessionReport};
use process::log::area;

/// How long commands in flight may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the sessions are looked at meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Daemon {
    /// Ends sessions at once, and waits until they have. Their hosts may come again.
    pub(super) fn kill_sessions(
        &self,
        which: &SessionSelector,
    ) -> Result<Vec<SessionReport>, RequestRefusal> {
        let meant: Vec<SessionReport> =
            self.sessions()?.into_iter().filter(|session| is_meant(which, session)).collect();
        if meant.is_empty() {
            return Err(RequestRefusal::new(RefusalCode::NotFound, nothing_meant(which)));
        }
        for session in &meant {
            let ended = self.volumes.engine.end_session(session.id, session.shard);
            ended.map_err(|why| refusal_from_engine_error(&why))?;
            tracing::warn!(
                target: area::SESSION,
                session = session.id,
                protocol = session.protocol,
                initiator = session.initiator,
                host = session.host.as_deref().unwrap_or("-"),
                target = session.target.as_deref().unwrap_or("-"),
                "session killed by the operator"
            );
        }
        self.wait_until_ended(&meant)?;
        Ok(meant)
    }

    /// Waits until sessions that were ended are gone.
    pub(super) fn wait_until_ended(&self, meant: &[SessionReport]) -> Result<(), RequestRefusal> {
        let until = Instant::now() + END_TIMEOUT;
        loop {
            let now = self.sessions()?;
            let is_left = |one: &&SessionReport| now.iter().any(|other| is_same(one, other));
            let left: Vec<String> = meant.iter().filter(is_left).map(|one| one.id.to_string()).collect();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let why = format!(
                    "sessions {} are cut off, but their commands have not ended on a disk or another machine after \
                     {} s: `session list` shows them until they have",
                    left.join(", "),
                    END_TIMEOUT.as_secs()
                );
                return Err(RequestRefusal::new(RefusalCode::TimedOut, why));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    pub(super) fn sessions(&self) -> Result<Vec<SessionReport>, RequestRefusal> {
        self.volumes.engine.sessions().map_err(|why| refusal_from_engine_error(&why))
    }
}

fn is_meant(which: &SessionSelector, session: &SessionReport) -> bool {
    match which {
        SessionSelector::Id(id) => session.id == *id,
        // NQNs are compared exactly (NVMe Base 2.1 §4.7); iSCSI names without regard to case (RFC 7143 §4.2.7.2).
        SessionSelector::Initiator(name) if session.protocol == Protocol::Nvme.as_str() => {
            session.initiator == *name
        }
        SessionSelector::Initiator(name) => session.initiator.eq_ignore_ascii_case(name),
        SessionSelector::Host(name) => session.host.as_ref() == Some(name),
    }
}

/// Whether it is still this session, and not one that has its number by now.
pub(super) fn is_same(one: &SessionReport, other: &SessionReport) -> bool {
    let key = |session: &SessionReport| {
        (session.id, session.initiator.clone(), session.target.clone(), session.isid.clone())
    };
    key(one) == key(other)
}

fn nothing_meant(which: &SessionSelector) -> String {
    match which {
        SessionSelector::Id(id) => format!("there is no session {id}: `session list` shows their numbers"),
        SessionSelector::Initiator(name) => format!("initiator \"{name}\" has no session"),
        SessionSelector::Host(name) => format!("host \"{name}\" has no session"),
    }
}

/// A session of no host, for tests.
#[cfg(test)]
pub(super) fn example_session(protocol: Protocol, initiator: &str) -> SessionReport {
    SessionReport {
        id: 1,
        protocol: protocol.as_str().to_owned(),
        initiator: initiator.to_owned(),
        host: None,
        target: None,
        isid: None,
        hostid: None,
        shard: 0,
        connections: 1,
        commands: 0,
        user: None,
        reads: 0,
        read_bytes: 0,
        writes: 0,
        written_bytes: 0,
        latency: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nqns_are_meant_exactly_and_iscsi_names_in_any_case() {
        let name = |name: &str| SessionSelector::Initiator(name.to_owned());
        let nvme = example_session(Protocol::Nvme, "nqn.2026-11.com.example:Db1");
        assert!(is_meant(&name("nqn.2026-11.com.example:Db1"), &nvme));
        assert!(!is_meant(&name("nqn.2026-11.com.example:db1"), &nvme));
        let iscsi = example_session(Protocol::Iscsi, "iqn.2026-11.com.example:db1");
        assert!(is_meant(&name("IQN.2026-11.com.example:DB1"), &iscsi));
    }
}
