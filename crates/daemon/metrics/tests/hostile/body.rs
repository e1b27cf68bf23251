//! Arbitrary bytes as an HTTP request. The first byte says whether it came by an address of this machine alone.
//!
//! Holds: an answer depends on nothing behind it; a request that is refused or complete is so at its first byte that
//! makes it that.

use blockwire_metrics::request::parse;

/// One input.
pub fn http(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let is_loopback = first & 1 != 0;
    let whole = parse(bytes, is_loopback);
    // As it arrives, in pieces.
    let step = 1 + usize::from(first >> 1);
    for end in (0..bytes.len()).step_by(step) {
        match parse(&bytes[..end], is_loopback) {
            Ok(None) => {}
            earlier => {
                assert_eq!(earlier, whole, "what follows a request changes it");
                return;
            }
        }
    }
}
