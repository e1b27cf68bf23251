//! An allocator that counts a thread's allocations while enabled.
//!
//! Test threads run at the same time, so counts are per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static TRACING: Cell<bool> = const { Cell::new(false) };
    static SITE: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// The system's allocator, counted. A test that counts makes it its own:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: blockwire_testkit::counting_alloc::CountingAllocator = blockwire_testkit::counting_alloc::CountingAllocator;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

fn note_allocation(calls: u64, bytes: i64) {
    // A thread that ends has no counters any more.
    let counting = COUNTING.try_with(Cell::get).unwrap_or(false);
    if !counting {
        return;
    }
    CALLS.set(CALLS.get() + calls);
    BYTES.set(BYTES.get() + bytes);
    if calls > 0 && TRACING.replace(false) {
        COUNTING.set(false);
        SITE.set(Some(Backtrace::force_capture()));
        COUNTING.set(true);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; what is counted has no part in it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_allocation(1, layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note_allocation(0, -(layout.size() as i64));
        // SAFETY: the caller keeps `dealloc`'s contract, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note_allocation(1, new_size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps `realloc`'s contract, which is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// What was counted: calls that ask for memory, and bytes taken less bytes given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCount {
    pub calls: u64,
    pub bytes: i64,
}

/// Counts the allocations of this thread during `act`.
pub fn count_allocations<R>(act: impl FnOnce() -> R) -> R {
    COUNTING.set(true);
    let result = act();
    COUNTING.set(false);
    result
}

/// What was counted since this was last asked; the next allocation is where `site` will point.
pub fn take_allocation_count() -> AllocationCount {
    TRACING.set(true);
    AllocationCount { calls: CALLS.replace(0), bytes: BYTES.replace(0) }
}

/// The first place that allocated since [`take_allocation_count`].
pub fn first_allocation_site() -> Option<Backtrace> {
    SITE.take()
}
