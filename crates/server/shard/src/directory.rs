//! Which iSCSI sessions exist, and on which shard each lives.
//!
//! One shard keeps the directory; the others ask it by message when a login is about to end, because
//! a login may meet a session that lives elsewhere: to join it (several connections per session), to
//! reinstate it, or to be refused (RFC 7143 §6.3.1). Invariant: at most one live session has a given
//! name (initiator, ISID, target, portal group), and a new one of that name is granted only after
//! the old one has said that it is gone. What a session is, only its like may join or replace: a name
//! is a claim, and who may log in by another rule or as another user must not profit from it. Which
//! rule lets a connection in is asked when it matters, for both at once, since rules come and go.

use std::collections::HashMap;
use std::sync::Arc;

use endpoint::{Accepted, ShardId};
use iscsi::wire::{Cid, Isid, Tsih};

use crate::exports::ShardPreference;

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

/// By what connections of a session's initiator are let in, by the rules of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// Which of the target's rules it is; `None`: the one for discovery.
    pub rule: Option<usize>,
    /// Whether it knows users.
    pub proves: bool,
}

/// The [`Leave`] of a connection that came like this; `None`: it would not be let in.
pub type Rules<'a> = &'a dyn Fn(&SessionName, &Accepted) -> Option<Leave>;

/// What a login asks before its last response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRequest {
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
    /// The CHAP name that it proved.
    pub user: Option<String>,
    /// How its connection came.
    pub accepted: Accepted,
    /// Where a new session may live, and where best.
    pub preference: ShardPreference,
}

/// The directory's answer to an [`AdmissionRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionReply {
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
        reply: AdmissionReply,
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
    /// Its connections, and how each came.
    ways: Vec<(Cid, Accepted)>,
    /// How the latest one came: what it is judged by while it has none.
    latest: Accepted,
    connections_max: u16,
    user: Option<String>,
    preference: ShardPreference,
    /// Shards that had no memory for it.
    refused: Vec<ShardId>,
    /// A login of the same name waits for this session's end.
    successor: Option<AdmissionRequest>,
}

impl Entry {
    /// What lets its connections in.
    fn leaves(&self, rules: Rules<'_>) -> Vec<Option<Leave>> {
        let latest = self.ways.is_empty().then_some(&self.latest);
        let all = self.ways.iter().map(|(_, accepted)| accepted).chain(latest);
        all.map(|accepted| rules(&self.name, accepted)).collect()
    }

    /// Whether who claims its name may replace it: its like; or who came by the same rule and proved more, or all that
    /// the rule asks for now. What no rule lets in any more is nobody's.
    fn yields_to(&self, request: &AdmissionRequest, rules: Rules<'_>) -> bool {
        let Some(new) = rules(&request.name, &request.accepted) else { return false };
        let leaves = self.leaves(rules);
        if leaves.iter().all(Option::is_none) {
            return true;
        }
        let of_one_rule = leaves.iter().flatten().any(|old| old.rule == new.rule);
        of_one_rule && (self.user == request.user || self.user.is_none() || !new.proves)
    }

    /// Whether a connection that claims its name may join it: its like only.
    fn admits(&self, request: &AdmissionRequest, rules: Rules<'_>) -> bool {
        let Some(new) = rules(&request.name, &request.accepted) else { return false };
        let of_one_rule = |old: &Option<Leave>| old.is_some_and(|old| old.rule == new.rule);
        self.user == request.user && self.leaves(rules).iter().all(of_one_rule)
    }
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
    pub fn admit(&mut self, request: AdmissionRequest, rules: Rules<'_>, orders: &mut Vec<Order>) {
        if request.tsih.value() == 0 {
            self.admit_new(request, rules, orders);
        } else {
            self.admit_join(&request, rules, orders);
        }
    }

    fn admit_new(&mut self, request: AdmissionRequest, rules: Rules<'_>, orders: &mut Vec<Order>) {
        let tsih = self.by_name.get(&request.name);
        // Both maps hold the same sessions.
        match tsih.and_then(|tsih| Some((tsih, self.by_tsih.get_mut(tsih)?))) {
            None => self.create(request, orders),
            Some((tsih, entry)) => {
                if !entry.yields_to(&request, rules) {
                    return orders.push(answer(&request, AdmissionReply::NotTheirs));
                }
                match entry.successor.replace(request) {
                    None => orders.push(Order::End { shard: entry.shard, tsih: *tsih }),
                    // Two logins race to reinstate one session: the later one wins.
                    Some(loser) => orders.push(answer(&loser, AdmissionReply::NoSuchSession)),
                }
            }
        }
    }

    fn admit_join(&mut self, request: &AdmissionRequest, rules: Rules<'_>, orders: &mut Vec<Order>) {
        let its = |entry: &&mut Entry| entry.name == request.name && entry.successor.is_none();
        let reply = match self.by_tsih.get_mut(&request.tsih).filter(its) {
            Some(entry) if entry.admits(request, rules) => {
                let others = entry.ways.iter().filter(|(cid, _)| *cid != request.cid).count();
                if others >= usize::from(entry.connections_max) {
                    AdmissionReply::TooManyConnections
                } else {
                    entry.ways.retain(|(cid, _)| *cid != request.cid);
                    entry.ways.push((request.cid, request.accepted));
                    entry.latest = request.accepted;
                    AdmissionReply::Granted { tsih: request.tsih, shard: entry.shard, new: false }
                }
            }
            Some(_) | None => AdmissionReply::NoSuchSession,
        };
        orders.push(answer(request, reply));
    }

    fn create(&mut self, request: AdmissionRequest, orders: &mut Vec<Order>) {
        let Some(tsih) = self.free_tsih() else {
            orders.push(answer(&request, AdmissionReply::Full));
            return;
        };
        let shard = self.best(request.from.0, &request.preference, &[]).unwrap_or(request.from.0);
        self.count(shard, 1);
        orders.push(answer(&request, AdmissionReply::Granted { tsih, shard, new: true }));
        self.by_name.insert(request.name.clone(), tsih);
        let entry = Entry {
            name: request.name,
            shard,
            ways: vec![(request.cid, request.accepted)],
            latest: request.accepted,
            connections_max: request.connections_max,
            user: request.user,
            preference: request.preference,
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

    fn count(&mut self, shard: ShardId, more: i32) {
        if let Some(load) = self.load.get_mut(usize::from(shard.0)) {
            *load = load.saturating_add_signed(more);
        }
    }

    fn best(&self, near: ShardId, preference: &ShardPreference, refused: &[ShardId]) -> Option<ShardId> {
        let order =
            preference.order(&self.load, |shard| if shard == near { 0 } else { 1 + u32::from(shard.0) });
        order.into_iter().find(|shard| !refused.contains(shard))
    }

    /// The shard that was to have a new session has no memory for it: another has it, if one is left. `from`:
    /// who asks, as in [`AdmissionRequest`].
    pub fn place_elsewhere(&mut self, tsih: Tsih, from: (ShardId, u64), orders: &mut Vec<Order>) {
        let answer = |reply| Order::Answer { shard: from.0, token: from.1, reply };
        let Some(entry) = self.by_tsih.get_mut(&tsih).filter(|entry| entry.successor.is_none()) else {
            // A later login of the same name has overtaken it.
            self.gone(tsih, orders);
            return orders.push(answer(AdmissionReply::NoSuchSession));
        };
        let old = entry.shard;
        entry.refused.push(old);
        let (preference, refused) = (entry.preference.clone(), entry.refused.clone());
        let Some(shard) = self.best(from.0, &preference, &refused) else {
            self.gone(tsih, orders);
            return orders.push(answer(AdmissionReply::Full));
        };
        self.count(old, -1);
        self.count(shard, 1);
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.shard = shard;
        }
        orders.push(answer(AdmissionReply::Granted { tsih, shard, new: true }));
    }

    /// A session has ended, or never came to be.
    pub fn gone(&mut self, tsih: Tsih, orders: &mut Vec<Order>) {
        let Some(entry) = self.by_tsih.remove(&tsih) else { return };
        self.by_name.remove(&entry.name);
        self.count(entry.shard, -1);
        if let Some(successor) = entry.successor {
            self.create(successor, orders);
        }
    }

    /// One of a session's connections has ended while the session goes on.
    pub fn connection_gone(&mut self, tsih: Tsih, cid: Cid) {
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.ways.retain(|(known, _)| *known != cid);
        }
    }
}

fn answer(request: &AdmissionRequest, reply: AdmissionReply) -> Order {
    Order::Answer { shard: request.from.0, token: request.from.1, reply }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use endpoint::ListenerId;

    use super::*;

    fn request(isid: u8, tsih: u16, cid: u16, token: u64) -> AdmissionRequest {
        AdmissionRequest {
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
            user: Some("alice".into()),
            accepted: from(1),
            preference: ShardPreference::default(),
        }
    }

    /// A connection from this address of a network.
    fn from(host: u8) -> Accepted {
        let peer = SocketAddr::from(([192, 0, 2, host], 1024));
        Accepted { listener: ListenerId(0), local: peer, peer, cpu: None }
    }

    fn host(accepted: &Accepted) -> usize {
        match accepted.peer.ip() {
            IpAddr::V4(ip) => usize::from(ip.octets()[3]),
            IpAddr::V6(_) => 0,
        }
    }

    /// A rule for each address, with users.
    fn by_address(_: &SessionName, accepted: &Accepted) -> Option<Leave> {
        Some(Leave { rule: Some(host(accepted)), proves: true })
    }

    fn ask(directory: &mut Directory, request: AdmissionRequest) -> Vec<Order> {
        ask_by(directory, request, &by_address)
    }

    fn ask_by(directory: &mut Directory, request: AdmissionRequest, rules: Rules<'_>) -> Vec<Order> {
        let mut orders = Vec::new();
        directory.admit(request, rules, &mut orders);
        orders
    }

    fn granted(orders: &[Order]) -> (Tsih, ShardId) {
        match orders {
            [Order::Answer { reply: AdmissionReply::Granted { tsih, shard, .. }, .. }] => (*tsih, *shard),
            other => panic!("not granted: {other:?}"),
        }
    }

    fn reply(orders: &[Order]) -> AdmissionReply {
        match orders {
            [Order::Answer { reply, .. }] => *reply,
            other => panic!("no answer: {other:?}"),
        }
    }

    /// CHAP was turned on while a session lived that had proved nothing: its own initiator, which proves now who it is,
    /// replaces it at once. Who came by another rule, or proves less, does not.
    #[test]
    fn an_initiator_that_must_prove_now_who_it_is_is_not_kept_out_by_its_own_session() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let by = |user: Option<&str>, host, token| AdmissionRequest {
            user: user.map(Into::into),
            accepted: from(host),
            ..request(1, 0, 0, token)
        };
        let (old, _) = granted(&ask(&mut directory, by(None, 1, 1)));
        assert_eq!(reply(&ask(&mut directory, by(Some("mallory"), 2, 2))), AdmissionReply::NotTheirs);
        let orders = ask(&mut directory, by(Some("alice"), 1, 3));
        assert!(matches!(orders[..], [Order::End { tsih, .. }] if tsih == old), "{orders:?}");
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        granted(&orders);
        assert_eq!(reply(&ask(&mut directory, by(None, 1, 4))), AdmissionReply::NotTheirs);
        // And when CHAP is turned off again, nothing that it does not ask for keeps it out.
        let off =
            |_: &SessionName, accepted: &Accepted| Some(Leave { rule: Some(host(accepted)), proves: false });
        assert!(matches!(ask_by(&mut directory, by(None, 1, 5), &off)[..], [Order::End { .. }]));
    }

    /// A reload puts a rule in front of all: an initiator's own rule stands elsewhere now, and is its own still.
    #[test]
    fn a_rule_that_is_put_before_others_keeps_nobody_out_of_their_own_session() {
        let after = |_: &SessionName, accepted: &Accepted| {
            Some(Leave { rule: Some(host(accepted) + 1), proves: true })
        };
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        granted(&ask_by(&mut directory, request(1, tsih.value(), 1, 2), &after));
        let stranger = AdmissionRequest { accepted: from(2), ..request(1, 0, 0, 3) };
        assert_eq!(reply(&ask_by(&mut directory, stranger, &after)), AdmissionReply::NotTheirs);
        assert!(matches!(ask_by(&mut directory, request(1, 0, 0, 4), &after)[..], [Order::End { .. }]));
    }

    /// A rule that came, or went, parts the connections of a session: none joins it any more, who has one of its
    /// connections' rules may replace it, and so may anybody who is let in where it is not.
    #[test]
    fn a_session_is_judged_by_the_rules_of_now() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let one = |_: &SessionName, _: &Accepted| Some(Leave { rule: Some(0), proves: true });
        let (tsih, _) = granted(&ask_by(&mut directory, request(1, 0, 0, 1), &one));
        let second = |tsih, token| AdmissionRequest { accepted: from(2), ..request(1, tsih, 1, token) };
        granted(&ask_by(&mut directory, second(tsih.value(), 2), &one));
        assert_eq!(reply(&ask(&mut directory, second(tsih.value(), 3))), AdmissionReply::NoSuchSession);
        let third = AdmissionRequest { accepted: from(3), ..request(1, 0, 0, 4) };
        assert_eq!(reply(&ask(&mut directory, third.clone())), AdmissionReply::NotTheirs);
        let none = |_: &SessionName, accepted: &Accepted| {
            (host(accepted) == 3).then_some(Leave { rule: Some(0), proves: true })
        };
        assert_eq!(reply(&ask_by(&mut directory, second(0, 5), &none)), AdmissionReply::NotTheirs);
        assert!(matches!(ask_by(&mut directory, third, &none)[..], [Order::End { .. }]));
        // Between two connections it is judged by the latest.
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        directory.connection_gone(tsih, Cid::new(0));
        assert_eq!(reply(&ask(&mut directory, second(tsih.value(), 2))), AdmissionReply::NoSuchSession);
        granted(&ask(&mut directory, request(1, tsih.value(), 0, 3)));
    }

    #[test]
    fn sessions_spread_over_shards_and_near_first() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (_, first) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        let (_, second) = granted(&ask(&mut directory, request(2, 0, 0, 2)));
        assert_eq!((first, second), (ShardId(1), ShardId(0)));
    }

    #[test]
    fn a_rule_narrows_down_where_sessions_live() {
        let mut directory = Directory::new(4, SESSIONS_MAX);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(3), ShardId(2)]));
        let mut place = |isid, among: &Option<Arc<[ShardId]>>| {
            granted(&ask(
                &mut directory,
                AdmissionRequest {
                    preference: ShardPreference { among: among.clone(), ..ShardPreference::default() },
                    ..request(isid, 0, 0, 1)
                },
            ))
            .1
        };
        let placed: Vec<u16> = (1..=4).map(|isid| place(isid, &among).0).collect();
        assert_eq!(placed, [2, 3, 2, 3], "the least loaded of them");
        assert_eq!(place(5, &None), ShardId(1), "others count all");
        // A session that is reinstated is placed again, by what its new login fits.
        let old = granted(&ask(&mut directory, request(6, 0, 0, 1))).0;
        let again = AdmissionRequest {
            preference: ShardPreference { among, ..ShardPreference::default() },
            ..request(6, 0, 0, 2)
        };
        assert!(matches!(ask(&mut directory, again)[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        assert_eq!(granted(&orders).1, ShardId(2));
    }

    #[test]
    fn sessions_follow_their_queue_in_balance() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let preference = ShardPreference { queue: Some(ShardId(0)), ..ShardPreference::default() };
        let placed: Vec<u16> = (1..=8)
            .map(|isid| {
                granted(&ask(
                    &mut directory,
                    AdmissionRequest { preference: preference.clone(), ..request(isid, 0, 0, 1) },
                ))
                .1
                .0
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
            AdmissionRequest {
                preference: ShardPreference { among, ..ShardPreference::default() },
                ..request(1, 0, 0, 1)
            },
        ));
        assert_eq!(shard, ShardId(1));
        let elsewhere = |directory: &mut Directory| {
            let mut orders = Vec::new();
            directory.place_elsewhere(tsih, (ShardId(1), 1), &mut orders);
            orders
        };
        assert_eq!(granted(&elsewhere(&mut directory)), (tsih, ShardId(0)));
        assert_eq!(directory.load, [1, 0, 0]);
        assert_eq!(reply(&elsewhere(&mut directory)), AdmissionReply::Full, "the rule leaves no other");
        assert!(directory.by_tsih.is_empty() && directory.load == [0, 0, 0]);
        // The next of its name begins again.
        let (tsih, _) = granted(&ask(&mut directory, request(1, 0, 0, 2)));
        // What a later login has overtaken is not placed again.
        assert!(matches!(ask(&mut directory, request(1, 0, 0, 3))[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.place_elsewhere(tsih, (ShardId(1), 2), &mut orders);
        assert_eq!(reply(&orders[1..]), AdmissionReply::NoSuchSession);
        granted(&orders[..1]);
    }

    #[test]
    fn a_connection_joins_up_to_the_limit() {
        let mut directory = Directory::new(1, SESSIONS_MAX);
        let mut first = request(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&ask(&mut directory, first));
        granted(&ask(&mut directory, request(1, tsih.value(), 1, 2)));
        assert_eq!(
            reply(&ask(&mut directory, request(1, tsih.value(), 2, 3))),
            AdmissionReply::TooManyConnections
        );
        // The same CID again reinstates that connection.
        granted(&ask(&mut directory, request(1, tsih.value(), 1, 4)));
        directory.connection_gone(tsih, Cid::new(1));
        granted(&ask(&mut directory, request(1, tsih.value(), 2, 5)));
    }

    #[test]
    fn a_full_directory_refuses_the_new_and_lets_the_old_come_back() {
        let mut directory = Directory::new(2, 2);
        let (first, _) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        granted(&ask(&mut directory, request(2, 0, 0, 2)));
        assert_eq!(reply(&ask(&mut directory, request(3, 0, 0, 3))), AdmissionReply::Full);
        // A connection more is no session more; nor is a session in place of another.
        granted(&ask(&mut directory, request(1, first.value(), 1, 4)));
        assert!(matches!(ask(&mut directory, request(1, 0, 0, 5))[..], [Order::End { .. }]));
        let mut orders = Vec::new();
        directory.gone(first, &mut orders);
        let (second, _) = granted(&orders);
        directory.gone(second, &mut Vec::new());
        granted(&ask(&mut directory, request(3, 0, 0, 6)));
    }

    #[test]
    fn attack_17_the_tsih_of_another_initiator_names_nothing() {
        let mut directory = Directory::new(1, SESSIONS_MAX);
        let mut first = request(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&ask(&mut directory, first));
        assert_eq!(
            reply(&ask(&mut directory, request(9, tsih.value(), 0, 2))),
            AdmissionReply::NoSuchSession
        );
        let mut other = request(1, tsih.value(), 0, 3);
        other.name.initiator = "iqn.2026-11.test:thief".into();
        assert_eq!(reply(&ask(&mut directory, other)), AdmissionReply::NoSuchSession);
    }

    #[test]
    fn attack_17_who_got_in_by_other_means_takes_no_session_over() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        for (user, host) in [(Some("alice"), 2), (Some("mallory"), 1), (None, 1)] {
            let by =
                |request| AdmissionRequest { user: user.map(Into::into), accepted: from(host), ..request };
            let join = by(request(1, tsih.value(), 1, 2));
            assert_eq!(reply(&ask(&mut directory, join)), AdmissionReply::NoSuchSession);
            let replace = by(request(1, 0, 0, 3));
            assert_eq!(reply(&ask(&mut directory, replace)), AdmissionReply::NotTheirs);
        }
        granted(&ask(&mut directory, request(1, tsih.value(), 1, 4)));
    }

    #[test]
    fn reinstatement_waits_for_the_old_session() {
        let mut directory = Directory::new(2, SESSIONS_MAX);
        let (old, shard) = granted(&ask(&mut directory, request(1, 0, 0, 1)));
        assert_eq!(ask(&mut directory, request(1, 0, 0, 2)), [Order::End { shard, tsih: old }]);
        // Nothing joins a session that is about to end.
        assert_eq!(reply(&ask(&mut directory, request(1, old.value(), 5, 3))), AdmissionReply::NoSuchSession);
        let mut orders = Vec::new();
        directory.gone(old, &mut orders);
        let (new, _) = granted(&orders);
        assert_ne!(new, old);
        assert_eq!(directory.by_tsih.len(), 1);
    }
}
