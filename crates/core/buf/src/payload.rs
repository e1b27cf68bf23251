//! The payload of an operation: its memory, and the result of the system call.

use crate::sg::{Sg, SgMut};

/// A command's data buffer. It is owned by the operation and returned with its completion. The directions are SCSI's:
/// `In` is data-in, towards the host.
#[derive(Debug, Default)]
pub enum Payload {
    /// The command transfers no data.
    #[default]
    None,
    /// Data-In: memory that a read fills.
    In(SgMut),
    /// Data-Out: memory whose bytes a write stores.
    Out(Sg),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::In(sg) => sg.len(),
            Payload::Out(sg) => sg.len(),
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, made readable.
    pub fn into_sg(self) -> Sg {
        match self {
            Payload::None => Sg::new(),
            Payload::In(sg) => sg.freeze(),
            Payload::Out(sg) => sg,
        }
    }
}

/// A number of the system's `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);
