//! Resizing of volumes while the daemon runs.
//!
//! Invariant: hosts never see blocks that do not exist, and a size that hosts may know stays. The file is changed through
//! its own descriptors, so that only this request waits for the disk.

use super::{VolumeRegistry, refusal_from_engine_error, volumes::is_unseen_by_hosts};
use crate::store::Store;
use config::{size, spec::VolumeSource};
use control::{RefusalCode, RequestRefusal, report::VolumeReport};
use process::log::area;

impl VolumeRegistry {
    pub(super) fn resize(
        &self,
        name: &str,
        bytes: u64,
        shrink: bool,
    ) -> Result<VolumeReport, RequestRefusal> {
        let _held = self.lock_name(name, "resized")?;
        self.lock_served().volume_report(name)?;
        let Some(mut twin) = self.duplicate_store(name)? else {
            return Err(RequestRefusal::new(RefusalCode::NotFound, name));
        };
        check_new_size(&twin, bytes, shrink)?;
        let unsettled = self.change_size(&mut twin, bytes)?;
        drop(twin);
        let _turn = self.lock_changes_unbounded();
        if let Some(store) = self.lock_served().store_mut(name) {
            store.bytes = bytes;
            store.volume.spec.size = Some(bytes);
        }
        tracing::info!(target: area::VOLUME, volume = name, bytes, "volume resized");
        self.record_volumes(None).map_err(|why| {
            RequestRefusal::new(RefusalCode::Failed, format!("resized, but not recorded: {}", why.message))
        })?;
        if let Some(why) = unsettled {
            let message = format!("its size is {} now, but {why}", size::format_human(bytes));
            return Err(RequestRefusal::new(RefusalCode::Failed, message));
        }
        self.lock_served().changed_volume_report(name)
    }

    /// Resizes a volume; returns a warning if it succeeded only in part.
    fn change_size(&self, store: &mut Store, bytes: u64) -> Result<Option<String>, RequestRefusal> {
        let (name, before) = (store.volume.name.clone(), store.bytes);
        let failed = |why: std::io::Error| {
            RequestRefusal::new(RefusalCode::Failed, format!("cannot change the file: {why}"))
        };
        // Grow the file first and then notify the hosts; shrink in the opposite order. So hosts never see blocks that do
        // not exist.
        let file_len = store.file_len().map_err(failed)?;
        if bytes >= before {
            self.set_file_len(store, bytes).map_err(failed)?;
            return match self.engine.resize_volume(name.as_str(), bytes) {
                Ok(()) => Ok(None),
                Err(why) if is_unseen_by_hosts(&why) => {
                    store.undo_growth(before, file_len);
                    Err(refusal_from_engine_error(&why))
                }
                // Hosts may already know the new size and write there: the file keeps it.
                Err(why) => Ok(Some(format!("some hosts may not have been notified: {why}"))),
            };
        }
        self.engine.resize_volume(name.as_str(), bytes).map_err(|why| refusal_from_engine_error(&why))?;
        let Err(why) = self.set_file_len(store, bytes) else { return Ok(None) };
        let is_cut = store.file_len().is_ok_and(|len| len.is_some_and(|len| len < before));
        if !is_cut {
            let _ = self.engine.resize_volume(name.as_str(), before);
            return Err(failed(why));
        }
        // The cut-off blocks are gone, and are not offered again.
        Ok(Some(format!("its file cannot be synced: {why}")))
    }

    /// Changes the size of a volume's file. Reports only a sync that fails here to the engine, not an earlier one.
    fn set_file_len(&self, twin: &mut Store, bytes: u64) -> std::io::Result<()> {
        twin.in_doubt = false;
        let done = twin.set_len(bytes);
        if twin.in_doubt {
            let name = twin.volume.name.as_str();
            self.engine.note_sync_failure(name);
            self.lock_served().store_mut(name).into_iter().for_each(|store| store.in_doubt = true);
        }
        done
    }
}

/// Refuses an impossible size.
pub(super) fn check_new_size(store: &Store, bytes: u64, shrink: bool) -> Result<(), RequestRefusal> {
    let spec = &store.volume.spec;
    let invalid = |why: &str| Err(RequestRefusal::new(RefusalCode::Invalid, why));
    if bytes == 0 || !bytes.is_multiple_of(u64::from(spec.block)) {
        return invalid(&format!("the size must be a multiple of the block, {} bytes", spec.block));
    }
    match spec.source {
        VolumeSource::Remote(_) => {
            return invalid(
                "resize the volume on the machine that owns it; hosts of this daemon see the new size at once",
            );
        }
        VolumeSource::Stripe(_) => {
            return invalid(
                "a stripe has the size of its legs: it follows remote volumes at once, and files and devices when \
                 it is opened",
            );
        }
        VolumeSource::Device(_) => return invalid("the size of a device cannot be changed here"),
        VolumeSource::Rbd(_) => {
            return invalid("resize the image with `rbd resize`; hosts see the new size within seconds");
        }
        VolumeSource::Nbd(_) => {
            return invalid(
                "resize the disk at its NBD server; the volume has the new size when it is opened again (restart the \
                 daemon)",
            );
        }
        VolumeSource::File(_) | VolumeSource::Ram | VolumeSource::Null => {}
    }
    if spec.read_only {
        return invalid("the volume is write-protected");
    }
    if bytes < store.bytes && !shrink {
        let why = format!(
            "it has {}; to make it smaller and lose the data beyond, use --shrink",
            size::format_human(store.bytes)
        );
        return Err(RequestRefusal::new(RefusalCode::Conflict, why));
    }
    Ok(())
}
