//! Shutting hosts out, and letting them in again.
//!
//! Invariant: who is blocked is recorded before it is answered, and holds after a restart; a host is reported as blocked
//! when nothing of its sessions is in flight any more. What a host has reserved stays reserved.

use std::collections::BTreeSet;

use super::{Daemon, refusal_from_engine_error, sessions::is_same, unknown_name};
use crate::state::{
    StateError,
    blocked_hosts::{self, BLOCKED_MAX, BlockedNames},
};
use config::name::{parse_iscsi_name, parse_nqn};
use control::{
    RefusalCode, RequestRefusal,
    report::{HostBlockReport, ProblemReport, SessionReport},
};
use process::log::area;

impl Daemon {
    /// Shuts a host out: its sessions end at once, and it may not connect until [`Daemon::unblock_host`].
    pub(super) fn block_host(&self, which: &str) -> Result<HostBlockReport, RequestRefusal> {
        let names = self.names_of_host(which)?;
        let mut sessions = self.sessions_of(&names)?;
        self.change_blocks(|blocked| {
            blocked.extend(names.iter().cloned());
            if blocked.len() > BLOCKED_MAX {
                let why = format!("{BLOCKED_MAX} names are blocked at most: unblock others first");
                return Err(RequestRefusal::new(RefusalCode::Conflict, why));
            }
            Ok(())
        })?;
        let blocked_but = |why: RequestRefusal| {
            let message = format!("the host is blocked, but {}", why.message);
            RequestRefusal { message, ..why }
        };
        // Some may have logged in before the block was in force; they are ended too.
        let late = self.sessions_of(&names).map_err(blocked_but)?;
        let late = late.into_iter().filter(|one| !sessions.iter().any(|known| is_same(known, one)));
        let late: Vec<SessionReport> = late.collect();
        sessions.extend(late);
        for name in &names {
            tracing::warn!(target: area::SESSION, initiator = name, sessions = sessions.len(), "host blocked by the operator");
        }
        self.wait_until_ended(&sessions).map_err(blocked_but)?;
        Ok(HostBlockReport { names: names.into_iter().collect(), blocked: true, sessions })
    }

    /// Lets a host in again, as far as the configuration does.
    pub(super) fn unblock_host(&self, which: &str) -> Result<HostBlockReport, RequestRefusal> {
        let names = self.names_of_host(which)?;
        self.refuse_configured_block(&names)?;
        self.change_blocks(|blocked| {
            let before = blocked.len();
            blocked.retain(|name| !names.contains(name));
            if blocked.len() < before {
                return Ok(());
            }
            let why = format!("host \"{which}\" is not blocked: `blockwire host list` shows which are");
            Err(RequestRefusal::new(RefusalCode::NotFound, why))
        })?;
        for name in &names {
            tracing::warn!(target: area::SESSION, initiator = name, "host unblocked by the operator");
        }
        Ok(HostBlockReport { names: names.into_iter().collect(), blocked: false, sessions: Vec::new() })
    }

    fn sessions_of(&self, names: &BTreeSet<String>) -> Result<Vec<SessionReport>, RequestRefusal> {
        Ok(self.sessions()?.into_iter().filter(|one| names.contains(&one.initiator)).collect())
    }

    /// The names by which a host connects, given one of them or its name in the configuration.
    fn names_of_host(&self, which: &str) -> Result<BTreeSet<String>, RequestRefusal> {
        if let Ok(name) = parse_iscsi_name(which).or_else(|_| parse_nqn(which)) {
            return Ok(BTreeSet::from([name]));
        }
        let plan = self.volumes.plan();
        let Some(host) = plan.hosts.iter().find(|host| host.name == which) else {
            let mut why = unknown_name("host", which, plan.hosts.iter().map(|host| host.name.as_str()));
            why.message += "; say its iSCSI name (iqn., eui., naa.), its NQN, or the name of a [[host]]";
            return Err(why);
        };
        let names: BTreeSet<String> = host.iqns.iter().chain(&host.nqns).cloned().collect();
        if names.is_empty() {
            let why = format!(
                "host \"{which}\" has no iqn or nqn by which it could be blocked: set blocked = true in its [[host]] \
                 and apply that"
            );
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        }
        Ok(names)
    }

    /// What the configuration blocks, the configuration lets in.
    fn refuse_configured_block(&self, names: &BTreeSet<String>) -> Result<(), RequestRefusal> {
        let plan = self.volumes.plan();
        let is_it = |host: &&config::plan::Host| {
            host.blocked && host.iqns.iter().chain(&host.nqns).any(|name| names.contains(name))
        };
        let Some(host) = plan.hosts.iter().find(is_it) else { return Ok(()) };
        let why = format!(
            "host \"{}\" is blocked by the configuration: remove blocked = true from its [[host]] and apply that",
            host.name
        );
        Err(RequestRefusal::new(RefusalCode::Conflict, why))
    }

    /// Changes who is blocked: first in the state directory, then on the shards. After an error all is as it was.
    fn change_blocks(
        &self,
        change: impl FnOnce(&mut BlockedNames) -> Result<(), RequestRefusal>,
    ) -> Result<(), RequestRefusal> {
        let _turn = self.volumes.lock_changes_unbounded();
        let (state, engine) = (&self.volumes.state, &self.volumes.engine);
        let failed = |why: StateError| RequestRefusal::new(RefusalCode::Failed, why);
        let before = engine.blocked_names();
        let mut names = before.clone();
        change(&mut names)?;
        blocked_hosts::save(state, &names).map_err(failed)?;
        engine.set_blocked_names(names).map_err(|why| {
            if let Err(why) = blocked_hosts::save(state, &before) {
                tracing::error!(target: area::SESSION, %why, "the record of blocked hosts differs from what is in force");
            }
            refusal_from_engine_error(&why)
        })
    }

    /// Blocked hosts are not as they should be: the operator is told, so that none is forgotten.
    pub(super) fn blocked_host_problems(&self) -> Vec<ProblemReport> {
        let problem = |subject: &str, why: &str, next: String| ProblemReport {
            kind: ProblemReport::HOST_BLOCKED.to_owned(),
            subject: subject.to_owned(),
            why: why.to_owned(),
            next,
        };
        let by_operator = self.volumes.engine.blocked_names().into_iter().map(|name| {
            let next = format!("`blockwire host unblock {name}` lets it in again");
            problem(&name, "blocked host: the operator blocks it", next)
        });
        let plan = self.volumes.plan();
        let configured = plan.hosts.iter().filter(|host| host.blocked).map(|host| {
            let next = "remove blocked = true from its [[host]] and apply that to let it in again".to_owned();
            problem(&host.name, "blocked host: the configuration blocks it", next)
        });
        by_operator.chain(configured).collect()
    }
}
