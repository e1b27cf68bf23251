//! `blockwire key`: keys of NVMe as text in files: secrets of DH-HMAC-CHAP (NVMe Base §8.3.5.5.8) and
//! pre-shared keys of TLS (NVMe/TCP Transport 1.1 §3.6.1.5).
//!
//! Invariant: a key is read from a file or from standard input, and written to a new file that no other user can
//! read. None is printed, and none is an argument.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use nvme::{
    Nqn,
    auth::{DhchapSecret, Hash},
    tls::{CipherSuite, ConfiguredPsk, HkdfLabelFormat, IdentityVersion},
};
use zeroize::Zeroizing;

use process::{exit::Failure, random};

/// No key's text is longer, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 4096;

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
        KeyVerb::Generate { kind, hash, file } => generate_key(*kind, *hash, file).map(|()| String::new()),
        KeyVerb::Check { file } => check_key(file),
        KeyVerb::Derive { file, host, subsystem, identity, suite, derivation, output } => {
            let (text, _) = read_key(file)?;
            let owner = (host.as_ref(), subsystem.as_ref());
            match parse_key(&text, file)? {
                AnyKey::Dhchap(secret) => derive_dhchap(&secret, owner, output.as_deref()),
                AnyKey::Tls(key) => {
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
                    derive_tls(&key, owner, how, output.as_deref())
                }
            }
        }
    }
}

/// Draws a key into a new file.
pub fn generate_key(kind: KeyKind, hash: Option<KeyHash>, path: &Path) -> Result<(), Failure> {
    let hash = match hash.unwrap_or(KeyHash::Sha256) {
        KeyHash::None => None,
        KeyHash::Sha256 => Some(Hash::Sha256),
        KeyHash::Sha384 => Some(Hash::Sha384),
        KeyHash::Sha512 => Some(Hash::Sha512),
    };
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

enum AnyKey {
    Dhchap(DhchapSecret),
    Tls(ConfiguredPsk),
}

/// The text of a key, and whether others can read its file.
fn read_key(path: &Path) -> Result<(Zeroizing<String>, bool), Failure> {
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
    Ok((text.map_err(|_| Failure::failed(format!("{} holds no text", path.display())))?, shared))
}

fn parse_key(text: &str, path: &Path) -> Result<AnyKey, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::failed(format!("{}: {why}", path.display()));
    if text.trim_ascii_start().starts_with("DHHC-1:") {
        return DhchapSecret::parse(text).map(AnyKey::Dhchap).map_err(|why| wrong(&why));
    }
    if text.trim_ascii_start().starts_with("NVMeTLSkey-1:") {
        return ConfiguredPsk::parse(text).map(AnyKey::Tls).map_err(|why| wrong(&why));
    }
    Err(wrong(&"holds no key: neither DHHC-1:hh:BASE64: nor NVMeTLSkey-1:hh:BASE64:"))
}

fn check_key(path: &Path) -> Result<String, Failure> {
    let (text, shared) = read_key(path)?;
    let (kind, transform, len) = match parse_key(&text, path)? {
        AnyKey::Dhchap(secret) => ("dhchap", secret.transform(), secret.len()),
        AnyKey::Tls(key) => ("tls", key.transform(), key.len()),
    };
    let hash = transform.map_or("none".to_owned(), |hash| hash.to_string());
    let mut said = format!("kind    {kind}\nhash    {hash}\nlength  {len} bytes\n");
    if shared {
        let _ = writeln!(said, "other users can read {0}; run: chmod 600 {0}", path.display());
    }
    Ok(said)
}

fn derive_dhchap(
    secret: &DhchapSecret,
    (host, subsystem): (Option<&Nqn>, Option<&Nqn>),
    output: Option<&Path>,
) -> Result<String, Failure> {
    let owner = match (host, subsystem) {
        (Some(owner), None) | (None, Some(owner)) => owner,
        _ => {
            return Err(Failure::usage("a DH-HMAC-CHAP key needs --host or --subsystem, not both"));
        }
    };
    let output =
        output.ok_or_else(|| Failure::usage("name a new file with --output; the key is not printed"))?;
    write_key(output, &to_hex(secret.derive_key(owner.as_str()).bytes()))?;
    Ok(String::new())
}

fn derive_tls(
    key: &ConfiguredPsk,
    (host, subsystem): (Option<&Nqn>, Option<&Nqn>),
    (version, suite, derivation): (IdentityVersion, CipherSuite, HkdfLabelFormat),
    output: Option<&Path>,
) -> Result<String, Failure> {
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
    Ok(format!("{identity}\n"))
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

/// The file is private from its first moment, and whole or not there.
pub(crate) fn create_private_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    // Its name, too, is to outlive a power failure.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = written.and_then(|()| File::open(parent)?.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
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
        let why = generate_key(KeyKind::Tls, None, &path).unwrap_err().to_string();
        assert!(why.contains("exists") && why.contains("name another file"), "{why}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let why =
            generate_key(KeyKind::Dhchap, None, &directory.path().join("no/key")).unwrap_err().to_string();
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
        generate_key(KeyKind::Dhchap, Some(KeyHash::Sha256), &secret).unwrap();
        let derived = directory.path().join("derived");
        let line =
            ["derive", secret.to_str().unwrap(), "--host", "nqn.h", "--output", derived.to_str().unwrap()];
        assert_eq!(key(&line).unwrap(), "");
        assert_eq!(fs::read_to_string(derived).unwrap().len(), 65);
    }
}
