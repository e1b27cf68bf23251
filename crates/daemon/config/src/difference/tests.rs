//! The laws of differences over plans made by random edits of the example, and what single changes mean.

use std::{path::Path, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{
    EXAMPLE_TOML,
    check::{self, CommandLineOptions},
    diagnostic::{Sink, SourceText},
    draft::Draft,
    plan::{Credentials, Secret, VolumeOrigin},
    read_text, spec,
};

fn plan(text: &str) -> Plan {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    read_text(&SourceText::new("f", text.to_owned()), Path::new("/"), false, &sink, &mut draft);
    let plan = check::resolve_draft(draft, &CommandLineOptions::default(), &sink);
    sink.into_result(plan).unwrap().0
}

/// What is done to which of a list's items.
fn edit_list<T: Clone>(list: &mut Vec<T>, how: u8, at: usize, change: impl Fn(&mut T)) {
    let at = at % list.len().max(1);
    match how % 4 {
        0 if !list.is_empty() => drop(list.remove(at)),
        1 if !list.is_empty() => list.rotate_left(at),
        2 => list.get_mut(at).into_iter().for_each(change),
        _ => {
            let twin = list.get(at).cloned();
            list.extend(twin.map(|mut one| {
                change(&mut one);
                one
            }));
        }
    }
}

/// Changes something. The result need not be one that the checks would accept: the laws hold of any plan whose names are
/// unique, and portals with one address are told apart.
fn edit(plan: &mut Plan, (what, how, at): (u8, u8, usize)) {
    let fresh = plan.volumes.len() + plan.hosts.len() + plan.portals.len() + at;
    match what % 9 {
        0 => edit_list(&mut plan.volumes, how, at, |one| {
            if how % 4 == 3 {
                one.name = VolumeName::parse(&format!("v{fresh}")).unwrap();
            }
            one.spec = spec::parse(&format!("ram:{}M", fresh + 1)).unwrap();
        }),
        1 => edit_list(&mut plan.portals, how, at, |one| one.digests.0 = !one.digests.0),
        2 => edit_list(&mut plan.ways.targets, how, at, |one| {
            if how % 4 == 3 {
                one.name.push_str(&format!("-{fresh}"));
            }
            one.commands += 1;
        }),
        3 => edit_list(&mut plan.ways.subsystems, how, at, |one| {
            if how % 4 == 3 {
                one.nqn.push_str(&format!("-{fresh}"));
            }
            one.open = !one.open;
        }),
        4 => edit_list(&mut plan.hosts, how, at, |one| {
            if how % 4 == 3 {
                one.name.push_str(&format!("-{fresh}"));
            }
            let secret = Secret::new(vec![at as u8; 12]);
            one.chap = vec![Credentials { user: "u".into(), secret, mutual: None }];
        }),
        5 => edit_list(&mut plan.placement, how, at, |one| one.cores.push(at)),
        6 => plan.limits.login_timeout += Duration::from_secs(u64::from(how)),
        7 => plan.auth.mutual = how % 2 == 0,
        _ => plan.node = (how % 2 == 0).then(|| VolumeName::parse("rack9").unwrap()),
    }
    let mut seen = HashSet::new();
    plan.volumes.retain(|one| seen.insert(one.name.to_string()));
    plan.ways.targets.retain(|one| seen.insert(one.name.clone()));
    plan.ways.subsystems.retain(|one| seen.insert(one.nqn.clone()));
    plan.hosts.retain(|one| seen.insert(one.name.clone()));
}

fn edits() -> impl Strategy<Value = Vec<(u8, u8, usize)>> {
    proptest::collection::vec((any::<u8>(), any::<u8>(), 0..20usize), 0..12)
}

proptest! {
    #[test]
    fn a_difference_makes_the_new_plan_of_the_old_one(first in edits(), second in edits()) {
        let mut old = plan(EXAMPLE_TOML);
        first.into_iter().for_each(|one| edit(&mut old, one));
        let mut new = old.clone();
        second.into_iter().for_each(|one| edit(&mut new, one));
        let difference = old.difference(&new);
        prop_assert_eq!(&difference.apply(&old), &new);
        prop_assert_eq!(difference.is_empty(), old == new);
        prop_assert!(old.difference(&old).is_empty());
        prop_assert_eq!(&new.difference(&old).apply(&new), &old);
    }
}

/// The changes that a replacement in the example comes to, as `item name action: effect`.
fn changes(from: &str, to: &str) -> Vec<String> {
    assert!(EXAMPLE_TOML.contains(from), "{from}");
    let changes = plan(EXAMPLE_TOML).difference(&plan(&EXAMPLE_TOML.replacen(from, to, 1))).changes();
    let line = |one: &Change| {
        let keys: Vec<&str> = one.keys.iter().map(|key| key.key).collect();
        let (item, action, effect) = (one.item.as_str(), one.action.as_str(), one.effect.as_str());
        format!("{action} {item} {} {}: {effect}", one.name, keys.join(","))
    };
    changes.iter().map(line).collect()
}

#[test]
fn each_change_says_what_it_means() {
    for (from, to, want) in [
        ("size = \"200G\"", "size = \"300G\"", "change volume db size: none"),
        ("block = 4096", "block = 512", "change volume db block: restart"),
        ("source = \"ram:4G\"", "source = \"ram:5G\"", "change volume scratch size: none"),
        ("source = \"ram:4G\"", "source = \"ram:3G\"", "change volume scratch size: restart"),
        ("congestion = \"bbr\"\n", "", "change portal iscsi 192.0.2.10:3260 congestion: restart"),
        ("dscp = \"af41\"", "dscp = 1", "change portal iscsi 192.0.2.10:3260 dscp: later-connections"),
        (
            "commands = 256",
            "commands = 99",
            "change target iqn.2026-11.com.example:db commands: later-connections",
        ),
        (
            "secret = \"change me please\"",
            "secret = \"changed it is now\"",
            "change host db1 chap: may-end-connections",
        ),
        ("sessions = 2000", "sessions = 2001", "change section [limits] sessions: later-connections"),
        (
            "nop_interval = 10",
            "nop_interval = 10\nmemory = \"64M\"",
            "change section [limits] memory: restart",
        ),
        (
            "queues = 16",
            "queues = 17",
            "change subsystem nqn.2026-11.com.example:logs queues: later-connections",
        ),
    ] {
        assert_eq!(changes(from, to), [want], "{from}");
    }
    let tagged = changes("tag = 2", "tag = 3");
    assert_eq!(tagged[0], "change portal iscsi 127.0.0.1:3261 tag: may-end-connections");
    let added = changes("[[referral]]", "[[volume]]\nname = \"more\"\nsource = \"ram:1M\"\n[[referral]]");
    assert_eq!(
        added,
        [
            "add volume more : none",
            "add target iqn.2026-11.io.blockwire:rack4:more : none",
            "add subsystem nqn.2026-11.io.blockwire:rack4:more : none"
        ]
    );
}

#[test]
fn no_text_of_a_difference_holds_a_secret() {
    let (old, new) =
        (plan(EXAMPLE_TOML), plan(&EXAMPLE_TOML.replace("change me please", "another passphrase")));
    let shown = format!("{:?}", old.difference(&new).changes());
    assert!(
        shown.contains("chap") && !shown.contains("change me") && !shown.contains("passphrase"),
        "{shown}"
    );
}

#[test]
fn a_volume_of_another_origin_is_not_taken_for_the_same() {
    let old = plan(EXAMPLE_TOML);
    let mut new = old.clone();
    new.volumes[0].origin = VolumeOrigin::Created;
    let changes = old.difference(&new).changes();
    assert!(matches!(changes[0].effect, Effect::Restart(_)), "{changes:?}");
}
