use proptest::prelude::*;

use super::*;

/// The definition, bit by bit.
fn reference(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0u32, |state, byte| (0..8).fold(state ^ u32::from(*byte), |s, _| polynomial::times_x(s)))
}

fn tiers() -> impl Iterator<Item = CpuTier> {
    let best = CpuTier::of_process();
    let all = [CpuTier::Portable, CpuTier::Instruction, CpuTier::Mixed, CpuTier::Fold];
    all.into_iter().filter(move |tier| *tier <= best)
}

fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Each tier, with and without copying, gives `digest`, and the copy is whole.
fn check_all(bytes: &[u8], digest: u32) {
    for tier in tiers() {
        // SAFETY: the tier is at most what was detected; the ranges are those of the slices.
        let read =
            unsafe { update_raw::<false>(tier, !0, bytes.as_ptr(), std::ptr::null_mut(), bytes.len()) };
        assert_eq!(!read, digest, "{tier:?}, {} bytes", bytes.len());
        let mut copy = vec![0x5a; bytes.len() + 1];
        // SAFETY: as above; the destination is longer than the source.
        let copied = unsafe { update_raw::<true>(tier, !0, bytes.as_ptr(), copy.as_mut_ptr(), bytes.len()) };
        assert_eq!(!copied, digest, "{tier:?}, copying {} bytes", bytes.len());
        assert!(
            copy[..bytes.len()] == *bytes && copy[bytes.len()] == 0x5a,
            "{tier:?}, {} bytes",
            bytes.len()
        );
    }
    assert_eq!(crc32c(bytes), digest, "{} bytes", bytes.len());
}

#[test]
fn vectors_of_rfc_3720_appendix_b4() {
    let read_command = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0,
        0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    ];
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], [u8; 4]); 6] = [
        (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&up, [0x4e, 0x79, 0xdd, 0x46]),
        (&down, [0x5c, 0xdb, 0x3f, 0x11]),
        (b"123456789", [0x83, 0x92, 0x06, 0xe3]),
        (&read_command, [0x56, 0x3a, 0x96, 0xd9]),
    ];
    for (input, wire) in vectors {
        check_all(input, u32::from_le_bytes(wire));
        let mut crc = Crc32c::new();
        crc.update(input);
        assert_eq!(crc.to_wire_bytes(), wire);
    }
}

#[test]
fn every_length_and_alignment() {
    let bytes = bytes(700);
    let starts = if cfg!(miri) { 0..1 } else { 0..9 };
    for start in starts {
        for len in (0..=600).step_by(if cfg!(miri) { 53 } else { 1 }) {
            let input = &bytes[start..start + len];
            check_all(input, reference(input));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn lengths_around_the_kernels_steps() {
    let bytes = bytes(70_000);
    for near in [1008, 1024, 4080, 4096, 8160, 8192, 65_536] {
        for len in near - 3..=near + 3 {
            check_all(&bytes[1..1 + len], reference(&bytes[1..1 + len]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn pieces_make_no_difference(bytes in prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 500 } else { 5000 }), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let (mut read, mut copied, mut joined) = (Crc32c::new(), Crc32c::new(), crc32c(b""));
        let mut copy = vec![0; bytes.len()];
        for pair in cuts.windows(2) {
            let piece = &bytes[pair[0]..pair[1]];
            read.update(piece);
            copied.copy_and_update(piece, &mut copy[pair[0]..pair[1]]);
            joined = combine(joined, crc32c(piece), piece.len());
        }
        let digest = reference(&bytes);
        prop_assert_eq!(read.value(), digest);
        prop_assert_eq!(copied.value(), digest);
        prop_assert_eq!(joined, digest);
        prop_assert_eq!(copy, bytes);
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn combining_over_long_stretches() {
    // 5 GiB of zeroes in two ways, which no test wants to read.
    let gib = (0..30).fold(crc32c(&[0]), |crc, doubling| combine(crc, crc, 1 << doubling));
    let four = combine(combine(gib, gib, 1 << 30), combine(gib, gib, 1 << 30), 2 << 30);
    assert_eq!(combine(four, gib, 1 << 30), combine(gib, four, 4 << 30));
    let (half, mib) = (crc32c(&vec![0; 1 << 19]), crc32c(&vec![0; 1 << 20]));
    assert_eq!(combine(half, half, 1 << 19), mib);
}

#[test]
#[should_panic(expected = "as much room")]
fn copying_into_other_room_is_a_bug() {
    Crc32c::new().copy_and_update(&[1, 2], &mut [0]);
}

#[test]
fn the_path_has_a_name() {
    assert!(["avx512", "avx2", "crc-instruction", "portable"].contains(&implementation_name()));
}
