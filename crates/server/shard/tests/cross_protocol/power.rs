//! The power fails during a history: all shards stop, disks lose part of their caches, and daemons and hosts
//! start again with the remaining data and the records of the volumes.

use nvme::Status;
use sim::DiskFaults;
use sim::linearizability::Stamp;

use crate::command::{Action, Flight};
use crate::history::History;
use crate::host::Side;
use crate::ledger::{BAD, fill, pattern, stamp_of};
use crate::plan::{PATTERNS, SPAN, disk};

impl History {
    /// A host of NVMe.
    fn nvme_host(&self) -> usize {
        let is_nvme = |host: &crate::host::Host| matches!(host.side, Side::Nvme(_));
        self.hosts.iter().position(is_nvme).expect("there is one at least")
    }

    /// Writes what is copied from, and makes it stable, before disks begin to fail.
    pub fn lay_patterns(&mut self) {
        let (host, block) = (self.nvme_host(), self.plan.block);
        self.fail_as(DiskFaults { short_permille: self.plan.faults.short_permille, ..DiskFaults::default() });
        for volume in 0..self.plan.volumes {
            let contents = (0..PATTERNS).flat_map(|number| fill(0, pattern(volume, number), block));
            let mut contents: Vec<u8> = contents.collect();
            let action = Action::Write { stamp: 0, fua: true };
            let flight = Flight { host, action, volume, lba: SPAN, blocks: PATTERNS, began: 0 };
            let (write, ..) = flight.sqes(block).remove(0);
            let done = (0..200).any(|_| {
                let ended = self.errand(host, 1, write, std::mem::take(&mut contents), 0);
                contents = (0..PATTERNS).flat_map(|number| fill(0, pattern(volume, number), block)).collect();
                ended.status == Status::SUCCESS
            });
            assert!(done, "seed {}: patterns cannot be written", self.plan.seed);
        }
        self.fail_as(self.plan.faults);
    }

    /// How disks fail from now on.
    fn fail_as(&mut self, faults: DiskFaults) {
        for volume in 0..self.plan.volumes {
            if let Some(disk) = self.world.disk(disk(volume)) {
                disk.faults = faults;
            }
        }
    }

    /// The power fails. From then on the disks work.
    pub fn lose_power(&mut self) {
        self.tally.power_losses += 1;
        for mut host in std::mem::take(&mut self.hosts) {
            let orphans = match &mut host.side {
                Side::Nvme(controller) => std::mem::take(&mut controller.orphans),
                Side::Scsi(_) => vec![],
            };
            // Who was orphaned is in doubt already.
            for orphan in orphans {
                let now = self.tick();
                self.ledgers[orphan.volume].over(orphan.lba, orphan.blocks, orphan.began, now);
            }
            host.flights.into_values().for_each(|flight| self.give_up(flight, true));
        }
        self.check_order();
        self.plan.faults =
            DiskFaults { short_permille: self.plan.faults.short_permille, ..DiskFaults::default() };
        let blank = self.plan.world(&self.rams);
        let mut disks = std::mem::replace(&mut self.world, blank).lose_power();
        let kept = std::mem::take(&mut self.records).into_iter().enumerate().map(|(volume, record)| {
            let mut contents = disks.remove(&disk(volume)).expect("a file has a disk");
            contents.faults = self.plan.faults;
            (contents, record)
        });
        let kept: Vec<_> = kept.collect();
        self.records = kept.iter().map(|(_, record)| record.clone()).collect();
        self.world = self.plan.world_of(&self.rams, kept, 1);
        self.come();
        for volume in 0..self.plan.volumes {
            let found: Vec<Stamp> = (0..SPAN).map(|lba| self.find(volume, lba)).collect();
            let now = self.tick();
            self.ledgers[volume].survived(&found, now);
        }
    }

    /// What is in a block now.
    fn find(&mut self, volume: usize, lba: usize) -> Stamp {
        let (host, seed) = (self.nvme_host(), self.plan.seed);
        let flight = Flight { host, action: Action::Read, volume, lba, blocks: 1, began: 0 };
        let (read, out, len) = flight.sqes(self.plan.block).remove(0);
        let ended = self.errand(host, 1, read, out, len);
        match Status(ended.status.0 & 0x7ff) {
            Status::SUCCESS => stamp_of(lba, &ended.data).unwrap_or_else(|| {
                panic!("seed {seed}: block {lba} is torn by the power's failure: {:02x?}", &ended.data[..32])
            }),
            Status::UNRECOVERED_READ_ERROR => BAD,
            _ => panic!("seed {seed}: block {lba} after the power's failure: {ended:?}"),
        }
    }
}
