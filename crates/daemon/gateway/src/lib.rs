//! A gateway's part in a group of gateways on Ceph: what joins the state machine ([`group::Member`]) to the cluster.
//!
//! [`GroupStore`] is the store that the members share: it carries out [`group::StoreRequest`]s on RADOS and on the
//! images of the volumes. [`Link`] carries [`group::LinkMessage`]s between two gateways that have the group's key.
//! [`Runtime`] is the thread that drives an instance, with the sockets of its links.
//!
//! `docs/internals/group.md` says what is built and what is not.

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

mod link;
mod runtime;
mod store;

pub use link::{
    BACKLOG_MAX, FRAME_MAX, HANDSHAKE_TIME, LINK_VERSION, Link, LinkContext, LinkEvent, LinkFault,
    SendRefused,
};
pub use runtime::{
    DRAIN_TIME, GroupCounters, GroupEntry, GroupStatus, GroupTarget, Inbox, MemberStore, Runtime,
    RuntimeConfig, RuntimeRequest, RuntimeWarning,
};
pub use store::{
    GroupKey, GroupStore, Mailbox, StoreError, StoreEvent, StoreOptions, VolumeImage, placement_names,
};
