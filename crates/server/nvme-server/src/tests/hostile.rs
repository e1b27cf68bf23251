//! Commands with false lengths, and commands of random bytes.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

/// Row 62: an SGL of nearly 4 GiB.
#[test]
fn attack_62_an_sgl_of_4_gib_takes_no_memory() {
    let (mut world, host) = disk();
    // Write, 1 block, CID 0102h, NSID 1, Transport Data Block of FFFFFFFFh bytes.
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&[1, 0x40, 2, 1, 1, 0, 0, 0]);
    bytes[32..40].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x5a]);
    for opcode in [0x01, 0x02, 0x05, 0x09, 0x0d, 0x0e, 0x11, 0x15, 0x19] {
        bytes[0] = opcode;
        bytes[41] = if opcode == 0x11 || opcode == 0x15 { 1 } else { 0 };
        bytes[44] = u8::from(opcode == 0x0e);
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        let data_out = if opcode & 1 == 1 { u32::MAX } else { 0 };
        let started = world.start_with(host, &sqe, &[], data_out);
        assert_eq!(world.status(started), Status::SGL_LENGTH_INVALID.with_do_not_retry(), "{opcode:02x}");
        assert!(!world.solicited(started));
        assert_eq!(world.lent(), 0);
    }
}

/// Row 63: lengths that do not agree, and more than one command may move.
#[test]
fn attack_63_lengths_that_do_not_agree() {
    let (mut world, host) = disk();
    world.write(host, 0, &[0x5a; 4096]);
    for (blocks, len) in [(1, 0), (1, 511), (1, 513), (2, 512), (8, 4095), (8, 8192), (1, 0xffff_fe00)] {
        for opcode in [Opcode::READ, Opcode::WRITE, Opcode::COMPARE] {
            let mut sqe = transfer(opcode, 0, blocks);
            sqe.dptr.length = U32::new(len);
            let started = world.start_with(host, &sqe, &[], if opcode == Opcode::READ { 0 } else { len });
            world.run();
            assert_eq!(
                world.status(started),
                Status::SGL_LENGTH_INVALID.with_do_not_retry(),
                "{blocks} {len}"
            );
            assert!(world.bytes(started).is_empty() && !world.solicited(started));
        }
    }
    // 1 MiB is the longest transfer here.
    for blocks in [2049, 65536] {
        for opcode in [Opcode::READ, Opcode::WRITE, Opcode::COMPARE] {
            let sqe = transfer(opcode, 0, blocks);
            let started = world.start_with(host, &sqe, &[], sqe.dptr.length.get());
            assert_eq!(world.status(started), Status::INVALID_FIELD.with_do_not_retry());
        }
    }
    assert_eq!(world.read(host, 0, 2048).len(), 1 << 20);
    assert_eq!(world.lent(), 0);
}

/// Row 75: Write Zeroes whose end is no number, or lies behind the end.
#[test]
fn attack_75_write_zeroes_that_wraps() {
    let (mut world, host) = disk();
    world.write(host, 0, &block(1));
    for (lba, blocks) in [(u64::MAX, 65536), (u64::MAX - 65535, 65536), (32767, 2), (1 << 63, 1)] {
        for flags in [0, BlockTransfer::DEALLOCATE, BlockTransfer::FUA] {
            let status = world.command(host, &transfer_with(Opcode::WRITE_ZEROES, lba, blocks, flags), &[]);
            assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_do_not_retry());
        }
    }
    assert_eq!(world.read(host, 0, 1), block(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever comes is answered once, whatever is aborted or closed meanwhile, and no memory stays out.
    #[test]
    fn random_commands_always_end_once(
        commands in prop::collection::vec((any::<[u8; 64]>(), 0u8..12, 0u8..4, 0u32..9), 1..60),
        hold in any::<bool>(),
        withhold in any::<bool>(),
        abort in any::<bool>(),
    ) {
        const CODES: [u8; 12] =
            [0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x19];
        let (mut world, host) = disk();
        world.disks.hold.set(hold);
        world.withhold = withhold;
        let mut all = Vec::new();
        for (at, (mut bytes, code, fuse, blocks)) in commands.into_iter().enumerate() {
            bytes[0] = CODES[usize::from(code)];
            bytes[1] = 0x40 | fuse;
            bytes[2] = at as u8;
            bytes[4..8].copy_from_slice(&[1, 0, 0, 0]);
            // Near the start, of a few blocks, so that some commands are good.
            bytes[41..48].fill(0);
            bytes[48..52].copy_from_slice(&[blocks as u8, 0, 0, 0]);
            let mut sqe = Sqe::read_from_bytes(&bytes).unwrap();
            let len = match code {
                6 => 16 * (u32::from(bytes[40]) + 1),
                8 | 10 => 16,
                11 => 32 * (blocks + 1),
                _ => 512 * (blocks + 1),
            };
            sqe.dptr.length = U32::new(len);
            let data_out = if sqe.opcode.0 & 3 == 1 { len } else { 0 };
            let out: Vec<u8> = sqe.as_bytes().iter().copied().cycle().take(data_out as usize).collect();
            all.push(world.start_with(host, &sqe, &out, data_out));
            if at % 7 == 0 {
                world.run();
            }
            if abort && at % 5 == 0 {
                world.server(host).context.abort_cid(host.key, (at / 2) as u16);
            }
        }
        world.close(host);
        world.disks.hold.set(false);
        world.run();
        for started in all {
            prop_assert!(world.end(started).is_some());
        }
        prop_assert_eq!(world.lent(), 0);
    }
}
