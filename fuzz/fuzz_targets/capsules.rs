//! See `bodies::capsules`.
#![no_main]

#[path = "../../crates/protocol/nvme-tcp/tests/corpus/bodies.rs"]
#[allow(dead_code)]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::capsules(data));
