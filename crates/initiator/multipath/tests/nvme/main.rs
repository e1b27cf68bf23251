//! A path over NVMe/TCP against our own target's side, in one process without sockets.

mod cross_resets;
mod discovery;
mod discovery_watch;
mod doubt;
mod hostile;
mod losses;
mod operations;
mod proofs;
mod raw_commands;
mod reservations;
mod silent;
mod terms;
mod world;

use std::sync::Arc;

use blockwire_multipath::nvme::{NvmePath, Settings};
use nvme::{HostId, Nqn};
use shard::Exports;

use testkit::target;
use world::World;

const HOST: &str = "nqn.2026-11.test:host";

/// What a path is told here.
fn settings() -> Settings {
    Settings::new(
        vec!["127.0.0.1:4420".parse().unwrap()],
        Nqn::parse(target::SUBSYSTEM_NQN).unwrap(),
        1,
        Nqn::parse(HOST).unwrap(),
        HostId::new([1; 16]).unwrap(),
    )
}

fn exports() -> Arc<Exports> {
    target::build_exports(&target::TargetLimits::default())
}

/// A world whose path is up.
fn up(settings: Settings) -> World<NvmePath> {
    let mut world = World::new(NvmePath::new(settings), exports());
    world.connect().unwrap();
    world
}
