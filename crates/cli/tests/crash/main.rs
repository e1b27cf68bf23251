//! Files that must survive a failure of the power: the records of the state directory, the file of a volume, the
//! progress of a copy, the record of an attachment.
//!
//! The code that ships writes them in a process whose system calls are traced. For every prefix of its calls, and for
//! every order in which a file system may carry out what was not synced, the files that are left are laid out, and the
//! code that ships opens them. What was told to be done is there; what was under way is old or new, never mixed.

mod medium;
mod trace;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::name::VolumeName;
use config::plan::{Volume, VolumeOrigin};
use config::{ConfigFile, ConfigFiles};
use engine::state::StateDir;
use engine::state::configuration::AppliedConfiguration;
use engine::state::identity::Identities;
use engine::store::Store;
use medium::{Medium, lay_out};
use process::owned_dir::OwnedDir;
use recovery::record::{AttachRecord, RecordFile, RecordedPath};
use sim::SimRng;
use trace::{Change, tell};
use transfer::journal::CopyJournal;

/// Where a scenario works, in the environment of the process that is traced.
const ROOT: &str = "CRASH_ROOT";

/// The directory of a scenario, in the process that is traced; `None`: in the tests.
fn scenario_root() -> Option<PathBuf> {
    std::env::var_os(ROOT).map(PathBuf::from)
}

/// What a scenario did.
fn traced(scenario: &str) -> Vec<Change> {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    std::fs::create_dir(&root).unwrap();
    trace::of(scenario, &root, (ROOT, &root))
}

/// Opens every state that a failure of the power may leave; `looks` gets the root, and what was told last. Gives how many
/// there were.
fn look_at(changes: &[Change], looks: impl Fn(&Path, Option<u32>)) -> usize {
    let (mut medium, mut chance, mut states) = (Medium::default(), SimRng::new(7), 0);
    for change in std::iter::once(None).chain(changes.iter().map(Some)) {
        if let Some(change) = change {
            medium.apply(change);
        }
        for left in medium.crash_states(&mut chance) {
            states += 1;
            let root = tempfile::tempdir().unwrap();
            lay_out(&left, root.path());
            let told = medium.told;
            let looked = catch_unwind(AssertUnwindSafe(|| looks(root.path(), told)));
            if let Err(why) = looked {
                let shown: BTreeMap<_, _> =
                    left.iter().map(|(path, bytes)| (path, bytes.as_ref().map(Vec::len))).collect();
                let change = change.map(|change| format!("{change:?}").chars().take(120).collect::<String>());
                eprintln!("after {change:?}, with {told:?} told, these files are left: {shown:?}");
                std::panic::resume_unwind(why);
            }
        }
    }
    println!("{states} states");
    states
}

/// The same changes by a process with a bug: those are left out.
fn without(changes: &[Change], bug: impl Fn(&Change) -> bool) -> Vec<Change> {
    changes.iter().filter(|change| !bug(change)).cloned().collect()
}

/// What is left of a process with this bug makes a look panic with these words.
#[track_caller]
fn is_noticed(bug: &str, words: &str, changes: &[Change], looks: impl Fn(&Path, Option<u32>)) {
    let caught = catch_unwind(AssertUnwindSafe(|| look_at(changes, looks))).expect_err(bug);
    let said = caught.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| caught.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(said.contains(words), "{bug} is noticed, but by \"{said}\" and not by \"{words}\"");
}

fn is_directory_sync(change: &Change) -> bool {
    matches!(change, Change::SyncDir(_))
}

fn is_file_sync(change: &Change) -> bool {
    matches!(change, Change::Sync(_))
}

/// Contents of a record, of several sectors, of different lengths.
fn record(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(200 + 150 * (number as usize % 4))
}

/// The last that was written, before the record is removed.
const RECORDS: u32 = 5;
const NAME: &str = "7.reservations";

fn state_of(root: &Path) -> PathBuf {
    root.join("var/lib/state")
}

#[test]
fn scenario_records() {
    let Some(root) = scenario_root() else { return };
    let state = StateDir::open(&state_of(&root)).unwrap();
    for number in 0..=RECORDS {
        state.write_record(NAME, &record(number)).unwrap();
        tell(&root, number);
    }
    state.remove_record(NAME).unwrap();
    tell(&root, RECORDS + 1);
}

fn look_at_records(root: &Path, told: Option<u32>) {
    // What made the root of this test is not the code's.
    let state = StateDir::open(&state_of(root)).unwrap();
    let found = state.read_record(NAME).unwrap();
    let number = found.as_ref().map(|bytes| u32::from_le_bytes(*bytes.first_chunk().unwrap()));
    assert!(found.is_none_or(|bytes| bytes == record(number.unwrap())), "a record is mixed");
    let (old, new) = (told, told.map_or(0, |told| told + 1));
    let removed = |number: Option<u32>| number.filter(|number| *number <= RECORDS);
    assert!(number == removed(old) || number == removed(Some(new)), "{number:?} where {told:?} was told");
}

#[test]
fn records_are_old_or_new_after_every_crash_point() {
    let changes = traced("scenario_records");
    assert!(look_at(&changes, look_at_records) > 200);
    is_noticed(
        "a rename without a sync of the directory",
        "None where Some(0) was told",
        &without(&changes, is_directory_sync),
        look_at_records,
    );
    is_noticed(
        "a rename of a file that is not synced",
        "no header",
        &without(&changes, is_file_sync),
        look_at_records,
    );
    let way = |change: &Change| matches!(change, Change::SyncDir(path) if !path.ends_with("state"));
    is_noticed(
        "a directory without a sync of what leads to it",
        "None where Some(0) was told",
        &without(&changes, way),
        look_at_records,
    );
}

#[test]
fn scenario_in_place() {
    let Some(root) = scenario_root() else { return };
    let state = StateDir::open(&state_of(&root)).unwrap();
    let path = state_of(&root).join(NAME);
    state.write_record(NAME, &record(0)).unwrap();
    tell(&root, 0);
    state.write_record("8.reservations", &record(1)).unwrap();
    let whole = std::fs::read(state_of(&root).join("8.reservations")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(whole.len() as u64).unwrap();
    file.write_all_at(&whole, 0).unwrap();
    file.sync_all().unwrap();
    tell(&root, 1);
}

#[test]
fn a_record_that_is_written_in_place_is_noticed() {
    is_noticed(
        "a record written in place",
        "bytes where 800 were written",
        &traced("scenario_in_place"),
        look_at_records,
    );
}

/// A configuration of several sectors, of different lengths.
fn files(number: u32) -> ConfigFiles {
    let text = format!("node = \"n{number}\"\n").repeat(60 + 50 * (number as usize % 3));
    let path = PathBuf::from("/etc/blockwire/blockwire.toml");
    ConfigFiles(vec![ConfigFile { path, text, world_readable: false }])
}

fn applied(number: u32) -> AppliedConfiguration {
    let (served, current, previous) = (files(0), files(number), files(number.saturating_sub(1)));
    AppliedConfiguration { served, current, previous }
}

/// The last that is applied; behind it one comes that the shards refuse, so that the record is put back.
const APPLIED: u32 = 4;

#[test]
fn scenario_configuration() {
    let Some(root) = scenario_root() else { return };
    let state = StateDir::open(&state_of(&root)).unwrap();
    for number in 0..=APPLIED {
        applied(number).save(&state).unwrap();
        tell(&root, number);
    }
    applied(APPLIED + 1).save(&state).unwrap();
    AppliedConfiguration::restore(Some(&applied(APPLIED)), &state).unwrap();
    tell(&root, APPLIED + 1);
}

fn look_at_configuration(root: &Path, told: Option<u32>) {
    let state = StateDir::open(&state_of(root)).unwrap();
    let found = AppliedConfiguration::load(&state).unwrap_or_else(|why| panic!("{why}"));
    let is = |number: Option<u32>| found == number.map(applied);
    let next = told.map_or(0, |told| told + 1);
    let may = match told {
        Some(told) if told > APPLIED => is(Some(APPLIED)),
        told => is(told) || is(Some(next)),
    };
    assert!(may, "neither the old configuration nor the new one where {told:?} was told");
}

#[test]
fn a_configuration_that_is_applied_is_old_or_new_after_every_crash_point() {
    let changes = traced("scenario_configuration");
    assert!(look_at(&changes, look_at_configuration) > 200);
    let bug = "a configuration without a sync of the directory";
    let words = "neither the old configuration nor the new one where Some(0) was told";
    is_noticed(bug, words, &without(&changes, is_directory_sync), look_at_configuration);
    let bug = "a configuration that is not synced";
    is_noticed(bug, "is damaged (no header", &without(&changes, is_file_sync), look_at_configuration);
}

const SIZE: u64 = 64 << 10;
const WRITTEN: &[u8] = b"flushed";

fn volume_of(root: &Path) -> (PathBuf, Volume) {
    let path = root.join("disks/a.img");
    let spec = config::spec::parse(&format!("file:{},size={SIZE}", path.display())).unwrap();
    (path, Volume { name: VolumeName::parse("a").unwrap(), spec, origin: VolumeOrigin::Configured })
}

#[test]
fn scenario_volume() {
    let Some(root) = scenario_root() else { return };
    // The operator's, and there for long.
    std::fs::create_dir(root.join("disks")).unwrap();
    std::fs::File::open(&root).unwrap().sync_all().unwrap();
    let state = StateDir::open(&state_of(&root)).unwrap();
    let mut identities = Identities::load(&state).unwrap();
    let (_, volume) = volume_of(&root);
    let store = Store::open(&volume, &mut identities, std::iter::empty()).unwrap();
    identities.save(&state).unwrap();
    tell(&root, 0);
    store.file.as_ref().unwrap().write_all_at(WRITTEN, 4096).unwrap();
    store.file.as_ref().unwrap().sync_data().unwrap();
    tell(&root, 1);
}

fn look_at_volume(root: &Path, told: Option<u32>) {
    if !root.join("disks").is_dir() {
        return;
    }
    let state = StateDir::open(&state_of(root)).unwrap();
    let mut identities = Identities::load(&state).unwrap();
    let (path, volume) = volume_of(root);
    // One that is known and not there would not be served.
    let store =
        Store::open(&volume, &mut identities, std::iter::empty()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(store.bytes, SIZE);
    if told == Some(1) {
        let mut found = vec![0; WRITTEN.len()];
        std::fs::File::open(path).unwrap().read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, WRITTEN, "what was flushed is gone");
    }
}

#[test]
fn a_volume_s_new_file_is_there_after_every_crash_point() {
    let changes = traced("scenario_volume");
    assert!(look_at(&changes, look_at_volume) > 50);
    let of_file = |change: &Change| matches!(change, Change::SyncDir(path) if path.ends_with("disks"));
    is_noticed(
        "a file without a sync of its directory",
        "what was flushed is gone",
        &without(&changes, of_file),
        look_at_volume,
    );
}

fn journal(done: u64) -> CopyJournal {
    CopyJournal { from: "iscsi://a/b/0".repeat(60), to: "b".to_owned(), bytes: 1 << 40, done }
}

#[test]
fn scenario_journal() {
    let Some(root) = scenario_root() else { return };
    for done in 0..5 {
        journal(done.into()).write(&root.join("progress")).unwrap();
        tell(&root, done);
    }
}

fn look_at_journal(root: &Path, told: Option<u32>) {
    let found = CopyJournal::read(&root.join("progress")).unwrap_or_else(|why| panic!("{}", why.message));
    let (old, new) = (told.map(|told| journal(told.into())), journal(told.map_or(0, |told| told + 1).into()));
    assert!(found == old || found == Some(new), "{found:?} where {told:?} was told");
}

#[test]
fn the_progress_of_a_copy_is_old_or_new_after_every_crash_point() {
    let changes = traced("scenario_journal");
    assert!(look_at(&changes, look_at_journal) > 50);
    is_noticed(
        "no sync of the directory",
        "None where Some(0) was told",
        &without(&changes, is_directory_sync),
        look_at_journal,
    );
    is_noticed(
        "no sync of the file",
        "is not a resume record of a copy",
        &without(&changes, is_file_sync),
        look_at_journal,
    );
}

fn paths(lands_for_ms: u64) -> Vec<RecordedPath> {
    let path = |number| RecordedPath {
        place: "iscsi://[::1]:3260/iqn.2026-11.io.blockwire:disk/0".to_owned(),
        number,
        reinstates: true,
        group: None,
        lands_for_ms,
        is_new: false,
    };
    (0..lands_for_ms as u16 % 7 + 1).map(path).collect()
}

fn attached(root: &Path) -> (PathBuf, &'static OsStr) {
    (root.join("attached"), OsStr::new("1.json"))
}

#[test]
fn scenario_attachment() {
    let Some(root) = scenario_root() else { return };
    let (at, name) = attached(&root);
    let dir = Arc::new(OwnedDir::create(&at).unwrap());
    let text = r#"{"pid":1,"started":0,"url":"u","via":"nbd","ways":["/a"],"uuid":"x","nexus":[1,2,3]}"#;
    let record: AttachRecord = serde_json::from_str(text).unwrap();
    let mut file = RecordFile::write(dir, name, &record).unwrap();
    tell(&root, 0);
    for number in 1..5 {
        file.set_paths(paths(number)).unwrap();
        tell(&root, number as u32);
    }
    file.persist();
    tell(&root, 5);
}

/// The record is of processes that a failure of the power ends: it need not be there. What is there is whole.
fn look_at_attachment(root: &Path, told: Option<u32>) {
    let (at, name) = attached(root);
    let Ok(Some(dir)) = OwnedDir::find_existing(&at) else { return };
    let Ok(bytes) = dir.read_trusted(name, 1 << 20) else { return };
    let found: AttachRecord = serde_json::from_slice(&bytes).expect("a record is mixed");
    let may = (0..=told.map_or(0, |told| told + 1)).map(u64::from);
    let mut known = may.map(|number| if number == 0 { vec![] } else { paths(number.min(4)) });
    assert!(known.any(|paths| paths == found.paths), "a record of nobody's: {found:?}");
}

#[test]
fn the_record_of_an_attachment_is_whole_after_every_crash_point() {
    let changes = traced("scenario_attachment");
    assert!(look_at(&changes, look_at_attachment) > 50);
    is_noticed(
        "no sync of the file",
        "a record is mixed",
        &without(&changes, is_file_sync),
        look_at_attachment,
    );
}
