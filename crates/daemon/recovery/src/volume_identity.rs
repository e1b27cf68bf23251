//! Whether a volume is the one in a record.
//!
//! Invariant: waiting writes go only to a volume that is proved to be the one of the killed holder.

use client::{Initiator, VolumeHandle, VolumeInfo};
use multipath::matches_serial;

use super::list::FoundAttachment;
use super::record::AttachRecord;
use process::exit::Failure;

/// What identifies a volume in a record: UUID, serial number and block size.
pub(super) fn recorded_identity(
    initiator: &Initiator,
    volume: VolumeHandle,
) -> (Option<String>, Option<String>, Option<u32>) {
    let info = initiator.info(volume);
    let uuid = info.as_ref().and_then(|info| info.uuid).map(|uuid| uuid.to_string());
    let serial = info.map(|info| info.serial.clone());
    (uuid, serial, initiator.known_geometry(volume).ok().map(|geometry| geometry.logical))
}

/// Whether a record belongs to this volume: by its UUID, or by its serial number if it has no UUID. If it
/// has neither, now and in the record, the URLs must be equal (`shown`). The same holds for records of earlier versions,
/// without `space`: they stored no identity for a stripe whose legs have no UUID.
pub fn is_record_of(record: &AttachRecord, info: Option<&VolumeInfo>, shown: &str) -> bool {
    let uuid = info.and_then(|info| info.uuid).map(|uuid| uuid.to_string());
    let was = record.serial.as_deref().filter(|serial| !serial.is_empty());
    let told = info.filter(|info| !info.serial.is_empty());
    match (&record.uuid, &uuid, was, told) {
        (None, None, Some(was), Some(info)) => matches_serial(was, info),
        (None, None, None, None) => record.url == shown,
        (None, None, None, Some(_)) if record.space.is_none() => record.url == shown,
        (None, None, ..) => false,
        (was, now, ..) => was == now,
    }
}

/// Refuses a volume whose identity or block size differs from that of the killed holder's.
pub(super) fn refuse_other_volume(
    left: &FoundAttachment,
    (info, block): (Option<&VolumeInfo>, Option<u32>),
    shown: &str,
) -> Result<(), Failure> {
    let record = &left.record;
    let name = |uuid: Option<String>, serial: Option<&str>| match (uuid, serial) {
        (Some(uuid), _) => format!("volume {uuid}"),
        (None, Some(serial)) if !serial.is_empty() => {
            format!("a volume with the serial number \"{serial}\" and no UUID")
        }
        (None, _) => "a volume without UUID and serial number, known only by its exact URL".to_owned(),
    };
    if !is_record_of(record, info, shown) {
        let was = name(record.uuid.clone(), record.serial.as_deref());
        let uuid = info.and_then(|info| info.uuid).map(|uuid| uuid.to_string());
        let now = name(uuid, info.map(|info| &*info.serial));
        return Err(Failure::usage(format!(
            "{} was {was} ({}), and {shown} is {now}: waiting writes would go to another volume",
            left.access_points_text(),
            record.url,
        )));
    }
    // Older versions did not always record the block size; a UUID is sufficient.
    let is_unsaid = record.block.is_none() && record.uuid.is_some();
    if record.block.is_some() && record.block == block || is_unsaid {
        return Ok(());
    }
    let bytes =
        |block: Option<u32>| block.map_or("unknown size".to_owned(), |block| format!("{block} bytes"));
    Err(Failure::usage(format!(
        "{} had blocks of {}, and {shown} has blocks of {}: it is another volume, or was recreated",
        left.access_points_text(),
        bytes(record.block),
        bytes(block)
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::list::AttachState;
    use super::*;
    use process::owned_dir::OwnedDir;

    fn left(facts: serde_json::Value) -> (tempfile::TempDir, FoundAttachment) {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
        let mut record = json!({"pid": 1, "started": 0, "url": "u", "via": "nbd", "ways": ["/a"]});
        let (Some(note_facts), serde_json::Value::Object(facts)) = (record.as_object_mut(), facts) else {
            panic!()
        };
        note_facts.extend(facts);
        let record = serde_json::from_value(record).unwrap();
        (root, FoundAttachment { record, dir, file: "1.json".into(), state: AttachState::Stranded })
    }

    const X: volume::Uuid = volume::Uuid([7; 16]);
    const Y: volume::Uuid = volume::Uuid([8; 16]);

    fn is_same(facts: serde_json::Value, now: (Option<volume::Uuid>, &str, Option<u32>)) -> bool {
        is_same_at("v", facts, now)
    }

    fn is_same_at(
        url: &str,
        facts: serde_json::Value,
        (uuid, serial, block): (Option<volume::Uuid>, &str, Option<u32>),
    ) -> bool {
        let info = VolumeInfo {
            uuid,
            geometry: None,
            read_only: false,
            access: volume::PathAccess::Optimized,
            product: String::new(),
            serial: serial.into(),
            depth: 1,
            terms: Vec::new(),
        };
        refuse_other_volume(&left(facts).1, (Some(&info), block), url).is_ok()
    }

    #[test]
    fn what_waits_is_not_written_to_a_volume_that_is_not_shown_to_be_the_same() {
        let known = || json!({"uuid": X.to_string(), "serial": "1", "block": 512});
        assert!(is_same(known(), (Some(X), "2", Some(512))));
        assert!(!is_same(known(), (Some(Y), "1", Some(512))));
        assert!(!is_same(known(), (None, "1", Some(512))), "one that tells no UUID any more");
        assert!(!is_same(known(), (Some(X), "1", Some(4096))), "other blocks");
        assert!(!is_same(known(), (Some(X), "1", None)), "blocks that nobody knows");
        let older = || json!({"uuid": X.to_string(), "serial": "1", "block": null});
        assert!(is_same(older(), (Some(X), "1", Some(512))), "a record of a version that did not know them");
        assert!(!is_same(older(), (Some(Y), "1", Some(512))));
        let nameless = || json!({"uuid": null, "serial": "1", "block": 512});
        assert!(is_same(nameless(), (None, "1", Some(512))));
        assert!(!is_same(nameless(), (None, "2", Some(512))), "another serial number");
        assert!(!is_same(nameless(), (None, "", Some(512))));
        assert!(!is_same(nameless(), (Some(X), "1", Some(512))), "one with a UUID");
    }

    #[test]
    fn a_volume_that_tells_nothing_is_not_taken_for_every_other_that_tells_nothing() {
        for serial in [json!(null), json!("")] {
            let silent = || json!({"uuid": null, "serial": serial, "block": 512, "space": 1});
            assert!(!is_same(silent(), (None, "", Some(512))), "by another URL");
            assert!(!is_same(silent(), (None, "1", Some(512))));
            assert!(!is_same(silent(), (Some(X), "1", Some(512))));
            assert!(is_same_at("u", silent(), (None, "", Some(512))), "by the very URL");
            assert!(!is_same_at("u", silent(), (None, "1", Some(512))), "one that tells something now");
        }
        assert!(!is_same_at("u", json!({}), (None, "", Some(512))), "of its blocks nothing is known");
    }

    #[test]
    fn a_stripe_of_which_an_older_version_noted_no_name_can_still_be_recovered_by_its_url() {
        for serial in [json!(null), json!("")] {
            let older = || json!({"uuid": null, "serial": serial, "block": 512});
            assert!(is_same_at("u", older(), (None, "SN of the legs", Some(512))));
            assert!(!is_same_at("v", older(), (None, "SN of the legs", Some(512))), "by another URL");
            assert!(!is_same_at("u", older(), (None, "SN of the legs", Some(4096))), "other blocks");
            assert!(!is_same_at("u", older(), (Some(X), "SN of the legs", Some(512))), "one with a UUID");
        }
    }

    #[test]
    fn an_older_versions_note_is_known_again_by_the_number_without_the_namespaces_own_name() {
        let older = json!({"uuid": null, "serial": "SN1", "block": 512});
        assert!(is_same(older, (None, "SN1 NGUID 01", Some(512))));
        let newer = json!({"uuid": null, "serial": "SN1 NGUID 01", "block": 512});
        assert!(!is_same(newer, (None, "SN1 NGUID 02", Some(512))));
    }
}
