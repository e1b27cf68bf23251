//! A group of gateways that share a store and serve the same volumes, as a state machine without I/O.
//!
//! [`Member`] is one instance of one gateway. It joins the group, owns some of its ANA groups, forwards the commands
//! for the others, takes over what a lost member owned, and gets numbers that are given once in the group. It sees
//! the store ([`StoreRequest`], [`StoreReply`]) and the other members ([`LinkMessage`]) as messages, and the target of
//! its own gateway as [`Output`].
//!
//! What makes a takeover safe is not a lock and not a time: an owner that is not heard of is barred from the store, and
//! the new one reads and writes only with a map of the store in which it is (`member/takeover.rs`).
//!
//! `daemon/gateway` has the store on RADOS, and the thread that drives a member; `daemon/engine` joins it to the shards. `docs/internals/group.md` describes the protocol and what hosts see.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod codec;
mod failpoint;
mod group_name;
mod ids;
mod link;
mod member;
mod object;
mod register;
mod store;
#[cfg(test)]
mod tests;

pub use codec::Damage;
pub use group_name::{GroupName, GroupNameError};
pub use ids::{ExecutionId, GroupId, InstanceId, LinkId, MapEpoch, RequestId, StoreTicket, Term, Version};
pub use link::{
    Answer, Command, LinkMessage, LinkPayload, LostController, PathError, PathState, ResetAnswer, Snapshot,
};
pub use member::{
    ApplyError, COMMANDS_MAX, HostBindError, Member, MemberConfig, Output, PortError, RestartCause,
    SavedRecord, Timing,
};
pub use object::{
    CONFIGURATION_MAX, CONTROLLER_RANGE, HOSTS_MAX, INSTANCES_MAX, INSTANCES_PER_GATEWAY, MemberEntry,
    Membership, NAME_MAX, Ownership, PORTALS_MAX,
};
pub use store::{ObjectName, StoreReply, StoreRequest};
