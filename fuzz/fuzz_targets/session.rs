//! See `bodies::session`.
#![no_main]

#[path = "../../crates/server/shard/tests/corpus/bodies.rs"]
#[allow(dead_code)]
mod bodies;
#[path = "../../crates/server/shard/tests/simulation/rig.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::session(data));
