//! What makes a file, a device, an image of Ceph or an export of an NBD server the same one as before.

use serde::{Deserialize, Serialize};

/// What makes a file or device the same one as before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileIdentity {
    /// A regular file.
    File {
        /// The device of its file system.
        device: u64,
        /// Its inode.
        inode: u64,
        /// When it was created, nanoseconds since 1970, where the file system knows.
        born: Option<u64>,
    },
    /// A block device with an identity of its own (a serial number, a device mapper name).
    Device {
        /// What the system calls it by for good.
        wwid: String,
    },
    /// A block device without one, by its numbers.
    Numbered {
        /// Device number.
        number: u64,
        /// Which boot of the machine, and which of the disks that were set up since (`diskseq`); `None`: the system
        /// does not tell. The number is given again, this never is.
        #[serde(default)]
        set_up: Option<String>,
    },
    /// An image of Ceph. Its UUID follows from this, so it is kept nowhere.
    Image {
        /// The cluster's UUID.
        cluster: String,
        /// The pool's number.
        pool: i64,
        /// The namespace in the pool.
        namespace: String,
        /// The image's identifier.
        id: String,
    },
    /// An export of an NBD server: nothing but its place tells which it is.
    Export {
        /// The server's address.
        server: String,
        /// The export's name.
        export: String,
    },
}

impl FileIdentity {
    /// Whether nothing else can ever have it. Numbers are given again when what had them is gone.
    pub fn is_unique(&self) -> bool {
        match self {
            FileIdentity::File { born, .. } => born.is_some(),
            FileIdentity::Device { .. } => true,
            FileIdentity::Numbered { set_up, .. } => set_up.is_some(),
            FileIdentity::Image { .. } => true,
            // Its place is all that it is known by.
            FileIdentity::Export { .. } => true,
        }
    }

    /// Whether both name one piece of storage.
    pub fn aliases(&self, other: &FileIdentity) -> bool {
        self.storage_key() == other.storage_key()
    }

    /// What all that name one piece of storage have in common.
    pub fn storage_key(&self) -> StorageKey {
        match self {
            FileIdentity::File { device, inode, .. } => StorageKey::File { device: *device, inode: *inode },
            FileIdentity::Device { wwid } => StorageKey::Device { wwid: wwid.clone() },
            FileIdentity::Numbered { number, .. } => StorageKey::Numbered { number: *number },
            FileIdentity::Image { cluster, pool, namespace, id } => StorageKey::Image {
                cluster: cluster.clone(),
                pool: *pool,
                namespace: namespace.clone(),
                id: id.clone(),
            },
            FileIdentity::Export { server, export } => {
                StorageKey::Export { server: server.clone(), export: export.clone() }
            }
        }
    }
}

/// One piece of storage at this moment: a [`FileIdentity`] without what tells it from those that had its numbers before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StorageKey {
    /// A regular file.
    File {
        /// The device of its file system.
        device: u64,
        /// Its inode.
        inode: u64,
    },
    /// A block device with an identity of its own.
    Device {
        /// What the system calls it by for good.
        wwid: String,
    },
    /// A block device without one.
    Numbered {
        /// Device number.
        number: u64,
    },
    /// An image of Ceph.
    Image {
        /// The cluster's UUID.
        cluster: String,
        /// The pool's number.
        pool: i64,
        /// The namespace in the pool.
        namespace: String,
        /// The image's identifier.
        id: String,
    },
    /// An export of an NBD server.
    Export {
        /// The server's address.
        server: String,
        /// The export's name.
        export: String,
    },
}
