//! Volumes as they are shown: those that are served, those that leave and those that cannot be served.

use super::{FailedVolume, ServedState, exports_by_volume::ExportsByVolume, unknown_name};
use crate::{EngineError, memory, store::Store};
use config::{plan::VolumeOrigin, spec};
use control::{RequestRefusal, report::VolumeReport};
use process::log::area;

impl ServedState {
    pub(super) fn volume_reports(&self) -> Vec<VolumeReport> {
        let exports = ExportsByVolume::of(&self.ways);
        let served = self.stores.iter().map(|store| served_report(store, &exports));
        let leaving = self.leaving.iter().map(|store| {
            let failed = Some(format!("deleted: {}", EngineError::Lingers));
            VolumeReport { failed, ..served_report(store, &exports) }
        });
        served.chain(self.unserved.iter().map(|one| self.failed_report(one))).chain(leaving).collect()
    }

    pub(super) fn volume_report(&self, name: &str) -> Result<VolumeReport, RequestRefusal> {
        let all = self.volume_reports();
        let found = all.iter().find(|report| report.name == name).cloned();
        found.ok_or_else(|| unknown_name("volume", name, all.iter().map(|report| report.name.as_str())))
    }

    /// One volume that was just created or resized, with a warning of what is probably a mistake.
    pub(super) fn changed_volume_report(&self, name: &str) -> Result<VolumeReport, RequestRefusal> {
        let mut report = self.volume_report(name)?;
        let is_ram = self.stores.iter().any(|store| {
            store.volume.name.as_str() == name && memory::volume_ram_bytes(&store.volume.spec) > 0
        });
        if is_ram {
            report.warnings.extend(memory::ram_warning(self.stores.iter().map(|store| &store.volume.spec)));
        }
        for warning in &report.warnings {
            tracing::warn!(target: area::VOLUME, volume = name, "{warning}");
        }
        Ok(report)
    }

    /// The report of a volume that could not be opened.
    fn failed_report(&self, one: &FailedVolume) -> VolumeReport {
        let spec = one.volume.as_ref().map(|volume| &volume.spec);
        let is = |flag: fn(&spec::Spec) -> bool| spec.is_some_and(flag);
        VolumeReport {
            name: one.recorded.name.clone(),
            kind: spec.map_or("unknown", |spec| spec.source.kind()).to_owned(),
            path: spec.and_then(|spec| spec.source.display_location()),
            read_only: is(|spec| spec.read_only),
            write_cache: is(|spec| spec.cache),
            direct: is(|spec| spec.direct),
            thin: is(|spec| spec.thin),
            removable: is(|spec| spec.removable),
            uuid: spec.and_then(|spec| spec.uuid),
            created: one.is_created(),
            failed: Some(one.why.clone()),
            ..VolumeReport::default()
        }
    }

    /// All volumes, without what leads to them.
    pub(super) fn brief_reports(&self) -> Vec<VolumeReport> {
        let leaver = |store| {
            let failed = Some(format!("deleted: {}", EngineError::Lingers));
            VolumeReport { failed, ..brief_report(store) }
        };
        let served = self.stores.iter().map(brief_report);
        let leaving = self.leaving.iter().map(leaver);
        served.chain(self.unserved.iter().map(|one| self.failed_report(one))).chain(leaving).collect()
    }
}

fn served_report(store: &Store, exports: &ExportsByVolume<'_>) -> VolumeReport {
    let name = &store.volume.name;
    VolumeReport { exports: exports.luns(name), namespaces: exports.namespaces(name), ..brief_report(store) }
}

/// The report of an open volume, without what leads to it.
fn brief_report(store: &Store) -> VolumeReport {
    let (volume, spec) = (&store.volume, &store.volume.spec);
    VolumeReport {
        name: volume.name.to_string(),
        kind: spec.source.kind().to_owned(),
        path: spec.source.display_location(),
        size_bytes: Some(store.bytes),
        block_bytes: Some(spec.block),
        physical_bytes: Some(store.physical),
        read_only: spec.read_only,
        write_cache: spec.cache,
        direct: spec.direct,
        thin: spec.thin,
        removable: spec.removable,
        uuid: Some(store.uuid),
        created: volume.origin == VolumeOrigin::Created,
        ..VolumeReport::default()
    }
}
