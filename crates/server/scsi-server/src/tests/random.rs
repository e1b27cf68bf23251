//! Random commands.

use super::*;

/// A pseudo-random sequence that a seed determines.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Every command, whatever stands in its CDB, ends in one way exactly once.
#[test]
fn attack_51_random_cdbs_always_end_once() {
    let mut world = World::new(2);
    world.add_with(4096, true, |_| {});
    world.add(4096, |geometry| (geometry.lends, geometry.write_cache) = (false, true));
    let hosts = [world.host(0, "iqn.a", &[0, 1]), world.host(1, "iqn.b", &[0, 1])];
    let known: Vec<u8> =
        (0..=255).filter(|op| scsi::CommandSet::ALL.descriptors_with_opcode(*op).next().is_some()).collect();
    let mut chance = Chance(51);
    let zeros = vec![0; 70_000];
    for round in 0..65_536u32 {
        let mut cdb = [0; 16];
        for byte in &mut cdb {
            *byte = match chance.below(4) {
                0 => chance.next() as u8,
                1 => chance.below(4) as u8,
                _ => 0,
            };
        }
        // Every opcode, the known ones more often; lengths of zero and of all ones.
        cdb[0] =
            if round % 4 == 0 { (round / 4) as u8 } else { known[chance.below(known.len() as u64) as usize] };
        match chance.below(8) {
            0 => cdb[6..15].fill(0xff),
            1 => cdb[6..15].fill(0),
            _ => {}
        }
        let len = if chance.below(16) == 0 { chance.below(17) as usize } else { 16 };
        let out: &[u8] = match chance.below(4) {
            0 => &zeros[..chance.below(65_536) as usize],
            1 => &zeros[..512 * chance.below(9) as usize],
            2 => &zeros[..chance.below(64) as usize],
            _ => &[],
        };
        let data_in = if chance.below(2) == 0 { 0 } else { chance.below(100_000) as u32 };
        let host = hosts[chance.below(2) as usize];
        let lun = [0, chance.below(3) as u8, 0, 0, 0, 0, 0, 0];
        let attr = TaskAttribute(chance.below(6) as u8);
        let started = world.start_as(host, &lun, attr, &cdb[..len], out, data_in);
        world.run();
        assert!(world.end(started).is_some(), "{cdb:02x?} does not end");
        world.transfers.clear();
    }
    assert_eq!(world.lent(), 0);
}

/// Many at once, with aborts and resets in between: every task ends once, every function after its tasks.
#[test]
fn everything_ends_under_aborts_and_resets() {
    for seed in 0..40 {
        let mut world = World::new(2);
        world.add(4096, |_| {});
        let hosts = [world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0])];
        let mut chance = Chance(seed);
        let mut tasks = Vec::new();
        for _ in 0..100 {
            world.disks.hold.set(chance.below(3) == 0);
            world.withhold = chance.below(8) == 0;
            let host = hosts[chance.below(2) as usize];
            let lba = chance.below(4000) as u32;
            let task = match chance.below(8) {
                0 => world.start(host, &read_10(lba, 8), &[], 4096),
                1 => world.start(host, &cdb_16(0x93, 0, u64::from(lba), 64), &block(1), 0),
                2 => world.start_as(host, &[0; 8], TaskAttribute::ORDERED, &read_10(lba, 8), &[], 4096),
                3 => world.start_as(host, &[0; 8], TaskAttribute::HEAD_OF_QUEUE, &[0; 6], &[], 0),
                4 => {
                    let tag = tasks.last().map(|task: &Started| task.key.tag);
                    world.manage(host, ManagementFunction::AbortTask { tag })
                }
                5 => world.manage(host, ManagementFunction::ClearTaskSet([0; 8])),
                6 => world.manage(host, ManagementFunction::LogicalUnitReset([0; 8])),
                _ => world.start(host, &write_10(lba, 8), &[7; 4096], 0),
            };
            tasks.push(task);
            if chance.below(3) == 0 {
                world.run();
            }
        }
        world.disks.hold.set(false);
        world.run();
        // Writes whose data never came are aborted with their set.
        for host in hosts {
            assert_eq!(
                world.managed(host, ManagementFunction::AbortTaskSet([0; 8])),
                ManagementOutcome::Complete
            );
        }
        world.run();
        let open: Vec<_> = tasks.iter().filter(|task| world.end(**task).is_none()).collect();
        assert!(open.is_empty(), "seed {seed}: {open:?}");
        assert_eq!(world.lent(), 0);
    }
}
