//! See `testkit::fuzz::local::nbd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::local::nbd(data));
