//! Bugs that tests plant in the state machine, to check that the simulation notices them.
//!
//! Invariant: outside the crate's own tests no failpoint can be turned on ([`Failpoints::has`] is a constant `false`).

/// A place in the code, and the bug that it has while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failpoint {
    /// A takeover does not blocklist the old owner.
    NoBlocklist,
    /// The blocklist entry expires after 6 s.
    EntryExpires,
    /// A takeover does not wait until its client has the map with the entry.
    NoMapWait,
    /// A group is served before all servers of its volumes have the map.
    MapNotSpread,
    /// A group is opened with the records that its owner read when it had the group last.
    RecordsNotRead,
    /// A record counts as durable when its swap is sent.
    AnswerBeforeSwap,
    /// An owner that has handed its group over goes on serving it.
    OldOwnerKept,
    /// A range of controller identifiers counts as given when its swap is sent.
    RangeGivenTwice,
    /// A swap of unknown outcome counts as failed.
    UnknownIsFailed,
    /// A swap of unknown outcome counts as done.
    UnknownIsDone,
    /// A forward of unknown outcome is sent again.
    ForwardRepeated,
    /// A forward of unknown outcome is answered as soon as its link is lost.
    ForwardNotSettled,
    /// The blocklist entry of a predecessor is removed at once.
    EntryRemovedEarly,
    /// A controller of an expelled instance counts as gone at once.
    LostNotSettled,
}

impl Failpoint {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Failpoint; 14] = [
        Failpoint::NoBlocklist,
        Failpoint::EntryExpires,
        Failpoint::NoMapWait,
        Failpoint::MapNotSpread,
        Failpoint::RecordsNotRead,
        Failpoint::AnswerBeforeSwap,
        Failpoint::OldOwnerKept,
        Failpoint::RangeGivenTwice,
        Failpoint::UnknownIsFailed,
        Failpoint::UnknownIsDone,
        Failpoint::ForwardRepeated,
        Failpoint::ForwardNotSettled,
        Failpoint::EntryRemovedEarly,
        Failpoint::LostNotSettled,
    ];
}

/// The failpoint that is on in one instance, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failpoints {
    #[cfg(test)]
    on: Option<Failpoint>,
}

impl Failpoints {
    /// With this one on.
    #[cfg(test)]
    pub(crate) fn with(on: Option<Failpoint>) -> Failpoints {
        Failpoints { on }
    }

    /// Whether this one is on.
    #[cfg(test)]
    pub(crate) fn has(self, point: Failpoint) -> bool {
        self.on == Some(point)
    }

    /// Whether this one is on: none is.
    #[cfg(not(test))]
    pub(crate) const fn has(self, _: Failpoint) -> bool {
        false
    }
}
