//! Carry-less multiplication of 512 bits at once (AVX-512 with VPCLMULQDQ).
//!
//! Four registers (one, below 256 bytes) represent all bytes before them. To advance by a distance, each
//! 64-bit half of each 128-bit lane is multiplied with x to that distance modulo the polynomial; the next
//! bytes are added. At the end all lanes are moved to the position of the last one.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
    _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_set_epi64,
    _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use super::instruction;

/// Below this the three cycles per eight bytes of the CRC instruction are fewer.
pub(super) const LEN_MIN: usize = 128;

/// What a lane is multiplied with to move on by `bits`: its first eight bytes (of higher degree),
/// then its last eight. A reflected product is one short, and the constant stands for 32 more.
const fn onward(bits: usize) -> [i64; 2] {
    use super::polynomial::x_to;
    [x_to(bits + 31) as i64, x_to(bits - 33) as i64]
}

const BY_2048: [i64; 2] = onward(2048);
const BY_1536: [i64; 2] = onward(1536);
const BY_1024: [i64; 2] = onward(1024);
const BY_512: [i64; 2] = onward(512);
const BY_384: [i64; 2] = onward(384);
const BY_256: [i64; 2] = onward(256);
const BY_128: [i64; 2] = onward(128);

/// See [`super::run`].
///
/// # Safety
/// As there; `len` must be at least [`LEN_MIN`], and the processor must have the named features.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
pub(super) unsafe fn run<const COPY: bool>(state: u32, from: *const u8, into: *mut u8, len: usize) -> u32 {
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    // SAFETY: every load and store ends at or before `len`.
    unsafe {
        let mut d = _mm512_xor_si512(step::<COPY>(from, into, 0), start);
        let mut at = 64;
        if len >= 256 {
            (d, at) = four_at_once::<COPY>(d, from, into, len);
        }
        let by = lanes(BY_512, BY_512, BY_512, BY_512);
        while len - at >= 64 {
            d = moved(d, by, step::<COPY>(from, into, at));
            at += 64;
        }
        let state = remainder(d);
        if at == len {
            return state;
        }
        instruction::run::<COPY>(state, from.add(at), into.wrapping_add(at), len - at)
    }
}

/// All whole 256 bytes, the first 64 in `a` already; gives 64 that stand for them, and
/// how far it came.
///
/// # Safety
/// As for [`run`]; `len` must be at least 256.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
unsafe fn four_at_once<const COPY: bool>(
    mut a: __m512i,
    from: *const u8,
    into: *mut u8,
    len: usize,
) -> (__m512i, usize) {
    let mut at = 256;
    // SAFETY: every load and store ends at or before `len`.
    unsafe {
        let load = |at: usize| step::<COPY>(from, into, at);
        let (mut b, mut c, mut d) = (load(64), load(128), load(192));
        let by = lanes(BY_2048, BY_2048, BY_2048, BY_2048);
        while len - at >= 256 {
            a = moved(a, by, load(at));
            b = moved(b, by, load(at + 64));
            c = moved(c, by, load(at + 128));
            d = moved(d, by, load(at + 192));
            at += 256;
        }
        d = moved(a, lanes(BY_1536, BY_1536, BY_1536, BY_1536), d);
        d = moved(b, lanes(BY_1024, BY_1024, BY_1024, BY_1024), d);
        (moved(c, lanes(BY_512, BY_512, BY_512, BY_512), d), at)
    }
}

/// 64 bytes of the source at `at`; if `COPY`, they are stored in the destination too.
///
/// # Safety
/// They must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn step<const COPY: bool>(from: *const u8, into: *mut u8, at: usize) -> __m512i {
    // SAFETY: by the caller's promise. A source that others write is read by an instruction that
    // stands here by name: the compiler can neither repeat the load nor reason about a race, so
    // what is stored is what is digested.
    unsafe {
        if !COPY {
            return _mm512_loadu_si512(from.add(at).cast());
        }
        let bytes: __m512i;
        asm!(
            "vmovdqu64 {0}, [{1}]",
            out(zmm_reg) bytes, in(reg) from.add(at),
            options(nostack, preserves_flags, readonly)
        );
        _mm512_storeu_si512(into.add(at).cast(), bytes);
        bytes
    }
}

/// `lanes`, moved on by the distances that `by` stands for, added to `onto`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn moved(lanes: __m512i, by: __m512i, onto: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(lanes, by);
    let last = _mm512_clmulepi64_epi128::<0x11>(lanes, by);
    _mm512_ternarylogic_epi64::<0x96>(first, last, onto)
}

/// What is left of 64 bytes modulo the polynomial.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn remainder(d: __m512i) -> u32 {
    let zero = _mm512_xor_si512(d, d);
    let gathered = moved(d, lanes(BY_384, BY_256, BY_128, [0, 0]), zero);
    let sum = _mm_xor_si128(
        _mm_xor_si128(_mm512_extracti32x4_epi32::<0>(gathered), _mm512_extracti32x4_epi32::<1>(gathered)),
        _mm_xor_si128(_mm512_extracti32x4_epi32::<2>(gathered), _mm512_extracti32x4_epi32::<3>(d)),
    );
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum) as u64);
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(sum) as u64) as u32
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(a: [i64; 2], b: [i64; 2], c: [i64; 2], d: [i64; 2]) -> __m512i {
    _mm512_set_epi64(d[1], d[0], c[1], c[0], b[1], b[0], a[1], a[0])
}
