//! See `testkit::fuzz::iscsi::text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::text(data));
