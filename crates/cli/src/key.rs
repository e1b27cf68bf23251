//! `blockwire host key`: writes a random secret for DH-HMAC-CHAP to a file that no other user can read (NVMe
//! Base §8.3.5.5.8). The secret is never printed.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nvme::auth::{Hash, Secret};

use process::{exit::Failure, random};

/// Hashes of DH-HMAC-CHAP secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyHash {
    /// None: 32 bytes.
    None,
    /// SHA-256: 32 bytes.
    #[default]
    Sha256,
    /// SHA-384: 48 bytes.
    Sha384,
    /// SHA-512: 64 bytes.
    Sha512,
}

/// Draws a secret into a new file.
pub fn draw(hash: KeyHash, path: &Path) -> Result<(), Failure> {
    let hash = match hash {
        KeyHash::None => None,
        KeyHash::Sha256 => Some(Hash::Sha256),
        KeyHash::Sha384 => Some(Hash::Sha384),
        KeyHash::Sha512 => Some(Hash::Sha512),
    };
    let mut drawn = Ok(());
    let secret = Secret::generate(hash, &mut |bytes| drawn = random::fill(bytes));
    drawn.map_err(Failure::failed)?;
    write(path, &secret).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => Failure::failed(format!(
            "{} exists, and hosts may be using its secret; name another file, or remove it first",
            path.display()
        )),
        _ => Failure::failed(format!("cannot write {}: {why}", path.display())),
    })
}

/// The file is private from its first moment, and whole or not there.
fn write(path: &Path, secret: &Secret) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let text = secret.to_text();
    let written =
        file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_secret_is_private_fresh_and_of_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        for (hash, begins, length) in [
            (KeyHash::None, "DHHC-1:00:", 48),
            (KeyHash::Sha256, "DHHC-1:01:", 48),
            (KeyHash::Sha384, "DHHC-1:02:", 72),
            (KeyHash::Sha512, "DHHC-1:03:", 92),
        ] {
            let path = directory.path().join(begins);
            draw(hash, &path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            Secret::parse(&text).unwrap();
            assert!(text.starts_with(begins) && text.ends_with(":\n"));
            assert_eq!(text.len(), begins.len() + length + 2);
            seen.push(text[10..30].to_owned());
        }
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_secret_in_use_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "mine").unwrap();
        let why = draw(KeyHash::Sha256, &path).unwrap_err().to_string();
        assert!(why.contains("exists") && why.contains("name another file"), "{why}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let why = draw(KeyHash::Sha256, &directory.path().join("no/key")).unwrap_err().to_string();
        assert!(why.contains("cannot write") && why.contains("No such file"), "{why}");
    }
}
