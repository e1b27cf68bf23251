//! Messages for the operator when a volume refuses a request: why, and what to do.

use volume::{PathAccess, Refusal, UnservableReason};

/// Why the volume of this name refuses a change, and the next step.
pub fn refusal_text(name: &str, refusal: &Refusal) -> String {
    let show = format!("`blockwire reservation show {name}`");
    let why = match refusal {
        Refusal::Conflict => {
            format!("a host's reservation conflicts: that host must release it first; see {show}")
        }
        Refusal::Inaccessible(PathAccess::Transition) => "its path is changing state: try again".to_owned(),
        Refusal::Inaccessible(_) => {
            format!("its path is not accessible: see `blockwire path list {name}`, change it with `blockwire path \
                     set`")
        }
        Refusal::OutOfRange => "that is beyond its end: resize the volume first".to_owned(),
        Refusal::ReadOnly => format!(
            "it is write-protected: `blockwire volume show {name}` shows by whom; `blockwire volume set {name} \
             --read-only off` removes the operator's protection"
        ),
        Refusal::AtomicUnit => "it is larger than the volume can write atomically: use smaller writes".to_owned(),
        Refusal::NotReady(why) => unservable_text(*why).to_owned(),
        Refusal::Unsupported => {
            "its backing does not support this: copy it to a volume that does".to_owned()
        }
        Refusal::Busy => "too many changes are in progress: try again in a moment".to_owned(),
        Refusal::NoRegistrationSpace => {
            format!("no room for more registrations: remove those of hosts that are gone ({show})")
        }
        Refusal::NoMarkSpace => "no more of its blocks can be marked bad: let hosts write the marked \
                                 ones".to_owned(),
        Refusal::NotRegistered => format!("the key does not match, or is not registered: see {show}"),
        Refusal::InvalidRelease => format!("its reservation is of another type: see {show}"),
        Refusal::InvalidAction => {
            format!("not possible in its current state: see `blockwire volume show {name}`")
        }
        Refusal::NothingReserved => format!("it is not reserved: see {show}"),
        Refusal::NotDurable => {
            "the change could not be saved, so nothing has changed: check whether the state directory is full or \
             read-only, then try again"
                .to_owned()
        }
        Refusal::RemovalPrevented => "a host prevents medium removal: allow it on that host first".to_owned(),
        Refusal::NotFenced => {
            "the change is in effect, but earlier operations did not complete in time, so the volume is closed: \
             check its disk, then restart the daemon"
                .to_owned()
        }
    };
    format!("volume \"{name}\" refuses: {why}")
}

fn unservable_text(why: UnservableReason) -> &'static str {
    match why {
        UnservableReason::Stopped => "it was stopped by a host: start it again from that host",
        UnservableReason::NoMedium => "its medium was ejected by a host: load it again from that host",
        UnservableReason::Sanitizing(_) => "it is being sanitized: wait until that has finished",
        UnservableReason::Formatting(_) => "it is being formatted: wait until that has finished",
        UnservableReason::SanitizeFailed => "its last sanitize failed: repeat it from a host",
        UnservableReason::SyncFailed => {
            "a sync has failed: recent writes may be lost; check its disk, then acknowledge with `blockwire \
             volume retry`"
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
            Refusal::Inaccessible(PathAccess::Transition),
            Refusal::Inaccessible(PathAccess::PersistentLoss),
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
            UnservableReason::Formatting(7),
            UnservableReason::SanitizeFailed,
            UnservableReason::SyncFailed,
        ];
        all.extend(whys.map(Refusal::NotReady));
        let mut said = std::collections::BTreeSet::new();
        for refusal in &all {
            let text = refusal_text("db", refusal);
            let name = format!("{refusal:?}").replace([')', '('], " ");
            assert!(text.starts_with("volume \"db\" refuses: "), "{text}");
            assert!(name.split(' ').all(|part| part.is_empty() || !text.contains(part)), "{text}");
            said.insert(text);
        }
        assert_eq!(said.len(), all.len());
    }
}
