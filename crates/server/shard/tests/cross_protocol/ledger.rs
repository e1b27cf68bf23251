//! Records what hosts of both protocols did to each block, and checks that it is possible on one volume.
//!
//! There are two checks. When a read ends: its data may be there, given which writes are known to be over (so
//! a write that was given up does not land later). At the end: each block's operations are linearizable (see
//! [`sim::linearizability`]).

use sim::linearizability::{History, Operation, OperationKind, Stamp, Verdict};

/// Moments are numbered in the order in which the hosts saw them.
pub type Moment = u64;

/// What a block is that was deallocated, or never written.
pub const ZERO: Stamp = 0;
/// What a block is that cannot be read (Write Uncorrectable).
pub const BAD: Stamp = Stamp::MAX;
/// The first stamp of blocks that nobody writes, and that are copied from; see [`pattern`].
const PATTERNS: Stamp = 1 << 40;
/// Stamps of a volume's patterns.
const PATTERNS_EACH: Stamp = 1 << 10;

const NEVER: Moment = Moment::MAX;

#[derive(Clone, Copy, Debug)]
struct Put {
    stamp: Stamp,
    began: Moment,
    ended: Moment,
    sure: bool,
    /// No failure of the power undoes it.
    durable: bool,
}

/// All blocks.
#[derive(Debug)]
pub struct Ledger {
    seed: u64,
    blocks: Vec<Vec<Put>>,
    /// What was last read in each block.
    pub seen: Vec<Stamp>,
    history: History,
}

impl Ledger {
    pub fn new(seed: u64, blocks: usize) -> Self {
        let first = Put { stamp: ZERO, began: 0, ended: 0, sure: true, durable: true };
        let blocks = vec![vec![first]; blocks];
        Ledger { seed, seen: vec![ZERO; blocks.len()], blocks, history: History::new(ZERO) }
    }

    fn note(&mut self, client: u32, lba: usize, (begin, end): (Moment, Option<Moment>), what: OperationKind) {
        self.history.record(lba as u64, Operation { client, begin, end, what });
    }

    /// A write of this stamp was sent.
    pub fn begin(&mut self, lba: usize, blocks: usize, stamp: Stamp, began: Moment) {
        for block in &mut self.blocks[lba..lba + blocks] {
            block.push(Put { stamp, began, ended: NEVER, sure: false, durable: false });
        }
    }

    fn change(&mut self, lba: usize, blocks: usize, began: Moment, act: impl Fn(&mut Put)) {
        for block in &mut self.blocks[lba..lba + blocks] {
            block.iter_mut().filter(|put| put.began == began).for_each(&act);
        }
    }

    /// The write that began then has succeeded.
    pub fn succeed(
        &mut self,
        client: u32,
        lba: usize,
        blocks: usize,
        began: Moment,
        now: Moment,
        what: OperationKind,
    ) {
        self.change(lba, blocks, began, |put| (put.ended, put.sure) = (now, true));
        (lba..lba + blocks).for_each(|lba| self.note(client, lba, (began, Some(now)), what));
    }

    /// The write that began then is stable (FUA).
    pub fn harden(&mut self, lba: usize, blocks: usize, began: Moment) {
        self.change(lba, blocks, began, |put| put.durable = true);
    }

    /// A flush that began then has succeeded: what had ended before is stable.
    pub fn flushed(&mut self, began: Moment) {
        for put in self.blocks.iter_mut().flatten() {
            put.durable |= put.sure && put.ended < began;
        }
    }

    /// The write that began then has happened or not.
    pub fn doubt(&mut self, client: u32, lba: usize, blocks: usize, began: Moment, what: OperationKind) {
        (lba..lba + blocks).for_each(|lba| self.note(client, lba, (began, None), what));
    }

    /// From now on it does not happen any more.
    pub fn over(&mut self, lba: usize, blocks: usize, began: Moment, now: Moment) {
        self.change(lba, blocks, began, |put| put.ended = put.ended.min(now));
    }

    /// The write that began then has not happened; `what` says why, if that says something.
    pub fn take_back(
        &mut self,
        client: u32,
        lba: usize,
        blocks: usize,
        began: Moment,
        refused: Option<(Moment, OperationKind)>,
    ) {
        for block in &mut self.blocks[lba..lba + blocks] {
            block.retain(|put| put.began != began);
        }
        if let Some((now, what)) = refused {
            (lba..lba + blocks).for_each(|lba| self.note(client, lba, (began, Some(now)), what));
        }
    }

    /// Whether one of these blocks was ever spoilt.
    pub fn was_spoilt(&self, lba: usize, blocks: usize) -> bool {
        self.blocks[lba..lba + blocks].iter().flatten().any(|put| put.stamp == BAD)
    }

    /// A block was found to be this.
    pub fn read(&mut self, client: u32, lba: usize, stamp: Stamp, began: Moment, now: Moment) {
        let puts = &self.blocks[lba];
        let over = puts.iter().filter(|put| put.sure && put.ended < began);
        let floor = over.map(|put| put.began).max().unwrap_or(0);
        let may = puts.iter().any(|put| put.stamp == stamp && put.ended >= floor);
        assert!(may, "seed {}: block {lba} was {stamp} for a read from {began} on, of {puts:?}", self.seed);
        self.seen[lba] = stamp;
        self.note(client, lba, (began, Some(now)), OperationKind::Read(stamp));
    }

    /// Whether a block may have been written since that moment.
    pub fn is_contended(&self, lba: usize, began: Moment) -> bool {
        self.blocks[lba].iter().any(|put| put.ended >= began)
    }

    /// A block was found to be readable by a command that does not say what it read.
    pub fn found_readable(&self, lba: usize, began: Moment) {
        let puts = &self.blocks[lba];
        let over = puts.iter().filter(|put| put.sure && put.ended < began);
        let floor = over.map(|put| put.began).max().unwrap_or(0);
        let may = puts.iter().any(|put| put.stamp != BAD && put.ended >= floor);
        assert!(
            may,
            "seed {}: block {lba} was readable for a command from {began} on, of {puts:?}",
            self.seed
        );
    }

    /// Whether a failure of the power may leave this in a block, or in a sector of it: what stood there when it was last
    /// stable, or newer.
    pub fn may_survive(&self, lba: usize, stamp: Stamp) -> bool {
        let puts = &self.blocks[lba];
        let floor = puts.iter().filter(|put| put.durable).map(|put| put.began).max().unwrap_or(0);
        puts.iter().any(|put| put.stamp == stamp && put.ended >= floor)
    }

    /// What was done to a block, for a message.
    pub fn told_of(&self, lba: usize) -> String {
        format!("{:?}", self.blocks[lba])
    }

    /// The power has failed: the history goes on with what was found in each block, which must be what
    /// stood there when it was last stable, or newer.
    pub fn survived(&mut self, found: &[Stamp], now: Moment) {
        self.history = History::new(ZERO);
        for (lba, &stamp) in found.iter().enumerate() {
            assert!(
                self.may_survive(lba, stamp),
                "seed {}: block {lba} is {stamp} after the power failed, of {}",
                self.seed,
                self.told_of(lba)
            );
            self.blocks[lba] = vec![Put { stamp, began: now, ended: now, sure: true, durable: true }];
            self.seen[lba] = stamp;
            self.note(u32::MAX, lba, (now, Some(now)), OperationKind::Write(stamp));
        }
    }

    /// Whether one order explains it all, or that could not be decided.
    pub fn check(&self) -> Verdict {
        self.history
            .check_linearizable()
            .unwrap_or_else(|violation| panic!("seed {}: {violation}", self.seed))
    }
}

/// The stamp of a block of a volume that nobody writes after its first contents.
pub fn pattern(volume: usize, number: usize) -> Stamp {
    PATTERNS + volume as Stamp * PATTERNS_EACH + number as Stamp
}

/// The bytes of a block: its stamp and its own number, again and again, so that a torn or a misplaced
/// block shows. A pattern has its number among the patterns, wherever it was copied to.
pub fn fill(lba: usize, stamp: Stamp, block: usize) -> Vec<u8> {
    let number = if (PATTERNS..BAD).contains(&stamp) { stamp % PATTERNS_EACH } else { lba as u64 };
    let chunk =
        if stamp == ZERO { [0; 16] } else { (u128::from(number) << 64 | u128::from(stamp)).to_le_bytes() };
    chunk.repeat(block / 16)
}

/// The bytes of some blocks.
pub fn fill_all(lba: usize, blocks: usize, stamp: Stamp, block: usize) -> Vec<u8> {
    (lba..lba + blocks).flat_map(|lba| fill(lba, stamp, block)).collect()
}

/// The stamp of a block's bytes; `None` if they are no write's.
pub fn stamp_of(lba: usize, bytes: &[u8]) -> Option<Stamp> {
    let stamp = Stamp::from_le_bytes(*bytes.first_chunk()?);
    (bytes == fill(lba, stamp, bytes.len())).then_some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_is_not_found_behind_a_later_write() {
        for (late, passes) in [(7, false), (8, true)] {
            let mut ledger = Ledger::new(0, 1);
            ledger.begin(0, 1, 7, 1);
            ledger.doubt(1, 0, 1, 1, OperationKind::Write(7));
            ledger.over(0, 1, 1, 2);
            ledger.begin(0, 1, 8, 3);
            ledger.succeed(1, 0, 1, 3, 4, OperationKind::Write(8));
            let read = std::panic::AssertUnwindSafe(|| ledger.read(1, 0, late, 5, 6));
            assert_eq!(std::panic::catch_unwind(read).is_ok(), passes);
        }
    }

    #[test]
    fn blocks_tell_their_place() {
        for block in [512, 4096] {
            assert_eq!(stamp_of(3, &fill(3, 9, block)), Some(9));
            assert_eq!(stamp_of(4, &fill(3, 9, block)), None);
            assert_eq!(stamp_of(4, &fill(3, pattern(1, 2), block)), Some(pattern(1, 2)));
        }
        assert_eq!(stamp_of(4, &[0; 512]), Some(ZERO));
    }

    #[test]
    fn what_was_flushed_survives() {
        for (flush, found, passes) in [(5, 7, true), (5, ZERO, false), (4, ZERO, true), (5, 8, true)] {
            let mut ledger = Ledger::new(0, 1);
            ledger.begin(0, 1, 7, 1);
            ledger.succeed(1, 0, 1, 1, 4, OperationKind::Write(7));
            ledger.begin(0, 1, 8, 6);
            ledger.flushed(flush);
            let survived = std::panic::AssertUnwindSafe(|| ledger.survived(&[found], 9));
            assert_eq!(std::panic::catch_unwind(survived).is_ok(), passes, "flush {flush}, found {found}");
        }
    }
}
