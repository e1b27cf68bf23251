use super::*;
use proptest::prelude::*;

fn encoded(sense: Sense, descriptor: bool) -> Vec<u8> {
    let mut out = [0xee; 64];
    let len = sense.encode(descriptor, &mut out);
    assert!(out[len..].iter().all(|b| *b == 0xee));
    out[..len].to_vec()
}

#[test]
fn fixed_format_vectors() {
    let cases: &[(Sense, [u8; 18])] = &[
        (Sense::INVALID_OPCODE, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0]),
        (
            Sense::invalid_cdb_field(1, Some(6)),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xce, 0, 1],
        ),
        (
            Sense::invalid_cdb_field(258, None),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 1, 2],
        ),
        (
            Sense::invalid_list_field(4, None),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x26, 0, 0, 0x80, 0, 4],
        ),
        (
            Sense::MISCOMPARE_DURING_VERIFY.with_information(513),
            [0xf0, 0, 0xe, 0, 0, 2, 1, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0],
        ),
        (
            Sense::SANITIZE_IN_PROGRESS.with_progress(0x8000),
            [0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1b, 0, 0x80, 0x80, 0],
        ),
        (
            Sense::UNRECOVERED_READ_ERROR.with_information(1 << 32),
            [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0],
        ),
    ];
    for (sense, bytes) in cases {
        assert_eq!(encoded(*sense, false), bytes, "{sense:?}");
    }
}

#[test]
fn descriptor_format_vectors() {
    assert_eq!(encoded(Sense::LBA_OUT_OF_RANGE, true), [0x72, 5, 0x21, 0, 0, 0, 0, 0]);
    assert_eq!(
        encoded(Sense::UNRECOVERED_READ_ERROR.with_information(0x1_0000_0002), true),
        [0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    );
    assert_eq!(
        encoded(Sense::invalid_cdb_field(9, Some(2)), true),
        [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xca, 0, 9, 0]
    );
}

#[test]
fn a_short_buffer_cuts() {
    let mut out = [0xee; 4];
    assert_eq!(Sense::INVALID_OPCODE.encode(false, &mut out), 4);
    assert_eq!(out, [0x70, 0, 5, 0]);
}

#[test]
fn decoding_what_others_send() {
    assert_eq!(Sense::decode(&[]), None);
    assert_eq!(Sense::decode(&[0x7f; 18]), None);
    assert_eq!(Sense::decode(&[0x70, 0, 5]), None);
    // Fixed data cut before the additional sense code; one descriptor that lies about its length.
    let short = Sense::decode(&[0x70, 0, 5, 0, 0, 0, 0, 10]).unwrap();
    assert_eq!(short.sense, Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0)));
    let lying = Sense::decode(&[0x73, 6, 0x29, 0, 0, 0, 0, 255, 0, 200, 0x80, 0]).unwrap();
    assert_eq!(lying, DecodedSense { sense: Sense::POWER_ON, deferred: true });
}

prop_compose! {
    fn sense()(key in 0u8..16, code: u16, information: Option<u32>, byte: u16, bit in proptest::option::of(0u8..8)) -> Sense {
        let key = SenseKey(key);
        let specific = match key {
            SenseKey::ILLEGAL_REQUEST => SenseKeySpecific::Field(FieldPointer { in_cdb: byte % 2 == 0, byte, bit }),
            SenseKey::NO_SENSE | SenseKey::NOT_READY => SenseKeySpecific::Progress(byte),
            SenseKey::COPY_ABORTED => SenseKeySpecific::Segment { in_segment: byte % 2 == 0, byte },
            _ => SenseKeySpecific::None,
        };
        Sense { key, code: AdditionalSenseCode(code), information: information.map(u64::from), specific }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn decode_inverts_encode(sense in sense(), descriptor: bool) {
        prop_assert_eq!(Sense::decode(&encoded(sense, descriptor)), Some(DecodedSense { sense, deferred: false }));
        let mut out = [0; Sense::LEN_MAX];
        let len = sense.encode_deferred(descriptor, &mut out);
        prop_assert_eq!(Sense::decode(&out[..len]), Some(DecodedSense { sense, deferred: true }));
    }

    #[test]
    fn decode_takes_anything(data in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Sense::decode(&data);
    }
}
