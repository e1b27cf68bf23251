//! Memory for payloads: a pool of buffers per shard, scatter-gather lists, memory regions that several cores
//! and the kernel touch at once, and CRC32C; and [`Cx`], everything that a core sees of the world.
//!
//! Buffers move by value. A [`BufMut`] has one owner and may be written; [`BufMut::freeze`] makes it a
//! [`Buf`], which may be shared and only read. The owner of a buffer may hand it to the kernel: no other code
//! can reach the memory until it comes back ("owned operations", the first law in `ARCHITECTURE.md`).
//! Dropping the last owner returns the memory to its pool.
//!
//! Only [`Region`] is `Send`: a pool and its buffers live on one shard.

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

mod arena;
mod buddy_blocks;
mod buffer;
mod cx;
mod lender;
mod loan;
mod memory_mapping;
mod payload;
#[cfg(feature = "poison")]
pub mod poison;
mod pool;
mod region;
mod sg;
mod shared_memory;

pub mod crc32c;

pub use arena::{MemoryClass, PoolAccount};
pub use buffer::{Buf, BufMut};
pub use cx::{Cx, Entropy, Time};
pub use lender::Lender;
pub use payload::{Errno, Payload};
pub use pool::{Pool, PoolUsage};
pub use region::{Region, RegionHandle, SharedWords};
pub use sg::{Sg, SgMut};
