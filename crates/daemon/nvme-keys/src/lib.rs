//! Keys of NVMe as text in files: secrets of DH-HMAC-CHAP (NVMe Base §8.3.5.5.8) and pre-shared keys of TLS (NVMe/TCP
//! Transport 1.1 §3.6.1.5), generated, read and derived.
//!
//! Invariant: a key is read from a file or from standard input, and written to a new file that no other user can
//! read. No message contains one.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvme::{
    Nqn,
    auth::{DhchapSecret, Hash},
    tls::{CipherSuite, ConfiguredPsk, HkdfLabelFormat, IdentityVersion, PskIdentity},
};
use process::{exit::Failure, private_file::create_private_file, random};
use zeroize::Zeroizing;

/// No key's text is longer, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// NVMe in-band authentication, `DHHC-1:...`.
    Dhchap,
    /// NVMe/TCP over TLS 1.3, `NVMeTLSkey-1:...`.
    Tls,
}

/// Draws a key into a new file. `hash`: derives the host's key from it, and says its length; `None`: it is the key, of 32
/// bytes.
///
/// # Errors
/// The file exists or cannot be written; there is no such key of TLS; the system has no randomness.
pub fn generate_key(kind: KeyKind, hash: Option<Hash>, path: &Path) -> Result<(), Failure> {
    let mut drawn = Ok(());
    let mut fill = |bytes: &mut [u8]| drawn = random::fill_random(bytes);
    let text = match (kind, hash) {
        (KeyKind::Dhchap, hash) => DhchapSecret::generate(hash, &mut fill).to_text(),
        (KeyKind::Tls, Some(Hash::Sha512)) => {
            return Err(Failure::usage("TLS keys cannot use sha512; use none, sha256 or sha384"));
        }
        (KeyKind::Tls, Some(Hash::Sha384)) => {
            ConfiguredPsk::generate(CipherSuite::Aes256GcmSha384, true, &mut fill).to_text()
        }
        (KeyKind::Tls, hash) => {
            ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, hash.is_some(), &mut fill).to_text()
        }
    };
    drawn.map_err(Failure::failed)?;
    write_key(path, &text)
}

/// A key that was read.
#[derive(Debug)]
pub enum NvmeKey {
    /// A secret of DH-HMAC-CHAP.
    Dhchap(DhchapSecret),
    /// A pre-shared key of TLS.
    Tls(ConfiguredPsk),
}

impl NvmeKey {
    /// The hash that derives a host's key from it; `None`: it is the key.
    pub fn transform(&self) -> Option<Hash> {
        match self {
            NvmeKey::Dhchap(secret) => secret.transform(),
            NvmeKey::Tls(key) => key.transform(),
        }
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            NvmeKey::Dhchap(secret) => secret.len(),
            NvmeKey::Tls(key) => key.len(),
        }
    }
}

/// Reads a key from a file, or from standard input if the path is `-`; and whether others can read the file.
///
/// # Errors
/// It cannot be read, or holds no key. The text is not in the message.
pub fn read_key(path: &Path) -> Result<(NvmeKey, bool), Failure> {
    let cannot = |why: io::Error| Failure::failed(format!("cannot read {}: {why}", path.display()));
    let (mut bytes, shared) =
        (Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX as usize)), path != Path::new("-"));
    let shared = if shared {
        let file = File::open(path).map_err(cannot)?;
        let mode = file.metadata().map_err(cannot)?.mode();
        file.take(KEY_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
        mode & 0o077 != 0
    } else {
        io::stdin().lock().take(KEY_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
        false
    };
    let text = std::str::from_utf8(&bytes).map(|text| Zeroizing::new(text.to_owned()));
    let text = text.map_err(|_| Failure::failed(format!("{} holds no text", path.display())))?;
    Ok((parse_key(&text, path)?, shared))
}

fn parse_key(text: &str, path: &Path) -> Result<NvmeKey, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::failed(format!("{}: {why}", path.display()));
    if text.trim_ascii_start().starts_with("DHHC-1:") {
        return DhchapSecret::parse(text).map(NvmeKey::Dhchap).map_err(|why| wrong(&why));
    }
    if text.trim_ascii_start().starts_with("NVMeTLSkey-1:") {
        return ConfiguredPsk::parse(text).map(NvmeKey::Tls).map_err(|why| wrong(&why));
    }
    Err(wrong(&"holds no key: neither DHHC-1:hh:BASE64: nor NVMeTLSkey-1:hh:BASE64:"))
}

/// Writes the key that a secret is for a host or a subsystem, in hexadecimal digits, to a new file.
///
/// # Errors
/// Not one of the two is named; no file is, or it exists or cannot be written.
pub fn derive_dhchap(
    secret: &DhchapSecret,
    (host, subsystem): (Option<&Nqn>, Option<&Nqn>),
    output: Option<&Path>,
) -> Result<(), Failure> {
    let owner = match (host, subsystem) {
        (Some(owner), None) | (None, Some(owner)) => owner,
        _ => {
            return Err(Failure::usage("a DH-HMAC-CHAP key needs --host or --subsystem, not both"));
        }
    };
    let output =
        output.ok_or_else(|| Failure::usage("name a new file with --output; the key is not printed"))?;
    write_key(output, &to_hex(secret.derive_key(owner.as_str()).bytes()))
}

/// The TLS identity of a host at a subsystem; the key that TLS uses under it goes to a new file, in hexadecimal digits, if
/// one is named.
///
/// # Errors
/// A name is missing, or allows no identity; the file exists or cannot be written.
pub fn derive_tls(
    key: &ConfiguredPsk,
    (host, subsystem): (Option<&Nqn>, Option<&Nqn>),
    (version, suite, derivation): (IdentityVersion, CipherSuite, HkdfLabelFormat),
    output: Option<&Path>,
) -> Result<PskIdentity, Failure> {
    let (Some(host), Some(subsystem)) = (host, subsystem) else {
        return Err(Failure::usage("a TLS key needs --host and --subsystem"));
    };
    let retained = key.derive_retained(host, derivation);
    let identity = retained.psk_identity(version, suite, host, subsystem).ok_or_else(|| {
        Failure::failed(
            "no TLS identity is possible for these names: one contains a space, or they are too long for version 0",
        )
    })?;
    if let Some(output) = output {
        let psk = retained.tls_psk(&identity).map(|psk| to_hex(psk.expose()));
        write_key(output, &psk.ok_or_else(|| Failure::failed("the identity is too long for a key"))?)?;
    }
    Ok(identity)
}

fn to_hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Writes a key to a new file.
fn write_key(path: &Path, text: &str) -> Result<(), Failure> {
    create_private_file(path, &[text.as_bytes(), b"\n"]).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => Failure::failed(format!(
            "{} exists, and hosts may be using its secret; name another file, or remove it first",
            path.display()
        )),
        _ => Failure::failed(format!("cannot write {}: {why}", path.display())),
    })
}
