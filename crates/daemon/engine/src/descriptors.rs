//! The limit of open files of the process: every connection is one.

use config::{
    plan::{Plan, Volume},
    spec::VolumeSource,
};
use process::log::area;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shard::LOGINS_MAX;

/// What the daemon opens beside its connections: volumes, rings, listeners, the control socket.
const OTHER_DESCRIPTORS: u64 = 256;
/// Fewest connections of a shard that may be logging in, however few descriptors there are.
const PENDING_LOGINS_MIN: usize = 16;

/// Descriptors of a volume's file: what opened it, what the shards use, what looks how much of it is allocated.
const DESCRIPTORS_PER_FILE: u64 = 3;

/// Raises the limit as far as an ordinary process may, and says so in the log if that is less than `sessions` and the
/// files of so many volumes ask for.
pub fn raise_limit(sessions: u64, volume_files: u64) {
    let before = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    if before.current != before.maximum
        && let Err(why) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(target: area::SERVE, %why, "cannot raise the limit of open files");
    }
    let limit = getrlimit(Resource::Nofile).current;
    let files = volume_files.saturating_mul(DESCRIPTORS_PER_FILE);
    if let Some(limit) = limit.filter(|limit| *limit < files + OTHER_DESCRIPTORS) {
        tracing::warn!(
            target: area::SERVE,
            limit,
            "the files of {volume_files} volumes take {files} descriptors, more than there may be: raise the hard limit \
             (LimitNOFILE= of the unit, or `ulimit -Hn`)"
        );
    } else if let Some(room) = reduced_capacity(limit.map(|limit| limit - files), sessions) {
        tracing::warn!(
            target: area::SERVE,
            "open files are limited so that about {room} connections fit, fewer than {sessions} sessions; \
             raise the hard limit (LimitNOFILE= of the unit, or `ulimit -Hn`)"
        );
    }
}

/// How many volumes of a plan lie in a file.
pub fn volume_file_count(plan: &Plan) -> u64 {
    let is_file = |volume: &&Volume| matches!(volume.spec.source, VolumeSource::File(_));
    plan.volumes.iter().filter(is_file).count() as u64
}

/// How many connections fit, if those are fewer than `sessions`. `None` as a limit is none.
fn reduced_capacity(limit: Option<u64>, sessions: u64) -> Option<u64> {
    let room = limit?.saturating_sub(OTHER_DESCRIPTORS);
    (room < sessions).then_some(room)
}

/// Connections of each of `shards` shards that may be logging in. Strangers can hold six times as many
/// descriptors of a shard: these, as many on their way out, and four times as many that linger when they were
/// closed. All shards together leave half of the descriptors to sessions.
pub fn pending_logins_max(shards: usize) -> usize {
    pending_logins_per_shard(getrlimit(Resource::Nofile).current, shards)
}

fn pending_logins_per_shard(limit: Option<u64>, shards: usize) -> usize {
    let Some(limit) = limit else { return LOGINS_MAX };
    let each = limit / 2 / 6 / shards.max(1) as u64;
    usize::try_from(each).unwrap_or(LOGINS_MAX).clamp(PENDING_LOGINS_MIN, LOGINS_MAX)
}

/// Says in the log that no connection can be accepted.
pub fn log_exhausted() {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {limit}"));
    tracing::error!(
        target: area::SERVE,
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
        assert_eq!(reduced_capacity(Some(1024), 65_535), Some(768));
        assert_eq!(reduced_capacity(Some(100), 1), Some(0));
        assert_eq!(reduced_capacity(Some(1_048_576), 65_535), None);
        assert_eq!(reduced_capacity(None, 65_535), None);
    }

    #[test]
    fn strangers_leave_half_of_the_descriptors_to_sessions() {
        assert_eq!(pending_logins_per_shard(None, 64), 256);
        assert_eq!(pending_logins_per_shard(Some(1_048_576), 64), 256);
        for (limit, shards) in [(1024, 1), (1024, 4), (4096, 8), (65_536, 64)] {
            let all = 6 * pending_logins_per_shard(Some(limit), shards) * shards;
            assert!(all as u64 <= limit / 2, "{all} of {limit} with {shards} shards");
        }
        assert_eq!(pending_logins_per_shard(Some(64), 4), PENDING_LOGINS_MIN);
    }

    #[test]
    fn the_limit_becomes_the_hard_one() {
        raise_limit(1, 0);
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }
}
