//! Volumes that change their size while the daemon runs.
//!
//! Invariant: nobody is promised blocks that are not there, and a size that hosts may have been told stays. The file is
//! changed by descriptors of its own, while nobody waits for its disk but who asked.

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

    /// Gives a volume its new size, and says what became of that if not all is well.
    fn change_size(&self, store: &mut Store, bytes: u64) -> Result<Option<String>, Refused> {
        let (name, before) = (store.volume.name.clone(), store.bytes);
        let failed =
            |why: std::io::Error| Refused::new(Code::Failed, format!("cannot change the file: {why}"));
        // Growing: first the file, then the initiators. Shrinking: the other way round, so that
        // nobody is promised blocks that are not there.
        let file_len = store.file_len().map_err(failed)?;
        if bytes >= before {
            self.set_len(store, bytes).map_err(failed)?;
            return match self.engine.resize_volume(name.as_str(), bytes) {
                Ok(()) => Ok(None),
                Err(why) if was_not_begun(&why) => {
                    store.undo_growth(before, file_len);
                    Err(refused(&why))
                }
                // Hosts may know the new size already, and write there: the file keeps it.
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
        // What was cut off is gone, and nobody is promised it again.
        Ok(Some(format!("its file cannot be synced: {why}")))
    }

    /// Changes the size of a volume's file. The engine is told of a sync that fails in this, and of none before.
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

/// Refuses a size that a volume cannot have.
fn may_become(store: &Store, bytes: u64, shrink: bool) -> Result<(), Refused> {
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
