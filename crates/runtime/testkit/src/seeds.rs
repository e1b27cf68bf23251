//! Many runs, each decided by its seed: on all processors, counted, and named by their seeds if they fail.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many of each there were in a run: a run in which nothing happens proves nothing.
pub trait Tally: Copy + Debug + Default + Send {
    fn add(&mut self, other: Self);
}

/// A tally with these counts.
#[macro_export]
macro_rules! tally {
    ($vis:vis struct $name:ident { $($(#[$about:meta])* $count:ident),* $(,)? }) => {
        /// How many of each there were.
        #[derive(Clone, Copy, Debug, Default)]
        $vis struct $name {
            $($(#[$about])* pub $count: u64),*
        }

        impl $crate::seeds::Tally for $name {
            fn add(&mut self, other: Self) {
                $(self.$count += other.$count;)*
            }
        }
    };
}

/// Which seeds to play: `SIM_SEEDS=n` of them instead of `many`, from `SIM_FROM` on; `SIM_SEED=n` plays that one.
pub fn seed_range(many: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let from = number("SIM_FROM").unwrap_or(0);
    match number("SIM_SEED") {
        Some(one) => one..one + 1,
        None => from..from + number("SIM_SEEDS").unwrap_or(many),
    }
}

/// Plays [`seed_range`] on all processors. Gives what happened, and in how many runs. `test` is the test as cargo takes it:
/// package and filter.
pub fn run_all_seeds<T: Tally>(many: u64, test: &str, run: impl Fn(u64) -> T + Sync) -> (T, u64) {
    let seeds = seed_range(many);
    let next = AtomicU64::new(seeds.start);
    let (total, failed) = (Mutex::new(T::default()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                        Ok(tally) => total.lock().unwrap().add(tally),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    let (total, failed) = (total.into_inner().unwrap(), failed.into_inner().unwrap());
    for seed in &failed {
        println!("replay with: SIM_SEED={seed} cargo test -p {test}");
    }
    println!("{total:?}");
    assert_eq!(failed, [], "these seeds failed");
    (total, seeds.end - seeds.start)
}

/// What is wrong on purpose fails in one of so many runs.
#[track_caller]
pub fn assert_some_seed_fails<T>(what: impl Debug, runs: u64, run: impl Fn(u64) -> T) {
    let caught = (0..runs).find(|&seed| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err());
    println!("{what:?}: caught by seed {caught:?}");
    assert!(caught.is_some(), "{what:?} goes unnoticed");
}
