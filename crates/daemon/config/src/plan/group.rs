//! The group of gateways that the daemon is one of.

use std::net::SocketAddr;
use std::path::PathBuf;

use ::group::GroupName;

use crate::name::VolumeName;

/// `[group]`: the daemon is one of several that serve the same images of Ceph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// The group, the same at all its gateways.
    pub name: GroupName,
    /// The pool that has the group's state.
    pub pool: String,
    /// The namespace in it; `None`: the default one.
    pub namespace: Option<String>,
    /// The cluster's configuration file; `None`: `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None`: `admin`.
    pub user: Option<String>,
    /// This gateway's name in the group; `None`: the machine's.
    pub gateway: Option<VolumeName>,
    /// Where it listens for other gateways.
    pub listen: SocketAddr,
    /// Where they connect to it.
    pub address: SocketAddr,
}
