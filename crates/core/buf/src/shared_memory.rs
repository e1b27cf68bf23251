//! Copies from and to memory that other cores may touch at the same time.
//!
//! One core writes a RAM volume's bytes while another reads them: a disk promises nothing better for
//! overlapping commands. In Rust two plain accesses that race are undefined behaviour, even if any mixture of
//! bytes would do. Copying with `AtomicU8`s is right but slow. So the copy is one block of assembly. It does
//! only what a loop of relaxed atomic loads and stores of bytes could do, which is the rule for such a block,
//! and it is as fast as `memcpy` from 4 KiB on (measured). On processors without such a block, volatile
//! accesses are used: the compiler neither repeats nor omits any.

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges must be live, the destination writable and under no Rust reference but the caller's;
/// if they overlap, the destination must begin before the source.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn copy_shared(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: the string instruction reads and writes just the two ranges, upwards (the direction
    // flag is clear whenever Rust code runs).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") into => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// As for the other architecture's.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_shared(from: *const u8, into: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: within the two ranges; a byte is always aligned.
        unsafe { into.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// Copies `len` bytes past the caches, if they begin at a line's start and are whole lines: the processor
/// neither fetches what is overwritten nor keeps what was written, and goes on while it drains. So these
/// bytes stand behind later stores for other cores, until this one calls [`store_fence`].
///
/// # Safety
/// As for [`copy_shared`], and the ranges do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    if len == 0 || !len.is_multiple_of(CACHE_LINE) || !into.addr().is_multiple_of(CACHE_LINE) {
        // SAFETY: as the caller promises.
        return unsafe { copy_shared(from, into, len) };
    }
    // SAFETY: the loop reads and writes just the two ranges, of which the length is whole lines, and the
    // destination is aligned as the stores want it. All that the processor is asked for is in the baseline.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{into}], {a}",
            "movntdq [{into} + 16], {b}",
            "movntdq [{into} + 32], {c}",
            "movntdq [{into} + 48], {d}",
            "add {from}, 64",
            "add {into}, 64",
            "sub {len}, 64",
            "jnz 2b",
            from = inout(reg) from => _, into = inout(reg) into => _, len = inout(reg) len => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// As for the other architecture's.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { copy_shared(from, into, len) };
}

/// What [`copy_non_temporal`] copied stands before what this core stores from now on.
#[inline]
pub(crate) fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a fence touches no memory, and every processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Bytes that the processor fetches at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const CACHE_LINE: usize = 64;

/// Tells the processor that `len` bytes will soon be read, so that memory's latency passes while
/// other work is done. It touches nothing that a program could see, whatever the address.
#[inline]
pub(crate) fn prefetch(from: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for at in (0..len).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it never faults and reads no value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (from, len);
}

/// Copies `len` bytes between ranges that may overlap.
///
/// # Safety
/// Both ranges must be live, the destination writable and under no Rust reference but the caller's.
pub(crate) unsafe fn copy_overlapping(from: *const u8, into: *mut u8, len: usize) {
    let distance = (into as usize).wrapping_sub(from as usize);
    let mut left = len;
    // Upwards by less than the length: in stretches that do not overlap, from the end.
    if distance > 0 {
        while left > distance {
            left -= distance;
            // SAFETY: the stretch is within both ranges, and as long as they are apart.
            unsafe { copy_shared(from.add(left), into.add(left), distance) };
        }
    }
    // SAFETY: what is left is apart, or begins before the source.
    unsafe { copy_shared(from, into, left) };
}

/// Sets `len` bytes to zero.
///
/// # Safety
/// The range must be live, writable and under no Rust reference but the caller's.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn zero_shared(into: *mut u8, len: usize) {
    // SAFETY: the string instruction writes just the range, upwards.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _, inout("rdi") into => _, in("al") 0u8,
            options(nostack, preserves_flags)
        );
    }
}

/// Sets `len` bytes to zero.
///
/// # Safety
/// As for the other architecture's.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn zero_shared(into: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: within the range; a byte is always aligned.
        unsafe { into.add(at).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]

        #[test]
        fn overlapping_moves_are_as_slices_do_them(from in 0usize..200, into in 0usize..200, len in 0usize..100) {
            let mut ours: Vec<u8> = (0..=255).cycle().take(300).collect();
            let mut theirs = ours.clone();
            theirs.copy_within(from..from + len, into);
            let base = ours.as_mut_ptr();
            // SAFETY: both ranges are within the 300 bytes.
            unsafe { super::copy_overlapping(base.add(from), base.add(into), len) };
            prop_assert_eq!(ours, theirs);
        }
    }
}
