//! Whether a history of reads, writes and compare-and-writes of many clients is possible on one volume: for
//! each block there must be an order of its operations, each at some moment between its start and its end, in
//! which every read returns what was written last (linearizability, Herlihy and Wing 1990; the search is Wing
//! and Gong's, with Lowe's memory of visited states).
//!
//! Blocks are checked one by one: a register is linearizable if each block is, and an operation on several
//! blocks promises no more than each of them. A read of a stamp that only one write can have stored must
//! happen before anything else is written (Gibbons and Korach 1997), which leaves the search little choice if
//! stamps are used once. Invariant: `Ok` means that such an order exists for every block; an error names a
//! block for which there is none.

#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "operations and steps are named by their indexes in the history that is checked, and a checker that is wrong shall end its test"
)]

mod unseen_writes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use unseen_writes::find_unseen_writes;

/// What a block holds, as a test names it: the stamp that a writer put there.
pub type Stamp = u64;

/// What a client did to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// It read this.
    Read(Stamp),
    /// It wrote this.
    Write(Stamp),
    /// It asked that `new` replace `expected`.
    CompareAndWrite {
        /// What must stand there.
        expected: Stamp,
        /// What shall.
        new: Stamp,
        /// Whether it did; else something else stood there.
        swapped: bool,
    },
}

/// One operation of a client on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whose.
    pub client: u32,
    /// When it was sent, in any unit that only grows.
    pub begin: u64,
    /// When its answer came. `None`: none came, or one that does not say what happened (an abort, a
    /// lost connection): the write may have happened, at any time from `begin` on, or not at all, and
    /// `swapped` says nothing.
    pub end: Option<u64>,
    /// What.
    pub what: OperationKind,
}

/// The history of a volume.
#[derive(Clone, Debug, Default)]
pub struct History {
    initial: Stamp,
    blocks: BTreeMap<u64, Vec<Operation>>,
}

/// What a check came to, if it found no violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every block's operations can be put in order.
    Holds,
    /// For some block neither an order was found nor shown that there is none: too many operations
    /// ran at once, and no read shows which came last.
    Undecided,
}

/// How many places a search looks at for one block, per operation: where nothing is in doubt one is
/// enough.
const SEARCH_STATES_MAX: usize = 64;

/// A block for which no order explains what its clients saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which block.
    pub block: u64,
    /// As many operations as could be put in order, in that order.
    pub ordered: Vec<Operation>,
    /// The operations: one of them had to be next, and none could.
    pub stuck: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "block {}: no order explains this history. In order as far as possible:", self.block)?;
        let from = self.ordered.len().saturating_sub(8);
        self.ordered[from..].iter().try_for_each(|one| writeln!(f, "  {one}"))?;
        writeln!(f, "but then none of these can be next:")?;
        self.stuck.iter().try_for_each(|one| writeln!(f, "  {one}"))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} from {} to ", self.client, self.begin)?;
        match self.end {
            Some(end) => write!(f, "{end}: {:?}", self.what),
            None => write!(f, "?: {:?}", self.what),
        }
    }
}

impl History {
    /// The history of a volume all of whose blocks hold `initial`.
    pub fn new(initial: Stamp) -> Self {
        History { initial, blocks: BTreeMap::new() }
    }

    /// Notes what a client did to a block. The order of notes does not matter.
    pub fn record(&mut self, block: u64, operation: Operation) {
        self.blocks.entry(block).or_default().push(operation);
    }

    /// How many operations it has.
    pub fn len(&self) -> usize {
        self.blocks.values().map(Vec::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether every block's operations can be put in order.
    pub fn check_linearizable(&self) -> Result<Verdict, Violation> {
        let mut all = Verdict::Holds;
        for (block, operations) in &self.blocks {
            let block = *block;
            let verdict = check_block(self.initial, operations).map_err(|(ordered, stuck)| Violation {
                block,
                ordered,
                stuck,
            })?;
            if verdict == Verdict::Undecided {
                all = verdict;
            }
        }
        Ok(all)
    }
}

/// How far a search has come.
#[derive(Clone)]
struct SearchState {
    /// One bit per operation that has its place, from `first * 64` on.
    done: Vec<u64>,
    /// Words before `done` are full.
    first: usize,
    value: Stamp,
    /// The last that got its place, in [`SearchSteps`].
    last: Option<usize>,
    depth: usize,
}

/// Who got a place behind whom: the places that are tried share their beginnings.
type SearchSteps = Vec<(usize, Option<usize>)>;

impl SearchState {
    fn is_placed(&self, at: usize) -> bool {
        match (at / 64).checked_sub(self.first) {
            None => true,
            Some(word) => self.done.get(word).is_some_and(|bits| bits >> (at % 64) & 1 == 1),
        }
    }

    fn place_operation(&mut self, steps: &mut SearchSteps, at: usize, value: Stamp) {
        let word = at / 64 - self.first;
        if self.done.len() <= word {
            self.done.resize(word + 1, 0);
        }
        self.done[word] |= 1 << (at % 64);
        let full = self.done.iter().take_while(|bits| **bits == u64::MAX).count();
        self.done.drain(..full);
        self.first += full;
        self.value = value;
        steps.push((at, self.last));
        self.last = Some(steps.len() - 1);
        self.depth += 1;
    }

    /// The operations that can be next: who has no place, and began before all such others ended.
    fn next_candidates(&self, operations: &[Operation]) -> Vec<usize> {
        let mut bound = u64::MAX;
        let mut next = Vec::new();
        for (at, one) in operations.iter().enumerate().skip(self.first * 64) {
            if one.begin > bound {
                break;
            }
            if !self.is_placed(at) {
                bound = bound.min(one.end.unwrap_or(u64::MAX));
                next.push(at);
            }
        }
        next.retain(|at| operations[*at].begin <= bound);
        next
    }

    /// What the block holds after `one`; `None` if it cannot come here.
    fn value_after(&self, one: &Operation) -> Option<Stamp> {
        match one.what {
            OperationKind::Read(seen) => (seen == self.value).then_some(seen),
            OperationKind::Write(new) => Some(new),
            OperationKind::CompareAndWrite { expected, new, swapped } => match one.end {
                None => Some(if expected == self.value { new } else { self.value }),
                Some(_) if swapped => (expected == self.value).then_some(new),
                Some(_) => (expected != self.value).then_some(self.value),
            },
        }
    }
}

type SearchDeadEnd = (Vec<Operation>, Vec<Operation>);

/// Who writes a stamp, and who must find it.
#[derive(Default)]
struct StampUsers {
    writers: Vec<usize>,
    readers: Vec<usize>,
}

/// What is known of a block's operations before any has its place.
struct StampIndex {
    users: HashMap<Stamp, StampUsers>,
    /// When each must have its place: with a write that alone can be whose stamp is found goes, as its time,
    /// that of the first who found it.
    deadlines: Vec<u64>,
}

impl StampIndex {
    fn new(operations: &[Operation]) -> Self {
        let mut users: HashMap<Stamp, StampUsers> = HashMap::new();
        for (at, one) in operations.iter().enumerate() {
            match one.what {
                OperationKind::Read(seen) => users.entry(seen).or_default().readers.push(at),
                OperationKind::Write(new) => users.entry(new).or_default().writers.push(at),
                OperationKind::CompareAndWrite { expected, new, swapped } => {
                    if swapped && one.end.is_some() {
                        users.entry(expected).or_default().readers.push(at);
                    }
                    if swapped || one.end.is_none() {
                        users.entry(new).or_default().writers.push(at);
                    }
                }
            }
        }
        let end = |at: &usize| operations[*at].end.unwrap_or(u64::MAX);
        let mut deadlines: Vec<u64> = (0..operations.len()).map(|at| end(&at)).collect();
        for one in users.values() {
            if let ([writer], Some(first)) = (&one.writers[..], one.readers.iter().map(end).min()) {
                deadlines[*writer] = deadlines[*writer].min(first);
            }
        }
        StampIndex { users, deadlines }
    }

    /// Who must have a place before another value may stand there, since nobody can write this one again.
    fn readers_due(&self, place: &SearchState) -> Vec<usize> {
        let Some(users) = self.users.get(&place.value) else { return Vec::new() };
        if users.writers.iter().any(|at| !place.is_placed(*at)) {
            return Vec::new();
        }
        users.readers.iter().copied().filter(|at| !place.is_placed(*at)).collect()
    }
}

fn check_block(initial: Stamp, operations: &[Operation]) -> Result<Verdict, SearchDeadEnd> {
    // A read without an answer says nothing.
    let says = |one: &&Operation| one.end.is_some() || !matches!(one.what, OperationKind::Read(_));
    let mut operations: Vec<Operation> = operations.iter().filter(says).copied().collect();
    operations.sort_by_key(|one| one.begin);
    let unseen = find_unseen_writes(&mut operations);
    let ahead = StampIndex::new(&operations);
    let (mut seen, mut steps) = (HashSet::new(), SearchSteps::new());
    let mut deepest: Option<(SearchState, Vec<usize>)> = None;
    let mut places = vec![SearchState { done: Vec::new(), first: 0, value: initial, last: None, depth: 0 }];
    while let Some(mut place) = places.pop() {
        let next = place_unchanging(&mut place, &mut steps, &operations);
        if next.iter().all(|at| operations[*at].end.is_none()) {
            return Ok(Verdict::Holds);
        }
        if seen.len() >= SEARCH_STATES_MAX * (operations.len() + 64) {
            return Ok(Verdict::Undecided);
        }
        if !seen.insert((place.first, place.done.clone(), place.value)) {
            continue;
        }
        let before = places.len();
        // Tried last to first: what nobody sees comes early, what may not have happened late, and of the others
        // what must be first.
        let mut order: Vec<usize> = next.iter().rev().copied().collect();
        order.sort_by_key(|at| (unseen.contains(at), u64::MAX - ahead.deadlines[*at]));
        match ahead.readers_due(&place)[..] {
            [] => {}
            // Who found this and put another in its place.
            [last] => order.retain(|at| *at == last),
            _ => order.clear(),
        }
        for at in order {
            if let Some(value) = place.value_after(&operations[at]) {
                let mut further = place.clone();
                if matches!(operations[at].what, OperationKind::Write(_)) && !unseen.contains(&at) {
                    // Just before a write that is seen, one that is not makes no difference.
                    for &other in next.iter().filter(|other| unseen.contains(other)) {
                        further.place_operation(&mut steps, other, value);
                    }
                }
                further.place_operation(&mut steps, at, value);
                places.push(further);
            }
        }
        let is_deepest = deepest.as_ref().is_none_or(|(before, _)| before.depth < place.depth);
        if places.len() == before && is_deepest {
            deepest = Some((place, next));
        }
    }
    let (place, next) = deepest.expect("a search ends somewhere");
    let mut ordered = Vec::new();
    let mut last = place.last;
    while let Some((at, before)) = last.map(|step| steps[step]) {
        ordered.push(operations[at]);
        last = before;
    }
    ordered.reverse();
    Err((ordered, next.into_iter().map(|at| operations[at]).collect()))
}

/// Puts what changes nothing where it first can be, which closes no way; gives what can be next then.
fn place_unchanging(
    place: &mut SearchState,
    steps: &mut SearchSteps,
    operations: &[Operation],
) -> Vec<usize> {
    loop {
        let next = place.next_candidates(operations);
        let still = |at: &&usize| {
            let one = &operations[**at];
            one.end.is_some()
                && place.value_after(one) == Some(place.value)
                && !matches!(one.what, OperationKind::Write(_))
        };
        let Some(&at) = next.iter().find(still) else { return next };
        place.place_operation(steps, at, place.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimRng;

    fn op(client: u32, begin: u64, end: u64, what: OperationKind) -> Operation {
        Operation { client, begin, end: Some(end), what }
    }

    fn swap(expected: Stamp, new: Stamp) -> OperationKind {
        OperationKind::CompareAndWrite { expected, new, swapped: true }
    }

    fn verdict(operations: &[Operation]) -> Result<Verdict, Violation> {
        let mut history = History::new(0);
        operations.iter().for_each(|one| history.record(7, *one));
        history.check_linearizable()
    }

    #[test]
    fn what_can_have_happened_passes() {
        use OperationKind::{Read, Write};
        assert_eq!(verdict(&[]), Ok(Verdict::Holds));
        // Two writes at once, and readers that agree on which was last.
        let both = [op(1, 0, 10, Write(1)), op(2, 0, 10, Write(2))];
        assert_eq!(
            verdict(&[both[0], both[1], op(3, 11, 12, Read(1)), op(3, 13, 14, Read(1))]),
            Ok(Verdict::Holds)
        );
        assert_eq!(verdict(&[both[0], both[1], op(3, 11, 12, Read(2))]), Ok(Verdict::Holds));
        // A read while a write goes on gives either.
        assert_eq!(
            verdict(&[op(1, 0, 10, Write(1)), op(2, 2, 3, Read(0)), op(2, 4, 5, Read(1))]),
            Ok(Verdict::Holds)
        );
        // One of two swaps that expect the same; the other is told so.
        let failed = OperationKind::CompareAndWrite { expected: 0, new: 2, swapped: false };
        assert_eq!(verdict(&[op(1, 0, 5, swap(0, 1)), op(2, 0, 5, failed)]), Ok(Verdict::Holds));
    }

    #[test]
    fn an_operation_without_an_answer_may_have_happened_or_not() {
        let lost = Operation { client: 1, begin: 0, end: None, what: OperationKind::Write(1) };
        for seen in [0, 1] {
            assert_eq!(verdict(&[lost, op(2, 50, 60, OperationKind::Read(seen))]), Ok(Verdict::Holds));
        }
        // But not before it was sent, and not twice.
        assert!(verdict(&[op(2, 0, 1, OperationKind::Read(1)), Operation { begin: 2, ..lost }]).is_err());
        let twice = [
            op(2, 1, 2, OperationKind::Read(1)),
            op(2, 3, 4, OperationKind::Write(9)),
            op(2, 5, 6, OperationKind::Read(1)),
        ];
        assert!(verdict(&[&[lost], &twice[..]].concat()).is_err());
        let asked = Operation { what: swap(0, 1), ..lost };
        assert_eq!(verdict(&[asked, op(2, 1, 2, OperationKind::Read(1))]), Ok(Verdict::Holds));
        assert_eq!(
            verdict(&[asked, op(2, 1, 2, OperationKind::Write(5)), op(2, 3, 4, OperationKind::Read(5))]),
            Ok(Verdict::Holds)
        );
    }

    /// Each is a fault that a volume could have.
    #[test]
    fn planted_faults_are_found() {
        use OperationKind::{Read, Write};
        let faults: [(&str, Vec<Operation>); 7] = [
            ("a value out of nothing", vec![op(1, 0, 1, Read(5))]),
            ("a write that is lost", vec![op(1, 0, 1, Write(1)), op(2, 2, 3, Read(0))]),
            (
                "a value that comes back",
                vec![op(1, 0, 1, Write(1)), op(1, 2, 3, Write(2)), op(2, 4, 5, Read(1))],
            ),
            (
                "new, then old, while the write goes on",
                vec![op(1, 0, 10, Write(1)), op(2, 1, 2, Read(1)), op(3, 3, 4, Read(0))],
            ),
            ("two swaps of one value", vec![op(1, 0, 9, swap(0, 1)), op(2, 0, 9, swap(0, 2))]),
            (
                "a swap that overwrites what came between",
                vec![
                    op(1, 0, 9, swap(0, 1)),
                    op(2, 2, 3, Write(5)),
                    op(3, 4, 5, Read(5)),
                    op(3, 10, 11, Read(1)),
                ],
            ),
            (
                "a miscompare of what stood there",
                vec![op(1, 0, 1, OperationKind::CompareAndWrite { expected: 0, new: 1, swapped: false })],
            ),
        ];
        for (fault, operations) in faults {
            let violation = verdict(&operations).expect_err(fault);
            assert_eq!(violation.block, 7);
            assert!(!violation.stuck.is_empty() && violation.to_string().contains("block 7"), "{violation}");
        }
    }

    #[test]
    fn a_miscompare_of_what_stood_there_is_found_behind_writes_that_nobody_saw() {
        use OperationKind::{Read, Write};
        let missed = OperationKind::CompareAndWrite { expected: 2, new: 9, swapped: false };
        let unseen = op(1, 0, 1, Write(1));
        let seen = [op(1, 2, 3, Write(2)), op(2, 4, 5, Read(2))];
        let late = op(2, 20, 21, missed);
        assert!(verdict(&[&[unseen], &seen[..], &[late]].concat()).is_err());
        // By a swap as well as by a write.
        let swapped = [op(1, 2, 3, Write(7)), op(1, 4, 5, swap(7, 2)), op(2, 6, 7, Read(2))];
        assert!(verdict(&[&[unseen], &swapped[..], &[late]].concat()).is_err());
        // It may have found one that nothing has put an end to for certain.
        let lost = Operation { end: None, ..unseen };
        for may in [op(3, 6, 7, Write(1)), op(3, 6, 30, Write(1)), op(3, 0, 2, Write(1)), lost] {
            assert_eq!(verdict(&[&seen[..], &[may, late]].concat()), Ok(Verdict::Holds), "{may}");
        }
    }

    /// A register whose operations take effect at one moment within their time.
    fn real(chance: &mut SimRng, clients: u32, rounds: u64) -> Vec<Operation> {
        let (mut value, mut stamp, mut all) = (0, 0, Vec::new());
        let mut busy = vec![0; clients as usize];
        let mut last = vec![0; clients as usize];
        for moment in (1..=rounds).map(|round| round * 10) {
            // In turn of their moments; begins and ends overlap those of others.
            let client = chance.below(u64::from(clients)) as usize;
            let earliest = (busy[client] + 1).max(moment.saturating_sub(200));
            if earliest > moment {
                continue;
            }
            let begin = chance.between(earliest, moment);
            let end = moment + chance.below(120);
            busy[client] = end;
            stamp += 1;
            let what = match chance.below(3) {
                0 => OperationKind::Read(value),
                1 => {
                    value = stamp;
                    OperationKind::Write(stamp)
                }
                _ => {
                    let expected = if chance.below(2) == 0 { value } else { last[client] };
                    let swapped = expected == value;
                    value = if swapped { stamp } else { value };
                    OperationKind::CompareAndWrite { expected, new: stamp, swapped }
                }
            };
            last[client] = value;
            let end = (chance.below(50) > 0).then_some(end);
            all.push(Operation { client: client as u32, begin, end, what });
        }
        all
    }

    #[test]
    fn what_did_happen_passes_and_a_stale_read_in_it_does_not() {
        let mut caught = 0;
        for seed in 0..60 {
            let mut chance = SimRng::new(seed);
            let history = real(&mut chance, 8, 400);
            assert_eq!(verdict(&history), Ok(Verdict::Holds), "seed {seed}");
            let last = history.iter().filter_map(|one| one.end).max().unwrap();
            let stale = history.iter().find_map(|one| match one.what {
                OperationKind::Write(old) if one.end.is_some_and(|end| end + 2000 < last) => Some(old),
                _ => None,
            });
            let Some(old) = stale else { continue };
            let late = op(99, last + 1, last + 2, OperationKind::Read(old));
            assert!(verdict(&[&history[..], &[late]].concat()).is_err(), "seed {seed}");
            caught += 1;
        }
        assert!(caught > 50);
    }

    /// With as many at once, most orders of the writes leave somebody behind who found one of them.
    #[test]
    fn what_many_did_at_once_is_put_in_order() {
        for seed in 0..40 {
            let chance = &mut SimRng::new(seed);
            let mut value = 0;
            let mut one = |moment: u64| {
                let mut far = || if chance.below(3) == 0 { chance.below(1000) } else { chance.below(20) };
                let (begin, end) = (moment.saturating_sub(far()), moment + far());
                let what = if chance.below(2) == 0 {
                    value = moment;
                    OperationKind::Write(value)
                } else {
                    OperationKind::Read(value)
                };
                op(moment as u32, begin, end, what)
            };
            let history: Vec<Operation> = (1..150).map(|moment| one(moment * 10)).collect();
            assert_eq!(verdict(&history), Ok(Verdict::Holds), "seed {seed}");
        }
    }

    #[test]
    fn long_histories_are_checked_quickly() {
        let history = real(&mut SimRng::new(1), 8, 20_000);
        assert!(history.len() > 5_000);
        assert_eq!(verdict(&history), Ok(Verdict::Holds));
    }
}
