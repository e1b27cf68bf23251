//! Volumes that were created at run time, so that they come back at the next start.

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use crate::{
    name::VolumeName,
    plan::{Origin, Volume},
    spec,
};

/// The record's name.
pub const RECORD: &str = "volumes";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// In the form of the command line.
    spec: String,
}

/// Reads them.
pub fn load(state: &StateDir) -> Result<Vec<Volume>, StateError> {
    let entries: Vec<Entry> = state.read_json(RECORD)?.unwrap_or_default();
    entries.iter().map(|entry| volume(state, entry)).collect()
}

fn volume(state: &StateDir, entry: &Entry) -> Result<Volume, StateError> {
    let damaged = |why: String| StateError::Damaged { path: state.path().join(RECORD), why };
    let name = VolumeName::parse(&entry.name).map_err(|why| damaged(why.to_string()))?;
    let spec = spec::parse(&entry.spec).map_err(|why| damaged(format!("volume {name}: {why}")))?;
    Ok(Volume { name, spec, origin: Origin::Created })
}

/// Writes those of `volumes` that were created at run time.
pub fn save<'a>(state: &StateDir, volumes: impl Iterator<Item = &'a Volume>) -> Result<(), StateError> {
    let created = volumes.filter(|volume| volume.origin == Origin::Created);
    let entries: Vec<Entry> = created
        .map(|volume| Entry { name: volume.name.to_string(), spec: volume.spec.to_string() })
        .collect();
    state.write_json(RECORD, &entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_volumes_come_back_and_configured_ones_are_not_kept() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        assert_eq!(load(&state).unwrap(), []);
        let volume = |name: &str, text: &str, origin| Volume {
            name: VolumeName::parse(name).unwrap(),
            spec: spec::parse(text).unwrap(),
            origin,
        };
        let kept = volume("a", "file:/srv/x\\,y,size=1G,ro", Origin::Created);
        let configured = volume("b", "ram:1M", Origin::Configured);
        save(&state, [&kept, &configured].into_iter()).unwrap();
        assert_eq!(load(&state).unwrap(), [kept]);
        state.write(RECORD, br#"[{"name":"a","spec":"rma:1M"}]"#).unwrap();
        assert!(matches!(load(&state), Err(StateError::Damaged { .. })));
    }
}
