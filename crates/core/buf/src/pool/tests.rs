use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::{Buf, Sg};

const CASES: u32 = if cfg!(miri) { 2 } else { 64 };

/// What a random program does with a pool.
#[derive(Clone, Debug)]
enum Step {
    Take(MemoryClass, usize),
    TakeSg(MemoryClass, usize),
    Write(Index, u8),
    Freeze(Index),
    Clone(Index),
    Slice(Index, Index, Index),
    DropMut(Index),
    Drop(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let class =
        prop_oneof![Just(MemoryClass::Wire), Just(MemoryClass::Unsolicited), Just(MemoryClass::Solicited)];
    let len = prop_oneof![3 => 0..5000usize, 1 => 0..=if cfg!(miri) { 16 << 10 } else { BLOCK_MAX }];
    prop_oneof![
        3 => (class.clone(), len.clone()).prop_map(|(class, len)| Step::Take(class, len)),
        1 => (class, len).prop_map(|(class, len)| Step::TakeSg(class, len)),
        2 => any::<(Index, u8)>().prop_map(|(which, byte)| Step::Write(which, byte)),
        2 => any::<Index>().prop_map(Step::Freeze),
        1 => any::<Index>().prop_map(Step::Clone),
        1 => any::<(Index, Index, Index)>().prop_map(|(which, a, b)| Step::Slice(which, a, b)),
        1 => any::<Index>().prop_map(Step::DropMut),
        2 => any::<Index>().prop_map(Step::Drop),
    ]
}

/// What the program holds, each buffer full of one byte that only its owner wrote.
#[derive(Default)]
struct Held {
    owned: Vec<(BufMut, u8)>,
    shared: Vec<(Buf, u8)>,
    /// Gives every buffer a byte of its own.
    fresh: u8,
}

impl Held {
    fn own(&mut self, mut buf: BufMut) {
        self.fresh = self.fresh.wrapping_add(1);
        buf.fill(self.fresh);
        self.owned.push((buf, self.fresh));
    }

    fn run(&mut self, pool: &Pool, step: Step) {
        match step {
            Step::Take(class, len) => {
                if let Some(buf) = pool.take(class, len) {
                    assert_eq!(buf.len(), len);
                    self.own(buf);
                }
            }
            Step::TakeSg(class, len) => {
                if let Some(sg) = pool.take_sg(class, len) {
                    assert_eq!(sg.len(), len);
                    let sg: Sg = sg.freeze();
                    self.shared.extend(
                        sg.pieces()
                            .iter()
                            .filter_map(|p| Some((p.clone(), *p.stable_bytes().unwrap().first()?)))
                            .filter(|(p, byte)| p.stable_bytes().unwrap().iter().all(|b| b == byte)),
                    );
                }
            }
            Step::Write(which, byte) if !self.owned.is_empty() => {
                let (buf, was) = which.get_mut(&mut self.owned);
                buf.fill(byte);
                *was = byte;
            }
            Step::Freeze(which) if !self.owned.is_empty() => {
                let (buf, byte) = self.owned.swap_remove(which.index(self.owned.len()));
                self.shared.push((buf.freeze(), byte));
            }
            Step::Clone(which) if !self.shared.is_empty() => {
                let (buf, byte) = which.get(&self.shared);
                self.shared.push((buf.clone(), *byte));
            }
            Step::Slice(which, a, b) if !self.shared.is_empty() => {
                let (buf, byte) = which.get(&self.shared);
                let (a, b) = (a.index(buf.len() + 1), b.index(buf.len() + 1));
                self.shared.push((buf.slice(a.min(b)..a.max(b)), *byte));
            }
            Step::DropMut(which) if !self.owned.is_empty() => {
                self.owned.swap_remove(which.index(self.owned.len()));
            }
            Step::Drop(which) if !self.shared.is_empty() => {
                self.shared.swap_remove(which.index(self.shared.len()));
            }
            _ => {}
        }
    }

    /// Nobody wrote into a buffer but its owner: no two overlap.
    fn check(&self) {
        assert!(self.owned.iter().all(|(buf, byte)| buf.iter().all(|b| b == byte)));
        assert!(self.shared.iter().all(|(buf, byte)| buf.stable_bytes().unwrap().iter().all(|b| b == byte)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn buffers_never_overlap_and_all_memory_comes_back(steps in prop::collection::vec(step(), 1..120)) {
        let pool = Pool::new(2 << 20);
        let mut held = Held::default();
        for step in steps {
            held.run(&pool, step);
        }
        held.check();
        drop(held);
        prop_assert_eq!(pool.usage().lent, 0);
        let all: Vec<_> = (0..2).map(|_| pool.take(MemoryClass::Wire, BLOCK_MAX)).collect();
        prop_assert!(all.iter().all(Option::is_some));
    }

    /// However the pool was filled, what was reserved can be had.
    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn a_promise_is_kept(
        before in prop::collection::vec((any::<bool>(), 1..40_000usize), 0..200),
        freed in prop::collection::vec(any::<Index>(), 0..100),
        promises in prop::collection::vec(1..70_000usize, 1..30),
        after in prop::collection::vec((any::<bool>(), 1..40_000usize), 0..300),
    ) {
        let pool = Pool::new(2 << 20);
        let class = |wire| if wire { MemoryClass::Wire } else { MemoryClass::Solicited };
        let mut others: Vec<_> = before.into_iter().filter_map(|(wire, len)| pool.take_sg(class(wire), len)).collect();
        for which in freed {
            if !others.is_empty() {
                others.swap_remove(which.index(others.len()));
            }
        }
        let promised: Vec<_> = promises.into_iter().filter(|len| pool.reserve(PoolAccount::Iscsi, *len)).collect();
        let mut after = after.into_iter();
        let mut held = Vec::new();
        for len in &promised {
            others.extend(after.by_ref().take(10).filter_map(|(wire, len)| pool.take_sg(class(wire), len)));
            let sg = pool.take_sg(MemoryClass::Unsolicited, *len);
            prop_assert!(sg.is_some(), "{len} bytes were promised, {:?}", pool);
            held.extend(sg);
        }
        drop(held);
        for len in promised {
            pool.unreserve(PoolAccount::Iscsi, len);
        }
        drop(others);
        prop_assert_eq!(pool.usage(), PoolUsage { capacity: 2 << 20, lent: 0, reserved: 0 });
    }
}

#[test]
fn a_full_pool_refuses_solicited_but_not_wire() {
    let pool = Pool::new(2 << 20);
    let held: Vec<_> = std::iter::from_fn(|| pool.take(MemoryClass::Solicited, 64 << 10)).collect();
    assert_eq!(held.len(), 30);
    assert!(pool.take(MemoryClass::Wire, 64 << 10).is_some());
}

#[test]
fn nobody_takes_what_was_promised() {
    let pool = Pool::new(1 << 20);
    assert!(pool.reserve(PoolAccount::Iscsi, 512 << 10));
    assert!(!pool.reserve(PoolAccount::Iscsi, 1), "half stays for data that is asked for");
    let wire: Vec<_> = std::iter::from_fn(|| pool.take(MemoryClass::Wire, 64 << 10)).collect();
    assert_eq!(wire.len(), 8);
    let unasked: Vec<_> = std::iter::from_fn(|| pool.take(MemoryClass::Unsolicited, 64 << 10)).collect();
    assert_eq!(unasked.len(), 8);
    drop(wire);
    assert!(pool.take(MemoryClass::Wire, 64 << 10).is_some());
}

#[test]
fn neither_account_takes_what_is_kept_for_the_other() {
    let pool = Pool::new(8 << 20);
    pool.set_account_share(4);
    for account in [PoolAccount::Iscsi, PoolAccount::NvmeTcp] {
        let other = account.other();
        assert!(!pool.reserve(account, (3 << 20) + 1) && pool.reserve(account, 3 << 20));
        assert_eq!((pool.reservable_bytes(account), pool.reservable_bytes(other)), (0, 1 << 20));
        assert!(pool.reserve(other, 1 << 20) && !pool.reserve(other, 1));
        pool.unreserve(account, 1 << 20);
        // What is given back either may have.
        assert!(pool.reserve(other, 1 << 20));
        pool.unreserve(account, 2 << 20);
        pool.unreserve(other, 2 << 20);
    }
    assert_eq!(pool.usage().reserved, 0);
}

#[test]
fn what_is_lent_cannot_be_promised() {
    let pool = Pool::new(1 << 20);
    let lent: Vec<_> = (0..14).filter_map(|_| pool.take(MemoryClass::Wire, 64 << 10)).collect();
    assert!(!pool.reserve(PoolAccount::Iscsi, 129 << 10));
    assert!(pool.reserve(PoolAccount::Iscsi, 128 << 10));
    drop(lent);
    assert!(pool.reserve(PoolAccount::Iscsi, 384 << 10));
}

#[test]
fn rounding_up_does_not_eat_promises() {
    let pool = Pool::new(1 << 20);
    assert!(pool.reserve(PoolAccount::Iscsi, 33 << 10) && pool.reserve(PoolAccount::Iscsi, 33 << 10));
    let wire = pool.take_sg(MemoryClass::Wire, (1 << 20) - (66 << 10)).unwrap();
    let one = pool.take_sg(MemoryClass::Unsolicited, 33 << 10).unwrap();
    let two = pool.take_sg(MemoryClass::Unsolicited, 33 << 10).unwrap();
    assert_eq!(one.len() + two.len() + wire.len(), 1 << 20);
}

#[test]
fn pieces_when_contiguous_memory_is_gone() {
    let pool = Pool::new(1 << 20);
    let mut held: Vec<_> = (0..15).filter_map(|_| pool.take(MemoryClass::Wire, 64 << 10)).collect();
    held.swap_remove(3);
    held.swap_remove(9);
    let sg = pool.take_sg(MemoryClass::Wire, 128 << 10).unwrap();
    assert!(sg.pieces().len() > 1);
    assert_eq!(sg.len(), 128 << 10);
}

#[test]
fn a_refused_list_leaves_nothing_behind() {
    let pool = Pool::new(1 << 20);
    let before = pool.buffers_returned();
    assert!(pool.take_sg(MemoryClass::Solicited, 1 << 20).is_none());
    assert!(pool.take_sg(MemoryClass::Wire, usize::MAX).is_none());
    assert!(pool.take(MemoryClass::Wire, BLOCK_MAX + 1).is_none());
    assert_eq!(pool.usage().lent, 0);
    assert_eq!(pool.buffers_returned(), before, "it was refused before anything was taken");
}

#[test]
fn returned_memory_is_seen() {
    let pool = Pool::new(1 << 20);
    let buf = pool.take(MemoryClass::Wire, 100).unwrap().freeze();
    let other = buf.clone();
    let seen = pool.buffers_returned();
    drop(buf);
    assert_eq!(pool.buffers_returned(), seen, "the other share still holds it");
    drop(other);
    assert_eq!(pool.buffers_returned(), seen + 1);
}

#[test]
fn buffers_outlive_the_pool_value() {
    let pool = Pool::new(1 << 20);
    let mut buf = pool.take(MemoryClass::Wire, 5).unwrap();
    drop(pool);
    buf.copy_from_slice(b"hello");
    let part = buf.freeze().slice(1..3);
    assert_eq!(part.stable_bytes(), Some(&b"el"[..]));
}

#[test]
fn blocks_lie_at_multiples_of_their_size() {
    let pool = Pool::new(4 << 20);
    for len in [512, 4096, 65536, BLOCK_MAX] {
        let mut buf = pool.take(MemoryClass::Wire, len).unwrap();
        assert_eq!(buf.as_mut_ptr() as usize % len.min(4096), 0);
        assert_eq!(buf.capacity(), len);
    }
}

#[test]
#[should_panic(expected = "cannot outgrow")]
fn a_buffer_stays_in_its_block() {
    Pool::new(1).take(MemoryClass::Wire, 512).unwrap().set_len(513);
}

#[test]
fn few_bytes_share_a_line() {
    assert_eq!(size_of::<BufMut>(), 32);
    assert_eq!(size_of::<Buf>(), 32);
}
