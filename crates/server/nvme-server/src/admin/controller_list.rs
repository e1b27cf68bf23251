//! Lists of controllers (Identify, CNS 12h and 13h; NVMe Base §5.17.2.15, §5.17.2.16). A shard knows only its
//! own controllers, so every shard is asked, and the command waits for all answers.
//!
//! Invariant: a list has the controllers that live while the shards are asked, each once: a controller's
//! number is unique, and it never moves. Controllers that have not authenticated, or are about to end, are on
//! no list.

use buf::Cx;
use nvme::Status;
use nvme::identify::{self, Cns, Identify};

use super::{AdminOutcome, answer_unless_later, has_memory, wait_for_memory};
use crate::controller::{AdminWait, WaitingCommand};
use crate::server::Server;
use crate::step::{CommandKey, ControllerListQuery, ControllerStep, Step};

/// Whether a list of controllers is asked for.
pub(super) fn is_controller_list(identify: Identify) -> bool {
    matches!(identify.cns, Cns::CONTROLLERS | Cns::ATTACHED_CONTROLLERS)
}

/// Identify asks for a list.
pub(super) fn start_list(
    server: &mut Server,
    cntlid: u16,
    (key, cid): (CommandKey, u16),
    identify: Identify,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    if controller.is_discovery() {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let nsid = (identify.cns == Cns::ATTACHED_CONTROLLERS).then_some(identify.nsid);
    if let Some(nsid) = nsid {
        super::identify::require_namespace(server, controller, nsid)?;
    }
    if (room as usize) < identify::IDENTIFY_LEN {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    let of = ControllerListQuery { subsystem: controller.spec.subsystem.nqn.clone(), nsid };
    let id = server.controllers.next_list_id();
    let on = AdminWait::ControllerList { id, from: identify.controller, answers: 0, found: Vec::new() };
    if let Some(controller) = server.controllers.find_mut(cntlid) {
        controller.waiting.push(WaitingCommand { key, cid, on });
    }
    server.context.steps.push_back(Step::Other(ControllerStep::ListControllers { id, of }));
    Ok(AdminOutcome::Later)
}

impl Server {
    /// The controllers of this shard that are asked for.
    #[must_use]
    pub fn local_controllers(&self, of: &ControllerListQuery) -> Vec<u16> {
        let proven = |key| !self.must_authenticate(key) || self.dhchap_parameters(key).is_some();
        let asked = self.controllers.iter().filter(|one| {
            let meant = !one.is_discovery() && one.spec.subsystem.nqn == of.subsystem;
            let attached = of.nsid.is_none_or(|nsid| one.namespace(nsid).is_some());
            meant && attached && one.ending.is_none() && proven(one.admin)
        });
        asked.map(|one| one.spec.cntlid).collect()
    }

    /// One of so many shards has said which controllers it has ([`ControllerStep::ListControllers`](crate::ControllerStep::ListControllers)).
    pub fn handle_shard_controllers(&mut self, cx: &mut Cx<'_>, id: u64, shards: u16, here: &[u16]) {
        let is_meant =
            |on: &AdminWait| matches!(on, AdminWait::ControllerList { id: asked, .. } if *asked == id);
        let mut here = Some(here);
        let whole =
            super::take_waiting(self, |waiting| is_meant(&waiting.on)).and_then(|(cntlid, mut waiting)| {
                if let (AdminWait::ControllerList { answers, found, .. }, Some(here)) =
                    (&mut waiting.on, here.take())
                {
                    *answers += 1;
                    found.extend(here);
                    if *answers < shards {
                        self.controllers.find_mut(cntlid)?.waiting.push(waiting);
                        return None;
                    }
                }
                Some((cntlid, waiting))
            });
        if let Some((
            cntlid,
            WaitingCommand { key, cid, on: AdminWait::ControllerList { from, mut found, .. } },
        )) = whole
        {
            found.sort_unstable();
            send_list(self, cx, cntlid, (key, cid), found, from);
        }
    }
}

/// Answers with the list once there is memory for it.
pub(super) fn send_list(
    server: &mut Server,
    cx: &mut Cx<'_>,
    cntlid: u16,
    (key, cid): (CommandKey, u16),
    found: Vec<u16>,
    from: u16,
) {
    let len = identify::IDENTIFY_LEN as u32;
    if !has_memory(cx.pool, len) {
        return wait_for_memory(
            server,
            cntlid,
            WaitingCommand { key, cid, on: AdminWait::MemoryForList(found, from) },
            len,
        );
    }
    let list = identify::encode_controller_list(found.into_iter(), from);
    answer_unless_later(server, cx.pool, key, cid, Ok(AdminOutcome::with_data(list)));
}
