//! Text on standard output.

use std::io::{self, Write};

use crate::exit::Failure;
use crate::printable;

/// Prints it; a reader that has gone is no failure of ours.
///
/// # Errors
/// Standard output takes no more.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(printable::escape_lines(text).as_bytes()).and_then(|()| io::stdout().flush())
    {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {why}")))
        }
        _ => Ok(()),
    }
}
