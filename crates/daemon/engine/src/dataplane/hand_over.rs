//! Handing everything that is served to another process: all shards come to rest, are saved, and their sockets go over.
//!
//! Invariant: after any failure before the commit every shard goes on as if nothing had happened.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use endpoint::ShardId;
use shard::{ControlReport, ControlRequest, QuiesceBlocker, ShardSnapshot, TargetSnapshot};

use super::{
    inbox::ExpectedReply,
    shards::{ANSWER_TIMEOUT, Shards},
};
use crate::{
    EngineError,
    upgrade::{HandOverError, HandedOver, Successor},
};
use control::report::ListenerReport;
use process::log::area;

/// How long shards may still take when the time to come to rest is over: for what is out on sockets to come back.
const FORCED_REST_TIMEOUT: Duration = Duration::from_millis(500);

impl Shards {
    pub(super) fn duplicate_open_listeners(
        &self,
    ) -> Result<Vec<(u16, ListenerReport, OwnedFd)>, EngineError> {
        let failed = |why: std::io::Error| EngineError::Start(why.to_string());
        let mut sockets = self.running.duplicate_listeners(ANSWER_TIMEOUT).map_err(failed)?;
        let frame = self.frame();
        let mut all = Vec::new();
        for (portal, listener) in frame.portals().iter().zip(frame.listeners()) {
            let at = sockets.iter().position(|(id, _)| id == listener);
            let (_, socket) = at.map(|at| sockets.swap_remove(at)).ok_or(EngineError::Stopped)?;
            let report = ListenerReport {
                protocol: portal.protocol.as_str().to_owned(),
                address: portal.address,
                tag: portal.tag,
            };
            all.push((listener.0, report, socket));
        }
        Ok(all)
    }

    /// See [`crate::Engine::hand_over`].
    pub(super) fn hand_over_to(
        &self,
        to: &mut Successor,
        within: Duration,
    ) -> Result<HandedOver, HandOverError> {
        let begun = Instant::now();
        let snapshot = self.give_everything(to, within).inspect_err(|_| self.resume_all())?;
        to.wait_until_taken()?;
        let (sessions, queues) = snapshot.connection_counts();
        let left = snapshot.left_behind().to_vec();
        Ok(HandedOver { sessions, queues, left, pause: begun.elapsed() })
    }

    fn give_everything(&self, to: &mut Successor, within: Duration) -> Result<TargetSnapshot, HandOverError> {
        self.come_to_rest(within)?;
        let snapshot = self.save_all()?;
        to.restore(&snapshot)?;
        for shard in (0..self.running.shard_count()).map(ShardId) {
            let links = snapshot.links(shard);
            let sockets = self.running.duplicate_links(shard, links, ANSWER_TIMEOUT);
            let sockets = sockets.map_err(|why| {
                HandOverError::Blocked(format!(
                    "a connection cannot be handed over: {why} (the limit of open files is LimitNOFILE=, ulimit -n)"
                ))
            })?;
            to.send_links(shard, &sockets)?;
        }
        to.wait_until_held()?;
        to.commit()?;
        Ok(snapshot)
    }

    /// All shards are still, and nothing is on its way between them.
    fn come_to_rest(&self, within: Duration) -> Result<(), HandOverError> {
        let until = Instant::now() + within;
        let mut waiting = Vec::new();
        for shard in self.shard_ids() {
            waiting.push(self.ask(shard, ControlRequest::Quiesce)?);
        }
        let is_in_time =
            |one: ExpectedReply| match one.wait_for_report(until.saturating_duration_since(Instant::now())) {
                Ok(report) => done_or_blocked(report).map(|()| true),
                Err(EngineError::TimedOut) => Ok(false),
                Err(why) => Err(blocked(&why)),
            };
        let mut rests = true;
        for one in waiting {
            rests &= is_in_time(one)?;
        }
        if !rests {
            // Connections whose commands wait for their hosts are left; what has begun on a volume is not.
            self.ask_all(|| ControlRequest::ForceQuiesce)?;
            std::thread::sleep(FORCED_REST_TIMEOUT);
        }
        self.ask_all(|| ControlRequest::Settle)?;
        self.ask_all(|| ControlRequest::Settle)
    }

    fn save_all(&self) -> Result<TargetSnapshot, HandOverError> {
        let reports =
            self.request_all(|| ControlRequest::Save, ANSWER_TIMEOUT).map_err(|why| blocked(&why))?;
        let saved = |report| match report {
            ControlReport::Saved(snapshot) => Ok(*snapshot),
            ControlReport::NotQuiesced(why) => Err(not_quiesced(&why)),
            ControlReport::Done
            | ControlReport::Refused(_)
            | ControlReport::NoVolume
            | ControlReport::Listing(_) => Err(blocked(&EngineError::Stopped)),
        };
        let parts = reports.into_iter().map(saved).collect::<Result<Vec<ShardSnapshot>, _>>()?;
        TargetSnapshot::assemble(parts).map_err(|why| HandOverError::Blocked(why.to_string()))
    }

    fn ask(&self, shard: ShardId, control: ControlRequest) -> Result<ExpectedReply, HandOverError> {
        let expected = self.requests.register().map_err(|why| blocked(&why))?;
        let message = shard::Message::Control(expected.number, control);
        if !self.running.post(shard, message) {
            return Err(blocked(&EngineError::Stopped));
        }
        Ok(expected)
    }

    fn ask_all(&self, control: impl Fn() -> ControlRequest) -> Result<(), HandOverError> {
        let reports = self.request_all(control, ANSWER_TIMEOUT).map_err(|why| blocked(&why))?;
        reports.into_iter().try_for_each(done_or_blocked)
    }

    fn resume_all(&self) {
        if let Err(why) = self.request_all(|| ControlRequest::Resume, ANSWER_TIMEOUT) {
            tracing::error!(target: area::SERVE, %why, "not every shard has said that it goes on");
        }
    }
}

fn blocked(why: &EngineError) -> HandOverError {
    HandOverError::Blocked(why.to_string())
}

fn not_quiesced(why: &QuiesceBlocker) -> HandOverError {
    HandOverError::Blocked(format!("it does not come to rest in time: {why}"))
}

fn done_or_blocked(report: ControlReport) -> Result<(), HandOverError> {
    match report {
        ControlReport::Done => Ok(()),
        ControlReport::NotQuiesced(why) => Err(not_quiesced(&why)),
        ControlReport::Refused(_)
        | ControlReport::NoVolume
        | ControlReport::Listing(_)
        | ControlReport::Saved(_) => Err(blocked(&EngineError::Stopped)),
    }
}
