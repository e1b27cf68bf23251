//! Memory from the system, in whole mappings.

#[cfg(not(miri))]
use std::ptr::NonNull;

/// Fresh zeroed memory that the kernel fills page by page on first touch.
///
/// # Panics
/// If the address space has no room for it.
#[cfg(not(miri))]
pub(crate) fn map_anonymous(bytes: usize) -> NonNull<u8> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory
    // that anything else names.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(at != libc::MAP_FAILED, "no address space for {bytes} bytes");
    NonNull::new(at.cast()).expect("mmap gives no null page")
}

/// Gives a mapping back.
///
/// # Safety
/// It must be a whole mapping of [`map_anonymous`] that nothing names any more.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}

/// Lets the system have whole pages, which then read as zero; false if it does not want them.
///
/// # Safety
/// The range must be whole pages of a mapping of [`map_anonymous`] under no Rust reference.
#[cfg(not(miri))]
pub(crate) unsafe fn give_pages_back(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: by the caller's promise; on a private anonymous mapping this only zeroes.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

// The interpreter knows the allocator better than the system's mappings.
#[cfg(miri)]
mod interpreted {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("a sensible size")
    }

    pub(crate) fn map_anonymous(bytes: usize) -> NonNull<u8> {
        // SAFETY: no caller asks for nothing.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).expect("memory")
    }

    pub(crate) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
        // SAFETY: made by `map_anonymous` with this length, by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(bytes)) };
    }

    pub(crate) unsafe fn give_pages_back(_: *mut u8, _: usize) -> bool {
        false
    }
}
#[cfg(miri)]
pub(crate) use interpreted::{give_pages_back, map_anonymous, unmap};
