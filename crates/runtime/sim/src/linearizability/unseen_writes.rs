//! Writes whose stamps no read returned: what remains to be checked of them.

use std::collections::HashSet;

use super::{Operation, OperationKind};

/// The writes whose stamps nobody saw. Those without an answer need not have happened, and are taken
/// out. Somebody who found something else than it expected may have found one of them, unless another
/// write had put an end to all of them before: that says nothing then, and is taken out too.
pub(super) fn find_unseen_writes(operations: &mut Vec<Operation>) -> HashSet<usize> {
    let mut seen = HashSet::new();
    for one in &*operations {
        match one.what {
            OperationKind::Read(stamp) => seen.insert(stamp),
            OperationKind::CompareAndWrite { expected, swapped, .. } if swapped || one.end.is_none() => {
                seen.insert(expected)
            }
            OperationKind::CompareAndWrite { .. } | OperationKind::Write(_) => false,
        };
    }
    let is_unseen = |one: &Operation| match one.what {
        OperationKind::Write(stamp) => !seen.contains(&stamp),
        OperationKind::CompareAndWrite { new, .. } => one.end.is_none() && !seen.contains(&new),
        OperationKind::Read(_) => false,
    };
    let mays: PrefixMaxima = operations
        .iter()
        .filter(|one| is_unseen(one))
        .map(|one| (one.begin, one.end.unwrap_or(u64::MAX)))
        .collect();
    let overs: PrefixMaxima = operations
        .iter()
        .filter(|one| surely_overwrites(one) && !is_unseen(one))
        .filter_map(|one| Some((one.end?, one.begin)))
        .collect();
    operations.retain(|one| match (one.what, one.end) {
        (OperationKind::CompareAndWrite { swapped: false, .. }, Some(end)) => {
            let last = mays.highest(|begin| begin <= end);
            last.is_none_or(|last| overs.highest(|end| end < one.begin).is_some_and(|over| last < over))
        }
        (_, None) => !is_unseen(one),
        (_, Some(_)) => true,
    });
    operations.iter().enumerate().filter(|(_, one)| is_unseen(one)).map(|(at, _)| at).collect()
}

/// Whether it has surely put its own stamp there.
fn surely_overwrites(one: &Operation) -> bool {
    match one.what {
        OperationKind::Write(_) => one.end.is_some(),
        OperationKind::CompareAndWrite { swapped, .. } => swapped && one.end.is_some(),
        OperationKind::Read(_) => false,
    }
}

/// Numbers, each of a moment, by their moments: with the highest number up to each.
struct PrefixMaxima(Vec<(u64, u64)>);

impl FromIterator<(u64, u64)> for PrefixMaxima {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(marks: I) -> Self {
        let mut marks: Vec<_> = marks.into_iter().collect();
        marks.sort_unstable();
        let mut highest = 0;
        for (_, number) in &mut marks {
            highest = highest.max(*number);
            *number = highest;
        }
        PrefixMaxima(marks)
    }
}

impl PrefixMaxima {
    /// The highest number of those moments; they are the first ones.
    fn highest(&self, is_of: impl Fn(u64) -> bool) -> Option<u64> {
        let count = self.0.partition_point(|(moment, _)| is_of(*moment));
        self.0.get(..count)?.last().map(|(_, highest)| *highest)
    }
}
