//! See `testkit::fuzz::nvme_tcp::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::nvme_tcp::records(data));
