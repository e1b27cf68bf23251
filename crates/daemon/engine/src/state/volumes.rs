//! Volumes created at run time, so that they exist again after the next start.

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use config::{
    name::VolumeName,
    plan::{Volume, VolumeOrigin},
    spec,
};

/// The record's name.
pub const RECORD_NAME: &str = "volumes";

/// A volume as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// Its name.
    pub name: String,
    /// In the form of the command line.
    pub spec: String,
}

impl VolumeRecord {
    /// The volume, or what is wrong with its record. One that cannot be read says nothing of the others.
    pub fn to_volume(&self) -> Result<Volume, String> {
        let name =
            VolumeName::parse(&self.name).map_err(|why| format!("its record cannot be read: {why}"))?;
        let (spec, _) =
            spec::parse_legacy(&self.spec).map_err(|why| format!("its record cannot be read: {why}"))?;
        Ok(Volume { name, spec, origin: VolumeOrigin::Created })
    }
}

impl From<&Volume> for VolumeRecord {
    fn from(volume: &Volume) -> Self {
        VolumeRecord { name: volume.name.to_string(), spec: volume.spec.to_string() }
    }
}

/// Reads them.
pub fn load_volumes(state: &StateDir) -> Result<Vec<VolumeRecord>, StateError> {
    Ok(state.read_json(RECORD_NAME)?.unwrap_or_default())
}

/// Writes those of `volumes` that were created at run time, and those that are not served but shall come back.
pub fn save_volumes<'a>(
    state: &StateDir,
    volumes: impl Iterator<Item = &'a Volume>,
    unserved: impl Iterator<Item = &'a VolumeRecord>,
) -> Result<(), StateError> {
    let created = volumes.filter(|volume| volume.origin == VolumeOrigin::Created).map(VolumeRecord::from);
    let entries: Vec<VolumeRecord> = created.chain(unserved.cloned()).collect();
    state.write_json(RECORD_NAME, &entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_volumes_come_back_and_configured_ones_are_not_kept() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        assert_eq!(load_volumes(&state).unwrap(), []);
        let volume = |name: &str, text: &str, origin| Volume {
            name: VolumeName::parse(name).unwrap(),
            spec: spec::parse(text).unwrap(),
            origin,
        };
        let kept = volume("a", "file:/srv/x\\,y,size=1G,ro", VolumeOrigin::Created);
        let configured = volume("b", "ram:1M", VolumeOrigin::Configured);
        let odd = VolumeRecord { name: "odd".into(), spec: "rma:1M".into() };
        save_volumes(&state, [&kept, &configured].into_iter(), [&odd].into_iter()).unwrap();
        let loaded = load_volumes(&state).unwrap();
        assert_eq!(loaded[0].to_volume(), Ok(kept));
        // What an earlier version took, and this one does not.
        for (before, now) in
            [("ram:1M,thin=off", "ram:1M"), ("stripe:null:1M\\,thin=off+ram:1M", "stripe:null:1M+ram:1M")]
        {
            let older = VolumeRecord { name: "older".into(), spec: before.into() };
            assert_eq!(older.to_volume().map(|volume| volume.spec), Ok(spec::parse(now).unwrap()));
        }
        // One that cannot be read keeps no other from being read, and is not forgotten.
        assert_eq!(loaded[1], odd);
        assert!(loaded[1].to_volume().unwrap_err().contains("cannot be read"));
        state.write_record(RECORD_NAME, b"[{]").unwrap();
        assert!(matches!(load_volumes(&state), Err(StateError::Damaged { .. })));
    }
}
