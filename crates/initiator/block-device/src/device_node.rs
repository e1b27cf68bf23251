//! Device nodes, and the reasons why one may be missing.

use std::fs::File;
use std::io;
use std::path::Path;

/// Whether a device can be opened; if it is not there, what that means.
pub(crate) fn check_openable(path: &str, if_missing: &str) -> io::Result<()> {
    match File::options().read(true).write(true).open(Path::new(path)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{path} does not exist: {if_missing}")))
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}
