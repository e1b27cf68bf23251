//! Processor time of tests that hold work against the number of what there is: unlike the time of the clock, it does not
//! grow with what else runs on the machine.

/// Processor time that this thread has used, in nanoseconds (`/proc/PID/schedstat`, proc(5)).
pub fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")
        .expect("the kernel counts the time of threads");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("its first number")
}

/// Asserts that work on four times as many takes less than ten times as long: work in proportion to their number takes
/// four times, work that grows with their square 16 times.
pub fn assert_grows_with_number(many: usize, mut work: impl FnMut(usize)) {
    // The first pass also pays for what is made once.
    work(many / 4);
    // The least of three: interrupts, and memory that the kernel clears, count for the thread that runs.
    let mut measured = |count| {
        let once = |_| {
            let before = thread_cpu_ns();
            work(count);
            thread_cpu_ns() - before
        };
        (0..3).map(once).min().expect("three passes")
    };
    let (few, all) = (measured(many / 4), measured(many));
    assert!(all < 10 * few.max(1_000_000), "{all} ns for {many}, {few} ns for a quarter of them");
}
