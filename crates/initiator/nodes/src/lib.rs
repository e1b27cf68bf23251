//! Node records: the volumes of other machines that this machine attaches, as open-iscsi keeps them.
//!
//! A node is a file `NAME.json` in a directory of this user's ([`Nodes`]): the URL of a volume, and how it is attached.
//! Invariants: a file holds no secret (its URL names files or variables that do); it is replaced whole or not at all;
//! what another user could have written is not read.

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

mod connect;
mod discover;
mod node;
mod store;

pub use connect::{NodeConnection, connect};
pub use discover::{AddedNode, DiscoveredNodes, discover};
pub use node::{
    Node, NodeFileError, NodeSettings, NodeUrlError, check_url, parse_timeout_text, parse_via_name,
};
pub use store::{Nodes, check_name};
