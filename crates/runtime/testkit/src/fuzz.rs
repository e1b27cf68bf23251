//! The common code of fuzzers, stored seeds and property tests. Each function takes arbitrary bytes and
//! panics if an invariant does not hold; `fuzz/fuzz_targets` has a target for each.

#[cfg(feature = "shard")]
pub mod iscsi;
#[cfg(feature = "block-device")]
pub mod local;
#[cfg(feature = "nvme-server")]
pub mod nvme_server;
#[cfg(feature = "nvme-tcp")]
pub mod nvme_tcp;
