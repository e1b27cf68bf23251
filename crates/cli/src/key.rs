//! `blockwire key`: keys of NVMe as text in files: secrets of DH-HMAC-CHAP (NVMe Base §8.3.5.5.8) and
//! pre-shared keys of TLS (NVMe/TCP Transport 1.1 §3.6.1.5).
//!
//! Invariant: no key is printed, and none is an argument.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use nvme::{
    Nqn,
    auth::Hash,
    tls::{CipherSuite, HkdfLabelFormat, IdentityVersion},
};
use nvme_keys::NvmeKey;

use process::exit::Failure;

/// What a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyKind {
    /// NVMe in-band authentication, `DHHC-1:...`
    #[default]
    Dhchap,
    /// NVMe/TCP over TLS 1.3, `NVMeTLSkey-1:...`
    Tls,
}

/// Hashes of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyHash {
    /// None: 32 bytes.
    None,
    /// SHA-256: 32 bytes.
    Sha256,
    /// SHA-384: 48 bytes.
    Sha384,
    /// SHA-512: 64 bytes.
    Sha512,
}

/// Cipher suites by their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CipherSuiteName {
    /// TLS_AES_128_GCM_SHA256
    Sha256,
    /// TLS_AES_256_GCM_SHA384
    Sha384,
}

/// How a key of TLS is derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DerivationName {
    /// As RFC 8446 says
    #[default]
    Standard,
    /// As libnvme did before 1.16
    Compat,
}

const GENERATE_HELP: &str = "\
The secret is shown nowhere; copy the file to the other side. For DH-HMAC-CHAP the daemon reads it by \
\"dhchap_key_file\" of a [[host]] or of [auth], and Linux's host as dhchap_key in /etc/nvme/config.json. For \
TLS, `nvme check-tls-key --insert` gives it to Linux's host.

Examples:
  blockwire key generate --hash sha384 /etc/blockwire/web1.key
  blockwire key generate --kind tls /etc/blockwire/web1.psk";

const DERIVE_HELP: &str = "\
For TLS: prints the PSK identity of the host at the subsystem, and writes the key that TLS uses under it, in \
hexadecimal digits, to the file that --output names. For DH-HMAC-CHAP: writes the key that the secret is for the \
host, or with --subsystem alone for the subsystem.

Example:
  blockwire key derive web1.psk --host nqn.2014-08.org.example:web1 \\
      --subsystem nqn.2026-11.io.blockwire:db";

/// Verbs of `key`.
#[derive(Debug, Subcommand)]
pub enum KeyVerb {
    /// Generate a key into a new file that only its owner can read
    #[command(after_help = GENERATE_HELP)]
    Generate {
        /// What it is for
        #[arg(long, value_enum, default_value_t)]
        kind: KeyKind,
        /// The hash that derives the host's key from it, and its length; none: it is the key [default: sha256]
        #[arg(long, value_enum)]
        hash: Option<KeyHash>,
        /// The file; it must not exist
        file: PathBuf,
    },
    /// Check the form and the checksum of a key, and say what it is
    Check {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Show the TLS identity of a key, and write what is derived from it to a new file
    #[command(after_help = DERIVE_HELP)]
    Derive {
        /// The file, or - for standard input
        file: PathBuf,
        /// The host's NQN
        #[arg(long, value_parser = parse_nqn)]
        host: Option<Nqn>,
        /// The subsystem's NQN
        #[arg(long, value_parser = parse_nqn)]
        subsystem: Option<Nqn>,
        /// TLS: the version of the identity
        #[arg(long, value_parser = clap::value_parser!(u8).range(0..=1), default_value_t = 1)]
        identity: u8,
        /// TLS: the hash of the cipher suite [default: that of the key]
        #[arg(long, value_enum)]
        suite: Option<CipherSuiteName>,
        /// TLS: how the key is derived
        #[arg(long, value_enum, default_value_t)]
        derivation: DerivationName,
        /// A new file for the derived key, in hexadecimal digits
        #[arg(long)]
        output: Option<PathBuf>,
    },
}

fn parse_nqn(text: &str) -> Result<Nqn, String> {
    Nqn::parse(text)
        .map_err(|_| "an NQN begins with `nqn.` and has at most 223 bytes, without control characters".into())
}

/// Does it, and gives what is to be printed.
pub fn run_key_verb(verb: &KeyVerb) -> Result<String, Failure> {
    match verb {
        KeyVerb::Generate { kind, hash, file } => {
            generate_key(*kind, hash.unwrap_or(KeyHash::Sha256), file).map(|()| String::new())
        }
        KeyVerb::Check { file } => check_key(file),
        KeyVerb::Derive { file, host, subsystem, identity, suite, derivation, output } => {
            let (key, _) = nvme_keys::read_key(file)?;
            let owner = (host.as_ref(), subsystem.as_ref());
            match key {
                NvmeKey::Dhchap(secret) => {
                    nvme_keys::derive_dhchap(&secret, owner, output.as_deref()).map(|()| String::new())
                }
                NvmeKey::Tls(key) => {
                    let how = (
                        if *identity == 0 { IdentityVersion::Zero } else { IdentityVersion::One },
                        suite.map_or(key.default_suite(), |suite| match suite {
                            CipherSuiteName::Sha256 => CipherSuite::Aes128GcmSha256,
                            CipherSuiteName::Sha384 => CipherSuite::Aes256GcmSha384,
                        }),
                        match derivation {
                            DerivationName::Standard => HkdfLabelFormat::Standard,
                            DerivationName::Compat => HkdfLabelFormat::Compat,
                        },
                    );
                    let identity = nvme_keys::derive_tls(&key, owner, how, output.as_deref())?;
                    Ok(format!("{identity}\n"))
                }
            }
        }
    }
}

/// Draws a key into a new file.
pub fn generate_key(kind: KeyKind, hash: KeyHash, file: &Path) -> Result<(), Failure> {
    let kind = match kind {
        KeyKind::Dhchap => nvme_keys::KeyKind::Dhchap,
        KeyKind::Tls => nvme_keys::KeyKind::Tls,
    };
    let hash = match hash {
        KeyHash::None => None,
        KeyHash::Sha256 => Some(Hash::Sha256),
        KeyHash::Sha384 => Some(Hash::Sha384),
        KeyHash::Sha512 => Some(Hash::Sha512),
    };
    nvme_keys::generate_key(kind, hash, file)
}

fn check_key(path: &Path) -> Result<String, Failure> {
    let (key, shared) = nvme_keys::read_key(path)?;
    let kind = match key {
        NvmeKey::Dhchap(_) => "dhchap",
        NvmeKey::Tls(_) => "tls",
    };
    let hash = key.transform().map_or("none".to_owned(), |hash| hash.to_string());
    let mut said = format!("kind    {kind}\nhash    {hash}\nlength  {} bytes\n", key.len_bytes());
    if shared {
        let _ = writeln!(said, "other users can read {0}; run: chmod 600 {0}", path.display());
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// A configured PSK, its identity and the key that TLS uses, as libnvme and Python's hmac have them.
    const PSK: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const IDENTITY: &str =
        "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=\n";
    const TLS_PSK: &str = "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca\n";

    fn key(words: &[&str]) -> Result<String, Failure> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(subcommand)]
            verb: KeyVerb,
        }
        let line = <Line as clap::Parser>::try_parse_from([&["key"], words].concat()).unwrap();
        run_key_verb(&line.verb)
    }

    #[test]
    fn a_key_is_private_fresh_and_of_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        for (kind, hash, begins, length) in [
            ("dhchap", "none", "DHHC-1:00:", 48),
            ("dhchap", "sha256", "DHHC-1:01:", 48),
            ("dhchap", "sha384", "DHHC-1:02:", 72),
            ("dhchap", "sha512", "DHHC-1:03:", 92),
            ("tls", "none", "NVMeTLSkey-1:00:", 48),
            ("tls", "sha256", "NVMeTLSkey-1:01:", 48),
            ("tls", "sha384", "NVMeTLSkey-1:02:", 72),
        ] {
            let path = directory.path().join(begins);
            let name = path.to_str().unwrap();
            key(&["generate", "--kind", kind, "--hash", hash, name]).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with(begins) && text.ends_with(":\n"));
            assert_eq!(text.len(), begins.len() + length + 2);
            seen.push(text[begins.len()..][..20].to_owned());
            let said = key(&["check", name]).unwrap();
            assert!(said.starts_with(&format!("kind    {kind}\nhash    {hash}\n")), "{said}");
            assert!(!said.contains("others"), "{said}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 7);
    }

    #[test]
    fn a_key_in_use_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "mine").unwrap();
        let why = generate_key(KeyKind::Tls, KeyHash::Sha256, &path).unwrap_err().to_string();
        assert!(why.contains("exists") && why.contains("name another file"), "{why}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let why = generate_key(KeyKind::Dhchap, KeyHash::Sha256, &directory.path().join("no/key"))
            .unwrap_err()
            .to_string();
        assert!(why.contains("cannot write") && why.contains("No such file"), "{why}");
    }

    #[test]
    fn a_wrong_key_is_named_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for (text, part) in [
            ("", "holds no key"),
            ("a secret", "holds no key"),
            (&PSK.replace("VRL", "WRL"), "checksum"),
            (&PSK.replace(":01:", ":09:"), "00, 01 or 02"),
            ("DHHC-1:01:AAAA:", "bytes"),
        ] {
            fs::write(&path, text).unwrap();
            let why = key(&["check", path.to_str().unwrap()]).unwrap_err().to_string();
            assert!(why.contains(part) && why.contains("key"), "{why}");
            assert!(!why.contains("RLbtn") && !why.contains("a secret"), "{why}");
        }
        fs::write(&path, PSK).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let said = key(&["check", path.to_str().unwrap()]).unwrap();
        assert!(said.contains("other users can read"), "{said}");
    }

    #[test]
    fn derived_keys_go_to_files_and_identities_are_shown() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("psk"), directory.path().join("tls"));
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        fs::write(from, PSK).unwrap();
        let names = ["--host", "nqn.psk-test-host", "--subsystem", "nqn.psk-test-subsys"];
        let said = key(&[&["derive", from, "--output", to][..], &names].concat()).unwrap();
        assert_eq!(said, IDENTITY);
        assert_eq!(fs::read_to_string(to).unwrap(), TLS_PSK);
        assert_eq!(fs::metadata(to).unwrap().permissions().mode() & 0o777, 0o600);
        let said = key(&[&["derive", from, "--identity", "0", "--suite", "sha384"][..], &names].concat());
        assert_eq!(said.unwrap(), "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys\n");
        let compat = key(&[&["derive", from, "--derivation", "compat"][..], &names].concat()).unwrap();
        assert!(compat.contains("66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="), "{compat}");
        let why = key(&["derive", from, "--host", "nqn.h"]).unwrap_err().to_string();
        assert!(why.contains("--subsystem"), "{why}");
        let secret = directory.path().join("secret");
        generate_key(KeyKind::Dhchap, KeyHash::Sha256, &secret).unwrap();
        let derived = directory.path().join("derived");
        let line =
            ["derive", secret.to_str().unwrap(), "--host", "nqn.h", "--output", derived.to_str().unwrap()];
        assert_eq!(key(&line).unwrap(), "");
        assert_eq!(fs::read_to_string(derived).unwrap().len(), 65);
    }
}
