use super::*;
use crate::vpd::{Association, CodeSet, DesignatorType};
use proptest::prelude::*;

const LIMITS: CopyLimits = CopyLimits {
    targets: 2,
    segments: 4,
    descriptors_len: 3 * 32 + 5 * 28,
    segment_len: 1 << 24,
    concurrent: 1,
    granularity: 9,
};
const NAA: Designator<'static> = Designator {
    code_set: CodeSet::BINARY,
    association: Association::UNIT,
    kind: DesignatorType::NAA,
    bytes: &[0x31, 2, 3, 4, 5, 6, 7, 8],
};
const TARGET: CopyTarget<'static> = CopyTarget { designator: NAA, block_len: 512 };
const BLOCKS: CopySegment = CopySegment {
    source: 0,
    destination: 0,
    source_lba: 0,
    destination_lba: 0x0102_0304_0506_0708,
    len: CopyLen::Blocks { count: 2048, destination: false },
};
const BYTES: CopySegment = CopySegment {
    destination: 1,
    len: CopyLen::Bytes { count: 1 << 20, source_offset: 3, destination_offset: 4 },
    ..BLOCKS
};

fn list(targets: &[CopyTarget<'_>], segments: &[CopySegment]) -> Vec<u8> {
    let mut out = [0xee; 1024];
    let mut w = Writer::new(&mut out);
    encode_list(1, ListIdUsage::Hold, targets.iter().copied(), segments.iter().copied(), &mut w);
    let len = w.written_len();
    out[..len].to_vec()
}

#[test]
fn one_target_one_segment() {
    let bytes = list(&[TARGET], &[BLOCKS]);
    #[rustfmt::skip]
    assert_eq!(bytes, [
        1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0,
        0xe4, 0, 0, 0, 1, 3, 0, 8, 0x31, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0,
        2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    let parsed = CopyParameterList::parse(&bytes, &LIMITS).unwrap();
    assert_eq!((parsed.id, parsed.usage), (1, ListIdUsage::Hold));
    assert_eq!(parsed.target(0), Ok(TARGET));
    assert_eq!(parsed.target(1), Err(Sense::COPY_TARGET_UNREACHABLE));
    assert_eq!(parsed.segments().collect::<Vec<_>>(), [BLOCKS]);
}

#[test]
fn targets_and_segments_of_both_forms() {
    let bytes = list(&[TARGET, TARGET], &[BLOCKS, BYTES, BLOCKS]);
    let parsed = CopyParameterList::parse(&bytes, &LIMITS).unwrap();
    assert_eq!(parsed.targets().len(), 2);
    assert_eq!(parsed.segments().collect::<Vec<_>>(), [BLOCKS, BYTES, BLOCKS]);
}

/// Attack row 49: limits are enforced before anything is copied.
#[test]
fn refusals() {
    let whole = list(&[TARGET], &[BLOCKS]);
    let parse = |bytes: &[u8]| CopyParameterList::parse(bytes, &LIMITS).map(|_| ());
    for len in 0..whole.len() {
        assert_eq!(parse(&whole[..len]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR), "cut at {len}");
    }
    assert_eq!(parse(&list(&[TARGET; 3], &[BLOCKS])), Err(Sense::TOO_MANY_TARGET_DESCRIPTORS));
    assert_eq!(parse(&list(&[TARGET], &[BLOCKS; 5])), Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS));
    assert_eq!(parse(&list(&[TARGET; 3], &[BLOCKS; 6])), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    let long = CopySegment {
        len: CopyLen::Bytes { count: (1 << 24) + 1, source_offset: 0, destination_offset: 0 },
        ..BYTES
    };
    assert_eq!(parse(&list(&[TARGET], &[long])), Err(Sense::invalid_list_field(56, None)));
    #[rustfmt::skip]
    let cases: &[(usize, u8, Sense)] = &[
        (1, 0x18, Sense::invalid_list_field(0, None)),
        (1, 0x08, Sense::invalid_list_field(1, Some(4))),
        (3, 31, Sense::invalid_list_field(2, None)),
        (8, 0xff, Sense::PARAMETER_LIST_LENGTH_ERROR),
        (15, 1, Sense::INLINE_DATA_TOO_LONG),
        (16, 0xe0, Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE),
        (17, 0x01, Sense::invalid_list_field(17, Some(4))),
        (23, 21, Sense::invalid_list_field(23, None)),
        (23, 255, Sense::invalid_list_field(23, None)),
        (48, 0x03, Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE),
        (51, 25, Sense::invalid_list_field(50, None)),
        (50, 0xff, Sense::invalid_list_field(50, None)),
    ];
    for (at, value, refusal) in cases {
        let mut bytes = whole.clone();
        bytes[*at] = *value;
        assert_eq!(parse(&bytes), Err(*refusal), "byte {at} = {value:02x}h");
    }
    // LU ID TYPE and NUL are obsolete.
    let mut obsolete = whole.clone();
    obsolete[17] = 0xe0;
    assert_eq!(parse(&obsolete), Ok(()));
}

#[test]
fn results() {
    fn written(f: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = [0xee; 128];
        let mut w = Writer::new(&mut out);
        f(&mut w);
        let len = w.written_len();
        out[..len].to_vec()
    }
    let status = CopyStatus { state: CopyState::Done, segments: 1, bytes: 0x10_0000 };
    assert_eq!(written(|w| status.encode(w)), [0, 0, 0, 8, 0x81, 0, 1, 0, 0, 0x10, 0, 0]);
    let large = CopyStatus { state: CopyState::InProgress, segments: 2, bytes: 5 << 32 };
    assert_eq!(written(|w| large.encode(w)), [0, 0, 0, 8, 0x80, 0, 2, 2, 0, 0, 0x50, 0]);

    let parameters = written(|w| LIMITS.encode(w));
    #[rustfmt::skip]
    assert_eq!(parameters, [
        0, 0, 0, 43, 1, 0, 0, 0, 0, 2, 0, 4, 0, 0, 0, 236, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 1, 1, 9, 0, 0, 0, 0, 0, 3, 0x02, 0x0a, 0xe4,
    ]);
    assert_eq!(written(encode_no_held_data), [0; 4]);
    assert_eq!(written(|w| encode_failed_segment_details(None, w)), [0; 4]);
    let failure = written(|w| {
        encode_failed_segment_details(Some((crate::Status::CHECK_CONDITION, &Sense::LBA_OUT_OF_RANGE)), w);
    });
    assert_eq!((failure.len(), failure[3], failure[56]), (78, 74, 2));
    assert_eq!(failure[58..60], [0, 18]);
    assert_eq!(failure[60..63], [0x70, 0, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_list_has_an_answer(at in 0usize..76, value: u8, at2 in 0usize..76, value2: u8, cut in 0usize..80) {
        let mut bytes = list(&[TARGET], &[BLOCKS]);
        bytes[at] = value;
        bytes[at2] = value2;
        bytes.truncate(cut);
        if let Ok(parsed) = CopyParameterList::parse(&bytes, &LIMITS) {
            prop_assert!(parsed.targets().len() <= 2);
            prop_assert!(parsed.segments().count() <= 4);
        }
    }

    #[test]
    fn noise_has_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(parsed) = CopyParameterList::parse(&bytes, &LIMITS) {
            prop_assert!(parsed.targets().len() <= 2);
        }
    }
}
