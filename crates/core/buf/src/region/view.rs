//! A region's memory and buffers: views of it, and copies of one into the other.

use super::{Region, RegionHandle};
use crate::buffer::Buf;
use crate::shared_memory;

impl Region {
    /// Copies `from`, whichever memory it is of, to `offset`. Where `from` is of this very region the
    /// bytes arrive as they were before.
    pub fn write_buf(&self, offset: usize, from: &Buf) {
        if let Some(bytes) = from.stable_bytes() {
            self.write_non_temporal(offset, bytes);
            return self.store_fence();
        }
        let to = self.pointer(offset, from.len());
        // SAFETY: both ranges are within live memory; pool memory is elsewhere, and of a region no
        // reference exists.
        unsafe { shared_memory::copy_overlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }
}

impl RegionHandle {
    /// A view of `len` bytes from `offset` on, which may change under the reader's hands.
    #[expect(clippy::expect_used, reason = "a view is at most one transfer, far below 4 GiB")]
    pub fn view(&self, offset: usize, len: usize) -> Buf {
        let start = self.0.pointer(offset, len);
        Buf::from_region(self.clone(), start, u32::try_from(len).expect("a view is smaller than 4 GiB"))
    }
}
