//! Failpoints: bugs that tests plant in the production code, to check that they are noticed.
//!
//! Invariant: without the feature `failpoints`, which only tests enable, [`is_on`] is a constant `false`, and no
//! planted bug is in the program.

#[cfg(feature = "failpoints")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A place in the code, and the bug that it has while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failpoint {
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

impl Failpoint {
    /// All of them.
    pub const ALL: [Failpoint; 11] = [
        Failpoint::HalfWaits,
        Failpoint::FlushForgotten,
        Failpoint::FuaForgotten,
        Failpoint::CopyShifted,
        Failpoint::VerifyBlind,
        Failpoint::ResetHasty,
        Failpoint::DataDigestUnchecked,
        Failpoint::HeaderDigestUnchecked,
        Failpoint::DataMisplaced,
        Failpoint::AnsweredTwice,
        Failpoint::DataMadeUp,
    ];
}

#[cfg(feature = "failpoints")]
static ENABLED: AtomicU8 = AtomicU8::new(0);

/// Turns a failpoint on in all of this process.
#[cfg(feature = "failpoints")]
pub fn turn_on(bug: Failpoint) {
    ENABLED.store(bug as u8, Ordering::Relaxed);
}

/// Whether this failpoint is on.
#[cfg(feature = "failpoints")]
#[must_use]
pub fn is_on(bug: Failpoint) -> bool {
    ENABLED.load(Ordering::Relaxed) == bug as u8
}

/// Whether this failpoint is on: none is.
#[cfg(not(feature = "failpoints"))]
#[must_use]
#[inline(always)]
pub const fn is_on(_: Failpoint) -> bool {
    false
}
