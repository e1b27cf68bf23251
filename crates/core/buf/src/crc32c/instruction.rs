//! The processor's CRC32C instruction, eight bytes at a time.
//!
//! It gives a result every cycle but takes three cycles for each, so long inputs are cut into three
//! strands that run side by side. A strand's remainder moves on to where the next one ends by one
//! carry-less multiplication with a constant.

use super::input::Input;
use super::polynomial::x_pow;

/// Bytes in a strand. Three long ones make up 4 KiB but for 16 bytes, three short ones 512 but for 8.
const LONG_STRAND_BYTES: usize = 1360;
const SHORT_STRAND_BYTES: usize = 168;

#[cfg(target_arch = "x86_64")]
mod isa {
    use std::arch::asm;
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    };

    #[inline]
    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc_word(state: u32, word: u64) -> u32 {
        _mm_crc32_u64(u64::from(state), word) as u32
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc_byte(state: u32, byte: u8) -> u32 {
        _mm_crc32_u8(state, byte)
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    pub(super) fn carryless_product(a: u32, b: u32) -> u64 {
        let (a, b) = (_mm_cvtsi64_si128(i64::from(a)), _mm_cvtsi64_si128(i64::from(b)));
        _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(a, b)) as u64
    }

    /// Eight bytes of memory that others may write.
    #[inline(always)]
    pub(super) unsafe fn load_shared_word(from: *const u8) -> u64 {
        let word: u64;
        // SAFETY: eight bytes are there; the load stands here by name, so it happens once.
        unsafe {
            asm!("mov {0}, [{1}]", out(reg) word, in(reg) from, options(nostack, preserves_flags, readonly))
        };
        word
    }
}

#[cfg(target_arch = "aarch64")]
mod isa {
    use std::arch::aarch64::{__crc32cb, __crc32cd, vmull_p64};
    use std::arch::asm;

    #[inline]
    #[target_feature(enable = "crc")]
    pub(super) fn crc_word(state: u32, word: u64) -> u32 {
        __crc32cd(state, word)
    }

    #[inline]
    #[target_feature(enable = "crc")]
    pub(super) fn crc_byte(state: u32, byte: u8) -> u32 {
        __crc32cb(state, byte)
    }

    #[inline]
    #[target_feature(enable = "aes")]
    pub(super) fn carryless_product(a: u32, b: u32) -> u64 {
        vmull_p64(u64::from(a), u64::from(b)) as u64
    }

    /// Eight bytes of memory that others may write.
    #[inline(always)]
    pub(super) unsafe fn load_shared_word(from: *const u8) -> u64 {
        let word: u64;
        // SAFETY: eight bytes are there; the load stands here by name, so it happens once.
        unsafe {
            asm!("ldr {0}, [{1}]", out(reg) word, in(reg) from, options(nostack, preserves_flags, readonly))
        };
        u64::from_le(word)
    }
}

/// Less than 128 bytes or so, in the caller's own code. The instruction stands here by name, since
/// a function of a target feature is never inlined into one without.
///
/// # Safety
/// The processor must have SSE4.2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn update_short(state: u32, bytes: &[u8]) -> u32 {
    use std::arch::asm;

    let mut wide = u64::from(state);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        // SAFETY: the instruction touches its two registers only.
        unsafe {
            asm!("crc32 {0}, {1}", inout(reg) wide, in(reg) word, options(pure, nomem, nostack, preserves_flags))
        };
    }
    let mut tail = rest;
    if let Some((four, behind)) = tail.split_first_chunk::<4>() {
        let four = u32::from_le_bytes(*four);
        // SAFETY: as above.
        unsafe {
            asm!("crc32 {0:e}, {1:e}", inout(reg) wide, in(reg) four, options(pure, nomem, nostack, preserves_flags))
        };
        tail = behind;
    }
    for &byte in tail {
        // SAFETY: as above.
        unsafe {
            asm!("crc32 {0:e}, {1}", inout(reg) wide, in(reg_byte) byte, options(pure, nomem, nostack, preserves_flags))
        };
    }
    wide as u32
}

/// See [`super::update_raw`].
///
/// # Safety
/// The processor must have the CRC32C and carry-less multiplication instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
pub(super) unsafe fn update<const COPY: bool>(mut state: u32, mut input: Input<COPY>) -> u32 {
    // SAFETY: every chunk is there, by the invariant of the input.
    unsafe {
        while let Some(chunk) = input.next_chunk(3 * LONG_STRAND_BYTES) {
            state = update_three_strands::<LONG_STRAND_BYTES>(state, chunk);
        }
        while let Some(chunk) = input.next_chunk(3 * SHORT_STRAND_BYTES) {
            state = update_three_strands::<SHORT_STRAND_BYTES>(state, chunk);
        }
        update_one_strand(state, &input)
    }
}

/// Three strands of `LEN` bytes, a multiple of eight.
///
/// # Safety
/// They must be there, and unchanging.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn update_three_strands<const LEN: usize>(state: u32, from: *const u8) -> u32 {
    // The instruction multiplies its operand with x^32, and the reflected product is one short.
    let onward = const { x_pow(8 * LEN - 33) };
    let (mut a, mut b, mut c) = (state, 0, 0);
    // SAFETY: eight bytes are at each place, by the caller's promise.
    let load = |at: usize| u64::from_le(unsafe { from.add(at).cast::<u64>().read_unaligned() });
    let mut at = 0;
    while at < LEN {
        a = isa::crc_word(a, load(at));
        b = isa::crc_word(b, load(LEN + at));
        c = isa::crc_word(c, load(2 * LEN + at));
        at += 8;
    }
    b ^= isa::crc_word(0, isa::carryless_product(a, onward));
    c ^ isa::crc_word(0, isa::carryless_product(b, onward))
}

/// Less than three short strands.
///
/// # Safety
/// The processor must have the CRC32C instruction.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc"))]
unsafe fn update_one_strand<const COPY: bool>(mut state: u32, input: &Input<COPY>) -> u32 {
    let (from, into, len) = input.rest();
    let mut at = 0;
    // SAFETY: every access is within `len` bytes; what is stored is what was loaded and digested.
    unsafe {
        while len - at >= 8 {
            let word = isa::load_shared_word(from.add(at));
            if COPY {
                into.add(at).cast::<u64>().write_unaligned(word.to_le());
            }
            state = isa::crc_word(state, word);
            at += 8;
        }
        while at < len {
            let byte = from.add(at).read_volatile();
            if COPY {
                into.add(at).write(byte);
            }
            state = isa::crc_byte(state, byte);
            at += 1;
        }
    }
    state
}
