//! Gateways of a group in the simulated world: shards and members as they ship, hosts of both protocols at each gateway,
//! and a store that is simulated.

mod aborts;
mod cluster;
mod gateway;
mod history;
mod hosts;
mod image;
mod planted;
mod resets;
mod scenarios;
mod store;
