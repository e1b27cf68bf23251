//! Names of what a gateway group consists of. Each is a number that is given once.

use std::fmt;

macro_rules! number {
    ($(#[$about:meta])* $name:ident($of:ty)) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $of);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// One run of a gateway: a process and its client of the store. The store gives the number and gives it to no other
    /// client (RADOS: the global id of a client). A gateway that starts again is another instance.
    InstanceId(u64)
}
number! {
    /// An ANA group (NVMe Base §8.1), which is also a target port group of SCSI: the volumes that have one owner.
    GroupId(u32)
}
number! {
    /// Counts the owners of a group. A term has one owner.
    Term(u64)
}
number! {
    /// Counts the maps of the store (RADOS: osdmap epochs). A blocklist entry is in force where its map is known.
    MapEpoch(u64)
}
number! {
    /// Counts the changes of an object of the store. 0: there is no such object yet.
    Version(u64)
}
number! {
    /// A connection between two members. A connection that is made again has another number.
    LinkId(u64)
}
number! {
    /// Names a request to the store until its reply. Unique per instance.
    StoreTicket(u64)
}
number! {
    /// Names a request of a host, or of the operator, until its answer. The caller chooses it; unique per instance.
    RequestId(u64)
}
number! {
    /// Names a command that is being executed here, for a host of this gateway or for another member.
    ExecutionId(u64)
}
