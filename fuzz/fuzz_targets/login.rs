//! See `testkit::fuzz::iscsi::login`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::login(data));
