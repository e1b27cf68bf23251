//! The directory of iSCSI sessions: which exist, and on which shard each lives.
//!
//! One shard keeps the directory; the others ask it by message at the end of a login, because a login may
//! refer to a session on another shard: to join it (several connections per session), to reinstate it, or to
//! be refused (RFC 7143 §6.3.1). Invariant: at most one live session has a given name (initiator, ISID,
//! target, portal group), and a new one of that name is granted only after the old one has reported that it
//! is gone. A session is joined or replaced only by a connection that was admitted by the same rule as the
//! same user: a name is only a claim, and a login under another rule or user must not gain from it. The rule
//! that admits a connection is looked up for both at the moment of the decision, because rules change.

mod admission;

use endpoint::ShardId;
use iscsi::wire::{Cid, Tsih};
use std::collections::HashMap;

use crate::exports::{SESSIONS_MAX, ShardPreference};

pub(crate) use admission::SessionRecord;
pub use admission::{AdmissionReply, AdmissionRequest, MatchedRule, RuleLookup, SessionName};

/// What the directory wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryAction {
    /// Tell the login `token` on `shard`.
    Answer {
        /// The shard.
        shard: ShardId,
        /// Its number for the login.
        token: u64,
        /// The answer.
        reply: AdmissionReply,
    },
    /// End this session; [`SessionDirectory::remove_session`] follows.
    End {
        /// Where it lives.
        shard: ShardId,
        /// Which.
        tsih: Tsih,
    },
}

/// See the module.
#[derive(Debug)]
pub struct SessionDirectory {
    by_tsih: HashMap<Tsih, SessionRecord>,
    by_name: HashMap<SessionName, Tsih>,
    load: Vec<u32>,
    last: u16,
    sessions_max: usize,
}

impl SessionDirectory {
    /// An empty directory for a daemon of so many shards (at least 1) and sessions (at most
    /// [`SESSIONS_MAX`] of them).
    pub fn new(shards: u16, sessions_max: usize) -> Self {
        assert!(shards > 0, "a daemon has a shard");
        SessionDirectory {
            by_tsih: HashMap::new(),
            by_name: HashMap::new(),
            load: vec![0; usize::from(shards)],
            last: 0,
            sessions_max: sessions_max.min(SESSIONS_MAX),
        }
    }

    /// Keeps to another bound from now on; sessions beyond it stay.
    pub fn bound_sessions(&mut self, sessions_max: usize) {
        self.sessions_max = sessions_max.min(SESSIONS_MAX);
    }

    /// Enters a session of another process, which lives on.
    pub(crate) fn restore_session(&mut self, tsih: Tsih, record: SessionRecord) {
        self.adjust_session_count(record.shard, 1);
        self.by_name.insert(record.name.clone(), tsih);
        self.last = self.last.max(tsih.value());
        self.by_tsih.insert(tsih, record);
    }

    /// A login asks. What to do about it goes to `actions`.
    pub fn admit(
        &mut self,
        request: AdmissionRequest,
        rules: RuleLookup<'_>,
        actions: &mut Vec<DirectoryAction>,
    ) {
        if request.tsih.value() == 0 {
            self.admit_new(request, rules, actions);
        } else {
            self.admit_join(&request, rules, actions);
        }
    }

    fn admit_new(
        &mut self,
        request: AdmissionRequest,
        rules: RuleLookup<'_>,
        actions: &mut Vec<DirectoryAction>,
    ) {
        let tsih = self.by_name.get(&request.name);
        // Both maps hold the same sessions.
        match tsih.and_then(|tsih| Some((tsih, self.by_tsih.get_mut(tsih)?))) {
            None => self.create_session(request, actions),
            Some((tsih, entry)) => {
                if !entry.may_be_replaced_by(&request, rules) {
                    return actions.push(reply_action(&request, AdmissionReply::NotTheirs));
                }
                match entry.successor.replace(request) {
                    None => actions.push(DirectoryAction::End { shard: entry.shard, tsih: *tsih }),
                    // Two logins race to reinstate one session: the later one wins.
                    Some(loser) => actions.push(reply_action(&loser, AdmissionReply::NoSuchSession)),
                }
            }
        }
    }

    fn admit_join(
        &mut self,
        request: &AdmissionRequest,
        rules: RuleLookup<'_>,
        actions: &mut Vec<DirectoryAction>,
    ) {
        let its = |entry: &&mut SessionRecord| entry.name == request.name && entry.successor.is_none();
        let reply = match self.by_tsih.get_mut(&request.tsih).filter(its) {
            Some(entry) if entry.may_be_joined_by(request, rules) => {
                let others = entry.connections.iter().filter(|(cid, _)| *cid != request.cid).count();
                if others >= usize::from(entry.connections_max) {
                    AdmissionReply::TooManyConnections
                } else {
                    entry.connections.retain(|(cid, _)| *cid != request.cid);
                    entry.connections.push((request.cid, request.accepted));
                    entry.latest = request.accepted;
                    AdmissionReply::Granted { tsih: request.tsih, shard: entry.shard, new: false }
                }
            }
            Some(_) | None => AdmissionReply::NoSuchSession,
        };
        actions.push(reply_action(request, reply));
    }

    fn create_session(&mut self, request: AdmissionRequest, actions: &mut Vec<DirectoryAction>) {
        let Some(tsih) = self.free_tsih() else {
            actions.push(reply_action(&request, AdmissionReply::Full));
            return;
        };
        let shard = self.choose_shard(request.from.0, &request.preference, &[]).unwrap_or(request.from.0);
        self.adjust_session_count(shard, 1);
        actions.push(reply_action(&request, AdmissionReply::Granted { tsih, shard, new: true }));
        self.by_name.insert(request.name.clone(), tsih);
        let entry = SessionRecord {
            name: request.name,
            shard,
            connections: vec![(request.cid, request.accepted)],
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

    fn adjust_session_count(&mut self, shard: ShardId, more: i32) {
        if let Some(load) = self.load.get_mut(usize::from(shard.0)) {
            *load = load.saturating_add_signed(more);
        }
    }

    fn choose_shard(
        &self,
        near: ShardId,
        preference: &ShardPreference,
        refused: &[ShardId],
    ) -> Option<ShardId> {
        let order = preference
            .ordered_shards(&self.load, |shard| if shard == near { 0 } else { 1 + u32::from(shard.0) });
        order.into_iter().find(|shard| !refused.contains(shard))
    }

    /// The shard that was to have a new session has no memory for it: another has it, if one is left. `from`:
    /// who asks, as in [`AdmissionRequest`].
    pub fn retry_on_other_shard(
        &mut self,
        tsih: Tsih,
        from: (ShardId, u64),
        actions: &mut Vec<DirectoryAction>,
    ) {
        let answer = |reply| DirectoryAction::Answer { shard: from.0, token: from.1, reply };
        let Some(entry) = self.by_tsih.get_mut(&tsih).filter(|entry| entry.successor.is_none()) else {
            // A later login of the same name has overtaken it.
            self.remove_session(tsih, actions);
            return actions.push(answer(AdmissionReply::NoSuchSession));
        };
        let old = entry.shard;
        entry.refused.push(old);
        let (preference, refused) = (entry.preference.clone(), entry.refused.clone());
        let Some(shard) = self.choose_shard(from.0, &preference, &refused) else {
            self.remove_session(tsih, actions);
            return actions.push(answer(AdmissionReply::Full));
        };
        self.adjust_session_count(old, -1);
        self.adjust_session_count(shard, 1);
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.shard = shard;
        }
        actions.push(answer(AdmissionReply::Granted { tsih, shard, new: true }));
    }

    /// A session has ended, or never came to be.
    pub fn remove_session(&mut self, tsih: Tsih, actions: &mut Vec<DirectoryAction>) {
        let Some(entry) = self.by_tsih.remove(&tsih) else { return };
        self.by_name.remove(&entry.name);
        self.adjust_session_count(entry.shard, -1);
        if let Some(successor) = entry.successor {
            self.create_session(successor, actions);
        }
    }

    /// One of a session's connections has ended while the session goes on.
    pub fn remove_connection(&mut self, tsih: Tsih, cid: Cid) {
        if let Some(entry) = self.by_tsih.get_mut(&tsih) {
            entry.connections.retain(|(known, _)| *known != cid);
        }
    }
}

fn reply_action(request: &AdmissionRequest, reply: AdmissionReply) -> DirectoryAction {
    DirectoryAction::Answer { shard: request.from.0, token: request.from.1, reply }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};
    use std::sync::Arc;

    use endpoint::{AcceptedSocket, ListenerId};
    use iscsi::wire::Isid;

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
    fn from(host: u8) -> AcceptedSocket {
        let peer = SocketAddr::from(([192, 0, 2, host], 1024));
        AcceptedSocket { listener: ListenerId(0), local: peer, peer, cpu: None }
    }

    fn host(accepted: &AcceptedSocket) -> usize {
        match accepted.peer.ip() {
            IpAddr::V4(ip) => usize::from(ip.octets()[3]),
            IpAddr::V6(_) => 0,
        }
    }

    /// A rule for each address, with users.
    fn by_address(_: &SessionName, accepted: &AcceptedSocket) -> Option<MatchedRule> {
        Some(MatchedRule { rule: Some(host(accepted)), proves: true })
    }

    fn admit(directory: &mut SessionDirectory, request: AdmissionRequest) -> Vec<DirectoryAction> {
        admit_by(directory, request, &by_address)
    }

    fn admit_by(
        directory: &mut SessionDirectory,
        request: AdmissionRequest,
        rules: RuleLookup<'_>,
    ) -> Vec<DirectoryAction> {
        let mut actions = Vec::new();
        directory.admit(request, rules, &mut actions);
        actions
    }

    fn granted(actions: &[DirectoryAction]) -> (Tsih, ShardId) {
        match actions {
            [DirectoryAction::Answer { reply: AdmissionReply::Granted { tsih, shard, .. }, .. }] => {
                (*tsih, *shard)
            }
            other => panic!("not granted: {other:?}"),
        }
    }

    fn reply(actions: &[DirectoryAction]) -> AdmissionReply {
        match actions {
            [DirectoryAction::Answer { reply, .. }] => *reply,
            other => panic!("no answer: {other:?}"),
        }
    }

    /// CHAP was turned on while a session lived that had proved nothing: its own initiator, which proves now who it is,
    /// replaces it at once. Who came by another rule, or proves less, does not.
    #[test]
    fn an_initiator_that_must_prove_now_who_it_is_is_not_kept_out_by_its_own_session() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let by = |user: Option<&str>, host, token| AdmissionRequest {
            user: user.map(Into::into),
            accepted: from(host),
            ..request(1, 0, 0, token)
        };
        let (old, _) = granted(&admit(&mut directory, by(None, 1, 1)));
        assert_eq!(reply(&admit(&mut directory, by(Some("mallory"), 2, 2))), AdmissionReply::NotTheirs);
        let actions = admit(&mut directory, by(Some("alice"), 1, 3));
        assert!(matches!(actions[..], [DirectoryAction::End { tsih, .. }] if tsih == old), "{actions:?}");
        let mut actions = Vec::new();
        directory.remove_session(old, &mut actions);
        granted(&actions);
        assert_eq!(reply(&admit(&mut directory, by(None, 1, 4))), AdmissionReply::NotTheirs);
        // And when CHAP is turned off again, nothing that it does not ask for keeps it out.
        let off = |_: &SessionName, accepted: &AcceptedSocket| {
            Some(MatchedRule { rule: Some(host(accepted)), proves: false })
        };
        assert!(matches!(admit_by(&mut directory, by(None, 1, 5), &off)[..], [DirectoryAction::End { .. }]));
    }

    /// A reload puts a rule in front of all: an initiator's own rule stands elsewhere now, and is its own still.
    #[test]
    fn a_rule_that_is_put_before_others_keeps_nobody_out_of_their_own_session() {
        let after = |_: &SessionName, accepted: &AcceptedSocket| {
            Some(MatchedRule { rule: Some(host(accepted) + 1), proves: true })
        };
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        granted(&admit_by(&mut directory, request(1, tsih.value(), 1, 2), &after));
        let stranger = AdmissionRequest { accepted: from(2), ..request(1, 0, 0, 3) };
        assert_eq!(reply(&admit_by(&mut directory, stranger, &after)), AdmissionReply::NotTheirs);
        assert!(matches!(
            admit_by(&mut directory, request(1, 0, 0, 4), &after)[..],
            [DirectoryAction::End { .. }]
        ));
    }

    /// A rule that came, or went, parts the connections of a session: none joins it any more, who has one of its
    /// connections' rules may replace it, and so may anybody who is let in where it is not.
    #[test]
    fn a_session_is_judged_by_the_rules_of_now() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let one = |_: &SessionName, _: &AcceptedSocket| Some(MatchedRule { rule: Some(0), proves: true });
        let (tsih, _) = granted(&admit_by(&mut directory, request(1, 0, 0, 1), &one));
        let second = |tsih, token| AdmissionRequest { accepted: from(2), ..request(1, tsih, 1, token) };
        granted(&admit_by(&mut directory, second(tsih.value(), 2), &one));
        assert_eq!(reply(&admit(&mut directory, second(tsih.value(), 3))), AdmissionReply::NoSuchSession);
        let third = AdmissionRequest { accepted: from(3), ..request(1, 0, 0, 4) };
        assert_eq!(reply(&admit(&mut directory, third.clone())), AdmissionReply::NotTheirs);
        let none = |_: &SessionName, accepted: &AcceptedSocket| {
            (host(accepted) == 3).then_some(MatchedRule { rule: Some(0), proves: true })
        };
        assert_eq!(reply(&admit_by(&mut directory, second(0, 5), &none)), AdmissionReply::NotTheirs);
        assert!(matches!(admit_by(&mut directory, third, &none)[..], [DirectoryAction::End { .. }]));
        // Between two connections it is judged by the latest.
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        directory.remove_connection(tsih, Cid::new(0));
        assert_eq!(reply(&admit(&mut directory, second(tsih.value(), 2))), AdmissionReply::NoSuchSession);
        granted(&admit(&mut directory, request(1, tsih.value(), 0, 3)));
    }

    #[test]
    fn sessions_spread_over_shards_and_near_first() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let (_, first) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        let (_, second) = granted(&admit(&mut directory, request(2, 0, 0, 2)));
        assert_eq!((first, second), (ShardId(1), ShardId(0)));
    }

    #[test]
    fn a_rule_narrows_down_where_sessions_live() {
        let mut directory = SessionDirectory::new(4, SESSIONS_MAX);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(3), ShardId(2)]));
        let mut place = |isid, among: &Option<Arc<[ShardId]>>| {
            granted(&admit(
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
        let old = granted(&admit(&mut directory, request(6, 0, 0, 1))).0;
        let again = AdmissionRequest {
            preference: ShardPreference { among, ..ShardPreference::default() },
            ..request(6, 0, 0, 2)
        };
        assert!(matches!(admit(&mut directory, again)[..], [DirectoryAction::End { .. }]));
        let mut actions = Vec::new();
        directory.remove_session(old, &mut actions);
        assert_eq!(granted(&actions).1, ShardId(2));
    }

    #[test]
    fn sessions_follow_their_queue_in_balance() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let preference = ShardPreference { queue: Some(ShardId(0)), ..ShardPreference::default() };
        let placed: Vec<u16> = (1..=8)
            .map(|isid| {
                granted(&admit(
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
        let mut directory = SessionDirectory::new(3, SESSIONS_MAX);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(0), ShardId(1)]));
        let (tsih, shard) = granted(&admit(
            &mut directory,
            AdmissionRequest {
                preference: ShardPreference { among, ..ShardPreference::default() },
                ..request(1, 0, 0, 1)
            },
        ));
        assert_eq!(shard, ShardId(1));
        let elsewhere = |directory: &mut SessionDirectory| {
            let mut actions = Vec::new();
            directory.retry_on_other_shard(tsih, (ShardId(1), 1), &mut actions);
            actions
        };
        assert_eq!(granted(&elsewhere(&mut directory)), (tsih, ShardId(0)));
        assert_eq!(directory.load, [1, 0, 0]);
        assert_eq!(reply(&elsewhere(&mut directory)), AdmissionReply::Full, "the rule leaves no other");
        assert!(directory.by_tsih.is_empty() && directory.load == [0, 0, 0]);
        // The next of its name begins again.
        let (tsih, _) = granted(&admit(&mut directory, request(1, 0, 0, 2)));
        // What a later login has overtaken is not placed again.
        assert!(matches!(admit(&mut directory, request(1, 0, 0, 3))[..], [DirectoryAction::End { .. }]));
        let mut actions = Vec::new();
        directory.retry_on_other_shard(tsih, (ShardId(1), 2), &mut actions);
        assert_eq!(reply(&actions[1..]), AdmissionReply::NoSuchSession);
        granted(&actions[..1]);
    }

    #[test]
    fn a_connection_joins_up_to_the_limit() {
        let mut directory = SessionDirectory::new(1, SESSIONS_MAX);
        let mut first = request(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&admit(&mut directory, first));
        granted(&admit(&mut directory, request(1, tsih.value(), 1, 2)));
        assert_eq!(
            reply(&admit(&mut directory, request(1, tsih.value(), 2, 3))),
            AdmissionReply::TooManyConnections
        );
        // The same CID again reinstates that connection.
        granted(&admit(&mut directory, request(1, tsih.value(), 1, 4)));
        directory.remove_connection(tsih, Cid::new(1));
        granted(&admit(&mut directory, request(1, tsih.value(), 2, 5)));
    }

    #[test]
    fn a_full_directory_refuses_the_new_and_lets_the_old_come_back() {
        let mut directory = SessionDirectory::new(2, 2);
        let (first, _) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        granted(&admit(&mut directory, request(2, 0, 0, 2)));
        assert_eq!(reply(&admit(&mut directory, request(3, 0, 0, 3))), AdmissionReply::Full);
        // A connection more is no session more; nor is a session in place of another.
        granted(&admit(&mut directory, request(1, first.value(), 1, 4)));
        assert!(matches!(admit(&mut directory, request(1, 0, 0, 5))[..], [DirectoryAction::End { .. }]));
        let mut actions = Vec::new();
        directory.remove_session(first, &mut actions);
        let (second, _) = granted(&actions);
        directory.remove_session(second, &mut Vec::new());
        granted(&admit(&mut directory, request(3, 0, 0, 6)));
    }

    #[test]
    fn attack_17_the_tsih_of_another_initiator_names_nothing() {
        let mut directory = SessionDirectory::new(1, SESSIONS_MAX);
        let mut first = request(1, 0, 0, 1);
        first.from.0 = ShardId(0);
        let (tsih, _) = granted(&admit(&mut directory, first));
        assert_eq!(
            reply(&admit(&mut directory, request(9, tsih.value(), 0, 2))),
            AdmissionReply::NoSuchSession
        );
        let mut other = request(1, tsih.value(), 0, 3);
        other.name.initiator = "iqn.2026-11.test:thief".into();
        assert_eq!(reply(&admit(&mut directory, other)), AdmissionReply::NoSuchSession);
    }

    #[test]
    fn attack_17_who_got_in_by_other_means_takes_no_session_over() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let (tsih, _) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        for (user, host) in [(Some("alice"), 2), (Some("mallory"), 1), (None, 1)] {
            let by =
                |request| AdmissionRequest { user: user.map(Into::into), accepted: from(host), ..request };
            let join = by(request(1, tsih.value(), 1, 2));
            assert_eq!(reply(&admit(&mut directory, join)), AdmissionReply::NoSuchSession);
            let replace = by(request(1, 0, 0, 3));
            assert_eq!(reply(&admit(&mut directory, replace)), AdmissionReply::NotTheirs);
        }
        granted(&admit(&mut directory, request(1, tsih.value(), 1, 4)));
    }

    #[test]
    fn reinstatement_waits_for_the_old_session() {
        let mut directory = SessionDirectory::new(2, SESSIONS_MAX);
        let (old, shard) = granted(&admit(&mut directory, request(1, 0, 0, 1)));
        assert_eq!(admit(&mut directory, request(1, 0, 0, 2)), [DirectoryAction::End { shard, tsih: old }]);
        // Nothing joins a session that is about to end.
        assert_eq!(
            reply(&admit(&mut directory, request(1, old.value(), 5, 3))),
            AdmissionReply::NoSuchSession
        );
        let mut actions = Vec::new();
        directory.remove_session(old, &mut actions);
        let (new, _) = granted(&actions);
        assert_ne!(new, old);
        assert_eq!(directory.by_tsih.len(), 1);
    }
}
