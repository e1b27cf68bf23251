//! See `bodies::commands`.
#![no_main]

#[path = "../../crates/server/nvme-server/tests/corpus/bodies.rs"]
#[allow(dead_code)]
mod bodies;
#[path = "../../crates/server/nvme-server/tests/corpus/rig.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::commands(data));
