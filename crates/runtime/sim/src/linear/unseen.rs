//! Writes whose stamps no read returned: what remains to be checked of them.

use std::collections::HashSet;

use super::{Operation, What};

/// The writes whose stamps nobody saw. Those without an answer need not have happened, and are taken
/// out. Somebody who found something else than it expected may have found one of them, unless another
/// write had put an end to all of them before: that says nothing then, and is taken out too.
pub(super) fn unseen(operations: &mut Vec<Operation>) -> HashSet<usize> {
    let mut seen = HashSet::new();
    for one in &*operations {
        match one.what {
            What::Read(stamp) => seen.insert(stamp),
            What::CompareAndWrite { expected, swapped, .. } if swapped || one.end.is_none() => {
                seen.insert(expected)
            }
            What::CompareAndWrite { .. } | What::Write(_) => false,
        };
    }
    let is_unseen = |one: &Operation| match one.what {
        What::Write(stamp) => !seen.contains(&stamp),
        What::CompareAndWrite { new, .. } => one.end.is_none() && !seen.contains(&new),
        What::Read(_) => false,
    };
    let mays: Marks = operations
        .iter()
        .filter(|one| is_unseen(one))
        .map(|one| (one.begin, one.end.unwrap_or(u64::MAX)))
        .collect();
    let overs: Marks = operations
        .iter()
        .filter(|one| overwrites(one) && !is_unseen(one))
        .filter_map(|one| Some((one.end?, one.begin)))
        .collect();
    operations.retain(|one| match (one.what, one.end) {
        (What::CompareAndWrite { swapped: false, .. }, Some(end)) => {
            let last = mays.highest(|begin| begin <= end);
            last.is_none_or(|last| overs.highest(|end| end < one.begin).is_some_and(|over| last < over))
        }
        (_, None) => !is_unseen(one),
        (_, Some(_)) => true,
    });
    operations.iter().enumerate().filter(|(_, one)| is_unseen(one)).map(|(at, _)| at).collect()
}

/// Whether it has surely put its own stamp there.
fn overwrites(one: &Operation) -> bool {
    match one.what {
        What::Write(_) => one.end.is_some(),
        What::CompareAndWrite { swapped, .. } => swapped && one.end.is_some(),
        What::Read(_) => false,
    }
}

/// Numbers, each of a moment, by their moments: with the highest number up to each.
struct Marks(Vec<(u64, u64)>);

impl FromIterator<(u64, u64)> for Marks {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(marks: I) -> Self {
        let mut marks: Vec<_> = marks.into_iter().collect();
        marks.sort_unstable();
        let mut highest = 0;
        for (_, number) in &mut marks {
            highest = highest.max(*number);
            *number = highest;
        }
        Marks(marks)
    }
}

impl Marks {
    /// The highest number of those moments; they are the first ones.
    fn highest(&self, is_of: impl Fn(u64) -> bool) -> Option<u64> {
        let count = self.0.partition_point(|(moment, _)| is_of(*moment));
        self.0.get(..count)?.last().map(|(_, highest)| *highest)
    }
}
