//! What is asked of the monitors by a connected client, and what it says of itself. These calls wait for the cluster,
//! without a limit.

use std::ffi::c_char;
use std::ptr;

use crate::Library;
use crate::client::{Client, check, error, text};
use crate::open_error::OpenError;

impl Client {
    /// The addresses of this client, as a blocklist names it: `ADDRESS:PORT/NONCE`.
    ///
    /// # Errors
    /// The library's.
    pub fn addresses(&self, library: &Library) -> Result<Vec<String>, OpenError> {
        let functions = library.objects()?;
        let mut said = ptr::null_mut::<c_char>();
        // SAFETY: a connected cluster, and a place for the string.
        check("read the client's addresses", unsafe {
            (functions.rados_getaddrs)(self.handle(), &raw mut said)
        })?;
        // SAFETY: a string of librados.
        let text = unsafe { crate::client::string(said) };
        // SAFETY: librados has made it with malloc.
        unsafe { libc::free(said.cast()) };
        Ok(parse_addresses(&text))
    }

    /// Asks the monitors, in JSON, and waits for the answer.
    ///
    /// # Errors
    /// The monitors' error number, with what they said.
    pub fn ask_monitors(&self, library: &Library, command: &str) -> Result<Vec<u8>, OpenError> {
        let functions = library.objects()?;
        let command = text(command)?;
        let commands = [command.as_ptr()];
        let (mut out, mut said) = (ptr::null_mut::<c_char>(), ptr::null_mut::<c_char>());
        let (mut out_len, mut said_len) = (0, 0);
        // SAFETY: a connected cluster, a list of one valid string, no input, and places for what comes.
        let result = unsafe {
            (functions.rados_mon_command)(
                self.handle(),
                commands.as_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &raw mut out,
                &raw mut out_len,
                &raw mut said,
                &raw mut said_len,
            )
        };
        let taken = [(out, out_len), (said, said_len)].map(|(memory, len)| {
            if memory.is_null() {
                return Vec::new();
            }
            // SAFETY: librados says how many bytes there are; it takes them back after that.
            unsafe {
                let bytes = std::slice::from_raw_parts(memory.cast::<u8>(), len).to_vec();
                (functions.rados_buffer_free)(memory);
                bytes
            }
        });
        let [out, said] = taken;
        if result < 0 {
            return Err(OpenError::Monitors(String::from_utf8_lossy(&said).into_owned(), error(result)));
        }
        Ok(out)
    }

    /// Waits until this client has the latest map of the cluster.
    ///
    /// # Errors
    /// The library's.
    pub fn wait_for_latest_map(&self, library: &Library) -> Result<(), OpenError> {
        // SAFETY: a connected cluster.
        let waited = unsafe { (library.0.rados_wait_for_latest_osdmap)(self.handle()) };
        check("wait for the latest map of the cluster", waited)
    }
}

/// `[v2:10.0.0.1:0/77,v1:10.0.0.1:0/77]` names one address twice; a blocklist knows no versions.
fn parse_addresses(text: &str) -> Vec<String> {
    let inside = text.trim().trim_start_matches('[');
    let inside = match inside.strip_suffix(']') {
        // `[::1]:0/77` without a version does not end with a bracket.
        Some(inside) => inside,
        None => text.trim(),
    };
    let mut addresses: Vec<String> = Vec::new();
    for one in inside.split(',') {
        let address =
            ["v1:", "v2:", "any:"].iter().find_map(|version| one.strip_prefix(version)).unwrap_or(one);
        if !address.is_empty() && !addresses.iter().any(|known| known == address) {
            addresses.push(address.to_owned());
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::parse_addresses;

    #[test]
    fn addresses_are_told_as_a_blocklist_names_them() {
        assert_eq!(parse_addresses("127.0.0.1:0/1159155958"), ["127.0.0.1:0/1159155958"]);
        assert_eq!(parse_addresses("v1:10.0.0.1:0/7"), ["10.0.0.1:0/7"]);
        assert_eq!(parse_addresses("[v2:10.0.0.1:0/7,v1:10.0.0.1:0/7]"), ["10.0.0.1:0/7"]);
        assert_eq!(parse_addresses("[v2:10.0.0.1:0/7,v1:10.0.0.2:0/8]"), ["10.0.0.1:0/7", "10.0.0.2:0/8"]);
        assert_eq!(parse_addresses("v2:[fd00::1]:0/7"), ["[fd00::1]:0/7"]);
        assert_eq!(parse_addresses("[fd00::1]:0/7"), ["[fd00::1]:0/7"]);
        assert!(parse_addresses("").is_empty());
    }
}
