//! What leads to each volume, for reports of many of them.
//!
//! Invariant: it is made in one pass over all targets and subsystems, so that listing volumes takes time in proportion
//! to their number.

use std::collections::HashMap;

use config::{name::VolumeName, plan::ExportPlan};
use control::report::{ExportReport, NamespaceExportReport};

/// LUNs and namespaces, by the volume that they lead to.
#[derive(Debug, Default)]
pub(super) struct ExportsByVolume<'a> {
    luns: HashMap<&'a VolumeName, Vec<ExportReport>>,
    namespaces: HashMap<&'a VolumeName, Vec<NamespaceExportReport>>,
}

impl<'a> ExportsByVolume<'a> {
    /// All that leads somewhere now.
    pub(super) fn of(ways: &'a ExportPlan) -> Self {
        let mut found = ExportsByVolume::default();
        for target in &ways.targets {
            for lun in &target.luns {
                let report =
                    ExportReport { target: target.name.clone(), lun: lun.lun, read_only: lun.read_only };
                found.luns.entry(&lun.volume).or_default().push(report);
            }
        }
        for subsystem in &ways.subsystems {
            for one in &subsystem.namespaces {
                let report = NamespaceExportReport {
                    subsystem: subsystem.nqn.clone(),
                    nsid: one.nsid,
                    read_only: one.read_only,
                    ana_group: one.ana_group,
                };
                found.namespaces.entry(&one.volume).or_default().push(report);
            }
        }
        found
    }

    /// The LUNs of a volume, in the order of their targets.
    pub(super) fn luns(&self, volume: &VolumeName) -> Vec<ExportReport> {
        self.luns.get(volume).cloned().unwrap_or_default()
    }

    /// Its namespaces, in the order of their subsystems.
    pub(super) fn namespaces(&self, volume: &VolumeName) -> Vec<NamespaceExportReport> {
        self.namespaces.get(volume).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;

    #[test]
    fn each_volume_has_all_that_leads_to_it_and_nothing_else() {
        let ways = example_plan().ways;
        let found = ExportsByVolume::of(&ways);
        let name = |name: &str| VolumeName::parse(name).unwrap();
        let luns: usize = ways.targets.iter().map(|target| target.luns.len()).sum();
        assert_eq!(found.luns.values().map(Vec::len).sum::<usize>(), luns);
        let install = found.luns(&name("install"));
        assert!(install.iter().any(|one| one.target == "iqn.2026-11.com.example:db" && one.lun == 1));
        let install = found.namespaces(&name("install"));
        assert_eq!(install.iter().map(|one| (one.nsid, one.ana_group)).collect::<Vec<_>>(), [(4, 2)]);
        assert!(found.luns(&name("nowhere")).is_empty() && found.namespaces(&name("nowhere")).is_empty());
    }
}
