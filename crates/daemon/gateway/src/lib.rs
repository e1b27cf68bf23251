//! A gateway's part in a group of gateways on Ceph: what joins the state machine ([`group::Member`]) to the cluster.
//!
//! [`GroupStore`] is the store that the members share: it carries out [`group::StoreRequest`]s on RADOS and on the
//! images of the volumes. [`Link`] carries [`group::LinkMessage`]s between two gateways that have the group's key.
//!
//! No daemon uses this crate yet. `docs/internals/group.md` says what is built and what is not.

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

mod group_name;
mod link;
mod store;

pub use group_name::{GroupName, GroupNameError};
pub use link::{
    BACKLOG_MAX, FRAME_MAX, HANDSHAKE_TIME, LINK_VERSION, Link, LinkContext, LinkEvent, LinkFault,
    LinkPayload, SendRefused,
};
pub use store::{
    GroupKey, GroupStore, Mailbox, StoreError, StoreEvent, StoreOptions, VolumeImage, placement_names,
};
