//! See `testkit::fuzz::nvme_tcp::pdus`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::nvme_tcp::pdus(data));
