//! Golden vectors of every PDU, and how common headers are judged.
//!
//! Provenance: the layouts are those of NVM Express TCP Transport Specification 1.0, figures of
//! §3.6.2; each vector was written byte by byte from the tables, not by the code that it tests. The
//! CRC32C values are those of the polynomial 1EDC6F41h over the bytes shown, computed with a bit-wise
//! routine of its own (`crc_by_bits`). The ICReq is what a Linux 6.1 host sends that wants both
//! digests (HPDA 0, MAXR2T 0); the CQE is a Connect's: CNTLID 1, and flow control disabled.

use super::*;
use nvme::{Completion, Cqe, Sqe};
use proptest::prelude::*;

/// Bytes from hexadecimal digits, spaces between them ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// `hex` with zeroes behind it.
fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = hex(text);
    bytes.resize(len, 0);
    bytes
}

fn crc_by_bits(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    };
    (!bytes.iter().fold(!0, step)).to_le_bytes()
}

#[test]
fn icreq() {
    let bytes = padded("00 00 80 00 80000000  0000 00 03 00000000", 128);
    assert_eq!(IcReq::new(0, true, true, 1).as_bytes(), bytes);
    let bytes = padded("00 00 80 00 80000000  0000 1f 01 03000000", 128);
    let request = IcReq::from_prefix(&bytes).unwrap();
    assert_eq!((request.hpda, request.maxr2t.get()), (31, 3));
    assert!(request.header_digest() && !request.data_digest() && request.check().is_ok());
    assert!(IcReq::from_prefix(&bytes[..127]).is_none());
}

#[test]
fn icresp() {
    let parameters = ConnectionParameters {
        header_digest: true,
        data_digest: true,
        host_alignment: 4,
        controller_alignment: 4,
        r2ts: 1,
        max_h2c_data: 0x20000,
    };
    let bytes = padded("01 00 80 00 80000000  0000 00 03 00000200", 128);
    assert_eq!(IcResp::new(&parameters).as_bytes(), bytes);
    let answer = IcResp::from_prefix(&bytes).unwrap();
    assert_eq!(answer.parameters(&IcReq::new(0, true, true, 1)), Ok(parameters));
}

#[test]
fn capsule_cmd() {
    // A read of eight blocks from block 100h on, namespace 1, 4096 bytes by C2HData.
    let sqe = "02 40 3412 01000000 0000000000000000 0000000000000000
        0000000000000000 00100000 000000 5a  00010000 00000000 07000000 00000000 00000000 00000000";
    let bytes = [hex("04 00 48 00 48000000"), hex(sqe)].concat();
    let capsule = CapsuleCmd::from_prefix(&bytes).unwrap();
    assert_eq!((capsule.sqe.cid.get(), capsule.sqe.nsid.get()), (0x1234, 1));
    assert_eq!((capsule.sqe.dptr.identifier, capsule.sqe.dptr.length.get()), (0x5a, 4096));
    assert_eq!((capsule.sqe.psdt(), capsule.sqe.cdw_pair(10), capsule.sqe.cdw(12)), (1, 0x100, 7));
    let sqe: Sqe = capsule.sqe;
    assert_eq!(CapsuleCmd::new(sqe).as_bytes(), bytes);
}

#[test]
fn capsule_resp() {
    let bytes = hex("05 00 18 00 18000000  0100000000000000 ffff 0000 0500 0000");
    let cqe = Cqe::new(Completion { result: 1, ..Completion::SUCCESS }, 5, 0xffff);
    assert_eq!(CapsuleResp::new(cqe).as_bytes(), bytes);
    assert_eq!(CapsuleResp::from_prefix(&bytes).unwrap().cqe, cqe);
}

#[test]
fn data_and_r2t() {
    let bytes = hex("06 04 18 00 18000000  3412 7856 00100000 00080000 00000000");
    assert_eq!(H2cData::new(0x1234, 0x5678, 4096, 2048, true).as_bytes(), bytes);
    let pdu = H2cData::from_prefix(&bytes).unwrap();
    assert_eq!(
        (pdu.cccid.get(), pdu.ttag.get(), pdu.datao.get(), pdu.datal.get()),
        (0x1234, 0x5678, 4096, 2048)
    );
    let bytes = hex("07 0c 18 00 18000000  3412 0000 00100000 00080000 00000000");
    let flags = Flags(Flags::LAST.0 | Flags::SUCCESS.0);
    assert_eq!(C2hData::new(0x1234, 4096, 2048, flags).as_bytes(), bytes);
    let bytes = hex("09 00 18 00 18000000  3412 7856 00100000 00080000 00000000");
    assert_eq!(R2t::new(0x1234, 0x5678, 4096, 2048).as_bytes(), bytes);
    let pdu = R2t::from_prefix(&bytes).unwrap();
    assert_eq!(
        (pdu.cccid.get(), pdu.ttag.get(), pdu.r2to.get(), pdu.r2tl.get()),
        (0x1234, 0x5678, 4096, 2048)
    );
}

#[test]
fn term_reqs() {
    // FEI stands at 10, unaligned.
    let bytes = hex("03 00 18 00 20000000  0100 04000000 00000000000000000000");
    assert_eq!(TermReq::new(PduType::C2H_TERM_REQ, FatalError::invalid_field(4), 8).as_bytes(), bytes);
    let bytes = hex("02 00 18 00 60000000  0300 78563412 00000000000000000000");
    let fatal = FatalError::header_digest_error([0x78, 0x56, 0x34, 0x12]);
    assert_eq!(TermReq::new(PduType::H2C_TERM_REQ, fatal, 72).as_bytes(), bytes);
    assert_eq!(TermReq::from_prefix(&bytes).unwrap().fatal_error(), fatal);
}

#[test]
fn digests_go_least_significant_byte_first() {
    // RFC 7143 appendix B.4 (32 bytes of zeroes): the same CRC.
    assert_eq!(crc32c_digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    let r2t = R2t::new(1, 2, 3, 4);
    assert_eq!(crc32c_digest(r2t.as_bytes()), crc_by_bits(r2t.as_bytes()));
}

fn limits(header_digest: bool, data_digest: bool) -> PduLimits {
    PduLimits { from: Sender::Host, header_digest, data_digest, alignment: 4, capsule_max: 8192 }
}

fn judge(bytes: &str, limits: &PduLimits) -> Result<PduFrame, FatalError> {
    PduFrame::parse(&CommonHeader::read_from_bytes(&hex(bytes)).unwrap(), limits)
}

#[test]
fn lengths_are_told_apart() {
    let both = limits(true, true);
    let frame = judge("04 03 48 4c 50100000", &both).unwrap();
    assert_eq!((frame.header, frame.head, frame.data), (72, 76, 4096));
    let frame = judge("04 01 48 00 4c000000", &both).unwrap();
    assert_eq!((frame.head, frame.data), (76, 0));
    // A host may set DDGSTF where there is nothing to digest, and PDO where there is no data.
    let frame = judge("04 03 48 4c 4c000000", &both).unwrap();
    assert_eq!((frame.head, frame.data), (76, 0));
    let frame = judge("06 04 18 80 80020000", &limits(false, false)).unwrap();
    assert_eq!((frame.head, frame.data), (128, 512));
    let frame = judge("02 00 18 00 98000000", &both).unwrap();
    assert_eq!((frame.head, frame.data), (24, 128));
}

#[test]
fn each_wrong_field_is_named() {
    let (plain, both) = (limits(false, false), limits(true, true));
    for (bytes, limits, fatal) in [
        ("08 00 18 00 18000000", &plain, FatalError::invalid_field(0)),
        ("05 00 18 00 18000000", &plain, FatalError::invalid_field(0)),
        ("04 00 47 00 48000000", &plain, FatalError::invalid_field(2)),
        ("04 01 48 00 4c000000", &plain, FatalError::invalid_field(1)),
        ("04 02 48 00 48000000", &plain, FatalError::invalid_field(1)),
        ("04 00 48 00 48000000", &both, FatalError::invalid_field(1)),
        ("04 01 48 4c 50000000", &both, FatalError::invalid_field(1)),
        ("04 01 48 00 48000000", &both, FatalError::invalid_field(4)),
        ("04 00 48 44 50000000", &plain, FatalError::invalid_field(3)),
        ("04 00 48 4a 50000000", &plain, FatalError::invalid_field(3)),
        ("04 00 48 58 50000000", &plain, FatalError::invalid_field(3)),
        ("04 00 48 50 50000000", &plain, FatalError::invalid_field(4)),
        ("04 03 48 4c 50000000", &both, FatalError::invalid_field(4)),
        ("04 00 48 48 49200000", &plain, FatalError::invalid_field(4)),
        ("02 00 18 00 99000000", &plain, FatalError::invalid_field(4)),
        ("00 00 80 00 81000000", &plain, FatalError::invalid_field(4)),
        // Without data PDO means nothing, but it cannot point out of the PDU.
        ("04 00 48 49 48000000", &plain, FatalError::invalid_field(3)),
        ("04 03 48 4d 4c000000", &both, FatalError::invalid_field(3)),
        ("06 04 18 ff 18000000", &plain, FatalError::invalid_field(3)),
        ("00 00 80 81 80000000", &plain, FatalError::invalid_field(3)),
    ] {
        assert_eq!(judge(bytes, limits), Err(fatal), "{bytes}");
    }
    // A controller's PDU without data names no place outside of itself.
    let from = PduLimits { from: Sender::Controller, ..plain };
    assert_eq!(judge("05 00 18 19 18000000", &from), Err(FatalError::invalid_field(3)));
    assert_eq!(judge("07 04 18 ff 18000000", &from), Err(FatalError::invalid_field(3)));
    assert!(judge("05 00 18 18 18000000", &from).is_ok());
    let coarse = PduLimits { alignment: 16, ..plain };
    assert_eq!(judge("04 00 48 48 00100000", &coarse), Err(FatalError::invalid_field(3)));
    assert!(judge("04 00 48 50 00100000", &coarse).is_ok());
}

#[test]
fn terms_that_were_not_asked_for_are_refused() {
    let asked = IcReq::new(0, false, true, 1);
    for (bytes, fatal) in [
        ("01 00 80 00 80000000  0100 00 00 00000200", FatalError::unsupported_parameter(8)),
        ("01 00 80 00 80000000  0000 20 00 00000200", FatalError::invalid_field(10)),
        ("01 00 80 00 80000000  0000 00 01 00000200", FatalError::invalid_field(11)),
        ("01 00 80 00 80000000  0000 00 00 ff0f0000", FatalError::invalid_field(12)),
        ("01 00 80 00 80000000  0000 00 00 02100000", FatalError::invalid_field(12)),
    ] {
        let bytes = padded(bytes, 128);
        assert_eq!(IcResp::from_prefix(&bytes).unwrap().parameters(&asked), Err(fatal));
    }
}

proptest! {
    /// Whatever is accepted sums to PLEN, and stands where it may.
    #[test]
    fn accepted_lengths_sum_up(
        bytes in any::<[u8; 8]>(),
        pdu_type in prop::sample::select(vec![0u8, 2, 4, 6]),
        plen in 0u32..20_000,
        digests in any::<(bool, bool)>(),
    ) {
        let mut common = CommonHeader::read_from_bytes(&bytes).unwrap();
        common.pdu_type = PduType(pdu_type);
        common.hlen = [128, 0, 24, 0, 72, 0, 24][usize::from(pdu_type)];
        common.plen = U32::new(plen);
        let limits = limits(digests.0, digests.1);
        if let Ok(frame) = PduFrame::parse(&common, &limits) {
            let digest = if frame.data > 0 && frame.flags.contains(Flags::DATA_DIGEST) && pdu_type != 2 { 4 } else { 0 };
            prop_assert_eq!(u32::from(frame.head) + frame.data + digest, plen);
            prop_assert!(frame.head >= frame.header && (frame.data == 0 || frame.head % 4 == 0));
        }
    }
}
