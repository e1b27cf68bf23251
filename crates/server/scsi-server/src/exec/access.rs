//! Asymmetric access: REPORT and SET TARGET PORT GROUPS (SPC-4 §6.37, §6.45). Each target port is its own
//! group, with the same number.

use std::collections::VecDeque;

use buf::Sg;
use scsi::alua::{AccessState, Cause, PortGroup, PortGroups, SetList, SupportedStates};
use scsi::sense::Sense;
use volume::{Access, PortId, VolumeRequest};

use super::good;
use super::mode::request_all;
use super::parameter::contiguous;
use crate::context::ExecContext;
use crate::status;

/// The longest list that is taken: a wish for each of 255 groups.
const LIST_MAX: usize = 4 + 4 * 255;
/// IMPLICIT TRANSITION TIME in seconds: longer than a fence may take, twice over.
const TRANSITION_S: u8 = 30;

/// REPORT TARGET PORT GROUPS.
pub(crate) fn report(ctx: &mut ExecContext, slot: u32, extended: bool, allocation: u32) {
    ctx.report(slot, allocation as usize, |ctx, w| {
        let view = &ctx.unit_of(slot).view;
        let mut groups = PortGroups::start(extended, TRANSITION_S, w);
        for port in ctx.nexus_of(slot).ports.iter() {
            let group = PortGroup {
                id: port.port.0,
                state: status::access_state(view.access(port.port)),
                preferred: false,
                supported: SupportedStates::VOLUME,
                cause: Cause::None,
            };
            groups.group(&group, std::iter::once(port.port.0));
        }
        groups.finish();
        Ok(())
    });
}

/// SET TARGET PORT GROUPS.
pub(crate) fn set(ctx: &mut ExecContext, slot: u32, list_len: u32) {
    if list_len == 0 {
        return good(ctx, slot);
    }
    ctx.receive_list(slot, list_len, LIST_MAX);
}

/// The list of a SET TARGET PORT GROUPS is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    let nexus = ctx.nexus_of(slot);
    let bytes = contiguous(data);
    let wishes = match SetList::parse(&bytes, SupportedStates::VOLUME) {
        Ok(list) => list,
        Err(sense) => return ctx.check(slot, sense),
    };
    let mut requests = VecDeque::new();
    for (index, wish) in wishes.iter().enumerate() {
        let known = nexus.ports.iter().any(|port| port.port.0 == wish.group);
        let to = match wish.state {
            AccessState::OPTIMIZED => Access::Optimized,
            AccessState::NON_OPTIMIZED => Access::NonOptimized,
            _ => Access::Inaccessible,
        };
        if !known {
            return ctx.check(slot, Sense::list_field(4 + 4 * index + 2, None));
        }
        let by = Some(nexus.nexus.identity.clone());
        requests.push_back(VolumeRequest::SetAccess { ports: vec![PortId(wish.group)], to, by });
    }
    request_all(ctx, slot, requests);
}
