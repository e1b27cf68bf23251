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
fn what_is_set_aside_takes_the_memory_that_came_back_last() {
    let pool = Pool::new(4 << 20);
    let mut waiting: Vec<SgMut> =
        (0..4).map(|_| pool.take_sg_later(MemoryClass::Wire, 512 << 10).unwrap()).collect();
    assert_eq!(pool.usage().lent, 4 * (512 << 10));
    let mut places = Vec::new();
    for mut sg in waiting.drain(..) {
        assert!(sg.is_only_set_aside());
        sg.copy_from(1, b"bytes");
        assert!(!sg.is_only_set_aside());
        places.push(sg.pieces()[0].as_ptr());
    }
    assert!(places.iter().all(|place| *place == places[0]), "one buffer, one after another: {places:?}");
    assert_eq!(pool.usage().lent, 0);
}

#[test]
fn what_is_set_aside_is_promised_to_nobody_else() {
    let pool = Pool::new(1 << 20);
    assert!(pool.take_sg_later(MemoryClass::Unsolicited, 512).is_none());
    assert!(pool.take_sg_later(MemoryClass::Solicited, 1 << 20).is_none(), "a sixteenth is for headers");
    let waiting = pool.take_sg_later(MemoryClass::Wire, 1 << 20).unwrap();
    assert!(pool.take(MemoryClass::Wire, 1).is_none());
    let returned = pool.buffers_returned();
    drop(waiting);
    assert_ne!(pool.buffers_returned(), returned, "who was refused asks again");
    assert!(pool.take(MemoryClass::Wire, 1).is_some());
}

#[test]
fn what_is_set_aside_is_there_however_scattered() {
    let pool = Pool::new(1 << 20);
    let mut all: Vec<_> = (0..2048).map(|_| pool.take(MemoryClass::Wire, 512).unwrap()).collect();
    let mut number = 0;
    all.retain(|_| {
        number += 1;
        number % 8 < 5
    });
    let mut waiting = pool.take_sg_later(MemoryClass::Wire, 300_000).unwrap();
    let rest = pool.usage().capacity - pool.usage().lent;
    let others: Vec<_> = (0..rest / 512).map(|_| pool.take(MemoryClass::Wire, 512).unwrap()).collect();
    assert_eq!(pool.usage().lent, pool.usage().capacity);
    waiting.zero(0..300_000);
    assert!(waiting.pieces().len() > 1);
    assert_eq!(pool.usage().lent, pool.usage().capacity);
    drop((waiting, others, all));
    assert_eq!(pool.usage().lent, 0);
}

#[test]
fn what_is_set_aside_is_cut_and_joined_like_other_memory() {
    let pool = Pool::new(1 << 20);
    let mut sg = pool.take_sg_later(MemoryClass::Wire, 5000).unwrap();
    sg.truncate(4096);
    assert!(sg.is_only_set_aside() && sg.len() == 4096);
    let mut rest = sg.split_off(1000);
    rest.copy_from(0, b"behind");
    sg.copy_from(994, b"before");
    sg.append(rest);
    let mut joined = pool.take_sg_later(MemoryClass::Wire, 3).unwrap();
    joined.copy_from(0, b"abc");
    joined.append(sg);
    let mut got = vec![0; joined.len()];
    joined.freeze().copy_to(0, &mut got);
    assert_eq!((got.len(), &got[..3], &got[997..1009]), (4099, &b"abc"[..], &b"beforebehind"[..]));
    assert_eq!(pool.usage().lent, 0);
    let frozen = pool.take_sg_later(MemoryClass::Wire, 700).unwrap().freeze();
    assert_eq!((frozen.len(), pool.usage().lent), (700, 1024));
}

#[test]
#[should_panic(expected = "range outside of a payload")]
fn a_slice_behind_the_end_is_a_bug() {
    Sg::new().slice(0..1);
}
