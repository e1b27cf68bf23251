//! The queue against fixed bytes: a world of two byte queues, and a server with a small disk.

mod attacks;
mod attacks_data;
mod basics;
mod pair;
mod replacement;
mod snapshots;
