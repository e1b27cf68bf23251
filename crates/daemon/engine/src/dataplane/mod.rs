//! Turns the plan into the types of the data path's crates, and runs it.

mod catalog;
mod compute;
pub mod exports;
mod generated_psks;
pub mod inbox;
pub mod latency;
pub mod log_lines;
pub mod login;
pub mod medium;
pub mod notes;
mod observed;
pub mod prepared;
mod queues;
mod refusal;
pub mod shards;
mod start;
mod subsystems;
mod tls_keys;
mod usage;
pub mod volume_state;
pub mod world;

pub use start::start;
