//! A store in memory that several instances of one process share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use blockwire_gateway::{Inbox, MemberStore, StoreEvent};
use buf::Time;
use group::{InstanceId, MapEpoch, ObjectName, StoreReply, StoreRequest, StoreTicket, Version};
use volume::Uuid;

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectName, (u64, Vec<u8>)>,
    barred: BTreeSet<InstanceId>,
    map: u64,
    locks: BTreeMap<Uuid, InstanceId>,
    watchers: Vec<(InstanceId, Inbox)>,
    instances: u64,
}

/// The store. Clones are the same one.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<State>>);

/// An instance's client of it.
pub struct Client {
    store: Shared,
    pub instance: InstanceId,
    inbox: Inbox,
}

impl Shared {
    pub fn connect(&self, inbox: &Inbox) -> Client {
        let mut state = self.0.lock().unwrap();
        state.instances += 1;
        let instance = InstanceId(state.instances);
        state.watchers.push((instance, inbox.clone()));
        Client { store: self.clone(), instance, inbox: inbox.clone() }
    }

    pub fn is_barred(&self, instance: InstanceId) -> bool {
        self.0.lock().unwrap().barred.contains(&instance)
    }
}

impl Client {
    fn carry_out(&self, request: StoreRequest) -> StoreReply {
        let mut state = self.store.0.lock().unwrap();
        if state.barred.contains(&self.instance) {
            return StoreReply::Fenced;
        }
        match request {
            StoreRequest::Read(object) => {
                let (version, value) = state.objects.get(&object).cloned().unwrap_or_default();
                StoreReply::Contents { version: Version(version), value }
            }
            StoreRequest::Swap { object, expected, value } => {
                let entry = state.objects.entry(object).or_default();
                if entry.0 != expected.0 {
                    return StoreReply::Mismatch;
                }
                *entry = (entry.0 + 1, value);
                StoreReply::Swapped(Version(entry.0))
            }
            StoreRequest::Notify(object) => {
                let others = state.watchers.iter().filter(|(instance, _)| *instance != self.instance);
                others.for_each(|(_, inbox)| (inbox.mailbox())(StoreEvent::Changed(object)));
                StoreReply::Done
            }
            StoreRequest::Blocklist { instance, .. } => {
                state.barred.insert(instance);
                state.map += 1;
                StoreReply::Blocklisted(MapEpoch(state.map))
            }
            StoreRequest::RemoveFromBlocklist(instance) => {
                state.barred.remove(&instance);
                StoreReply::Done
            }
            StoreRequest::AwaitMap(_) | StoreRequest::SpreadMap(_) => StoreReply::Done,
            StoreRequest::Lock(volume) => {
                let me = self.instance;
                let barred = state.barred.clone();
                let holder = state.locks.entry(volume).or_insert(me);
                if *holder != me && !barred.contains(holder) {
                    return StoreReply::Locked(*holder);
                }
                *holder = me;
                StoreReply::Done
            }
            StoreRequest::Unlock(volume) => {
                state.locks.remove(&volume);
                StoreReply::Done
            }
        }
    }
}

impl MemberStore for Client {
    fn ask(&mut self, _: Time, ticket: StoreTicket, request: StoreRequest) {
        let reply = self.carry_out(request);
        (self.inbox.mailbox())(StoreEvent::Reply { ticket, reply });
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _: Time) {}
}
