//! iSCSI sessions in a history: logins, tasks and their ends.

use std::collections::BTreeMap;
use std::time::Duration;

use iscsi::negotiate::Digest;
use iscsi::wire::TmfFunction;
use sim::{Peer, PeerEnd};

use crate::command::Flight;
use crate::history::{History, PATIENCE};
use crate::host::Side;
use testkit::iscsi_initiator::{CommandResult, TestInitiator};
use testkit::target;

impl History {
    /// Logs in, again as long as the shard of the new session has no room for its first connection. It has none for
    /// others that join: then the session goes on without them.
    pub fn log_in(&mut self, isid: u16) -> TestInitiator {
        loop {
            if let Some(initiator) = self.try_log_in(isid) {
                return initiator;
            }
        }
    }

    fn try_log_in(&mut self, isid: u16) -> Option<TestInitiator> {
        let mut wanted = target::login_config(isid);
        if self.plan.digests.0 {
            wanted.limits.header_digest = vec![Digest::Crc32c];
        }
        if self.plan.digests.1 {
            wanted.limits.data_digest = vec![Digest::Crc32c];
        }
        if let Some(pieces) = self.plan.pieces {
            (wanted.limits.first_burst, wanted.limits.max_burst) = pieces.bursts;
            (wanted.limits.initial_r2t, wanted.limits.immediate_data) = (!pieces.unasked.0, pieces.unasked.1);
            wanted.limits.max_outstanding_r2t = pieces.outstanding;
        }
        let mut initiator = TestInitiator::connect(&mut self.world, wanted);
        for cid in 0..self.plan.connections {
            if cid > 0 {
                initiator.add_connection(&mut self.world, cid);
            }
            let limit = self.world.now() + PATIENCE;
            while !initiator.is_logged_in() {
                assert_eq!(initiator.failure(), None, "seed {}", self.plan.seed);
                assert!(self.world.now() < limit, "seed {}: no login: {initiator:?}", self.plan.seed);
                initiator.poll(&mut self.world);
                self.poll();
                self.step();
            }
            let conn = usize::from(cid);
            if self.is_turned_away(initiator.peer_of(conn)) {
                if cid == 0 {
                    return None;
                }
                initiator.break_connection(&mut self.world, conn, true);
            }
        }
        Some(initiator)
    }

    /// Whether a connection that has just logged in is reset on its way to the shard of its session.
    fn is_turned_away(&mut self, peer: Peer) -> bool {
        if self.plan.shard_faults.refuse_move_permille == 0 {
            return false;
        }
        let until = self.world.now() + Duration::from_millis(50);
        while self.world.now() < until {
            self.poll();
            self.step();
        }
        let turned_away = self.world.peer_end(peer) == PeerEnd::Reset;
        self.tally.turned_away += u64::from(turned_away);
        turned_away
    }

    /// Sends a command that is no part of the history, and waits for its end; unit attentions are taken
    /// before.
    pub fn scsi_errand(&mut self, at: (usize, usize), cdb: &[u8], out: &[u8], read: usize) -> CommandResult {
        loop {
            let initiator = &mut self.hosts[at.0].session().initiator;
            initiator.next_conn = 0;
            let ended = self.scsi_once(at, cdb, out, read);
            if ended.status != 2 || ended.sense[2] & 0x0f != 6 {
                return ended;
            }
        }
    }

    /// Sends a command that is no part of the history over the connection that was chosen last, and waits
    /// for its end.
    pub fn scsi_once(
        &mut self,
        (host, volume): (usize, usize),
        cdb: &[u8],
        out: &[u8],
        read: usize,
    ) -> CommandResult {
        let session = match &mut self.hosts[host].side {
            Side::Scsi(session) => session,
            Side::Nvme(_) => unreachable!("this host speaks NVMe"),
        };
        let itt = session.initiator.send_command(&mut self.world, volume as u16, cdb, out, read);
        let mut answer = None;
        self.wait("an answer to an initiator", |history| {
            let answers = &mut history.hosts[host].session().answers;
            answer = answers.iter().position(|ended| ended.itt == itt).map(|at| answers.remove(at));
            answer.is_some()
        });
        answer.expect("it was waited for")
    }

    pub fn settle_session(&mut self, host: usize) {
        let session = self.hosts[host].session();
        let ends = std::mem::take(&mut session.initiator.ended);
        let managed = std::mem::take(&mut session.initiator.managed);
        for ended in ends {
            let Some(flight) = self.hosts[host].flights.remove(&ended.itt.into()) else {
                self.hosts[host].session().answers.push(ended);
                continue;
            };
            if ended.status == 0 {
                self.ended_well(flight, &ended.data);
            } else {
                self.judge_scsi(flight, ended.status, &ended.sense);
            }
        }
        for (itt, response) in managed {
            let session = self.hosts[host].session();
            let of = session.managing.remove(&itt).expect("it was asked for");
            // 0: done; 1: there is no such task any more.
            let known = response == 0 || (response == 1 && of.is_some());
            if let Some(task) = of {
                session.initiator.forget_task(task);
                if let Some(flight) = self.hosts[host].flights.remove(&task.into()) {
                    self.tally.aborted += 1;
                    self.give_up(flight, true);
                }
            }
            assert!(known, "seed {}: response {response}", self.plan.seed);
        }
    }

    pub fn abort_task(&mut self, host: usize) {
        let session = self.hosts[host].session();
        let sent = |itt: &u32| !session.initiator.is_command_queued(*itt);
        let tasks: Vec<u32> = session.initiator.tasks_in_flight().into_iter().filter(sent).collect();
        if tasks.is_empty() {
            return;
        }
        let task = *self.chance.pick(&tasks);
        let lun = self.hosts[host].flights.get(&task.into()).map_or(0, |flight| flight.volume as u16);
        let session = self.hosts[host].session();
        let (itt, _) =
            session.initiator.send_task_management(&mut self.world, TmfFunction::ABORT_TASK, lun, task);
        session.managing.insert(itt, Some(task));
    }

    /// Resets the unit. SCSI tasks are answered or have silently ended soon after; NVMe's go on.
    pub fn reset_unit(&mut self, host: usize) {
        self.tally.unit_resets += 1;
        let volume =
            if self.plan.volumes > 1 { self.chance.below(self.plan.volumes as u64) as usize } else { 0 };
        let session = self.hosts[host].session();
        let function = TmfFunction::LOGICAL_UNIT_RESET;
        let (itt, _) =
            session.initiator.send_task_management(&mut self.world, function, volume as u16, u32::MAX);
        session.managing.insert(itt, None);
        self.wait("the reset of a unit", |history| {
            history.hosts[host].session().managing.values().all(Option::is_some)
        });
        let busy = |history: &History| {
            let of_scsi = |host: &&crate::host::Host| matches!(host.side, Side::Scsi(_));
            let mut flights = history.hosts.iter().filter(of_scsi).flat_map(|host| host.flights.values());
            flights.any(|flight| flight.volume == volume)
        };
        let limit = self.world.now() + Duration::from_secs(1);
        while self.world.now() < limit && busy(self) {
            self.poll();
            self.step();
        }
        for host in 0..self.hosts.len() {
            if matches!(self.hosts[host].side, Side::Nvme(_)) {
                continue;
            }
            let flights = &mut self.hosts[host].flights;
            let (ended, others) =
                std::mem::take(flights).into_iter().partition(|(_, flight)| flight.volume == volume);
            *flights = others;
            let ended: BTreeMap<u64, Flight> = ended;
            for (task, flight) in ended {
                self.hosts[host].session().initiator.forget_task(task as u32);
                self.give_up(flight, true);
            }
        }
    }

    /// The same host logs in again. When it is in, nothing of the old session may happen any more.
    pub fn reinstate(&mut self, host: usize) {
        if self.chance.chance_permille(500) {
            let session = self.hosts[host].session();
            for conn in session.initiator.live_connections() {
                session.initiator.break_connection(&mut self.world, conn, conn % 2 == 0);
            }
        }
        let isid = self.hosts[host].session().isid;
        let new = self.log_in(isid);
        let session = self.hosts[host].session();
        let old = std::mem::replace(&mut session.initiator, new);
        session.managing.clear();
        for flight in std::mem::take(&mut self.hosts[host].flights).into_values() {
            self.give_up(flight, true);
        }
        self.wait("the old session's connections to close", |history| {
            old.live_connections().iter().all(|conn| history.is_closed(old.peer_of(*conn)))
        });
    }
}
