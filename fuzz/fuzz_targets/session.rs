//! See `testkit::fuzz::iscsi::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::session(data));
