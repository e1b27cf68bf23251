//! How commands end, and what each result means for the blocks.

use nvme::Status;

use crate::command::{Action, Flight};
use crate::history::History;
use crate::host::Side;
use crate::ledger::{BAD, stamp_of};
use crate::plan::Bug;

/// Reads of so many bytes at most are copied, and not lent, by a volume in memory.
const COPIED_MAX: usize = 8192;

impl History {
    /// A command has succeeded.
    pub fn ended_well(&mut self, flight: Flight, data: &[u8]) {
        let now = self.tick();
        self.tally.good += 1;
        let (seed, block) = (self.plan.seed, self.plan.block);
        let (client, Flight { lba, blocks, began, .. }) = (flight.host as u32, flight);
        if flight.puts(0).is_some() {
            let late = self.protected.is_some_and(|(volume, since)| volume == flight.volume && since < began);
            assert!(!late, "seed {seed}: {flight:?} though nobody may write");
        }
        let stable = flight.is_stable(matches!(self.hosts[flight.host].side, Side::Scsi(_)));
        let ledger = &mut self.ledgers[flight.volume];
        for number in 0..blocks {
            let Some(what) = flight.what(number, true) else { break };
            ledger.succeed(client, lba + number, 1, began, now, what);
            if stable {
                ledger.harden(lba + number, 1, began);
            }
        }
        match flight.action {
            Action::Read => {
                assert_eq!(data.len(), blocks * block, "seed {seed}: {flight:?}");
                for (lba, bytes) in (lba..).zip(data.chunks(block)) {
                    // Of memory that is lent, a long read may find a block that is just being written.
                    let lent = !self.plan.file && data.len() > COPIED_MAX;
                    let Some(stamp) = stamp_of(lba, bytes) else {
                        let excused = lent && ledger.is_contended(lba, began);
                        assert!(
                            excused,
                            "seed {seed}: {flight:?}: block {lba} is torn: {:02x?}",
                            &bytes[..32]
                        );
                        self.tally.torn += 1;
                        continue;
                    };
                    ledger.read(client, lba, stamp, began, now);
                }
            }
            Action::Compare { expected } => {
                (lba..lba + blocks).for_each(|lba| ledger.read(client, lba, expected, began, now));
            }
            Action::Verify => {
                self.tally.verified += 1;
                (lba..lba + blocks).for_each(|lba| ledger.found_readable(lba, began));
            }
            Action::Flush { all: false } => ledger.flushed(began),
            Action::Flush { all: true } => self.ledgers.iter_mut().for_each(|ledger| ledger.flushed(began)),
            Action::Copy { .. } => self.tally.copied += 1,
            Action::Swap { .. } => self.tally.swapped += 1,
            Action::Spoil => self.tally.spoilt += 1,
            Action::Half { .. } => panic!("seed {seed}: half a pair succeeds: {flight:?}"),
            Action::Write { .. } | Action::Zero { .. } => {}
        }
    }

    /// A compare-and-write has found something else than it expected.
    pub fn miscompared(&mut self, flight: Flight) {
        let now = self.tick();
        self.tally.miscompared += 1;
        let Flight { lba, blocks, began, .. } = flight;
        let what = flight.what(0, false).filter(|_| blocks == 1);
        let ledger = &mut self.ledgers[flight.volume];
        ledger.take_back(flight.host as u32, lba, blocks, began, what.map(|what| (now, what)));
    }

    /// A command was refused: nothing came of it.
    pub fn refused(&mut self, flight: Flight) {
        assert!(self.plan.change_permille > 0, "seed {}: {flight:?} is refused", self.plan.seed);
        self.tally.refused += 1;
        let Flight { lba, blocks, began, .. } = flight;
        if self.ledgers[flight.volume].was_spoilt(lba, blocks) {
            // Where a block was spoilt, the right to write is asked for again when it has been written.
            return self.give_up(flight, true);
        }
        self.ledgers[flight.volume].take_back(flight.host as u32, lba, blocks, began, None);
    }

    /// A block could not be read: so it is spoilt, if the disk works.
    pub fn unreadable(&mut self, flight: Flight) {
        let now = self.tick();
        self.tally.unreadable += 1;
        if self.plan.is_calm() && flight.blocks == 1 {
            let ledger = &mut self.ledgers[flight.volume];
            ledger.read(flight.host as u32, flight.lba, BAD, flight.began, now);
        }
    }

    /// Nobody knows whether a command was carried out. `over`: from now on it is not.
    pub fn give_up(&mut self, flight: Flight, over: bool) {
        let now = self.tick();
        let Flight { lba, blocks, began, .. } = flight;
        let ledger = &mut self.ledgers[flight.volume];
        for number in 0..blocks {
            let Some(what) = flight.what(number, true) else { return };
            ledger.doubt(flight.host as u32, lba + number, 1, began, what);
            if over {
                ledger.over(lba + number, 1, began, now);
            }
        }
    }

    /// Judges how a command of NVMe ended; of a pair: how its halves did.
    pub fn judge(&mut self, flight: Flight, ends: (Status, Status), data: &[u8]) {
        let plain = |status: Status| Status(status.0 & 0x7ff);
        let (first, second) = (plain(ends.0), plain(ends.1));
        let calm = self.plan.is_calm();
        let pair = matches!(flight.action, Action::Swap { .. });
        let reads = matches!(flight.action, Action::Read | Action::Verify);
        match (first, second) {
            (Status::SUCCESS, Status::SUCCESS) => return self.ended_well(flight, data),
            (Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED) if pair => {
                return self.miscompared(flight);
            }
            (Status::COMPARE_FAILURE, Status::SUCCESS) if pair && self.plan.bug == Some(Bug::PairsApart) => {}
            (Status::COMPARE_FAILURE, _) if matches!(flight.action, Action::Compare { .. }) => {}
            (Status::UNRECOVERED_READ_ERROR, _) if reads => self.unreadable(flight),
            (Status::UNRECOVERED_READ_ERROR, _) if matches!(flight.action, Action::Compare { .. }) => {}
            // A digest that was wrong: of a pair either half says so, and the other was aborted for it.
            (Status::TRANSIENT_TRANSPORT_ERROR, _) | (_, Status::TRANSIENT_TRANSPORT_ERROR)
                if self.plan.noise_permille > 0 =>
            {
                self.tally.undigested += 1;
            }
            // A block that cannot be read cannot be compared.
            (Status::UNRECOVERED_READ_ERROR, Status::ABORTED_FAILED_FUSED) if pair => {}
            (Status::ABORTED_FAILED_FUSED, Status::WRITE_FAULT | Status::CAPACITY_EXCEEDED)
                if pair && !calm => {}
            (Status::UNRECOVERED_READ_ERROR, _) if pair && self.plan.bug == Some(Bug::PairsApart) => {}
            (Status::ABORTED_MISSING_FUSED, _) if matches!(flight.action, Action::Half { .. }) => {
                self.tally.parted += 1;
            }
            (Status::ABORT_REQUESTED, _) | (_, Status::ABORT_REQUESTED) => self.tally.aborted += 1,
            // Of a pair one half may have been answered before the connection went.
            (Status::HOST_PATH_ERROR | Status::ABORTED_SQ_DELETION, _) | (_, Status::HOST_PATH_ERROR) => {
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
            (2, Some(3)) if matches!(flight.action, Action::Read | Action::Verify) => self.unreadable(flight),
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
            // It may have been done, and is not to be repeated: INTERNAL TARGET FAILURE.
            (2, Some(4)) if matches!(flight.action, Action::Swap { .. }) && sense[12] == 0x44 => {}
            // Unit attention, aborted; BUSY, TASK SET FULL, TASK ABORTED.
            (2, Some(0xb)) | (8 | 0x28 | 0x40, _) => {}
            // Not ready, no space.
            (2, Some(2 | 7)) if !calm => {}
            _ => panic!("seed {seed}: {flight:?} ended with {status:02x}, {sense:02x?}"),
        }
        self.tally.failed += 1;
        self.give_up(flight, true);
    }
}
