//! How many files the process may have open: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the daemon opens beside its connections: volumes, rings, listeners, the control socket.
const OTHERS: u64 = 256;

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
    fn the_limit_becomes_the_hard_one() {
        raise(1);
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }
}
