//! A backup of the running daemon: no change is under way while it is made.

use std::collections::HashMap;

use super::Daemon;
use crate::backup::{BackedVolume, BackupContent};
use config::{ConfigFiles, plan::Volume};
use control::{REPLY_BYTES_MAX, RefusalCode, RequestRefusal, secret_bytes::SecretBytes};

/// Most bytes of a backup that one reply holds, two digits for each.
const REPLIED_BYTES_MAX: u64 = REPLY_BYTES_MAX / 2 - 1024;

impl Daemon {
    /// All records and the configuration, as they are at one moment: between two changes.
    pub(super) fn backup(&self) -> Result<SecretBytes, RequestRefusal> {
        let failed = |why: String| RequestRefusal::new(RefusalCode::Failed, why);
        let (configuration, mut lacks) =
            (self.configuration.is_some().then(|| self.configuration()).transpose()?, Vec::new());
        if configuration.is_none() {
            lacks.push("the files of --chiscsi and --policy".to_owned());
        }
        let unchanged = self.volumes.lock_changes()?;
        let planned = self.volumes.served_plan().volumes;
        let served = self.volumes.lock_served();
        let uuids: HashMap<_, _> =
            served.stores.iter().map(|store| (&store.volume.name, store.uuid)).collect();
        let backed = |volume: &Volume| BackedVolume {
            name: volume.name.to_string(),
            spec: volume.spec.to_string(),
            uuid: uuids.get(&volume.name).copied(),
        };
        let volumes = planned.iter().map(backed).collect();
        drop(served);
        let none = ConfigFiles::default();
        let content = BackupContent {
            directory: self.volumes.state.path(),
            state: self.volumes.state.copy_records().map_err(|why| failed(why.to_string()))?,
            configuration: configuration.as_ref().map_or(&none, |configuration| &configuration.current),
            volumes,
            lacks,
        };
        drop(unchanged);
        let bytes = content.into_bytes().map_err(|why| failed(why.to_string()))?;
        if bytes.len() as u64 > REPLIED_BYTES_MAX {
            return Err(failed(format!(
                "the backup has {} bytes, more than the {REPLIED_BYTES_MAX} that the control socket carries: stop the \
                 daemon and make it again",
                bytes.len()
            )));
        }
        Ok(SecretBytes(bytes))
    }
}
