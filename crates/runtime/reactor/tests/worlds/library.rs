//! Disks behind a library: its threads end the calls, at any time and in any order.

use std::sync::{Arc, Mutex};

use blockwire_reactor::{CallEnd, DiskSource, LibraryCall, LibraryDisk};
use buf::Errno;

use super::*;

const BYTES: usize = 1 << 20;

/// A disk in memory.
#[derive(Debug)]
struct Library {
    bytes: Mutex<Vec<u8>>,
    /// While set, calls are kept.
    kept: Mutex<Option<Vec<(LibraryCall, CallEnd)>>>,
}

impl Library {
    fn carry_out(&self, call: LibraryCall, end: CallEnd) {
        let mut bytes = self.bytes.lock().unwrap();
        let came = match call {
            LibraryCall::Read { iov, count, offset } => {
                let mut at = offset as usize;
                // SAFETY: the list and the memory are valid until `end` is ended.
                for piece in unsafe { std::slice::from_raw_parts(iov, count) } {
                    let from = bytes[at..at + piece.iov_len].as_ptr();
                    // SAFETY: as above; the piece is as long.
                    unsafe { std::ptr::copy_nonoverlapping(from, piece.iov_base.cast(), piece.iov_len) };
                    at += piece.iov_len;
                }
                Ok(at - offset as usize)
            }
            LibraryCall::Write { iov, count, offset } => {
                let mut at = offset as usize;
                // SAFETY: as for the read.
                for piece in unsafe { std::slice::from_raw_parts(iov, count) } {
                    let to = bytes[at..at + piece.iov_len].as_mut_ptr();
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast(), to, piece.iov_len) };
                    at += piece.iov_len;
                }
                Ok(at - offset as usize)
            }
            LibraryCall::Punch { offset, len } | LibraryCall::Zero { offset, len } => {
                bytes[offset as usize..(offset + len) as usize].fill(0);
                Ok(0)
            }
            LibraryCall::NextData { offset } => return end.end(Ok(0), Some((offset + 512, offset + 1024))),
            LibraryCall::Sync => Err(Errno(libc::ESHUTDOWN)),
        };
        end.end(came, None);
    }

    /// Ends what was kept, the last first, on another thread.
    fn let_go(self: &Arc<Self>) {
        let kept = self.kept.lock().unwrap().take().unwrap();
        let library = self.clone();
        let thread = std::thread::spawn(move || {
            kept.into_iter().rev().for_each(|(call, end)| library.carry_out(call, end));
        });
        thread.join().unwrap();
    }
}

// SAFETY: `carry_out` copies before it ends a call, and changes no memory that is written from.
unsafe impl LibraryDisk for Library {
    fn start(&self, call: LibraryCall, end: CallEnd) {
        let mut kept = self.kept.lock().unwrap();
        match &mut *kept {
            Some(kept) => kept.push((call, end)),
            None => self.carry_out(call, end),
        }
    }
}

pub fn a_library_is_a_disk(io: IoChoice) {
    let world = spawn(two(io));
    let library = Arc::new(Library { bytes: Mutex::new(vec![0; BYTES]), kept: Mutex::new(None) });
    let id = world.add_disk(DiskSource::Library(library.clone())).unwrap();
    let data = random_bytes(&mut Entropy::new([4; 32]), 300_000);
    let written = disk(&world, id, Step::Write(512, data.clone(), true)).unwrap();
    assert_eq!(written, (data.len() as u64).to_le_bytes());
    assert_eq!(disk(&world, id, Step::Read(512, data.len())).unwrap(), data);
    disk(&world, id, Step::Punch(512, 512)).unwrap();
    assert_eq!(disk(&world, id, Step::Read(512, 512)).unwrap(), vec![0; 512]);
    disk(&world, id, Step::Prefetch(0, 4096)).unwrap();
    assert_eq!(disk(&world, id, Step::NextData(1024)).unwrap()[..8], 1536u64.to_le_bytes());
    assert_eq!(disk(&world, id, Step::Sync), Err(libc::ESHUTDOWN));
    // Calls that the library ends later, the last first, when the shard sleeps.
    *library.kept.lock().unwrap() = Some(Vec::new());
    let (to, from) = channel();
    for at in 0..200u64 {
        world.post(ShardId(0), Msg::Disk(id, Step::Read(1024 + at * 512, 512), to.clone()));
    }
    while library.kept.lock().unwrap().as_ref().map(Vec::len) != Some(200) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(from.try_recv().is_err());
    // What is out ends on a disk that is taken away; what comes later does not begin.
    world.remove_disk(id);
    assert_eq!(disk(&world, id, Step::Sync), Err(libc::ENODEV));
    library.let_go();
    let mut read = vec![0; 200];
    for _ in 0..200 {
        let bytes = from.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
        let at = (0..200).find(|at| data[512 + at * 512..1024 + at * 512] == bytes).unwrap();
        read[at] += 1;
    }
    assert_eq!(read, vec![1; 200], "each call ends once");
    // One that is dropped without an end fails.
    *library.kept.lock().unwrap() = Some(Vec::new());
    let id = world.add_disk(DiskSource::Library(library.clone())).unwrap();
    let (to, from) = channel();
    world.post(ShardId(1), Msg::Disk(id, Step::Read(0, 512), to));
    while library.kept.lock().unwrap().as_ref().map(Vec::len) != Some(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(library.kept.lock().unwrap().take());
    assert_eq!(from.recv_timeout(Duration::from_secs(10)).unwrap(), Err(libc::ENOTCONN));
    end(world);
}
