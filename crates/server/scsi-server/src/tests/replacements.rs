//! Nexuses that go on in another process.

use super::*;
use crate::{NexusRestoreError, NexusSnapshot};

impl World {
    /// Another process' server of a shard, for the same volumes.
    fn successor(&self, shard: usize) -> Server {
        let mut server = Server::new(ShardId(shard as u16));
        for (at, (home, shared)) in self.homes.iter().zip(&self.shared).enumerate() {
            let spec = UnitSpec {
                volume: VolumeId(at as u64),
                uuid: Uuid(uuid(at as u8)),
                oui: None,
                removable: false,
                rpm: 0,
                task_aborted_status: true,
                shared: shared.clone(),
            };
            server.add_unit(spec, home.view().clone());
        }
        server
    }

    fn saved(&self, host: Host) -> NexusSnapshot {
        let server = &self.cores[host.shard].server;
        assert_eq!(server.work_count(), 0);
        server.save_nexus(host.key)
    }
}

/// What two hosts are told after this: one that has heard of its power on, and one that has not.
fn told(replaced: bool) -> Vec<(u32, Vec<u8>)> {
    let mut world = World::new(1);
    for _ in 0..2 {
        world.add(4096, |_| {});
    }
    let mut old = world.host(0, "iqn.old", &[0, 1]);
    let mut fresh = world.fresh_host(0, "iqn.fresh", 1, &[0]);
    world.good(old, &[0x3b, 0x0a, 0, 0, 0, 0, 0, 0, 8, 0], &[7; 8], 0);
    world.request(VolumeId(1), VolumeRequest::WriteProtect(true));
    world.run();
    if replaced {
        let (of_old, of_fresh) = (world.saved(old), world.saved(fresh));
        let mut next = world.successor(0);
        old.key = next.restore_nexus(World::nexus_spec("iqn.old", 1, &[]), &of_old).unwrap();
        fresh.key = next.restore_nexus(World::nexus_spec("iqn.fresh", 1, &[]), &of_fresh).unwrap();
        world.cores[0].server = next;
        assert_eq!((world.saved(old), world.saved(fresh)), (of_old, of_fresh));
    }
    let read_echo = [0x3c, 0x0a, 0, 0, 0, 0, 0, 0, 8, 0];
    let asked: [(Host, u16, &[u8], u32); 6] = [
        (old, 0, &[0; 6], 0),
        (old, 1, &[0; 6], 0),
        (old, 1, &[0; 6], 0),
        (old, 0, &read_echo, 8),
        (fresh, 0, &[0; 6], 0),
        (fresh, 0, &[0; 6], 0),
    ];
    let ask = |(host, lun, cdb, room): (Host, u16, &[u8], u32)| {
        let outcome = world.command_on(host, lun, cdb, &[], room);
        (outcome.code(), outcome.data)
    };
    asked.map(ask).to_vec()
}

#[test]
fn hosts_are_told_the_same_by_another_process() {
    let expected = told(false);
    assert_ne!(expected[1].0, 0, "there is news of a volume");
    assert_eq!((expected[3].1.as_slice(), expected[4].0), (&[7; 8][..], 0x06_2900));
    assert_eq!(told(true), expected);
}

#[test]
fn a_nexus_of_another_port_or_of_a_volume_that_is_gone_is_not_mixed_up() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.host(0, "iqn.host", &[0]);
    let saved = world.saved(host);
    let mut next = world.successor(0);
    let other = World::nexus_spec("iqn.host", 2, &[]);
    assert_eq!(next.restore_nexus(other, &saved).err(), Some(NexusRestoreError::OtherPort));
    let mut next = Server::new(ShardId(0));
    let key = next.restore_nexus(World::nexus_spec("iqn.host", 1, &[]), &saved).unwrap();
    world.cores[0].server = next;
    let outcome = world.command(Host { shard: 0, key }, &[0; 6], &[], 0);
    assert_ne!(outcome.code(), 0, "its volume is away");
}
