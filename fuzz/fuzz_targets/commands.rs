//! See `testkit::fuzz::nvme_server::commands`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testkit::fuzz::nvme_server::commands(data));
