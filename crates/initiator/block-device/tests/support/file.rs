//! A volume in a file that stays unchanged when the process ends; every operation completes at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use blockwire_block_device::Disk;
use buf::{MemoryClass, Payload, Pool, SgMut, Time};
use rustix::event::{EventfdFlags, eventfd};
use volume::{Fault, Geometry, Io, IoCompletion, Op, Outcome, Span};

pub struct FileVolume {
    file: File,
    geometry: Geometry,
    pool: Pool,
    done: VecDeque<IoCompletion>,
    wake: OwnedFd,
}

impl FileVolume {
    pub fn open(path: &str, logical: u32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let geometry = Geometry {
            blocks: file.metadata()?.len() / u64::from(logical),
            logical,
            physical: 4096,
            dio_align: logical,
            max_io: 1 << 20,
            thin: true,
            write_cache: true,
            atomic: 1,
            atomic_powerfail: 1,
            caw_max: 1,
            dealloc_reads_zero: true,
            lends: false,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(FileVolume { file, geometry, pool: Pool::new(128 << 20), done: VecDeque::new(), wake })
    }

    fn at(&self, span: Span) -> u64 {
        span.lba * u64::from(self.geometry.logical)
    }

    fn carry_out(&self, op: &Op, payload: &mut Payload) -> io::Result<Outcome> {
        match (op, payload) {
            (Op::Read(span), Payload::In(into)) => {
                let (mut at, len) = (self.at(*span), into.len());
                for slice in into.slices_mut(0..len) {
                    self.file.read_exact_at(slice, at)?;
                    at += slice.len() as u64;
                }
            }
            (Op::Write(span, durability), Payload::Out(from)) => {
                let mut bytes = vec![0; from.len()];
                from.copy_to(0, &mut bytes);
                self.file.write_all_at(&bytes, self.at(*span))?;
                if *durability == volume::Durability::Stable {
                    self.file.sync_data()?;
                }
            }
            (Op::WriteZeroes { span, .. }, _) => self.zero(*span)?,
            (Op::Unmap(spans), _) => spans.iter().try_for_each(|span| self.zero(*span))?,
            (Op::Flush, _) => self.file.sync_data()?,
            (Op::Prefetch(_), _) => {}
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(Outcome::Complete)
    }

    fn zero(&self, span: Span) -> io::Result<()> {
        let zeroes = vec![0; 1 << 20];
        let (mut at, end) = (self.at(span), self.at(Span { lba: span.lba + span.blocks, blocks: 0 }));
        while at < end {
            let now = (end - at).min(zeroes.len() as u64);
            self.file.write_all_at(&zeroes[..now as usize], at)?;
            at += now;
        }
        Ok(())
    }
}

impl Disk for FileVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn alloc_payload(&mut self, len: usize) -> Option<SgMut> {
        self.pool.take_sg(MemoryClass::Solicited, len)
    }

    fn submit(&mut self, io: Io) {
        let Io { id, op, mut payload, .. } = io;
        let result = self.carry_out(&op, &mut payload).map_err(|_| Fault::Internal.into());
        self.done.push_back(IoCompletion { id, result, payload });
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }

    fn has_geometry_changed(&mut self) -> bool {
        false
    }

    fn drive(&mut self, _wait: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn wake_source(&self) -> (BorrowedFd<'_>, Option<Time>) {
        (self.wake.as_fd(), None)
    }
}
