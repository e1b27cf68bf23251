//! Long computations without other inputs (a power modulo a large prime), as values, so that they can run
//! where they do not delay data.
//!
//! Invariants:
//! - What is no longer needed is not begun: a [`Computation`] whose [`PendingResult`] is gone does nothing.
//! - A [`Computation`] that is dropped without being done informs its [`PendingResult`].

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};

/// Where the answer is put: `None`, it never will be computed.
type ResultCell<T> = OnceLock<Option<T>>;

/// Something to be computed, anywhere: [`Computation::run`], or drop it, and then
/// [`Sockets::handle_computed`](crate::OutboundSockets::handle_computed) for who gave it.
pub struct Computation {
    peer: IpAddr,
    task: Box<dyn ErasedComputation>,
}

/// What a [`Computation`] will have come to. Who drops it wants it no more.
pub struct PendingResult<T>(Arc<ResultCell<T>>);

/// A computation was refused: who computes has too much else to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotComputed;

trait ErasedComputation: Send {
    fn is_wanted(&self) -> bool;
    fn run(&mut self);
}

struct ComputationJob<T, F> {
    place: Weak<ResultCell<T>>,
    compute: Option<F>,
}

impl<T: Send + Sync, F: FnOnce() -> T + Send> ErasedComputation for ComputationJob<T, F> {
    fn is_wanted(&self) -> bool {
        self.place.strong_count() > 0
    }

    fn run(&mut self) {
        if let (Some(compute), true) = (self.compute.take(), self.is_wanted()) {
            let answer = compute();
            if let Some(place) = self.place.upgrade() {
                // Cannot fail: this is the first that is put there.
                let _ = place.set(Some(answer));
            }
        }
    }
}

impl<T, F> Drop for ComputationJob<T, F> {
    fn drop(&mut self) {
        if let Some(place) = self.place.upgrade() {
            // Changes nothing where there is an answer.
            let _ = place.set(None);
        }
    }
}

impl Computation {
    /// A computation that is asked for by what this peer said: where many wait, peers take turns.
    pub fn new<T, F>(peer: IpAddr, compute: F) -> (Computation, PendingResult<T>)
    where
        T: Send + Sync + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let place = Arc::new(ResultCell::new());
        let job = ComputationJob { place: Arc::downgrade(&place), compute: Some(compute) };
        (Computation { peer, task: Box::new(job) }, PendingResult(place))
    }

    /// On account of whom it is to be done.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Whether anybody still waits for it.
    pub fn is_wanted(&self) -> bool {
        self.task.is_wanted()
    }

    /// Computes, if it is wanted: on any thread.
    pub fn run(mut self) {
        self.task.run();
    }
}

impl<T: Clone> PendingResult<T> {
    /// The answer, once there is one.
    pub fn get(&self) -> Option<Result<T, NotComputed>> {
        self.0.get().map(|answer| answer.clone().ok_or(NotComputed))
    }
}

impl<T> PendingResult<T> {
    /// Takes the answer out, once there is one and the computation is gone: after it was told that it is.
    pub fn take(&mut self) -> Option<Result<T, NotComputed>> {
        Arc::get_mut(&mut self.0)?.take().map(|answer| answer.ok_or(NotComputed))
    }
}

impl fmt::Debug for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Computation({}, ..)", self.peer)
    }
}

impl<T> fmt::Debug for PendingResult<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingResult(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn what_nobody_waits_for_is_not_computed() {
        let begun = Arc::new(AtomicBool::new(false));
        let flag = begun.clone();
        let (work, awaited) = Computation::new(PEER, move || flag.store(true, Ordering::Relaxed));
        assert!(work.is_wanted());
        drop(awaited);
        assert!(!work.is_wanted());
        work.run();
        assert!(!begun.load(Ordering::Relaxed));
    }

    #[test]
    fn who_waits_hears_the_answer_or_that_there_is_none() {
        let (work, awaited) = Computation::new(PEER, || 7);
        assert_eq!(awaited.get(), None);
        std::thread::spawn(move || work.run()).join().unwrap();
        assert_eq!(awaited.get(), Some(Ok(7)));
        let (work, mut awaited) = Computation::new(PEER, || String::from("owned"));
        assert_eq!(awaited.take(), None);
        work.run();
        assert_eq!(awaited.take(), Some(Ok(String::from("owned"))));
        assert_eq!(awaited.take(), None);
        let (work, awaited) = Computation::new(PEER, || 7);
        drop(work);
        assert_eq!(awaited.get(), Some(Err(NotComputed)));
    }
}
