//! Checks that run in CI.
fn main() {}
