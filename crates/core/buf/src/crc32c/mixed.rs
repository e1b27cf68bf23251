//! Carry-less multiplication of 256 bits at once (AVX2 with VPCLMULQDQ) beside the CRC instruction.
//!
//! They are different units of the processor, and each takes eight bytes per cycle: half of a chunk is folded as in
//! `fold`, while three strands of the other half go through the instruction as in `instruction`.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_m128i,
    _mm256_setzero_si256, _mm256_xor_si256, _mm256_zextsi128_si256,
};

use super::fold::fold_constants;
use super::input::Input;
use super::instruction;
use super::polynomial::x_pow;

/// Steps of a chunk: 128 bytes are folded and 48 bytes of each strand digested in each.
const STEPS: usize = 15;
const FOLDED_BYTES: usize = STEPS * 128;
const STRAND_BYTES: usize = STEPS * 48;
/// Bytes of a chunk; what is shorter is left to the instruction alone. 4 KiB are one, and 16 bytes.
pub(super) const CHUNK_BYTES: usize = FOLDED_BYTES + 3 * STRAND_BYTES;

const FOLD_BY_1024: [i64; 2] = fold_constants(1024);
const FOLD_BY_256: [i64; 2] = fold_constants(256);
const FOLD_BY_128: [i64; 2] = fold_constants(128);

/// See [`super::update_raw`].
///
/// # Safety
/// The processor must have the named features.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
pub(super) unsafe fn update<const COPY: bool>(mut state: u32, mut input: Input<COPY>) -> u32 {
    // SAFETY: every chunk is there, by the invariant of the input.
    unsafe {
        while let Some(chunk) = input.next_chunk(CHUNK_BYTES) {
            state = update_chunk(state, chunk);
        }
        instruction::update(state, input)
    }
}

/// One chunk.
///
/// # Safety
/// It must be there, and unchanging.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
unsafe fn update_chunk(state: u32, from: *const u8) -> u32 {
    // SAFETY: 32 bytes are at each place, by the caller's promise.
    let lanes = |at: usize| unsafe { _mm256_loadu_si256(from.add(at).cast()) };
    // SAFETY: eight bytes are at each place, by the caller's promise.
    let word = |at: usize| unsafe { from.add(FOLDED_BYTES + at).cast::<u64>().read_unaligned() };
    let (mut a, mut b, mut c) = (0, 0, 0);
    let zero = _mm256_setzero_si256();
    let (mut p, mut q, mut r, mut s) = (zero, zero, zero, zero);
    // What stands before the chunk is added to its first bytes.
    let mut start = _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32));
    let by = both_lanes(FOLD_BY_1024);
    for step in 0..STEPS {
        p = fold_lanes(p, by, _mm256_xor_si256(lanes(128 * step), start));
        q = fold_lanes(q, by, lanes(128 * step + 32));
        r = fold_lanes(r, by, lanes(128 * step + 64));
        s = fold_lanes(s, by, lanes(128 * step + 96));
        start = zero;
        for at in (48 * step..48 * (step + 1)).step_by(8) {
            a = _mm_crc32_u64(a, word(at));
            b = _mm_crc32_u64(b, word(STRAND_BYTES + at));
            c = _mm_crc32_u64(c, word(2 * STRAND_BYTES + at));
        }
    }
    let by = both_lanes(FOLD_BY_256);
    q = fold_lanes(p, by, q);
    r = fold_lanes(q, by, r);
    let folded = reduce_to_crc(fold_lanes(r, by, s));
    // What stands before a strand is in its remainder as if it had begun with that.
    a ^= move_onward(folded);
    b ^= move_onward(a as u32);
    (c ^ move_onward(b as u32)) as u32
}

/// A remainder, moved on by a strand. The instruction multiplies its operand with x^32, and the reflected product is
/// one short.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn move_onward(state: u32) -> u64 {
    let onward = const { x_pow(8 * STRAND_BYTES - 33) };
    let (state, by) = (_mm_cvtsi64_si128(i64::from(state)), _mm_cvtsi64_si128(i64::from(onward)));
    _mm_crc32_u64(0, _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(state, by)) as u64)
}

/// `lanes`, moved on by the distance that `by` stands for, added to `onto`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold_lanes(lanes: __m256i, by: __m256i, onto: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(lanes, by);
    let last = _mm256_clmulepi64_epi128::<0x11>(lanes, by);
    _mm256_xor_si256(_mm256_xor_si256(first, last), onto)
}

/// What is left of 32 bytes modulo the polynomial.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
fn reduce_to_crc(both: __m256i) -> u32 {
    let (first, by) = (_mm256_castsi256_si128(both), one_lane(FOLD_BY_128));
    let moved =
        _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(first, by), _mm_clmulepi64_si128::<0x11>(first, by));
    let sum = _mm_xor_si128(moved, _mm256_extracti128_si256::<1>(both));
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum) as u64);
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(sum) as u64) as u32
}

#[inline]
#[target_feature(enable = "sse2")]
fn one_lane(pair: [i64; 2]) -> __m128i {
    _mm_set_epi64x(pair[1], pair[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn both_lanes(pair: [i64; 2]) -> __m256i {
    _mm256_set_m128i(one_lane(pair), one_lane(pair))
}
