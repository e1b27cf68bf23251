//! The session against fixed bytes: a world of two queues per link, and a server with a small disk.

mod attacks;
mod attacks_control;
mod basics;
mod fence;
mod links;
mod replacement;
mod scripted_initiator;
mod snapshots;
mod splits;
mod transfers;
