//! A region's memory and buffers: views of it, and copies and comparisons of one with the other.

use super::{Region, RegionHandle};
use crate::buffer::Buf;
use crate::shared;

impl Region {
    /// Copies `from`, whichever memory it is of, to `offset`. Where `from` is of this very region the
    /// bytes arrive as they were before.
    pub fn write_buf(&self, offset: usize, from: &Buf) {
        if let Some(bytes) = from.bytes() {
            self.write_non_temporal(offset, bytes);
            return self.store_fence();
        }
        let to = self.pointer(offset, from.len());
        // SAFETY: both ranges are within live memory; pool memory is elsewhere, and of a region no
        // reference exists.
        unsafe { shared::move_within(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// The offset in `with` of the first byte that differs from the bytes at `offset`; `None` if all
    /// are equal.
    #[expect(clippy::indexing_slicing, reason = "bounded by the length of both arrays")]
    pub fn first_difference(&self, offset: usize, with: &Buf) -> Option<usize> {
        const STEP: usize = 512;
        self.pointer(offset, with.len());
        let (mut here, mut there) = ([0; STEP], [0; STEP]);
        (0..with.len()).step_by(STEP).find_map(|done| {
            let n = STEP.min(with.len() - done);
            self.read(offset + done, &mut here[..n]);
            with.copy_to(done, &mut there[..n]);
            let differ = |(a, b): (&u8, &u8)| a != b;
            (here[..n] != there[..n]).then(|| here.iter().zip(&there).position(differ))?.map(|n| done + n)
        })
    }
}

impl RegionHandle {
    /// A view of `len` bytes from `offset` on, which may change under the reader's hands.
    #[expect(clippy::expect_used, reason = "a view is at most one transfer, far below 4 GiB")]
    pub fn view(&self, offset: usize, len: usize) -> Buf {
        let start = self.0.pointer(offset, len);
        Buf::of_region(self.clone(), start, u32::try_from(len).expect("a view is smaller than 4 GiB"))
    }
}
