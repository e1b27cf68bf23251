//! Images of Ceph that change while they are served: resized by `rbd resize`, or taken over by another client.
//!
//! Invariant: a size that hosts are told is one that the image had; one whose client is blocklisted is named in the log
//! once.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use super::{Daemon, VolumeRegistry};
use crate::{dataplane::group::JoinedGroup, store::Store};
use config::{name::VolumeName, size};
use process::log::area;

/// How soon a size that could not be told to hosts is told again.
const AGAIN: Duration = Duration::from_secs(1);

/// Starts a thread that follows the images; it ends with the daemon.
///
/// # Errors
/// The system has no thread.
pub fn follow(daemon: &Arc<Daemon>) -> io::Result<()> {
    let daemon = Arc::downgrade(daemon);
    thread::Builder::new().name("images".to_owned()).spawn(move || run(&daemon)).map(drop)
}

fn run(daemon: &Weak<Daemon>) {
    let (mut seen, mut again, mut fenced) = (0, None, HashSet::new());
    loop {
        seen = rbd::wait_for_change(seen, again);
        let Some(daemon) = daemon.upgrade() else { return };
        daemon.volumes.tell_fenced(&mut fenced);
        again = (!daemon.volumes.follow_sizes()).then_some(AGAIN);
    }
}

impl VolumeRegistry {
    /// Tells hosts the sizes of images that are not what they know; whether all was told.
    fn follow_sizes(&self) -> bool {
        let changed: Vec<(VolumeName, u64)> = self
            .lock_served()
            .stores
            .iter()
            .filter_map(|store| {
                let bytes = store.image_now()?.bytes();
                let bytes = bytes - bytes % u64::from(store.volume.spec.block);
                (bytes != store.bytes).then(|| (store.volume.name.clone(), bytes))
            })
            .collect();
        changed.iter().fold(true, |all, (name, bytes)| self.follow_size(name, *bytes) && all)
    }

    fn follow_size(&self, volume: &VolumeName, bytes: u64) -> bool {
        let name = volume.as_str();
        let Ok(_held) = self.lock_name(name, "resized") else { return false };
        let Some(before) = self.lock_served().store_mut(name).map(|store| store.bytes) else { return true };
        if bytes < before {
            tracing::warn!(
                target: area::VOLUME,
                %volume, before = size::format_human(before), now = size::format_human(bytes),
                "the image was made smaller: what hosts had behind its end is gone"
            );
        }
        if bytes > 0
            && let Err(why) = self.engine.resize_volume(name, bytes)
        {
            tracing::warn!(target: area::VOLUME, %volume, %why, "hosts cannot be told the new size of the image; it will be retried");
            return false;
        }
        if let Some(store) = self.lock_served().store_mut(name) {
            store.bytes = bytes;
        }
        tracing::info!(target: area::VOLUME, %volume, bytes, "the image was resized");
        true
    }

    /// Logs images whose client was found blocklisted.
    fn tell_fenced(&self, told: &mut HashSet<u64>) {
        for store in &self.lock_served().stores {
            let images = store.legs_or_self().iter().filter_map(Store::image_now);
            for image in images.filter(|image| image.is_fenced() && store.slot.is_some()) {
                self.engine.group().into_iter().for_each(JoinedGroup::note_fenced);
                told.insert(image.client());
            }
            let images = store.legs_or_self().iter().filter_map(Store::image_now);
            for image in images.filter(|image| image.is_fenced() && told.insert(image.client())) {
                tracing::error!(
                    target: area::VOLUME,
                    volume = %store.volume.name, image = image.name(), client = image.client(),
                    "the image was taken over: our client is blocklisted by the cluster, and every command fails with \
                     a path error. If no other client serves it, restart this daemon"
                );
            }
        }
    }
}
