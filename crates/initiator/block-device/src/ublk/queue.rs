//! The device's queue: slots that deliver requests and take results, through io_uring on the character
//! device.
//!
//! Invariant: each slot is with the driver (fetching) or with us (a request); an aborted slot is with
//! neither.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use buf::Sg;
use io_uring::{IoUring, opcode, types};

use super::wire::{self, Descriptor, IoCommand};
use crate::io_vectors::{IoVectors, preadv, pwritev};

/// What a slot brought.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlotEvent {
    Request(u16, Descriptor),
    /// The slot is gone, with the device.
    Aborted,
}

/// The descriptors of requests, which the driver writes.
struct MappedDescriptors {
    at: NonNull<Descriptor>,
    depth: u16,
    bytes: usize,
}

impl MappedDescriptors {
    fn map(file: &File, depth: u16) -> io::Result<Self> {
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(4096);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that anything names.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => Ok(MappedDescriptors { at, depth, bytes }),
            None => Err(io::Error::last_os_error()),
        }
    }

    fn read_descriptor(&self, tag: u16) -> Descriptor {
        // cannot fail: the tag is the one that went with the command, below the depth.
        assert!(tag < self.depth, "a slot of the queue");
        // SAFETY: within the mapping, aligned as its start is (a page); the driver writes it only while
        // the slot is with it, and then nobody asks.
        unsafe { self.at.add(tag.into()).read_volatile() }
    }
}

impl Drop for MappedDescriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing names it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Whether the system only has no memory now: what it did not take stays in the ring.
pub(super) fn is_out_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}

pub(super) struct UblkQueue {
    file: File,
    ring: IoUring,
    descriptors: MappedDescriptors,
    depth: u16,
    /// The system had no memory to take what stands in the ring.
    is_unsent: bool,
}

impl UblkQueue {
    /// All slots go to the driver by [`UblkQueue::submit_pending`].
    pub(super) fn new(file: File, depth: u16) -> io::Result<UblkQueue> {
        let descriptors = MappedDescriptors::map(&file, depth)?;
        let ring = IoUring::builder().setup_cqsize(2 * u32::from(depth)).build(depth.into())?;
        let mut queue = UblkQueue { file, ring, descriptors, depth, is_unsent: false };
        for tag in 0..depth {
            queue.push_command(wire::FETCH_REQ, tag, 0);
        }
        queue.submit_pending()?;
        Ok(queue)
    }

    pub(super) fn queue_depth(&self) -> u16 {
        self.depth
    }

    /// Readable when a slot brings something.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it lives, and this borrows the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    fn push_command(&mut self, command: u32, tag: u16, result: i32) {
        let words = IoCommand { queue: 0, tag, result, address: 0 };
        let words: [u8; 16] = zerocopy::transmute!(words);
        let entry = opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), command)
            .cmd(words)
            .build()
            .user_data(tag.into());
        // cannot fail: the ring has room for a command of each slot, and a slot has one at a time.
        // SAFETY: the entry names no memory, and the file lives as long as the ring.
        unsafe { self.ring.submission().push(&entry) }.expect("a slot has one command at a time");
    }

    /// Gives a result back: bytes, or a negative error number. It goes with the next [`UblkQueue::submit_pending`].
    pub(super) fn commit_result(&mut self, tag: u16, result: i32) {
        self.push_command(wire::COMMIT_AND_FETCH_REQ, tag, result);
    }

    /// Hands all over that waits for it; or says, by [`UblkQueue::has_unsubmitted`], that it is to be tried again.
    pub(super) fn submit_pending(&mut self) -> io::Result<()> {
        self.is_unsent = false;
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_out_of_memory(&error) => {
                    self.is_unsent = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn has_unsubmitted(&self) -> bool {
        self.is_unsent
    }

    /// What a slot brought. An error means that the driver does not work with us.
    pub(super) fn poll_slot_event(&mut self) -> Option<io::Result<SlotEvent>> {
        let entry = self.ring.completion().next()?;
        let tag = entry.user_data() as u16;
        Some(match entry.result() {
            0 => Ok(SlotEvent::Request(tag, self.descriptors.read_descriptor(tag))),
            wire::RESULT_ABORT => Ok(SlotEvent::Aborted),
            error => Err(io::Error::from_raw_os_error(-error)),
        })
    }

    /// Copies a write's data to memory that `io_vectors` names.
    ///
    /// # Safety
    /// As of [`preadv`].
    pub(super) unsafe fn copy_write_data(&self, tag: u16, vectors: &mut IoVectors) -> io::Result<()> {
        let len = vectors.len_bytes();
        // SAFETY: by the caller's promise.
        match unsafe { preadv(self.file.as_raw_fd(), vectors, wire::data_offset(tag)) }? {
            n if n == len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Copies what was read to the request.
    pub(super) fn copy_read_data(&self, tag: u16, data: &Sg, vectors: &mut IoVectors) -> io::Result<()> {
        vectors.clear();
        vectors.push_sg(data, 0);
        // SAFETY: the vectors were made above, of memory that `data` keeps until the call returns.
        match unsafe { pwritev(self.file.as_raw_fd(), vectors, wire::data_offset(tag)) }? {
            n if n == data.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}
