//! Disks that delay, reorder, shorten and fail operations, and lose data that was not synced.

use std::collections::BTreeMap;

use buf::Errno;
use volume::{DiskKind, DiskOp};

use crate::rng::SimRng;

mod crash;

pub use crash::{CrashBounds, combine_crash_states};

/// EIO and ENOSPC, as Linux numbers them.
const EIO: Errno = Errno(5);
const ENOSPC: Errno = Errno(28);
/// EOPNOTSUPP.
const EOPNOTSUPP: Errno = Errno(95);

/// How often a disk misbehaves, in thousandths of its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Reads and writes that move fewer bytes than asked.
    pub short_permille: u32,
    /// EIO. Of a write that fails so a part may be there all the same.
    pub error_permille: u32,
    /// ENOSPC on a write, or on what zeroes and keeps the space.
    pub full_permille: u32,
    /// A failing sync, or the sync of a write that is stable by itself. What was not synced before is read
    /// still, but may never become stable.
    pub sync_permille: u32,
    /// Writes into the cache that the system cannot write back later, in part at least. It is read still, never
    /// becomes stable, and the next call that syncs is told, and no other.
    pub lost_permille: u32,
    /// Reads that find each sector as it is at a time of its own: what is written meanwhile is seen in part.
    pub torn_permille: u32,
    /// The file system cannot punch holes or zero a range: EOPNOTSUPP.
    pub no_holes: bool,
}

/// A disk's contents: what is stable, and over it what only the cache has.
///
/// A sync covers the writes that had ended when it began, and no more: of what was written meanwhile
/// each sector's newer version may or may not be stable afterwards. So the cache keeps versions.
#[derive(Clone, Debug)]
pub struct Disk {
    stable: BTreeMap<u64, Sector>,
    /// For each sector its versions, oldest first, each with the number of its write.
    cached: BTreeMap<u64, Vec<(u64, Sector)>>,
    /// What a sync failed to write: it is read still, and no later sync writes it, as kernels do.
    forgotten: BTreeMap<u64, Sector>,
    /// How many writes there have been.
    writes: u64,
    /// How many calls were carried out.
    calls: u64,
    /// Something is forgotten, and nobody was told yet.
    untold: bool,
    /// A call was told that something is forgotten, or that its sync has failed.
    told: bool,
    /// Bytes of a sector, which is written whole or not at all.
    sector: usize,
    /// The disk's faults.
    pub faults: DiskFaults,
}

type Sector = Box<[u8]>;

impl Default for Disk {
    fn default() -> Self {
        Disk::new(DiskFaults::default())
    }
}

impl Disk {
    /// A disk that reads zero everywhere, with sectors of 512 bytes.
    pub fn new(faults: DiskFaults) -> Self {
        Disk::with_sector_len(512, faults)
    }

    /// The same with sectors of so many bytes: at least 1.
    pub fn with_sector_len(sector: usize, faults: DiskFaults) -> Self {
        assert!(sector > 0, "a sector has bytes");
        let (stable, cached, forgotten) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Disk { stable, cached, forgotten, writes: 0, calls: 0, untold: false, told: false, sector, faults }
    }

    /// The number of the sector at `offset`, and where in it that is.
    fn sector_position(&self, offset: u64) -> (u64, usize) {
        (offset / self.sector as u64, (offset % self.sector as u64) as usize)
    }

    /// How many writes there have been: what a sync that begins now covers.
    pub(crate) fn write_count(&self) -> u64 {
        self.writes
    }

    fn newest_sector(&self, sector: u64) -> Option<&Sector> {
        let newest = self.cached.get(&sector).and_then(|versions| versions.last());
        let newest = newest.map(|(_, data)| data).or_else(|| self.forgotten.get(&sector));
        newest.or_else(|| self.stable.get(&sector))
    }

    /// The bytes at `offset`, as a reader sees them.
    #[expect(clippy::indexing_slicing, reason = "a part of a sector lies within it")]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let mut at = offset;
        let mut into = into;
        while !into.is_empty() {
            let (sector, within) = self.sector_position(at);
            let (now, later) = into.split_at_mut(into.len().min(self.sector - within));
            match self.newest_sector(sector) {
                Some(data) => now.copy_from_slice(&data[within..within + now.len()]),
                None => now.fill(0),
            }
            at += now.len() as u64;
            into = later;
        }
    }

    /// Writes into the cache.
    #[expect(clippy::indexing_slicing, reason = "a part of a sector lies within it")]
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        self.writes += 1;
        let (mut at, mut from) = (offset, from);
        while !from.is_empty() {
            let (sector, within) = self.sector_position(at);
            let (now, later) = from.split_at(from.len().min(self.sector - within));
            let blank = || vec![0; self.sector].into();
            let mut data: Sector = self.newest_sector(sector).cloned().unwrap_or_else(blank);
            data[within..within + now.len()].copy_from_slice(now);
            self.cached.entry(sector).or_default().push((self.writes, data));
            self.forgotten.remove(&sector);
            at += now.len() as u64;
            from = later;
        }
    }

    /// Whether a call was told that something cannot be made stable. Who was told may have been killed since.
    pub fn has_reported_failure(&self) -> bool {
        self.told
    }

    /// Who began this is gone, and nobody hears how it ends: it is carried out, or not.
    pub(crate) fn run_for_dead_caller(&mut self, chance: &mut SimRng, mut op: DiskOp, begun: u64) {
        if chance.chance_permille(500) {
            let came = self.execute(chance, &mut op, begun);
            self.note_unreported_failure(&op, came);
        }
    }

    /// The power fails while this is under way: what it was to write is in the cache by now, or not.
    pub(crate) fn run_at_power_loss(&mut self, chance: &mut SimRng, mut op: DiskOp, begun: u64) {
        if let DiskKind::Write { durable, .. } = &mut op.kind {
            *durable = false;
        }
        self.run_for_dead_caller(chance, op, begun);
    }

    /// A call that was told so will never hear of it: the next one that syncs is told.
    pub(crate) fn note_unreported_failure(&mut self, op: &DiskOp, came: Result<usize, Errno>) {
        if came.is_err() && matches!(op.kind, DiskKind::Sync | DiskKind::Write { durable: true, .. }) {
            self.untold = true;
        }
    }

    /// Makes stable all that was written.
    pub fn sync_all(&mut self) {
        self.sync_writes_before(self.writes);
    }

    /// Makes stable what the first `covered` writes left.
    fn sync_writes_before(&mut self, covered: u64) {
        let stable = &mut self.stable;
        self.cached.retain(|sector, versions| {
            let old = versions.iter().take_while(|(number, _)| *number <= covered).count();
            if let Some((_, data)) = versions.drain(..old).next_back() {
                stable.insert(*sector, data);
            }
            !versions.is_empty()
        });
    }

    /// A sync fails: the kernel says so once, and takes what it could not write for written.
    fn fail_sync(&mut self, chance: &mut SimRng) {
        for (sector, mut versions) in std::mem::take(&mut self.cached) {
            let Some((_, newest)) = versions.pop() else { continue };
            if chance.chance_permille(500) {
                self.stable.insert(sector, newest);
            } else {
                self.forgotten.insert(sector, newest);
            }
        }
    }

    /// The system cannot write back what the newest write left in these sectors, and will say so to the next call
    /// that syncs.
    fn fail_writeback(&mut self, offset: u64, len: u64) {
        for sector in self.sector_position(offset).0..=self.sector_position(offset + len - 1).0 {
            if let Some((_, newest)) = self.cached.remove(&sector).and_then(|mut versions| versions.pop()) {
                self.forgotten.insert(sector, newest);
            }
        }
        self.untold = true;
    }

    /// A call syncs: whether it is told of a failure.
    fn sync_reports_failure(&mut self, chance: &mut SimRng) -> bool {
        let fails = self.faults.sync_permille > 0 && chance.chance_permille(self.faults.sync_permille);
        if fails {
            self.fail_sync(chance);
        }
        let tells = std::mem::take(&mut self.untold) || fails;
        self.told |= tells;
        tells
    }

    /// The power fails: of each sector that is in the cache any version may have reached the medium,
    /// or none.
    pub fn lose_power(&mut self, chance: &mut SimRng) {
        (self.untold, self.told) = (false, false);
        self.forgotten.clear();
        for (sector, versions) in std::mem::take(&mut self.cached) {
            let kept = chance.below(versions.len() as u64 + 1) as usize;
            if let Some((_, data)) = versions.get(kept) {
                self.stable.insert(sector, data.clone());
            }
        }
    }

    /// Whether a read is torn: then its first part is read, and so many bytes of it are.
    pub(crate) fn tear_read(&self, chance: &mut SimRng, op: &mut DiskOp) -> Option<usize> {
        let DiskKind::Read { offset, into, skip } = &mut op.kind else { return None };
        let len = into.len() - *skip;
        if self.faults.torn_permille == 0
            || len <= self.sector
            || !chance.chance_permille(self.faults.torn_permille)
        {
            return None;
        }
        let first = chance.between(1, (len - 1) as u64 / self.sector as u64) as usize * self.sector;
        self.read_into(*offset, into, *skip..*skip + first);
        Some(first)
    }

    /// Reads the rest of a torn read; gives the bytes of both parts.
    pub(crate) fn finish_torn_read(&self, op: &mut DiskOp, first: usize) -> usize {
        let DiskKind::Read { offset, into, skip } = &mut op.kind else { return 0 };
        let len = into.len();
        self.read_into(*offset, into, *skip + first..len);
        len - *skip
    }

    fn read_into(&self, offset: u64, into: &mut buf::SgMut, range: std::ops::Range<usize>) {
        let mut at = offset + range.start as u64;
        for slice in into.slices_mut(range) {
            self.read(at, slice);
            at += slice.len() as u64;
        }
    }

    /// Carries an operation out that began when there had been `begun` writes.
    pub(crate) fn execute(
        &mut self,
        chance: &mut SimRng,
        op: &mut DiskOp,
        begun: u64,
    ) -> Result<usize, Errno> {
        self.calls += 1;
        if chance.chance_permille(self.faults.error_permille) {
            // Of a call that syncs nobody can say which half has failed.
            self.told |= matches!(op.kind, DiskKind::Sync);
            self.write_partially(chance, &op.kind);
            return Err(EIO);
        }
        match &mut op.kind {
            DiskKind::Read { offset, into, skip } => {
                let len = self.random_shorter_len(chance, into.len() - *skip);
                self.read_into(*offset, into, *skip..*skip + len);
                Ok(len)
            }
            DiskKind::Write { offset, from, skip, durable } => {
                if chance.chance_permille(self.faults.full_permille) {
                    return Err(ENOSPC);
                }
                let len = self.random_shorter_len(chance, from.len() - *skip);
                let mut bytes = vec![0; len];
                from.copy_to(*skip, &mut bytes);
                let at = *offset + *skip as u64;
                self.write(at, &bytes);
                if *durable {
                    let fails = self.sync_reports_failure(chance);
                    self.make_stable(at, len as u64);
                    return if fails { Err(EIO) } else { Ok(len) };
                }
                if self.faults.lost_permille > 0 && chance.chance_permille(self.faults.lost_permille) {
                    self.fail_writeback(at, len as u64);
                }
                Ok(len)
            }
            DiskKind::Sync => {
                let fails = self.sync_reports_failure(chance);
                self.sync_writes_before(begun);
                if fails { Err(EIO) } else { Ok(0) }
            }
            DiskKind::Punch { .. } | DiskKind::Zero { .. } if self.faults.no_holes => Err(EOPNOTSUPP),
            DiskKind::Zero { .. } if chance.chance_permille(self.faults.full_permille) => Err(ENOSPC),
            DiskKind::Punch { offset, len } | DiskKind::Zero { offset, len } => {
                let zeroes = vec![0; *len as usize];
                self.write(*offset, &zeroes);
                Ok(0)
            }
            DiskKind::NextData { offset, data } => {
                *data = self.next_data(*offset);
                Ok(0)
            }
            DiskKind::Prefetch { .. } => Ok(0),
        }
    }

    /// A call that writes fails: of what it was to write nothing is there, or all up to some sector.
    fn write_partially(&mut self, chance: &mut SimRng, kind: &DiskKind) {
        let (offset, mut bytes) = match kind {
            DiskKind::Write { offset, from, skip, .. } => {
                let mut bytes = vec![0; from.len() - *skip];
                from.copy_to(*skip, &mut bytes);
                (*offset + *skip as u64, bytes)
            }
            DiskKind::Punch { offset, len } | DiskKind::Zero { offset, len } => {
                (*offset, vec![0; *len as usize])
            }
            DiskKind::Read { .. }
            | DiskKind::Sync
            | DiskKind::NextData { .. }
            | DiskKind::Prefetch { .. } => return,
        };
        let sectors = chance.below((bytes.len() / self.sector) as u64 + 1) as usize;
        if sectors > 0 && chance.chance_permille(500) {
            bytes.truncate(sectors * self.sector);
            self.write(offset, &bytes);
        }
    }

    fn random_shorter_len(&self, chance: &mut SimRng, len: usize) -> usize {
        if len > self.sector && chance.chance_permille(self.faults.short_permille) {
            chance.between(1, (len / self.sector) as u64) as usize * self.sector
        } else {
            len
        }
    }

    fn make_stable(&mut self, offset: u64, len: u64) {
        for sector in self.sector_position(offset).0..=self.sector_position(offset + len - 1).0 {
            let newest = self.cached.remove(&sector).and_then(|mut versions| versions.pop());
            if let Some((_, data)) = newest {
                self.stable.insert(sector, data);
            }
        }
    }

    fn next_data(&self, offset: u64) -> Option<(u64, u64)> {
        let live =
            |sector: &u64| self.newest_sector(*sector).is_some_and(|data| data.iter().any(|&byte| byte != 0));
        let from = self.sector_position(offset).0;
        let cached = self.cached.range(from..).map(|(sector, _)| *sector).find(|sector| live(sector));
        let stable = self.stable.range(from..).map(|(sector, _)| *sector).find(|sector| live(sector));
        let first = [cached, stable].into_iter().flatten().min()?;
        let mut end = first;
        while live(&end) {
            end += 1;
        }
        let bytes = self.sector as u64;
        Some(((first * bytes).max(offset), end * bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_failure_keeps_what_was_synced() {
        let mut disk = Disk::default();
        disk.write(0, &[1; 1024]);
        disk.sync_writes_before(disk.write_count());
        disk.write(0, &[2; 512]);
        let mut lost = 0;
        for seed in 0..32 {
            let mut disk = disk.clone();
            disk.lose_power(&mut SimRng::new(seed));
            let mut bytes = [0; 1024];
            disk.read(0, &mut bytes);
            assert!(bytes[..512] == [1; 512] || bytes[..512] == [2; 512], "sectors are whole");
            assert_eq!(bytes[512..], [1; 512]);
            lost += usize::from(bytes[0] == 1);
        }
        assert!(lost > 0 && lost < 32, "chance decides");
    }

    #[test]
    fn a_sync_covers_what_ended_before_it_began() {
        let mut disk = Disk::default();
        disk.write(0, &[1; 512]);
        let begun = disk.write_count();
        disk.write(0, &[2; 512]);
        disk.write(512, &[2; 512]);
        disk.sync_writes_before(begun);
        let mut seen = [false; 3];
        for seed in 0..32 {
            let mut disk = disk.clone();
            disk.lose_power(&mut SimRng::new(seed));
            let mut bytes = [0; 512];
            disk.read(0, &mut bytes);
            seen[usize::from(bytes[0])] = true;
        }
        assert_eq!(seen, [false, true, true]);
    }

    /// A disk that loses all that it takes into its cache, and a call.
    fn call(disk: &mut Disk, kind: DiskKind) -> Result<usize, Errno> {
        let begun = disk.write_count();
        let mut op = DiskOp { disk: volume::DiskId(0), ticket: volume::DiskTicket(0), kind };
        disk.execute(&mut SimRng::new(7), &mut op, begun)
    }

    fn write(disk: &mut Disk, at: u64, fill: u8, durable: bool) -> Result<usize, Errno> {
        let pool = buf::Pool::new(1 << 20);
        let mut from = pool.take_sg(buf::MemoryClass::Wire, 512).unwrap();
        from.copy_from(0, &[fill; 512]);
        call(disk, DiskKind::Write { offset: at, from: from.freeze(), skip: 0, durable })
    }

    #[test]
    fn a_torn_read_sees_a_write_between_its_parts() {
        let disk = Disk::new(DiskFaults { torn_permille: 1000, ..DiskFaults::default() });
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let mut disk = disk.clone();
            disk.write(0, &[1; 2048]);
            let pool = buf::Pool::new(1 << 20);
            let into = pool.take_sg(buf::MemoryClass::Wire, 2048).unwrap();
            let kind = DiskKind::Read { offset: 0, into, skip: 0 };
            let mut op = DiskOp { disk: volume::DiskId(0), ticket: volume::DiskTicket(0), kind };
            let first = disk.tear_read(&mut SimRng::new(seed), &mut op).unwrap();
            disk.write(0, &[2; 2048]);
            assert_eq!(disk.finish_torn_read(&mut op, first), 2048);
            let DiskKind::Read { into, .. } = op.kind else { unreachable!() };
            let mut bytes = [0; 2048];
            into.freeze().copy_to(0, &mut bytes);
            assert!(bytes[..first] == vec![1; first] && bytes[first..] == vec![2; 2048 - first]);
            seen.insert(first);
        }
        assert_eq!(Vec::from_iter(seen), [512, 1024, 1536]);
    }

    #[test]
    fn a_disk_without_holes_refuses_them() {
        let mut disk = Disk::new(DiskFaults { no_holes: true, ..DiskFaults::default() });
        assert_eq!(call(&mut disk, DiskKind::Punch { offset: 0, len: 512 }), Err(EOPNOTSUPP));
        assert_eq!(call(&mut disk, DiskKind::Zero { offset: 0, len: 512 }), Err(EOPNOTSUPP));
    }

    #[test]
    fn what_cannot_be_written_back_is_told_once_to_whatever_syncs_next() {
        for by_a_stable_write in [false, true] {
            let mut disk = Disk::new(DiskFaults { lost_permille: 1000, ..DiskFaults::default() });
            assert_eq!(write(&mut disk, 0, 1, false), Ok(512));
            if by_a_stable_write {
                assert_eq!(write(&mut disk, 512, 2, true), Err(EIO));
            } else {
                assert_eq!(call(&mut disk, DiskKind::Sync), Err(EIO));
            }
            assert!(disk.has_reported_failure());
            assert_eq!(call(&mut disk, DiskKind::Sync), Ok(0), "and to nobody again");
            let mut bytes = [0; 512];
            disk.read(0, &mut bytes);
            assert_eq!(bytes, [1; 512], "it is read still");
            disk.lose_power(&mut SimRng::new(7));
            disk.read(0, &mut bytes);
            assert_eq!(bytes, [0; 512]);
        }
    }
}
