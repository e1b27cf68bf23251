//! See `testkit::fuzz::iscsi::cdb`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::iscsi::cdb(data));
