//! The limit of open files of the process: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shard::LOGINS_MAX;

/// What the daemon opens beside its connections: volumes, rings, listeners, the control socket.
const OTHERS: u64 = 256;
/// Fewest connections of a shard that may be logging in, however few descriptors there are.
const LOGINS_MIN: usize = 16;

/// Raises the limit as far as an ordinary process may, and says so in the log if that is less than
/// `sessions` ask for.
pub fn raise(sessions: u64) {
    let before = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    if before.current != before.maximum
        && let Err(why) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(%why, "cannot raise the limit of open files");
    }
    if let Some(room) = too_few(getrlimit(Resource::Nofile).current, sessions) {
        tracing::warn!(
            "open files are limited so that about {room} connections fit, fewer than {sessions} sessions; \
             raise the hard limit (LimitNOFILE= of the unit, or `ulimit -Hn`)"
        );
    }
}

/// How many connections fit, if those are fewer than `sessions`. `None` as a limit is none.
fn too_few(limit: Option<u64>, sessions: u64) -> Option<u64> {
    let room = limit?.saturating_sub(OTHERS);
    (room < sessions).then_some(room)
}

/// Connections of each of `shards` shards that may be logging in. Strangers can hold six times as many
/// descriptors of a shard: these, as many on their way out, and four times as many that linger when they were
/// closed. All shards together leave half of the descriptors to sessions.
pub fn logins(shards: usize) -> usize {
    share(getrlimit(Resource::Nofile).current, shards)
}

fn share(limit: Option<u64>, shards: usize) -> usize {
    let Some(limit) = limit else { return LOGINS_MAX };
    let each = limit / 2 / 6 / shards.max(1) as u64;
    usize::try_from(each).unwrap_or(LOGINS_MAX).clamp(LOGINS_MIN, LOGINS_MAX)
}

/// Says in the log that no connection can be accepted.
pub fn tell_exhausted() {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {limit}"));
    tracing::error!(
        "connections are turned away: the process has no file descriptor left ({limit}), or the system no \
         memory for a socket; raise the hard limit (LimitNOFILE= of the unit, or `ulimit -Hn`) or set \
         `[limits] sessions`"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_sessions_is_told() {
        assert_eq!(too_few(Some(1024), 65_535), Some(768));
        assert_eq!(too_few(Some(100), 1), Some(0));
        assert_eq!(too_few(Some(1_048_576), 65_535), None);
        assert_eq!(too_few(None, 65_535), None);
    }

    #[test]
    fn strangers_leave_half_of_the_descriptors_to_sessions() {
        assert_eq!(share(None, 64), 256);
        assert_eq!(share(Some(1_048_576), 64), 256);
        for (limit, shards) in [(1024, 1), (1024, 4), (4096, 8), (65_536, 64)] {
            let all = 6 * share(Some(limit), shards) * shards;
            assert!(all as u64 <= limit / 2, "{all} of {limit} with {shards} shards");
        }
        assert_eq!(share(Some(64), 4), LOGINS_MIN);
    }

    #[test]
    fn the_limit_becomes_the_hard_one() {
        raise(1);
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }
}
