//! See `tests/hostile/body.rs` of the crate `metrics`.
#![no_main]

#[path = "../../crates/daemon/metrics/tests/hostile/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::http(data));
