use super::*;
use proptest::prelude::*;

fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

const SPAN: BlockTransfer =
    BlockTransfer { lba: 0x0102_0304, blocks: 0x0506, dpo: false, fua: false, group: 0 };

#[test]
fn block_command_vectors() {
    let long =
        BlockTransfer { lba: 0x0102_0304_0506_0708, blocks: 0x090a_0b0c, dpo: true, fua: true, group: 0x15 };
    let verify = Verify { lba: 0x0102_0304, blocks: 0x0506, dpo: true, check: ByteCheck::None, group: 0 };
    let extent = BlockExtent { lba: 0x0102_0304, blocks: 0x0506, immediate: true, group: 3 };
    let same = WriteSame { lba: 1, blocks: 2, unmap: true, anchor: false, no_data: false, group: 0 };
    #[rustfmt::skip]
    let cases: &[(&[u8], Command)] = &[
        (&[0x08, 0x1f, 2, 3, 0, 0], Command::Read(BlockTransfer { lba: 0x1f_0203, blocks: 256, ..SPAN })),
        (&[0x0a, 0, 0, 3, 1, 0], Command::Write(BlockTransfer { lba: 3, blocks: 1, ..SPAN })),
        (&[0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0], Command::Read(SPAN)),
        (&[0x2a, 0x08, 1, 2, 3, 4, 0, 5, 6, 0], Command::Write(BlockTransfer { fua: true, ..SPAN })),
        (&[0x2a, 0x02, 1, 2, 3, 4, 0, 5, 6, 0], Command::Write(SPAN)),
        (&[0xa8, 0x10, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0], Command::Read(BlockTransfer { dpo: true, ..SPAN })),
        (&[0xaa, 0, 1, 2, 3, 4, 0, 0, 5, 6, 0x3f, 0], Command::Write(BlockTransfer { group: 63, ..SPAN })),
        (&[0x88, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x15, 0], Command::Read(long)),
        (&[0x8b, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x15, 0], Command::OrWrite(long)),
        (&[0x89, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 12, 0x15, 0], Command::CompareAndWrite(BlockTransfer { blocks: 12, ..long })),
        (&[0x9c, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x15, 0], Command::WriteAtomic(WriteAtomic { transfer: BlockTransfer { blocks: 0x0b0c, ..long }, boundary: 0x090a })),
        (&[0x2f, 0x10, 1, 2, 3, 4, 0, 5, 6, 0], Command::Verify(verify)),
        (&[0x2f, 0x12, 1, 2, 3, 4, 0, 5, 6, 0], Command::Verify(Verify { check: ByteCheck::Compare, ..verify })),
        (&[0x2f, 0x16, 1, 2, 3, 4, 0, 5, 6, 0], Command::Verify(Verify { check: ByteCheck::CompareOne, ..verify })),
        (&[0xae, 0x12, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0], Command::WriteAndVerify(Verify { check: ByteCheck::Compare, ..verify })),
        (&[0x34, 0x02, 1, 2, 3, 4, 3, 5, 6, 0], Command::PreFetch(extent)),
        (&[0x35, 0x06, 1, 2, 3, 4, 3, 5, 6, 0], Command::SynchronizeCache(extent)),
        (&[0x91, 0x02, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 3, 0], Command::SynchronizeCache(extent)),
        (&[0x41, 0x08, 0, 0, 0, 1, 0, 0, 2, 0], Command::WriteSame(same)),
        (&[0x93, 0x19, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], Command::WriteSame(WriteSame { anchor: true, no_data: true, ..same })),
        (&[0x42, 1, 0, 0, 0, 0, 3, 0, 24, 0], Command::Unmap { anchor: true, group: 3, list_len: 24 }),
        (&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 24, 0, 0], Command::GetLbaStatus { lba: 9, allocation: 24 }),
        (&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], Command::ReadCapacity16 { allocation: 32 }),
        (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Command::ReadCapacity10),
        (&[0x48, 0xa1, 0, 0, 0, 0, 0, 2, 4, 0], Command::Sanitize(Sanitize { action: SanitizeAction::Overwrite { list_len: 516 }, immediate: true, allow_exit: true })),
        (&[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], Command::Sanitize(Sanitize { action: SanitizeAction::BlockErase, immediate: false, allow_exit: false })),
        (&[0x04, 0x10, 0, 0, 0, 0], Command::FormatUnit(FormatUnit { with_list: true, long_list: false })),
        (&[0x04, 0x3f, 0, 0, 0, 0], Command::FormatUnit(FormatUnit { with_list: true, long_list: true })),
        (&[0x04, 0x20, 0, 0, 0, 0], Command::FormatUnit(FormatUnit { with_list: false, long_list: false })),
        (&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0], Command::ReadDefects(ReadDefects { twelve: false, primary: true, grown: true, format: 5, index: 0, allocation: 32 })),
        (&[0xb7, 0x08, 0, 0, 0, 7, 0, 0, 1, 0, 0, 0], Command::ReadDefects(ReadDefects { twelve: true, primary: false, grown: true, format: 0, index: 7, allocation: 256 })),
    ];
    for (bytes, command) in cases {
        assert_eq!(Command::parse(&cdb(bytes)), Ok(*command), "{bytes:02x?}");
    }
}

#[test]
fn primary_command_vectors() {
    let mode = ModeSense {
        form: ModeForm::Six,
        disable_block_descriptors: true,
        long_lba: false,
        control: PageControl::Changeable,
        page: 0x3f,
        subpage: 0xff,
        allocation: 255,
    };
    #[rustfmt::skip]
    let cases: &[(&[u8], Command)] = &[
        (&[0x00, 0, 0, 0, 0, 0], Command::TestUnitReady),
        (&[0x03, 1, 0, 0, 252, 0], Command::RequestSense { descriptor: true, allocation: 252 }),
        (&[0x12, 1, 0x83, 1, 0, 0], Command::Inquiry(Inquiry { page: Some(0x83), allocation: 256 })),
        (&[0x12, 0, 0, 0, 36, 0], Command::Inquiry(Inquiry { page: None, allocation: 36 })),
        (&[0x1a, 0x08, 0x7f, 0xff, 255, 0], Command::ModeSense(mode)),
        (&[0x5a, 0x18, 0xc8, 0, 0, 0, 0, 1, 2, 0], Command::ModeSense(ModeSense { form: ModeForm::Ten, long_lba: true, control: PageControl::Saved, page: 8, subpage: 0, allocation: 258, ..mode })),
        (&[0x15, 0x11, 0, 0, 24, 0], Command::ModeSelect(ModeSelect { form: ModeForm::Six, page_format: true, save: true, list_len: 24 })),
        (&[0x4d, 0, 0x40, 0xff, 0, 0, 1, 2, 0, 0], Command::LogSense(LogSense { control: 1, page: 0, subpage: 255, pointer: 1, allocation: 512 })),
        (&[0x1b, 1, 0, 4, 0xf7, 0], Command::StartStop(StartStop { immediate: true, modifier: 4, power_condition: 15, no_flush: true, load_eject: true, start: true })),
        (&[0x1e, 0, 0, 0, 1, 0], Command::PreventAllow { prevent: true }),
        (&[0x1d, 4, 0, 0, 0, 0], Command::SendDiagnostic(SendDiagnostic { self_test: true, device_offline: false, unit_offline: false })),
        (&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Command::Reserve),
        (&[0x17, 0, 0, 0, 0, 0], Command::Release),
        (&[0xa0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 0], Command::ReportLuns { select: 2, allocation: 512 }),
        (&[0xa3, 0x0c, 0x82, 0x9e, 0, 0x10, 0, 0, 2, 0, 0, 0], Command::ReportOpcodes(ReportOpcodes { timeouts: true, select: OpcodeSelect::Action(0x9e, 0x10), allocation: 512 })),
        (&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 16, 0, 0], Command::ReportTaskManagement { extended: true, allocation: 16 }),
        (&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], Command::ReportTargetPortGroups { extended: true, allocation: 16 }),
        (&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], Command::SetTargetPortGroups { list_len: 8 }),
        (&[0x5e, 3, 0, 0, 0, 0, 0, 0x40, 0, 0], Command::ReserveIn { action: PrInAction::ReadFullStatus, allocation: 16384 }),
        (&[0x5f, 1, 0x05, 0, 0, 0, 0, 0, 24, 0], Command::ReserveOut(ReserveOut { action: PrOutAction::Reserve, scope: 0, kind: 5, list_len: 24 })),
        (&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 76, 0, 0], Command::ExtendedCopy { list_len: 76 }),
        (&[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], Command::CopyResults { action: CopyResultsAction::OperatingParameters, list_id: 0, allocation: 1024 }),
        (&[0x3b, 0x0a, 0, 0, 0, 0, 0, 1, 0, 0], Command::WriteBuffer(BufferAccess { mode: 10, id: 0, offset: 0, len: 256 })),
        (&[0x3c, 0x0a, 0, 0, 1, 0, 0, 1, 0, 0], Command::ReadBuffer(BufferAccess { mode: 10, id: 0, offset: 256, len: 256 })),
    ];
    for (bytes, command) in cases {
        assert_eq!(Command::parse(&cdb(bytes)), Ok(*command), "{bytes:02x?}");
    }
}

#[test]
fn refusals() {
    let field = |byte, bit| CdbError::Field { byte, bit: Some(bit) };
    #[rustfmt::skip]
    let cases: &[(&[u8], CdbError)] = &[
        (&[], CdbError::Truncated),
        (&[0x28, 0, 0], CdbError::Truncated),
        (&[0xff; 16], CdbError::UnknownOpcode),
        (&[0x7f; 16], CdbError::UnknownOpcode),
        (&[0x9e, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], CdbError::UnknownServiceAction),
        (&[0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0], CdbError::UnknownServiceAction),
        (&[0x5e, 0x04, 0, 0, 0, 0, 0, 1, 0, 0], CdbError::UnknownServiceAction),
        // RDPROTECT, WRPROTECT, VRPROTECT: there is no protection information.
        (&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0], field(1, 5)),
        (&[0x8a, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], field(1, 7)),
        (&[0xaf, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], field(1, 6)),
        (&[0x8b, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], field(1, 5)),
        // NACA in CONTROL.
        (&[0x00, 0, 0, 0, 0, 0x04], field(5, 2)),
        (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0x04], field(9, 2)),
        // Reserved bits and bytes of SANITIZE.
        (&[0x48, 0x41, 0, 0, 0, 0, 0, 2, 4, 0], field(1, 6)),
        (&[0x48, 0x02, 2, 0, 0, 0, 0, 0, 0, 0], field(2, 1)),
        (&[0x48, 0x02, 0, 0, 0, 0, 6, 0, 0, 0], field(6, 2)),
        (&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 8, 0], field(8, 3)),
        (&[0x48, 0x01, 0, 0, 0, 0, 0, 0, 4, 0], field(7, 7)),
        (&[0x12, 0, 0x83, 0, 36, 0], field(2, 7)),
        (&[0x2f, 0x04, 0, 0, 0, 0, 0, 0, 1, 0], field(1, 2)),
        (&[0x2e, 0x06, 0, 0, 0, 0, 0, 0, 1, 0], field(1, 2)),
        (&[0x41, 0x10, 0, 0, 0, 0, 0, 0, 1, 0], field(1, 4)),
        (&[0x41, 0x01, 0, 0, 0, 0, 0, 0, 1, 0], field(1, 0)),
        // SELF-TEST CODE, a parameter list for SEND DIAGNOSTIC; extents for RESERVE.
        (&[0x1d, 0x24, 0, 0, 0, 0], field(1, 5)),
        (&[0x1d, 0x04, 0, 0, 8, 0], field(4, 3)),
        (&[0x16, 0x01, 0, 0, 8, 0], field(1, 0)),
        (&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], field(1, 6)),
        // Reporting options beyond 3; service action beyond 1Fh.
        (&[0xa3, 0x0c, 0x04, 0, 0, 0, 0, 0, 0, 8, 0, 0], field(2, 2)),
        (&[0xa3, 0x0c, 0x02, 0x9e, 0, 0x20, 0, 0, 0, 8, 0, 0], field(4, 7)),
        (&[0xa3, 0x0c, 0x03, 0x9e, 0xff, 0xff, 0, 0, 0, 8, 0, 0], field(4, 7)),
        (&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], field(6, 7)),
    ];
    for (bytes, refusal) in cases {
        assert_eq!(Command::parse(bytes), Err(*refusal), "{bytes:02x?}");
    }
}

#[test]
fn refusals_as_sense() {
    assert_eq!(CdbError::UnknownOpcode.sense(), Sense::INVALID_OPCODE);
    assert_eq!(CdbError::UnknownServiceAction.sense(), Sense::invalid_cdb_field(1, Some(4)));
    assert_eq!(CdbError::Field { byte: 7, bit: None }.sense(), Sense::invalid_cdb_field(7, None));
    assert_eq!(CdbError::Truncated.sense(), Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_command_set_hides_commands() {
    let thick = CommandSet::ALL.without(CommandSet::UNMAP);
    let unmap = cdb(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
    assert_eq!(thick.parse(&unmap), Err(CdbError::UnknownOpcode));
    assert!(CommandSet::BASIC.with(CommandSet::UNMAP).parse(&unmap).is_ok());
    // READ CAPACITY(16) shares its operation code with GET LBA STATUS and stays.
    assert_eq!(thick.parse(&cdb(&[0x9e, 0x12])), Err(CdbError::UnknownServiceAction));
    assert_eq!(thick.parse(&cdb(&[0x9e, 0x10])), Ok(Command::ReadCapacity16 { allocation: 0 }));
}

#[test]
fn the_table_is_in_order_and_sound() {
    let mut last = None;
    for entry in CommandSet::ALL.descriptors() {
        let at = (entry.opcode(), entry.action);
        assert!(last < Some(at), "{} is out of order", entry.name);
        last = Some(at);
        let len = match entry.opcode() >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            group => panic!("{}: group {group} has no fixed length", entry.name),
        };
        assert_eq!(entry.len(), len, "{}", entry.name);
        let usage: Vec<u8> = entry.cdb_usage_data().collect();
        assert_eq!(usage[0], entry.opcode());
        assert_eq!(usage[len - 1], 0, "{}: CONTROL", entry.name);
        // Each bit outside the map is refused with a pointer to it; none inside it as reserved.
        for at in 1..len {
            for bit in 0..8u8 {
                let mut probe = [0; 16];
                probe[0] = entry.opcode();
                probe[1] = entry.action.unwrap_or(0);
                let action_bit = entry.action.is_some() && at == 1 && bit < 5;
                if action_bit || usage[at] >> bit & 1 == 1 {
                    continue;
                }
                probe[at] |= 1 << bit;
                let refusal = CdbError::Field { byte: at as u8, bit: Some(bit) };
                assert_eq!(Command::parse(&probe), Err(refusal), "{} {at}:{bit}", entry.name);
            }
        }
    }
}

#[test]
fn data_lengths() {
    let data = |bytes: &[u8]| Command::parse(&cdb(bytes)).unwrap().data_transfer(512);
    assert_eq!(data(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::In(4096));
    assert_eq!(data(&[0x08, 0, 0, 0, 0]), DataTransfer::In(131_072));
    assert_eq!(
        data(&[0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        DataTransfer::In(0xffff_ffff * 512)
    );
    assert_eq!(data(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]), DataTransfer::Out(2048));
    assert_eq!(data(&[0x2f, 0, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::None);
    assert_eq!(data(&[0x2f, 2, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::Out(4096));
    assert_eq!(data(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::Out(512));
    assert_eq!(data(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 0]), DataTransfer::Out(0));
    assert_eq!(data(&[0x41, 0, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::Out(512));
    assert_eq!(data(&[0x93, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]), DataTransfer::None);
    assert_eq!(data(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24]), DataTransfer::Out(24));
    assert_eq!(data(&[0x48, 2]), DataTransfer::None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Attack rows 42, 47, 51: every CDB has a defined answer, and what parses encodes to the same command.
    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
        check_any(&bytes);
    }

    /// The same with reserved bits cleared, so that most CDBs are accepted.
    #[test]
    fn parse_inverts_encode(row in 0..CommandSet::ALL.descriptors().count(), noise: [u8; 16]) {
        let entry = CommandSet::ALL.descriptors().nth(row).unwrap();
        let mut bytes = noise;
        let usage: Vec<u8> = entry.cdb_usage_data().collect();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = match usage.get(at) {
                Some(_) if at == 0 => entry.opcode(),
                Some(mask) if at == 1 && entry.action.is_some() => (*byte & mask & 0xe0) | (mask & 0x1f),
                Some(mask) => *byte & mask,
                None => *byte,
            };
        }
        check_any(&bytes);
    }
}

fn check_any(bytes: &[u8]) {
    let Ok(command) = Command::parse(bytes) else { return };
    let _ = command.data_transfer(4096);
    let mut out = [0xee; 16];
    let len = command.encode(&mut out);
    assert_eq!(Command::parse(&out[..len]), Ok(command), "{out:02x?}");
    let long = command.encode_long(&mut out);
    assert!(long == len || long == 16, "{out:02x?}");
    assert_eq!(Command::parse(&out[..long]), Ok(command), "{out:02x?}");
}

/// Attack row 51: length fields 0 and maximum for each operation code.
#[test]
fn lengths_zero_and_maximum() {
    for opcode in 0..=255u8 {
        for fill in [0x00, 0xff, 0x7f, 0x80, 0x01] {
            for action in 0..32u8 {
                let mut bytes = [fill; 16];
                bytes[0] = opcode;
                bytes[1] = action;
                bytes[15] = 0;
                check_any(&bytes);
            }
        }
    }
}
