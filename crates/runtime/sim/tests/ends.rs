//! The contents of a disk after its world has ended early, or was started again.

use std::collections::VecDeque;
use std::time::Duration;

use blockwire_sim::{Config, Disk, World};
use buf::{Cx, Errno, MemoryClass, Pool};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use stream::{Received, RecvOp, SendOp};
use volume::{DiskId, DiskKind, DiskOp, DiskTicket};

const DISK: DiskId = DiskId(1);
const SECTORS: usize = 4;

/// Asks a disk for what it is told to, and counts what ends.
#[derive(Default)]
struct Asker {
    asks: VecDeque<DiskOp>,
    ended: usize,
}

impl Endpoint for Asker {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, _: LinkId, _: LinkArrival<()>) {}
    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}
    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}
    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}

    fn handle_disk(&mut self, _: &mut Cx<'_>, _: DiskOp, _: Result<usize, Errno>) {
        self.ended += 1;
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }

    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }

    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        None
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.asks.pop_front()
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        None
    }
}

/// A world of one shard that has just begun this on a disk full of ones.
fn begun(seed: u64, tell_delay_max: Duration, what: impl FnOnce(&Pool) -> DiskKind) -> World<Asker> {
    let config = Config { shards: 1, disk_tell_delay_max: tell_delay_max, ..Config::new(seed) };
    let mut world = World::new(config, |_, _| Asker::default());
    let mut disk = Disk::default();
    disk.write(0, &[1; SECTORS * 512]);
    disk.sync_all();
    world.add_disk(DISK, disk);
    world.with_endpoint(ShardId(0), |end, cx| {
        end.asks.push_back(DiskOp { disk: DISK, ticket: DiskTicket(0), kind: what(cx.pool) });
    });
    world
}

fn write(durable: bool) -> impl FnOnce(&Pool) -> DiskKind {
    move |pool| {
        let mut from = pool.take_sg(MemoryClass::Wire, SECTORS * 512).unwrap();
        from.copy_from(0, &[2; SECTORS * 512]);
        DiskKind::Write { offset: 0, from: from.freeze(), skip: 0, durable }
    }
}

/// What is in each sector.
fn sectors(disk: &Disk) -> [u8; SECTORS] {
    let mut bytes = [0; SECTORS * 512];
    disk.read(0, &mut bytes);
    std::array::from_fn(|number| {
        let sector = &bytes[number * 512..(number + 1) * 512];
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
        sector[0]
    })
}

#[test]
fn what_is_out_when_a_daemon_is_killed_is_done_or_not_whatever_it_is() {
    let zero = |_: &Pool| DiskKind::Zero { offset: 0, len: (SECTORS * 512) as u64 };
    for (kind, fill) in [(0, 2), (1, 2), (2, 0)] {
        let mut done = 0;
        for seed in 0..40 {
            let world = match kind {
                0 => begun(seed, Duration::ZERO, write(false)),
                1 => begun(seed, Duration::ZERO, write(true)),
                _ => begun(seed, Duration::ZERO, zero),
            };
            let disk = world.kill_daemon().remove(&DISK).unwrap();
            let found = sectors(&disk);
            assert!(found == [1; SECTORS] || found == [fill; SECTORS], "{found:?}");
            done += usize::from(found[0] == fill);
        }
        assert!(done > 5 && done < 35, "{kind}: {done} of 40");
    }
}

#[test]
fn of_what_is_out_when_the_power_fails_any_sector_may_be_there() {
    for durable in [false, true] {
        let (mut none, mut torn) = (0, 0);
        for seed in 0..80 {
            let disk = begun(seed, Duration::ZERO, write(durable)).lose_power().remove(&DISK).unwrap();
            let found = sectors(&disk);
            none += usize::from(found == [1; SECTORS]);
            torn += usize::from(found != [1; SECTORS] && found != [2; SECTORS]);
        }
        assert!(none > 10 && torn > 10, "of 80 {none} did nothing, {torn} are torn");
    }
}

#[test]
fn a_daemon_that_is_started_again_hears_of_nothing_that_was_begun_before() {
    let mut late = 0;
    for seed in 0..20 {
        let mut world = begun(seed, Duration::from_millis(10), write(false));
        // The write has ended, and nobody has heard of it.
        world.run_for(Duration::from_millis(1));
        late += usize::from(world.endpoint(ShardId(0)).ended == 0);
        world.restart_shards(0..1, |_, _| Asker::default());
        world.run_for(Duration::from_millis(20));
        assert_eq!(world.endpoint(ShardId(0)).ended, 0, "seed {seed}");
    }
    assert!(late > 10);
}

#[test]
fn a_write_that_fails_may_be_there_in_part() {
    let mut seen = [0; SECTORS + 1];
    for seed in 0..200 {
        let mut world = begun(seed, Duration::ZERO, write(false));
        world.disk(DISK).unwrap().faults.error_permille = 1000;
        world.run_for(Duration::from_millis(1));
        let found = sectors(world.disk(DISK).unwrap());
        let part = found.iter().take_while(|fill| **fill == 2).count();
        assert!(found[part..].iter().all(|fill| *fill == 1), "{found:?}");
        seen[part] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    // What is not written at all is the likelier.
    assert!(seen[0] > 80, "{seen:?}");
}
