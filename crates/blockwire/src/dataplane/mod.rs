//! Turns the plan into what the data path's crates take, and runs it.

pub mod exports;
pub mod inbox;
pub mod logged;
pub mod login;
pub mod medium;
pub mod shards;
pub mod world;
