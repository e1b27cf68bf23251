//! Dataset Management.

use nvme::io::{DatasetManagement, DatasetRange};
use volume::{Op, Span};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::*;

fn dsm(ranges: u16, deallocate: bool) -> Sqe {
    let mut sqe = sqe(Opcode::DATASET_MANAGEMENT);
    DatasetManagement { ranges, deallocate }.write_to_sqe(&mut sqe);
    sqe
}

fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let range = |&(lba, blocks): &(u64, u32)| DatasetRange {
        attributes: U32::ZERO,
        blocks: U32::new(blocks),
        lba: U64::new(lba),
    };
    ranges.iter().flat_map(|one| range(one).as_bytes().to_vec()).collect()
}

#[test]
fn ranges_are_deallocated() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 64 * 512]);
    world.disks.kinds.borrow_mut().clear();
    world.good(host, &dsm(3, true), &list(&[(0, 8), (16, 0), (32, 16)]));
    assert_eq!(
        *world.disks.kinds.borrow(),
        [Op::Unmap(vec![Span { lba: 0, blocks: 8 }]), Op::Unmap(vec![Span { lba: 32, blocks: 16 }])]
    );
    assert_eq!(world.read(host, 7, 2), [block(0), block(1)].concat());
    assert_eq!(world.read(host, 31, 2), [block(1), block(0)].concat());
    assert_eq!(world.lent(), 0);
}

/// A list as a host sends it that always brings room for 256 ranges: from NVM Command Set 1.0,
/// figure 39, by hand.
#[test]
fn a_list_may_be_longer_than_its_ranges() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 16 * 512]);
    let mut bytes = vec![0xff; 4096];
    bytes[..16].copy_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    world.good(host, &dsm(1, true), &bytes);
    assert_eq!(world.read(host, 7, 2), [block(1), block(0)].concat());
    for len in [0, 15, 4097] {
        let started = world.start(host, &dsm(1, true), &vec![0; len]);
        assert_eq!(world.status(started), Status::SGL_LENGTH_INVALID.with_do_not_retry(), "{len}");
    }
}

#[test]
fn hints_change_nothing() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 8 * 512]);
    world.disks.kinds.borrow_mut().clear();
    world.good(host, &dsm(1, false), &list(&[(0, 8)]));
    assert!(world.disks.kinds.borrow().is_empty());
    assert_eq!(world.read(host, 0, 1), block(1));
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    world.good(host, &dsm(1, false), &list(&[(0, 8)]));
    let started = world.start(host, &dsm(1, true), &list(&[(0, 8)]));
    assert_eq!(world.status(started), Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
}

#[test]
fn a_volume_that_is_not_thin_keeps_its_blocks() {
    let mut world = World::new(1);
    world.add(4096, |geometry| geometry.thin = false);
    let host = world.host(0, 1, &[0]);
    world.write(host, 0, &block(1));
    world.good(host, &dsm(1, true), &list(&[(0, 1)]));
    assert_eq!(world.read(host, 0, 1), block(1));
}

/// Row 75: 256 ranges, one of them behind the end.
#[test]
fn attack_75_dataset_ranges_beyond_the_capacity() {
    let (mut world, host) = disk();
    world.write(host, 0, &block(1));
    let out_of_range = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    let behind = [(32768, 1), (32767, 2), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, 32769), (1 << 63, 8)];
    for bad in behind {
        for deallocate in [false, true] {
            let mut ranges = vec![(0, 1); 256];
            ranges[255] = bad;
            let bytes = list(&ranges);
            assert_eq!(world.command(host, &dsm(256, deallocate), &bytes), out_of_range, "{bad:?}");
        }
    }
    assert_eq!(world.read(host, 0, 1), block(1), "nothing of such a list is carried out");
    world.good(host, &dsm(256, true), &list(&[(0, 32768); 256]));
    assert_eq!(world.read(host, 0, 1), block(0));
    assert_eq!(world.lent(), 0);
}
