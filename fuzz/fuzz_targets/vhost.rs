//! See `bodies::vhost`.
#![no_main]

#[path = "../../crates/attach/tests/corpus/bodies.rs"]
#[allow(dead_code)]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::vhost(data));
