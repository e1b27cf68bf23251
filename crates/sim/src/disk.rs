//! Disks that delay, reorder, cut short, fail, and forget what was not synced.

use std::collections::BTreeMap;

use buf::Errno;
use volume::{DiskKind, DiskOp};

use crate::chance::Chance;

const SECTOR: u64 = 512;
/// EIO and ENOSPC, as Linux numbers them.
const EIO: Errno = Errno(5);
const ENOSPC: Errno = Errno(28);

/// How often a disk misbehaves, in thousandths of its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads and writes that move fewer bytes than asked.
    pub short_permille: u32,
    /// EIO.
    pub error_permille: u32,
    /// ENOSPC on a write.
    pub full_permille: u32,
    /// A failing sync. What was not synced before may be lost.
    pub sync_permille: u32,
}

/// A disk's contents: what is stable, and over it what only the cache has.
#[derive(Debug, Default)]
pub struct Disk {
    stable: BTreeMap<u64, [u8; SECTOR as usize]>,
    cached: BTreeMap<u64, [u8; SECTOR as usize]>,
    /// The disk's faults.
    pub faults: Faults,
}

impl Disk {
    /// A disk that reads zero everywhere.
    pub fn new(faults: Faults) -> Self {
        Disk { faults, ..Disk::default() }
    }

    /// The bytes at `offset`, as a reader sees them.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            let sector = at / SECTOR;
            let found = self.cached.get(&sector).or_else(|| self.stable.get(&sector));
            *byte = found.map_or(0, |data| data[(at % SECTOR) as usize]);
        }
    }

    /// Writes into the cache.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        for (at, &byte) in (offset..).zip(from) {
            let sector = at / SECTOR;
            let stable = &self.stable;
            let data = self
                .cached
                .entry(sector)
                .or_insert_with(|| stable.get(&sector).copied().unwrap_or([0; SECTOR as usize]));
            data[(at % SECTOR) as usize] = byte;
        }
    }

    fn sync(&mut self) {
        self.stable.append(&mut self.cached);
    }

    /// The power fails: each sector that only the cache had is kept or lost by chance.
    pub fn lose_power(&mut self, chance: &mut Chance) {
        for (sector, data) in std::mem::take(&mut self.cached) {
            if chance.permille(500) {
                self.stable.insert(sector, data);
            }
        }
    }

    /// Carries an operation out.
    pub(crate) fn run(&mut self, chance: &mut Chance, op: &mut DiskOp) -> Result<usize, Errno> {
        if chance.permille(self.faults.error_permille) {
            return Err(EIO);
        }
        match &mut op.kind {
            DiskKind::Read { offset, into, skip } => {
                let len = self.shorten(chance, into.len() - *skip);
                let mut at = *offset + *skip as u64;
                for slice in into.slices_mut(*skip..*skip + len) {
                    self.read(at, slice);
                    at += slice.len() as u64;
                }
                Ok(len)
            }
            DiskKind::Write { offset, from, skip, durable } => {
                if chance.permille(self.faults.full_permille) {
                    return Err(ENOSPC);
                }
                let len = self.shorten(chance, from.len() - *skip);
                let mut bytes = vec![0; len];
                from.copy_to(*skip, &mut bytes);
                self.write(*offset + *skip as u64, &bytes);
                if *durable {
                    self.harden(*offset + *skip as u64, len as u64);
                }
                Ok(len)
            }
            DiskKind::Sync if chance.permille(self.faults.sync_permille) => {
                // The kernel forgets what it could not write, and says so once.
                self.lose_power(chance);
                Err(EIO)
            }
            DiskKind::Sync => {
                self.sync();
                Ok(0)
            }
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

    fn shorten(&self, chance: &mut Chance, len: usize) -> usize {
        if len > SECTOR as usize && chance.permille(self.faults.short_permille) {
            (chance.between(1, len as u64 / SECTOR) * SECTOR) as usize
        } else {
            len
        }
    }

    fn harden(&mut self, offset: u64, len: u64) {
        for sector in offset / SECTOR..=(offset + len - 1) / SECTOR {
            if let Some(data) = self.cached.remove(&sector) {
                self.stable.insert(sector, data);
            }
        }
    }

    fn next_data(&self, offset: u64) -> Option<(u64, u64)> {
        let live = |sector: &u64| {
            let found = self.cached.get(sector).or_else(|| self.stable.get(sector));
            found.is_some_and(|data| data.iter().any(|&byte| byte != 0))
        };
        let from = offset / SECTOR;
        let cached = self.cached.range(from..).map(|(sector, _)| *sector).find(|sector| live(sector));
        let stable = self.stable.range(from..).map(|(sector, _)| *sector).find(|sector| live(sector));
        let first = [cached, stable].into_iter().flatten().min()?;
        let mut end = first;
        while live(&end) {
            end += 1;
        }
        Some(((first * SECTOR).max(offset), end * SECTOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_failure_keeps_what_was_synced() {
        let mut disk = Disk::default();
        disk.write(0, &[1; 1024]);
        disk.sync();
        disk.write(0, &[2; 512]);
        let mut lost = 0;
        for seed in 0..32 {
            let mut disk =
                Disk { stable: disk.stable.clone(), cached: disk.cached.clone(), faults: disk.faults };
            disk.lose_power(&mut Chance::new(seed));
            let mut bytes = [0; 1024];
            disk.read(0, &mut bytes);
            assert!(bytes[..512] == [1; 512] || bytes[..512] == [2; 512], "sectors are whole");
            assert_eq!(bytes[512..], [1; 512]);
            lost += usize::from(bytes[0] == 1);
        }
        assert!(lost > 0 && lost < 32, "chance decides");
    }
}
