//! The session against our own target, over a wire that splits as it likes; against fixed bytes; and against
//! a target that lies.

mod attacks;
mod golden;
mod liar;
mod noise;
mod pair;
mod wire;
