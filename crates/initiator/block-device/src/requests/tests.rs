use std::sync::Arc;

use proptest::prelude::*;
use volume::RamDisk;

use super::*;
use crate::test_disk::{Behaviour, RamVolume};

const SIZE: u64 = 64 << 10;

#[derive(Clone, Debug)]
enum Step {
    RequestKind(RequestKind, u64, u64),
    Drive,
}

fn step() -> impl Strategy<Value = Step> {
    let ask = prop_oneof![
        4 => Just(RequestKind::Write { stable: false }),
        1 => Just(RequestKind::Write { stable: true }),
        4 => Just(RequestKind::Read),
        1 => Just(RequestKind::Flush),
        1 => Just(RequestKind::Zero { unmap: false, stable: true }),
        1 => Just(RequestKind::Zero { unmap: true, stable: false }),
        1 => Just(RequestKind::Unmap { stable: true }),
        1 => Just(RequestKind::Prefetch),
        1 => Just(RequestKind::Extents),
    ];
    let place =
        prop_oneof![(0..SIZE, 0..9000_u64), (0..SIZE / 512, 0..20_u64).prop_map(|(a, b)| (a * 512, b * 512))];
    prop_oneof![3 => (ask, place).prop_map(|(ask, (at, len))| Step::RequestKind(ask, at, len)), 1 => Just(Step::Drive)]
}

fn turn<T>(disk: &mut RamVolume, requests: &mut RequestTable<T>) {
    disk.drive(Some(std::time::Duration::ZERO)).unwrap();
    while let Some(done) = disk.poll_done() {
        requests.handle_done(disk, done);
    }
}

/// First byte, length, and with what.
type Written = (u64, u64, u8);

/// What each byte may be: a read sees what was written before it started, or one of the writes that were
/// under way with it.
struct Model {
    settled: Vec<u8>,
    open: Vec<(usize, u64, u64, u8)>,
}

impl Model {
    fn may_be(&self, at: u64, byte: u8, also: &[Written]) -> bool {
        self.settled[at as usize] == byte
            || self.open.iter().any(|&(_, from, len, with)| (from..from + len).contains(&at) && with == byte)
            || also.iter().any(|&(from, len, with)| (from..from + len).contains(&at) && with == byte)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is asked ends once, and bytes are never mixed up: non-overlapping writes land whole,
    /// neighbours in the same block included.
    #[test]
    fn every_byte_lands_where_it_belongs(
        steps in prop::collection::vec(step(), 1..120),
        seed in any::<u64>(),
        logical in prop::sample::select(vec![512_u32, 4096]),
        max_io in prop::sample::select(vec![4096_u32, 8192, 1 << 20]),
        never_lends in any::<bool>(),
    ) {
        let ram = Arc::new(RamDisk::new(SIZE / u64::from(logical), SIZE / u64::from(logical), logical, 4096));
        let mood = Behaviour { shuffle: Some(seed), never_lends, max_io: Some(max_io), ..Behaviour::default() };
        let mut disk = RamVolume::new(ram, mood);
        let mut requests = RequestTable::new(&disk, 16, Arc::default());
        let mut model = Model { settled: vec![0; SIZE as usize], open: Vec::new() };
        // Writes that ended since each read began.
        let mut reads: Vec<(usize, Vec<Written>)> = Vec::new();
        let mut ends = vec![0; steps.len()];
        let mut asked = vec![false; steps.len()];
        let idle = std::iter::repeat_n(&Step::Drive, 3000);
        for (n, step) in steps.iter().chain(idle).enumerate() {
            if let &Step::RequestKind(ask, at, len) = step {
                let overlaps = model.open.iter().any(|&(_, from, other, _)| from < at + len && at < from + other);
                // Overlapping writes in flight may land in any order: not what this is about.
                let skip = matches!(ask, RequestKind::Unmap { .. }) || (ask.is_write() && overlaps);
                if !skip {
                    let byte = if matches!(ask, RequestKind::Zero { .. }) { 0 } else { (n % 255) as u8 + 1 };
                    let mut data = WriteMemory::new();
                    if matches!(ask, RequestKind::Write { .. }) && at + len <= SIZE && len > 0 {
                        data = requests.alloc_write_memory(&mut disk, at, len).unwrap();
                        requests.for_each_slice(&mut data, at, 0, len, |slice| slice.fill(byte));
                    }
                    let request = Request { data, ..Request::new(n, ask, at, len) };
                    if requests.submit_request(&mut disk, request).is_ok() {
                        asked[n] = true;
                        if ask.is_write() && at + len <= SIZE {
                            model.open.push((n, at, len, byte));
                            reads.iter_mut().for_each(|(_, also)| also.push((at, len, byte)));
                        } else if ask == RequestKind::Read {
                            let open = model.open.iter().map(|&(_, at, len, byte)| (at, len, byte));
                            reads.push((n, open.collect()));
                        }
                    }
                }
            } else {
                turn(&mut disk, &mut requests);
            }
            while let Some(ended) = requests.poll_ended() {
                ends[ended.token] += 1;
                let fits = ended.at + ended.len <= SIZE || ended.ask == RequestKind::Flush;
                prop_assert_eq!(ended.result.is_ok(), fits, "{:?}", ended);
                if let Some(place) = model.open.iter().position(|open| open.0 == ended.token) {
                    let (_, at, len, byte) = model.open.swap_remove(place);
                    model.settled[at as usize..(at + len) as usize].fill(byte);
                }
                if let Some(place) = reads.iter().position(|read| read.0 == ended.token) {
                    let (_, also) = reads.swap_remove(place);
                    if fits {
                        prop_assert_eq!(ended.data.len() as u64, ended.len);
                        let mut bytes = vec![0; ended.len as usize];
                        ended.data.copy_to(0, &mut bytes);
                        // Where a write was under way meanwhile, what was there before may be seen too.
                        for (i, byte) in bytes.into_iter().enumerate() {
                            let known = model.may_be(ended.at + i as u64, byte, &also) || also.iter().any(
                                |&(from, len, _)| (from..from + len).contains(&(ended.at + i as u64)));
                            prop_assert!(known, "byte {} of {:?} is {byte}", i, ended.token);
                        }
                    }
                }
                if ended.ask == RequestKind::Extents && fits && ended.len > 0 {
                    prop_assert!(!ended.extents.is_empty());
                }
            }
            if n >= steps.len() && requests.in_flight() == 0 {
                break;
            }
        }
        for (n, asked) in asked.iter().enumerate() {
            prop_assert_eq!(ends[n], i32::from(*asked), "request {} ended", n);
        }
        // In the end, all of it.
        requests
            .submit_request(&mut disk, Request::new(0, RequestKind::Read, 0, SIZE))
            .unwrap();
        let ended = loop {
            turn(&mut disk, &mut requests);
            if let Some(ended) = requests.poll_ended() {
                break ended;
            }
        };
        let mut bytes = vec![0; SIZE as usize];
        ended.data.copy_to(0, &mut bytes);
        prop_assert!(bytes == model.settled);
    }
}

#[test]
fn what_is_given_up_ends_with_an_error_and_late_answers_are_nothing() {
    let ram = Arc::new(RamDisk::new(64, 64, 512, 4096));
    let mut disk = RamVolume::new(ram, Behaviour { shuffle: Some(1), ..Behaviour::default() });
    let mut requests = RequestTable::new(&disk, 4, Arc::default());
    for token in 0..4 {
        requests.submit_request(&mut disk, Request::new(token, RequestKind::Read, 0, 512)).unwrap();
    }
    let full = Request::new(4, RequestKind::Flush, 0, 0);
    assert!(requests.submit_request(&mut disk, full).is_err());
    requests.fail_all();
    let mut ends: Vec<_> = std::iter::from_fn(|| requests.poll_ended()).collect();
    ends.sort_by_key(|ended| ended.token);
    assert!(ends.iter().enumerate().all(|(n, e)| e.token == n && e.result == Err(RequestError::Gone)));
    assert_eq!(ends.len(), 4);
    for _ in 0..50 {
        turn(&mut disk, &mut requests);
    }
    assert!(requests.poll_ended().is_none());
    assert_eq!(requests.in_flight(), 0);
}

/// A far target may carry one block at a time: then a request has more parts than 16 bits count.
#[test]
fn the_parts_of_a_request_are_never_taken_for_those_of_another() {
    const BLOCKS: u64 = (1 << 16) + 2;
    let ram = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let mood = Behaviour { never_lends: true, max_io: Some(512), ..Behaviour::default() };
    let mut disk = RamVolume::new(ram, mood);
    let mut requests = RequestTable::new(&disk, 4, Arc::default());
    let len = (BLOCKS - 2) * 512;
    for token in 0..2 {
        // Ragged at both ends: one more block than 16 bits have numbers.
        requests.submit_request(&mut disk, Request::new(token, RequestKind::Read, 100, len)).unwrap();
    }
    let mut ends = Vec::new();
    for _ in 0..1000 {
        turn(&mut disk, &mut requests);
        ends.extend(std::iter::from_fn(|| requests.poll_ended()));
        if ends.len() == 2 {
            break;
        }
    }
    assert_eq!((ends.len(), requests.in_flight()), (2, 0));
    assert!(ends.iter().all(|end| end.result.is_ok() && end.data.len() as u64 == len));
}

#[test]
fn names_keep_what_they_are_made_of() {
    for (generation, index, part) in
        [(0, 0, 0), (GENERATION_MASK, u16::MAX, PARTS_PER_REQUEST_MAX - 1), (7, 1, 1 << 16)]
    {
        let name = OperationId { generation, index, part };
        assert_eq!(OperationId::from_io_id(name.to_io_id()), name);
    }
}

/// A server that takes a volume for protected brings no memory for a write.
#[test]
fn a_write_without_its_bytes_is_never_acknowledged_and_ends_nobody() {
    let ram = Arc::new(RamDisk::new(64, 64, 4096, 4096));
    let mut disk = RamVolume::new(ram, Behaviour::default());
    let mut requests = RequestTable::new(&disk, 4, Arc::default());
    for (at, len) in [(0, 4096), (0, 8192), (1, 4096), (512, 512), (4095, 2)] {
        let ask = RequestKind::Write { stable: false };
        requests.submit_request(&mut disk, Request::new((), ask, at, len)).unwrap();
        // Of another request, which is shorter.
        let some = requests.alloc_write_memory(&mut disk, 0, len).unwrap();
        let longer = Request::write((), false, at, len + 8192, some);
        requests.submit_request(&mut disk, longer).unwrap();
        turn(&mut disk, &mut requests);
        for _ in 0..2 {
            assert_eq!(requests.poll_ended().unwrap().result, Err(RequestError::Io), "{len} bytes at {at}");
        }
    }
    assert_eq!(requests.in_flight(), 0);
}

#[test]
fn protection_is_looked_at_for_each_request() {
    let ram = Arc::new(RamDisk::new(64, 64, 512, 4096));
    let mood = Behaviour::default();
    let mut disk = RamVolume::new(ram, mood.clone());
    let mut requests = RequestTable::new(&disk, 4, Arc::default());
    for protected in [true, false, true] {
        mood.protected.store(protected, std::sync::atomic::Ordering::Relaxed);
        for ask in [
            RequestKind::Write { stable: true },
            RequestKind::Zero { unmap: true, stable: false },
            RequestKind::Unmap { stable: false },
        ] {
            let data = match ask {
                RequestKind::Write { .. } => requests.alloc_write_memory(&mut disk, 0, 512).unwrap(),
                _ => WriteMemory::new(),
            };
            requests.submit_request(&mut disk, Request { data, ..Request::new((), ask, 0, 512) }).unwrap();
            turn(&mut disk, &mut requests);
            let expected = if protected { Err(RequestError::ReadOnly) } else { Ok(()) };
            assert_eq!(requests.poll_ended().map(|ended| ended.result), Some(expected), "{ask:?}");
        }
    }
}

/// A discard of less than a block does nothing, and ends in the call that begins it.
#[test]
fn however_many_wait_for_one_write_their_end_does_not_exhaust_the_stack() {
    const COUNT: u16 = 3000;
    let run = || {
        let ram = Arc::new(RamDisk::new(64, 64, 4096, 4096));
        let mood = Behaviour { shuffle: Some(1), ..Behaviour::default() };
        mood.stuck.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut disk = RamVolume::new(ram, mood.clone());
        let mut requests = RequestTable::new(&disk, COUNT + 1, Arc::default());
        let data = requests.alloc_write_memory(&mut disk, 1, 1).unwrap();
        requests.submit_request(&mut disk, Request::write((), false, 1, 1, data)).unwrap();
        for _ in 0..COUNT {
            let ask = RequestKind::Unmap { stable: false };
            requests.submit_request(&mut disk, Request::new((), ask, 512, 512)).unwrap();
        }
        assert_eq!(requests.in_flight(), usize::from(COUNT) + 1);
        mood.stuck.store(false, std::sync::atomic::Ordering::Relaxed);
        while requests.in_flight() > 0 {
            turn(&mut disk, &mut requests);
        }
        while let Some(ended) = requests.poll_ended() {
            assert_eq!(ended.result, Ok(()));
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}
