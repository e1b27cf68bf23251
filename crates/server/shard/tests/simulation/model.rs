//! What each block may contain, given which writes began and ended when.
//!
//! A write is *sure* once it was answered GOOD: from then on everything that had ended before it began is
//! overwritten. A write that failed, was aborted, or whose session died may have happened or not, but not
//! later than its end. A write is *durable* once it was answered with FUA, or a flush that began after its
//! end was answered: a power failure cannot restore what a durable write replaced.

/// Moments are numbered in the order in which the initiators saw them.
pub type Moment = u64;

/// What a block holds.
pub type Value = u32;

/// A write. Most put their own number into their blocks; some put zeroes.
pub type Write = u32;

const NEVER: Moment = Moment::MAX;

#[derive(Clone, Copy, Debug)]
struct Put {
    by: Write,
    value: Value,
    began: Moment,
    ended: Moment,
    sure: bool,
    durable: bool,
    /// Hosts may know that it is lost: no flush makes it durable any more.
    doubted: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    writes: Vec<Put>,
}

impl Block {
    /// The latest beginning of the writes that overwrite for certain.
    fn floor(&self, counts: impl Fn(&Put) -> bool) -> Moment {
        self.writes.iter().filter(|write| counts(write)).map(|write| write.began).max().unwrap_or(0)
    }
}

/// All blocks.
#[derive(Clone, Debug)]
pub struct Model {
    blocks: Vec<Block>,
}

impl Model {
    /// Blocks of zeroes, value 0.
    pub fn new(blocks: usize) -> Self {
        let zero = Put { by: 0, value: 0, began: 0, ended: 0, sure: true, durable: true, doubted: false };
        Model { blocks: vec![Block { writes: vec![zero] }; blocks] }
    }

    /// A write was sent.
    pub fn begin(&mut self, lba: usize, blocks: usize, by: Write, value: Value, now: Moment) {
        let write = Put { by, value, began: now, ended: NEVER, sure: false, durable: false, doubted: false };
        for block in &mut self.blocks[lba..lba + blocks] {
            block.writes.push(write);
        }
    }

    fn change(&mut self, lba: usize, blocks: usize, by: Write, act: impl Fn(&mut Put)) {
        for block in &mut self.blocks[lba..lba + blocks] {
            block.writes.iter_mut().filter(|write| write.by == by).for_each(&act);
        }
    }

    /// It was answered GOOD.
    pub fn succeed(&mut self, lba: usize, blocks: usize, by: Write, durable: bool, now: Moment) {
        self.change(lba, blocks, by, |write| {
            (write.ended, write.sure, write.durable) = (now, true, durable);
        });
    }

    /// It can happen no more, and perhaps never did.
    pub fn give_up(&mut self, lba: usize, blocks: usize, by: Write, now: Moment) {
        self.change(lba, blocks, by, |write| write.ended = now);
    }

    /// It did not happen.
    pub fn take_back(&mut self, lba: usize, blocks: usize, by: Write) {
        for block in &mut self.blocks[lba..lba + blocks] {
            block.writes.retain(|write| write.by != by);
        }
    }

    /// A flush that began then was answered GOOD.
    pub fn flushed(&mut self, began: Moment) {
        for write in self.blocks.iter_mut().flat_map(|block| &mut block.writes) {
            write.durable |= write.sure && write.ended < began && !write.doubted;
        }
    }

    /// It was told that something is lost: of what is not durable by now nobody knows whether it ever will be.
    pub fn doubt(&mut self) {
        for write in self.blocks.iter_mut().flat_map(|block| &mut block.writes) {
            write.doubted |= !write.durable;
        }
    }

    /// Whether a read that began then and ends now may have found this.
    pub fn allows(&self, lba: usize, value: Value, began: Moment) -> bool {
        let block = &self.blocks[lba];
        let floor = block.floor(|write| write.sure && write.ended < began);
        block.writes.iter().any(|write| write.value == value && write.ended >= floor)
    }

    /// Whether this may stand there after the power failed.
    pub fn survives(&self, lba: usize, value: Value) -> bool {
        let block = &self.blocks[lba];
        let floor = block.floor(|write| write.durable);
        block.writes.iter().any(|write| write.value == value && write.ended >= floor)
    }

    /// What stands in a block is known, and nothing is in flight.
    pub fn settle(&mut self, lba: usize, value: Value, now: Moment) {
        let write = Put { by: 0, value, began: now, ended: now, sure: true, durable: true, doubted: false };
        self.blocks[lba].writes = vec![write];
    }

    /// What a block may be, for a message.
    pub fn describe(&self, lba: usize) -> String {
        format!("{:?}", self.blocks[lba].writes)
    }
}

/// Values with this bit are of blocks that are written alike in many places (WRITE SAME).
pub const ALIKE: Value = 1 << 31;

/// Values with this bit are of the pages that are copied from, and hold the page's number.
pub const COPIED: Value = 1 << 30;

/// The bytes of a block: its value and its own number, again and again, so that a torn or a misplaced
/// block shows.
pub fn fill(lba: usize, value: Value) -> [u8; 512] {
    let number = if value & ALIKE == 0 { lba as u32 } else { u32::MAX };
    let mut block = [0; 512];
    if value != 0 {
        for chunk in block.chunks_exact_mut(8) {
            chunk[..4].copy_from_slice(&value.to_le_bytes());
            chunk[4..].copy_from_slice(&number.to_le_bytes());
        }
    }
    block
}

/// The value of a block's bytes; `None` if they are no write's.
pub fn value_of(lba: usize, bytes: &[u8]) -> Option<Value> {
    let value = Value::from_le_bytes(*bytes.first_chunk()?);
    (bytes == fill(lba, value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_for_certain_is_not_found_again() {
        let mut model = Model::new(1);
        model.begin(0, 1, 7, 7, 1);
        assert!(model.allows(0, 0, 2) && model.allows(0, 7, 2));
        model.succeed(0, 1, 7, false, 3);
        assert!(!model.allows(0, 0, 4) && model.allows(0, 7, 4));
        assert!(model.allows(0, 0, 2), "a read that began before the write ended");
        assert!(model.survives(0, 0) && model.survives(0, 7));
        model.flushed(3);
        assert!(model.survives(0, 0), "the flush began with the write's end");
        model.flushed(4);
        assert!(!model.survives(0, 0) && model.survives(0, 7));
    }

    #[test]
    fn an_aborted_write_may_have_happened_but_happens_no_more() {
        let mut model = Model::new(1);
        model.begin(0, 1, 7, 7, 1);
        model.give_up(0, 1, 7, 2);
        assert!(model.allows(0, 0, 3) && model.allows(0, 7, 3));
        model.begin(0, 1, 8, 8, 4);
        model.succeed(0, 1, 8, true, 5);
        assert!(!model.allows(0, 7, 6) && !model.survives(0, 7));
        let block = fill(3, 9);
        assert_eq!((value_of(3, &block), value_of(4, &block)), (Some(9), None));
        let block = fill(3, ALIKE | 9);
        assert_eq!(value_of(4, &block), Some(ALIKE | 9));
    }
}
