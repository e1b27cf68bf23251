//! The store that the members share, as they see it: objects with versions, a blocklist, locks. Its servers and clients
//! have one map, which the tests of `group` do not take for granted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use group::{InstanceId, MapEpoch, ObjectName, StoreReply, StoreRequest, Version};
use volume::Uuid;

use crate::image::Image;

#[derive(Default)]
pub struct Store {
    objects: BTreeMap<ObjectName, (Version, Vec<u8>)>,
    barred: BTreeSet<InstanceId>,
    epoch: u64,
    locks: BTreeMap<Uuid, InstanceId>,
    pub images: BTreeMap<Uuid, Arc<Image>>,
    /// Instances that run.
    pub running: BTreeSet<InstanceId>,
    /// Instances that do not reach it.
    pub cut: BTreeSet<InstanceId>,
}

impl Store {
    fn bar(&mut self, instance: InstanceId) {
        self.barred.insert(instance);
        self.epoch += 1;
        for image in self.images.values() {
            image.state().barred.insert(instance);
        }
    }

    /// Carries a request out.
    pub fn execute(&mut self, by: InstanceId, request: StoreRequest) -> StoreReply {
        if self.barred.contains(&by) {
            return StoreReply::Fenced;
        }
        match request {
            StoreRequest::Read(object) => {
                let (version, value) = self.objects.get(&object).cloned().unwrap_or_default();
                StoreReply::Contents { version, value }
            }
            StoreRequest::Swap { object, expected, value } => {
                let version = self.objects.get(&object).map_or(Version(0), |(version, _)| *version);
                if version != expected {
                    return StoreReply::Mismatch;
                }
                let version = Version(version.0 + 1);
                self.objects.insert(object, (version, value));
                StoreReply::Swapped(version)
            }
            StoreRequest::Notify(_) | StoreRequest::AwaitMap(_) | StoreRequest::SpreadMap(_) => {
                StoreReply::Done
            }
            StoreRequest::Blocklist { instance, .. } => {
                self.bar(instance);
                StoreReply::Blocklisted(MapEpoch(self.epoch))
            }
            StoreRequest::RemoveFromBlocklist(instance) => {
                self.barred.remove(&instance);
                StoreReply::Done
            }
            StoreRequest::Lock(volume) => match self.locks.get(&volume) {
                Some(holder)
                    if *holder != by && self.running.contains(holder) && !self.barred.contains(holder) =>
                {
                    StoreReply::Locked(*holder)
                }
                _ => {
                    self.locks.insert(volume, by);
                    StoreReply::Done
                }
            },
            StoreRequest::Unlock(volume) => {
                if self.locks.get(&volume) == Some(&by) {
                    self.locks.remove(&volume);
                }
                StoreReply::Done
            }
        }
    }
}
