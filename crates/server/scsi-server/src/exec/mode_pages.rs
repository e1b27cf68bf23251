//! MODE SENSE and MODE SELECT (SPC-4 §6.9 to §6.12). The changeable parameters (SWP, D_SENSE and TAS) are
//! kept by the volume's home, so that all nexuses of all shards see the same.

use std::collections::VecDeque;

use buf::Sg;
use scsi::cdb::{ModeSelect, ModeSense};
use scsi::mode;
use volume::VolumeRequest;

use super::parameter_data::contiguous_bytes;
use super::respond_good;
use crate::after_operation::AfterOperation;
use crate::context::ExecContext;

/// The longest list that is taken: all pages, a header and a long block descriptor fit several times.
const LIST_MAX: usize = 1024;

/// MODE SENSE.
pub(crate) fn mode_sense(ctx: &mut ExecContext, slot: u32, request: ModeSense) {
    ctx.respond_with_parameter_data(slot, usize::from(request.allocation), |ctx, w| {
        let (unit, read_only) = (ctx.logical_unit_of(slot), ctx.tasks.get(slot).read_only);
        mode::encode_mode_sense(
            &request,
            &unit.mode_header(read_only),
            &unit.mode_parameters(),
            &unit.default_mode_parameters(),
            w,
        )
    });
}

/// MODE SELECT.
pub(crate) fn mode_select(ctx: &mut ExecContext, slot: u32, select: ModeSelect) {
    if select.list_len == 0 {
        return apply_parameter_list(ctx, slot, select, &Sg::new());
    }
    ctx.request_parameter_list(slot, u32::from(select.list_len), LIST_MAX);
}

/// The list of a MODE SELECT is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, select: ModeSelect, data: &Sg) {
    let unit = ctx.logical_unit_of(slot);
    let device = unit.mode_header(ctx.tasks.get(slot).read_only);
    let old = unit.mode_parameters();
    let new = match mode::parse_mode_select(&select, &contiguous_bytes(data), &device, &old) {
        Ok(new) => new,
        Err(sense) => return ctx.respond_check_condition(slot, sense),
    };
    let by = ctx.nexus_of(slot).nexus.identity.clone();
    let mut requests = VecDeque::new();
    if new.write_protect != old.write_protect {
        requests.push_back(VolumeRequest::WriteProtectByHost { by: by.clone(), on: new.write_protect });
    }
    let unit = ctx.logical_unit_of(slot);
    let bits = unit.host_settings_for(&new);
    if bits != unit.view.host_settings {
        requests.push_back(VolumeRequest::HostSettings { by, bits });
    }
    request_in_sequence(ctx, slot, requests);
}

/// Asks one thing after the other; GOOD when all are done.
pub(crate) fn request_in_sequence(ctx: &mut ExecContext, slot: u32, mut requests: VecDeque<VolumeRequest>) {
    match requests.pop_front() {
        None => respond_good(ctx, slot),
        Some(request) => {
            ctx.tasks.get_mut(slot).job = AfterOperation::Requests(requests);
            ctx.request_volume_change(slot, request);
        }
    }
}
