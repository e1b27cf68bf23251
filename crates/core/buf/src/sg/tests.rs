use proptest::prelude::*;

use super::*;
use crate::crc32c::crc32c;
use crate::{MemoryClass, Pool};

/// `bytes` in pieces of the given lengths, the last piece taking what is left.
fn in_pieces(pool: &Pool, bytes: &[u8], lens: &[usize]) -> Sg {
    let mut sg = SgMut::new();
    let mut left = bytes.len();
    for &len in lens.iter().chain([&bytes.len()]) {
        let len = len.min(left);
        if len > 0 {
            sg.push(pool.take(MemoryClass::Solicited, len).unwrap());
            left -= len;
        }
    }
    sg.copy_from(0, bytes);
    sg.freeze()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 128 }, ..ProptestConfig::default() })]

    #[test]
    fn pieces_make_no_difference(
        bytes in prop::collection::vec(any::<u8>(), 1..3000),
        lens in prop::collection::vec(1usize..900, 0..5),
        cut in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let pool = Pool::new(1 << 20);
        let sg = in_pieces(&pool, &bytes, &lens);
        let (a, b) = (cut.0.index(bytes.len() + 1), cut.1.index(bytes.len() + 1));
        let range = a.min(b)..a.max(b);
        let part = sg.slice(range.clone());
        prop_assert_eq!(part.len(), range.len());

        let mut copied = vec![0; range.len()];
        sg.copy_to(range.start, &mut copied);
        prop_assert_eq!(&copied[..], &bytes[range.clone()]);
        copied.fill(0);
        let mut crc = Crc32c::new();
        part.copy_to_with_crc(0, &mut copied, &mut crc);
        prop_assert_eq!(&copied[..], &bytes[range.clone()]);
        prop_assert_eq!(crc.value(), crc32c(&bytes[range.clone()]));

        let mut joined = sg.slice(0..range.start);
        joined.append(part);
        joined.append(sg.slice(range.end..sg.len()));
        drop(sg);
        let mut all = vec![0; bytes.len()];
        joined.copy_to(0, &mut all);
        prop_assert_eq!(all, bytes);
        drop(joined);
        prop_assert_eq!(pool.usage().lent, 0);
    }

    #[test]
    fn truncating_and_zeroing_touch_what_they_name(
        bytes in prop::collection::vec(1u8.., 1..3000),
        lens in prop::collection::vec(1usize..900, 0..5),
        len in any::<prop::sample::Index>(),
        zeroed in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let pool = Pool::new(1 << 20);
        let mut sg = SgMut::new();
        let mut left = bytes.len();
        for len in lens.into_iter().chain([bytes.len()]) {
            sg.push(pool.take(MemoryClass::Wire, len.min(left)).unwrap());
            left -= len.min(left);
        }
        sg.copy_from(0, &bytes);
        let len = len.index(bytes.len() + 1);
        sg.truncate(len);
        prop_assert_eq!(sg.len(), len);
        let (a, b) = (zeroed.0.index(len + 1), zeroed.1.index(len + 1));
        sg.zero(a.min(b)..a.max(b));
        let mut expected = bytes[..len].to_vec();
        expected[a.min(b)..a.max(b)].fill(0);
        let mut got = vec![0; len];
        sg.freeze().copy_to(0, &mut got);
        prop_assert_eq!(got, expected);
    }
}

#[test]
#[should_panic(expected = "range outside of a payload")]
fn a_slice_behind_the_end_is_a_bug() {
    Sg::new().slice(0..1);
}
