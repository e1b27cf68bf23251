//! The session against fixed bytes: a world of two queues per link, and a server with a small disk.

mod basics;
mod pair;
