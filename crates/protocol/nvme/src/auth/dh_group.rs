//! Diffie-Hellman groups (RFC 7919, appendix A) and powers modulo their primes.
//!
//! Private exponents have 512 bits, more than twice the strength of the strongest group (RFC 7919
//! §5.2); the time of a power depends on the group alone.

use core::fmt;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a private exponent.
pub(super) const PRIVATE_EXPONENT_LEN: usize = 64;
/// Longest public value, in bytes.
pub(super) const PUBLIC_VALUE_LEN_MAX: usize = 1024;

/// A group of NVMe's DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhGroup {
    /// None: the responses stand on the secret alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl fmt::Display for DhGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        })
    }
}

impl DhGroup {
    /// The group of an identifier on the wire.
    pub const fn from_id(id: u8) -> Option<DhGroup> {
        match id {
            0 => Some(DhGroup::Null),
            1 => Some(DhGroup::Ffdhe2048),
            2 => Some(DhGroup::Ffdhe3072),
            3 => Some(DhGroup::Ffdhe4096),
            4 => Some(DhGroup::Ffdhe6144),
            5 => Some(DhGroup::Ffdhe8192),
            _ => None,
        }
    }

    /// Its identifier on the wire.
    pub const fn id(self) -> u8 {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 1,
            DhGroup::Ffdhe3072 => 2,
            DhGroup::Ffdhe4096 => 3,
            DhGroup::Ffdhe6144 => 4,
            DhGroup::Ffdhe8192 => 5,
        }
    }

    /// Bytes of the prime and of each value; 0 without a group.
    #[allow(clippy::len_without_is_empty)] // That it has none is what `Null` says.
    pub const fn value_len(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 256,
            DhGroup::Ffdhe3072 => 384,
            DhGroup::Ffdhe4096 => 512,
            DhGroup::Ffdhe6144 => 768,
            DhGroup::Ffdhe8192 => 1024,
        }
    }

    /// The last but one eight bytes of the prime, the only place where the primes differ but for
    /// their length: they are digits of e, made prime there.
    const fn prime_ending(self) -> u64 {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 0x886b_4238_6128_5c97,
            DhGroup::Ffdhe3072 => 0x25e4_1d2b_66c6_2e37,
            DhGroup::Ffdhe4096 => 0xc68a_007e_5e65_5f6a,
            DhGroup::Ffdhe6144 => 0xa40e_329c_d0e4_0e65,
            DhGroup::Ffdhe8192 => 0xd68c_8bb7_c5c6_424c,
        }
    }

    /// The prime, highest byte first.
    pub(super) fn prime(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = FFDHE8192
            .as_bytes()
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[high, low]| hex_digit_value(*high) << 4 | hex_digit_value(*low))
            .collect();
        if let Some(end) = self.value_len().checked_sub(16) {
            bytes.truncate(end);
            bytes.extend_from_slice(&self.prime_ending().to_be_bytes());
            bytes.extend_from_slice(&[0xff; 8]);
        }
        bytes
    }

    /// Whether a peer's value can be used: 2 ≤ x ≤ p − 2, in a multiple of four bytes and no more
    /// than the prime has (RFC 7919 §5.1). The values that are left out give their secret away.
    pub(super) fn is_valid_public(self, value: &[u8]) -> bool {
        if value.is_empty() || value.len() > self.value_len() || !value.len().is_multiple_of(4) {
            return false;
        }
        let mut low = self.prime();
        // An odd number ends in a one: this is p − 1.
        if let Some(last) = low.last_mut() {
            *last &= !1;
        }
        let mut padded = vec![0; self.value_len() - value.len()];
        padded.extend_from_slice(value);
        let one =
            padded.split_last().is_some_and(|(last, rest)| *last < 2 && rest.iter().all(|byte| *byte == 0));
        !one && padded < low
    }

    /// 2 to the power of a private exponent.
    pub(super) fn public_value(self, private: &[u8; PRIVATE_EXPONENT_LEN]) -> Vec<u8> {
        self.mod_pow(&[2], private).to_vec()
    }

    /// A peer's value, which the group takes, to the power of a private exponent.
    pub(super) fn shared_secret(
        self,
        peer: &[u8],
        private: &[u8; PRIVATE_EXPONENT_LEN],
    ) -> Zeroizing<Box<[u8]>> {
        Zeroizing::new(self.mod_pow(peer, private))
    }

    fn mod_pow(self, base: &[u8], private: &[u8; PRIVATE_EXPONENT_LEN]) -> Box<[u8]> {
        let number = |bytes: &[u8], bits: usize| BoxedUint::from_be_slice_truncated(bytes, bits as u32);
        let bits = self.value_len() * 8;
        let Some(prime) = Option::<Odd<BoxedUint>>::from(Odd::new(number(&self.prime(), bits))) else {
            return Box::default();
        };
        let params = BoxedMontyParams::new_vartime(prime);
        let mut exponent = number(private, PRIVATE_EXPONENT_LEN * 8);
        let mut power = BoxedMontyForm::new(number(base, bits), &params).pow(&exponent);
        exponent.zeroize();
        let mut value = power.retrieve();
        power.zeroize();
        let bytes = value.to_be_bytes();
        value.zeroize();
        bytes
    }
}

fn hex_digit_value(ascii: u8) -> u8 {
    match ascii {
        b'0'..=b'9' => ascii - b'0',
        _ => ascii - b'a' + 10,
    }
}

/// The longest prime.
const FFDHE8192: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9\
7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb\
b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61\
9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa\
886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91c\
aefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0d\
abc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb\
7930e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832\
a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf\
8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea6\
3bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477\
a52471f7a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4\
763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538c\
d72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b04\
5b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c838\
1e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665\
cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022\
bb7099876a460e7451a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9\
d5b8019488d9c0a0a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30\
fafabe1c5d71a87e2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88c\
d68c8bb7c5c6424cffffffffffffffff";

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DhGroup; 5] =
        [DhGroup::Ffdhe2048, DhGroup::Ffdhe3072, DhGroup::Ffdhe4096, DhGroup::Ffdhe6144, DhGroup::Ffdhe8192];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn sha256(bytes: &[u8]) -> String {
        use sha2::Digest;
        hex(&sha2::Sha256::digest(bytes))
    }

    /// Digests of the primes as Python computes them by the formula of RFC 7919, where they also
    /// passed as safe primes.
    #[test]
    fn primes_are_those_of_rfc_7919() {
        let digests = [
            "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
            "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
            "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
            "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
            "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
        ];
        for (group, digest) in ALL.into_iter().zip(digests) {
            assert_eq!(sha256(&group.prime()), digest, "{group:?}");
            assert_eq!(DhGroup::from_id(group.id()), Some(group));
        }
        assert_eq!((DhGroup::from_id(0), DhGroup::from_id(6)), (Some(DhGroup::Null), None));
    }

    /// Powers as Python's `pow` gives them.
    #[test]
    fn powers_are_right_and_agree() {
        let a: [u8; PRIVATE_EXPONENT_LEN] = std::array::from_fn(|n| n as u8 + 1);
        let b: [u8; PRIVATE_EXPONENT_LEN] = std::array::from_fn(|n| 255 - n as u8);
        let digests = [
            [
                "1908b0773912e53f8b481d76c9723f551e22e7edcee9e562bf0cc763a9ce3958",
                "4d094885e416c90e5d7e805e482739a5aecfb8720a0281c186f3883f80a052a1",
            ],
            [
                "e9f81f609bb558fd1ea247cff217d7681f14a9b132cb0c93203a873ad800ca24",
                "5bec6b050869236bae322bbe2afd59a29829cc10462d37e23e37c3e119a8db8b",
            ],
            [
                "a53688d3a4d42b2c60ebff8551c83d059a0415eea23c365d1e190ebaff879f1c",
                "2f17493a0e399f38034a0f5e8f3947645fc21b15826f3700e0c59d0a3169b3d1",
            ],
            [
                "21ff5bd61a7d69b1817b7ae910dc291ab6c5f4d60aa562b30c987dda2f0f9157",
                "5adb6b12237c3aa61cdf0464c50ca3998f103fc1817e4f75bf023aaf5ba4d83e",
            ],
            [
                "b2f1e92b44e0a45ee7b23938bfd9be352a84ab3878fa0afae756e3c4f6999e9e",
                "0138b09210723ee845da4cff61cbe4beb60cbb23f5d8e03195b97503fbb95eae",
            ],
        ];
        for (group, [public, shared]) in ALL.into_iter().zip(digests) {
            let (ours, theirs) = (group.public_value(&a), group.public_value(&b));
            assert_eq!(ours.len(), group.value_len());
            assert_eq!(sha256(&ours), public, "{group:?}");
            assert_eq!(sha256(&group.shared_secret(&theirs, &a)), shared, "{group:?}");
            assert_eq!(group.shared_secret(&theirs, &a), group.shared_secret(&ours, &b));
        }
    }

    #[test]
    fn values_that_give_the_secret_away_are_not_taken() {
        for group in ALL {
            let prime = group.prime();
            let near = |by: u8| {
                let mut value = prime.clone();
                *value.last_mut().unwrap() -= by;
                value
            };
            let small = |n: u8| {
                let mut value = vec![0; group.value_len()];
                *value.last_mut().unwrap() = n;
                value
            };
            for bad in
                [small(0), small(1), near(1), near(0), vec![0xff; group.value_len()], vec![], vec![7; 3]]
            {
                assert!(!group.is_valid_public(&bad), "{group:?}");
            }
            assert!(!group.is_valid_public(&[&[0; 4][..], &small(9)].concat()), "longer than the prime");
            for good in [small(2), near(2), vec![0, 0, 0, 2]] {
                assert!(group.is_valid_public(&good), "{group:?}");
            }
        }
        assert!(!DhGroup::Null.is_valid_public(&[0, 0, 0, 2]) && !DhGroup::Null.is_valid_public(&[]));
    }
}
