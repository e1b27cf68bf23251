//! The session against our own target, over a connection that splits data at random; against fixed bytes; and
//! against a target whose bytes a test writes.

mod attacks;
mod golden;
mod noise;
mod pair;
mod scripted_target;
mod wire;
