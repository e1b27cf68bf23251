//! Turns the plan into the types of the data path's crates, and runs it.

mod allocation_watcher;
mod catalog;
mod catalog_volume;
mod compute;
mod engine;
pub mod exports;
mod generated_psks;
pub mod group;
mod hand_over;
pub mod inbox;
pub mod latency;
pub mod log_lines;
pub mod login;
pub mod medium;
mod nvme_queues;
mod observation;
pub mod prepared;
pub mod reactor_settings;
mod refusal;
pub mod shards;
mod start;
mod subsystems;
pub mod sync_failures;
mod taken_over;
mod tls_keys;
mod volume_index;
pub mod volume_state;

pub use start::start_shards;
