//! Who comes first: in each round another system, so that none has the same place every time.
//!
//! Invariant: in every round each one has its turn once.

/// The order of so many in a round, whose groups stay together: each group begins with another of its own.
pub(crate) fn turn_order(count: usize, group: usize, round: usize) -> Vec<usize> {
    let group = group.clamp(1, count.max(1));
    (0..count)
        .map(|place| {
            let (first, within) = (place / group * group, place % group);
            let size = group.min(count - first);
            first + (within + round) % size
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::turn_order;

    #[test]
    fn each_has_its_turn_once_and_another_is_first() {
        assert_eq!(
            [turn_order(3, 3, 0), turn_order(3, 3, 1), turn_order(3, 3, 5)],
            [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        );
        // Those of one database server are compared, and come together.
        assert_eq!(turn_order(4, 2, 1), [1, 0, 3, 2]);
        assert_eq!(turn_order(5, 2, 1), [1, 0, 3, 2, 4]);
        assert!(turn_order(0, 0, 3).is_empty());
    }
}
