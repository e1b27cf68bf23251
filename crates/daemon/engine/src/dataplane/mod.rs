//! Turns the plan into what the data path's crates take, and runs it.

mod catalog;
pub mod exports;
pub mod inbox;
pub mod logged;
pub mod login;
pub mod medium;
pub mod notes;
mod powers;
mod queues;
mod refusal;
pub mod shards;
pub mod standing;
mod start;
mod subsystems;
mod usage;
pub mod world;

pub use start::start;
