//! A path over NVMe/TCP against our own target's side, in one process without sockets.

// As the target's own tests name it.
extern crate shard as blockwire_shard;

#[allow(dead_code)] // The target's own tests use all of it.
#[path = "../../../../server/shard/tests/simulation/rig.rs"]
mod rig;
#[path = "rig_world.rs"]
mod world;

mod discovery;
mod doubt;
mod hostile;
mod losses;
mod operations;
mod proofs;
mod reservations;
mod silent;
mod terms;

use std::sync::Arc;

use blockwire_multipath::nvme::{NvmePath, Settings};
use blockwire_shard::Exports;
use nvme::{HostId, Nqn};

use world::World;

const HOST: &str = "nqn.2026-11.test:host";

/// What a path is told here.
fn settings() -> Settings {
    Settings::new(
        vec!["127.0.0.1:4420".parse().unwrap()],
        Nqn::parse(rig::SUBSYSTEM).unwrap(),
        1,
        Nqn::parse(HOST).unwrap(),
        HostId::new([1; 16]).unwrap(),
    )
}

fn exports() -> Arc<Exports> {
    rig::exports(&rig::Terms::default())
}

/// A world whose path is up.
fn up(settings: Settings) -> World<NvmePath> {
    let mut world = World::new(NvmePath::new(settings), exports());
    world.connect().unwrap();
    world
}
