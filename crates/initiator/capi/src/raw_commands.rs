//! `bw_scsi`, `bw_nvme_admin`, `bw_nvme_io`: commands of the caller's own.
//!
//! Data is copied, so that no command that was lost can touch the caller's memory after its call has returned.

use std::ffi::{c_int, c_void};
use std::slice;

use client::{Error, RAW_DATA_MAX, RawAnswer, RawData, VolumeHandle};

use crate::abi::{self, NvmeAnswer, NvmeCommand, ScsiAnswer};
use crate::caller_pointers::{context_of_volume, copy_struct_prefix};
use crate::context::{InitiatorContext, OpenState, Volume};
use crate::status::{Status, return_code, status_of_error, usage_error};

/// The longest CDB that is looked at.
const CDB_LEN_MAX: usize = 260;

/// A volume that is open.
///
/// # Safety
/// As for [`context_of_volume`].
unsafe fn open_volume_of<'a>(of: *mut Volume) -> Result<(&'a mut InitiatorContext, VolumeHandle), Status> {
    // SAFETY: as demanded.
    let (state, handle) = unsafe { context_of_volume(of) }?;
    match state.open_volume(handle).map(|opened| opened.open_state) {
        Some(OpenState::Open) => Ok((state, handle)),
        _ => Err(usage_error("the volume is not open: wait until bw_state() says so")),
    }
}

/// The data of a command.
///
/// # Safety
/// `data` is NULL or has `len` bytes: to be written for `BW_DATA_IN`, else to be read, and nobody else's during the call.
unsafe fn raw_data<'a>(direction: u32, data: *mut c_void, len: usize) -> Result<RawData<'a>, Status> {
    if len > RAW_DATA_MAX {
        return Err(usage_error("the data of a raw command is at most 4 MiB"));
    }
    match direction {
        abi::BW_DATA_NONE if len == 0 => Ok(RawData::None),
        abi::BW_DATA_NONE => Err(usage_error("BW_DATA_NONE has len 0")),
        abi::BW_DATA_IN | abi::BW_DATA_OUT if len == 0 => Ok(RawData::None),
        abi::BW_DATA_IN | abi::BW_DATA_OUT if data.is_null() => {
            Err(usage_error("data is NULL, and len is not 0"))
        }
        // SAFETY: it is not NULL, and the caller vouches for `len` bytes, at most what an isize holds.
        abi::BW_DATA_IN => Ok(RawData::In(unsafe { slice::from_raw_parts_mut(data.cast(), len) })),
        // SAFETY: as above.
        abi::BW_DATA_OUT => Ok(RawData::Out(unsafe { slice::from_raw_parts(data.cast(), len) })),
        _ => Err(usage_error("direction is none of BW_DATA_NONE, BW_DATA_IN, BW_DATA_OUT")),
    }
}

/// Waits for an answer. What ended of other operations meanwhile is announced by nothing else.
fn run(
    state: &mut InitiatorContext,
    command: impl FnOnce(&mut client::Initiator) -> Result<RawAnswer, Error>,
) -> Result<RawAnswer, Status> {
    let answer = command(&mut state.initiator);
    state.drain_completions();
    answer.map_err(|why| status_of_error(&why))
}

/// `bw_scsi`
///
/// # Safety
/// `of` is NULL or a handle that was not closed; `cdb` is NULL or has `cdb_len` bytes; `data` is NULL or has `len`
/// bytes; `answer` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_scsi(
    of: *mut Volume,
    cdb: *const c_void,
    cdb_len: usize,
    direction: u32,
    data: *mut c_void,
    len: usize,
    answer: *mut ScsiAnswer,
    size: usize,
) -> c_int {
    let submit = || {
        // SAFETY: as demanded.
        let (state, handle) = unsafe { open_volume_of(of) }?;
        if cdb.is_null() || answer.is_null() || cdb_len > CDB_LEN_MAX {
            return Err(usage_error("a CDB of 6 to 260 bytes and a place for the answer are needed"));
        }
        // SAFETY: it is not NULL, and the caller vouches for its length.
        let cdb = unsafe { slice::from_raw_parts(cdb.cast::<u8>(), cdb_len) };
        // SAFETY: as demanded.
        let data = unsafe { raw_data(direction, data, len) }?;
        let RawAnswer::Scsi { status, sense, transferred, underflow, overflow } =
            run(state, |initiator| initiator.scsi(handle, cdb, data))?
        else {
            return Err(usage_error("the answer is of another protocol"));
        };
        let mut told = ScsiAnswer {
            status: status.into(),
            transferred,
            underflow,
            overflow,
            sense_len: sense.len().min(abi::BW_SENSE_MAX as usize) as u32,
            sense: [0; abi::BW_SENSE_MAX as usize],
        };
        told.sense.iter_mut().zip(&sense).for_each(|(to, from)| *to = *from);
        // SAFETY: as demanded.
        unsafe { copy_struct_prefix(answer, &told, size) };
        Ok(0)
    };
    return_code(submit())
}

/// # Safety
/// As for [`bw_nvme_admin`].
unsafe fn run_nvme(
    of: *mut Volume,
    command: *const NvmeCommand,
    data: *mut c_void,
    len: usize,
    answer: *mut NvmeAnswer,
    size: usize,
    act: impl FnOnce(
        &mut client::Initiator,
        VolumeHandle,
        client::NvmeCommand,
        RawData<'_>,
    ) -> Result<RawAnswer, Error>,
) -> c_int {
    let submit = || {
        // SAFETY: as demanded.
        let (state, handle) = unsafe { open_volume_of(of) }?;
        if command.is_null() || answer.is_null() {
            return Err(usage_error("a command and a place for the answer are needed"));
        }
        // SAFETY: it is not NULL, and the caller's to be read; any bytes are a value.
        let command = unsafe { command.read() };
        let asked = client::NvmeCommand {
            opcode: command.opcode,
            flags: command.flags,
            nsid: command.nsid,
            cdw2: [command.cdw2, command.cdw3],
            cdw10: [command.cdw10, command.cdw11, command.cdw12, command.cdw13, command.cdw14, command.cdw15],
        };
        let direction = if command.opcode & 3 == 1 { abi::BW_DATA_OUT } else { abi::BW_DATA_IN };
        // SAFETY: as demanded; the opcode says which way its data goes.
        let data = unsafe { raw_data(direction, data, len) }?;
        let RawAnswer::Nvme { status, result, transferred } =
            run(state, |initiator| act(initiator, handle, asked, data))?
        else {
            return Err(usage_error("the answer is of another protocol"));
        };
        let told = NvmeAnswer { status: status.into(), transferred, result };
        // SAFETY: as demanded.
        unsafe { copy_struct_prefix(answer, &told, size) };
        Ok(0)
    };
    return_code(submit())
}

/// `bw_nvme_admin`
///
/// # Safety
/// `of` is NULL or a handle that was not closed; `command` is NULL or may be read; `data` is NULL or has `len` bytes, to
/// be read or written as the opcode says; `answer` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_nvme_admin(
    of: *mut Volume,
    command: *const NvmeCommand,
    data: *mut c_void,
    len: usize,
    answer: *mut NvmeAnswer,
    size: usize,
) -> c_int {
    // SAFETY: as demanded.
    unsafe { run_nvme(of, command, data, len, answer, size, client::Initiator::nvme_admin) }
}

/// `bw_nvme_io`
///
/// # Safety
/// As for [`bw_nvme_admin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_nvme_io(
    of: *mut Volume,
    command: *const NvmeCommand,
    data: *mut c_void,
    len: usize,
    answer: *mut NvmeAnswer,
    size: usize,
) -> c_int {
    // SAFETY: as demanded.
    unsafe { run_nvme(of, command, data, len, answer, size, client::Initiator::nvme_io) }
}
