//! Bugs that tests plant in what ships, to see that they are noticed.
//!
//! Invariant: without the feature `rig`, which only tests turn on, [`planted`] is `false` before anything is
//! compiled, and nothing of a bug is in the program.

#[cfg(feature = "rig")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Server: the first half of a pair waits on when another command parts it from its mate.
    HalfWaits = 1,
    /// Server: a Flush is answered and not carried out.
    FlushForgotten,
    /// Server: Force Unit Access of a Write is forgotten.
    FuaForgotten,
    /// Server: each source range of a Copy is the first.
    CopyShifted,
    /// Server: Verify looks at nothing.
    VerifyBlind,
    /// Server: a controller is not ready before what it had in work has ended.
    ResetHasty,
    /// Transport: data digests of the host are not compared.
    DataDigestUnchecked,
    /// Transport: header digests of the host are not compared.
    HeaderDigestUnchecked,
    /// Transport: data that was asked for lands 16 bytes before its place.
    DataMisplaced,
    /// Transport: a read whose data says that it has succeeded is answered besides.
    AnsweredTwice,
    /// Transport: the first data that comes for a buffer makes it full, whatever the buffer's length.
    DataMadeUp,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 11] = [
        Bug::HalfWaits,
        Bug::FlushForgotten,
        Bug::FuaForgotten,
        Bug::CopyShifted,
        Bug::VerifyBlind,
        Bug::ResetHasty,
        Bug::DataDigestUnchecked,
        Bug::HeaderDigestUnchecked,
        Bug::DataMisplaced,
        Bug::AnsweredTwice,
        Bug::DataMadeUp,
    ];
}

#[cfg(feature = "rig")]
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in all of this process.
#[cfg(feature = "rig")]
pub fn plant(bug: Bug) {
    PLANTED.store(bug as u8, Ordering::Relaxed);
}

/// Whether this bug is planted.
#[cfg(feature = "rig")]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

/// Whether this bug is planted: none is.
#[cfg(not(feature = "rig"))]
#[must_use]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}
