//! Calls of the reactor's shards, given to librbd: asynchronous, each ended by librbd's callback on one of its own
//! threads. A search for data is synchronous in librbd, so the image's worker thread makes it.
//!
//! librbd sends a write from the memory that it was given if `rbd_disable_zero_copy_writes` is off (see `open.rs`), and then calls back only when it holds
//! no reference to that memory any more. A read is copied by librbd into the memory of the call.
//!
//! What librbd may have answered without the cluster waits for its confirmation (`confirmation.rs`).
//!
//! Invariant: a [`Pending`] exists from the start of a call to its callback; it is made and freed once.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use buf::Errno;
use reactor::{CallEnd, LibraryCall, LibraryDisk};

use crate::confirmation::Confirmation;
use crate::image::{Image, Inner, Job};
use crate::result::outcome;
use crate::symbols::{Handle, THICK};

/// A call that librbd has.
struct Pending {
    image: Arc<Inner>,
    end: CallEnd,
    /// Where what it changes ends, in bytes; 0: it changes nothing.
    until: u64,
    /// What a write has written when librbd says that all is well: it counts only what is read.
    written: usize,
    answered_by: AnsweredBy,
}

/// Whether librbd may have answered a call by its object map, without the cluster.
enum AnsweredBy {
    Cluster,
    /// It has done nothing about objects that are not there.
    ObjectMap,
    /// What it has read into this list tells.
    WhatIsRead(*const libc::iovec, usize),
}

// SAFETY: librbd calls back when it is done with the memory of a call, and the call is ended in the callback or, if
// librbd has refused it, after that. librbd changes no memory that is written from.
unsafe impl LibraryDisk for Image {
    fn start(&self, call: LibraryCall, end: CallEnd) {
        if self.0.is_fenced() {
            return end.end(Err(Errno(libc::ESHUTDOWN)), None);
        }
        if !self.0.begin() {
            return end.end(Err(Errno(libc::ENODEV)), None);
        }
        if let LibraryCall::NextData { offset } = call {
            let search = Search { image: self.0.clone(), offset };
            // If the worker is gone the call ends as it is dropped.
            let _ = self.0.jobs.send(Job::Blocking(Box::new(move || search.carry_out(end))));
            return;
        }
        if self.0.read_only && !matches!(call, LibraryCall::Read { .. } | LibraryCall::Sync) {
            self.0.finish();
            return end.end(Err(Errno(libc::EROFS)), None);
        }
        give(self.0.clone(), call, end);
    }
}

/// Gives a call to librbd.
fn give(image: Arc<Inner>, call: LibraryCall, end: CallEnd) {
    let (functions, handle) = (image.functions.clone(), image.image);
    let written = match call {
        // SAFETY: the list is valid until the call is ended.
        LibraryCall::Write { iov, count, .. } => unsafe { length(iov, count) },
        _ => 0,
    };
    let until = match call {
        LibraryCall::Write { offset, .. } => offset.saturating_add(written as u64),
        LibraryCall::Punch { offset, len } | LibraryCall::Zero { offset, len } => offset.saturating_add(len),
        LibraryCall::Read { .. } | LibraryCall::Sync | LibraryCall::NextData { .. } => 0,
    };
    let answered_by = match call {
        LibraryCall::Read { iov, count, .. } => AnsweredBy::WhatIsRead(iov, count),
        LibraryCall::Punch { .. } | LibraryCall::NextData { .. } => AnsweredBy::ObjectMap,
        LibraryCall::Write { .. } | LibraryCall::Zero { .. } | LibraryCall::Sync => AnsweredBy::Cluster,
    };
    let pending = Box::into_raw(Box::new(Pending { image, end, until, written, answered_by }));
    let mut completion = ptr::null_mut();
    // SAFETY: the callback fits its type, and its argument stays until it was called.
    let made =
        unsafe { (functions.rbd_aio_create_completion)(pending.cast(), completed, &raw mut completion) };
    if made < 0 {
        // SAFETY: nobody else has it: no call was made.
        return unsafe { Box::from_raw(pending) }.end(made as isize);
    }
    let refused = match call {
        LibraryCall::Read { iov, count, offset } => {
            // SAFETY: the image is open, as the call is counted; list and memory are valid until the callback.
            unsafe { (functions.rbd_aio_readv)(handle, iov, count as c_int, offset, completion) }
        }
        LibraryCall::Write { iov, count, offset } => {
            // SAFETY: as for the read.
            unsafe { (functions.rbd_aio_writev)(handle, iov, count as c_int, offset, completion) }
        }
        // SAFETY: the image is open (so for the rest).
        LibraryCall::Sync => unsafe { (functions.rbd_aio_flush)(handle, completion) },
        // Not `rbd_aio_discard`: that leaves out what is less than `rbd_discard_granularity_bytes`, and such blocks
        // would not read as zeroes.
        LibraryCall::Punch { offset, len } => {
            // SAFETY: as above.
            unsafe { (functions.rbd_aio_write_zeroes)(handle, offset, len as usize, completion, 0, 0) }
        }
        LibraryCall::Zero { offset, len } => {
            // SAFETY: as above.
            unsafe { (functions.rbd_aio_write_zeroes)(handle, offset, len as usize, completion, THICK, 0) }
        }
        LibraryCall::NextData { .. } => -libc::EOPNOTSUPP,
    };
    if refused < 0 {
        // SAFETY: a call that was refused is not called back.
        unsafe {
            (functions.rbd_aio_release)(completion);
            Box::from_raw(pending).end(refused as isize);
        }
    }
}

impl Pending {
    /// Ends the call with a result of librbd.
    fn end(self, result: isize) {
        let Pending { image, end, until, written, answered_by } = self;
        let mut came = outcome(result);
        // librbd leaves out what is behind the end of an image that was made smaller, and says that all is well. The
        // size is the last that the worker has read: librbd may wait for the cluster to tell it, which a callback must
        // not.
        if came.is_ok() && until > image.bytes() {
            came = Err(Errno(libc::ENXIO));
        }
        let came = came.map(|moved| if written > 0 { written } else { moved });
        if let Some(confirmation) = &image.confirmation
            && came.is_ok()
            && answered_by.may_be_object_map(confirmation)
        {
            return confirmation.clone().wait(move |confirmed| finish(&image, end, (came, None), confirmed));
        }
        finish(&image, end, (came, None), Ok(()));
    }
}

impl AnsweredBy {
    fn may_be_object_map(&self, confirmation: &Confirmation) -> bool {
        match *self {
            AnsweredBy::Cluster => false,
            AnsweredBy::ObjectMap => true,
            // SAFETY: the list and its memory are valid until the call is ended, and librbd has done with them.
            AnsweredBy::WhatIsRead(iov, count) => confirmation.is_needed(unsafe { pieces(iov, count) }),
        }
    }
}

/// How a call has ended, and the data that a search has found.
type Came = (Result<usize, Errno>, Option<(u64, u64)>);

/// Ends a call that counts.
fn finish(image: &Inner, end: CallEnd, came: Came, confirmed: Result<(), Errno>) {
    let (came, found) = judged(image, came, confirmed);
    image.finish();
    end.end(came, found);
}

/// How a call has ended after what the cluster has said behind it.
fn judged(image: &Inner, (came, found): Came, confirmed: Result<(), Errno>) -> Came {
    let came = match confirmed {
        Ok(()) => came,
        Err(Errno(errno)) => outcome(-(errno as isize)),
    };
    if came == Err(Errno(libc::ESHUTDOWN)) {
        image.fence();
    }
    (came, found.filter(|_| came.is_ok()))
}

/// The pieces of a list.
///
/// # Safety
/// The list and its memory are valid, and nobody changes them, as long as the pieces are used.
unsafe fn pieces<'a>(iov: *const libc::iovec, count: usize) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: as the caller promises.
    let list = unsafe { std::slice::from_raw_parts(iov, count) };
    list.iter().map(|piece| {
        // SAFETY: as the caller promises; the memory of a read was filled by librbd.
        unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
    })
}

/// The bytes of a list.
///
/// # Safety
/// The list is valid.
unsafe fn length(iov: *const libc::iovec, count: usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(iov, count) }.iter().map(|piece| piece.iov_len).sum()
}

/// librbd is done with a call.
unsafe extern "C" fn completed(completion: Handle, argument: *mut c_void) {
    // SAFETY: the argument is what `give` has made, and librbd calls back once.
    let pending = unsafe { Box::from_raw(argument.cast::<Pending>()) };
    let functions = pending.image.functions.clone();
    // SAFETY: the completion is this call's, and is released here only.
    let result = unsafe {
        let result = (functions.rbd_aio_get_return_value)(completion);
        (functions.rbd_aio_release)(completion);
        result
    };
    pending.end(result);
}

/// A search for the first data at or behind an offset. It counts as a call.
struct Search {
    image: Arc<Inner>,
    offset: u64,
}

/// What a search has found: the start and end of the first data.
#[derive(Default)]
struct Found {
    data: Option<(u64, u64)>,
    /// What follows does not join it.
    is_whole: bool,
}

impl Search {
    fn carry_out(self, end: CallEnd) {
        let came = self.search();
        match self.image.confirmation.clone().filter(|_| came.0.is_ok()) {
            // The object map has told.
            Some(confirmation) => confirmation.wait(move |confirmed| self.end(end, came, confirmed)),
            None => self.end(end, came, Ok(())),
        }
    }

    fn end(self, end: CallEnd, came: Came, confirmed: Result<(), Errno>) {
        let (came, found) = judged(&self.image, came, confirmed);
        drop(self);
        end.end(came, found);
    }

    fn search(&self) -> (Result<usize, Errno>, Option<(u64, u64)>) {
        if !self.image.has_fast_diff {
            // librbd would ask for each object of the image.
            return (Err(Errno(libc::EOPNOTSUPP)), None);
        }
        let mut bytes = 0;
        let (functions, handle) = (&self.image.functions, self.image.image);
        // SAFETY: the image is open, as the search is counted; the number is ours.
        let measured = unsafe { (functions.rbd_get_size)(handle, &raw mut bytes) };
        if measured < 0 {
            return (outcome(measured as isize), None);
        }
        let len = bytes.saturating_sub(self.offset);
        if len == 0 {
            return (Ok(0), None);
        }
        let mut found = Found::default();
        let argument = (&raw mut found).cast();
        // SAFETY: the callback fits its type, and its argument stays until this returns. No snapshot is named: what
        // differs from nothing is data, that of a parent image among it.
        let result = unsafe {
            (functions.rbd_diff_iterate2)(handle, ptr::null(), self.offset, len, 1, 1, differs, argument)
        };
        if result < 0 && !found.is_whole {
            return (outcome(result as isize), None);
        }
        (Ok(0), found.data)
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.image.finish();
    }
}

unsafe extern "C" fn differs(offset: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the argument is the find of the search that waits for this.
    let found = unsafe { &mut *argument.cast::<Found>() };
    let end = offset.saturating_add(len as u64);
    match &mut found.data {
        _ if exists == 0 => {}
        None => found.data = Some((offset, end)),
        Some((_, until)) if *until == offset => *until = end,
        Some(_) => {
            found.is_whole = true;
            return -1;
        }
    }
    0
}
