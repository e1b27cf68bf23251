//! Threads for calls that wait for the cluster: one per subject, which has its jobs done in order, as long as there are
//! any.
//!
//! Invariant: a subject has one thread at a time; both numbers are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use volume::Uuid;

/// Jobs that wait for one subject: the member asks again while the cluster is silent.
const JOBS_MAX: usize = 16;
/// Threads at a time: a group may open all its volumes at once.
const THREADS_MAX: usize = 256;

/// What a thread works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The monitors.
    Monitors,
    /// The watch.
    Watch,
    /// The image of a volume.
    Volume(Uuid),
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
pub(crate) struct BlockingCalls(Arc<Mutex<BTreeMap<Subject, VecDeque<Job>>>>);

impl BlockingCalls {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Subject, VecDeque<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it done behind the subject's other jobs; false: there are too many already, and it is not done.
    pub(crate) fn run(&self, subject: Subject, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queues = self.lock();
        if let Some(jobs) = queues.get_mut(&subject) {
            if jobs.len() >= JOBS_MAX {
                return false;
            }
            jobs.push_back(Box::new(job));
            return true;
        }
        if queues.len() >= THREADS_MAX {
            return false;
        }
        queues.insert(subject, VecDeque::from([Box::new(job) as Job]));
        drop(queues);
        let own = self.clone();
        let begun = thread::Builder::new().name("bw-group-store".to_owned()).spawn(move || own.work(subject));
        if begun.is_err() {
            self.lock().remove(&subject);
        }
        begun.is_ok()
    }

    fn work(&self, subject: Subject) {
        loop {
            let mut queues = self.lock();
            let Some(job) = queues.get_mut(&subject).and_then(VecDeque::pop_front) else {
                queues.remove(&subject);
                return;
            };
            drop(queues);
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_of_a_subject_are_done_in_order_and_bounded() {
        let calls = BlockingCalls::default();
        let (go, wait) = channel::<()>();
        let (tell, done) = channel();
        assert!(calls.run(Subject::Monitors, move || wait.recv().unwrap()));
        let mut taken = 0;
        for number in 0..JOBS_MAX * 2 {
            let tell = tell.clone();
            taken += usize::from(calls.run(Subject::Monitors, move || tell.send(number).unwrap()));
        }
        // The first may have been begun already, or not.
        assert!((JOBS_MAX - 1..=JOBS_MAX).contains(&taken), "{taken}");
        let tell = tell.clone();
        assert!(calls.run(Subject::Watch, move || tell.send(1000).unwrap()), "another subject does not wait");
        assert_eq!(done.recv().unwrap(), 1000);
        go.send(()).unwrap();
        assert_eq!(
            (0..taken).map(|_| done.recv().unwrap()).collect::<Vec<_>>(),
            (0..taken).collect::<Vec<_>>()
        );
    }
}
