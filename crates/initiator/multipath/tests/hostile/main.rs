//! Hostile targets: the messages of a correct one, changed PDU by PDU, in a world of one thread that a seed
//! determines.

mod mangle;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mangle::Protocol;
use world::{Session, Tally};

/// Plays sessions on all processors: `SIM_SEEDS=n` of them instead of `many`, from `SIM_FROM` on; `SIM_SEED=n` plays
/// that one.
fn play(protocol: Protocol, name: &str, many: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let from = number("SIM_FROM").unwrap_or(0);
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => from..from + number("SIM_SEEDS").unwrap_or(many),
    };
    let (next, total, failed) =
        (AtomicU64::new(seeds.start), Mutex::new(Tally::default()), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    match catch_unwind(AssertUnwindSafe(|| Session::new(seed, protocol).play())) {
                        Ok(tally) => {
                            let mut total = total.lock().unwrap();
                            total.well += tally.well;
                            total.failed += tally.failed;
                            total.connections += tally.connections;
                            total.changed += tally.changed;
                        }
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    let (failed, total) = (failed.into_inner().unwrap(), total.into_inner().unwrap());
    for seed in &failed {
        println!("replay with: SIM_SEED={seed} cargo test -p blockwire-multipath --test hostile {name}");
    }
    println!("{total:?}");
    assert_eq!(failed, [], "these seeds failed");
    if seeds.end - seeds.start >= 50 {
        let eventful = total.well > 500 && total.failed > 50 && total.changed > 100;
        assert!(eventful && total.connections > 100, "nothing much happens: {total:?}");
    }
}

#[test]
fn sessions_with_hostile_iscsi_targets_end_well() {
    play(Protocol::Iscsi, "sessions_with_hostile_iscsi", 150);
}

#[test]
fn sessions_with_hostile_nvme_controllers_end_well() {
    play(Protocol::Nvme, "sessions_with_hostile_nvme", 150);
}

/// One seed is one history.
#[test]
fn a_seed_determines_everything() {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        let [one, other] = [(); 2].map(|()| format!("{:?}", Session::new(7, protocol).play()));
        assert_eq!(one, other);
    }
}

/// Sessions that found something: a controller of queues of one command, in which a compare and write, a pair,
/// waited for ever with all that stood behind it.
#[test]
fn sessions_that_found_something_end_well() {
    Session::new(96, Protocol::Nvme).play();
}
