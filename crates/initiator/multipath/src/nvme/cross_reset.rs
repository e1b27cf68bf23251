//! Cross-Controller Reset (NVMe Base 2.3 §5.4.3, §8.3.3): this path's controller resets another one of its subsystem and
//! host, that this path or another has lost. Where it cannot, time fences the lost one (see the module above).
//!
//! Invariants:
//! - A controller counts as reset only if its subsystem said so: in the completion (IRS), or in the log page.
//! - Each is tried once in an association, and at most as many at a time as the controller said (CCRL).

use std::time::Duration;

use buf::{Cx, Payload, Time};
use nvme::Cqe;
use nvme::controller_reset::{self, IMMEDIATE_RESET_SUCCESSFUL, ResetStatus};
use nvme::identify;
use nvme::log::LogPageId;

use super::admin_commands::log_page_command;
use super::{AdminPurpose, NvmePath, PathPhase};
use crate::{LostController, PathEvent};

/// Between two looks at the log page.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How many controllers are tried in an association at most.
const TRIED_MAX: usize = 64;

/// Controllers that this association was asked to reset.
#[derive(Debug, Default)]
pub(super) struct PeerResets {
    list: Vec<PeerReset>,
}

#[derive(Debug)]
struct PeerReset {
    controller: LostController,
    stage: PeerResetStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerResetStage {
    /// A command is under way.
    Asked,
    /// The log page is read then.
    Waiting(Time),
    Ended,
}

impl PeerResets {
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let due = self.list.iter().filter_map(|reset| match reset.stage {
            PeerResetStage::Waiting(at) => Some(at),
            PeerResetStage::Asked | PeerResetStage::Ended => None,
        });
        due.min()
    }

    fn count_under_way(&self) -> usize {
        self.list.iter().filter(|reset| reset.stage != PeerResetStage::Ended).count()
    }
}

impl NvmePath {
    /// False: not by this path, not now.
    pub(super) fn start_peer_reset(&mut self, cx: &mut Cx<'_>, controller: &LostController) -> bool {
        let (Some(known), PathPhase::Up) = (self.known, &self.state) else { return false };
        let settings = &self.settings;
        let is_ours = (&controller.subsystem, &controller.host, controller.host_id)
            == (&settings.subsystem, &settings.host, settings.host_id);
        // One with our own number is another life of it: nobody is asked to reset itself.
        let is_other = controller.instance.cntlid != known.controller.cntlid;
        let resets = &self.peer_resets;
        let may = resets.count_under_way() < usize::from(known.controller.peer_resets)
            && resets.list.len() < TRIED_MAX
            && resets.list.iter().all(|tried| tried.controller != *controller);
        if !(is_ours && is_other && may) {
            return false;
        }
        let number = self.peer_resets.list.len() as u32;
        let admin = self.admin_queue();
        // It ends when the lost controller has: that is not this one's fault, and not its time.
        let command = (controller.instance.to_reset_sqe(), 0);
        let purpose = (AdminPurpose::PeerReset(number), None);
        if !self.admin_commands.send_command(cx, &mut self.links, admin, command, purpose) {
            self.schedule_retry(cx.now + super::RETRY_DELAY);
            return false;
        }
        let reset = PeerReset { controller: controller.clone(), stage: PeerResetStage::Asked };
        self.peer_resets.list.push(reset);
        true
    }

    pub(super) fn handle_peer_reset_ended(&mut self, cx: &mut Cx<'_>, number: u32, cqe: Cqe) {
        let end = cqe.completion();
        if !end.status.is_success() {
            return self.end_peer_reset(number, false);
        }
        if end.result as u32 & IMMEDIATE_RESET_SUCCESSFUL != 0 {
            return self.end_peer_reset(number, true);
        }
        self.set_peer_reset_stage(number, PeerResetStage::Waiting(cx.now + LOG_POLL_INTERVAL));
    }

    pub(super) fn handle_peer_reset_log(
        &mut self,
        cx: &mut Cx<'_>,
        number: u32,
        cqe: Cqe,
        payload: &Payload,
    ) {
        let Some(reset) = self.peer_resets.list.get(number as usize) else { return };
        let mut log = Vec::with_capacity(controller_reset::LOG_LEN_MAX);
        if let Payload::In(memory) = payload {
            memory.pieces().iter().for_each(|piece| log.extend_from_slice(piece));
        }
        let said = if cqe.completion().status.is_success() {
            controller_reset::find_reset_status(&log, &reset.controller.instance)
        } else {
            None
        };
        match said {
            Some(ResetStatus::Successful) => self.end_peer_reset(number, true),
            Some(ResetStatus::InProgress) => {
                self.set_peer_reset_stage(number, PeerResetStage::Waiting(cx.now + LOG_POLL_INTERVAL))
            }
            Some(ResetStatus::Failed) | None => self.end_peer_reset(number, false),
        }
    }

    /// Log pages are read that are due.
    pub(super) fn run_peer_reset_timers(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let is_due = |stage| matches!(stage, PeerResetStage::Waiting(at) if at <= now);
        while let Some(number) = self.peer_resets.list.iter().position(|reset| is_due(reset.stage)) {
            let number = number as u32;
            let (lid, nsid) = (LogPageId::CROSS_CONTROLLER_RESET, identify::NSID_ALL);
            let command = log_page_command(lid, 0, nsid, 0, controller_reset::LOG_LEN_MAX);
            let until = Some(cx.now + self.settings.times.command);
            let purpose = (AdminPurpose::PeerResetLog(number), until);
            let admin = self.admin_queue();
            let sent = self.admin_commands.send_command(cx, &mut self.links, admin, command, purpose);
            let later = PeerResetStage::Waiting(cx.now + LOG_POLL_INTERVAL);
            self.set_peer_reset_stage(number, if sent { PeerResetStage::Asked } else { later });
        }
    }

    /// The association is over: of what was under way nothing is known.
    pub(super) fn end_peer_resets(&mut self) {
        for number in 0..self.peer_resets.list.len() {
            self.end_peer_reset(number as u32, false);
        }
        self.peer_resets.list.clear();
    }

    fn set_peer_reset_stage(&mut self, number: u32, stage: PeerResetStage) {
        if let Some(reset) = self.peer_resets.list.get_mut(number as usize) {
            reset.stage = stage;
        }
    }

    fn end_peer_reset(&mut self, number: u32, is_reset: bool) {
        let Some(reset) = self.peer_resets.list.get_mut(number as usize) else { return };
        if reset.stage == PeerResetStage::Ended {
            return;
        }
        reset.stage = PeerResetStage::Ended;
        let controller = reset.controller.clone();
        self.events.push_back(PathEvent::ControllerReset { controller, is_reset });
    }
}
