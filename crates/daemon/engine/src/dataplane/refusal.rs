//! What a volume refuses, in words for the operator: why, and what to do.

use volume::{Access, Refusal, UnservableReason};

/// Why the volume of this name refuses a change, and the next step.
pub fn words(name: &str, refusal: &Refusal) -> String {
    let show = format!("`blockwire reservation show {name}`");
    let why = match refusal {
        Refusal::Conflict => {
            format!("a host's reservation forbids it, which that host must release first: see {show}")
        }
        Refusal::Inaccessible(Access::Transition) => "its path is changing its state: try again".to_owned(),
        Refusal::Inaccessible(_) => {
            format!("its path does not serve: see `blockwire path list {name}`, change it by `blockwire path set`")
        }
        Refusal::OutOfRange => "that is beyond its end: resize it first".to_owned(),
        Refusal::ReadOnly => format!(
            "it is write-protected: `blockwire volume show {name}` says by whom, and `blockwire volume set {name} \
             --read-only off` ends what an operator has set"
        ),
        Refusal::AtomicUnit => "it is longer than the volume writes atomically: write less at once".to_owned(),
        Refusal::NotReady(why) => not_ready(*why).to_owned(),
        Refusal::Unsupported => {
            "what backs it cannot do this: create another volume that can, and copy it there".to_owned()
        }
        Refusal::Busy => "too many changes of it are under way: try again in a moment".to_owned(),
        Refusal::NoRegistrationSpace => {
            format!("it keeps no more registrations: have hosts that are gone removed ({show})")
        }
        Refusal::NoMarkSpace => "no more of its blocks can be marked bad: have hosts write those that are".to_owned(),
        Refusal::NotRegistered => format!("the key does not match, or nobody registered it: see {show}"),
        Refusal::InvalidRelease => format!("its reservation is of another type: see {show}"),
        Refusal::InvalidAction => {
            format!("it makes no sense in the state that it is in: see `blockwire volume show {name}`")
        }
        Refusal::NothingReserved => format!("nothing of it is reserved: see {show}"),
        Refusal::NotDurable => {
            "the change could not be made durable, so nothing has changed: see whether the state directory is full \
             or read-only, then try again"
                .to_owned()
        }
        Refusal::RemovalPrevented => "a host prevents that its medium is removed: end that there first".to_owned(),
        Refusal::NotFenced => {
            "the change stands, but what was in flight before it did not end in time, so the volume is closed: look \
             at the disk beneath it, then restart the daemon"
                .to_owned()
        }
    };
    format!("volume \"{name}\" refuses: {why}")
}

fn not_ready(why: UnservableReason) -> &'static str {
    match why {
        UnservableReason::Stopped => "it was stopped: start it again by the host that has stopped it",
        UnservableReason::NoMedium => "its medium was ejected: load it again by the host that has ejected it",
        UnservableReason::Sanitizing(_) => "it is being sanitized: wait for the end",
        UnservableReason::SanitizeFailed => "its last sanitize has failed: have a host repeat it",
        UnservableReason::SyncFailed => {
            "a sync has failed, so what was written last may be lost: look at the disk beneath it, then \
             acknowledge it by `blockwire volume retry`"
        }
        UnservableReason::Removed => "it is being removed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who reads it knows no names of ours.
    #[test]
    fn every_refusal_has_words_of_its_own() {
        let mut all = vec![
            Refusal::Conflict,
            Refusal::Inaccessible(Access::Transition),
            Refusal::Inaccessible(Access::PersistentLoss),
            Refusal::OutOfRange,
            Refusal::ReadOnly,
            Refusal::AtomicUnit,
            Refusal::Unsupported,
            Refusal::Busy,
            Refusal::NoRegistrationSpace,
            Refusal::NoMarkSpace,
            Refusal::NotRegistered,
            Refusal::InvalidRelease,
            Refusal::InvalidAction,
            Refusal::NothingReserved,
            Refusal::NotDurable,
            Refusal::RemovalPrevented,
            Refusal::NotFenced,
        ];
        let whys = [
            UnservableReason::Stopped,
            UnservableReason::NoMedium,
            UnservableReason::Sanitizing(7),
            UnservableReason::SanitizeFailed,
            UnservableReason::SyncFailed,
        ];
        all.extend(whys.map(Refusal::NotReady));
        let mut said = std::collections::BTreeSet::new();
        for refusal in &all {
            let text = words("db", refusal);
            let name = format!("{refusal:?}").replace([')', '('], " ");
            assert!(text.starts_with("volume \"db\" refuses: "), "{text}");
            assert!(name.split(' ').all(|part| part.is_empty() || !text.contains(part)), "{text}");
            said.insert(text);
        }
        assert_eq!(said.len(), all.len());
    }
}
