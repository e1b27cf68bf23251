//! A disk whose image comes and goes: that of a volume that a group of gateways serves. It has an image while this
//! gateway owns the volume.
//!
//! Invariant: without an image every call ends with an error of the path; none waits for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buf::Errno;
use reactor::{CallEnd, LibraryCall, LibraryDisk};

use crate::image::Image;

/// The place of an image. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct ImageSlot(Arc<Mutex<Option<Image>>>);

impl ImageSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls go to this image from now on; `None`: to none. What is out goes on at the image that has it.
    pub fn set(&self, image: Option<Image>) {
        // Dropped behind the lock: the last handle of an image begins to close it.
        let before = std::mem::replace(&mut *self.lock(), image);
        drop(before);
    }

    /// The image.
    pub fn image(&self) -> Option<Image> {
        self.lock().clone()
    }
}

// SAFETY: a call is passed to the image, which keeps the promise, or ended here without being touched.
unsafe impl LibraryDisk for ImageSlot {
    fn start(&self, call: LibraryCall, end: CallEnd) {
        match self.image() {
            Some(image) => image.start(call, end),
            None => end.end(Err(Errno(libc::ENODEV)), None),
        }
    }
}
