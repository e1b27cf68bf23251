//! See `testkit::fuzz::iscsi::headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::headers(data));
