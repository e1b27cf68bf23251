//! The queue against fixed bytes: a world of two byte queues, and a server with a small disk.

mod basics;
mod pair;
