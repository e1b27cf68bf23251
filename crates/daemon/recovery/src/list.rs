//! What is attached on this machine: the records of a directory and the state of each attachment.
//!
//! Invariants: an attachment whose holder and guardian are both gone is forgotten, and its record removed, unless its
//! device or socket still exists. An attachment whose state cannot be determined (no descriptor, another PID namespace)
//! does not count as gone. A record is trusted only in a directory that its owner alone can change, and only about
//! processes of that owner.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use serde::Serialize;

use super::record::{AttachRecord, GuardianAddress, RECORD_BYTES_MAX, to_millis};
use super::{guardian_client, running_process};
use process::exit::Failure;
use process::owned_dir::OwnedDir;

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum AttachState {
    /// Its holder serves it.
    Serving,
    /// Its holder is gone; I/O waits to be recovered.
    Waiting {
        /// Remaining time.
        left_ms: u64,
    },
    /// It was not recovered in time: I/O fails.
    Failing,
    /// Holder and guardian are gone, but its device or socket still exists: I/O waits until it is recovered.
    Stranded,
    /// It cannot be determined from here. It counts as served.
    Unknown,
}

/// A record, where it was found, and the state of the attachment.
#[derive(Clone, Debug)]
pub struct FoundAttachment {
    /// The record.
    pub record: AttachRecord,
    /// The directory.
    pub dir: Arc<OwnedDir>,
    /// Its file in it.
    pub file: OsString,
    /// The state.
    pub state: AttachState,
}

impl FoundAttachment {
    /// Whether this name means it: a device, file or socket of it, its directory, or the PID of a process that holds
    /// only this attachment.
    pub fn matches_name(&self, name: &Path) -> bool {
        let record = &self.record;
        let is_pid = record.control.is_none() && name == Path::new(&record.holder.pid.to_string());
        let is_way = |way: &String| {
            let way = Path::new(way);
            // Only a FUSE file has a directory of its own.
            way == name || (record.via == "fuse" && way.parent() == Some(name) && !way.starts_with("/dev"))
        };
        is_pid || record.ways.iter().any(is_way)
    }

    /// Whether its holder serves it, or may.
    pub fn is_held(&self) -> bool {
        matches!(self.state, AttachState::Serving | AttachState::Unknown)
    }

    /// The path for `--at`.
    pub fn attach_path(&self) -> &str {
        self.record.ways.first().map_or("", String::as_str)
    }

    /// Its access points, for people.
    pub fn access_points_text(&self) -> String {
        self.record.ways.join(" ")
    }
}

/// All attachments; records of dead ones are removed.
///
/// # Errors
/// The directory cannot be trusted, and why.
pub fn find_attachments(dir: &Path) -> Result<Vec<FoundAttachment>, Failure> {
    let failed = |why: std::io::Error| Failure::failed(format!("{}: {why}", dir.display()));
    let Some(dir) = OwnedDir::find_existing(dir)?.map(Arc::new) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for file in dir.entry_names().map_err(failed)? {
        let is_record = Path::new(&file).extension().is_some_and(|extension| extension == "json");
        // A name with a leading dot is still being written.
        if !is_record || file.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let text = match dir.read_trusted(&file, RECORD_BYTES_MAX) {
            Ok(text) => text,
            // Skip what is no record, or was just removed; but report what cannot be read.
            Err(why) if is_no_record(&why) => continue,
            Err(why) => return Err(failed(why)),
        };
        let Ok(record) = serde_json::from_slice::<AttachRecord>(&text) else { continue };
        match attachment_state(&record, dir.owner_uid()) {
            Some(state) => found.push(FoundAttachment { record, dir: dir.clone(), file, state }),
            None => drop(dir.remove_file(&file)),
        }
    }
    // A reused device number belongs to the attachment that serves it.
    let served: Vec<String> = found
        .iter()
        .filter(|one| !matches!(one.state, AttachState::Stranded | AttachState::Unknown))
        .flat_map(|one| one.record.ways.clone())
        .collect();
    found.retain(|one| {
        let is_gone =
            one.state == AttachState::Stranded && one.record.ways.iter().any(|way| served.contains(way));
        if is_gone {
            let _ = one.dir.remove_file(&one.file);
        }
        !is_gone
    });
    remove_duplicates(&mut found);
    found.sort_by(|a, b| (a.record.holder.pid, &a.file).cmp(&(b.record.holder.pid, &b.file)));
    Ok(found)
}

/// Of several records with the same guardian only one counts, preferably one with a living holder. A recovery that was
/// killed before it reached the guardian leaves a second record.
fn remove_duplicates(found: &mut Vec<FoundAttachment>) {
    found.sort_by_key(|one| !one.is_held());
    let mut seen = Vec::new();
    found.retain(|one| {
        let Some(guardian) = &one.record.guardian else { return true };
        let is_first = !seen.contains(guardian);
        seen.push(guardian.clone());
        is_first
    });
}

/// Whether the error means that the file is no record of the directory's owner, or was removed.
fn is_no_record(why: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    let is_link = why.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    is_link || matches!(why.kind(), NotFound | PermissionDenied | InvalidData)
}

/// `None`: it is certainly gone.
fn attachment_state(record: &AttachRecord, owner: u32) -> Option<AttachState> {
    let look = || -> io::Result<Option<AttachState>> {
        let here = running_process::pid_namespace()?;
        if record.space.is_some_and(|space| space != here) {
            // Its processes cannot be seen, but its guardian, which outlives the holder, can be asked from any namespace.
            let is_gone = record.guardian.as_ref().map(|kept| is_guardian_dead(kept, owner)).transpose()?;
            return Ok((is_gone != Some(true)).then_some(AttachState::Unknown));
        }
        if record.holder.runs_as(owner)? {
            return Ok(Some(AttachState::Serving));
        }
        let Some(kept) = &record.guardian else { return Ok(None) };
        Ok(kept.process.runs_as(owner)?.then(|| state_from_guardian(kept, owner)))
    };
    let stranded = || Ok(is_stranded(record, owner)?.then_some(AttachState::Stranded));
    let found = look().and_then(|found| found.map_or_else(stranded, |state| Ok(Some(state))));
    found.unwrap_or(Some(AttachState::Unknown))
}

/// Whether the guardian's socket is stale. Without a socket that is unknown: it may have another path here.
fn is_guardian_dead(kept: &GuardianAddress, owner: u32) -> io::Result<bool> {
    let Some(socket) = kept.socket.to_str() else { return Ok(false) };
    is_stale_socket(socket, owner)
}

/// As reported by the guardian.
fn state_from_guardian(kept: &GuardianAddress, owner: u32) -> AttachState {
    match guardian_client::remaining_wait(kept, owner) {
        Ok(Some(left)) => AttachState::Waiting { left_ms: to_millis(left) },
        Ok(None) => AttachState::Failing,
        // It is exiting or being taken over, but its process is alive.
        Err(_) => AttachState::Waiting { left_ms: 0 },
    }
}

/// Whether an attachment without holder and guardian still exists: a ublk device stays until it is deleted, and clients
/// of a socket reconnect and resend when it is served again.
fn is_stranded(record: &AttachRecord, owner: u32) -> io::Result<bool> {
    let Some(way) = record.ways.first() else { return Ok(false) };
    match &*record.via {
        "ublk" => Ok(metadata_of(way)?.is_some_and(|facts| facts.file_type().is_block_device())),
        "nbd" | "vhost-user" => is_stale_socket(way, owner),
        _ => Ok(false),
    }
}

/// `None`: it does not exist.
fn metadata_of(path: &str) -> io::Result<Option<std::fs::Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(facts) => Ok(Some(facts)),
        Err(why) if matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Whether a path is a socket of this owner without a listener.
///
/// # Errors
/// It cannot be determined.
pub(super) fn is_stale_socket(path: &str, owner: u32) -> io::Result<bool> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    if !metadata_of(path)?.is_some_and(|facts| facts.file_type().is_socket() && facts.uid() == owner) {
        return Ok(false);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        // There is a listener that is busy or of another type; or the socket was just removed.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE | Errno::NOENT) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::path::PathBuf;

    use super::super::record::tests::left_by_the_dead;
    use super::super::record::{ProcessId, RecordFile};
    use super::*;

    #[test]
    fn whose_clients_come_again_and_ask_again_is_not_forgotten_while_its_socket_stands() {
        use std::os::unix::net::UnixListener;
        let root = tempfile::tempdir().unwrap();
        let (records, stale, served) =
            (root.path().join("attached"), root.path().join("stale"), root.path().join("served"));
        let dir = OwnedDir::create(&records).unwrap();
        drop(UnixListener::bind(&stale).unwrap());
        let listener = UnixListener::bind(&served).unwrap();
        for (name, via, way) in [
            ("1.json", "nbd", &stale),
            ("2.json", "vhost-user", &served),
            ("3.json", "vhost-user", &root.path().join("gone")),
            ("4.json", "fuse", &stale),
        ] {
            dir.write_new_file(OsStr::new(name), left_by_the_dead(via, way).as_bytes()).unwrap();
        }
        let found = find_attachments(&records).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].state, found[0].record.nexus), (AttachState::Stranded, [1, 2, 3]));
        // Who gives it up takes the socket away, and no other.
        super::super::abandon(&found[0]).unwrap();
        assert!(!stale.exists() && served.exists());
        assert!(find_attachments(&records).unwrap().is_empty() && dir.entry_names().unwrap().is_empty());
        drop(listener);
    }

    #[test]
    fn what_another_process_number_space_or_a_missing_descriptor_hides_is_not_taken_for_dead() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
        let record: AttachRecord = serde_json::from_str(&left_by_the_dead("fuse", Path::new("/a"))).unwrap();
        assert_eq!(attachment_state(&record, dir.owner_uid()), None, "it is shown to be gone");
        let elsewhere = AttachRecord { space: Some(running_process::pid_namespace().unwrap() + 1), ..record };
        let text = serde_json::to_vec(&elsewhere).unwrap();
        dir.write_new_file(OsStr::new("1.json"), &text).unwrap();
        let found = find_attachments(dir.path()).unwrap();
        assert_eq!((found.len(), found[0].state), (1, AttachState::Unknown));
        assert!(found[0].is_held() && super::super::abandon(&found[0]).is_err());
        assert_eq!(dir.entry_names().unwrap(), ["1.json"], "its record was removed");
        // All of a space may have ended; its guardian's socket tells.
        let socket = root.path().join("guardian");
        let kept = GuardianAddress { process: elsewhere.holder, socket: socket.clone() };
        let kept = AttachRecord { guardian: Some(kept), ..elsewhere };
        assert_eq!(
            attachment_state(&kept, dir.owner_uid()),
            Some(AttachState::Unknown),
            "no socket tells nothing"
        );
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(attachment_state(&kept, dir.owner_uid()), Some(AttachState::Unknown));
        drop(listener);
        assert_eq!(attachment_state(&kept, dir.owner_uid()), None, "nobody holds it any more");
        // What cannot be read for now is no less there.
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(!is_no_record(&errno.into()), "{errno:?}");
        }
        assert!(is_no_record(&Errno::NOENT.into()) && is_no_record(&Errno::LOOP.into()));
    }

    #[test]
    fn what_a_front_that_failed_has_left_behind_is_not_taken_for_served_while_its_process_lives() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
        let record: AttachRecord = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let record = AttachRecord { holder: ProcessId::current().unwrap(), ..record };
        let noted = RecordFile::write(dir.clone(), OsStr::new("1.json"), &record).unwrap();
        assert_eq!(find_attachments(dir.path()).unwrap()[0].state, AttachState::Serving);
        noted.persist();
        let left: AttachRecord =
            serde_json::from_slice(&dir.read_trusted(OsStr::new("1.json"), RECORD_BYTES_MAX).unwrap())
                .unwrap();
        assert!(!left.holder.runs_as(dir.owner_uid()).unwrap() && left.url == record.url);
        drop(RecordFile::write(dir.clone(), OsStr::new("2.json"), &record).unwrap());
        assert_eq!(dir.entry_names().unwrap(), ["1.json"]);
    }

    #[test]
    fn a_recovery_that_was_killed_half_way_leaves_no_second_attachment() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
        let record: AttachRecord = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let of = |file: &str, socket: Option<&str>, state| {
            let guardian =
                socket.map(|socket| GuardianAddress { process: record.holder, socket: socket.into() });
            FoundAttachment {
                record: AttachRecord { guardian, ..record.clone() },
                dir: dir.clone(),
                file: file.into(),
                state,
            }
        };
        let waits = AttachState::Waiting { left_ms: 1 };
        let mut found = vec![
            of("1", Some("/k"), waits),
            of("2", Some("/k"), AttachState::Serving),
            of("3", Some("/l"), waits),
            of("4", Some("/l"), waits),
            of("5", None, AttachState::Stranded),
            of("6", None, AttachState::Stranded),
        ];
        remove_duplicates(&mut found);
        let files: Vec<_> = found.iter().map(|one| one.file.to_str().unwrap()).collect();
        assert_eq!(files, ["2", "3", "5", "6"]);
    }

    #[test]
    fn a_ublk_device_that_outlives_holder_and_guardian_is_not_forgotten() {
        let block = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
        };
        let device = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path()).find(block);
        let Some(device) = device else { return };
        let root = tempfile::tempdir().unwrap();
        let records = root.path().join("attached");
        let dir = OwnedDir::create(&records).unwrap();
        for (name, via, way) in [
            ("1.json", "ublk", device.as_path()),
            ("2.json", "ublk", Path::new("/dev/ublkb4294967295")),
            ("3.json", "nbd", device.as_path()),
        ] {
            dir.write_new_file(OsStr::new(name), left_by_the_dead(via, way).as_bytes()).unwrap();
        }
        let found = find_attachments(&records).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].state, found[0].record.uuid.as_deref()), (AttachState::Stranded, Some("x")));
        assert_eq!(found[0].record.nexus, [1, 2, 3]);
        assert_eq!(dir.entry_names().unwrap(), ["1.json"], "what is gone is forgotten");
    }
}
