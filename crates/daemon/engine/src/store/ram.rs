//! The memory of RAM volumes: of this process alone, or in a memfd that another process can go on with.

use std::{fs::File, io, os::fd::AsFd};

use buf::Region;
use rustix::fs::{MemfdFlags, SealFlags};
use volume::{RamDisk, movable_ram_len};

use super::{
    Store, handed,
    open_error::{HandOverMismatch, OpenErrorReason},
    ram_store,
};
use config::plan::Volume;

/// How far a RAM volume can grow: to twice its size, or by this many bytes if that is more. Only
/// address space and one bit per 4 KiB are set aside for it.
const RAM_GROWTH_BYTES: u64 = 64 << 30;
/// Largest RAM volume, also after it grew: more than a machine has, and few enough granules to keep
/// a bit for each.
const RAM_BYTES_MAX: u64 = 16 << 40;

/// To how many bytes it can grow; `None`: it is too large already.
fn growth_limit(bytes: u64) -> Option<u64> {
    let limit = bytes.saturating_add(bytes.max(RAM_GROWTH_BYTES)).min(RAM_BYTES_MAX);
    (bytes <= RAM_BYTES_MAX).then_some(limit)
}

/// A RAM volume. One that the process before has served goes on with its memory.
pub(super) fn open_ram(volume: &Volume) -> Result<Store, OpenErrorReason> {
    let store = ram_store(volume);
    let failed = |what| move |why| OpenErrorReason::HandOver(HandOverMismatch::Memory(what, why));
    if let Some((uuid, memory)) = handed::memory_of(&volume.name) {
        let disk = map_handed(&memory).map_err(failed("go on with"))?;
        let geometry = disk.geometry();
        if geometry.logical != volume.spec.block {
            return Err(OpenErrorReason::HandOver(HandOverMismatch::OtherBlocks(geometry.logical)));
        }
        let (bytes, physical) = (geometry.capacity_bytes(), geometry.physical);
        return Ok(Store { uuid, bytes, physical, memory: Some(memory), is_handed: true, ..store });
    }
    if !volume.spec.movable {
        return Ok(store);
    }
    let limit = growth_limit(store.bytes).map(|bytes| bytes / u64::from(volume.spec.block));
    let len = limit.and_then(|blocks| movable_ram_len(blocks, volume.spec.block, store.physical));
    let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "at most 16 TiB");
    let memory = len.ok_or_else(too_large).and_then(create_memfd).map_err(failed("make"))?;
    Ok(Store { memory: Some(memory), ..store })
}

/// Memory that nobody can make shorter: to touch what was cut off would end the process.
fn create_memfd(len: u64) -> io::Result<File> {
    let made = rustix::fs::memfd_create("blockwire-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let memory = File::from(made);
    memory.set_len(len)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

fn map_handed(memory: &File) -> io::Result<RamDisk> {
    RamDisk::reopen(Region::map_memfd(memory.as_fd())?).map_err(io::Error::other)
}

/// The memory of a RAM volume, for the shards, and as much address space to grow as there is. What was handed over is
/// looked at only now, when the process before has come to rest.
pub fn map_ram(store: &Store) -> Result<RamDisk, String> {
    let block = store.volume.spec.block;
    let none = || "not enough address space for that much memory (at most 16 TiB)".to_owned();
    let now = store.bytes / u64::from(block);
    let limit = growth_limit(store.bytes).ok_or_else(none)?;
    match &store.memory {
        Some(memory) if store.is_handed => map_handed(memory).map_err(|why| why.to_string()),
        Some(memory) => {
            let region = Region::map_memfd(memory.as_fd()).map_err(|why| why.to_string())?;
            let most = limit / u64::from(block);
            RamDisk::movable(region, (now, most), block, store.physical).ok_or_else(none)
        }
        None => {
            let make = |bytes: u64| RamDisk::try_new(now, bytes / u64::from(block), block, store.physical);
            make(limit).or_else(|| make(store.bytes)).ok_or_else(none)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::identity::Identities;
    use config::{name::VolumeName, plan::VolumeOrigin, spec};
    use std::os::unix::fs::MetadataExt;

    fn open(text: &str) -> Store {
        let (name, spec) = (VolumeName::parse("fast").unwrap(), spec::parse(text).unwrap());
        let volume = Volume { name, spec, origin: VolumeOrigin::Configured };
        Store::open(&volume, &mut Identities::default(), [].iter()).unwrap()
    }

    #[test]
    fn only_a_volume_that_is_to_move_lies_in_a_memfd() {
        assert!(open("ram:4M").memory.is_none());
        let store = open("ram:4M,movable");
        let memory = store.memory.as_ref().unwrap();
        assert_eq!(memory.metadata().unwrap().blocks(), 0, "it takes memory when it is written");
        assert!(memory.set_len(4096).is_err(), "nobody can shorten it");
        let disk = map_ram(&store).unwrap();
        assert_eq!(disk.geometry().capacity_bytes(), 4 << 20);
        assert!(disk.resize((8 << 20) / 512));
        // As the process that takes over finds it.
        let handed = Store { is_handed: true, ..open("ram:4M,movable") };
        let handed = Store { memory: Some(memory.try_clone().unwrap()), ..handed };
        assert_eq!(map_ram(&handed).unwrap().geometry().capacity_bytes(), 8 << 20);
    }
}
