//! See `bodies::nbd`.
#![no_main]

#[path = "../../crates/initiator/block-device/tests/corpus/bodies.rs"]
#[allow(dead_code)]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::nbd(data));
