//! Reads secrets from the place that a URL names.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use multipath::Secret;
use multipath::url::SecretSource;
use rustix::fs::OFlags;

use crate::error::Error;

/// Longest secret, in bytes.
const SECRET_LEN_MAX: u64 = 1024;

/// Reads one. A line's end behind it does not count.
pub(crate) fn fetch_secret(at: &SecretSource) -> Result<Secret, Error> {
    let bytes = match at {
        SecretSource::File(path) => {
            let named =
                |why: &dyn std::fmt::Display| Error::usage(format!("secret file {}: {why}", path.display()));
            // What is judged is what is read; and nobody is waited for at a pipe's other end.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            let file = file.map_err(|why| named(&why))?;
            let meta = file.metadata().map_err(|why| named(&why))?;
            if !meta.is_file() {
                return Err(named(&"is no regular file"));
            }
            let own = rustix::process::geteuid().as_raw();
            if meta.uid() != own && meta.uid() != 0 {
                return Err(named(&format_args!(
                    "belongs to user {}, who could change it: have it belong to user {own}, or to root",
                    meta.uid()
                )));
            }
            if meta.mode() & 0o077 != 0 {
                return Err(named(&format_args!(
                    "has mode {:04o}: others can use it; chmod 600 it",
                    meta.mode() & 0o7777
                )));
            }
            let mut bytes = Vec::with_capacity(SECRET_LEN_MAX as usize + 1);
            file.take(SECRET_LEN_MAX + 1).read_to_end(&mut bytes).map_err(|why| named(&why))?;
            if bytes.len() as u64 > SECRET_LEN_MAX {
                return Err(named(&format_args!("is longer than {SECRET_LEN_MAX} bytes")));
            }
            bytes
        }
        SecretSource::Environment(name) => match std::env::var_os(name) {
            Some(value) => std::os::unix::ffi::OsStringExt::into_vec(value),
            None => {
                return Err(Error::usage(format!("the environment has no {name}, which holds the secret")));
            }
        },
    };
    let secret = bytes.trim_ascii_end().to_vec();
    drop(multipath::Secret::new(bytes));
    if secret.is_empty() { Err(Error::usage("a secret is empty")) } else { Ok(Secret::new(secret)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_pipe_with_nobody_at_its_end_and_a_device_without_one_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [fifo, "/dev/zero".into(), dir.path().to_owned()] {
            let why = fetch_secret(&SecretSource::File(path.clone())).unwrap_err().message;
            assert!(why.contains("no regular file"), "{}: {why}", path.display());
        }
        let long = dir.path().join("long");
        fs::write(&long, [b'x'; 1025]).unwrap();
        fs::set_permissions(&long, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(fetch_secret(&SecretSource::File(long)).unwrap_err().message.contains("longer"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "topsecretword\n").unwrap();
        let at = SecretSource::File(file.path().to_owned());
        assert_eq!(fetch_secret(&at).unwrap().expose(), b"topsecretword");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let why = fetch_secret(&at).unwrap_err().message;
        assert!(why.contains("0644") && why.contains("chmod 600") && !why.contains("topsecretword"), "{why}");
        assert!(fetch_secret(&SecretSource::File("/nowhere/at/all".into())).is_err());
        let why =
            fetch_secret(&SecretSource::Environment("NO_SUCH_VARIABLE_HERE".into())).unwrap_err().message;
        assert!(why.contains("NO_SUCH_VARIABLE_HERE"));
    }
}
