//! The same commands on both formats: blocks of 512 and of 4096 bytes.

use nvme::io::{Copy, CopyRange, DatasetManagement, DatasetRange};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::*;

/// A queue, and the length of its namespace's blocks.
struct Format {
    world: World,
    host: Host,
    logical: u32,
}

impl Format {
    fn each() -> [Format; 2] {
        [512, 4096].map(|logical| {
            let mut world = World::new(1);
            world.add_of(1024, logical, |_| {});
            let host = world.host(0, 1, &[0]);
            Format { world, host, logical }
        })
    }

    fn of_blocks(&self, opcode: Opcode, lba: u64, blocks: u32, part: u8) -> Sqe {
        let mut sqe = transfer(opcode, lba, blocks);
        sqe.flags |= part;
        sqe.dptr.length = U32::new(blocks * self.logical);
        sqe
    }

    fn filled(&self, blocks: u32, byte: u8) -> Vec<u8> {
        vec![byte; (blocks * self.logical) as usize]
    }

    #[track_caller]
    fn write(&mut self, lba: u64, blocks: u32, byte: u8) {
        let data = self.filled(blocks, byte);
        self.world.good(self.host, &self.of_blocks(Opcode::WRITE, lba, blocks, 0), &data);
    }

    /// The first byte of each block; every block is of one byte.
    #[track_caller]
    fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let data = self.world.good(self.host, &self.of_blocks(Opcode::READ, lba, blocks, 0), &[]);
        let blocks = data.chunks_exact(self.logical as usize);
        blocks
            .inspect(|block| assert!(block.iter().all(|byte| *byte == block[0])))
            .map(|block| block[0])
            .collect()
    }
}

#[test]
fn blocks_are_counted_in_the_format_s_own_length() {
    for mut format in Format::each() {
        format.write(10, 4, 7);
        assert_eq!(format.read(9, 6), [0, 7, 7, 7, 7, 0]);
        let zeroes = format.of_blocks(Opcode::WRITE_ZEROES, 11, 1, 0);
        format.world.good(format.host, &zeroes, &[]);
        let mut dsm = sqe(Opcode::DATASET_MANAGEMENT);
        DatasetManagement { ranges: 1, deallocate: true }.write_to_sqe(&mut dsm);
        let range = DatasetRange { attributes: U32::ZERO, blocks: U32::new(1), lba: U64::new(13) };
        format.world.good(format.host, &dsm, range.as_bytes());
        assert_eq!(format.read(10, 4), [7, 0, 7, 0]);
        let mut copy = sqe(Opcode::COPY);
        Copy { lba: 1020, ranges: 1, format: 0, fua: false, protects: false }.write_to_sqe(&mut copy);
        format.world.good(format.host, &copy, CopyRange::new(10, 4).as_bytes());
        assert_eq!(format.read(1020, 4), [7, 0, 7, 0]);
        let verify = format.of_blocks(Opcode::VERIFY, 0, 1024, 0);
        format.world.good(format.host, &verify, &[]);
        assert_eq!(format.world.lent(), 0);
    }
}

#[test]
fn pairs_compare_and_write_whole_blocks() {
    for mut format in Format::each() {
        format.write(3, 1, 1);
        let compare = format.of_blocks(Opcode::COMPARE, 3, 1, 1);
        let write = format.of_blocks(Opcode::WRITE, 3, 1, 2);
        for (expected, status) in [(1, Status::SUCCESS), (1, Status::COMPARE_FAILURE.with_do_not_retry())] {
            let (old, new) = (format.filled(1, expected), format.filled(1, 2));
            let first = format.world.start(format.host, &compare, &old);
            format.world.start(format.host, &write, &new);
            format.world.run();
            assert_eq!(format.world.status(first), status);
        }
        assert_eq!(format.read(3, 1), [2]);
    }
}

/// A volume that moves less at a time than the controller does.
#[test]
fn the_longest_transfer_is_the_shorter_of_both_limits() {
    let mut world = World::new(1);
    world.add(4096, |geometry| geometry.max_io = 64 << 10);
    let host = world.host(0, 1, &[0]);
    assert_eq!(world.read(host, 0, 128).len(), 64 << 10);
    assert_eq!(
        world.command(host, &transfer(Opcode::READ, 0, 129), &[]),
        Status::INVALID_FIELD.with_do_not_retry()
    );
}
