//! Fetching secrets from where a URL says they are.

use std::fs;
use std::os::unix::fs::MetadataExt;

use host::Secret;
use host::url::SecretAt;

use crate::error::Error;

/// Longest secret, in bytes.
const LEN_MAX: u64 = 1024;

/// Reads one. A line's end behind it does not count.
pub(crate) fn fetch(at: &SecretAt) -> Result<Secret, Error> {
    let bytes = match at {
        SecretAt::File(path) => {
            let named =
                |why: &dyn std::fmt::Display| Error::usage(format!("secret file {}: {why}", path.display()));
            let meta = fs::metadata(path).map_err(|why| named(&why))?;
            if meta.mode() & 0o077 != 0 {
                return Err(named(&format_args!(
                    "has mode {:04o}: others can use it; chmod 600 it",
                    meta.mode() & 0o7777
                )));
            }
            if meta.len() > LEN_MAX {
                return Err(named(&format_args!("is longer than {LEN_MAX} bytes")));
            }
            fs::read(path).map_err(|why| named(&why))?
        }
        SecretAt::Environment(name) => match std::env::var_os(name) {
            Some(value) => std::os::unix::ffi::OsStringExt::into_vec(value),
            None => {
                return Err(Error::usage(format!("the environment has no {name}, which holds the secret")));
            }
        },
    };
    let secret = bytes.trim_ascii_end().to_vec();
    drop(host::Secret::new(bytes));
    if secret.is_empty() { Err(Error::usage("a secret is empty")) } else { Ok(Secret::new(secret)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "topsecretword\n").unwrap();
        let at = SecretAt::File(file.path().to_owned());
        assert_eq!(fetch(&at).unwrap().expose(), b"topsecretword");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let why = fetch(&at).unwrap_err().message;
        assert!(why.contains("0644") && why.contains("chmod 600") && !why.contains("topsecretword"), "{why}");
        assert!(fetch(&SecretAt::File("/nowhere/at/all".into())).is_err());
        let why = fetch(&SecretAt::Environment("NO_SUCH_VARIABLE_HERE".into())).unwrap_err().message;
        assert!(why.contains("NO_SUCH_VARIABLE_HERE"));
    }
}
