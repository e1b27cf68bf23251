//! Host identifiers of a gateway: the group keeps which name each belongs to, so that no two hosts use one at different
//! gateways.
//!
//! Invariant, on the directory's shard: a host is let in, or keeps a controller that it has proved to be its own, only after
//! the group has bound its identifier to its name for this gateway, and gives that back when its last controller has ended.

use std::collections::HashMap;
use std::sync::Arc;

use group::HostBindError;

use super::NvmeFront;
use crate::controller_directory::{ControllerReply, ControllerRequest};
use crate::message::{CONTROL_PLANE, Message, NvmeMessage, ToGateway};
use crate::shard::SharedParts;
use crate::shard::outbox::Outbox;

/// What waits for the group.
#[derive(Debug)]
enum Waiting {
    Connect(Box<ControllerRequest>),
    Proved(u16),
}

#[derive(Debug)]
struct BoundHost {
    host: Arc<str>,
    controllers: u32,
}

/// See the module. As many wait as connections are being let in.
#[derive(Debug, Default)]
pub(super) struct GroupHosts {
    made: u64,
    waiting: HashMap<u64, ([u8; 16], Arc<str>, Waiting)>,
    bound: HashMap<[u8; 16], BoundHost>,
}

impl GroupHosts {
    fn is_bound(&self, id: &[u8; 16], host: &str) -> bool {
        self.bound.get(id).is_some_and(|bound| &*bound.host == host)
    }

    fn ask(&mut self, outbox: &mut Outbox, id: [u8; 16], host: Arc<str>, waiting: Waiting) {
        self.made += 1;
        let message = ToGateway::BindHost { number: self.made, host: id, nqn: host.clone() };
        self.waiting.insert(self.made, (id, host, waiting));
        outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
    }

    /// A controller of a host begins.
    fn count(&mut self, id: [u8; 16]) {
        if let Some(bound) = self.bound.get_mut(&id) {
            bound.controllers += 1;
        }
    }

    /// The group is told when this gateway does not need the identifier any more.
    fn release_if_unused(&mut self, outbox: &mut Outbox, id: [u8; 16]) {
        if self.bound.get(&id).is_some_and(|bound| bound.controllers == 0) {
            self.bound.remove(&id);
            outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(ToGateway::ReleaseHost { host: id })));
        }
    }
}

impl NvmeFront {
    /// The directory judges a claim, of a gateway after the group.
    pub(super) fn admit_controller_in_group(&mut self, parts: &mut SharedParts, request: &ControllerRequest) {
        let binds = request.host_id.filter(|_| request.binds && parts.exports.group.is_some());
        match binds {
            Some(id) if !self.group_hosts.is_bound(&id, &request.host) => {
                let waiting = Waiting::Connect(Box::new(request.clone()));
                self.group_hosts.ask(&mut parts.outbox, id, request.host.clone(), waiting);
            }
            Some(_) | None => self.admit_controller(parts, request),
        }
    }

    /// The host of a controller has proved who it is.
    pub(super) fn bind_host_id_in_group(&mut self, parts: &mut SharedParts, cntlid: u16) {
        let host = self.directory.as_ref().and_then(|directory| directory.host_of(cntlid));
        match host.filter(|_| parts.exports.group.is_some()) {
            Some((id, host)) if !self.group_hosts.is_bound(&id, &host) => {
                self.group_hosts.ask(&mut parts.outbox, id, host, Waiting::Proved(cntlid));
            }
            Some(_) | None => self.bind_host_id(&mut parts.outbox, cntlid),
        }
    }

    /// The group has answered.
    pub(in crate::shard) fn handle_host_bound(
        &mut self,
        parts: &mut SharedParts,
        number: u64,
        result: Result<(), HostBindError>,
    ) {
        let Some((id, host, waiting)) = self.group_hosts.waiting.remove(&number) else { return };
        match (result, waiting) {
            (Ok(()), waiting) => {
                let fresh = || BoundHost { host, controllers: 0 };
                self.group_hosts.bound.entry(id).or_insert_with(fresh);
                match waiting {
                    Waiting::Connect(request) => self.admit_controller(parts, &request),
                    Waiting::Proved(cntlid) => self.bind_host_id(&mut parts.outbox, cntlid),
                }
                self.group_hosts.release_if_unused(&mut parts.outbox, id);
            }
            (Err(why), Waiting::Connect(request)) => {
                let reply = match why {
                    HostBindError::OtherName(name) => ControllerReply::Taken(name),
                    HostBindError::Full
                    | HostBindError::TooLong
                    | HostBindError::Busy
                    | HostBindError::Damaged(_) => ControllerReply::Full,
                };
                let message = NvmeMessage::ControllerReply(request.from.1, reply);
                parts.outbox.post(request.from.0, Message::Nvme(message));
            }
            (Err(_), Waiting::Proved(cntlid)) => {
                let shard = endpoint::ShardId(cntlid % parts.shards);
                parts.outbox.post(shard, Message::Nvme(NvmeMessage::IdentifierTaken(cntlid)));
            }
        }
    }

    /// A controller's host is bound: it counts for its identifier.
    pub(super) fn count_group_host(&mut self, id: Option<[u8; 16]>) {
        if let Some(id) = id {
            self.group_hosts.count(id);
        }
    }

    /// A controller has ended that counted.
    pub(super) fn release_group_host(&mut self, outbox: &mut Outbox, id: Option<[u8; 16]>) {
        let Some(id) = id else { return };
        if let Some(bound) = self.group_hosts.bound.get_mut(&id) {
            bound.controllers = bound.controllers.saturating_sub(1);
        }
        self.group_hosts.release_if_unused(outbox, id);
    }
}
