//! Arithmetic modulo the polynomial: polynomials over GF(2) of degree below 32, in the reflected
//! order of the digest (bit 31 is the coefficient of x^0).

/// The polynomial without its highest term, reflected.
pub(super) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^0.
const X_POW_0: u32 = 1 << 31;

/// `value` × x.
pub(super) const fn times_x(value: u32) -> u32 {
    if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 }
}

/// x^`power`, for the constants of the kernels.
pub(super) const fn x_pow(power: usize) -> u32 {
    let mut value = X_POW_0;
    let mut n = 0;
    while n < power {
        value = times_x(value);
        n += 1;
    }
    value
}

/// `a` × `b`.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            sum ^= b;
        }
        b = times_x(b);
    }
    sum
}

/// x^(8 × 2^n) at `n`: what 2^n zero bytes multiply a remainder with.
#[expect(clippy::indexing_slicing, reason = "counted from 1 up to the length, when it is compiled")]
static ZERO_BYTES_FACTORS: [u32; usize::BITS as usize] = {
    let mut powers = [x_pow(8); usize::BITS as usize];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The digest of A followed by B, from the digest of A, the digest of B and the length of B in
/// bytes: stored digests of blocks are joined without reading the blocks.
#[expect(
    clippy::indexing_slicing,
    reason = "a trailing zero of a number that is not zero is below the bits of it, which is the length"
)]
pub fn combine(crc_a: u32, crc_b: u32, len_b: usize) -> u32 {
    let mut shifted = crc_a;
    let mut left = len_b;
    while left > 0 {
        shifted = multiply(shifted, ZERO_BYTES_FACTORS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    shifted ^ crc_b
}
