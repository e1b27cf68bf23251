//! Opens the backing of a volume: the file or device, its size, alignment and identity.
//!
//! Invariant: one file or device is open in one volume only. It is locked (flock) against other processes.
//! Within this process it is compared by device and inode with all other volumes and legs, under any name. It
//! is synced before it is served: data of a killed daemon may still be in the page cache.

mod device;
mod file;
pub mod handed;
mod in_use;
mod known_uuid;
mod nbd;
mod open_ahead;
mod open_error;
mod probe;
mod ram;
mod rbd;
mod shared_names;
mod stripe;

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use backends::FileFacts;
use uuid::Uuid;
use volume::Geometry;

pub use device::device_identity;
use device::open_device;
use file::{is_zero_from, open_file, path_is_file};
pub use in_use::StorageInUse;
pub use known_uuid::{known_uuid, known_uuids};
pub use open_ahead::open_files_ahead;
use open_error::OpenErrorReason;
pub use open_error::VolumeOpenError;
pub use probe::{ProbeNeeds, ProbeResult};
pub use ram::map_ram;
pub use shared_names::volumes_of_one_name;

use crate::{
    remote::{self, ProbedRemote},
    state::{file_identity::FileIdentity, identity::Identities},
};
use config::{
    name::VolumeName,
    plan::{Volume, VolumeOrigin},
    spec::VolumeSource,
};
use process::log::area;
use process::random;

/// Instead of a leg's number: the whole volume.
const WHOLE_VOLUME: usize = 0;
/// Physical block of RAM volumes: a page, the unit in which memory is freed.
const RAM_PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// A volume that is open and ready to be served.
#[derive(Debug)]
pub struct Store {
    /// What was asked for.
    pub volume: Volume,
    /// Its identity.
    pub uuid: Uuid,
    /// Its size, bytes: a multiple of the block, not zero.
    pub bytes: u64,
    /// Physical block, bytes.
    pub physical: u32,
    /// Alignment of memory that direct I/O needs, bytes.
    pub memory_align: u32,
    /// Alignment of offsets and lengths that direct I/O needs, bytes.
    pub offset_align: u32,
    /// Space can be freed (holes can be punched).
    pub punch: bool,
    /// The open file or device; `None` for memory.
    pub file: Option<File>,
    /// The memfd of a RAM volume that can move.
    pub memory: Option<File>,
    /// The open image of Ceph.
    pub image: Option<::rbd::Image>,
    /// The place of an image that a group of gateways serves.
    pub slot: Option<::rbd::ImageSlot>,
    /// The open export of an NBD server.
    pub export: Option<nbd_disk::NbdDisk>,
    /// Identity of its file or device, to detect aliases.
    pub key: Option<FileIdentity>,
    /// How to reach a remote volume.
    pub remote: Option<ProbedRemote>,
    /// The legs of a stripe; empty for other volumes.
    pub legs: Vec<Store>,
    /// What opening it did to its file.
    pub made: CreatedFile,
    /// A sync of its file failed that no shard requested: data may be lost. The shards report this to hosts until the
    /// operator acknowledges it.
    pub in_doubt: bool,
    /// Its descriptor is that of the process from which this one takes over.
    pub is_handed: bool,
}

/// What opening a volume did to its file, to be undone if it is not served after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreatedFile {
    /// Nothing.
    Nothing,
    /// It did not exist before.
    File,
    /// It was shorter before: its former length in bytes.
    Growth(u64),
}

/// Whether a missing file may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreatePolicy {
    /// No: it existed before.
    Never,
    /// If it never existed before.
    First,
    /// Yes: the operator requests it.
    Asked,
}

impl CreatePolicy {
    fn allows(self, path: &Path, uuid: Option<Uuid>, identities: &Identities) -> bool {
        match self {
            CreatePolicy::Never => false,
            // For a volume with `uuid=`, earlier versions stored only the hosts' state.
            CreatePolicy::First => {
                !identities.has_path(path) && !uuid.is_some_and(|uuid| identities.has_records(uuid))
            }
            CreatePolicy::Asked => true,
        }
    }
}

impl Store {
    /// Opens `volume` beside `others`, and gives it its identity. What this call made of a file is undone if it fails.
    /// Other machines and disks are waited for as long as they take.
    pub fn open<'a>(
        volume: &Volume,
        identities: &mut Identities,
        others: impl Iterator<Item = &'a Store>,
    ) -> Result<Self, VolumeOpenError> {
        let probed = ProbeNeeds::for_known(volume, identities).run();
        Store::open_probed(volume, identities, &StorageInUse::of(others), probed)
    }

    /// The same, when other machines have been asked; asks none.
    pub fn open_probed(
        volume: &Volume,
        identities: &mut Identities,
        others: &StorageInUse,
        probed: ProbeResult,
    ) -> Result<Self, VolumeOpenError> {
        Store::identify(OpenedStore::reopen(volume, identities, others, probed)?, identities, others)
    }

    /// Gives a volume that was opened its identity beside `others`. If it is one of them, what opening it made is undone.
    pub fn identify(
        opened: OpenedStore,
        identities: &mut Identities,
        others: &StorageInUse,
    ) -> Result<Self, VolumeOpenError> {
        opened.assign_identity(identities, others).map_err(|refused| {
            let (why, opened) = *refused;
            opened.0.discard(identities);
            why
        })
    }

    /// A copy without files, to compare other volumes with.
    pub fn without_files(&self) -> Store {
        Store {
            volume: self.volume.clone(),
            uuid: self.uuid,
            bytes: self.bytes,
            physical: self.physical,
            memory_align: self.memory_align,
            offset_align: self.offset_align,
            punch: self.punch,
            file: None,
            memory: None,
            image: None,
            slot: self.slot.clone(),
            export: None,
            key: self.key.clone(),
            remote: None,
            legs: self.legs.iter().map(Store::without_files).collect(),
            made: self.made,
            in_doubt: self.in_doubt,
            is_handed: self.is_handed,
        }
    }

    /// A copy with its own descriptors, for work on the files while the original is in use.
    pub fn duplicate(&self) -> io::Result<Store> {
        let file = self.file.as_ref().map(File::try_clone).transpose()?;
        let legs = self.legs.iter().map(Store::duplicate).collect::<io::Result<_>>()?;
        let (image, export) = (self.image.clone(), self.export.clone());
        Ok(Store { file, image, export, legs, ..self.without_files() })
    }

    /// Syncs its file, or the files of its legs.
    pub fn sync(&mut self) -> io::Result<()> {
        #[cfg(test)]
        tests::wait_for_disk(self.volume.name.as_str());
        let own = self.file.as_ref().map_or(Ok(()), File::sync_data);
        self.in_doubt |= own.is_err();
        self.legs.iter_mut().map(Store::sync).fold(own, io::Result::and)
    }

    /// The operator has acknowledged that what is in its file, or its legs' files, may be lost.
    pub fn acknowledge_sync_failure(&mut self) {
        self.in_doubt = false;
        self.legs.iter_mut().for_each(Store::acknowledge_sync_failure);
    }

    /// Its image of Ceph, if it has one now.
    pub fn image_now(&self) -> Option<::rbd::Image> {
        self.image.clone().or_else(|| self.slot.as_ref()?.image())
    }

    /// Its UUID, and those of its legs.
    fn uuids(&self) -> impl Iterator<Item = Uuid> {
        std::iter::once(self.uuid).chain(self.legs.iter().map(|leg| leg.uuid))
    }

    /// What it stands on: itself, or its legs.
    pub fn legs_or_self(&self) -> &[Store] {
        if self.legs.is_empty() { std::slice::from_ref(self) } else { &self.legs }
    }

    /// Finds out which volume it is, and has that known from now on: a whole one, or a leg by its number.
    fn assign_identity(&mut self, leg: usize, identities: &mut Identities) -> Result<(), OpenErrorReason> {
        if let Some(remote) = &mut self.remote {
            identities.set_remote_identity(&self.volume.name, leg, &remote.expected);
            let nexus =
                identities.nexus_number(&self.volume.name, leg).map_err(OpenErrorReason::NoRandomness)?;
            remote.set_nexus_number(nexus);
        }
        self.uuid = self.resolve_identity(identities)?;
        Ok(())
    }

    fn resolve_identity(&self, identities: &mut Identities) -> Result<Uuid, OpenErrorReason> {
        Ok(match (self.volume.spec.uuid, &self.key, self.volume.spec.source.path()) {
            // What is kept of it tells that the file was there, and is its own again without `uuid=`.
            (Some(uuid), Some(key @ FileIdentity::File { .. }), Some(path)) => {
                identities.uuid_for(key, path, random_uuid()?);
                uuid
            }
            (Some(uuid), _, _) => uuid,
            // Nothing but its place tells which export it is.
            (None, Some(key @ FileIdentity::Export { .. }), _) => {
                let place = PathBuf::from(self.volume.spec.source.display_location().unwrap_or_default());
                identities.uuid_for(key, &place, random_uuid()?)
            }
            (None, Some(key), Some(path)) => identities.uuid_for(key, path, random_uuid()?),
            // As hosts know it.
            (None, None, _) if self.memory.is_some() && self.is_handed => self.uuid,
            (None, _, _) => {
                let elsewhere = self.remote.as_ref().and_then(|remote| remote.uuid);
                match elsewhere.or_else(|| self.key.as_ref().and_then(rbd::uuid_of)) {
                    Some(uuid) => uuid,
                    None => random_uuid()?,
                }
            }
        })
    }

    /// What the system says of its file or device.
    pub fn file_facts(&self) -> FileFacts {
        let spec = &self.volume.spec;
        FileFacts {
            bytes: self.bytes,
            device: matches!(spec.source, VolumeSource::Device(_)),
            logical: spec.block,
            physical: Some(self.physical),
            preferred: 0,
            direct: spec.direct,
            memory_align: self.memory_align,
            offset_align: self.offset_align,
            punch: spec.thin && self.punch,
            write_cache: spec.cache,
            // Its cache is off, or every write is made stable by its server.
            write_through: matches!(spec.source, VolumeSource::Rbd(_) | VolumeSource::Nbd(_)),
        }
    }

    /// How long an operation may be with the backing, if that may be out of reach: for a stripe, the longest of its legs.
    pub fn queue_timeout(&self) -> Option<Duration> {
        let of = |part: &Store| match &part.volume.spec.source {
            VolumeSource::Rbd(image) => Some(image.queue_timeout),
            VolumeSource::Nbd(export) => Some(export.queue_timeout),
            _ => None,
        };
        self.legs_or_self().iter().filter_map(of).max()
    }

    /// Whether it holds nothing of an earlier life: it is memory, or its file was made now.
    pub fn is_new(&self) -> bool {
        match &self.volume.spec.source {
            VolumeSource::Ram | VolumeSource::Null => !self.is_handed,
            VolumeSource::File(_) => self.made == CreatedFile::File,
            VolumeSource::Stripe(_) => !self.legs.is_empty() && self.legs.iter().all(Store::is_new),
            VolumeSource::Device(_) | VolumeSource::Remote(_) => false,
            VolumeSource::Rbd(_) | VolumeSource::Nbd(_) => false,
        }
    }

    /// Undoes what was made of a file that will not be served after all. A file that is removed was never there: the
    /// identities, which the caller saves, have it no longer.
    pub fn discard(self, identities: &mut Identities) {
        self.undo_file_creation().iter().for_each(|(key, path)| identities.remove_created(key, path));
    }

    /// Undoes what was made of its files, as long as their disks take; gives those that were removed, which have to be
    /// forgotten before this store, and with it their numbers, goes. What holds data by now stays: a host may have
    /// written it.
    pub fn undo_file_creation(&self) -> Vec<(FileIdentity, PathBuf)> {
        #[cfg(test)]
        tests::wait_for_disk(&format!("{} undone", self.volume.name));
        let mut removed: Vec<_> = self.legs.iter().flat_map(Store::undo_file_creation).collect();
        match (self.made, self.volume.spec.source.path(), &self.file) {
            (CreatedFile::File, Some(path), Some(file))
                if is_zero_from(file, 0) && path_is_file(path, file) =>
            {
                if let (Ok(()), Some(key)) = (std::fs::remove_file(path), &self.key) {
                    removed.push((key.clone(), path.to_owned()));
                }
            }
            (CreatedFile::Growth(from), _, Some(file)) if is_zero_from(file, from) => {
                drop(file.set_len(from))
            }
            (CreatedFile::Nothing | CreatedFile::File | CreatedFile::Growth(_), ..) => {}
        }
        removed
    }

    /// The length of its file, with what fills no block; `None`: it is not on a file.
    pub fn file_len(&self) -> io::Result<Option<u64>> {
        match (&self.file, &self.volume.spec.source) {
            (Some(file), VolumeSource::File(_)) => Ok(Some(file.metadata()?.len())),
            _ => Ok(None),
        }
    }

    /// Undoes [`Store::set_len`] that made it larger: the file has its length of before, and what is behind its last
    /// block.
    pub fn undo_growth(&mut self, bytes: u64, file_len: Option<u64>) {
        if let (Some(file), Some(len)) = (&self.file, file_len)
            && file.metadata().is_ok_and(|meta| meta.len() > len && meta.len() == self.bytes)
        {
            let _ = file.set_len(len);
        }
        self.bytes = bytes;
    }

    /// Changes the size of the volume, and of its file. The new size must be a multiple of the block and not zero. Where
    /// it is not smaller, nothing is cut off: a file may have more than its volume.
    pub fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        let is_there = bytes >= self.bytes && self.file_len()?.is_some_and(|len| len >= bytes);
        if let (Some(file), VolumeSource::File(_), false) = (&self.file, &self.volume.spec.source, is_there) {
            file.set_len(bytes)?;
            // By a descriptor of its own, which is told of a failure besides the shards', not in their stead.
            let own = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            own.as_ref().unwrap_or(file).sync_all().inspect_err(|_| self.in_doubt = true)?;
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// A volume whose files are open, of which it is still to be settled which volume it is. Opening may wait for a disk;
/// nothing else does.
#[derive(Debug)]
pub struct OpenedStore(Store);

impl OpenedStore {
    /// Opens `volume` beside `others`. What this call made of a file is undone if it fails. A file is made only for a
    /// volume of the configuration, and only where none was found before: one that is missing later is a file system
    /// that is not mounted, or a loss.
    pub fn reopen(
        volume: &Volume,
        identities: &Identities,
        others: &StorageInUse,
        probed: ProbeResult,
    ) -> Result<Self, VolumeOpenError> {
        let making = match volume.origin {
            VolumeOrigin::Configured => CreatePolicy::First,
            VolumeOrigin::Created => CreatePolicy::Never,
        };
        OpenedStore::open(volume, making, identities, others, probed)
    }

    /// The same at the word of the operator, who wants the file to be made if there is none.
    pub fn open_or_create(
        volume: &Volume,
        identities: &Identities,
        others: &StorageInUse,
        probed: ProbeResult,
    ) -> Result<Self, VolumeOpenError> {
        OpenedStore::open(volume, CreatePolicy::Asked, identities, others, probed)
    }

    fn open(
        volume: &Volume,
        making: CreatePolicy,
        identities: &Identities,
        others: &StorageInUse,
        mut probed: ProbeResult,
    ) -> Result<Self, VolumeOpenError> {
        let probed = &mut probed;
        let opened = match &volume.spec.source {
            VolumeSource::Stripe(striped) => {
                stripe::open_legs(volume, (striped, making), identities, others, probed)
            }
            _ => open_single(volume, (WHOLE_VOLUME, making), identities, &|key| others.holder(key), probed),
        };
        opened.map(OpenedStore).map_err(|why| VolumeOpenError { volume: volume.name.clone(), why })
    }

    /// Gives it its identity beside `others`, which are those of now. If it is one of them, or one of its legs is
    /// another, it comes back with the reason, for its files are still to be undone and closed.
    pub fn assign_identity(
        mut self,
        identities: &mut Identities,
        others: &StorageInUse,
    ) -> Result<Store, Box<(VolumeOpenError, OpenedStore)>> {
        let store = &mut self.0;
        let identified = match &store.volume.spec.source {
            VolumeSource::Stripe(striped) => {
                let chunk = striped.chunk;
                stripe::assign_identities(store, chunk, identities)
            }
            _ => store.assign_identity(WHOLE_VOLUME, identities),
        };
        let alone = identified.and_then(|()| others.conflict_with(store).map_or(Ok(()), Err));
        match alone {
            Ok(()) => Ok(self.0),
            Err(why) => Err(Box::new((VolumeOpenError { volume: self.0.volume.name.clone(), why }, self))),
        }
    }

    /// It, to compare others with.
    pub fn store(&self) -> &Store {
        &self.0
    }

    /// The store of what is not to be served: to be undone.
    pub fn into_store(self) -> Store {
        self.0
    }
}

/// The open volume that stands on a file or device.
type FindHolder<'a> = &'a dyn Fn(&FileIdentity) -> Option<VolumeName>;

/// Opens what is no stripe: a whole volume, or a leg by its number.
fn open_single(
    volume: &Volume,
    (leg, making): (usize, CreatePolicy),
    identities: &Identities,
    holder: FindHolder<'_>,
    probed: &mut ProbeResult,
) -> Result<Store, OpenErrorReason> {
    let mut store = match &volume.spec.source {
        VolumeSource::Ram if leg == WHOLE_VOLUME => ram::open_ram(volume)?,
        VolumeSource::Ram | VolumeSource::Null => ram_store(volume),
        VolumeSource::Remote(urls) => remote_store(volume, leg, urls, identities, probed)?,
        VolumeSource::File(path) => {
            let may_make = making.allows(path, volume.spec.uuid, identities);
            open_file(volume, path, may_make, holder)?
        }
        VolumeSource::Device(path) => open_device(volume, path, holder)?,
        VolumeSource::Rbd(of) => rbd::image(volume, of, holder)?,
        VolumeSource::Nbd(of) => nbd::export(volume, (leg, of), holder, probed)?,
        VolumeSource::Stripe(_) => return Err(OpenErrorReason::Nested),
    };
    // Who serves it still is to be told of what fails, which a descriptor tells once. What it knows comes with its state.
    if !store.is_handed
        && let Err(why) = store.sync()
    {
        let (volume, place) = (&volume.name, volume.spec.source.display_location().unwrap_or_default());
        tracing::error!(
            target: area::VOLUME,
            %volume, %place, %why,
            "a sync failed: recent writes may be lost. The volume can be read; writes are refused until you run \
             `blockwire volume retry`"
        );
    }
    Ok(store)
}

/// A random UUID (RFC 9562 §5.4).
fn random_uuid() -> Result<Uuid, OpenErrorReason> {
    let bytes = random::random_bytes().map_err(OpenErrorReason::NoRandomness)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

fn ram_store(volume: &Volume) -> Store {
    let spec = &volume.spec;
    Store {
        volume: volume.clone(),
        uuid: Uuid::nil(),
        bytes: spec.size.unwrap_or(0),
        physical: spec.physical.unwrap_or(RAM_PHYSICAL_BLOCK_BYTES.max(spec.block)),
        memory_align: 1,
        offset_align: spec.block,
        punch: true,
        file: None,
        memory: None,
        image: None,
        slot: None,
        export: None,
        key: None,
        remote: None,
        legs: Vec::new(),
        made: CreatedFile::Nothing,
        in_doubt: false,
        is_handed: false,
    }
}

/// A volume without a file of its own, whose blocks are like this.
fn store_with_geometry(volume: &Volume, geometry: &Geometry) -> Store {
    let mut store = ram_store(volume);
    let spec = &mut store.volume.spec;
    (spec.block, spec.thin, spec.cache) = (geometry.logical, geometry.thin, geometry.write_cache);
    let (bytes, physical) = (geometry.capacity_bytes(), geometry.physical);
    Store { bytes, physical, offset_align: geometry.logical, punch: geometry.thin, ..store }
}

/// A volume of another machine is as it is there, and the one that it was at an earlier start.
fn remote_store(
    volume: &Volume,
    leg: usize,
    urls: &str,
    identities: &Identities,
    probed: &mut ProbeResult,
) -> Result<Store, OpenErrorReason> {
    let remote = probed
        .take_remote(leg, urls, identities.remote_identity(&volume.name, leg).as_ref())
        .map_err(|why| match why {
            remote::RemoteError::Unusable(why) => OpenErrorReason::Remote(why),
            remote::RemoteError::Absent(why) => OpenErrorReason::Absent(why),
            remote::RemoteError::Replaced(stranger) => OpenErrorReason::Replaced(
                volume.spec.source.display_location().unwrap_or_default(),
                volume.name.clone(),
                stranger,
            ),
        })?;
    if remote.uuid.is_none() && volume.spec.uuid.is_none() {
        let place = volume.spec.source.display_location().unwrap_or_default();
        return Err(OpenErrorReason::Remote(format!(
            "{place}: the target reports no UUID for the volume; set one with uuid="
        )));
    }
    let store = store_with_geometry(volume, &remote.geometry);
    Ok(Store { remote: Some(remote), ..store })
}

#[cfg(test)]
pub(crate) mod tests;
