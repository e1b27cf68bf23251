//! EXTENDED COPY(LID1) parameter lists and RECEIVE COPY RESULTS data (SPC-4 §6.4 to §6.6, §6.17 to §6.20).
//!
//! Target descriptors name logical units by a designator (E4h), segment descriptors copy blocks to blocks
//! (02h with a count of blocks, 0Ah with a count of bytes). A list is checked as a whole against [`CopyLimits`]
//! before anything is copied; no index into the list is trusted.

#[cfg(test)]
mod tests;

use crate::sense::{Sense, SenseKeySpecific};
use crate::vpd::Designator;
use crate::wire::{Writer, be16, be24, be32, be64, bit, bits, flag_bit};

/// Identification descriptor target descriptor.
const TARGET_IDENTIFICATION: u8 = 0xe4;
/// Block to block segment descriptor.
const BLOCK_TO_BLOCK: u8 = 0x02;
/// Block to block with offsets: the length in bytes.
const BLOCK_TO_BLOCK_OFFSET: u8 = 0x0a;

/// IMPLEMENTED DESCRIPTOR LIST, ascending.
pub const DESCRIPTOR_TYPES: [u8; 3] = [BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_OFFSET, TARGET_IDENTIFICATION];

const HEADER_LEN: usize = 16;
const TARGET_LEN: usize = 32;
const DESIGNATOR_LEN_MAX: usize = 20;

/// What a copy manager takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyLimits {
    /// MAXIMUM TARGET DESCRIPTOR COUNT.
    pub targets: u16,
    /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
    pub segments: u16,
    /// MAXIMUM DESCRIPTOR LIST LENGTH in bytes: targets and segments together.
    pub descriptors_len: u32,
    /// MAXIMUM SEGMENT LENGTH in bytes.
    pub segment_len: u32,
    /// Copies at a time.
    pub concurrent: u8,
    /// DATA SEGMENT GRANULARITY: log2 of bytes.
    pub granularity: u8,
}

impl CopyLimits {
    /// Bytes of the longest list that can be taken: the bound of the buffer for it.
    pub const fn list_len_max(&self) -> usize {
        HEADER_LEN + self.descriptors_len as usize
    }
}

/// LIST ID USAGE (SPC-4 §6.4.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListIdUsage {
    /// 00b: the identifier is unique; data for RECEIVE COPY RESULTS is kept.
    Hold,
    /// 10b: the identifier is unique; no data is kept.
    Discard,
    /// 11b: there is no identifier.
    None,
}

/// A logical unit that takes part in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyTarget<'a> {
    /// Its name.
    pub designator: Designator<'a>,
    /// DISK BLOCK LENGTH as the initiator sees it, in bytes.
    pub block_len: u32,
}

/// How much a segment copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyLen {
    /// Blocks of the source (DC = 0) or of the destination (DC = 1).
    Blocks {
        /// NUMBER OF BLOCKS.
        count: u16,
        /// DC: in blocks of the destination.
        destination: bool,
    },
    /// Bytes, with offsets into the first block of each side.
    Bytes {
        /// NUMBER OF BYTES.
        count: u32,
        /// SOURCE BLOCK BYTE OFFSET.
        source_offset: u16,
        /// DESTINATION BLOCK BYTE OFFSET.
        destination_offset: u16,
    },
}

/// One copy of a span of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopySegment {
    /// Index of the source among the targets; may be beyond them.
    pub source: u16,
    /// Index of the destination among the targets; may be beyond them.
    pub destination: u16,
    /// First block of the source.
    pub source_lba: u64,
    /// First block of the destination.
    pub destination_lba: u64,
    /// How much.
    pub len: CopyLen,
}

/// A checked parameter list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyParameterList<'a> {
    /// LIST IDENTIFIER.
    pub id: u8,
    /// What it is good for.
    pub usage: ListIdUsage,
    targets: &'a [[u8; TARGET_LEN]],
    segments: &'a [u8],
}

impl<'a> CopyParameterList<'a> {
    /// Checks a list: lengths first, then counts, then each descriptor. The caller answers an empty list
    /// (PARAMETER LIST LENGTH 0) with GOOD.
    pub fn parse(list: &'a [u8], limits: &CopyLimits) -> Result<CopyParameterList<'a>, Sense> {
        let (header, rest) =
            list.split_first_chunk::<HEADER_LEN>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let usage = match bits(header[1], 4, 3) {
            0 => ListIdUsage::Hold,
            2 => ListIdUsage::Discard,
            3 if header[0] == 0 => ListIdUsage::None,
            3 => return Err(Sense::invalid_list_field(0, None)),
            _ => return Err(Sense::invalid_list_field(1, Some(4))),
        };
        let targets_len = usize::from(be16(header, 2));
        let (segments_len, inline_len) = (be32(header, 8), be32(header, 12));
        if inline_len != 0 {
            return Err(Sense::INLINE_DATA_TOO_LONG);
        }
        let descriptors_len = targets_len as u64 + u64::from(segments_len);
        if descriptors_len > u64::from(limits.descriptors_len) || descriptors_len > rest.len() as u64 {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let (targets, rest) = rest.split_at(targets_len);
        let segments = rest.get(..segments_len as usize).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let targets = check_targets(targets, limits)?;
        check_segments(segments, HEADER_LEN + targets_len, limits)?;
        Ok(CopyParameterList { id: header[0], usage, targets, segments })
    }

    /// The logical units.
    pub fn targets(&self) -> impl ExactSizeIterator<Item = CopyTarget<'a>> + use<'a> {
        self.targets.iter().map(parse_target)
    }

    /// A segment's logical unit; the refusal is that of an index beyond the list.
    pub fn target(&self, index: u16) -> Result<CopyTarget<'a>, Sense> {
        self.targets.get(usize::from(index)).map(parse_target).ok_or(Sense::COPY_TARGET_UNREACHABLE)
    }

    /// The segments in their order.
    pub fn segments(&self) -> impl Iterator<Item = CopySegment> + use<'a> {
        let mut rest = self.segments;
        std::iter::from_fn(move || {
            let (segment, next) = parse_segment(rest).ok()??;
            rest = next;
            Some(segment)
        })
    }
}

fn check_targets<'a>(bytes: &'a [u8], limits: &CopyLimits) -> Result<&'a [[u8; TARGET_LEN]], Sense> {
    let (targets, odd) = bytes.as_chunks::<TARGET_LEN>();
    if !odd.is_empty() {
        return Err(Sense::invalid_list_field(2, None));
    }
    if targets.len() > usize::from(limits.targets) {
        return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS);
    }
    for (index, target) in targets.iter().enumerate() {
        let at = HEADER_LEN + index * TARGET_LEN;
        if target[0] != TARGET_IDENTIFICATION {
            return Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE);
        }
        // PERIPHERAL DEVICE TYPE; LU ID TYPE and NUL beside it are obsolete and ignored.
        if bits(target[1], 4, 0) != 0 {
            return Err(Sense::invalid_list_field(at + 1, Some(4)));
        }
        if usize::from(target[7]) > DESIGNATOR_LEN_MAX {
            return Err(Sense::invalid_list_field(at + 7, None));
        }
    }
    Ok(targets)
}

/// Reads what [`check_targets`] has let through.
fn parse_target(bytes: &[u8; TARGET_LEN]) -> CopyTarget<'_> {
    let head = [bytes[4], bytes[5], bytes[6], bytes[7]];
    let len = usize::from(bytes[7]).min(DESIGNATOR_LEN_MAX);
    let name = bytes.get(8..8 + len).unwrap_or_default();
    CopyTarget { designator: Designator::from_parts(&head, name), block_len: be24(bytes, 29) }
}

fn check_segments(bytes: &[u8], start: usize, limits: &CopyLimits) -> Result<(), Sense> {
    let mut rest = bytes;
    let mut count = 0;
    // Too many are told from a wrong one first: an initiator that overfills the list learns the limit.
    while let Some(len) = descriptor_len(rest) {
        count += 1;
        rest = rest.get(len..).unwrap_or(&[]);
    }
    if count > usize::from(limits.segments) {
        return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let at = start + bytes.len() - rest.len();
        match parse_segment(rest) {
            Ok(Some((segment, next))) => {
                if segment.byte_count() > u64::from(limits.segment_len) {
                    return Err(Sense::invalid_list_field(at + 8, None));
                }
                rest = next;
            }
            Ok(None) => return Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
            Err(SegmentError::Type) => return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE),
            Err(SegmentError::Len) => return Err(Sense::invalid_list_field(at + 2, None)),
        }
    }
    Ok(())
}

fn descriptor_len(bytes: &[u8]) -> Option<usize> {
    let head: &[u8; 4] = bytes.first_chunk()?;
    Some(4 + usize::from(be16(head, 2)))
}

enum SegmentError {
    Type,
    Len,
}

/// Reads the first segment descriptor; `Ok(None)`: there is no whole one.
fn parse_segment(bytes: &[u8]) -> Result<Option<(CopySegment, &[u8])>, SegmentError> {
    let (Some(len), [kind, flags, ..]) = (descriptor_len(bytes), bytes) else { return Ok(None) };
    let expected = match *kind {
        BLOCK_TO_BLOCK => 28,
        BLOCK_TO_BLOCK_OFFSET => 32,
        _ => return Err(SegmentError::Type),
    };
    if len != expected {
        return Err(SegmentError::Len);
    }
    let Some((d, rest)) = bytes.split_at_checked(len) else { return Ok(None) };
    let len = if *kind == BLOCK_TO_BLOCK {
        CopyLen::Blocks { count: be16(d, 10), destination: bit(*flags, 1) }
    } else {
        CopyLen::Bytes { count: be32(d, 8), source_offset: be16(d, 28), destination_offset: be16(d, 30) }
    };
    let segment = CopySegment {
        source: be16(d, 4),
        destination: be16(d, 6),
        source_lba: be64(d, 12),
        destination_lba: be64(d, 20),
        len,
    };
    Ok(Some((segment, rest)))
}

impl CopySegment {
    /// The count if it is in bytes; a count of 16-bit blocks is judged with the block length at hand.
    fn byte_count(&self) -> u64 {
        match self.len {
            CopyLen::Blocks { .. } => 0,
            CopyLen::Bytes { count, .. } => u64::from(count),
        }
    }

    /// The sense data of a failure in this segment, whose descriptor's field at `byte` is to blame.
    pub const fn failure_sense(byte: u16) -> Sense {
        let mut sense = Sense::COPY_ABORTED_NO_ADDITIONAL;
        sense.specific = SenseKeySpecific::Segment { in_segment: true, byte };
        sense
    }
}

/// Writes a list: the initiator's direction. Designators longer than 20 bytes are cut.
pub fn encode_list<'a>(
    id: u8,
    usage: ListIdUsage,
    targets: impl Iterator<Item = CopyTarget<'a>>,
    segments: impl Iterator<Item = CopySegment>,
    w: &mut Writer<'_>,
) {
    let start = w.len();
    let usage = match usage {
        ListIdUsage::Hold => 0,
        ListIdUsage::Discard => 2,
        ListIdUsage::None => 3,
    };
    w.put(&[id, crate::wire::place_bits(usage, 4, 3)]);
    w.zeros(HEADER_LEN - 2);
    targets.for_each(|target| target.put(w));
    let targets_len = (w.len() - start - HEADER_LEN) as u16;
    w.patch(start + 2, &targets_len.to_be_bytes());
    let segments_at = w.len();
    segments.for_each(|segment| segment.put(w));
    let segments_len = (w.len() - segments_at) as u32;
    w.patch(start + 8, &segments_len.to_be_bytes());
}

impl CopyTarget<'_> {
    fn put(&self, w: &mut Writer<'_>) {
        let d = &self.designator;
        let bytes = d.bytes.get(..DESIGNATOR_LEN_MAX).unwrap_or(d.bytes);
        w.put(&[TARGET_IDENTIFICATION, 0, 0, 0]);
        w.u8(d.code_set.0);
        w.u8(crate::wire::place_bits(d.association.0, 5, 4) | d.kind.0);
        w.u8(0);
        w.u8(bytes.len() as u8);
        w.put(bytes);
        w.zeros(DESIGNATOR_LEN_MAX - bytes.len() + 1);
        w.u24(self.block_len);
    }
}

impl CopySegment {
    fn put(&self, w: &mut Writer<'_>) {
        match self.len {
            CopyLen::Blocks { destination, .. } => {
                w.put(&[BLOCK_TO_BLOCK, flag_bit(destination, 1), 0, 24]);
            }
            CopyLen::Bytes { .. } => w.put(&[BLOCK_TO_BLOCK_OFFSET, 0, 0, 28]),
        }
        w.u16(self.source);
        w.u16(self.destination);
        match self.len {
            CopyLen::Blocks { count, .. } => w.u32(u32::from(count)),
            CopyLen::Bytes { count, .. } => w.u32(count),
        }
        w.u64(self.source_lba);
        w.u64(self.destination_lba);
        if let CopyLen::Bytes { source_offset, destination_offset, .. } = self.len {
            w.u16(source_offset);
            w.u16(destination_offset);
        }
    }
}

/// COPY MANAGER STATUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyState {
    /// 00h.
    InProgress,
    /// 01h.
    Done,
    /// 02h.
    Failed,
}

/// How far a copy is: RECEIVE COPY RESULTS, COPY STATUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyStatus {
    /// Whether it goes on.
    pub state: CopyState,
    /// SEGMENTS PROCESSED.
    pub segments: u16,
    /// TRANSFER COUNT in bytes; more than 32 bits can say is given in mebibytes.
    pub bytes: u64,
}

impl CopyStatus {
    /// Writes COPY STATUS data; all held data is discarded (HDD).
    pub fn encode(&self, w: &mut Writer<'_>) {
        let state = match self.state {
            CopyState::InProgress => 0,
            CopyState::Done => 1,
            CopyState::Failed => 2,
        };
        let (units, count) = match u32::try_from(self.bytes) {
            Ok(bytes) => (UNITS_BYTES, bytes),
            Err(_) => (UNITS_MEBIBYTES, (self.bytes >> 20) as u32),
        };
        w.u32(8);
        w.u8(flag_bit(true, 7) | state);
        w.u16(self.segments);
        w.u8(units);
        w.u32(count);
    }
}

const UNITS_BYTES: u8 = 0x00;
const UNITS_MEBIBYTES: u8 = 0x02;

/// RECEIVE DATA: nothing is ever held for the initiator.
pub fn encode_no_held_data(w: &mut Writer<'_>) {
    w.u32(0);
}

/// FAILED SEGMENT DETAILS: the status and sense data of the copy that failed, or nothing.
pub fn encode_failed_segment_details(failure: Option<(crate::Status, &Sense)>, w: &mut Writer<'_>) {
    let start = w.len();
    w.u32(0);
    if let Some((status, sense)) = failure {
        let mut data = [0; Sense::LEN_MAX];
        let len = sense.encode(false, &mut data);
        w.zeros(52);
        w.u8(status.0);
        w.u8(0);
        w.u16(len as u16);
        w.put(data.get(..len).unwrap_or(&data));
    }
    w.patch_length_u32(start);
}

impl CopyLimits {
    /// Writes OPERATING PARAMETERS data.
    pub fn encode(&self, w: &mut Writer<'_>) {
        let start = w.len();
        w.u32(0);
        // SNLID: a list without identifier is taken.
        w.u8(flag_bit(true, 0));
        w.zeros(3);
        w.u16(self.targets);
        w.u16(self.segments);
        w.u32(self.descriptors_len);
        w.u32(self.segment_len);
        // Inline data, held data, stream device transfer size: none.
        w.zeros(12);
        w.zeros(2);
        w.u16(u16::from(self.concurrent));
        w.u8(self.concurrent);
        w.u8(self.granularity);
        w.zeros(5);
        w.u8(DESCRIPTOR_TYPES.len() as u8);
        w.put(&DESCRIPTOR_TYPES);
        w.patch_length_u32(start);
    }
}
