//! Each request, and what becomes of it when the cluster is silent, another was faster, or the instance is barred.

use std::time::Duration;

use blockwire_gateway::{StoreError, StoreEvent};
use group::{GroupId, InstanceId, MapEpoch, ObjectName, StoreReply, StoreRequest, Version};
use rbd::Pool;
use volume::{Failure, Fault, Uuid};

use crate::disk::Disk;
use crate::{Opened, cluster, fresh, open, open_in};

const YEAR: Duration = Duration::from_secs(31_536_000);
const OWNER: ObjectName = ObjectName::Owner(GroupId(3));

fn swap(expected: u64, value: &[u8]) -> StoreRequest {
    StoreRequest::Swap { object: OWNER, expected: Version(expected), value: value.to_vec() }
}

fn read(from: &mut Opened) -> (u64, Vec<u8>) {
    match from.ask(StoreRequest::Read(OWNER)) {
        StoreReply::Contents { version, value } => (version.0, value),
        other => panic!("{other:?}"),
    }
}

fn swapped(reply: StoreReply) -> u64 {
    let StoreReply::Swapped(Version(version)) = reply else { panic!("{reply:?}") };
    version
}

fn blocklisted(reply: StoreReply) -> MapEpoch {
    let StoreReply::Blocklisted(epoch) = reply else { panic!("{reply:?}") };
    epoch
}

#[test]
fn an_object_is_swapped_only_if_it_has_the_version_that_was_read() {
    let Some(cluster) = cluster() else { return };
    let group = fresh("swap");
    let (mut one, mut other) = (open(&cluster, &group), open(&cluster, &group));
    assert_ne!(one.store.instance(), other.store.instance());
    assert_eq!(read(&mut one), (0, Vec::new()));
    let first = swapped(one.ask(swap(0, b"first")));
    assert_eq!(other.ask(swap(0, b"too late")), StoreReply::Mismatch);
    assert_eq!(read(&mut other), (first, b"first".to_vec()));
    let second = swapped(other.ask(swap(first, b"second, which is longer")));
    assert!(second > first);
    assert_eq!(one.ask(swap(first, b"stale")), StoreReply::Mismatch);
    // A version that never was.
    assert_eq!(one.ask(swap(second + 1_000_000, b"early")), StoreReply::Mismatch);
    assert_eq!(read(&mut one), (second, b"second, which is longer".to_vec()));
    // Shorter, and longer than what is read at first.
    let third = swapped(one.ask(swap(second, b"")));
    assert_eq!(read(&mut other), (third, Vec::new()));
    let long: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
    let fourth = swapped(one.ask(swap(third, &long)));
    assert_eq!(read(&mut other), (fourth, long));
    // What is watched and notified is another object: versions count changes of this one alone.
    assert_eq!(one.ask(StoreRequest::Notify(OWNER)), StoreReply::Done);
    assert_eq!(read(&mut one).0, fourth);
    // Objects and groups do not share contents.
    assert_eq!(
        one.ask(StoreRequest::Read(ObjectName::Owner(GroupId(30)))),
        StoreReply::Contents { version: Version(0), value: Vec::new() }
    );
    assert_eq!(read(&mut open(&cluster, &fresh("swap"))), (0, Vec::new()));
}

#[test]
fn the_others_are_told_of_a_change_and_not_the_one_that_made_it() {
    let Some(cluster) = cluster() else { return };
    let group = fresh("told");
    let (mut one, mut other) = (open(&cluster, &group), open(&cluster, &group));
    let record = ObjectName::Record(Uuid([9; 16]));
    for object in [ObjectName::Members, OWNER, record] {
        assert_eq!(one.ask(StoreRequest::Notify(object)), StoreReply::Done);
        other.event(|event| *event == StoreEvent::Changed(object));
    }
    assert!(!one.others.iter().any(|event| matches!(event, StoreEvent::Changed(_))), "{:?}", one.others);
}

#[test]
fn a_group_has_one_key() {
    let Some(cluster) = cluster() else { return };
    let group = fresh("key");
    let first = open_in(&cluster, &group, "rbd", 1).unwrap();
    let second = open_in(&cluster, &group, "rbd", 2).unwrap();
    assert_eq!((first.store.key().bytes(), second.store.key().bytes()), (&[1; 32], &[1; 32]));
    cluster.run("rados", &["-p", "rbd", "truncate", &format!("blockwire.{group}.key"), "20"]);
    let damaged = open_in(&cluster, &group, "rbd", 3);
    assert!(matches!(damaged, Err(StoreError::KeyDamaged(_))), "{:?}", damaged.err());
}

#[test]
fn what_is_wrong_is_named() {
    let Some(cluster) = cluster() else { return };
    let said = open_in(&cluster, "g", "nowhere", 1).err().unwrap().to_string();
    assert!(said.contains("there is no pool \"nowhere\""), "{said}");
    // A pool that is deleted under a store: nothing is there, which does not mean that nobody owns the group.
    let pool = fresh("gone");
    cluster.run("ceph", &["osd", "pool", "create", &pool, "4"]);
    let mut store = open_in(&cluster, "g", &pool, 1).unwrap();
    swapped(store.ask(swap(0, b"value")));
    cluster.run("ceph", &["tell", "mon.*", "config", "set", "mon_allow_pool_delete", "true"]);
    cluster.run("ceph", &["osd", "pool", "delete", &pool, &pool, "--yes-i-really-really-mean-it"]);
    cluster.client().wait_for_latest_map(&cluster.library).unwrap();
    assert_eq!(store.ask(StoreRequest::AwaitMap(MapEpoch(1))), StoreReply::Done);
    assert_eq!(store.ask(StoreRequest::Read(OWNER)), StoreReply::Unknown);
    store.event(|event| matches!(event, StoreEvent::Refused(why) if why.contains("owner.3")));
}

#[test]
fn an_object_that_is_longer_than_any_is_no_answer() {
    let Some(cluster) = cluster() else { return };
    let group = fresh("long");
    let mut store = open(&cluster, &group);
    swapped(store.ask(swap(0, b"value")));
    // What a configuration has at most, what stands around it, and a byte.
    let length = group::CONFIGURATION_MAX + (64 << 10) + 1;
    let object = format!("blockwire.{group}.owner.3");
    cluster.run("rados", &["-p", "rbd", "truncate", &object, &length.to_string()]);
    assert_eq!(store.ask(StoreRequest::Read(OWNER)), StoreReply::Unknown);
    store.event(|event| matches!(event, StoreEvent::Refused(why) if why.contains(&object)));
}

/// The lock goes with the image, so who is told that it has the lock has the image.
#[test]
fn a_volume_that_goes_while_it_is_locked_is_not_locked() {
    let Some(cluster) = cluster() else { return };
    let (group, volume) = (fresh("goes"), Uuid([5; 16]));
    let image = cluster.image(&group);
    let mut store = open(&cluster, &group);
    store.set_volume(volume, &image);
    let asked = store.start(StoreRequest::Lock(volume));
    // Opening takes longer than this; if not, the volume is gone all the same.
    std::thread::sleep(Duration::from_millis(2));
    store.store.set_volumes(&std::collections::BTreeMap::new());
    let reply = store.wait(asked);
    assert_eq!(reply == StoreReply::Done, store.store.image(volume).is_some(), "{reply:?}");
    store.set_volume(volume, &image);
    assert_eq!(store.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    assert!(store.store.image(volume).is_some());
}

#[test]
fn a_silent_cluster_leaves_outcomes_unknown_and_a_swap_happens_once() {
    let Some(cluster) = cluster() else { return };
    let mut store = open(&cluster, &fresh("silent"));
    let first = swapped(store.ask(swap(0, b"first")));
    cluster.script("pause");
    let asked = [
        store.start(swap(first, b"second")),
        store.start(StoreRequest::Read(OWNER)),
        store.start(StoreRequest::AwaitMap(MapEpoch(1))),
    ];
    for ticket in asked {
        assert_eq!(store.wait(ticket), StoreReply::Unknown);
    }
    // The same again, as the member does.
    let again = store.start(swap(first, b"second"));
    cluster.script("resume");
    // One of the two was carried out; the reply that is told is that of the second.
    let reply = store.wait(again);
    assert!(
        matches!(reply, StoreReply::Swapped(_) | StoreReply::Mismatch | StoreReply::Unknown),
        "{reply:?}"
    );
    let (version, value) = loop {
        match store.ask(StoreRequest::Read(OWNER)) {
            StoreReply::Contents { version, value } => break (version.0, value),
            StoreReply::Unknown => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(value, b"second");
    assert_eq!(store.ask(swap(first, b"second")), StoreReply::Mismatch);
    assert_eq!(read(&mut store), (version, b"second".to_vec()));
    // No reply came twice, and none late.
    let late =
        |event: &StoreEvent| matches!(event, StoreEvent::Reply { ticket, .. } if asked.contains(ticket));
    assert!(!store.others.iter().any(late), "{:?}", store.others);
}

#[test]
fn a_barred_instance_is_refused_and_its_locks_are_broken() {
    let Some(cluster) = cluster() else { return };
    let (group, volume) = (fresh("bar"), Uuid([1; 16]));
    let image = cluster.image(&group);
    let (mut one, mut other) = (open(&cluster, &group), open(&cluster, &group));
    for store in [&one, &other] {
        store.set_volume(volume, &image);
    }
    let old = one.store.instance();
    assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    assert_eq!(other.ask(StoreRequest::Lock(volume)), StoreReply::Locked(old));
    // Given up, taken, and given back.
    assert_eq!(one.ask(StoreRequest::Unlock(volume)), StoreReply::Done);
    assert_eq!(one.ask(StoreRequest::Unlock(volume)), StoreReply::Done);
    assert_eq!(other.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Locked(other.store.instance()));
    assert_eq!(other.ask(StoreRequest::Unlock(volume)), StoreReply::Done);
    assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    let version = swapped(one.ask(swap(0, b"mine")));
    // Barred.
    let request = StoreRequest::Blocklist { instance: old, expiry: YEAR };
    let epoch = blocklisted(other.ask(request.clone()));
    assert!(blocklisted(other.ask(request)) >= epoch);
    assert_eq!(other.ask(StoreRequest::AwaitMap(epoch)), StoreReply::Done);
    assert_eq!(other.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    assert_eq!(other.ask(StoreRequest::SpreadMap(volume)), StoreReply::Done);
    assert!(other.store.image(volume).is_some());
    assert_eq!(one.ask(swap(version, b"still mine")), StoreReply::Fenced);
    assert_eq!(one.ask(StoreRequest::Read(OWNER)), StoreReply::Fenced);
    assert_eq!(
        one.ask(StoreRequest::Blocklist { instance: other.store.instance(), expiry: YEAR }),
        StoreReply::Fenced
    );
    one.event(|event| *event == StoreEvent::Fenced);
    assert_eq!(read(&mut other), (version, b"mine".to_vec()));
}

#[test]
fn an_entry_is_removed_once_and_nobody_else_is_barred() {
    let Some(cluster) = cluster() else { return };
    let group = fresh("entry");
    let (one, mut other) = (open(&cluster, &group), open(&cluster, &group));
    let old = one.store.instance();
    drop(one);
    blocklisted(other.ask(StoreRequest::Blocklist { instance: old, expiry: YEAR }));
    assert_eq!(other.ask(StoreRequest::RemoveFromBlocklist(old)), StoreReply::Done);
    assert_eq!(other.ask(StoreRequest::RemoveFromBlocklist(old)), StoreReply::Done);
    // It has left no address any more, nor has a client that was never a gateway of the group.
    for stranger in [old, InstanceId(cluster.client().instance())] {
        assert_eq!(
            other.ask(StoreRequest::Blocklist { instance: stranger, expiry: YEAR }),
            StoreReply::Unknown
        );
        other.event(
            |event| matches!(event, StoreEvent::Refused(why) if why.contains("no gateway of the group")),
        );
    }
}

/// Where this crate says that objects are, against where the cluster says they are.
#[test]
fn each_placement_group_of_a_pool_is_reached() {
    let Some(cluster) = cluster() else { return };
    let (pool, volume) = (fresh("odd"), Uuid([2; 16]));
    cluster.run("ceph", &["osd", "pool", "create", &pool, "12", "12"]);
    cluster.run("rbd", &["pool", "init", &pool]);
    let name = fresh("spread");
    // Data in the other pool: both are to be reached.
    cluster.run("rbd", &["create", "--size", "16M", "--data-pool", &pool, &format!("rbd/{name}")]);
    let mut store = open(&cluster, &name);
    let image = blockwire_gateway::VolumeImage { pool: "rbd".to_owned(), namespace: None, image: name };
    store.set_volume(volume, &image);
    assert_eq!(store.ask(StoreRequest::SpreadMap(volume)), StoreReply::Unknown, "it is not locked");
    assert_eq!(store.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    let pools = store.store.image(volume).unwrap().pools(&cluster.library).unwrap();
    let client = cluster.client();
    let numbers: Vec<i64> = ["rbd", &pool]
        .map(|pool| Pool::enter(&cluster.library, &client, pool, None).unwrap().number())
        .to_vec();
    assert_eq!(pools, numbers);
    assert_eq!(store.ask(StoreRequest::SpreadMap(volume)), StoreReply::Done);
    for (pool, groups, namespace) in [(pool.as_str(), 12, ""), ("rbd", 16, ""), (pool.as_str(), 12, "tenant")]
    {
        for (at, object) in blockwire_gateway::placement_names(groups, namespace).unwrap().iter().enumerate()
        {
            let within =
                if namespace.is_empty() { String::new() } else { format!(r#", "nspace": "{namespace}""#) };
            let command = format!(
                r#"{{"prefix": "osd map", "pool": "{pool}", "object": "{object}"{within}, "format": "json"}}"#
            );
            let said = client.ask_monitors(&cluster.library, &command).unwrap();
            let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
            let group = said["pgid"].as_str().unwrap().split_once('.').unwrap().1.to_owned();
            assert_eq!(group, format!("{at:x}"), "{object} in {pool}: {said}");
        }
    }
}

#[test]
fn the_rights_that_are_asked_for_are_enough() {
    let Some(cluster) = cluster() else { return };
    let (group, volume) = (fresh("rights"), Uuid([4; 16]));
    let image = cluster.image(&group);
    let user =
        cluster.user(&["mon", r#"profile rbd, allow command "osd blocklist""#, "osd", "allow rwx pool=rbd"]);
    let (mut one, mut other) = (user.open(&cluster, &group), user.open(&cluster, &group));
    for store in [&one, &other] {
        store.set_volume(volume, &image);
    }
    assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Done);
    swapped(one.ask(swap(0, b"value")));
    assert_eq!(one.ask(StoreRequest::Notify(OWNER)), StoreReply::Done);
    other.event(|event| *event == StoreEvent::Changed(OWNER));
    let old = one.store.instance();
    let epoch = blocklisted(other.ask(StoreRequest::Blocklist { instance: old, expiry: YEAR }));
    for request in [
        StoreRequest::AwaitMap(epoch),
        StoreRequest::Lock(volume),
        StoreRequest::SpreadMap(volume),
        StoreRequest::RemoveFromBlocklist(old),
        StoreRequest::Unlock(volume),
    ] {
        assert_eq!(other.ask(request.clone()), StoreReply::Done, "{request:?} {:?}", other.others);
    }
}

/// An owner that was barred, and does not know it yet, neither reads what was there before nor frees what is there now: also
/// where librbd knows by its object map that nothing is there, and does not ask.
#[test]
fn a_barred_owner_answers_nothing_by_its_object_map() {
    let Some(cluster) = cluster() else { return };
    type Call = fn(&mut Disk) -> Result<(), Failure>;
    let calls: [Call; 2] =
        [|disk| disk.read(4 << 20).map(|bytes| assert_eq!(bytes, [0; 4096])), |disk| disk.free(8 << 20)];
    for call in calls {
        let (group, volume) = (fresh("unread"), Uuid([6; 16]));
        let image = cluster.image(&group);
        let (mut one, mut other) = (open(&cluster, &group), open(&cluster, &group));
        for store in [&one, &other] {
            store.set_volume(volume, &image);
        }
        assert_eq!(one.ask(StoreRequest::Lock(volume)), StoreReply::Done);
        let mut disk = Disk::new(one.store.image(volume).unwrap());
        assert_eq!(call(&mut disk), Ok(()));
        let old = one.store.instance();
        let epoch = blocklisted(other.ask(StoreRequest::Blocklist { instance: old, expiry: YEAR }));
        for request in
            [StoreRequest::AwaitMap(epoch), StoreRequest::Lock(volume), StoreRequest::SpreadMap(volume)]
        {
            assert_eq!(other.ask(request), StoreReply::Done);
        }
        // By now another gateway serves the image, and its hosts may write.
        assert_eq!(call(&mut disk), Err(Failure::Failed(Fault::PathLost)));
        assert!(one.store.image(volume).is_none_or(|image| image.is_fenced()));
    }
}
