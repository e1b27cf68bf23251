//! Asymmetric access: REPORT and SET TARGET PORT GROUPS (SPC-4 §6.37, §6.45). Each target port is its own
//! group, with the same number. Ports of other gateways that lead to the volume are among them.

use std::collections::VecDeque;

use buf::Sg;
use scsi::alua::{
    AccessState, AccessStateCause, PortGroupsWriter, SetPortGroupsList, SupportedStates, TargetPortGroup,
};
use scsi::sense::Sense;
use volume::{PathAccess, PortId, View, VolumeRequest};

use super::mode_pages::request_in_sequence;
use super::parameter_data::contiguous_bytes;
use super::respond_good;
use crate::context::ExecContext;
use crate::nexus::NexusSpec;
use crate::status;

/// The longest list that is taken: a wish for each of 255 groups.
const LIST_MAX: usize = 4 + 4 * 255;
/// IMPLICIT TRANSITION TIME in seconds: longer than a fence may take, twice over.
const IMPLICIT_TRANSITION_S: u8 = 30;

/// REPORT TARGET PORT GROUPS.
pub(crate) fn report_target_port_groups(ctx: &mut ExecContext, slot: u32, extended: bool, allocation: u32) {
    ctx.respond_with_parameter_data(slot, allocation as usize, |ctx, w| {
        let view = &ctx.logical_unit_of(slot).view;
        let mut groups = PortGroupsWriter::start(extended, IMPLICIT_TRANSITION_S, w);
        for port in ports_of(ctx.nexus_of(slot), view) {
            let group = TargetPortGroup {
                id: port.0,
                state: status::access_state(view.shown_path_access(port)),
                preferred: view.preferred.binary_search(&port).is_ok(),
                supported: SupportedStates::VOLUME,
                cause: AccessStateCause::None,
            };
            groups.push_group(&group, std::iter::once(port.0));
        }
        groups.finish();
        Ok(())
    });
}

/// The target ports that lead to a volume, as a nexus is told of them.
pub(super) fn ports_of<'a>(nexus: &'a NexusSpec, view: &'a View) -> impl Iterator<Item = PortId> + 'a {
    let own = nexus.ports.iter().map(|port| port.port);
    let others = view.gateway_paths.iter().map(|(port, _)| *port);
    own.chain(others.filter(|port| nexus.ports.iter().all(|own| own.port != *port)))
}

/// SET TARGET PORT GROUPS.
pub(crate) fn set_target_port_groups(ctx: &mut ExecContext, slot: u32, list_len: u32) {
    if list_len == 0 {
        return respond_good(ctx, slot);
    }
    ctx.request_parameter_list(slot, list_len, LIST_MAX);
}

/// The list of a SET TARGET PORT GROUPS is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    let (nexus, view) = (ctx.nexus_of(slot), &ctx.logical_unit_of(slot).view);
    let bytes = contiguous_bytes(data);
    let wishes = match SetPortGroupsList::parse(&bytes, SupportedStates::VOLUME) {
        Ok(list) => list,
        Err(sense) => return ctx.respond_check_condition(slot, sense),
    };
    let mut requests = VecDeque::new();
    for (index, wish) in wishes.iter().enumerate() {
        let known = ports_of(nexus, view).any(|port| port.0 == wish.group);
        let to = match wish.state {
            AccessState::OPTIMIZED => PathAccess::Optimized,
            AccessState::NON_OPTIMIZED => PathAccess::NonOptimized,
            AccessState::STANDBY => PathAccess::Standby,
            _ => PathAccess::Inaccessible,
        };
        if !known {
            return ctx.respond_check_condition(slot, Sense::invalid_list_field(4 + 4 * index + 2, None));
        }
        let by = Some(nexus.nexus.identity.clone());
        requests.push_back(VolumeRequest::SetAccess { ports: vec![PortId(wish.group)], to, by });
    }
    request_in_sequence(ctx, slot, requests);
}
