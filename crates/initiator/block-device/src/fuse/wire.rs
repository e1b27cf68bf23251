//! FUSE as the kernel speaks it (linux/fuse.h, protocol 7; numbers in native byte order).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire::wire;

pub(super) const MAJOR: u32 = 7;
/// The oldest minor version that is spoken: with MAX_PAGES (Linux 4.20).
pub(super) const MINOR_MIN: u32 = 28;
/// What we know.
pub(super) const MINOR: u32 = 40;

pub(super) const ROOT: u64 = 1;

pub(super) mod opcode {
    pub(in crate::fuse) const LOOKUP: u32 = 1;
    pub(in crate::fuse) const FORGET: u32 = 2;
    pub(in crate::fuse) const GETATTR: u32 = 3;
    pub(in crate::fuse) const SETATTR: u32 = 4;
    pub(in crate::fuse) const OPEN: u32 = 14;
    pub(in crate::fuse) const READ: u32 = 15;
    pub(in crate::fuse) const WRITE: u32 = 16;
    pub(in crate::fuse) const STATFS: u32 = 17;
    pub(in crate::fuse) const RELEASE: u32 = 18;
    pub(in crate::fuse) const FSYNC: u32 = 20;
    pub(in crate::fuse) const FLUSH: u32 = 25;
    pub(in crate::fuse) const INIT: u32 = 26;
    pub(in crate::fuse) const OPENDIR: u32 = 27;
    pub(in crate::fuse) const READDIR: u32 = 28;
    pub(in crate::fuse) const RELEASEDIR: u32 = 29;
    pub(in crate::fuse) const FSYNCDIR: u32 = 30;
    pub(in crate::fuse) const ACCESS: u32 = 34;
    pub(in crate::fuse) const INTERRUPT: u32 = 36;
    pub(in crate::fuse) const DESTROY: u32 = 38;
    pub(in crate::fuse) const BATCH_FORGET: u32 = 42;
    pub(in crate::fuse) const FALLOCATE: u32 = 43;
    pub(in crate::fuse) const LSEEK: u32 = 46;
}

/// Of INIT; from bit 32 on they stand in `flags2`.
pub(super) mod init {
    pub(in crate::fuse) const ASYNC_READ: u64 = 1 << 0;
    pub(in crate::fuse) const BIG_WRITES: u64 = 1 << 5;
    pub(in crate::fuse) const ASYNC_DIO: u64 = 1 << 15;
    pub(in crate::fuse) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(in crate::fuse) const MAX_PAGES: u64 = 1 << 22;
    pub(in crate::fuse) const INIT_EXT: u64 = 1 << 30;
    pub(in crate::fuse) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// What a server took and did not answer can be asked again (Linux 6.9).
    pub(in crate::fuse) const HAS_RESEND: u64 = 1 << 39;
}

/// Of OPEN's answer.
pub(super) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Of SETATTR: these change nothing here, and are granted.
pub(super) const FATTR_SIZE: u32 = 1 << 3;
pub(super) const FATTR_TIMES: u32 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10;
pub(super) const FATTR_FH: u32 = 1 << 6;
pub(super) const FATTR_LOCKOWNER: u32 = 1 << 9;
pub(super) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

/// The code, in place of an error, of a notice that an inode's cached attributes are out of date.
pub(super) const NOTIFY_INVAL_INODE: i32 = 2;

/// The code of a notice that whatever was taken and not answered is to be asked again.
pub(super) const NOTIFY_RESEND: i32 = 7;

wire!(
    /// In front of every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16,
    }
);
wire!(
    /// In front of every answer and notice.
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
);
wire!(
    /// INIT.
    InitIn = 20 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, }
);
wire!(
    /// The answer to INIT.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
);
wire!(
    /// What stat says.
    Attributes = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
);
wire!(
    /// The answer to GETATTR and SETATTR.
    AttributesOut = 104 { valid: u64, valid_nsec: u32, dummy: u32, attributes: Attributes, }
);
wire!(
    /// The answer to LOOKUP.
    EntryOut = 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attributes: Attributes,
    }
);
wire!(
    /// SETATTR, as far as it matters.
    SetAttributesIn = 8 { valid: u32, padding: u32, }
);
wire!(
    /// The answer to OPEN and OPENDIR.
    OpenOut = 16 { fh: u64, open_flags: u32, backing: i32, }
);
wire!(
    /// READ, READDIR and WRITE.
    TransferIn = 40 {
        fh: u64, offset: u64, size: u32, transfer_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
);
wire!(
    /// The answer to WRITE.
    WriteOut = 8 { size: u32, padding: u32, }
);
wire!(
    /// The answer to STATFS.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
);
wire!(
    /// INTERRUPT: which request.
    InterruptIn = 8 { unique: u64, }
);
wire!(
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
);
wire!(
    /// LSEEK.
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
);
wire!(
    /// The answer to LSEEK.
    LseekOut = 8 { offset: u64, }
);
wire!(
    /// One entry of a directory; its name follows, padded to eight bytes.
    Dirent = 24 { ino: u64, offset: u64, namelen: u32, kind: u32, }
);
wire!(
    /// NOTIFY_INVAL_INODE; a negative offset means attributes only.
    InvalInode = 24 { ino: u64, offset: i64, len: i64, }
);
