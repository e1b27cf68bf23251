//! UNMAP parameter lists (SBC-3 §5.35) and GET LBA STATUS data (SBC-3 §5.10).
//!
//! A list is checked as a whole, against the limits of VPD B0h and the capacity, before a block is unmapped;
//! so the time that one command can take is bounded.

use crate::sense::Sense;
use crate::wire::{Writer, be16, be32, be64, bits, place_bits};

/// What an UNMAP may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmapLimits {
    /// Number of blocks of the logical unit.
    pub capacity: u64,
    /// MAXIMUM UNMAP LBA COUNT of VPD B0h; FFFFFFFFh: no limit.
    pub blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of VPD B0h; FFFFFFFFh: no limit.
    pub descriptors: u32,
}

/// Blocks one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// How many.
    pub blocks: u32,
}

const HEADER_LEN: usize = 8;
const DESCRIPTOR_LEN: usize = 16;

/// A checked list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmapList<'a>(&'a [[u8; DESCRIPTOR_LEN]]);

impl<'a> UnmapList<'a> {
    /// Checks a list; an empty one unmaps nothing.
    pub fn parse(list: &'a [u8], limits: &UnmapLimits) -> Result<UnmapList<'a>, Sense> {
        if list.is_empty() {
            return Ok(UnmapList(&[]));
        }
        let (head, rest) =
            list.split_first_chunk::<HEADER_LEN>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let descriptors_len = usize::from(be16(head, 2));
        let bytes = rest.get(..descriptors_len).ok_or(Sense::invalid_list_field(2, None))?;
        let (descriptors, odd) = bytes.as_chunks::<DESCRIPTOR_LEN>();
        if !odd.is_empty() {
            return Err(Sense::invalid_list_field(2, None));
        }
        if limits.descriptors != u32::MAX && descriptors.len() > limits.descriptors as usize {
            return Err(Sense::invalid_list_field(2, None));
        }
        let mut total = 0;
        for (index, descriptor) in descriptors.iter().enumerate() {
            let at = HEADER_LEN + index * DESCRIPTOR_LEN;
            let BlockRange { lba, blocks } = descriptor_range(descriptor);
            let end = lba.checked_add(u64::from(blocks));
            if end.is_none_or(|end| end > limits.capacity) {
                return Err(Sense::LBA_OUT_OF_RANGE.with_information(lba));
            }
            // At most 4095 descriptors fit, so this cannot overflow.
            total += u64::from(blocks);
            if limits.blocks != u32::MAX && total > u64::from(limits.blocks) {
                return Err(Sense::invalid_list_field(at + 8, None));
            }
        }
        Ok(UnmapList(descriptors))
    }

    /// What to unmap, in the list's order; descriptors of 0 blocks are left out.
    pub fn iter(&self) -> impl Iterator<Item = BlockRange> + use<'a> {
        self.0.iter().map(descriptor_range).filter(|blocks| blocks.blocks != 0)
    }
}

fn descriptor_range(descriptor: &[u8; DESCRIPTOR_LEN]) -> BlockRange {
    BlockRange { lba: be64(descriptor, 0), blocks: be32(descriptor, 8) }
}

/// Writes an UNMAP list.
pub fn encode_unmap(spans: impl Iterator<Item = BlockRange>, w: &mut Writer<'_>) {
    let start = w.len();
    w.zeros(HEADER_LEN);
    for BlockRange { lba, blocks } in spans {
        w.u64(lba);
        w.u32(blocks);
        w.u32(0);
    }
    let len = w.len() - start;
    w.patch(start, &((len - 2) as u16).to_be_bytes());
    w.patch(start + 2, &((len - HEADER_LEN) as u16).to_be_bytes());
}

/// PROVISIONING STATUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProvisioningStatus(pub u8);

impl ProvisioningStatus {
    /// Mapped, or unknown.
    pub const MAPPED: ProvisioningStatus = ProvisioningStatus(0);
    /// Deallocated.
    pub const DEALLOCATED: ProvisioningStatus = ProvisioningStatus(1);
    /// Anchored.
    pub const ANCHORED: ProvisioningStatus = ProvisioningStatus(2);
}

/// Blocks of one status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LbaStatus {
    /// Which blocks.
    pub blocks: BlockRange,
    /// What they are.
    pub status: ProvisioningStatus,
}

/// Writes GET LBA STATUS data: descriptors in ascending order without gaps.
pub fn encode_lba_status(extents: impl Iterator<Item = LbaStatus>, w: &mut Writer<'_>) {
    let start = w.len();
    w.zeros(HEADER_LEN);
    for extent in extents {
        w.u64(extent.blocks.lba);
        w.u32(extent.blocks.blocks);
        w.u8(place_bits(extent.status.0, 3, 0));
        w.zeros(3);
    }
    w.patch_length_u32(start);
}

/// The whole descriptors in GET LBA STATUS data.
pub fn decode_lba_status(data: &[u8]) -> impl Iterator<Item = LbaStatus> + '_ {
    let listed = data.first_chunk::<4>().map_or(0, |head| be32(head, 0) as usize);
    let end = listed.saturating_add(4).min(data.len());
    let (descriptors, _) = data.get(HEADER_LEN..end).unwrap_or(&[]).as_chunks::<DESCRIPTOR_LEN>();
    descriptors
        .iter()
        .map(|d| LbaStatus { blocks: descriptor_range(d), status: ProvisioningStatus(bits(d[12], 3, 0)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: UnmapLimits = UnmapLimits { capacity: 1000, blocks: 500, descriptors: 3 };

    fn list(spans: &[(u64, u32)]) -> Vec<u8> {
        let mut out = vec![0xee; 70_000];
        let mut w = Writer::new(&mut out);
        encode_unmap(spans.iter().map(|(lba, blocks)| BlockRange { lba: *lba, blocks: *blocks }), &mut w);
        let len = w.written_len();
        out.truncate(len);
        out
    }

    #[test]
    fn good_lists() {
        let bytes = list(&[(0, 8), (992, 8)]);
        assert_eq!(bytes[..8], [0, 38, 0, 32, 0, 0, 0, 0]);
        assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 3, 0xe0, 0, 0, 0, 8, 0, 0, 0, 0]);
        let parsed = UnmapList::parse(&bytes, &LIMITS).unwrap();
        let spans: Vec<_> = parsed.iter().collect();
        assert_eq!(spans, [BlockRange { lba: 0, blocks: 8 }, BlockRange { lba: 992, blocks: 8 }]);
        // Nothing to do: no list, no descriptors, no blocks, even right behind the last block.
        for bytes in [vec![], list(&[]), list(&[(0, 0), (1000, 0)])] {
            assert_eq!(UnmapList::parse(&bytes, &LIMITS).unwrap().iter().count(), 0);
        }
    }

    /// Attack row 43.
    #[test]
    fn refused_lists() {
        let parse = |bytes: &[u8], limits: &UnmapLimits| UnmapList::parse(bytes, limits).map(|_| ());
        let good = list(&[(0, 8)]);
        for len in 1..8 {
            assert_eq!(parse(&good[..len], &LIMITS), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        }
        for len in 8..good.len() {
            assert_eq!(parse(&good[..len], &LIMITS), Err(Sense::invalid_list_field(2, None)));
        }
        for inner in [17, 15, 32, 0xffff] {
            let mut lying = good.clone();
            lying[2..4].copy_from_slice(&u16::to_be_bytes(inner));
            assert_eq!(parse(&lying, &LIMITS), Err(Sense::invalid_list_field(2, None)), "{inner}");
        }
        let range = |lba| Err(Sense::LBA_OUT_OF_RANGE.with_information(lba));
        for (lba, blocks) in
            [(993, 8), (1000, 1), (1001, 0), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, u32::MAX)]
        {
            assert_eq!(parse(&list(&[(lba, blocks)]), &LIMITS), range(lba), "{lba}+{blocks}");
        }
        assert_eq!(parse(&list(&[(0, 1); 4]), &LIMITS), Err(Sense::invalid_list_field(2, None)));
        assert_eq!(parse(&list(&[(0, 250), (0, 251)]), &LIMITS), Err(Sense::invalid_list_field(32, None)));
        // As many descriptors as a list can hold, with no limit stated.
        let endless = UnmapLimits { capacity: 1 << 40, blocks: u32::MAX, descriptors: u32::MAX };
        assert_eq!(parse(&list(&vec![(0, u32::MAX); 4095]), &endless), Ok(()));
        assert!(parse(&list(&vec![(0, 1); 4095]), &LIMITS).is_err());
    }

    #[test]
    fn status_data() {
        let extents = [
            LbaStatus { blocks: BlockRange { lba: 8, blocks: 16 }, status: ProvisioningStatus::DEALLOCATED },
            LbaStatus { blocks: BlockRange { lba: 24, blocks: 1 }, status: ProvisioningStatus::MAPPED },
        ];
        let mut out = [0xee; 48];
        let mut w = Writer::with_allocation_length(&mut out, 24);
        encode_lba_status(extents.into_iter(), &mut w);
        assert_eq!((w.len(), w.written_len()), (40, 24));
        assert_eq!(
            out[..25],
            [0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 16, 1, 0, 0, 0, 0xee]
        );
        assert_eq!(decode_lba_status(&out[..24]).collect::<Vec<_>>(), extents[..1]);
        encode_lba_status(extents.into_iter(), &mut Writer::new(&mut out));
        assert_eq!(decode_lba_status(&out).collect::<Vec<_>>(), extents);
        assert_eq!(decode_lba_status(&[0xff; 7]).count(), 0);
    }

    proptest! {
        #[test]
        fn anything_has_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(parsed) = UnmapList::parse(&bytes, &LIMITS) {
                prop_assert!(parsed.iter().all(|b| b.lba + u64::from(b.blocks) <= 1000));
            }
            let _ = decode_lba_status(&bytes).count();
        }
    }
}
