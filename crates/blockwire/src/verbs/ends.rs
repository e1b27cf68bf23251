//! The ends of a copy or a comparison: a remote volume, or a file or device of this machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use buf::{Payload, SgMut};
use initiator::{Handle, Initiator, Io, IoId, Op, Span};
use volume::{Epoch, Geometry};

use crate::exit::Failure;

/// Most bytes that are moved at a time.
const STRETCH: u64 = 1 << 20;

/// One end.
#[derive(Debug)]
pub enum End {
    /// A volume of another machine.
    Remote(Handle),
    /// A file, or a block device.
    File {
        /// Open.
        file: File,
        /// For messages.
        path: PathBuf,
        /// It was created or emptied by us: what is not written there is zero.
        is_fresh: bool,
    },
}

/// A run of bytes that are data, or known to read as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it ends.
    pub end: u64,
    /// Whether it must be read.
    pub is_data: bool,
}

fn named(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |why| Failure::failed(format!("{}: {why}", path.display()))
}

impl End {
    /// Opens what is read from. A URL is a volume, all else a path.
    pub fn source(initiator: &mut Initiator, name: &str) -> Result<End, Failure> {
        if initiator::is_volume(name) {
            return Ok(End::Remote(initiator.open(name)?));
        }
        let path = PathBuf::from(name);
        let file = File::open(&path).map_err(named(&path))?;
        Ok(End::File { file, path, is_fresh: false })
    }

    /// Opens what is written to. A regular file is made as long as what comes; what it held is gone, unless
    /// an earlier copy is gone on with.
    pub fn destination(
        initiator: &mut Initiator,
        name: &str,
        bytes: u64,
        resumes: bool,
    ) -> Result<End, Failure> {
        if initiator::is_volume(name) {
            return Ok(End::Remote(initiator.open(name)?));
        }
        let path = PathBuf::from(name);
        let is_there = path.metadata().is_ok_and(|meta| !meta.is_file());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(!is_there);
        let file = options.open(&path).map_err(named(&path))?;
        let is_regular = file.metadata().map_err(named(&path))?.is_file();
        if is_regular && !resumes {
            file.set_len(0).map_err(named(&path))?;
        }
        if is_regular {
            file.set_len(bytes).map_err(named(&path))?;
        }
        Ok(End::File { file, path, is_fresh: is_regular })
    }

    /// How many bytes it has.
    pub fn bytes(&self, initiator: &Initiator) -> Result<u64, Failure> {
        match self {
            End::Remote(volume) => Ok(known(initiator, *volume)?.bytes()),
            End::File { file, path, .. } => {
                let meta = file.metadata().map_err(named(path))?;
                if meta.file_type().is_block_device() {
                    // A device has no length of its own: its end is where seeking ends.
                    return rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
                        .map_err(|why| named(path)(why.into()));
                }
                Ok(meta.size())
            }
        }
    }

    /// Bytes that can be moved at least, and multiples of which everything must be.
    pub fn block(&self, initiator: &Initiator) -> u64 {
        match self {
            End::Remote(volume) => {
                initiator.geometry(*volume).map_or(512, |geometry| geometry.logical.into())
            }
            End::File { .. } => 1,
        }
    }

    /// Bytes that are moved at a time: no more than one command of a volume carries.
    pub fn stretch(&self, initiator: &Initiator) -> u64 {
        match self {
            End::Remote(volume) => {
                let room = initiator.geometry(*volume).map_or(STRETCH, |geometry| geometry.max_io.into());
                room.clamp(self.block(initiator), STRETCH)
            }
            End::File { .. } => STRETCH,
        }
    }

    /// What tells this end from another of the same name: a volume's UUID, a file's device and inode.
    pub fn identity(&self, initiator: &Initiator) -> String {
        match self {
            End::Remote(volume) => {
                let portrait = initiator.portrait(*volume);
                let uuid = portrait.as_ref().and_then(|portrait| portrait.uuid);
                uuid.map_or_else(
                    || portrait.map_or_else(String::new, |p| p.serial.clone()),
                    |uuid| uuid.to_string(),
                )
            }
            End::File { file, .. } => file
                .metadata()
                .map_or_else(|_| String::new(), |meta| format!("{}:{}", meta.dev(), meta.ino())),
        }
    }

    /// What stands at an offset, and how far.
    pub fn run(&self, initiator: &mut Initiator, at: u64, total: u64) -> Result<Run, Failure> {
        match self {
            End::File { file, .. } => {
                use rustix::fs::{SeekFrom, seek};
                // Who cannot tell holes says that all is data.
                match seek(file, SeekFrom::Data(at)) {
                    Ok(data) if data > at => Ok(Run { end: data.min(total), is_data: false }),
                    Ok(_) => {
                        let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(total);
                        Ok(Run { end: hole.clamp(at + 1, total.max(at + 1)).min(total), is_data: true })
                    }
                    Err(rustix::io::Errno::NXIO) => Ok(Run { end: total, is_data: false }),
                    Err(_) => Ok(Run { end: total, is_data: true }),
                }
            }
            End::Remote(volume) => {
                let geometry =
                    initiator.geometry(*volume).ok_or_else(|| Failure::failed("the volume has gone"))?;
                // Only where deallocated blocks are known to read as zeroes can they be left unread.
                let len = (total - at).min(1 << 30);
                let extents = if geometry.thin && geometry.dealloc_reads_zero {
                    initiator.extents(*volume, at, len - len % u64::from(geometry.logical))?
                } else {
                    Vec::new()
                };
                let Some(first) = extents.first() else { return Ok(Run { end: at + len, is_data: true }) };
                let end = first.span.end().unwrap_or(u64::MAX).saturating_mul(u64::from(geometry.logical));
                Ok(Run { end: end.clamp(at + 1, at + len), is_data: first.mapped })
            }
        }
    }

    /// Fills memory from an offset of a file.
    pub fn read_file(&self, memory: &mut SgMut, at: u64) -> Result<(), Failure> {
        let End::File { file, path, .. } = self else { return Ok(()) };
        let (len, mut place) = (memory.len(), at);
        for part in memory.slices_mut(0..len) {
            // A file that is no multiple of the other end's blocks ends in zeroes.
            let mut had = 0;
            while had < part.len() {
                match file.read_at(&mut part[had..], place + had as u64).map_err(named(path))? {
                    0 => {
                        part[had..].fill(0);
                        break;
                    }
                    more => had += more,
                }
            }
            place += part.len() as u64;
        }
        Ok(())
    }

    /// Writes memory to an offset of a file; what lies behind `total` is not written.
    pub fn write_file(&self, memory: &mut SgMut, at: u64, total: u64) -> Result<(), Failure> {
        let End::File { file, path, .. } = self else { return Ok(()) };
        let (len, mut place) = (memory.len(), at);
        for part in memory.slices_mut(0..len) {
            let part = &part[..part.len().min(total.saturating_sub(place) as usize)];
            file.write_all_at(part, place).map_err(named(path))?;
            place += part.len() as u64;
        }
        Ok(())
    }

    /// Makes zeroes of a stretch, giving its space back where that is possible.
    pub fn zero_file(&self, at: u64, len: u64) -> Result<(), Failure> {
        let End::File { file, path, is_fresh } = self else { return Ok(()) };
        if *is_fresh {
            return Ok(());
        }
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(file, flags, at, len).is_ok() {
            return Ok(());
        }
        let zeroes = vec![0; len as usize];
        file.write_all_at(&zeroes, at).map_err(named(path))
    }

    /// Makes everything stable.
    pub fn settle(&self, initiator: &mut Initiator) -> Result<(), Failure> {
        match self {
            End::Remote(volume) => Ok(initiator.flush(*volume)?),
            End::File { file, path, .. } => file.sync_all().map_err(named(path)),
        }
    }

    /// Parts in good order.
    pub fn close(&self, initiator: &mut Initiator) -> Result<(), Failure> {
        match self {
            End::Remote(volume) => Ok(initiator.close(*volume)?),
            End::File { .. } => Ok(()),
        }
    }
}

/// What a volume's blocks are like. What is not known is no volume of no bytes.
pub fn known(initiator: &Initiator, volume: Handle) -> Result<Geometry, Failure> {
    initiator.geometry(volume).ok_or_else(|| Failure::failed("the volume has gone; try again"))
}

/// Starts an operation on a stretch of a remote volume; the volume has room, since copies keep few in work.
pub fn start(
    initiator: &mut Initiator,
    volume: Handle,
    what: impl FnOnce(Span) -> Op,
    (at, len): (u64, u64),
    payload: Payload,
) -> Result<IoId, Failure> {
    let block = u64::from(known(initiator, volume)?.logical);
    let op = what(Span { lba: at / block, blocks: len / block });
    let id = initiator.fresh_id();
    let io = Io { id, epoch: Epoch(0), op, payload };
    initiator
        .submit(volume, io)
        .map_err(|_| Failure::failed("the volume takes no more operations: it has gone"))?;
    Ok(id)
}

/// Whether all of it is zero.
pub fn is_zero(memory: &mut SgMut) -> bool {
    let len = memory.len();
    memory.slices_mut(0..len).all(|part| {
        let words = part.chunks_exact(8);
        let rest = words.remainder();
        rest.iter().all(|byte| *byte == 0) && words.into_iter().all(|word| word == [0; 8])
    })
}
