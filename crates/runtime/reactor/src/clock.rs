//! The world's clock and its randomness.

use std::io;

use buf::Time;

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> Time {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec for the call to write; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    Time(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// The same clock as of its last tick: never ahead of [`now`], and behind it by a few milliseconds at most, for
/// a fraction of the cost.
pub(crate) fn coarse_now() -> Time {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec for the call to write; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut ts) };
    Time(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// A seed from the system's generator.
pub(crate) fn random_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0u8; 32];
    // SAFETY: the buffer is valid for its length; requests of up to 256 bytes are not cut short.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if got == seed.len() as isize { Ok(seed) } else { Err(io::Error::last_os_error()) }
}

/// Binds the calling thread to one core.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    // SAFETY: a cpu_set_t is plain bits, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `core` is below CPU_SETSIZE, so the bit is within the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set is valid for its size; 0 names the calling thread.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_behind_the_clock_but_not_far() {
        for _ in 0..1000 {
            let (before, tick, after) = (now(), coarse_now(), now());
            assert!(tick <= after, "{tick:?} is ahead of {after:?}");
            // A tick of 100 Hz is the longest; more on a machine that stops us in between is no fault.
            assert!(before.since(tick) < std::time::Duration::from_millis(500), "{tick:?} {before:?}");
        }
    }
}
