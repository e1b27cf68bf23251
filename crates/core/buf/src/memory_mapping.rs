//! Memory from the system, in whole mappings.

#[cfg(not(miri))]
use std::ptr::NonNull;

/// Fresh zeroed memory that the kernel fills page by page on first touch; `None` if the address space
/// has no room for it, or `bytes` is 0.
#[cfg(not(miri))]
pub(crate) fn try_map_anonymous(bytes: usize) -> Option<NonNull<u8>> {
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
    if at == libc::MAP_FAILED {
        return None;
    }
    let at = NonNull::new(at.cast())?;
    prefer_large_pages(at, bytes);
    Some(at)
}

/// Asks for large pages in a mapping. Random places in small pages cost a walk through the page tables each: a tenth of
/// all that a 4 KiB read takes. Where the system has no large pages to give, nothing is lost.
#[cfg(not(miri))]
pub(crate) fn prefer_large_pages(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the advice changes no contents, whatever is mapped there.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

/// Whether nobody can shorten a memfd any more.
#[cfg(not(miri))]
pub(crate) fn is_sealed_against_shrinking(file: std::os::fd::BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: no pointers are passed. What has no seals gives an error.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// The first `bytes` of a file, shared with who else has it mapped.
#[cfg(not(miri))]
pub(crate) fn try_map_file(file: std::os::fd::BorrowedFd<'_>, bytes: usize) -> std::io::Result<NonNull<u8>> {
    use std::os::fd::AsRawFd;
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that anything else names.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    match NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED) {
        Some(at) => Ok(at),
        None => Err(std::io::Error::last_os_error()),
    }
}

/// Gives a mapping back.
///
/// # Safety
/// It must be a whole mapping of [`try_map_anonymous`] or [`try_map_file`] that nothing names any more.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}

/// Lets the system have whole pages, which then read as zero; false if it does not want them.
///
/// # Safety
/// The range must be whole pages of a mapping of [`try_map_anonymous`] under no Rust reference.
#[cfg(not(miri))]
pub(crate) unsafe fn release_pages(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: by the caller's promise; on a private anonymous mapping this only zeroes.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// The same of a mapping of a memfd, whose pages then read as zero for all who have mapped it.
///
/// # Safety
/// The range must be whole pages of a mapping of [`try_map_file`] under no Rust reference.
#[cfg(not(miri))]
pub(crate) unsafe fn release_file_pages(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: by the caller's promise; the pages stay mapped, as holes of the file.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_REMOVE) == 0 }
}

// The interpreter knows the allocator better than the system's mappings.
#[cfg(miri)]
mod interpreted {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("a sensible size")
    }

    pub(crate) fn try_map_anonymous(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout is not empty.
        (bytes > 0).then(|| NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })).flatten()
    }

    pub(crate) fn try_map_file(_: std::os::fd::BorrowedFd<'_>, _: usize) -> std::io::Result<NonNull<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(crate) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
        // SAFETY: made by `try_map_anonymous` with this length, by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(bytes)) };
    }

    pub(crate) unsafe fn release_pages(_: *mut u8, _: usize) -> bool {
        false
    }

    pub(crate) unsafe fn release_file_pages(_: *mut u8, _: usize) -> bool {
        false
    }

    pub(crate) fn prefer_large_pages(_: NonNull<u8>, _: usize) {}

    pub(crate) fn is_sealed_against_shrinking(_: std::os::fd::BorrowedFd<'_>) -> bool {
        false
    }
}
#[cfg(miri)]
pub(crate) use interpreted::{
    is_sealed_against_shrinking, prefer_large_pages, release_file_pages, release_pages, try_map_anonymous,
    try_map_file, unmap,
};

/// As [`try_map_anonymous`].
///
/// # Panics
/// If the address space has no room for it.
#[expect(clippy::panic, reason = "documented: who can go on without the memory asks `try_map_anonymous`")]
pub(crate) fn map_anonymous(bytes: usize) -> std::ptr::NonNull<u8> {
    try_map_anonymous(bytes).unwrap_or_else(|| panic!("no address space for {bytes} bytes"))
}
