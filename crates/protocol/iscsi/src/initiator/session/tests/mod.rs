//! The session against our own target, over a wire that splits as it likes; against fixed bytes; and against
//! a target whose bytes a test writes.

mod attacks;
mod golden;
mod noise;
mod pair;
mod scripted_target;
mod wire;
