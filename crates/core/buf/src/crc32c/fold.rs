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

use super::input::Input;
use super::instruction;

/// Below this the three cycles per eight bytes of the CRC instruction are fewer.
pub(super) const LEN_MIN: usize = 128;

/// What a lane is multiplied with to move on by `bits`: its first eight bytes (of higher degree),
/// then its last eight. A reflected product is one short, and the constant stands for 32 more.
pub(super) const fn fold_constants(bits: usize) -> [i64; 2] {
    use super::polynomial::x_pow;
    [x_pow(bits + 31) as i64, x_pow(bits - 33) as i64]
}

const FOLD_BY_2048: [i64; 2] = fold_constants(2048);
const FOLD_BY_1536: [i64; 2] = fold_constants(1536);
const FOLD_BY_1024: [i64; 2] = fold_constants(1024);
const FOLD_BY_512: [i64; 2] = fold_constants(512);
const FOLD_BY_384: [i64; 2] = fold_constants(384);
const FOLD_BY_256: [i64; 2] = fold_constants(256);
const FOLD_BY_128: [i64; 2] = fold_constants(128);

/// See [`super::update_raw`].
///
/// # Safety
/// As there; `len` must be at least [`LEN_MIN`], and the processor must have the named features.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
pub(super) unsafe fn update_raw<const COPY: bool>(
    state: u32,
    from: *const u8,
    into: *mut u8,
    len: usize,
) -> u32 {
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    // SAFETY: every load and store ends at or before `len`.
    unsafe {
        let mut d = _mm512_xor_si512(load_and_copy::<COPY>(from, into, 0), start);
        let mut at = 64;
        if len >= 256 {
            (d, at) = fold_four_lanes::<COPY>(d, from, into, len);
        }
        let by = lanes_from_pairs(FOLD_BY_512, FOLD_BY_512, FOLD_BY_512, FOLD_BY_512);
        while len - at >= 64 {
            d = fold_lanes(d, by, load_and_copy::<COPY>(from, into, at));
            at += 64;
        }
        let state = reduce_to_crc(d);
        if at == len {
            return state;
        }
        instruction::update(state, Input::<COPY>::new(from.add(at), into.wrapping_add(at), len - at))
    }
}

/// All whole 256 bytes, the first 64 in `a` already; gives 64 that stand for them, and
/// how far it came.
///
/// # Safety
/// As for [`update_raw`]; `len` must be at least 256.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
unsafe fn fold_four_lanes<const COPY: bool>(
    mut a: __m512i,
    from: *const u8,
    into: *mut u8,
    len: usize,
) -> (__m512i, usize) {
    let mut at = 256;
    // SAFETY: every load and store ends at or before `len`.
    unsafe {
        let load = |at: usize| load_and_copy::<COPY>(from, into, at);
        let (mut b, mut c, mut d) = (load(64), load(128), load(192));
        let by = lanes_from_pairs(FOLD_BY_2048, FOLD_BY_2048, FOLD_BY_2048, FOLD_BY_2048);
        while len - at >= 256 {
            a = fold_lanes(a, by, load(at));
            b = fold_lanes(b, by, load(at + 64));
            c = fold_lanes(c, by, load(at + 128));
            d = fold_lanes(d, by, load(at + 192));
            at += 256;
        }
        d = fold_lanes(a, lanes_from_pairs(FOLD_BY_1536, FOLD_BY_1536, FOLD_BY_1536, FOLD_BY_1536), d);
        d = fold_lanes(b, lanes_from_pairs(FOLD_BY_1024, FOLD_BY_1024, FOLD_BY_1024, FOLD_BY_1024), d);
        (fold_lanes(c, lanes_from_pairs(FOLD_BY_512, FOLD_BY_512, FOLD_BY_512, FOLD_BY_512), d), at)
    }
}

/// 64 bytes of the source at `at`; if `COPY`, they are stored in the destination too.
///
/// # Safety
/// They must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_and_copy<const COPY: bool>(from: *const u8, into: *mut u8, at: usize) -> __m512i {
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
fn fold_lanes(lanes: __m512i, by: __m512i, onto: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(lanes, by);
    let last = _mm512_clmulepi64_epi128::<0x11>(lanes, by);
    _mm512_ternarylogic_epi64::<0x96>(first, last, onto)
}

/// What is left of 64 bytes modulo the polynomial.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn reduce_to_crc(d: __m512i) -> u32 {
    let zero = _mm512_xor_si512(d, d);
    let gathered = fold_lanes(d, lanes_from_pairs(FOLD_BY_384, FOLD_BY_256, FOLD_BY_128, [0, 0]), zero);
    let sum = _mm_xor_si128(
        _mm_xor_si128(_mm512_extracti32x4_epi32::<0>(gathered), _mm512_extracti32x4_epi32::<1>(gathered)),
        _mm_xor_si128(_mm512_extracti32x4_epi32::<2>(gathered), _mm512_extracti32x4_epi32::<3>(d)),
    );
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum) as u64);
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(sum) as u64) as u32
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_from_pairs(a: [i64; 2], b: [i64; 2], c: [i64; 2], d: [i64; 2]) -> __m512i {
    _mm512_set_epi64(d[1], d[0], c[1], c[0], b[1], b[0], a[1], a[0])
}
