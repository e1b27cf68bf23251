//! Reports and small services: REQUEST SENSE, supported commands and functions, READ DEFECT DATA, the echo
//! buffer (SPC-4 §6).

use buf::Sg;
use scsi::cdb::{BufferAccess, ReadDefects, ReportOpcodes};
use scsi::echo_buffer::{EchoBufferAccess, encode_echo_descriptor};
use scsi::report::SupportedTaskManagement;
use scsi::sense::Sense;
use scsi::{defects as defect_lists, report};

use super::identify::write_sense_data;
use super::respond_good;
use crate::context::ExecContext;
use crate::status;

/// The echo buffer of each nexus, in bytes.
pub(crate) const ECHO_LEN: u16 = 4096;

/// REQUEST SENSE: the oldest unit attention, which is reported by it; else what is the matter.
pub(crate) fn request_sense(ctx: &mut ExecContext, slot: u32, descriptor: bool, allocation: u8) {
    let task = ctx.tasks.get(slot);
    let (nexus, lun) = (task.key.nexus, task.lun);
    let state = ctx.nexus_state(nexus);
    let pending = state.lun_index(lun).and_then(|at| state.luns.get(at)?.attentions.peek_oldest());
    let unit = ctx.logical_unit_of(slot);
    let sense = match pending {
        Some(code) => status::unit_attention_sense(code),
        None => {
            let access = unit.view.shown_path_access(ctx.nexus_of(slot).nexus.port);
            status::unit_state_sense(access, unit.not_ready_reason())
        }
    };
    let is_told = ctx.respond_with_parameter_data(slot, usize::from(allocation), |_, w| {
        write_sense_data(&sense, descriptor, w);
        Ok(())
    });
    // Who is told to come again has heard nothing.
    if let Some(code) = pending.filter(|_| is_told) {
        let state = ctx.nexus_state_mut(nexus);
        if let Some(lun) = state.lun_index(lun).and_then(|at| state.luns.get_mut(at)) {
            lun.attentions.withdraw(code);
        }
    }
}

/// REPORT SUPPORTED OPERATION CODES.
pub(crate) fn report_opcodes(ctx: &mut ExecContext, slot: u32, request: ReportOpcodes) {
    ctx.respond_with_parameter_data(slot, request.allocation as usize, |ctx, w| {
        let set = ctx.logical_unit_of(slot).command_set(ctx.nexus_of(slot).explicit_alua);
        report::encode_opcodes(set, &request, w)
    });
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub(crate) fn report_task_management(ctx: &mut ExecContext, slot: u32, extended: bool, allocation: u32) {
    const FUNCTIONS: SupportedTaskManagement = SupportedTaskManagement {
        abort_task: true,
        abort_task_set: true,
        clear_aca: false,
        clear_task_set: true,
        unit_reset: true,
        query_task: true,
        target_reset: true,
        query_event: true,
        query_task_set: true,
        nexus_reset: true,
    };
    ctx.respond_with_parameter_data(slot, allocation as usize, |_, w| {
        FUNCTIONS.encode(extended, w);
        Ok(())
    });
}

/// READ DEFECT DATA.
pub(crate) fn read_defect_data(ctx: &mut ExecContext, slot: u32, request: ReadDefects) {
    ctx.respond_with_parameter_data(slot, request.allocation as usize, |_, w| {
        defect_lists::encode_empty_lists(&request, w);
        Ok(())
    });
}

/// READ BUFFER. What was never written cannot be echoed.
pub(crate) fn read_buffer(ctx: &mut ExecContext, slot: u32, access: BufferAccess) {
    ctx.respond_with_parameter_data(slot, access.len as usize, |ctx, w| {
        match EchoBufferAccess::from_read_buffer(&access, ECHO_LEN)? {
            EchoBufferAccess::Descriptor => encode_echo_descriptor(ECHO_LEN, w),
            EchoBufferAccess::Data(len) => {
                let state = ctx.nexus_state(ctx.tasks.get(slot).key.nexus);
                let echo = state.echo.as_ref().ok_or(Sense::COMMAND_SEQUENCE_ERROR)?;
                w.put(echo.get(..usize::from(len)).unwrap_or(echo));
            }
        }
        Ok(())
    });
}

/// WRITE BUFFER.
pub(crate) fn write_buffer(ctx: &mut ExecContext, slot: u32, access: BufferAccess) {
    match EchoBufferAccess::from_write_buffer(&access, ECHO_LEN) {
        Err(sense) => ctx.respond_check_condition(slot, sense),
        Ok(EchoBufferAccess::Data(0) | EchoBufferAccess::Descriptor) => respond_good(ctx, slot),
        Ok(EchoBufferAccess::Data(len)) => {
            ctx.request_parameter_list(slot, u32::from(len), usize::from(ECHO_LEN))
        }
    }
}

/// The data of a WRITE BUFFER is here.
pub(crate) fn store_echo_buffer(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    let mut bytes = vec![0; data.len()];
    data.copy_to(0, &mut bytes);
    let nexus = ctx.tasks.get(slot).key.nexus;
    ctx.nexus_state_mut(nexus).echo = Some(bytes);
    respond_good(ctx, slot);
}
