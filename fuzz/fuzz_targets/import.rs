//! See `tests/hostile/body.rs` of the crate `import`.
#![no_main]

#[path = "../../crates/daemon/import/tests/hostile/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::import(data));
