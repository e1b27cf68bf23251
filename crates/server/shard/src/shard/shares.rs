//! What each peer makes a shard hold: bytes that it was asked for and has not sent, and bytes that it asked
//! for and has not read.
//!
//! Each connection has a bound of its own (`reserve_read`, `reserve_write`), but a peer may have many. So all
//! of one initiator's name, or host's, hold at most a part of the shard's memory together; what is beyond
//! waits with its connection, where it keeps nobody else waiting. One operation always passes. Invariant: who
//! waits is looked at again when its peer's connections hold less than before.

use std::collections::HashMap;
use std::sync::Arc;

use buf::{Cx, Pool};
use stream::Tag;

use super::Shard;
use super::conns::Kind;

/// The part of a shard's memory that one peer may hold.
const PART: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Shares {
    by_name: HashMap<Arc<str>, usize>,
    shares: Vec<Share>,
    /// Places of `shares` that nobody has.
    free: Vec<usize>,
}

/// What all connections of one peer hold.
#[derive(Debug)]
struct Share {
    name: Arc<str>,
    stakes: u32,
    held: u64,
    /// Connections that wait until less is held.
    waiting: Vec<Tag>,
}

/// One connection's part of its peer's share.
#[derive(Debug)]
pub(super) struct Stake {
    share: usize,
    /// What it was last known to hold.
    held: u64,
}

impl Shares {
    pub(super) fn join(&mut self, name: &Arc<str>) -> Stake {
        let share = match self.by_name.get(name) {
            Some(share) => *share,
            None => {
                let share = Share { name: name.clone(), stakes: 0, held: 0, waiting: Vec::new() };
                let at = match self.free.pop() {
                    Some(at) => {
                        self.shares[at] = share;
                        at
                    }
                    None => {
                        self.shares.push(share);
                        self.shares.len() - 1
                    }
                };
                self.by_name.insert(name.clone(), at);
                at
            }
        };
        self.shares[share].stakes += 1;
        Stake { share, held: 0 }
    }

    /// A connection is gone, and holds nothing. Who is to be looked at again.
    #[must_use]
    pub(super) fn leave(&mut self, mut stake: Stake) -> Vec<Tag> {
        let waiting = self.note(&mut stake, 0);
        let share = &mut self.shares[stake.share];
        share.stakes -= 1;
        if share.stakes == 0 {
            self.by_name.remove(&share.name);
            self.free.push(stake.share);
        }
        waiting
    }

    /// Whether `len` more bytes may be held; if not, `conn` waits.
    fn admits(&mut self, stake: &Stake, conn: Tag, len: u32, pool: &Pool) -> bool {
        let share = &mut self.shares[stake.share];
        let most = (pool.usage().capacity / PART) as u64;
        let admits = share.held == 0 || share.held + u64::from(len) <= most;
        if !admits && !share.waiting.contains(&conn) {
            share.waiting.push(conn);
        }
        admits
    }

    /// Takes down what a connection holds now. Who is to be looked at again.
    #[must_use]
    fn note(&mut self, stake: &mut Stake, held: u64) -> Vec<Tag> {
        let share = &mut self.shares[stake.share];
        share.held = share.held + held - stake.held;
        let less = held < stake.held;
        stake.held = held;
        if less { std::mem::take(&mut share.waiting) } else { Vec::new() }
    }
}

impl Shard {
    /// Whether a connection's peer may make this shard hold so much more. If not, the connection is touched
    /// when the peer holds less.
    pub(super) fn admits_share(&mut self, cx: &Cx<'_>, conn: Tag, len: u32) -> bool {
        let stake = match self.conns.get(conn).map(|conn| &conn.kind) {
            Some(Kind::Session(session)) => session.stake.as_ref(),
            Some(Kind::Queue(queue)) => queue.stake.as_ref(),
            Some(Kind::Login(_)) | None => None,
        };
        stake.is_none_or(|stake| self.shares.admits(stake, conn, len, cx.pool))
    }

    /// Takes down what a connection makes this shard hold.
    pub(super) fn note_held(&mut self, conn: Tag) {
        let (stake, held) = match self.conns.get_mut(conn).map(|conn| &mut conn.kind) {
            Some(Kind::Session(session)) => (session.stake.as_mut(), session.proto.held()),
            Some(Kind::Queue(queue)) => (queue.stake.as_mut(), queue.proto.held()),
            Some(Kind::Login(_)) | None => return,
        };
        let Some(stake) = stake.filter(|stake| stake.held != held) else { return };
        let waiting = self.shares.note(stake, held);
        waiting.into_iter().for_each(|conn| self.touch(conn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stream::Slab;

    #[test]
    fn a_share_is_of_all_connections_of_a_name_and_of_no_others() {
        let pool = Pool::new(1 << 20);
        let mut slab = Slab::new(4);
        let [a, b, c] = [0, 1, 2].map(|n| slab.insert(n).unwrap());
        let mut shares = Shares::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let (mut first, second, third) = (shares.join(&one), shares.join(&one), shares.join(&other));
        assert!(shares.admits(&first, a, 1 << 20, &pool), "one operation always passes");
        assert!(shares.note(&mut first, 200 << 10).is_empty());
        assert!(!shares.admits(&second, b, 100 << 10, &pool) && !shares.admits(&second, b, 100 << 10, &pool));
        assert!(shares.admits(&second, b, 56 << 10, &pool) && shares.admits(&third, c, 256 << 10, &pool));
        assert_eq!(shares.note(&mut first, 100 << 10), [b], "it is told once");
        assert!(shares.admits(&second, b, 100 << 10, &pool));
        assert!(!shares.admits(&second, b, 200 << 10, &pool));
        assert_eq!(shares.leave(first), [b]);
        assert!(shares.admits(&second, b, 1 << 20, &pool));
        assert!(shares.leave(second).is_empty() && shares.leave(third).is_empty());
        assert!(shares.by_name.is_empty() && shares.free.len() == 2);
    }
}
