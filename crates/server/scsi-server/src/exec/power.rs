//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SBC-3 §5.25, SPC-4 §6.14).
//!
//! There are no power conditions: requests for them succeed without effect. A stop without eject only flushes
//! earlier writes, after the answer with IMMED. Everything else ends at once or with an answer of the
//! volume's home, for which it waits even with IMMED, because the answer says whether removal is prevented.

use buf::Payload;
use scsi::cdb::StartStop;
use scsi::sense::Sense;
use volume::{Op, UnservableReason, VolumeRequest};

use super::block::admit_on_arrival;
use super::cache::start_background;
use super::respond_good;
use crate::after_operation::AfterOperation;
use crate::context::ExecContext;

/// START STOP UNIT.
pub(crate) fn start_stop_unit(ctx: &mut ExecContext, slot: u32, what: StartStop) {
    let unit = ctx.logical_unit_of(slot);
    let (removable, why) = (unit.spec.removable, unit.view.not_ready);
    if what.power_condition != 0 {
        return respond_good(ctx, slot);
    }
    if what.load_eject && !removable {
        return ctx.respond_check_condition(slot, Sense::invalid_cdb_field(4, Some(1)));
    }
    let by = Some(ctx.nexus_of(slot).nexus.identity.clone());
    let read_only = ctx.tasks.get(slot).read_only;
    match (what.start, what.load_eject) {
        // Who may only read moves nothing; what is in may be loaded all the same.
        (true, true) if read_only && why != Some(UnservableReason::NoMedium) => respond_good(ctx, slot),
        (true, true) => ctx.request_volume_change(slot, VolumeRequest::Load { by }),
        (true, false) if why.is_some() => ctx.request_volume_change(slot, VolumeRequest::Start),
        (true, false) => respond_good(ctx, slot),
        (false, eject) => {
            let flushes = !what.no_flush && why.is_none() && admit_on_arrival(ctx, slot, &Op::Flush).is_ok();
            match (flushes, eject) {
                (true, false) if what.immediate && start_background(ctx, slot, &Op::Flush) => {
                    respond_good(ctx, slot);
                }
                (true, _) => {
                    let job = if eject { AfterOperation::Eject } else { AfterOperation::Plain };
                    ctx.tasks.get_mut(slot).job = job;
                    ctx.submit_op(slot, Op::Flush, Payload::None, 0);
                }
                (false, true) => self::eject_medium(ctx, slot),
                (false, false) => respond_good(ctx, slot),
            }
        }
    }
}

/// Takes the medium out.
pub(crate) fn eject_medium(ctx: &mut ExecContext, slot: u32) {
    let by = Some(ctx.nexus_of(slot).nexus.identity.clone());
    ctx.request_volume_change(slot, VolumeRequest::Eject { by });
}

/// PREVENT ALLOW MEDIUM REMOVAL.
pub(crate) fn prevent_allow_medium_removal(ctx: &mut ExecContext, slot: u32, on: bool) {
    let by = ctx.nexus_of(slot).nexus.identity.clone();
    ctx.request_volume_change(slot, VolumeRequest::PreventRemoval { by, on });
}
