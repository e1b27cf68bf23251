//! The changes of a configuration as `plan` and `apply` report them: what each means for volumes as they are, and which
//! cannot be made while the daemon runs.

use shard::RateLimits;

use super::super::{ServedState, resize::check_new_size};
use config::{
    difference::{Action, Change, Effect, Item, KeyChange},
    network,
    plan::{Plan, Volume, VolumeOrigin},
    size,
    spec::VolumeSource,
};
use control::report::plan::{ChangeReport, KeyReport};

/// Volumes that are smaller than a plan has them and can grow, and to how many bytes: also those that could not grow when
/// the plan was applied.
pub(super) fn growing(plan: &Plan, served: &ServedState) -> Vec<(String, u64)> {
    let configured = plan.volumes.iter().filter(|one| one.origin == VolumeOrigin::Configured);
    let grows = configured.filter_map(|volume| {
        let (bytes, store) = (volume.spec.size?, served.store(volume.name.as_str())?);
        (bytes > store.bytes && check_new_size(store, bytes, false).is_ok())
            .then(|| (volume.name.to_string(), bytes))
    });
    grows.collect()
}

/// The report of a volume that grows although its text has not changed.
pub(super) fn growth_report(name: &str, bytes: u64) -> ChangeReport {
    ChangeReport {
        action: Action::Change.as_str().to_owned(),
        item: Item::Volume.as_str().to_owned(),
        name: name.to_owned(),
        keys: Vec::new(),
        effect: Effect::None.as_str().to_owned(),
        note: Some(format!("it grows to {}, as configured", size::format_human(bytes))),
    }
}

/// The word of what needs a restart.
pub(super) const RESTART: &str = Effect::Restart("").as_str();

/// A change as it is reported.
pub(super) fn report(change: &Change) -> ChangeReport {
    let key = |key: &KeyChange| KeyReport {
        key: key.key.to_owned(),
        before: key.before.clone(),
        after: key.after.clone(),
    };
    let note = match change.effect {
        Effect::Restart(why) => Some(why.to_owned()),
        Effect::None | Effect::Later | Effect::MayEnd => None,
    };
    ChangeReport {
        action: change.action.as_str().to_owned(),
        item: change.item.as_str().to_owned(),
        name: change.name.clone(),
        keys: change.keys.iter().map(key).collect(),
        effect: change.effect.as_str().to_owned(),
        note,
    }
}

/// Why a change is refused.
pub(super) fn refusal(report: &ChangeReport) -> String {
    let keys: Vec<&str> = report.keys.iter().map(|key| key.key.as_str()).collect();
    let keys = if keys.is_empty() { String::new() } else { format!(" ({})", keys.join(", ")) };
    let why = report.note.as_deref().unwrap_or("it is read at start only");
    format!("{} {}{keys}: needs a restart: {why}", report.item, report.name)
}

/// What a change of a volume means for the volume as it is.
pub(super) fn note_volume(
    change: &Change,
    new: Option<&Volume>,
    served: &ServedState,
    is_failed: bool,
    report: &mut ChangeReport,
) {
    let store = served.store(&change.name);
    let mut say = |effect: Option<&str>, note: String| {
        report.effect = effect.unwrap_or(&report.effect).to_owned();
        report.note = Some(note);
    };
    match (change.action, store, new) {
        (Action::Remove, Some(store), _) if matches!(store.volume.spec.source, VolumeSource::Ram) => {
            say(None, "it is memory: what it holds is lost".to_owned());
        }
        (Action::Change, None, Some(new)) if is_failed && new.origin == VolumeOrigin::Configured => {
            say(Some(Effect::None.as_str()), "it is not served, and is opened again".to_owned());
        }
        (Action::Change, Some(store), Some(new)) if change.effect == Effect::None => {
            let Some(bytes) = new.spec.size else { return };
            if bytes < store.bytes {
                say(None, format!("it keeps its size of {}", size::format_human(store.bytes)));
            } else if bytes > store.bytes
                && let Err(why) = check_new_size(store, bytes, false)
            {
                say(Some(RESTART), why.message);
            }
        }
        _ => {}
    }
}

/// New portals that overlap with one that goes: both cannot be bound at once, and none is let go before the new one is
/// there.
pub(super) fn colliding(old: &Plan, new: &Plan) -> Vec<String> {
    let difference = old.difference(new).portals;
    let mut all = Vec::new();
    for (name, portal) in &difference.added {
        let gone = difference
            .removed
            .iter()
            .find(|(_, gone)| network::addresses_conflict(gone.address, portal.address));
        if let Some((gone, _)) = gone {
            all.push(format!(
                "portal {name}: needs a restart: it overlaps with portal {gone}, which is removed; or apply the \
                 removal first"
            ));
        }
    }
    all
}

/// Volumes of both plans that are limited otherwise by the new one.
pub(super) fn limited(old: &Plan, new: &Plan) -> Vec<(String, RateLimits)> {
    let changed = |volume: &&Volume| {
        let before = old.volumes.iter().find(|other| other.name == volume.name);
        before.is_some_and(|before| before.spec.limits != volume.spec.limits)
    };
    let all = new.volumes.iter().filter(changed);
    all.map(|volume| (volume.name.to_string(), volume.spec.limits.checked_rates())).collect()
}
