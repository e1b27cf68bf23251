//! How much a link moves at a time while others are active.
//!
//! A shard's links take turns by calls. One call that copies a MiB keeps the peers of all others waiting for as long.
//! So calls are short while several links are active. A link that is active alone moves as much at a time as there is,
//! which takes fewer calls.
//!
//! Invariant: what a call leaves is continued by a later one; nothing is cut off.

use std::time::Duration;

use buf::Time;
use stream::Tag;

/// What one call moves at most while several links are active, in bytes: some 40 microseconds of copying.
const SHARED_TRANSFER_MAX: usize = 256 << 10;
/// How long several links count as active after one has received behind another.
const ACTIVE_FOR: Duration = Duration::from_millis(10);

/// Which links of a shard have received lately.
#[derive(Debug, Default)]
pub(crate) struct ActiveLinks {
    latest: Option<Tag>,
    shared_until: Time,
}

impl ActiveLinks {
    /// A link has received something.
    #[inline]
    pub(crate) fn note_received(&mut self, link: Tag, now: Time) {
        if self.latest.replace(link).is_some_and(|before| before != link) {
            self.shared_until = now + ACTIVE_FOR;
        }
    }

    /// How many bytes one call may move now.
    #[inline]
    pub(crate) fn transfer_max(&self, now: Time) -> usize {
        if now < self.shared_until { SHARED_TRANSFER_MAX } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_short_while_several_links_are_active() {
        let mut active = ActiveLinks::default();
        let at = |ms| Time(1) + Duration::from_millis(ms);
        let [one, other] = [1, 2].map(Tag::from_bits);
        active.note_received(one, at(0));
        active.note_received(one, at(5));
        assert_eq!(active.transfer_max(at(5)), usize::MAX, "a link alone");
        active.note_received(other, at(6));
        assert_eq!(active.transfer_max(at(6)), SHARED_TRANSFER_MAX);
        active.note_received(other, at(9));
        assert_eq!(active.transfer_max(at(15)), SHARED_TRANSFER_MAX);
        assert_eq!(active.transfer_max(at(16)), usize::MAX, "it is alone again");
    }
}
