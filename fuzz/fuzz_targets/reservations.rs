//! See `testkit::fuzz::iscsi::reservations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::reservations(data));
