//! Which iSCSI sessions exist, and on which shard each lives.
//!
//! One shard keeps the directory; the others ask it by message when a login is about to end, because
//! a login may meet a session that lives elsewhere: to join it (several connections per session), to
//! reinstate it, or to be refused (RFC 7143 §6.3.1). Invariant: at most one live session has a given
//! name (initiator, ISID, target, portal group), and a new one of that name is granted only after
//! the old one has said that it is gone. What a session is, only its like may join or replace: a name
//! is a claim, and whoever may log in by another rule or as another user must not profit from it.

use std::collections::HashMap;
use std::sync::Arc;

use endpoint::ShardId;
use iscsi::wire::{Cid, Isid, Tsih};

use crate::exports::Wish;

/// How many sessions one daemon keeps at most: every TSIH but 0.
pub const SESSIONS_MAX: usize = 65_535;

/// What names a session (RFC 7143 §6.3.1): judged per initiator, target and portal group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionName {
    /// The initiator's name, normalised.
    pub initiator: Arc<str>,
    /// Its ISID.
    pub isid: Isid,
    /// The target's name; empty for a discovery session.
    pub target: Arc<str>,
    /// The portal group that it came by.
    pub portal_group: u16,
}

/// By what an initiator got in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warrant {
    /// The CHAP name that it proved.
    pub user: Option<String>,
    /// Which of the target's rules let it in; `None` for discovery.
    pub rule: Option<usize>,
}

impl Warrant {
    /// Whether who has this other warrant may replace a session of this one: its like; or who came by the same rule
    /// and proved more, since that rule may have begun to demand a proof after the session was let in.
    fn yields_to(&self, other: &Warrant) -> bool {
        self == other || self.user.is_none() && self.rule == other.rule
    }
}

/// What a login asks before its last response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who asks, to be answered: the shard and its own number for the login.
    pub from: (ShardId, u64),
    /// The session's name.
    pub name: SessionName,
    /// The TSIH that the initiator sent: 0 for a new session.
    pub tsih: Tsih,
    /// The connection's id.
    pub cid: Cid,
    /// What was negotiated as MaxConnections, for a new session.
    pub connections_max: u16,
    /// By what it got in.
    pub warrant: Warrant,
    /// Where a new session may live, and where best.
    pub wish: Wish,
}

/// The directory's answer to a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The login may end; its connection belongs to this session.
    Granted {
        /// The session's TSIH.
        tsih: Tsih,
        /// Where it lives, or shall live.
        shard: ShardId,
        /// Whether it is a new session.
        new: bool,
    },
    /// 020Ah.
    NoSuchSession,
    /// 0206h.
    TooManyConnections,
    /// 0202h: a session of this name is somebody else's.
    NotTheirs,
    /// 0302h.
    Full,
}

/// What the directory wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tell the login `token` on `shard`.
    Answer {
        /// The shard.
        shard: ShardId,
        /// Its number for the login.
        token: u64,
        /// The answer.
        verdict: Verdict,
    },
    /// End this session; [`Directory::gone`] follows.
    End {
        /// Where it lives.
        shard: ShardId,
        /// Which.
        tsih: Tsih,
    },
}

#[derive(Debug)]
struct Entry {
    name: SessionName,
    shard: ShardId,
    cids: Vec<Cid>,
    connections_max: u16,
    warrant: Warrant,
    wish: Wish,
    /// Shards that had no memory for it.
    refused: Vec<ShardId>,
    /// A login of the same name waits for this session's end.
    successor: Option<Claim>,
}

/// See the module.
#[derive(Debug)]
pub struct Directory {
    by_tsih: HashMap<Tsih, Entry>,
    by_name: HashMap<SessionName, Tsih>,
    load: Vec<u32>,
    last: u16,
    sessions_max: usize,
}

impl Directory {
    /// An empty directory for a daemon of so many shards (at least 1) and sessions (at most
    /// [`SESSIONS_MAX`] of them).
    pub fn new(shards: u16, sessions_max: usize) -> Self {
        assert!(shards > 0, "a daemon has a shard");
        Directory {
            by_tsih: HashMap::new(),
            by_name: HashMap::new(),
            load: vec![0; usize::from(shards)],
            last: 0,
            sessions_max: sessions_max.min(SESSIONS_MAX),
        }
    }

    /// A login asks. What to do about it goes to `orders`.
    pub fn claim(&mut self, claim: Claim, orders: &mut Vec<Order>) {
        if claim.tsih.value() == 0 { self.claim_new(claim, orders) } else { self.claim_join(&claim, orders) }
    }

    fn claim_new(&mut self, claim: Claim, orders: &mut Vec<Order>) {
        match self.by_name.get(&claim.name) {
            None => self.create(claim, orders),
            Some(tsih) => {
                let entry = self.by_tsih.get_mut(tsih).expect("both maps hold the same sessions");
                if !entry.warrant.yields_to(&claim.warrant) {
                    return orders.push(answer(&claim, Verdict::NotTheirs));
                }
                match entry.successor.replace(claim) {
                    None => orders.push(Order::End { shard: entry.shard, tsih: *tsih }),
                    // Two logins race to reinstate one session: the later one wins.
                    Some(loser) => orders.push(answer(&loser, Verdict::NoSuchSession)),
                }
            }
        }
    }

    fn claim_join(&mut self, claim: &Claim, orders: &mut Vec<Order>) {
        let verdict = match self.by_tsih.get_mut(&claim.tsih) {
            Some(entry)
                if entry.name == claim.name
                    && entry.warrant == claim.warrant
                    && entry.successor.is_none() =>
            {
                let known = entry.cids.contains(&claim.cid);
                if !known && entry.cids.len() >= usize::from(entry.connections_max) {
                    Verdict::TooManyConnections
                } else {
                    if !known {
                        entry.cids.push(claim.cid);
                    }
                    Verdict::Granted { tsih: claim.tsih, shard: entry.shard, new: false }
                }
            }
            Some(_) | None => Verdict::NoSuchSession,
        };
        orders.push(answer(claim, verdict));
    }

    fn create(&mut self, claim: Claim, orders: &mut Vec<Order>) {
        let Some(tsih) = self.free_tsih() else {
            orders.push(answer(&claim, Verdict::Full));
            return;
        };
        let shard = self.best(claim.from.0, &claim.wish, &[]).unwrap_or(claim.from.0);
        self.load[usize::from(shard.0)] += 1;
        orders.push(answer(&claim, Verdict::Granted { tsih, shard, new: true }));
        self.by_name.insert(claim.name.clone(), tsih);
        let entry = Entry {
            name: claim.name,
            shard,
            cids: vec![claim.cid],
            connections_max: claim.connections_max,
            warrant: claim.warrant,
            wish: claim.wish,
            refused: Vec::new(),
            successor: None,
        };
        self.by_tsih.insert(tsih, entry);
    }

    fn free_tsih(&mut self) -> Option<Tsih> {
        if self.by_tsih.len() >= self.sessions_max {
            return None;
        }
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.by_tsih.contains_key(&Tsih::new(self.last)) {
                return Some(Tsih::new(self.last));
            }
        }
    }

    fn best(&self, near: ShardId, wish: &Wish, refused: &[ShardId]) -> Option<ShardId> {
        let order = wish.order(&self.load, |shard| if shard == near { 0 } else { 1 + u32::from(shard.0) });
        order.into_iter().find(|shard| !refused.contains(shard))
    }

    /// The shard that was to have a new session has no memory for it: another has it, if one is left. `from`:
    /// who asks, as in [`Claim`].
    pub fn elsewhere(&mut self, tsih: Tsih, from: (ShardId, u64), orders: &mut Vec<Order>) {
        let answer = |verdict| Order::Answer { shard: from.0, token: from.1, verdict };
        let Some(entry) = self.by_tsih.get_mut(&tsih).filter(|entry| entry.successor.is_none()) else {
            // A later login of the same name has overtaken it.
            self.gone(tsih, orders);
            return orders.push(answer(Verdict::NoSuchSession));
        };
        let old = entry.shard;
        entry.refused.push(old);
        let (wish, refused) = (entry.wish.clone(), entry.refused.clone());
        let Some(shard) = self.best(from.0, &wish, &refused) else {
            self.gone(tsih, orders);
            return orders.push(answer(Verdict::Full));
        };
        self.load[usize::from(old.0)] -= 1;
        self.load[usize::from(shard.0)] += 1;
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.shard = shard;
        }
        orders.push(answer(Verdict::Granted { tsih, shard, new: true }));
    }

    /// A session has ended, or never came to be.
    pub fn gone(&mut self, tsih: Tsih, orders: &mut Vec<Order>) {
        let Some(entry) = self.by_tsih.remove(&tsih) else { return };
        self.by_name.remove(&entry.name);
        self.load[usize::from(entry.shard.0)] -= 1;
        if let Some(successor) = entry.successor {
            self.create(successor, orders);
        }
    }

    /// One of a session's connections has ended while the session goes on.
    pub fn connection_gone(&mut self, tsih: Tsih, cid: Cid) {
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.cids.retain(|&known| known != cid);
        }
    }
}

fn answer(claim: &Claim, verdict: Verdict) -> Order {
    Order::Answer { shard: claim.from.0, token: claim.from.1, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(isid: u8, tsih: u16, cid: u16, token: u64) -> Claim {
        Claim {
            from: (ShardId(1), token),
            name: SessionName {
                initiator: "iqn.2026-11.test:host".into(),
                isid: Isid([0x80, 0, 0, 0, 0, isid]),
                target: "iqn.2026-11.test:disk".into(),
                portal_group: 1,
            },
            tsih: Tsih::new(tsih),
            cid: Cid::new(cid),
            connections_max: 2,
            warrant: Warrant { user: Some("alice".into()), rule: Some(0) },
            wish: Wish::default(),
        }
    }

    fn ask(directory: &mut Directory, claim: Claim) -> Vec<Order> {
        let mut orders = Vec::new();
        directory.claim(claim, &mut orders);
        orders
    }

    fn granted(orders: &[Order]) -> (Tsih, ShardId) {
        match orders {
            [Order::Answer { verdict: Verdict::Granted { tsih, shard, .. }, .. }] => (*tsih, *shard),
            other => panic!("not granted: {other:?}"),
        }
    }

    fn verdict(orders: &[Order]) -> Verdict {
        match orders {
            [Order::Answer { verdict, .. }] => *verdict,
            other => panic!("no answer: {other:?}"),
        }
    }

    /// CHAP was turned on while a session lived that had proved nothing: its own initiator, which proves now who it is,
    /// replaces it at once. Who came by another rule, or proves less, does not.
    #[test]
    fn an_initiator_that_must_prove_now_who_it_is_is_not_kept_out_by_its_own_session() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let by = |user: Option<&str>, rule, token| Claim {
            warrant: Warrant { user: user.map(Into::into), rule: Some(rule) },
            ..claim(1, 0, 0, token)
        };
        let (old, _) = granted(&ask(&mut directory, by(None, 0, 1)));
        assert_eq!(verdict(&ask(&mut directory, by(Some("mallory"), 1, 2))), Verdict::NotTheirs);
        let orders = ask(&mut directory, by(Some("alice"), 0, 3));
        assert!(matches!(orders[..], [Order::End { tsih, .. }] if tsih == old), "{orders:?}");
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        granted(&orders);
        assert_eq!(verdict(&ask(&mut directory, by(None, 0, 4))), Verdict::NotTheirs);
    }

    #[test]
    fn sessions_spread_over_shards_and_near_first() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (_, first) = granted(&ask(&mut directory, claim(1, 0, 0, 1)));
        let (_, second) = granted(&ask(&mut directory, claim(2, 0, 0, 2)));
        assert_eq!((first, second), (ShardId(1), ShardId(0)));
    }

    #[test]
    fn a_rule_narrows_down_where_sessions_live() {
        let mut directory = Directory::new(4, SESSIONS_MAX);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(3), ShardId(2)]));
        let mut place = |isid, among: &Option<Arc<[ShardId]>>| {
            granted(&ask(
                &mut directory,
                Claim { wish: Wish { among: among.clone(), ..Wish::default() }, ..claim(isid, 0, 0, 1) },
            ))
            .1
        };
        let placed: Vec<u16> = (1..=4).map(|isid| place(isid, &among).0).collect();
        assert_eq!(placed, [2, 3, 2, 3], "the least loaded of them");
        assert_eq!(place(5, &None), ShardId(1), "others count all");
        // A session that is reinstated is placed anew, by what its new login fits.
        let old = granted(&ask(&mut directory, claim(6, 0, 0, 1))).0;
        let again = Claim { wish: Wish { among, ..Wish::default() }, ..claim(6, 0, 0, 2) };
        assert!(matches!(ask(&mut directory, again)[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        assert_eq!(granted(&orders).1, ShardId(2));
    }

    #[test]
    fn sessions_follow_their_queue_in_balance() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let wish = Wish { queue: Some(ShardId(0)), ..Wish::default() };
        let placed: Vec<u16> = (1..=8)
            .map(|isid| {
                granted(&ask(&mut directory, Claim { wish: wish.clone(), ..claim(isid, 0, 0, 1) })).1.0
            })
            .collect();
        assert_eq!(placed, [0, 1, 0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn a_session_goes_where_there_is_memory_for_it() {
        let mut directory = Directory::new(3, SESSIONS_MAX);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(0), ShardId(1)]));
        let (tsih, shard) = granted(&ask(
            &mut directory,
            Claim { wish: Wish { among, ..Wish::default() }, ..claim(1, 0, 0, 1) },
        ));
        assert_eq!(shard, ShardId(1));
        let elsewhere = |directory: &mut Directory| {
            let mut orders = Vec::new();
            directory.elsewhere(tsih, (ShardId(1), 1), &mut orders);
            orders
        };
        assert_eq!(granted(&elsewhere(&mut directory)), (tsih, ShardId(0)));
        assert_eq!(directory.load, [1, 0, 0]);
        assert_eq!(verdict(&elsewhere(&mut directory)), Verdict::Full, "the rule leaves no other");
        assert!(directory.by_tsih.is_empty() && directory.load == [0, 0, 0]);
        // The next of its name begins anew.
        let (tsih, _) = granted(&ask(&mut directory, claim(1, 0, 0, 2)));
        // What a later login has overtaken is not placed again.
        assert!(matches!(ask(&mut directory, claim(1, 0, 0, 3))[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.elsewhere(tsih, (ShardId(1), 2), &mut orders);
        assert_eq!(verdict(&orders[1..]), Verdict::NoSuchSession);
        granted(&orders[..1]);
    }

    #[test]
    fn a_connection_joins_up_to_the_limit() {
        let mut directory = Directory::new(1, SESSIONS_MAX);
        let mut first = claim(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&ask(&mut directory, first));
        granted(&ask(&mut directory, claim(1, tsih.value(), 1, 2)));
        assert_eq!(verdict(&ask(&mut directory, claim(1, tsih.value(), 2, 3))), Verdict::TooManyConnections);
        // The same CID again reinstates that connection.
        granted(&ask(&mut directory, claim(1, tsih.value(), 1, 4)));
        directory.connection_gone(tsih, Cid::new(1));
        granted(&ask(&mut directory, claim(1, tsih.value(), 2, 5)));
    }

    #[test]
    fn a_full_directory_refuses_the_new_and_lets_the_old_come_back() {
        let mut directory = Directory::new(2, 2);
        let (first, _) = granted(&ask(&mut directory, claim(1, 0, 0, 1)));
        granted(&ask(&mut directory, claim(2, 0, 0, 2)));
        assert_eq!(verdict(&ask(&mut directory, claim(3, 0, 0, 3))), Verdict::Full);
        // A connection more is no session more; nor is a session in place of another.
        granted(&ask(&mut directory, claim(1, first.value(), 1, 4)));
        assert!(matches!(ask(&mut directory, claim(1, 0, 0, 5))[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.gone(first, &mut orders);
        let (second, _) = granted(&orders);
        directory.gone(second, &mut Vec::new());
        granted(&ask(&mut directory, claim(3, 0, 0, 6)));
    }

    #[test]
    fn attack_17_the_tsih_of_another_initiator_names_nothing() {
        let mut directory = Directory::new(1, SESSIONS_MAX);
        let mut first = claim(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&ask(&mut directory, first));
        assert_eq!(verdict(&ask(&mut directory, claim(9, tsih.value(), 0, 2))), Verdict::NoSuchSession);
        let mut other = claim(1, tsih.value(), 0, 3);
        other.name.initiator = "iqn.2026-11.test:thief".into();
        assert_eq!(verdict(&ask(&mut directory, other)), Verdict::NoSuchSession);
    }

    #[test]
    fn attack_17_who_got_in_by_other_means_takes_no_session_over() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&ask(&mut directory, claim(1, 0, 0, 1)));
        for warrant in [
            Warrant { user: Some("alice".into()), rule: Some(1) },
            Warrant { user: Some("mallory".into()), rule: Some(0) },
            Warrant { user: None, rule: Some(0) },
        ] {
            let join = Claim { warrant: warrant.clone(), ..claim(1, tsih.value(), 1, 2) };
            assert_eq!(verdict(&ask(&mut directory, join)), Verdict::NoSuchSession);
            let replace = Claim { warrant, ..claim(1, 0, 0, 3) };
            assert_eq!(verdict(&ask(&mut directory, replace)), Verdict::NotTheirs);
        }
        granted(&ask(&mut directory, claim(1, tsih.value(), 1, 4)));
    }

    #[test]
    fn reinstatement_waits_for_the_old_session() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (old, shard) = granted(&ask(&mut directory, claim(1, 0, 0, 1)));
        assert_eq!(ask(&mut directory, claim(1, 0, 0, 2)), [Order::End { shard, tsih: old }]);
        // Nothing joins a session that is about to end.
        assert_eq!(verdict(&ask(&mut directory, claim(1, old.value(), 5, 3))), Verdict::NoSuchSession);
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        let (new, _) = granted(&orders);
        assert_ne!(new, old);
        assert_eq!(directory.by_tsih.len(), 1);
    }
}
