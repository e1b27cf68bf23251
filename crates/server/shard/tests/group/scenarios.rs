//! What hosts of the gateways see, one event at a time.

use std::time::Duration;

use blockwire_shard::{ControlReport, QuiesceBlocker};
use volume::VolumeId;
use zerocopy::little_endian::U32;

use crate::cluster::{Cluster, Plan, group_of};
use crate::gateway::port_of;
use crate::hosts::{Ask, End, Host, Side, nvme_sqe};

const VOLUME: VolumeId = VolumeId(0);

pub fn block(mark: u8) -> Vec<u8> {
    vec![mark; 512]
}

/// One host of each protocol at each gateway.
pub fn hosts(cluster: &mut Cluster) -> Vec<Host> {
    let gateways = cluster.gateways.len();
    let mut hosts = Vec::new();
    for gateway in 0..gateways {
        hosts.push(Host::scsi(cluster, gateway, 1 + gateway as u8));
        hosts.push(Host::nvme(cluster, gateway, 0x11 + gateway as u8));
    }
    // The unit attentions of new nexuses.
    for host in &mut hosts {
        host.read(cluster, 0, 0, 1);
        host.told.clear();
    }
    hosts
}

#[test]
fn what_is_written_through_one_gateway_is_read_through_all() {
    for seed in 0..8 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let mut hosts = hosts(&mut cluster);
        for writer in 0..hosts.len() {
            let (lba, mark) = (writer as u64, 0x40 + writer as u8);
            let data = [block(mark), block(mark + 1)].concat();
            assert_eq!(hosts[writer].write(&mut cluster, 0, 2 * lba, data.clone()), End::Good(vec![]));
            for reader in &mut hosts {
                assert!(reader.read(&mut cluster, 0, 2 * lba, 2) == data, "seed {seed}: {writer}");
            }
        }
        let owner = cluster.owner(VOLUME);
        for (number, gateway) in cluster.gateways.iter().enumerate() {
            assert_eq!(number == owner, gateway.submitted == 0, "seed {seed}: the owner submits nothing");
        }
    }
}

#[test]
fn a_reservation_holds_at_every_gateway_and_is_the_same_everywhere() {
    for seed in 0..8 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let mut hosts = hosts(&mut cluster);
        // An iSCSI host and an NVMe host of other gateways, wherever the owner is.
        for first in 0..3 {
            let (one, other, third) = (2 * first, 2 * ((first + 1) % 3) + 1, 2 * ((first + 2) % 3));
            let (key, second) = (0xa0 + first as u64, 0xb0 + first as u64);
            let good = End::Good(vec![]);
            let mut ask = |cluster: &mut Cluster, host: usize, ask: Ask| hosts[host].ask(cluster, 0, &ask);
            assert_eq!(ask(&mut cluster, one, Ask::Register { key }), good);
            assert_eq!(ask(&mut cluster, one, Ask::Reserve { key }), good);
            let write = || Ask::Write { lba: 1, data: block(1) };
            assert_eq!(ask(&mut cluster, other, write()), End::Conflict, "seed {seed}");
            assert_eq!(ask(&mut cluster, third, write()), End::Conflict, "seed {seed}");
            assert_eq!(ask(&mut cluster, one, write()), good);
            assert_eq!(ask(&mut cluster, other, Ask::Register { key: second }), good);
            for host in &mut hosts {
                assert_eq!(host.keys(&mut cluster, 0), [key, second], "seed {seed}: host {}", host.number);
            }
            // Registrants may write.
            let mut ask = |cluster: &mut Cluster, host: usize, ask: Ask| hosts[host].ask(cluster, 0, &ask);
            assert_eq!(ask(&mut cluster, other, write()), good, "seed {seed}");
            assert_eq!(ask(&mut cluster, other, Ask::Preempt { key: second, victim: key }), good);
            hosts[one].told.clear();
            let mut ask = |cluster: &mut Cluster, host: usize, ask: Ask| hosts[host].ask(cluster, 0, &ask);
            assert_eq!(ask(&mut cluster, one, write()), End::Conflict, "seed {seed}");
            // REGISTRATIONS PREEMPTED: told before the conflict, or, if the command was on its way to the owner by
            // then, with the next one.
            assert_eq!(ask(&mut cluster, one, write()), End::Conflict, "seed {seed}");
            assert!(hosts[one].told.contains(&[0x2a, 5]), "seed {seed}: {:x?}", hosts[one].told);
            for host in &mut hosts {
                assert_eq!(host.keys(&mut cluster, 0), [second], "seed {seed}: host {}", host.number);
            }
            let unregister = Ask::Register { key: 0 };
            if let Side::Nvme { .. } = &hosts[other].side {
                // Unregister.
                let mut sqe = nvme_sqe(0x0d, 0);
                sqe.cdw10[0] = U32::new(1 | 1 << 3);
                assert!(hosts[other].ask_queue(&mut cluster, 1, sqe, &[0; 16], 0).0.is_success());
            } else {
                assert_eq!(hosts[other].ask(&mut cluster, 0, &unregister), good);
            }
            for host in &mut hosts {
                host.told.clear();
                assert!(host.keys(&mut cluster, 0).is_empty(), "seed {seed}");
            }
        }
    }
}

/// A host that counts up by compare and write, over iSCSI or as a fused pair.
struct Counter {
    host: Host,
    waits: Option<(u64, Option<u64>)>,
    swapped: u64,
    lost_races: u64,
}

impl Counter {
    fn new(host: Host) -> Counter {
        Counter { host, waits: None, swapped: 0, lost_races: 0 }
    }

    /// Takes what has come, and goes on: reads, then swaps what it has read.
    fn go_on(&mut self, cluster: &mut Cluster) {
        self.host.poll(cluster);
        let Some((id, swapping)) = self.waits else {
            let id = self.host.send(cluster, 0, &Ask::Read { lba: 9, blocks: 1 });
            self.waits = Some((id, None));
            return;
        };
        let Some(at) = self.host.ended.iter().position(|(known, _)| *known == id) else { return };
        let (_, end) = self.host.ended.remove(at).expect("found");
        self.waits = match (end, swapping) {
            (End::Good(data), None) => {
                let value = u64::from_le_bytes(data[..8].try_into().unwrap());
                let block = |value: u64| value.to_le_bytes().repeat(64);
                let (old, new) = (block(value), block(value + 1));
                let id = self.host.send(cluster, 0, &Ask::CompareAndWrite { lba: 9, old, new });
                Some((id, Some(value)))
            }
            (End::Good(_), Some(_)) => {
                self.swapped += 1;
                None
            }
            // The other was faster, or this is a unit attention: nothing was written.
            (_, _) => {
                self.lost_races += 1;
                None
            }
        };
    }
}

/// Increments by compare and write through two gateways, while the volume moves from one to the next: none is lost, and
/// none is done twice.
#[test]
fn increments_through_two_gateways_are_all_kept() {
    for seed in 0..4 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let owner = cluster.owner(VOLUME);
        let hosts = [
            Host::scsi(&mut cluster, (owner + 1) % 3, 1),
            Host::nvme(&mut cluster, (owner + 2) % 3, 0x12),
            Host::scsi(&mut cluster, owner, 3),
        ];
        let mut counters = hosts.map(Counter::new);
        let (mut drained, mut leaving): (u64, Option<usize>) = (0, None);
        while counters.iter().map(|counter| counter.swapped).sum::<u64>() < 300 {
            counters.iter_mut().for_each(|counter| counter.go_on(&mut cluster));
            cluster.step();
            if !cluster.is_whole() {
                continue;
            }
            let owner = cluster.owner(VOLUME);
            let now = cluster.gateways[owner].now();
            match leaving {
                // It takes groups again.
                Some(left) if left != owner => {
                    cluster.gateways[left].member.undrain(now);
                    leaving = None;
                }
                Some(_) => {}
                None if counters.iter().map(|counter| counter.swapped).sum::<u64>() / 40 > drained => {
                    drained += 1;
                    leaving = Some(owner);
                    cluster.gateways[owner].member.drain(now);
                }
                None => {}
            }
        }
        for counter in &mut counters {
            cluster.until("the last of them", |cluster| {
                if counter.waits.is_some() {
                    counter.go_on(cluster);
                }
                counter.waits.is_none_or(|(_, swapping)| swapping.is_none())
            });
        }
        let swapped: u64 = counters.iter().map(|counter| counter.swapped).sum();
        let lost_races: u64 = counters.iter().map(|counter| counter.lost_races).sum();
        let read = counters[0].host.read(&mut cluster, 0, 9, 1);
        assert_eq!(u64::from_le_bytes(read[..8].try_into().unwrap()), swapped, "seed {seed}");
        assert!(lost_races > 0 && drained > 0, "seed {seed}: they do not meet: {lost_races}, {drained}");
        assert_eq!(cluster.stale(), 0, "seed {seed}");
    }
}

/// Access states of REPORT TARGET PORT GROUPS, by group.
fn target_port_groups(cluster: &mut Cluster, host: &mut Host) -> Vec<(u16, u8)> {
    let Side::Scsi(initiator) = &mut host.side else { panic!("a host of iSCSI") };
    let cdb = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let gateway = host.gateway;
    loop {
        let itt = initiator.send_command(&mut cluster.gateways[gateway].world, 0, &cdb, &[], 256);
        let mut found = None;
        cluster.until("a report", |cluster| {
            initiator.poll(&mut cluster.gateways[gateway].world);
            found = initiator.ended.iter().position(|ended| ended.itt == itt);
            found.is_some()
        });
        let ended = initiator.ended.remove(found.expect("waited for"));
        if ended.status == 0 {
            let len = u32::from_be_bytes(ended.data[..4].try_into().unwrap()) as usize;
            let groups = ended.data[4..4 + len].chunks(12);
            return groups.map(|group| (u16::from_be_bytes([group[2], group[3]]), group[0] & 0xf)).collect();
        }
        host.told.push([ended.sense[12], ended.sense[13]]);
    }
}

/// The state of the first ANA group in the log, and how often the log has changed.
fn ana_state(cluster: &mut Cluster, host: &mut Host) -> (u8, u64) {
    let mut sqe = nvme_sqe(0x02, 0);
    sqe.nsid = U32::new(u32::MAX);
    sqe.cdw10[0] = U32::new(0x0c | (256 / 4 - 1) << 16);
    let (status, _, log) = host.ask_queue(cluster, 0, sqe, &[], 256);
    assert!(status.is_success());
    (log[16 + 16] & 0xf, u64::from_le_bytes(log[..8].try_into().unwrap()))
}

/// Other gateways forward to the process, so no other can go on with what it has.
#[test]
fn a_gateway_cannot_be_replaced_by_another_process() {
    let mut cluster = Cluster::new(Plan::new(1));
    cluster.run_for(Duration::from_millis(50));
    let report = cluster.gateways[0].ask_to_rest();
    let Some(ControlReport::NotQuiesced(why @ QuiesceBlocker::GroupVolume(_))) = report else {
        panic!("{report:?}");
    };
    assert!(why.to_string().contains("gateway group"), "{why}");
    let mut host = Host::scsi(&mut cluster, 0, 9);
    host.read(&mut cluster, 0, 0, 1);
}

/// The number of a controller names one controller of the group.
#[test]
fn controllers_of_all_gateways_have_numbers_of_their_own() {
    let mut cluster = Cluster::new(Plan::new(1));
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..8 {
        for gateway in 0..3 {
            let host = Host::nvme(&mut cluster, gateway, 0x10 + 8 * gateway as u8 + number);
            let Side::Nvme { cntlid, .. } = host.side else { unreachable!("a host of NVMe") };
            assert!(seen.insert(cntlid), "{cntlid} is given twice");
        }
    }
}

/// A host identifier belongs to one name at all gateways, while a host of that name is connected to one.
#[test]
fn a_host_identifier_has_one_name_in_the_group() {
    let mut cluster = Cluster::new(Plan::new(2));
    let first = Host::nvme(&mut cluster, 0, 0x21);
    let again = Host::try_nvme(&mut cluster, 1, 0x21, "nqn.2026-11.test:host33");
    assert!(again.is_ok(), "the same host at another gateway");
    let other = Host::try_nvme(&mut cluster, 2, 0x21, "nqn.2026-11.test:clone");
    assert!(other.is_err_and(|status| !status.is_success()), "another host with its identifier");
    // Its last controllers end: it is given back.
    for host in [Some(first), again.ok()].into_iter().flatten() {
        let Side::Nvme { pipes, .. } = &host.side else { unreachable!("a host of NVMe") };
        for pipe in pipes {
            cluster.gateways[host.gateway].world.reset(sim::Peer(pipe.at));
        }
    }
    cluster.run_for(Duration::from_millis(50));
    let later = Host::try_nvme(&mut cluster, 2, 0x21, "nqn.2026-11.test:clone");
    assert!(later.is_ok(), "{:?}", later.err());
}

/// ALUA and ANA: optimized at the owner only, with the ports of all gateways; hosts are told when that changes.
#[test]
fn paths_follow_the_owner_and_hosts_are_told() {
    for seed in 0..6 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let mut hosts = hosts(&mut cluster);
        let before = cluster.owner(VOLUME);
        let check = |cluster: &mut Cluster, hosts: &mut [Host], owner: usize| {
            for (gateway, pair) in hosts.chunks_mut(2).enumerate() {
                let mut shown = target_port_groups(cluster, &mut pair[0]);
                shown.sort_unstable();
                let wanted: Vec<(u16, u8)> =
                    (0..3).map(|other| (port_of(other).0, u8::from(other != owner))).collect();
                assert_eq!(shown, wanted, "seed {seed}: at {gateway}, {owner} owns it");
                let state = if gateway == owner { 1 } else { 2 };
                assert_eq!(ana_state(cluster, &mut pair[1]).0, state, "seed {seed}: at {gateway}");
            }
        };
        check(&mut cluster, &mut hosts, before);
        hosts.iter_mut().for_each(|host| host.told.clear());
        // An Asynchronous Event Request waits at each controller; ANA events are enabled.
        let mut events = Vec::new();
        for host in hosts.iter_mut().filter(|host| matches!(host.side, Side::Nvme { .. })) {
            let mut enable = nvme_sqe(0x09, 0);
            (enable.nsid, enable.cdw10[0], enable.cdw10[1]) =
                (U32::new(0), U32::new(0x0b), U32::new(1 << 11));
            assert!(host.ask_queue(&mut cluster, 0, enable, &[], 0).0.is_success());
            ana_state(&mut cluster, host);
            let mut request = nvme_sqe(0x0c, 0);
            request.nsid = U32::new(0);
            let gateway = host.gateway;
            let Side::Nvme { pipes, .. } = &mut host.side else { unreachable!("filtered") };
            events.push(pipes[0].send_command(&mut cluster.gateways[gateway].world, request, &[], true, 0));
        }
        let now = cluster.gateways[before].now();
        cluster.gateways[before].member.drain(now);
        cluster.until("another owner", |cluster| cluster.is_whole() && cluster.owner(VOLUME) != before);
        cluster.run_for(Duration::from_millis(20));
        let after = cluster.owner(VOLUME);
        check(&mut cluster, &mut hosts, after);
        let mut events = events.into_iter();
        for host in &mut hosts {
            let (gateway, number) = (host.gateway, host.number);
            match &mut host.side {
                Side::Scsi(_) => {
                    host.read(&mut cluster, 0, 0, 1);
                    assert!(host.told.contains(&[0x2a, 6]), "seed {seed}: host {number}: {:x?}", host.told);
                }
                Side::Nvme { pipes, .. } => {
                    pipes[0].poll(&mut cluster.gateways[gateway].world);
                    let event = pipes[0].take_result(events.next().expect("one for each"));
                    // A controller tells of its own paths only.
                    if gateway != before && gateway != after {
                        continue;
                    }
                    let event = event.unwrap_or_else(|| panic!("seed {seed}: host {number} was not told"));
                    assert_eq!(event.result & 0xff_ff07, 0x0c_0302, "seed {seed}: ANA change");
                }
            }
        }
    }
}

/// Registrations outlive the process of the owner, and hosts of other gateways go on.
#[test]
fn keys_outlive_the_owner_that_is_killed() {
    for seed in 0..6 {
        let mut cluster = Cluster::new(Plan::new(seed));
        let mut hosts = hosts(&mut cluster);
        let before = cluster.owner(VOLUME);
        let others: Vec<usize> = (0..hosts.len()).filter(|host| hosts[*host].gateway != before).collect();
        let (one, other) = (others[0], others[3]);
        let good = End::Good(vec![]);
        assert_eq!(hosts[one].ask(&mut cluster, 0, &Ask::Register { key: 5 }), good);
        assert_eq!(hosts[one].ask(&mut cluster, 0, &Ask::Reserve { key: 5 }), good);
        assert_eq!(hosts[one].write(&mut cluster, 0, 3, block(9)), good);
        cluster.kill(before, false);
        // What is on its way to a gateway that is killed is in doubt.
        cluster.run_for(Duration::from_millis(1));
        let begun = cluster.gateways[others[0] / 2].now();
        // Held until another has taken it.
        assert_eq!(hosts[one].write(&mut cluster, 0, 4, block(8)), good, "seed {seed}");
        let took = cluster.gateways[others[0] / 2].now().since(begun);
        assert!(took < Duration::from_millis(500), "seed {seed}: {took:?}");
        assert_eq!(hosts[other].write(&mut cluster, 0, 4, block(7)), End::Conflict, "seed {seed}");
        assert_eq!(hosts[other].keys(&mut cluster, 0), [5]);
        assert!(hosts[other].read(&mut cluster, 0, 3, 2) == [block(9), block(8)].concat(), "seed {seed}");
        assert_eq!(cluster.stale(), 0);
    }
}

/// Without an owner commands are held for 20 s, then answered as errors of the path, and never carried out.
#[test]
fn commands_without_an_owner_end_as_errors_of_the_path() {
    let mut cluster = Cluster::new(Plan { gateways: 2, ..Plan::new(3) });
    let before = cluster.owner(VOLUME);
    let other = 1 - before;
    let mut scsi = Host::scsi(&mut cluster, other, 1);
    let mut nvme = Host::nvme(&mut cluster, other, 0x11);
    scsi.read(&mut cluster, 0, 0, 1);
    nvme.read(&mut cluster, 0, 0, 1);
    // The owner has the store to itself: the other one can neither expel it nor take the group.
    let bystander = cluster.gateways[other].instance;
    cluster.cut(before, other);
    cluster.gateways[before].stopped = true;
    cluster.store.cut.insert(bystander);
    cluster.run_for(Duration::from_millis(1));
    let began = cluster.gateways[other].now();
    let write = Ask::Write { lba: 5, data: block(3) };
    let (mut one, two) = (scsi.send(&mut cluster, 0, &write), nvme.send(&mut cluster, 0, &write));
    cluster.until("the ends", |cluster| {
        scsi.poll(cluster);
        nvme.poll(cluster);
        // That the path is in transition is told first.
        if scsi.told.pop().is_some() {
            scsi.ended.clear();
            one = scsi.send(cluster, 0, &write);
        }
        scsi.ended.iter().any(|(id, _)| *id == one) && nvme.ended.iter().any(|(id, _)| *id == two)
    });
    let took = cluster.gateways[other].now().since(began);
    assert!(took >= Duration::from_secs(19) && took < Duration::from_secs(22), "{took:?}");
    assert_eq!(
        (scsi.ended.pop_back(), nvme.ended.pop_back()),
        (Some((one, End::Path)), Some((two, End::Path)))
    );
    cluster.store.cut.clear();
    cluster.until("an owner", |cluster| cluster.gateways[other].member.serves(group_of(VOLUME)).is_some());
    cluster.run_for(Duration::from_millis(50));
    assert!(nvme.read(&mut cluster, 0, 5, 1) == block(0), "it was not carried out");
}

/// A format is begun by the gateway that owns the volume. No other could end it once it is lost, and the volume would
/// stay closed.
#[test]
fn formats_are_begun_at_the_owner_only() {
    let mut cluster = Cluster::new(Plan::new(4));
    let mut hosts = hosts(&mut cluster);
    let owner = cluster.owner(VOLUME);
    assert_eq!(hosts[1].write(&mut cluster, 0, 0, block(1)), End::Good(vec![]));
    let format = || nvme_sqe(0x80, 0);
    for at in (0..3).filter(|at| *at != owner) {
        let refused = hosts[2 * at + 1].ask_queue(&mut cluster, 0, format(), &[], 0).0;
        assert_eq!(refused.without_retry_hints(), nvme::Status::INVALID_OPCODE, "{refused:?}");
        assert!(hosts[2 * at].read(&mut cluster, 0, 0, 1) == block(1));
    }
    let done = hosts[2 * owner + 1].ask_queue(&mut cluster, 0, format(), &[], 0).0;
    assert!(done.is_success(), "{done:?}");
    for host in &mut hosts {
        assert!(host.read(&mut cluster, 0, 0, 1) == block(0), "host {}", host.number);
    }
}
