use super::*;
use proptest::prelude::*;
use std::time::Duration;

const SHAPE: VolumeShape = VolumeShape { bytes: 1 << 20, block: 512 };

fn job() -> Job {
    Job { files: vec!["a".into()], depth: 4, ..Job::default() }
}

/// Runs a worker to its end; each I/O takes `latency` of its number. Returns what was started and when.
fn run(worker: &mut Worker, latency: impl Fn(u64) -> u64) -> Vec<(IoRequest, u64)> {
    let (mut now, mut asks) = (0, Vec::new());
    let mut out: Vec<(u64, u32)> = Vec::new();
    loop {
        let next = out.iter().copied().min();
        match worker.poll(now) {
            WorkerAction::Start(ask) => {
                out.push((now + latency(asks.len() as u64), ask.slot));
                asks.push((ask, now));
            }
            WorkerAction::Wait(until) => match (next, until) {
                (Some((at, slot)), until) if until.is_none_or(|until| at <= until) => {
                    now = now.max(at);
                    out.retain(|one| *one != (at, slot));
                    worker.finish_io(slot, now, true);
                }
                (_, Some(until)) => now = until,
                (None, None) => unreachable!("a worker waits for nothing"),
                (Some(_), None) => unreachable!("covered above"),
            },
            WorkerAction::Finished => {
                assert!(out.is_empty());
                return asks;
            }
        }
    }
}

#[test]
fn every_block_comes_once() {
    for is_random in [false, true] {
        let job = Job { is_random, ..job() };
        let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
        let asks = run(&mut worker, |_| 1000);
        let mut offsets: Vec<u64> = asks.iter().map(|(ask, _)| ask.offset).collect();
        assert_eq!(offsets.is_sorted(), !is_random);
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq((0..256).map(|at| at * 4096)));
        assert_eq!((worker.figures().read.ios, worker.figures().read.bytes), (256, 1 << 20));
        // 256 I/Os, four at a time, a microsecond each.
        assert_eq!(worker.figures().span, Some((0, 64_000)));
    }
}

/// A volume whose size no hundred divides had its last place left out, and its first one written twice.
#[test]
fn all_of_a_volume_is_all_of_it() {
    let job = Job { size: Some(JobSize::Percent(100)), direction: IoDirection::Write, ..job() };
    let asks = run(&mut Worker::new(&job, 0, &[SHAPE], 0).unwrap(), |_| 1000);
    assert!(asks.iter().map(|(ask, _)| ask.offset).eq((0..256).map(|at| at * 4096)));
    let half = Job { size: Some(JobSize::Percent(50)), ..job };
    assert_eq!(run(&mut Worker::new(&half, 0, &[SHAPE], 0).unwrap(), |_| 1000).len(), 128);
}

#[test]
fn volumes_take_turns_and_share_the_size() {
    let files = vec!["a".into(), "b".into()];
    let job = Job { files, size: Some(JobSize::Bytes(64 << 10)), ..job() };
    let asks = run(&mut Worker::new(&job, 0, &[SHAPE; 2], 0).unwrap(), |_| 10);
    let volumes: Vec<usize> = asks.iter().map(|(ask, _)| ask.volume).collect();
    assert_eq!(volumes, [0, 1].repeat(8));
    assert!(asks.iter().all(|(ask, _)| ask.offset < 32 << 10));
}

#[test]
fn time_ends_a_job_and_a_ramp_does_not_count() {
    let second = Duration::from_secs(1);
    let job = Job { is_random: true, is_time_based: true, runtime: Some(second), ramp: second, ..job() };
    let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    let asks = run(&mut worker, |_| 1_000_000);
    assert_eq!(asks.len(), 8000, "four a millisecond for two seconds");
    let read = &worker.figures().read;
    assert!((4000..=4004).contains(&read.ios), "{}", read.ios);
    assert_eq!(worker.figures().span, Some((1_000_000_000, 2_000_000_000)));
}

/// I/Os that ended while the load drained were counted, and the processor time of the same moments was not.
#[test]
fn what_ends_after_the_time_is_never_counted() {
    let time = Duration::from_nanos(100);
    let job =
        Job { is_random: true, is_time_based: true, runtime: Some(time), flushes_at_end: true, ..job() };
    let job = Job { direction: IoDirection::Write, ..job };
    let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    let asks = run(&mut worker, |_| 30);
    let tally = worker.figures();
    // Four at a time end after 30, 60 and 90 ns, four more after 120.
    assert_eq!((asks.len(), tally.write.ios, tally.write.bytes), (17, 12, 12 * 4096));
    assert_eq!((tally.write.latency.count(), tally.flush.ios, tally.span), (12, 1, Some((0, 100))));
    assert_eq!(tally.outside, -4 * 10);
    assert_eq!((tally.unfinished, tally.unfinished_oldest), (4, 10));
    // Though none of its writes is counted, what was written is flushed.
    let mut slow = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    let asks = run(&mut slow, |_| 500);
    assert_eq!((asks.last().unwrap().0.kind, slow.figures().write.ios), (IoKind::Flush, 0));
}

/// What a target does not answer any more is in no latency: it is counted, with its age.
#[test]
fn a_stall_at_the_end_is_told() {
    let time = Duration::from_nanos(1_000);
    let job = Job { is_random: true, is_time_based: true, runtime: Some(time), ..job() };
    let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    // From 600 ns on nothing is answered until 400 ns after the end.
    run(&mut worker, |at| if at < 24 { 100 } else { 800 });
    let tally = worker.figures();
    assert_eq!((tally.read.ios, tally.read.latency.max(), tally.span), (24, 100, Some((0, 1_000))));
    assert_eq!((tally.unfinished, tally.unfinished_oldest), (4, 400));
    let mut both = tally.clone();
    both.merge(tally);
    assert_eq!((both.unfinished, both.unfinished_oldest), (8, 400));
    // A load that ends by its size leaves nothing out.
    let mut whole = Worker::new(&job_of_size(), 0, &[SHAPE], 0).unwrap();
    run(&mut whole, |_| 1_000);
    assert_eq!((whole.figures().unfinished, whole.figures().unfinished_oldest), (0, 0));
}

fn job_of_size() -> Job {
    Job { size: Some(JobSize::Bytes(64 << 10)), ..job() }
}

/// A target that stalls for a second under a thousand I/Os a second is charged for all that waited.
#[test]
fn what_waits_is_charged_from_its_intended_start() {
    let job = Job {
        is_random: true,
        covers: false,
        depth: 1,
        rate: (Some(Rate::Iops(1000)), None),
        size: Some(JobSize::Bytes(3000 * 4096)),
        file_size: Some(JobSize::Bytes(1 << 20)),
        ..job()
    };
    let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    let asks = run(&mut worker, |at| if at == 1000 { 1_000_000_000 } else { 10_000 });
    assert_eq!(asks.len(), 3000);
    let latency = &worker.figures().read.latency;
    // About a thousand waited, half a second on average.
    assert!(latency.percentile(80.0) > 300_000_000, "{}", latency.percentile(80.0));
    assert!(latency.percentile(50.0) < 20_000, "{}", latency.percentile(50.0));
}

/// What one direction waits for by its rate is not charged to the target by the other, which waits behind it.
#[test]
fn an_idle_target_is_not_charged_for_the_mix_of_two_rates() {
    let rates = [
        (Some(Rate::Iops(100)), Some(Rate::Iops(100))),
        (Some(Rate::Bytes(409_600)), Some(Rate::Bytes(409_600))),
        (Some(Rate::Iops(100)), None),
        (Some(Rate::Iops(100)), Some(Rate::Iops(1000))),
    ];
    for (rate, think) in rates.into_iter().flat_map(|rate| [(rate, 0), (rate, 20)]) {
        let job = Job {
            direction: IoDirection::Mixed(50),
            is_random: true,
            covers: false,
            is_time_based: true,
            runtime: Some(Duration::from_secs(60)),
            think: Duration::from_millis(think),
            rate,
            ..job()
        };
        let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
        run(&mut worker, |_| 100_000);
        for figures in [&worker.figures().read, &worker.figures().write] {
            assert!(figures.ios > 500, "{rate:?}: {}", figures.ios);
            // Those that catch up with their rate at once wait for one another, a few deep.
            let (half, most) = (figures.latency.percentile(50.0), figures.latency.percentile(100.0));
            assert!(
                half < 150_000 && most < 2_000_000,
                "{rate:?}, thinking {think} ms: {half} and {most} ns"
            );
        }
    }
}

#[test]
fn writes_are_flushed_and_read_again() {
    let job = Job {
        direction: IoDirection::Write,
        is_random: true,
        verifies: true,
        flushes_at_end: true,
        flush_every: 100,
        ..job()
    };
    let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
    let asks = run(&mut worker, |_| 100);
    let count = |kind| asks.iter().filter(|(ask, _)| ask.kind == kind).count();
    assert_eq!((count(IoKind::Write), count(IoKind::Verify), count(IoKind::Flush)), (256, 256, 3));
    let last_write = asks.iter().rposition(|(ask, _)| ask.kind == IoKind::Write).unwrap();
    let first_look = asks.iter().position(|(ask, _)| ask.kind == IoKind::Verify).unwrap();
    assert!(last_write < first_look);
    assert_eq!(worker.figures().write.ios, 256);
    assert_eq!(worker.figures().read.ios, 0, "comparing is no load");
}

#[test]
fn a_job_that_does_not_fit_is_refused_in_words() {
    let big = Job { block: (4 << 20, 4 << 20), ..job() };
    assert!(Worker::new(&big, 0, &[SHAPE], 0).unwrap_err().to_string().contains("hold no I/O"));
    let small = Job { block: (512, 512), ..job() };
    let shape = VolumeShape { block: 4096, ..SHAPE };
    assert!(Worker::new(&small, 0, &[shape], 0).unwrap_err().to_string().contains("do not divide"));
}

#[test]
fn a_worker_that_is_stopped_waits_for_what_is_out() {
    let mut worker = Worker::new(&job(), 0, &[SHAPE], 0).unwrap();
    let WorkerAction::Start(ask) = worker.poll(0) else { panic!("there is work") };
    worker.stop();
    assert_eq!(worker.poll(1), WorkerAction::Wait(None));
    worker.finish_io(ask.slot, 2, false);
    assert_eq!((worker.poll(3), worker.failed_ios()), (WorkerAction::Finished, 1));
    assert_eq!(
        (worker.figures().refilled, worker.figures().outside),
        (1, 0),
        "load ceased when it was stopped"
    );
}

proptest! {
    /// By Little's law what is in flight while load is refilled is the depth, to the nanosecond: however long
    /// I/Os take, whatever is in flight when figures begin to count and when load ceases.
    #[test]
    fn a_full_load_has_its_depth_in_flight(a in 1u64..5000, b in 1u64..3, depth in 1u32..9, ramp in 0u64..3000) {
        let (ramp, runtime) = (Duration::from_nanos(ramp), Duration::from_nanos(7000));
        let job = Job { is_random: true, covers: false, is_time_based: true, depth, ramp, runtime: Some(runtime), ..job() };
        let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
        run(&mut worker, |at| 1 + a * (1 + at % 3) * b);
        let tally = worker.figures();
        let inside = tally.read.latency.sum() as i128 - i128::from(tally.outside);
        prop_assert_eq!(tally.refilled, 7000);
        prop_assert_eq!(inside, i128::from(depth) * 7000);
        let begin = ramp.as_nanos() as u64;
        prop_assert_eq!(tally.span, (tally.read.ios > 0).then_some((begin, begin + 7000)));
    }

    /// However long I/Os take, the same come in the same order.
    #[test]
    fn a_sequence_does_not_depend_on_latency(a in 1u64..5000, b in 1u64..5000, depth in 1u32..9, mix in 0u8..=100) {
        let job = Job { is_random: true, depth, direction: IoDirection::Mixed(mix), ..job() };
        let order = |latency: u64| -> Vec<(IoKind, u64)> {
            let asks = run(&mut Worker::new(&job, 3, &[SHAPE], 0).unwrap(), |at| latency * (1 + at % 3));
            asks.iter().map(|(ask, _)| (ask.kind, ask.offset)).collect()
        };
        prop_assert_eq!(order(a), order(b));
    }

    #[test]
    fn no_more_than_its_depth_is_out(depth in 1u32..20, latency in 1u64..1000) {
        let mut worker = Worker::new(&Job { depth, ..job() }, 0, &[SHAPE], 0).unwrap();
        let asks = run(&mut worker, |_| latency);
        for (at, (_, begun)) in asks.iter().enumerate() {
            let out = asks[..at].iter().filter(|(_, earlier)| earlier + latency > *begun).count();
            prop_assert!(out < depth as usize);
        }
    }
}

/// A generator that has no time to start what could be started has fewer I/Os in flight than it was to have.
#[test]
fn a_generator_that_is_the_limit_has_too_few_in_flight() {
    use crate::derived::{EdgeEffects, Inconsistency, RawFigures};
    let found = |own_ns: u64| {
        let time = Duration::from_micros(100);
        let job = Job { is_random: true, is_time_based: true, runtime: Some(time), ..job() };
        let mut worker = Worker::new(&job, 0, &[SHAPE], 0).unwrap();
        let (mut now, mut out) = (0, Vec::<(u64, u32)>::new());
        // The target answers after 200 ns; the generator takes its time for each I/O that it starts.
        loop {
            match worker.poll(now) {
                WorkerAction::Start(ask) => {
                    out.push((now + 200, ask.slot));
                    now += own_ns;
                }
                // All that have ended are taken together, as they come from the network.
                WorkerAction::Wait(_) => {
                    now = now.max(out.iter().map(|(at, _)| *at).min().unwrap_or(now));
                    let (ended, left): (Vec<(u64, u32)>, _) = out.into_iter().partition(|(at, _)| *at <= now);
                    ended.into_iter().for_each(|(_, slot)| worker.finish_io(slot, now, true));
                    out = left;
                }
                WorkerAction::Finished => break,
            }
        }
        let tally = worker.figures();
        let seconds = 100e-6;
        let raw = RawFigures {
            iops: tally.read.ios as f64 / seconds,
            latency_s: Some((tally.read.latency.mean() / 1e9, tally.read.latency.standard_deviation() / 1e9)),
            seconds,
            edges: EdgeEffects::Told {
                refilled: tally.refilled as f64 / 1e9,
                outside: tally.outside as f64 / 1e9,
            },
            bytes: 4096.0,
            bandwidth: tally.read.bytes as f64 / seconds,
            depth: 4.0,
            is_closed: true,
            processor: (0.0, 1.0),
        };
        raw.inconsistencies()
    };
    assert_eq!(found(1), []);
    assert!(matches!(found(100)[..], [Inconsistency::TooFew { .. }]), "{:?}", found(100));
}
