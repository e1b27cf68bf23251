//! CHAP, one-way and mutual (RFC 7143 §9.2.1 and §12.1.3, RFC 1994).
//!
//! A response is H(identifier ‖ secret ‖ challenge). Lengths are checked before anything is compared. The
//! comparison takes constant time, and an unknown user takes the same time and gets the same answer as a
//! wrong secret.

use crate::text::{self, KeyValue, TextBuf};
use core::fmt;
use stream::Entropy;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Longest challenge that is accepted, in bytes (RFC 7143 §12.1.3).
pub const CHALLENGE_LEN_MAX: usize = 1024;
/// Longest digest of any algorithm here, in bytes.
const DIGEST_LEN_MAX: usize = 32;

/// A hash algorithm by its number in CHAP_A (IANA, PPP authentication algorithms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm(pub u8);

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::MD5 => f.write_str("md5"),
            Self::SHA1 => f.write_str("sha1"),
            Self::SHA256 => f.write_str("sha256"),
            Self::SHA3_256 => f.write_str("sha3-256"),
            Self(other) => write!(f, "{other}"),
        }
    }
}

impl Algorithm {
    /// MD5, which every implementation must have.
    pub const MD5: Self = Self(5);
    /// SHA-1.
    pub const SHA1: Self = Self(6);
    /// SHA-256.
    pub const SHA256: Self = Self(7);
    /// SHA3-256.
    pub const SHA3_256: Self = Self(8);
    /// What is implemented, strongest first.
    pub const ALL: [Self; 4] = [Self::SHA3_256, Self::SHA256, Self::SHA1, Self::MD5];

    /// Bytes of a response; `None` for an algorithm that is not implemented.
    #[must_use]
    pub const fn digest_len(self) -> Option<usize> {
        match self {
            Self::MD5 => Some(16),
            Self::SHA1 => Some(20),
            Self::SHA256 | Self::SHA3_256 => Some(32),
            Self(_) => None,
        }
    }
}

/// A shared secret. It never shows itself and leaves no trace in memory.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over the bytes of a secret.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Compares in constant time; only a difference in length shows.
    #[must_use]
    pub fn constant_time_eq(&self, other: &Secret) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A name and its secret.
#[derive(Clone, Debug)]
pub struct ChapAccount {
    /// The value of CHAP_N.
    pub name: String,
    /// The secret.
    pub secret: Secret,
}

/// A response of at most 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    len: u8,
    bytes: [u8; DIGEST_LEN_MAX],
}

impl Response {
    /// Computes a response; `None` where the algorithm is not implemented.
    #[must_use]
    pub fn compute(algorithm: Algorithm, identifier: u8, secret: &Secret, challenge: &[u8]) -> Option<Self> {
        let parts = [&[identifier][..], &secret.0, challenge];
        match algorithm {
            Algorithm::MD5 => Some(Self::hash::<md5::Md5>(parts)),
            Algorithm::SHA1 => Some(Self::hash::<sha1::Sha1>(parts)),
            Algorithm::SHA256 => Some(Self::hash::<sha2::Sha256>(parts)),
            Algorithm::SHA3_256 => Some(Self::hash::<sha3::Sha3_256>(parts)),
            Algorithm(_) => None,
        }
    }

    fn hash<H: sha2::Digest>(parts: [&[u8]; 3]) -> Self {
        let mut hasher = H::new();
        for part in parts {
            hasher.update(part);
        }
        let digest = hasher.finalize();
        let mut bytes = [0; DIGEST_LEN_MAX];
        bytes.iter_mut().zip(&digest).for_each(|(to, byte)| *to = *byte);
        Self { len: digest.len() as u8, bytes }
    }

    /// The bytes of the response.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

/// A challenge of ours that is outstanding. It is fresh for every attempt and used once.
#[derive(Clone)]
pub struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    /// As many bytes as the digest has.
    bytes: Vec<u8>,
}

/// Authentication failed. It never says why: the peer must not learn it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChapFailed;

impl Challenge {
    /// Draws a challenge for an implemented algorithm.
    pub fn new(algorithm: Algorithm, entropy: &mut Entropy) -> Result<Self, ChapFailed> {
        let mut bytes = vec![0; algorithm.digest_len().ok_or(ChapFailed)?];
        entropy.fill(&mut bytes);
        let mut identifier = [0];
        entropy.fill(&mut identifier);
        Ok(Self { algorithm, identifier: identifier[0], bytes })
    }

    /// Appends CHAP_I and CHAP_C.
    pub fn encode(&self, out: &mut TextBuf) -> Result<(), text::TextError> {
        out.push_number("CHAP_I", self.identifier.into())?;
        out.push("CHAP_C", &text::encode_hex(&self.bytes))
    }

    /// The algorithm of the exchange, which both directions use.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether a response text is right for the account. `None` stands for an account that does not exist: the
    /// same work is done, and the answer is no. A response that `forbidden` would give is a reflection of ours.
    pub fn verify(
        &self,
        account: Option<&ChapAccount>,
        forbidden: Option<&ChapAccount>,
        response: &str,
    ) -> Result<(), ChapFailed> {
        let len = self.algorithm.digest_len().ok_or(ChapFailed)?;
        let response = decode_binary_value(response, len)?;
        if response.len() != len {
            return Err(ChapFailed);
        }
        let nobody = Secret::new(vec![0; 16]);
        let right =
            self.expected_response(account.map_or(&nobody, |a| &a.secret))?.as_slice().ct_eq(&response);
        let reflected = match forbidden {
            Some(ours) => self.expected_response(&ours.secret)?.as_slice().ct_eq(&response).into(),
            None => false,
        };
        if account.is_some() && bool::from(right) && !reflected { Ok(()) } else { Err(ChapFailed) }
    }

    fn expected_response(&self, secret: &Secret) -> Result<Response, ChapFailed> {
        Response::compute(self.algorithm, self.identifier, secret, &self.bytes).ok_or(ChapFailed)
    }

    /// Answers the peer's challenge with our account, for authentication in the other direction. Our own
    /// challenge given back to us is not answered (RFC 7143 §9.2.1).
    pub fn answer_peer_challenge(
        &self,
        ours: &ChapAccount,
        identifier: &str,
        challenge: &str,
        out: &mut TextBuf,
    ) -> Result<(), ChapFailed> {
        let challenge = decode_binary_value(challenge, CHALLENGE_LEN_MAX)?;
        if challenge == self.bytes {
            return Err(ChapFailed);
        }
        put_chap_response(self.algorithm, ours, identifier, &challenge, out)
    }
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Challenge({:?})", self.algorithm)
    }
}

/// Answers a challenge that came as text: appends CHAP_N and CHAP_R.
pub fn answer_text_challenge(
    algorithm: Algorithm,
    ours: &ChapAccount,
    identifier: &str,
    challenge: &str,
    out: &mut TextBuf,
) -> Result<(), ChapFailed> {
    put_chap_response(algorithm, ours, identifier, &decode_binary_value(challenge, CHALLENGE_LEN_MAX)?, out)
}

fn put_chap_response(
    algorithm: Algorithm,
    ours: &ChapAccount,
    identifier: &str,
    challenge: &[u8],
    out: &mut TextBuf,
) -> Result<(), ChapFailed> {
    let identifier =
        text::parse_number(identifier).ok().and_then(|i| u8::try_from(i).ok()).ok_or(ChapFailed)?;
    let response = Response::compute(algorithm, identifier, &ours.secret, challenge).ok_or(ChapFailed)?;
    out.push("CHAP_N", &ours.name).map_err(|_| ChapFailed)?;
    out.push("CHAP_R", &text::encode_hex(response.as_slice())).map_err(|_| ChapFailed)
}

/// Binary data of 1 to `len_max` bytes; half bytes are refused, since every known peer sends whole ones.
fn decode_binary_value(value: &str, len_max: usize) -> Result<Vec<u8>, ChapFailed> {
    let is_hex = value.starts_with("0x") || value.starts_with("0X");
    if is_hex && !value.len().is_multiple_of(2) {
        return Err(ChapFailed);
    }
    text::parse_binary(value, len_max).map_err(|_| ChapFailed)
}

/// The value of a key among pairs.
pub(crate) fn find_value<'a>(pairs: &[KeyValue<'a>], key: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(secret: &[u8]) -> ChapAccount {
        ChapAccount { name: "user".to_owned(), secret: Secret::new(secret.to_vec()) }
    }

    fn response_to(challenge: &Challenge, secret: &[u8]) -> String {
        text::encode_hex(challenge.expected_response(&Secret::new(secret.to_vec())).unwrap().as_slice())
    }

    #[test]
    fn known_responses() {
        let secret = Secret::new(b"a secret of 20 bytes".to_vec());
        let challenge: Vec<u8> = (0..16).collect();
        let rows = [
            (Algorithm::MD5, "7fbf0c1dd657653a8e3da6445eeef9d5"),
            (Algorithm::SHA1, "5af45f74e6dd4780c7cdbe2561580c6a01d86d57"),
            (Algorithm::SHA256, "fc03366c53117aa59c3852174408be243ccd9800bdaf2f521792b9193c039ae6"),
            (Algorithm::SHA3_256, "0dbc21e865988ed05e54fe3ed071c27b3e3d2fd315a00707117ba7113d0fb924"),
        ];
        for (algorithm, want) in rows {
            let got = Response::compute(algorithm, 0x2a, &secret, &challenge).unwrap();
            assert_eq!(text::encode_hex(got.as_slice()), format!("0x{want}"), "{algorithm:?}");
            assert_eq!(Some(got.as_slice().len()), algorithm.digest_len());
        }
        assert_eq!(Response::compute(Algorithm(9), 0, &secret, &challenge), None);
    }

    #[test]
    fn secrets_do_not_show() {
        let account = account(b"correct horse");
        assert!(!format!("{account:?}").contains("correct"));
        assert!(account.secret.constant_time_eq(&Secret::new(b"correct horse".to_vec())));
    }

    #[test]
    fn attack_12_responses_of_another_length() {
        let secret = b"correct horse battery";
        for algorithm in Algorithm::ALL {
            let challenge = Challenge::new(algorithm, &mut Entropy::new([7; 32])).unwrap();
            let user = account(secret);
            let good = response_to(&challenge, secret);
            assert_eq!(challenge.verify(Some(&user), None, &good), Ok(()));
            let truncated = &good[..good.len() - 2];
            let odd = &good[..good.len() - 1];
            let longer = format!("{good}00");
            for bad in
                [truncated, odd, &longer, "0x", "", "0b", "5", "0b!!!!", &format!("0b{}", "A".repeat(2000))]
            {
                assert_eq!(challenge.verify(Some(&user), None, bad), Err(ChapFailed), "{bad}");
            }
        }
    }

    #[test]
    fn attack_13_identifiers_out_of_range() {
        let challenge = Challenge::new(Algorithm::MD5, &mut Entropy::new([7; 32])).unwrap();
        for (identifier, good) in
            [("0", true), ("255", true), ("0x5", true), ("256", false), ("-1", false), ("0x", false)]
        {
            let answered =
                challenge.answer_peer_challenge(&account(b"s"), identifier, "0x0102", &mut TextBuf::new());
            assert_eq!(answered.is_ok(), good, "{identifier}");
        }
    }

    #[test]
    fn attack_14_challenges_of_no_or_too_many_bytes_and_reflection() {
        let challenge = Challenge::new(Algorithm::SHA256, &mut Entropy::new([7; 32])).unwrap();
        let ours = account(b"ours is different");
        let mut out = TextBuf::new();
        let longest = format!("0x{}", "ab".repeat(1024));
        assert_eq!(challenge.answer_peer_challenge(&ours, "1", &longest, &mut out), Ok(()));
        let too_long = format!("{longest}00");
        let reflected = text::encode_hex(&challenge.bytes);
        for bad in ["0x", "", &too_long, &reflected] {
            assert_eq!(
                challenge.answer_peer_challenge(&ours, "1", bad, &mut TextBuf::new()),
                Err(ChapFailed),
                "{bad}"
            );
        }
        // A response that our own secret would give, even where an account has the same secret.
        let response = response_to(&challenge, b"ours is different");
        assert_eq!(challenge.verify(Some(&ours), Some(&ours), &response), Err(ChapFailed));
        assert_eq!(challenge.verify(Some(&ours), None, &response), Ok(()));
    }

    #[test]
    fn attack_15_no_account_is_a_wrong_secret() {
        let challenge = Challenge::new(Algorithm::SHA1, &mut Entropy::new([7; 32])).unwrap();
        let user = account(b"right");
        assert_eq!(challenge.verify(Some(&user), None, &response_to(&challenge, b"wrong")), Err(ChapFailed));
        assert_eq!(challenge.verify(None, None, &response_to(&challenge, b"right")), Err(ChapFailed));
        // Not even the stand-in's own secret is accepted.
        assert_eq!(challenge.verify(None, None, &response_to(&challenge, &[0; 16])), Err(ChapFailed));
    }
}
