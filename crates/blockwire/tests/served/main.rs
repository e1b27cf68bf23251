//! The daemon as initiators and operators see it: a real process, real sockets, real files.

mod access;
mod daemon;
mod ending;
mod initiator;
mod volumes;
