//! What a failure of the power may leave on a disk at one moment: prefixes of what was written, and what a cache
//! that writes back in any order may make of it.
//!
//! Invariant: of each sector one version is left, or what is stable. What a sync has covered is in every state.

use std::collections::{BTreeMap, BTreeSet};

use volume::{DiskKind, DiskOp};

use super::{Disk, Sector};
use crate::rng::SimRng;

/// Bounds on the states of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashBounds {
    /// Of the newest so many writes that are not stable each is lost alone, and kept alone.
    pub writes_max: usize,
    /// States in which chance decides for each sector.
    pub drawn: usize,
}

impl Disk {
    /// Calls that were carried out: reads, writes, syncs and the rest.
    pub fn call_count(&self) -> u64 {
        self.calls
    }

    /// What a failure of the power may leave at this moment, each state once: nothing of what is not stable; all of it;
    /// for each of the newest writes all but that one, and only that one; and some that are drawn.
    pub fn crash_states(&self, bounds: CrashBounds, chance: &mut SimRng) -> Vec<Disk> {
        let newest = |versions: &[(u64, Sector)]| versions.len().checked_sub(1);
        let mut states = vec![self.with_chosen_versions(|_| None), self.with_chosen_versions(newest)];
        let writes: BTreeSet<u64> = self.cached.values().flatten().map(|(write, _)| *write).collect();
        for &one in writes.iter().rev().take(bounds.writes_max) {
            states.push(
                self.with_chosen_versions(|versions| versions.iter().rposition(|(write, _)| *write != one)),
            );
            states.push(
                self.with_chosen_versions(|versions| versions.iter().rposition(|(write, _)| *write == one)),
            );
        }
        for _ in 0..bounds.drawn {
            let drawn = |versions: &[(u64, Sector)]| {
                (chance.below(versions.len() as u64 + 1) as usize).checked_sub(1)
            };
            states.push(self.with_chosen_versions(drawn));
        }
        let mut seen = BTreeSet::new();
        states.retain(|state| seen.insert(state.stable.clone()));
        states
    }

    /// The disk with, of each sector, the version that is chosen, or what is stable.
    fn with_chosen_versions(&self, mut choose: impl FnMut(&[(u64, Sector)]) -> Option<usize>) -> Disk {
        let mut left =
            Disk { stable: self.stable.clone(), ..Disk::with_sector_len(self.sector, self.faults) };
        for (sector, versions) in &self.cached {
            if let Some((_, data)) = choose(versions).and_then(|at| versions.get(at)) {
                left.stable.insert(*sector, data.clone());
            }
        }
        left
    }

    /// What is out and writes is in the cache from now on, as if it had just been carried out.
    pub(crate) fn cache_in_flight(&mut self, op: &DiskOp) {
        match &op.kind {
            DiskKind::Write { offset, from, skip, .. } => {
                let mut bytes = vec![0; from.len() - *skip];
                from.copy_to(*skip, &mut bytes);
                self.write(*offset + *skip as u64, &bytes);
            }
            DiskKind::Punch { offset, len } | DiskKind::Zero { offset, len } if !self.faults.no_holes => {
                self.write(*offset, &vec![0; *len as usize]);
            }
            DiskKind::Punch { .. }
            | DiskKind::Zero { .. }
            | DiskKind::Read { .. }
            | DiskKind::Sync
            | DiskKind::NextData { .. }
            | DiskKind::Prefetch { .. } => {}
        }
    }
}

/// The states of several disks together: each state of each of them is in one at least.
pub fn combine_crash_states(
    disks: &BTreeMap<volume::DiskId, Disk>,
    bounds: CrashBounds,
    chance: &mut SimRng,
) -> Vec<BTreeMap<volume::DiskId, Disk>> {
    let each: Vec<(volume::DiskId, Vec<Disk>)> =
        disks.iter().map(|(id, disk)| (*id, disk.crash_states(bounds, chance))).collect();
    let many = each.iter().map(|(_, states)| states.len()).max().unwrap_or(0);
    let of = |number: usize, (id, states): &(volume::DiskId, Vec<Disk>)| {
        Some((*id, states.get(number % states.len().max(1))?.clone()))
    };
    (0..many).map(|number| each.iter().filter_map(|states| of(number, states)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskFaults;

    fn states(disk: &Disk, bounds: CrashBounds) -> BTreeSet<Vec<u8>> {
        let of = |state: &Disk| {
            let mut bytes = vec![0; 1024];
            state.read(0, &mut bytes);
            vec![bytes[0], bytes[512]]
        };
        disk.crash_states(bounds, &mut SimRng::new(1)).iter().map(of).collect()
    }

    #[test]
    fn each_write_is_lost_and_kept_alone_and_what_was_synced_stays() {
        let mut disk = Disk::new(DiskFaults::default());
        disk.write(0, &[1; 1024]);
        disk.sync_all();
        disk.write(0, &[2; 512]);
        disk.write(512, &[3; 512]);
        let none = CrashBounds { writes_max: 0, drawn: 0 };
        assert_eq!(states(&disk, none), BTreeSet::from([vec![1, 1], vec![2, 3]]), "nothing, and all");
        let each = CrashBounds { writes_max: 2, drawn: 0 };
        let all = BTreeSet::from([vec![1, 1], vec![2, 1], vec![1, 3], vec![2, 3]]);
        assert_eq!(states(&disk, each), all);
        disk.sync_all();
        assert_eq!(states(&disk, each), BTreeSet::from([vec![2, 3]]));
    }

    #[test]
    fn a_write_is_torn_at_any_sector_and_versions_between_are_left_too() {
        let mut disk = Disk::new(DiskFaults::default());
        for fill in 1..=3 {
            disk.write(0, &[fill; 1024]);
        }
        let seen = states(&disk, CrashBounds { writes_max: 3, drawn: 200 });
        let every = (0..4).flat_map(|one| (0..4).map(move |other| vec![one, other])).collect();
        assert_eq!(seen, every);
    }
}
