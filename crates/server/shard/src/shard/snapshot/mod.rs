//! A shard's part of a [`TargetSnapshot`](crate::TargetSnapshot): saving it, and going on from it.

mod restore;
mod save;

pub use restore::{CarriedNumbers, RestoreError, RestoreFailure};
