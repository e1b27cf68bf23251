//! libblockwire: remote volumes for programs in C. `include/blockwire.h` documents each call.
//!
//! Every function here turns pointers into values once, refuses invalid arguments, and leaves the rest to
//! [`context`]. Invariants: no call touches a handle of another thread; no panic reaches the caller (with
//! `extern "C"` a panic ends the process, which is necessary: the caller's memory may be in use).

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod abi;
mod caller_pointers;
mod context;
mod pieces;
mod raw_commands;
mod slot_table;
mod status;

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::Duration;

use client::{Durability, Error, Initiator, IoChoice, IsidChoice, Settings};

use crate::abi::{Completion, Geometry, Options, Request};
use crate::caller_pointers::{
    context_of, context_of_volume, copy_struct_prefix, current_thread_id, str_from_c,
};
use crate::context::{CompletionWaiter, InitiatorContext, OpenState, OperationKind, Volume};
use crate::pieces::Piece;
use crate::status::{Status, return_code, status_of_error, usage_error};

/// `bw_abi_version`
#[unsafe(no_mangle)]
pub extern "C" fn bw_abi_version() -> u32 {
    abi::BW_ABI_VERSION
}

/// `bw_version`
#[unsafe(no_mangle)]
pub extern "C" fn bw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `bw_error_message`
#[unsafe(no_mangle)]
pub extern "C" fn bw_error_message() -> *const c_char {
    status::last_error_message()
}

/// `bw_strerror`
#[unsafe(no_mangle)]
pub extern "C" fn bw_strerror(status: c_int) -> *const c_char {
    Status(status).message_and_errno().0.as_ptr()
}

/// `bw_errno`
#[unsafe(no_mangle)]
pub extern "C" fn bw_errno(status: c_int) -> c_int {
    Status(status).message_and_errno().1
}

/// `bw_options_init`
///
/// # Safety
/// `options` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_options_init(options: *mut Options, size: usize) {
    let defaults = Options { size: size.min(size_of::<Options>()) as u32, ..Options::default() };
    // SAFETY: the caller vouches for `size` bytes, and no more than there are defaults are written.
    unsafe { copy_struct_prefix(options, &defaults, size) };
}

fn settings_from_options(options: &Options) -> Result<Settings, Status> {
    let io = match options.io {
        abi::BW_IO_AUTO => IoChoice::Auto,
        abi::BW_IO_URING => IoChoice::Uring,
        abi::BW_IO_EPOLL => IoChoice::Epoll,
        _ => return Err(usage_error("bw_options.io is none of BW_IO_AUTO, BW_IO_URING, BW_IO_EPOLL")),
    };
    let isid = match options.nexus {
        abi::BW_NEXUS_PASSING => IsidChoice::Passing,
        abi::BW_NEXUS_LASTING => IsidChoice::Lasting,
        _ => return Err(usage_error("bw_options.nexus is neither BW_NEXUS_PASSING nor BW_NEXUS_LASTING")),
    };
    if !(1 << 20..=64 << 30).contains(&options.memory) {
        return Err(usage_error("bw_options.memory is to be 1 MiB to 64 GiB"));
    }
    if options.poll_us_max > 1_000_000 {
        return Err(usage_error("bw_options.poll_us_max is to be at most 1000000"));
    }
    Ok(Settings {
        io,
        memory: usize::try_from(options.memory).map_err(|_| usage_error("bw_options.memory is too much"))?,
        poll_ns_max: u64::from(options.poll_us_max) * 1000,
        isid,
        inherited: Vec::new(),
        warn: |_| (),
        open_timeout: Duration::from_millis(options.open_timeout_ms.into()),
        close_timeout: Duration::from_millis(options.close_timeout_ms.into()),
    })
}

/// `bw_initiator_new`
///
/// # Safety
/// `options` is NULL or points to a struct of the size that it says; `initiator` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_initiator_new(
    options: *const Options,
    initiator: *mut *mut InitiatorContext,
) -> c_int {
    let mut asked = Options::default();
    if !options.is_null() {
        // SAFETY: the size stands at the front of the caller's struct, which has as many bytes.
        let size = unsafe { (&raw const (*options).size).read() } as usize;
        if size < size_of::<u32>() || size > size_of::<Options>() {
            return usage_error("bw_options.size is not what bw_options_init sets").0;
        }
        // SAFETY: both have so many bytes; any bytes are a value, for all fields are numbers.
        unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut asked).cast(), size) };
    }
    let make = || {
        if initiator.is_null() {
            return Err(usage_error("there is nowhere to put the initiator"));
        }
        let made = Initiator::new(settings_from_options(&asked)?).map_err(|why| status_of_error(&why))?;
        let made = Box::into_raw(Box::new(InitiatorContext::new(made, current_thread_id())));
        // SAFETY: it is not NULL, and the caller's to be written.
        unsafe { initiator.write(made) };
        Ok(0)
    };
    return_code(make())
}

/// `bw_initiator_free`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_initiator_free(initiator: *mut InitiatorContext) -> c_int {
    if initiator.is_null() {
        return 0;
    }
    // SAFETY: as demanded.
    if let Err(status) = unsafe { context_of(initiator) } {
        return status.0;
    }
    // SAFETY: `bw_initiator_new` made it from a box; the caller gives it up.
    drop(unsafe { Box::from_raw(initiator) });
    0
}

/// `bw_open`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed; `urls` is NULL or ends by a zero byte; `volume` is
/// NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_open(
    initiator: *mut InitiatorContext,
    urls: *const c_char,
    volume: *mut *mut Volume,
) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { start_open(initiator, urls, volume, Initiator::open, OpenState::Open) })
}

/// `bw_open_begin`
///
/// # Safety
/// As for [`bw_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_open_begin(
    initiator: *mut InitiatorContext,
    urls: *const c_char,
    volume: *mut *mut Volume,
) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { start_open(initiator, urls, volume, Initiator::start_open, OpenState::Opening) })
}

/// # Safety
/// As for [`bw_open`].
unsafe fn start_open(
    initiator: *mut InitiatorContext,
    urls: *const c_char,
    volume: *mut *mut Volume,
    act: impl FnOnce(&mut Initiator, &str) -> Result<client::VolumeHandle, Error>,
    open_state: OpenState,
) -> Result<c_int, Status> {
    // SAFETY: as demanded.
    let (state, urls) = unsafe { (context_of(initiator)?, str_from_c(urls)?) };
    if volume.is_null() {
        return Err(usage_error("there is nowhere to put the volume"));
    }
    let opened = act(&mut state.initiator, urls);
    // What ended of other volumes while this one was waited for is announced by nothing else.
    state.drain_completions();
    let handle = opened.map_err(|why| status_of_error(&why))?;
    let made = state.insert_volume(handle, open_state, urls);
    // SAFETY: it is not NULL, and the caller's to be written.
    unsafe { volume.write(made.as_ptr()) };
    Ok(0)
}

/// `bw_state`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_state(of: *mut Volume) -> c_int {
    // SAFETY: as demanded.
    let (state, handle) = match unsafe { context_of_volume(of) } {
        Ok(found) => found,
        Err(status) => return status.0,
    };
    let Some(opened) = state.open_volume(handle) else { return usage_error("there is no such volume").0 };
    match opened.open_state {
        OpenState::Opening => abi::BW_STATE_OPENING,
        OpenState::Open => abi::BW_STATE_OPEN,
        OpenState::Failed => match &opened.why {
            Some(why) => status_of_error(why).0,
            None => status_of_error(&state.initiator.open_error(handle, &opened.urls)).0,
        },
    }
}

/// `bw_close`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_close(of: *mut Volume) -> c_int {
    if of.is_null() {
        return 0;
    }
    // SAFETY: as demanded.
    return_code(unsafe { context_of_volume(of) }.and_then(|(state, handle)| {
        state.close_volume(handle).map_err(|why| status_of_error(&why))?;
        Ok(0)
    }))
}

/// `bw_geometry_of`
///
/// # Safety
/// `of` is NULL or a handle that was not closed; `geometry` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_geometry_of(of: *mut Volume, geometry: *mut Geometry, size: usize) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of_volume(of) }.and_then(|(state, handle)| {
        let found = context::abi_geometry(state, handle)?;
        // SAFETY: as demanded.
        unsafe { copy_struct_prefix(geometry, &found, size) };
        Ok(0)
    }))
}

/// `bw_has_changed`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_has_changed(of: *mut Volume) -> c_int {
    // SAFETY: as demanded.
    return_code(
        unsafe { context_of_volume(of) }
            .map(|(state, handle)| c_int::from(state.initiator.has_geometry_changed(handle))),
    )
}

/// An operation of the header's, with its pointer looked at.
fn operation_kind(op: u32, flags: u32, data: *mut c_void, len: u64) -> Result<OperationKind, Status> {
    let allowed = match op {
        abi::BW_WRITE => abi::BW_FUA,
        abi::BW_WRITE_ZEROES => abi::BW_ALLOCATE,
        _ => 0,
    };
    if flags & !allowed != 0 {
        return Err(usage_error("bw_request.flags has a flag that this operation does not know"));
    }
    let memory = || {
        if usize::try_from(len).is_err() {
            return Err(usage_error("no memory is that long"));
        }
        NonNull::new(data.cast::<u8>()).ok_or_else(|| usage_error("bw_request.data is NULL"))
    };
    Ok(match op {
        abi::BW_READ => OperationKind::Read(memory()?),
        abi::BW_WRITE => {
            let stable = flags & abi::BW_FUA != 0;
            OperationKind::Write(memory()?, if stable { Durability::Stable } else { Durability::Cached })
        }
        abi::BW_FLUSH => OperationKind::Flush,
        abi::BW_DISCARD => OperationKind::Discard,
        abi::BW_WRITE_ZEROES => OperationKind::Zero { unmap: flags & abi::BW_ALLOCATE == 0 },
        _ => return Err(usage_error("bw_request.op is no operation")),
    })
}

/// `bw_submit`
///
/// # Safety
/// `of` is NULL or a handle that was not closed; `request` is NULL or may be read; its data, for as long as
/// the header says, is the library's; `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_submit(of: *mut Volume, request: *const Request, id: *mut u64) -> c_int {
    let submit = || {
        // SAFETY: as demanded.
        let (state, handle) = unsafe { context_of_volume(of) }?;
        if request.is_null() {
            return Err(usage_error("the request is NULL"));
        }
        // SAFETY: it is not NULL, and the caller's to be read.
        let Request { op, flags, data, len, offset, user } = unsafe { request.read() };
        let name = state.start_operation(
            handle,
            operation_kind(op, flags, data, len)?,
            None,
            offset,
            len,
            CompletionWaiter::Poll(user),
        )?;
        if !id.is_null() {
            // SAFETY: the caller's to be written.
            unsafe { id.write(name) };
        }
        Ok(0)
    };
    return_code(submit())
}

/// The pieces of an operation, looked at, and their length together.
///
/// # Safety
/// `pieces` is NULL or may be read, `count` of them.
unsafe fn check_pieces(pieces: *const abi::Piece, count: usize) -> Result<(Box<[Piece]>, u64), Status> {
    if pieces.is_null() || count == 0 || count > abi::BW_PIECES_MAX as usize {
        return Err(usage_error("there must be 1 to BW_PIECES_MAX pieces"));
    }
    let mut sum = 0_u64;
    let mut gathered = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: as demanded.
        let abi::Piece { data, len } = unsafe { pieces.add(at).read() };
        if len == 0 {
            continue;
        }
        let at = NonNull::new(data.cast::<u8>()).ok_or_else(|| usage_error("bw_piece.data is NULL"))?;
        sum = sum.checked_add(len as u64).ok_or_else(|| usage_error("no memory is that long"))?;
        gathered.push(Piece { at, len });
    }
    Ok((gathered.into(), sum))
}

/// `bw_submitv`
///
/// # Safety
/// As for [`bw_submit`]; `pieces` is NULL or may be read, `count` of them, and what they name is the library's
/// for as long as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_submitv(
    of: *mut Volume,
    request: *const Request,
    pieces: *const abi::Piece,
    count: usize,
    id: *mut u64,
) -> c_int {
    let submit = || {
        // SAFETY: as demanded.
        let (state, handle) = unsafe { context_of_volume(of) }?;
        if request.is_null() {
            return Err(usage_error("the request is NULL"));
        }
        // SAFETY: it is not NULL, and the caller's to be read.
        let Request { op, flags, data, len, offset, user } = unsafe { request.read() };
        if !matches!(op, abi::BW_READ | abi::BW_WRITE) || !data.is_null() || len != 0 {
            return Err(usage_error("bw_submitv takes BW_READ and BW_WRITE with data NULL and len 0"));
        }
        // SAFETY: as demanded.
        let (pieces, len) = unsafe { check_pieces(pieces, count) }?;
        // Its pieces are its memory: this pointer is not looked at.
        let kind = operation_kind(op, flags, NonNull::<u8>::dangling().as_ptr().cast(), len)?;
        let name =
            state.start_operation(handle, kind, Some(pieces), offset, len, CompletionWaiter::Poll(user))?;
        if !id.is_null() {
            // SAFETY: the caller's to be written.
            unsafe { id.write(name) };
        }
        Ok(0)
    };
    return_code(submit())
}

/// `bw_cancel`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cancel(of: *mut Volume, id: u64) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of_volume(of) }.map(|(state, handle)| {
        state.cancel(handle, id);
        0
    }))
}

/// Carries an operation out and waits for its end.
///
/// # Safety
/// As for [`bw_submit`].
unsafe fn run_blocking(
    of: *mut Volume,
    op: u32,
    flags: u32,
    data: *mut c_void,
    len: u64,
    offset: u64,
) -> c_int {
    let name = match op {
        abi::BW_READ => "read",
        abi::BW_WRITE => "write",
        abi::BW_FLUSH => "flush",
        abi::BW_DISCARD => "discard",
        _ => "write zeroes",
    };
    // SAFETY: as demanded.
    return_code(unsafe { context_of_volume(of) }.and_then(|(state, handle)| {
        if len == 0 && op != abi::BW_FLUSH {
            return Ok(0);
        }
        let id = loop {
            match state.start_operation(
                handle,
                operation_kind(op, flags, data, len)?,
                None,
                offset,
                len,
                CompletionWaiter::Call,
            ) {
                Ok(id) => break id,
                Err(Status::AGAIN) => {
                    state.turn(None);
                    state.drain_completions();
                }
                Err(status) => return Err(status),
            }
        };
        let ended = state.wait_for_operation(id);
        let place = || if len > 0 { format!("{name} of {len} bytes at {offset}") } else { name.to_owned() };
        ended
            .map_err(|failure| status_of_error(&state.initiator.operation_error(handle, failure, &place())))
            .map(|()| 0)
    }))
}

/// `bw_read`
///
/// # Safety
/// `of` is NULL or a handle that was not closed; `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_read(of: *mut Volume, data: *mut c_void, len: usize, offset: u64) -> c_int {
    // SAFETY: as demanded; the call does not return before the operation is over.
    unsafe { run_blocking(of, abi::BW_READ, 0, data, len as u64, offset) }
}

/// `bw_write`
///
/// # Safety
/// As for [`bw_read`]; the bytes do not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_write(
    of: *mut Volume,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: u32,
) -> c_int {
    // SAFETY: as demanded; a write only reads.
    unsafe { run_blocking(of, abi::BW_WRITE, flags, data.cast_mut(), len as u64, offset) }
}

/// `bw_flush`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_flush(of: *mut Volume) -> c_int {
    // SAFETY: as demanded; there is no memory.
    unsafe { run_blocking(of, abi::BW_FLUSH, 0, std::ptr::null_mut(), 0, 0) }
}

/// `bw_discard`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_discard(of: *mut Volume, len: u64, offset: u64) -> c_int {
    // SAFETY: as demanded; there is no memory.
    unsafe { run_blocking(of, abi::BW_DISCARD, 0, std::ptr::null_mut(), len, offset) }
}

/// `bw_write_zeroes`
///
/// # Safety
/// `of` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_write_zeroes(of: *mut Volume, len: u64, offset: u64, flags: u32) -> c_int {
    // SAFETY: as demanded; there is no memory.
    unsafe { run_blocking(of, abi::BW_WRITE_ZEROES, flags, std::ptr::null_mut(), len, offset) }
}

/// `bw_poll`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed; `completions` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll(
    initiator: *mut InitiatorContext,
    completions: *mut Completion,
    max: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of(initiator) }.and_then(|state| {
        if completions.is_null() || max == 0 {
            return Err(usage_error("there is no room for completions"));
        }
        state.wait_for_completion(u64::try_from(timeout_ms).ok().map(Duration::from_millis));
        let mut count = 0;
        while count < max.min(c_int::MAX as usize) {
            let Some(completion) = state.poll_completed() else { break };
            // SAFETY: there is room for `max`.
            unsafe { completions.add(count).write(completion) };
            count += 1;
        }
        Ok(count as c_int)
    }))
}

/// `bw_in_flight`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_in_flight(initiator: *mut InitiatorContext) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of(initiator) }.map(|state| state.in_flight() as c_int))
}

/// `bw_fd`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_fd(initiator: *mut InitiatorContext) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of(initiator) }.map(|state| state.initiator.as_fd().as_raw_fd()))
}

/// `bw_timeout_ms`
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_timeout_ms(initiator: *mut InitiatorContext) -> c_int {
    // SAFETY: as demanded.
    return_code(unsafe { context_of(initiator) }.map(|state| match state.descriptor_wait_max() {
        None => -1,
        // Not sooner than it is due.
        Some(wait) => wait.as_nanos().div_ceil(1_000_000).min(c_int::MAX as u128) as c_int,
    }))
}

#[cfg(test)]
mod tests;
