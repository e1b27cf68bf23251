//! Handles, texts and structs of the caller, as pointers: looked at once, for every call.
//!
//! Invariant: NULL and a handle of another thread are refused before anything is read behind them.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::context::{InitiatorContext, Volume};
use crate::status::{Status, set_last_error, usage_error};

/// A number that no other thread has, ever.
pub(crate) fn current_thread_id() -> u64 {
    static NEXT_THREAD_ID: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THREAD_ID: Cell<u64> = Cell::new(NEXT_THREAD_ID.fetch_add(1, Ordering::Relaxed));
    }
    THREAD_ID.with(Cell::get)
}

/// An initiator of this thread.
///
/// # Safety
/// `initiator` is NULL or a handle that was not closed, as the header demands; what is returned is the only
/// reference until the call returns, since no call is made within another.
pub(crate) unsafe fn context_of<'a>(
    initiator: *mut InitiatorContext,
) -> Result<&'a mut InitiatorContext, Status> {
    let at = NonNull::new(initiator).ok_or_else(|| usage_error("the initiator is NULL"))?;
    // SAFETY: the handle is good. `thread` is written once, before anybody has the handle, so that another
    // thread may read it.
    let thread = unsafe { (&raw const (*at.as_ptr()).thread).read() };
    if thread != current_thread_id() {
        return Err(set_last_error(
            Status::THREAD,
            "the handle belongs to the thread that made its initiator",
        ));
    }
    // SAFETY: the handle is good and this thread's own, and nobody else has a reference.
    Ok(unsafe { &mut *at.as_ptr() })
}

/// A volume of this thread, with its initiator.
///
/// # Safety
/// As for [`context_of`].
pub(crate) unsafe fn context_of_volume<'a>(
    volume: *mut Volume,
) -> Result<(&'a mut InitiatorContext, client::VolumeHandle), Status> {
    let at = NonNull::new(volume).ok_or_else(|| usage_error("the volume is NULL"))?;
    // SAFETY: the handle is good, and what it points to never changes.
    let (of, handle) = unsafe { (at.as_ref().state, at.as_ref().handle) };
    // SAFETY: a volume does not outlive its initiator.
    Ok((unsafe { context_of(of) }?, handle))
}

/// A text of the caller's.
///
/// # Safety
/// `text` is NULL or ends by a zero byte, and does not change during the call.
pub(crate) unsafe fn str_from_c<'a>(text: *const c_char) -> Result<&'a str, Status> {
    if text.is_null() {
        return Err(usage_error("the URL is NULL"));
    }
    // SAFETY: as demanded.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| usage_error("the URL is no UTF-8"))
}

/// Writes as much of a struct as the caller knows of.
///
/// # Safety
/// `into` is NULL or has room for `size` bytes.
pub(crate) unsafe fn copy_struct_prefix<T: Copy>(into: *mut T, from: &T, size: usize) {
    if !into.is_null() {
        // SAFETY: both have that many bytes, and a fresh value of ours overlaps nothing of the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const *from).cast::<u8>(),
                into.cast(),
                size.min(size_of::<T>()),
            );
        };
    }
}
