//! How commands end, and what each end says about the blocks.

use nvme::Status;

use crate::command::{Action, Flight};
use crate::history::History;
use crate::ledger::{BAD, stamp_of};
use crate::plan::Bug;

impl History {
    /// A command has succeeded.
    pub fn ended_well(&mut self, flight: Flight, data: &[u8]) {
        let now = self.tick();
        self.tally.good += 1;
        let (client, Flight { lba, blocks, began, .. }) = (flight.host as u32, flight);
        if let Some(what) = flight.what(true) {
            let late = self.protected.is_some_and(|since| since < began);
            assert!(!late, "seed {}: {flight:?} though nobody may write", self.plan.seed);
            self.ledger.succeed(client, lba, blocks, began, now, what);
        }
        match flight.action {
            Action::Read => {
                let seed = self.plan.seed;
                assert_eq!(data.len(), blocks * 512, "seed {seed}: {flight:?}");
                for (lba, bytes) in (lba..).zip(data.chunks(512)) {
                    let Some(stamp) = stamp_of(lba, bytes) else {
                        panic!("seed {seed}: {flight:?}: block {lba} is torn: {:02x?}", &bytes[..32]);
                    };
                    self.ledger.read(client, lba, stamp, began, now);
                }
            }
            Action::Compare { expected } => {
                (lba..lba + blocks).for_each(|lba| self.ledger.read(client, lba, expected, began, now));
            }
            Action::Swap { .. } => self.tally.swapped += 1,
            Action::Spoil => self.tally.spoilt += 1,
            Action::Half { .. } => panic!("seed {}: half a pair succeeds: {flight:?}", self.plan.seed),
            Action::Write { .. } | Action::Zero { .. } | Action::Flush => {}
        }
    }

    /// A compare-and-write has found something else than it expected.
    pub fn miscompared(&mut self, flight: Flight) {
        let now = self.tick();
        self.tally.miscompared += 1;
        let Flight { lba, blocks, began, .. } = flight;
        let what = flight.what(false).filter(|_| blocks == 1);
        self.ledger.take_back(flight.host as u32, lba, blocks, began, what.map(|what| (now, what)));
    }

    /// A command was refused: nothing came of it.
    pub fn refused(&mut self, flight: Flight) {
        assert!(self.plan.change_permille > 0, "seed {}: {flight:?} is refused", self.plan.seed);
        self.tally.refused += 1;
        let Flight { lba, blocks, began, .. } = flight;
        if self.ledger.was_spoilt(lba, blocks) {
            // Where a block was spoilt, the right to write is asked for again when it has been written.
            return self.give_up(flight, true);
        }
        self.ledger.take_back(flight.host as u32, lba, blocks, began, None);
    }

    /// A block could not be read: so it is spoilt, if the disk works.
    pub fn unreadable(&mut self, flight: Flight) {
        let now = self.tick();
        self.tally.unreadable += 1;
        if self.plan.is_calm() && flight.blocks == 1 {
            self.ledger.read(flight.host as u32, flight.lba, BAD, flight.began, now);
        }
    }

    /// Nobody knows whether a command was carried out. `over`: from now on it is not.
    pub fn give_up(&mut self, flight: Flight, over: bool) {
        let now = self.tick();
        let Flight { lba, blocks, began, .. } = flight;
        if let Some(what) = flight.what(true) {
            self.ledger.doubt(flight.host as u32, lba, blocks, began, what);
            if over {
                self.ledger.over(lba, blocks, began, now);
            }
        }
    }

    /// Judges how a command of NVMe ended; of a pair: how its halves did.
    pub fn judge(&mut self, flight: Flight, ends: (Status, Status), data: &[u8]) {
        let plain = |status: Status| Status(status.0 & 0x7ff);
        let (first, second) = (plain(ends.0), plain(ends.1));
        let calm = self.plan.is_calm();
        let pair = matches!(flight.action, Action::Swap { .. });
        match (first, second) {
            (Status::SUCCESS, Status::SUCCESS) => return self.ended_well(flight, data),
            (Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED) if pair => {
                return self.miscompared(flight);
            }
            (Status::COMPARE_FAILURE, Status::SUCCESS) if pair && self.plan.bug == Some(Bug::PairsApart) => {}
            (Status::COMPARE_FAILURE, _) if matches!(flight.action, Action::Compare { .. }) => {}
            (Status::UNRECOVERED_READ_ERROR, _) if flight.action == Action::Read => self.unreadable(flight),
            (Status::UNRECOVERED_READ_ERROR, _) if matches!(flight.action, Action::Compare { .. }) => {}
            // A block that cannot be read cannot be compared.
            (Status::UNRECOVERED_READ_ERROR, Status::ABORTED_FAILED_FUSED) if pair => {}
            (Status::ABORTED_FAILED_FUSED, Status::WRITE_FAULT | Status::CAPACITY_EXCEEDED)
                if pair && !calm => {}
            (Status::UNRECOVERED_READ_ERROR, _) if pair && self.plan.bug == Some(Bug::PairsApart) => {}
            (Status::ABORTED_MISSING_FUSED, _) if matches!(flight.action, Action::Half { .. }) => {
                self.tally.parted += 1;
            }
            (Status::ABORT_REQUESTED, _) | (_, Status::ABORT_REQUESTED) => self.tally.aborted += 1,
            (Status::HOST_PATH_ERROR | Status::ABORTED_SQ_DELETION, _) => {
                self.give_up(flight, false);
                return self.hosts[flight.host].controller().orphans.push(flight);
            }
            (
                Status::NAMESPACE_WRITE_PROTECTED
                | Status::ANA_INACCESSIBLE
                | Status::LBA_OUT_OF_RANGE
                | Status::ABORTED_FAILED_FUSED,
                _,
            ) => return self.refused(flight),
            // What was under way when it was removed.
            (Status::INVALID_NAMESPACE, _) if self.plan.change_permille > 0 => {}
            // As many blocks are spoilt as can be; or somebody else wants to spoil one just now.
            (Status::COMMAND_INTERRUPTED | Status::CAPACITY_EXCEEDED, _) => {}
            (Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR | Status::INTERNAL_ERROR, _) if !calm => {}
            _ => panic!("seed {}: {flight:?} ended with {ends:?}", self.plan.seed),
        }
        self.tally.failed += 1;
        self.give_up(flight, true);
    }

    /// What a command of SCSI that failed says.
    pub fn judge_scsi(&mut self, flight: Flight, status: u8, sense: &[u8]) {
        let key = sense.get(2).map(|byte| byte & 0x0f);
        let (seed, calm) = (self.plan.seed, self.plan.is_calm());
        match (status, key) {
            (2, Some(0x0e)) => return self.miscompared(flight),
            (2, Some(3)) if flight.action == Action::Read => self.unreadable(flight),
            (2, Some(3)) if matches!(flight.action, Action::Swap { .. }) || !calm => {}
            (2, Some(6)) => {
                let code = [sense[12], sense[13]];
                self.hosts[flight.host].session().told.push(code);
            }
            // Write protected; not accessible; out of range.
            (2, Some(7 | 2)) if self.plan.change_permille > 0 => return self.refused(flight),
            (2, Some(5)) if sense[12] == 0x21 => return self.refused(flight),
            // What was under way when it was removed.
            (2, Some(5)) if sense[12] == 0x25 && self.plan.change_permille > 0 => {}
            // Unit attention, aborted; BUSY, TASK SET FULL.
            (2, Some(0xb)) | (8 | 0x28, _) => {}
            // Not ready, no space.
            (2, Some(2 | 7)) if !calm => {}
            _ => panic!("seed {seed}: {flight:?} ended with {status:02x}, {sense:02x?}"),
        }
        self.tally.failed += 1;
        self.give_up(flight, true);
    }
}
