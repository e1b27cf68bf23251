//! Resizing of volumes while the daemon runs.
//!
//! Invariant: hosts never see blocks that do not exist, and a size that hosts may know stays. The file is changed through
//! its own descriptors, so that only this request waits for the disk.

use super::{Volumes, refused, volumes::was_not_begun};
use crate::store::Store;
use config::{size, spec::Source};
use control::{Code, Refused, report::VolumeReport};

impl Volumes {
    pub(super) fn resize(&self, name: &str, bytes: u64, shrink: bool) -> Result<VolumeReport, Refused> {
        let _held = self.lock_name(name, "resized")?;
        self.served().volume(name)?;
        let Some(mut twin) = self.twin(name)? else { return Err(Refused::new(Code::NotFound, name)) };
        may_become(&twin, bytes, shrink)?;
        let unsettled = self.change_size(&mut twin, bytes)?;
        drop(twin);
        let _turn = self.lock_changes_at_last();
        if let Some(store) = self.served().store(name) {
            store.bytes = bytes;
            store.volume.spec.size = Some(bytes);
        }
        tracing::info!(volume = name, bytes, "volume resized");
        self.record(None).map_err(|why| {
            Refused::new(Code::Failed, format!("resized, but not recorded: {}", why.message))
        })?;
        if let Some(why) = unsettled {
            let message = format!("its size is {} now, but {why}", size::human(bytes));
            return Err(Refused::new(Code::Failed, message));
        }
        self.served().volume(name)
    }

    /// Resizes a volume; returns a warning if it succeeded only in part.
    fn change_size(&self, store: &mut Store, bytes: u64) -> Result<Option<String>, Refused> {
        let (name, before) = (store.volume.name.clone(), store.bytes);
        let failed =
            |why: std::io::Error| Refused::new(Code::Failed, format!("cannot change the file: {why}"));
        // Grow the file first and then notify the hosts; shrink in the opposite order. So hosts never see blocks that do
        // not exist.
        let file_len = store.file_len().map_err(failed)?;
        if bytes >= before {
            self.set_len(store, bytes).map_err(failed)?;
            return match self.engine.resize_volume(name.as_str(), bytes) {
                Ok(()) => Ok(None),
                Err(why) if was_not_begun(&why) => {
                    store.undo_growth(before, file_len);
                    Err(refused(&why))
                }
                // Hosts may already know the new size and write there: the file keeps it.
                Err(why) => Ok(Some(format!("some hosts may not have been notified: {why}"))),
            };
        }
        self.engine.resize_volume(name.as_str(), bytes).map_err(|why| refused(&why))?;
        let Err(why) = self.set_len(store, bytes) else { return Ok(None) };
        let is_cut = store.file_len().is_ok_and(|len| len.is_some_and(|len| len < before));
        if !is_cut {
            let _ = self.engine.resize_volume(name.as_str(), before);
            return Err(failed(why));
        }
        // The cut-off blocks are gone, and are not offered again.
        Ok(Some(format!("its file cannot be synced: {why}")))
    }

    /// Changes the size of a volume's file. Reports only a sync that fails here to the engine, not an earlier one.
    fn set_len(&self, twin: &mut Store, bytes: u64) -> std::io::Result<()> {
        twin.in_doubt = false;
        let done = twin.set_len(bytes);
        if twin.in_doubt {
            let name = twin.volume.name.as_str();
            self.engine.sync_failed(name);
            self.served().store(name).into_iter().for_each(|store| store.in_doubt = true);
        }
        done
    }
}

/// Refuses an impossible size.
pub(super) fn may_become(store: &Store, bytes: u64, shrink: bool) -> Result<(), Refused> {
    let spec = &store.volume.spec;
    let invalid = |why: &str| Err(Refused::new(Code::Invalid, why));
    if bytes == 0 || !bytes.is_multiple_of(u64::from(spec.block)) {
        return invalid(&format!("the size must be a multiple of the block, {} bytes", spec.block));
    }
    match spec.source {
        Source::Remote(_) => {
            return invalid(
                "resize the volume on the machine that owns it; hosts of this daemon see the new size at once",
            );
        }
        Source::Stripe(_) => {
            return invalid(
                "a stripe has the size of its legs: it follows remote volumes at once, and files and devices when \
                 it is opened",
            );
        }
        Source::Device(_) => return invalid("the size of a device cannot be changed here"),
        Source::File(_) | Source::Ram | Source::Null => {}
    }
    if spec.read_only {
        return invalid("the volume is write-protected");
    }
    if bytes < store.bytes && !shrink {
        let why = format!(
            "it has {}; to make it smaller and lose the data beyond, use --shrink",
            size::human(store.bytes)
        );
        return Err(Refused::new(Code::Conflict, why));
    }
    Ok(())
}
