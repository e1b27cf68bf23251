//! Controllers that are reset for their hosts in a group of gateways (Cross-Controller Reset): the one that is lost may be at
//! another gateway than the one that is asked.
//!
//! Invariant: a reset succeeds only when every shard here and the group have said that nothing of the controller is left.

use std::collections::HashMap;

use buf::Cx;
use group::{LostController, ResetAnswer};
use nvme::{ControllerInstance, HostId, Nqn};
use nvme_server::{ControllerResetAnswer, ControllerResetRequest, HostIdentity};

use super::NvmeFront;
use crate::message::{CONTROL_PLANE, Message, NvmeMessage, ToGateway};
use crate::shard::SharedParts;

/// Marks resets for the group among the numbers of the server's own.
const FOR_GROUP: u64 = 1 << 63;
/// How many are under way: the group has no more out at a time.
const RESETS_MAX: usize = 4096;

/// A reset for a host of another gateway.
#[derive(Debug)]
struct GroupReset {
    /// As the group names it.
    number: u64,
    /// Shards that have not answered.
    left: u16,
    answer: ResetAnswer,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct GroupResets {
    made: u64,
    under_way: HashMap<u64, GroupReset>,
}

/// Asks the group too, where there is one.
pub(super) fn ask_group(parts: &mut SharedParts, id: u64, request: &ControllerResetRequest) {
    if parts.exports.group.is_none() {
        return;
    }
    let ControllerInstance { cntlid, uniquifier, random_number } = request.instance;
    let controller = LostController {
        cntlid,
        uniquifier,
        random_number,
        subsystem: request.subsystem.as_str().into(),
        host: request.host.nqn.as_str().into(),
        host_id: request.host.id.bytes(),
    };
    let message = ToGateway::ResetController { from: parts.id, number: id, controller };
    parts.outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
}

fn request_of(lost: &LostController) -> Option<ControllerResetRequest> {
    let LostController { cntlid, uniquifier, random_number, subsystem, host, host_id } = lost;
    let host = HostIdentity { nqn: Nqn::parse(host).ok()?, id: HostId::new(*host_id)? };
    Some(ControllerResetRequest {
        instance: ControllerInstance {
            cntlid: *cntlid,
            uniquifier: *uniquifier,
            random_number: *random_number,
        },
        subsystem: Nqn::parse(subsystem).ok()?,
        host,
    })
}

impl NvmeFront {
    /// A host of another gateway wants a controller of this one to be reset.
    pub(in crate::shard) fn start_group_reset(
        &mut self,
        parts: &mut SharedParts,
        number: u64,
        controller: &LostController,
    ) {
        let full = self.group_resets.under_way.len() >= RESETS_MAX;
        let Some(request) = request_of(controller).filter(|_| !full) else {
            return tell_group(parts, number, ResetAnswer::Unknown);
        };
        self.group_resets.made += 1;
        let (from, id) = (parts.id, FOR_GROUP | self.group_resets.made);
        let reset = GroupReset { number, left: parts.shards, answer: ResetAnswer::Gone };
        self.group_resets.under_way.insert(id, reset);
        parts
            .outbox
            .broadcast(|| Message::Nvme(NvmeMessage::ResetController(from, id, Box::new(request.clone()))));
    }

    /// A shard has answered.
    pub(super) fn handle_reset_answered(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: u64,
        answer: ControllerResetAnswer,
    ) {
        if id & FOR_GROUP == 0 {
            return self.server.handle_reset_answer(cx, id, answers_of(parts), answer);
        }
        let Some(reset) = self.group_resets.under_way.get_mut(&id) else { return };
        reset.left = reset.left.saturating_sub(1);
        match answer {
            ControllerResetAnswer::Gone => {}
            ControllerResetAnswer::NotPermitted => reset.answer = ResetAnswer::NotPermitted,
            ControllerResetAnswer::Busy | ControllerResetAnswer::Unknown => {
                reset.answer = ResetAnswer::Unknown;
            }
        }
        if reset.left == 0 {
            let (number, answer) = (reset.number, reset.answer);
            self.group_resets.under_way.remove(&id);
            tell_group(parts, number, answer);
        }
    }

    /// The group has answered.
    pub(in crate::shard) fn handle_group_reset(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: u64,
        answer: ResetAnswer,
    ) {
        let answer = match answer {
            ResetAnswer::Gone => ControllerResetAnswer::Gone,
            ResetAnswer::NotPermitted => ControllerResetAnswer::NotPermitted,
            ResetAnswer::Unknown => ControllerResetAnswer::Unknown,
        };
        self.server.handle_reset_answer(cx, id, answers_of(parts), answer);
    }
}

/// Every shard answers, and the group where there is one.
fn answers_of(parts: &SharedParts) -> u16 {
    parts.shards.saturating_add(u16::from(parts.exports.group.is_some()))
}

fn tell_group(parts: &mut SharedParts, number: u64, answer: ResetAnswer) {
    let message = ToGateway::ControllerReset { number, answer };
    parts.outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
}
