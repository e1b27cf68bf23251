//! CRC32C (Castagnoli: reflected polynomial `82F63B78h`, initial value and final xor `FFFFFFFFh`),
//! as iSCSI (RFC 7143 §13.1) and NVMe/TCP use it. The digest word goes on the wire least
//! significant byte first.
//!
//! Four kernels compute the same function: `fold` multiplies 256 bytes per step without carries
//! (AVX-512), `mixed` multiplies 128 bytes per step (AVX2) beside the processor's CRC instruction,
//! `instruction` uses that alone on three strands at once, `portable` walks tables. The best one is
//! found once per process; a call costs one load more. Invariant: each kernel, with and without
//! copying, gives the remainder that the definition gives, and with copying it is the remainder of
//! the bytes that stand in the destination, whatever happens to the source meanwhile.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod input;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod instruction;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod mixed;
mod polynomial;
mod portable;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use input::Input;
pub use polynomial::combine;

/// Inputs shorter than this stay in the caller's code: no set-up pays for them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT_INPUT_MAX: usize = 128;

/// A running CRC32C, fed piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Crc32c(!0)
    }

    /// The state behind bytes whose digest is `value`: it goes on from there.
    pub const fn from_value(value: u32) -> Self {
        Crc32c(!value)
    }

    /// Takes the next bytes in.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let tier = CpuTier::of_process();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if bytes.len() < SHORT_INPUT_MAX && tier != CpuTier::Portable {
            // SAFETY: the tiers above the portable one are only given where SSE4.2 is.
            self.0 = unsafe { instruction::update_short(self.0, bytes) };
            return;
        }
        // SAFETY: the range is that of a slice; nothing is written.
        self.0 =
            unsafe { update_raw::<false>(tier, self.0, bytes.as_ptr(), std::ptr::null_mut(), bytes.len()) };
    }

    /// Copies all of `from` to `into` and takes it in, in one pass.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_and_update(&mut self, from: &[u8], into: &mut [u8]) {
        assert_eq!(from.len(), into.len(), "a copy needs as much room as it has bytes");
        // SAFETY: both are live slices of one length, and a unique borrow overlaps no other.
        unsafe { self.copy_raw_and_update(from.as_ptr(), into) };
    }

    /// Copies `into.len()` bytes at `from`, which others may be writing, and takes in what was
    /// copied: the digest is of the bytes that stand in `into`.
    ///
    /// # Safety
    /// The source must be live memory of that length and not overlap `into`.
    pub(crate) unsafe fn copy_raw_and_update(&mut self, from: *const u8, into: &mut [u8]) {
        // SAFETY: by the caller's promise for the source; the destination is a unique borrow.
        self.0 =
            unsafe { update_raw::<true>(CpuTier::of_process(), self.0, from, into.as_mut_ptr(), into.len()) };
    }

    /// The digest of all bytes taken so far.
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// The digest as it stands on the wire.
    pub const fn to_wire_bytes(self) -> [u8; 4] {
        self.value().to_le_bytes()
    }
}

/// The digest of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.value()
}

/// The name of the way this process computes digests: `avx512`, `avx2`, `crc-instruction` or `portable`.
pub fn implementation_name() -> &'static str {
    match CpuTier::of_process() {
        CpuTier::Portable => "portable",
        CpuTier::Instruction => "crc-instruction",
        CpuTier::Mixed => "avx2",
        CpuTier::Fold => "avx512",
    }
}

/// What the processor can do; each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum CpuTier {
    Portable = 1,
    Instruction = 2,
    Mixed = 3,
    Fold = 4,
}

/// The tier of this process once it was looked for, 0 before.
static DETECTED_TIER: AtomicU8 = AtomicU8::new(0);

impl CpuTier {
    #[inline]
    fn of_process() -> CpuTier {
        // Any thread that looks finds the same, so nothing else needs to be ordered with it.
        match DETECTED_TIER.load(Ordering::Relaxed) {
            1 => CpuTier::Portable,
            2 => CpuTier::Instruction,
            3 => CpuTier::Mixed,
            4 => CpuTier::Fold,
            _ => CpuTier::detect_and_cache(),
        }
    }

    #[cold]
    fn detect_and_cache() -> CpuTier {
        let tier = CpuTier::detect();
        DETECTED_TIER.store(tier as u8, Ordering::Relaxed);
        tier
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn detect() -> CpuTier {
        if !(is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")) {
            CpuTier::Portable
        } else if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
            CpuTier::Fold
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq") {
            CpuTier::Mixed
        } else {
            CpuTier::Instruction
        }
    }

    #[cfg(all(target_arch = "aarch64", not(miri)))]
    fn detect() -> CpuTier {
        let both =
            std::arch::is_aarch64_feature_detected!("crc") && std::arch::is_aarch64_feature_detected!("aes");
        if both { CpuTier::Instruction } else { CpuTier::Portable }
    }

    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fn detect() -> CpuTier {
        CpuTier::Portable
    }
}

/// The remainder behind `state` and `len` bytes at `from`, which are copied to `into` if `COPY`.
///
/// # Safety
/// `tier` must not be above what [`CpuTier::detect`] gives. `from` must be live for `len` bytes and,
/// unless `COPY`, unchanging; with `COPY`, `into` must be writable for as many, owned by the caller
/// and apart from the source.
unsafe fn update_raw<const COPY: bool>(
    tier: CpuTier,
    state: u32,
    from: *const u8,
    into: *mut u8,
    len: usize,
) -> u32 {
    // SAFETY: the kernels ask for what this function asks for, and for the processor's features,
    // which the tier stands for.
    unsafe {
        match tier {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            CpuTier::Fold if len >= fold::LEN_MIN => fold::update_raw::<COPY>(state, from, into, len),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            CpuTier::Mixed if len >= mixed::CHUNK_BYTES => {
                mixed::update(state, Input::<COPY>::new(from, into, len))
            }
            #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
            CpuTier::Fold | CpuTier::Mixed | CpuTier::Instruction => {
                instruction::update(state, Input::<COPY>::new(from, into, len))
            }
            _ => portable::update_raw::<COPY>(state, from, into, len),
        }
    }
}
