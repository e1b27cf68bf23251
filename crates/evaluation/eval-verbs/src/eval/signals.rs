//! How a signal ends an evaluation.
//!
//! The first one ends it in order: systems, mounts and links are taken down, and results are written. Another
//! ends it at once. Invariant: a signal that the caller ignores stays ignored (nohup, jobs in the
//! background).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use process::exit::{Exit, Failure};

/// The signal that came first, if any.
#[derive(Clone, Debug, Default)]
pub struct ReceivedSignal(Arc<AtomicI32>);

impl ReceivedSignal {
    /// What the process exits with because of it.
    pub fn exit_status(&self) -> Option<Exit> {
        match self.0.load(Ordering::Relaxed) {
            SIGHUP => Some(Exit::HungUp),
            SIGINT => Some(Exit::Interrupted),
            SIGTERM => Some(Exit::Terminated),
            _ => None,
        }
    }
}

/// Listens to signals from now on.
///
/// # Errors
/// If the system does not let it.
pub fn install_handlers() -> Result<ReceivedSignal, Failure> {
    let failed = |why: io::Error| Failure::failed(format!("cannot watch signals: {why}"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let heard = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| !is_ignored(&status, *signal));
    let mut signals = Signals::new(heard).map_err(failed)?;
    let ended = ReceivedSignal::default();
    let told = ended.clone();
    let watch = move || {
        for signal in signals.forever() {
            if told.0.swap(signal, Ordering::Relaxed) != 0 {
                std::process::exit(128 + signal);
            }
            lab::end_request::request_end();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok(ended)
}

/// Whether `/proc/self/status` says that a signal is ignored.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_told_from_the_mask() {
        // SIGHUP is bit 0; SIGPIPE, 13, is bit 12.
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && !is_ignored(status, SIGINT) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        let ended = ReceivedSignal::default();
        assert_eq!(ended.exit_status(), None);
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            ended.0.store(signal, Ordering::Relaxed);
            assert_eq!(ended.exit_status().map(|exit| exit as i32), Some(128 + signal));
        }
    }
}
