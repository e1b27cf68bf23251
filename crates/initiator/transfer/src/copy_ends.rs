//! Source and destination of a copy or comparison: a remote volume, or a local file or device.
//!
//! Invariant: a destination begins as a [`UnopenedDestination`], which cannot be written to. [`UnopenedDestination::open_for_writing`]
//! makes it an [`CopyEnd`], and is called after the last check that could refuse.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use buf::{Payload, SgMut};
use client::{Geometry, Initiator, Io, IoId, Op, Span, VolumeHandle};
use rustix::fs::OFlags;
use volume::Epoch;

use crate::local_path::{self, FileKey, LocalPath};
use crate::reservation_names::{registrant_name, reservation_type_name};
use process::exit::Failure;
use recovery::{list, record, volume_identity};

/// Most bytes that are moved at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// One end.
#[derive(Debug)]
pub enum CopyEnd {
    /// A volume of another machine.
    Remote {
        /// Open.
        volume: VolumeHandle,
        /// What its target has told.
        geometry: Geometry,
    },
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

/// A destination that was looked at and not changed.
#[derive(Debug)]
pub enum UnopenedDestination {
    /// A volume of another machine.
    Remote {
        /// Open.
        volume: VolumeHandle,
        /// What its target has told.
        geometry: Geometry,
    },
    /// A path of this machine.
    Local(LocalPath),
}

/// A run of bytes that are data, or known to read as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRun {
    /// Where it ends.
    pub end: u64,
    /// Whether it must be read.
    pub is_data: bool,
}

fn error_with_path(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |why| Failure::failed(format!("{}: {why}", path.display()))
}

/// What tells a volume from another of the same name: its UUID, or its serial number.
fn volume_identity(initiator: &Initiator, volume: VolumeHandle) -> String {
    let info = initiator.info(volume);
    let uuid = info.as_ref().and_then(|info| info.uuid);
    uuid.map_or_else(|| info.map_or_else(String::new, |p| p.serial.clone()), |uuid| uuid.to_string())
}

/// Bytes that are moved at a time: no more than one command of the volume carries.
fn chunk_bytes_of(geometry: &Geometry) -> u64 {
    u64::from(geometry.max_io).clamp(geometry.logical.into(), CHUNK_BYTES.max(geometry.logical.into()))
}

/// Refuses to write to a volume that somebody uses, as far as can be told: by a reservation, or as a device of this
/// machine. Every verb that writes comes through here, unless it is forced.
pub fn refuse_volume_in_use(
    initiator: &mut Initiator,
    volume: VolumeHandle,
    name: &str,
) -> Result<(), Failure> {
    let (info, (_, shown)) = (initiator.info(volume), client::urls_of_name(name)?);
    let is_it = |found: &&list::FoundAttachment| {
        volume_identity::is_record_of(&found.record, info.as_deref(), &shown)
    };
    if let Some(found) = list::find_attachments(&record::record_dir(None))?.iter().find(is_it) {
        let why = format!(
            "the destination is attached here ({}): detach it first, or use --force",
            found.access_points_text()
        );
        return Err(Failure::usage(why));
    }
    let reservations = initiator.read_reservations(volume, name);
    let reservations = match reservations {
        // Who holds it by RESERVE(6) need not let others ask.
        Err(client::Error { failure: Some(client::Failure::Refused(client::Refusal::Conflict)), .. }) => {
            return Err(Failure::usage(
                "another host has reserved the destination: release it there first, or use --force",
            ));
        }
        other => other?,
    };
    for report in reservations {
        let Some(kind) = report.held else { continue };
        let mut others = report.registrations.iter().filter(|one| one.holds && !one.ours);
        let is_ours = report.registrations.iter().any(|one| one.holds && one.ours);
        let holder = match (others.next(), is_ours) {
            (None, true) => continue,
            (Some(one), _) => registrant_name(&one.identity),
            (None, false) => "a host that the target does not name".to_owned(),
        };
        let kind = reservation_type_name(kind);
        let why = format!("{holder} holds a reservation ({kind}) on the destination: release it first");
        return Err(Failure::usage(format!("{why}, or give --force")));
    }
    Ok(())
}

fn truncated_error(path: &Path) -> Failure {
    Failure::failed(format!("{} was truncated while it was being read", path.display()))
}

impl UnopenedDestination {
    /// Looks at what is to be written to. A URL is a volume, all else a path. `force`: also what is in use.
    pub fn inspect(
        initiator: &mut Initiator,
        name: &str,
        force: bool,
    ) -> Result<UnopenedDestination, Failure> {
        if !client::is_remote_volume_name(name) {
            let place = LocalPath::inspect(Path::new(name), force)?;
            if !place.is_seekable() {
                let why = format!("{name} is neither a file nor a block device: nothing can be copied to it");
                return Err(Failure::usage(why));
            }
            return Ok(UnopenedDestination::Local(place));
        }
        let volume = initiator.open(name)?;
        let geometry = initiator.known_geometry(volume)?;
        if initiator.is_read_only(volume) {
            return Err(Failure::usage("the destination is read-only for this host"));
        }
        if !force {
            refuse_volume_in_use(initiator, volume, name)?;
        }
        Ok(UnopenedDestination::Remote { volume, geometry })
    }

    /// Bytes that it has; `None`: it becomes as long as what comes.
    pub fn capacity(&self) -> Result<Option<u64>, Failure> {
        match self {
            UnopenedDestination::Remote { geometry, .. } => Ok(Some(geometry.capacity_bytes())),
            UnopenedDestination::Local(place) => place.capacity(),
        }
    }

    /// As [`CopyEnd::block_size`].
    pub fn block_size(&self) -> u64 {
        match self {
            UnopenedDestination::Remote { geometry, .. } => geometry.logical.into(),
            UnopenedDestination::Local(_) => 1,
        }
    }

    /// As [`CopyEnd::identity`]; `None`: nothing is there yet.
    pub fn identity(&self, initiator: &Initiator) -> Result<Option<String>, Failure> {
        match self {
            UnopenedDestination::Remote { volume, .. } => Ok(Some(volume_identity(initiator, *volume))),
            UnopenedDestination::Local(place) => place.identity(),
        }
    }

    /// As [`CopyEnd::file_key`].
    pub fn file_key(&self) -> Result<Option<FileKey>, Failure> {
        match self {
            UnopenedDestination::Remote { .. } => Ok(None),
            UnopenedDestination::Local(place) => place.file_key(),
        }
    }

    /// The file, if it is to be one, is there afterwards; what was there is as it was.
    pub fn create_file(&mut self) -> Result<(), Failure> {
        match self {
            UnopenedDestination::Remote { .. } => Ok(()),
            UnopenedDestination::Local(place) => place.create_file(),
        }
    }

    /// It is not written to after all.
    pub fn remove_created(self) {
        if let UnopenedDestination::Local(place) = self {
            place.remove_created();
        }
    }

    /// It is written to from now on. A regular file is made as long as what comes, and what it held is gone,
    /// unless an earlier copy is gone on with.
    pub fn open_for_writing(self, bytes: u64, goes_on: bool) -> Result<CopyEnd, Failure> {
        match self {
            UnopenedDestination::Remote { volume, geometry } => Ok(CopyEnd::Remote { volume, geometry }),
            UnopenedDestination::Local(place) => {
                let path = place.path().to_owned();
                let (file, is_fresh) =
                    if goes_on { (place.open_unchanged()?, false) } else { place.open_truncated(bytes)? };
                Ok(CopyEnd::File { file, path, is_fresh })
            }
        }
    }

    /// It as something to be compared, unchanged; `None`: nothing is there yet.
    pub fn open_for_comparing(&self) -> Result<Option<CopyEnd>, Failure> {
        match self {
            UnopenedDestination::Remote { volume, geometry } => {
                Ok(Some(CopyEnd::Remote { volume: *volume, geometry: *geometry }))
            }
            UnopenedDestination::Local(place) => Ok(place.reopen_for_reading()?.map(|file| {
                let path = place.path().to_owned();
                CopyEnd::File { file, path, is_fresh: false }
            })),
        }
    }
}

impl CopyEnd {
    /// Opens what is read from. A URL is a volume, all else a path.
    pub fn open_source(initiator: &mut Initiator, name: &str) -> Result<CopyEnd, Failure> {
        if client::is_remote_volume_name(name) {
            let volume = initiator.open(name)?;
            let geometry = initiator.known_geometry(volume)?;
            return Ok(CopyEnd::Remote { volume, geometry });
        }
        let path = PathBuf::from(name);
        // Not to wait for the one at a pipe's other end.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(error_with_path(&path))?;
        let meta = file.metadata().map_err(error_with_path(&path))?;
        if !meta.is_file() && !matches!(FileKey::of_metadata(&meta), FileKey::Device(_)) {
            return Err(Failure::usage(format!("{name} is neither a file nor a block device")));
        }
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|why| error_with_path(&path)(why.into()))?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)
            .map_err(|why| error_with_path(&path)(why.into()))?;
        Ok(CopyEnd::File { file, path, is_fresh: false })
    }

    /// Keeps what is read from being changed by who locks it; refuses what somebody writes.
    pub fn lock_shared(&self) -> Result<(), Failure> {
        match self {
            CopyEnd::Remote { .. } => Ok(()),
            CopyEnd::File { file, path, .. } => local_path::lock_source_shared(path, file),
        }
    }

    /// How many bytes it has.
    pub fn len_bytes(&self) -> Result<u64, Failure> {
        match self {
            CopyEnd::Remote { geometry, .. } => Ok(geometry.capacity_bytes()),
            CopyEnd::File { file, path, .. } => {
                let meta = file.metadata().map_err(error_with_path(path))?;
                match FileKey::of_metadata(&meta) {
                    FileKey::Device(_) => local_path::device_size(file).map_err(error_with_path(path)),
                    FileKey::File(..) => Ok(meta.len()),
                }
            }
        }
    }

    /// The least bytes that can be moved; everything must be a multiple of them.
    pub fn block_size(&self) -> u64 {
        match self {
            CopyEnd::Remote { geometry, .. } => geometry.logical.into(),
            CopyEnd::File { .. } => 1,
        }
    }

    /// Bytes that are moved at a time.
    pub fn chunk_bytes(&self) -> u64 {
        match self {
            CopyEnd::Remote { geometry, .. } => chunk_bytes_of(geometry),
            CopyEnd::File { .. } => CHUNK_BYTES,
        }
    }

    /// What tells this end from another of the same name.
    pub fn identity(&self, initiator: &Initiator) -> Result<String, Failure> {
        match self {
            CopyEnd::Remote { volume, .. } => Ok(volume_identity(initiator, *volume)),
            CopyEnd::File { file, path, .. } => {
                local_path::file_identity(file).map_err(error_with_path(path))
            }
        }
    }

    /// Which file or device of this machine it is.
    pub fn file_key(&self) -> Result<Option<FileKey>, Failure> {
        match self {
            CopyEnd::Remote { .. } => Ok(None),
            CopyEnd::File { file, path, .. } => {
                Ok(Some(FileKey::of_metadata(&file.metadata().map_err(error_with_path(path))?)))
            }
        }
    }

    /// Fails if a file has fewer bytes than it had when it was looked at: what is gone must not pass for a hole.
    pub fn refuse_truncated(&self, planned: u64) -> Result<(), Failure> {
        match self {
            CopyEnd::File { path, .. } if self.len_bytes()? < planned => Err(truncated_error(path)),
            CopyEnd::File { .. } | CopyEnd::Remote { .. } => Ok(()),
        }
    }

    /// What stands at an offset, and how far. `planned`: bytes that it had when it was looked at first.
    pub fn data_run_at(
        &self,
        initiator: &mut Initiator,
        at: u64,
        total: u64,
        planned: u64,
    ) -> Result<DataRun, Failure> {
        match self {
            CopyEnd::File { file, .. } => {
                use rustix::fs::{SeekFrom, seek};
                // Who cannot tell holes says that all is data.
                match seek(file, SeekFrom::Data(at)) {
                    Ok(data) if data > at => Ok(DataRun { end: data.min(total), is_data: false }),
                    Ok(_) => {
                        let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(total);
                        Ok(DataRun { end: hole.clamp(at + 1, total.max(at + 1)).min(total), is_data: true })
                    }
                    // Nothing but a hole follows, up to the file's end, which must be where it was.
                    Err(rustix::io::Errno::NXIO) => {
                        self.refuse_truncated(planned)?;
                        Ok(DataRun { end: total, is_data: false })
                    }
                    Err(_) => Ok(DataRun { end: total, is_data: true }),
                }
            }
            CopyEnd::Remote { volume, geometry } => {
                // Beyond its own end a volume tells nothing.
                let total = total.min(geometry.capacity_bytes()).max(at);
                // Only where deallocated blocks are known to read as zeroes can they be left unread.
                let len = (total - at).min(1 << 30);
                let extents = if geometry.thin && geometry.dealloc_reads_zero {
                    initiator.mapped_extents(*volume, at, len - len % u64::from(geometry.logical))?
                } else {
                    Vec::new()
                };
                // What is told of other blocks than those that were asked about says nothing of these.
                let begins_here =
                    |first: &&client::Extent| first.span.lba <= at / u64::from(geometry.logical);
                let Some(first) = extents.first().filter(begins_here) else {
                    return Ok(DataRun { end: at + len, is_data: true });
                };
                let end = first.span.end().unwrap_or(u64::MAX).saturating_mul(u64::from(geometry.logical));
                Ok(DataRun { end: end.clamp(at + 1, at + len), is_data: first.mapped })
            }
        }
    }

    /// Fills memory from an offset of a file of so many bytes; what lies beyond them is zero.
    pub fn read_file(&self, memory: &mut SgMut, at: u64, bytes: u64) -> Result<(), Failure> {
        let CopyEnd::File { file, path, .. } = self else { return Ok(()) };
        let (len, mut place) = (memory.len(), at);
        for part in memory.slices_mut(0..len) {
            // A file that is no multiple of the other end's blocks ends in zeroes.
            let there = bytes.saturating_sub(place).min(part.len() as u64) as usize;
            let (told, rest) = part.split_at_mut(there);
            file.read_exact_at(told, place).map_err(|why| match why.kind() {
                io::ErrorKind::UnexpectedEof => truncated_error(path),
                _ => error_with_path(path)(why),
            })?;
            rest.fill(0);
            place += part.len() as u64;
        }
        Ok(())
    }

    /// Writes memory to an offset of a file; what lies behind `total` is not written.
    pub fn write_file(&self, memory: &mut SgMut, at: u64, total: u64) -> Result<(), Failure> {
        let CopyEnd::File { file, path, .. } = self else { return Ok(()) };
        let (len, mut place) = (memory.len(), at);
        for part in memory.slices_mut(0..len) {
            let (part, _) = part.split_at(part.len().min(total.saturating_sub(place) as usize));
            file.write_all_at(part, place).map_err(error_with_path(path))?;
            place += part.len() as u64;
        }
        Ok(())
    }

    /// Makes zeroes of a stretch, giving its space back where that is possible.
    pub fn zero_file(&self, at: u64, len: u64) -> Result<(), Failure> {
        let CopyEnd::File { file, path, is_fresh } = self else { return Ok(()) };
        if *is_fresh {
            return Ok(());
        }
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(file, flags, at, len).is_ok() {
            return Ok(());
        }
        let zeroes = vec![0; len as usize];
        file.write_all_at(&zeroes, at).map_err(error_with_path(path))
    }

    /// What was written to a file or device, and is on its medium, is read from there next and not from this
    /// system's page cache. File systems that have no medium (tmpfs) keep it.
    pub fn drop_page_cache(&self) -> Result<(), Failure> {
        match self {
            CopyEnd::Remote { .. } => Ok(()),
            CopyEnd::File { file, path, .. } => {
                let advised = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
                advised.map_err(|why| error_with_path(path)(why.into()))
            }
        }
    }

    /// Makes everything stable.
    pub fn sync(&self, initiator: &mut Initiator) -> Result<(), Failure> {
        match self {
            CopyEnd::Remote { volume, .. } => Ok(initiator.flush(*volume)?),
            CopyEnd::File { file, path, .. } => file.sync_all().map_err(error_with_path(path)),
        }
    }

    /// Parts in good order.
    pub fn close_end(&self, initiator: &mut Initiator) -> Result<(), Failure> {
        match self {
            CopyEnd::Remote { volume, .. } => Ok(initiator.close(*volume)?),
            CopyEnd::File { .. } => Ok(()),
        }
    }
}

/// Starts an operation on a stretch of a remote volume; the volume has room, since copies keep few in work.
pub fn start_volume_operation(
    initiator: &mut Initiator,
    volume: VolumeHandle,
    what: impl FnOnce(Span) -> Op,
    (at, len): (u64, u64),
    payload: Payload,
) -> Result<IoId, Failure> {
    let block = u64::from(initiator.known_geometry(volume)?.logical);
    let op = what(Span { lba: at / block, blocks: len / block });
    let id = initiator.next_io_id();
    let io = Io { id, epoch: Epoch(0), op, payload };
    initiator.submit(volume, io).map_err(|_| Failure::failed("the volume is closed"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Data, a hole, data again: as thin images are.
    fn sparse(path: &Path) -> CopyEnd {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        file.write_all_at(&[7; 1 << 20], 6 << 20).unwrap();
        CopyEnd::File { file, path: path.to_owned(), is_fresh: false }
    }

    /// Whether anything of a file lies in this system's memory. A read that shall not wait does not tell: the kernel
    /// reads ahead for it.
    fn is_cached(path: &Path) -> bool {
        let shown = std::process::Command::new("fincore")
            .args(["--bytes", "--noheadings", "--output", "PAGES"])
            .arg(path)
            .output()
            .expect("fincore, of util-linux-extra");
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8_lossy(&shown.stdout).trim() != "0"
    }

    #[test]
    fn what_was_just_written_is_not_compared_with_the_memory_of_this_system() {
        const TMPFS: u64 = 0x0102_1994;
        let dir = tempfile::tempdir().unwrap();
        let end = sparse(&dir.path().join("disk"));
        let mut initiator = Initiator::new(client::Settings::default()).unwrap();
        end.sync(&mut initiator).unwrap();
        let CopyEnd::File { file, .. } = &end else { panic!("it is a file") };
        // There is nothing else where a file of memory could be read from.
        let is_memory = rustix::fs::fstatfs(file).unwrap().f_type as u64 == TMPFS;
        let is_forgotten = |_| {
            end.drop_page_cache().unwrap();
            !is_cached(&dir.path().join("disk"))
        };
        // What another processor has just put on its list of pages may need a second time.
        assert!(is_memory || (0..10).any(is_forgotten));
    }

    #[test]
    fn what_a_file_has_lost_while_it_is_read_is_no_hole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let (end, planned) = (sparse(&path), 8 << 20);
        let mut initiator = Initiator::new(client::Settings::default()).unwrap();
        assert!(end.data_run_at(&mut initiator, 0, planned, planned).unwrap().is_data);
        // Its tail is a hole as it should be.
        let tail = end.data_run_at(&mut initiator, 7 << 20, planned, planned).unwrap();
        assert_eq!(tail, DataRun { end: planned, is_data: false });
        end.refuse_truncated(planned).unwrap();
        // It ends behind where we are, and before what was planned.
        File::options().write(true).open(&path).unwrap().set_len(5 << 20).unwrap();
        let why = end.data_run_at(&mut initiator, 1 << 20, planned, planned).unwrap_err();
        assert!(why.message.contains("was truncated"), "{why}");
        assert!(end.refuse_truncated(planned).is_err());
    }
}
