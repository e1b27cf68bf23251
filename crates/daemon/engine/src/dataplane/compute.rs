//! Schedules long computations. Powers for DH-HMAC-CHAP take tens of milliseconds each, and any
//! unauthenticated peer can request them; so can every remote controller that a volume uses.
//!
//! One thread computes them, one after another. Sources (an IPv4 address, an IPv6 /64) take turns, so that
//! one with many requests delays only itself. Work of a closed queue is removed. Neither one source nor all
//! together may have more work waiting than a limit. Work beyond it is refused at once: the queue ends, and
//! its host may reconnect.
//!
//! Invariant: each piece of work that is put in comes out once: taken, refused, or forgotten. Work that is no
//! longer needed does not take a place.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use endpoint::ShardId;
use shard::ComputeId;

/// Most that wait of one source: the 128 I/O queues of two controllers prove themselves at once. At 15 ms for
/// a power of the longest prime that is a wait of 4 s for who shares the source.
const JOBS_PER_SOURCE_MAX: usize = 256;
/// Most that wait of all.
const JOBS_MAX: usize = 1024;

/// What is asked for.
pub trait ComputeRequest {
    /// Whether it is still of use. What is forgotten by name always is.
    fn is_wanted(&self) -> bool;
    /// Whether it is what a queue's host asks for by this number of its shard.
    fn matches_id(&self, id: ComputeId) -> bool;
}

/// A piece of work and whose it is.
#[derive(Debug, PartialEq, Eq)]
pub struct ComputeJob<W> {
    /// The shard that asked.
    pub shard: ShardId,
    /// What is to be computed.
    pub work: W,
}

/// What waits, by source, the source whose turn it is in front.
#[derive(Debug)]
struct FairQueue<W> {
    sources: VecDeque<(IpAddr, VecDeque<ComputeJob<W>>)>,
    waiting: usize,
    ended: bool,
}

impl<W: ComputeRequest> FairQueue<W> {
    fn new() -> Self {
        FairQueue { sources: VecDeque::new(), waiting: 0, ended: false }
    }

    /// Puts a job in; gives one that is refused, this or another.
    fn push(&mut self, source: IpAddr, job: ComputeJob<W>) -> Option<ComputeJob<W>> {
        let own = self.sources.iter_mut().find(|(from, _)| *from == source);
        let has = own.map_or(0, |(_, jobs)| {
            if jobs.len() >= JOBS_PER_SOURCE_MAX {
                let had = jobs.len();
                jobs.retain(|job| job.work.is_wanted());
                self.waiting -= had - jobs.len();
            }
            jobs.len()
        });
        if has >= JOBS_PER_SOURCE_MAX {
            return Some(job);
        }
        let mut refused = None;
        if self.waiting >= JOBS_MAX {
            // Who has most gives way, with the last that it asked for.
            let most = self.sources.iter_mut().map(|(_, jobs)| jobs).max_by_key(|jobs| jobs.len());
            match most.filter(|jobs| jobs.len() > has + 1) {
                Some(jobs) => refused = jobs.pop_back(),
                None => return Some(job),
            }
            self.waiting -= 1;
        }
        match self.sources.iter_mut().find(|(from, _)| *from == source) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.sources.push_back((source, VecDeque::from([job]))),
        }
        self.waiting += 1;
        refused
    }

    /// The job whose turn it is.
    fn pop(&mut self) -> Option<ComputeJob<W>> {
        while let Some((source, mut jobs)) = self.sources.pop_front() {
            let Some(job) = jobs.pop_front() else { continue };
            self.waiting -= 1;
            if !jobs.is_empty() {
                self.sources.push_back((source, jobs));
            }
            return Some(job);
        }
        None
    }

    /// Takes a job out whose queue has closed. It may be gone already.
    fn remove(&mut self, shard: ShardId, id: ComputeId) {
        let is_it = |job: &ComputeJob<W>| job.shard == shard && job.work.matches_id(id);
        for (at, (_, jobs)) in self.sources.iter_mut().enumerate() {
            let Some(place) = jobs.iter().position(is_it) else { continue };
            jobs.remove(place);
            self.waiting -= 1;
            if jobs.is_empty() {
                self.sources.remove(at);
            }
            return;
        }
    }
}

/// What waits, for the thread that computes.
#[derive(Debug)]
pub struct ComputePool<W> {
    line: Mutex<FairQueue<W>>,
    more: Condvar,
}

impl<W: ComputeRequest> ComputePool<W> {
    /// Nothing waits.
    pub fn new() -> Self {
        ComputePool { line: Mutex::new(FairQueue::new()), more: Condvar::new() }
    }

    fn lock_queue(&self) -> MutexGuard<'_, FairQueue<W>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in; gives one that is refused, this or another.
    pub fn submit(&self, source: IpAddr, job: ComputeJob<W>) -> Option<ComputeJob<W>> {
        let refused = self.lock_queue().push(source, job);
        self.more.notify_one();
        refused
    }

    /// The queue that a job was for has closed.
    pub fn cancel(&self, shard: ShardId, id: ComputeId) {
        self.lock_queue().remove(shard, id);
    }

    /// Nobody asks any more.
    pub fn close(&self) {
        self.lock_queue().ended = true;
        self.more.notify_all();
    }

    /// The next job, waiting for one. `None`: nobody asks any more.
    pub fn wait_for_job(&self) -> Option<ComputeJob<W>> {
        let mut line = self.lock_queue();
        loop {
            if line.ended {
                return None;
            }
            if let Some(job) = line.pop() {
                return Some(job);
            }
            line = self.more.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, 0, high, low])
    }

    /// Its number, and whether it is wanted.
    #[derive(Debug, PartialEq, Eq)]
    struct Plain(u64, bool);

    impl ComputeRequest for Plain {
        fn is_wanted(&self) -> bool {
            self.1
        }

        fn matches_id(&self, id: ComputeId) -> bool {
            self.0 == id.0
        }
    }

    fn job(id: u64) -> ComputeJob<Plain> {
        ComputeJob { shard: ShardId(0), work: Plain(id, true) }
    }

    fn order(line: &mut FairQueue<Plain>) -> Vec<u64> {
        std::iter::from_fn(|| line.pop()).map(|job| job.work.0).collect()
    }

    #[test]
    fn one_source_that_asks_for_much_delays_nobody_else() {
        let mut line = FairQueue::new();
        for id in 0..200 {
            assert!(line.push(source(1), job(id)).is_none());
        }
        assert!(line.push(source(2), job(1000)).is_none());
        assert!(line.push(source(2), job(1001)).is_none());
        let order = order(&mut line);
        let turn = |id| order.iter().position(|taken| *taken == id).unwrap();
        assert!(turn(1000) <= 1 && turn(1001) <= 3, "{order:?}");
        assert_eq!(order.len(), 202);
        assert!(line.sources.is_empty() && line.waiting == 0);
    }

    #[test]
    fn nothing_is_computed_for_queues_that_have_closed() {
        let mut line = FairQueue::new();
        for id in 0..256 {
            assert!(line.push(source(1), job(id)).is_none());
        }
        line.remove(ShardId(1), ComputeId(7));
        for id in 0..255 {
            line.remove(ShardId(0), ComputeId(id));
            line.remove(ShardId(0), ComputeId(id));
        }
        assert_eq!((order(&mut line), line.waiting), (vec![255], 0));
    }

    #[test]
    fn what_waits_is_bounded_and_who_has_most_gives_way() {
        let mut line = FairQueue::new();
        let mut refused = 0;
        for id in 0..2 * JOBS_PER_SOURCE_MAX as u64 {
            refused += usize::from(line.push(source(1), job(id)).is_some());
        }
        assert_eq!((refused, line.waiting), (JOBS_PER_SOURCE_MAX, JOBS_PER_SOURCE_MAX));
        for from in 2..1000 {
            line.push(source(from), job(10_000 + u64::from(from)));
        }
        assert_eq!(line.waiting, JOBS_MAX);
        // Every source has its turn, though the line is full.
        let first: Vec<u64> = (0..900).filter_map(|_| line.pop()).map(|job| job.work.0).collect();
        assert_eq!(first.iter().filter(|id| **id < 10_000).count(), 1);
        // Where all have one, one more waits for nobody's place.
        let mut line = FairQueue::new();
        for from in 0..JOBS_MAX as u16 {
            assert!(line.push(source(from), job(u64::from(from))).is_none());
        }
        assert_eq!(line.push(source(5000), job(9)), Some(job(9)));
    }

    #[test]
    fn what_is_not_wanted_any_more_takes_nobodys_place() {
        let mut line = FairQueue::new();
        for id in 0..JOBS_PER_SOURCE_MAX as u64 {
            assert!(
                line.push(source(1), ComputeJob { shard: ShardId(0), work: Plain(id, id % 2 == 0) })
                    .is_none()
            );
        }
        assert!(line.push(source(1), job(1000)).is_none());
        assert_eq!(line.waiting, JOBS_PER_SOURCE_MAX / 2 + 1);
        assert_eq!(order(&mut line).last(), Some(&1000));
        assert_eq!(line.waiting, 0);
    }

    #[test]
    fn who_waits_for_work_hears_of_it_and_of_the_end() {
        let powers = ComputePool::new();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| std::iter::from_fn(|| powers.wait_for_job()).count());
            for id in 0..10 {
                assert!(powers.submit(source(1), job(id)).is_none());
            }
            while powers.lock_queue().waiting > 0 {
                std::thread::yield_now();
            }
            powers.close();
            assert_eq!(worker.join().unwrap(), 10);
        });
    }
}
