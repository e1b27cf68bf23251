//! Cross-Controller Reset (NVMe Base 2.3 §8.3.3) of a controller that is at another gateway than the one that is asked.

use std::time::Duration;

use nvme::{ControllerInstance, Status};
use sim::{Peer, PeerEnd};
use volume::VolumeId;
use zerocopy::little_endian::U32;

use crate::cluster::{Cluster, Plan, group_of};
use crate::gateway::Gateway;
use crate::hosts::{Ask, End, Host, Side, nvme_sqe};
use crate::scenarios::block;

const VOLUME: VolumeId = VolumeId(0);

/// By what its host may have this controller reset, as Identify Controller tells it.
fn instance(cluster: &mut Cluster, host: &mut Host) -> ControllerInstance {
    let mut identify = nvme_sqe(0x06, 0);
    (identify.nsid, identify.cdw10[0]) = (U32::new(0), U32::new(1));
    let (status, _, data) = host.ask_queue(cluster, 0, identify, &[], 4096);
    assert!(status.is_success());
    let random_number = u64::from_le_bytes(data[136..144].try_into().unwrap());
    let cntlid = u16::from_le_bytes(data[78..80].try_into().unwrap());
    ControllerInstance { cntlid, uniquifier: data[135], random_number }
}

/// Has a controller reset, as another one of its host.
fn reset(cluster: &mut Cluster, by: &mut Host, lost: ControllerInstance) -> (Status, u64) {
    let (status, result, _) = by.ask_queue(cluster, 0, lost.to_reset_sqe(), &[], 0);
    (Status(status.0 & 0x7ff), result)
}

fn has_ended(cluster: &Cluster, host: &Host) -> bool {
    let gateway = host.gateway;
    let Side::Nvme { pipes, .. } = &host.side else { panic!("a host of NVMe") };
    let world = &cluster.gateways[gateway].world;
    pipes.iter().all(|pipe| world.peer_end(Peer(pipe.at)) != PeerEnd::Open)
}

/// What the lost controller had under way is over when the reset is: here a write, and the controller itself.
#[test]
fn a_controller_is_reset_through_another_gateway() {
    for seed in 0..4 {
        let mut cluster = Cluster::new(Plan::new(seed));
        for gateway in 0..3 {
            let number = 0x21 + gateway as u8;
            let mut lost = Host::nvme(&mut cluster, gateway, number);
            let mut other = Host::nvme(&mut cluster, (gateway + 1) % 3, number);
            let meant = instance(&mut cluster, &mut lost);
            lost.send(&mut cluster, 0, &Ask::Write { lba: 7, data: block(1) });
            assert_eq!(reset(&mut cluster, &mut other, meant), (Status::SUCCESS, 1), "seed {seed}");
            cluster.run_for(Duration::from_millis(1));
            assert!(has_ended(&cluster, &lost), "seed {seed}: gateway {gateway} serves it still");
            assert_eq!(other.write(&mut cluster, 0, 7, block(2)), End::Good(vec![]));
            cluster.run_for(Duration::from_millis(20));
            assert!(other.read(&mut cluster, 0, 7, 1) == block(2), "seed {seed}: a write of it came later");
            // It is gone, and may be asked for again.
            assert_eq!(reset(&mut cluster, &mut other, meant), (Status::SUCCESS, 1));
        }
    }
}

/// A gateway that was killed executes nothing, but what it had given to the store, or to the owner, may still land: so the
/// reset is complete when the gateway is barred, all groups are served, and their owners have ended what came from it.
#[test]
fn a_controller_of_a_killed_gateway_is_gone_when_its_groups_are_served() {
    for seed in 0..6 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let owner = cluster.owner(VOLUME);
        // The owner, or one that forwards to it.
        let gateway = (owner + seed as usize % 2) % 3;
        let mut lost = Host::nvme(&mut cluster, gateway, 0x21);
        let mut other = Host::nvme(&mut cluster, (gateway + 1) % 3, 0x21);
        let meant = instance(&mut cluster, &mut lost);
        lost.send(&mut cluster, 0, &Ask::Write { lba: 7, data: block(1) });
        cluster.run_for(Duration::from_micros(200));
        let begun = cluster.gateways[other.gateway].now();
        cluster.kill(gateway, false);
        assert_eq!(reset(&mut cluster, &mut other, meant), (Status::SUCCESS, 1), "seed {seed}");
        let serves = |one: &Gateway| !one.ended && one.member.serves(group_of(VOLUME)).is_some();
        assert!(cluster.gateways.iter().any(serves), "seed {seed}: nobody serves the volume yet");
        let barred = cluster.gateways[gateway].instance;
        assert!(cluster.images[&VOLUME].state().barred.contains(&barred), "seed {seed}: it is not barred");
        let took = cluster.gateways[other.gateway].now().since(begun);
        assert!(took < Duration::from_secs(1), "seed {seed}: {took:?}");
        assert_eq!(other.write(&mut cluster, 0, 7, block(2)), End::Good(vec![]));
        cluster.run_for(Duration::from_millis(20));
        assert!(other.read(&mut cluster, 0, 7, 1) == block(2), "seed {seed}: a write of it came later");
        assert_eq!(cluster.stale(), 0);
    }
}

/// Success would tell the host that nothing of it is left.
#[test]
fn a_controller_that_no_gateway_knows_is_not_reset() {
    let mut cluster = Cluster::new(Plan::new(3));
    let mut host = Host::nvme(&mut cluster, 0, 0x21);
    let unknown = ControllerInstance { cntlid: 0x4000, uniquifier: 1, random_number: 1 };
    assert_eq!(reset(&mut cluster, &mut host, unknown).0, Status::INTERNAL_ERROR);
    // Another host's, at another gateway.
    let mut stranger = Host::nvme(&mut cluster, 1, 0x22);
    let not_its_own = instance(&mut cluster, &mut stranger);
    assert_eq!(reset(&mut cluster, &mut host, not_its_own).0, Status::INVALID_FIELD);
    assert!(!has_ended(&cluster, &stranger));
}
