//! The daemon as initiators and operators see it: a real process, real sockets, real files.

mod access;
mod apply;
mod attached;
mod blocked;
mod both_protocols;
mod chiscsi;
mod concatenation;
mod daemon;
mod ending;
mod exhausted;
mod failover;
mod gateway;
mod host;
mod initiator;
mod killed;
mod logs;
mod operator;
mod ours;
mod papers;
mod placement;
mod refused;
mod remote;
mod stripe;
mod tls;
mod verbs;
mod volumes;
