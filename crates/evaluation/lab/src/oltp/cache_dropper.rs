//! Drops the kernel's caches of file systems while users work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Drops the kernel's caches of file systems every second, as the paper's script did.
pub(super) struct CacheDropper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<String>>>,
}

impl CacheDropper {
    /// Begins.
    pub(super) fn start() -> CacheDropper {
        let stop = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut next = Instant::now();
            while !heard.load(Ordering::Relaxed) {
                if Instant::now() >= next {
                    next += Duration::from_secs(1);
                    if let Err(why) = std::fs::write("/proc/sys/vm/drop_caches", "3\n") {
                        return Some(format!("/proc/sys/vm/drop_caches: {why}"));
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            None
        });
        CacheDropper { stop, thread: Some(thread) }
    }

    /// Ends it, and gives what was in its way.
    pub(super) fn stop(&mut self) -> Option<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().unwrap_or_else(|_| Some("the thread ended".to_owned()))
    }
}

impl Drop for CacheDropper {
    fn drop(&mut self) {
        // Users that failed leave caches to those who come next.
        self.stop();
    }
}
