//! The daemon is killed, or the power fails, during a history; hosts connect again to a daemon that starts
//! with the remaining data.

use sim::linearizability::{self, Operation, OperationKind};

use super::History;
use crate::command::CommandKind;
use crate::model::value_of;
use crate::plan::{DISK, SPAN};

impl History {
    /// All hosts lose their sessions for good.
    fn leave(&mut self) {
        let now = self.tick();
        let hosts = std::mem::take(&mut self.hosts);
        let lost = hosts.iter().flat_map(|host| host.flights.values().chain(&host.orphans));
        lost.for_each(|flight| self.give_up(*flight, now));
    }

    /// Everybody logs in.
    fn come(&mut self) {
        for isid in 1..=self.plan.hosts as u16 {
            let host = self.log_in(isid);
            self.hosts.push(host);
        }
    }

    /// The daemon is killed, and started again on what is in the disk's cache still.
    pub(super) fn crash(&mut self) {
        self.tally.crashes += 1;
        self.leave();
        let plan = self.plan.clone();
        let fresh = plan.world(None, 9);
        let mut disks = std::mem::replace(&mut self.world, fresh).kill_daemon();
        let disk = disks.remove(&DISK).expect("a file has a disk");
        if disk.has_reported_failure() {
            self.model.doubt();
        }
        self.world = plan.world(Some(disk), 3);
        self.come();
        if self.chance.chance_permille(700) {
            // The first command of a session hears of the power; nothing is written yet.
            for kind in [CommandKind::Ready, CommandKind::Flush] {
                let (began, good) = (self.tick(), self.tally.good);
                self.send(began, 0, kind, (0, 1));
                self.quiesce();
                self.tally.first_flushes +=
                    if kind == CommandKind::Flush { self.tally.good - good } else { 0 };
            }
        }
    }

    /// The power fails, and a daemon starts on what the disk has.
    pub(super) fn lose_power(&mut self) {
        self.tally.power_losses += 1;
        self.leave();
        self.check_order();
        self.done = linearizability::History::new(0);
        let plan = self.plan.clone();
        let fresh = plan.world(None, 7);
        let mut disks = std::mem::replace(&mut self.world, fresh).lose_power();
        let disk = disks.remove(&DISK).expect("a file has a disk");
        let now = self.tick();
        for lba in 0..SPAN {
            let mut bytes = [0; 512];
            disk.read((lba * 512) as u64, &mut bytes);
            let seed = self.plan.seed;
            let Some(value) = value_of(lba, &bytes) else {
                panic!("seed {seed}: block {lba} is torn by the power's failure");
            };
            assert!(
                self.model.survives(lba, value),
                "seed {seed}: block {lba} has {value} after the power's failure, of {}",
                self.model.describe(lba)
            );
            self.model.settle(lba, value, now);
            self.seen[lba] = value;
            let what = OperationKind::Write(value.into());
            self.done.record(lba as u64, Operation { client: u32::MAX, begin: now, end: Some(now), what });
        }
        self.world = plan.world(Some(disk), 1);
        self.come();
    }
}
