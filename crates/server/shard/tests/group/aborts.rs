//! A host does not want a command any more that is with the group.

use std::time::Duration;

use iscsi::wire::TmfFunction;
use volume::VolumeId;

use crate::cluster::{Cluster, Plan, group_of};
use crate::hosts::{Ask, End, Host, Side};
use crate::scenarios::block;

const VOLUME: VolumeId = VolumeId(0);

/// A write that is held, because its volume has no owner, ends when its task is aborted, and is never carried out.
#[test]
fn an_aborted_task_that_is_held_ends_at_once() {
    let mut cluster = Cluster::new(Plan { gateways: 2, ..Plan::new(5) });
    let before = cluster.owner(VOLUME);
    let other = 1 - before;
    let mut host = Host::scsi(&mut cluster, other, 1);
    host.read(&mut cluster, 0, 0, 1);
    let bystander = cluster.gateways[other].instance;
    cluster.cut(before, other);
    cluster.gateways[before].stopped = true;
    cluster.store.cut.insert(bystander);
    cluster.run_for(Duration::from_millis(1));
    let write = Ask::Write { lba: 5, data: block(3) };
    // That the path is in transition is told first.
    host.send(&mut cluster, 0, &write);
    cluster.run_for(Duration::from_millis(5));
    host.poll(&mut cluster);
    host.send(&mut cluster, 0, &write);
    cluster.run_for(Duration::from_millis(5));
    host.poll(&mut cluster);
    let Side::Scsi(initiator) = &mut host.side else { unreachable!("a host of iSCSI") };
    let held = initiator.tasks_in_flight();
    assert_eq!(held.len(), 1, "one write is held");
    let world = &mut cluster.gateways[other].world;
    let (abort, _) = initiator.send_task_management(world, TmfFunction::ABORT_TASK, 0, held[0]);
    let begun = cluster.gateways[other].now();
    cluster.until("the abort's response", |cluster| {
        initiator.poll(&mut cluster.gateways[other].world);
        initiator.managed.iter().any(|(itt, _)| *itt == abort)
    });
    let took = cluster.gateways[other].now().since(begun);
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(cluster.gateways[other].cancelled, 1);
    initiator.forget_task(held[0]);
    cluster.store.cut.clear();
    cluster.until("an owner", |cluster| cluster.gateways[other].member.serves(group_of(VOLUME)).is_some());
    cluster.run_for(Duration::from_millis(50));
    assert_eq!(host.ask(&mut cluster, 0, &Ask::Read { lba: 5, blocks: 1 }), End::Good(block(0)));
}
