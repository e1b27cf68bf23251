//! Turns the plan into what the data path's crates take. Pure: nothing here is opened or started.

pub mod login;
pub mod world;
