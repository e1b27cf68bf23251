//! See `testkit::fuzz::nvme_tcp::capsules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::nvme_tcp::capsules(data));
