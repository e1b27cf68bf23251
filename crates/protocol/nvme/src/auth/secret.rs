//! Secrets as text, and the keys derived from them (NVMe Base §8.3.5.5.8): `DHHC-1:hh:base64(secret ‖ CRC-32
//! of it, little-endian):`.
//!
//! Invariant: no error and no `Debug` shows a secret or a part of it, and memory that held one is wiped.

use super::FillRandom;
use super::response::{Hash, hmac};
use crate::key_interchange::{self, KeyError, KeyKind};
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// What is hashed behind the owner's name.
const TRANSFORM_SUFFIX: &[u8] = b"NVMe-over-Fabrics";

/// A secret of 32, 48 or 64 bytes, and the hash that makes it a key of its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct DhchapSecret {
    transform: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

impl DhchapSecret {
    /// Reads a secret's text; white space around it is not counted.
    pub fn parse(text: &str) -> Result<DhchapSecret, KeyError> {
        let (transform, bytes) = key_interchange::parse_key_text(text, KeyKind::Dhchap)?;
        Ok(DhchapSecret { transform: Hash::from_id(transform), bytes })
    }

    /// Draws a secret for a hash, as long as what the hash gives; without one 32 bytes that are used
    /// as they are.
    pub fn generate(transform: Option<Hash>, fill: FillRandom<'_>) -> DhchapSecret {
        let mut bytes = Zeroizing::new(vec![0; transform.map_or(32, Hash::len)]);
        fill(&mut bytes);
        DhchapSecret { transform, bytes }
    }

    /// The text of the secret: to be kept as one.
    pub fn to_text(&self) -> Zeroizing<String> {
        key_interchange::format_key_text(KeyKind::Dhchap, self.transform.map_or(0, Hash::id), &self.bytes)
    }

    /// The hash that makes it a key; `None`: it is one.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// Its length in bytes: 32, 48 or 64.
    #[allow(clippy::len_without_is_empty)] // A secret is never empty.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it is the same secret as another one, whatever hash they are used with.
    pub fn constant_time_eq(&self, other: &DhchapSecret) -> bool {
        self.bytes.ct_eq(&other.bytes).into()
    }

    /// Its bytes, to compare many.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// The key that the secret is for its owner, the host or the subsystem of this NQN.
    pub fn derive_key(&self, owner_nqn: &str) -> DhchapKey {
        match self.transform {
            None => DhchapKey(self.bytes.clone()),
            Some(hash) => {
                let key = hmac(hash, &self.bytes, &[owner_nqn.as_bytes(), TRANSFORM_SUFFIX]);
                DhchapKey(Zeroizing::new(key.as_slice().to_vec()))
            }
        }
    }
}

impl fmt::Debug for DhchapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A key that responses are computed with.
#[derive(Clone)]
pub struct DhchapKey(Zeroizing<Vec<u8>>);

impl DhchapKey {
    /// Its bytes, for responses and nothing else.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A random key, with which a host without a secret is checked.
    pub(super) fn decoy(fill: FillRandom<'_>) -> DhchapKey {
        let mut bytes = Zeroizing::new(vec![0; 32]);
        fill(&mut bytes);
        DhchapKey(bytes)
    }
}

impl fmt::Debug for DhchapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_interchange::KeyFlaw;

    /// The example of the specification, as a patch to Linux's host quotes it.
    const EXAMPLE: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    const OWNER: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";

    #[test]
    fn the_example_is_read_with_every_transform_and_written_again() {
        for hh in ["00", "01", "02", "03"] {
            let text = EXAMPLE.replace(":00:", &format!(":{hh}:"));
            let secret = DhchapSecret::parse(&format!(" {text}\n")).unwrap();
            assert_eq!(*secret.to_text(), text);
        }
        // Keys computed by Python's hmac.
        let key = |hh: &str| {
            let key = DhchapSecret::parse(&EXAMPLE.replace(":00:", hh)).unwrap().derive_key(OWNER);
            key.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(key(":00:"), "89aeb31a874eaf84841b46736b0dfdf2ba58d30aa2a545a3e235a3521e07594c");
        assert_eq!(key(":01:"), "88013ee67f19ba8d4ccee46ea96634bd03489fbe3193c59422ca6550d5c5b129");
        assert_eq!(
            key(":02:"),
            "7991e72e934ad72e5b480b6283bb235e67b1970413bc428efac33f4992b6d65bf8ecdc4032b51c18341e7cee9ea01838"
        );
        assert_eq!(
            key(":03:"),
            "22a1c058e34edd11861b6792bca9059816252e6b489912aebbec03ce401f8cb3f628f78e35e9926c4726e5b92cd2e80e93b130938879e5427cfa09b5089e278d"
        );
    }

    #[test]
    fn generated_secrets_are_as_long_as_their_hash() {
        for (transform, len) in
            [(None, 32), (Some(Hash::Sha256), 32), (Some(Hash::Sha384), 48), (Some(Hash::Sha512), 64)]
        {
            let mut next = 0u8;
            let secret = DhchapSecret::generate(transform, &mut |bytes| {
                bytes.fill_with(|| {
                    next = next.wrapping_add(7);
                    next
                });
            });
            let again = DhchapSecret::parse(&secret.to_text()).unwrap();
            assert_eq!((again.bytes.len(), again.transform), (len, transform));
            assert_eq!(again.bytes, secret.bytes);
        }
    }

    #[test]
    fn wrong_texts_are_named_and_not_shown() {
        let rows = [
            ("", KeyFlaw::Prefix),
            ("NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:", KeyFlaw::Prefix),
            ("DHHC-1:", KeyFlaw::Transform),
            ("DHHC-1:04:AAAA:", KeyFlaw::Transform),
            ("DHHC-1:1:AAAA:", KeyFlaw::Transform),
            (&EXAMPLE[..EXAMPLE.len() - 1], KeyFlaw::Colon),
            ("DHHC-1:00:ia6zGodO", KeyFlaw::Colon),
            ("DHHC-1:00:ia6zGodO*A==:", KeyFlaw::Base64),
            ("DHHC-1:00:ia6:", KeyFlaw::Base64),
            ("DHHC-1:00:ia==zGod:", KeyFlaw::Base64),
            ("DHHC-1:00:i===:", KeyFlaw::Base64),
            ("DHHC-1:00:ib==:", KeyFlaw::Base64),
            ("DHHC-1:00::", KeyFlaw::Length(0)),
            ("DHHC-1:00:ia6zGodO:", KeyFlaw::Length(2)),
            (&EXAMPLE.replace("ia6z", "ja6z"), KeyFlaw::Checksum),
            (&EXAMPLE.replace("aQ2n", "aQ2m"), KeyFlaw::Checksum),
        ];
        for (text, flaw) in rows {
            let wrong = DhchapSecret::parse(text).unwrap_err();
            assert_eq!(wrong, KeyError { kind: KeyKind::Dhchap, flaw }, "{text}");
            assert!(!wrong.to_string().contains("a6z"));
        }
        let secret = DhchapSecret::parse(EXAMPLE).unwrap();
        assert_eq!(format!("{secret:?} {:?}", secret.derive_key(OWNER)), "Secret(..) Key(..)");
    }
}
